//! The ring of records.

use crate::base::Applied;
use crate::buffer::AlignedBuffer;
use crate::device::Device;
use crate::error::{Result, at};
use crate::geometry::Geometry;
use crate::record::{Entry, Record};
use crate::{BLOCK, BLOCK_BYTES};

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
}

impl Log {
    /// The log of a store whose map has everything before `applied`.
    pub fn new(geometry: &Geometry, applied: Applied) -> Self {
        let salt = geometry.identity.first_chunk().copied().unwrap_or_default();
        Self {
            start: geometry.log_start,
            blocks: geometry.log_blocks,
            salt,
            head: applied,
            tail: applied.position,
            has_failed: false,
        }
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
        let (bytes, checksum) = Record { sequence, chain, entries }.encode(self.salt);
        let mut buffer = AlignedBuffer::new(bytes.len());
        buffer.copy_from_slice(&bytes);
        let blocks = bytes.len() as u64 / BLOCK;
        for (place, range) in self.places(self.head.position, blocks) {
            device.write_durable_at(place, buffer.get(range).unwrap_or_default()).map_err(at("write the log"))?;
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
            for (place, range) in self.places(self.head.position, 1) {
                let zeros = AlignedBuffer::new(range.len());
                device.write_durable_at(place, &zeros).map_err(at("write the log"))?;
            }
            self.has_failed = false;
        }
        Ok(())
    }

    /// The next record of those that are there already. `None`: there is none, and the head stays.
    pub fn next(&mut self, device: &dyn Device) -> Result<Option<Record>> {
        let Applied { sequence, position, chain } = self.head;
        let mut bytes = self.read(device, position, 1)?;
        let Some(blocks) = Record::blocks_of(&bytes, self.salt, sequence, chain) else { return Ok(None) };
        if blocks > self.room() {
            return Ok(None);
        }
        if blocks > 1 {
            bytes = self.read(device, position, blocks)?;
        }
        let Some((record, checksum)) = Record::decode(&bytes, sequence)? else { return Ok(None) };
        self.head = Applied { sequence: sequence + 1, position: position + blocks, chain: checksum };
        Ok(Some(record))
    }

    fn read(&self, device: &dyn Device, position: u64, blocks: u64) -> Result<AlignedBuffer> {
        let mut bytes = AlignedBuffer::new(usize::try_from(blocks).unwrap_or(usize::MAX) * BLOCK_BYTES);
        for (place, range) in self.places(position, blocks) {
            device.read_at(place, bytes.get_mut(range).unwrap_or_default()).map_err(at("read the log"))?;
        }
        Ok(bytes)
    }

    /// Where so many blocks lie on the device, and which of their bytes.
    fn places(&self, position: u64, blocks: u64) -> Vec<(u64, std::ops::Range<usize>)> {
        let at = position % self.blocks;
        let before_end = blocks.min(self.blocks - at);
        let split = usize::try_from(before_end).unwrap_or(usize::MAX) * BLOCK_BYTES;
        let end = usize::try_from(blocks).unwrap_or(usize::MAX) * BLOCK_BYTES;
        let first = ((self.start + at) * BLOCK, 0..split);
        if before_end == blocks { vec![first] } else { vec![first, (self.start * BLOCK, split..end)] }
    }
}
