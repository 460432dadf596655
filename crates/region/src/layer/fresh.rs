//! Single blocks that were written where nothing was mapped: they wait in memory for a sync, which writes many of them
//! side by side with one call.
//!
//! Invariant: a block that waits has a free block of the device set aside, or is mapped since it began to wait, and
//! stays mapped there. What waits is newer than what is mapped.

use super::{Layer, State, length_of, push_map, read, write};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result, at};
use crate::overlay::Piece;
use crate::record::Entry;
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
}

impl Layer {
    /// Whether blocks of a range wait.
    pub(super) fn has_fresh(&self, range: &Range<u64>) -> bool {
        read(&self.state).fresh.range(range.clone()).next().is_some()
    }

    /// Makes a block with which an object begins: nothing was ever mapped there, and nobody else writes. What the
    /// bytes do not fill is zeros.
    pub(crate) fn make_block(&self, address: u64, bytes: &[u8]) -> Result<()> {
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
        if state.space.free() <= state.fresh.len() as u64 + self.kept_free_of(block) {
            return Err(Error::NoSpace);
        }
        state.fresh.insert(block, Waiting { bytes, place: None });
        Ok(state.fresh.len())
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
            let Some(before) = state.fresh.get_mut(&block) else { return Ok(false) };
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

    /// The same, for whoever has the buffer.
    pub(super) fn place_fresh_with(&self, buffer: &mut AlignedBuffer) -> Result<()> {
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
            (waiting, places)
        };
        let written = self.write_waiting(&waiting, &places, buffer);
        drop(gate);
        self.map_placed(&waiting, &places, written.is_ok());
        written
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

    /// Writes blocks, those that lie side by side with one call.
    fn write_waiting(&self, waiting: &[(u64, Waiting)], places: &[u64], buffer: &mut AlignedBuffer) -> Result<()> {
        if buffer.len() < length_of(waiting.len() as u64) {
            *buffer = AlignedBuffer::new(length_of(waiting.len() as u64));
        }
        let mut at_index = 0;
        while let Some(&start) = places.get(at_index) {
            let follows = |(offset, place): &(u64, &u64)| **place == start + offset;
            let run = (0u64..).zip(places.iter().skip(at_index)).take_while(follows).count();
            let bytes = waiting.iter().skip(at_index).take(run);
            for (place, (_, waiting)) in buffer.chunks_mut(BLOCK_BYTES).zip(bytes) {
                let (used, rest) = place.split_at_mut(waiting.bytes.len().min(BLOCK_BYTES));
                used.copy_from_slice(&waiting.bytes);
                rest.fill(0);
            }
            let piece = Piece { first: 0, count: run as u64, block: Some(start) };
            let written = buffer.get(..length_of(run as u64)).unwrap_or_default();
            self.device.write_at(self.place(piece), written).map_err(at("write the device"))?;
            at_index += run;
        }
        Ok(())
    }

    /// Maps what was written, but for what was trimmed meanwhile. What was written again waits on.
    fn map_placed(&self, waiting: &[(u64, Waiting)], places: &[u64], is_written: bool) {
        let mut state = write(&self.state);
        let mut entries = Vec::with_capacity(waiting.len());
        for ((block, before), &place) in waiting.iter().zip(places) {
            let (is_new, now) = (before.place.is_none(), state.fresh.get_mut(block));
            let Some(now) = now.filter(|_| is_written) else {
                if is_new {
                    state.space.give_back(place, 1);
                }
                continue;
            };
            if is_new {
                push_map(&mut entries, Entry::Map { first: *block, block: place, count: 1 });
            }
            if Arc::ptr_eq(&now.bytes, &before.bytes) {
                state.fresh.remove(block);
            } else if is_new {
                // One that was mapped before knows its place; if it does not, it was trimmed, and waits anew.
                now.place = Some(place);
            }
        }
        Self::map_new(&mut state, entries);
    }
}

/// A block with a part of it as it is now.
fn with_part(mut whole: Vec<u8>, from_byte: usize, bytes: &[u8]) -> Result<Bytes> {
    whole.resize(BLOCK_BYTES, 0);
    let place = whole.get_mut(from_byte..from_byte + bytes.len()).ok_or(Error::Beyond)?;
    place.copy_from_slice(bytes);
    Ok(whole.into())
}
