//! The parts of split files: section "Split files" of `docs/formats/metadata-keys.md`.
//!
//! Each writer has an object of its own, its *part*, and publishes which bytes of it count. Publications are numbered
//! (the file's *epoch*, in its layout), and of two parts with the same byte the one that published it last has it.
//! The parts and their extents have keys of their own, so that a publication costs what it overlaps, and not what the
//! file has.
//!
//! Invariant: no extent of a file ends beyond its size. The numbers of extents that the records of a file and of its
//! parts have are those of their keys.
//! Not here: who may publish (`front/split.rs`), what extents mean (`weft_layout`).

mod extents;
mod history;
mod page;

pub use page::{Page, Wanted};

use super::inode::Inode;
use super::keys::{Key, Tag, part_of_writer_of, split_part_of};
use super::{Aftermath, Back, Context};
use crate::kv::KeyValue;
use extents::{Edit, Run};
use history::{History, Latest};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use weft_protocol::limits::{
    SPLIT_EXTENTS_MAX, SPLIT_FILE_EXTENTS_MAX, SPLIT_PARTS_MAX, SPLIT_PATTERNS_MAX, SPLIT_PUBLISHED_MAX,
    SPLIT_STRIDED_MAX,
};
use weft_protocol::message::shard::ShardAnswer;
use weft_protocol::{
    Credentials, Error, FileKind, Grants, InodeNumber, Layout, ObjectId, Pattern, PublishedPart, Result, SessionId,
    Timestamp,
};

/// The writer of a part that is only read.
const NOBODY: SessionId = SessionId(0);
/// Keys that are gathered before they are deleted, when a file's go.
const DELETED_AT_ONCE: usize = 4096;

/// What the parts of a file have in common.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Parts {
    count: u64,
    /// Epoch at which the file was cut last.
    cut: u64,
    /// Extents of all parts.
    extents: u64,
    /// Those of them that are strided.
    strided: u64,
    /// Parts without extents.
    empty: u64,
    history: History,
}

/// A part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Which bytes it has.
    pub object: ObjectId,
    /// The session that made it, and may write it.
    pub writer: SessionId,
    /// Number of its extents.
    pub extents: u64,
    /// The highest number of what its writer has published of it.
    number: u64,
    latest: Latest,
}

fn encode(numbers: impl Iterator<Item = u64>) -> Vec<u8> {
    numbers.flat_map(u64::to_le_bytes).collect()
}

fn decode(bytes: &[u8]) -> Vec<u64> {
    assert!(bytes.len().is_multiple_of(8), "a record of a split file with {} bytes", bytes.len());
    bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes"))).collect()
}

impl Parts {
    fn encode(&self) -> Vec<u8> {
        let numbers = [self.count, self.cut, self.extents, self.strided, self.empty];
        encode(numbers.into_iter().chain(self.history.numbers()))
    }

    fn decode(bytes: &[u8]) -> Self {
        let numbers = decode(bytes);
        let (&[count, cut, extents, strided, empty], history) = numbers.split_first_chunk().expect("five numbers");
        Self { count, cut, extents, strided, empty, history: History::of_numbers(history) }
    }
}

impl Part {
    fn new(object: ObjectId, writer: SessionId) -> Self {
        Self { object, writer, extents: 0, number: 0, latest: Latest::default() }
    }

    fn encode(&self) -> Vec<u8> {
        encode([self.writer.0, self.extents, self.number].into_iter().chain(self.latest.numbers()))
    }

    fn decode(object: ObjectId, bytes: &[u8]) -> Self {
        let numbers = decode(bytes);
        let (&[writer, extents, number], latest) = numbers.split_first_chunk().expect("three numbers");
        Self { object, writer: SessionId(writer), extents, number, latest: Latest::of_numbers(latest) }
    }
}

impl Inode {
    /// A split file has changed: one epoch more, which is returned.
    fn next_epoch(&mut self) -> u64 {
        let epoch = self.layout.epoch().expect("only split files have parts") + 1;
        self.layout = Layout::Split { epoch };
        epoch
    }
}

/// Checks the limits of one publication, and that it names each part once.
fn check_counts(parts: &[PublishedPart]) -> Result<()> {
    let patterns: usize = parts.iter().map(|part| part.patterns.len()).sum();
    let objects: BTreeSet<_> = parts.iter().map(|part| part.object).collect();
    let fits = parts.len() <= SPLIT_PUBLISHED_MAX && patterns <= SPLIT_PATTERNS_MAX;
    if fits && objects.len() == parts.len() { Ok(()) } else { Err(Error::Invalid) }
}

/// What was published by one call.
struct Published {
    /// Of the file, after it.
    epoch: u64,
    /// Where the last of the bytes ends; `None`: nothing has changed.
    end: Option<u64>,
}

impl Published {
    /// One part more, at an epoch of its own.
    fn add<K: KeyValue>(
        &mut self,
        part: &mut Part,
        patterns: &[Pattern],
        edit: &mut Edit<'_, K>,
        history: &mut History,
    ) {
        let Some(end) = patterns.iter().map(Pattern::end).max() else { return };
        self.epoch += 1;
        self.end = self.end.max(Some(end));
        let mut has_strided = false;
        for pattern in patterns {
            has_strided |= part.latest.publish(edit, (part.object, pattern), self.epoch, history);
        }
        history.add((part.object, patterns), self.epoch);
        if has_strided {
            history.note_strided(self.epoch);
        }
    }
}

/// A number of extents, changed.
fn changed(count: u64, more: i64) -> u64 {
    count.checked_add_signed(more).unwrap_or_else(|| panic!("{count} extents, and {more}"))
}

impl<K: KeyValue> Back<K> {
    /// Parts of a split file.
    pub fn split_parts(&self, number: InodeNumber) -> Vec<Part> {
        let mut parts = Vec::new();
        self.store.scan(&Key::split_part(number, ObjectId::from_raw(0)), |key, value| {
            let Some(object) = split_part_of(key, number) else { return ControlFlow::Break(()) };
            parts.push(Part::decode(object, value));
            ControlFlow::Continue(())
        });
        parts
    }

    /// The part of a split file that this object is.
    pub fn split_part(&self, number: InodeNumber, object: ObjectId) -> Option<Part> {
        self.store.get(&Key::split_part(number, object), |value| Part::decode(object, value))
    }

    /// The parts of a split file that a session writes.
    pub fn parts_of_writer(&self, number: InodeNumber, writer: SessionId) -> Vec<ObjectId> {
        let mut parts = Vec::new();
        self.store.scan(&Key::parts_of_writer(number, writer), |key, _| {
            let Some(object) = part_of_writer_of(key, number, writer) else { return ControlFlow::Break(()) };
            parts.push(object);
            ControlFlow::Continue(())
        });
        parts
    }

    /// Returns true if the file is split and has parts.
    pub(super) fn has_parts(&self, number: InodeNumber) -> bool {
        self.common(number).count > 0
    }

    /// Returns true if the file has parts in which no byte counts any more.
    pub fn has_empty_parts(&self, number: InodeNumber) -> bool {
        self.common(number).empty > 0
    }

    fn common(&self, number: InodeNumber) -> Parts {
        self.store.get(&Key::split(number), Parts::decode).unwrap_or_default()
    }

    fn put_common(&mut self, number: InodeNumber, common: &Parts) {
        self.store.put(&Key::split(number), &common.encode());
    }

    fn put_split_part(&mut self, number: InodeNumber, part: &Part) {
        self.store.put(&Key::split_part(number, part.object), &part.encode());
    }

    /// A session has a part more, without extents.
    fn make_part(&mut self, number: InodeNumber, (object, writer): (ObjectId, SessionId), common: &mut Parts) -> Part {
        let part = Part::new(object, writer);
        if writer != NOBODY {
            self.store.put(&Key::part_of_writer(number, writer, object), &[]);
        }
        (common.count, common.empty) = (common.count + 1, common.empty + 1);
        part
    }

    fn delete_part(&mut self, number: InodeNumber, part: &Part, common: &mut Parts) {
        self.store.delete(&Key::split_part(number, part.object));
        self.store.delete(&Key::part_of_writer(number, part.writer, part.object));
        (common.count, common.empty) = (common.count - 1, common.empty - 1);
    }

    /// Parts have more or fewer extents: those that are being published, and stored ones. Returns those that have none
    /// any more.
    fn count_extents(
        &mut self,
        number: InodeNumber,
        common: &mut Parts,
        more: &BTreeMap<ObjectId, i64>,
        published: &mut [Part],
    ) -> Vec<Part> {
        let mut emptied = Vec::new();
        for (object, more) in more.iter().filter(|(_, more)| **more != 0) {
            let mut stored = None;
            let part = match published.iter_mut().find(|part| part.object == *object) {
                Some(part) => part,
                None => stored.insert(self.split_part(number, *object).expect("an extent's part has a record")),
            };
            let before = part.extents;
            part.extents = changed(before, *more);
            common.extents = changed(common.extents, *more);
            common.empty = common.empty + u64::from(part.extents == 0) - u64::from(before == 0);
            if part.extents == 0 {
                emptied.push(part.clone());
            }
            if let Some(part) = stored {
                self.put_split_part(number, &part);
            }
        }
        emptied
    }

    /// Writers have these bytes in their parts from now on. See
    /// [`weft_protocol::message::shard::ShardRequest::Publish`]. Costs a few searches for each pattern, and the runs
    /// that it overlaps.
    pub(super) fn publish(
        &mut self,
        (time, caller): (Timestamp, &Credentials),
        number: InodeNumber,
        (parts, appends_to): (&[PublishedPart], Option<u64>),
        context: &Context,
    ) -> Result<ShardAnswer> {
        let mut inode = self.present(number)?;
        let epoch = inode.layout.epoch().filter(|_| inode.kind == FileKind::Regular).ok_or(Error::Invalid)?;
        if !context.is_writer {
            return Err(Error::BadHandle);
        }
        if appends_to.is_some_and(|end| end != inode.size) {
            return Err(Error::WouldBlock);
        }
        check_counts(parts)?;
        let published = self.publish_parts(number, parts, epoch)?;
        if let Some(end) = published.end {
            inode.layout = Layout::Split { epoch: published.epoch };
            inode.size = inode.size.max(end);
            inode.ctime = time.after(inode.ctime);
            inode.mtime = inode.ctime;
            if caller.uid != 0 {
                inode.drop_set_id();
            }
            self.put_inode(number, &inode);
        }
        Ok(ShardAnswer::Entry { attributes: inode.attributes(number), grants: Grants::empty() })
    }

    /// Stores what publications change of the file's extents, from this epoch on. If one is refused, nothing changes.
    fn publish_parts(&mut self, number: InodeNumber, parts: &[PublishedPart], epoch: u64) -> Result<Published> {
        let mut common = self.common(number);
        let (mut known, mut new) = (Vec::new(), Vec::new());
        for PublishedPart { writer, object, .. } in parts {
            match self.split_part(number, *object) {
                Some(part) if part.writer != *writer => return Err(Error::BadHandle),
                Some(part) => known.push(part),
                None => {
                    known.push(Part::new(*object, *writer));
                    new.push((*object, *writer));
                }
            }
        }
        if !new.is_empty() && common.count + new.len() as u64 > SPLIT_PARTS_MAX as u64 {
            return Err(Error::NoSpace);
        }
        let mut published = Published { epoch, end: None };
        let mut edit = Edit::new(&mut self.store, number);
        for (part, told) in known.iter_mut().zip(parts).filter(|(part, told)| told.number > part.number) {
            part.number = told.number;
            published.add(part, &told.patterns, &mut edit, &mut common.history);
        }
        let is_over = |count: u64, more: i64, limit: u64| more > 0 && changed(count, more) > limit;
        let of_part = |part: &Part| edit.more.get(&part.object).copied().unwrap_or(0);
        if known.iter().any(|part| is_over(part.extents, of_part(part), SPLIT_EXTENTS_MAX))
            || is_over(common.extents, edit.more.values().sum(), SPLIT_FILE_EXTENTS_MAX)
            || is_over(common.strided, edit.more_strided, SPLIT_STRIDED_MAX)
        {
            edit.roll_back();
            return Err(Error::NoSpace);
        }
        let (more, more_strided) = (edit.more, edit.more_strided);
        for of in new {
            self.make_part(number, of, &mut common);
        }
        self.count_extents(number, &mut common, &more, &mut known);
        common.strided = changed(common.strided, more_strided);
        known.iter().for_each(|part| self.put_split_part(number, part));
        self.put_common(number, &common);
        Ok(published)
    }

    /// Cuts the parts of a split file if its size becomes less. Parts with nothing left go, unless a client has the
    /// file open, which may go on with one. `size`: the new one, if it changes.
    pub(super) fn cut_parts(
        &mut self,
        number: InodeNumber,
        inode: &mut Inode,
        (before, size): (u64, Option<u64>),
        context: &Context,
        aftermath: &mut Aftermath,
    ) {
        let Some(size) = size.filter(|size| *size < before && inode.layout.epoch().is_some()) else { return };
        let (cut, mut common) = (inode.next_epoch(), self.common(number));
        let mut edit = Edit::new(&mut self.store, number);
        edit.cut(size);
        let (more, more_strided) = (edit.more, edit.more_strided);
        let emptied = self.count_extents(number, &mut common, &more, &mut []);
        common.strided = changed(common.strided, more_strided);
        (common.cut, common.history) = (cut, History::from(cut));
        if !context.is_open {
            for part in emptied {
                self.delete_part(number, &part, &mut common);
                aftermath.removed.push((number, part.object));
            }
        }
        self.put_common(number, &common);
    }

    /// All bytes of the file are in this part from now on.
    pub(super) fn become_split(&mut self, number: InodeNumber, inode: &mut Inode, object: ObjectId) {
        let epoch = inode.layout.epoch().unwrap_or(0) + 1;
        inode.set_layout(Layout::Split { epoch });
        let mut common = Parts { cut: epoch, history: History::from(epoch), ..Parts::default() };
        let mut part = self.make_part(number, (object, NOBODY), &mut common);
        if inode.size > 0 {
            let mut edit = Edit::new(&mut self.store, number);
            edit.add_run(Run { start: 0, end: inode.size, object, epoch }, |_| false);
            let more = edit.more;
            self.count_extents(number, &mut common, &more, std::slice::from_mut(&mut part));
        }
        self.put_split_part(number, &part);
        self.put_common(number, &common);
    }

    /// Nobody has the file open any more: parts without extents go.
    pub(super) fn drop_empty_parts(&mut self, number: InodeNumber, aftermath: &mut Aftermath) {
        let mut common = self.common(number);
        for part in self.split_parts(number).into_iter().filter(|part| part.extents == 0) {
            self.delete_part(number, &part, &mut common);
            aftermath.removed.push((number, part.object));
        }
        self.put_common(number, &common);
    }

    /// The file has no parts any more, which are removed.
    pub(super) fn drop_split(&mut self, number: InodeNumber, inode: &Inode) -> Vec<(InodeNumber, ObjectId)> {
        if inode.layout.epoch().is_none() {
            return Vec::new();
        }
        let parts = self.split_parts(number).into_iter().map(|part| (number, part.object)).collect();
        for tag in [Tag::Run, Tag::Strided, Tag::PartOfWriter, Tag::SplitPart] {
            self.delete_all(&Key::of_inode(tag, number));
        }
        parts
    }

    /// Deletes all keys with this beginning.
    fn delete_all(&mut self, prefix: &[u8]) {
        loop {
            let mut keys = Vec::new();
            self.store.scan(prefix, |key, _| {
                if !key.starts_with(prefix) || keys.len() == DELETED_AT_ONCE {
                    return ControlFlow::Break(());
                }
                keys.push(key.to_vec());
                ControlFlow::Continue(())
            });
            if keys.is_empty() {
                return;
            }
            for key in keys {
                self.store.delete(&key);
            }
        }
    }
}
