//! `weft bench data`.

use super::crew::{Crew, Measured};
use super::phase::{Phase, Setup, Transfer};
use super::{Playground, median_index};
use crate::failure::{Ending, Failure, Outcome};
use crate::output::{self, note};
use crate::quantity::{ByteSize, bytes_text};
use crate::table::Table;
use crate::verb::bench::{DataArgs, WayName};
use serde::Serialize;

/// Largest request: its buffer is memory of every process.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    name: String,
    size: u64,
    processes: usize,
    runs: usize,
    direct: bool,
    one_file: bool,
    results: Vec<Row>,
}

/// One line of the result.
#[derive(Serialize)]
pub struct Row {
    operation: &'static str,
    way: WayName,
    request: u64,
    bytes: u64,
    bytes_per_second: f64,
    bytes_per_second_min: f64,
    bytes_per_second_max: f64,
    seconds: f64,
    client_cpu_seconds: f64,
    node_cpu_seconds: f64,
    descriptor_bytes: u64,
    unix_bytes: u64,
    tcp_bytes: u64,
    ucx_bytes: u64,
    data_requests: u64,
}

/// Runs the benchmark.
pub fn run(args: &DataArgs) -> Outcome {
    args.common.check()?;
    let size = args.size.0;
    if size == 0 {
        return Err(Failure::new("--size 0: nothing would be measured"));
    }
    check_requests(&args.request)?;
    let (name, results) = Playground::with(args.name.as_deref(), |playground| measure(args, playground))?;
    let (processes, runs) = (args.common.processes, args.common.runs);
    let report = Report { name, size, processes, runs, direct: args.direct, one_file: args.one_file, results };
    output::print_either(args.common.json, &report, || text(&report))?;
    Ok(Ending::Done)
}

/// Refuses requests that measure nothing.
pub fn check_requests(requests: &[ByteSize]) -> Outcome<()> {
    if requests.iter().any(|request| request.0 == 0 || request.0 > REQUEST_BYTES_MAX) {
        return Err(Failure::new("requests of nothing, and of more than 1 GiB, measure nothing"));
    }
    Ok(())
}

fn measure(args: &DataArgs, playground: &Playground) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    let mut seed = 0;
    for way in &args.common.way {
        let setups = (0..args.common.processes).map(|index| Setup {
            name: playground.instance().map.name.clone(),
            way: *way,
            registration: None,
            rpc: None,
            mounted: None,
            index,
            directory: String::from_utf8_lossy(playground.path()).into_owned(),
        });
        let mut crew = Crew::start(playground.instance(), setups)?;
        for request in &args.request {
            let (mut writes, mut reads) = (Vec::new(), Vec::new());
            for run in 1..=args.common.runs {
                seed += 1;
                playground.empty()?;
                let turns = if args.one_file { args.common.processes as u64 } else { 1 };
                let (size, direct) = (args.size.0, args.direct);
                let transfer = Transfer { size, request: request.0, direct, timed: false, turns, seed };
                writes.push(crew.perform(&Phase::Write(transfer.clone()))?);
                reads.push(crew.perform(&Phase::Read(transfer))?);
                if output::story_is_watched() {
                    let shown = bytes_text(request.0);
                    note(format_args!("way {way:?}, requests of {shown}: run {run} of {}", args.common.runs));
                }
            }
            rows.push(Row::new("write", *way, request.0, &writes));
            rows.push(Row::new("read", *way, request.0, &reads));
        }
    }
    Ok(rows)
}

impl Row {
    fn new(operation: &'static str, way: WayName, request: u64, runs: &[Measured]) -> Self {
        let rate = |run: &Measured| run.done.bytes as f64 / run.took.as_secs_f64().max(1e-9);
        let rates: Vec<f64> = runs.iter().map(rate).collect();
        let index = median_index(&rates);
        let median = runs.get(index).cloned().unwrap_or_default();
        Self {
            operation,
            way,
            request,
            bytes: median.done.bytes,
            bytes_per_second: rates.get(index).copied().unwrap_or(0.0),
            bytes_per_second_min: rates.iter().copied().reduce(f64::min).unwrap_or(0.0),
            bytes_per_second_max: rates.iter().copied().reduce(f64::max).unwrap_or(0.0),
            seconds: median.took.as_secs_f64(),
            client_cpu_seconds: median.done.cpu_seconds,
            node_cpu_seconds: median.node_cpu.as_secs_f64(),
            descriptor_bytes: median.done.descriptor_bytes,
            unix_bytes: median.done.unix_bytes,
            tcp_bytes: median.done.tcp_bytes,
            ucx_bytes: median.done.ucx_bytes,
            data_requests: median.done.data_requests,
        }
    }

    /// A row for tests of its shape.
    #[cfg(test)]
    pub fn example() -> Self {
        Self::new("write", WayName::Auto, 4096, &[Measured::default()])
    }

    /// Which way the bytes went, in shares.
    fn shares(&self) -> String {
        let ways = [
            ("descriptor", self.descriptor_bytes),
            ("unix", self.unix_bytes),
            ("tcp", self.tcp_bytes),
            ("ucx", self.ucx_bytes),
        ];
        let all: u64 = ways.iter().map(|(_, bytes)| bytes).sum();
        let share = |bytes: u64| (bytes as f64 * 100.0 / all as f64).round();
        let used = ways.iter().filter(|(_, bytes)| *bytes > 0);
        let texts: Vec<String> = used.map(|(name, bytes)| format!("{name} {}%", share(*bytes))).collect();
        if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
    }
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&[
        "WAY",
        ">REQUEST",
        "OPERATION",
        ">MEDIAN",
        ">LOWEST",
        ">HIGHEST",
        ">CPU CLIENTS",
        ">CPU NODES",
        "WAY THE BYTES WENT",
    ]);
    let rate = |bytes: f64| format!("{}/s", bytes_text(bytes as u64));
    for row in &report.results {
        table.row([
            format!("{:?}", row.way).to_lowercase(),
            bytes_text(row.request),
            row.operation.to_owned(),
            rate(row.bytes_per_second),
            rate(row.bytes_per_second_min),
            rate(row.bytes_per_second_max),
            format!("{:.2} s", row.client_cpu_seconds),
            format!("{:.2} s", row.node_cpu_seconds),
            row.shares(),
        ]);
    }
    let (name, processes, runs) = (&report.name, report.processes, report.runs);
    let place = if report.one_file { " in one file" } else { "" };
    format!("{name}: {processes} processes, {} each{place}, median of {runs} runs\n{table}", bytes_text(report.size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::phase::Done;
    use std::time::Duration;

    #[test]
    fn a_row_is_the_median_run() {
        let run = |milliseconds, unix_bytes| Measured {
            took: Duration::from_millis(milliseconds),
            done: Done { bytes: 1 << 30, unix_bytes, tcp_bytes: (1 << 30) - unix_bytes, ..Done::default() },
            node_cpu: Duration::from_millis(milliseconds / 2),
        };
        let row = Row::new("read", WayName::Unix, 4096, &[run(500, 0), run(2000, 0), run(1000, 1 << 29)]);
        assert_eq!(row.bytes_per_second, (1_u64 << 30) as f64);
        assert_eq!((row.bytes_per_second_min, row.seconds, row.node_cpu_seconds), ((1_u64 << 29) as f64, 1.0, 0.5));
        assert_eq!(row.shares(), "unix 50%, tcp 50%");
        let report = Report {
            name: "w".into(),
            size: 1,
            processes: 1,
            runs: 3,
            direct: false,
            one_file: false,
            results: vec![row],
        };
        assert!(text(&report).contains("unix  4.0 KiB  read"), "{}", text(&report));
    }
}
