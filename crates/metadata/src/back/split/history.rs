//! Which extents of a part a new one may be joined with: those in whose bytes no other part has been published since.
//!
//! Joined extents get the epoch of the new one. So an older strided extent of another part would lie over bytes for
//! which it is not the latest. The latest publications of a file are remembered with their bounds, and those of a part
//! that may go on.
//!
//! Not here: joining runs, which the order of the runs tells (`extents.rs`).

use super::extents::{Edit, Run, Strided};
use crate::kv::KeyValue;
use weft_layout::{STRIDED_RUNS_MIN, is_strided, joined, runs};
use weft_protocol::{Extent, ObjectId, Pattern};

/// Publications that a file remembers: that of so many writers in turns.
const RECENT_PUBLICATIONS: usize = 16;
/// Patterns that a part remembers: a writer may write a few things in turns.
const RECENT_PATTERNS: usize = 4;

/// A publication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Publication {
    epoch: u64,
    object: ObjectId,
    start: u64,
    end: u64,
}

/// The latest publications of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// Those after the epoch `since`, the oldest first.
    recent: Vec<Publication>,
    since: u64,
    /// Epoch of the latest publication with strided extents.
    strided: u64,
}

impl History {
    /// A history that begins at an epoch: the file was cut, or all of it has become one part.
    pub fn from(epoch: u64) -> Self {
        Self { recent: Vec::new(), since: epoch, strided: epoch }
    }

    /// The history as the numbers that are stored.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        let publications = self.recent.iter().flat_map(|of| [of.epoch, of.object.raw(), of.start, of.end]);
        [self.since, self.strided].into_iter().chain(publications)
    }

    /// The history of stored numbers.
    pub fn of_numbers(numbers: &[u64]) -> Self {
        let (&[since, strided], publications) = numbers.split_first_chunk().expect("two epochs");
        let publication =
            |of: &[u64]| Publication { epoch: of[0], object: ObjectId::from_raw(of[1]), start: of[2], end: of[3] };
        Self { recent: publications.chunks_exact(4).map(publication).collect(), since, strided }
    }

    /// A part was published, patterns within these bounds.
    pub fn add(&mut self, (object, patterns): (ObjectId, &[Pattern]), epoch: u64) {
        if self.recent.len() == RECENT_PUBLICATIONS {
            self.since = self.recent.remove(0).epoch;
        }
        let start = patterns.iter().map(Pattern::start).min().unwrap_or(0);
        let end = patterns.iter().map(Pattern::end).max().unwrap_or(0);
        self.recent.push(Publication { epoch, object, start, end });
    }

    /// Strided extents were stored at this epoch.
    pub fn note_strided(&mut self, epoch: u64) {
        self.strided = epoch;
    }

    /// Epoch of the latest publication with strided extents, or of a later cut.
    pub fn strided(&self) -> u64 {
        self.strided
    }

    /// Returns true if no other part was published after an epoch within these bounds, as far as is remembered.
    fn is_alone(&self, object: ObjectId, (start, end): (u64, u64), epoch: u64) -> bool {
        let is_between = |other: &&Publication| {
            other.epoch > epoch && other.object != object && other.start < end && start < other.end
        };
        epoch >= self.since && !self.recent.iter().any(|other| is_between(&other))
    }

    /// Returns true if a stored run may get a newer epoch. Other parts' runs do not overlap it, as it is stored.
    pub fn may_join(&self, run: &Run) -> bool {
        self.strided <= run.epoch || self.is_alone(run.object, (run.start, run.end), run.epoch)
    }
}

/// The latest patterns of a part, the oldest first. Those of fewer than [`STRIDED_RUNS_MIN`] runs are stored as runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Latest(Vec<Extent>);

impl Latest {
    /// The patterns as the numbers that are stored.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|Extent { pattern, epoch }| {
            [pattern.start(), pattern.bytes(), pattern.stride(), pattern.count(), *epoch]
        })
    }

    /// The patterns of stored numbers.
    pub fn of_numbers(numbers: &[u64]) -> Self {
        let extent = |of: &[u64]| {
            let pattern = Pattern::new(of[0], of[1], of[2], of[3]).expect("a stored pattern has bytes");
            Extent { pattern, epoch: of[4] }
        };
        Self(numbers.chunks_exact(5).map(extent).collect())
    }

    /// A pattern of the part was published: it goes on with one of the latest, or is one of its own. Returns true if it
    /// is stored as a strided extent.
    pub fn publish<K: KeyValue>(
        &mut self,
        edit: &mut Edit<'_, K>,
        (object, pattern): (ObjectId, &Pattern),
        epoch: u64,
        history: &History,
    ) -> bool {
        let goes_on = |old: &Extent| {
            let whole = joined(&old.pattern, pattern)?;
            history.is_alone(object, (old.pattern.start(), old.pattern.end()), old.epoch).then_some(whole)
        };
        let found = self.0.iter().enumerate().rev().find_map(|(index, old)| Some((index, goes_on(old)?)));
        let (old, whole) = match found {
            Some((index, whole)) => (Some(self.0.remove(index).pattern), whole),
            None => (None, *pattern),
        };
        let mut is_stored = false;
        if is_strided(&whole) {
            is_stored = match old {
                Some(old) if is_strided(&old) => {
                    edit.delete_strided(&old, object);
                    true
                }
                // They become one.
                Some(old) => edit.take_runs(object, runs(&old)),
                None => true,
            };
        }
        let latest = if is_stored || !is_strided(&whole) { whole } else { *pattern };
        if self.0.len() == RECENT_PATTERNS {
            self.0.remove(0);
        }
        self.0.push(Extent { pattern: latest, epoch });
        if is_strided(&latest) {
            edit.delete_covered(&latest);
            edit.put_strided(Strided { pattern: latest, object, epoch });
            return true;
        }
        debug_assert!(pattern.count() < STRIDED_RUNS_MIN);
        for (start, end) in runs(pattern) {
            let run = Pattern::run(start, end - start).expect("a run of a pattern has bytes");
            edit.delete_covered(&run);
            edit.add_run(Run { start, end, object, epoch }, |old| history.may_join(old));
        }
        false
    }
}
