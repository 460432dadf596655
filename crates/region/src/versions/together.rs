//! Puts the newest version together: what reads in order find in many places is written anew, one block behind the
//! other.
//!
//! Reads ask for it. Each leaf counts how many places more than one they have met in it; with [`EXTRA_MAX`] it is put
//! together in the background. So what is never read is written once only, and what is read is written anew at most two
//! blocks for each read of the device that there was too many. Old versions have the blocks that they share with the
//! newest where that has them then.
//!
//! Not here: writing what is moved, and what a crash leaves of it (`compact.rs`).

use super::Shared;
use super::batch::Batch;
use super::clean::{Cleaned, Pace};
use super::compact::Placed;
use super::index::Index;
use super::object::{Inner, Leaf, read};
use super::pieces::{HOLE, LEAF_BLOCKS, Look};
use crate::error::{Error, Result};
use crate::failures::Work;
use crate::{BLOCK, lock};
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;

/// Reads of the device that there were too many in a leaf: with more it is put together.
const EXTRA_MAX: u64 = 512;
/// As few places of a leaf stay as they are.
const PLACES_MIN: usize = 32;
/// Blocks side by side: so many are not moved.
const RUN_MIN: usize = 64;
/// Leaves that are moved before the index is brought up to date.
const LEAVES_AT_ONCE: usize = 16;
/// Leaves that wait to be put together.
const WANTED_MAX: usize = 64 << 10;
/// The part of the time that is given to it.
const SHARE: f64 = 0.5;
/// The part of the space that has to be free. What is moved takes new blocks before it gives the old ones back.
const FREE_PART: u64 = 16;
/// Commits between two versions that cleaners and copies need, too (`commit.rs`).
const BETWEEN_MAX: u64 = 1 << 19;

/// What is to be put together.
#[derive(Default)]
pub(super) struct Wanted {
    /// Objects and leaves.
    leaves: BTreeSet<(u64, u64)>,
    /// A thread is at it.
    is_running: bool,
    thread: Option<JoinHandle<()>>,
    /// The store is not used any more.
    is_over: bool,
}

impl Leaf {
    /// A read has met so many places too many. Whether it is worth putting them together.
    pub fn has_met(&self, extra: usize) -> bool {
        if extra == 0 || self.extra.fetch_add(extra as u64, Ordering::Relaxed) + (extra as u64) < EXTRA_MAX {
            return false;
        }
        self.extra.store(0, Ordering::Relaxed);
        let places = self.places.iter().enumerate();
        let placed = places.map(|(block, position)| Placed { block: block as u64, version: 0, position: *position });
        scattered(placed).1 > PLACES_MIN
    }
}

/// The blocks that do not lie beside many others, and in how many places they are.
fn scattered(placed: impl Iterator<Item = Placed>) -> (Vec<Placed>, usize) {
    let with_data: Vec<Placed> = placed.filter(|one| one.position != HOLE).collect();
    let runs = with_data.chunk_by(|one, next| one.position + 1 == next.position);
    let short: Vec<&[Placed]> = runs.filter(|run| run.len() < RUN_MIN).collect();
    (short.concat(), short.len())
}

impl Shared {
    /// Has leaves put together by a thread of its own, soon.
    pub fn ask_together(self: &Arc<Self>, id: u64, leaves: &[u64]) {
        let mut wanted = lock(&self.wanted);
        if wanted.is_over || wanted.leaves.len() >= WANTED_MAX {
            return;
        }
        wanted.leaves.extend(leaves.iter().map(|leaf| (id, *leaf)));
        if wanted.is_running {
            return;
        }
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("weft-together".to_owned());
        let thread = thread.spawn(move || {
            let mut pace = Pace::new(SHARE);
            while let Some((id, leaves)) = shared.next_wanted() {
                shared.put_together(id, &leaves);
                pace.rest();
            }
        });
        // Without a thread somebody asks again.
        wanted.is_running = thread.is_ok();
        wanted.thread = thread.ok();
    }

    /// Some leaves of one object. `None`: there are none, and the thread ends.
    fn next_wanted(&self) -> Option<(u64, Vec<u64>)> {
        let mut wanted = lock(&self.wanted);
        let Some((id, _)) = wanted.leaves.first().copied() else {
            wanted.is_running = false;
            return None;
        };
        let leaves: Vec<u64> =
            wanted.leaves.range((id, 0)..=(id, u64::MAX)).take(LEAVES_AT_ONCE).map(|(_, leaf)| *leaf).collect();
        for leaf in &leaves {
            wanted.leaves.remove(&(id, *leaf));
        }
        Some((id, leaves))
    }

    /// It can stay as it is for any reason: reads ask again.
    fn put_together(&self, id: u64, leaves: &[u64]) {
        let object = lock(&self.open).objects.get(&id).cloned();
        let Some(object) = object.filter(|object| object.has_room_to_move(leaves.len() as u64)) else { return };
        // Somebody may clean for long, or send.
        let Ok(cleaning) = object.cleaning.try_lock() else { return };
        if let Err(error) = object.put_together(leaves, PLACES_MIN, &cleaning) {
            self.failures.note(Work::Defragmentation, &error);
        }
    }

    /// Nothing is put together any more when this returns.
    pub fn stop_together(&self) {
        let mut wanted = lock(&self.wanted);
        wanted.is_over = true;
        wanted.leaves.clear();
        let thread = wanted.thread.take();
        drop(wanted);
        if let Some(thread) = thread {
            // What it has not done stays as it is.
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn has_room_to_move(&self, leaves: u64) -> bool {
        let (usage, head) = (self.shared.layer.usage(), read(&self.state).head);
        let needed = leaves * LEAF_BLOCKS * BLOCK;
        usage.free > usage.total / FREE_PART + needed && head.sequence % (2 * BETWEEN_MAX) < BETWEEN_MAX
    }

    /// All leaves.
    pub fn put_all_together(&self) -> Result<u64> {
        let cleaning = lock(&self.cleaning);
        let leaves: Vec<u64> = (0..read(&self.state).head.size.div_ceil(LEAF_BLOCKS * BLOCK)).collect();
        let mut moved = 0;
        for leaves in leaves.chunks(LEAVES_AT_ONCE) {
            moved += self.put_together(leaves, 1, &cleaning)?;
        }
        Ok(moved)
    }

    /// Leaves that lie in more places than this.
    fn put_together(&self, leaves: &[u64], places: usize, _: &MutexGuard<'_, ()>) -> Result<u64> {
        self.there()?;
        self.shared.checkpoint()?;
        let Some(index) = self.shared.index() else { return Ok(0) };
        let mut cleaned = Cleaned::default();
        let mut checked = HashSet::new();
        let mut moved = Ok(0);
        for leaf in leaves {
            moved = moved.and_then(|moved| Ok(moved + self.put_leaf_together(index, *leaf, places, &mut checked)?));
        }
        // Also when not all of it could be moved; and what a crash, or an error, left.
        let mut one = Batch::one(self, index, &mut cleaned);
        one.settle_moved()?;
        one.move_tails()?;
        moved
    }

    /// `checked`: commits that have been.
    fn put_leaf_together(&self, index: &Index, leaf: u64, places: usize, checked: &mut HashSet<u64>) -> Result<u64> {
        let (levels, newest) = {
            let now = read(&self.state);
            (now.head.levels, now.newest)
        };
        let blocks = leaf * LEAF_BLOCKS..(leaf + 1) * LEAF_BLOCKS;
        let mut look = Look::new(leaf, blocks.clone());
        look.add(&index.pieces(self.id)?, levels, newest)?;
        let found = blocks.zip(look.into_found());
        let (moving, runs) = scattered(found.map(|(block, (version, position))| Placed { block, version, position }));
        if runs <= places {
            return Ok(0);
        }
        for one in moving.chunk_by(|one, next| one.version == next.version).filter_map(<[_]>::first) {
            let commit = index.commit_of(self.id, one.version, one.position)?;
            if let Some((sequence, row)) = commit.filter(|(sequence, _)| checked.insert(*sequence)) {
                self.check_whole(sequence, &row)?;
            }
        }
        // Writers are to have the most of what is free of the ring, and the cleaner the rest. A commit has two blocks
        // at least.
        let head = read(&self.state).head;
        if head.position - head.tail + 2 * moving.len() as u64 > self.ring / 2 {
            return Err(Error::RingFull(self.id));
        }
        self.move_blocks(moving)
    }
}
