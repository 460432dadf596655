//! `weft bench thput`: transports beside each other, over sizes of requests and numbers of processes.
//!
//! The shape is that of figures 5 and 6 of "RDMA access in the Gfarm file system" (Tatebe and others, 2017). Transports
//! take turns in each run, so that what else the machine does hits all of them.

use super::crew::{Crew, Measured};
use super::phase::{Phase, Setup, Transfer};
use super::{Playground, median_index};
use crate::failure::{Ending, Failure, Outcome};
use crate::output::{self, note};
use crate::quantity::bytes_text;
use crate::table::Table;
use crate::verb::bench::{ThputArgs, Transport, WayName};
use serde::Serialize;
use std::collections::BTreeMap;
use weft_client::Registration;

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

/// One transport in one cell.
#[derive(Serialize)]
pub struct Row {
    operation: &'static str,
    processes: usize,
    request: u64,
    transport: Transport,
    bytes_per_second: f64,
    bytes_per_second_min: f64,
    bytes_per_second_max: f64,
    /// The median of what the runs had beside the first transport in the same run.
    ratio_to_first: f64,
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
    Ok(Ending::Done)
}

fn measure(args: &ThputArgs, playground: &Playground) -> Outcome<Vec<Row>> {
    // By cell: of each transport its runs, in the order of the arguments.
    let mut runs: BTreeMap<Cell, Vec<Vec<Measured>>> = BTreeMap::new();
    let mut seed = 0;
    for &processes in &args.processes {
        let start = |transport| Crew::start(playground.instance(), setups(playground, transport, processes));
        let mut crews: Vec<Crew> = args.transport.iter().copied().map(start).collect::<Outcome<_>>()?;
        for request in &args.request {
            for run in 1..=args.runs {
                for (index, crew) in crews.iter_mut().enumerate() {
                    seed += 1;
                    playground.empty()?;
                    let size = args.size.0 / processes as u64;
                    let transfer = Transfer { size, request: request.0, direct: args.direct, seed };
                    let mut keep = |operation, measured| {
                        let cell = runs.entry((operation, processes, request.0)).or_default();
                        cell.resize_with(args.transport.len(), Vec::new);
                        if let Some(runs) = cell.get_mut(index) {
                            runs.push(measured);
                        }
                    };
                    keep("write", crew.perform(&Phase::Write(transfer.clone()))?);
                    keep("read", crew.perform(&Phase::Read(transfer))?);
                }
                if output::story_is_watched() {
                    let shown = bytes_text(request.0);
                    note(format_args!("{processes} processes, requests of {shown}: run {run} of {}", args.runs));
                }
            }
        }
    }
    Ok(runs.iter().flat_map(|(cell, transports)| rows(args, *cell, transports)).collect())
}

fn setups(playground: &Playground, transport: Transport, processes: usize) -> impl Iterator<Item = Setup> {
    let (way, registration) = way_of(transport);
    let name = playground.instance().map.name.clone();
    let directory = String::from_utf8_lossy(playground.path()).into_owned();
    (0..processes).map(move |index| Setup {
        name: name.clone(),
        way,
        registration,
        index,
        directory: directory.clone(),
    })
}

/// How a client goes, and whose memory is registered where that is by RDMA.
fn way_of(transport: Transport) -> (WayName, Option<Registration>) {
    match transport {
        Transport::Tcp => (WayName::Tcp, None),
        Transport::Unix => (WayName::Unix, None),
        Transport::Static => (WayName::Ucx, Some(Registration::Static)),
        Transport::Dynamic => (WayName::Ucx, Some(Registration::Dynamic)),
        Transport::Auto => (WayName::Ucx, Some(Registration::Auto)),
    }
}

fn rate(run: &Measured) -> f64 {
    run.done.bytes as f64 / run.took.as_secs_f64().max(1e-9)
}

fn rows(args: &ThputArgs, (operation, processes, request): Cell, transports: &[Vec<Measured>]) -> Vec<Row> {
    let first = transports.first().map(Vec::as_slice).unwrap_or_default();
    let of = |(transport, runs): (&Transport, &Vec<Measured>)| {
        let rates: Vec<f64> = runs.iter().map(rate).collect();
        let ratios: Vec<f64> = runs.iter().zip(first).map(|(run, first)| rate(run) / rate(first)).collect();
        let index = median_index(&rates);
        let median = runs.get(index).cloned().unwrap_or_default();
        let gib = (median.done.bytes as f64 / GIB).max(1e-12);
        Row {
            operation,
            processes,
            request,
            transport: *transport,
            bytes_per_second: rates.get(index).copied().unwrap_or(0.0),
            bytes_per_second_min: rates.iter().copied().reduce(f64::min).unwrap_or(0.0),
            bytes_per_second_max: rates.iter().copied().reduce(f64::max).unwrap_or(0.0),
            ratio_to_first: ratios.get(median_index(&ratios)).copied().unwrap_or(0.0),
            client_cpu_seconds_per_gib: median.done.cpu_seconds / gib,
            node_cpu_seconds_per_gib: median.node_cpu.as_secs_f64() / gib,
        }
    };
    args.transport.iter().zip(transports).map(of).collect()
}

/// A table for each operation and number of processes; a column for each transport.
fn text(report: &Report) -> String {
    let mut text = format!(
        "{}: {} over all processes, medians of {} runs\n\
         MiB/s, beside the first transport, CPU seconds of clients + nodes per GiB\n",
        report.name,
        bytes_text(report.size),
        report.runs
    );
    let mut groups: BTreeMap<(&str, usize), BTreeMap<u64, Vec<&Row>>> = BTreeMap::new();
    for row in &report.results {
        groups.entry((row.operation, row.processes)).or_default().entry(row.request).or_default().push(row);
    }
    for ((operation, processes), requests) in &groups {
        let names = requests.values().next().into_iter().flatten();
        let names: Vec<String> = names.map(|row| format!(">{:?}", row.transport).to_uppercase()).collect();
        let mut header = vec![">REQUEST"];
        header.extend(names.iter().map(String::as_str));
        let mut table = Table::new(&header);
        for (request, rows) in requests {
            let cells = rows.iter().map(|row| {
                format!(
                    "{:.0}  {:.2}  {:.2}+{:.2}",
                    row.bytes_per_second / f64::from(1 << 20),
                    row.ratio_to_first,
                    row.client_cpu_seconds_per_gib,
                    row.node_cpu_seconds_per_gib
                )
            });
            table.row_of(std::iter::once(bytes_text(*request)).chain(cells).collect());
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
    use crate::quantity::ByteSize;
    use std::time::Duration;

    impl Row {
        /// A row for tests of its shape.
        pub fn example() -> Self {
            rows(&args(), ("read", 1, 4096), &[vec![Measured::default()], vec![]]).remove(0)
        }
    }

    fn args() -> ThputArgs {
        ThputArgs {
            name: None,
            size: ByteSize(1 << 30),
            request: vec![ByteSize(4096)],
            processes: vec![1],
            transport: vec![Transport::Tcp, Transport::Dynamic],
            direct: false,
            runs: 3,
            json: false,
        }
    }

    #[test]
    fn ratios_are_of_runs_that_were_made_beside_each_other() {
        let run = |milliseconds| Measured {
            took: Duration::from_millis(milliseconds),
            done: Done { bytes: 1 << 30, cpu_seconds: 2.0, ..Done::default() },
            node_cpu: Duration::from_secs(1),
        };
        // The machine was slow in the second run: for both.
        let tcp = vec![run(1000), run(4000), run(1000)];
        let dynamic = vec![run(500), run(2000), run(400)];
        let rows = rows(&args(), ("read", 1, 4096), &[tcp, dynamic]);
        assert_eq!((rows[0].ratio_to_first, rows[1].ratio_to_first), (1.0, 2.0));
        assert_eq!((rows[1].client_cpu_seconds_per_gib, rows[1].node_cpu_seconds_per_gib), (2.0, 1.0));
        let report = Report { name: "w".into(), size: 1 << 30, runs: 3, direct: false, results: rows };
        let text = text(&report);
        assert!(text.contains("read, 1 processes") && text.contains("2048  2.00  2.00+1.00"), "{text}");
    }
}
