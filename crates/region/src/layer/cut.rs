//! Truncation: one block is written, and a range behind it reads zeros; after a crash both happened, or neither.
//!
//! The block goes to a new place, and one record maps it there and unmaps the range. So whatever is written over the
//! block afterwards counts only if the range is gone, too: the size of an object, which its first block has, never
//! grows over bytes that were cut off.

use super::{Changes, Layer, Taken, length_of, read, write};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::record::{ENTRIES_BYTES_MAX, ENTRIES_MAX, Entry};
use crate::{BLOCK, as_index};
use std::ops::Range;

impl Layer {
    /// Writes a mapped block, all of it, and has a range of bytes read zeros: see the module. A full device needs no
    /// space for it, but two syncs.
    pub(crate) fn cut(&self, head: (u64, &[u8]), range: &Range<u64>) -> Result<()> {
        match self.with_room(|| self.cut_at_once(head, range)) {
            Err(Error::NoSpace) if self.sums_end() == 0 => {}
            done => return done,
        }
        // First the block, then what it speaks of: nobody misses bytes that are there still.
        self.write(head.0, head.1)?;
        self.sync()?;
        self.trim(range.clone())?;
        self.sync()
    }

    fn cut_at_once(&self, (address, bytes): (u64, &[u8]), range: &Range<u64>) -> Result<()> {
        let head = address / BLOCK..address / BLOCK + 1;
        let edge = range.start / BLOCK..range.start.div_ceil(BLOCK);
        let behind = edge.end..range.end.div_ceil(BLOCK).max(edge.end);
        let stripes = loop {
            let stripes = self.stripes.take(&[head.clone(), edge.start..behind.end]);
            if !self.has_fresh(&head) && !self.has_fresh(&edge) {
                break stripes;
            }
            drop(stripes);
            self.place_fresh()?;
        };
        self.bring_gathered(&behind);
        let mut taken = Taken { layer: self, extents: Vec::new() };
        let mut changes = Changes::default();
        {
            let _gate = read(&self.gate);
            let edge_bytes = self.without_end(&edge, range.start % BLOCK)?;
            let mut runs = vec![(head.start, bytes)];
            runs.extend(edge_bytes.as_deref().map(|bytes| (edge.start, bytes)));
            self.write_runs(runs, self.kept_free_of(head.start, true), &mut taken, &mut changes)?;
        }
        let is_whole = self.settle_cut(changes.into_entries(), taken, behind)?;
        drop(stripes);
        // What no record can have at once is made safe before anything else is written.
        if is_whole { Ok(()) } else { self.sync() }
    }

    /// The block at the edge of a range, without its bytes from this one on. `None`: it has none there.
    fn without_end(&self, edge: &Range<u64>, from_byte: u64) -> Result<Option<AlignedBuffer>> {
        if edge.is_empty() || self.mapped(&read(&self.state), edge.clone())?.is_empty() {
            return Ok(None);
        }
        let mut block = AlignedBuffer::new(length_of(1));
        self.read_in_gate(edge.start * BLOCK, &mut block)?;
        let end = &mut block[as_index(from_byte)..];
        if end.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        end.fill(0);
        Ok(Some(block))
    }

    /// Maps what was written, and unmaps a range, with one change. `false`: with several.
    fn settle_cut(&self, mut entries: Vec<Entry>, mut taken: Taken<'_>, behind: Range<u64>) -> Result<bool> {
        let mut state = write(&self.state);
        let old = self.mapped(&state, behind.clone())?;
        let unmap = |count| u32::try_from(count).map_err(|_| Error::TooManyPieces);
        let unmapped = old.iter().map(|piece| Ok(Entry::Unmap { first: piece.first, count: unmap(piece.count)? }));
        let unmapped: Vec<Entry> = unmapped.collect::<Result<_>>()?;
        let is_whole = Entry::bytes_of(&entries) + Entry::bytes_of(&unmapped) <= ENTRIES_BYTES_MAX;
        if is_whole {
            entries.extend(unmapped);
            self.change(&mut state, entries)?;
        } else {
            self.change(&mut state, entries)?;
            unmapped.chunks(ENTRIES_MAX).try_for_each(|some| self.change(&mut state, some.to_vec()))?;
        }
        state.fresh.remove(behind);
        taken.extents.clear();
        Ok(is_whole)
    }
}
