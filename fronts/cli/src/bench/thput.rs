//! `weft bench thput`: transports beside each other, over sizes of requests and numbers of processes, also through
//! mounts.
//!
//! The shape is that of figures 5 to 9 of "RDMA access in the Gfarm file system" (Tatebe and others, 2017). Transports
//! take turns in each run, so that what else the machine does hits all of them.

mod column;
mod mounts;
mod plot;

use super::crew::{Crew, Measured};
use super::phase::{Phase, Transfer};
use super::{Playground, median_index};
use crate::failure::{Ending, Failure, Outcome};
use crate::output::{self, note};
use crate::quantity::bytes_text;
use crate::table::Table;
use crate::verb::bench::{Front, ThputArgs};
use column::Column;
use mounts::MountPair;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    name: String,
    size: u64,
    runs: usize,
    direct: bool,
    results: Vec<Row>,
}

/// One column in one cell.
#[derive(Serialize)]
pub struct Row {
    operation: &'static str,
    processes: usize,
    request: u64,
    #[serde(flatten)]
    column: Column,
    bytes_per_second: f64,
    bytes_per_second_min: f64,
    bytes_per_second_max: f64,
    /// The median of what the runs had beside the first column in the same run.
    ratio_to_first: f64,
    /// Half of the requests took no longer than this, and 99 of 100 no longer than that; of the slowest process.
    p50_us: f64,
    p99_us: f64,
    /// With that of the mount's processes.
    client_cpu_seconds_per_gib: f64,
    node_cpu_seconds_per_gib: f64,
}

/// Which cell a run is of: operation, processes, request.
type Cell = (&'static str, usize, u64);

/// Runs the benchmark.
pub fn run(args: &ThputArgs) -> Outcome {
    args.check()?;
    let (name, results) = Playground::with(args.name.as_deref(), |playground| measure(args, playground))?;
    let report = Report { name, size: args.size.0, runs: args.runs, direct: args.direct, results };
    output::print_either(args.json, &report, || text(&report))?;
    if let Some(path) = &args.plot {
        plot::draw(&report, path)?;
        note(format_args!("drawn in {}", path.display()));
    }
    Ok(Ending::Done)
}

fn measure(args: &ThputArgs, playground: &Playground) -> Outcome<Vec<Row>> {
    let columns = Column::of(args);
    let mount = |(number, column): (usize, &Column)| match column.front {
        Front::Native => Ok(None),
        Front::Mount | Front::MountDirect => MountPair::new(playground.instance(), column, number).map(Some),
    };
    let mounts: Vec<Option<MountPair>> = columns.iter().enumerate().map(mount).collect::<Outcome<_>>()?;
    // By cell: of each column its runs.
    let mut runs: BTreeMap<Cell, Vec<Vec<Measured>>> = BTreeMap::new();
    let mut seed = 0;
    for &processes in &args.processes {
        let start = |(column, mounts): (&Column, &Option<MountPair>)| {
            Crew::start(playground.instance(), column.setups(playground, mounts.as_ref(), processes))
        };
        let mut crews: Vec<Crew> = columns.iter().zip(&mounts).map(start).collect::<Outcome<_>>()?;
        for request in &args.request {
            for run in 1..=args.runs {
                for (index, (crew, mounts)) in crews.iter_mut().zip(&mounts).enumerate() {
                    seed += 1;
                    playground.empty()?;
                    let size = args.size.0 / processes as u64;
                    let direct = args.direct;
                    let transfer = Transfer { size, request: request.0, direct, timed: true, turns: 1, seed };
                    for (operation, phase) in
                        [("write", Phase::Write(transfer.clone())), ("read", Phase::Read(transfer))]
                    {
                        let measured = perform(crew, mounts.as_ref(), &phase)?;
                        let cell = runs.entry((operation, processes, request.0)).or_default();
                        cell.resize_with(columns.len(), Vec::new);
                        if let Some(runs) = cell.get_mut(index) {
                            runs.push(measured);
                        }
                    }
                }
                if output::story_is_watched() {
                    let shown = bytes_text(request.0);
                    note(format_args!("{processes} processes, requests of {shown}: run {run} of {}", args.runs));
                }
            }
        }
    }
    Ok(runs.iter().flat_map(|(cell, found)| rows(&columns, *cell, found)).collect())
}

/// One phase; what the mounts' processes take for it is the clients'.
fn perform(crew: &mut Crew, mounts: Option<&MountPair>, phase: &Phase) -> Outcome<Measured> {
    let cpu_time = || mounts.map_or(Duration::ZERO, MountPair::cpu_time);
    let before = cpu_time();
    let mut measured = crew.perform(phase)?;
    measured.done.cpu_seconds += cpu_time().saturating_sub(before).as_secs_f64();
    Ok(measured)
}

fn rate(run: &Measured) -> f64 {
    run.done.bytes as f64 / run.took.as_secs_f64().max(1e-9)
}

fn rows(columns: &[Column], (operation, processes, request): Cell, found: &[Vec<Measured>]) -> Vec<Row> {
    let first = found.first().map(Vec::as_slice).unwrap_or_default();
    let of = |(column, runs): (&Column, &Vec<Measured>)| {
        let rates: Vec<f64> = runs.iter().map(rate).collect();
        let ratios: Vec<f64> = runs.iter().zip(first).map(|(run, first)| rate(run) / rate(first)).collect();
        let index = median_index(&rates);
        let median = runs.get(index).cloned().unwrap_or_default();
        let gib = (median.done.bytes as f64 / GIB).max(1e-12);
        Row {
            operation,
            processes,
            request,
            column: *column,
            bytes_per_second: rates.get(index).copied().unwrap_or(0.0),
            bytes_per_second_min: rates.iter().copied().reduce(f64::min).unwrap_or(0.0),
            bytes_per_second_max: rates.iter().copied().reduce(f64::max).unwrap_or(0.0),
            ratio_to_first: ratios.get(median_index(&ratios)).copied().unwrap_or(0.0),
            p50_us: median.done.p50_us,
            p99_us: median.done.p99_us,
            client_cpu_seconds_per_gib: median.done.cpu_seconds / gib,
            node_cpu_seconds_per_gib: median.node_cpu.as_secs_f64() / gib,
        }
    };
    columns.iter().zip(found).map(of).collect()
}

/// A table for each operation and number of processes; a row for each request and column.
fn text(report: &Report) -> String {
    let mut text =
        format!("{}: {} over all processes, medians of {} runs\n", report.name, bytes_text(report.size), report.runs);
    let mut groups: BTreeMap<(&str, usize), Vec<&Row>> = BTreeMap::new();
    for row in &report.results {
        groups.entry((row.operation, row.processes)).or_default().push(row);
    }
    for ((operation, processes), rows) in &groups {
        let mut table = Table::new(&[
            ">REQUEST",
            "TRANSPORT",
            ">MIB/S",
            ">LEAST",
            ">MOST",
            ">RATIO",
            ">P50 US",
            ">P99 US",
            ">CLIENT S/GIB",
            ">NODE S/GIB",
        ]);
        let mut last = None;
        for row in rows {
            let mib = |rate: f64| format!("{:.0}", rate / f64::from(1 << 20));
            // The same request is said once.
            let request =
                if last.replace(row.request) == Some(row.request) { String::new() } else { bytes_text(row.request) };
            table.row([
                request,
                row.column.to_string(),
                mib(row.bytes_per_second),
                mib(row.bytes_per_second_min),
                mib(row.bytes_per_second_max),
                format!("{:.2}", row.ratio_to_first),
                format!("{:.1}", row.p50_us),
                format!("{:.1}", row.p99_us),
                format!("{:.2}", row.client_cpu_seconds_per_gib),
                format!("{:.2}", row.node_cpu_seconds_per_gib),
            ]);
        }
        text.push_str(&format!("\n{operation}, {processes} processes\n{table}"));
    }
    text
}

impl ThputArgs {
    /// Refuses what measures nothing.
    fn check(&self) -> Outcome<()> {
        let processes_max = self.processes.iter().copied().max().unwrap_or(0);
        if self.processes.contains(&0) || processes_max > super::PROCESSES_MAX {
            return Err(Failure::new(format!("-p: numbers from 1 to {}", super::PROCESSES_MAX)));
        }
        if self.runs == 0 {
            return Err(Failure::new("--runs 0: nothing would be measured").remedy("--runs 1 or more"));
        }
        if self.size.0 < processes_max as u64 {
            return Err(Failure::new("--size: less than a byte for each process"));
        }
        super::data::check_requests(&self.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::phase::Done;
    use crate::verb::bench::{RpcName, Transport};

    const TCP: Column = Column { transport: Transport::Tcp, rpc: None, front: Front::Native };
    const DYNAMIC: Column = Column { transport: Transport::Dynamic, rpc: Some(RpcName::Am), front: Front::MountDirect };

    impl Row {
        /// A row for tests of its shape.
        pub fn example() -> Self {
            rows(&[TCP], ("read", 1, 4096), &[vec![Measured::default()]]).remove(0)
        }
    }

    fn run(milliseconds: u64) -> Measured {
        Measured {
            took: Duration::from_millis(milliseconds),
            done: Done { bytes: 1 << 30, cpu_seconds: 2.0, p50_us: 7.25, p99_us: 9.0, ..Done::default() },
            node_cpu: Duration::from_secs(1),
        }
    }

    fn report() -> Report {
        // The machine was slow in the second run: for both.
        let tcp = vec![run(1000), run(4000), run(1000)];
        let dynamic = vec![run(500), run(2000), run(400)];
        let results = rows(&[TCP, DYNAMIC], ("read", 1, 4096), &[tcp, dynamic]);
        Report { name: "w".into(), size: 1 << 30, runs: 3, direct: false, results }
    }

    #[test]
    fn ratios_are_of_runs_that_were_made_beside_each_other() {
        let report = report();
        let rows = &report.results;
        assert_eq!((rows[0].ratio_to_first, rows[1].ratio_to_first), (1.0, 2.0));
        assert_eq!((rows[1].client_cpu_seconds_per_gib, rows[1].node_cpu_seconds_per_gib), (2.0, 1.0));
        let text = text(&report);
        assert!(text.contains("read, 1 processes") && text.contains("dynamic am, mount direct"), "{text}");
        assert!(text.contains("2048    512  2560   2.00     7.2"), "{text}");
    }

    #[test]
    fn pictures_have_a_line_for_each_column() {
        let path = std::env::temp_dir().join(format!("weft-plot-{}.svg", std::process::id()));
        plot::draw(&report(), &path).expect("drawn");
        let drawn = std::fs::read_to_string(&path).expect("an SVG");
        std::fs::remove_file(&path).expect("removed");
        for text in ["read, 1 process", "tcp", "dynamic am, mount direct", "4.0 KiB", "MiB/s"] {
            assert!(drawn.contains(text), "{text}");
        }
        assert!(plot::draw(&report(), std::path::Path::new("/nowhere/x.svg")).is_err());
    }
}
