//! What is known of the directory that a file system lies over.
//!
//! The directory is one of another file system, which is *below*: see docs/decisions/0029. A shard keeps, of each name
//! that it has read from below or that was written back, what was there then.

use crate::attributes::FileKind;
use crate::ids::InodeNumber;
use crate::message::shard::SymlinkTarget;
use crate::name::Name;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// By which a file below is taken for the same with the same contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BelowStamp {
    pub size: u64,
    pub mtime: Timestamp,
    /// Inode number at the file system below.
    pub inode: u64,
}

/// A name below, as a storage server that sees it tells.
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
    /// What had the name here.
    pub inode: InodeNumber,
    /// That inode's time of change then: it has another one since it was changed.
    pub ctime: Timestamp,
    /// What is below was changed by others, and stays: ours is written beside it.
    pub differs: bool,
}

/// What is to be known of a name from now on; `None`: nothing is below.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BelowNote {
    pub name: Name,
    pub entry: Option<BelowEntry>,
}

/// Part of what is known of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BelowPage {
    /// The directory's names were not read from below yet.
    pub is_unread: bool,
    /// In the order of their names.
    pub entries: Vec<(Name, BelowEntry)>,
    /// After which name to go on; `None`: this was the last page.
    pub next: Option<Name>,
}
