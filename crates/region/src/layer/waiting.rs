//! The single blocks that wait, and who is writing which of them. See [`super::fresh`].
//!
//! They are written in batches, several at a time. Invariant: a block is in one batch at most. One that is taken away
//! and written again meanwhile is in none: its batch finds that it is not its own any more.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

/// A block's bytes; where there are fewer, the rest is zeros.
pub(super) type Bytes = Arc<[u8]>;

/// A block that waits.
#[derive(Clone)]
pub(super) struct Waiting {
    pub bytes: Bytes,
    /// Where it is mapped, if it was written again while its first version was on its way.
    pub place: Option<u64>,
    /// The batch that it is written with.
    pub batch: Option<u64>,
}

/// By virtual block.
#[derive(Default)]
pub(super) struct AllWaiting {
    blocks: BTreeMap<u64, Waiting>,
    in_batches: usize,
    /// How many were begun.
    batches: u64,
}

impl AllWaiting {
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Those in no batch.
    pub fn idle(&self) -> usize {
        self.blocks.len() - self.in_batches
    }

    pub fn contains(&self, block: u64) -> bool {
        self.blocks.contains_key(&block)
    }

    /// Whether some of a range wait.
    pub fn touches(&self, range: &Range<u64>) -> bool {
        self.blocks.range(range.clone()).next().is_some()
    }

    pub fn range(&self, range: impl RangeBounds<u64>) -> impl Iterator<Item = (u64, &Waiting)> {
        self.blocks.range(range).map(|(block, waiting)| (*block, waiting))
    }

    pub fn get_mut(&mut self, block: u64) -> Option<&mut Waiting> {
        self.blocks.get_mut(&block)
    }

    /// One that did not wait.
    pub fn insert(&mut self, block: u64, bytes: Bytes) {
        self.blocks.insert(block, Waiting { bytes, place: None, batch: None });
    }

    /// Those of a range do not wait any more.
    pub fn remove(&mut self, range: Range<u64>) {
        let all: Vec<u64> = self.blocks.range(range).map(|(block, _)| *block).collect();
        for block in all {
            let removed = self.blocks.remove(&block);
            self.in_batches -= usize::from(removed.is_some_and(|removed| removed.batch.is_some()));
        }
    }

    /// A batch of all that are in none, and its number.
    pub fn begin(&mut self) -> (u64, Vec<(u64, Waiting)>) {
        self.batches += 1;
        let number = self.batches;
        let idle = self.blocks.iter_mut().filter(|(_, waiting)| waiting.batch.is_none());
        let batch: Vec<(u64, Waiting)> = idle
            .map(|(block, waiting)| {
                waiting.batch = Some(number);
                (*block, waiting.clone())
            })
            .collect();
        self.in_batches += batch.len();
        (number, batch)
    }

    /// A block's batch ends; `place` is where its bytes, as the batch has them, are mapped now, if they were written.
    /// `false`: it was taken away meanwhile. One that was written again waits on.
    pub fn end(&mut self, block: u64, number: u64, written: Option<(&Bytes, u64)>) -> bool {
        let Entry::Occupied(mut found) = self.blocks.entry(block) else { return false };
        if found.get().batch != Some(number) {
            return false;
        }
        self.in_batches -= 1;
        match written {
            Some((bytes, _)) if Arc::ptr_eq(&found.get().bytes, bytes) => drop(found.remove()),
            written => {
                let waiting = found.get_mut();
                waiting.batch = None;
                waiting.place = written.map(|(_, place)| place).or(waiting.place);
            }
        }
        true
    }
}
