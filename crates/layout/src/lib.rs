//! Which objects hold which bytes of a file: pure arithmetic over [`Layout`].
//!
//! The objects of a striped file hold its stripes in turns, each without gaps:
//!
//! ```text
//! file      | 0 | 1 | 2 | 3 | 4 | 5 | 6 |
//! object 0  | 0 | 3 | 6 |
//! object 1  | 1 | 4 |
//! object 2  | 2 | 5 |
//! ```
//!
//! The size of the file is where the last of them ends in it: an object that is shorter than its part of the file has a
//! hole at its end. Cutting or extending each object to its part of a size gives the file that size.
//!
//! A split file has parts instead, whose bytes are told by extents ([`SplitIndex`]).
//!
//! Invariant: no other crate maps offsets of a file to those of objects, or sizes.
//! Not here: which objects a file has (`weft_protocol::layout`), how they are read and written.

mod split;

pub use split::{
    Alike, STRIDED_RUNS_MIN, SplitIndex, SplitPiece, Unpublished, below, class_of, covers, ends_within, is_strided,
    joined, meets, runs,
};

use serde::{Deserialize, Serialize};
use weft_protocol::{Layout, StripePlan};

/// How a file's bytes lie in its objects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Stripes {
    width: u64,
    /// `u64::MAX`: one object has all.
    stripe_bytes: u64,
}

/// A range of a file that lies in one object without gaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Index of the object.
    pub index: usize,
    /// Where it begins in the object.
    pub object_offset: u64,
    /// Where it begins in the range that was asked for.
    pub start: usize,
    /// Its length.
    pub bytes: usize,
}

impl Piece {
    /// Where it ends in the range that was asked for.
    pub fn end(&self) -> usize {
        self.start + self.bytes
    }
}

impl Stripes {
    /// One object, with the file's offsets.
    pub const WHOLE: Self = Self { width: 1, stripe_bytes: u64::MAX };

    /// Of the objects that the layout has, or will have.
    pub fn of(layout: &Layout) -> Self {
        match layout {
            // Parts have the file's own offsets.
            Layout::Empty | Layout::Whole { .. } | Layout::Split { .. } => Self::WHOLE,
            Layout::Planned(plan) => Self::planned(*plan),
            Layout::Striped(striped) => Self::planned(striped.plan()),
        }
    }

    /// Of as many objects as planned.
    pub fn planned(plan: StripePlan) -> Self {
        Self { width: u64::from(plan.width()), stripe_bytes: u64::from(plan.stripe_bytes()) }
    }

    /// Number of objects.
    pub fn width(&self) -> usize {
        usize::try_from(self.width).expect("at most STRIPE_WIDTH_MAX")
    }

    /// Bytes of a stripe of each object.
    pub fn row_bytes(&self) -> usize {
        usize::try_from(self.width.saturating_mul(self.stripe_bytes)).unwrap_or(usize::MAX)
    }

    /// The pieces of a range, in their order.
    pub fn pieces(&self, offset: u64, bytes: usize) -> impl Iterator<Item = Piece> + use<> {
        let (stripes, mut start) = (*self, 0);
        std::iter::from_fn(move || {
            let left = bytes - start;
            if left == 0 {
                return None;
            }
            let piece = stripes.piece_at(offset + start as u64, start, left);
            start = piece.end();
            Some(piece)
        })
    }

    /// The piece at an offset of the file, at most `left` bytes long. `start`: where it begins in the range that was
    /// asked for.
    pub fn piece_at(&self, offset: u64, start: usize, left: usize) -> Piece {
        let (stripe, within) = (offset / self.stripe_bytes, offset % self.stripe_bytes);
        let (row, index) = (stripe / self.width, stripe % self.width);
        let rest = usize::try_from(self.stripe_bytes - within).unwrap_or(usize::MAX);
        Piece {
            index: usize::try_from(index).expect("below the width"),
            object_offset: row * self.stripe_bytes + within,
            start,
            bytes: left.min(rest),
        }
    }

    /// Bytes that an object has of a file of this size.
    pub fn object_bytes(&self, index: usize, size: u64) -> u64 {
        if self.width == 1 {
            return size;
        }
        let row_bytes = self.width * self.stripe_bytes;
        let before = index as u64 * self.stripe_bytes;
        let rest = (size % row_bytes).saturating_sub(before).min(self.stripe_bytes);
        size / row_bytes * self.stripe_bytes + rest
    }

    /// Where an object that has so many bytes ends in the file; 0: it has none. A length that no file gives it counts
    /// as the longest file.
    pub fn file_end(&self, index: usize, object_bytes: u64) -> u64 {
        let Some(last) = object_bytes.checked_sub(1) else { return 0 };
        self.file_offset(index, last).map_or(u64::MAX, |offset| offset + 1)
    }

    /// The file's offset of a byte of an object, if a file may be that long.
    fn file_offset(&self, index: usize, object_offset: u64) -> Option<u64> {
        let (row, within) = (object_offset / self.stripe_bytes, object_offset % self.stripe_bytes);
        let stripe = row.checked_mul(self.width)?.checked_add(index as u64)?;
        stripe.checked_mul(self.stripe_bytes)?.checked_add(within).filter(|offset| *offset < u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_protocol::limits::{FILE_BYTES_MAX, STRIPE_BYTES_MIN, STRIPE_WIDTH_MAX};

    /// Small stripes, so that files of few bytes have many.
    fn stripes() -> impl Strategy<Value = Stripes> {
        (1u64..6, 1u64..9).prop_map(|(width, stripe_bytes)| match width {
            1 => Stripes::WHOLE,
            width => Stripes { width, stripe_bytes },
        })
    }

    /// The file, byte by byte: which object has it, and where.
    fn model(stripes: Stripes, size: u64) -> Vec<(usize, u64)> {
        let mut ends = vec![0; stripes.width()];
        let of_byte = |offset: u64| {
            let index = usize::try_from(offset / stripes.stripe_bytes % stripes.width).expect("small");
            ends[index] += 1;
            (index, ends[index] - 1)
        };
        (0..size).map(of_byte).collect()
    }

    proptest! {
        #[test]
        fn pieces_are_the_bytes_of_the_model(stripes in stripes(), offset in 0u64..100, bytes in 0usize..100) {
            let all = model(stripes, 200);
            let mut found = Vec::new();
            let mut pieces = 0;
            for piece in stripes.pieces(offset, bytes) {
                prop_assert_eq!(piece.start, found.len());
                prop_assert!(piece.bytes > 0);
                found.extend((0..piece.bytes as u64).map(|byte| (piece.index, piece.object_offset + byte)));
                pieces += 1;
            }
            let start = usize::try_from(offset).expect("small");
            prop_assert_eq!(&found[..], &all[start..start + bytes]);
            prop_assert!(stripes.width() > 1 || pieces <= 1);
        }

        #[test]
        fn sizes_are_those_of_the_model(stripes in stripes(), size in 0u64..200) {
            let all = model(stripes, size);
            for index in 0..stripes.width() {
                let bytes = all.iter().filter(|(of, _)| *of == index).count() as u64;
                prop_assert_eq!(stripes.object_bytes(index, size), bytes);
                let end = all.iter().rposition(|(of, _)| *of == index).map_or(0, |last| last as u64 + 1);
                prop_assert_eq!(stripes.file_end(index, bytes), end);
            }
            let ends = (0..stripes.width()).map(|index| stripes.file_end(index, stripes.object_bytes(index, size)));
            prop_assert_eq!(ends.max(), Some(size));
        }

        #[test]
        fn any_length_that_a_server_tells_has_an_end(
            width in 1..=STRIPE_WIDTH_MAX, multiple in 1u32..100, index in 0usize..64, bytes: u64,
            size in 0..FILE_BYTES_MAX,
        ) {
            let plan = StripePlan::new(width, multiple * STRIPE_BYTES_MIN);
            let stripes = plan.map_or(Stripes::WHOLE, Stripes::planned);
            let index = index % stripes.width();
            prop_assert!(stripes.file_end(index, bytes) >= bytes);
            prop_assert!(stripes.file_end(index, stripes.object_bytes(index, size)) <= size);
        }
    }
}
