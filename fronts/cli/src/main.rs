//! `weft`: the command line of Weft.
//!
//! One file per verb in `verb/`: its options, its help with examples, what it does, its tests. A verb takes what was
//! typed apart, checks it, and goes on with ready values. Standard output is the answer, standard error the story; the
//! exit code is 0 (done), 1 (the answer is no) or 2 (failed, or bad use).
//!
//! Not here: the file system itself (`weft_client`), the node (`weft_node`), the mount (`weft_fuse`).

mod accounts;
mod bench;
mod calendar;
mod cli;
mod cluster;
mod copy;
mod drain;
mod failure;
mod host;
mod hosts;
mod interrupt;
mod job;
mod keys;
mod leftovers;
mod listen;
mod mounts;
mod output;
mod processes;
mod quantity;
mod relocation;
mod removal;
mod session;
mod table;
mod target;
mod tree;
mod unmount;
mod users;
mod verb;

use failure::Ending;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::parse().run() {
        Ok(Ending::Done) => ExitCode::SUCCESS,
        Ok(Ending::No) => ExitCode::from(1),
        Err(failure) => {
            if !failure.is_closed_pipe() && !interrupt::happened() {
                output::warn(&failure);
            }
            ExitCode::from(failure.exit_code())
        }
    }
}
