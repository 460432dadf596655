//! Listings that the kernel keeps.
//!
//! The kernel can keep what it was told of a directory's names, and answer the next `ls` by itself. It asks at each
//! `opendir` whether what it has is still good. It is when it was read from beginning to end under one hold of the
//! directory's lease, and that hold goes on: any change by another client would have ended it. Changes made through
//! this mount the kernel notices itself.
//!
//! Not here: what the kernel is told at a recall (`invalidate.rs`).

use crate::lock::lock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use weft_protocol::InodeNumber;
use weft_protocol::hash::FixedMap;

/// Directories that are remembered. Beyond it all are forgotten: their next listing asks.
const DIRECTORIES_MAX: usize = 1 << 16;
/// No hold: stamps begin at 1.
const NO_HOLD: u64 = 0;

/// Which listings in the kernel are whole, and under which hold they were read.
#[derive(Default)]
pub struct KernelListings {
    /// Held for one look.
    read: Mutex<FixedMap<InodeNumber, u64>>,
}

impl KernelListings {
    fn lock(&self) -> MutexGuard<'_, FixedMap<InodeNumber, u64>> {
        lock(&self.read)
    }

    /// At `opendir`: whether what the kernel has is good. If not, it drops it now.
    pub fn may_keep(&self, directory: InodeNumber, hold: Option<u64>) -> bool {
        let mut read = self.lock();
        let good = hold.is_some() && read.get(&directory).copied() == hold;
        if !good {
            read.remove(&directory);
        }
        good
    }

    /// A listing has come to its end.
    pub fn ended(&self, directory: InodeNumber, reading: &Reading, hold: Option<u64>) {
        let begun = reading.0.load(Ordering::Acquire);
        if begun == NO_HOLD || hold != Some(begun) {
            return;
        }
        let mut read = self.lock();
        if read.len() >= DIRECTORIES_MAX {
            read.clear();
        }
        read.insert(directory, begun);
    }
}

/// Under which hold an open directory is being read.
#[derive(Default)]
pub struct Reading(AtomicU64);

impl Reading {
    /// A page has come: the first one, or another.
    pub fn page(&self, is_first: bool, hold: Option<u64>) {
        let hold = hold.unwrap_or(NO_HOLD);
        if is_first {
            self.0.store(hold, Ordering::Release);
        } else if self.0.load(Ordering::Acquire) != hold {
            self.0.store(NO_HOLD, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: InodeNumber = InodeNumber::ROOT;

    fn listed(pages: &[Option<u64>], end: Option<u64>) -> KernelListings {
        let (listings, reading) = (KernelListings::default(), Reading::default());
        assert!(!listings.may_keep(DIRECTORY, pages[0]), "nothing was read yet");
        for (number, hold) in pages.iter().enumerate() {
            reading.page(number == 0, *hold);
        }
        listings.ended(DIRECTORY, &reading, end);
        listings
    }

    #[test]
    fn what_was_read_under_one_hold_is_kept_while_it_lasts() {
        let listings = listed(&[Some(5), Some(5)], Some(5));
        assert!(listings.may_keep(DIRECTORY, Some(5)));
        assert!(listings.may_keep(DIRECTORY, Some(5)));
        assert!(!listings.may_keep(DIRECTORY, Some(9)), "recalled and held again");
        assert!(!listings.may_keep(DIRECTORY, Some(5)), "the kernel has dropped it");
    }

    #[test]
    fn a_listing_with_a_recall_in_between_is_not_kept() {
        for (pages, end) in [
            (vec![Some(5), Some(6)], Some(6)),
            (vec![Some(5), Some(5)], None),
            (vec![Some(5), None, Some(5)], Some(5)),
            (vec![None, None], None),
            (vec![None, Some(7)], Some(7)),
        ] {
            for hold in [None, Some(5), Some(6), Some(7)] {
                assert!(!listed(&pages, end).may_keep(DIRECTORY, hold), "{pages:?} {end:?} {hold:?}");
            }
        }
    }
}
