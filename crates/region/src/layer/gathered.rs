//! First blocks of objects. Threads gather them in several places, and each writes what it has gathered side by side
//! with one call, so that threads which make objects seldom want the same lock.
//!
//! First blocks that are safe already, where no record maps them ([`super::ready`]), are gathered, too: they are left
//! to be mapped.
//!
//! Invariant: whoever looks at a block has what was gathered at its place brought to those that wait ([`super::fresh`])
//! before, or mapped. Space for what is gathered, and for some more of each place, is set aside.

use super::waiting::Bytes;
use super::{Changes, Layer, State, write};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::{BLOCK, as_index, lock};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Blocks that a place gathers; fewer where less than so many times as many are free.
const GATHERED: u64 = 256;
const PART_OF_FREE: u64 = 64;
/// So many are worth a call of their own.
const WORTH: usize = 64;
const PLACES: usize = 64;
/// Regions that share a place, as a power of two: identifiers that a thread has at hand lie side by side.
const REGIONS_SHIFT: u8 = 10;

/// See the module.
pub(super) struct Gathered {
    places: Vec<Mutex<Place>>,
    /// Blocks in all places: those to be written, and those to be mapped.
    count: AtomicUsize,
    written: AtomicUsize,
}

/// A first block that is on the device.
pub(super) struct Written {
    pub block: u64,
    pub place: u64,
    pub sum: u32,
}

pub(super) struct Place {
    blocks: Vec<(u64, Bytes)>,
    written: Vec<Written>,
    /// How many more have space set aside.
    room: u64,
    /// Where they are put together.
    buffer: AlignedBuffer,
}

impl Gathered {
    pub fn new() -> Self {
        let empty = || Place { blocks: Vec::new(), written: Vec::new(), room: 0, buffer: AlignedBuffer::new(0) };
        let places = (0..PLACES).map(|_| Mutex::new(empty())).collect();
        Self { places, count: AtomicUsize::new(0), written: AtomicUsize::new(0) }
    }

    /// How many blocks were gathered, and are not written.
    pub fn blocks(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl State {
    /// Blocks of the device that are free, and for nobody.
    pub fn unclaimed(&self) -> u64 {
        self.space.free().saturating_sub(self.fresh.len() as u64 + self.gathered)
    }

    /// Sets space aside for some blocks, as long as more than `kept` are free.
    fn make_room(&mut self, place: &mut Place, kept: u64) -> Result<()> {
        let free = self.unclaimed().saturating_sub(kept);
        place.room = (free / PART_OF_FREE).clamp(free.min(1), GATHERED);
        self.gathered += place.room;
        if place.room == 0 { Err(Error::NoSpace) } else { Ok(()) }
    }
}

impl Layer {
    /// Writes a block where nothing was ever mapped, and nobody else writes. Whether others were written with it.
    pub(super) fn gather(&self, block: u64, bytes: Bytes) -> Result<bool> {
        let Some(place) = self.gathered.places.get(self.place_of(block)) else { return Err(Error::Beyond) };
        let mut place = lock(place);
        let is_full = place.room == 0;
        if is_full {
            if place.blocks.len() >= WORTH {
                self.write_gathered(&mut place)?;
            }
            let mut state = write(&self.state);
            self.take_in(&mut state, &mut place);
            state.make_room(&mut place, self.kept_free_of(block, false))?;
        }
        place.room -= 1;
        place.blocks.push((block, bytes));
        self.gathered.count.fetch_add(1, Ordering::Relaxed);
        Ok(is_full)
    }

    /// Takes note of a block where nothing was ever mapped. `true`: of others, too, and they are mapped now.
    pub(super) fn gather_written(&self, written: Written) -> Result<bool> {
        let Some(place) = self.gathered.places.get(self.place_of(written.block)) else { return Err(Error::Beyond) };
        let mut place = lock(place);
        place.written.push(written);
        self.gathered.written.fetch_add(1, Ordering::Relaxed);
        let is_full = place.written.len() as u64 >= GATHERED;
        if is_full {
            self.map_written(&mut write(&self.state), &mut place);
        }
        Ok(is_full)
    }

    fn map_written(&self, state: &mut State, place: &mut Place) {
        let mut changes = Changes::default();
        self.gathered.written.fetch_sub(place.written.len(), Ordering::Relaxed);
        for Written { block, place, sum } in place.written.drain(..) {
            changes.map_one(block, place, sum);
        }
        self.map_new(state, changes.into_entries());
    }

    /// Writes and maps what a place has gathered. Nobody else knows of these blocks, so nobody trims them meanwhile.
    fn write_gathered(&self, place: &mut Place) -> Result<()> {
        let places = Self::take_set_aside(&mut write(&self.state), place.blocks.len() as u64)?;
        let blocks = place.blocks.iter().map(|(block, bytes)| (*block, bytes));
        let written = self.write_side_by_side(blocks, &places, &mut place.buffer);
        let mut state = write(&self.state);
        match written {
            Ok(sums) => {
                let mut changes = Changes::default();
                for (((block, _), &at_block), &sum) in place.blocks.iter().zip(&places).zip(&sums) {
                    changes.map_one(*block, at_block, sum);
                }
                self.map_new(&mut state, changes.into_entries());
                state.gathered -= place.blocks.len() as u64;
                self.gathered.count.fetch_sub(place.blocks.len(), Ordering::Relaxed);
                place.blocks.clear();
                Ok(())
            }
            Err(error) => {
                places.iter().for_each(|place| state.space.give_back(*place, 1));
                Err(error)
            }
        }
    }

    fn take_in(&self, state: &mut State, place: &mut Place) {
        self.gathered.count.fetch_sub(place.blocks.len(), Ordering::Relaxed);
        state.gathered -= place.blocks.len() as u64 + place.room;
        place.room = 0;
        self.map_written(state, place);
        place.blocks.drain(..).for_each(|(block, bytes)| state.fresh.insert(block, bytes));
    }

    /// Has what was gathered of a range of blocks wait with the others.
    pub(super) fn bring_gathered(&self, blocks: &Range<u64>) {
        // Who knows of a block that was gathered sees that it was counted.
        if self.gathered.blocks() + self.gathered.written.load(Ordering::Relaxed) == 0 || blocks.is_empty() {
            return;
        }
        let (first, last) = (self.group_of(blocks.start), self.group_of(blocks.end - 1));
        if first == last {
            self.bring(self.gathered.places.get(self.place_of(blocks.start)));
        } else {
            self.bring(&self.gathered.places);
        }
    }

    /// The same of all blocks. Nothing stays set aside for more.
    pub(super) fn bring_all_gathered(&self) {
        self.bring(&self.gathered.places);
    }

    /// Brings all, and lets nobody gather more as long as what this returns is there.
    pub(super) fn stop_gathering(&self) -> Vec<MutexGuard<'_, Place>> {
        let stop = |place| {
            let mut place = lock(place);
            self.take_in(&mut write(&self.state), &mut place);
            place
        };
        self.gathered.places.iter().map(stop).collect()
    }

    fn bring<'a>(&self, places: impl IntoIterator<Item = &'a Mutex<Place>>) {
        for place in places {
            let mut place = lock(place);
            if !place.blocks.is_empty() || !place.written.is_empty() || place.room > 0 {
                self.take_in(&mut write(&self.state), &mut place);
            }
        }
    }

    fn group_of(&self, block: u64) -> u64 {
        (block * BLOCK) >> self.geometry.region_shift >> REGIONS_SHIFT
    }

    fn place_of(&self, block: u64) -> usize {
        as_index(self.group_of(block)) % PLACES
    }
}
