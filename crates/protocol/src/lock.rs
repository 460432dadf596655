//! Advisory locks of files, as `fcntl` and `flock` know them.
//!
//! A lock belongs to an owner of a session, and ends with either. Two owners are in each other's way where their ranges
//! overlap and one of the locks is exclusive; `flock` and `fcntl` locks are never in each other's way, as on Linux, and
//! nothing is in the way of both those of appends and others.

use crate::error::{Error, Result};
use crate::limits::LOCK_RANGES_MAX;
use serde::{Deserialize, Serialize};

/// Last byte that a lock can cover: a lock up to there covers whatever is appended, too.
pub const LOCK_END: u64 = i64::MAX as u64;

/// Bytes from `start` to `end`, both included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LockRange {
    pub start: u64,
    pub end: u64,
}

impl LockRange {
    /// The whole file, however long it becomes.
    pub const ALL: LockRange = LockRange { start: 0, end: LOCK_END };

    /// Returns true if the range has a byte and none beyond [`LOCK_END`].
    pub fn is_valid(self) -> bool {
        self.start <= self.end && self.end <= LOCK_END
    }

    /// Returns true if a byte is in both ranges.
    pub fn overlaps(self, other: LockRange) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// Who else may lock the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockMode {
    /// Others may hold shared locks, too.
    Shared,
    /// Nobody else.
    Exclusive,
}

impl LockMode {
    /// Returns true if two owners cannot hold these modes of the same byte.
    pub fn conflicts(self, other: LockMode) -> bool {
        self == LockMode::Exclusive || other == LockMode::Exclusive
    }
}

/// What owns a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockKind {
    /// An open file description, by `flock`: always of [`LockRange::ALL`].
    Flock,
    /// A process, by `fcntl` (`F_SETLK`). A wait that closes a cycle is refused with [`crate::Error::Deadlock`].
    Process,
    /// An open file description, by `fcntl` (`F_OFD_SETLK`) or the client library: no search for deadlocks, since a
    /// thread that waits says nothing of the others that use the description.
    Description,
    /// An append to a striped file that several clients write: always of [`LockRange::ALL`], and for as long as the
    /// append takes. Clients lock so for themselves, and no program does.
    Append,
}

impl LockKind {
    /// Returns true if locks of the two kinds can be in each other's way.
    pub fn meets(self, other: LockKind) -> bool {
        use LockKind::{Append, Description, Flock, Process};
        match self {
            Flock | Append => self == other,
            Process | Description => matches!(other, Process | Description),
        }
    }

    /// Whether a lock of the kind may be of these ranges of a file: else [`Error::Invalid`].
    pub fn check_ranges(self, ranges: &[LockRange]) -> Result<()> {
        let has_parts = matches!(self, LockKind::Process | LockKind::Description);
        let are_of_kind = has_parts || ranges == [LockRange::ALL];
        let are_valid = (1..=LOCK_RANGES_MAX).contains(&ranges.len()) && ranges.iter().all(|range| range.is_valid());
        if are_of_kind && are_valid { Ok(()) } else { Err(Error::Invalid) }
    }
}

/// Owner of locks within its session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LockOwner {
    pub kind: LockKind,
    /// The client's number of the process or description.
    pub number: u64,
}

/// A range and how to lock it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RangeLock {
    pub range: LockRange,
    pub mode: LockMode,
}

/// What an owner has locked of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OwnerLocks {
    pub owner: LockOwner,
    /// The process that locked last.
    pub pid: u32,
    pub locks: Vec<RangeLock>,
}

/// A lock that is in the way of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldLock {
    pub lock: RangeLock,
    pub kind: LockKind,
    /// The process that asked for it, if it is one of the asking session's machine; 0: of another session.
    pub pid: u32,
}
