//! Objects that keep versions.
//!
//! Each write is a commit: a block that says what it is, and the data, written with one call of the device behind the
//! commit before. The region of the object is a ring of them. An index tells where the blocks of each version lie; it
//! is brought up to date at checkpoints, for all objects at once, and what came after it is found by following the
//! commits. docs/formats/region-store.md has every byte.
//!
//! Memory: what is new since the last checkpoint, [`RECENT_MAX`] entries or a little more, of about 100 bytes; twice
//! that while a checkpoint is made; 64 MiB of the index's pages; and positions of blocks that were read lately, of
//! [`LEAVES_MAX`] leaves of 8 KiB.

mod batch;
mod clean;
mod commit;
mod compact;
pub(crate) mod feed;
mod index;
mod object;
mod pieces;
mod read;
mod recover;
mod rows;
mod scrub;
mod small;
mod together;
mod write;

use crate::address_space::AddressSpace;
use crate::error::{Error, Result};
use crate::failures::{Failures, Noted, Work};
use crate::{lock, random};
pub use clean::{Cleaned, Keep};
use commit::sequence_of;
pub(crate) use commit::{COMMIT_DECODER, SUPER_DECODER, version_of};
use index::{Index, Row};
use object::Inner;
pub(crate) use rows::DECODERS as INDEX_DECODERS;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use together::Wanted;

/// Entries that the index does not have: with more, a checkpoint is made.
const RECENT_MAX: usize = 64 << 10;
/// Leaves in memory.
const LEAVES_MAX: usize = 8 << 10;
/// Objects at hand. Beyond it those that nobody uses are let go.
const OPEN_MAX: usize = 4096;
/// Objects that were removed and which the index forgets at once.
const FORGOTTEN_MAX: usize = 1024;
/// Objects that are not at hand and of which it is known how a cleaner left them.
const SETTLED_MAX: usize = 1 << 20;

/// What one version of an object is like.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VersionStat {
    /// Versions of an object ascend; not every number is one.
    pub version: u64,
    pub size: u64,
    pub time: SystemTime,
}

/// An object that keeps versions. Clones are the same one.
#[derive(Clone)]
pub struct Versioned(Arc<Inner>);

/// One version of an object. It is there as long as no cleaner takes it away.
#[derive(Clone)]
pub struct Version {
    object: Arc<Inner>,
    sequence: u64,
    stat: VersionStat,
}

impl Versioned {
    /// Its identifier, which is the number of its region.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// When it was made.
    pub fn made(&self) -> SystemTime {
        time_of(self.0.made)
    }

    /// The newest version. 0: nobody has written yet.
    pub fn newest(&self) -> Result<VersionStat> {
        Ok(self
            .0
            .listed_up_to(u64::MAX)?
            .map_or(VersionStat { version: 0, size: 0, time: self.made() }, |(sequence, row)| stat_of(sequence, &row)))
    }

    /// Reads bytes of the newest version; zeros where none were written. Returns how many there are.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.0.read_now(offset, into)
    }

    /// Writes bytes: a new version, which is returned. Safe after [`Versioned::sync`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<u64> {
        self.0.write(&[(offset, from)], false)
    }

    /// The same; it is safe when this returns, and so are those before it.
    pub fn write_durable(&self, offset: u64, from: &[u8]) -> Result<u64> {
        self.0.write(&[(offset, from)], true)
    }

    /// Writes several ranges, none of which share a block, as one version: after a crash all of them are there, or
    /// none.
    pub fn write_many(&self, parts: &[(u64, &[u8])]) -> Result<u64> {
        self.0.write(parts, false)
    }

    /// A version of another size: what is new reads zeros.
    pub fn truncate(&self, size: u64) -> Result<u64> {
        self.0.clear(size..u64::MAX, |_| size)
    }

    /// A version in which a range of bytes is zeros, and takes no space where whole blocks are.
    pub fn punch(&self, range: std::ops::Range<u64>) -> Result<u64> {
        self.0.clear(range, |size| size)
    }

    /// All versions are safe when this returns.
    pub fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    /// Up to `count` versions from `from` on, ascending.
    pub fn versions(&self, from: u64, count: usize) -> Result<Vec<VersionStat>> {
        self.0.there()?;
        let Ok(from) = sequence_of(from) else { return Ok(Vec::new()) };
        Ok(self.0.listed(from, count)?.iter().map(|(sequence, row)| stat_of(*sequence, row)).collect())
    }

    /// A version.
    pub fn at(&self, version: u64) -> Result<Version> {
        self.0.there()?;
        let sequence = sequence_of(version)?;
        let row = self.0.listed_at_version(sequence)?;
        self.version(Some((sequence, row)))
    }

    /// The version that was the newest at a time.
    pub fn at_time(&self, time: SystemTime) -> Result<Version> {
        self.0.there()?;
        self.version(self.0.listed_at(nanoseconds(time))?)
    }

    /// Gives a version a name, with which it is kept. The name is taken from the version that had it.
    pub fn set_name(&self, name: &str, version: u64) -> Result<()> {
        self.0.set_name(name, sequence_of(version)?)
    }

    /// Takes a name away; a cleaner may take the version. `false`: there was none.
    pub fn remove_name(&self, name: &str) -> Result<bool> {
        self.0.remove_name(name)
    }

    /// Names and their versions.
    pub fn names(&self) -> Result<Vec<(String, u64)>> {
        self.0.there()?;
        let names = self.0.shared.index().map_or(Ok(Vec::new()), |index| index.names(self.0.id))?;
        Ok(names.into_iter().map(|(name, sequence)| (name, version_of(sequence))).collect())
    }

    /// Writes the blocks of the newest version that lie scattered anew, one behind the other, beside reads and writes.
    /// How many. Where reads meet many places, that is done in the background without being asked for.
    pub fn put_together(&self) -> Result<u64> {
        self.0.put_all_together()
    }

    /// Takes away the versions that are not to be kept, and frees what only they have; beside reads and writes.
    pub fn clean(&self, keep: &Keep) -> Result<Cleaned> {
        self.0.clean(keep).inspect_err(|error| self.0.shared.failures.note(Work::Cleaning, error))
    }

    fn version(&self, found: Option<(u64, Row)>) -> Result<Version> {
        let (sequence, row) = found.ok_or(Error::NoVersion)?;
        Ok(Version { object: Arc::clone(&self.0), sequence, stat: stat_of(sequence, &row) })
    }
}

impl Version {
    /// Number, size and time.
    pub fn stat(&self) -> VersionStat {
        self.stat
    }

    /// Reads its bytes; zeros where none were written. Returns how many there are.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.object.read_version(self.sequence, offset, into)
    }
}

/// Whether a block is the super block of an object that keeps versions.
pub(crate) fn is_super_block(block: &[u8], id: u64) -> bool {
    commit::Super::decode(block, id).is_some()
}

/// What a block says if it is of an object that keeps versions.
pub(crate) fn describe(block: &[u8]) -> Option<String> {
    let found = commit::Super::decode_any(block).map(|found| format!("object {}, which keeps versions", found.id));
    found.or_else(|| commit::Commit::decode(block).map(|(commit, _)| commit.describe()))
}

fn stat_of(sequence: u64, row: &Row) -> VersionStat {
    VersionStat { version: version_of(sequence), size: row.size, time: time_of(row.time) }
}

pub(crate) fn time_of(nanoseconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanoseconds)
}

pub(crate) fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// All objects of a store that keep versions.
pub(crate) struct Versions(Arc<Shared>);

/// What they have in common.
pub(crate) struct Shared {
    layer: Arc<dyn AddressSpace>,
    index: OnceLock<Index>,
    /// Random, of this opening of the store.
    opening: u64,
    /// Objects at hand: what is new of them is in memory only.
    open: Mutex<Open>,
    /// Objects that were removed, which the index may have still.
    removed: Mutex<Vec<u64>>,
    /// Entries that the index does not have.
    recent: AtomicUsize,
    leaves: AtomicUsize,
    /// The object from which on somebody works ahead.
    next_to_clean: Mutex<u64>,
    /// Held by whoever makes a checkpoint.
    turn: Mutex<()>,
    /// The thread that makes one.
    background: Mutex<Option<JoinHandle<()>>>,
    /// What is to be put together.
    wanted: Mutex<Wanted>,
    failures: Noted,
}

#[derive(Default)]
struct Open {
    objects: HashMap<u64, Arc<Inner>>,
    /// Objects that are being made, or removed.
    going: HashSet<u64>,
    /// With so many, those that nobody uses are let go.
    sweep_at: usize,
    /// Of objects that were let go: a cleaner that keeps so many of the newest versions, or more, has nothing to do.
    settled: HashMap<u64, u64>,
    /// Objects that are in use while the store is not any more.
    left: Vec<Weak<Inner>>,
}

impl Open {
    /// An object is being made, or removed: what was known of one with its identifier is not of this one.
    fn go(&mut self, id: u64) {
        self.going.insert(id);
        self.settled.remove(&id);
    }
}

impl Versions {
    /// `verified`: after all pages of the index were compared with their checksums.
    pub fn open(layer: &Arc<dyn AddressSpace>, verified: bool) -> Result<Self> {
        let opening = u64::from_le_bytes(random()?);
        let index = Index::open(layer, verified)?.map_or_else(OnceLock::new, OnceLock::from);
        Ok(Self(Arc::new(Shared {
            layer: Arc::clone(layer),
            index,
            opening,
            open: Mutex::default(),
            removed: Mutex::default(),
            recent: AtomicUsize::new(0),
            leaves: AtomicUsize::new(0),
            next_to_clean: Mutex::default(),
            turn: Mutex::default(),
            background: Mutex::default(),
            wanted: Mutex::default(),
            failures: Noted::default(),
        })))
    }

    /// Makes an object where none is.
    /// `again`: there was one with this identifier before.
    pub fn create(&self, id: u64, again: bool) -> Result<Versioned> {
        self.make(id, again, None)
    }

    fn make(&self, id: u64, again: bool, origin: Option<(u64, u64)>) -> Result<Versioned> {
        self.0.let_some_go()?;
        // Nobody else finds it before it is whole.
        lock(&self.0.open).go(id);
        let made = Inner::make(&self.0, id, again, origin).map(Arc::new);
        let mut open = lock(&self.0.open);
        open.going.remove(&id);
        let made = made?;
        open.objects.insert(id, Arc::clone(&made));
        Ok(Versioned(made))
    }

    /// An object that is there.
    pub fn object(&self, id: u64) -> Result<Versioned> {
        if let Some(found) = lock(&self.0.open).objects.get(&id) {
            return Ok(Versioned(Arc::clone(found)));
        }
        self.0.let_some_go()?;
        // One for all: others wait until it is found.
        let mut open = lock(&self.0.open);
        if let Some(found) = open.objects.get(&id) {
            return Ok(Versioned(Arc::clone(found)));
        }
        if open.going.contains(&id) {
            return Err(Error::NoObject);
        }
        let found = Arc::new(Inner::open(&self.0, id)?);
        if let Some(newest) = open.settled.remove(&id) {
            found.settle(newest);
        }
        open.objects.insert(id, Arc::clone(&found));
        Ok(Versioned(found))
    }

    /// Has an object go, if it is one of these: nobody has it at hand before `gone`, and nobody finds it after that.
    pub fn remove(&self, id: u64, gone: impl FnOnce() -> Result<()>) -> Result<()> {
        let at_hand = {
            let mut open = lock(&self.0.open);
            open.go(id);
            open.objects.remove(&id)
        };
        if let Some(object) = at_hand {
            object.remove();
        }
        let done = gone();
        lock(&self.0.open).going.remove(&id);
        if done.is_ok() {
            self.0.layer.settle_confirmed(id, u64::MAX);
        }
        if done.is_ok() && self.0.index().is_some() {
            lock(&self.0.removed).push(id);
        }
        done
    }

    /// Takes away what the index has of an object that was removed, before its region is one's that keeps no versions:
    /// after a crash that would be taken for a damaged one.
    pub fn forget_removed(&self, id: u64) -> Result<()> {
        self.0.forget(id)
    }

    /// All objects that the index has.
    pub fn ids(&self) -> Result<Vec<u64>> {
        self.0.index().map_or(Ok(Vec::new()), Index::ids)
    }

    /// All objects that the index has, or that are at hand.
    pub fn known_ids(&self) -> Result<BTreeSet<u64>> {
        let at_hand = self.0.at_hand();
        Ok(self.ids()?.into_iter().chain(at_hand.iter().map(|object| object.id)).collect())
    }

    /// Takes note of a cleaning that failed.
    pub fn note_clean(&self, cleaned: Result<Cleaned>) -> Result<Cleaned> {
        cleaned.inspect_err(|error| self.0.failures.note(Work::Cleaning, error))
    }

    /// Work in the background that failed.
    pub fn failures(&self) -> Failures {
        self.0.failures.so_far()
    }

    /// Brings the index up to date.
    pub fn checkpoint(&self) -> Result<()> {
        self.0.checkpoint()
    }
}

impl Drop for Versions {
    /// The device is in use as long as the thread is.
    fn drop(&mut self) {
        self.0.stop_together();
        let background = lock(&self.0.background).take();
        if let Some(thread) = background {
            // What it has not done, the next opening does.
            let _ = thread.join();
        }
        // Each of them has what they have in common, too. Those that somebody uses go with their users.
        let mut open = lock(&self.0.open);
        open.left = std::mem::take(&mut open.objects).values().map(Arc::downgrade).collect();
    }
}

impl Shared {
    fn index(&self) -> Option<&Index> {
        self.index.get()
    }

    fn note_recent(&self, count: usize) {
        self.recent.fetch_add(count, Ordering::Relaxed);
    }

    /// Objects whose commits may not be in the index.
    fn at_hand(&self) -> Vec<Arc<Inner>> {
        let open = lock(&self.open);
        open.objects.values().cloned().chain(open.left.iter().filter_map(Weak::upgrade)).collect()
    }

    /// Objects that nobody uses need not be at hand, when many are.
    fn let_some_go(&self) -> Result<()> {
        let is_full = |open: &Open| open.objects.len() >= open.sweep_at.max(OPEN_MAX);
        if !is_full(&lock(&self.open)) {
            return Ok(());
        }
        self.checkpoint()?;
        let mut open = lock(&self.open);
        let Open { objects, settled, .. } = &mut *open;
        objects.retain(|id, object| {
            let is_kept = Arc::strong_count(object) > 1 || object.has_recent();
            if !is_kept && settled.len() < SETTLED_MAX {
                settled.extend(object.settled().map(|newest| (*id, newest)));
            }
            is_kept
        });
        open.sweep_at = open.objects.len() * 2;
        Ok(())
    }

    /// Has the index know nothing of an object that was, nor of some that were removed since: who makes others in
    /// their place finds that done.
    fn forget(&self, id: u64) -> Result<()> {
        // A checkpoint that began before may bring something of it.
        let _turn = lock(&self.turn);
        let Some(index) = self.index() else { return Ok(()) };
        if index.state(id)?.is_none() {
            return Ok(());
        }
        let removed: Vec<u64> = {
            let mut all = lock(&self.removed);
            let count = all.len().min(FORGOTTEN_MAX);
            all.drain(..count).collect()
        };
        // They are not to come back without.
        let done = self.layer.sync().and_then(|()| index.forget(removed.iter().chain([&id])));
        if done.is_err() {
            lock(&self.removed).extend(removed);
        }
        done
    }

    fn has_room_for_leaf(&self) -> bool {
        self.leaves.load(Ordering::Relaxed) < LEAVES_MAX
    }

    fn note_leaves(&self, before: usize, now: usize) {
        self.leaves.fetch_add(now, Ordering::Relaxed);
        self.leaves.fetch_sub(before, Ordering::Relaxed);
    }

    /// A checkpoint, if much is new, by a thread of its own; with twice as much, one that the caller waits for.
    fn checkpoint_if_much(self: &Arc<Self>) -> Result<()> {
        let recent = self.recent.load(Ordering::Relaxed);
        if recent < RECENT_MAX {
            return Ok(());
        }
        if recent >= 2 * RECENT_MAX {
            return self.checkpoint();
        }
        let Ok(mut background) = self.background.try_lock() else { return Ok(()) };
        if background.as_ref().is_none_or(JoinHandle::is_finished) {
            let shared = Arc::clone(self);
            let work = move || {
                // One that fails changes nothing: it is made again, in the end by somebody who is told.
                if let Err(error) = shared.checkpoint() {
                    shared.failures.note(Work::Checkpoint, &error);
                }
            };
            let thread = std::thread::Builder::new().name("weft-index".to_owned()).spawn(work);
            // Without a thread it is as if it were not finished.
            *background = thread.ok();
        }
        Ok(())
    }

    fn checkpoint(&self) -> Result<()> {
        let _turn = lock(&self.turn);
        let open = self.at_hand();
        let frozen: Vec<_> = open.iter().filter_map(Inner::freeze).collect();
        let removed = std::mem::take(&mut *lock(&self.removed));
        if frozen.is_empty() && (removed.is_empty() || self.index().is_none()) {
            return Ok(());
        }
        let done = self.bring(&removed, &frozen);
        for object::Frozen { object, state, .. } in &frozen {
            object.thaw(done.is_ok());
            if done.is_ok() {
                object.note_safe(state.sequence);
                self.layer.settle_confirmed(object.id, state.sequence);
            }
        }
        // Those that were removed are not among them any more.
        let recent = self.at_hand().iter().map(|object| object.recent()).sum();
        self.recent.store(recent, Ordering::Relaxed);
        if done.is_err() {
            lock(&self.removed).extend(removed);
        }
        done
    }

    /// Brings what is new to the index, after it is safe: the index never tells of more than there is.
    fn bring(&self, removed: &[u64], frozen: &[object::Frozen]) -> Result<()> {
        self.layer.sync()?;
        let index = match self.index.get() {
            Some(index) => index,
            None => {
                let made = Index::create(&self.layer)?;
                self.index.get_or_init(|| made)
            }
        };
        index.checkpoint(removed, frozen)
    }
}
