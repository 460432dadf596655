//! `weft bench meta`.

use super::crew::{Crew, Measured};
use super::phase::{Names, Phase, Setup};
use super::{Playground, median_index};
use crate::failure::{Ending, Failure, Outcome};
use crate::output::{self, note};
use crate::table::Table;
use crate::verb::bench::{MetaArgs, WayName};
use serde::Serialize;

/// Empty calls of each worker before the first phase.
const WARM_UP_CALLS: u64 = 20_000;

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    name: String,
    files: u64,
    processes: usize,
    runs: usize,
    shared: bool,
    spread: bool,
    results: Vec<Row>,
}

/// One line of the result.
#[derive(Serialize)]
pub struct Row {
    operation: &'static str,
    way: WayName,
    operations: u64,
    per_second: f64,
    per_second_min: f64,
    per_second_max: f64,
    seconds: f64,
    share_of_ping: f64,
    calls_per_operation: f64,
    client_cpu_seconds: f64,
    node_cpu_seconds: f64,
}

/// Runs the benchmark.
pub fn run(args: &MetaArgs) -> Outcome {
    args.common.check()?;
    if args.files == 0 || args.files > 100_000_000 {
        return Err(Failure::new(format!("--files {}: 1 to 100000000", args.files)));
    }
    let (name, results) = Playground::with(args.name.as_deref(), |playground| measure(args, playground))?;
    let (processes, runs) = (args.common.processes, args.common.runs);
    let (files, shared, spread) = (args.files, args.shared, args.spread);
    let report = Report { name, files, processes, runs, shared, spread, results };
    output::print_either(args.common.json, &report, || text(&report))?;
    Ok(Ending::Done)
}

fn measure(args: &MetaArgs, playground: &Playground) -> Outcome<Vec<Row>> {
    let directory = |worker: usize| if args.shared { "shared".to_owned() } else { format!("own-{worker}") };
    let workers = 0..args.common.processes;
    let names = Names {
        directories: workers.clone().map(directory).collect(),
        prefixes: workers.clone().map(|worker| format!("{worker}-")).collect(),
        files: args.files,
    };
    names.directories.iter().try_for_each(|directory| {
        playground.make(directory)?;
        if args.spread { playground.spread(directory) } else { Ok(()) }
    })?;
    let phases = [
        ("create", Phase::Create(names.clone())),
        ("stat", Phase::Stat(names.clone())),
        ("unlink", Phase::Unlink(names)),
        ("ping", Phase::Ping { count: args.files }),
    ];
    let mut rows = Vec::new();
    for way in &args.common.way {
        let setups = workers.clone().map(|index| Setup {
            name: playground.instance().map.name.clone(),
            way: *way,
            registration: None,
            rpc: None,
            mounted: None,
            index,
            directory: String::from_utf8_lossy(playground.path()).into_owned(),
        });
        let mut crew = Crew::start(playground.instance(), setups)?;
        // A worker that was just started shares a processor with the node for some tenths of a second, whichever phase
        // is the first. Calls like the ones that follow have the scheduler move it.
        crew.perform(&Phase::Ping { count: WARM_UP_CALLS })?;
        let mut measured: Vec<Vec<Measured>> = vec![Vec::new(); phases.len()];
        for run in 1..=args.common.runs {
            for ((_, phase), runs) in phases.iter().zip(&mut measured) {
                runs.push(crew.perform(phase)?);
            }
            if output::story_is_watched() {
                note(format_args!("way {way:?}: run {run} of {}", args.common.runs));
            }
        }
        let mut of_way: Vec<Row> =
            phases.iter().zip(&measured).map(|((operation, _), runs)| Row::new(operation, *way, runs)).collect();
        let ping = of_way.last().map_or(0.0, |ping| ping.per_second);
        of_way.iter_mut().for_each(|row| row.share_of_ping = row.per_second / ping.max(1e-9));
        rows.extend(of_way);
    }
    Ok(rows)
}

impl Row {
    fn new(operation: &'static str, way: WayName, runs: &[Measured]) -> Self {
        let rate = |run: &Measured| run.done.operations as f64 / run.took.as_secs_f64().max(1e-9);
        let rates: Vec<f64> = runs.iter().map(rate).collect();
        let index = median_index(&rates);
        let median = runs.get(index).cloned().unwrap_or_default();
        Self {
            operation,
            way,
            operations: median.done.operations,
            per_second: rates.get(index).copied().unwrap_or(0.0),
            per_second_min: rates.iter().copied().reduce(f64::min).unwrap_or(0.0),
            per_second_max: rates.iter().copied().reduce(f64::max).unwrap_or(0.0),
            seconds: median.took.as_secs_f64(),
            share_of_ping: 0.0,
            calls_per_operation: median.done.calls as f64 / median.done.operations.max(1) as f64,
            client_cpu_seconds: median.done.cpu_seconds,
            node_cpu_seconds: median.node_cpu.as_secs_f64(),
        }
    }

    /// A row for tests of its shape.
    #[cfg(test)]
    pub fn example() -> Self {
        Self::new("create", WayName::Auto, &[Measured::default()])
    }
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&[
        "WAY",
        "OPERATION",
        ">PER SECOND",
        ">LOWEST",
        ">HIGHEST",
        ">OF PING",
        ">CALLS",
        ">CPU CLIENTS",
        ">CPU NODES",
    ]);
    for row in &report.results {
        table.row([
            format!("{:?}", row.way).to_lowercase(),
            row.operation.to_owned(),
            format!("{:.0}", row.per_second),
            format!("{:.0}", row.per_second_min),
            format!("{:.0}", row.per_second_max),
            format!("{:.0}%", row.share_of_ping * 100.0),
            format!("{:.2}", row.calls_per_operation),
            format!("{:.2} s", row.client_cpu_seconds),
            format!("{:.2} s", row.node_cpu_seconds),
        ]);
    }
    let place = match (report.shared, report.spread) {
        (true, false) => "in one directory",
        (true, true) => "in one directory over all shards",
        (false, false) => "in directories of their own",
        (false, true) => "in directories of their own over all shards",
    };
    let (name, processes, files, runs) = (&report.name, report.processes, report.files, report.runs);
    format!("{name}: {processes} processes, {files} files each {place}, median of {runs} runs\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::phase::Done;
    use std::time::Duration;

    #[test]
    fn calls_are_per_operation() {
        let done = Done { operations: 200, calls: 100, ..Done::default() };
        let run = Measured { took: Duration::from_millis(100), done, node_cpu: Duration::ZERO };
        let row = Row::new("stat", WayName::Tcp, &[run]);
        assert_eq!((row.calls_per_operation, row.per_second.round()), (0.5, 2000.0));
        let report = Report {
            name: "w".into(),
            files: 200,
            processes: 1,
            runs: 1,
            shared: true,
            spread: false,
            results: vec![row],
        };
        assert!(text(&report).contains("tcp  stat             2000"), "{}", text(&report));
    }
}
