//! Taking a mount away, dead or alive.
//!
//! Root unmounts by the system call, others through `fusermount3`, which is set-user-id root for that. A mount whose
//! process was killed answers nothing any more; it is taken away even when some process still stands in it (lazily: its
//! name goes at once, the rest when the last of them leaves). A living one that is busy is left alone, and the error
//! names who holds it.
//!
//! Not here: ending the process that served it; it ends by itself when its mount is gone.

use crate::holders;
use crate::mount_table::{self, KIND};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

/// The helpers that may unmount for a user, newest first.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
/// How long a mount has to answer before it counts as alive but slow.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// Unmounts the Weft file system at this mount point. What is open below it keeps it busy
/// ([`io::ErrorKind::ResourceBusy`]), unless its process is dead.
///
/// Returns when the name is free again. Data that programs have written was flushed when they closed their files.
pub fn unmount(mount_point: &Path) -> io::Result<()> {
    let path = mount_table::absolute(mount_point)?;
    let shown = path.display();
    let Some(entry) = mount_table::at(&path)? else {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("nothing is mounted at {shown}")));
    };
    if entry.kind != KIND {
        let text = format!("what is mounted at {shown} is not Weft but {}; use umount(8)", entry.kind);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
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
    let (answer, answered) = mpsc::channel();
    let path = path.to_path_buf();
    // On a thread of its own, because it does not return while that process is stopped. `statfs` and not `stat`, which
    // the kernel may answer from its cache.
    std::thread::spawn(move || answer.send(rustix::fs::statfs(&path).map(drop)));
    matches!(answered.recv_timeout(ANSWER_WAIT), Ok(Err(Errno::NOTCONN)))
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
