//! Of which patterns of a file a client knows all strided extents, and as of which epoch.
//!
//! Strided extents have bytes all over a file, and are as many as the file has writers. A client that reads where it
//! has written itself asks for those in its own pattern. Others ask for those of the whole file.
//!
//! What the client has published itself it knows, but not what the shard makes of it: runs of its part may have become
//! a strided extent. So what is known as of its own publication holds for ranges whose runs were known before it. The
//! next answer has runs that were not, so it is the end of that.

use std::ops::Range;
use weft_layout::covers;
use weft_protocol::Pattern;
use weft_protocol::message::shard::{StridedCursor, StridedQuestion};

/// Patterns that are known. One more, and the oldest is forgotten.
const PATTERNS_MAX: usize = 16;

/// See the module.
#[derive(Default)]
pub struct KnownStrided {
    /// As of when all of the file are known.
    whole: AsOf,
    /// As of when those are known that may have bytes in these patterns, the latest answer's last.
    patterns: Vec<(Pattern, AsOf)>,
    listing: Option<Listing>,
}

/// As of when strided extents are known.
#[derive(Clone, Copy, Default)]
struct AsOf {
    /// Epoch of the answer that has told the last of them; 0: they are not known.
    told: u64,
    /// Epoch of the client's own publications since, if nobody else has published between.
    own: u64,
}

impl AsOf {
    fn of_answer(epoch: u64) -> Self {
        Self { told: epoch, own: epoch }
    }
}

/// Strided extents that are told by several answers.
struct Listing {
    within: Pattern,
    /// Epoch of the first answer.
    first: u64,
    /// The last one that was told.
    after: StridedCursor,
}

impl KnownStrided {
    /// As of when all that may have bytes in a pattern are known: by several answers.
    fn within(&self, pattern: &Pattern) -> impl Iterator<Item = AsOf> {
        let known = self.patterns.iter().filter(|(known, _)| covers(known, pattern)).map(|(_, as_of)| *as_of);
        known.chain([self.whole])
    }

    /// Returns true if all that may have bytes in a range are known as of this epoch or a later one.
    pub fn has(&self, range: &Range<u64>, epoch: u64) -> bool {
        let bytes = range.end.saturating_sub(range.start);
        Pattern::run(range.start, bytes).is_none_or(|run| self.within(&run).any(|as_of| as_of.own >= epoch))
    }

    /// Returns true if a pattern is known, as of some moment, and not with the whole file.
    pub fn has_pattern(&self, pattern: &Pattern) -> bool {
        self.patterns.iter().any(|(known, _)| covers(known, pattern))
    }

    /// The question for those within a pattern. See [`StridedQuestion::few`].
    pub fn question(&self, within: Pattern, few: u32) -> StridedQuestion {
        let listing = self.listing.as_ref().filter(|listing| listing.within == within);
        let since = self.within(&within).map(|as_of| as_of.told).max().expect("that of the whole file is one");
        StridedQuestion { within, since, after: listing.map(|listing| listing.after), few }
    }

    /// Some were told as of an epoch: `whole`, of all of the file, and up to `next`, after which the next question goes
    /// on. Returns false if the answers to a question are of several moments: one that was deleted meanwhile, because a
    /// newer extent covers it, may be missing without that one, which the next question tells.
    pub fn add(&mut self, question: &StridedQuestion, epoch: u64, whole: bool, next: Option<StridedCursor>) -> bool {
        for known in self.all() {
            known.own = known.told;
        }
        let within = question.within;
        let first = match (&question.after, self.listing.take()) {
            (Some(_), Some(listing)) => listing.first,
            _ => epoch,
        };
        if let Some(after) = next {
            self.listing = Some(Listing { within, first, after });
            return first == epoch;
        }
        // Of the rest of the file, less may be known than as of the question's epoch.
        if within == Pattern::WHOLE_FILE || whole && question.since <= self.whole.told {
            self.whole = AsOf::of_answer(first);
        } else {
            self.patterns.retain(|(known, _)| !covers(&within, known));
            self.patterns.push((within, AsOf::of_answer(first)));
        }
        self.patterns.retain(|(_, as_of)| as_of.told > self.whole.told);
        if self.patterns.len() > PATTERNS_MAX {
            self.patterns.remove(0);
        }
        first == epoch
    }

    /// The client has published a part, as this epoch. What was known as of the one before is known as of this one.
    /// Returns false if that is nothing.
    pub fn published(&mut self, epoch: u64) -> bool {
        if self.listing.is_some() {
            return false;
        }
        let mut is_known = false;
        for known in self.all().filter(|known| known.own > 0 && known.own + 1 == epoch) {
            (known.own, is_known) = (epoch, true);
        }
        is_known
    }

    fn all(&mut self) -> impl Iterator<Item = &mut AsOf> {
        self.patterns.iter_mut().map(|(_, as_of)| as_of).chain([&mut self.whole])
    }
}
