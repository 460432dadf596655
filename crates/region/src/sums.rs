//! Checksums of blocks of the device, as they are known of some of them: groups of [`GROUP_BLOCKS`].
//!
//! That a block has none is known, too.

use crate::as_index;
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks of a group, whose checksums are stored together.
pub(crate) const GROUP_BLOCKS: u64 = 32;
/// Bytes of them.
pub(crate) const GROUP_BYTES: usize = 4 * GROUP_BLOCKS as usize;
/// In place of the checksum of a block that has none.
pub(crate) const NO_SUM: u32 = 0;

/// The checksum of the bytes of a block and of its place, a virtual block or the block of a file: bytes that belong
/// elsewhere do not match it.
pub(crate) fn sum_at(place: u64, block: &[u8]) -> u32 {
    // One more block in 2^32 has the checksum 1.
    crc32c::crc32c_append(crc32c::crc32c(&place.to_le_bytes()), block).max(NO_SUM + 1)
}

/// What is known of a group.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Group {
    /// Of which blocks, a bit each.
    known: u32,
    sums: [u32; GROUP_BLOCKS as usize],
}

impl Group {
    /// No block has one.
    pub const NONE: Self = Self { known: u32::MAX, sums: [NO_SUM; GROUP_BLOCKS as usize] };

    /// All of it, as it is stored.
    pub fn decode(bytes: &[u8; GROUP_BYTES]) -> Self {
        let mut sums = [NO_SUM; GROUP_BLOCKS as usize];
        for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks().0) {
            *sum = u32::from_le_bytes(*bytes);
        }
        Self { known: u32::MAX, sums }
    }

    /// What is not known is none.
    pub fn encode(&self) -> [u8; GROUP_BYTES] {
        let mut bytes = [0; GROUP_BYTES];
        for (place, sum) in bytes.as_chunks_mut().0.iter_mut().zip(&self.sums) {
            *place = sum.to_le_bytes();
        }
        bytes
    }

    /// Whether nothing of it depends on what was known before.
    pub fn is_whole(&self) -> bool {
        self.known == u32::MAX
    }

    /// Whether no block of it is known to have one.
    pub fn is_empty(&self) -> bool {
        self.sums.iter().all(|sum| *sum == NO_SUM)
    }

    fn of(&self, index: usize) -> Option<u32> {
        self.sums.get(index).copied().filter(|_| self.known >> index & 1 == 1)
    }

    fn set(&mut self, index: usize, sum: u32) {
        if let Some(place) = self.sums.get_mut(index) {
            *place = sum;
            self.known |= 1 << index;
        }
    }

    /// Takes over what is known later.
    pub fn add(&mut self, later: &Self) {
        for index in 0..self.sums.len() {
            if let Some(sum) = later.of(index) {
                self.set(index, sum);
            }
        }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    groups: BTreeMap<u64, Group>,
}

impl Sums {
    /// How many groups something is known of.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    pub fn groups(&self) -> impl Iterator<Item = (u64, &Group)> {
        self.groups.iter().map(|(number, group)| (*number, group))
    }

    /// Blocks from `first` on have these, one behind the other.
    pub fn set(&mut self, first: u64, sums: &[u32]) {
        self.set_all(first, sums.len() as u64, sums.iter().copied());
    }

    /// These blocks have none.
    pub fn clear(&mut self, first: u64, count: u64) {
        self.set_all(first, count, std::iter::repeat(NO_SUM));
    }

    fn set_all(&mut self, first: u64, count: u64, mut sums: impl Iterator<Item = u32>) {
        for (number, part) in by_group(first..first + count) {
            let group = self.groups.entry(number).or_default();
            part.zip(&mut sums).for_each(|(index, sum)| group.set(index, sum));
        }
    }

    /// Has for blocks from `first` on what is known, of those of which `found` has nothing yet.
    pub fn fill(&self, first: u64, found: &mut [Option<u32>]) {
        let end = first + found.len() as u64;
        for (number, group) in self.groups.range(first / GROUP_BLOCKS..end.div_ceil(GROUP_BLOCKS)) {
            let begin = number * GROUP_BLOCKS;
            let skipped = as_index(begin.saturating_sub(first));
            let index = as_index(first.saturating_sub(begin));
            for (index, place) in (index..group.sums.len()).zip(found.iter_mut().skip(skipped)) {
                *place = place.or_else(|| group.of(index));
            }
        }
    }

    /// Takes over a group of which more is known later, or all of it.
    pub fn add_group(&mut self, number: u64, later: &Group) {
        self.groups.entry(number).or_default().add(later);
    }

    /// Takes over what is known later.
    pub fn add(&mut self, later: &Self) {
        later.groups().for_each(|(number, group)| self.add_group(number, group));
    }
}

/// The groups that blocks are in, and which of their blocks.
fn by_group(blocks: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let of = |number: u64, block: u64| as_index(block - number * GROUP_BLOCKS);
    (blocks.start / GROUP_BLOCKS..blocks.end.div_ceil(GROUP_BLOCKS)).map(move |number| {
        let (start, end) = (blocks.start.max(number * GROUP_BLOCKS), blocks.end.min((number + 1) * GROUP_BLOCKS));
        (number, of(number, start)..of(number, end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(block: u64) -> usize {
        usize::try_from(block).unwrap()
    }

    proptest! {
        #[test]
        fn checksums_are_as_an_array_would_have_them(
            changes in prop::collection::vec((0..150u64, 1..70u64, 0..3u32, any::<bool>()), 0..40),
            asked in (0..220u64, 0..100usize),
        ) {
            let (mut sums, mut later) = (Sums::default(), Sums::default());
            let mut model: Vec<Option<u32>> = vec![None; 400];
            for (number, (first, count, sum, is_later)) in (0u32..).zip(changes) {
                let some: Vec<u32> = (0..u32::try_from(count).unwrap()).map(|at| number * 1000 + at + sum).collect();
                if !is_later {
                    sums.add(&std::mem::take(&mut later));
                }
                let into = if is_later { &mut later } else { &mut sums };
                if sum == 0 { into.clear(first, count) } else { into.set(first, &some) }
                for (block, some) in (first..).zip(some) {
                    model[at(block)] = Some(if sum == 0 { NO_SUM } else { some });
                }
            }
            // What is known later counts.
            let mut found = vec![None; asked.1];
            later.fill(asked.0, &mut found);
            sums.fill(asked.0, &mut found);
            prop_assert_eq!(&found, &model[at(asked.0)..at(asked.0) + asked.1]);
            sums.add(&later);
            for (number, group) in sums.groups() {
                let stored = Group::decode(&group.encode());
                let all = (0..GROUP_BLOCKS).all(|block| {
                    let expected = model.get(at(number * GROUP_BLOCKS + block)).copied().flatten();
                    stored.of(at(block)) == Some(expected.unwrap_or(NO_SUM)) && group.of(at(block)) == expected
                });
                prop_assert!(all);
                prop_assert_eq!(group.is_empty(), stored.is_empty());
            }
        }
    }
}
