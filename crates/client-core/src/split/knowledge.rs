//! What a client knows of a split file's parts: their extents, the rights to read them, and of each range of the file
//! as of which epoch that is all.
//!
//! A reader asks the shard for ranges that it reads. An answer goes on beyond the range for a number of extents that
//! grows from question to question, so that a file with few extents takes one question, a file of many parts of which
//! one is read takes one short answer, and one that is read from end to end takes few questions.
//!
//! Strided extents have bytes all over a file. There are few of them, as many as there are writers, and a reader is
//! told of all that are new with its next question.
//!
//! Extents that are known may belong to ranges that are not: of each byte the highest epoch counts, so whatever order
//! they are learnt in, a range is right once all its extents up to an epoch are there. Only a cut takes bytes away.
//!
//! Invariant: all extents are of the file after its cut at `cut`.

use std::collections::BTreeMap;
use std::ops::Range;
use weft_layout::SplitIndex;
use weft_protocol::message::shard::StridedCursor;
use weft_protocol::{Capability, Extent, ObjectId, Pattern, SplitPart};

/// Extents beyond the range of the first question, and how many times more each further question names, up to a limit.
const EXTRA_MIN: u32 = 4;
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
    /// As of which epoch all strided extents are known; 0: they are not.
    strided: u64,
    /// Since an epoch that all strided extents were asked for from, the last one that was told.
    strided_after: Option<(u64, StridedCursor)>,
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

    /// As of which epoch all strided extents are known, and after which one the next question goes on.
    pub fn strided(&self) -> (u64, Option<StridedCursor>) {
        (self.strided, self.strided_after.map(|(_, after)| after))
    }

    /// As of which epoch all runs of a range are known; 0: some are not.
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
        match self.strided >= epoch || range.is_empty() {
            true => self.first_unknown_run(range, epoch),
            false => Some(range.start),
        }
    }

    fn first_unknown_run(&self, range: &Range<u64>, epoch: u64) -> Option<u64> {
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

    /// Adds an answer: all extents of a range as of an epoch that were published after the epoch `since`. Returns false
    /// if the file was cut since what was known before, which is forgotten.
    pub fn add(&mut self, range: Range<u64>, since: u64, (epoch, cut): (u64, u64), parts: Vec<SplitPart>) -> bool {
        let is_cut = self.cut != cut && !(self.ranges.is_empty() && self.index.count() == 0);
        // Beyond the range of the question, less may be known than as of `since`.
        let is_whole = since == 0 || is_cut;
        let end = if is_whole { None } else { self.first_unknown_run(&range, since) };
        let range = range.start..end.unwrap_or(range.end);
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

    /// Strided extents were told as of an epoch, up to one after which the next question goes on. Returns false if they
    /// are of several moments: one that was deleted meanwhile, because a newer extent covers it, may be missing without
    /// that one, which the next question tells.
    pub fn add_strided(&mut self, epoch: u64, next: Option<StridedCursor>) -> bool {
        let first = self.strided_after.map_or(epoch, |(first, _)| first);
        match next {
            Some(after) => self.strided_after = Some((first, after)),
            None => (self.strided, self.strided_after) = (first, None),
        }
        first == epoch
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
        if self.strided + 1 == epoch && self.strided > 0 && self.strided_after.is_none() {
            (self.strided, is_known) = (epoch, true);
        }
        // A client that does not read needs no extents.
        if is_known {
            let extents: Vec<_> = patterns.iter().map(|pattern| Extent { pattern: *pattern, epoch }).collect();
            self.index.add(object, &extents);
        }
    }
}

#[cfg(test)]
mod tests;
