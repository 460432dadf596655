//! The simulation by hand: see the usage below.

use std::ops::Range;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weft_sim::{Faults, Tally, run_mounts, run_seed};

const USAGE: &str = "usage: weft-sim [plain | partitions | split | mounts] \
                     run FIRST COUNT | survey FIRST COUNT | explore FIRST SECONDS | replay SEED | endless [FIRST] | \
                     digests FIRST COUNT";

/// Which programs a run has.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    run: fn(u64, bool) -> (Tally, u64),
}

/// Programs that use the client machine.
const NATIVE: Kind = Kind { name: "", run: |seed, trace| run_seed(seed, Faults::NOW, trace) };
/// The same, without drifting clocks.
const PLAIN: Kind = Kind { name: "plain", run: |seed, trace| run_seed(seed, Faults::NONE, trace) };
/// The same, with what does not hold yet: pairs of processes that are cut off.
const PARTITIONS: Kind =
    Kind { name: "partitions", run: |seed, trace| run_seed(seed, Faults { partitions: true, ..Faults::NOW }, trace) };
/// The same, with what does not hold yet: nodes that exchange nothing at all for a while.
const SPLIT: Kind = Kind {
    name: "split",
    run: |seed, trace| run_seed(seed, Faults { peers_cut: true, all_cut: true, ..Faults::NOW }, trace),
};
/// Programs that make system calls through mounts.
const MOUNTS: Kind = Kind { name: "mounts", run: |seed, trace| run_mounts(seed, trace) };

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut kind = NATIVE;
    if let Some(named) =
        [PLAIN, PARTITIONS, SPLIT, MOUNTS].into_iter().find(|kind| words.first().is_some_and(|word| word == kind.name))
    {
        words.remove(0);
        kind = named;
    }
    let number = |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok());
    match (words.first().map(String::as_str), number(1), number(2)) {
        (Some("replay"), Some(seed), _) => {
            let (tally, fingerprint) = (kind.run)(seed, true);
            println!("seed {seed}: {tally:?}, fingerprint {fingerprint:016x}");
            ExitCode::SUCCESS
        }
        (Some("run"), Some(first), Some(count)) => run(kind, first..first.saturating_add(count), None),
        (Some("survey"), Some(first), Some(count)) => survey(kind, first..first.saturating_add(count)),
        (Some("explore"), Some(first), Some(seconds)) => run(kind, first..u64::MAX, Some(Duration::from_secs(seconds))),
        (Some("endless"), first, _) => run(kind, first.unwrap_or(0)..u64::MAX, None),
        (Some("digests"), Some(first), Some(count)) => {
            for seed in first..first.saturating_add(count) {
                println!("{seed} {:016x}", (kind.run)(seed, false).1);
            }
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs all seeds, and prints which of them fail; the panics before say how.
fn survey(kind: Kind, seeds: Range<u64>) -> ExitCode {
    let count = seeds.end - seeds.start;
    let fails = |seed: &u64| {
        let failed = catch_unwind(|| (kind.run)(*seed, false)).is_err();
        if failed {
            eprintln!("seed {seed} failed");
        }
        failed
    };
    let failed: Vec<u64> = seeds.filter(fails).collect();
    println!("{} of {count} seeds fail: {failed:?}", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs seeds until one fails or the time is up (one seed is run at least); prints the command that replays a failure.
fn run(kind: Kind, seeds: Range<u64>, limit: Option<Duration>) -> ExitCode {
    let begun = Instant::now();
    let mut count = 0_u64;
    let first = seeds.start;
    for seed in seeds {
        if catch_unwind(|| (kind.run)(seed, false)).is_err() {
            eprintln!("seed {seed} failed, the {count} before it held; replay it with:");
            let space = if kind.name.is_empty() { "" } else { " " };
            eprintln!("  cargo run --release -p weft-sim -- {}{space}replay {seed}", kind.name);
            return ExitCode::FAILURE;
        }
        count += 1;
        if count.is_multiple_of(100) && limit.is_none() {
            println!("{} seeds", seed + 1);
        }
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            break;
        }
    }
    if limit.is_some() {
        let name = if kind.name.is_empty() { "native" } else { kind.name };
        println!("{name}: {count} seeds from {first} on hold");
    }
    ExitCode::SUCCESS
}
