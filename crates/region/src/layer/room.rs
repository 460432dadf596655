//! Free blocks, and who gets them.

use super::{Layer, read, write};
use crate::error::{Error, Result};
use crate::{BLOCK, OWN_START, lock};
use std::sync::atomic::Ordering;

/// The part of the blocks that is kept free, where some are, and blocks at least, but of small devices.
const KEPT_FREE_PART: u64 = 64;
const KEPT_FREE_MIN: u64 = 2048;

/// Space on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Bytes for data.
    pub total: u64,
    /// Of them, not mapped.
    pub free: u64,
    /// Bytes of a device that has become larger: [`Layer::grow`] takes them into the store.
    pub unused: u64,
}

impl Layer {
    /// Space on the device.
    pub fn usage(&self) -> Usage {
        let state = read(&self.state);
        // Also what is set aside for objects that may come.
        let waiting = (state.fresh.len() + self.gathered.blocks()) as u64;
        let free =
            (state.space.free() + lock(&self.ready).blocks()).saturating_sub(waiting + self.kept_free_of(0, false));
        let total = self.geometry.blocks_for_data() - self.kept_for_rewrites();
        let unused = (self.device.bytes() / BLOCK).saturating_sub(self.geometry.blocks);
        Usage { total: total * BLOCK, free: free * BLOCK, unused: unused * BLOCK }
    }

    /// Bytes of blocks that are mapped, or wait to be, or are not free yet.
    pub(crate) fn in_use(&self) -> u64 {
        let state = read(&self.state);
        (self.geometry.blocks_for_data() - state.space.free() - lock(&self.ready).blocks() + state.fresh.len() as u64)
            * BLOCK
    }

    /// Keeps some blocks free for the store's own addresses from now on.
    pub(crate) fn keep_some_free(&self) {
        self.kept_free.store(self.some_blocks(), Ordering::Relaxed);
    }

    fn some_blocks(&self) -> u64 {
        let blocks = self.geometry.blocks_for_data();
        (blocks / KEPT_FREE_PART).max(KEPT_FREE_MIN).min(blocks / 8)
    }

    /// Blocks that what is there goes to when it is written again, also where nothing else is free.
    fn kept_for_rewrites(&self) -> u64 {
        if self.sums_end() > 0 { self.some_blocks() } else { 0 }
    }

    /// Free blocks that this virtual block cannot have.
    pub(super) fn kept_free_of(&self, block: u64, is_mapped: bool) -> u64 {
        let for_rewrites = if is_mapped { 0 } else { self.kept_for_rewrites() };
        if block >= OWN_START / BLOCK { 0 } else { self.kept_free.load(Ordering::Relaxed) + for_rewrites }
    }
}

/// Blocks that were taken for a write; what is left of them goes back when it fails.
pub(super) struct Taken<'a> {
    pub layer: &'a Layer,
    pub extents: Vec<(u64, u64)>,
}

impl Taken<'_> {
    /// Up to so many blocks, if more are free than are to be `kept`.
    pub fn take(&mut self, wanted: u64, kept: u64) -> Result<(u64, u64)> {
        let mut state = write(&self.layer.state);
        // Blocks that wait have theirs set aside.
        let room = state.unclaimed().saturating_sub(kept);
        let taken = state.space.take(wanted.min(room)).ok_or(Error::NoSpace)?;
        self.extents.push(taken);
        Ok(taken)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.extents.is_empty() {
            let mut state = write(&self.layer.state);
            self.extents.iter().for_each(|(block, count)| state.space.give_back(*block, *count));
        }
    }
}
