//! Where blocks of each version lie: pieces of 2^level blocks at multiples of their size, so that the newest one up to
//! a version that has a block is found with one search for each level.

use crate::as_index;
use crate::error::Result;
use std::collections::BTreeMap;
use std::ops::Range;

/// Position of what has no data: it reads zeros.
pub(super) const HOLE: u64 = u64::MAX;
/// Blocks of a leaf are 2 to the power of this. No piece is larger.
pub(super) const LEAF_LEVEL: u8 = 10;
/// Blocks of a leaf.
pub(super) const LEAF_BLOCKS: u64 = 1 << LEAF_LEVEL;

/// A piece of a version. Ordered by place, the newest version first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    pub leaf: u64,
    pub level: u8,
    /// In the leaf, of pieces of this level.
    pub slot: u64,
    /// The complement of the version.
    pub age: u64,
}

impl Key {
    pub fn version(&self) -> u64 {
        !self.age
    }

    /// The blocks that it is of.
    pub fn blocks(&self) -> Range<u64> {
        let first = (self.leaf << LEAF_LEVEL) + (self.slot << self.level);
        first..first + (1 << self.level)
    }
}

/// The pieces that a range of blocks of a version is cut into, in order.
pub(super) fn cut(blocks: Range<u64>, version: u64) -> impl Iterator<Item = Key> {
    let mut next = blocks.start;
    std::iter::from_fn(move || {
        let left = blocks.end.checked_sub(next).filter(|left| *left > 0)?;
        let level = left.ilog2().min(next.trailing_zeros()).min(u32::from(LEAF_LEVEL));
        let (leaf, slot) = (next >> LEAF_LEVEL, (next % LEAF_BLOCKS) >> level);
        next += 1 << level;
        Some(Key { leaf, level: u8::try_from(level).expect("a level of a leaf"), slot, age: !version })
    })
}

/// A range of blocks cut at the borders of leaves.
pub(super) fn by_leaf(blocks: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
    let (mut next, end) = (blocks.start, blocks.end);
    std::iter::from_fn(move || {
        let leaf = next / LEAF_BLOCKS;
        let part = next..end.min((leaf + 1) * LEAF_BLOCKS);
        next = part.end;
        (part.start < part.end).then_some((leaf, part))
    })
}

/// Slots of a level in a leaf.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    pub leaf: u64,
    pub level: u8,
    pub slots: Range<u64>,
}

impl Slots {
    /// Where the newest piece of a slot up to a version is, or would be.
    pub fn from(&self, slot: u64, version: u64) -> Key {
        Key { leaf: self.leaf, level: self.level, slot, age: !version }
    }

    /// Behind all of them.
    pub fn end(&self) -> Key {
        Key { leaf: self.leaf, level: self.level, slot: self.slots.end, age: 0 }
    }
}

/// Something that knows pieces.
pub(super) trait Source {
    /// Tells of the newest piece up to a version in each of some slots, in order, and its position.
    fn newest(&self, slots: Slots, version: u64, tell: &mut dyn FnMut(Key, u64)) -> Result<()>;
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
    fn newest(&self, slots: Slots, version: u64, tell: &mut dyn FnMut(Key, u64)) -> Result<()> {
        let mut slot = slots.slots.start;
        while slot < slots.slots.end && !self.0.is_empty() {
            let Some((key, position)) = self.0.range(slots.from(slot, version)..slots.end()).next() else { break };
            if key.slot == slot || key.version() <= version {
                tell(*key, *position);
                slot = key.slot + 1;
            } else {
                slot = key.slot;
            }
        }
        Ok(())
    }
}

/// For each of some blocks of a leaf: the version that wrote it last, and the position where it lies.
pub(super) struct Look {
    leaf: u64,
    blocks: Range<u64>,
    /// Version 0: nobody wrote it.
    found: Vec<(u64, u64)>,
}

impl Look {
    pub fn new(leaf: u64, blocks: Range<u64>) -> Self {
        let count = as_index(blocks.end - blocks.start);
        Self { leaf, blocks, found: vec![(0, HOLE); count] }
    }

    /// Takes over what a source knows up to a version, in the levels whose bits are set. What was told later counts
    /// where two have the same.
    pub fn add(&mut self, source: &dyn Source, levels: u64, version: u64) -> Result<()> {
        let first = self.leaf << LEAF_LEVEL;
        let (from, to) = (self.blocks.start - first, self.blocks.end - 1 - first);
        for level in (0..=LEAF_LEVEL).filter(|level| levels >> level & 1 == 1) {
            let slots = Slots { leaf: self.leaf, level, slots: from >> level..(to >> level) + 1 };
            source.newest(slots, version, &mut |key, position| {
                let piece = key.blocks();
                let (start, end) = (piece.start.max(self.blocks.start), piece.end.min(self.blocks.end));
                let at = as_index(start - self.blocks.start);
                let count = as_index(end.saturating_sub(start));
                for (block, place) in (start..).zip(self.found.iter_mut().skip(at).take(count)) {
                    if key.version() >= place.0 {
                        let position = if position == HOLE { HOLE } else { position + (block - piece.start) };
                        *place = (key.version(), position);
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
        fn pieces_fill_a_range(start in 0..5000u64, count in 1..20_000u64) {
            let mut next = start;
            for key in cut(start..start + count, 1) {
                prop_assert!(key.blocks().start == next && key.level <= LEAF_LEVEL && key.slot < LEAF_BLOCKS);
                next = key.blocks().end;
            }
            prop_assert_eq!(next, start + count);
        }

        #[test]
        fn the_newest_piece_of_a_version_is_found(
            writes in prop::collection::vec((900..1200u64, 1..300u64, any::<bool>()), 1..60),
            asked in (900..1300u64, 1..300u64),
            version in 0..70u64,
        ) {
            let (mut delta, mut levels, mut model) = (Delta::default(), 0u64, vec![(0u64, HOLE); 2000]);
            for (number, (first, count, has_data)) in (1u64..).zip(&writes) {
                for key in cut(*first..first + count, number) {
                    levels |= 1 << key.level;
                    delta.insert(key, if *has_data { number * 1000 + (key.blocks().start - first) } else { HOLE });
                }
                if number <= version {
                    for block in 0..*count {
                        let place = &mut model[usize::try_from(first + block).unwrap()];
                        *place = (number, if *has_data { number * 1000 + block } else { HOLE });
                    }
                }
            }
            for (leaf, range) in by_leaf(&(asked.0..asked.0 + asked.1)) {
                let mut look = Look::new(leaf, range.clone());
                look.add(&delta, levels, version).unwrap();
                let expected = &model[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()];
                prop_assert_eq!(look.into_found(), expected);
            }
        }
    }
}
