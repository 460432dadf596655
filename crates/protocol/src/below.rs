//! Names and entries of the directory that a file system lies over.
//!
//! The directory is part of another file system, which is *below*: see docs/decisions/0029. For each name that was read
//! from below or written back, a shard keeps an entry that says what was below then.

use crate::attributes::FileKind;
use crate::ids::InodeNumber;
use crate::message::shard::SymlinkTarget;
use crate::name::Name;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Identifies a version of a file below: with the same stamp, the contents are taken to be the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BelowStamp {
    pub size: u64,
    pub mtime: Timestamp,
    /// Inode number at the file system below.
    pub inode: u64,
}

/// A name below, as a storage server sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BelowName {
    pub name: Name,
    pub kind: FileKind,
    /// The lower 12 bits of `st_mode`.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub stamp: BelowStamp,
    /// Of a symbolic link.
    pub target: Option<SymlinkTarget>,
}

/// A name below, as it was when it was read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BelowEntry {
    pub kind: FileKind,
    /// Of a file or symbolic link.
    pub stamp: BelowStamp,
    /// The inode that had the name here.
    pub inode: InodeNumber,
    /// The inode's time of change then. Another one: it was changed since.
    pub ctime: Timestamp,
    /// Others have changed the file below, so it stays: ours is written beside it.
    pub differs: bool,
}

/// Replaces a name's entry; `None`: nothing is below.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BelowNote {
    pub name: Name,
    pub entry: Option<BelowEntry>,
}

/// A page of a directory's entries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BelowPage {
    /// The directory's names have yet to be read from below.
    pub is_unread: bool,
    /// In the order of their names.
    pub entries: Vec<(Name, BelowEntry)>,
    /// After which name to go on; `None`: this was the last page.
    pub next: Option<Name>,
}
