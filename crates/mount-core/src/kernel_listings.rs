//! Listings that the kernel keeps.
//!
//! The kernel can keep what it was told of a directory's names, and answer the next `ls` by itself. It asks at each
//! `opendir` whether what it has is still good. It is when it was read from beginning to end under one hold of the
//! directory's lease, and that hold goes on: any change by another client would have ended it. Changes made through
//! this mount the kernel notices itself.
//!
//! The kernel has one such listing per directory, to which each reader adds what comes next. Two readers could put
//! together names of two times, so one open directory at a time uses it, the others read past it. What that one has
//! read without the lease is dropped before it begins anew, and before it is told that the listing is at its end, which
//! makes the kernel use it.
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

/// How an open directory uses the listing that the kernel keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptListing {
    /// It reads it, and adds to it.
    pub is_used: bool,
    /// It is not to be dropped now.
    pub is_kept: bool,
}

/// Which listings in the kernel are whole, and under which hold they were read.
#[derive(Default)]
pub struct KernelListings {
    /// Held for one look.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    whole: FixedMap<InodeNumber, u64>,
    /// Directories whose listing an open directory uses. As many as are open at most.
    used: FixedMap<InodeNumber, ()>,
}

impl KernelListings {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// At `opendir`. If the listing that the kernel may have is not good, it drops it now.
    pub fn open(&self, directory: InodeNumber, hold: Option<u64>) -> KeptListing {
        let mut state = self.lock();
        if state.used.insert(directory, ()).is_some() {
            return KeptListing { is_used: false, is_kept: true };
        }
        let is_kept = hold.is_some() && state.whole.get(&directory).copied() == hold;
        if !is_kept {
            state.whole.remove(&directory);
        }
        KeptListing { is_used: true, is_kept }
    }

    /// At `releasedir` of an open directory that uses the listing.
    pub fn close(&self, directory: InodeNumber) {
        self.lock().used.remove(&directory);
    }

    /// The open directory that uses the listing has come to its end. Returns whether the kernel may use the listing:
    /// otherwise it is to be dropped first.
    #[must_use]
    pub fn ended(&self, directory: InodeNumber, reading: &Reading, hold: Option<u64>) -> bool {
        let begun = reading.0.load(Ordering::Acquire);
        let is_good = begun != NO_HOLD && hold == Some(begun);
        let mut state = self.lock();
        if !is_good {
            state.whole.remove(&directory);
            return false;
        }
        if state.whole.len() >= DIRECTORIES_MAX {
            state.whole.clear();
        }
        state.whole.insert(directory, begun);
        true
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

    /// Whether all that was read since the beginning was read under this hold.
    pub fn is_under(&self, hold: Option<u64>) -> bool {
        hold.is_some_and(|hold| hold == self.0.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: InodeNumber = InodeNumber::ROOT;
    const KEPT: KeptListing = KeptListing { is_used: true, is_kept: true };
    const DROPPED: KeptListing = KeptListing { is_used: true, is_kept: false };

    fn listed(pages: &[Option<u64>], end: Option<u64>) -> KernelListings {
        let (listings, reading) = (KernelListings::default(), Reading::default());
        assert_eq!(listings.open(DIRECTORY, pages[0]), DROPPED, "nothing was read yet");
        for (number, hold) in pages.iter().enumerate() {
            reading.page(number == 0, *hold);
        }
        let is_good = listings.ended(DIRECTORY, &reading, end);
        assert_eq!(is_good, reading.is_under(end));
        listings.close(DIRECTORY);
        listings
    }

    /// Opens the directory, and closes it.
    fn opened(listings: &KernelListings, hold: Option<u64>) -> KeptListing {
        let kept = listings.open(DIRECTORY, hold);
        listings.close(DIRECTORY);
        kept
    }

    #[test]
    fn what_was_read_under_one_hold_is_kept_while_it_lasts() {
        let listings = listed(&[Some(5), Some(5)], Some(5));
        assert_eq!(opened(&listings, Some(5)), KEPT);
        assert_eq!(opened(&listings, Some(5)), KEPT);
        assert_eq!(opened(&listings, Some(9)), DROPPED, "recalled and held again");
        assert_eq!(opened(&listings, Some(5)), DROPPED, "the kernel has dropped it");
    }

    #[test]
    fn one_open_directory_at_a_time_uses_a_listing() {
        let listings = listed(&[Some(5)], Some(5));
        let past = KeptListing { is_used: false, is_kept: true };
        assert_eq!(listings.open(DIRECTORY, Some(5)), KEPT);
        assert_eq!((listings.open(DIRECTORY, Some(5)), listings.open(DIRECTORY, Some(9))), (past, past));
        assert_eq!(listings.open(InodeNumber::from_raw(77), Some(5)), DROPPED, "another directory");
        listings.close(DIRECTORY);
        assert_eq!(listings.open(DIRECTORY, Some(5)), KEPT);
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
                assert_eq!(opened(&listed(&pages, end), hold), DROPPED, "{pages:?} {end:?} {hold:?}");
            }
        }
    }
}
