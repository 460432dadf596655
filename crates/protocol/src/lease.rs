//! Leases: what a client may keep and use without asking.
//!
//! All leases of a session end with the session's term ([`crate::limits::SESSION_TERM_MS`]), which each of its messages
//! renews that is not refused; the client counts it from the moment it sent the request. A lease that is in another
//! client's way is recalled.
//!
//! A reply that grants and a recall of the same key may pass each other on their way, since they use two connections.
//! Both carry the shard's *stamp*, which grows with each; a client that got a recall with a higher stamp than the reply
//! treats the reply's grant as recalled already.

use crate::bits::serialize_bits;
use crate::ids::InodeNumber;
use serde::{Deserialize, Serialize};

/// What a lease is on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LeaseKey {
    /// Attributes of an inode.
    Attributes(InodeNumber),
    /// One name in a directory, there or not there: the name is given by its hash ([`crate::Name::hash64`]).
    Entry(InodeNumber, u64),
    /// All names in a directory: whoever knows all of them also knows which are not there.
    Directory(InodeNumber),
    /// Contents, size and modification time of a regular file. Held by everyone who has the file open. Of a directory:
    /// held by those who have it open, `Open` at most.
    Data(InodeNumber),
    /// Mode, owner and group of a directory: what decides who may use its names. Others making names there do not touch
    /// it, unlike its attributes.
    Permissions(InodeNumber),
    /// The number of an inode. Not granted by itself: whoever is told of an inode may open it by its number for one
    /// term after its last name is gone. Given back when nobody above the client can do so any more, with the stamp up
    /// to which replies are known to tell of it no more.
    Inode(InodeNumber),
    /// Every name in a directory, there or not there, for a recall of all leases on them at once. Never granted.
    Names(InodeNumber),
    /// The range of a split file that the session was granted by a publication ([`Grants::RANGE`]): what it writes
    /// there need not be published before the write returns. `Exclusive`. Given up by a publication of all that was
    /// written under it, or in the answer to a recall, which comes after that.
    Ranges(InodeNumber),
}

impl LeaseKey {
    /// The inode that the key belongs to.
    pub fn inode(&self) -> InodeNumber {
        match self {
            LeaseKey::Attributes(inode)
            | LeaseKey::Entry(inode, _)
            | LeaseKey::Directory(inode)
            | LeaseKey::Data(inode)
            | LeaseKey::Inode(inode)
            | LeaseKey::Names(inode)
            | LeaseKey::Ranges(inode)
            | LeaseKey::Permissions(inode) => *inode,
        }
    }
}

/// Strength of a lease. Keys other than `Data` and `Ranges` know only `Shared`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LeaseMode {
    /// Nothing may be kept. In a recall: give it up, unless the file is open, then keep `Open`.
    None,
    /// The file is open; reads and writes go to the storage server each time. In the way of nobody, but it keeps the
    /// inode when its last name is removed.
    Open,
    /// May be cached; in the way of whoever wants to change it.
    Shared,
    /// May be cached and changed without telling; in the way of everybody else who has it open or asks for it.
    Exclusive,
}

bitflags::bitflags! {
    /// What a reply grants, each on the key that follows from the request.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Grants: u16 {
        /// `Entry(parent, name)` of the request, shared; of a page: of each name in it.
        const ENTRY = 1;
        /// `Attributes` of the inode in the reply, shared.
        const ATTRIBUTES = 2;
        /// `Directory` of the directory that was made or listed, shared. Each page of a listing grants it: all names
        /// are known when every page carried it and no recall of it came in between. While it is held, no name in the
        /// directory is granted by `ENTRY`: what replies tell of names is covered by it.
        const DIRECTORY = 4;
        /// `Data` of the inode in the reply, `Open` (always set in the reply to an open: the group's with `FOR_GROUP`).
        const OPEN = 8;
        /// `Data` of the inode in the reply, `Shared`.
        const DATA_SHARED = 16;
        /// `Data` of the inode in the reply, `Exclusive`.
        const DATA_EXCLUSIVE = 32;
        /// `Permissions` of the directory in the reply, shared.
        const PERMISSIONS = 64;
        /// No lease: another session holds `Permissions` of the directory of the name in the request, and may change
        /// names there at any moment.
        const SHARED_DIRECTORY = 128;
        /// No lease: a kernel above another session may have pages of the file. What is written has to go to the
        /// storage server, which has them dropped.
        const PAGES_ELSEWHERE = 256;
        /// No lease of the session's: the file is open for the group that the request names, and the rights in the
        /// reply are the group's ([`crate::message::shard::ForGroup`]).
        const FOR_GROUP = 512;
        /// No lease: size and times of the file in the reply may be old. Its storage server may have later ones, and
        /// does not answer the shard.
        const SIZE_IN_DOUBT = 1024;
        /// `Ranges` of the inode in the reply, exclusive: the range that the publication asks for.
        const RANGE = 2048;
    }
}

serialize_bits!(Grants, u16, "unknown grant bits");
