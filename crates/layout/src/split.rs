//! Which bytes of a split file the parts of its writers have.
//!
//! A part holds bytes at the file's own offsets, so nothing is mapped but *whose* part has a byte: the one with the
//! extent of the highest epoch that covers it. Extents are patterns (equal runs at equal distances). Those of a few
//! runs are kept run by run, so that no two runs overlap; *strided* extents, those of more, stay patterns and may
//! interleave. The shard keeps both kinds in its store (`crates/metadata/src/back/split/extents.rs`), clients in a
//! [`SplitIndex`].
//!
//! Sugihara and Tatebe write each process's part with the file's offsets too: "Design of Locality-aware MPI-IO for
//! Scalable Shared File Write Performance" (sparse segments, 2020).

mod index;
mod meeting;

pub use index::{SplitIndex, SplitPiece};
pub use meeting::{Alike, meets};

use weft_protocol::Pattern;

/// How many of the latest patterns a writer may go on with: programs that write a few things in turns.
const RECENT_PATTERNS: usize = 4;

/// Extents of at least as many runs are strided ones. Two or three runs of random writes often have equal distances;
/// eight have them by intent.
pub const STRIDED_RUNS_MIN: u64 = 8;

/// Returns true if the extent is kept as a pattern, false if it is kept run by run.
pub fn is_strided(pattern: &Pattern) -> bool {
    pattern.count() >= STRIDED_RUNS_MIN
}

/// Beginning and end of each run.
pub fn runs(pattern: &Pattern) -> impl Iterator<Item = (u64, u64)> + use<> {
    let (start, bytes, stride) = (pattern.start(), pattern.bytes(), pattern.stride());
    (0..pattern.count()).map(move |index| (start + index * stride, start + index * stride + bytes))
}

/// Size class of a pattern: it spans at least 2^class bytes, and less than twice that. Patterns that are ordered by
/// class and end are found by range with one search in each class: see [`ends_within`].
pub fn class_of(pattern: &Pattern) -> u8 {
    let span = pattern.end() - pattern.start();
    u8::try_from(span.ilog2()).expect("at most 63")
}

/// Where patterns of a class end whose bounds overlap a range: above the first, and below the second.
pub fn ends_within(class: u8, (start, end): (u64, u64)) -> (u64, u64) {
    (start, end.saturating_add(2u64.saturating_pow(u32::from(class) + 1)))
}

/// Returns true if all bytes of `other` are in the pattern, as far as is seen without a look at each run.
pub fn covers(pattern: &Pattern, other: &Pattern) -> bool {
    if pattern.count() == 1 {
        return pattern.start() <= other.start() && other.end() <= pattern.end();
    }
    let Some(after) = other.start().checked_sub(pattern.start()) else { return false };
    let is_in_step = other.count() == 1 || other.stride() == pattern.stride();
    let within = after % pattern.stride();
    is_in_step && within + other.bytes() <= pattern.bytes() && other.end() <= pattern.end()
}

/// Both as one pattern, if `later` goes on where `earlier` ends, or touches it.
pub fn joined(earlier: &Pattern, later: &Pattern) -> Option<Pattern> {
    if earlier.count() == 1 && later.count() == 1 && earlier.start() <= later.end() && later.start() <= earlier.end() {
        let start = earlier.start().min(later.start());
        return Pattern::run(start, earlier.end().max(later.end()) - start);
    }
    if later.count() == 1 {
        return longer(earlier, later);
    }
    let is_in_step = earlier.bytes() == later.bytes() && earlier.stride() == later.stride();
    let next = earlier.start().checked_add(earlier.stride().checked_mul(earlier.count())?)?;
    let count = earlier.count() + later.count();
    Pattern::new(earlier.start(), later.bytes(), later.stride(), count).filter(|_| is_in_step && next == later.start())
}

/// What of a pattern lies below a size.
pub fn below(pattern: &Pattern, size: u64) -> Vec<Pattern> {
    if pattern.end() <= size {
        return vec![*pattern];
    }
    let Some(before) = size.checked_sub(pattern.start()).filter(|before| *before > 0) else { return Vec::new() };
    let (whole, rest) = (before / pattern.stride(), (before % pattern.stride()).min(pattern.bytes()));
    // The last run that begins below the size may lie below it.
    let (whole, rest) = if rest == pattern.bytes() { (whole + 1, 0) } else { (whole, rest) };
    let runs = Pattern::new(pattern.start(), pattern.bytes(), pattern.stride(), whole);
    runs.into_iter().chain(Pattern::run(pattern.start() + whole * pattern.stride(), rest)).collect()
}

/// What a writer has written and not published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpublished {
    /// Patterns that may go on last.
    patterns: Vec<Pattern>,
    /// The run that is being written, which is in none of the patterns yet.
    run: Option<Pattern>,
}

impl Unpublished {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty() && self.run.is_none()
    }

    /// Number of patterns, with the run that is being written.
    pub fn count(&self) -> usize {
        self.patterns.len() + usize::from(self.run.is_some())
    }

    /// Bytes were written. They end within the longest file.
    pub fn add(&mut self, offset: u64, bytes: u64) {
        let Some(new) = Pattern::run(offset, bytes) else { return };
        match self.run {
            Some(run) if offset <= run.end() && run.start() <= new.end() => {
                let start = run.start().min(offset);
                self.run = Pattern::run(start, run.end().max(new.end()) - start);
            }
            _ => {
                self.end_run();
                self.run = Some(new);
            }
        }
    }

    /// Adds patterns whose publication has failed.
    pub fn add_back(&mut self, patterns: Vec<Pattern>) {
        self.end_run();
        self.patterns.splice(0..0, patterns);
    }

    /// The run is over: it is one more of a recent pattern, or begins one.
    fn end_run(&mut self) {
        let Some(run) = self.run.take() else { return };
        let recent = self.patterns.len().saturating_sub(RECENT_PATTERNS);
        let goes_on =
            self.patterns[recent..].iter_mut().rev().find_map(|pattern| Some((longer(pattern, &run)?, pattern)));
        match goes_on {
            Some((longer, pattern)) => *pattern = longer,
            None => self.patterns.push(run),
        }
    }

    /// All there is; nothing is left.
    pub fn take(&mut self) -> Vec<Pattern> {
        self.end_run();
        std::mem::take(&mut self.patterns)
    }

    /// Where the last of them ends; 0: there is nothing.
    pub fn end(&self) -> u64 {
        self.patterns().map(Pattern::end).max().unwrap_or(0)
    }

    fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.patterns.iter().chain(&self.run)
    }
}

/// The pattern with one more run, if that is where its next one begins.
fn longer(pattern: &Pattern, run: &Pattern) -> Option<Pattern> {
    if run.bytes() != pattern.bytes() {
        return None;
    }
    let stride = if pattern.count() == 1 { run.start().checked_sub(pattern.start())? } else { pattern.stride() };
    let next = pattern.start().checked_add(stride.checked_mul(pattern.count())?)?;
    (next == run.start()).then(|| Pattern::new(pattern.start(), pattern.bytes(), stride, pattern.count() + 1)).flatten()
}

#[cfg(test)]
mod tests;
