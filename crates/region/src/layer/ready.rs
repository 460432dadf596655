//! First blocks of objects that are safe with one write each.
//!
//! A record of the log says of a *run* of free blocks that objects may begin there. Whoever makes an object writes its
//! first block to the next one of the run, durably, with a **mark** in it: the run's random number and the block's own.
//! With that it is mapped; the record that says so, too, comes with others, at some sync. After a crash the blocks of
//! runs that no record maps are looked at, and those that have their mark are mapped.
//!
//! Invariants: a run is used as long as its record would be read after a crash. So a checkpoint ends it, and then maps
//! what was written until then; whoever had a block of it, and comes later, syncs. An object that is removed again was
//! mapped by a record before the one that unmaps it: what recovery finds was not removed. What is written over a marked
//! block has the same mark. No other data have it: nobody is told of the random number, and a copy elsewhere has the
//! wrong block's.

use super::gathered::Written;
use super::{Changes, Freed, Layer, State, length_of, write};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result, at};
use crate::object::marked;
use crate::overlay::Piece;
use crate::record::Entry;
use crate::{BLOCK, BLOCK_BYTES, OWN_START, lock, random};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Blocks of a run; fewer where less than so many times as many are free.
const RUN_BLOCKS: u64 = 1024;
const PART_OF_FREE: u64 = 64;
/// A run of fewer is not worth its record.
const WORTH: u64 = 16;

/// Free blocks that objects may begin in, side by side; they are taken one by one.
#[derive(Default)]
pub(super) struct Run {
    next: u64,
    left: u64,
    number: u64,
}

/// The run in use, the one whose record is on its way, and how many runs were ended before they were used up.
#[derive(Default)]
pub(super) struct Ready {
    run: Run,
    opening: Option<Run>,
    ended: u64,
}

/// A block of a run.
struct Place {
    block: u64,
    mark: u64,
    ended: u64,
}

impl Ready {
    /// Blocks that are nobody's yet.
    pub fn blocks(&self) -> u64 {
        self.run.left + self.opening.as_ref().map_or(0, |run| run.left)
    }

    fn take(&mut self) -> Option<Place> {
        self.run.left = self.run.left.checked_sub(1)?;
        let block = self.run.next;
        self.run.next += 1;
        Some(Place { block, mark: mark_of(self.run.number, block), ended: self.ended })
    }
}

/// Of one block only, so that it says nothing in another place.
fn mark_of(number: u64, block: u64) -> u64 {
    number.wrapping_add(block)
}

impl State {
    /// Nobody begins an object in the runs that are known. Whether that gives blocks back.
    pub fn end_runs(&mut self, ready: &Mutex<Ready>) -> bool {
        let runs = {
            let mut ready = lock(ready);
            ready.ended += 1;
            [Some(std::mem::take(&mut ready.run)), ready.opening.take()]
        };
        let left = runs.into_iter().flatten().filter(|run| run.left > 0);
        left.map(|run| self.space.give_back(run.next, run.left)).count() > 0
    }
}

impl Layer {
    /// Makes a block with which an object begins, as [`Layer::make_block`] does, but safe when this returns, mostly by
    /// one durable write. `bytes`: what is in it with a mark, which nobody else is to know, and which stays in it as
    /// long as the object is there.
    pub(crate) fn make_marked_block(&self, address: u64, bytes: impl Fn(u64) -> Vec<u8>) -> Result<u64> {
        let made = || -> Result<u64> {
            if self.geometry.has_runs
                && let Some(mark) = self.make_in_run(address / BLOCK, &bytes)?
            {
                return Ok(mark);
            }
            self.make_block(address, &bytes(0))?;
            self.sync().map(|()| 0)
        };
        // Who is told of a failure does not expect to have it.
        made().inspect_err(|_| drop(self.trim(address..address + BLOCK)))
    }

    /// The same, in a run: the mark. `None`: there is no run to be had.
    fn make_in_run(&self, block: u64, bytes: impl Fn(u64) -> Vec<u8>) -> Result<Option<u64>> {
        loop {
            // Nothing of the address space is taken away as a whole meanwhile.
            let stripes = self.stripes.share(&(block..block + 1));
            let place = lock(&self.ready).take();
            let Some(place) = place else {
                drop(stripes);
                if self.open_run(block)? {
                    continue;
                }
                return Ok(None);
            };
            let is_much = self.write_marked(block, &place, &bytes(place.mark))?;
            drop(stripes);
            if lock(&self.ready).ended != place.ended {
                self.sync()?;
            }
            if is_much {
                self.keep_bounds()?;
            }
            return Ok(Some(place.mark));
        }
    }

    /// Whether others were mapped with it.
    fn write_marked(&self, block: u64, place: &Place, bytes: &[u8]) -> Result<bool> {
        let mut whole = AlignedBuffer::new(BLOCK_BYTES);
        let used = whole.get_mut(..bytes.len()).ok_or(Error::Beyond)?;
        used.copy_from_slice(bytes);
        let piece = Piece { first: block, count: 1, block: Some(place.block) };
        let written = self.device.write_durable_at(self.place(piece), &whole).map_err(at("write the device"));
        let Err(error) = written else {
            let sum = self.sum_for(block, &whole);
            return self.gather_written(Written { block, place: place.block, sum });
        };
        // The device may have it all the same: records that map and unmap it say that nobody was told.
        let mut state = write(&self.state);
        let map = Entry::Map { first: block, block: place.block, count: 1 };
        let unmap = Entry::Unmap { first: block, count: 1 };
        state.freed.push(Freed { block: place.block, count: 1, is_discarded: true });
        state.add_pending(vec![map, unmap]);
        Err(error)
    }

    /// Has a run for objects to begin in. `false`: there is too little room, or other things always come between.
    fn open_run(&self, block: u64) -> Result<bool> {
        let _alone = lock(&self.opening_run);
        for _ in 0..3 {
            {
                let mut state = write(&self.state);
                if lock(&self.ready).run.left > 0 {
                    return Ok(true);
                }
                let room = state.unclaimed().saturating_sub(self.kept_free_of(block, false));
                let wanted = (room / PART_OF_FREE).min(RUN_BLOCKS);
                if wanted < WORTH {
                    return Ok(false);
                }
                let number = u64::from_le_bytes(random()?);
                let (next, left) = state.space.take(wanted).ok_or(Error::NoSpace)?;
                lock(&self.ready).opening = Some(Run { next, left, number });
                let count = u32::try_from(left).expect("a run is short");
                self.map_new(&mut state, vec![Entry::Ready { block: next, count, number }]);
            }
            if let Err(error) = self.sync() {
                write(&self.state).end_runs(&self.ready);
                return Err(error);
            }
            let mut ready = lock(&self.ready);
            // A checkpoint in place of a record, or after it, has ended it.
            if let Some(run) = ready.opening.take() {
                ready.run = run;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives back what is set aside for objects that may come, and syncs, if either may make room.
    pub(super) fn free_some(&self) -> Result<bool> {
        let is_freeing = {
            let mut state = write(&self.state);
            state.end_runs(&self.ready) || state.is_freeing()
        };
        if is_freeing { self.sync().map(|()| true) } else { Ok(false) }
    }
}

/// At recovery: blocks of runs that no record maps, and their marks.
#[derive(Default)]
pub(super) struct Unmapped(BTreeMap<u64, u64>);

impl Unmapped {
    /// A record says of blocks that objects may begin there.
    pub fn add(&mut self, block: u64, count: u32, number: u64) -> Result<()> {
        if u64::from(count) > RUN_BLOCKS {
            return Err(Error::Damaged(format!("a record makes {count} blocks ready at once")));
        }
        self.0.extend((block..block + u64::from(count)).map(|block| (block, mark_of(number, block))));
        Ok(())
    }

    /// A record maps these.
    pub fn remove(&mut self, block: u64, count: u32) {
        let mapped: Vec<u64> = self.0.range(block..block + u64::from(count)).map(|(block, _)| *block).collect();
        mapped.iter().for_each(|block| {
            self.0.remove(block);
        });
    }
}

impl Layer {
    /// At recovery: maps the blocks that have their mark.
    pub(super) fn map_marked(&self, state: &mut State, unmapped: &Unmapped) -> Result<()> {
        let mut buffer = AlignedBuffer::new(length_of(RUN_BLOCKS));
        let mut all = unmapped.0.iter().map(|(block, mark)| (*block, *mark)).peekable();
        while let Some((first, mark)) = all.next() {
            let mut marks = vec![mark];
            while let Some((_, mark)) = all.next_if(|(block, _)| *block == first + marks.len() as u64)
                && (marks.len() as u64) < RUN_BLOCKS
            {
                marks.push(mark);
            }
            let piece = Piece { first: 0, count: marks.len() as u64, block: Some(first) };
            let some = &mut buffer[..length_of(piece.count)];
            self.device.read_at(self.place(piece), some).map_err(at("read blocks in which objects may begin"))?;
            for ((block, mark), bytes) in (first..).zip(&marks).zip(some.chunks(BLOCK_BYTES)) {
                if let Some(id) = marked(bytes, *mark) {
                    self.map_found(state, id, block, bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Maps the first block of an object. The record that says so comes before all that is said of it later.
    fn map_found(&self, state: &mut State, id: u64, block: u64, bytes: &[u8]) -> Result<()> {
        let shift = self.geometry.region_shift;
        if id == 0 || id >= OWN_START >> shift {
            return Ok(());
        }
        let first = (id << shift) / BLOCK;
        if !self.mapped(state, first..first + 1)?.is_empty() {
            return Err(Error::Damaged(format!("object {id} begins in two places")));
        }
        let mut changes = Changes::default();
        changes.map_one(first, block, self.sum_for(first, bytes));
        state.space.restore(block, 1, true);
        self.map_new(state, changes.into_entries());
        Ok(())
    }
}
