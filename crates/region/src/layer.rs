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
//! | first write or last block written in part | `k` | 1 for each block that was there | |
//! | sync | 1 for each record of what was mapped since the last one | | 1, with a record 2 |
//!
//! Locks, in this order: the turn to sync, `placing` (who writes blocks that wait) or `stripes` (who writes where
//! somebody maps), `gate` (I/O on blocks that were looked up, so that none is given to somebody else meanwhile),
//! `state`, `known`.
//!
//! A block that is not mapped any more is free when the record that says so is durable, and nobody has the gate who
//! came before that.

mod check;
mod durable;
mod fresh;
mod known;
mod over;
mod room;
mod stripes;

use crate::base::Base;
use crate::buffer::AlignedBuffer;
use crate::device::{Device, read_anywhere};
use crate::error::{Error, Result, at};
use crate::geometry::{Format, Geometry, what_is_there};
use crate::log::Log;
use crate::overlay::{Overlay, Piece};
use crate::record::{ENTRIES_MAX, Entry};
use crate::space::Space;
use crate::{BLOCK, BLOCK_BYTES, random, read, write};
pub use check::Findings;
use durable::Turns;
use fresh::{Bytes, FRESH_MAX, Waiting};
use known::Known;
pub(crate) use over::take_front;
use room::Taken;
pub use room::Usage;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};
use stripes::Stripes;

/// Changes that wait for a sync: beyond that one is made, so that their memory is bounded.
const PENDING_MAX: usize = 64 << 10;
/// Changes that are looked through, for whether they are on their way.
const LOOKED_AT_MAX: usize = 64;
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
    /// Held by whoever writes blocks that wait: where they are put together.
    placing: Mutex<AlignedBuffer>,
    /// Free blocks that only the store's own addresses get: with them, what takes room can be taken away.
    kept_free: AtomicU64,
}

struct State {
    /// Blocks that wait to be written, by virtual block.
    fresh: BTreeMap<u64, Waiting>,
    /// Changes since the last checkpoint, and those that are being brought to the map.
    active: Overlay,
    frozen: Option<Arc<Overlay>>,
    space: Space,
    /// Changes that no record has, those that belong together in one; and those whose records are being written.
    pending: Vec<Vec<Entry>>,
    /// How many they are in all.
    pending_entries: usize,
    recording: Vec<Vec<Entry>>,
    /// Blocks that they free.
    freed: Vec<(u64, u64)>,
}

impl State {
    /// Changes that wait are to be made durable. What they free is returned.
    fn begin_recording(&mut self) -> Vec<(u64, u64)> {
        self.recording = std::mem::take(&mut self.pending);
        self.pending_entries = 0;
        std::mem::take(&mut self.freed)
    }

    /// Whether a sync makes room.
    fn is_freeing(&self) -> bool {
        !self.freed.is_empty() || !self.recording.is_empty()
    }

    /// Whether a crash may undo the mapping of a part of these blocks. With many changes on their way nobody looks
    /// closely.
    fn is_unsafe(&self, blocks: &Range<u64>) -> bool {
        let touches = |entry: &Entry| piece_of(*entry).within(blocks).is_some();
        self.pending_entries + self.recording.iter().map(Vec::len).sum::<usize>() > LOOKED_AT_MAX
            || self.pending.iter().chain(&self.recording).flatten().any(touches)
    }

    /// Changes that could not be made durable wait before those that came later.
    fn take_back(&mut self, freed: Vec<(u64, u64)>) {
        let recording = std::mem::take(&mut self.recording);
        self.pending_entries += recording.iter().map(Vec::len).sum::<usize>();
        let later = std::mem::replace(&mut self.pending, recording);
        self.pending.extend(later);
        let later = std::mem::replace(&mut self.freed, freed);
        self.freed.extend(later);
    }
}

impl Layer {
    /// Makes an empty store on a device.
    pub fn format(device: Arc<dyn Device>, format: Format) -> Result<Self> {
        if !format.overwrite
            && let Some(found) = what_is_there(&*device)?
        {
            return Err(Error::NotEmpty(found));
        }
        let geometry = Geometry::of(device.bytes(), random()?, format.region_shift)?;
        // The super block last: before it there is no store.
        let zeros = AlignedBuffer::new(BLOCK_BYTES * 2);
        device.write_at(0, &zeros).map_err(at("clear the super blocks"))?;
        device.flush().map_err(at("clear the super blocks"))?;
        let base = Base::create(Arc::clone(&device), &geometry)?;
        geometry.write(&*device)?;
        Self::with(device, geometry, base)
    }

    /// Opens the store on a device: it is as the last sync left it, or later.
    pub fn open(device: Arc<dyn Device>) -> Result<Self> {
        Self::open_as(device, false)
    }

    /// `verified`: after all pages of the map were compared with their checksums.
    pub(crate) fn open_as(device: Arc<dyn Device>, verified: bool) -> Result<Self> {
        let geometry = Geometry::open(&*device)?;
        let base = Base::open(Arc::clone(&device), &geometry, verified)?;
        Self::with(device, geometry, base)
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
        geometry.not_for_data().for_each(|(first, count)| space.keep_away(first, count));
        let state = State {
            fresh: BTreeMap::new(),
            active: Overlay::default(),
            frozen: None,
            space,
            pending: Vec::new(),
            pending_entries: 0,
            recording: Vec::new(),
            freed: Vec::new(),
        };
        let layer = Self {
            device,
            geometry,
            base,
            stripes: Stripes::new(),
            gate: RwLock::default(),
            state: RwLock::new(state),
            turns: Turns::new(Log::new(&geometry, applied)),
            known: Known::default(),
            placing: Mutex::new(AlignedBuffer::new(0)),
            kept_free: AtomicU64::new(0),
        };
        layer.replay()?;
        Ok(layer)
    }

    /// Random, made at format.
    pub(crate) fn identity(&self) -> [u8; 16] {
        self.geometry.identity
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
        let (block, state) = (address / BLOCK, read(&self.state));
        Ok(state.fresh.contains_key(&block) || !self.mapped(&state, block..block + 1)?.is_empty())
    }

    /// The mapped parts of a range of bytes, cut to it, in order: what a copy of it needs.
    pub fn mapped_ranges(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let state = read(&self.state);
        let waiting =
            state.fresh.range(blocks.clone()).map(|(first, _)| Piece { first: *first, count: 1, block: None });
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

    /// Fills `into` with the bytes from an address on: zeros where nothing is mapped.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<()> {
        let blocks = blocks_of(address, into.len())?;
        let _gate = read(&self.gate);
        let (pieces, waiting) = {
            let state = read(&self.state);
            let waiting = state.fresh.range(blocks.clone()).map(|(block, one)| (*block, Arc::clone(&one.bytes)));
            let waiting: Vec<(u64, Bytes)> = waiting.collect();
            (self.mapped(&state, blocks)?, waiting)
        };
        self.read_pieces(address, into, &pieces)?;
        for (block, bytes) in waiting {
            let (start, end) = ((block * BLOCK).max(address), ((block + 1) * BLOCK).min(address + into.len() as u64));
            let of = |at: u64, first: u64| usize::try_from(at - first).unwrap_or(usize::MAX);
            let from = bytes.get(of(start, block * BLOCK)..of(end, block * BLOCK).min(bytes.len())).unwrap_or_default();
            let place = into.get_mut(of(start, address)..of(end, address)).unwrap_or_default();
            let (used, rest) = place.split_at_mut(from.len());
            used.copy_from_slice(from);
            rest.fill(0);
        }
        Ok(())
    }

    fn read_pieces(&self, address: u64, into: &mut [u8], pieces: &[Piece]) -> Result<()> {
        let mut done = address;
        let end = address + into.len() as u64;
        let mut rest = into;
        for piece in pieces {
            let (start, stop) = ((piece.first * BLOCK).max(done), (piece.end() * BLOCK).min(end));
            let (hole, behind) = split(rest, start - done);
            hole.fill(0);
            let (bytes, behind) = split(behind, stop - start);
            let place = self.place(*piece) + (start - piece.first * BLOCK);
            read_anywhere(&*self.device, place, bytes).map_err(at("read the device"))?;
            (done, rest) = (stop, behind);
        }
        rest.fill(0);
        Ok(())
    }

    /// Writes bytes from an address on: over what is mapped, else to new blocks. What is not synced may be lost in a
    /// crash, in any part.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<()> {
        let blocks = blocks_of(address, from.len())?;
        if blocks.is_empty() {
            return Ok(());
        }
        if is_whole(address, from) && self.overwrite(&blocks, &[from], false)? {
            return Ok(());
        }
        self.write_new(address, from)
    }

    /// As [`Layer::write`], for bytes that are not all over what is mapped already.
    fn write_new(&self, address: u64, from: &[u8]) -> Result<()> {
        self.with_room(|| self.write_parts(&[(address, from)], false))
    }

    /// As [`Layer::write`]; safe when this returns, with no more than the device's own call where all is mapped.
    pub fn write_durable(&self, address: u64, from: &[u8]) -> Result<()> {
        let blocks = blocks_of(address, from.len())?;
        if blocks.is_empty() || is_whole(address, from) && self.overwrite(&blocks, &[from], true)? {
            return Ok(());
        }
        self.write_new(address, from)?;
        self.sync()
    }

    /// Writes several ranges, none of which overlap: after a crash all of them are there, or none.
    pub fn write_atomic(&self, parts: &[(u64, &[u8])]) -> Result<()> {
        let mut blocks: Vec<_> = parts.iter().map(|(at, from)| blocks_of(*at, from.len())).collect::<Result<_>>()?;
        blocks.sort_unstable_by_key(|blocks| blocks.start);
        if blocks.windows(2).any(|pair| matches!(pair, [one, next] if next.start < one.end)) {
            return Err(Error::Setting("two parts of one update in the same block".to_owned()));
        }
        self.with_room(|| self.write_parts(parts, true))
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
                let bytes = usize::try_from(mapped.end - mapped.start).unwrap_or(usize::MAX);
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
        let mut state = write(&self.state);
        let waiting: Vec<u64> = state.fresh.range(blocks.clone()).map(|(block, _)| *block).collect();
        let old = self.mapped(&state, blocks)?;
        let entry = |piece: &Piece| {
            let count = u32::try_from(piece.count).map_err(|_| Error::TooManyPieces)?;
            Ok(Entry::Unmap { first: piece.first, count })
        };
        let entries: Vec<Entry> = old.iter().map(entry).collect::<Result<_>>()?;
        for some in entries.chunks(ENTRIES_MAX) {
            self.change(&mut state, some.to_vec())?;
        }
        waiting.iter().for_each(|block| drop(state.fresh.remove(block)));
        Ok(())
    }

    /// Does it again after a sync, if space that was freed may be what it needs.
    fn with_room(&self, mut work: impl FnMut() -> Result<()>) -> Result<()> {
        match work() {
            Err(Error::NoSpace) if read(&self.state).is_freeing() => {
                self.sync()?;
                work()?;
            }
            done => done?,
        }
        self.keep_bounds()
    }

    /// Has blocks that wait written, and changes synced, if there are many.
    fn keep_bounds(&self) -> Result<()> {
        let (waiting, has_much_pending) = {
            let state = read(&self.state);
            (state.fresh.len(), state.pending_entries >= PENDING_MAX)
        };
        if waiting >= 2 * FRESH_MAX {
            self.place_fresh()?;
        } else if waiting >= FRESH_MAX {
            self.place_fresh_if_free()?;
        }
        if has_much_pending { self.sync() } else { Ok(()) }
    }

    /// Writes ranges of bytes. `anew`: to new blocks also where some are mapped, in one change.
    fn write_parts(&self, parts: &[(u64, &[u8])], anew: bool) -> Result<()> {
        let ranges: Vec<Range<u64>> =
            parts.iter().map(|(address, from)| blocks_of(*address, from.len())).collect::<Result<_>>()?;
        let mut stripes = self.stripes.take(&ranges);
        if let ([(address, from)], [blocks]) = (parts, ranges.as_slice())
            && !anew
            && blocks.end - blocks.start == 1
        {
            let from_byte = usize::try_from(address % BLOCK).unwrap_or(usize::MAX);
            if self.write_fresh(blocks.start, from_byte, from)? {
                return Ok(());
            }
        }
        while ranges.iter().any(|blocks| self.has_fresh(blocks)) {
            drop(stripes);
            self.place_fresh()?;
            stripes = self.stripes.take(&ranges);
        }
        let mut taken = Taken { layer: self, extents: Vec::new() };
        let mut entries = Vec::new();
        {
            let _gate = read(&self.gate);
            for ((address, from), blocks) in parts.iter().zip(&ranges) {
                self.write_range(*address, from, blocks, anew, &mut taken, &mut entries)?;
            }
        }
        if entries.len() > ENTRIES_MAX {
            return Err(Error::TooManyPieces);
        }
        if !entries.is_empty() {
            self.change(&mut write(&self.state), entries)?;
        }
        taken.extents.clear();
        drop(stripes);
        Ok(())
    }

    fn write_range(
        &self,
        address: u64,
        from: &[u8],
        blocks: &Range<u64>,
        anew: bool,
        taken: &mut Taken<'_>,
        entries: &mut Vec<Entry>,
    ) -> Result<()> {
        let mapped = self.mapped(&read(&self.state), blocks.clone())?;
        for old in with_holes(&mapped, blocks) {
            let mut first = old.first;
            while first < old.end() {
                let (place, count) = match old.block.filter(|_| !anew) {
                    Some(block) => (block + (first - old.first), (old.end() - first).min(CHUNK_BLOCKS)),
                    None => {
                        let (block, count) = taken.take(first, (old.end() - first).min(CHUNK_BLOCKS))?;
                        let count32 = u32::try_from(count).unwrap_or(u32::MAX);
                        push_map(entries, Entry::Map { first, block, count: count32 });
                        (block, count)
                    }
                };
                let before = old.block.map(|block| block + (first - old.first));
                self.write_blocks(Piece { first, count, block: Some(place) }, before, (address, from))?;
                first += count;
            }
        }
        Ok(())
    }

    /// Writes what some blocks have of a range of bytes; the rest of them is as it was `before` (where they lay), or
    /// zeros.
    fn write_blocks(&self, piece: Piece, before: Option<u64>, (address, from): (u64, &[u8])) -> Result<()> {
        let (start, end) = (piece.first * BLOCK, piece.end() * BLOCK);
        let (used_start, used_end) = (start.max(address), end.min(address + from.len() as u64));
        let of_from = |at: u64| usize::try_from(at - address).unwrap_or(usize::MAX);
        let bytes = from.get(of_from(used_start)..of_from(used_end)).unwrap_or_default();
        if (used_start, used_end) == (start, end) {
            return self.device.write_at(self.place(piece), bytes).map_err(at("write the device"));
        }
        let mut buffer = AlignedBuffer::new(length_of(piece.count));
        if let Some(block) = before {
            // Only the blocks at the ends are there in part.
            let last = piece.count - 1;
            let is_part = [used_start > start, used_end < end];
            for offset in [(is_part[0], 0), (is_part[1], last)].into_iter().filter(|(part, _)| *part).map(|(_, at)| at)
            {
                let old = Piece { first: piece.first + offset, count: 1, block: Some(block + offset) };
                let at_byte = length_of(offset);
                let place = buffer.get_mut(at_byte..at_byte + BLOCK_BYTES).unwrap_or_default();
                self.device.read_at(self.place(old), place).map_err(at("read the device"))?;
            }
        }
        let at_byte = usize::try_from(used_start - start).unwrap_or(usize::MAX);
        if let Some(place) = buffer.get_mut(at_byte..at_byte + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        self.device.write_at(self.place(piece), &buffer).map_err(at("write the device"))
    }

    /// Changes the mapping: takes note of what is to be logged, and of what is free after that.
    fn change(&self, state: &mut State, entries: Vec<Entry>) -> Result<()> {
        let mut freed = Vec::new();
        for entry in &entries {
            let new = piece_of(*entry);
            freed.extend(self.mapped(state, new.first..new.end())?);
        }
        for old in freed {
            if let Some(block) = old.block {
                state.space.unsettle(block, old.count);
                state.freed.push((block, old.count));
            }
        }
        Self::map_new(state, entries);
        Ok(())
    }

    /// The same, where the entries free nothing that is not noted.
    fn map_new(state: &mut State, entries: Vec<Entry>) {
        for entry in &entries {
            let new = piece_of(*entry);
            if let Some(block) = new.block {
                state.space.settle(block, new.count);
            }
            state.active.set(new);
        }
        state.pending_entries += entries.len();
        state.pending.push(entries);
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
        (self.geometry.data_start + piece.block.unwrap_or(0)) * BLOCK
    }
}

fn piece_of(entry: Entry) -> Piece {
    match entry {
        Entry::Map { first, block, count } => Piece { first, count: u64::from(count), block: Some(block) },
        Entry::Unmap { first, count } => Piece { first, count: u64::from(count), block: None },
    }
}

/// Adds an entry, as one with the last if it goes on from there.
fn push_map(entries: &mut Vec<Entry>, new: Entry) {
    if let (Some(Entry::Map { first, block, count }), Entry::Map { first: next, block: place, count: more }) =
        (entries.last_mut(), new)
        && *first + u64::from(*count) == next
        && *block + u64::from(*count) == place
        && let Some(sum) = count.checked_add(more)
    {
        *count = sum;
    } else {
        entries.push(new);
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
fn blocks_of(address: u64, bytes: usize) -> Result<Range<u64>> {
    let end = address.checked_add(bytes as u64).ok_or(Error::Beyond)?;
    let range = address / BLOCK..end.div_ceil(BLOCK);
    Ok(if bytes == 0 { 0..0 } else { range })
}

/// Whether the bytes fill whole blocks.
fn is_whole(address: u64, from: &[u8]) -> bool {
    address.is_multiple_of(BLOCK) && from.len().is_multiple_of(BLOCK_BYTES)
}

fn length_of(blocks: u64) -> usize {
    usize::try_from(blocks).unwrap_or(usize::MAX) * BLOCK_BYTES
}

fn split(bytes: &mut [u8], at: u64) -> (&mut [u8], &mut [u8]) {
    let at = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
    bytes.split_at_mut(at)
}
