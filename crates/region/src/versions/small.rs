//! Puts small commits together. Each has a block of its own beside its data, as long as all of these are there; after
//! that it goes by itself (`clean.rs`).
//!
//! What it costs: a block is moved once, or twice where few of the last are left over; and for each block that becomes
//! free [`SMALL_MAX`] are moved, and some, at most.
//!
//! What is moved takes room before it gives any. So it goes in parts, for each of which it is seen what is free; after
//! a part the index has it, and the former places are free.

use super::batch::Batch;
use super::clean::Pace;
use super::compact::{PLACED_MAX, Placed};
use super::index::{Index, Row};
use super::object::{Inner, read};
use crate::error::{Error, Result};
use crate::{BLOCK, as_index};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

/// Blocks of data of a small commit, at most.
const SMALL_MAX: u64 = 16;
/// As few commits stay as they are.
const COMMITS_MIN: usize = 8;
/// Blocks that are moved before the former places are free: at least, so that they are no small commit, and at most.
const PART: RangeInclusive<u64> = 2 * SMALL_MAX..=16 << 10;
/// The part of the free blocks that they take, at most.
const FREE_PART: u64 = 4;

impl Batch<'_> {
    /// Puts the small commits together, of the objects that need it, as far as there is room. The others need it still.
    pub(super) fn put_small_together(&mut self, pace: &mut Pace) -> Result<()> {
        let (mut moved, mut done, mut failed) = (0, Vec::new(), None);
        let needs = |object: &&Inner| object.needs_together.load(Ordering::Relaxed);
        for object in self.objects.clone().into_iter().filter(needs) {
            match self.put_small_of(object, &mut moved, pace) {
                Err(Error::NoSpace) => {}
                // Or its oldest commits are to be moved; or it was removed meanwhile.
                Ok(()) | Err(Error::RingFull(_) | Error::NoObject) => done.push(object),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        // Also when not all of it could be moved: the next move goes by what the index has.
        match self.settle_part(&mut moved, pace) {
            Err(Error::NoSpace) => {}
            Err(error) => failed = failed.or(Some(error)),
            Ok(()) => done.iter().for_each(|object| object.needs_together.store(false, Ordering::Relaxed)),
        }
        failed.map_or(Ok(()), Err)
    }

    /// `moved`: blocks whose former places are not free yet.
    fn put_small_of(&mut self, object: &Inner, moved: &mut u64, pace: &mut Pace) -> Result<()> {
        // Behind it there may be what was moved.
        let end = self.index.state(object.id)?.map_or(0, |state| state.sequence);
        let mut from = 0;
        loop {
            let small = self.index.small(object.id, from..=end, SMALL_MAX, PLACED_MAX)?;
            let Some((last, _)) = small.last() else { return Ok(()) };
            from = last + 1;
            let placed = object.small_placed(self.index, small)?;
            let mut rest = &placed[..];
            while !rest.is_empty() {
                if *moved > 0 && *moved >= object.part_max() {
                    self.settle_part(moved, pace)?;
                }
                let count = object.part_max().min(rest.len() as u64);
                let head = read(&object.state).head;
                // Where the ring itself is short, its oldest commits are moved. A commit has two blocks at least.
                if head.position - head.tail + 2 * count > object.ring / 2 {
                    return Ok(());
                }
                if count < (rest.len() as u64).min(*PART.start()) {
                    return Err(Error::NoSpace);
                }
                let (part, behind) = rest.split_at(as_index(count));
                // Also of what fails on the way.
                *moved += count;
                self.cleaned.moved_blocks += object.move_blocks(part.to_vec())?;
                rest = behind;
            }
        }
    }

    /// Has the former places of what was moved be free.
    fn settle_part(&mut self, moved: &mut u64, pace: &mut Pace) -> Result<()> {
        if *moved > 0 {
            self.settle_moved()?;
            *moved = 0;
            self.move_tails()?;
            pace.rest();
        }
        Ok(())
    }
}

impl Inner {
    /// Blocks that can be moved now.
    fn part_max(&self) -> u64 {
        (self.shared.layer.usage().free / BLOCK / FREE_PART).min(*PART.end())
    }

    /// The blocks of small commits, in the order of the object. None, if that is too few to be moved.
    fn small_placed(&self, index: &Index, mut small: Vec<(u64, Row)>) -> Result<Vec<Placed>> {
        if small.len() < COMMITS_MIN {
            // Nothing of them is to be read.
            return Ok(Vec::new());
        }
        // One that is damaged, or cannot be read, stays as it is; a scrub tells of it.
        small.retain(|(sequence, row)| self.check_whole(*sequence, row).is_ok());
        let mut placed = self.placed_in(index, &small)?;
        if small.len() < COMMITS_MIN || placed.len() as u64 <= SMALL_MAX {
            placed.clear();
        }
        placed.sort_unstable_by_key(|one| (one.block, one.version));
        Ok(placed)
    }
}
