//! Counts as text.

use super::counts::{Traffic, Work};
use super::{Counts, Setting};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A table of the counts, and one of what they consist of.
pub fn table(runs: &[(Setting, Counts)]) -> String {
    let mut text = header(&[
        "nodes",
        "ranks",
        "pattern",
        "data between nodes, bytes",
        "calls per rank",
        "requests of all kinds per rank",
        "index bytes per rank",
        "messages between nodes per rank",
        "KiB of them per rank",
        "connections between nodes per rank",
    ]);
    for (setting, counts) in runs {
        let per_rank = |count: u64| PerRank { count, ranks: setting.ranks() };
        let between = counts.messages();
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            setting.nodes,
            setting.ranks(),
            pattern(setting),
            counts.data_bytes,
            per_rank(counts.calls).text(2),
            per_rank(counts.requests).text(2),
            per_rank(counts.index_bytes).text(0),
            per_rank(between.messages).text(2),
            PerRank { count: between.bytes, ranks: setting.ranks() * 1024 }.text(1),
            per_rank(counts.connections).text(2),
        );
    }
    text.push('\n');
    text += &header(&[
        "nodes",
        "ranks",
        "pattern",
        "of which",
        "events of the shard per rank",
        "microseconds of the shard each, median",
        "seconds of the shard in all",
        "messages between nodes per rank",
        "bytes of them per rank",
        "the longest",
    ]);
    for (setting, counts) in runs {
        let kinds = counts.between.keys().chain(counts.work.keys()).collect::<BTreeSet<_>>();
        for kind in kinds {
            let traffic = counts.between.get(kind).copied().unwrap_or_default();
            let work = counts.work.get(kind).cloned().unwrap_or_default();
            let (times, usual) = (work.times(), work.usual().as_secs_f64());
            let per_rank = |count: u64| PerRank { count, ranks: setting.ranks() }.text(2);
            text += &format!(
                "| {} | {} | {} | {} | {} | {:.1} | {:.3} | {} | {} | {} |\n",
                setting.nodes,
                setting.ranks(),
                pattern(setting),
                kind.text(),
                per_rank(times),
                usual * 1e6,
                usual * f64::from(u32::try_from(times).expect("each event has its place in memory")),
                per_rank(traffic.messages),
                per_rank(traffic.bytes),
                traffic.longest,
            );
        }
    }
    text
}

/// The same, a line of JSON for each run.
pub fn json(runs: &[(Setting, Counts)]) -> String {
    let line = |(setting, counts): &(Setting, Counts)| {
        let between = counts.messages();
        let run = Run {
            nodes: setting.nodes,
            ranks: setting.ranks(),
            pattern: pattern(setting),
            records: setting.records,
            data_bytes: counts.data_bytes,
            calls: counts.calls,
            requests: counts.requests,
            index_bytes: counts.index_bytes,
            connections: counts.connections,
            messages: between.messages,
            message_bytes: between.bytes,
            between: counts.between.iter().map(|(kind, traffic)| (kind.text(), *traffic)).collect(),
            shard: counts.work.iter().map(|(kind, work)| (kind.text(), Events::of(work))).collect(),
        };
        serde_json::to_string(&run).expect("a run has numbers and names") + "\n"
    };
    runs.iter().map(line).collect()
}

/// A run in JSON.
#[derive(Serialize)]
struct Run {
    nodes: u16,
    ranks: u32,
    pattern: &'static str,
    records: u32,
    data_bytes: u64,
    calls: u64,
    requests: u64,
    index_bytes: u64,
    connections: u64,
    messages: u64,
    message_bytes: u64,
    between: BTreeMap<&'static str, Traffic>,
    shard: BTreeMap<&'static str, Events>,
}

/// Events of a shard in JSON.
#[derive(Serialize)]
struct Events {
    times: u64,
    /// Of one, the median.
    microseconds: f64,
}

impl Events {
    fn of(work: &Work) -> Self {
        Self { times: work.times(), microseconds: (work.usual().as_secs_f64() * 1e8).round() / 1e2 }
    }
}

/// The first two lines of a table. What is no number says so by its name.
fn header(columns: &[&str]) -> String {
    let is_text = |column: &&str| matches!(*column, "pattern" | "of which");
    let lines = columns.iter().map(|column| if is_text(column) { "---|" } else { "--:|" });
    format!("| {} |\n|{}\n", columns.join(" | "), lines.collect::<String>())
}

fn pattern(setting: &Setting) -> &'static str {
    if setting.is_strided { "strided" } else { "segmented" }
}

/// A count as so much per rank.
struct PerRank {
    count: u64,
    ranks: u32,
}

impl PerRank {
    /// With so many decimals, rounded.
    fn text(&self, decimals: u32) -> String {
        let (unit, ranks) = (10_u64.pow(decimals), u64::from(self.ranks));
        let scaled = (self.count * unit + ranks / 2) / ranks;
        match decimals {
            0 => scaled.to_string(),
            _ => format!("{}.{:0width$}", scaled / unit, scaled % unit, width = decimals as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::Kind;
    use std::time::Duration;

    #[test]
    fn a_run_is_a_line_of_json() {
        let setting =
            Setting { nodes: 2, ranks_per_node: 3, records: 4, bytes: 5, is_strided: true, reads_next: false };
        let mut counts = Counts { calls: 1, requests: 2, ..Counts::default() };
        counts.add(Kind::Data, 100);
        counts.add(Kind::Publication, 7);
        counts.took(Kind::Publication, Duration::from_nanos(1_234));
        let line = "{\"nodes\":2,\"ranks\":6,\"pattern\":\"strided\",\"records\":4,\"data_bytes\":0,\"calls\":1,\
                    \"requests\":2,\"index_bytes\":0,\"connections\":0,\"messages\":2,\"message_bytes\":107,\
                    \"between\":{\"data\":{\"messages\":1,\"bytes\":100,\"longest\":100},\
                    \"publications\":{\"messages\":1,\"bytes\":7,\"longest\":7}},\
                    \"shard\":{\"publications\":{\"times\":1,\"microseconds\":1.23}}}\n";
        assert_eq!(json(&[(setting, counts.clone()), (setting, counts)]), [line, line].concat());
    }
}
