//! Which bytes of a split file the parts of its writers have.
//!
//! A part holds bytes at the file's own offsets, so nothing is mapped but *whose* part has a byte: the one with the
//! extent of the highest epoch that covers it. Extents are patterns (equal runs at equal distances), which stay what
//! they are: what a range of the file consists of is found when it is asked for, at a cost that grows with the number
//! of patterns and of runs in the range, not with that of all runs.
//!
//! Sugihara and Tatebe write each process's part with the file's offsets too: "Design of Locality-aware MPI-IO for
//! Scalable Shared File Write Performance" (sparse segments, 2020).

use std::collections::BTreeMap;
use weft_protocol::{Extent, Pattern};

/// How many of the latest patterns a writer may go on with: programs that write a few things in turns.
const RECENT_PATTERNS: usize = 4;

/// Whether all bytes of `other` are in the pattern, as far as is seen without looking at each run.
fn covers(pattern: &Pattern, other: &Pattern) -> bool {
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

/// Adds an extent of one part to those that it has, of which none is newer: what it covers of them goes.
pub fn supersede(extents: &mut Vec<Extent>, new: Extent) {
    let (start, end) = (new.pattern.start(), new.pattern.end());
    let mut rest = Vec::new();
    extents.retain(|old| {
        let (old_start, old_end) = (old.pattern.start(), old.pattern.end());
        // Most lie elsewhere.
        if old_end <= start || end <= old_start {
            return true;
        }
        if covers(&new.pattern, &old.pattern) {
            return false;
        }
        if new.pattern.count() > 1 || old.pattern.count() > 1 {
            return true;
        }
        let before = Pattern::run(old_start, start.saturating_sub(old_start));
        let after = Pattern::run(end, old_end.saturating_sub(end));
        rest.extend(before.into_iter().chain(after).map(|pattern| Extent { pattern, ..*old }));
        false
    });
    extents.append(&mut rest);
    extents.push(new);
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

/// The extents of all parts, which are told apart by `P`.
#[derive(Clone, Debug)]
pub struct SplitIndex<P> {
    parts: BTreeMap<P, Vec<Extent>>,
}

impl<P> Default for SplitIndex<P> {
    fn default() -> Self {
        Self { parts: BTreeMap::new() }
    }
}

/// A range of a split file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SplitPiece<P> {
    /// Whose part has it; `None`: it is a hole.
    pub part: Option<P>,
    /// Where it begins in the range that was asked for.
    pub start: usize,
    /// Its length.
    pub bytes: usize,
}

impl<P: Copy + Ord> SplitIndex<P> {
    /// A part has these extents too, none older than those that it has.
    pub fn add(&mut self, part: P, extents: &[Extent]) {
        let known = self.parts.entry(part).or_default();
        extents.iter().for_each(|extent| supersede(known, *extent));
    }

    /// Extents of all parts.
    pub fn count(&self) -> usize {
        self.parts.values().map(Vec::len).sum()
    }

    /// What a range consists of, in its order: pieces of parts and holes. `own`: a part whose writer has not published
    /// these yet.
    pub fn pieces(&self, offset: u64, bytes: usize, own: Option<(P, &Unpublished)>) -> Vec<SplitPiece<P>> {
        let range = (offset, offset.saturating_add(bytes as u64));
        let mut runs = Vec::new();
        for (part, extents) in &self.parts {
            extents.iter().for_each(|extent| runs_within(&extent.pattern, range, (extent.epoch, *part), &mut runs));
        }
        if let Some((part, unpublished)) = own {
            unpublished.patterns().for_each(|pattern| runs_within(pattern, range, (u64::MAX, part), &mut runs));
        }
        // The newest is laid over the others.
        runs.sort_unstable_by_key(|run| (run.epoch, run.part));
        let mut laid = BTreeMap::new();
        runs.into_iter().for_each(|run| lay_over(&mut laid, run.range, run.part));
        with_holes(&laid, range)
    }
}

struct Run<P> {
    epoch: u64,
    part: P,
    range: (u64, u64),
}

/// The runs of a pattern in a range, cut to it.
fn runs_within<P: Copy>(pattern: &Pattern, (start, end): (u64, u64), (epoch, part): (u64, P), runs: &mut Vec<Run<P>>) {
    if end <= pattern.start() || pattern.end() <= start {
        return;
    }
    let first = start.saturating_sub(pattern.start()) / pattern.stride();
    for index in first..pattern.count() {
        let at = pattern.start() + index * pattern.stride();
        if at >= end {
            break;
        }
        let range = (at.max(start), (at + pattern.bytes()).min(end));
        if range.0 < range.1 {
            runs.push(Run { epoch, part, range });
        }
    }
}

/// Lays a range over those that are there: by their beginnings their ends, and whose they are.
fn lay_over<P: Copy>(laid: &mut BTreeMap<u64, (u64, P)>, (start, end): (u64, u64), part: P) {
    if let Some((&before, &(before_end, of))) = laid.range(..start).next_back()
        && before_end > start
    {
        laid.insert(before, (start, of));
        if before_end > end {
            laid.insert(end, (before_end, of));
        }
    }
    while let Some((&other, &(other_end, of))) = laid.range(start..end).next() {
        laid.remove(&other);
        if other_end > end {
            laid.insert(end, (other_end, of));
        }
    }
    laid.insert(start, (end, part));
}

fn with_holes<P: Copy + Ord>(laid: &BTreeMap<u64, (u64, P)>, (start, end): (u64, u64)) -> Vec<SplitPiece<P>> {
    let mut pieces: Vec<SplitPiece<P>> = Vec::new();
    let in_range = |at: u64| usize::try_from(at - start).expect("within a range that has a length in memory");
    let mut push = |part: Option<P>, from: u64, to: u64| match pieces.last_mut() {
        _ if from == to => {}
        Some(last) if last.part == part => last.bytes += in_range(to) - in_range(from),
        _ => pieces.push(SplitPiece { part, start: in_range(from), bytes: in_range(to) - in_range(from) }),
    };
    let mut at = start;
    for (from, (to, part)) in laid {
        push(None, at, *from);
        push(Some(*part), *from, *to);
        at = *to;
    }
    push(None, at, end);
    pieces
}

#[cfg(test)]
mod tests;
