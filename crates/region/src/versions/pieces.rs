//! Where blocks of each version lie: pieces of 2^level blocks at multiples of their size, so that the newest one up to a
//! version that has a block is found with one search for each level.

use crate::error::Result;
use std::collections::BTreeMap;
use std::ops::Range;

/// Position of what has no data: it reads zeros.
pub(super) const HOLE: u64 = u64::MAX;
/// Pieces with data have no more than 2 to the power of this blocks: a leaf's.
pub(super) const LEAF_LEVEL: u8 = 10;
/// Pieces without have no more than 2 to the power of this: all of the largest region.
const HOLE_LEVEL: u8 = 36;

/// A piece of a version. Ordered by place, the newest version first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    pub level: u8,
    pub slot: u64,
    /// The complement of the version.
    pub age: u64,
}

impl Key {
    pub fn new(level: u8, slot: u64, version: u64) -> Self {
        Self { level, slot, age: !version }
    }

    pub fn version(&self) -> u64 {
        !self.age
    }

    /// The blocks that it is of.
    pub fn blocks(&self) -> Range<u64> {
        self.slot << self.level..(self.slot + 1) << self.level
    }
}

/// The levels and slots of pieces that a range of blocks is cut into, in order, and where each begins.
pub(super) fn cut(blocks: Range<u64>, has_data: bool) -> impl Iterator<Item = (u8, u64)> {
    let level_max = if has_data { LEAF_LEVEL } else { HOLE_LEVEL };
    let mut next = blocks.start;
    std::iter::from_fn(move || {
        let left = blocks.end.checked_sub(next).filter(|left| *left > 0)?;
        let fits = u8::try_from(left.ilog2()).unwrap_or(level_max);
        let aligned = u8::try_from(next.trailing_zeros()).unwrap_or(level_max);
        let level = level_max.min(fits).min(aligned);
        let slot = next >> level;
        next += 1 << level;
        Some((level, slot))
    })
}

/// Something that knows pieces.
pub(super) trait Source {
    /// Tells of the newest piece up to a version in each of the slots of a level, in order: its version and position.
    fn newest(&self, level: u8, slots: Range<u64>, version: u64, tell: &mut dyn FnMut(u64, u64, u64)) -> Result<()>;
}

/// Pieces that the index does not have yet, and where they lie.
#[derive(Clone, Debug, Default)]
pub(super) struct Delta(BTreeMap<Key, u64>);

impl Delta {
    pub fn insert(&mut self, key: Key, position: u64) {
        self.0.insert(key, position);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Key, u64)> + '_ {
        self.0.iter().map(|(key, position)| (*key, *position))
    }

    /// Takes over older ones.
    pub fn add_below(&mut self, older: Self) {
        let newer = std::mem::replace(&mut self.0, older.0);
        self.0.extend(newer);
    }
}

impl Source for Delta {
    fn newest(&self, level: u8, slots: Range<u64>, version: u64, tell: &mut dyn FnMut(u64, u64, u64)) -> Result<()> {
        let mut slot = slots.start;
        while slot < slots.end && !self.0.is_empty() {
            let from = Key::new(level, slot, version);
            let Some((found, position)) = self.0.range(from..Key { level, slot: slots.end, age: 0 }).next() else {
                break;
            };
            if found.slot == slot || found.version() <= version {
                tell(found.slot, found.version(), *position);
                slot = found.slot + 1;
            } else {
                slot = found.slot;
            }
        }
        Ok(())
    }
}

/// For each of some blocks: the version that wrote it last, and the position where it lies.
pub(super) struct Look {
    blocks: Range<u64>,
    /// Version 0: nobody wrote it.
    found: Vec<(u64, u64)>,
}

impl Look {
    pub fn new(blocks: Range<u64>) -> Self {
        let count = usize::try_from(blocks.end - blocks.start).unwrap_or(0);
        Self { blocks, found: vec![(0, HOLE); count] }
    }

    /// Takes over what a source knows up to a version, in the levels whose bits are set. What was told later counts
    /// where two have the same.
    pub fn add(&mut self, source: &dyn Source, levels: u64, version: u64) -> Result<()> {
        for level in (0..=HOLE_LEVEL).filter(|level| levels >> level & 1 == 1) {
            let slots = self.blocks.start >> level..((self.blocks.end - 1) >> level) + 1;
            source.newest(level, slots, version, &mut |slot, version, position| {
                let piece = slot << level;
                let (start, end) = (piece.max(self.blocks.start), (piece + (1 << level)).min(self.blocks.end));
                let at = usize::try_from(start - self.blocks.start).unwrap_or(usize::MAX);
                let count = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
                for (block, place) in (start..).zip(self.found.iter_mut().skip(at).take(count)) {
                    if version >= place.0 {
                        *place = (version, if position == HOLE { HOLE } else { position + (block - piece) });
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Version and position of each block.
    pub fn into_found(self) -> Vec<(u64, u64)> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_fill_a_range(start in 0..5000u64, count in 1..20_000u64, has_data in any::<bool>()) {
            let mut next = start;
            for (level, slot) in cut(start..start + count, has_data) {
                let key = Key::new(level, slot, 1);
                prop_assert!(key.blocks().start == next && (level <= LEAF_LEVEL || !has_data));
                next = key.blocks().end;
            }
            prop_assert_eq!(next, start + count);
            prop_assert!(cut(start..start + count, false).count() <= 2 * 16);
        }

        #[test]
        fn the_newest_piece_of_a_version_is_found(
            writes in prop::collection::vec((0..200u64, 1..100u64, any::<bool>()), 1..60),
            asked in (0..300u64, 1..300u64),
            version in 0..70u64,
        ) {
            let (mut delta, mut levels, mut model) = (Delta::default(), 0u64, vec![(0u64, HOLE); 600]);
            for (number, (first, count, has_data)) in (1u64..).zip(&writes) {
                for (level, slot) in cut(*first..first + count, *has_data) {
                    let key = Key::new(level, slot, number);
                    levels |= 1 << level;
                    delta.insert(key, if *has_data { number * 1000 + (key.blocks().start - first) } else { HOLE });
                }
                if number <= version {
                    for block in 0..*count {
                        let place = &mut model[usize::try_from(first + block).unwrap()];
                        *place = (number, if *has_data { number * 1000 + block } else { HOLE });
                    }
                }
            }
            let range = asked.0..asked.0 + asked.1;
            let mut look = Look::new(range.clone());
            look.add(&delta, levels, version).unwrap();
            let expected = &model[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()];
            prop_assert_eq!(look.into_found(), expected);
        }
    }
}
