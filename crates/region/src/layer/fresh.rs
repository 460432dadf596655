//! Single blocks that were written where nothing was mapped: they wait in memory for a sync, which writes many of them
//! side by side with one call.
//!
//! Invariant: a block that waits has a free block of the device set aside. What waits is newer than what is mapped.

use super::{Layer, State, length_of, read, write};
use crate::BLOCK_BYTES;
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result, at};
use crate::lock;
use crate::overlay::Piece;
use crate::record::Entry;
use std::ops::Range;
use std::sync::Arc;

/// Blocks that wait at most.
pub(super) const FRESH_MAX: usize = 1024;

/// A block's bytes.
pub(super) type Bytes = Arc<[u8]>;

impl Layer {
    /// Whether blocks of a range wait.
    pub(super) fn has_fresh(&self, range: &Range<u64>) -> bool {
        read(&self.state).fresh.range(range.clone()).next().is_some()
    }

    /// Writes a part of one block, if it waits, or nothing is mapped there. `false`: something is. The caller has the
    /// block's stripe: nobody else begins to wait there.
    pub(super) fn write_fresh(&self, block: u64, from_byte: usize, bytes: &[u8]) -> Result<bool> {
        let is_waiting = {
            let state = read(&self.state);
            let is_waiting = state.fresh.contains_key(&block);
            if !is_waiting && !self.mapped(&state, block..block + 1)?.is_empty() {
                return Ok(false);
            }
            is_waiting
        };
        if is_waiting {
            let mut state = write(&self.state);
            // It may have been placed meanwhile.
            let Some(before) = state.fresh.get(&block) else { return Ok(false) };
            let whole = with_part(before.to_vec(), from_byte, bytes)?;
            state.fresh.insert(block, whole);
            return Ok(true);
        }
        let whole =
            if bytes.len() == BLOCK_BYTES { bytes.into() } else { with_part(vec![0; BLOCK_BYTES], from_byte, bytes)? };
        let mut state = write(&self.state);
        if state.space.free() <= state.fresh.len() as u64 {
            return Err(Error::NoSpace);
        }
        state.fresh.insert(block, whole);
        Ok(true)
    }

    /// Writes all that waits, and maps it.
    pub(super) fn place_fresh(&self) -> Result<()> {
        let _placing = lock(&self.placing);
        // From the look-up on: a block that is mapped stays whose it is.
        let gate = read(&self.gate);
        let (waiting, places) = {
            let mut state = write(&self.state);
            if state.fresh.is_empty() {
                return Ok(());
            }
            let waiting: Vec<(u64, Bytes)> =
                state.fresh.iter().map(|(block, bytes)| (*block, Arc::clone(bytes))).collect();
            let places = self.places_for(&mut state, &waiting)?;
            (waiting, places)
        };
        let written = self.write_waiting(&waiting, &places);
        drop(gate);
        self.map_placed(&waiting, &places, written.is_ok())?;
        written
    }

    /// Where blocks that wait go: new ones, which count 1, or what is mapped already (one was written again while its
    /// first version was on its way), which counts 0.
    fn places_for(&self, state: &mut State, waiting: &[(u64, Bytes)]) -> Result<Vec<Piece>> {
        let place_of = |(block, _): &(u64, Bytes)| {
            let mapped = self.mapped(state, *block..*block + 1)?;
            Ok(Piece {
                first: *block,
                count: u64::from(mapped.is_empty()),
                block: mapped.first().and_then(|piece| piece.block),
            })
        };
        let mut places: Vec<Piece> = waiting.iter().map(place_of).collect::<Result<_>>()?;
        let new = places.iter_mut().filter(|place| place.count == 1);
        let (mut first, mut left, mut wanted) = (0, 0, waiting.len() as u64);
        for place in new {
            if left == 0 {
                // As many as wait are set aside, so there is one.
                (first, left) = state.space.take(wanted).ok_or(Error::NoSpace)?;
            }
            place.block = Some(first);
            (first, left, wanted) = (first + 1, left - 1, wanted - 1);
        }
        if left > 0 {
            state.space.give_back(first, left);
        }
        Ok(places)
    }

    /// Writes blocks, those that lie side by side with one call.
    fn write_waiting(&self, waiting: &[(u64, Bytes)], places: &[Piece]) -> Result<()> {
        let mut at_index = 0;
        while let Some(first) = places.get(at_index) {
            let start = first.block.unwrap_or(0);
            let follows = |(offset, piece): &(u64, &Piece)| piece.block == Some(start + offset);
            let run = (0u64..).zip(places.iter().skip(at_index)).take_while(follows).count();
            let mut buffer = AlignedBuffer::new(length_of(run as u64));
            let bytes = waiting.iter().skip(at_index).take(run);
            for (place, (_, bytes)) in buffer.chunks_mut(BLOCK_BYTES).zip(bytes) {
                place.copy_from_slice(bytes);
            }
            let piece = Piece { first: 0, count: run as u64, block: Some(start) };
            self.device.write_at(self.place(piece), &buffer).map_err(at("write the device"))?;
            at_index += run;
        }
        Ok(())
    }

    /// Maps what was written, but for what was trimmed meanwhile. What was written again waits on.
    fn map_placed(&self, waiting: &[(u64, Bytes)], places: &[Piece], is_written: bool) -> Result<()> {
        let mut state = write(&self.state);
        let mut result = Ok(());
        for ((block, bytes), place) in waiting.iter().zip(places) {
            let (is_new, now, at) = (place.count == 1, state.fresh.get(block).cloned(), place.block.unwrap_or(0));
            let mut is_mapped = !is_new;
            if is_new && is_written && result.is_ok() && now.is_some() {
                result = self.change(&mut state, vec![Entry::Map { first: *block, block: at, count: 1 }]);
                is_mapped = result.is_ok();
            }
            if is_new && !is_mapped {
                state.space.give_back(at, 1);
            }
            if is_mapped && is_written && now.is_some_and(|now| Arc::ptr_eq(&now, bytes)) {
                state.fresh.remove(block);
            }
        }
        result
    }
}

fn with_part(mut whole: Vec<u8>, from_byte: usize, bytes: &[u8]) -> Result<Bytes> {
    let place = whole.get_mut(from_byte..from_byte + bytes.len()).ok_or(Error::Beyond)?;
    place.copy_from_slice(bytes);
    Ok(whole.into())
}
