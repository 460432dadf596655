//! What a call returned.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes as runs of equal values: (value, count).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Runs(pub Vec<(u8, u64)>);

impl Runs {
    /// Encodes bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let chunks = bytes.chunk_by(|one, next| one == next);
        Self(chunks.map(|chunk| (chunk[0], chunk.len() as u64)).collect())
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// Returns true if there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Decodes the bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|(value, count)| std::iter::repeat_n(*value, *count as usize)).collect()
    }
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())?;
        for (index, (value, count)) in self.0.iter().enumerate() {
            match index {
                0 => f.write_str(": ")?,
                20 => return f.write_str(" ..."),
                _ => f.write_str(" ")?,
            }
            write!(f, "{value}*{count}")?;
        }
        Ok(())
    }
}

/// What stat tells, as far as the model has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attributes {
    pub inode: u64,
    pub is_directory: bool,
    pub mode: u16,
    pub links: u64,
    pub size: u64,
    /// Nanoseconds since 1970.
    pub mtime: i64,
}

/// A directory entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    pub is_directory: bool,
}

/// What a call returned.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// An errno.
    Failed(i32),
    Done,
    /// An open: the inode of the handle, by fstat.
    Opened(u64),
    /// Bytes written, or a position.
    Count(u64),
    Bytes(Runs),
    Attributes(Attributes),
    /// What one getdents64 gave; nothing at the end of the directory.
    Entries(Vec<Entry>),
    /// The handle of the call is not open, or that of an open is in use: nothing was done.
    Skipped,
}

impl Outcome {
    /// The outcome of a call that returns nothing.
    pub fn of<T>(result: Result<T, Errno>, value: impl FnOnce(T) -> Outcome) -> Self {
        match result {
            Ok(returned) => value(returned),
            Err(errno) => Outcome::Failed(errno.raw_os_error()),
        }
    }

    /// Returns the errno of a failed call.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Outcome::Failed(errno) => Some(Errno::from_raw_os_error(*errno)),
            _ => None,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Failed(errno) => f.write_str(&errno_name(*errno)),
            Outcome::Done => f.write_str("done"),
            Outcome::Opened(inode) => write!(f, "opened inode {inode:x}"),
            Outcome::Count(count) => write!(f, "{count}"),
            Outcome::Bytes(runs) => write!(f, "{runs}"),
            Outcome::Attributes(Attributes { inode, is_directory, mode, links, size, mtime }) => {
                let kind = if *is_directory { "directory" } else { "file" };
                write!(f, "{kind} {inode:x}, mode 0{mode:o}, links {links}, size {size}, mtime {mtime}")
            }
            Outcome::Entries(entries) => {
                let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
                write!(f, "[{}]", names.join(" "))
            }
            Outcome::Skipped => f.write_str("skipped"),
        }
    }
}

/// The name of an errno that a file system may return.
pub fn errno_name(errno: i32) -> String {
    const NAMES: &[(Errno, &str)] = &[
        (Errno::PERM, "EPERM"),
        (Errno::NOENT, "ENOENT"),
        (Errno::IO, "EIO"),
        (Errno::BADF, "EBADF"),
        (Errno::AGAIN, "EAGAIN"),
        (Errno::ACCESS, "EACCES"),
        (Errno::FAULT, "EFAULT"),
        (Errno::BUSY, "EBUSY"),
        (Errno::EXIST, "EEXIST"),
        (Errno::XDEV, "EXDEV"),
        (Errno::NODEV, "ENODEV"),
        (Errno::NOTDIR, "ENOTDIR"),
        (Errno::ISDIR, "EISDIR"),
        (Errno::INVAL, "EINVAL"),
        (Errno::FBIG, "EFBIG"),
        (Errno::NOSPC, "ENOSPC"),
        (Errno::NOTEMPTY, "ENOTEMPTY"),
        (Errno::NOSYS, "ENOSYS"),
        (Errno::STALE, "ESTALE"),
        (Errno::NOTCONN, "ENOTCONN"),
        (Errno::CONNABORTED, "ECONNABORTED"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
        (Errno::TIMEDOUT, "ETIMEDOUT"),
    ];
    let known = NAMES.iter().find(|(known, _)| known.raw_os_error() == errno);
    known.map_or_else(|| format!("errno {errno}"), |(_, name)| (*name).to_owned())
}

/// A call's outcome and when it was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reply {
    pub outcome: Outcome,
    /// CLOCK_MONOTONIC before and after the call, nanoseconds.
    pub begun: u64,
    pub ended: u64,
    /// Nanoseconds of CLOCK_REALTIME_COARSE before the call: that clock stamps files, and lags by ticks, on a busy
    /// machine by several.
    pub wall_begun: i64,
    /// CLOCK_REALTIME after the call, nanoseconds.
    pub wall_ended: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_keep_bytes() {
        let bytes = [1, 1, 1, 0, 7, 7];
        let runs = Runs::of(&bytes);
        assert_eq!((runs.len(), runs.bytes()), (6, bytes.to_vec()));
        assert_eq!(runs.to_string(), "6 bytes: 1*3 0*1 7*2");
        assert!(Runs::of(&[]).is_empty());
    }
}
