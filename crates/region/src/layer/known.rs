//! What was read of the map lately: ranges of virtual blocks, and where they lie, or that nothing is mapped.
//!
//! Invariant: it is as the map, but for what the overlays have, which are looked at before it. Whoever reads the map
//! and tells of it holds the layer's state, so no checkpoint ends meanwhile; a checkpoint tells what it has brought.

use super::{read, with_holes, write};
use crate::base::Base;
use crate::error::Result;
use crate::overlay::{Overlay, Piece};
use std::ops::Range;
use std::sync::RwLock;

/// Pieces kept; beyond it all are forgotten.
const PIECES_MAX: usize = 64 << 10;
/// What is read around what is asked for, as a power of two of blocks.
const AROUND_SHIFT: u32 = 12;

/// See the module.
#[derive(Default)]
pub(super) struct Known(RwLock<Overlay>);

impl Known {
    /// What the map has of a range, cut to it, in order.
    pub fn within(&self, base: &Base, range: &Range<u64>) -> Result<Vec<Piece>> {
        if let Some(found) = covering(&read(&self.0), range) {
            return Ok(found);
        }
        let step = 1u64 << AROUND_SHIFT;
        let around = range.start / step * step..range.end.checked_next_multiple_of(step).unwrap_or(u64::MAX);
        let mut known = write(&self.0);
        if known.len() > PIECES_MAX {
            *known = Overlay::default();
        }
        // Also how far away the next ones are: new objects lie behind all others.
        let (pieces, around) = base.within(&around)?;
        with_holes(&pieces, &around).into_iter().for_each(|piece| known.set(piece));
        Ok(covering(&known, range).expect("what was asked of the map is known"))
    }

    /// The piece that has a block, if it is known.
    pub fn piece_at(&self, block: u64) -> Option<Piece> {
        read(&self.0).at(block, &(0..u64::MAX)).ok()
    }

    /// The map is another one now.
    pub fn forget(&self) {
        *write(&self.0) = Overlay::default();
    }

    /// The map has these changes now.
    pub fn note(&self, changes: &Overlay) {
        let mut known = write(&self.0);
        if known.len() + changes.len() > PIECES_MAX {
            *known = Overlay::default();
            return;
        }
        changes.pieces().for_each(|piece| known.set(piece));
    }
}

/// The mapped pieces of a range. `None`: not all of the range is known.
fn covering(known: &Overlay, range: &Range<u64>) -> Option<Vec<Piece>> {
    let (mut found, mut next) = (Vec::new(), range.start);
    for piece in known.within(range.clone()) {
        if piece.first != next {
            return None;
        }
        next = piece.end();
        if piece.block.is_some() {
            found.push(piece);
        }
    }
    (next == range.end).then_some(found)
}
