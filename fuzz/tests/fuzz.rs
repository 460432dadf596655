//! Runs all targets: first what once broke, then mutations for a bounded time.
//!
//! `WEFT_FUZZ_SECONDS` (3) bounds the time in all, `WEFT_FUZZ_SEED` repeats a run, `WEFT_FUZZ_TARGET` picks one target.
//! An input that breaks a target is printed as hexadecimal: put it into `fuzz/corpus/TARGET/` under a name that says
//! what it is.

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft_fuzz::corpus::{golden, kept, seeds, to_hex};
use weft_fuzz::mutate::mutated;
use weft_fuzz::random::Random;
use weft_fuzz::{PROGRAMS, TARGETS, Target, targets};
use weft_region::decoders::DECODERS;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A sequence that claims more elements than come may have this much set aside for it, once per decoding; two are done.
const CLAIMED_BYTES_MAX: usize = 3 << 20;
/// Bytes in memory for a byte on the wire, over two decodings and growth of vectors.
const GROWTH_MAX: usize = 400;
/// Mutations that meant something, kept to be mutated again.
const POOL_MAX: usize = 512;
/// An input that takes longer hangs its target: the slowest take milliseconds.
const INPUT_TIME_MAX: Duration = Duration::from_secs(60);

/// The input that a target has now, and since when.
static PRESENT: Mutex<Option<(Instant, String, Vec<u8>)>> = Mutex::new(None);

/// Says which input hangs its target and ends the program: nothing else ends a test that never returns.
fn watch_for_hangs() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let present = PRESENT.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((since, name, bytes)) = &*present
                && since.elapsed() > INPUT_TIME_MAX
            {
                // Not `eprintln!`, whose words are kept until the test ends.
                let _ = writeln!(std::io::stderr(), "target {name} hangs with:\n{}", to_hex(bytes));
                std::process::abort();
            }
        }
    });
}

fn seconds() -> f64 {
    std::env::var("WEFT_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3.0)
}

fn seed() -> u64 {
    let given = std::env::var("WEFT_FUZZ_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| getrandom::u64().expect("random bytes"))
}

/// Runs a target on bytes; on a panic, says how to get it again. Returns whether the bytes meant something.
fn tried(name: &str, target: Target, seed: u64, bytes: &[u8]) -> bool {
    *PRESENT.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), name.to_owned(), bytes.to_vec()));
    let region = Region::new(ALLOCATOR);
    match catch_unwind(AssertUnwindSafe(|| target(bytes))) {
        Ok(meant) => {
            let allocated = region.change().bytes_allocated;
            // Whole shards and stores live in a program: only the decoders are bounded.
            if !PROGRAMS.contains(&name) {
                let limit = CLAIMED_BYTES_MAX + GROWTH_MAX * bytes.len();
                assert!(
                    allocated <= limit,
                    "{name} allocates {allocated} bytes for {}: {}",
                    bytes.len(),
                    to_hex(bytes)
                );
            }
            meant
        }
        Err(_) => panic!("target {name}, seed {seed}, broken by:\n{}", to_hex(bytes)),
    }
}

/// One test, so that nothing else allocates while it counts.
#[test]
fn every_decoder_takes_any_bytes() {
    watch_for_hangs();
    for (name, target) in TARGETS {
        for (path, bytes) in kept(name).expect("the corpus") {
            println!("{name}: {}", path.display());
            tried(name, *target, 0, &bytes);
        }
    }
    decoders_know_their_golden_bytes();
    let only = std::env::var("WEFT_FUZZ_TARGET").ok();
    let chosen: Vec<_> = TARGETS.iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name)).collect();
    let each = Duration::from_secs_f64(seconds() / chosen.len().max(1) as f64);
    let seed = seed();
    println!("seed {seed}");
    for (name, target) in chosen {
        let mut random = Random::new(seed);
        let mut pool = seeds();
        let first = pool.len();
        // Of a store each run takes milliseconds, and to it these are as good as any other bytes.
        for bytes in pool.iter().filter(|bytes| *name != "region_store" || bytes.is_empty()) {
            tried(name, *target, seed, bytes);
        }
        let (mut inputs, mut meant) = (0u64, 0u64);
        let end = Instant::now() + each;
        while Instant::now() < end {
            let (one, other) = (random.below(pool.len()), random.below(pool.len()));
            let bytes = if PROGRAMS.contains(name) && random.below(4) > 0 {
                let count = random.below(4096);
                random.bytes(count)
            } else {
                mutated(&mut random, &pool[one], &pool[other])
            };
            inputs += 1;
            if tried(name, *target, seed, &bytes) {
                meant += 1;
                if pool.len() < POOL_MAX {
                    pool.push(bytes);
                } else {
                    let place = first + random.below(POOL_MAX - first);
                    pool[place] = bytes;
                }
            }
        }
        println!("{name}: {inputs} inputs, {meant} of them meant something");
    }
}

/// The targets decode what they are for: a mistake in them must not look like a quiet run.
fn decoders_know_their_golden_bytes() {
    for (line, bytes) in golden() {
        let decodes = match line.split('.').next() {
            Some("ClientHello") => targets::client_hello(&bytes),
            Some("ServerHello") => targets::server_hello(&bytes),
            Some("ClientProof") => targets::client_proof(&bytes),
            Some("Welcome") => targets::welcome(&bytes),
            Some("DataRequest") => targets::data_request(&bytes),
            Some("LentBytes") => targets::lent_bytes(&bytes),
            Some("SharedMemory") => targets::shared_memory(&bytes),
            Some("DataReply") => targets::data_reply(&bytes),
            Some("Capability") => targets::capability(&bytes) || line == "Capability.message",
            Some("GroupOpen") => targets::group_open(&bytes),
            Some("Frame") => targets::frames(&bytes),
            Some("Grants" | "Rights" | "Layout") => true,
            _ => targets::message(&bytes),
        };
        assert!(decodes, "{line} does not decode");
    }
    for decoder in DECODERS {
        let (_, target) = TARGETS.iter().find(|(name, _)| *name == decoder.name).expect("a target for each decoder");
        assert!(target(&(decoder.example)()), "the example of {} does not decode", decoder.name);
    }
}
