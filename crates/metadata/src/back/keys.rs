//! Keys of the back machine's records: section "Keys" of `docs/formats/metadata-keys.md`.
//!
//! Invariant: numbers stand in big-endian order, so that keys of one kind sort by number, and the dentries of a
//! directory by their cookies.

use weft_layout::Alike;
use weft_protocol::limits::XATTR_NAME_BYTES_MAX;
use weft_protocol::{Cookie, InodeNumber, Name, ObjectId, Pattern, SessionId, XattrName, XattrNamespace};

/// First byte of a key: what the record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Tag {
    /// A name below, as it was when it was read or written.
    BelowName = b'b',
    /// Where an inode comes from that was read from below.
    BelowOrigin = b'c',
    Dentry = b'd',
    Run = b'e',
    Inode = b'i',
    Symlink = b'l',
    Orphan = b'o',
    SplitPart = b'p',
    Strided = b's',
    PartOfWriter = b'w',
    Xattr = b'x',
}

/// Bytes of a tag and an inode number.
const NUMBER_KEY_BYTES: usize = 9;
/// Bytes of a tag, an inode number, and a cookie or an object's identifier.
const DENTRY_KEY_BYTES: usize = NUMBER_KEY_BYTES + 8;
/// Bytes of a tag, an inode number, a session and an object's identifier.
const PART_OF_WRITER_KEY_BYTES: usize = NUMBER_KEY_BYTES + 2 * 8;
/// Bytes of a tag, an inode number, a size class, and the five numbers of a strided extent.
const STRIDED_KEY_BYTES: usize = NUMBER_KEY_BYTES + 1 + 5 * 8;
/// Bytes of an extended attribute's value under one key: a value of 64 KiB takes 64.
pub const XATTR_PART_BYTES: usize = 1024;
/// Bytes after the name of an extended attribute: a zero, which no name has, and the number of the part.
const XATTR_END_BYTES: usize = 3;

/// Keys, built without an allocation.
pub struct Key;

impl Key {
    /// An inode.
    pub fn inode(inode: InodeNumber) -> NumberKey {
        numbered(Tag::Inode, inode)
    }

    /// A dentry: the directory and the cookie.
    pub fn dentry(directory: InodeNumber, cookie: Cookie) -> DentryKey {
        let mut key = [0; DENTRY_KEY_BYTES];
        key[..NUMBER_KEY_BYTES].copy_from_slice(&numbered(Tag::Dentry, directory));
        key[NUMBER_KEY_BYTES..].copy_from_slice(&cookie.raw().to_be_bytes());
        key
    }

    /// Where an inode comes from that was read from below.
    pub fn below_origin(inode: InodeNumber) -> NumberKey {
        numbered(Tag::BelowOrigin, inode)
    }

    /// A name below. Without a name: where those of the directory begin.
    pub fn below_name(directory: InodeNumber, name: &[u8]) -> Vec<u8> {
        [&numbered(Tag::BelowName, directory)[..], name].concat()
    }

    /// Target of a symbolic link.
    pub fn symlink(inode: InodeNumber) -> NumberKey {
        numbered(Tag::Symlink, inode)
    }

    /// Mark of an inode without a name that is still open somewhere.
    pub fn orphan(inode: InodeNumber) -> NumberKey {
        numbered(Tag::Orphan, inode)
    }

    /// Where the extended attributes of an inode begin.
    pub fn xattrs(inode: InodeNumber) -> NumberKey {
        numbered(Tag::Xattr, inode)
    }

    /// A part of an extended attribute's value. The namespace is one byte.
    pub fn xattr(inode: InodeNumber, name: &XattrName, part: usize) -> Vec<u8> {
        let mut key = Vec::with_capacity(NUMBER_KEY_BYTES + XATTR_NAME_BYTES_MAX + XATTR_END_BYTES);
        key.extend_from_slice(&numbered(Tag::Xattr, inode));
        key.push(namespace_code(name.namespace()));
        key.extend_from_slice(name.suffix());
        key.push(0);
        let part = u16::try_from(part).expect("a value has fewer than 65,536 parts");
        key.extend_from_slice(&part.to_be_bytes());
        key
    }
}

impl Key {
    /// What is common to the parts of a split file. Those of its parts follow.
    pub fn split(inode: InodeNumber) -> NumberKey {
        numbered(Tag::SplitPart, inode)
    }

    /// A part of a split file.
    pub fn split_part(inode: InodeNumber, object: ObjectId) -> DentryKey {
        with_number(Tag::SplitPart, inode, object.raw())
    }

    /// Where the parts begin that a session writes.
    pub fn parts_of_writer(inode: InodeNumber, writer: SessionId) -> DentryKey {
        with_number(Tag::PartOfWriter, inode, writer.0)
    }

    /// Mark of a part that a session writes.
    pub fn part_of_writer(inode: InodeNumber, writer: SessionId, object: ObjectId) -> [u8; PART_OF_WRITER_KEY_BYTES] {
        let mut key = [0; PART_OF_WRITER_KEY_BYTES];
        key[..DENTRY_KEY_BYTES].copy_from_slice(&Self::parts_of_writer(inode, writer));
        key[DENTRY_KEY_BYTES..].copy_from_slice(&object.raw().to_be_bytes());
        key
    }

    /// The run of a split file that ends here.
    pub fn run(inode: InodeNumber, end: u64) -> DentryKey {
        with_number(Tag::Run, inode, end)
    }

    /// A strided extent of a split file.
    pub fn strided(inode: InodeNumber, pattern: &Pattern, object: ObjectId) -> StridedKey {
        strided(inode, Alike::of(pattern), [pattern.end(), pattern.start(), object.raw()])
    }

    /// Where the strided extents of a split file begin.
    pub fn first_strided(inode: InodeNumber) -> StridedKey {
        strided(inode, Alike { class: 0, bytes: 0, stride: 0 }, [0; 3])
    }

    /// Where those begin that come after all that are alike.
    pub fn strided_behind(inode: InodeNumber, alike: Alike) -> StridedKey {
        strided(inode, Alike { bytes: alike.bytes + 1, ..alike }, [0; 3])
    }

    /// Where the strided extents of a split file begin that are alike and end at `end` or later.
    pub fn strided_from(inode: InodeNumber, alike: Alike, end: u64) -> StridedKey {
        strided(inode, alike, [end, 0, 0])
    }

    /// Where the keys with a tag of this inode begin.
    pub fn of_inode(tag: Tag, inode: InodeNumber) -> NumberKey {
        numbered(tag, inode)
    }
}

fn strided(inode: InodeNumber, Alike { class, bytes, stride }: Alike, [end, start, object]: [u64; 3]) -> StridedKey {
    let mut key = [0; STRIDED_KEY_BYTES];
    key[..NUMBER_KEY_BYTES].copy_from_slice(&numbered(Tag::Strided, inode));
    key[NUMBER_KEY_BYTES] = class;
    let numbers = [stride, bytes, end, start, object];
    for (place, number) in key[NUMBER_KEY_BYTES + 1..].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_be_bytes());
    }
    key
}

fn with_number(tag: Tag, inode: InodeNumber, number: u64) -> DentryKey {
    let mut key = [0; DENTRY_KEY_BYTES];
    key[..NUMBER_KEY_BYTES].copy_from_slice(&numbered(tag, inode));
    key[NUMBER_KEY_BYTES..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The part in the key of one of this file. `None`: the key is another one.
pub fn split_part_of(key: &[u8], inode: InodeNumber) -> Option<ObjectId> {
    let object = key.strip_prefix(&numbered(Tag::SplitPart, inode))?;
    Some(ObjectId::from_raw(u64::from_be_bytes(object.try_into().ok()?)))
}

/// The part in the key of one that this session writes. `None`: the key is another one.
pub fn part_of_writer_of(key: &[u8], inode: InodeNumber, writer: SessionId) -> Option<ObjectId> {
    let object = key.strip_prefix(&Key::parts_of_writer(inode, writer))?;
    Some(ObjectId::from_raw(u64::from_be_bytes(object.try_into().ok()?)))
}

/// Where the run ends whose key this is. `None`: the key is no run's of this file.
pub fn run_end_of(key: &[u8], inode: InodeNumber) -> Option<u64> {
    let end = key.strip_prefix(&numbered(Tag::Run, inode))?;
    Some(u64::from_be_bytes(end.try_into().ok()?))
}

/// The pattern and part of a strided extent of this file. `None`: the key is another one.
pub fn strided_of(key: &[u8], inode: InodeNumber) -> Option<(Pattern, ObjectId)> {
    let (_, rest) = key.strip_prefix(&numbered(Tag::Strided, inode))?.split_first()?;
    let mut numbers = rest.chunks_exact(8).map(|bytes| u64::from_be_bytes(bytes.try_into().expect("8 bytes")));
    let (stride, bytes, end, start) = (numbers.next()?, numbers.next()?, numbers.next()?, numbers.next()?);
    let count = end.checked_sub(start)?.checked_sub(bytes)?.checked_div(stride)? + 1;
    Some((Pattern::new(start, bytes, stride, count)?, ObjectId::from_raw(numbers.next()?)))
}

/// A key that is a tag and an inode number.
pub type NumberKey = [u8; NUMBER_KEY_BYTES];
/// A key of a dentry, or of a part or run of a split file.
pub type DentryKey = [u8; DENTRY_KEY_BYTES];
/// A key of a strided extent.
pub type StridedKey = [u8; STRIDED_KEY_BYTES];

fn numbered(tag: Tag, inode: InodeNumber) -> NumberKey {
    let [a, b, c, d, e, f, g, h] = inode.raw().to_be_bytes();
    [tag as u8, a, b, c, d, e, f, g, h]
}

/// The cookie in the key of a dentry of this directory. `None`: the key is another one.
pub fn cookie_of(key: &[u8], directory: InodeNumber) -> Option<Cookie> {
    let cookie = key.strip_prefix(&numbered(Tag::Dentry, directory))?;
    Some(Cookie::from_raw(u64::from_be_bytes(cookie.try_into().ok()?)))
}

/// The name in the key of one below this directory. `None`: the key is another one.
pub fn below_name_of(key: &[u8], directory: InodeNumber) -> Option<Name> {
    Name::new(key.strip_prefix(&numbered(Tag::BelowName, directory))?).ok()
}

fn namespace_code(namespace: XattrNamespace) -> u8 {
    match namespace {
        XattrNamespace::Trusted => b't',
        XattrNamespace::User => b'u',
    }
}

/// The name in the key of an extended attribute of this inode. `None`: the key is another one.
pub fn xattr_of(key: &[u8], inode: InodeNumber) -> Option<XattrName> {
    let rest = key.strip_prefix(&numbered(Tag::Xattr, inode))?;
    let (code, rest) = rest.split_first()?;
    let namespace =
        [XattrNamespace::Trusted, XattrNamespace::User].into_iter().find(|other| namespace_code(*other) == *code)?;
    let suffix = rest.get(..rest.len().checked_sub(XATTR_END_BYTES)?)?;
    XattrName::new(&[namespace.prefix(), suffix].concat()).ok()
}

/// The inode number in the key of an inode or an orphan. `None`: the key is of another kind.
pub fn inode_of(key: &[u8], tag: Tag) -> Option<InodeNumber> {
    let (first, number) = key.split_first()?;
    let number: [u8; 8] = number.try_into().ok()?;
    (*first == tag as u8).then(|| InodeNumber::from_raw(u64::from_be_bytes(number)))
}
