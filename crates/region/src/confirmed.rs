//! Which commits of objects that keep versions are on the device for certain.
//!
//! A commit says up to where those before it were safe; of the last one nothing says so. A log record does: it is
//! written after a flush, which made all durable that was written before, so it carries a *mark* for each object with
//! commits since the record before: their last sequence. After a crash a commit up to there that is not whole is
//! damaged, not torn. A sync that has a record to write has the marks in it, and one that has none leaves them for the
//! next record: no sync needs a write more for them, unless it is asked for that.
//!
//! A checkpoint brings marks to the map. When the index of versions has a commit, its mark goes.

use crate::lock;
use crate::record::{ENTRIES_MAX, Entry};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The last commit of an object that was written wholly. Shared by those who commit and those who sync.
#[derive(Debug)]
pub struct Written {
    object: u64,
    nonce: u64,
    /// 0: none since the object was opened, or the object was removed.
    sequence: AtomicU64,
    is_listed: AtomicBool,
}

impl Written {
    pub(crate) fn new(object: u64, nonce: u64) -> Self {
        Self { object, nonce, sequence: AtomicU64::new(0), is_listed: AtomicBool::new(false) }
    }

    /// The object was removed.
    pub(crate) fn clear(&self) {
        self.sequence.store(0, Ordering::Release);
    }
}

/// What is known of an object's commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    /// Tells the object from others that had the region before.
    pub nonce: u64,
    /// Commits up to this sequence are on the device.
    pub sequence: u64,
}

/// Marks that are to be brought to the map, by object. `None`: there is none any more.
pub(crate) type Changes = BTreeMap<u64, Option<Mark>>;

/// See the module.
#[derive(Default)]
pub(crate) struct Confirmed {
    /// Objects with commits that no record has a mark of.
    listed: Mutex<Vec<Arc<Written>>>,
    /// The next sync writes a record for the marks alone, if it needs none otherwise.
    pub is_wanted: AtomicBool,
    marks: Mutex<Marks>,
}

#[derive(Default)]
struct Marks {
    all: BTreeMap<u64, Mark>,
    /// Objects of which the map has another one.
    changed: BTreeSet<u64>,
}

/// Marks on their way to the device.
pub(crate) struct Taken(Vec<(Arc<Written>, u64)>);

impl Taken {
    fn marks(&self) -> impl Iterator<Item = (u64, Mark)> {
        let is_there = |(_, sequence): &&(Arc<Written>, u64)| *sequence > 0;
        self.0
            .iter()
            .filter(is_there)
            .map(|(written, sequence)| (written.object, Mark { nonce: written.nonce, sequence: *sequence }))
    }

    /// For records.
    pub fn entries(&self) -> Vec<Vec<Entry>> {
        let entry = |(object, Mark { nonce, sequence })| Entry::Confirmed { object, nonce, sequence };
        let all: Vec<Entry> = self.marks().map(entry).collect();
        all.chunks(ENTRIES_MAX / 2).map(<[Entry]>::to_vec).collect()
    }
}

impl Confirmed {
    /// As a checkpoint left them.
    pub fn new(all: BTreeMap<u64, Mark>) -> Self {
        let marks = Mutex::new(Marks { all, changed: BTreeSet::new() });
        Self { marks, ..Self::default() }
    }

    /// A commit with this sequence is written wholly, and so are those before it.
    pub fn note_written(&self, written: &Arc<Written>, sequence: u64) {
        written.sequence.store(sequence, Ordering::Release);
        self.list(written);
    }

    /// The sequence up to which the commits of an object were on the device when a record was written. 0: none were.
    pub fn up_to(&self, object: u64, nonce: u64) -> u64 {
        let marks = lock(&self.marks);
        marks.all.get(&object).filter(|mark| mark.nonce == nonce).map_or(0, |mark| mark.sequence)
    }

    /// Commits of an object up to this sequence are known otherwise.
    pub fn settle(&self, object: u64, sequence: u64) {
        let mut marks = lock(&self.marks);
        if marks.all.get(&object).is_some_and(|mark| mark.sequence <= sequence) {
            marks.set(object, None);
        }
    }

    fn list(&self, written: &Arc<Written>) {
        // Who resets the flag reads the sequence after that.
        if !written.is_listed.swap(true, Ordering::AcqRel) {
            lock(&self.listed).push(Arc::clone(written));
        }
    }

    /// Takes what was written so far. Call it before the changes for a record are gathered and before the flush, so
    /// that what these commits depend on is in that record or in an earlier one.
    pub fn take(&self) -> Taken {
        let listed = std::mem::take(&mut *lock(&self.listed));
        let with_sequence = |written: Arc<Written>| {
            written.is_listed.swap(false, Ordering::AcqRel);
            let sequence = written.sequence.load(Ordering::Acquire);
            (written, sequence)
        };
        Taken(listed.into_iter().map(with_sequence).collect())
    }

    /// They are on no record.
    pub fn put_back(&self, taken: &Taken) {
        taken.0.iter().for_each(|(written, _)| self.list(written));
    }

    /// The log has them.
    pub fn note(&self, taken: &Taken) {
        let mut marks = lock(&self.marks);
        taken.marks().for_each(|(object, mark)| marks.set(object, Some(mark)));
    }

    /// What a record of the log says.
    pub fn redo(&self, object: u64, mark: Mark) {
        lock(&self.marks).set(object, Some(mark).filter(|mark| mark.sequence > 0));
    }

    /// An object was unmapped.
    pub fn forget(&self, object: u64) {
        lock(&self.marks).set(object, None);
    }

    /// What a checkpoint is to bring to the map.
    pub fn freeze(&self, taken: &Taken) -> Changes {
        let mut marks = lock(&self.marks);
        let changed = std::mem::take(&mut marks.changed);
        let known = changed.into_iter().map(|object| (object, marks.all.get(&object).copied()));
        let mut changes: Changes = known.collect();
        changes.extend(taken.marks().map(|(object, mark)| (object, Some(mark))));
        changes
    }

    /// The map has these, or could not be written.
    pub fn thaw(&self, changes: &Changes, taken: &Taken, is_done: bool) {
        if is_done {
            let mut marks = lock(&self.marks);
            marks.all.extend(taken.marks());
        } else {
            lock(&self.marks).changed.extend(changes.keys());
            self.put_back(taken);
        }
    }
}

impl Marks {
    fn set(&mut self, object: u64, mark: Option<Mark>) {
        let before = match mark {
            Some(mark) => self.all.insert(object, mark),
            None => self.all.remove(&object),
        };
        if before != mark {
            self.changed.insert(object);
        }
    }
}
