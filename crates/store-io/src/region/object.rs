//! A file's bytes in regions: one, and further ones where it is longer than a region.
//!
//! Each region is a *part* of the file, as long as its capacity. The first is there as long as the file; a further one
//! is made when bytes in it are first written, so that a file with holes is cheap. Whose part it is, and from which
//! byte on, stands in its super block ([`FilePart`]). What happens in the first part alone costs no more than if
//! there were no others.
//!
//! Invariant: no part begins at the file's end or behind it, but one whose first write is on its way.
//! Lock order: who appends, `parts`, `end`. Parts are had alone by whoever makes or removes some.
//! On a crash: parts are there that were synced. Where the last one begins, and its size, are the file's length.

use super::{Name, Regions, refused};
use crate::store::{BlockObject, ObjectHandle, ObjectStat, Segment, WritePlan, lock};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{SystemTime, UNIX_EPOCH};
use weft_protocol::data::{LentBytes, LentPart};
use weft_protocol::limits::FILE_BYTES_MAX;
use weft_protocol::{Error, Result, Timestamp};
use weft_region::{FilePart, Object, Stream};
use weft_sys::huge::HugePage;
use weft_transport::lent_while;
use weft_ucx::PageWindow;

/// See the module.
pub(super) struct RegionObject {
    regions: Arc<Regions>,
    name: Name,
    first: Object,
    /// Held by whoever appends.
    appending: Mutex<()>,
    /// Of a file that is or was longer than a region.
    further: OnceLock<Box<Further>>,
}

/// What a file has besides its first part.
struct Further {
    /// By number, from 1 on.
    parts: RwLock<BTreeMap<u64, Object>>,
    end: Mutex<End>,
}

struct End {
    /// Of the file, if that is more than its first part can have; else 0, and the first part knows it.
    length: u64,
    modified: SystemTime,
}

impl Default for Further {
    fn default() -> Self {
        Self { parts: RwLock::default(), end: Mutex::new(End { length: 0, modified: UNIX_EPOCH }) }
    }
}

impl Further {
    fn share(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Object>> {
        self.parts.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn have_alone(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Object>> {
        self.parts.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes up to this one are there now.
    fn note_written(&self, end: u64) {
        let mut known = lock(&self.end);
        known.length = known.length.max(end);
        known.modified = SystemTime::now();
    }
}

impl RegionObject {
    pub fn create(regions: &Arc<Regions>, name: Name) -> Result<Self> {
        let first = regions.store.create_for(part_of(name, 0).owner()).map_err(refused)?;
        let (appending, further) = (Mutex::default(), OnceLock::new());
        Ok(Self { regions: Arc::clone(regions), name, first, appending, further })
    }

    /// Removes all parts. When it fails it can be done again.
    pub fn remove(&self) -> Result<()> {
        // From here on nobody makes further ones.
        self.regions.store.remove(self.first.id()).map_err(refused)?;
        let done = self.further.get().map_or(Ok(()), |further| self.remove_from(&mut further.have_alone(), 1));
        self.regions.is_unsettled.store(true, Ordering::Release);
        done
    }

    /// Waits for who makes a part. The store is closed: nobody does any more.
    pub fn end(&self) {
        if let Some(further) = self.further.get() {
            further.have_alone().clear();
        }
    }

    /// Removes the parts from this one on.
    fn remove_from(&self, parts: &mut BTreeMap<u64, Object>, number: u64) -> Result<()> {
        while let Some(last) = parts.last_entry().filter(|last| *last.key() >= number) {
            self.regions.store.remove(last.get().id()).map_err(refused)?;
            last.remove();
        }
        Ok(())
    }

    /// An error: the file was removed.
    fn there(&self) -> Result<()> {
        if self.first.is_there() { Ok(()) } else { Err(Error::NoObject) }
    }

    /// Bytes that each part can have.
    fn capacity(&self) -> u64 {
        self.first.capacity()
    }

    /// Whether the first part has all of it, as is mostly so.
    fn is_in_first(&self, offset: u64, bytes: u64) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.capacity())
    }

    /// The part with a file's last byte, and how many bytes such a file has of it.
    fn last_of(&self, length: u64) -> (u64, u64) {
        let number = length.saturating_sub(1) / self.capacity();
        (number, length - number * self.capacity())
    }

    fn length_and_time(&self) -> Result<(u64, SystemTime)> {
        let first = self.first.stat().ok_or(Error::NoObject)?;
        let Some(further) = self.further.get() else { return Ok((first.size, first.modified)) };
        let end = lock(&further.end);
        let length = if end.length > 0 { end.length } else { first.size };
        Ok((length, first.modified.max(end.modified)))
    }

    /// Writes into a part that is not the first; makes it, if it is not there.
    fn write_further(&self, number: u64, offset: u64, from: &[u8]) -> Result<()> {
        let further = self.further.get_or_init(Box::default);
        loop {
            let parts = further.share();
            let Some(part) = parts.get(&number) else {
                drop(parts);
                self.make(&mut further.have_alone(), number)?;
                continue;
            };
            self.there()?;
            let written = part.write(offset, from).map_err(refused);
            if written.is_ok() {
                further.note_written(number * self.capacity() + offset + from.len() as u64);
                return Ok(());
            }
            drop(parts);
            return self.take_back(&mut further.have_alone(), number).and(written);
        }
    }

    fn make(&self, parts: &mut BTreeMap<u64, Object>, number: u64) -> Result<()> {
        self.there()?;
        if self.regions.is_closed.load(Ordering::Acquire) {
            return Err(Error::NoObject);
        }
        if let Entry::Vacant(place) = parts.entry(number) {
            let part = part_of(self.name, number * self.capacity());
            place.insert(self.regions.store.create_for(part.owner()).map_err(refused)?);
        }
        Ok(())
    }

    /// Removes a part that was made for a write which failed.
    fn take_back(&self, parts: &mut BTreeMap<u64, Object>, number: u64) -> Result<()> {
        let is_empty = |part: &&Object| part.stat().is_some_and(|stat| stat.size == 0);
        if let Some(part) = parts.get(&number).filter(is_empty) {
            self.regions.store.remove(part.id()).map_err(refused)?;
            parts.remove(&number);
        }
        Ok(())
    }

    /// Sets the length of a file that has further parts, or gets some.
    fn cut(&self, further: &Further, length: u64) -> Result<()> {
        let mut parts = further.have_alone();
        self.there()?;
        let (last, bytes) = self.last_of(length);
        self.remove_from(&mut parts, last + 1)?;
        if let Some(part) = parts.get(&last)
            && part.stat().is_some_and(|stat| stat.size > bytes)
        {
            part.truncate(bytes).map_err(refused)?;
        }
        *lock(&further.end) = End { length: if last > 0 { length } else { 0 }, modified: SystemTime::now() };
        Ok(())
    }

    /// Has all parts' super blocks written with the next sync, that of the last one with the file's end.
    fn write_stats(&self, further: &Further) -> Result<()> {
        let mut parts = further.have_alone();
        let length = lock(&further.end).length;
        if length > 0 {
            let (last, bytes) = self.last_of(length);
            self.make(&mut parts, last)?;
            let part = parts.get(&last).ok_or(Error::NoObject)?;
            if part.stat().is_some_and(|stat| stat.size < bytes) {
                part.truncate(bytes).map_err(refused)?;
            }
        }
        parts.values().try_for_each(Object::write_stat).map_err(refused)
    }
}

impl ObjectHandle for RegionObject {
    fn stat(&self) -> Result<ObjectStat> {
        self.there()?;
        let (size, modified) = self.length_and_time()?;
        let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        Ok(ObjectStat { size, mtime: Timestamp::from_parts(seconds, since.subsec_nanos()) })
    }

    fn read_plan(&self, offset: u64, bytes: u32) -> Result<(Segment<'_>, ObjectStat)> {
        let stat = self.stat()?;
        let bytes = u64::from(bytes).min(stat.size.saturating_sub(offset));
        Ok((Segment::Blocks { object: self, offset, bytes }, stat))
    }

    fn write_plan(&self, offset: u64, bytes: u32) -> Result<WritePlan<'_>> {
        offset.checked_add(u64::from(bytes)).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::FileTooLarge)?;
        self.there()?;
        Ok(WritePlan::Blocks { object: self, offset: Some(offset) })
    }

    fn append_plan(&self, _bytes: u32) -> Result<WritePlan<'_>> {
        self.there()?;
        Ok(WritePlan::Blocks { object: self, offset: None })
    }

    fn truncate(&self, size: u64) -> Result<ObjectStat> {
        if size > FILE_BYTES_MAX {
            return Err(Error::FileTooLarge);
        }
        let is_in_first = size <= self.capacity();
        if is_in_first {
            self.first.truncate(size).map_err(refused)?;
        }
        let further = if is_in_first { self.further.get() } else { Some(self.further.get_or_init(Box::default)) };
        further.map_or(Ok(()), |further| self.cut(further, size))?;
        self.regions.is_unsettled.store(true, Ordering::Release);
        self.stat()
    }

    fn sync(&self) -> Result<()> {
        self.further.get().map_or(Ok(()), |further| self.write_stats(further))?;
        self.first.sync().map_err(refused)
    }
}

impl BlockObject for RegionObject {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut rest = into;
        for piece in pieces(self.capacity(), offset, rest.len()) {
            let (some, behind) = std::mem::take(&mut rest).split_at_mut(piece.bytes);
            rest = behind;
            let have = if piece.part == 0 {
                self.first.read(piece.offset, some).map_err(refused)?
            } else {
                let part = self.further.get().and_then(|further| further.share().get(&piece.part).cloned());
                match part.map_or(Ok(0), |part| part.read(piece.offset, some)) {
                    // It was cut off meanwhile.
                    Err(weft_region::Error::NoObject) => 0,
                    read => read.map_err(refused)?,
                }
            };
            some.get_mut(have..).unwrap_or_default().fill(0);
        }
        Ok(())
    }

    fn stream(&self, offset: u64, bytes: u64) -> Option<Stream<'_>> {
        if self.is_in_first(offset, bytes) { self.regions.store.stream(&self.first, offset, bytes) } else { None }
    }

    fn streams(&self, offset: u64, bytes: u64) -> bool {
        self.is_in_first(offset, bytes) && self.regions.store.streams()
    }

    fn in_memory(&self, offset: u64, bytes: u64) -> Option<LentBytes> {
        // Mostly the first part has all of it.
        let found = self.regions.store.in_memory(&self.first, offset, usize::try_from(bytes).ok()?)?;
        let part = |(address, bytes)| LentPart { address, bytes: bytes as u64 };
        Some(lent_while(found.word, found.value, found.parts.into_iter().map(part).collect()))
    }

    fn window(&self, page: &HugePage) -> Option<Arc<PageWindow>> {
        self.regions.ring_pages.at(page)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut rest = from;
        for piece in pieces(self.capacity(), offset, from.len()) {
            let (some, behind) = rest.split_at(piece.bytes);
            rest = behind;
            if piece.part == 0 {
                self.first.write(piece.offset, some).map_err(refused)?;
            } else {
                self.write_further(piece.part, piece.offset, some)?;
            }
        }
        Ok(())
    }

    fn append(&self, from: &[u8]) -> Result<()> {
        let _alone = lock(&self.appending);
        let (length, _) = self.length_and_time()?;
        length.checked_add(from.len() as u64).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::FileTooLarge)?;
        self.write_at(length, from)
    }
}

/// Bytes of a file that lie in one part.
struct Piece {
    part: u64,
    /// Where in it.
    offset: u64,
    bytes: usize,
}

/// Cuts bytes of a file where parts end.
fn pieces(capacity: u64, offset: u64, bytes: usize) -> impl Iterator<Item = Piece> {
    let (mut at, mut left) = (offset, bytes);
    std::iter::from_fn(move || {
        // Mostly there is one, and nothing to divide.
        let (part, offset) = if at < capacity { (0, at) } else { (at / capacity, at % capacity) };
        let bytes = usize::try_from(capacity - offset).unwrap_or(usize::MAX).min(left);
        (at, left) = (at + bytes as u64, left - bytes);
        (bytes > 0).then_some(Piece { part, offset, bytes })
    })
}

/// What the super block of a part says: see docs/formats/region-store.md.
pub(super) fn part_of((inode, object): Name, start: u64) -> FilePart {
    FilePart { inode: inode.raw(), object: object.raw(), start }
}

#[cfg(test)]
mod tests;
