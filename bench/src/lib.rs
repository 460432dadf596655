//! What the benchmark programs share.
//!
//! Seven programs, one question each: `bench-pump` (how fast do bytes of a tmpfs file go through a socket?),
//! `bench-files` (what do the same workloads as `weft bench` reach with system calls in any directory?),
//! `bench-scale` (what does an operation cost when there are many files?), `bench-sessions` (what does one file cost
//! that very many clients have open?), `bench-moves` (for how long do calls wait while their shard moves?),
//! `bench-library` (what does the native client reach where C and Python are measured beside it?) and `bench-ucx` (what
//! does UCX move by itself?). `bench/suite` and `bench/rdma.py` run them beside `weft bench` and the peers, and make
//! tables.

pub mod clock;
pub mod cost;
pub mod crew;
pub mod quantity;
pub mod stamps;

use std::fmt::Display;

/// A failure is told to a person and ends the program.
pub type Outcome<T = ()> = Result<T, String>;

/// Says what was tried when something failed.
pub trait Explain<T> {
    fn explain(self, what: impl Display) -> Outcome<T>;
}

impl<T, E: Display> Explain<T> for Result<T, E> {
    fn explain(self, what: impl Display) -> Outcome<T> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

/// Ends a program: nothing more to say, or why it failed.
pub fn conclude(program: &str, outcome: Outcome) -> std::process::ExitCode {
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{program}: {text}");
            std::process::ExitCode::from(2)
        }
    }
}
