//! Reading. What lies in several places goes to the device together.

use super::waiting::Bytes;
use super::{Layer, blocks_of, read};
use crate::device::{Read, read_anywhere};
use crate::error::{Error, Result, at};
use crate::lent::LentSlots;
use crate::overlay::Piece;
use crate::{BLOCK, as_index};
use std::ops::Range;
use std::sync::{Arc, RwLockReadGuard};

/// Places that one slot is filled from while others are on their way: a slot's share of a ring. What lies in more is
/// read by a ring that it has alone.
const EXTENTS_MAX: usize = 16;

/// What is known of some blocks: where they lie, their checksums, and those that wait to be written.
pub(super) struct Found {
    pub pieces: Vec<Piece>,
    pub sums: Vec<u32>,
    pub waiting: Vec<(u64, Bytes)>,
}

impl Layer {
    /// Fills `into` with the bytes from an address on: zeros where nothing is mapped.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<()> {
        let blocks = blocks_of(address, into.len())?;
        let gate = read(&self.gate);
        if let Some(piece) = self.epochs.recent(&blocks, false) {
            return self.read_one(address, into, piece);
        }
        drop(gate);
        self.bring_gathered(&blocks);
        let _gate = read(&self.gate);
        self.read_in_gate(address, into)
    }

    /// The same, where all is in one piece that begins with the first block.
    fn read_one(&self, address: u64, into: &mut [u8], piece: Piece) -> Result<()> {
        read_anywhere(&*self.device, self.place(piece) + address % BLOCK, into).map_err(at("read the device"))
    }

    /// The same, for whoever has the gate, and has had brought what was gathered.
    pub(super) fn read_in_gate(&self, address: u64, into: &mut [u8]) -> Result<()> {
        let blocks = blocks_of(address, into.len())?;
        let one = self.look_up(&read(&self.state), &blocks, false);
        if let Some(piece) = one {
            return self.read_one(address, into, piece);
        }
        let found = self.find(blocks)?;
        self.read_found(&mut [(address, into)], &[found])
    }

    /// Fills several parts likewise.
    pub(crate) fn read_all(&self, parts: &mut [Read<'_>]) -> Result<()> {
        if let [(address, into)] = parts {
            return self.read(*address, into);
        }
        for (address, into) in parts.iter() {
            self.bring_gathered(&blocks_of(*address, into.len())?);
        }
        let _gate = read(&self.gate);
        let found = parts.iter().map(|(address, into)| self.find(blocks_of(*address, into.len())?));
        let found = found.collect::<Result<Vec<_>>>()?;
        self.read_found(parts, &found)
    }

    pub(super) fn find(&self, blocks: Range<u64>) -> Result<Found> {
        let state = read(&self.state);
        let waiting = state.fresh.range(blocks.clone()).map(|(block, one)| (block, Arc::clone(&one.bytes))).collect();
        let pieces = self.mapped(&state, blocks)?;
        Ok(Found { sums: self.sums_of(&state, &pieces)?, pieces, waiting })
    }

    fn read_found(&self, parts: &mut [Read<'_>], found: &[Found]) -> Result<()> {
        let mut reads = Vec::new();
        for ((address, into), found) in parts.iter_mut().zip(found).filter(|(_, found)| found.sums.is_empty()) {
            self.plan(*address, into, &found.pieces, &mut reads);
        }
        self.device.read_all(&mut reads).map_err(at("read the device"))?;
        for ((address, into), found) in parts.iter_mut().zip(found) {
            if !found.sums.is_empty() {
                self.read_checked(*address, into, &found.pieces, &found.sums)?;
            }
            found.waiting.iter().for_each(|(block, bytes)| put_waiting(*address, into, *block, bytes));
        }
        Ok(())
    }

    /// Fills `into` with what pieces have of the bytes from an address on. The caller has the gate.
    pub(super) fn read_pieces(&self, address: u64, into: &mut [u8], pieces: &[Piece]) -> Result<()> {
        let mut reads = Vec::new();
        self.plan(address, into, pieces, &mut reads);
        self.device.read_all(&mut reads).map_err(at("read the device"))
    }

    /// What the device has to be asked for. Holes are filled here.
    fn plan<'a>(&self, address: u64, into: &'a mut [u8], pieces: &[Piece], reads: &mut Vec<Read<'a>>) {
        let mut rest = into;
        for extent in self.extents(address, rest.len(), pieces) {
            let (bytes, behind) = rest.split_at_mut(extent.bytes.len());
            rest = behind;
            match extent.place {
                Some(place) => reads.push((place, bytes)),
                None => bytes.fill(0),
            }
        }
    }

    /// Where so many bytes from an address on lie, in order.
    pub(super) fn extents(&self, address: u64, bytes: usize, pieces: &[Piece]) -> Vec<Extent> {
        let of = |at: u64| as_index(at - address).min(bytes);
        let (mut done, mut extents) = (0, Vec::new());
        for piece in pieces {
            let start = (piece.first * BLOCK).max(address);
            let (from, to) = (of(start), of((piece.end() * BLOCK).max(address)));
            let place = self.place(*piece) + (start - piece.first * BLOCK);
            extents.extend((done < from).then_some(Extent { bytes: done..from, place: None }));
            extents.push(Extent { bytes: from..to, place: Some(place) });
            done = to;
        }
        extents.extend((done < bytes).then_some(Extent { bytes: done..bytes, place: None }));
        extents
    }

    /// Nobody is given blocks that were looked up with it.
    pub(crate) fn gate(&self) -> RwLockReadGuard<'_, ()> {
        read(&self.gate)
    }

    /// Memory of the device that [`Layer::begin_read`] fills.
    pub(crate) fn lend_slots(&self) -> Option<LentSlots<'_>> {
        self.device.lend_slots()
    }

    /// Whether [`Layer::lend_slots`] gives some.
    pub(crate) fn has_slots(&self) -> bool {
        self.device.has_slots()
    }

    /// Has what may be read of these bytes known to readers. Before the gate is taken.
    pub(crate) fn prepare_read(&self, address: u64, bytes: usize) -> Result<()> {
        self.bring_gathered(&blocks_of(address, bytes)?);
        Ok(())
    }

    /// Begins to fill a slot with so many bytes from an address on, all whole blocks. What has to be compared or put
    /// together is there when this returns. The caller has the gate until the slot is his again.
    pub(crate) fn begin_read(&self, slots: &mut LentSlots<'_>, slot: usize, address: u64, bytes: usize) -> Result<()> {
        let found = self.find(blocks_of(address, bytes)?)?;
        let extents = self.extents(address, bytes, &found.pieces);
        let into = slots.slot(slot).and_then(|memory| memory.get_mut(..bytes)).ok_or(Error::Beyond)?;
        if !(found.sums.is_empty() && found.waiting.is_empty() && extents.len() <= EXTENTS_MAX) {
            return self.read_found(&mut [(address, into)], &[found]);
        }
        for hole in extents.iter().filter(|extent| extent.place.is_none()) {
            into[hole.bytes.clone()].fill(0);
        }
        for extent in extents {
            if let Some(place) = extent.place {
                slots.begin(slot, extent.bytes, place);
            }
        }
        Ok(())
    }
}

/// Some of the bytes that are read, and where on the device they lie. `None`: nowhere, they are zeros.
pub(super) struct Extent {
    pub bytes: Range<usize>,
    pub place: Option<u64>,
}

/// Puts what a block that waits has of a part into it; behind its bytes it is zeros.
fn put_waiting(address: u64, into: &mut [u8], block: u64, bytes: &[u8]) {
    let (start, end) = ((block * BLOCK).max(address), ((block + 1) * BLOCK).min(address + into.len() as u64));
    let of = |at: u64, first: u64| as_index(at - first);
    let in_bytes = |at: u64| of(at, block * BLOCK).min(bytes.len());
    let from = &bytes[in_bytes(start)..in_bytes(end)];
    let place = &mut into[of(start, address)..of(end, address)];
    let (used, rest) = place.split_at_mut(from.len());
    used.copy_from_slice(from);
    rest.fill(0);
}
