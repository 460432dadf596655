//! Keys of the back machine's records: section "Keys" of `docs/formats/metadata-keys.md`.
//!
//! Invariant: numbers stand in big-endian order, so that keys of one kind sort by number, and names by their bytes.

use crate::kv::KEY_BYTES_MAX;
use std::ops::Deref;
use weft_protocol::InodeNumber;

/// First byte of a key: what the record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Tag {
    Dentry = b'd',
    Inode = b'i',
    Symlink = b'l',
    Orphan = b'o',
}

/// Bytes before the name in a dentry's key.
pub const DENTRY_PREFIX_BYTES: usize = 9;

/// A key, built without an allocation.
pub struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    length: usize,
}

impl Key {
    fn tagged(tag: Tag) -> Self {
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[0] = tag as u8;
        Self { bytes, length: 1 }
    }

    fn and(mut self, part: &[u8]) -> Self {
        self.bytes[self.length..self.length + part.len()].copy_from_slice(part);
        self.length += part.len();
        self
    }

    /// An inode.
    pub fn inode(inode: InodeNumber) -> Self {
        Self::tagged(Tag::Inode).and(&inode.raw().to_be_bytes())
    }

    /// A name in a directory. With an empty name: the place before all its names.
    pub fn dentry(directory: InodeNumber, name: &[u8]) -> Self {
        Self::tagged(Tag::Dentry).and(&directory.raw().to_be_bytes()).and(name)
    }

    /// Target of a symbolic link.
    pub fn symlink(inode: InodeNumber) -> Self {
        Self::tagged(Tag::Symlink).and(&inode.raw().to_be_bytes())
    }

    /// Mark of an inode without a name that is still open somewhere.
    pub fn orphan(inode: InodeNumber) -> Self {
        Self::tagged(Tag::Orphan).and(&inode.raw().to_be_bytes())
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The inode number in the key of an inode or an orphan. `None`: the key is of another kind.
pub fn inode_of(key: &[u8], tag: Tag) -> Option<InodeNumber> {
    let (first, number) = key.split_first()?;
    let number: [u8; 8] = number.try_into().ok()?;
    (*first == tag as u8).then(|| InodeNumber::from_raw(u64::from_be_bytes(number)))
}
