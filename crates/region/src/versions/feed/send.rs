//! Sending: pieces by version, out of an index that has them by place.

use super::{Cursor, DATA_MAX, EXTENTS_MAX, Extent, Origin, Outgoing, bytes_of};
use crate::BLOCK_BYTES;
use crate::error::{Error, Result};
use crate::lock;
use crate::versions::commit::{sequence_of, version_of};
use crate::versions::index::Index;
use crate::versions::object::{Inner, read};
use crate::versions::pieces::HOLE;
use crate::versions::{VersionStat, Versions, stat_of, time_of};

/// Versions that are looked up at once.
const VERSIONS_MAX: usize = 1024;

type Tell<'a> = dyn FnMut(Outgoing<'_>) -> Result<()> + 'a;

impl Versions {
    /// Sends what an object has from a place on, that a copy with this lineage has reached. No more than `pieces_max`
    /// pieces are in memory at once, of 32 bytes. Its cleaner waits meanwhile; what is written meanwhile is not sent.
    pub fn send(&self, id: u64, had: Option<(u64, Cursor)>, pieces_max: usize, tell: &mut Tell<'_>) -> Result<()> {
        let object = self.object(id)?.0;
        let _cleaning = lock(&object.cleaning);
        object.there()?;
        self.checkpoint()?;
        let from = had.filter(|(lineage, _)| *lineage == object.lineage).map_or((1, 0), |(_, cursor)| cursor);
        let (lineage, made) = (object.lineage, time_of(object.made));
        let Some(index) = object.shared.index() else {
            let base = VersionStat { version: 0, size: 0, time: made };
            return tell(Outgoing::Begin(Origin { lineage, made, from, base }));
        };
        let before = index.listed_up_to(id, sequence_of(from.0)?.saturating_sub(1))?;
        let base =
            before.map_or(VersionStat { version: 0, size: 0, time: made }, |(sequence, row)| stat_of(sequence, &row));
        tell(Outgoing::Begin(Origin { lineage, made, from, base }))?;
        let names = index.names(id)?;
        if let Some((newest, _)) = index.listed_up_to(id, u64::MAX)? {
            let mut tell_named = |outgoing: Outgoing<'_>| {
                let version = if let Outgoing::Version(stat) = &outgoing { sequence_of(stat.version)? } else { 0 };
                tell(outgoing)?;
                let named = names.iter().filter(|(_, named)| *named == version);
                named.into_iter().try_for_each(|(name, _)| tell(Outgoing::Name(name, version_of(version))))
            };
            object.send_versions(index, from, newest, pieces_max.max(1), &mut tell_named)?;
        }
        names.iter().try_for_each(|(name, sequence)| tell(Outgoing::HasName(name, version_of(*sequence))))
    }
}

impl Inner {
    /// All from a place on up to a version, and the versions.
    fn send_versions(
        &self,
        index: &Index,
        from: Cursor,
        newest: u64,
        pieces_max: usize,
        tell: &mut Tell<'_>,
    ) -> Result<()> {
        let mut batch = Batch { object: self, extents: Vec::new(), data: Vec::new() };
        let mut listed =
            Listed { object: self, index, from: sequence_of(from.0)?, newest, found: Vec::new().into_iter() };
        let mut next = listed.next()?;
        let mut place = from;
        loop {
            let start = (sequence_of(place.0)?, place.1);
            let pieces = index.pieces_after(self.id, start, newest, pieces_max)?;
            let is_last = pieces.len() < pieces_max;
            for (sequence, first, count, position) in pieces {
                let extent = Extent { version: version_of(sequence), first, count, has_data: position != HOLE };
                while let Some(stat) = next.filter(|stat| stat.version < extent.version) {
                    batch.tell(tell)?;
                    tell(Outgoing::Version(stat))?;
                    next = listed.next()?;
                }
                if let Some((rest, _)) = extent.after(place) {
                    let at = if rest.has_data { position + (rest.first - first) } else { HOLE };
                    batch.add(rest, at, tell)?;
                    place = rest.end();
                }
            }
            if is_last {
                break;
            }
        }
        batch.tell(tell)?;
        while let Some(stat) = next {
            tell(Outgoing::Version(stat))?;
            next = listed.next()?;
        }
        Ok(())
    }
}

/// The versions that can be read, one after the other.
struct Listed<'a> {
    object: &'a Inner,
    index: &'a Index,
    /// The next sequence to look at, and the last.
    from: u64,
    newest: u64,
    found: std::vec::IntoIter<VersionStat>,
}

impl Listed<'_> {
    fn next(&mut self) -> Result<Option<VersionStat>> {
        if let Some(stat) = self.found.next() {
            return Ok(Some(stat));
        }
        let rows = self.index.listed(self.object.id, self.from, VERSIONS_MAX)?;
        let rows = rows.into_iter().filter(|(sequence, _)| *sequence <= self.newest);
        let found: Vec<VersionStat> = rows.map(|(sequence, row)| stat_of(sequence, &row)).collect();
        if let Some(last) = found.last() {
            self.from = sequence_of(last.version + 1)?;
        }
        self.found = found.into_iter();
        Ok(self.found.next())
    }
}

/// Pieces that go together.
struct Batch<'a> {
    object: &'a Inner,
    extents: Vec<Extent>,
    data: Vec<u8>,
}

impl Batch<'_> {
    fn add(&mut self, extent: Extent, position: u64, tell: &mut Tell<'_>) -> Result<()> {
        let mut done = 0;
        while done < extent.count {
            let mut room = DATA_MAX - (self.data.len() / BLOCK_BYTES) as u64;
            if self.extents.len() == EXTENTS_MAX || room == 0 {
                self.tell(tell)?;
                room = DATA_MAX;
            }
            let left = extent.count - done;
            let count = if extent.has_data { left.min(room) } else { left };
            let some = Extent { first: extent.first + done, count, ..extent };
            match self.extents.last_mut() {
                Some(last) if last.end() == (some.version, some.first) && last.has_data == some.has_data => {
                    last.count += count;
                }
                _ => self.extents.push(some),
            }
            if extent.has_data {
                self.read(position + done, count)?;
            }
            done += count;
        }
        Ok(())
    }

    fn read(&mut self, position: u64, count: u64) -> Result<()> {
        let _gate = read(&self.object.gate);
        self.object.there()?;
        let before = self.data.len();
        self.data.resize(before + bytes_of(count)?, 0);
        let into = self.data.get_mut(before..).ok_or(Error::Beyond)?;
        self.object.read_positions(position, into)
    }

    fn tell(&mut self, tell: &mut Tell<'_>) -> Result<()> {
        if !self.extents.is_empty() {
            tell(Outgoing::Pieces(&self.extents, &self.data))?;
        }
        self.extents.clear();
        self.data.clear();
        Ok(())
    }
}
