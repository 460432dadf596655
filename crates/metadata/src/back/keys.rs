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

/// Keys, built without an allocation.
pub struct Key;

impl Key {
    /// An inode.
    pub fn inode(inode: InodeNumber) -> NumberKey {
        numbered(Tag::Inode, inode)
    }

    /// A name in a directory. With an empty name: the place before all its names.
    pub fn dentry(directory: InodeNumber, name: &[u8]) -> NameKey {
        let length = DENTRY_PREFIX_BYTES + name.len();
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[..DENTRY_PREFIX_BYTES].copy_from_slice(&numbered(Tag::Dentry, directory));
        bytes[DENTRY_PREFIX_BYTES..length].copy_from_slice(name);
        NameKey { bytes, length }
    }

    /// Target of a symbolic link.
    pub fn symlink(inode: InodeNumber) -> NumberKey {
        numbered(Tag::Symlink, inode)
    }

    /// Mark of an inode without a name that is still open somewhere.
    pub fn orphan(inode: InodeNumber) -> NumberKey {
        numbered(Tag::Orphan, inode)
    }
}

/// A key that is a tag and an inode number.
pub type NumberKey = [u8; DENTRY_PREFIX_BYTES];

/// A key with a name at its end.
pub struct NameKey {
    bytes: [u8; KEY_BYTES_MAX],
    length: usize,
}

fn numbered(tag: Tag, inode: InodeNumber) -> NumberKey {
    let [a, b, c, d, e, f, g, h] = inode.raw().to_be_bytes();
    [tag as u8, a, b, c, d, e, f, g, h]
}

impl Deref for NameKey {
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
