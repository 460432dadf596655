//! Single blocks that were written where nothing was mapped: they wait in memory for a sync, which writes many of them
//! side by side with one call.
//!
//! Invariant: a block that waits has a free block of the device set aside, or is mapped since it began to wait, and
//! stays mapped there. What waits is newer than what is mapped.
//!
//! One that has a checksum cannot be written over what is mapped: while it is on its way nobody writes it again.

use super::{Changes, Layer, State, length_of, read, write};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result, at};
use crate::overlay::Piece;
use crate::sums::{NO_SUM, sum_of};
use crate::{BLOCK, BLOCK_BYTES, lock};
use std::ops::Range;
use std::sync::Arc;

/// With so many blocks that wait somebody writes them; with twice as many all wait for that.
pub(super) const FRESH_MAX: usize = 1024;

/// A block's bytes; where there are fewer, the rest is zeros.
pub(super) type Bytes = Arc<[u8]>;

/// A block that waits.
#[derive(Clone)]
pub(super) struct Waiting {
    pub bytes: Bytes,
    /// Where it is mapped, if it was written again while its first version was on its way.
    place: Option<u64>,
    /// Whether it is being written, or was in vain, and has a checksum.
    is_fixed: bool,
}

impl Layer {
    /// Whether blocks of a range wait.
    pub(super) fn has_fresh(&self, range: &Range<u64>) -> bool {
        read(&self.state).fresh.range(range.clone()).next().is_some()
    }

    /// Writes the begin of a block where nothing was ever mapped, and nobody else writes; the rest of it is zeros.
    pub(crate) fn write_first(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let begin = || self.begin_to_wait(&mut write(&self.state), address / BLOCK, bytes.into());
        let begun = match begin() {
            Err(Error::NoSpace) if read(&self.state).is_freeing() => {
                self.sync()?;
                begin()
            }
            begun => begun,
        };
        if begun? >= FRESH_MAX { self.keep_bounds() } else { Ok(()) }
    }

    /// How many wait now.
    fn begin_to_wait(&self, state: &mut State, block: u64, bytes: Bytes) -> Result<usize> {
        if state.space.free() <= state.fresh.len() as u64 + self.kept_free_of(block, false) {
            return Err(Error::NoSpace);
        }
        state.fresh.insert(block, Waiting { bytes, place: None, is_fixed: false });
        Ok(state.fresh.len())
    }

    /// Writes a part of one block, if it waits, or nothing is mapped there. `false`: something is, or will be in a
    /// moment. The caller has the block's stripe: nobody else begins to wait there.
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
            let Some(before) = state.fresh.get_mut(&block).filter(|before| !before.is_fixed) else { return Ok(false) };
            before.bytes = with_part(before.bytes.to_vec(), from_byte, bytes)?;
            return Ok(true);
        }
        let whole = if bytes.len() == BLOCK_BYTES { bytes.into() } else { with_part(Vec::new(), from_byte, bytes)? };
        self.begin_to_wait(&mut write(&self.state), block, whole)?;
        Ok(true)
    }

    /// Writes all that waits, and maps it.
    pub(super) fn place_fresh(&self) -> Result<()> {
        self.place_fresh_with(&mut lock(&self.placing))
    }

    /// The same, if nobody does it.
    pub(super) fn place_fresh_if_free(&self) -> Result<()> {
        match self.placing.try_lock() {
            Ok(mut placing) => self.place_fresh_with(&mut placing),
            Err(_) => Ok(()),
        }
    }

    fn place_fresh_with(&self, buffer: &mut AlignedBuffer) -> Result<()> {
        // From the look-up on: a block that is mapped stays whose it is.
        let gate = read(&self.gate);
        let (waiting, places) = {
            let mut state = write(&self.state);
            if state.fresh.is_empty() {
                return Ok(());
            }
            let waiting: Vec<(u64, Waiting)> =
                state.fresh.iter().map(|(block, waiting)| (*block, waiting.clone())).collect();
            let places = Self::places_for(&mut state, &waiting)?;
            let with_sum = state.fresh.range_mut(..self.sums_end());
            with_sum.for_each(|(_, waiting)| waiting.is_fixed = true);
            (waiting, places)
        };
        let written = self.write_waiting(&waiting, &places, buffer);
        drop(gate);
        self.map_placed(&waiting, &places, written.as_deref().ok());
        written.map(drop)
    }

    /// Where blocks that wait go: new ones, or what is mapped already.
    fn places_for(state: &mut State, waiting: &[(u64, Waiting)]) -> Result<Vec<u64>> {
        let (mut first, mut left, mut wanted) = (0, 0, waiting.len() as u64);
        let mut places = Vec::with_capacity(waiting.len());
        for (_, waiting) in waiting {
            wanted -= 1;
            if let Some(place) = waiting.place {
                places.push(place);
                continue;
            }
            if left == 0 {
                // As many as wait are set aside, so there is one.
                (first, left) = state.space.take(wanted + 1).ok_or(Error::NoSpace)?;
            }
            places.push(first);
            (first, left) = (first + 1, left - 1);
        }
        if left > 0 {
            state.space.give_back(first, left);
        }
        Ok(places)
    }

    /// Writes blocks, those that lie side by side with one call. Their checksums.
    fn write_waiting(
        &self,
        waiting: &[(u64, Waiting)],
        places: &[u64],
        buffer: &mut AlignedBuffer,
    ) -> Result<Vec<u32>> {
        if buffer.len() < length_of(waiting.len() as u64) {
            *buffer = AlignedBuffer::new(length_of(waiting.len() as u64));
        }
        let (mut at_index, mut sums) = (0, Vec::with_capacity(waiting.len()));
        while let Some(&start) = places.get(at_index) {
            let follows = |(offset, place): &(u64, &u64)| **place == start + offset;
            let run = (0u64..).zip(places.iter().skip(at_index)).take_while(follows).count();
            let bytes = waiting.iter().skip(at_index).take(run);
            for (place, (block, waiting)) in buffer.chunks_mut(BLOCK_BYTES).zip(bytes) {
                let (used, rest) = place.split_at_mut(waiting.bytes.len().min(BLOCK_BYTES));
                used.copy_from_slice(&waiting.bytes);
                rest.fill(0);
                sums.push(if *block < self.sums_end() { sum_of(place) } else { NO_SUM });
            }
            let piece = Piece { first: 0, count: run as u64, block: Some(start) };
            let written = buffer.get(..length_of(run as u64)).unwrap_or_default();
            self.device.write_at(self.place(piece), written).map_err(at("write the device"))?;
            at_index += run;
        }
        Ok(sums)
    }

    /// Maps what was written, but for what was trimmed meanwhile. What was written again waits on. `sums`: what
    /// [`Layer::write_waiting`] has told, if it did.
    fn map_placed(&self, waiting: &[(u64, Waiting)], places: &[u64], sums: Option<&[u32]>) {
        let mut state = write(&self.state);
        let mut changes = Changes::default();
        for (index, ((block, before), &place)) in waiting.iter().zip(places).enumerate() {
            let (is_new, now) = (before.place.is_none(), state.fresh.get_mut(block));
            let sum = sums.and_then(|sums| sums.get(index).copied());
            let (Some(now), Some(sum)) = (now, sum) else {
                if is_new {
                    state.space.give_back(place, 1);
                }
                continue;
            };
            let is_same = Arc::ptr_eq(&now.bytes, &before.bytes);
            if sum != NO_SUM && !is_same {
                // Trimmed, and written anew.
                state.space.give_back(place, 1);
                continue;
            }
            if is_new {
                changes.map(*block, place, 1);
            }
            if sum != NO_SUM {
                changes.sums(place, std::iter::once(sum));
            }
            if is_same {
                state.fresh.remove(block);
            } else if is_new {
                // One that was mapped before knows its place; if it does not, it was trimmed, and waits anew.
                now.place = Some(place);
            }
        }
        self.map_new(&mut state, changes.into_entries());
    }
}

/// A block with a part of it as it is now.
fn with_part(mut whole: Vec<u8>, from_byte: usize, bytes: &[u8]) -> Result<Bytes> {
    whole.resize(BLOCK_BYTES, 0);
    let place = whole.get_mut(from_byte..from_byte + bytes.len()).ok_or(Error::Beyond)?;
    place.copy_from_slice(bytes);
    Ok(whole.into())
}
