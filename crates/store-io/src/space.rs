//! How much a store may hold: a count of bytes with a cap and a reserve.
//!
//! Bytes are charged before they are written and given back when an object is cut or removed, so a writer that would go
//! beyond the cap is refused before anything of his write is done. Without a cap nothing is counted: the file system
//! below knows, and bytes that are written through passed descriptors do not come by here.

use std::sync::atomic::{AtomicU64, Ordering};
use weft_protocol::{Error, Result};

/// Share of a store kept back for metadata and logs: one 64th, at most [`RESERVE_BYTES_MAX`].
const RESERVE_DIVISOR: u64 = 64;
const RESERVE_BYTES_MAX: u64 = 1 << 30;

/// A counter of bytes with a cap.
#[derive(Debug)]
pub struct Account {
    cap: u64,
    used: AtomicU64,
}

impl Account {
    /// `cap`: bytes in all, the reserve included; `u64::MAX`: only the device bounds it.
    pub fn new(cap: u64) -> Self {
        Self { cap, used: AtomicU64::new(0) }
    }

    /// Bytes kept back.
    pub fn reserve(&self) -> u64 {
        // Never nothing under a cap: that tells a store with a cap from one without.
        if self.is_capped() { (self.cap / RESERVE_DIVISOR).clamp(1, RESERVE_BYTES_MAX) } else { 0 }
    }

    /// Bytes charged.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether a cap was set.
    pub fn is_capped(&self) -> bool {
        self.cap != u64::MAX
    }

    /// Bytes that can still be charged.
    pub fn free(&self) -> u64 {
        self.limit().saturating_sub(self.used())
    }

    /// Bytes that may be charged in all.
    fn limit(&self) -> u64 {
        self.cap.saturating_sub(self.reserve())
    }

    /// Charges bytes, or refuses all of them.
    pub fn charge(&self, bytes: u64) -> Result<()> {
        if !self.is_capped() {
            return Ok(());
        }
        let limit = self.limit();
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= limit)
            })
            .map(|_| ())
            .map_err(|_| Error::NoSpace)
    }

    /// Gives bytes back.
    pub fn discharge(&self, bytes: u64) {
        if !self.is_capped() {
            return;
        }
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "{bytes} bytes given back of {before} charged");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_cap_nothing_is_counted() {
        let account = Account::new(u64::MAX);
        assert_eq!(account.charge(u64::MAX), Ok(()));
        account.discharge(5);
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn nobody_gets_beyond_the_cap_less_the_reserve() {
        let account = Account::new(6400);
        assert_eq!((account.reserve(), account.free()), (100, 6300));
        assert_eq!(account.charge(6300), Ok(()));
        assert_eq!(account.charge(1), Err(Error::NoSpace));
        account.discharge(10);
        assert_eq!(account.charge(10), Ok(()));
    }
}
