//! Counts as text.

use super::{Counts, Setting};

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
        let kinds = counts.between.keys().chain(counts.work.keys()).collect::<std::collections::BTreeSet<_>>();
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
    let mut text = String::new();
    for (setting, counts) in runs {
        let Counts { calls, requests, data_bytes, connections, index_bytes, .. } = counts;
        let between: Vec<_> = counts
            .between
            .iter()
            .map(|(kind, traffic)| {
                format!(
                    "\"{}\": {{\"messages\": {}, \"bytes\": {}, \"longest\": {}}}",
                    kind.text(),
                    traffic.messages,
                    traffic.bytes,
                    traffic.longest
                )
            })
            .collect();
        let work: Vec<_> = counts
            .work
            .iter()
            .map(|(kind, work)| {
                format!(
                    "\"{}\": {{\"times\": {}, \"microseconds\": {:.2}}}",
                    kind.text(),
                    work.times(),
                    work.usual().as_secs_f64() * 1e6
                )
            })
            .collect();
        let traffic = counts.messages();
        text += &format!(
            "{{\"nodes\": {}, \"ranks\": {}, \"pattern\": \"{}\", \"records\": {}, \"data_bytes\": {data_bytes}, ",
            setting.nodes,
            setting.ranks(),
            pattern(setting),
            setting.records,
        );
        text += &format!(
            "\"calls\": {calls}, \"requests\": {requests}, \"index_bytes\": {index_bytes}, \
             \"connections\": {connections}, \"messages\": {}, \"message_bytes\": {}, ",
            traffic.messages, traffic.bytes,
        );
        text += &format!("\"between\": {{{}}}, \"shard\": {{{}}}}}\n", between.join(", "), work.join(", "));
    }
    text
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
