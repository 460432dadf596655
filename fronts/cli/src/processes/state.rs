//! What a process of which no answer comes is doing, by `/proc`.

use super::Process;
use std::fs;
use std::path::PathBuf;
use weft_fuse::has_sigkill_pending;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Runs,
    /// By SIGSTOP or a debugger.
    Stopped,
    /// It was killed, and some thread of it still waits in the kernel: its descriptors are open until that returns.
    Killed,
    /// Nothing of it is left but perhaps its exit code.
    Ended,
}

impl Process {
    /// What it is doing.
    pub fn state(&self) -> State {
        let directory = PathBuf::from(format!("/proc/{}", self.pid));
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let stat = read(directory.join("stat"));
        if start_time(&stat) != Some(self.start_time) {
            return State::Ended;
        }
        let threads = fs::read_dir(directory.join("task")).into_iter().flatten().flatten();
        let threads: Vec<String> = threads.map(|thread| read(thread.path().join("stat"))).collect();
        match letter(&stat) {
            _ if threads.iter().all(|thread| is_over(letter(thread))) => State::Ended,
            first if is_over(first) || has_sigkill_pending(&read(directory.join("status"))) => State::Killed,
            Some(b'T' | b't') => State::Stopped,
            _ => State::Runs,
        }
    }
}

/// Field 22 of `/proc/PID/stat`. Field 2 is the program's name in parentheses and may hold anything.
fn start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Field 3, the state. `None`: the thread has gone.
fn letter(stat: &str) -> Option<u8> {
    stat.rsplit_once(") ")?.1.bytes().next()
}

fn is_over(letter: Option<u8>) -> bool {
    matches!(letter, None | Some(b'Z' | b'X' | b'x'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    fn wait_for(process: Process, state: State) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while process.state() != state {
            assert!(Instant::now() < deadline, "{:?}, not {state:?}", process.state());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn stopped_and_ended_processes_are_told_apart() {
        let mut child = Command::new("sleep").arg("100").spawn().expect("started");
        let process = Process::of(child.id()).expect("running");
        assert_eq!(process.state(), State::Runs);
        assert_eq!(Process { start_time: process.start_time + 1, ..process }.state(), State::Ended);
        let stop = Command::new("kill").args(["-STOP", &process.pid.to_string()]).status();
        assert!(stop.expect("kill").success());
        wait_for(process, State::Stopped);
        child.kill().expect("killed");
        // A zombie, until this process asks for its exit code.
        wait_for(process, State::Ended);
        child.wait().expect("ended");
        assert_eq!(process.state(), State::Ended);
    }

    #[test]
    fn a_pending_sigkill_is_seen() {
        assert!(has_sigkill_pending("Name:\tcat\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(!has_sigkill_pending("Name:\tcat\nSigPnd:\t0000000000000000\nSigBlk:\t0000000000000100\n"));
    }
}
