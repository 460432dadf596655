//! Deterministic simulation: one seed drives clients, shards, storage servers, clock and network in one process.
//!
//! Every answer of a shard is held against a plain model at the moment at which it is given, every answer of a client's
//! cache at the moment at which it is used, and what is left at the end against the model as a whole. The faults: see
//! `world` and `network`. What a seed does can be recorded as a [`script::Script`], played again and shortened.
//!
//! Not here: real sockets and files (`tests/`).

// Procedures of programs, clients and calls are nested futures, and the compiler counts each level twice.
#![recursion_limit = "256"]

mod bytes;
mod check;
mod choices;
mod client;
mod clock;
mod data_connection;
mod group_program;
mod handed_out;
mod history;
pub mod kernel;
mod kind;
mod lanes;
mod leaves;
mod lock_program;
mod model;
mod mount;
mod native_calls;
mod network;
mod object_file;
mod opened;
mod process;
mod program;
mod random;
mod relocations;
pub mod scale;
pub mod script;
mod shell;
pub mod shorten;
mod spreads;
mod store;
mod system_calls;
mod wire;
mod world;
mod xattrs;

pub use kind::Kind;
pub use world::{Faults, Tally, World};

use choices::Tape;
use script::{Key, Script};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs one seed. Panics with the last events when something is wrong.
pub fn run_seed(kind: Kind, seed: u64, trace: bool) -> (Tally, u64) {
    let mut world = World::new(kind, seed, &Tape::default(), trace);
    world.run();
    (world.tally, world.fingerprint)
}

/// What became of a run that was recorded or played.
pub struct Outcome {
    /// What was recorded, or played.
    pub script: Script,
    /// Lines that were followed, and how many could not be when their turn came. Others of the script were about what
    /// did not happen.
    pub used: BTreeSet<Key>,
    pub misfits: u64,
    /// What was wrong, with the last events.
    pub result: Result<Tally, String>,
}

/// Runs one seed, and records what it does.
pub fn record(kind: Kind, seed: u64) -> Outcome {
    let tape = Tape::new(Script::new(kind), false);
    finish(World::new(kind, seed, &tape, false))
}

/// Does what a script says.
pub fn play(script: Script, trace: bool) -> Outcome {
    finish(World::of_script(script, trace))
}

fn finish(mut world: World) -> Outcome {
    let tape = world.tape();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        world.run();
        world.tally
    }));
    let result = ran.map_err(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => other.downcast_ref::<&str>().map_or_else(|| "it panicked".to_owned(), |text| (*text).to_owned()),
    });
    let (script, used, misfits) = tape.finish();
    Outcome { script, used, misfits, result }
}
