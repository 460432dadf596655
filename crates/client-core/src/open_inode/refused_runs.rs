//! Runs that are kept because a node had no space for them (`refused.rs` says what becomes of them).
//!
//! Invariant: they are disjoint, and none was overwritten by a later write.

use std::collections::BTreeMap;
use weft_protocol::ObjectId;

/// See the module.
#[derive(Default)]
pub(super) struct Refused {
    /// By offset.
    pub runs: BTreeMap<u64, Vec<u8>>,
    /// The object that refused them; `None`: it was never made.
    pub object: Option<ObjectId>,
    /// A program was told since.
    pub is_told: bool,
}

impl Refused {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Keeps a run, which is newer than those that are kept.
    pub fn keep(&mut self, object: Option<ObjectId>, offset: u64, bytes: Vec<u8>) {
        self.written(offset, bytes.len() as u64);
        self.object = object;
        self.runs.insert(offset, bytes);
    }

    /// A run that is newer than those that are kept was written, or is kept now: of older ones its range goes.
    pub fn written(&mut self, offset: u64, bytes: u64) {
        let end = offset + bytes;
        let end_of = |(start, run): (&u64, &Vec<u8>)| (*start, start + run.len() as u64);
        while let Some((start, run_end)) = self.runs.range(..end).next_back().map(end_of).filter(|run| run.1 > offset) {
            let mut head = self.runs.remove(&start).expect("it was found just now");
            if run_end > end {
                self.runs.insert(end, head.split_off(index(end - start)));
            }
            if start < offset {
                head.truncate(index(offset - start));
                self.runs.insert(start, head);
            }
        }
    }

    /// Drops what lies at and behind `size`: the file was cut there.
    pub fn cut(&mut self, size: u64) {
        self.written(size, u64::MAX - size);
    }

    /// Drops all, if a program knows that they were not written. Returns whether there were any.
    pub fn clear_if_told(&mut self) -> bool {
        self.is_told && self.clear()
    }

    /// Drops all. Returns whether there were any.
    pub fn clear(&mut self) -> bool {
        !std::mem::take(self).is_empty()
    }
}

/// Runs are in memory.
fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset within a run fits in memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What becomes of a run that a client sends.
    #[derive(Clone, Debug)]
    enum Fate {
        Written,
        Refused,
        /// The file is cut at its offset instead.
        Cut,
    }

    fn fates() -> impl Strategy<Value = Fate> {
        prop_oneof![3 => Just(Fate::Written), 4 => Just(Fate::Refused), 1 => Just(Fate::Cut)]
    }

    proptest! {
        /// Whichever runs are refused: when those that are kept are written last, the file is as if none had been.
        #[test]
        fn what_was_refused_and_is_written_later_makes_the_same_file(
            runs in prop::collection::vec((0u64..100, 1usize..30, fates()), 1..50),
        ) {
            let (mut all, mut object) = (vec![0u8; 200], vec![0u8; 200]);
            let mut refused = Refused::default();
            for (number, (offset, bytes, fate)) in runs.into_iter().enumerate() {
                let run = vec![u8::try_from(number).unwrap() + 1; bytes];
                let range = index(offset)..index(offset) + bytes;
                match fate {
                    Fate::Cut => {
                        all[range.start..].fill(0);
                        object[range.start..].fill(0);
                        refused.cut(offset);
                        continue;
                    }
                    Fate::Written => {
                        object[range.clone()].copy_from_slice(&run);
                        refused.written(offset, bytes as u64);
                    }
                    Fate::Refused => refused.keep(None, offset, run.clone()),
                }
                all[range].copy_from_slice(&run);
            }
            let mut end = 0;
            for (offset, run) in &refused.runs {
                prop_assert!(*offset >= end && !run.is_empty(), "runs are disjoint");
                end = offset + run.len() as u64;
                object[index(*offset)..index(end)].copy_from_slice(run);
            }
            prop_assert_eq!(all, object);
        }
    }
}
