//! Receiving: pieces are commits of their own until the version comes that they are of.

use super::{Cursor, DATA_MAX, Extent, Origin, bytes_of};
use crate::BLOCK;
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::versions::commit::{ENTRIES_MAX, Entry, sequence_of};
use crate::versions::object::{Inner, read};
use crate::versions::write::{Cause, Change};
use crate::versions::{VersionStat, Versioned, Versions, nanoseconds};
use std::collections::VecDeque;
use std::sync::Arc;

/// Blocks, of holes most of all, that one commit names: what is known of it is in memory until a checkpoint.
const SPAN_MAX: u64 = 1 << 24;

/// An object that is being received.
pub(crate) struct Incoming {
    object: Arc<Inner>,
    /// All before this is there, or at hand.
    cursor: Cursor,
    /// Where the stream is.
    place: Cursor,
    /// Pieces at hand, and their data.
    entries: Vec<Entry>,
    data: AlignedBuffer,
    blocks: u64,
    /// Blocks of data that one commit is to have.
    blocks_max: u64,
    /// Blocks that the pieces at hand are of, also as holes.
    span: u64,
    /// Names that the object has and which have not come yet. `None`: nobody has looked.
    names: Option<VecDeque<(String, u64)>>,
}

impl Versions {
    /// Makes a copy of an object, where none is.
    pub fn create_copy(&self, id: u64, origin: &Origin) -> Result<()> {
        self.make(id, true, Some((origin.lineage, nanoseconds(origin.made)))).map(drop)
    }

    /// The same in all copies of an object.
    pub fn lineage(&self, id: u64) -> Result<u64> {
        Ok(self.object(id)?.0.lineage)
    }

    /// Goes on with a copy. An error: it is none of this object, or something is missing between.
    pub fn receive(&self, id: u64, origin: &Origin) -> Result<Incoming> {
        let object = self.object(id)?.0;
        let cursor = object.cursor();
        if object.lineage != origin.lineage {
            let text = format!("object {id} is there already, and is another one than the stream has");
            return Err(Error::OtherObject(text));
        }
        if origin.from > cursor {
            let text = format!(
                "object {id}: the stream begins at version {}, and what is there ends at {}: send what comes between",
                origin.from.0,
                cursor.0 - 1
            );
            return Err(Error::OtherObject(text));
        }
        let blocks_max = DATA_MAX.min(object.commit_max());
        let data = AlignedBuffer::new(bytes_of(blocks_max)?);
        let (entries, names, place) = (Vec::new(), None, origin.from);
        let incoming = Incoming { object, cursor, place, entries, data, blocks: 0, blocks_max, span: 0, names };
        incoming.compare(origin.base)?;
        Ok(incoming)
    }
}

impl Incoming {
    /// Pieces, and the data of those that have some.
    pub fn pieces(&mut self, extents: &[Extent], mut data: &[u8]) -> Result<()> {
        for extent in extents {
            let contradicts = || Error::Damaged(format!("pieces of object {} in the stream", self.object.id));
            let end = extent.first.checked_add(extent.count).filter(|_| extent.count > 0).ok_or_else(contradicts)?;
            if end > self.object.ring {
                return Err(self.too_large());
            }
            if (extent.version, extent.first) < self.place {
                return Err(contradicts());
            }
            self.place = extent.end();
            let bytes = usize::try_from(extent.bytes()).map_err(|_| Error::Beyond)?;
            let (its, behind) = data.split_at_checked(bytes).ok_or_else(contradicts)?;
            data = behind;
            if let Some((rest, skipped)) = extent.after(self.cursor) {
                let skipped = usize::try_from(skipped).map_err(|_| Error::Beyond)?;
                self.take(rest, &its[skipped..])?;
            }
        }
        Ok(())
    }

    fn too_large(&self) -> Error {
        let (id, bytes) = (self.object.id, self.object.capacity());
        Error::OtherObject(format!("object {id} is larger than the {bytes} bytes of a region: format with larger ones"))
    }

    /// Takes some to hand.
    fn take(&mut self, extent: Extent, mut data: &[u8]) -> Result<()> {
        let version = sequence_of(extent.version)?;
        let mut first = extent.first;
        while first < extent.first + extent.count {
            let is_full = extent.has_data && self.blocks == self.blocks_max || self.span == SPAN_MAX;
            if is_full || self.entries.len() == ENTRIES_MAX {
                self.commit(Cause::Part, None)?;
            }
            let left = (extent.first + extent.count - first).min(SPAN_MAX - self.span);
            let count = if extent.has_data { left.min(self.blocks_max - self.blocks) } else { left };
            let entry = Entry { first, version, count, has_data: extent.has_data };
            if extent.has_data {
                let (some, behind) = data.split_at_checked(bytes_of(count)?).ok_or(Error::Beyond)?;
                let at = bytes_of(self.blocks)?;
                let place = self.data.get_mut(at..at + some.len()).ok_or(Error::Beyond)?;
                place.copy_from_slice(some);
                data = behind;
                self.blocks += count;
            }
            self.entries.push(entry);
            self.span += count;
            first += count;
        }
        self.cursor = extent.end();
        Ok(())
    }

    /// A commit of what is at hand. Without a size the object keeps its own.
    fn commit(&mut self, cause: Cause, size: Option<u64>) -> Result<()> {
        let entries = std::mem::take(&mut self.entries);
        let data = self.data.get(..bytes_of(self.blocks)?).ok_or(Error::Beyond)?;
        let mut log = self.object.log()?;
        let size = size.unwrap_or_else(|| read(&self.object.state).head.size);
        self.object.append(&mut log, Change { cause, entries, data: vec![data], size, moved: &[] }, false)?;
        drop(log);
        (self.blocks, self.span) = (0, 0);
        self.object.shared.checkpoint_if_much()
    }

    /// A version all of whose pieces came. `false`: it was there.
    pub fn version(&mut self, stat: VersionStat) -> Result<bool> {
        let sequence = sequence_of(stat.version)?;
        if sequence <= read(&self.object.state).newest {
            self.compare(stat)?;
            return Ok(false);
        }
        if stat.size > self.object.capacity() {
            return Err(self.too_large());
        }
        self.commit(Cause::Receive(sequence, nanoseconds(stat.time)), Some(stat.size))?;
        self.cursor = (stat.version + 1, 0);
        Ok(true)
    }

    /// An error: this version is there, and is another one.
    fn compare(&self, stat: VersionStat) -> Result<()> {
        let sequence = sequence_of(stat.version)?;
        let found = self.object.listed_up_to(sequence)?.filter(|(found, _)| *found == sequence);
        if found.is_none_or(|(_, row)| (row.size, row.time) == (stat.size, nanoseconds(stat.time))) {
            return Ok(());
        }
        let text = "here it is another one: a copy that was written to takes no more of what it is a copy of";
        Err(Error::OtherObject(format!("version {} of object {}: {text}", stat.version, self.object.id)))
    }

    /// One of the object's names, which come in order: others are taken away.
    pub fn has_name(&mut self, name: &str, version: u64) -> Result<()> {
        let before = self.forget_names(Some(name))?;
        if before == Some(version) { Ok(()) } else { self.name(name, version) }
    }

    /// A name of a version. One whose version is not there is passed over.
    pub fn name(&self, name: &str, version: u64) -> Result<()> {
        match self.object.set_name(name, sequence_of(version)?) {
            Err(Error::NoVersion) => Ok(()),
            done => done,
        }
    }

    /// Takes away the names up to one, and returns what had that.
    fn forget_names(&mut self, until: Option<&str>) -> Result<Option<u64>> {
        let names = match &mut self.names {
            Some(names) => names,
            none => none.insert(Versioned(Arc::clone(&self.object)).names()?.into()),
        };
        while let Some((name, version)) =
            names.pop_front_if(|(name, _)| until.is_none_or(|until| name.as_str() <= until))
        {
            if Some(name.as_str()) == until {
                return Ok(Some(version));
            }
            self.object.remove_name(&name)?;
        }
        Ok(None)
    }

    /// Nothing comes any more.
    pub fn done(mut self) -> Result<()> {
        if !self.entries.is_empty() {
            return Err(Error::Damaged(format!("pieces of object {} come without their version", self.object.id)));
        }
        self.forget_names(None).map(drop)
    }
}

const _: () = assert!(DATA_MAX * BLOCK <= 1 << 20, "what goes at once is at most 1 MiB");
