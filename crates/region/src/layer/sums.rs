//! Checksums of data, in stores that have them.
//!
//! The checksum is the physical block's: it comes with the record that maps the block, and the block is not written
//! again before it was mapped nowhere. So whoever looks up where a block lies, and its checksum, with the same hold of
//! the state, and reads with the gate, has two that belong together, whoever writes meanwhile.

use super::{Layer, State, is_whole, read, write};
use crate::base::Base;
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result, at};
use crate::geometry::Checksums;
use crate::overlay::Piece;
use crate::record::Entry;
use crate::sums::{GROUP_BLOCKS, Group, NO_SUM, Sums, sum_at};
use crate::{BLOCK, BLOCK_BYTES, OWN_START, as_index};
use std::ops::Range;
use std::sync::{Arc, RwLock};

/// Groups that were read and are kept; beyond it all are forgotten.
const GROUPS_MAX: usize = 64 << 10;
/// Groups that are read together: those of 1 MiB.
const AROUND: u64 = 8;
/// Blocks whose checksums are counted in one go.
const COUNTED: u64 = 64 << 10;
/// Checksums of one entry that is noted alone.
const NOTED_AT_ONCE: usize = 4096;
/// Bytes that one change writes, but for updates that are wholly there or not at all: what is written over needs so
/// much more room meanwhile.
const WRITE_MAX: usize = 4 << 20;

/// Checksums since the last checkpoint, and those that are being brought to the map.
#[derive(Default)]
pub(super) struct RecentSums {
    pub active: Sums,
    frozen: Option<Arc<Sums>>,
}

impl RecentSums {
    /// They are to be brought to the map.
    pub fn freeze(&mut self) -> Arc<Sums> {
        let frozen = Arc::new(std::mem::take(&mut self.active));
        self.frozen = Some(Arc::clone(&frozen));
        frozen
    }

    /// The map has them, or not.
    pub fn thaw(&mut self, is_done: bool) {
        if let Some(frozen) = self.frozen.take().filter(|_| !is_done) {
            let later = std::mem::replace(&mut self.active, Arc::unwrap_or_clone(frozen));
            self.active.add(&later);
        }
    }

    fn fill(&self, first: u64, found: &mut [Option<u32>]) {
        self.active.fill(first, found);
        self.frozen.iter().for_each(|frozen| frozen.fill(first, found));
    }
}

/// What was read of the map's checksums lately. Invariant: as of [`super::known::Known`].
#[derive(Default)]
pub(super) struct KnownSums(RwLock<Sums>);

impl KnownSums {
    /// Has those that the map has of the blocks of which `found` has nothing yet.
    fn fill(&self, base: &Base, first: u64, found: &mut [Option<u32>]) -> Result<()> {
        read(&self.0).fill(first, found);
        if !found.contains(&None) {
            return Ok(());
        }
        let end = (first + found.len() as u64).div_ceil(GROUP_BLOCKS);
        let groups = first / GROUP_BLOCKS / AROUND * AROUND..end.next_multiple_of(AROUND);
        let stored = base.sums(groups.clone())?;
        let mut known = write(&self.0);
        if known.len() > GROUPS_MAX {
            *known = Sums::default();
        }
        groups.for_each(|number| known.add_group(number, &Group::NONE));
        stored.iter().for_each(|(number, group)| known.add_group(*number, group));
        known.fill(first, found);
        Ok(())
    }

    /// The map has these now.
    pub fn note(&self, changes: &Sums) {
        let mut known = write(&self.0);
        if known.len() + changes.len() > GROUPS_MAX {
            *known = Sums::default();
        } else {
            known.add(changes);
        }
    }
}

impl Layer {
    /// What has checksums.
    pub fn checksums(&self) -> Checksums {
        self.geometry.checksums
    }

    /// The first virtual block without a checksum of its own. The index of versions lies behind: its pages have theirs,
    /// and are changed where they are.
    pub(super) fn sums_end(&self) -> u64 {
        match self.geometry.checksums {
            Checksums::Metadata => 0,
            Checksums::All => OWN_START / BLOCK,
        }
    }

    /// The checksum that a virtual block with these bytes gets, if any.
    pub(super) fn sum_for(&self, block: u64, bytes: &[u8]) -> u32 {
        if block < self.sums_end() { sum_at(block, bytes) } else { NO_SUM }
    }

    /// Bytes that a write at an address changes the mapping for at once.
    pub(super) fn write_max(&self, address: u64) -> usize {
        if address / BLOCK < self.sums_end() { WRITE_MAX - (address % BLOCK) as usize } else { usize::MAX }
    }

    /// The checksums of the blocks of pieces, one behind the other. Empty: none of them has one.
    pub(super) fn sums_of(&self, state: &State, pieces: &[Piece]) -> Result<Vec<u32>> {
        if pieces.iter().all(|piece| piece.first >= self.sums_end()) {
            return Ok(Vec::new());
        }
        let count: u64 = pieces.iter().map(|piece| piece.count).sum();
        let mut found = vec![None; usize::try_from(count).map_err(|_| Error::Beyond)?];
        let mut rest = found.as_mut_slice();
        for piece in pieces {
            let some = rest.split_off_mut(..as_index(piece.count)).expect("as many as all pieces have");
            let block = piece.mapped_at();
            state.sums.fill(block, some);
            if some.contains(&None) {
                self.known_sums.fill(&self.base, block, some)?;
            }
        }
        let sums: Vec<u32> = found.into_iter().map(|sum| sum.unwrap_or(NO_SUM)).collect();
        Ok(if sums.iter().all(|sum| *sum == NO_SUM) { Vec::new() } else { sums })
    }

    /// Returns true if a block of a range of addresses has none, and data there have some.
    pub(crate) fn lacks_sums(&self, range: &Range<u64>) -> Result<bool> {
        let blocks = range.start / BLOCK..range.end / BLOCK;
        Ok(blocks.start < self.sums_end() && self.count_sums(blocks.clone())? < blocks.end - blocks.start)
    }

    /// Returns true if a block of a range of addresses has one.
    pub(crate) fn has_sums(&self, range: &Range<u64>) -> Result<bool> {
        Ok(self.count_sums(range.start / BLOCK..range.end / BLOCK)? > 0)
    }

    /// Notes the checksums of blocks of a range of addresses as they are now. If they are not `is_right`, no bytes that
    /// are read there match.
    pub(crate) fn note_sums_of(&self, range: &Range<u64>, is_right: bool) -> Result<()> {
        let mut buffer = AlignedBuffer::new(BLOCK_BYTES);
        let mut sums = Vec::new();
        for block in range.start / BLOCK..range.end / BLOCK {
            self.read_unchecked(block, &mut buffer)?;
            // One that is not the right one, nor none.
            let wrong = |sum: u32| if sum == u32::MAX { 1 } else { sum + 1 };
            let sum = self.sum_for(block, &buffer);
            sums.push(if is_right { sum } else { wrong(sum) });
        }
        self.note_sums(range.start / BLOCK, &sums)
    }

    fn read_unchecked(&self, block: u64, into: &mut [u8]) -> Result<()> {
        let _gate = read(&self.gate);
        let pieces = self.mapped(&read(&self.state), block..block + 1)?;
        self.read_pieces(block * BLOCK, into, &pieces)
    }

    /// Notes the checksums of virtual blocks that were written where they are mapped: their owner writes each once, and
    /// nobody else. They are in the next record.
    pub(super) fn note_sums(&self, first: u64, sums: &[u32]) -> Result<()> {
        {
            let mut state = write(&self.state);
            let (mut entries, mut rest) = (Vec::new(), sums);
            for piece in self.mapped(&state, first..first + sums.len() as u64)? {
                let (some, behind) = rest.split_at(as_index(piece.count).min(rest.len()));
                rest = behind;
                let block = piece.mapped_at();
                for (number, some) in (0u64..).zip(some.chunks(NOTED_AT_ONCE)) {
                    let block = block + number * NOTED_AT_ONCE as u64;
                    entries.push(Entry::Sums { block, sums: some.to_vec() });
                }
            }
            for entry in entries {
                self.apply(&mut state, &entry);
                state.add_pending(vec![entry]);
            }
        }
        self.keep_bounds()
    }

    /// How many of a range of virtual blocks have a checksum.
    pub(crate) fn count_sums(&self, blocks: Range<u64>) -> Result<u64> {
        let (mut count, mut first) = (0, blocks.start);
        while first < blocks.end.min(self.sums_end()) {
            let some = first..blocks.end.min(first + COUNTED);
            let state = read(&self.state);
            let sums = self.sums_of(&state, &self.mapped(&state, some.clone())?)?;
            count += sums.iter().filter(|sum| **sum != NO_SUM).count() as u64;
            first = some.end;
        }
        Ok(count)
    }

    /// Fills `into` as [`Layer::read_pieces`], and compares. The caller has the gate.
    pub(super) fn read_checked(&self, address: u64, into: &mut [u8], pieces: &[Piece], sums: &[u32]) -> Result<()> {
        if is_whole(address, into) {
            self.read_pieces(address, into, pieces)?;
            return self.compare(address / BLOCK, into, pieces, sums);
        }
        let (first, skipped) = (address / BLOCK, (address % BLOCK) as usize);
        let mut blocks = AlignedBuffer::new((skipped + into.len()).next_multiple_of(BLOCK_BYTES));
        self.read_pieces(first * BLOCK, &mut blocks, pieces)?;
        self.compare(first, &blocks, pieces, sums)?;
        into.copy_from_slice(&blocks[skipped..skipped + into.len()]);
        Ok(())
    }

    /// Reads a mapped piece, and compares. The caller has the gate.
    pub(super) fn read_piece(&self, piece: Piece, into: &mut [u8]) -> Result<()> {
        self.device.read_at(self.place(piece), into).map_err(at("read the device"))?;
        let sums = self.sums_of(&read(&self.state), &[piece])?;
        self.compare(piece.first, into, &[piece], &sums)
    }

    fn compare(&self, first: u64, bytes: &[u8], pieces: &[Piece], sums: &[u32]) -> Result<()> {
        match wrong(first, bytes, pieces, sums).next() {
            Some(block) => Err(Error::Damaged(self.damage_at(block, &"its data do not fit their checksum"))),
            None => Ok(()),
        }
    }

    /// Says what is wrong with a virtual block.
    fn damage_at(&self, block: u64, what: &dyn std::fmt::Display) -> String {
        let (address, shift) = (block * BLOCK, self.geometry.region_shift);
        let object = address >> shift;
        format!("object {object}, byte {} of its region: {what}", address - (object << shift))
    }

    /// Reads what is mapped of a range of virtual blocks, beside whoever writes there, and compares what has checksums.
    /// Blocks that do not fit, or cannot be read, are told of. `buffer`: for all of them. How many were read, and
    /// compared.
    pub(crate) fn verify(
        &self,
        blocks: Range<u64>,
        buffer: &mut [u8],
        tell: &mut dyn FnMut(String),
    ) -> Result<(u64, u64)> {
        let _gate = read(&self.gate);
        let (pieces, mut sums) = {
            let state = read(&self.state);
            let pieces = self.mapped(&state, blocks.clone())?;
            let sums = self.sums_of(&state, &pieces)?;
            (pieces, sums)
        };
        let mut number = 0;
        for piece in &pieces {
            let skipped = as_index((piece.first - blocks.start) * BLOCK);
            let length = as_index(piece.count * BLOCK);
            let into = buffer.get_mut(skipped..).and_then(|rest| rest.get_mut(..length)).ok_or(Error::Beyond)?;
            for (block, error) in self.read_each(*piece, into) {
                tell(self.damage_at(block, &error));
                let unreadable = sums.get_mut(number + as_index(block - piece.first));
                unreadable.into_iter().for_each(|sum| *sum = NO_SUM);
            }
            number += length / BLOCK_BYTES;
        }
        for block in wrong(blocks.start, buffer, &pieces, &sums) {
            tell(self.damage_at(block, &"its data do not fit their checksum"));
        }
        let compared = sums.iter().filter(|sum| **sum != NO_SUM).count();
        Ok((number as u64, compared as u64))
    }

    /// Reads a piece; block by block, if it cannot be read at once. Those that cannot be read.
    fn read_each(&self, piece: Piece, into: &mut [u8]) -> Vec<(u64, std::io::Error)> {
        let place = self.place(piece);
        if self.device.read_at(place, into).is_ok() {
            return Vec::new();
        }
        let one = |(offset, into): (u64, &mut [u8])| {
            let error = self.device.read_at(place + offset * BLOCK, into).err()?;
            Some((piece.first + offset, error))
        };
        (0..).zip(into.chunks_mut(BLOCK_BYTES)).filter_map(one).collect()
    }
}

/// The virtual blocks of pieces that do not fit their checksums. `bytes`: from virtual block `first` on.
fn wrong(first: u64, bytes: &[u8], pieces: &[Piece], sums: &[u32]) -> impl Iterator<Item = u64> {
    let blocks = pieces.iter().flat_map(|piece| piece.first..piece.end());
    let is_wrong = move |(block, sum): &(u64, &u32)| {
        let at_byte = as_index((block - first) * BLOCK);
        let found = bytes.get(at_byte..).and_then(|rest| rest.get(..BLOCK_BYTES)).map(|bytes| sum_at(*block, bytes));
        **sum != NO_SUM && found != Some(**sum)
    };
    blocks.zip(sums).filter(is_wrong).map(|(block, _)| block)
}
