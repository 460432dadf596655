//! Which data blocks are in use: a bit for each.
//!
//! A block that was taken is *on its way* until a change of the mapping says what it is for: the map at a checkpoint
//! does not have it, so that a crash gives it back.

use crate::as_index;
use std::collections::{BTreeMap, BTreeSet};

/// Blocks of a group, whose bits are stored together.
pub(crate) const GROUP_BLOCKS: u64 = 32768;
/// Bytes of their bits.
pub(crate) const GROUP_BYTES: usize = 4096;
const WORD: u64 = 64;

/// See the module. Numbers of blocks count from the first data block.
#[derive(Debug)]
pub(crate) struct Space {
    words: Vec<u64>,
    blocks: u64,
    free: u64,
    /// Where the next search begins.
    next: u64,
    /// Groups that have changed since they were stored.
    changed: BTreeSet<u64>,
    /// Taken and mapped nowhere, or mapped nowhere any more and not given back: first ones and how many.
    on_their_way: BTreeMap<u64, u64>,
}

impl Space {
    /// All are free.
    pub fn new(blocks: u64) -> Self {
        let words = as_index(blocks.div_ceil(WORD));
        let (changed, on_their_way) = (BTreeSet::new(), BTreeMap::new());
        Self { words: vec![0; words], blocks, free: blocks, next: 0, changed, on_their_way }
    }

    pub fn free(&self) -> u64 {
        self.free
    }

    /// These are nobody's, and stay so: they are taken, and mapped nowhere.
    pub fn keep_away(&mut self, extents: impl Iterator<Item = (u64, u64)>) {
        for (first, count) in extents {
            self.set(first, count, true);
            self.on_their_way.insert(first, count);
        }
    }

    /// Takes up to `wanted` blocks that follow each other: the first ones free behind the last that were taken. `None`:
    /// none is free.
    pub fn take(&mut self, wanted: u64) -> Option<(u64, u64)> {
        if self.free == 0 || wanted == 0 {
            return None;
        }
        let first = self.next_free(self.next, self.blocks).or_else(|| self.next_free(0, self.next))?;
        let mut count = 1;
        while count < wanted && first + count < self.blocks && !self.is_used(first + count) {
            count += 1;
        }
        self.set(first, count, true);
        self.next = if first + count < self.blocks { first + count } else { 0 };
        self.on_their_way.insert(first, count);
        Some((first, count))
    }

    /// What was taken is mapped now. It may be a part of what was taken at once.
    pub fn settle(&mut self, first: u64, count: u64) {
        self.leave_way(first, count);
        self.note(first, count);
    }

    /// What was mapped is not any more; it is not free before it is given back.
    pub fn unsettle(&mut self, first: u64, count: u64) {
        self.on_their_way.insert(first, count);
        self.note(first, count);
    }

    /// Gives back what is on its way.
    pub fn give_back(&mut self, first: u64, count: u64) {
        self.leave_way(first, count);
        self.set(first, count, false);
    }

    /// At recovery: what a record says that it maps, or frees.
    pub fn restore(&mut self, first: u64, count: u64, used: bool) {
        self.set(first, count, used);
        self.note(first, count);
    }

    /// The blocks that are in use here and not there: first ones and how many, as long as they go.
    pub fn not_in(&self, other: &Self) -> Vec<(u64, u64)> {
        let mut found: Vec<(u64, u64)> = Vec::new();
        for (word, (here, there)) in (0u64..).zip(self.words.iter().zip(&other.words)) {
            let mut left = here & !there;
            while left != 0 {
                let start = left.trailing_zeros();
                let count = (left >> start).trailing_ones();
                left &= u64::MAX.checked_shl(start + count).unwrap_or(0);
                let start = word * WORD + u64::from(start);
                match found.last_mut().filter(|(last, so_many)| last + *so_many == start) {
                    Some((_, so_many)) => *so_many += u64::from(count),
                    None => found.push((start, u64::from(count))),
                }
            }
        }
        found
    }

    /// The groups that changed since they were asked for last, and their bits: those of blocks that are mapped.
    pub fn take_changed(&mut self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut self.changed).into_iter().map(|group| (group, self.group(group))).collect()
    }

    /// A group that was taken as changed could not be stored.
    pub fn note_group(&mut self, group: u64) {
        self.changed.insert(group);
    }

    /// Whether a block that is mapped may lie there.
    pub fn has(&self, first: u64, count: u64) -> bool {
        first.checked_add(count).is_some_and(|end| end <= self.blocks)
    }

    /// Takes over stored bits of a group.
    pub fn load(&mut self, group: u64, bits: &[u8]) {
        let start = as_index(group * GROUP_BLOCKS / WORD);
        for (word, bytes) in self.words.iter_mut().skip(start).zip(bits.chunks_exact(8)) {
            let loaded = bytes.try_into().map_or(0, u64::from_le_bytes);
            self.free = self.free + u64::from(word.count_ones()) - u64::from(loaded.count_ones());
            *word = loaded;
        }
    }

    fn group(&self, group: u64) -> Vec<u8> {
        let (start, end) = (group * GROUP_BLOCKS, ((group + 1) * GROUP_BLOCKS).min(self.blocks));
        let at = as_index(start / WORD);
        let words = self.words.iter().skip(at).take(GROUP_BYTES / 8);
        let mut bits: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        bits.resize(GROUP_BYTES, 0);
        let before = self.on_their_way.range(..start).next_back();
        for (&first, &count) in before.into_iter().chain(self.on_their_way.range(start..end)) {
            for block in first.max(start)..(first + count).min(end) {
                let bit = as_index(block - start);
                if let Some(byte) = bits.get_mut(bit / 8) {
                    *byte &= !(1 << (bit % 8));
                }
            }
        }
        bits
    }

    fn is_used(&self, block: u64) -> bool {
        let word = usize::try_from(block / WORD).ok().and_then(|word| self.words.get(word));
        word.is_none_or(|word| word & (1 << (block % WORD)) != 0)
    }

    fn next_free(&self, from: u64, to: u64) -> Option<u64> {
        let mut block = from;
        while block < to {
            let word = usize::try_from(block / WORD).ok().and_then(|word| self.words.get(word))?;
            let free = !word & (u64::MAX << (block % WORD));
            let found = block / WORD * WORD + u64::from(free.trailing_zeros());
            if free != 0 {
                return (found < to).then_some(found);
            }
            block = (block / WORD + 1) * WORD;
        }
        None
    }

    fn set(&mut self, first: u64, count: u64, used: bool) {
        for block in first..first + count {
            let Some(word) = usize::try_from(block / WORD).ok().and_then(|word| self.words.get_mut(word)) else {
                return;
            };
            let bit = 1 << (block % WORD);
            if (*word & bit != 0) != used {
                *word ^= bit;
                self.free = if used { self.free - 1 } else { self.free + 1 };
            }
        }
    }

    fn note(&mut self, first: u64, count: u64) {
        if count > 0 {
            self.changed.extend(first / GROUP_BLOCKS..=(first + count - 1) / GROUP_BLOCKS);
        }
    }

    fn leave_way(&mut self, first: u64, count: u64) {
        let end = first + count;
        let touched: Vec<(u64, u64)> = {
            let before = self.on_their_way.range(..first).next_back();
            let all = before.into_iter().chain(self.on_their_way.range(first..end));
            all.map(|(&first, &count)| (first, count)).filter(|(other, count)| other + count > first).collect()
        };
        for (other, count) in touched {
            self.on_their_way.remove(&other);
            if other < first {
                self.on_their_way.insert(other, first - other);
            }
            if other + count > end {
                self.on_their_way.insert(end, other + count - end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn all_blocks_can_be_taken_once_and_again_when_given_back() {
        let mut space = Space::new(1000);
        let mut taken = Vec::new();
        while let Some((first, count)) = space.take(7) {
            taken.push((first, count));
        }
        assert_eq!((taken.iter().map(|(_, count)| count).sum::<u64>(), space.free()), (1000, 0));
        for &(first, count) in taken.iter().step_by(2) {
            space.give_back(first, count);
        }
        let free = space.free();
        let again: u64 = std::iter::from_fn(|| space.take(100)).map(|(_, count)| count).sum();
        assert_eq!(again, free);
    }

    proptest! {
        #[test]
        fn what_is_in_use_here_only_is_told_in_runs(
            runs in prop::collection::vec((0..600u64, 1..150u64, 0..3u8), 0..30),
        ) {
            const BLOCKS: u64 = 800;
            let (mut here, mut there) = (Space::new(BLOCKS), Space::new(BLOCKS));
            for (first, count, whose) in runs {
                here.set(first, count, whose != 1);
                there.set(first, count, whose > 0);
            }
            let found = here.not_in(&there);
            prop_assert!(found.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0));
            let has = |block: u64| found.iter().any(|(first, count)| (*first..first + count).contains(&block));
            prop_assert!((0..BLOCKS).all(|block| has(block) == (here.is_used(block) && !there.is_used(block))));
        }
    }

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Is {
        Taken,
        Mapped,
        Leaving,
    }

    proptest! {
        /// What is stored is what is mapped, and what is loaded again is free but for that.
        #[test]
        fn what_is_stored_is_what_is_mapped(steps in prop::collection::vec((0..4u8, any::<u16>()), 0..200)) {
            let blocks = 2 * GROUP_BLOCKS + 100;
            let (mut space, mut loaded) = (Space::new(blocks), Space::new(blocks));
            let mut model: HashMap<u64, Is> = HashMap::new();
            for (step, number) in steps {
                let pick = |model: &HashMap<u64, Is>, is: Is| {
                    let of_kind = model.iter().filter(|(_, found)| **found == is);
                    let mut all: Vec<u64> = of_kind.map(|(block, _)| *block).collect();
                    all.sort_unstable();
                    (!all.is_empty()).then(|| all[usize::from(number) % all.len()])
                };
                match step {
                    0 => {
                        space.next = u64::from(number) * 2 % blocks;
                        let (first, count) = space.take(u64::from(number) % 5 + 1).unwrap();
                        for block in first..first + count {
                            prop_assert_eq!(model.insert(block, Is::Taken), None);
                        }
                    }
                    1 => if let Some(block) = pick(&model, Is::Taken) {
                        space.settle(block, 1);
                        model.insert(block, Is::Mapped);
                    },
                    2 => if let Some(block) = pick(&model, Is::Mapped) {
                        space.unsettle(block, 1);
                        model.insert(block, Is::Leaving);
                    },
                    _ => if let Some(block) = pick(&model, Is::Leaving).or(pick(&model, Is::Taken)) {
                        space.give_back(block, 1);
                        model.remove(&block);
                    },
                }
                prop_assert_eq!(space.free(), blocks - model.len() as u64);
                if number % 8 == 0 {
                    for (group, bits) in space.take_changed() {
                        loaded.load(group, &bits);
                    }
                    let mapped = |block: u64| model.get(&block) == Some(&Is::Mapped);
                    prop_assert!((0..blocks).all(|block| loaded.is_used(block) == mapped(block)));
                }
            }
        }
    }
}
