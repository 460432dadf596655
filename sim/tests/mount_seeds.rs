//! Programs that make system calls through mounts: some hundreds of seeds, and those that found something.

use weft_sim::{Kind, Tally, run_seed};

/// Seeds run each time.
const SEEDS: std::ops::Range<u64> = 0..300;
/// Others: a name that was told anew from an old page of a listing after it had been removed; an fsync with the right
/// of another open, for reading; a size that is not that of the object after a full disk, a kernel's pages that a
/// change did not wait for, and a flush that failed for an object that was never made, if the rules against these are
/// taken out; a cached name of an inode that could not be opened any more; a file that a late report cut; more states
/// after calls of which nobody knows the result than are kept.
const RARE_SEEDS: [u64; 9] = [343, 517, 677, 616, 318, 2_000_000_700, 3_000_003_491, 3_000_017_365, 9_000_047_604];

fn run(seed: u64) -> (Tally, u64) {
    println!("seed {seed}; again with: cargo run --release -p weft-sim -- mounts replay {seed}");
    run_seed(Kind::Mounts, seed, false)
}

#[test]
fn all_seeds_hold_and_the_faults_really_happen() {
    let mut sums = [0u64; 27];
    let mut unjudged = 0;
    for seed in SEEDS {
        let (tally, _) = run(seed);
        unjudged += tally.unjudged;
        let counts = [
            tally.operations,
            tally.recalls,
            tally.resent,
            tally.lost,
            tally.doubled,
            tally.pauses,
            tally.shrunk,
            tally.broken,
            tally.pieces,
            tally.ambiguous,
            tally.crashes,
            tally.losses,
            tally.sessions,
            tally.partitions,
            tally.cut_off,
            tally.unreachable,
            tally.blocked,
            tally.terms,
            tally.awaited,
            tally.certain,
            tally.orphans,
            tally.data,
            tally.torn,
            tally.refused,
            tally.drops,
            tally.held,
            tally.xattrs,
        ];
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    println!(
        "calls, recalls, resent, lost, doubled, pauses, shrunk, broken, pieces, ambiguous, crashes, losses, sessions, \
         partitions, cut off, unreachable, blocked, terms, awaited, certain, orphans, data, torn, refused, drops, \
         held, extended attributes: {sums:?}"
    );
    assert!(sums.iter().all(|sum| *sum > 0), "a fault never happened: {sums:?}");
    assert!(unjudged <= 3, "{unjudged} runs ended early");
}

/// A node is gone for good: what was not on it goes on.
#[test]
fn all_seeds_hold_when_a_node_is_gone() {
    let mut gone = 0;
    for seed in 0..150 {
        println!("seed {seed}; again with: cargo run --release -p weft-sim -- gone replay {seed}");
        gone += run_seed(Kind::Gone, seed, false).0.nodes_gone;
    }
    // In a run in which it is never certain what there is no node goes.
    assert!(gone > 120, "{gone} nodes were gone");
}

/// Clients on the machines of nodes are passed descriptors, and mounts pass them to their kernels.
#[test]
fn all_seeds_hold_when_descriptors_are_passed() {
    let mut sums = [0u64; 4];
    for seed in 0..150 {
        println!("seed {seed}; again with: cargo run --release -p weft-sim -- passthrough replay {seed}");
        let (tally, _) = run_seed(Kind::Passthrough, seed, false);
        let counts = [tally.passed, tally.through, tally.abandoned, tally.pauses];
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    println!("passed, used, abandoned, pauses: {sums:?}");
    assert!(sums.iter().all(|sum| *sum > 0), "{sums:?}");
}

/// Nodes that join and leave, and shards that move between them, also when a mount has a call in one, gives up a lease
/// of it, or has bytes to report of a file of it; in some of the runs a node is gone. The last one: a node that ends
/// after it has said that a map is stale.
#[test]
fn all_seeds_hold_while_shards_move() {
    let (mut sums, mut gone) = ([0u64; 8], 0);
    for seed in (0..50).chain([1134]) {
        println!("seed {seed}; again with: cargo run --release -p weft-sim -- move-mounts replay {seed}");
        let (tally, _) = run_seed(Kind::MoveMounts, seed, false);
        gone += tally.nodes_gone;
        let counts = [
            tally.moved,
            tally.abandoned_moves,
            tally.joined,
            tally.removed,
            tally.moved_parked,
            tally.moved_recalled,
            tally.moved_dirty,
            tally.xattrs,
        ];
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    println!(
        "moved, abandoned, joined, removed; with calls, with recalls, with dirty files; extended attributes: {sums:?}"
    );
    assert!(sums.iter().all(|sum| *sum > 20), "something hardly happened: {sums:?}");
    assert!(gone > 8, "{gone} nodes were gone");
}

#[test]
fn rare_seeds_hold() {
    for seed in RARE_SEEDS {
        run(seed);
    }
}

#[test]
fn one_seed_gives_one_run() {
    for seed in [0, 1, 2, 3, 343] {
        assert_eq!(run(seed).1, run(seed).1, "seed {seed}");
    }
}
