//! Locked ranges of one owner of one file.
//!
//! Invariant: ascending and apart; neighbours of one mode are one range.

use crate::lock::{LockRange, RangeLock};
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LockedRanges(Vec<RangeLock>);

impl LockedRanges {
    /// Returns true if nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Locks a range; what was locked of it takes the new mode.
    pub fn set(&mut self, lock: RangeLock) {
        self.clear(lock.range);
        let mut at = self.0.partition_point(|other| other.range.end < lock.range.start);
        let mut merged = lock;
        if let Some(next) = self.0.get(at)
            && next.mode == lock.mode
            && next.range.start == lock.range.end + 1
        {
            merged.range.end = next.range.end;
            self.0.remove(at);
        }
        if let Some(before) = at.checked_sub(1).and_then(|at| self.0.get(at))
            && before.mode == lock.mode
            && before.range.end + 1 == lock.range.start
        {
            merged.range.start = before.range.start;
            at -= 1;
            self.0.remove(at);
        }
        self.0.insert(at, merged);
    }

    /// Unlocks a range; what sticks out on either side stays locked.
    pub fn clear(&mut self, range: LockRange) {
        let first = self.0.partition_point(|other| other.range.end < range.start);
        let last = self.0.partition_point(|other| other.range.start <= range.end);
        if first == last {
            return;
        }
        let (head, tail) = (self.0[first], self.0[last - 1]);
        let before = (head.range.start < range.start)
            .then(|| RangeLock { range: LockRange { end: range.start - 1, ..head.range }, ..head });
        let after = (tail.range.end > range.end)
            .then(|| RangeLock { range: LockRange { start: range.end + 1, ..tail.range }, ..tail });
        self.0.splice(first..last, before.into_iter().chain(after));
    }

    /// Returns true if the whole range is locked in this mode.
    pub fn covers(&self, lock: RangeLock) -> bool {
        let mut missing = LockedRanges::default();
        missing.set(lock);
        self.iter().filter(|held| held.mode == lock.mode).for_each(|held| missing.clear(held.range));
        missing.is_empty()
    }

    /// Returns the first range that another owner's lock conflicts with.
    pub fn conflict(&self, lock: RangeLock) -> Option<RangeLock> {
        let first = self.0.partition_point(|other| other.range.end < lock.range.start);
        let overlapping = self.0[first..].iter().take_while(|other| other.range.start <= lock.range.end);
        overlapping.copied().find(|other| other.mode.conflicts(lock.mode))
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = RangeLock> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{LOCK_END, LockMode};
    use proptest::prelude::*;

    /// Bytes of the model: the last one stands for all from there to [`LOCK_END`].
    const BYTES: u64 = 24;

    fn range() -> impl Strategy<Value = LockRange> {
        (0..BYTES, 0..BYTES).prop_map(|(a, b)| {
            let (start, end) = (a.min(b), a.max(b));
            LockRange { start, end: if end == BYTES - 1 { LOCK_END } else { end } }
        })
    }

    fn step() -> impl Strategy<Value = (LockRange, Option<LockMode>)> {
        let mode = prop_oneof![Just(None), Just(Some(LockMode::Shared)), Just(Some(LockMode::Exclusive))];
        (range(), mode)
    }

    fn bytes(range: LockRange) -> std::ops::RangeInclusive<usize> {
        range.start as usize..=range.end.min(BYTES - 1) as usize
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Against an array with a mode for each byte.
        #[test]
        fn ranges_split_and_merge_as_bytes_do(
            steps in proptest::collection::vec(step(), 1..60), asked in step()
        ) {
            let (mut ranges, mut model) = (LockedRanges::default(), vec![None; BYTES as usize]);
            for (range, mode) in steps {
                match mode {
                    Some(mode) => ranges.set(RangeLock { range, mode }),
                    None => ranges.clear(range),
                }
                model[bytes(range)].fill(mode);
                let mut shown = vec![None; BYTES as usize];
                ranges.iter().for_each(|lock| shown[bytes(lock.range)].fill(Some(lock.mode)));
                prop_assert_eq!(&shown, &model);
                let runs = model.chunk_by(|a, b| a == b).filter(|run| run[0].is_some()).count();
                prop_assert_eq!(ranges.len(), runs, "{:?}", ranges);
            }
            let (range, mode) = (asked.0, asked.1.unwrap_or(LockMode::Shared));
            let first = bytes(range).find(|byte| model[*byte].is_some_and(|held| held.conflicts(mode)));
            let conflict = ranges.conflict(RangeLock { range, mode });
            prop_assert_eq!(conflict.is_some(), first.is_some());
            if let (Some(conflict), Some(first)) = (conflict, first) {
                prop_assert!(bytes(conflict.range).contains(&first));
            }
        }
    }
}
