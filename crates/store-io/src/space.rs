//! How much a store may hold: a count of bytes with a cap and a reserve.
//!
//! Bytes are charged before they are written and given back when an object is cut or removed, so a writer that would go
//! beyond the cap is refused before anything of his write is done. Without a cap nothing is counted: the file system
//! below knows, and bytes that are written through passed descriptors do not come by here.

mod charged;

use crate::store::lock;
pub use charged::Charged;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
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

    /// What was charged with `before` takes `after`: more only where a write in flight went beyond a cut.
    fn settle(&self, before: u64, after: u64) {
        if !self.is_capped() {
            return;
        }
        self.used.fetch_add(after.saturating_sub(before), Ordering::Relaxed);
        let less = before.saturating_sub(after);
        let used = self.used.fetch_sub(less, Ordering::Relaxed);
        assert!(used >= less, "{less} bytes given back of {used} charged");
    }
}

/// What one object is charged: as far as its bytes go, or as a write in flight may bring them.
///
/// Invariant: an account's count is the sum of its charges and of what objects that are not open have.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    /// `None`: all was given back, or is kept elsewhere, and nothing is charged any more.
    charged: Mutex<Option<Charged>>,
}

impl Charge {
    /// Of an object whose bytes have been charged.
    pub fn new(account: Arc<Account>, charged: Charged) -> Self {
        Self { account, charged: Mutex::new(Some(charged)) }
    }

    /// Charges what a write of a range adds. Refuses an object that is gone: a writer that looked before it went would
    /// charge what nobody gives back.
    pub fn grow(&self, start: u64, end: u64) -> Result<()> {
        if !self.account.is_capped() {
            return Ok(());
        }
        let mut charged = lock(&self.charged);
        let charged = charged.as_mut().ok_or(Error::NoObject)?;
        let missing = charged.missing(start, end);
        if missing > 0 {
            self.account.charge(missing)?;
        }
        let before = charged.bytes() + missing;
        charged.add(start, end);
        self.account.settle(before, charged.bytes());
        Ok(())
    }

    /// The object's bytes end here: gives back what was charged beyond, by writes that were never made, too.
    pub fn settle(&self, end: u64) {
        if let Some(charged) = lock(&self.charged).as_mut() {
            self.settle_charged(charged, end);
        }
    }

    fn settle_charged(&self, charged: &mut Charged, end: u64) {
        let before = charged.bytes();
        charged.cut(end);
        if !charged.has_holes() {
            // More only where a write in flight went beyond a cut.
            *charged = Charged::dense(end);
        }
        self.account.settle(before, charged.bytes());
    }

    /// The object is gone.
    pub fn end(&self) {
        if let Some(charged) = lock(&self.charged).take() {
            self.account.settle(charged.bytes(), 0);
        }
    }

    /// The object is closed, or lies elsewhere, and has so many bytes. Returns what stays charged, if its length does
    /// not tell.
    pub fn leave(&self, end: u64) -> Option<Charged> {
        let mut charged = lock(&self.charged).take()?;
        self.settle_charged(&mut charged, end);
        Some(charged).filter(Charged::has_holes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_cap_nothing_is_counted() {
        let account = Account::new(u64::MAX);
        assert_eq!(account.charge(u64::MAX), Ok(()));
        account.settle(5, 0);
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn nobody_gets_beyond_the_cap_less_the_reserve() {
        let account = Account::new(6400);
        assert_eq!((account.reserve(), account.free()), (100, 6300));
        assert_eq!(account.charge(6300), Ok(()));
        assert_eq!(account.charge(1), Err(Error::NoSpace));
        account.settle(10, 0);
        assert_eq!(account.charge(10), Ok(()));
    }

    #[test]
    fn an_object_gives_back_what_was_charged_for_it_and_is_charged_no_more_when_it_is_gone() {
        let account = Arc::new(Account::new(6400));
        let charge = Charge::new(Arc::clone(&account), Charged::default());
        assert_eq!((charge.grow(0, 300), charge.grow(0, 200), account.used()), (Ok(()), Ok(()), 300));
        assert_eq!((charge.grow(0, 6301), account.used()), (Err(Error::NoSpace), 300));
        charge.settle(100);
        assert_eq!(account.used(), 100, "it was cut");
        charge.settle(150);
        assert_eq!(account.used(), 150, "a write in flight went beyond");
        charge.end();
        assert_eq!((charge.grow(0, 50), account.used()), (Err(Error::NoObject), 0));
        charge.settle(50);
        assert_eq!(account.used(), 0);
    }
}
