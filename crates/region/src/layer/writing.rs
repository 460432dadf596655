//! Writes of which some blocks are new, or that begin or end inside a block.
//!
//! Sketch: one call of the device for each run of blocks that lie side by side on it, whether they were mapped before
//! or are new. So a writer that appends records which end inside a block has one call for each: the block in which the
//! record before ended is read, and written again with the new ones behind it, which were taken behind it.
//!
//! On a crash: a sector that is written again has the bytes that it had, or those and the new ones. So the earlier
//! bytes of a block that is completed in place are safe as they were. What has checksums goes to new blocks, all of it.

use super::{CHUNK_BLOCKS, Changes, Layer, Taken, length_of, read, with_holes};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result, at};
use crate::overlay::Piece;
use crate::record::ENTRIES_BYTES_MAX;
use crate::sums::sum_at;
use crate::{BLOCK, BLOCK_BYTES, as_index};
use std::ops::Range;

/// Blocks that one call of the device writes.
struct Run {
    piece: Piece,
    /// Where its first block lay before, and where its last one did. `None`: nowhere.
    before: [Option<u64>; 2],
}

impl Run {
    /// Whether these blocks, which follow in the address space, can be written with the same call.
    fn goes_on_with(&self, block: u64, count: u64) -> bool {
        self.piece.mapped_at() + self.piece.count == block && self.piece.count + count <= CHUNK_BLOCKS
    }
}

impl Layer {
    /// Writes what a range of blocks has of `part`: over what is mapped, or to new blocks (`anew`: all of it). All
    /// blocks are allocated before the first is written, so that no space leaves what is there as it was.
    pub(super) fn write_range(
        &self,
        part: (u64, &[u8]),
        blocks: &Range<u64>,
        anew: bool,
        taken: &mut Taken<'_>,
        changes: &mut Changes,
    ) -> Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        let mapped = self.mapped(&read(&self.state), blocks.clone())?;
        let mut runs: Vec<Run> = Vec::new();
        for old in with_holes(&mapped, blocks) {
            let mut first = old.first;
            while first < old.end() {
                let (block, count) = match old.block.filter(|_| !anew) {
                    Some(block) => (block + (first - old.first), (old.end() - first).min(CHUNK_BLOCKS)),
                    None => {
                        let kept = self.kept_free_of(first, old.block.is_some());
                        let (block, count) = taken.take((old.end() - first).min(CHUNK_BLOCKS), kept)?;
                        changes.map(first, block, count);
                        (block, count)
                    }
                };
                let before = |offset: u64| old.block.map(|block| block + (first - old.first) + offset);
                match runs.last_mut().filter(|run| run.goes_on_with(block, count)) {
                    Some(Run { piece, before: [_, last] }) => {
                        piece.count += count;
                        *last = before(count - 1);
                    }
                    None => {
                        let piece = Piece { first, count, block: Some(block) };
                        runs.push(Run { piece, before: [before(0), before(count - 1)] });
                    }
                }
                first += count;
            }
        }
        if changes.bytes() > ENTRIES_BYTES_MAX {
            return Err(Error::TooManyPieces);
        }
        runs.into_iter().try_for_each(|run| self.write_run(&run, part, changes))
    }

    /// Writes what a run has of a range of bytes. The rest of its first and its last block is as it was before, or
    /// zeros.
    fn write_run(&self, run: &Run, (address, from): (u64, &[u8]), changes: &mut Changes) -> Result<()> {
        let (start, end) = (run.piece.first * BLOCK, run.piece.end() * BLOCK);
        let (used_start, used_end) = (start.max(address), end.min(address + from.len() as u64));
        let of_from = |at: u64| as_index(at - address);
        let bytes = &from[of_from(used_start)..of_from(used_end)];
        let in_first = if used_start > start { as_index(start + BLOCK - used_start).min(bytes.len()) } else { 0 };
        let (first, rest) = bytes.split_at(in_first);
        // Where it is the first block that they end in, nothing is left.
        let in_last = if used_end < end { as_index(used_end % BLOCK).min(rest.len()) } else { 0 };
        let (middle, last) = rest.split_at(rest.len() - in_last);
        let complete = |block: u64, before: Option<u64>, at_byte: u64, bytes: &[u8]| {
            let whole = (!bytes.is_empty()).then(|| self.complete((block, before), as_index(at_byte), bytes));
            whole.transpose()
        };
        let [first_before, last_before] = run.before;
        let first = complete(run.piece.first, first_before, used_start - start, first)?;
        let last = complete(run.piece.end() - 1, last_before, 0, last)?;
        let parts = [first.as_deref(), Some(middle), last.as_deref()];
        let parts: Vec<&[u8]> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        self.write_whole(run.piece, &parts, changes)
    }

    /// A whole block with these bytes in it, from `at_byte` on; the rest of it is as it was where it lay before.
    fn complete(&self, (block, before): (u64, Option<u64>), at_byte: usize, bytes: &[u8]) -> Result<AlignedBuffer> {
        let mut whole = AlignedBuffer::new(BLOCK_BYTES);
        if before.is_some() {
            self.read_piece(Piece { first: block, count: 1, block: before }, &mut whole)?;
        }
        whole[at_byte..at_byte + bytes.len()].copy_from_slice(bytes);
        Ok(whole)
    }

    /// Writes parts, each whole blocks, one behind the other, and takes note of the checksums of blocks that have some.
    fn write_whole(&self, piece: Piece, parts: &[&[u8]], changes: &mut Changes) -> Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        assert_eq!(bytes, length_of(piece.count), "the parts are as long as the blocks that they go to");
        if piece.first < self.sums_end() {
            let blocks = (piece.first..).zip(parts.iter().flat_map(|part| part.chunks(BLOCK_BYTES)));
            changes.sums(piece.mapped_at(), blocks.map(|(block, bytes)| sum_at(block, bytes)));
        }
        self.device.write_parts_at(self.place(piece), parts, false).map_err(at("write the device"))
    }
}
