//! Keys of the back machine's records: section "Keys" of `docs/formats/metadata-keys.md`.
//!
//! Invariant: numbers stand in big-endian order, so that keys of one kind sort by number, and the dentries of a
//! directory by their cookies.

use weft_protocol::{Cookie, InodeNumber};

/// First byte of a key: what the record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Tag {
    Dentry = b'd',
    Inode = b'i',
    Symlink = b'l',
    Orphan = b'o',
}

/// Bytes of a tag and an inode number.
const NUMBER_KEY_BYTES: usize = 9;

/// Keys, built without an allocation.
pub struct Key;

impl Key {
    /// An inode.
    pub fn inode(inode: InodeNumber) -> NumberKey {
        numbered(Tag::Inode, inode)
    }

    /// A dentry: the directory and the cookie.
    pub fn dentry(directory: InodeNumber, cookie: Cookie) -> DentryKey {
        let mut key = [0; NUMBER_KEY_BYTES + 8];
        key[..NUMBER_KEY_BYTES].copy_from_slice(&numbered(Tag::Dentry, directory));
        key[NUMBER_KEY_BYTES..].copy_from_slice(&cookie.raw().to_be_bytes());
        key
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
pub type NumberKey = [u8; NUMBER_KEY_BYTES];
/// A key of a dentry.
pub type DentryKey = [u8; NUMBER_KEY_BYTES + 8];

fn numbered(tag: Tag, inode: InodeNumber) -> NumberKey {
    let [a, b, c, d, e, f, g, h] = inode.raw().to_be_bytes();
    [tag as u8, a, b, c, d, e, f, g, h]
}

/// The cookie in the key of a dentry of this directory. `None`: the key is another one.
pub fn cookie_of(key: &[u8], directory: InodeNumber) -> Option<Cookie> {
    let cookie = key.strip_prefix(&numbered(Tag::Dentry, directory))?;
    Some(Cookie::from_raw(u64::from_be_bytes(cookie.try_into().ok()?)))
}

/// The inode number in the key of an inode or an orphan. `None`: the key is of another kind.
pub fn inode_of(key: &[u8], tag: Tag) -> Option<InodeNumber> {
    let (first, number) = key.split_first()?;
    let number: [u8; 8] = number.try_into().ok()?;
    (*first == tag as u8).then(|| InodeNumber::from_raw(u64::from_be_bytes(number)))
}
