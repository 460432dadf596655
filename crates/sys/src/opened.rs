//! Whether anybody else has a file open.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `F_SETSIG` of fcntl(2), the same on all architectures of Linux.
const F_SETSIG: libc::c_int = 10;

/// Returns true if the file is open by any other open file description than this one, wherever that is: in another
/// process, on its way over a socket, mapped, or in the kernel (FUSE passthrough). Also when the kernel cannot tell.
///
/// The kernel grants a write lease (fcntl(2), `F_SETLEASE`) only on a file that nobody else has open. `file` is open
/// for writing, and belongs to this user.
pub fn is_open_elsewhere(file: BorrowedFd<'_>) -> bool {
    let set = |command, argument: libc::c_int| {
        // SAFETY: a descriptor that is open, and commands that take a number.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // Whoever opens the file in the moment of the lease has it broken by a signal: SIGIO would end this process, and
    // this one is ignored.
    let leased = set(F_SETSIG, libc::SIGURG).and_then(|()| set(libc::F_SETLEASE, libc::F_WRLCK));
    if leased.is_ok() {
        // It ends with the descriptor at the latest.
        let _ = set(libc::F_SETLEASE, libc::F_UNLCK);
    }
    leased.is_err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;
    use std::path::Path;

    #[test]
    fn another_open_of_the_file_is_seen_until_it_is_closed() {
        let path = Path::new("/dev/shm").join(format!("weft-opened-{}", std::process::id()));
        let read_write = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let file = read_write();
        assert!(!is_open_elsewhere(file.as_fd()));
        for writes in [true, false] {
            let other = if writes { read_write() } else { File::open(&path).unwrap() };
            assert!(is_open_elsewhere(file.as_fd()));
            drop(other);
            assert!(!is_open_elsewhere(file.as_fd()), "it was closed");
        }
        let passed = read_write();
        let copy = passed.try_clone().unwrap();
        drop(passed);
        assert!(is_open_elsewhere(file.as_fd()), "a copy of the descriptor counts");
        drop(copy);
        assert!(!is_open_elsewhere(file.as_fd()));
        std::fs::remove_file(path).unwrap();
    }
}
