//! The inode, and its record: section "Inode" of `docs/formats/metadata-keys.md`.
//!
//! Invariant: decoding what was encoded yields the same inode.
//! Not here: who may change it (`permission.rs`), what a client's changes mean (`attributes.rs`).

use super::Back;
use super::keys::Key;
use crate::kv::KeyValue;
use weft_protocol::limits::{DIRECTORY_PARTS_MAX, LINKS_MAX, STRIPE_WIDTH_MAX};
use weft_protocol::{
    Attributes, Error, FileKind, Generation, Inherited, InodeFlags, InodeNumber, Layout, ObjectId, Parts, Plan, Result,
    StripePlan, Striped, Timestamp,
};

/// Set-user-id.
pub const SET_UID: u16 = 0o4000;
/// Set-group-id; on a directory: what is made in it gets the directory's group.
pub const SET_GID: u16 = 0o2000;
/// Sticky: in such a directory only the owner of a name's inode (or of the directory) may remove it.
pub const STICKY: u16 = 0o1000;
/// Links of a directory without directories in it.
pub const EMPTY_DIRECTORY_LINKS: u32 = 2;
/// The bits of a mode that are kept.
pub const MODE_BITS: u16 = 0o7777;
/// Group may execute: only then set-group-id means what its name says.
pub const GROUP_EXECUTE: u16 = 0o010;

const KIND_BITS: u8 = 0b11;
const HAS_OBJECT: u8 = 0b100;
/// Of a directory, which has no object.
const SPREADS: u8 = HAS_OBJECT;
const CTIME_IS_MTIME: u8 = 0b1000;
const ATIME_IS_MTIME: u8 = 0b1_0000;
const HAS_XATTRS: u8 = 0b10_0000;
const HAS_PLAN: u8 = 0b100_0000;
/// In place of the number of objects of a striped file.
const SPLIT_WIDTH: u64 = 0;
const HAS_PARTS: u8 = 0b1000_0000;
/// Nothing was heard of the object yet: any of its times is later.
pub const NO_OBJECT_MTIME: Timestamp = Timestamp(i64::MIN);
/// The file was made with its objects, which are made when they are used first: any of their times is later.
const OBJECTS_TO_COME: Timestamp = Timestamp(i64::MIN + 1);
/// Longest record: every field at its longest. A file has objects, and a directory has parts.
const RECORD_BYTES_MAX: usize = 104 + 8 * NUMBERS_MAX;
const NUMBERS_MAX: usize =
    if STRIPE_WIDTH_MAX as usize > DIRECTORY_PARTS_MAX { STRIPE_WIDTH_MAX as usize } else { DIRECTORY_PARTS_MAX };

/// An inode as the shard holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    pub kind: FileKind,
    /// The lower 12 bits of `st_mode`.
    pub mode: u16,
    /// Names of a file; 2 and one per directory in it for a directory. 0: orphan.
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes; of a directory: its entries.
    pub size: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub layout: Layout,
    /// The object's own modification time, up to which its writes are in `mtime` and `ctime`. It is of the clock of the
    /// object's node, and is compared with nothing else.
    pub object_mtime: Timestamp,
    /// `..` of a directory; the root is its own parent. Unused for others.
    pub parent: InodeNumber,
    /// Bytes of names and values of its extended attributes. 0: it has none.
    pub xattr_bytes: u32,
    /// Of a directory: see [`Inherited`], whose other part is in the layout.
    pub spreads: bool,
    /// Of a directory with parts, and of each of its parts.
    pub parts: Option<Parts>,
}

impl Inode {
    /// Whether `link` may give it one more name, with the errors of Linux.
    pub fn check_another_link(&self) -> Result<()> {
        if self.kind == FileKind::Directory {
            return Err(Error::NotPermitted);
        }
        if self.links == 0 {
            return Err(Error::NotFound);
        }
        if self.links >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        Ok(())
    }

    /// What a directory hands down to what is made in it.
    pub fn inherited(&self) -> Inherited {
        Inherited { plan: self.layout.plan(), spreads: self.spreads }
    }

    /// A directory has this from now on.
    pub fn inherit(&mut self, inherited: Inherited) {
        (self.layout, self.spreads) = (Layout::planned(inherited.plan), inherited.spreads);
    }

    /// What `stat` tells.
    pub fn attributes(&self, inode: InodeNumber) -> Attributes {
        let mut flags = InodeFlags::empty();
        flags.set(InodeFlags::XATTRS, self.xattr_bytes != 0);
        flags.set(InodeFlags::SPREADS, self.spreads);
        Attributes {
            inode,
            kind: self.kind,
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            layout: self.layout.clone(),
            flags,
            parts: self.parts.clone(),
        }
    }

    /// Takes in what the object's storage server says of size and modification time. The shard's size is never above
    /// the true one (writers only extend, and each cut passes through the shard), but it may know of a hole behind the
    /// object's end. A write that the shard did not know of is the file's last change. Returns true if there was one:
    /// objects that were only made have a time, too.
    pub fn observe(&mut self, size: u64, object_mtime: Timestamp) -> bool {
        self.size = self.size.max(size);
        let is_written = object_mtime > self.object_mtime && (size > 0 || !self.awaits_objects());
        self.note_object_mtime(Some(object_mtime));
        if is_written {
            self.mtime = object_mtime.after(self.ctime);
            self.ctime = self.mtime;
        }
        is_written
    }

    /// Writes of the object up to this time are known, or no later than a change that is.
    pub fn note_object_mtime(&mut self, object_mtime: Option<Timestamp>) {
        if let (Some(object_mtime), Some(_)) = (object_mtime, self.layout.object()) {
            self.object_mtime = self.object_mtime.max(object_mtime);
        }
    }

    /// Gives a new file the objects of this layout, which are not made yet.
    pub fn will_have(&mut self, layout: Layout) {
        (self.layout, self.object_mtime) = (layout, OBJECTS_TO_COME);
    }

    /// Returns true if the file was made with its objects, and storage servers may have none of them yet: nothing was
    /// heard of them.
    pub fn awaits_objects(&self) -> bool {
        self.object_mtime == OBJECTS_TO_COME && self.layout.object().is_some()
    }

    /// Changes the layout to another object, or to none.
    pub fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
        self.object_mtime = NO_OBJECT_MTIME;
    }

    /// Takes set-user-id away, and set-group-id where it stands for the group's rights.
    pub fn drop_set_id(&mut self) {
        if self.kind != FileKind::Directory {
            self.mode &= !SET_UID;
            if self.mode & GROUP_EXECUTE != 0 {
                self.mode &= !SET_GID;
            }
        }
    }

    /// The directory as programs know it: of a part, the one that it is a part of.
    pub(super) fn directory_of(&self, number: InodeNumber) -> InodeNumber {
        self.parts.as_ref().map_or(number, Parts::directory)
    }

    /// Refuses a directory that was removed and is still open somewhere.
    pub(super) fn check_has_name(&self) -> Result<()> {
        if self.links > 0 { Ok(()) } else { Err(Error::NotFound) }
    }

    fn encode(&self, record: &mut Record) {
        let mut first = kind_code(self.kind);
        let generation = match &self.layout {
            Layout::Whole { generation, .. } => Some(*generation),
            Layout::Striped(striped) => Some(striped.generation()),
            Layout::Empty | Layout::Planned(_) | Layout::Split { .. } => None,
        };
        first |= if generation.is_some() { HAS_OBJECT } else { 0 };
        first |= if self.spreads { SPREADS } else { 0 };
        first |= if self.layout.plan() != Plan::Whole { HAS_PLAN } else { 0 };
        first |= if self.ctime == self.mtime { CTIME_IS_MTIME } else { 0 };
        first |= if self.atime == self.mtime { ATIME_IS_MTIME } else { 0 };
        first |= if self.xattr_bytes != 0 { HAS_XATTRS } else { 0 };
        first |= if self.parts.is_some() { HAS_PARTS } else { 0 };
        record.put(&[first]);
        record.put(&self.mode.to_le_bytes());
        record.put_varint(u64::from(self.links));
        record.put_varint(u64::from(self.uid));
        record.put_varint(u64::from(self.gid));
        record.put_varint(self.size);
        record.put(&self.mtime.0.to_le_bytes());
        if self.ctime != self.mtime {
            record.put(&self.ctime.0.to_le_bytes());
        }
        if self.atime != self.mtime {
            record.put(&self.atime.0.to_le_bytes());
        }
        if let Some(plan) = self.layout.stripes() {
            record.put_varint(u64::from(plan.width()));
            record.put_varint(u64::from(plan.stripe_bytes()));
        }
        if let Some(epoch) = self.layout.epoch() {
            record.put_varint(SPLIT_WIDTH);
            record.put_varint(epoch);
        }
        if let Some(generation) = generation {
            self.layout.objects().iter().for_each(|object| record.put(&object.raw().to_le_bytes()));
            record.put_varint(u64::from(generation.0));
            record.put_varint(zigzag(self.object_mtime.0.wrapping_sub(self.mtime.0)));
        }
        if self.kind == FileKind::Directory {
            record.put(&self.parent.raw().to_le_bytes());
        }
        if self.xattr_bytes != 0 {
            record.put_varint(u64::from(self.xattr_bytes));
        }
        if let Some(parts) = &self.parts {
            record.put_varint(parts.all().len() as u64);
            parts.all().iter().for_each(|part| record.put(&part.raw().to_le_bytes()));
        }
    }

    /// Decodes a record. `None`: these bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Inode> {
        let mut reader = Reader(bytes);
        let first = reader.byte()?;
        let kind = kind_from(first & KIND_BITS)?;
        let spreads = kind == FileKind::Directory && first & SPREADS != 0;
        let mode = u16::from_le_bytes(reader.array()?);
        let links = u32::try_from(reader.varint()?).ok()?;
        let uid = u32::try_from(reader.varint()?).ok()?;
        let gid = u32::try_from(reader.varint()?).ok()?;
        let size = reader.varint()?;
        let mtime = Timestamp(i64::from_le_bytes(reader.array()?));
        let ctime = if first & CTIME_IS_MTIME == 0 { Timestamp(i64::from_le_bytes(reader.array()?)) } else { mtime };
        let atime = if first & ATIME_IS_MTIME == 0 { Timestamp(i64::from_le_bytes(reader.array()?)) } else { mtime };
        let planned = if first & HAS_PLAN == 0 { Layout::Empty } else { reader.planned()? };
        let (layout, object_mtime) = if kind == FileKind::Directory || first & HAS_OBJECT == 0 {
            (planned, NO_OBJECT_MTIME)
        } else {
            let layout = reader.layout(&planned)?;
            (layout, Timestamp(unzigzag(reader.varint()?).wrapping_add(mtime.0)))
        };
        let parent = if kind == FileKind::Directory { u64::from_le_bytes(reader.array()?) } else { 0 };
        let parent = InodeNumber::from_raw(parent);
        let xattr_bytes = if first & HAS_XATTRS == 0 { 0 } else { u32::try_from(reader.varint()?).ok()? };
        let parts = if first & HAS_PARTS == 0 { None } else { Some(reader.parts()?) };
        reader.0.is_empty().then_some(Inode {
            kind,
            mode,
            links,
            uid,
            gid,
            size,
            atime,
            mtime,
            ctime,
            layout,
            object_mtime,
            parent,
            xattr_bytes,
            spreads,
            parts,
        })
    }
}

/// Number of a kind in records.
pub fn kind_code(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => 0,
        FileKind::Directory => 1,
        FileKind::Symlink => 2,
    }
}

/// The other way round of [`kind_code`].
pub fn kind_from(code: u8) -> Option<FileKind> {
    match code {
        0 => Some(FileKind::Regular),
        1 => Some(FileKind::Directory),
        2 => Some(FileKind::Symlink),
        _ => None,
    }
}

/// Small numbers for small differences of either sign.
fn zigzag(difference: i64) -> u64 {
    (difference.cast_unsigned() << 1) ^ (difference >> 63).cast_unsigned()
}

/// The other way round of [`zigzag`].
fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// A record under construction, without an allocation.
struct Record {
    bytes: [u8; RECORD_BYTES_MAX],
    length: usize,
}

impl Record {
    fn put(&mut self, part: &[u8]) {
        self.bytes[self.length..self.length + part.len()].copy_from_slice(part);
        self.length += part.len();
    }

    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.put(&[value.to_le_bytes()[0] | 0x80]);
            value >>= 7;
        }
        self.put(&[value.to_le_bytes()[0]]);
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// The layout of a file that is striped or split, without its objects.
    fn planned(&mut self) -> Option<Layout> {
        let (width, second) = (self.varint()?, self.varint()?);
        if width == SPLIT_WIDTH {
            return Some(Layout::Split { epoch: second });
        }
        StripePlan::new(u16::try_from(width).ok()?, u32::try_from(second).ok()?).map(Layout::Planned)
    }

    /// The layout of a file with objects.
    fn layout(&mut self, planned: &Layout) -> Option<Layout> {
        let plan = planned.stripes();
        let count = plan.map_or(1, |plan| usize::from(plan.width()));
        let mut objects = Vec::with_capacity(count);
        for _ in 0..count {
            objects.push(ObjectId::from_raw(u64::from_le_bytes(self.array()?)));
        }
        let generation = Generation(u32::try_from(self.varint()?).ok()?);
        match plan {
            None => Some(Layout::Whole { object: *objects.first()?, generation }),
            Some(plan) => Some(Layout::Striped(Box::new(Striped::new(plan.stripe_bytes(), generation, objects)?))),
        }
    }

    fn parts(&mut self) -> Option<Parts> {
        let count = usize::try_from(self.varint()?).ok().filter(|count| *count <= DIRECTORY_PARTS_MAX)?;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            parts.push(InodeNumber::from_raw(u64::from_le_bytes(self.array()?)));
        }
        Parts::new(parts)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl<K: KeyValue> Back<K> {
    /// The inode, if it is at this shard.
    pub fn inode(&self, inode: InodeNumber) -> Option<Inode> {
        self.store
            .get(&Key::inode(inode), |bytes| Inode::decode(bytes).expect("a record of the store is what was put in"))
    }

    /// The inode, or [`Error::Stale`] when it is gone.
    pub(super) fn present(&self, inode: InodeNumber) -> Result<Inode> {
        self.inode(inode).ok_or(Error::Stale)
    }

    /// The inode of a directory.
    pub(super) fn directory(&self, inode: InodeNumber) -> Result<Inode> {
        if let Some((latest, directory)) = &self.latest_directory
            && *latest == inode
        {
            debug_assert_eq!(self.inode(inode).as_ref(), Some(directory), "inode {inode} is what the store has");
            return Ok(directory.clone());
        }
        let directory = self.present(inode)?;
        if directory.kind == FileKind::Directory { Ok(directory) } else { Err(Error::NotDirectory) }
    }

    pub(super) fn put_inode(&mut self, number: InodeNumber, inode: &Inode) {
        let mut record = Record { bytes: [0; RECORD_BYTES_MAX], length: 0 };
        inode.encode(&mut record);
        self.store.put(&Key::inode(number), &record.bytes[..record.length]);
        if inode.kind == FileKind::Directory {
            self.latest_directory = Some((number, inode.clone()));
        }
    }

    /// A number that was never used.
    pub(super) fn next_inode(&mut self) -> InodeNumber {
        let number = InodeNumber::new(self.shard, self.next_sequence);
        self.next_sequence += 1;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_protocol::limits::STRIPE_BYTES_MIN;
    use weft_protocol::{NodeId, ShardId};

    proptest! {
        #[test]
        fn a_record_comes_back(
            kind in 0u8..3, mode in 0u16..0o10000, links: u32, uid: u32, gid: u32, size: u64, times: [i64; 3],
            same in 0u8..4, object in proptest::option::of(1u64..(1 << 48)), generation: u32, parent in 1u64..(1 << 48),
            object_mtime: i64, xattr_bytes: u32, width in 1..=STRIPE_WIDTH_MAX, parts in 0..=DIRECTORY_PARTS_MAX,
            spreads: bool, is_split: bool,
        ) {
            let kind = kind_from(kind).expect("three kinds");
            let object = object.filter(|_| kind != FileKind::Directory);
            let mtime = Timestamp(times[0]);
            let plan = StripePlan::new(width, 3 * STRIPE_BYTES_MIN);
            let epoch = Some(u64::from(links)).filter(|_| is_split && kind == FileKind::Regular);
            let object = object.filter(|_| epoch.is_none());
            let generation = Generation(generation);
            let layout = match (object.map(|sequence| ObjectId::new(NodeId(65535), sequence)), plan) {
                (None, _) if epoch.is_some() => Layout::Split { epoch: u64::from(links) },
                (None, plan) => Layout::planned(plan.map_or(Plan::Whole, Plan::Striped)),
                (Some(object), None) => Layout::Whole { object, generation },
                (Some(object), Some(plan)) => {
                    let objects = vec![object; usize::from(width)];
                    let striped = Striped::new(plan.stripe_bytes(), generation, objects).expect("as planned");
                    Layout::Striped(Box::new(striped))
                }
            };
            let inode = Inode {
                kind, mode, links, uid, gid, size, mtime,
                ctime: if same & 1 == 0 { mtime } else { Timestamp(times[1]) },
                atime: if same & 2 == 0 { mtime } else { Timestamp(times[2]) },
                layout,
                object_mtime: object.map_or(NO_OBJECT_MTIME, |_| Timestamp(object_mtime)),
                parent: match kind {
                    FileKind::Directory => InodeNumber::new(ShardId(9), parent),
                    _ => InodeNumber::from_raw(0),
                },
                xattr_bytes,
                spreads: spreads && kind == FileKind::Directory,
                parts: match kind {
                    FileKind::Directory => {
                        Parts::new(vec![InodeNumber::new(ShardId(7), parent); parts])
                    }
                    _ => None,
                },
            };
            let mut record = Record { bytes: [0; RECORD_BYTES_MAX], length: 0 };
            inode.encode(&mut record);
            let bytes = &record.bytes[..record.length];
            prop_assert_eq!(Inode::decode(bytes), Some(inode));
            for length in 0..bytes.len() {
                prop_assert_eq!(Inode::decode(&bytes[..length]), None);
            }
        }
    }

    #[test]
    fn a_new_empty_file_takes_twenty_bytes() {
        let time = Timestamp(1_700_000_000_123_456_789);
        let inode = Inode {
            kind: FileKind::Regular,
            mode: 0o644,
            links: 1,
            uid: 1000,
            gid: 1000,
            size: 0,
            atime: time,
            mtime: time,
            ctime: time,
            layout: Layout::Empty,
            object_mtime: NO_OBJECT_MTIME,
            parent: InodeNumber::from_raw(0),
            xattr_bytes: 0,
            spreads: false,
            parts: None,
        };
        let mut record = Record { bytes: [0; RECORD_BYTES_MAX], length: 0 };
        inode.encode(&mut record);
        assert!(record.length <= 20, "{} bytes", record.length);
    }
}
