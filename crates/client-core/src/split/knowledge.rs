//! What a client knows of a split file's parts: their extents, the rights to read them, and of each range of the file
//! as of which epoch that is all.
//!
//! A reader asks the shard for ranges that it reads. An answer goes on beyond the range for a number of extents that
//! grows from question to question, so that a file with few extents takes one question, a file of many parts of which
//! one is read takes one short answer, and one that is read from end to end takes few questions.
//!
//! Strided extents have bytes all over a file, so a reader asks for those within a pattern, or for all
//! (`knowledge/strided.rs`). Each answer has both kinds, so what is known of a range is of one moment.
//!
//! Extents that are known may belong to ranges that are not: of each byte the highest epoch counts, so whatever order
//! they are learnt in, a range is right once all its extents up to an epoch are there. Only a cut takes bytes away.
//!
//! Invariant: all extents are of the file after its cut at `cut`.

mod strided;

use std::collections::BTreeMap;
use std::ops::Range;
use strided::KnownStrided;
use weft_layout::SplitIndex;
use weft_protocol::message::shard::{StridedCursor, StridedQuestion};
use weft_protocol::{Capability, Extent, ObjectId, Pattern, SplitPart};

/// Extents beyond the range of the first question, and how many times more each further question names, up to a limit.
const EXTRA_MIN: u32 = 4;
const EXTRA_FACTOR: u32 = 8;
const EXTRA_MAX: u32 = 4096;
/// So many questions may name new patterns; after that, a client learns of all strided extents.
const PATTERN_QUESTIONS_MAX: u32 = 8;
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
    strided: KnownStrided,
    /// Epoch of the latest answer.
    latest: u64,
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

    /// The pattern within which strided extents are asked for. `expected`: the client will read on in this one.
    pub fn to_ask_within(&self, expected: Option<Pattern>) -> Pattern {
        let is_asked_for =
            |pattern: &Pattern| self.questions < PATTERN_QUESTIONS_MAX || self.strided.has_pattern(pattern);
        expected.filter(is_asked_for).unwrap_or(Pattern::WHOLE_FILE)
    }

    /// The next question: how many runs beyond the range, and which strided extents. `few`: how many of these are few
    /// at first.
    pub fn next_question(&mut self, within: Pattern, few: u32) -> (u32, StridedQuestion) {
        let extra = EXTRA_FACTOR.saturating_pow(self.questions).saturating_mul(EXTRA_MIN).min(EXTRA_MAX);
        // A client that asks once more wants other ones than it has expected.
        let few = if self.questions == 0 { few } else { extra };
        self.questions += 1;
        (extra, self.strided.question(within, few))
    }

    /// Epoch of the latest answer. A range that is known as of this epoch or a later one is of one moment.
    pub fn latest(&self) -> u64 {
        self.latest
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
        match self.strided.has(range, epoch) {
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
        (self.cut, self.latest) = (cut, epoch);
        for part in parts {
            self.index.add(part.object, &part.extents);
            self.rights.insert(part.object, part.capability);
        }
        self.set_range(range, epoch);
        !is_cut
    }

    /// The strided extents that an answer has told. See [`KnownStrided::add`].
    pub fn add_strided(
        &mut self,
        question: &StridedQuestion,
        epoch: u64,
        whole: bool,
        next: Option<StridedCursor>,
    ) -> bool {
        self.strided.add(question, epoch, whole, next)
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
        is_known |= self.strided.published(epoch);
        // A client that does not read needs no extents.
        if is_known {
            let extents: Vec<_> = patterns.iter().map(|pattern| Extent { pattern: *pattern, epoch }).collect();
            self.index.add(object, &extents);
        }
    }
}

#[cfg(test)]
mod tests;
