//! Who writes where: locks over stripes of the address space.

use super::{read, write};
use std::ops::Range;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Virtual blocks of a stripe, as a power of two.
pub(super) const SHIFT: u32 = 14;
pub(super) const STRIPES: usize = 64;

/// See the module. Whoever maps blocks, or writes a part of one, has their stripes alone; whoever writes over whole
/// blocks that are mapped shares them.
pub(crate) struct Stripes(Vec<RwLock<()>>);

/// Locks held: mostly a single one.
pub(crate) enum Held<G> {
    One(Option<G>),
    Several(#[expect(dead_code, reason = "it is there to be dropped")] Vec<G>),
}

impl Stripes {
    pub fn new() -> Self {
        Self((0..STRIPES).map(|_| RwLock::default()).collect())
    }

    /// Shares the stripes of a range.
    pub fn share(&self, blocks: &Range<u64>) -> Held<RwLockReadGuard<'_, ()>> {
        self.hold(std::slice::from_ref(blocks), read)
    }

    /// Has the stripes of ranges alone.
    pub fn take(&self, ranges: &[Range<u64>]) -> Held<RwLockWriteGuard<'_, ()>> {
        self.hold(ranges, write)
    }

    fn hold<'a, G>(&'a self, ranges: &[Range<u64>], lock: fn(&'a RwLock<()>) -> G) -> Held<G> {
        if let [range] = ranges
            && range.start < range.end
            && range.start >> SHIFT == (range.end - 1) >> SHIFT
        {
            return Held::One(self.0.get(index_of(range.start >> SHIFT)).map(lock));
        }
        Held::Several(indexes(ranges).into_iter().filter_map(|index| self.0.get(index)).map(lock).collect())
    }
}

/// Neighbours lie apart: regions begin at the same place of their stripe.
pub(super) fn index_of(stripe: u64) -> usize {
    (stripe.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % STRIPES
}

/// The stripes of ranges of blocks, ascending, each once: whoever takes several takes them in this order.
fn indexes(ranges: &[Range<u64>]) -> Vec<usize> {
    let mut indexes = Vec::new();
    for range in ranges.iter().filter(|range| range.start < range.end) {
        let (first, last) = (range.start >> SHIFT, (range.end - 1) >> SHIFT);
        if last - first >= STRIPES as u64 {
            return (0..STRIPES).collect();
        }
        indexes.extend((first..=last).map(index_of));
    }
    indexes.sort_unstable();
    indexes.dedup();
    indexes
}
