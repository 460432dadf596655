//! What a store needs below it: a sparse 64-bit address space, cut into regions of one size.
//!
//! Two have it: [`Layer`], which maps blocks of a device itself, and the sparse file of a host file system
//! (`sparse.rs`), where the host maps. They differ in what a crash leaves, and in what knows that an object is there;
//! their documentation says so.

use crate::confirmed::Written;
use crate::device::Read;
use crate::error::Result;
use crate::geometry::Checksums;
use crate::layer::{Findings, Layer, Usage};
use crate::{BLOCK, OWN_START};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Addresses that no object has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnPlaces {
    /// Two blocks, which say what identifiers were given out.
    pub identifiers: u64,
    /// Behind the last region.
    pub regions_end: u64,
    /// The index of versions.
    pub index: Range<u64>,
}

/// See the module. Shared by threads.
pub trait AddressSpace: Send + Sync {
    /// Random, made at format.
    fn identity(&self) -> [u8; 16];

    /// Bytes of a region, as a power of two.
    fn region_shift(&self) -> u8;

    /// What has checksums.
    fn checksums(&self) -> Checksums;

    /// Where the store keeps what is no object's.
    fn own(&self) -> OwnPlaces;

    /// Whether something was written in the block of this address. Of the first block of a region it says whether the
    /// object is there.
    fn is_mapped(&self, address: u64) -> Result<bool>;

    /// The parts of a range, in order, outside of which nothing was ever written.
    fn mapped_ranges(&self, range: Range<u64>) -> Result<Vec<Range<u64>>>;

    /// The parts of a range, in order, outside of which there are zeros only: what a copy needs.
    fn data_ranges(&self, range: Range<u64>) -> Result<Vec<Range<u64>>>;

    /// The layer that maps blocks itself, if it is that one: reads that are on their way need its gate.
    fn mapped(&self) -> Option<&Layer>;

    /// Fills `into` with the bytes from an address on: zeros where nothing was written.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<()>;

    /// Fills several parts likewise.
    fn read_all(&self, parts: &mut [Read<'_>]) -> Result<()>;

    /// Writes bytes. What is not synced may be lost in a crash, in any part. With the first block of a region, the
    /// object is there.
    fn write(&self, address: u64, from: &[u8]) -> Result<()>;

    /// The same; safe when this returns.
    fn write_durable(&self, address: u64, from: &[u8]) -> Result<()>;

    /// Writes parts, each whole blocks, one behind the other over blocks that were reserved. `durable`: they are safe
    /// when this returns.
    fn write_over(&self, address: u64, parts: &[&[u8]], durable: bool) -> Result<()>;

    /// Writes several ranges, none of which overlap: after a crash all of them are there, or none.
    fn write_atomic(&self, parts: &[(u64, &[u8])]) -> Result<()>;

    /// Returns true if checksums of data are wanted, and a block of this range of whole blocks has none.
    fn lacks_sums(&self, _range: Range<u64>) -> Result<bool> {
        Ok(false)
    }

    /// Returns true if a block of this range of whole blocks has a checksum.
    fn has_sums(&self, _range: Range<u64>) -> Result<bool> {
        Ok(false)
    }

    /// Has the checksums of a range of whole blocks be those of what they are now; or of no bytes, if that is wrong.
    fn note_sums(&self, _range: Range<u64>, _is_right: bool) -> Result<()> {
        Ok(())
    }

    /// A commit with this sequence is written wholly, and so are those before it: a sync confirms them.
    fn note_written(&self, _written: &Arc<Written>, _sequence: u64) {}

    /// Has the next sync write what it confirms, also if it has nothing else to write.
    fn want_confirmed(&self) {}

    /// The sequence up to which the commits of an object with this nonce are known to have been on the device, for
    /// telling damage from a power failure. 0: nothing is known.
    fn confirmed(&self, _object: u64, _nonce: u64) -> u64 {
        0
    }

    /// Commits of an object up to this sequence are known otherwise, or are gone with it.
    fn settle_confirmed(&self, _object: u64, _sequence: u64) {}

    /// The last commits of an object are given up: after the next sync nothing is known of them.
    fn forget_confirmed(&self, _object: u64) {}

    /// Prepares blocks in which nothing is to be written over.
    fn reserve(&self, blocks: Range<u64>) -> Result<()>;

    /// Makes the block with which an object begins: nothing is there, and nobody else writes. What the bytes do not
    /// fill is zeros.
    fn make_block(&self, address: u64, bytes: &[u8]) -> Result<()>;

    /// The same; the block is safe when this returns. `bytes` says what is in it with a mark, which nobody else is to
    /// know, and which stays in it as long as the object is there. The mark.
    fn make_marked_block(&self, address: u64, bytes: &dyn Fn(u64) -> Vec<u8>) -> Result<u64>;

    /// Has a range read zeros; the space of its whole blocks is free after the next sync. With the first block of a
    /// region, the object is not there any more.
    fn trim(&self, range: Range<u64>) -> Result<()>;

    /// Writes a block of a region, all of it, and has a range of the region read zeros: after a crash both happened, or
    /// neither, and what is written over the block later counts only if the range is zeros. `false`: that cannot be
    /// promised here. Then the range is zeros and nothing else was done, and the caller syncs before it writes the
    /// block.
    fn cut(&self, block: (u64, &[u8]), range: &Range<u64>) -> Result<bool>;

    /// Takes away what a crash may have left of an object that had the region before.
    fn clear_region(&self, id: u64) -> Result<()>;

    /// Takes all regions away, for certain when this returns.
    fn sweep(&self) -> Result<()>;

    /// All that was written before is safe when this returns.
    fn sync(&self) -> Result<()>;

    /// Syncs, and leaves everything so that it is opened fast.
    fn close(&self) -> Result<()>;

    /// Keeps some space for the store's own addresses, where it can.
    fn keep_some_free(&self);

    /// Whether no region has anything.
    fn is_empty(&self) -> Result<bool>;

    /// Space for data.
    fn usage(&self) -> Usage;

    /// Looks for what contradicts itself; `of_region` is told of each object, and says whether it is whole.
    fn check(&self, of_region: &mut dyn FnMut(u64) -> Result<bool>) -> Result<Findings>;

    /// Tells of all objects, ascending.
    fn each_region(&self, tell: &mut dyn FnMut(u64) -> Result<()>) -> Result<()>;

    /// Tells of all blocks that are in use, in order.
    fn each_range(&self, tell: &mut dyn FnMut(Range<u64>) -> Result<()>) -> Result<()>;

    /// Reads blocks, and compares what has checksums. Those that do not fit, or cannot be read, are told of. `buffer`:
    /// for all of them. How many were read, and compared.
    fn verify(&self, blocks: Range<u64>, buffer: &mut [u8], tell: &mut dyn FnMut(String)) -> Result<(u64, u64)>;
}

impl AddressSpace for Layer {
    fn identity(&self) -> [u8; 16] {
        Layer::identity(self)
    }

    fn region_shift(&self) -> u8 {
        Layer::region_shift(self)
    }

    fn checksums(&self) -> Checksums {
        Layer::checksums(self)
    }

    fn own(&self) -> OwnPlaces {
        OwnPlaces { identifiers: 0, regions_end: OWN_START, index: OWN_START..OWN_START + INDEX_BYTES }
    }

    fn is_mapped(&self, address: u64) -> Result<bool> {
        Layer::is_mapped(self, address)
    }

    fn mapped_ranges(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        Layer::mapped_ranges(self, range)
    }

    fn data_ranges(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        Layer::mapped_ranges(self, range)
    }

    fn mapped(&self) -> Option<&Layer> {
        Some(self)
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<()> {
        Layer::read(self, address, into)
    }

    fn read_all(&self, parts: &mut [Read<'_>]) -> Result<()> {
        Layer::read_all(self, parts)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<()> {
        Layer::write(self, address, from)
    }

    fn write_durable(&self, address: u64, from: &[u8]) -> Result<()> {
        Layer::write_durable(self, address, from)
    }

    fn write_over(&self, address: u64, parts: &[&[u8]], durable: bool) -> Result<()> {
        Layer::write_over(self, address, parts, durable)
    }

    fn write_atomic(&self, parts: &[(u64, &[u8])]) -> Result<()> {
        Layer::write_atomic(self, parts)
    }

    fn lacks_sums(&self, range: Range<u64>) -> Result<bool> {
        Layer::lacks_sums(self, &range)
    }

    fn has_sums(&self, range: Range<u64>) -> Result<bool> {
        Layer::has_sums(self, &range)
    }

    fn note_sums(&self, range: Range<u64>, is_right: bool) -> Result<()> {
        Layer::note_sums_of(self, &range, is_right)
    }

    fn note_written(&self, written: &Arc<Written>, sequence: u64) {
        self.confirmed_marks().note_written(written, sequence);
    }

    fn want_confirmed(&self) {
        self.confirmed_marks().is_wanted.store(true, Ordering::Relaxed);
    }

    fn confirmed(&self, object: u64, nonce: u64) -> u64 {
        self.confirmed_marks().up_to(object, nonce)
    }

    fn settle_confirmed(&self, object: u64, sequence: u64) {
        self.confirmed_marks().settle(object, sequence);
    }

    fn forget_confirmed(&self, object: u64) {
        Layer::forget_confirmed(self, object);
    }

    fn reserve(&self, blocks: Range<u64>) -> Result<()> {
        Layer::reserve(self, blocks)
    }

    fn make_block(&self, address: u64, bytes: &[u8]) -> Result<()> {
        Layer::make_block(self, address, bytes)
    }

    fn make_marked_block(&self, address: u64, bytes: &dyn Fn(u64) -> Vec<u8>) -> Result<u64> {
        Layer::make_marked_block(self, address, bytes)
    }

    fn trim(&self, range: Range<u64>) -> Result<()> {
        Layer::trim(self, range)
    }

    fn cut(&self, block: (u64, &[u8]), range: &Range<u64>) -> Result<bool> {
        Layer::cut(self, block, range).map(|()| true)
    }

    fn clear_region(&self, id: u64) -> Result<()> {
        Layer::clear_region(self, id)
    }

    fn sweep(&self) -> Result<()> {
        Layer::sweep(self, &(first_region_of(self)..OWN_START / BLOCK))
    }

    fn sync(&self) -> Result<()> {
        Layer::sync(self)
    }

    fn close(&self) -> Result<()> {
        Layer::close(self)
    }

    fn keep_some_free(&self) {
        Layer::keep_some_free(self);
    }

    fn is_empty(&self) -> Result<bool> {
        let mut own = self.mapped_ranges(0..first_region_of(self) * BLOCK)?;
        own.extend(self.mapped_ranges(OWN_START..u64::MAX)?);
        Ok(self.in_use() <= own.iter().map(|range| range.end - range.start).sum())
    }

    fn usage(&self) -> Usage {
        Layer::usage(self)
    }

    fn check(&self, of_region: &mut dyn FnMut(u64) -> Result<bool>) -> Result<Findings> {
        Layer::check(self, |_, id| of_region(id))
    }

    fn each_region(&self, tell: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        self.each_piece(|piece| self.regions_begun(piece).try_for_each(&mut *tell))
    }

    fn each_range(&self, tell: &mut dyn FnMut(Range<u64>) -> Result<()>) -> Result<()> {
        self.each_piece(|piece| tell(piece.first..piece.end()))
    }

    fn verify(&self, blocks: Range<u64>, buffer: &mut [u8], tell: &mut dyn FnMut(String)) -> Result<(u64, u64)> {
        Layer::verify(self, blocks, buffer, tell)
    }
}

/// Addresses of the index of versions.
const INDEX_BYTES: u64 = 1 << 56;

/// The block with which the first region begins.
fn first_region_of(layer: &Layer) -> u64 {
    (1 << layer.region_shift()) / BLOCK
}
