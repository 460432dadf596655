//! Makes room in the ring: what is at its old end, and still needed, is written anew behind all other commits.

use super::clean::{Cleaned, Pace};
use super::commit::{Commit, ENTRIES_MAX, Entry, version_of};
use super::index::{Index, Row};
use super::object::{Inner, read};
use super::pieces::{HOLE, Key, LEAF_LEVEL, Slots, Source};
use super::write::{Cause, Change};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::{BLOCK, BLOCK_BYTES};
use std::ops::Range;

/// Blocks that are moved with one commit at most.
const MOVED_MAX: u64 = 1024;

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
            cleaned.moved_blocks += self.move_data(index, sequence, &row)?;
            self.shared.checkpoint()?;
            self.step(index, |work| work.leave_ring(sequence, row), cleaned)?;
            self.move_tail(index)?;
            pace.rest();
        }
    }

    /// Writes the pieces that are in a commit anew. How many blocks.
    fn move_data(&self, index: &Index, sequence: u64, row: &Row) -> Result<u64> {
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        self.read_positions(row.position, &mut block)?;
        let damaged = || Error::Damaged(format!("version {} of object {}", version_of(sequence), self.id));
        let (commit, _) = Commit::decode(&block).filter(|(found, _)| found.sequence == sequence).ok_or_else(damaged)?;
        // What is moved gets a new checksum.
        if row.live == row.blocks - 1 && !self.has_its_data(row.position, &commit)? {
            return Err(damaged());
        }
        let mut moved = 0;
        let mut waiting: Vec<(Key, u64)> = Vec::new();
        for (key, position) in self.pieces_in(index, &commit, row)? {
            let blocks: u64 = waiting.iter().map(|(key, _)| 1 << key.level).sum();
            if waiting.len() == ENTRIES_MAX || blocks + (1 << key.level) > MOVED_MAX.min(self.commit_max()) {
                moved += self.move_pieces(&std::mem::take(&mut waiting))?;
            }
            waiting.push((key, position));
        }
        Ok(moved + self.move_pieces(&waiting)?)
    }

    /// The pieces whose data are in a commit.
    fn pieces_in(&self, index: &Index, commit: &Commit, row: &Row) -> Result<Vec<(Key, u64)>> {
        let (pieces, levels) = (index.pieces(self.id)?, read(&self.state).head.levels);
        let positions = row.position..row.position + row.blocks;
        let mut found = Vec::new();
        for entry in commit.entries.iter().filter(|entry| entry.has_data) {
            for (leaf, part) in super::pieces::by_leaf(&(entry.first..entry.first + entry.count)) {
                for level in (0..=LEAF_LEVEL).filter(|level| levels >> level & 1 == 1) {
                    let first = leaf << LEAF_LEVEL;
                    let slots = (part.start - first) >> level..((part.end - 1 - first) >> level) + 1;
                    pieces.newest(Slots { leaf, level, slots }, entry.version, &mut |key, position| {
                        if key.version() == entry.version && position != HOLE && positions.contains(&position) {
                            found.push((key, position));
                        }
                    })?;
                }
            }
        }
        Ok(found)
    }

    fn move_pieces(&self, pieces: &[(Key, u64)]) -> Result<u64> {
        if pieces.is_empty() {
            return Ok(0);
        }
        let mut entries = Vec::new();
        let mut buffers = Vec::new();
        for (key, position) in pieces {
            let Range { start, end } = key.blocks();
            let bytes = usize::try_from((end - start) * BLOCK).map_err(|_| Error::Beyond)?;
            let mut buffer = AlignedBuffer::new(bytes);
            self.read_positions(*position, &mut buffer)?;
            entries.push(Entry { first: start, version: key.version(), count: end - start, has_data: true });
            buffers.push(buffer);
        }
        let moved = entries.iter().map(|entry| entry.count).sum();
        let data = buffers.iter().map(|buffer| &buffer[..]).collect();
        let mut log = self.log()?;
        let size = read(&self.state).head.size;
        self.append(&mut log, Change { cause: Cause::Move, entries, data, size }, false)?;
        Ok(moved)
    }
}
