//! Taking a mount away, dead or alive.
//!
//! Root unmounts by the system call, others through `fusermount3`, which is set-user-id root for that. A mount whose
//! process was killed answers nothing any more; it is taken away even when some process still stands in it (lazily: its
//! name goes at once, the rest when the last of them leaves). A living one that is busy is left alone, and the error
//! names who holds it.
//!
//! A process can be killed and yet hold its connection: when one of its own threads waits in the kernel for a request
//! that only this process could answer. That wait ends, as those of all programs, when the connection is aborted
//! ([`unmount_by_force`]): root aborts by the system call, others through the file that the kernel has for each
//! connection, which belongs to who mounted it.
//!
//! Not here: ending the process that served it; it ends by itself when its mount is gone.

use crate::holders;
use crate::mount_table::{self, KIND, MountEntry};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The helpers that may unmount for a user, newest first.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
/// Where the kernel shows its FUSE connections (file system `fusectl`), each named by the device number of its mount.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// How long a mount has to answer before it counts as alive but slow.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
const ANSWER_PAUSE: Duration = Duration::from_millis(2);

/// Unmounts the Weft file system at this mount point. What is open below it keeps it busy
/// ([`io::ErrorKind::ResourceBusy`]), unless its process is dead.
///
/// Returns when the name is free again. Data that programs have written was flushed when they closed their files.
pub fn unmount(mount_point: &Path) -> io::Result<()> {
    let (path, entry) = find(mount_point)?;
    let shown = path.display();
    match detach(&path, false) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            if is_dead(&path) {
                return detach(&path, true);
            }
            let text = format!("{shown} is busy: held by {}", holders::describe(&holders::holders(&path)));
            Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
        }
        // Somebody else was faster.
        Err(_) if mount_table::at(&path)?.is_none_or(|now| now.device != entry.device) => Ok(()),
        result => result,
    }
}

/// What became of the connection of a mount that was taken away by force.
#[derive(Debug)]
pub enum Connection {
    /// All requests have failed, and so will those of files that are still open. The process behind it is told, and
    /// ends.
    Aborted,
    /// It lives until the process behind it ends: this is its abort file, and why it could not be used.
    Left(PathBuf, io::Error),
}

/// Unmounts the Weft file system at this mount point, busy or not, and aborts its connection to the kernel: programs
/// that wait for an answer get an error. What is dirty in the kernel (stores to mapped files) is lost.
pub fn unmount_by_force(mount_point: &Path) -> io::Result<Connection> {
    let (path, entry) = find(mount_point)?;
    let connection =
        match rustix::mount::unmount(&path, UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH) {
            Ok(()) => return Ok(Connection::Aborted),
            Err(Errno::PERM) => abort(entry.device),
            Err(error) => return Err(error.into()),
        };
    detach_by_helper(&path, true)?;
    Ok(connection)
}

/// Aborts the connection of a mount through its file, which takes no privilege.
fn abort(device: (u32, u32)) -> Connection {
    match AbortFile::open(device).and_then(AbortFile::abort) {
        Ok(()) => Connection::Aborted,
        Err(error) => Connection::Left(abort_file(device), error),
    }
}

/// The kernel's file `abort` of a connection, open. Needs no mount point: of a mount that was detached, programs may
/// still wait.
///
/// Keeps neither the connection nor its mount: the kernel clears the file when the last of them goes, so that it never
/// aborts a later connection of the same number.
pub(crate) struct AbortFile(File);

impl AbortFile {
    /// Opens it where the kernel's files are mounted, otherwise in an own mount of them that no namespace shows, which
    /// takes CAP_SYS_ADMIN in the first user namespace.
    pub(crate) fn open(device: (u32, u32)) -> io::Result<Self> {
        let shown = OpenOptions::new().write(true).open(abort_file(device));
        shown.or_else(|error| open_unshown(device).map_err(|_| error)).map(Self)
    }

    pub(crate) fn abort(mut self) -> io::Result<()> {
        self.0.write_all(b"1")
    }
}

fn open_unshown(device: (u32, u32)) -> rustix::io::Result<File> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let path = format!("{}/abort", connection_number(device));
    rustix::fs::openat(&root, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}

/// Where the kernel shows the file if its connections are mounted where they usually are.
pub(crate) fn abort_file(device: (u32, u32)) -> PathBuf {
    Path::new(CONNECTIONS).join(connection_number(device).to_string()).join("abort")
}

/// The kernel's `dev_t`, which names a connection.
fn connection_number((major, minor): (u32, u32)) -> u32 {
    major << 20 | minor
}

/// The path as the kernel lists it, and the Weft mount at it.
fn find(mount_point: &Path) -> io::Result<(PathBuf, MountEntry)> {
    let path = mount_table::absolute(mount_point)?;
    let shown = path.display();
    let Some(entry) = mount_table::at(&path)? else {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("nothing is mounted at {shown}")));
    };
    if entry.kind != KIND {
        let text = format!("what is mounted at {shown} is not Weft but {}; use umount(8)", entry.kind);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok((path, entry))
}

/// Unmounts what is on top at this path; `lazily`: also when it is busy.
pub(crate) fn detach(path: &Path, lazily: bool) -> io::Result<()> {
    let lazy = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | lazy) {
        Err(Errno::PERM) => detach_by_helper(path, lazily),
        result => Ok(result?),
    }
}

fn detach_by_helper(path: &Path, lazily: bool) -> io::Result<()> {
    for helper in HELPERS {
        let mut command = Command::new(helper);
        command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(path).env("LC_ALL", "C");
        match command.output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => return Err(helper_failed(&String::from_utf8_lossy(&output.stderr))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let text = format!("{} is not installed; it unmounts for users (package fuse3)", HELPERS[0]);
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}

/// The helper tells why it failed in words only.
fn helper_failed(stderr: &str) -> io::Error {
    let busy = stderr.to_ascii_lowercase().contains("busy");
    let kind = if busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    io::Error::new(kind, stderr.trim().to_string())
}

/// Whether the process behind a mount is gone. One that is stopped, or does not answer in time, is not.
fn is_dead(path: &Path) -> bool {
    // By another process: a thread that waits for a request which the mount's process has taken and does not answer
    // cannot be killed, and would keep this process from ending. `statfs` and not `stat`, which the kernel may answer
    // from its cache.
    let mut command = Command::new("stat");
    command.args(["-f", "--"]).arg(path).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else { return false };
    let deadline = Instant::now() + ANSWER_WAIT;
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(Some(_)) => {
                let mut said = String::new();
                let read = child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
                return matches!(read, Some(Ok(_))) && said.contains("Transport endpoint is not connected");
            }
            Ok(None) => std::thread::sleep(ANSWER_PAUSE),
            Err(_) => return false,
        }
    }
    // It ends when it can.
    let _ = child.kill();
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_helper_says_becomes_an_error() {
        let busy = helper_failed("fusermount3: failed to unmount /mnt/w: Device or resource busy\n");
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
        let other = helper_failed("fusermount3: entry for /mnt/w not found in /etc/mtab\n");
        assert_eq!(other.to_string(), "fusermount3: entry for /mnt/w not found in /etc/mtab");
    }

    #[test]
    fn a_plain_directory_is_not_dead() {
        assert!(!is_dead(Path::new("/")));
        assert!(!is_dead(Path::new("/nothing/of/this/name")));
    }
}
