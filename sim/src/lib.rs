//! Deterministic simulation: one seed drives clients, shards, storage servers, clock and network in one process.
//!
//! Every answer of a shard is held against a plain model at the moment at which it is given, every answer of a client's
//! cache at the moment at which it is used, and what is left at the end against the model as a whole. The faults: see
//! `world` and `network`.
//!
//! Not here: descriptors passed to clients, real sockets and files (`tests/`).

mod bytes;
mod check;
mod client;
mod clock;
mod data_connection;
mod history;
pub mod kernel;
mod model;
mod mount;
mod native_calls;
mod network;
mod process;
mod program;
mod random;
mod shell;
mod store;
mod system_calls;
mod wire;
mod world;

pub use world::{Faults, Tally, World};

/// Runs one seed. Panics with the last events when something is wrong.
pub fn run_seed(seed: u64, faults: Faults, trace: bool) -> (Tally, u64) {
    let mut world = World::new(seed, faults, trace);
    world.run();
    (world.tally, world.fingerprint)
}

/// Runs one seed of programs that make system calls through mounts. As [`run_seed`].
pub fn run_mounts(seed: u64, trace: bool) -> (Tally, u64) {
    let mut world = World::with_mounts(seed, trace);
    world.run();
    (world.tally, world.fingerprint)
}
