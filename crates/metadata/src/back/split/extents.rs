//! The extents of a split file in the store.
//!
//! Runs are those of the whole file: no two of them overlap, whichever parts have them, so a publication cuts what it
//! overlaps. They are ordered by where they end: those that a range overlaps or touches are one scan from the range's
//! start. Strided extents are ordered by size class, stride, run length and end, so that of many with one stride those
//! with bytes in a pattern are found. They are not cut: their epochs tell which of two has a byte, also against runs.
//! So those that cover each other may stay for a while.
//!
//! Invariant: no two runs of a file overlap.
//! Not here: which extents may be joined (`history.rs`), how many there may be (`split.rs`).

use crate::back::keys::{Key, StridedKey, run_end_of, strided_of};
use crate::kv::KeyValue;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use weft_layout::{Alike, below, covers, meets};
use weft_protocol::limits::FILE_BYTES_MAX;
use weft_protocol::{Extent, InodeNumber, ObjectId, Pattern};

/// Older extents that are looked at for each published pattern, to delete those that it covers.
const COVERED_LOOKS_MAX: usize = 64;

/// Bytes of a part that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub start: u64,
    pub end: u64,
    pub object: ObjectId,
    pub epoch: u64,
}

impl Run {
    fn encode(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        for (place, number) in bytes.chunks_exact_mut(8).zip([self.start, self.object.raw(), self.epoch]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn decode(end: u64, value: &[u8]) -> Self {
        assert!(value.len() == 24, "a run with {} bytes", value.len());
        let number = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().expect("8 bytes"));
        Self { start: number(0), end, object: ObjectId::from_raw(number(8)), epoch: number(16) }
    }

    /// The run as an extent of its part.
    pub fn extent(&self) -> Extent {
        let pattern = Pattern::run(self.start, self.end - self.start).expect("a stored run has bytes");
        Extent { pattern, epoch: self.epoch }
    }

    fn is_within(&self, pattern: &Pattern) -> bool {
        covers(pattern, &self.extent().pattern)
    }
}

/// A strided extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strided {
    pub pattern: Pattern,
    pub object: ObjectId,
    pub epoch: u64,
}

/// A strided extent that a scan has come across, and whether it meets the pattern that is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub strided: Strided,
    pub meets: bool,
}

fn epoch_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("a strided extent's value is its epoch"))
}

/// Visits the runs that end at `from` or later, in their order.
pub fn scan_runs<K: KeyValue>(store: &K, inode: InodeNumber, from: u64, mut visit: impl FnMut(Run) -> ControlFlow<()>) {
    store.scan(&Key::run(inode, from), |key, value| match run_end_of(key, inode) {
        Some(end) => visit(Run::decode(end, value)),
        None => ControlFlow::Break(()),
    });
}

/// Visits the strided extents from a key on that meet a pattern, in the order of their keys, and some that do not.
/// Costs a search for each size class, stride and run length that there is, and of those that are alike, two for each
/// group of ends that are closer than the stride. The others are not looked at.
pub fn scan_strided<K: KeyValue>(
    store: &K,
    inode: InodeNumber,
    within: &Pattern,
    from: StridedKey,
    mut visit: impl FnMut(Look) -> ControlFlow<()>,
) {
    let mut from = Some(from);
    while let Some(key) = from.take() {
        store.scan(&key, |key, value| {
            let Some((pattern, object)) = strided_of(key, inode) else { return ControlFlow::Break(()) };
            let strided = Strided { pattern, object, epoch: epoch_of(value) };
            let alike = Alike::of(&pattern);
            let next = alike.next_end(within, pattern.end());
            let meets = next == Some(pattern.end()) && meets(within, &pattern);
            visit(Look { strided, meets })?;
            if next == Some(pattern.end()) {
                return ControlFlow::Continue(());
            }
            from = Some(match next {
                Some(end) => Key::strided_from(inode, alike, end),
                None => Key::strided_behind(inode, alike),
            });
            ControlFlow::Break(())
        });
    }
}

/// Changes of a file's extents, which can be taken back as a whole.
pub struct Edit<'a, K> {
    store: &'a mut K,
    inode: InodeNumber,
    /// Of each key that was changed its value before.
    before: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// By how many extents each part has more or less.
    pub more: BTreeMap<ObjectId, i64>,
    /// By how many strided extents the file has more or less.
    pub more_strided: i64,
}

impl<'a, K: KeyValue> Edit<'a, K> {
    pub fn new(store: &'a mut K, inode: InodeNumber) -> Self {
        Self { store, inode, before: Vec::new(), more: BTreeMap::new(), more_strided: 0 }
    }

    /// Takes all changes back.
    pub fn roll_back(self) {
        for (key, value) in self.before.into_iter().rev() {
            match value {
                Some(value) => self.store.put(&key, &value),
                None => self.store.delete(&key),
            };
        }
    }

    /// Sets or deletes a value. Returns whether the key was there before.
    fn change(&mut self, key: &[u8], value: Option<&[u8]>) -> bool {
        let before = self.store.get(key, <[u8]>::to_vec);
        let was_there = before.is_some();
        match value {
            Some(value) => self.store.put(key, value),
            None => self.store.delete(key),
        };
        self.before.push((key.to_vec(), before));
        was_there
    }

    fn put_run(&mut self, run: Run) {
        if run.start < run.end {
            let was_there = self.change(&Key::run(self.inode, run.end), Some(&run.encode()));
            assert!(!was_there, "two runs end at {} of inode {}", run.end, self.inode);
            *self.more.entry(run.object).or_default() += 1;
        }
    }

    fn delete_run(&mut self, run: &Run) {
        self.change(&Key::run(self.inode, run.end), None);
        *self.more.entry(run.object).or_default() -= 1;
    }

    /// The runs that overlap or touch a range.
    fn touching(&self, start: u64, end: u64) -> Vec<Run> {
        let mut touching = Vec::new();
        scan_runs(self.store, self.inode, start, |run| {
            if run.start > end {
                return ControlFlow::Break(());
            }
            touching.push(run);
            ControlFlow::Continue(())
        });
        touching
    }

    /// A part has a run from now on. Runs of the same part that it overlaps or touches are joined with it, if
    /// `may_join`; otherwise what it overlaps is cut.
    pub fn add_run(&mut self, new: Run, may_join: impl Fn(&Run) -> bool) {
        let mut joined = new;
        for old in self.touching(new.start, new.end) {
            if old.object == new.object && may_join(&old) {
                self.delete_run(&old);
                (joined.start, joined.end) = (joined.start.min(old.start), joined.end.max(old.end));
            } else if old.start < new.end && new.start < old.end {
                self.delete_run(&old);
                self.put_run(Run { end: new.start, ..old });
                self.put_run(Run { start: new.end.max(old.start), ..old });
            }
        }
        self.put_run(joined);
    }

    /// Deletes these runs of a part, if all of them are there as they are. Returns whether they were.
    pub fn take_runs(&mut self, object: ObjectId, runs: impl Iterator<Item = (u64, u64)>) -> bool {
        let mut found = Vec::new();
        for (start, end) in runs {
            let run = self.store.get(&Key::run(self.inode, end), |value| Run::decode(end, value));
            match run.filter(|run| run.start == start && run.object == object) {
                Some(run) => found.push(run),
                None => return false,
            }
        }
        found.iter().for_each(|run| self.delete_run(run));
        true
    }

    /// A part has a strided extent from now on, unless it has it as of a later epoch.
    pub fn put_strided(&mut self, Strided { pattern, object, epoch }: Strided) {
        let key = Key::strided(self.inode, &pattern, object);
        let before = self.store.get(&key, epoch_of);
        if before.is_none_or(|before| before < epoch) {
            self.change(&key, Some(&epoch.to_le_bytes()));
        }
        if before.is_none() {
            *self.more.entry(object).or_default() += 1;
            self.more_strided += 1;
        }
    }

    /// Deletes a strided extent, if it is there.
    pub fn delete_strided(&mut self, pattern: &Pattern, object: ObjectId) {
        let key = Key::strided(self.inode, pattern, object);
        if self.store.get(&key, |_| ()).is_some() {
            self.change(&key, None);
            *self.more.entry(object).or_default() -= 1;
            self.more_strided -= 1;
        }
    }

    /// Deletes extents that a new one covers, as far as a bounded look finds them. Of runs, those beneath a strided
    /// one: others are cut as the new run is added.
    pub fn delete_covered(&mut self, new: &Pattern) {
        let (mut looks, mut strided) = (0, Vec::new());
        scan_strided(self.store, self.inode, new, Key::first_strided(self.inode), |Look { strided: old, .. }| {
            looks += 1;
            if covers(new, &old.pattern) {
                strided.push(old);
            }
            if looks < COVERED_LOOKS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        strided.iter().for_each(|old| self.delete_strided(&old.pattern, old.object));
        if new.count() == 1 {
            return;
        }
        let (mut looks, mut runs) = (0, Vec::new());
        scan_runs(self.store, self.inode, new.start().saturating_add(1), |run| {
            looks += 1;
            if run.start >= new.end() || looks > COVERED_LOOKS_MAX {
                return ControlFlow::Break(());
            }
            if run.is_within(new) {
                runs.push(run);
            }
            ControlFlow::Continue(())
        });
        runs.iter().for_each(|run| self.delete_run(run));
    }

    /// Cuts all extents at a size.
    pub fn cut(&mut self, size: u64) {
        let mut runs = Vec::new();
        scan_runs(self.store, self.inode, size.saturating_add(1), |run| {
            runs.push(run);
            ControlFlow::Continue(())
        });
        for run in runs {
            self.delete_run(&run);
            self.put_run(Run { end: size, ..run });
        }
        let mut strided = Vec::new();
        if let Some(behind) = Pattern::run(size, FILE_BYTES_MAX - size) {
            scan_strided(self.store, self.inode, &behind, Key::first_strided(self.inode), |look| {
                strided.extend(look.meets.then_some(look.strided));
                ControlFlow::Continue(())
            });
        }
        for old in strided {
            self.delete_strided(&old.pattern, old.object);
            // Runs that lie over these stay over them, so what is left of a pattern is stored as one, however short.
            below(&old.pattern, size).into_iter().for_each(|pattern| self.put_strided(Strided { pattern, ..old }));
        }
    }
}
