//! The extents of all parts of a file, as a client knows them: whose part has which bytes of a range.
//!
//! Runs are disjoint and ordered by where they end; strided extents are ordered by size class and end. Both are found
//! by range without a look at the others.
//!
//! Invariant: no two runs have a byte in common.
//! Not here: as of which epoch a range is known (the client).

use super::{Unpublished, class_of, covers, ends_within, is_strided, runs};
use std::collections::BTreeMap;
use weft_protocol::{Extent, Pattern};

/// Older extents that are looked at when a strided one is added, to drop those that it covers. What is not dropped
/// costs room only.
const COVERED_LOOKS_MAX: usize = 64;

/// The extents of all parts, which are told apart by `P`.
#[derive(Clone, Debug)]
pub struct SplitIndex<P> {
    /// By where they end.
    runs: BTreeMap<u64, Run<P>>,
    /// By class and end, then by pattern and part: of which epoch.
    strided: BTreeMap<(u8, u64), BTreeMap<(Pattern, P), u64>>,
    /// By part, start, bytes and stride the latest number of runs: a writer that goes on has its pattern replaced.
    lines: BTreeMap<(P, u64, u64, u64), u64>,
    strided_count: usize,
}

#[derive(Clone, Copy, Debug)]
struct Run<P> {
    start: u64,
    part: P,
    epoch: u64,
}

impl<P> Default for SplitIndex<P> {
    fn default() -> Self {
        Self { runs: BTreeMap::new(), strided: BTreeMap::new(), lines: BTreeMap::new(), strided_count: 0 }
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

/// Runs to lay over each other.
struct Layer<P> {
    epoch: u64,
    part: P,
    range: (u64, u64),
}

impl<P: Copy + Ord> SplitIndex<P> {
    /// A part has these extents. Of two with one byte the one with the higher epoch has it, and of two with the same
    /// epoch the one that is added later. Costs a search, and what the extents overlap.
    pub fn add(&mut self, part: P, extents: &[Extent]) {
        for Extent { pattern, epoch } in extents {
            if is_strided(pattern) {
                self.add_strided(part, *pattern, *epoch);
            } else {
                runs(pattern).for_each(|run| self.add_run(part, run, *epoch));
            }
        }
    }

    /// Extents of all parts.
    pub fn count(&self) -> usize {
        self.runs.len() + self.strided_count
    }

    fn add_run(&mut self, part: P, (start, end): (u64, u64), epoch: u64) {
        let touched = self.runs.range(start + 1..).take_while(|(_, run)| run.start < end);
        let touched: Vec<_> = touched.map(|(old_end, old)| (*old_end, *old)).collect();
        // What lies before is told.
        let mut at = start;
        let put = |runs: &mut BTreeMap<u64, Run<P>>, from: u64, to: u64, run: Run<P>| {
            if from < to {
                runs.insert(to, Run { start: from, ..run });
            }
        };
        let new = Run { start, part, epoch };
        for (old_end, old) in touched {
            if old.epoch > epoch {
                put(&mut self.runs, at, old.start, new);
                at = old_end;
                continue;
            }
            self.runs.remove(&old_end);
            put(&mut self.runs, old.start, start, old);
            put(&mut self.runs, end, old_end, old);
        }
        put(&mut self.runs, at, end, new);
    }

    fn add_strided(&mut self, part: P, pattern: Pattern, epoch: u64) {
        let line = (part, pattern.start(), pattern.bytes(), pattern.stride());
        let before = self.lines.get(&line).copied().filter(|count| *count <= pattern.count());
        if let Some(shorter) = before
            && let Some(shorter) = Pattern::new(pattern.start(), pattern.bytes(), pattern.stride(), shorter)
            && self.epoch_of(&shorter, part).is_some_and(|before| before <= epoch)
        {
            self.remove_strided(&shorter, part);
        }
        let mut looks = 0;
        let mut covered = Vec::new();
        self.visit_strided((pattern.start(), pattern.end()), |old, of, old_epoch| {
            looks += 1;
            if old_epoch < epoch && covers(&pattern, old) {
                covered.push((*old, of));
            }
            looks < COVERED_LOOKS_MAX
        });
        covered.iter().for_each(|(old, of)| self.remove_strided(old, *of));
        let beneath = self.runs.range(pattern.start() + 1..).take_while(|(_, run)| run.start < pattern.end());
        let is_covered = |(end, run): &(&u64, &Run<P>)| {
            let old = Pattern::run(run.start, **end - run.start);
            run.epoch < epoch && old.is_some_and(|old| covers(&pattern, &old))
        };
        let beneath: Vec<_> = beneath.take(COVERED_LOOKS_MAX).filter(is_covered).map(|(end, _)| *end).collect();
        for end in beneath {
            self.runs.remove(&end);
        }
        let same_end = self.strided.entry((class_of(&pattern), pattern.end())).or_default();
        let known = same_end.entry((pattern, part)).or_insert_with(|| {
            self.strided_count += 1;
            epoch
        });
        *known = epoch.max(*known);
        self.lines.insert(line, pattern.count());
    }

    fn epoch_of(&self, pattern: &Pattern, part: P) -> Option<u64> {
        self.strided.get(&(class_of(pattern), pattern.end()))?.get(&(*pattern, part)).copied()
    }

    fn remove_strided(&mut self, pattern: &Pattern, part: P) {
        let key = (class_of(pattern), pattern.end());
        let Some(same_end) = self.strided.get_mut(&key) else { return };
        if same_end.remove(&(*pattern, part)).is_some() {
            self.strided_count -= 1;
        }
        if same_end.is_empty() {
            self.strided.remove(&key);
        }
        let line = (part, pattern.start(), pattern.bytes(), pattern.stride());
        if self.lines.get(&line) == Some(&pattern.count()) {
            self.lines.remove(&line);
        }
    }

    /// Visits the strided extents whose bounds overlap a range, until `visit` returns false.
    fn visit_strided(&self, (start, end): (u64, u64), mut visit: impl FnMut(&Pattern, P, u64) -> bool) {
        let mut class = 0;
        while let Some(((next, _), _)) = self.strided.range((class, start.saturating_add(1))..).next() {
            if *next > class {
                class = *next;
                continue;
            }
            let (above, below) = ends_within(class, (start, end));
            for same_end in self.strided.range((class, above.saturating_add(1))..(class, below)) {
                for ((pattern, part), epoch) in same_end.1 {
                    if pattern.start() < end && !visit(pattern, *part, *epoch) {
                        return;
                    }
                }
            }
            class += 1;
        }
    }

    /// What a range consists of, in its order: pieces of parts and holes. `own`: a part whose writer has not published
    /// these yet. Costs a search, and what the range has.
    pub fn pieces(&self, offset: u64, bytes: usize, own: Option<(P, &Unpublished)>) -> Vec<SplitPiece<P>> {
        let range = (offset, offset.saturating_add(bytes as u64));
        if bytes == 0 {
            return Vec::new();
        }
        let mut layers = Vec::new();
        for (end, run) in self.runs.range(offset.saturating_add(1)..).take_while(|(_, run)| run.start < range.1) {
            let range = (run.start.max(range.0), (*end).min(range.1));
            layers.push(Layer { epoch: run.epoch, part: run.part, range });
        }
        self.visit_strided(range, |pattern, part, epoch| {
            runs_within(pattern, range, (epoch, part), &mut layers);
            true
        });
        if let Some((part, unpublished)) = own {
            unpublished.patterns().for_each(|pattern| runs_within(pattern, range, (u64::MAX, part), &mut layers));
        }
        // The newest is laid over the others.
        layers.sort_unstable_by_key(|layer| (layer.epoch, layer.part));
        let mut laid = BTreeMap::new();
        layers.into_iter().for_each(|layer| lay_over(&mut laid, layer.range, layer.part));
        with_holes(&laid, range)
    }
}

/// The runs of a pattern in a range, cut to it.
fn runs_within<P: Copy>(
    pattern: &Pattern,
    (start, end): (u64, u64),
    (epoch, part): (u64, P),
    layers: &mut Vec<Layer<P>>,
) {
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
            layers.push(Layer { epoch, part, range });
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
