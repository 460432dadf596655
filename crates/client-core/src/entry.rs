//! What fronts are told of names, inodes, listings and places.

use std::time::Duration;
use weft_protocol::message::shard::DirectoryEntry;
use weft_protocol::{Attributes, Cookie, Error, InodeNumber, NodeId, ObjectId, Result};

/// An inode, and how long a cache above may keep what is told of it (zero: not at all).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub attributes: Attributes,
    /// How long the name may be taken for this inode.
    pub name_valid: Duration,
    /// How long the attributes may be used.
    pub attributes_valid: Duration,
    /// Size and times may be old: the storage server of the file may have later ones, and does not answer its shard.
    pub size_in_doubt: bool,
}

impl Entry {
    /// What was told, and how long name and attributes hold, milliseconds.
    pub(crate) fn of(attributes: Attributes, (name_ms, attributes_ms): (u64, u64)) -> Self {
        let (name_valid, attributes_valid) = (Duration::from_millis(name_ms), Duration::from_millis(attributes_ms));
        Self { attributes, name_valid, attributes_valid, size_in_doubt: false }
    }

    /// The same, with a size that is in doubt also if the shard said so before.
    pub(crate) fn or_in_doubt(self, size_in_doubt: bool) -> Self {
        Self { size_in_doubt: self.size_in_doubt || size_in_doubt, ..self }
    }

    /// The same, for who wants to know size and times. [`Error::Unreachable`]: they are in doubt.
    pub fn with_size(self) -> Result<Self> {
        if self.size_in_doubt { Err(Error::Unreachable) } else { Ok(self) }
    }
}

/// A page of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryListing {
    /// Attributes are there where they were asked for and cost no further message.
    pub entries: Vec<DirectoryEntry>,
    /// After which cookie to continue; `None`: the end.
    pub next: Option<Cookie>,
    /// The directory's `..`; `None`: another part of the directory knows it, that with the first page.
    pub parent: Option<InodeNumber>,
    /// How long a cache above may keep the names and attributes of this page.
    pub valid: Duration,
    /// [`crate::Files::changes`] when it came.
    pub seen: u64,
}

/// What the part of one writer has of a split file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartUse {
    pub object: ObjectId,
    /// Pieces of the file that lie in it, each as long as it can be.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Where bytes of a file live.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    pub offset: u64,
    pub bytes: u64,
    /// `None`: a hole, or an empty file.
    pub node: Option<NodeId>,
    pub host: String,
    pub site: String,
}
