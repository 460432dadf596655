//! What was mapped, and taken away, since the last checkpoint: ranges of virtual blocks, none of which overlap.

use std::collections::BTreeMap;
use std::ops::Range;

/// A range of virtual blocks, and the first of the blocks where it lies; `None`: nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub first: u64,
    pub count: u64,
    pub block: Option<u64>,
}

impl Piece {
    pub fn end(&self) -> u64 {
        self.first + self.count
    }

    /// The block where a mapped piece begins.
    pub fn mapped_at(&self) -> u64 {
        self.block.expect("a mapped piece lies somewhere")
    }

    /// What of it lies before and behind a range.
    pub fn without(&self, range: &Range<u64>) -> impl Iterator<Item = Self> + use<> {
        [self.within(&(0..range.start)), self.within(&(range.end..u64::MAX))].into_iter().flatten()
    }

    /// What of it lies in a range.
    pub fn within(&self, range: &Range<u64>) -> Option<Self> {
        let (first, end) = (self.first.max(range.start), self.end().min(range.end));
        let block = self.block.map(|block| block + (first.saturating_sub(self.first)));
        (first < end).then(|| Self { first, count: end - first, block })
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    /// By the first virtual block.
    pieces: BTreeMap<u64, (u64, Option<u64>)>,
}

impl Overlay {
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        self.pieces.iter().map(|(&first, &(count, block))| Piece { first, count, block })
    }

    /// How many pieces there are.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// The pieces that lie in a range, cut to it, in order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Piece> + '_ {
        self.touching(range.clone()).filter_map(move |piece| piece.within(&range))
    }

    /// The piece that has a block, cut to a range around it; or else what of the range lies between the pieces before
    /// and behind it.
    pub fn at(&self, block: u64, around: &Range<u64>) -> Result<Piece, Range<u64>> {
        let before = self.pieces.range(..=block).next_back();
        let before = before.map(|(&first, &(count, block))| Piece { first, count, block });
        match before {
            Some(piece) if block < piece.end() => piece.within(around).ok_or(block..block),
            before => {
                let start = before.map_or(0, |piece| piece.end()).max(around.start);
                let behind = self.pieces.range(block..).next().map_or(u64::MAX, |(first, _)| *first);
                Err(start..behind.min(around.end))
            }
        }
    }

    /// The pieces that may have a part in a range, whole and in order.
    fn touching(&self, range: Range<u64>) -> impl Iterator<Item = Piece> + '_ {
        let before = self.pieces.range(..range.start).next_back();
        let inside = self.pieces.range(range.start..range.end.max(range.start));
        before.into_iter().chain(inside).map(|(&first, &(count, block))| Piece { first, count, block })
    }

    /// This range is so from now on, whatever it was.
    pub fn set(&mut self, piece: Piece) {
        let range = piece.first..piece.end();
        // Mostly nothing was there.
        let is_new =
            self.pieces.range(..range.end).next_back().is_none_or(|(first, (count, _))| first + count <= range.start);
        if !is_new {
            self.cut_out(&range);
        }
        self.join(piece);
    }

    fn cut_out(&mut self, range: &Range<u64>) {
        let touched: Vec<Piece> = self.touching(range.clone()).filter(|old| old.within(range).is_some()).collect();
        for old in touched {
            self.pieces.remove(&old.first);
            for rest in old.without(range) {
                self.pieces.insert(rest.first, (rest.count, rest.block));
            }
        }
    }

    /// Inserts a piece, as one with those it goes on from or into.
    fn join(&mut self, mut piece: Piece) {
        let goes_on = |before: Piece, after: Piece| {
            let follows = match (before.block, after.block) {
                (Some(block), Some(next)) => block + before.count == next,
                (None, None) => true,
                _ => false,
            };
            follows && before.end() == after.first
        };
        if let Some((&first, &(count, block))) = self.pieces.range(..piece.first).next_back() {
            let before = Piece { first, count, block };
            if goes_on(before, piece) {
                self.pieces.remove(&first);
                piece = Piece { first, count: count + piece.count, block };
            }
        }
        if let Some((&first, &(count, block))) = self.pieces.range(piece.end()..).next()
            && goes_on(piece, Piece { first, count, block })
        {
            self.pieces.remove(&first);
            piece.count += count;
        }
        self.pieces.insert(piece.first, (piece.count, piece.block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCKS: usize = 64;

    fn at(block: u64) -> usize {
        usize::try_from(block).unwrap()
    }

    proptest! {
        #[test]
        fn ranges_are_as_an_array_would_have_them(
            changes in prop::collection::vec((0..60u64, 1..5u64, prop::option::of(0..1000u64)), 0..100),
            asked in (0..64u64, 0..64u64),
        ) {
            let mut overlay = Overlay::default();
            let mut model: Vec<Option<Option<u64>>> = vec![None; BLOCKS];
            for (first, count, block) in changes {
                overlay.set(Piece { first, count, block });
                for offset in 0..count {
                    model[at(first + offset)] = Some(block.map(|block| block + offset));
                }
            }
            let mut found: Vec<Option<Option<u64>>> = vec![None; BLOCKS];
            let mut last_end = 0;
            for piece in overlay.pieces() {
                prop_assert!(piece.first >= last_end && piece.count > 0);
                last_end = piece.end();
                for offset in 0..piece.count {
                    found[at(piece.first + offset)] = Some(piece.block.map(|block| block + offset));
                }
            }
            prop_assert_eq!(&found, &model);
            let (start, end) = (asked.0.min(asked.1), asked.0.max(asked.1));
            let mut within: Vec<Option<Option<u64>>> = vec![None; BLOCKS];
            for piece in overlay.within(start..end) {
                prop_assert!(piece.first >= start && piece.end() <= end);
                for offset in 0..piece.count {
                    within[at(piece.first + offset)] = Some(piece.block.map(|block| block + offset));
                }
            }
            for (number, expected) in model.iter().enumerate() {
                let inside = (start..end).contains(&(number as u64));
                prop_assert_eq!(within[number], if inside { *expected } else { None });
            }
            for block in start..end {
                match overlay.at(block, &(start..end)) {
                    Ok(piece) => {
                        prop_assert!((start..=block).contains(&piece.first));
                        prop_assert!((block..end).contains(&(piece.end() - 1)));
                        let places = (0..piece.count).map(|offset| piece.block.map(|block| block + offset));
                        let expected = &model[at(piece.first)..at(piece.end())];
                        prop_assert!(places.map(Some).eq(expected.iter().copied()));
                    }
                    Err(gap) => {
                        prop_assert!(gap.contains(&block));
                        prop_assert!(model[at(gap.start)..at(gap.end)].iter().all(Option::is_none));
                        prop_assert!(gap.start == start || model[at(gap.start - 1)].is_some());
                        prop_assert!(gap.end == end || model[at(gap.end)].is_some());
                    }
                }
            }
        }
    }

    #[test]
    fn what_goes_on_is_one_piece() {
        let mut overlay = Overlay::default();
        for first in [0, 2, 1, 3] {
            overlay.set(Piece { first, count: 1, block: Some(first + 100) });
        }
        assert_eq!(overlay.pieces().collect::<Vec<_>>(), [Piece { first: 0, count: 4, block: Some(100) }]);
        overlay.set(Piece { first: 1, count: 1, block: None });
        assert_eq!(overlay.len(), 3);
    }
}
