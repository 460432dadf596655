//! Bytes that a crash left in regions whose object is not there: of one that no sync had confirmed, or that was removed
//! and not yet punched. They take space of the host.
//!
//! A block of the file says that the store was closed: then there are none. Before the first change it is cleared. An
//! opening that does not find it asks the host for what is no hole, region by region, and punches what is no object's.

use super::Sparse;
use crate::BLOCK;
use crate::buffer::AlignedBuffer;
use crate::error::{Result, at};
use crate::{BLOCK_BYTES, lock};
use std::sync::atomic::Ordering;

const MAGIC: &[u8; 8] = b"WEFTSHUT";
/// The block.
const CLOSED: u64 = 4;

impl Sparse {
    /// Punches what a crash has left. The bits in memory are in the file for certain.
    pub(super) fn punch_leftovers(&self) -> Result<()> {
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        self.file.read_at(CLOSED * BLOCK, &mut block).map_err(at("read whether it was closed"))?;
        if block[..] == self.closed_block()[..] {
            self.is_closed.store(true, Ordering::Release);
            return Ok(());
        }
        let (mut next, mut found) = (1, 0u64);
        while let Some(id) = self.region_with_data(next)? {
            if !self.existence.has(id) {
                let region = self.region(id);
                self.file.punch(region.start, region.end - region.start).map_err(at("punch the file"))?;
                found += 1;
            }
            next = id + 1;
        }
        if found > 0 { self.file.flush().map_err(at("flush the file")) } else { Ok(()) }
    }

    /// The first region from one on that is no hole, as far as the host says.
    pub(super) fn region_with_data(&self, first: u64) -> Result<Option<u64>> {
        let range = first << self.header.region_shift..self.header.regions_end;
        if range.is_empty() {
            return Ok(None);
        }
        let found = self.file.data_within(range).map_err(at("look for holes"))?;
        Ok(found.and_then(|data| self.region_of(data.start)))
    }

    /// The store changes from now on.
    pub(super) fn begin_changes(&self) -> Result<()> {
        if !self.is_closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let _adding = lock(&self.adding);
        if self.is_closed.load(Ordering::Acquire) {
            let zeros = AlignedBuffer::new(BLOCK_BYTES);
            self.file.write_durable_at(CLOSED * BLOCK, &zeros).map_err(at("write that it is in use"))?;
            self.is_closed.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// All was synced. (Who writes at this very moment may leave something that takes space after a crash.)
    pub(super) fn note_closed(&self) -> Result<()> {
        let _adding = lock(&self.adding);
        if !self.is_closed.load(Ordering::Acquire) {
            let block = self.closed_block();
            self.file.write_durable_at(CLOSED * BLOCK, &block).map_err(at("write that it was closed"))?;
            self.is_closed.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn closed_block(&self) -> AlignedBuffer {
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        let text = [&MAGIC[..], &self.header.identity].concat();
        block[..text.len()].copy_from_slice(&text);
        block
    }
}
