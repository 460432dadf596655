//! The virtual storage layer: a sparse 64-bit address space over a device.
//!
//! Costs, per call (`k` pieces that lie apart on the device):
//!
//! | call | device writes | device reads | flushes |
//! | --- | --- | --- | --- |
//! | read | | `k` | |
//! | write over what is mapped, whole blocks | `k` | | |
//! | first write of several blocks | `k` | | |
//! | first write of a single block | with others, at the latest at the next sync | | |
//! | the same, first or last block written in part | `k` | 1 for each block that was there | |
//! | update of several extents | 1 for what finds free blocks side by side | likewise | |
//! | first block of an object, durable | 1, and a record for 1024 | | 1 |
//! | sync | 1 for each record of what was mapped since the last one | | 1, with a record 2 |
//!
//! New blocks are taken behind those that were taken last. So of a writer that appends, a block that is mapped and
//! completed, and the new ones behind it, are one piece.
//!
//! Where data have checksums, a write over what is mapped is as a first write of several blocks.
//!
//! Locks, in this order: who opens a run of blocks ([`ready`]), the turn to sync, `placing` (who writes blocks that
//! wait), `stripes` (who writes where somebody maps; to sync or to place, they are given back), a place of `gathered`,
//! `gate` (I/O on blocks that were looked up, so that none is given to somebody else meanwhile), `state`, `ready`,
//! `known`.
//!
//! A block that is not mapped any more is free when the record that says so is durable, and nobody has the gate who
//! came before that.

mod atomic;
mod changes;
mod check;
mod cut;
mod durable;
mod fresh;
mod gathered;
mod in_memory;
mod known;
mod over;
mod reading;
mod ready;
mod recent;
mod repair;
mod room;
mod state;
pub(crate) mod stripes;
mod sums;
mod sweep;
mod waiting;
mod writing;

use crate::base::{Applied, Base};
use crate::buffer::AlignedBuffer;
use crate::confirmed::Confirmed;
use crate::device::Device;
use crate::error::{Error, Result, at};
use crate::geometry::{Format, Geometry, what_is_there};
use crate::log::Log;
use crate::overlay::{Overlay, Piece};
use crate::record::{ENTRIES_BYTES_MAX, ENTRIES_MAX, Entry};
use crate::reuse::Reuses;
use crate::space::Space;
use crate::{BLOCK, BLOCK_BYTES, as_index, random, read, write};
use changes::Changes;
pub use check::Findings;
use durable::Turns;
use fresh::{Placing, placing};
use gathered::Gathered;
use known::Known;
pub(crate) use over::take_front;
use ready::Ready;
use recent::Epochs;
use room::Taken;
pub use room::Usage;
use state::{Freed, State};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock, RwLockWriteGuard};
use stripes::{Held, Stripes};
use sums::{KnownSums, RecentSums};
use waiting::AllWaiting;

/// Bytes of changes that wait for a sync: beyond that one is made, so that their memory is bounded.
const PENDING_BYTES_MAX: usize = 21 << 16;
/// Blocks that one device call writes where some are new.
const CHUNK_BLOCKS: u64 = 4096;

/// See the module. Shared by threads.
pub struct Layer {
    device: Arc<dyn Device>,
    geometry: Geometry,
    base: Base,
    stripes: Stripes,
    gate: RwLock<()>,
    state: RwLock<State>,
    turns: Turns,
    known: Known,
    epochs: Epochs,
    reuses: Reuses,
    known_sums: KnownSums,
    placing: Placing,
    gathered: Gathered,
    opening_run: Mutex<()>,
    ready: Mutex<Ready>,
    /// Free blocks that only the store's own addresses get: with them, what takes room can be taken away.
    kept_free: AtomicU64,
    confirmed: Confirmed,
}

impl Layer {
    /// Makes an empty store on a device.
    pub fn format(device: Arc<dyn Device>, format: Format) -> Result<Self> {
        if !format.overwrite
            && let Some(found) = what_is_there(&*device)?
        {
            return Err(Error::NotEmpty(found));
        }
        let geometry = Geometry::of(device.bytes(), random()?, format)?;
        // The super block last: before it there is no store.
        let zeros = AlignedBuffer::new(BLOCK_BYTES * 2);
        device.write_at(0, &zeros).map_err(at("clear the super blocks"))?;
        device.flush().map_err(at("clear the super blocks"))?;
        let base = Base::create(Arc::clone(&device), &geometry)?;
        Log::new(&geometry, Applied::default()).blank(&*device)?;
        device.flush().map_err(at("flush the log"))?;
        geometry.write(&*device)?;
        let layer = Self::with(device, geometry, base)?;
        layer.replay()?;
        Ok(layer)
    }

    /// Opens the store on a device: it is as the last sync left it, or later.
    pub fn open(device: Arc<dyn Device>) -> Result<Self> {
        Self::open_as(device, false)
    }

    /// `verified`: after all pages of the map were compared with their checksums.
    pub(crate) fn open_as(device: Arc<dyn Device>, verified: bool) -> Result<Self> {
        let geometry = Geometry::open(&*device)?;
        let base = Base::open(Arc::clone(&device), &geometry, verified)?;
        let layer = Self::with(device, geometry, base)?;
        layer.replay()?;
        Ok(layer)
    }

    /// The same, after it has taken all of a device that has become larger into the store. A power failure meanwhile
    /// leaves the store as it was, or as it is then.
    pub fn grow(device: Arc<dyn Device>) -> Result<Self> {
        // What cannot be opened is not changed.
        let layer = Self::open(Arc::clone(&device))?;
        match layer.geometry.grown(device.bytes())? {
            Some(grown) => grown.write(&*device)?,
            None => return Ok(layer),
        }
        drop(layer);
        Self::open(device)
    }

    fn with(device: Arc<dyn Device>, geometry: Geometry, base: Base) -> Result<Self> {
        let applied = base.applied()?;
        let mut space = Space::new(geometry.data_blocks());
        base.load_space(&mut space)?;
        let confirmed = Confirmed::new(base.confirmed()?);
        space.keep_away(geometry.not_for_data());
        let state = State {
            fresh: AllWaiting::default(),
            gathered: 0,
            active: Overlay::default(),
            frozen: None,
            sums: RecentSums::default(),
            space,
            pending: Vec::new(),
            pending_entries: 0,
            pending_bytes: 0,
            recording: Vec::new(),
            freed: Vec::new(),
        };
        Ok(Self {
            device,
            geometry,
            base,
            stripes: Stripes::new(),
            gate: RwLock::default(),
            state: RwLock::new(state),
            turns: Turns::new(Log::new(&geometry, applied)),
            known: Known::default(),
            epochs: Epochs::new(),
            reuses: Reuses::default(),
            known_sums: KnownSums::default(),
            placing: placing(),
            gathered: Gathered::new(),
            opening_run: Mutex::default(),
            ready: Mutex::default(),
            kept_free: AtomicU64::new(0),
            confirmed,
        })
    }

    /// Random, made at format.
    pub(crate) fn identity(&self) -> [u8; 16] {
        self.geometry.identity
    }

    /// Which commits are known to be on the device.
    pub(crate) fn confirmed_marks(&self) -> &Confirmed {
        &self.confirmed
    }

    /// Bytes of a region, as a power of two.
    pub(crate) fn region_shift(&self) -> u8 {
        self.geometry.region_shift
    }

    /// Takes away what a crash may have left of an object that had the region before.
    pub(crate) fn clear_region(&self, id: u64) -> Result<()> {
        let shift = self.region_shift();
        let region = id << shift..(id + 1) << shift;
        if self.mapped_ranges(region.clone())?.is_empty() { Ok(()) } else { self.trim(region) }
    }

    /// Whether the block of this address is mapped.
    pub fn is_mapped(&self, address: u64) -> Result<bool> {
        let block = address / BLOCK;
        self.bring_gathered(&(block..block + 1));
        let state = read(&self.state);
        Ok(state.fresh.contains(block) || !self.mapped(&state, block..block + 1)?.is_empty())
    }

    /// The mapped parts of a range of bytes, cut to it, in order: what a copy of it needs.
    pub fn mapped_ranges(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        self.bring_gathered(&blocks);
        let state = read(&self.state);
        let waiting = state.fresh.range(blocks.clone()).map(|(first, _)| Piece { first, count: 1, block: None });
        let mut pieces = self.mapped(&state, blocks.clone())?;
        pieces.extend(waiting);
        pieces.sort_unstable_by_key(|piece| piece.first);
        for piece in pieces {
            let (start, end) = ((piece.first * BLOCK).max(range.start), (piece.end() * BLOCK).min(range.end));
            match ranges.last_mut().filter(|last| last.end >= start) {
                Some(last) => last.end = last.end.max(end),
                None => ranges.push(start..end),
            }
        }
        Ok(ranges)
    }

    /// Writes bytes from an address on: over what is mapped, else to new blocks. What is not synced may be lost in a
    /// crash, in any part.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<()> {
        let blocks = blocks_of(address, from.len())?;
        if blocks.is_empty() {
            return Ok(());
        }
        if self.goes_over(address, from) && self.overwrite(&blocks, &[from], false)? {
            return Ok(());
        }
        self.write_new(address, from)
    }

    /// Whether these bytes may be written over what is there.
    fn goes_over(&self, address: u64, from: &[u8]) -> bool {
        is_whole(address, from) && address / BLOCK >= self.sums_end()
    }

    /// As [`Layer::write`], for bytes that are not all over what is mapped already.
    fn write_new(&self, mut address: u64, mut from: &[u8]) -> Result<()> {
        while !from.is_empty() {
            let (some, rest) = from.split_at(self.write_max(address).min(from.len()));
            self.with_room(|| self.write_part(address, some))?;
            (address, from) = (address + some.len() as u64, rest);
        }
        Ok(())
    }

    /// As [`Layer::write`]; safe when this returns, with no more than the device's own call where all is mapped.
    pub fn write_durable(&self, address: u64, from: &[u8]) -> Result<()> {
        let blocks = blocks_of(address, from.len())?;
        if blocks.is_empty() || self.goes_over(address, from) && self.overwrite(&blocks, &[from], true)? {
            return Ok(());
        }
        self.write_new(address, from)?;
        self.sync()
    }

    /// Takes whole blocks away: they read zeros, and their space is free after the next sync. Bytes of blocks that the
    /// range has a part of are zeros, too, and their blocks stay.
    pub fn trim(&self, range: Range<u64>) -> Result<()> {
        let inner = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        let edges = if inner.start >= inner.end {
            vec![range]
        } else {
            vec![range.start..inner.start * BLOCK, inner.end * BLOCK..range.end]
        };
        for edge in edges.into_iter().filter(|edge| edge.start < edge.end) {
            for mapped in self.mapped_ranges(edge)? {
                let bytes = as_index(mapped.end - mapped.start);
                self.write(mapped.start, &vec![0; bytes])?;
            }
        }
        if inner.start < inner.end {
            self.unmap(inner)?;
        }
        Ok(())
    }

    fn unmap(&self, blocks: Range<u64>) -> Result<()> {
        let _stripes = self.stripes.take(std::slice::from_ref(&blocks));
        self.bring_gathered(&blocks);
        let mut state = write(&self.state);
        let old = self.mapped(&state, blocks.clone())?;
        let entry = |piece: &Piece| {
            let count = u32::try_from(piece.count).map_err(|_| Error::TooManyPieces)?;
            Ok(Entry::Unmap { first: piece.first, count })
        };
        let entries: Vec<Entry> = old.iter().map(entry).collect::<Result<_>>()?;
        for some in entries.chunks(ENTRIES_MAX) {
            self.change(&mut state, some.to_vec())?;
        }
        state.fresh.remove(blocks);
        Ok(())
    }

    /// Does it again after a sync, if space that was freed may be what it needs.
    fn with_room(&self, mut work: impl FnMut() -> Result<()>) -> Result<()> {
        match work() {
            Err(Error::NoSpace) if self.free_some()? => work()?,
            done => done?,
        }
        self.keep_bounds()
    }

    /// Has blocks that wait written, and changes synced, if there are many.
    fn keep_bounds(&self) -> Result<()> {
        self.keep_few_waiting()?;
        let pending = read(&self.state).pending_bytes;
        // Whoever finds that somebody does it goes on for a while.
        if pending >= PENDING_BYTES_MAX && (pending >= 4 * PENDING_BYTES_MAX || !self.turns.is_taken()) {
            return self.sync();
        }
        Ok(())
    }

    /// Writes a range of bytes.
    fn write_part(&self, address: u64, from: &[u8]) -> Result<()> {
        let blocks = blocks_of(address, from.len())?;
        if blocks.end - blocks.start == 1 {
            let _stripes = self.stripes.take(std::slice::from_ref(&blocks));
            let from_byte = as_index(address % BLOCK);
            if self.write_fresh(blocks.start, from_byte, from)? {
                return Ok(());
            }
        }
        let stripes = self.have_alone(std::slice::from_ref(&blocks))?;
        let mut taken = Taken { layer: self, extents: Vec::new() };
        let mut changes = Changes::default();
        {
            let _gate = read(&self.gate);
            // What has checksums is not written over.
            let border = self.sums_end().clamp(blocks.start, blocks.end);
            self.write_range((address, from), &(blocks.start..border), true, &mut taken, &mut changes)?;
            self.write_range((address, from), &(border..blocks.end), false, &mut taken, &mut changes)?;
        }
        self.settle(changes, taken)?;
        drop(stripes);
        Ok(())
    }

    /// Has ranges alone; none of their blocks waits then.
    fn have_alone(&self, ranges: &[Range<u64>]) -> Result<Held<RwLockWriteGuard<'_, ()>>> {
        loop {
            let stripes = self.stripes.take(ranges);
            if !ranges.iter().any(|blocks| self.has_fresh(blocks)) {
                return Ok(stripes);
            }
            drop(stripes);
            self.place_fresh()?;
        }
    }

    /// Makes changes whose blocks are written.
    fn settle(&self, changes: Changes, mut taken: Taken<'_>) -> Result<()> {
        let entries = changes.into_entries();
        if Entry::bytes_of(&entries) > ENTRIES_BYTES_MAX {
            return Err(Error::TooManyPieces);
        }
        if !entries.is_empty() {
            self.change(&mut write(&self.state), entries)?;
        }
        taken.extents.clear();
        Ok(())
    }

    /// Changes the mapping: takes note of what is to be logged, and of what is free after that.
    fn change(&self, state: &mut State, entries: Vec<Entry>) -> Result<()> {
        let mut freed = Vec::new();
        for new in entries.iter().filter_map(piece_of) {
            // The next write takes what a write over it has left: to tell the device would cost more than the write.
            let is_discarded = new.block.is_none() || self.sums_end() == 0;
            let old = self.mapped(state, new.first..new.end())?;
            if !old.is_empty() {
                self.epochs.change(&(new.first..new.end()));
            }
            freed
                .extend(old.iter().filter_map(|old| Some(Freed { block: old.block?, count: old.count, is_discarded })));
        }
        freed.iter().for_each(|old| state.space.unsettle(old.block, old.count));
        state.freed.extend(freed);
        self.map_new(state, entries);
        Ok(())
    }

    /// The same, where the entries free nothing that is not noted.
    fn map_new(&self, state: &mut State, entries: Vec<Entry>) {
        // What lies side by side on the device was mostly taken together.
        let (mut first, mut end) = (0, 0);
        for entry in &entries {
            if let Entry::Map { block, count, .. } = *entry {
                if block != end {
                    state.space.settle(first, end - first);
                    first = block;
                }
                end = block + u64::from(count);
            }
            self.apply(state, entry);
        }
        state.space.settle(first, end - first);
        state.add_pending(entries);
    }

    /// The mapping is so from now on, and so are checksums.
    fn apply(&self, state: &mut State, entry: &Entry) {
        match entry {
            Entry::Map { block, count, .. } if self.sums_end() > 0 => {
                state.sums.active.clear(*block, u64::from(*count));
            }
            Entry::Sums { block, sums } => state.sums.active.set(*block, sums),
            Entry::Map { .. } | Entry::Unmap { .. } | Entry::Ready { .. } | Entry::Confirmed { .. } => {}
        }
        piece_of(entry).into_iter().for_each(|new| state.active.set(new));
    }

    /// What is mapped in a range, cut to it, in order.
    fn mapped(&self, state: &State, range: Range<u64>) -> Result<Vec<Piece>> {
        if state.frozen.is_none() && state.active.within(range.clone()).next().is_none() {
            return self.known.within(&self.base, &range);
        }
        let mut unknown = vec![range];
        let mut found = Vec::new();
        let overlays = [Some(&state.active), state.frozen.as_deref()];
        for overlay in overlays.into_iter().flatten() {
            let mut left = Vec::new();
            for range in unknown {
                let mut next = range.start;
                for piece in overlay.within(range.clone()) {
                    if next < piece.first {
                        left.push(next..piece.first);
                    }
                    next = piece.end();
                    found.push(piece);
                }
                if next < range.end {
                    left.push(next..range.end);
                }
            }
            unknown = left;
        }
        for range in unknown {
            found.extend(self.known.within(&self.base, &range)?);
        }
        found.retain(|piece| piece.block.is_some());
        found.sort_unstable_by_key(|piece| piece.first);
        Ok(found)
    }

    /// Where a mapped piece lies on the device.
    fn place(&self, piece: Piece) -> u64 {
        (self.geometry.data_start + piece.mapped_at()) * BLOCK
    }
}

/// The virtual blocks that an entry changes.
fn piece_of(entry: &Entry) -> Option<Piece> {
    match *entry {
        Entry::Map { first, block, count } => Some(Piece { first, count: u64::from(count), block: Some(block) }),
        Entry::Unmap { first, count } => Some(Piece { first, count: u64::from(count), block: None }),
        Entry::Sums { .. } | Entry::Ready { .. } | Entry::Confirmed { .. } => None,
    }
}

/// The pieces of a range with the holes between them.
fn with_holes(mapped: &[Piece], range: &Range<u64>) -> Vec<Piece> {
    let (mut all, mut next) = (Vec::new(), range.start);
    for piece in mapped {
        if next < piece.first {
            all.push(Piece { first: next, count: piece.first - next, block: None });
        }
        all.push(*piece);
        next = piece.end();
    }
    if next < range.end {
        all.push(Piece { first: next, count: range.end - next, block: None });
    }
    all
}

/// The virtual blocks that so many bytes lie in.
pub(crate) fn blocks_of(address: u64, bytes: usize) -> Result<Range<u64>> {
    let end = address.checked_add(bytes as u64).ok_or(Error::Beyond)?;
    let range = address / BLOCK..end.div_ceil(BLOCK);
    Ok(if bytes == 0 { 0..0 } else { range })
}

/// Of so many blocks those that are there in part, if the begin of the first, and the end of the last, are so.
pub(crate) fn edges(is_part: [bool; 2], count: u64) -> impl Iterator<Item = u64> {
    let [first, last] = is_part;
    let first = first.then_some(0);
    let last = last.then_some(count.saturating_sub(1)).filter(|last| first != Some(*last));
    first.into_iter().chain(last)
}

/// Whether the bytes fill whole blocks.
pub(crate) fn is_whole(address: u64, from: &[u8]) -> bool {
    address.is_multiple_of(BLOCK) && from.len().is_multiple_of(BLOCK_BYTES)
}

pub(crate) fn length_of(blocks: u64) -> usize {
    as_index(blocks) * BLOCK_BYTES
}
