//! Which regions have an object: a bit for each, as it is now, and as the file has it for certain.
//!
//! A round brings what has changed to the file: the bits as they were when it began, when all data that they stand for
//! are safe; then the regions of objects that were removed are punched. It does no I/O itself.
//!
//! Invariant: a region that is to be punched has no bit, and gets none before it was.

use super::header::GROUP;
use crate::{BLOCK_BYTES, read, write};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::RwLock;

const WORDS: usize = BLOCK_BYTES / 8;

/// Bits of a group of regions.
type Bits = Box<[u64; WORDS]>;

/// See the module.
#[derive(Default)]
pub(super) struct Existence(RwLock<State>);

#[derive(Default)]
struct State {
    /// Those that have a block in the file.
    groups: BTreeMap<u64, Group>,
    /// Groups of which the file may have other bits than there are now.
    changed: BTreeSet<u64>,
    /// What is to be punched: first addresses, and ends.
    gone: BTreeMap<u64, u64>,
}

struct Group {
    now: Bits,
    safe: Bits,
}

/// What one sync brings to the file.
pub(super) struct Round {
    groups: Vec<(u64, Bits)>,
    gone: Vec<Range<u64>>,
}

impl Round {
    /// Groups, and the bytes of their blocks.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = (u64, Vec<u8>)> {
        self.groups.iter().map(|(group, bits)| (*group, bits.iter().flat_map(|word| word.to_le_bytes()).collect()))
    }

    /// What is to be punched after that.
    pub fn gone(&self) -> &[Range<u64>] {
        &self.gone
    }
}

impl Existence {
    /// Has the bits of a group as the file has them.
    pub fn load(&self, group: u64, block: &[u8]) {
        let mut now: Bits = Box::new([0; WORDS]);
        for (word, bytes) in now.iter_mut().zip(block.chunks_exact(8)) {
            *word = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        }
        let safe = now.clone();
        write(&self.0).groups.insert(group, Group { now, safe });
    }

    /// Whether the file has a block for a group.
    pub fn has_group(&self, group: u64) -> bool {
        read(&self.0).groups.contains_key(&group)
    }

    /// Whether the object is there.
    pub fn has(&self, id: u64) -> bool {
        read(&self.0).groups.get(&(id / GROUP)).is_some_and(|group| bit(&group.now, id))
    }

    /// Whether it is there after a crash, too, as long as nobody removes it.
    pub fn is_safe(&self, id: u64) -> bool {
        let state = read(&self.0);
        state.groups.get(&(id / GROUP)).is_some_and(|group| bit(&group.safe, id) && bit(&group.now, id))
    }

    /// The object is there from now on; its group has a block.
    pub fn set(&self, id: u64) {
        let mut state = write(&self.0);
        if let Some(group) = state.groups.get_mut(&(id / GROUP)) {
            change(&mut group.now, id, true);
            state.changed.insert(id / GROUP);
        }
    }

    /// The object is not there any more, and this part of its region is to be punched. `false`: it was not there.
    pub fn clear(&self, id: u64, part: Range<u64>) -> bool {
        let mut state = write(&self.0);
        let Some(group) = state.groups.get_mut(&(id / GROUP)).filter(|group| bit(&group.now, id)) else {
            return false;
        };
        change(&mut group.now, id, false);
        state.changed.insert(id / GROUP);
        state.note_gone(part);
        true
    }

    /// None is there any more.
    pub fn clear_all(&self, regions: Range<u64>) {
        let mut state = write(&self.0);
        let State { groups, changed, .. } = &mut *state;
        for (number, group) in groups.iter_mut().filter(|(_, group)| group.now.iter().any(|word| *word != 0)) {
            group.now.fill(0);
            changed.insert(*number);
        }
        state.gone.clear();
        state.note_gone(regions);
    }

    /// Whether a removed object's region is yet to be punched.
    pub fn is_gone(&self, address: u64) -> bool {
        read(&self.0).is_gone(address)
    }

    /// Objects from one on: some, ascending.
    pub fn some_from(&self, first: u64) -> Vec<u64> {
        let state = read(&self.0);
        let mut groups = state.groups.range(first / GROUP..);
        let found = groups.find_map(|(number, group)| {
            let ids = (number * GROUP..).take(GROUP as usize).filter(|id| *id >= first && bit(&group.now, *id));
            Some(ids.collect::<Vec<_>>()).filter(|ids| !ids.is_empty())
        });
        found.unwrap_or_default()
    }

    /// What is to be brought to the file now.
    pub fn begin(&self) -> Round {
        let state = read(&self.0);
        let bits = |number: &u64| Some((*number, state.groups.get(number)?.now.clone()));
        let groups = state.changed.iter().filter_map(bits).collect();
        let mut gone: Vec<Range<u64>> = Vec::new();
        for (start, end) in &state.gone {
            match gone.last_mut().filter(|last| last.end >= *start) {
                Some(last) => last.end = last.end.max(*end),
                None => gone.push(*start..*end),
            }
        }
        Round { groups, gone }
    }

    /// All of it was brought there, for certain.
    pub fn end(&self, round: Round) {
        let mut state = write(&self.0);
        for (number, bits) in round.groups {
            if let Some(group) = state.groups.get_mut(&number) {
                let is_same = group.now == bits;
                group.safe = bits;
                if is_same {
                    state.changed.remove(&number);
                }
            }
        }
        for range in round.gone {
            // More may have come that begins there.
            let is_done = |(_, end): &(&u64, &u64)| **end <= range.end;
            let done: Vec<u64> = state.gone.range(range.clone()).filter(is_done).map(|(start, _)| *start).collect();
            for start in done {
                state.gone.remove(&start);
            }
        }
    }
}

impl State {
    fn note_gone(&mut self, range: Range<u64>) {
        let end = self.gone.entry(range.start).or_insert(range.end);
        *end = (*end).max(range.end);
    }

    /// Of all ranges the first one may be of all regions.
    fn is_gone(&self, address: u64) -> bool {
        let near = [self.gone.first_key_value(), self.gone.range(..=address).next_back()];
        near.into_iter().flatten().any(|(start, end)| (*start..*end).contains(&address))
    }
}

fn place(id: u64) -> (usize, u32) {
    ((id % GROUP / 64) as usize, (id % 64) as u32)
}

fn bit(bits: &Bits, id: u64) -> bool {
    let (word, shift) = place(id);
    bits.get(word).is_some_and(|word| word >> shift & 1 == 1)
}

fn change(bits: &mut Bits, id: u64, is_there: bool) {
    let (word, shift) = place(id);
    if let Some(word) = bits.get_mut(word) {
        *word = *word & !(1 << shift) | u64::from(is_there) << shift;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits_of(round: &Round) -> Vec<(u64, Vec<u64>)> {
        let ids = |block: &[u8]| (0..GROUP).filter(|id| block[(id / 8) as usize] >> (id % 8) & 1 == 1).collect();
        round.groups().map(|(group, block)| (group, ids(&block))).collect()
    }

    #[test]
    fn a_round_has_what_there_was_when_it_began_and_the_next_one_the_rest() {
        let existence = Existence::default();
        [0, 1].iter().for_each(|group| existence.load(*group, &[0; BLOCK_BYTES]));
        existence.set(7);
        existence.set(GROUP + 3);
        let first = existence.begin();
        existence.set(8);
        assert!(existence.clear(7, 700..800) && !existence.clear(9, 900..1000) && !existence.has(7));
        assert_eq!(bits_of(&first), [(0, vec![7]), (1, vec![3])]);
        assert!(first.gone().is_empty() && !existence.is_safe(GROUP + 3));
        existence.end(first);
        assert!(existence.is_safe(GROUP + 3) && !existence.is_safe(7) && !existence.is_safe(8));
        assert!(existence.is_gone(700) && existence.is_gone(799) && !existence.is_gone(800));

        // One that failed: nothing is known of what the file has.
        assert_eq!(bits_of(&existence.begin()), [(0, vec![8])]);
        assert!(existence.clear(8, 800..900));
        let second = existence.begin();
        assert_eq!(bits_of(&second), [(0, vec![])]);
        assert!(second.gone().iter().eq([&(700..900)]));
        existence.end(second);
        assert!(!existence.is_gone(700) && existence.begin().groups().len() == 0);
        assert_eq!((existence.some_from(0), existence.some_from(GROUP + 4)), (vec![GROUP + 3], vec![]));

        // What more is to be punched is punched, although a part of it just was.
        existence.set(8);
        assert!(existence.clear(8, 100..200));
        let before = existence.begin();
        existence.clear_all(100..10_000);
        existence.end(before);
        assert!(existence.is_gone(5000) && existence.some_from(0).is_empty());
        let third = existence.begin();
        assert_eq!(bits_of(&third), [(1, vec![])]);
        assert!(third.gone().iter().eq([&(100..10_000)]));
    }
}
