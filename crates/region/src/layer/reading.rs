//! Reading. What lies in several places goes to the device together.

use super::waiting::Bytes;
use super::{Layer, blocks_of, read};
use crate::BLOCK;
use crate::device::{Read, read_anywhere};
use crate::error::{Result, at};
use crate::overlay::Piece;
use std::ops::Range;
use std::sync::Arc;

/// What is known of some blocks: where they lie, their checksums, and those that wait to be written.
struct Found {
    pieces: Vec<Piece>,
    sums: Vec<u32>,
    waiting: Vec<(u64, Bytes)>,
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
        for (address, into) in parts.iter() {
            self.bring_gathered(&blocks_of(*address, into.len())?);
        }
        let _gate = read(&self.gate);
        let found = parts.iter().map(|(address, into)| self.find(blocks_of(*address, into.len())?));
        let found = found.collect::<Result<Vec<_>>>()?;
        self.read_found(parts, &found)
    }

    fn find(&self, blocks: Range<u64>) -> Result<Found> {
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
        let (mut done, end) = (address, address + into.len() as u64);
        let mut rest = into;
        for piece in pieces {
            let (start, stop) = ((piece.first * BLOCK).max(done), (piece.end() * BLOCK).min(end));
            let (hole, behind) = split(rest, start - done);
            hole.fill(0);
            let (bytes, behind) = split(behind, stop - start);
            reads.push((self.place(*piece) + (start - piece.first * BLOCK), bytes));
            (done, rest) = (stop, behind);
        }
        rest.fill(0);
    }
}

/// Puts what a block that waits has of a part into it; behind its bytes it is zeros.
fn put_waiting(address: u64, into: &mut [u8], block: u64, bytes: &[u8]) {
    let (start, end) = ((block * BLOCK).max(address), ((block + 1) * BLOCK).min(address + into.len() as u64));
    let of = |at: u64, first: u64| usize::try_from(at - first).unwrap_or(usize::MAX);
    let from = bytes.get(of(start, block * BLOCK)..of(end, block * BLOCK).min(bytes.len())).unwrap_or_default();
    let place = into.get_mut(of(start, address)..of(end, address)).unwrap_or_default();
    let (used, rest) = place.split_at_mut(from.len());
    used.copy_from_slice(from);
    rest.fill(0);
}

fn split(bytes: &mut [u8], at: u64) -> (&mut [u8], &mut [u8]) {
    let at = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
    bytes.split_at_mut(at)
}
