//! A worker process: executes the calls that come on its standard input, one a line, and answers each with a line of
//! JSON.
//!
//! `reset PATH` closes all handles and makes PATH the directory that paths are relative to; `clear PATH` removes a
//! tree. The process holds no state
//! that matters beyond its descriptors, so that a controller may kill it whenever a call does not return.

mod kernel;
mod native;

use crate::call::Call;
use crate::outcome::{Outcome, Reply};
use rustix::time::{ClockId, clock_gettime};
use std::io::{self, BufRead, Write};

/// Executes calls: through the kernel, or through the client library.
trait Executor {
    /// Closes all handles; paths are relative to `directory` from now on.
    fn reset(&mut self, directory: &str) -> Result<(), String>;
    fn execute(&mut self, call: &Call) -> Outcome;
}

/// Serves calls through mounted file systems until standard input ends.
pub fn serve_kernel() -> Result<(), String> {
    serve(&mut kernel::Kernel::default())
}

/// Serves calls through a client library of this process until standard input ends.
pub fn serve_native(file_system: &str) -> Result<(), String> {
    serve(&mut native::Native::connect(file_system)?)
}

fn serve(executor: &mut dyn Executor) -> Result<(), String> {
    // Modes in scripts are the modes that files get.
    rustix::process::umask(rustix::fs::Mode::empty());
    // A controller that was killed leaves no worker.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| format!("standard input: {error}"))?;
        let reply = match line.split_once(' ') {
            Some(("reset", directory)) => executor.reset(directory).map(|()| timed(|| Outcome::Done))?,
            Some(("clear", directory)) => timed(|| clear(directory)),
            _ => {
                let call: Call = line.parse()?;
                timed(|| executor.execute(&call))
            }
        };
        let reply = serde_json::to_string(&reply).map_err(|error| format!("reply: {error}"))?;
        writeln!(output, "{reply}").and_then(|()| output.flush()).map_err(|error| format!("reply: {error}"))?;
    }
    Ok(())
}

/// Removes a tree. What is left of it does not matter to any later run.
fn clear(directory: &str) -> Outcome {
    let error = std::fs::remove_dir_all(directory).err();
    error.and_then(|error| error.raw_os_error()).map_or(Outcome::Done, Outcome::Failed)
}

fn timed(action: impl FnOnce() -> Outcome) -> Reply {
    let (wall_begun, begun) = (clock_ns(ClockId::RealtimeCoarse), clock_ns(ClockId::Monotonic));
    let outcome = action();
    let (ended, wall_ended) = (clock_ns(ClockId::Monotonic), clock_ns(ClockId::Realtime));
    Reply { outcome, begun: begun.cast_unsigned(), ended: ended.cast_unsigned(), wall_begun, wall_ended }
}

fn clock_ns(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
