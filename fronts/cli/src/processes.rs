//! Processes that outlive the command: found again, waited for, ended; never one that merely got the same number.
//!
//! A process is known by its id and its start time. It is signalled and waited for through a descriptor (pidfd) that is
//! opened first and checked after, so that a reuse of the number in between is seen.

mod state;

pub use state::State;

use crate::failure::{Explain, Failure, Outcome};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weft_client::instance::process_start_time;

/// Lets this process have as many descriptors as it may: a node holds a connection per client, a mount an open object
/// per file. Without the permission it goes on with what it has.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(errno) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!("limit of descriptors stays: {errno}");
    }
}

/// How long a killed process may take to be gone.
const KILL_PATIENCE: Duration = Duration::from_secs(3);

/// A process, by number and start time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Clock ticks since boot: field 22 of /proc/PID/stat.
    pub start_time: u64,
}

/// How a process came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It was not running any more.
    Before,
    /// By itself, in the time it was given.
    Alone,
    /// By SIGTERM.
    Terminated,
    /// By SIGKILL.
    Killed,
}

impl Process {
    /// This process.
    pub fn current() -> Outcome<Self> {
        let pid = std::process::id();
        Self::of(pid).ok_or_else(|| Failure::new("/proc/self/stat: not readable").remedy("mount /proc"))
    }

    /// The running process with this number.
    pub fn of(pid: u32) -> Option<Self> {
        process_start_time(pid).map(|start_time| Self { pid, start_time })
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        process_start_time(self.pid) == Some(self.start_time)
    }

    /// A descriptor of the process, if it still runs.
    fn open(&self) -> Option<OwnedFd> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw)?;
        let descriptor = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        self.is_alive().then_some(descriptor)
    }

    /// CPU time that it has used so far.
    pub fn cpu_time(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        let ticks_per_second = rustix::param::clock_ticks_per_second();
        Some(Duration::from_millis(ticks * 1000 / ticks_per_second.max(1)))
    }

    /// Writes a `.pid` file.
    pub fn write(&self, path: &Path) -> Outcome<()> {
        std::fs::write(path, format!("{} {}\n", self.pid, self.start_time)).explain(|| path.display())
    }

    /// Reads a `.pid` file.
    pub fn read(path: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(path).ok()?;
        let (pid, start_time) = text.trim().split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, start_time: start_time.parse().ok()? })
    }
}

/// Waits until all have ended, `patience` at most; true when they have.
pub fn wait_for_end(processes: &[Process], patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    processes.iter().all(|process| match process.open() {
        None => true,
        Some(descriptor) => wait_for_event(&descriptor, deadline),
    })
}

/// Ends all: waits for them to go by themselves (`alone`), then asks with SIGTERM and waits again (`asked`), then
/// kills. All at the same time; the answer is in the order of `processes`.
pub fn end_all(processes: &[Process], alone: Duration, asked: Duration) -> Vec<End> {
    let open: Vec<Option<OwnedFd>> = processes.iter().map(Process::open).collect();
    let mut ends: Vec<Option<End>> = open.iter().map(|open| open.is_none().then_some(End::Before)).collect();
    let steps = [
        (None, End::Alone, alone),
        (Some(Signal::TERM), End::Terminated, asked),
        (Some(Signal::KILL), End::Killed, KILL_PATIENCE),
    ];
    for (signal, end, patience) in steps {
        for (descriptor, state) in open.iter().zip(&ends) {
            if let (Some(descriptor), None, Some(signal)) = (descriptor, state, signal) {
                // It may have ended since: then there is nothing to signal, and the wait below sees it.
                let _ = rustix::process::pidfd_send_signal(descriptor, signal);
            }
        }
        let deadline = Instant::now() + patience;
        for (descriptor, state) in open.iter().zip(&mut ends) {
            if let (Some(descriptor), None) = (descriptor, &state)
                && wait_for_event(descriptor, deadline)
            {
                *state = Some(end);
            }
        }
    }
    // One that SIGKILL does not end hangs in the kernel; it goes when the kernel lets it.
    ends.into_iter().map(|end| end.unwrap_or(End::Killed)).collect()
}

/// Waits until the descriptor is readable; false when the deadline came first.
pub fn wait_for_event(descriptor: impl AsFd, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else { return false };
        let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&left)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Reads up to the end of a line, of the stream, or of the time.
pub fn read_line(mut output: impl Read + AsFd, deadline: Instant) -> Vec<u8> {
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    while !line.contains(&b'\n') && wait_for_event(&output, deadline) {
        match output.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => line.extend_from_slice(&buffer[..count]),
        }
    }
    line
}

/// The program itself, for starting it again in the background.
pub fn own_program() -> Outcome<PathBuf> {
    std::env::current_exe().explain(|| "find the program of this process")
}

/// Makes this process one of its own: a new session, and none of the descriptors that whoever started it happened to
/// have open (a lock held by a script would stay held, a pipe would never end). Called first thing, before anything is
/// opened.
pub fn leave_starter() -> Outcome<()> {
    // Fails only for the leader of a process group, whose session is its own already or its shell's to keep.
    let _ = rustix::process::setsid();
    let listed = std::fs::read_dir("/proc/self/fd").explain(|| "/proc/self/fd")?;
    let open: Vec<i32> = listed
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2)
        .collect();
    for number in open {
        // The descriptor of the listing itself is among them and closed already.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// A standard stream that nobody is at the other end of any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    Input,
    Output,
}

/// Points a standard stream at /dev/null.
pub fn silence(stream: Stream) -> Outcome<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").explain(|| "/dev/null")?;
    match stream {
        Stream::Input => rustix::stdio::dup2_stdin(&null),
        Stream::Output => rustix::stdio::dup2_stdout(&null),
    }
    .explain(|| "/dev/null")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn started(command: &mut Command) -> (std::process::Child, Process) {
        let child = command.spawn().expect("started");
        let process = Process::of(child.id()).expect("running");
        (child, process)
    }

    #[test]
    fn a_process_is_ended_as_gently_as_it_lets_itself() {
        let (mut gone, gone_process) = started(Command::new("sleep").arg("100"));
        gone.kill().expect("killed");
        gone.wait().expect("ended");
        let (mut sleeper, sleeper_process) = started(Command::new("sleep").arg("100"));
        let mut deaf_command = Command::new("sh");
        deaf_command
            .args(["-c", "trap '' TERM; echo; while :; do sleep 100; done"])
            .stdout(std::process::Stdio::piped());
        let (mut deaf, deaf_process) = started(&mut deaf_command);
        // Its line says that it is deaf by now.
        std::io::Read::read_exact(deaf.stdout.as_mut().expect("piped"), &mut [0]).expect("its line");
        // It has not ended yet, and ends soon enough, also on a machine with much else to do.
        let (mut brief, brief_process) = started(Command::new("sleep").arg("0.5"));
        let patience = Duration::from_secs(3);
        let ends = end_all(&[gone_process, brief_process, sleeper_process, deaf_process], patience, patience);
        assert_eq!(ends, [End::Before, End::Alone, End::Terminated, End::Killed]);
        for child in [&mut brief, &mut sleeper, &mut deaf] {
            child.wait().expect("ended");
        }
    }

    #[test]
    fn another_process_with_the_same_number_is_left_alone() {
        let (mut child, process) = started(Command::new("sleep").arg("100"));
        let reused = Process { start_time: process.start_time + 1, ..process };
        assert_eq!(end_all(&[reused], Duration::ZERO, Duration::ZERO), [End::Before]);
        assert!(process.is_alive());
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert!(!process.is_alive());
    }
}
