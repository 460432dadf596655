//! Where single pieces lie, as each thread has looked them up lately. Most requests lie in the piece of one before;
//! these are found without a lock of the state.
//!
//! A piece is remembered with the *epoch* of its stripe of the address space, which changes whenever something that is
//! mapped there changes. Whoever holds the gate and finds the same epoch can use the piece: blocks that are not mapped
//! any more are given to nobody else before the gate was free once.

use super::stripes::{SHIFT, STRIPES, index_of};
use super::{Layer, State};
use crate::overlay::Piece;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy)]
struct Recent {
    layer: u64,
    epoch: u64,
    first: u64,
    end: u64,
    block: u64,
    /// Whether no crash can undo the mapping.
    is_safe: bool,
}

const NOTHING: Recent = Recent { layer: 0, epoch: 0, first: 0, end: 0, block: 0, is_safe: false };

/// Blocks of which one piece is remembered, as a power of two: 16 MiB, as much as is mapped at once. And how many.
const GRAIN_SHIFT: u32 = 12;
const GRAINS: u64 = 128;

thread_local! {
    static RECENT: [Cell<Recent>; GRAINS as usize] = const { [const { Cell::new(NOTHING) }; GRAINS as usize] };
}

/// Where what is known of a block is remembered. Neighbours are apart.
fn slot_of(block: u64) -> usize {
    let grain = block >> GRAIN_SHIFT;
    let group = (grain / GRAINS).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ((grain ^ group) % GRAINS) as usize
}

/// Which layer it is, and how often what was mapped in each stripe has changed.
pub(super) struct Epochs {
    layer: u64,
    of_stripes: [AtomicU64; STRIPES],
}

impl Epochs {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { layer: NEXT.fetch_add(1, Ordering::Relaxed), of_stripes: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// What was mapped there is so no more. The caller has the state alone.
    pub fn change(&self, blocks: &Range<u64>) {
        let (first, last) = (blocks.start >> SHIFT, blocks.end.saturating_sub(1) >> SHIFT);
        if last.saturating_sub(first) >= STRIPES as u64 {
            return self.change_all();
        }
        for epoch in (first..=last).filter_map(|stripe| self.of(stripe)) {
            epoch.fetch_add(1, Ordering::Release);
        }
    }

    /// As [`Epochs::change`], of all the address space.
    pub fn change_all(&self) {
        for epoch in &self.of_stripes {
            epoch.fetch_add(1, Ordering::Release);
        }
    }

    fn of(&self, stripe: u64) -> Option<&AtomicU64> {
        self.of_stripes.get(index_of(stripe))
    }

    /// Where these blocks lie, if a piece that has all of them was remembered, and still counts. The caller has the
    /// gate.
    pub fn recent(&self, blocks: &Range<u64>, is_to_be_safe: bool) -> Option<Piece> {
        let stripe = blocks.start >> SHIFT;
        let recent = RECENT.with(|all| all.get(slot_of(blocks.start)).map(Cell::get))?;
        let is_there = recent.layer == self.layer && recent.first <= blocks.start && blocks.end <= recent.end;
        let counts = || self.of(stripe).is_some_and(|epoch| epoch.load(Ordering::Acquire) == recent.epoch);
        (is_there && recent.is_safe >= is_to_be_safe && counts()).then(|| {
            let block = recent.block + (blocks.start - recent.first);
            Piece { first: blocks.start, count: blocks.end - blocks.start, block: Some(block) }
        })
    }

    /// Remembers a mapped piece for the next look at about this block. The caller has the state since it was looked up.
    fn remember(&self, near: u64, piece: Piece, is_safe: bool) {
        let stripe = piece.first >> SHIFT;
        let (Some(block), Some(epoch)) = (piece.block, self.of(stripe)) else { return };
        let (layer, epoch) = (self.layer, epoch.load(Ordering::Acquire));
        let recent = Recent { layer, epoch, first: piece.first, end: piece.end(), block, is_safe };
        RECENT.with(|all| all.get(slot_of(near)).into_iter().for_each(|cell| cell.set(recent)));
    }
}

impl Layer {
    /// Where blocks lie that are mapped in one piece, and in it no block waits to be written or has a checksum, nor, if
    /// it is to be safe, can be unmapped by a crash. It is remembered. `None`: they may be so all the same.
    pub(super) fn look_up(&self, state: &State, blocks: &Range<u64>, is_to_be_safe: bool) -> Option<Piece> {
        let stripe = blocks.start >> SHIFT;
        // Of one stripe, and on one side of the border of what has checksums.
        let around = (stripe << SHIFT).max(self.sums_end())..(stripe + 1) << SHIFT;
        if blocks.start < around.start || blocks.end > around.end || state.fresh.touches(&around) {
            return None;
        }
        let piece = self.piece_at(state, blocks.start, around)?;
        let found = piece.within(blocks).filter(|found| found.count == blocks.end - blocks.start)?;
        if is_to_be_safe && state.is_unsafe(&(piece.first..piece.end())) {
            return None;
        }
        self.epochs.remember(blocks.start, piece, is_to_be_safe);
        Some(found)
    }

    /// The mapped piece that has a block, as far as it is known, cut to what is around it.
    fn piece_at(&self, state: &State, block: u64, mut around: Range<u64>) -> Option<Piece> {
        for overlay in [Some(&state.active), state.frozen.as_deref()].into_iter().flatten() {
            match overlay.at(block, &around) {
                Ok(piece) => return Some(piece).filter(|piece| piece.block.is_some()),
                Err(gap) => around = gap,
            }
        }
        let whole = self.known.piece_at(block)?;
        whole.within(&around).filter(|piece| piece.block.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where far more stripes change than there are epochs.
    #[test]
    fn what_has_changed_is_not_remembered() {
        for (first, stripes) in [(0, 1), (5, 3), (1 << 14, 63), (1 << 14, 64), (2 << 14, 1000)] {
            let epochs = Epochs::new();
            let changed = first << SHIFT..(first + stripes) << SHIFT;
            for stripe in first..first + stripes {
                let block = (stripe << SHIFT) + 7;
                epochs.remember(block, Piece { first: block, count: 1, block: Some(block) }, true);
                assert!(epochs.recent(&(block..block + 1), true).is_some());
                epochs.change(&changed);
                assert!(epochs.recent(&(block..block + 1), false).is_none(), "{stripe} of {changed:?}");
            }
        }
    }

    #[test]
    fn what_is_safe_and_whose_it_is_is_remembered() {
        let (epochs, others) = (Epochs::new(), Epochs::new());
        epochs.remember(100, Piece { first: 96, count: 10, block: Some(7) }, false);
        assert_eq!(epochs.recent(&(98..106), false), Some(Piece { first: 98, count: 8, block: Some(9) }));
        assert!(epochs.recent(&(98..106), true).is_none() && others.recent(&(98..106), false).is_none());
        assert!(epochs.recent(&(98..107), false).is_none() && epochs.recent(&(95..98), false).is_none());
    }
}
