//! The guard of a mount: a process that fails the programs of a mount whose process was killed.
//!
//! A killed process ends thread by thread, and the last one closes its connection to the kernel, which fails what
//! programs wait for. One of its threads may wait in the kernel for a program: it has a name dropped
//! (FUSE_NOTIFY_INVAL_ENTRY), which takes the lock of a directory that a program holds while it waits for an answer.
//! Once the process was killed nobody gives that answer, the thread never gets the lock, and the connection is never
//! closed. Aborting the connection ends both waits. Nor does anybody tell the kernel any more that a name was changed
//! by others: it has to forget them all.
//!
//! Nothing of the process can do that, so it has a child for it. The child learns of the kill from its
//! parent-death signal, which the kernel sends when the *thread* that started the child has ended. That thread does
//! nothing but wait for the child, and so ends at once when its process is killed, whatever the other threads wait for,
//! and does not while the process is slow or stopped.
//!
//! Invariants: a guard ends before its mount's process does, unless that is killed. It aborts no other connection: the
//! number of a connection is used again, but not before it was aborted, and a guard has a descriptor that tells.
//! Not here: the mount point of a killed mount, which stays, so that no program takes the directory below it for the
//! file system ([`crate::unmount()`] takes it away).

use crate::notify;
use crate::unmount::{self, AbortFile, Connection};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What the kernel sends to a guard when its mount was killed.
pub const PARENT_DEATH_SIGNAL: Signal = Signal::USR1;
/// How long a thread that has sent its parent-death signals may be seen in `/proc` on a busy machine.
pub const THREAD_END_WAIT: Duration = Duration::from_secs(60);
const THREAD_END_PAUSE: Duration = Duration::from_millis(10);
/// How long it is tried to abort a connection.
const ABORT_WAIT: Duration = Duration::from_secs(10);
const ABORT_PAUSE: Duration = Duration::from_millis(100);

/// The mount that a guard watches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watched {
    /// The mount's process and that thread of it which has started the guard.
    pub process: u32,
    pub thread: u32,
    pub mount_point: PathBuf,
    /// Device number of the mount, which is that of its connection.
    pub device: (u32, u32),
}

impl Watched {
    /// In the guard: has the kernel send [`PARENT_DEATH_SIGNAL`]. What happened before it is seen by
    /// [`Watched::has_ended`] only.
    pub fn request_signal(&self) -> io::Result<()> {
        Ok(rustix::process::set_parent_process_death_signal(Some(PARENT_DEATH_SIGNAL))?)
    }

    /// In the guard, after a signal: whether the thread that started it has ended, and with it the mount. Waits for it
    /// so long.
    pub fn has_ended(&self, wait: Duration) -> bool {
        let pauses = wait.as_millis() / THREAD_END_PAUSE.as_millis();
        (0..pauses).any(|_| {
            let ended = !self.has_thread();
            if !ended {
                thread::sleep(THREAD_END_PAUSE);
            }
            ended
        })
    }

    fn has_thread(&self) -> bool {
        let is_parent =
            rustix::process::getppid().is_some_and(|parent| parent.as_raw_nonzero().get() as u32 == self.process);
        is_parent && Path::new(&format!("/proc/{}/task/{}", self.process, self.thread)).exists()
    }

    /// Aborts the connection of the mount if it lives, also one that is detached. `None`: it was unmounted, and nobody
    /// uses it any more.
    pub fn abort(&self, connection: impl AsFd) -> Option<Connection> {
        let deadline = Instant::now() + ABORT_WAIT;
        let mut result = None;
        loop {
            // Before it is asked whether the connection lives: its number is not used again until then.
            let file = AbortFile::open(self.device);
            match (is_connected(&connection), result) {
                (false, None) => return None,
                (false, Some(_)) => return Some(Connection::Aborted),
                (true, Some(error)) if Instant::now() >= deadline => {
                    return Some(Connection::Left(unmount::abort_file(self.device), error));
                }
                (true, Some(_)) => thread::sleep(ABORT_PAUSE),
                // The leases of the mount may be gone already, and the kernel answers from its names without a
                // connection, too. On kernels without epochs it does so until their time is over.
                (true, None) => drop(notify::increment_epoch(&connection)),
            }
            let aborted = file.and_then(AbortFile::abort).or_else(|error| self.abort_by_force().map_err(|_| error));
            result = Some(aborted.err().unwrap_or_else(|| io::Error::other("it lives after it was aborted")));
        }
    }

    /// Aborts as root of a user namespace, who may not have the kernel's file: by an unmount that fails since this
    /// process has the mount open.
    fn abort_by_force(&self) -> rustix::io::Result<()> {
        // Asks the mount's process for nothing.
        let pinned = rustix::fs::open(&self.mount_point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&pinned, c"", flags, StatxFlags::empty())?;
        if (found.stx_dev_major, found.stx_dev_minor) != self.device {
            return Err(Errno::NOENT);
        }
        match rustix::mount::unmount(format!("/proc/self/fd/{}", pinned.as_raw_fd()), UnmountFlags::FORCE) {
            Err(Errno::BUSY) => Ok(()),
            done => done,
        }
    }
}

/// Whether a connection was neither unmounted nor aborted.
fn is_connected(connection: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&connection, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && !polled[0].revents().contains(PollFlags::ERR)
}

/// The guard of a mount of this process. Ends when it is dropped.
pub(crate) struct Guard {
    process: OwnedFd,
    /// Has started it and waits for its end.
    starter: Option<JoinHandle<()>>,
}

impl Guard {
    /// Starts `command` with the connection as its standard input.
    pub(crate) fn start(
        mount_point: PathBuf,
        device: (u32, u32),
        connection: OwnedFd,
        command: impl FnOnce(&Watched) -> Command + Send + 'static,
    ) -> io::Result<Self> {
        let (started, child) = mpsc::channel();
        let starter = thread::Builder::new().name("weft-guard".into()).spawn(move || {
            let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let watched = Watched { process: std::process::id(), thread, mount_point, device };
            let mut command = command(&watched);
            let spawned = command.stdin(Stdio::from(connection)).spawn();
            // It keeps the connection, too.
            drop(command);
            match spawned.and_then(|child| Ok((pidfd(&child)?, child))) {
                Ok((process, mut child)) => {
                    let _ = started.send(Ok(process));
                    let _ = child.wait();
                }
                Err(error) => drop(started.send(Err(error))),
            }
        })?;
        let process = child.recv().map_err(|_| io::Error::other("the guard's thread has ended"))??;
        Ok(Self { process, starter: Some(starter) })
    }
}

fn pidfd(child: &Child) -> io::Result<OwnedFd> {
    let pid = Pid::from_child(child);
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Fails when it has ended before, killed by somebody.
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
        if let Some(starter) = self.starter.take() {
            let _ = starter.join();
        }
    }
}
