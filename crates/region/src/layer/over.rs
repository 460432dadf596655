//! Writes over blocks that are mapped already, and mapping ahead of such writes.

use super::{CHUNK_BLOCKS, Changes, Layer, Taken, blocks_of, length_of, read};
use crate::BLOCK_BYTES;
use crate::error::{Error, Result, at};
use crate::overlay::Piece;
use std::ops::Range;

impl Layer {
    /// Writes over blocks that are all mapped, for certain if it is to be durable. `false`: some are not, and nothing
    /// was done.
    pub(super) fn overwrite(&self, blocks: &Range<u64>, parts: &[&[u8]], is_durable: bool) -> Result<bool> {
        let _stripes = self.stripes.share(blocks);
        let write = |piece: Piece, parts: &[&[u8]]| {
            self.device.write_parts_at(self.place(piece), parts, is_durable).map_err(at("write the device"))
        };
        let gate = read(&self.gate);
        if let Some(piece) = self.epochs.recent(blocks, is_durable) {
            return write(piece, parts).map(|()| true);
        }
        drop(gate);
        self.bring_gathered(blocks);
        let _gate = read(&self.gate);
        let pieces = {
            let state = read(&self.state);
            if let Some(piece) = self.look_up(&state, blocks, is_durable) {
                drop(state);
                return write(piece, parts).map(|()| true);
            }
            // Data that are safe where a crash unmaps them would be lost.
            if state.fresh.touches(blocks) || is_durable && state.is_unsafe(blocks) {
                return Ok(false);
            }
            self.mapped(&state, blocks.clone())?
        };
        if pieces.iter().map(|piece| piece.count).sum::<u64>() != blocks.end - blocks.start {
            return Ok(false);
        }
        let mut rest = parts.to_vec();
        for piece in pieces {
            write(piece, &take_front(&mut rest, length_of(piece.count)))?;
        }
        Ok(true)
    }

    /// Writes parts, each whole blocks, one behind the other over blocks that [`Layer::reserve`] has mapped. `durable`:
    /// they are safe when this returns.
    pub(crate) fn write_over(&self, address: u64, parts: &[&[u8]], durable: bool) -> Result<()> {
        let blocks = blocks_of(address, parts.iter().map(|part| part.len()).sum())?;
        let is_done = self.overwrite(&blocks, parts, durable)?;
        // Not all of the mapping may be safe.
        let is_later = !is_done && durable && self.overwrite(&blocks, parts, false)?;
        if !is_done && !is_later {
            return Err(Error::NoObject);
        }
        if blocks.start < self.sums_end() {
            let all = parts.iter().flat_map(|part| part.chunks(BLOCK_BYTES));
            let sums: Vec<u32> = blocks.clone().zip(all).map(|(block, bytes)| self.sum_for(block, bytes)).collect();
            self.note_sums(blocks.start, &sums)?;
        }
        if is_later { self.sync() } else { Ok(()) }
    }

    /// Maps blocks where nothing is, with what was on the device before in them and without checksums, in as few pieces
    /// as there are.
    pub(crate) fn reserve(&self, blocks: Range<u64>) -> Result<()> {
        self.with_room(|| {
            let _stripes = self.stripes.take(std::slice::from_ref(&blocks));
            let mut taken = Taken { layer: self, extents: Vec::new() };
            let (mut changes, mut first) = (Changes::default(), blocks.start);
            while first < blocks.end {
                let kept = self.kept_free_of(first, false);
                let (block, count) = taken.take((blocks.end - first).min(CHUNK_BLOCKS), kept)?;
                changes.map(first, block, count);
                first += count;
            }
            self.settle(changes, taken)
        })
    }
}

/// Takes so many bytes off the front of what lies one behind the other.
pub(crate) fn take_front<'a>(parts: &mut Vec<&'a [u8]>, mut bytes: usize) -> Vec<&'a [u8]> {
    let (mut front, mut rest) = (Vec::new(), Vec::new());
    for part in parts.drain(..) {
        let (some, behind) = part.split_at(bytes.min(part.len()));
        bytes -= some.len();
        front.extend(Some(some).filter(|some| !some.is_empty()));
        rest.extend(Some(behind).filter(|behind| !behind.is_empty()));
    }
    *parts = rest;
    front
}
