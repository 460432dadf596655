//! Moves data: commits that have nothing but blocks of older ones, written behind all others. The next checkpoint takes
//! them out of their former places.
//!
//! Makes room in the ring, too: what is at its old end, and still needed, is moved.
//!
//! Whoever moves holds `cleaning` until the index has what was moved, and the former places are unmapped; and moves
//! only what the index has.
//!
//! On a crash: commits that were moved are found as others are, and the checkpoint that brings them to the index takes
//! their blocks out of the former places then.

use super::batch::Batch;
use super::clean::{Cleaned, Pace};
use super::commit::{Commit, ENTRIES_MAX, Entry, version_of};
use super::index::{Index, Row};
use super::object::{Inner, read};
use super::pieces::{HOLE, LEAF_LEVEL, Slots, Source};
use super::write::{Cause, Change};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::{BLOCK, BLOCK_BYTES};

/// Blocks that are moved with one commit at most.
const MOVED_MAX: usize = 1024;

/// Where a version's block lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Placed {
    pub block: u64,
    pub version: u64,
    pub position: u64,
}

impl Inner {
    /// Moves the oldest commits until half of the ring is free, or not much more than what is needed is in use.
    pub(super) fn compact(&self, index: &Index, pace: &mut Pace, cleaned: &mut Cleaned) -> Result<()> {
        let head = read(&self.state).head;
        if head.position - head.tail <= self.ring / 2 {
            return Ok(());
        }
        let enough = (self.ring / 2).max(index.live(self.id)? / 4 * 5);
        // Behind the last commit of now there is nothing but what was moved.
        let end = head.sequence;
        loop {
            let head = read(&self.state).head;
            if head.position - head.tail <= enough {
                return Ok(());
            }
            let Some((sequence, row)) = index.first_in_ring(self.id, head.oldest)?.filter(|(first, _)| *first <= end)
            else {
                return Ok(());
            };
            self.check_whole(sequence, &row)?;
            let found = self.placed_in(index, sequence, &row)?;
            cleaned.moved_blocks += self.move_blocks(&found)?;
            let mut one = Batch::one(self, index, cleaned);
            one.settle_moved()?;
            one.step(|step| step.on(self, |work| work.leave_ring(sequence, row)))?;
            one.move_tails()?;
            pace.rest();
        }
    }

    /// The block of a commit that has something in the ring.
    fn commit_at(&self, sequence: u64, row: &Row) -> Result<Commit> {
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        self.read_positions(row.position, &mut block)?;
        let found = Commit::decode(&block).filter(|(found, _)| found.sequence == sequence);
        found.map(|(commit, _)| commit).ok_or_else(|| self.damaged(sequence))
    }

    fn damaged(&self, sequence: u64) -> Error {
        Error::Damaged(format!("version {} of object {}", version_of(sequence), self.id))
    }

    /// What is moved gets a new checksum: an error, if all data of a commit are there, and not those that it was
    /// written with.
    pub(super) fn check_whole(&self, sequence: u64, row: &Row) -> Result<()> {
        let is_whole = row.live == row.blocks.saturating_sub(1);
        if !is_whole || self.has_its_data(row.position, &self.commit_at(sequence, row)?)? {
            return Ok(());
        }
        Err(self.damaged(sequence))
    }

    /// The blocks whose data are in a commit, in the order of the object.
    fn placed_in(&self, index: &Index, sequence: u64, row: &Row) -> Result<Vec<Placed>> {
        let (pieces, levels) = (index.pieces(self.id)?, read(&self.state).head.levels);
        let positions = row.position..row.position + row.blocks;
        let mut found = Vec::new();
        for entry in self.commit_at(sequence, row)?.entries.iter().filter(|entry| entry.has_data) {
            for (leaf, part) in super::pieces::by_leaf(&(entry.first..entry.first + entry.count)) {
                for level in (0..=LEAF_LEVEL).filter(|level| levels >> level & 1 == 1) {
                    let first = leaf << LEAF_LEVEL;
                    let slots = (part.start - first) >> level..((part.end - 1 - first) >> level) + 1;
                    pieces.newest(Slots { leaf, level, slots }, entry.version, &mut |key, position| {
                        if key.version() == entry.version && position != HOLE && positions.contains(&position) {
                            let placed = |(block, position)| Placed { block, version: key.version(), position };
                            found.extend(key.blocks().zip(position..).map(placed));
                        }
                    })?;
                }
            }
        }
        found.sort_unstable_by_key(|one| (one.block, one.version));
        Ok(found)
    }

    /// Writes blocks anew, in this order. How many.
    pub(super) fn move_blocks(&self, blocks: &[Placed]) -> Result<u64> {
        let blocks_max = MOVED_MAX.min(usize::try_from(self.commit_max()).unwrap_or(usize::MAX));
        let mut rest = blocks;
        while !rest.is_empty() {
            let (mut entries, mut count): (Vec<Entry>, _) = (Vec::new(), 0);
            for one in rest.iter().take(blocks_max) {
                let is_full = entries.len() == ENTRIES_MAX;
                match entries.last_mut() {
                    Some(last) if (last.version, last.first + last.count) == (one.version, one.block) => {
                        last.count += 1;
                    }
                    _ if is_full => break,
                    _ => entries.push(Entry { first: one.block, version: one.version, count: 1, has_data: true }),
                }
                count += 1;
            }
            let (moved, behind) = rest.split_at(count);
            self.move_as(entries, moved)?;
            rest = behind;
        }
        Ok(blocks.len() as u64)
    }

    /// One commit.
    fn move_as(&self, entries: Vec<Entry>, moved: &[Placed]) -> Result<()> {
        let mut buffer = AlignedBuffer::new(moved.len() * BLOCK_BYTES);
        self.read_placed(moved, &mut buffer)?;
        let mut log = self.log()?;
        let size = read(&self.state).head.size;
        self.append(&mut log, Change { cause: Cause::Move, entries, data: vec![&buffer], size, moved }, false)?;
        Ok(())
    }

    /// Reads blocks wherever they lie.
    fn read_placed(&self, placed: &[Placed], into: &mut [u8]) -> Result<()> {
        let (mut rest, mut reads) = (into, Vec::new());
        for run in placed.chunk_by(|one, next| one.position + 1 == next.position) {
            let first = run.first().map_or(0, |one| one.position);
            for range in self.addresses(first..first + run.len() as u64) {
                let bytes = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(rest.len());
                let (some, behind) = rest.split_at_mut(bytes);
                reads.push((range.start, some));
                rest = behind;
            }
        }
        self.shared.layer.read_all(&mut reads)
    }
}

const _: () = assert!(MOVED_MAX as u64 * BLOCK <= 4 << 20, "what is moved at once is in memory");
