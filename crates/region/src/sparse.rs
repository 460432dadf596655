//! The address space in a sparse file of a host file system: the byte at an address is at that offset of the file, and
//! the host maps.
//!
//! There is no log and no map. A write is the host's own, a hole reads zeros, and what is trimmed is punched. That an
//! object is there is a bit of its own ([`Existence`]), since hosts tell holes, blocks of zeros, and blocks that were
//! set aside apart as they like; what they say is used for what is to be read or freed only.
//!
//! Costs: a read, or a write of whole blocks, is a call of the host; a block written in part is read before; a sync is
//! a flush; with objects made since the last one, a durable write of the block of their bits more (of several blocks,
//! writes and a flush); with objects removed, a punch for each and a flush more.
//!
//! Invariant: a bit is in the file when what the object begins with is safe; it is taken away for certain before its
//! region is punched; and an identifier is free when that is safe.
//! On a crash: what a sync has confirmed is there. Of what was written later any part is there, and of a range that was
//! trimmed. A region without a bit may have bytes: nobody reads them, and the next opening punches them
//! (`leftover.rs`).
//! Not here: updates of several extents that are there wholly or not at all, and checksums of data. Both need blocks
//! that move.
//!
//! Locks, in this order: `stripes` (who writes a part of a block has it alone), the turn to sync, `adding` (who has a
//! group's block written for the first time, or what says that the store was closed), and that of the bits, which is
//! not held across I/O.

mod dump;
mod existence;
mod header;
mod leftover;

use crate::address_space::{AddressSpace, OwnPlaces};
use crate::buffer::AlignedBuffer;
use crate::device::{Device, Read, read_anywhere};
use crate::error::{Error, Result, at};
use crate::geometry::{COPIES, Checksums, Format, what_is_there};
use crate::layer::stripes::Stripes;
use crate::layer::{Findings, Layer, Usage, blocks_of, edges, is_whole, length_of};
use crate::{BLOCK, BLOCK_BYTES, as_index, lock, random};
pub(crate) use dump::dump;
use existence::{Existence, Round};
pub(crate) use header::{DECODER, MAGIC};
use header::{GROUP, Header};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes that are written with one call where some blocks are written in part.
const CHUNK_BYTES: u64 = 4 << 20;
/// Blocks of bits that are read with one call.
const GROUPS_READ: u64 = 256;

/// See the module.
pub(crate) struct Sparse {
    file: Arc<dyn Device>,
    header: Header,
    existence: Existence,
    stripes: Stripes,
    adding: Mutex<()>,
    /// The file says so.
    is_closed: AtomicBool,
    /// Syncs that were begun, and the last that ended well.
    begun: AtomicU64,
    done: Mutex<u64>,
}

impl Sparse {
    /// Whether a file has a store of this form, or had one that is damaged.
    pub fn is_on(file: &dyn Device) -> bool {
        let mut block = vec![0; BLOCK_BYTES];
        COPIES.into_iter().any(|copy| {
            (copy + 1) * BLOCK <= file.bytes()
                && file.read_at(copy * BLOCK, &mut block).is_ok()
                && block.starts_with(MAGIC)
        })
    }

    /// Makes an empty one.
    pub fn format(file: Arc<dyn Device>, format: Format) -> Result<Self> {
        if !format.overwrite
            && let Some(found) = what_is_there(&*file)?
        {
            return Err(Error::NotEmpty(found));
        }
        let header = Header::of(file.bytes(), random()?, format)?;
        // The header last: before it there is no store.
        file.punch(0, header.bytes).map_err(at("make the file empty"))?;
        file.flush().map_err(at("make the file empty"))?;
        header.write(&*file)?;
        Ok(Self::with(file, header))
    }

    /// The one that is there, as the last sync left it, or later.
    pub fn open(file: Arc<dyn Device>) -> Result<Self> {
        let sparse = Self::load(file)?;
        sparse.punch_leftovers()?;
        Ok(sparse)
    }

    /// The same, with what a crash has left.
    fn load(file: Arc<dyn Device>) -> Result<Self> {
        let header = Header::read(&*file)?;
        let sparse = Self::with(file, header);
        let (zeros, mut buffer) = ([0; BLOCK_BYTES], AlignedBuffer::new(length_of(GROUPS_READ)));
        for first in (0..header.groups()).step_by(GROUPS_READ as usize) {
            let count = (header.groups() - first).min(GROUPS_READ);
            let some = &mut buffer[..length_of(count)];
            sparse.file.read_at(header.group_place(first), some).map_err(at("read which objects there are"))?;
            for (group, block) in (first..).zip(some.chunks(BLOCK_BYTES)) {
                if block != zeros {
                    sparse.existence.load(group, block);
                }
            }
        }
        // It was read, but the host may have it in its cache only.
        sparse.file.flush().map_err(at("flush the file"))?;
        Ok(sparse)
    }

    fn with(file: Arc<dyn Device>, header: Header) -> Self {
        Self {
            file,
            header,
            existence: Existence::default(),
            stripes: Stripes::new(),
            adding: Mutex::default(),
            is_closed: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            done: Mutex::default(),
        }
    }

    /// The region that an address is in. `None`: it is the store's own.
    fn region_of(&self, address: u64) -> Option<u64> {
        let id = address >> self.header.region_shift;
        (id > 0 && id < self.header.regions()).then_some(id)
    }

    /// The object whose first block lies at an address.
    fn begins_at(&self, address: u64) -> Option<u64> {
        self.region_of(address).filter(|id| id << self.header.region_shift == address / BLOCK * BLOCK)
    }

    fn region(&self, id: u64) -> Range<u64> {
        id << self.header.region_shift..(id + 1) << self.header.region_shift
    }

    fn check_end(&self, blocks: &Range<u64>) -> Result<()> {
        if blocks.end * BLOCK <= self.header.bytes { Ok(()) } else { Err(Error::Beyond) }
    }

    /// An error: what is to change is not of one region, or of what is behind all of them.
    fn check_place(&self, blocks: &Range<u64>) -> Result<()> {
        let (start, end) = (blocks.start * BLOCK, blocks.end * BLOCK);
        let place_end = match start >> self.header.region_shift {
            id if id < self.header.regions() => self.region(id).end,
            _ => self.header.bytes,
        };
        if end <= place_end { Ok(()) } else { Err(Error::Beyond) }
    }

    /// Whether what is written durably there needs no sync to be found after a crash.
    fn is_found_again(&self, address: u64) -> bool {
        self.region_of(address).is_none_or(|id| self.existence.is_safe(id))
    }

    /// The object that bytes from an address on make is there from now on.
    fn note_written(&self, address: u64) {
        if let Some(id) = self.begins_at(address).filter(|id| !self.existence.has(*id)) {
            self.existence.set(id);
        }
    }

    /// Before a write: has the file have a block for the bit of the object that begins at the address. When the host is
    /// full, objects can be removed still.
    fn begin_write(&self, address: u64) -> Result<()> {
        self.begin_changes()?;
        let Some(group) = self.begins_at(address).map(|id| id / GROUP) else { return Ok(()) };
        if self.existence.has_group(group) {
            return Ok(());
        }
        let _adding = lock(&self.adding);
        if !self.existence.has_group(group) {
            let zeros = AlignedBuffer::new(BLOCK_BYTES);
            self.file.write_at(self.header.group_place(group), &zeros).map_err(at("write which objects there are"))?;
            self.existence.load(group, &zeros);
        }
        Ok(())
    }

    /// Writes parts, each whole blocks, one behind the other.
    fn write_whole(&self, address: u64, parts: &[&[u8]], durable: bool) -> Result<()> {
        let blocks = blocks_of(address, parts.iter().map(|part| part.len()).sum())?;
        self.check_place(&blocks)?;
        self.begin_write(address)?;
        let at_once = durable && self.is_found_again(address);
        {
            let _stripes = self.stripes.share(&blocks);
            self.file.write_parts_at(address, parts, at_once).map_err(at("write the file"))?;
        }
        self.note_written(address);
        if durable && !at_once { self.sync() } else { Ok(()) }
    }

    /// Writes bytes that begin or end within a block, and have one place.
    fn write_part(&self, address: u64, from: &[u8]) -> Result<()> {
        let blocks = blocks_of(address, from.len())?;
        self.begin_write(address)?;
        {
            let _stripes = self.stripes.take(std::slice::from_ref(&blocks));
            let count = blocks.end - blocks.start;
            let mut buffer = AlignedBuffer::new(length_of(count));
            let is_part = [address, address + from.len() as u64].map(|edge| !edge.is_multiple_of(BLOCK));
            for offset in edges(is_part, count) {
                let place = &mut buffer[length_of(offset)..length_of(offset + 1)];
                self.file.read_at((blocks.start + offset) * BLOCK, place).map_err(at("read the file"))?;
            }
            let skipped = as_index(address % BLOCK);
            buffer[skipped..skipped + from.len()].copy_from_slice(from);
            self.file.write_at(blocks.start * BLOCK, &buffer).map_err(at("write the file"))?;
        }
        self.note_written(address);
        Ok(())
    }

    /// Has a part of a block, or of two, read zeros.
    fn clear_edge(&self, edge: &Range<u64>) -> Result<()> {
        let mut bytes = vec![0; as_index(edge.end - edge.start)];
        self.read(edge.start, &mut bytes)?;
        // What is zeros already need not take space.
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        bytes.fill(0);
        self.write_part(edge.start, &bytes)
    }

    /// Takes whole blocks away, which have one place.
    fn punch(&self, range: Range<u64>) -> Result<()> {
        self.begin_changes()?;
        if let Some(id) = self.begins_at(range.start) {
            if self.existence.clear(id, range.clone()) {
                // Punched by the next sync, when nothing says any more that it is there.
                return Ok(());
            }
            if self.existence.is_gone(range.start) {
                self.sync()?;
            }
        }
        // Who writes a part of a block has read it before.
        let blocks = range.start / BLOCK..range.end / BLOCK;
        let _stripes = self.stripes.take(std::slice::from_ref(&blocks));
        self.file.punch(range.start, range.end - range.start).map_err(at("punch the file"))
    }

    fn sync_now(&self) -> Result<()> {
        let flush = || self.file.flush().map_err(at("flush the file"));
        let round = self.existence.begin();
        flush()?;
        // Crash here: objects that were made are not there, and their regions have bytes.
        self.write_groups(&round)?;
        // Crash here: objects that were removed are not there, and their regions have bytes.
        if !round.gone().is_empty() {
            for range in round.gone() {
                self.file.punch(range.start, range.end - range.start).map_err(at("punch the file"))?;
            }
            flush()?;
        }
        self.existence.end(round);
        Ok(())
    }

    /// Has the bits of a round in the file for certain.
    fn write_groups(&self, round: &Round) -> Result<()> {
        let what = "write which objects there are";
        let mut groups = round.groups();
        // Mostly there is one, which is one call.
        if groups.len() == 1 {
            return groups.try_for_each(|(group, bits)| {
                self.file.write_durable_at(self.header.group_place(group), &bits).map_err(at(what))
            });
        }
        let is_changed = groups.len() > 0;
        groups.try_for_each(|(group, bits)| {
            self.file.write_at(self.header.group_place(group), &bits).map_err(at(what))
        })?;
        if is_changed { self.file.flush().map_err(at("flush the file")) } else { Ok(()) }
    }

    /// Tells of what is no hole in a range, as far as the host says.
    fn each_data(&self, range: Range<u64>, tell: &mut dyn FnMut(Range<u64>) -> Result<()>) -> Result<()> {
        let (mut from, end) = (range.start, range.end.min(self.header.bytes));
        while from < end {
            let found = self.file.data_within(from / BLOCK * BLOCK..end.next_multiple_of(BLOCK));
            let Some(data) = found.map_err(at("look for holes"))? else { break };
            tell(data.start.max(from)..data.end.min(end))?;
            from = data.end;
        }
        Ok(())
    }
}

impl AddressSpace for Sparse {
    fn identity(&self) -> [u8; 16] {
        self.header.identity
    }

    fn region_shift(&self) -> u8 {
        self.header.region_shift
    }

    fn checksums(&self) -> Checksums {
        Checksums::Metadata
    }

    fn own(&self) -> OwnPlaces {
        OwnPlaces {
            identifiers: self.header.identifiers(),
            regions_end: self.header.regions_end,
            index: self.header.index(),
        }
    }

    fn is_mapped(&self, address: u64) -> Result<bool> {
        if let Some(id) = self.begins_at(address) {
            return Ok(self.existence.has(id));
        }
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        self.read(address / BLOCK * BLOCK, &mut block)?;
        Ok(block[..] != [0; BLOCK_BYTES])
    }

    /// Anywhere.
    fn mapped_ranges(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        Ok(Some(range).into_iter().filter(|range| !range.is_empty()).collect())
    }

    fn data_ranges(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut ranges = Vec::new();
        // What an object begins with may be a hole.
        if self.begins_at(range.start).is_some() {
            ranges.push(range.start..(range.start / BLOCK + 1) * BLOCK);
        }
        self.each_data(range, &mut |data| {
            match ranges.last_mut().filter(|last: &&mut Range<u64>| last.end >= data.start) {
                Some(last) => last.end = last.end.max(data.end),
                None => ranges.push(data),
            }
            Ok(())
        })?;
        Ok(ranges)
    }

    fn mapped(&self) -> Option<&Layer> {
        None
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<()> {
        self.check_end(&blocks_of(address, into.len())?)?;
        read_anywhere(&*self.file, address, into).map_err(at("read the file"))
    }

    fn read_all(&self, parts: &mut [Read<'_>]) -> Result<()> {
        parts.iter().try_for_each(|(address, into)| self.check_end(&blocks_of(*address, into.len())?))?;
        self.file.read_all(parts).map_err(at("read the file"))
    }

    fn write(&self, mut address: u64, mut from: &[u8]) -> Result<()> {
        if is_whole(address, from) {
            return self.write_whole(address, &[from], false);
        }
        self.check_place(&blocks_of(address, from.len())?)?;
        while !from.is_empty() {
            let (some, rest) = from.split_at(from.len().min((CHUNK_BYTES - address % CHUNK_BYTES) as usize));
            self.write_part(address, some)?;
            (address, from) = (address + some.len() as u64, rest);
        }
        Ok(())
    }

    fn write_durable(&self, address: u64, from: &[u8]) -> Result<()> {
        if is_whole(address, from) {
            return self.write_whole(address, &[from], true);
        }
        self.write(address, from)?;
        self.sync()
    }

    fn write_over(&self, address: u64, parts: &[&[u8]], durable: bool) -> Result<()> {
        self.write_whole(address, parts, durable)
    }

    /// Refused.
    fn write_atomic(&self, _parts: &[(u64, &[u8])]) -> Result<()> {
        let text = "a store in a sparse file has no updates of several extents that are there wholly or not at all";
        Err(Error::Setting(text.to_owned()))
    }

    /// The host does it when they are written.
    fn reserve(&self, blocks: Range<u64>) -> Result<()> {
        self.check_place(&blocks)
    }

    fn make_block(&self, address: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            // It reads zeros as it is.
            self.begin_write(address)?;
            self.note_written(address);
            return Ok(());
        }
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        block.get_mut(..bytes.len()).ok_or(Error::Beyond)?.copy_from_slice(bytes);
        self.write_whole(address, &[&block[..]], false)
    }

    /// The bit is safe when the block is, so a mark would say nothing.
    fn make_marked_block(&self, address: u64, bytes: &dyn Fn(u64) -> Vec<u8>) -> Result<u64> {
        let made = self.make_block(address, &bytes(0)).and_then(|()| self.sync());
        // Who is told of a failure does not expect to have it.
        let region = self.region(address >> self.header.region_shift);
        made.map(|()| 0).inspect_err(|_| drop(self.trim(region)))
    }

    fn trim(&self, range: Range<u64>) -> Result<()> {
        self.check_place(&(range.start / BLOCK..range.end.div_ceil(BLOCK)))?;
        let inner = range.start.div_ceil(BLOCK) * BLOCK..range.end / BLOCK * BLOCK;
        if inner.start >= inner.end {
            return self.clear_edge(&range);
        }
        self.clear_edge(&(range.start..inner.start))?;
        self.clear_edge(&(inner.end..range.end))?;
        self.punch(inner)
    }

    fn cut(&self, _block: (u64, &[u8]), range: &Range<u64>) -> Result<bool> {
        self.trim(range.clone()).map(|()| false)
    }

    fn clear_region(&self, id: u64) -> Result<()> {
        // It was punched before its identifier was free; that is for the host to say, which costs less than to punch.
        let mut has_data = false;
        self.each_data(self.region(id), &mut |_| {
            has_data = true;
            Ok(())
        })?;
        if has_data {
            self.trim(self.region(id))?;
        }
        // Nobody begins an object in what is to be punched.
        if self.existence.is_gone(self.region(id).start) { self.sync() } else { Ok(()) }
    }

    /// After a crash in the middle any of them are there.
    fn sweep(&self) -> Result<()> {
        self.begin_changes()?;
        self.existence.clear_all(self.region(1).start..self.header.regions_end);
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        // A sync that begins from now on has all that was written before.
        let begun = self.begun.load(Ordering::SeqCst);
        let mut done = lock(&self.done);
        if *done > begun {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        self.sync_now()?;
        *done = number;
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.sync()?;
        self.note_closed()
    }

    /// The host's space is not the store's alone.
    fn keep_some_free(&self) {}

    fn is_empty(&self) -> Result<bool> {
        Ok(self.existence.some_from(0).is_empty())
    }

    /// What the file takes, and what the host has free; nothing, where it does not say.
    fn usage(&self) -> Usage {
        let space = self.file.host_space().unwrap_or_default();
        Usage { total: space.taken.saturating_add(space.free), free: space.free, unused: 0 }
    }

    fn check(&self, of_region: &mut dyn FnMut(u64) -> Result<bool>) -> Result<Findings> {
        let mut findings = Findings::default();
        self.each_region(&mut |id| {
            findings.objects += 1;
            let is_whole = match of_region(id) {
                Err(Error::Damaged(_)) => false,
                is_whole => is_whole?,
            };
            findings.damaged_objects += u64::from(!is_whole);
            Ok(())
        })?;
        self.each_range(&mut |blocks| {
            findings.pieces += 1;
            findings.mapped_blocks += blocks.end - blocks.start;
            Ok(())
        })?;
        Ok(findings)
    }

    fn each_region(&self, tell: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let mut first = 1;
        loop {
            let some = self.existence.some_from(first);
            let Some(last) = some.last() else { return Ok(()) };
            first = last + 1;
            some.iter().filter(|id| **id < self.header.regions()).try_for_each(|id| tell(*id))?;
        }
    }

    fn each_range(&self, tell: &mut dyn FnMut(Range<u64>) -> Result<()>) -> Result<()> {
        self.each_data(0..self.header.bytes, &mut |data| tell(data.start / BLOCK..data.end / BLOCK))
    }

    fn verify(&self, blocks: Range<u64>, buffer: &mut [u8], tell: &mut dyn FnMut(String)) -> Result<(u64, u64)> {
        let count = blocks.end - blocks.start;
        let into = buffer.get_mut(..length_of(count)).ok_or(Error::Beyond)?;
        if self.file.read_at(blocks.start * BLOCK, into).is_err() {
            // Of what cannot be read together, what can be read alone.
            for (block, into) in blocks.zip(into.chunks_mut(BLOCK_BYTES)) {
                if let Err(error) = self.file.read_at(block * BLOCK, into) {
                    let byte = block * BLOCK;
                    tell(match self.region_of(byte) {
                        Some(id) => {
                            format!("object {id}, byte {} of its region: {error}", byte - self.region(id).start)
                        }
                        None => format!("byte {byte} of the file: {error}"),
                    });
                }
            }
        }
        Ok((count, 0))
    }
}
