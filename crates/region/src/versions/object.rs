//! An object that keeps versions: each write is a commit, in a ring that its region is.
//!
//! A commit is one write of the device, over blocks that were mapped ahead. Locks, in this order: `log` (who commits),
//! `gate` (who reads data, so that the cleaner takes none away meanwhile, and nobody removes the object), `state`.

use super::commit::{Commit, Entry, Kind, Super};
use super::compact::Placed;
use super::index::{Recent, Row, State};
use super::pieces::{HOLE, LEAF_BLOCKS, by_leaf, cut};
use super::{Shared, nanoseconds};
use crate::buffer::AlignedBuffer;
use crate::confirmed::Written;
use crate::error::{Error, Result};
use crate::{BLOCK, BLOCK_BYTES, as_index, lock, random};
pub(super) use crate::{read, write};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

/// Blocks before the ring: the super block, and one that is not used.
pub(super) const RING_START: u64 = 2;
/// Blocks that are mapped ahead of commits: at first, and at most.
pub(super) const AHEAD: Range<u64> = 16..4096;

/// An object at hand. See the module.
pub(super) struct Inner {
    pub shared: Arc<Shared>,
    pub id: u64,
    pub made: u64,
    /// See [`Super::lineage`].
    pub lineage: u64,
    /// Blocks of the ring.
    pub ring: u64,
    pub log: Mutex<Log>,
    pub gate: RwLock<()>,
    /// Held by whoever cleans, or names versions.
    pub cleaning: Mutex<()>,
    /// There may be pieces that no version needs.
    pub needs_sweep: AtomicBool,
    /// There may be small commits that are to be put together.
    pub needs_together: AtomicBool,
    /// The sequence of its last commit when a cleaner that kept so many of the newest versions was done with it.
    pub settled: Mutex<Option<(u64, u64)>>,
    pub state: RwLock<Now>,
    /// The commits up to this one are on the device for certain.
    pub safe: AtomicU64,
    /// For those who sync.
    pub written: Arc<Written>,
    /// The region may be another object's.
    is_removed: AtomicBool,
}

/// An object, what it was like after its last commit, and its commits that are to be brought to the index.
pub(super) struct Frozen {
    pub object: Arc<Inner>,
    pub state: State,
    pub recent: Arc<Recent>,
}

/// For whoever commits.
pub(super) struct Log {
    /// Positions before this one are mapped.
    pub mapped_to: u64,
    /// Blocks to map ahead the next time.
    pub ahead: u64,
    /// A commit's own block.
    pub block: AlignedBuffer,
}

/// What an object is like.
pub(super) struct Now {
    pub head: State,
    /// The sequence of the newest version that can be read: parts of the next one may be behind it.
    pub newest: u64,
    /// What the index does not have, and what is being brought there.
    pub active: Recent,
    pub frozen: Option<Arc<Recent>>,
    /// Where the newest version's blocks lie, by leaf.
    pub leaves: HashMap<u64, Leaf>,
    /// Nothing was ever written in this leaf, and those behind it.
    unwritten: u64,
}

/// A leaf of the newest version.
pub(super) struct Leaf {
    /// Where each of its blocks lies.
    pub places: Box<[u64]>,
    /// How many places more than one reads in order have met since it was last said that these are too many.
    pub extra: AtomicU64,
}

impl Leaf {
    pub fn new(places: Box<[u64]>) -> Self {
        Self { places, extra: AtomicU64::new(0) }
    }
}

impl Inner {
    /// Makes it: with its first block it is there. `again`: there was an object with this identifier before. `origin`:
    /// lineage and time of making of what it is a copy of.
    pub fn make(shared: &Arc<Shared>, id: u64, again: bool, origin: Option<(u64, u64)>) -> Result<Self> {
        let nonce = u64::from_le_bytes(random()?);
        let (lineage, time) = origin.unwrap_or_else(|| (nonce, nanoseconds(SystemTime::now())));
        let made = Super { id, nonce, made: time, lineage };
        if again {
            shared.forget(id)?;
            shared.layer.clear_region(id)?;
        }
        shared.layer.make_block(id << shared.layer.region_shift(), &made.encode())?;
        Ok(Self::new(shared, made, State::new(made.nonce, made.made), 0))
    }

    /// One that is there.
    pub fn open(shared: &Arc<Shared>, id: u64) -> Result<Self> {
        let inner = Self::as_indexed(shared, id)?;
        inner.recover()?;
        Ok(inner)
    }

    /// One that is there, without the commits that the index does not have.
    pub fn as_indexed(shared: &Arc<Shared>, id: u64) -> Result<Self> {
        if !shared.layer.is_mapped(id << shared.layer.region_shift())? {
            return Err(Error::NoObject);
        }
        let found = Self::super_block(shared, id)?
            .ok_or_else(|| Error::Damaged(format!("object {id} has no super block of one that keeps versions")))?;
        let known = shared.index().map_or(Ok(None), |index| index.state(id))?;
        if let Some(index) = shared.index()
            && known.is_some_and(|state| state.nonce != found.nonce)
        {
            // A crash has left it, of an object that had the region before.
            index.forget([id].iter())?;
        }
        let state = known.filter(|state| state.nonce == found.nonce);
        let newest = match (state, shared.index()) {
            (Some(_), Some(index)) => index.listed_up_to(id, u64::MAX)?.map_or(0, |(sequence, _)| sequence),
            _ => 0,
        };
        Ok(Self::new(shared, found, state.unwrap_or_else(|| State::new(found.nonce, found.made)), newest))
    }

    /// The super block of an object. `None`: there is none that keeps versions.
    pub fn super_block(shared: &Shared, id: u64) -> Result<Option<Super>> {
        let mut block = vec![0; BLOCK_BYTES];
        shared.layer.read(id << shared.layer.region_shift(), &mut block)?;
        Ok(Super::decode(&block, id))
    }

    fn new(shared: &Arc<Shared>, found: Super, head: State, newest: u64) -> Self {
        shared.layer.keep_some_free();
        let ring = (1u64 << shared.layer.region_shift()) / BLOCK - RING_START;
        let block = AlignedBuffer::new(BLOCK_BYTES);
        let (active, frozen, leaves) = (Recent::default(), None, HashMap::new());
        let unwritten = if head.sequence == 0 { 0 } else { u64::MAX };
        Self {
            shared: Arc::clone(shared),
            id: found.id,
            made: found.made,
            lineage: found.lineage,
            ring,
            log: Mutex::new(Log { mapped_to: head.position, ahead: AHEAD.start, block }),
            gate: RwLock::default(),
            cleaning: Mutex::default(),
            needs_sweep: AtomicBool::new(true),
            needs_together: AtomicBool::new(false),
            settled: Mutex::default(),
            state: RwLock::new(Now { head, newest, active, frozen, leaves, unwritten }),
            safe: AtomicU64::new(head.sequence),
            written: Arc::new(Written::new(found.id, found.nonce)),
            is_removed: AtomicBool::new(false),
        }
    }

    /// The addresses of positions: two ranges where the ring ends between them.
    pub fn addresses(&self, positions: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let start = (self.id << self.shared.layer.region_shift()) + RING_START * BLOCK;
        let (first, count) = (positions.start % self.ring, positions.end - positions.start);
        let before_end = count.min(self.ring - first);
        let byte = move |block: u64| start + block * BLOCK;
        [byte(first)..byte(first + before_end), byte(0)..byte(count - before_end)]
            .into_iter()
            .filter(|range| range.start < range.end)
    }

    /// Up to where positions are mapped without a gap.
    pub fn mapped_from(&self, from: u64, end: u64) -> Result<u64> {
        let mut position = from;
        for range in self.addresses(from..end) {
            let bytes = range.end - range.start;
            let mapped = match self.shared.layer.mapped_ranges(range.clone())?.first() {
                Some(first) if first.start == range.start => first.end - first.start,
                _ => 0,
            };
            position += mapped / BLOCK;
            if mapped < bytes {
                break;
            }
        }
        Ok(position)
    }

    /// Whether the data of a commit are those that it was written with.
    pub fn has_its_data(&self, position: u64, commit: &Commit) -> Result<bool> {
        Ok(self.checksum_of_data(position, commit)? == commit.data_checksum)
    }

    /// The checksum of the data of a commit as they are.
    pub fn checksum_of_data(&self, position: u64, commit: &Commit) -> Result<u32> {
        let (mut checksum, mut at, end) = (0, position + 1, position + u64::from(commit.blocks));
        let mut buffer = AlignedBuffer::new(BLOCK_BYTES * 256);
        while at < end {
            let count = (end - at).min(256);
            let bytes = &mut buffer[..as_index(count * BLOCK)];
            self.read_positions(at, bytes)?;
            checksum = crc32c::crc32c_append(checksum, bytes);
            at += count;
        }
        Ok(checksum)
    }

    /// Reads whole blocks from a position on.
    pub fn read_positions(&self, position: u64, into: &mut [u8]) -> Result<()> {
        let mut rest = into;
        for range in self.addresses(position..position + rest.len() as u64 / BLOCK) {
            let bytes = as_index(range.end - range.start).min(rest.len());
            let (some, behind) = rest.split_at_mut(bytes);
            self.shared.layer.read(range.start, some)?;
            rest = behind;
        }
        Ok(())
    }

    /// Takes a commit as the newest one.
    pub fn note(&self, now: &mut Now, position: u64, commit: &Commit, checksum: u32) {
        let is_listed = commit.kind == Kind::Written;
        let is_plain = is_listed && commit.entries.iter().all(|entry| entry.version == commit.sequence);
        if is_listed && (now.head.parts.0 != 0 || !is_plain) {
            // What was received need not be the newest of its blocks.
            self.forget_leaves(now);
        }
        if !is_plain {
            now.unwritten = u64::MAX;
        }
        let mut data = position + 1;
        for entry in &commit.entries {
            for key in cut(entry.first..entry.first + entry.count, entry.version) {
                let at = if entry.has_data { data + (key.blocks().start - entry.first) } else { HOLE };
                now.head.levels |= 1 << key.level;
                now.active.pieces.insert(key, at);
            }
            if is_listed {
                self.set_leaves(now, entry, data);
            }
            if commit.kind == Kind::Moved {
                now.active.moved.push((entry.version, entry.first..entry.first + entry.count));
            }
            data += if entry.has_data { entry.count } else { 0 };
        }
        let blocks = u64::from(commit.blocks);
        let live = commit.entries.iter().filter(|entry| entry.has_data).map(|entry| entry.count).sum();
        let row = Row { position, blocks, size: commit.size, time: commit.time, is_listed, live };
        now.active.commits.push((commit.sequence, row));
        now.head.parent = position;
        now.head.position = position + blocks;
        (now.head.sequence, now.head.chain) = (commit.sequence, checksum);
        (now.head.size, now.head.time) = (commit.size, commit.time);
        match (commit.kind, commit.entries.last()) {
            (Kind::Written, _) => (now.newest, now.head.parts) = (commit.sequence, (0, 0)),
            (Kind::Part, Some(last)) => now.head.parts = (last.version, last.first + last.count),
            _ => {}
        }
    }

    /// Lets nobody write or read any more.
    pub fn remove(&self) {
        let _log = lock(&self.log);
        let _gate = write(&self.gate);
        self.is_removed.store(true, Ordering::Relaxed);
        self.written.clear();
    }

    /// For whoever holds `log` or `gate`: whether it is there still.
    pub fn there(&self) -> Result<()> {
        if self.is_removed.load(Ordering::Relaxed) { Err(Error::NoObject) } else { Ok(()) }
    }

    /// The newest version of these blocks lies there.
    fn set_leaves(&self, now: &mut Now, entry: &Entry, data: u64) {
        for (leaf, part) in by_leaf(&(entry.first..entry.first + entry.count)) {
            if leaf >= now.unwritten && entry.has_data {
                now.unwritten = leaf + 1;
                if self.shared.has_room_for_leaf() {
                    let places = vec![HOLE; as_index(LEAF_BLOCKS)];
                    now.leaves.insert(leaf, Leaf::new(places.into()));
                    self.shared.note_leaves(0, 1);
                }
            }
            if let Some(leaf) = now.leaves.get_mut(&leaf) {
                let at = as_index(part.start % LEAF_BLOCKS);
                for (block, place) in part.zip(leaf.places.iter_mut().skip(at)) {
                    *place = if entry.has_data { data + (block - entry.first) } else { HOLE };
                }
            }
        }
    }

    /// Blocks of any version lie elsewhere now, from a position on.
    pub fn move_leaves(now: &mut Now, moved: &[Placed], to: u64) {
        for (one, position) in moved.iter().zip(to..) {
            let leaf = now.leaves.get_mut(&(one.block / LEAF_BLOCKS));
            let at = as_index(one.block % LEAF_BLOCKS);
            if let Some(place) = leaf.and_then(|leaf| leaf.places.get_mut(at)).filter(|at| **at == one.position) {
                *place = position;
            }
        }
    }

    /// Has no positions in memory any more.
    pub fn forget_leaves(&self, now: &mut Now) {
        self.shared.note_leaves(now.leaves.len(), 0);
        now.leaves.clear();
    }

    /// What is new since the last checkpoint, for the next one. `None`: nothing is.
    pub fn freeze(self: &Arc<Self>) -> Option<Frozen> {
        let mut now = write(&self.state);
        if now.active.len() == 0 {
            return None;
        }
        let recent = Arc::new(std::mem::take(&mut now.active));
        now.frozen = Some(Arc::clone(&recent));
        Some(Frozen { object: Arc::clone(self), state: now.head, recent })
    }

    /// Pieces have these levels, too, a bit each. Known before anybody can see them.
    pub fn note_levels(&self, levels: u64) {
        write(&self.state).head.levels |= levels;
    }

    /// The index has it, or it could not be brought there.
    pub fn thaw(&self, is_done: bool) {
        let mut now = write(&self.state);
        if let Some(frozen) = now.frozen.take().filter(|_| !is_done) {
            now.active.add_below((*frozen).clone());
        }
    }

    /// How much the index does not have, but for what is being brought there.
    pub fn recent(&self) -> usize {
        read(&self.state).active.len()
    }

    /// Whether the index does not have all of it.
    pub fn has_recent(&self) -> bool {
        let now = read(&self.state);
        now.active.len() > 0 || now.frozen.is_some()
    }

    /// With how many of the newest versions a cleaner has nothing to do here. `None`: that cannot be said without the
    /// index.
    pub fn settled(&self) -> Option<u64> {
        let log = self.log.try_lock().ok()?;
        let head = read(&self.state).head;
        let is_to_do = [&self.needs_sweep, &self.needs_together].iter().any(|needs| needs.load(Ordering::Relaxed));
        let is_as_left = !is_to_do && log.mapped_to <= head.position;
        let (sequence, newest) = (*lock(&self.settled)).filter(|_| is_as_left)?;
        (sequence == head.sequence).then_some(newest)
    }

    /// A cleaner has left it so, and nobody has written since.
    pub fn settle(&self, newest: u64) {
        self.needs_sweep.store(false, Ordering::Relaxed);
        *lock(&self.settled) = Some((read(&self.state).head.sequence, newest));
    }

    /// Commits up to this one are safe.
    pub fn note_safe(&self, sequence: u64) {
        self.safe.fetch_max(sequence, Ordering::Relaxed);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let now = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.shared.note_leaves(now.leaves.len(), 0);
    }
}
