//! Free blocks, and who gets them.

use super::{Layer, read, write};
use crate::error::{Error, Result};
use crate::{BLOCK, OWN_START};
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
        let free = state.space.free().saturating_sub(state.fresh.len() as u64 + self.kept_free_of(0));
        let total = self.geometry.data_blocks() - self.geometry.not_for_data().map(|(_, count)| count).sum::<u64>();
        let unused = (self.device.bytes() / BLOCK).saturating_sub(self.geometry.blocks);
        Usage { total: total * BLOCK, free: free * BLOCK, unused: unused * BLOCK }
    }

    /// Keeps some blocks free for the store's own addresses from now on.
    pub(crate) fn keep_some_free(&self) {
        let blocks = self.geometry.data_blocks();
        let kept = (blocks / KEPT_FREE_PART).max(KEPT_FREE_MIN).min(blocks / 8);
        self.kept_free.store(kept, Ordering::Relaxed);
    }

    /// Free blocks that this virtual block cannot have.
    pub(super) fn kept_free_of(&self, block: u64) -> u64 {
        if block >= OWN_START / BLOCK { 0 } else { self.kept_free.load(Ordering::Relaxed) }
    }
}

/// Blocks that were taken for a write; what is left of them goes back when it fails.
pub(super) struct Taken<'a> {
    pub layer: &'a Layer,
    pub extents: Vec<(u64, u64)>,
}

impl Taken<'_> {
    /// Up to so many blocks for virtual ones from `first` on.
    pub fn take(&mut self, first: u64, wanted: u64) -> Result<(u64, u64)> {
        let kept = self.layer.kept_free_of(first);
        let mut state = write(&self.layer.state);
        // Blocks that wait have theirs set aside.
        let room = state.space.free().saturating_sub(state.fresh.len() as u64 + kept);
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
