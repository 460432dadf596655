//! What of the address space is in memory: the mapping since the last checkpoint, free blocks, what waits.

use super::piece_of;
use super::sums::RecentSums;
use super::waiting::AllWaiting;
use crate::overlay::Overlay;
use crate::record::Entry;
use crate::space::Space;
use std::ops::Range;
use std::sync::Arc;

/// Changes that are looked through, for whether they are on their way.
const LOOKED_AT_MAX: usize = 64;

/// See the module. Whoever changes it has it alone.
pub(super) struct State {
    /// Blocks that wait to be written.
    pub fresh: AllWaiting,
    /// Blocks that are set aside for what is gathered.
    pub gathered: u64,
    /// Changes since the last checkpoint, and those that are being brought to the map.
    pub active: Overlay,
    pub frozen: Option<Arc<Overlay>>,
    pub sums: RecentSums,
    pub space: Space,
    /// Changes that no record has, those that belong together in one; and those whose records are being written.
    pub pending: Vec<Vec<Entry>>,
    /// How many they are in all, and how many bytes in records.
    pub pending_entries: usize,
    pub pending_bytes: usize,
    pub recording: Vec<Vec<Entry>>,
    /// Blocks that they free.
    pub freed: Vec<Freed>,
}

/// Blocks that are free when a record is durable.
#[derive(Clone, Copy)]
pub(super) struct Freed {
    pub block: u64,
    pub count: u64,
    /// Whether the device is told.
    pub is_discarded: bool,
}

impl State {
    /// Changes that one record is to have.
    pub fn add_pending(&mut self, entries: Vec<Entry>) {
        self.pending_entries += entries.len();
        self.pending_bytes += Entry::bytes_of(&entries);
        self.pending.push(entries);
    }

    /// Changes that wait are to be made durable. What they free is returned.
    pub fn begin_recording(&mut self) -> Vec<Freed> {
        self.recording = std::mem::take(&mut self.pending);
        (self.pending_entries, self.pending_bytes) = (0, 0);
        std::mem::take(&mut self.freed)
    }

    /// Whether a sync makes room.
    pub fn is_freeing(&self) -> bool {
        !self.freed.is_empty() || !self.recording.is_empty() || self.gathered > 0
    }

    /// Whether a crash may undo the mapping of a part of these blocks. With many changes on their way nobody looks
    /// closely.
    pub fn is_unsafe(&self, blocks: &Range<u64>) -> bool {
        let changes = |overlay: &Overlay| overlay.within(blocks.clone()).next().is_some();
        if !changes(&self.active) && !self.frozen.as_deref().is_some_and(changes) {
            return false;
        }
        let touches = |entry: &Entry| piece_of(entry).is_some_and(|piece| piece.within(blocks).is_some());
        self.pending_entries + self.recording.iter().map(Vec::len).sum::<usize>() > LOOKED_AT_MAX
            || self.pending.iter().chain(&self.recording).flatten().any(touches)
    }

    /// Changes that could not be made durable wait before those that came later.
    pub fn take_back(&mut self, freed: Vec<Freed>) {
        let recording = std::mem::take(&mut self.recording);
        self.pending_entries += recording.iter().map(Vec::len).sum::<usize>();
        self.pending_bytes += recording.iter().map(|entries| Entry::bytes_of(entries)).sum::<usize>();
        let later = std::mem::replace(&mut self.pending, recording);
        self.pending.extend(later);
        let later = std::mem::replace(&mut self.freed, freed);
        self.freed.extend(later);
    }
}
