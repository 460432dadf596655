//! The errors that cross the wire, and the one place where they become `errno` values.

use crate::ids::{MapEpoch, ShardId};
use serde::{Deserialize, Serialize};

/// Result of an operation of the file system.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed: one variant per different reaction of the caller.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Error {
    #[error("no such file or directory")]
    NotFound,
    #[error("file exists")]
    Exists,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("directory not empty")]
    NotEmpty,
    #[error("permission denied")]
    AccessDenied,
    #[error("operation not permitted")]
    NotPermitted,
    #[error("name is longer than 255 bytes")]
    NameTooLong,
    #[error("invalid argument")]
    Invalid,
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    #[error("too many links")]
    TooManyLinks,
    #[error("file too large")]
    FileTooLarge,
    #[error("no space left on node")]
    NoSpace,
    /// A shard was to make alone what needs other shards. No client gets it: the shard asks the others before.
    #[error("the two names are on different shards")]
    CrossShard,
    /// The inode is gone: removed, or from before its shard was lost.
    #[error("stale file handle")]
    Stale,
    /// The object is not (any more) at the storage server; the layout must be asked for again.
    #[error("the object is not on its storage server")]
    NoObject,
    #[error("bad file handle")]
    BadHandle,
    #[error("operation not supported")]
    NotSupported,
    /// A queue is full; the request was not begun and may be sent again.
    #[error("the server is busy")]
    Busy,
    /// The request carried an old map; the reply's map (asked for with `GetMap`) tells where the shard is now.
    #[error("the map has changed (epoch {0})")]
    StaleMap(MapEpoch),
    /// The shard is not at this node.
    #[error("shard {0} is not at this node")]
    WrongShard(ShardId),
    /// The session ended (its term passed without a message): all its leases are gone, a new one must be begun.
    #[error("the session has ended")]
    SessionEnded,
    /// The capability is forged, expired, from an old epoch, or for another object.
    #[error("the capability is not valid for this")]
    CapabilityRejected,
    /// The server that holds this is away.
    #[error("the server is away")]
    Unreachable,
    /// The device or the file system below failed, with this `errno`.
    #[error("input/output error below (errno {0})")]
    Device(i32),
    /// A message that the protocol does not allow; the connection is closed after it.
    #[error("malformed message")]
    Malformed,
    /// Another client's kernel has pages of the range, which could not be dropped in time. Nothing was done; the
    /// request is to be sent again, without a lock held that dropping pages may wait for.
    #[error("another client's kernel has pages of this range")]
    PagesCached,
    /// Another owner holds a lock that is in the way, or waits for one.
    #[error("resource temporarily unavailable")]
    WouldBlock,
    /// To wait for the lock would close a cycle of owners that wait for each other.
    #[error("resource deadlock avoided")]
    Deadlock,
    /// The session has as many locks, or waits, as it may have.
    #[error("no locks available")]
    NoLocks,
    /// The caller gave up waiting.
    #[error("interrupted system call")]
    Interrupted,
    #[error("no such extended attribute")]
    NoXattr,
    #[error("numerical result out of range")]
    OutOfRange,
    #[error("argument list too long")]
    TooBig,
    /// The inode has as many bytes of extended attributes as it may ([`crate::limits::XATTRS_BYTES_MAX`]).
    #[error("no space left for extended attributes of this inode")]
    NoXattrSpace,
    /// The directory has parts ([`crate::Parts`]), and another one serves this name. Nothing was done.
    #[error("another part of the directory serves this name")]
    Split,
    /// Somebody else has the file open, or a kernel that reads and writes its object itself.
    #[error("the file is in use")]
    InUse,
}

/// `errno` values of Linux that [`Error::to_errno`] yields.
pub mod errno {
    #![expect(missing_docs, reason = "the names are those of errno(3)")]
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EINTR: i32 = 4;
    pub const EIO: i32 = 5;
    pub const E2BIG: i32 = 7;
    pub const EBADF: i32 = 9;
    pub const EAGAIN: i32 = 11;
    pub const EACCES: i32 = 13;
    pub const EBUSY: i32 = 16;
    pub const EEXIST: i32 = 17;
    pub const EXDEV: i32 = 18;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const ENFILE: i32 = 23;
    pub const EMFILE: i32 = 24;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const EMLINK: i32 = 31;
    pub const ERANGE: i32 = 34;
    pub const EDEADLK: i32 = 35;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOLCK: i32 = 37;
    pub const ENOTEMPTY: i32 = 39;
    pub const ELOOP: i32 = 40;
    pub const ENODATA: i32 = 61;
    pub const EPROTO: i32 = 71;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ESTALE: i32 = 116;
}

impl Error {
    /// What a system call returns for this error.
    pub fn to_errno(&self) -> i32 {
        match self {
            Error::NotFound => errno::ENOENT,
            Error::Exists => errno::EEXIST,
            Error::NotDirectory => errno::ENOTDIR,
            Error::IsDirectory => errno::EISDIR,
            Error::NotEmpty => errno::ENOTEMPTY,
            Error::AccessDenied => errno::EACCES,
            Error::NotPermitted => errno::EPERM,
            Error::NameTooLong => errno::ENAMETOOLONG,
            Error::Invalid => errno::EINVAL,
            Error::SymlinkLoop => errno::ELOOP,
            Error::TooManyLinks => errno::EMLINK,
            Error::FileTooLarge => errno::EFBIG,
            Error::NoSpace | Error::NoXattrSpace => errno::ENOSPC,
            Error::NoXattr => errno::ENODATA,
            Error::OutOfRange => errno::ERANGE,
            Error::TooBig => errno::E2BIG,
            Error::CrossShard => errno::EXDEV,
            Error::Stale => errno::ESTALE,
            Error::BadHandle => errno::EBADF,
            Error::NotSupported => errno::EOPNOTSUPP,
            Error::Busy | Error::PagesCached | Error::WouldBlock => errno::EAGAIN,
            Error::InUse => errno::EBUSY,
            Error::Deadlock => errno::EDEADLK,
            Error::NoLocks => errno::ENOLCK,
            Error::Interrupted => errno::EINTR,
            Error::Device(errno) => *errno,
            Error::Malformed => errno::EPROTO,
            Error::NoObject
            | Error::StaleMap(_)
            | Error::WrongShard(_)
            | Error::SessionEnded
            | Error::CapabilityRejected
            | Error::Split
            | Error::Unreachable => errno::EIO,
        }
    }

    /// The code that stands in the fixed header of a data reply. Zero is success.
    pub fn to_data_status(&self) -> u16 {
        match self {
            Error::NoObject => 0x8001,
            Error::CapabilityRejected => 0x8002,
            Error::SessionEnded => 0x8004,
            Error::Busy => 0x8005,
            Error::PagesCached => 0x8006,
            other => u16::try_from(other.to_errno()).unwrap_or(0x8003),
        }
    }

    /// The other way round of [`Error::to_data_status`].
    pub fn from_data_status(status: u16) -> Error {
        match i32::from(status) {
            0x8001 => Error::NoObject,
            0x8002 => Error::CapabilityRejected,
            0x8004 => Error::SessionEnded,
            0x8005 => Error::Busy,
            0x8006 => Error::PagesCached,
            errno::ENOSPC => Error::NoSpace,
            errno::EFBIG => Error::FileTooLarge,
            errno::EINVAL => Error::Invalid,
            errno::EACCES => Error::AccessDenied,
            errno::EOPNOTSUPP => Error::NotSupported,
            errno::EPROTO => Error::Malformed,
            code if code < 0x8000 => Error::Device(code),
            _ => Error::Device(errno::EIO),
        }
    }
}
