//! Puts small commits together. Each has a block of its own beside its data, as long as all of these are there; after
//! that it goes by itself (`clean.rs`).
//!
//! What it costs: a block is moved once, or twice where few of the last are left over; and for each block that becomes
//! free [`SMALL_MAX`] are moved, and some, at most.

use super::batch::Batch;
use super::clean::Pace;
use super::index::Index;
use super::object::{Inner, read};
use crate::error::{Error, Result};

/// Blocks of data of a small commit, at most.
const SMALL_MAX: u64 = 16;
/// As few commits stay as they are.
const COMMITS_MIN: usize = 8;

impl Batch<'_> {
    /// Puts the small commits of these objects together, as far as there is room. `false`: not of all.
    pub(super) fn put_small_together(&mut self, objects: &[&Inner], pace: &mut Pace) -> Result<bool> {
        let mut done = Ok(());
        let mut moved = 0;
        for object in objects {
            done = done.and_then(|()| {
                match object.put_small_together(self.index) {
                    // Removed meanwhile.
                    Err(Error::NoObject) => {}
                    some => moved += some?,
                }
                Ok(())
            });
        }
        if moved > 0 || done.is_err() {
            self.cleaned.moved_blocks += moved;
            // Also when not all of it could be moved: the next move goes by what the index has.
            self.settle_moved()?;
            self.move_tails()?;
            pace.rest();
        }
        match done {
            // What is moved takes room before it gives any.
            Err(Error::NoSpace) => Ok(false),
            done => done.map(|()| true),
        }
    }
}

impl Inner {
    /// How many blocks were moved.
    fn put_small_together(&self, index: &Index) -> Result<u64> {
        let mut small = index.small(self.id, SMALL_MAX)?;
        let blocks: u64 = small.iter().map(|(_, row)| row.live).sum();
        let head = read(&self.state).head;
        // Where the ring itself is short, its oldest commits are moved. A commit has two blocks at least.
        if small.len() < COMMITS_MIN || blocks <= SMALL_MAX || head.position - head.tail + 2 * blocks > self.ring / 2 {
            return Ok(0);
        }
        let mut failed = None;
        small.retain(|(sequence, row)| match self.check_whole(*sequence, row) {
            Ok(()) => true,
            // It stays as it is; a scrub tells of it.
            Err(Error::Damaged(_)) => false,
            Err(error) => {
                failed = Some(error);
                false
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        self.move_blocks(self.placed_in(index, &small)?)
    }
}
