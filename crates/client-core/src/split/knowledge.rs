//! What a client knows of a split file's parts: their extents, the rights to read them, and of each range of the file as
//! of which epoch that is all.
//!
//! A reader asks the shard for ranges that it reads. An answer goes on beyond the range for a number of extents that
//! grows from question to question, so that a file with few extents takes one question, a file of many parts of which
//! one is read takes one short answer, and one that is read from end to end takes few questions.
//!
//! Extents that are known may belong to ranges that are not: of each byte the highest epoch counts, so whatever order
//! they are learnt in, a range is right once all its extents up to an epoch are there. Only a cut takes bytes away.
//!
//! Invariant: all extents are of the file after its cut at `cut`.

use std::collections::BTreeMap;
use std::ops::Range;
use weft_layout::SplitIndex;
use weft_protocol::{Capability, Extent, ObjectId, Pattern, SplitPart};

/// Extents beyond the range of the first question, and how many times more each further question names, up to a limit.
const EXTRA_MIN: u32 = 64;
const EXTRA_FACTOR: u32 = 8;
const EXTRA_MAX: u32 = 4096;
/// A client with more of these starts anew: it has read a file of many extents here and there.
const RANGES_MAX: usize = 1024;
const EXTENTS_MAX: usize = 1 << 20;

/// See the module.
#[derive(Default)]
pub struct Knowledge {
    index: SplitIndex<ObjectId>,
    rights: BTreeMap<ObjectId, Capability>,
    /// Ranges that are known, by their beginnings: where they end, and as of which epoch they are known.
    ranges: BTreeMap<u64, (u64, u64)>,
    /// Epoch of the latest cut.
    cut: u64,
    /// Questions since the beginning, or since the latest [`Knowledge::begin_questions`].
    questions: u32,
}

impl Knowledge {
    /// The extents.
    pub fn index(&self) -> &SplitIndex<ObjectId> {
        &self.index
    }

    /// The right to read a part.
    pub fn right(&self, object: ObjectId) -> Option<Capability> {
        self.rights.get(&object).copied()
    }

    /// Starts anew when there is too much.
    pub fn limit(&mut self) {
        if self.ranges.len() > RANGES_MAX || self.index.count() > EXTENTS_MAX {
            *self = Self::default();
        }
    }

    /// The next question is the first after a publication of somebody else.
    pub fn begin_questions(&mut self) {
        self.questions = 0;
    }

    /// Extents beyond the range that the next question names.
    pub fn extra(&mut self) -> u32 {
        let extra = EXTRA_FACTOR.saturating_pow(self.questions).saturating_mul(EXTRA_MIN).min(EXTRA_MAX);
        self.questions += 1;
        extra
    }

    /// As of which epoch all of a range is known; 0: some of it is not.
    pub fn since(&self, range: &Range<u64>) -> u64 {
        let (mut at, mut since) = (range.start, u64::MAX);
        while at < range.end {
            let Some((end, epoch)) = self.range_at(at) else { return 0 };
            (at, since) = (end, since.min(epoch));
        }
        if since == u64::MAX { 0 } else { since }
    }

    /// The first position of a range that is not known as of an epoch or later.
    pub fn first_unknown(&self, range: &Range<u64>, epoch: u64) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            match self.range_at(at) {
                Some((end, known)) if known >= epoch => at = end,
                _ => return Some(at),
            }
        }
        None
    }

    /// Where the known range ends that has this position, and its epoch.
    fn range_at(&self, at: u64) -> Option<(u64, u64)> {
        self.ranges.range(..=at).next_back().map(|(_, range)| *range).filter(|(end, _)| at < *end)
    }

    /// Adds an answer: all extents of a range as of an epoch that are newer than those known there. Returns false if the
    /// file was cut since what was known before, which is forgotten.
    pub fn add(&mut self, range: Range<u64>, (epoch, cut): (u64, u64), parts: Vec<SplitPart>) -> bool {
        let is_cut = self.cut != cut && !(self.ranges.is_empty() && self.index.count() == 0);
        if is_cut {
            *self = Self { questions: self.questions, ..Self::default() };
        }
        self.cut = cut;
        for part in parts {
            self.index.add(part.object, &part.extents);
            self.rights.insert(part.object, part.capability);
        }
        self.set_range(range, epoch);
        !is_cut
    }

    fn set_range(&mut self, range: Range<u64>, epoch: u64) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        let touching: Vec<_> = self
            .ranges
            .range(..=end)
            .rev()
            .map_while(|(from, (to, of))| (*to >= start).then_some((*from, *to, *of)))
            .collect();
        for (from, to, of) in touching {
            self.ranges.remove(&from);
            if of == epoch {
                (start, end) = (start.min(from), end.max(to));
                continue;
            }
            if from < range.start {
                self.ranges.insert(from, (range.start, of));
            }
            if to > range.end {
                self.ranges.insert(range.end, (to, of));
            }
        }
        self.ranges.insert(start, (end, epoch));
    }

    /// The client has published a part, as this epoch. Ranges that were known as of the one before are known as of this
    /// one: nobody else has published between.
    pub fn published(&mut self, object: ObjectId, patterns: &[Pattern], epoch: u64) {
        let mut is_known = false;
        for (_, known) in self.ranges.values_mut().filter(|(_, known)| *known + 1 == epoch) {
            (*known, is_known) = (epoch, true);
        }
        // A client that does not read needs no extents.
        if is_known {
            let extents: Vec<_> = patterns.iter().map(|pattern| Extent { pattern: *pattern, epoch }).collect();
            self.index.add(object, &extents);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_are_known_as_of_what_was_told_last(
            told in prop::collection::vec((0u64..50, 0u64..20), 0..20), start in 0u64..60, bytes in 0u64..20,
        ) {
            let (mut knowledge, mut model) = (Knowledge::default(), vec![0; 100]);
            for (index, (from, bytes)) in told.iter().enumerate() {
                let epoch = 1 + index as u64 / 2;
                prop_assert!(knowledge.add(*from..from + bytes, (epoch, 0), Vec::new()));
                let range = usize::try_from(*from).expect("small")..usize::try_from(from + bytes).expect("small");
                model[range].fill(epoch);
            }
            let range = usize::try_from(start).expect("small")..usize::try_from(start + bytes).expect("small");
            let least = model[range.clone()].iter().min().copied().unwrap_or(0);
            prop_assert_eq!(knowledge.since(&(start..start + bytes)), least);
            for epoch in 1..12 {
                let unknown = range.clone().find(|at| model[*at] < epoch).map(|at| at as u64);
                prop_assert_eq!(knowledge.first_unknown(&(start..start + bytes), epoch), unknown);
            }
        }
    }

    #[test]
    fn a_cut_is_the_end_of_what_was_known() {
        let mut knowledge = Knowledge::default();
        assert!(knowledge.add(0..10, (7, 3), Vec::new()), "nothing was known");
        assert!(knowledge.add(10..20, (8, 3), Vec::new()));
        assert!(!knowledge.add(10..20, (9, 9), Vec::new()));
        assert_eq!((knowledge.since(&(0..10)), knowledge.since(&(10..20))), (0, 9));
        knowledge.published(ObjectId::from_raw(1), &[Pattern::run(0, 5).expect("a run")], 10);
        assert_eq!((knowledge.since(&(10..20)), knowledge.index().count()), (10, 1));
        knowledge.published(ObjectId::from_raw(1), &[Pattern::run(0, 5).expect("a run")], 12);
        assert_eq!(knowledge.since(&(10..20)), 10, "somebody else has published");
    }
}
