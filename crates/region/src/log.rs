//! The ring of records.
//!
//! A record is written durably before the next one is begun, so a power failure leaves all of them whole but the last,
//! of which any sectors are there. Each sector of the ring has a stamp, the sequence of its record plus one, and a
//! checksum of its own ([`crate::sectors`]); the whole ring is written with stamp 0 at format. So behind the last whole
//! record sectors are of earlier records, or of a torn one. What is neither is damage, and so is a record behind one
//! that is not whole: the store is not opened then, since what was synced with these records would be lost.

use crate::base::Applied;
use crate::buffer::AlignedBuffer;
use crate::decoder::{Decoder, framed};
use crate::device::Device;
use crate::error::{Error, Result, at};
use crate::geometry::Geometry;
use crate::record::{Entry, RECORD_BLOCKS_MAX, Record, SEQUENCE_AT};
use crate::sealed::u64_at;
use crate::sectors::{STAMP_AT, Sector, frame, framed_bytes, has_later, sectors, unframed};
use crate::{BLOCK, BLOCK_BYTES, as_index};
use std::ops::Range;

/// Of the checksums of sectors. The identity of the store is in each record, so that records are readable without the
/// superblock.
const SEED: u64 = 0x57_4c_4f_47;
/// Blocks that are written at once when the ring is made blank.
const BLANKED_AT_ONCE: u64 = 256;

/// Where the next record goes, and what of the ring is still wanted.
#[derive(Debug)]
pub(crate) struct Log {
    start: u64,
    blocks: u64,
    salt: [u8; 8],
    /// The next record's.
    head: Applied,
    /// Position of the first record that a crash would need.
    tail: u64,
    /// A record may be at the head of which it was said that it is not.
    has_failed: bool,
    memory: Memory,
}

/// Memory of the last record, for the next one: at most [`RECORD_BLOCKS_MAX`] blocks, twice.
#[derive(Debug)]
struct Memory {
    payload: Vec<u8>,
    blocks: AlignedBuffer,
}

impl Log {
    /// The log of a store whose map has everything before `applied`.
    pub fn new(geometry: &Geometry, applied: Applied) -> Self {
        let salt = *geometry.identity.first_chunk().expect("an identity is longer");
        Self {
            start: geometry.log_start,
            blocks: geometry.log_blocks,
            salt,
            head: applied,
            tail: applied.position,
            has_failed: false,
            memory: Memory { payload: Vec::new(), blocks: AlignedBuffer::new(BLOCK_BYTES) },
        }
    }

    /// Makes all of the ring blank: no sector is of a record. Not flushed.
    pub fn blank(&self, device: &dyn Device) -> Result<()> {
        let all = BLANKED_AT_ONCE.min(self.blocks);
        let mut buffer = AlignedBuffer::new(as_index(all) * BLOCK_BYTES);
        for first in (0..self.blocks).step_by(as_index(all)) {
            let bytes = as_index(all.min(self.blocks - first)) * BLOCK_BYTES;
            let blank = &mut buffer[..bytes];
            frame(blank, &[], SEED, 0, |block| self.place(first + block));
            device.write_at((self.start + first) * BLOCK, blank).map_err(at("write the log"))?;
        }
        Ok(())
    }

    /// What sectors of the ring from a position on are.
    pub fn sectors<'a>(&self, position: u64, bytes: &'a [u8]) -> impl Iterator<Item = Sector<'a>> {
        sectors(bytes, SEED, self.places_from(position))
    }

    /// Where the blocks from a position on lie, blocks of the device.
    fn places_from(&self, position: u64) -> impl Fn(u64) -> u64 + use<> {
        let (start, blocks) = (self.start, self.blocks);
        move |block| start + (position + block) % blocks
    }

    /// Where a position lies, blocks of the device.
    fn place(&self, position: u64) -> u64 {
        self.start + position % self.blocks
    }

    /// The next record's.
    pub fn head(&self) -> Applied {
        self.head
    }

    /// Blocks that are free.
    pub fn room(&self) -> u64 {
        self.blocks - (self.head.position - self.tail)
    }

    /// Whether it is time for a checkpoint.
    pub fn is_half_full(&self) -> bool {
        self.room() < self.blocks / 2
    }

    /// The map has everything before the head.
    pub fn release(&mut self) {
        self.tail = self.head.position;
    }

    /// Writes these changes as the next record, for which there has to be room. It is safe when this returns.
    pub fn append(&mut self, device: &dyn Device, entries: Vec<Entry>) -> Result<()> {
        let Applied { sequence, chain, .. } = self.head;
        // Another one in its place, with what that had, and more, takes it away.
        self.has_failed = true;
        let place_of = self.places_from(self.head.position);
        let Memory { payload, blocks: buffer } = &mut self.memory;
        let checksum = Record { sequence, chain, entries }.encode(self.salt, payload);
        let bytes = framed_bytes(payload.len());
        if buffer.len() < bytes {
            *buffer = AlignedBuffer::new(bytes);
        }
        frame(&mut buffer[..bytes], payload, SEED, stamp_of(sequence), place_of);
        let blocks = bytes as u64 / BLOCK;
        for (place, range) in self.places(self.head.position, blocks) {
            let part = &self.memory.blocks[range];
            device.write_durable_at(place, part).map_err(at("write the log"))?;
        }
        let position = self.head.position + blocks;
        self.head = Applied { sequence: sequence + 1, position, chain: checksum };
        self.has_failed = false;
        Ok(())
    }

    /// Before the map has what pending changes say without a record: no record that was said to have failed is found
    /// behind it.
    pub fn forget_failed(&mut self, device: &dyn Device) -> Result<()> {
        if self.has_failed {
            self.blank_head(device)?;
        }
        Ok(())
    }

    /// Makes the block at the head blank, so that nothing that was damaged there before is taken for a record.
    pub fn blank_head(&mut self, device: &dyn Device) -> Result<()> {
        let mut blank = AlignedBuffer::new(BLOCK_BYTES);
        frame(&mut blank, &[], SEED, 0, self.places_from(self.head.position));
        device.write_durable_at(self.place(self.head.position) * BLOCK, &blank).map_err(at("write the log"))?;
        self.has_failed = false;
        Ok(())
    }

    /// Returns the next record of those that are there already. `None`: there is none, and the head stays.
    pub fn next(&mut self, device: &dyn Device) -> Result<Option<Record>> {
        let Applied { sequence, position, chain } = self.head;
        let Some((record, blocks, checksum)) = self.find(device)? else {
            self.has_no_later(device)?;
            return Ok(None);
        };
        if record.chain != chain {
            return Err(self.damaged("does not go on from the one before"));
        }
        self.head = Applied { sequence: sequence + 1, position: position + blocks, chain: checksum };
        Ok(Some(record))
    }

    /// The record at the head, its blocks and its checksum. `None`: it was not written, or not wholly.
    fn find(&self, device: &dyn Device) -> Result<Option<(Record, u64, u32)>> {
        let Applied { sequence, position, .. } = self.head;
        let stamp = stamp_of(sequence);
        let first = self.read(device, position, 1)?;
        let begin: Vec<Sector<'_>> = self.sectors(position, &first).collect();
        if begin.contains(&Sector::Wrong) {
            return Err(self.damaged("has a sector that does not match its checksum"));
        }
        let Some(Sector::Whole { payload, .. }) = begin.first().filter(|first| first.is_of(stamp, 0)) else {
            return Ok(None);
        };
        let blocks = Record::blocks_of(payload, Some(self.salt), sequence).filter(|blocks| *blocks <= self.room());
        let blocks = blocks.ok_or_else(|| self.damaged("does not begin as a record"))?;
        let bytes;
        let all = if blocks == 1 {
            begin
        } else {
            bytes = self.read(device, position, blocks)?;
            self.sectors(position, &bytes).collect()
        };
        if all.contains(&Sector::Wrong) {
            return Err(self.damaged("has a sector that does not match its checksum"));
        }
        // Sectors may be of a record that was said to have failed, and of the one that was written in its place.
        let Some(payload) = unframed(all.into_iter(), stamp) else { return Ok(None) };
        Ok(Record::decode(&payload, sequence)?.map(|(record, checksum)| (record, blocks, checksum)))
    }

    /// An error if there is a record behind the one at the head, which is not whole: it was begun when that one was
    /// durable.
    fn has_no_later(&self, device: &dyn Device) -> Result<()> {
        let (from, stamp) = (self.head.position, stamp_of(self.head.sequence));
        let blocks = (RECORD_BLOCKS_MAX + 1).min(self.blocks);
        let later = |position, bytes: &[u8]| has_later(bytes, SEED, self.places_from(position), stamp);
        let is_there = match self.read(device, from, blocks) {
            Ok(bytes) => later(from, &bytes),
            // Of what cannot be read together, what can be read alone.
            Err(_) => (from + 1..from + blocks)
                .any(|position| self.read(device, position, 1).is_ok_and(|bytes| later(position, &bytes))),
        };
        if is_there { Err(self.damaged("is not there, and a later one is")) } else { Ok(()) }
    }

    fn damaged(&self, what: &'static str) -> Error {
        Error::LogDamaged { record: self.head.sequence, block: self.place(self.head.position), what }
    }

    /// The record that begins at a position, whether it is wanted or not. `None`: none begins there.
    pub fn at(&self, device: &dyn Device, position: u64) -> Result<Option<At>> {
        let first = self.read(device, position, 1)?;
        let Some(Sector::Whole { stamp, number: 0, payload }) = self.sectors(position, &first).next() else {
            return Ok(None);
        };
        let Some(sequence) = stamp.checked_sub(1) else { return Ok(None) };
        let Some(blocks) = Record::blocks_of(payload, None, sequence) else { return Ok(Some((sequence, None))) };
        let bytes = self.read(device, position, blocks)?;
        let payload = unframed(self.sectors(position, &bytes), stamp);
        let record = payload.map_or(Ok(None), |payload| Record::decode(&payload, sequence))?;
        Ok(Some((sequence, record)))
    }

    /// The records in the ring that are not before the head and whole, wherever they begin, ascending by sequence; and
    /// the highest sequence that any sector has.
    pub fn survey(&self, device: &dyn Device) -> Result<(Vec<Record>, u64)> {
        let (mut records, mut highest) = (Vec::new(), self.head.sequence);
        for position in self.head.position..self.head.position + self.blocks {
            // What cannot be read says nothing.
            let Ok(first) = self.read(device, position, 1) else { continue };
            let stamps = self.sectors(position, &first).filter_map(|sector| match sector {
                Sector::Whole { stamp, .. } => stamp.checked_sub(1),
                Sector::Wrong => None,
            });
            highest = stamps.fold(highest, u64::max);
            if let Ok(Some((sequence, Some((record, _))))) = self.at(device, position)
                && sequence >= self.head.sequence
            {
                records.push(record);
            }
        }
        records.sort_unstable_by_key(|record| record.sequence);
        Ok((records, highest))
    }

    /// The next record has this sequence: what was found later than the head is not replayed any more.
    pub fn skip_to(&mut self, sequence: u64) {
        self.head.sequence = self.head.sequence.max(sequence);
    }

    fn read(&self, device: &dyn Device, position: u64, blocks: u64) -> Result<AlignedBuffer> {
        let mut bytes = AlignedBuffer::new(as_index(blocks) * BLOCK_BYTES);
        for (place, range) in self.places(position, blocks) {
            device.read_at(place, &mut bytes[range]).map_err(at("read the log"))?;
        }
        Ok(bytes)
    }

    /// Where so many blocks lie on the device, and which of their bytes: in one place, or in two around the end of the
    /// ring.
    fn places(&self, position: u64, blocks: u64) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
        let at = position % self.blocks;
        let before_end = blocks.min(self.blocks - at);
        let split = as_index(before_end) * BLOCK_BYTES;
        let end = as_index(blocks) * BLOCK_BYTES;
        let both = [((self.start + at) * BLOCK, 0..split), (self.start * BLOCK, split..end)];
        both.into_iter().filter(|(_, range)| !range.is_empty())
    }
}

/// A sequence, and the record that has it with its checksum if that is whole.
pub(crate) type At = (u64, Option<(Record, u32)>);

/// The stamp of a record's sectors.
fn stamp_of(sequence: u64) -> u64 {
    sequence.saturating_add(1)
}

/// See [`crate::decoders`].
pub(crate) const DECODER: Decoder = Decoder {
    name: "region_log_record",
    example: || {
        let entries = vec![
            Entry::Map { first: 7 << 18, block: 1, count: 3 },
            Entry::Sums { block: 1, sums: vec![1, 2, 3] },
            Entry::Unmap { first: 8 << 18, count: 1 },
            Entry::Ready { block: 9, count: 256, number: 77 },
            Entry::Confirmed { object: 8, nonce: 78, sequence: 3 << 20 },
        ];
        let mut payload = Vec::new();
        Record { sequence: 5, chain: 9, entries }.encode([7; 8], &mut payload);
        payload
    },
    seal: |payload| {
        let payload = Record::sealed(payload);
        let stamp = stamp_of(u64_at(&payload, SEQUENCE_AT).unwrap_or(0));
        framed(&payload, SEED, stamp, |block| block)
    },
    decode: |bytes| {
        let stamp = u64_at(bytes, STAMP_AT)?;
        let sequence = stamp.checked_sub(1)?;
        let payload = unframed(sectors(bytes, SEED, |block| block), stamp)?;
        let blocks = Record::blocks_of(&payload, None, sequence)?;
        let (record, _) = Record::decode(&payload, sequence).ok()??;
        let mut again = Vec::new();
        record.encode(*payload.get(8..)?.first_chunk()?, &mut again);
        (blocks <= RECORD_BLOCKS_MAX).then(|| framed(&again, SEED, stamp, |block| block))
    },
};
