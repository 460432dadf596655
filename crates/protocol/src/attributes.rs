//! What `stat` tells of an inode, and what may be changed of it.

use crate::bits::serialize_bits;
use crate::ids::InodeNumber;
use crate::layout::{Inherited, Layout};
use crate::parts::Parts;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Kind of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
}

/// Attributes of an inode.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attributes {
    pub inode: InodeNumber,
    pub kind: FileKind,
    /// Permission bits and set-user-id, set-group-id, sticky: the lower 12 bits of `st_mode`.
    pub mode: u16,
    /// Hard links. A directory has 2 and one per directory in it.
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes of a regular file or of a symbolic link's target; entries of a directory.
    pub size: u64,
    /// Last read, as far as it was set by a caller: reading does not change it (as with `noatime`).
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the contents or attributes.
    pub ctime: Timestamp,
    /// Where the contents of a regular file are.
    pub layout: Layout,
    pub flags: InodeFlags,
    /// Of a `hash` directory, and of each of its parts. Links, size and times are those of this part.
    pub parts: Option<Parts>,
}

bitflags::bitflags! {
    /// What is known of an inode with its attributes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct InodeFlags: u8 {
        /// It has extended attributes: of most it is so known that they have none.
        const XATTRS = 1;
        /// Of a directory: it hands down [`Inherited::spreads`].
        const SPREADS = 2;
    }
}

serialize_bits!(InodeFlags, u8, "unknown flags of an inode");

impl Attributes {
    /// Whether it has extended attributes.
    pub fn has_xattrs(&self) -> bool {
        self.flags.contains(InodeFlags::XATTRS)
    }

    /// What a directory hands down.
    pub fn inherited(&self) -> Inherited {
        Inherited { plan: self.layout.plan(), spreads: self.flags.contains(InodeFlags::SPREADS) }
    }
}

/// A time to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TimeChange {
    /// The server's present time. Allowed to whoever may write the file.
    Now,
    /// This time. Allowed to the owner only.
    To(Timestamp),
}

/// Changes asked for by `chmod`, `chown`, `truncate`, `utimens`. `None` leaves a field as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AttributeChanges {
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeChange>,
    pub mtime: Option<TimeChange>,
}

impl AttributeChanges {
    /// Whether they may change who may open the file.
    pub fn change_rights(&self) -> bool {
        self.mode.is_some() || self.uid.is_some() || self.gid.is_some()
    }
}
