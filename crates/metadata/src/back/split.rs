//! The parts of split files: section "Split files" of `docs/formats/metadata-keys.md`.
//!
//! Each writer has an object of his own, his *part*, and publishes which bytes of it count. Publications are numbered
//! (the file's *epoch*, in its layout), and of two parts with the same byte the one that published it last has it.
//! The parts and their extents have keys of their own, so that a record of thousands of parts is not read and
//! written with each change.
//!
//! Invariant: no extent of a file ends beyond its size.
//! Not here: who may publish (`front/split.rs`), what extents mean (`weft_layout`).

use super::inode::Inode;
use super::keys::{Key, extent_of, split_part_of};
use super::{Aftermath, Back, Context};
use crate::kv::KeyValue;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use weft_layout::{below, joined, supersede};
use weft_protocol::limits::{SPLIT_EXTENTS_MAX, SPLIT_PARTS_MAX, SPLIT_PATTERNS_MAX};
use weft_protocol::message::shard::ShardAnswer;
use weft_protocol::{
    Credentials, Error, Extent, FileKind, Grants, InodeNumber, Layout, ObjectId, Pattern, Result, SessionId, Timestamp,
};

/// The writer of a part that is only read.
const NOBODY: SessionId = SessionId(0);

/// Extents of a part, the latest, that a new one may be joined with: a writer may write a few things in turns.
const JOIN_EXTENTS_MAX: usize = 8;
/// Other parts that are looked at before extents are joined.
const JOIN_PARTS_MAX: usize = 16;

/// What the parts of a file have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Parts {
    count: u64,
    /// Epoch at which the file was cut last.
    cut: u64,
}

/// A part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Which bytes it has.
    pub object: ObjectId,
    /// The session that made it, and may write it.
    pub writer: SessionId,
    /// Epoch of its latest publication.
    pub changed: u64,
}

/// Parts that have changed, as far as one answer takes them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangedParts {
    /// Of each its extents: all, or those that are new.
    pub parts: Vec<(Part, Vec<Extent>)>,
    /// These are all there are.
    pub is_whole: bool,
    /// There are more after these.
    pub is_cut: bool,
}

fn encode_pair(first: u64, second: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    bytes
}

fn decode_pair(bytes: &[u8]) -> (u64, u64) {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    assert!(bytes.len() == 16, "a record of a part with {} bytes", bytes.len());
    (number(0), number(8))
}

impl Inode {
    /// A split file has changed: one epoch more, which is returned.
    fn next_epoch(&mut self) -> u64 {
        let epoch = self.layout.epoch().expect("only split files have parts") + 1;
        self.layout = Layout::Split { epoch };
        epoch
    }
}

impl<K: KeyValue> Back<K> {
    /// Parts of a split file.
    pub fn split_parts(&self, number: InodeNumber) -> Vec<Part> {
        let mut parts = Vec::new();
        self.scan_parts(number, None, |part| {
            parts.push(part);
            ControlFlow::Continue(())
        });
        parts
    }

    /// Visits the parts with identifiers above `after`.
    fn scan_parts(&self, number: InodeNumber, after: Option<ObjectId>, mut visit: impl FnMut(Part) -> ControlFlow<()>) {
        let from = after.map_or(0, ObjectId::raw);
        self.store.scan(&Key::split_part(number, ObjectId::from_raw(from)), |key, value| {
            let Some(object) = split_part_of(key, number) else { return ControlFlow::Break(()) };
            if after == Some(object) {
                return ControlFlow::Continue(());
            }
            let (writer, changed) = decode_pair(value);
            visit(Part { object, writer: SessionId(writer), changed })
        });
    }

    /// The part of a split file that this object is.
    pub fn split_part(&self, number: InodeNumber, object: ObjectId) -> Option<Part> {
        let (writer, changed) = self.store.get(&Key::split_part(number, object), decode_pair)?;
        Some(Part { object, writer: SessionId(writer), changed })
    }

    fn put_split_part(&mut self, number: InodeNumber, part: &Part) {
        self.store.put(&Key::split_part(number, part.object), &encode_pair(part.writer.0, part.changed));
    }

    fn common(&self, number: InodeNumber) -> Parts {
        let common = self.store.get(&Key::split(number), decode_pair);
        common.map_or_else(Parts::default, |(count, cut)| Parts { count, cut })
    }

    fn put_common(&mut self, number: InodeNumber, Parts { count, cut }: Parts) {
        self.store.put(&Key::split(number), &encode_pair(count, cut));
    }

    fn extents(&self, number: InodeNumber, object: ObjectId) -> Vec<Extent> {
        let mut extents = Vec::new();
        self.store.scan(&Key::extents(number, object), |key, _| match extent_of(key, number, object) {
            Some(extent) => {
                extents.push(extent);
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        });
        // Newer ones lie over older ones, and are told after them.
        extents.sort_unstable_by_key(|extent| extent.epoch);
        extents
    }

    /// Stores what has changed of a part's extents.
    fn put_extents(&mut self, number: InodeNumber, object: ObjectId, before: &[Extent], after: &[Extent]) {
        let key = |extent: &Extent| Key::extent(number, object, extent);
        let (before, after): (BTreeSet<_>, BTreeSet<_>) =
            (before.iter().map(key).collect(), after.iter().map(key).collect());
        for gone in before.difference(&after) {
            self.store.delete(gone);
        }
        for new in after.difference(&before) {
            self.store.put(new, &[]);
        }
    }

    /// A writer has these bytes in his part from now on. See
    /// [`weft_protocol::message::shard::ShardRequest::Publish`].
    pub(super) fn publish(
        &mut self,
        time: Timestamp,
        (caller, session): (&Credentials, SessionId),
        number: InodeNumber,
        (object, patterns, appends_to): (ObjectId, &[Pattern], Option<u64>),
        context: &Context,
    ) -> Result<ShardAnswer> {
        let mut inode = self.present(number)?;
        if inode.kind != FileKind::Regular || inode.layout.epoch().is_none() {
            return Err(Error::Invalid);
        }
        if !context.is_writer {
            return Err(Error::BadHandle);
        }
        if appends_to.is_some_and(|end| end != inode.size) {
            return Err(Error::WouldBlock);
        }
        let Some(end) = patterns.iter().map(Pattern::end).max().filter(|_| patterns.len() <= SPLIT_PATTERNS_MAX) else {
            return Err(Error::Invalid);
        };
        let (part, mut common) = (self.split_part(number, object), self.common(number));
        match part {
            Some(part) if part.writer != session => return Err(Error::BadHandle),
            Some(_) => {}
            None if common.count >= SPLIT_PARTS_MAX as u64 => return Err(Error::NoSpace),
            None => common.count += 1,
        }
        let epoch = inode.next_epoch();
        let before = self.extents(number, object);
        let mut after = before.clone();
        for pattern in patterns {
            let pattern = self.with_those_before((number, object), *pattern, &mut after);
            supersede(&mut after, Extent { pattern, epoch });
        }
        if after.len() > SPLIT_EXTENTS_MAX {
            return Err(Error::NoSpace);
        }
        self.put_extents(number, object, &before, &after);
        self.put_split_part(number, &Part { object, writer: session, changed: epoch });
        if part.is_none() {
            self.put_common(number, common);
        }
        inode.size = inode.size.max(end);
        inode.ctime = time.after(inode.ctime);
        inode.mtime = inode.ctime;
        if caller.uid != 0 {
            inode.drop_set_id();
        }
        self.put_inode(number, &inode);
        Ok(ShardAnswer::Entry { attributes: inode.attributes(number), grants: Grants::empty() })
    }

    /// The pattern together with extents of the part that it goes on with, which are taken out: who writes in order, a
    /// publication after the other, has one extent. They get a newer epoch by that, and so stay as they are if somebody
    /// else has published some of their bytes since.
    fn with_those_before(&self, part: (InodeNumber, ObjectId), new: Pattern, extents: &mut Vec<Extent>) -> Pattern {
        let mut whole = new;
        let goes_on = |old: &Extent, whole: &Pattern| {
            joined(&old.pattern, whole).is_some() && !self.is_published_since(part, old)
        };
        let latest = |extents: &[Extent], whole: &Pattern| {
            let first = extents.len().saturating_sub(JOIN_EXTENTS_MAX);
            extents[first..].iter().rposition(|old| goes_on(old, whole)).map(|index| first + index)
        };
        while let Some(index) = latest(extents, &whole) {
            let old = extents.remove(index);
            whole = joined(&old.pattern, &whole).expect("it was just looked at");
        }
        whole
    }

    /// Whether another part has got bytes since within the bounds of an extent, as far as can be seen cheaply.
    fn is_published_since(&self, (number, of): (InodeNumber, ObjectId), old: &Extent) -> bool {
        let (mut looked_at, mut is_published) = (0, false);
        let overlaps = |other: &Extent| {
            let (this, other_one) = (&old.pattern, &other.pattern);
            other.epoch > old.epoch && other_one.start() < this.end() && this.start() < other_one.end()
        };
        self.scan_parts(number, None, |part| {
            if part.object == of || part.changed <= old.epoch {
                return ControlFlow::Continue(());
            }
            looked_at += 1;
            is_published = looked_at > JOIN_PARTS_MAX || self.extents(number, part.object).iter().any(overlaps);
            if is_published { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        is_published
    }

    /// Cuts the parts of a split file if its size becomes less. With nothing left of it they go, unless somebody may be
    /// writing to one. `size`: the new one, if it changes.
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
        for part in self.split_parts(number) {
            let before = self.extents(number, part.object);
            let kept = |extent: &Extent| {
                let epoch = extent.epoch;
                below(&extent.pattern, size)
                    .into_iter()
                    .map(move |pattern| Extent { pattern, epoch })
                    .collect::<Vec<_>>()
            };
            let after: Vec<_> = before.iter().flat_map(kept).collect();
            self.put_extents(number, part.object, &before, &after);
            if size == 0 && !context.is_being_written {
                self.store.delete(&Key::split_part(number, part.object));
                aftermath.removed.push((number, part.object));
                common.count -= 1;
            }
        }
        self.put_common(number, Parts { cut, ..common });
    }

    /// All bytes of the file are in this part from now on.
    pub(super) fn become_split(&mut self, number: InodeNumber, inode: &mut Inode, object: ObjectId) {
        let epoch = inode.layout.epoch().unwrap_or(0) + 1;
        inode.set_layout(Layout::Split { epoch });
        self.put_common(number, Parts { count: 1, cut: epoch });
        self.put_split_part(number, &Part { object, writer: NOBODY, changed: epoch });
        if let Some(pattern) = Pattern::run(0, inode.size) {
            self.put_extents(number, object, &[], &[Extent { pattern, epoch }]);
        }
    }

    /// Whether the file has parts of which all was cut off.
    pub fn has_empty_parts(&self, number: InodeNumber) -> bool {
        self.split_parts(number).iter().any(|part| self.extents(number, part.object).is_empty())
    }

    pub(super) fn drop_empty_parts(&mut self, number: InodeNumber, aftermath: &mut Aftermath) {
        let mut common = self.common(number);
        for part in self.split_parts(number) {
            if self.extents(number, part.object).is_empty() {
                self.store.delete(&Key::split_part(number, part.object));
                aftermath.removed.push((number, part.object));
                common.count -= 1;
            }
        }
        self.put_common(number, common);
    }

    /// The file has no parts any more, which are removed.
    pub(super) fn drop_split(&mut self, number: InodeNumber, inode: &Inode) -> Vec<(InodeNumber, ObjectId)> {
        if inode.layout.epoch().is_none() {
            return Vec::new();
        }
        let parts = self.split_parts(number);
        for part in &parts {
            let extents = self.extents(number, part.object);
            self.put_extents(number, part.object, &extents, &[]);
            self.store.delete(&Key::split_part(number, part.object));
        }
        self.store.delete(&Key::split(number));
        parts.into_iter().map(|part| (number, part.object)).collect()
    }

    /// Parts with identifiers above `after` that have changed since an epoch, as many as one answer takes.
    pub fn changed_parts(&self, number: InodeNumber, since: u64, after: Option<ObjectId>) -> ChangedParts {
        let is_whole = self.common(number).cut > since;
        let since = if is_whole { 0 } else { since };
        let mut changed = Vec::new();
        self.scan_parts(number, after, |part| {
            if part.changed > since {
                changed.push(part);
            }
            ControlFlow::Continue(())
        });
        let (mut parts, mut room, all) = (Vec::new(), SPLIT_EXTENTS_MAX, changed.len());
        for part in changed {
            let mut extents = self.extents(number, part.object);
            extents.retain(|extent| extent.epoch > since);
            // As good as so many extents.
            let takes = extents.len() + 2;
            if takes > room && !parts.is_empty() {
                break;
            }
            room = room.saturating_sub(takes);
            parts.push((part, extents));
        }
        let is_cut = parts.len() < all;
        ChangedParts { parts, is_whole, is_cut }
    }
}
