//! `weft-sim [--plain | --partitions] run FIRST COUNT | replay SEED | endless`: the simulation by hand.

use std::panic::catch_unwind;
use std::process::ExitCode;
use weft_sim::{Faults, run_seed};

const USAGE: &str = "usage: weft-sim [--plain | --partitions] run FIRST COUNT | replay SEED | endless
--plain: without drifting clocks; --partitions: some pairs of processes are cut off, too";

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let faults = match words.first().map(String::as_str) {
        Some("--plain") => Faults::NONE,
        Some("--partitions") => Faults { partitions: true, ..Faults::NOW },
        _ => Faults::NOW,
    };
    words.retain(|word| !word.starts_with("--"));
    let number = |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok());
    match (words.first().map(String::as_str), number(1), number(2)) {
        (Some("replay"), Some(seed), _) => {
            let (tally, fingerprint) = run_seed(seed, faults, true);
            println!("seed {seed}: {tally:?}, fingerprint {fingerprint:016x}");
            ExitCode::SUCCESS
        }
        (Some("run"), Some(first), Some(count)) => run(first..first.saturating_add(count), faults),
        (Some("endless"), _, _) => run(0..u64::MAX, faults),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs seeds until one fails, and says how to run that one again.
fn run(seeds: std::ops::Range<u64>, faults: Faults) -> ExitCode {
    for seed in seeds {
        if catch_unwind(|| run_seed(seed, faults, false)).is_err() {
            eprintln!("seed {seed} failed; again with: cargo run --release -p weft-sim -- replay {seed}");
            return ExitCode::FAILURE;
        }
        if seed % 100 == 99 {
            println!("{} seeds", seed + 1);
        }
    }
    ExitCode::SUCCESS
}
