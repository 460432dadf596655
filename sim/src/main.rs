//! The simulation by hand: see the usage below.

mod scale_runs;
mod scripts;

use std::ops::Range;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weft_sim::{Kind, run_seed};

const USAGE: &str =
    "usage: weft-sim [native | plain | partitions | split | locks | mounts | gone | passthrough | xattrs | \
                     joins | striped | striped-mounts | parts | parts-mounts | moves | move-mounts | \
                     relocations | relocation-mounts | \
                     spreads | spread-mounts | groups | group-moves | part-groups] \
                     run FIRST COUNT | survey FIRST COUNT | explore FIRST SECONDS | replay SEED | endless [FIRST] | \
                     digests FIRST COUNT | record SEED
       weft-sim play FILE | trace FILE | shorten FILE
       weft-sim scale [--json] segmented | strided NODES[,NODES...] [RECORDS [RANKS_PER_NODE]]";

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut kind = Kind::Native;
    if let Some(Ok(named)) = words.first().map(|word| word.parse()) {
        words.remove(0);
        kind = named;
    }
    let number = |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok());
    match (words.first().map(String::as_str), number(1), number(2)) {
        (Some("replay"), Some(seed), _) => {
            let (tally, fingerprint) = run_seed(kind, seed, true);
            println!("seed {seed}: {tally:?}, fingerprint {fingerprint:016x}");
            ExitCode::SUCCESS
        }
        (Some("record"), Some(seed), _) => scripts::record(kind, seed),
        (Some("run"), Some(first), Some(count)) => run(kind, first..first.saturating_add(count), None),
        (Some("survey"), Some(first), Some(count)) => survey(kind, first..first.saturating_add(count)),
        (Some("explore"), Some(first), Some(seconds)) => run(kind, first..u64::MAX, Some(Duration::from_secs(seconds))),
        (Some("endless"), first, _) => run(kind, first.unwrap_or(0)..u64::MAX, None),
        (Some("digests"), Some(first), Some(count)) => {
            for seed in first..first.saturating_add(count) {
                println!("{seed} {:016x}", run_seed(kind, seed, false).1);
            }
            ExitCode::SUCCESS
        }
        (Some("play"), ..) if words.len() == 2 => scripts::play(&words[1], false),
        (Some("trace"), ..) if words.len() == 2 => scripts::play(&words[1], true),
        (Some("shorten"), ..) if words.len() == 2 => scripts::shorten(&words[1]),
        (Some("scale"), ..) => scale_runs::scale(&words[1..]).unwrap_or_else(misused),
        _ => misused(),
    }
}

fn misused() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// Runs all seeds, and prints which of them fail; the panics before say how.
fn survey(kind: Kind, seeds: Range<u64>) -> ExitCode {
    let count = seeds.end - seeds.start;
    let fails = |seed: &u64| {
        let failed = catch_unwind(|| run_seed(kind, *seed, false)).is_err();
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
        if catch_unwind(|| run_seed(kind, seed, false)).is_err() {
            eprintln!("seed {seed} failed, the {count} before it held; replay it with:");
            eprintln!("  cargo run --release -p weft-sim -- {kind} replay {seed}");
            eprintln!("or have a short script of it:");
            eprintln!("  cargo run --release -p weft-sim -- {kind} record {seed} > FILE");
            eprintln!("  cargo run --release -p weft-sim -- shorten FILE");
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
        println!("{kind}: {count} seeds from {first} on hold");
    }
    ExitCode::SUCCESS
}
