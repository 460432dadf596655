//! Whether the program that waits for a request was killed.
//!
//! The kernel sends FUSE_INTERRUPT for a signal, which the fuser crate answers itself, and then waits for the reply: a
//! program cannot end before. So a thread that has waited long for a node looks at the program's pending signals in
//! `/proc/TID/status`, which needs no privilege (but with `hidepid`). A fatal signal shows there as SIGKILL, whatever
//! it was: the kernel adds that to each thread of the process. Signals with a handler do not end a wait.
//!
//! A program of another pid namespace is not visible, nor is one that closes its files as it exits: their waits end
//! with the soft time.

use fuser::Request;
use weft_client::waits::Program;

/// SIGKILL in the masks of `/proc/TID/status`.
const SIGKILL_BIT: u64 = 1 << (9 - 1);

/// What a request's wait does to written bytes when it ends early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// It sends none, or those of others: waits for these do not end.
    KeepsWrites,
    /// It sends the program's own.
    LosesWrites,
}

/// Returns the program that waits for a request. `None`: it is not visible.
pub fn program(request: &Request, wait: Wait) -> Option<Program> {
    let loses_writes = wait == Wait::LosesWrites;
    (request.pid() != 0).then(|| Program { thread: request.pid(), is_killed, loses_writes })
}

fn is_killed(thread: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|status| has_sigkill_pending(&status))
}

/// Whether a text of `/proc/TID/status` shows that a signal ends the thread.
pub fn has_sigkill_pending(status: &str) -> bool {
    let mask = |line: &str| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    status.lines().filter_map(mask).any(|mask| mask & SIGKILL_BIT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_thread_shows_in_its_status() {
        let status = |own: &str, shared: &str| {
            format!(
                "Name:\tcat\nThreads:\t1\nSigQ:\t1/31\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t0000000000000100\n"
            )
        };
        assert!(!has_sigkill_pending(&status("0000000000000000", "0000000000000000")));
        assert!(has_sigkill_pending(&status("0000000000000100", "0000000000000000")));
        assert!(has_sigkill_pending(&status("0000000000000000", "0000000000004100")));
        assert!(!has_sigkill_pending(&status("0000000000004000", "0000000000002000")), "caught, not fatal");
        assert!(!is_killed(std::process::id()));
        assert!(!is_killed(u32::MAX), "no such thread");
    }
}
