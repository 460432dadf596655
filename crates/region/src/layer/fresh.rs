//! Single blocks that were written where nothing was mapped: they wait in memory for a sync, or until they are many.
//! Then they are written side by side with one call, a batch by each of several threads.
//!
//! Invariant: a block that waits has a free block of the device set aside, or is mapped since it began to wait, and
//! stays mapped there. What waits is newer than what is mapped.
//!
//! One that has a checksum cannot be written over what is mapped: while it is on its way nobody writes it again.

use super::waiting::{Bytes, Waiting};
use super::{Changes, Layer, State, length_of, read, write};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result, at};
use crate::overlay::Piece;
use crate::sums::NO_SUM;
use crate::{BLOCK, BLOCK_BYTES, as_index, lock};
use std::ops::Range;
use std::sync::Mutex;

/// With so many blocks that wait and are in no batch somebody writes them; with so many times as many that wait at all,
/// everybody does.
const BATCH_BLOCKS: usize = 1024;
const WAITING_MAX: usize = 4 * BATCH_BLOCKS;
/// Blocks that are mapped before others get their turn.
const MAPPED_AT_ONCE: usize = 128;
/// Batches at a time.
const BATCHES: usize = 4;

/// Where blocks of a batch are put together, one for each batch at a time. Held by whoever writes one.
pub(super) type Placing = [Mutex<AlignedBuffer>; BATCHES];

/// Buffers that have no memory yet.
pub(super) fn placing() -> Placing {
    std::array::from_fn(|_| Mutex::new(AlignedBuffer::new(0)))
}

impl Layer {
    /// Whether blocks of a range wait.
    pub(super) fn has_fresh(&self, range: &Range<u64>) -> bool {
        self.bring_gathered(range);
        read(&self.state).fresh.touches(range)
    }

    /// Makes a block with which an object begins: nothing was ever mapped there, and nobody else writes. What the
    /// bytes do not fill is zeros.
    pub(crate) fn make_block(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let gather = || self.gather(address / BLOCK, bytes.into());
        let is_much = match gather() {
            Err(Error::NoSpace) if self.free_some()? => gather(),
            gathered => gathered,
        };
        let kept = if is_much? { self.keep_bounds() } else { Ok(()) };
        // Who is told of a failure does not expect to have it.
        kept.inspect_err(|_| drop(self.trim(address..address + BLOCK)))
    }

    fn begin_to_wait(&self, state: &mut State, block: u64, bytes: Bytes) -> Result<()> {
        if state.unclaimed() <= self.kept_free_of(block, false) {
            return Err(Error::NoSpace);
        }
        state.fresh.insert(block, bytes);
        Ok(())
    }

    /// Writes a part of one block, if it waits, or nothing is mapped there. `false`: something is, or will be in a
    /// moment. The caller has the block's stripe: nobody else begins to wait there.
    pub(super) fn write_fresh(&self, block: u64, from_byte: usize, bytes: &[u8]) -> Result<bool> {
        self.bring_gathered(&(block..block + 1));
        let is_waiting = {
            let state = read(&self.state);
            let is_waiting = state.fresh.contains(block);
            if !is_waiting && !self.mapped(&state, block..block + 1)?.is_empty() {
                return Ok(false);
            }
            is_waiting
        };
        if is_waiting {
            let mut state = write(&self.state);
            let may_change = |waiting: &&mut Waiting| block >= self.sums_end() || waiting.batch.is_none();
            // It may have been placed meanwhile.
            let Some(before) = state.fresh.get_mut(block).filter(may_change) else { return Ok(false) };
            before.bytes = with_part(before.bytes.to_vec(), from_byte, bytes)?;
            return Ok(true);
        }
        let whole = if bytes.len() == BLOCK_BYTES { bytes.into() } else { with_part(Vec::new(), from_byte, bytes)? };
        self.begin_to_wait(&mut write(&self.state), block, whole)?;
        Ok(true)
    }

    /// Writes all that waits, and maps it.
    pub(super) fn place_fresh(&self) -> Result<()> {
        // With all of them, nobody else is writing some.
        let mut all: Vec<_> = self.placing.iter().map(lock).collect();
        self.bring_all_gathered();
        all.first_mut().map_or(Ok(()), |buffer| self.place_batch(buffer))
    }

    /// Has some of what waits written, if it is much.
    pub(super) fn keep_few_waiting(&self) -> Result<()> {
        let (idle, all) = {
            let state = read(&self.state);
            (state.fresh.idle(), state.fresh.len())
        };
        if idle < BATCH_BLOCKS && all < WAITING_MAX {
            return Ok(());
        }
        if let Some(mut buffer) = self.placing.iter().find_map(|buffer| buffer.try_lock().ok()) {
            return self.place_batch(&mut buffer);
        }
        match self.placing.get(all % BATCHES) {
            Some(buffer) if all >= WAITING_MAX => self.place_batch(&mut lock(buffer)),
            _ => Ok(()),
        }
    }

    /// Writes what is in no batch.
    pub(super) fn place_batch(&self, buffer: &mut AlignedBuffer) -> Result<()> {
        // From the look-up on: a block that is mapped stays whose it is.
        let gate = read(&self.gate);
        let (number, batch, places) = {
            let mut state = write(&self.state);
            let (number, batch) = state.fresh.begin();
            if batch.is_empty() {
                return Ok(());
            }
            let places = Self::places_for(&mut state, &batch);
            if places.is_err() {
                for (block, _) in &batch {
                    state.fresh.end(*block, number, None);
                }
            }
            (number, batch, places?)
        };
        let blocks = batch.iter().map(|(block, waiting)| (*block, &waiting.bytes));
        let written = self.write_side_by_side(blocks, &places, buffer);
        drop(gate);
        self.map_placed(number, &batch, &places, written.as_deref().ok());
        written.map(drop)
    }

    /// Where blocks that wait go: new ones, or what is mapped already.
    fn places_for(state: &mut State, batch: &[(u64, Waiting)]) -> Result<Vec<u64>> {
        let new = batch.iter().filter(|(_, waiting)| waiting.place.is_none()).count();
        let mut new = Self::take_set_aside(state, new as u64)?.into_iter();
        Ok(batch.iter().filter_map(|(_, waiting)| waiting.place.or_else(|| new.next())).collect())
    }

    /// Takes blocks that are set aside, side by side as far as they are.
    pub(super) fn take_set_aside(state: &mut State, wanted: u64) -> Result<Vec<u64>> {
        let mut places = Vec::with_capacity(as_index(wanted));
        while (places.len() as u64) < wanted {
            let Some((first, count)) = state.space.take(wanted - places.len() as u64) else {
                places.iter().for_each(|place| state.space.give_back(*place, 1));
                return Err(Error::NoSpace);
            };
            places.extend(first..first + count);
        }
        Ok(places)
    }

    /// Writes blocks, those that lie side by side with one call. Their checksums. What there is less of a block is
    /// zeros. `buffer`: where they are put together.
    pub(super) fn write_side_by_side<'a>(
        &self,
        blocks: impl ExactSizeIterator<Item = (u64, &'a Bytes)>,
        places: &[u64],
        buffer: &mut AlignedBuffer,
    ) -> Result<Vec<u32>> {
        let most = blocks.len().min(BATCH_BLOCKS);
        if buffer.len() < most * BLOCK_BYTES {
            *buffer = AlignedBuffer::new(most * BLOCK_BYTES);
        }
        let (mut blocks, mut at_index, mut sums) = (blocks, 0, Vec::with_capacity(places.len()));
        while let Some(&start) = places.get(at_index) {
            let follows = |(offset, place): &(u64, &u64)| **place == start + offset;
            let run = (0u64..).zip(places.iter().skip(at_index)).take(most).take_while(follows).count();
            for (place, (block, bytes)) in buffer.chunks_mut(BLOCK_BYTES).take(run).zip(blocks.by_ref()) {
                let (used, rest) = place.split_at_mut(bytes.len().min(BLOCK_BYTES));
                used.copy_from_slice(bytes);
                rest.fill(0);
                sums.push(self.sum_for(block, place));
            }
            let piece = Piece { first: 0, count: run as u64, block: Some(start) };
            let written = &buffer[..length_of(run as u64)];
            self.device.write_at(self.place(piece), written).map_err(at("write the device"))?;
            at_index += run;
        }
        Ok(sums)
    }

    /// Maps what was written, but for what was trimmed meanwhile. What was written again waits on. `sums`: what
    /// [`Layer::write_side_by_side`] has told, if it did.
    fn map_placed(&self, number: u64, batch: &[(u64, Waiting)], places: &[u64], sums: Option<&[u32]>) {
        let mut all = batch.iter().zip(places).enumerate().peekable();
        while all.peek().is_some() {
            let mut state = write(&self.state);
            let mut changes = Changes::default();
            for (index, ((block, before), &place)) in all.by_ref().take(MAPPED_AT_ONCE) {
                let sum = sums.and_then(|sums| sums.get(index).copied());
                let is_new = before.place.is_none();
                let is_there = state.fresh.end(*block, number, sum.map(|_| (&before.bytes, place)));
                match sum {
                    Some(sum) if is_there => {
                        if is_new {
                            changes.map(*block, place, 1);
                        }
                        if sum != NO_SUM {
                            changes.sums(place, std::iter::once(sum));
                        }
                    }
                    _ if is_new => state.space.give_back(place, 1),
                    _ => {}
                }
            }
            self.map_new(&mut state, changes.into_entries());
        }
    }
}

/// A block with a part of it as it is now.
fn with_part(mut whole: Vec<u8>, from_byte: usize, bytes: &[u8]) -> Result<Bytes> {
    whole.resize(BLOCK_BYTES, 0);
    let place = whole.get_mut(from_byte..from_byte + bytes.len()).ok_or(Error::Beyond)?;
    place.copy_from_slice(bytes);
    Ok(whole.into())
}
