//! Updates of several extents that are there wholly or not at all.
//!
//! All of an update goes to new blocks, side by side as far as such are free, with one call for what lies so; then one
//! record maps all of it.

use super::{Changes, Layer, Piece, Taken, blocks_of, edges, is_whole, length_of, read};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result, at};
use crate::sums::sum_at;
use crate::{BLOCK, BLOCK_BYTES, as_index};
use std::ops::Range;

/// Ranges of memory that one call takes.
const SLICES_MAX: usize = 512;

/// A run of virtual blocks, and what they are to have.
type Run<'a> = (u64, &'a [u8]);

impl Layer {
    /// Writes several ranges, none of which overlap: after a crash all of them are there, or none.
    pub fn write_atomic(&self, parts: &[(u64, &[u8])]) -> Result<()> {
        let ranges: Vec<_> = parts.iter().map(|(at, from)| blocks_of(*at, from.len())).collect::<Result<_>>()?;
        let mut sorted = ranges.clone();
        sorted.sort_unstable_by_key(|blocks| blocks.start);
        if sorted.windows(2).any(|pair| matches!(pair, [one, next] if next.start < one.end)) {
            return Err(Error::Setting("two parts of one update in the same block".to_owned()));
        }
        self.with_room(|| self.write_together(parts, &ranges))
    }

    fn write_together(&self, parts: &[(u64, &[u8])], ranges: &[Range<u64>]) -> Result<()> {
        let stripes = self.have_alone(ranges)?;
        let mut taken = Taken { layer: self, extents: Vec::new() };
        let mut changes = Changes::default();
        {
            let _gate = read(&self.gate);
            let whole = parts.iter().zip(ranges).map(|(part, blocks)| self.in_whole_blocks(*part, blocks));
            let whole = whole.collect::<Result<Vec<_>>>()?;
            let bytes = whole.iter().zip(parts).map(|(whole, (_, from))| whole.as_deref().unwrap_or(from));
            let runs = ranges.iter().map(|blocks| blocks.start).zip(bytes);
            self.write_runs(runs.collect(), self.kept_free_of_all(ranges)?, &mut taken, &mut changes)?;
        }
        self.settle(changes, taken)?;
        drop(stripes);
        Ok(())
    }

    /// The blocks that bytes lie in, with what is there before and behind the bytes. `None`: they fill them.
    fn in_whole_blocks(&self, (address, from): (u64, &[u8]), blocks: &Range<u64>) -> Result<Option<AlignedBuffer>> {
        if is_whole(address, from) || blocks.is_empty() {
            return Ok(None);
        }
        let count = blocks.end - blocks.start;
        let mut whole = AlignedBuffer::new(length_of(count));
        let is_part = [address, address + from.len() as u64].map(|edge| !edge.is_multiple_of(BLOCK));
        for offset in edges(is_part, count) {
            let at_byte = length_of(offset);
            let into = &mut whole[at_byte..at_byte + BLOCK_BYTES];
            self.read_in_gate((blocks.start + offset) * BLOCK, into)?;
        }
        let skipped = as_index(address % BLOCK);
        whole[skipped..skipped + from.len()].copy_from_slice(from);
        Ok(Some(whole))
    }

    /// Free blocks that none of these ranges can have.
    fn kept_free_of_all(&self, ranges: &[Range<u64>]) -> Result<u64> {
        let state = read(&self.state);
        let mut most = 0;
        for blocks in ranges.iter().filter(|blocks| !blocks.is_empty()) {
            let mapped: u64 = self.mapped(&state, blocks.clone())?.iter().map(|piece| piece.count).sum();
            most = most.max(self.kept_free_of(blocks.start, mapped == blocks.end - blocks.start));
        }
        Ok(most)
    }

    pub(super) fn write_runs(
        &self,
        mut runs: Vec<Run<'_>>,
        kept: u64,
        taken: &mut Taken<'_>,
        changes: &mut Changes,
    ) -> Result<()> {
        loop {
            runs.retain(|(_, bytes)| !bytes.is_empty());
            let wanted: usize = runs.iter().take(SLICES_MAX).map(|(_, bytes)| bytes.len()).sum();
            if wanted == 0 {
                return Ok(());
            }
            let (block, count) = taken.take((wanted / BLOCK_BYTES) as u64, kept)?;
            let (mut slices, mut place) = (Vec::new(), block);
            for (first, bytes) in runs.iter_mut().take(SLICES_MAX) {
                let (some, rest) = bytes.split_at(bytes.len().min(length_of(block + count - place)));
                let blocks = (some.len() / BLOCK_BYTES) as u64;
                if blocks > 0 {
                    changes.map(*first, place, blocks);
                    if *first < self.sums_end() {
                        let blocks = (*first..).zip(some.chunks(BLOCK_BYTES));
                        changes.sums(place, blocks.map(|(block, bytes)| sum_at(block, bytes)));
                    }
                    slices.push(some);
                }
                (*first, *bytes, place) = (*first + blocks, rest, place + blocks);
            }
            let place = self.place(Piece { first: 0, count, block: Some(block) });
            self.device.write_parts_at(place, &slices, false).map_err(at("write the device"))?;
        }
    }
}
