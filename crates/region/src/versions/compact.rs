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
use super::write::{Cause, Change};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::{BLOCK, BLOCK_BYTES, as_index};

/// Blocks that are moved with one commit at most.
const MOVED_MAX: u64 = 1024;
/// Blocks of which is known at once where they lie: 24 bytes each.
pub(super) const PLACED_MAX: u64 = 128 << 10;

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
            let before = read(&self.state).head;
            let mut oldest = index.in_ring(self.id, before.oldest, PLACED_MAX)?;
            oldest.retain(|(sequence, _)| *sequence <= end);
            let placed = self.placed_in(index, &oldest)?;
            let mut rest = &oldest[..];
            while let Some(commits) = self.some_of(&mut rest) {
                self.move_commits(index, commits, &placed, cleaned)?;
                pace.rest();
                let head = read(&self.state).head;
                if head.position - head.tail <= enough {
                    return Ok(());
                }
            }
            // One that makes no room is not tried again.
            if oldest.is_empty() || read(&self.state).head.tail == before.tail {
                return Ok(());
            }
        }
    }

    /// Takes the first commits whose data go into one, or one commit in any case. `None`: there are no more.
    fn some_of<'c>(&self, rest: &mut &'c [(u64, Row)]) -> Option<&'c [(u64, Row)]> {
        let (mut count, mut blocks) = (0, 0);
        for (_, row) in *rest {
            blocks += row.live.max(1);
            if count > 0 && blocks > self.moved_max() {
                break;
            }
            count += 1;
        }
        let (some, behind) = rest.split_at(count);
        *rest = behind;
        (count > 0).then_some(some)
    }

    /// Blocks that are moved with one commit at most.
    fn moved_max(&self) -> u64 {
        self.commit_max().min(MOVED_MAX)
    }

    /// Moves what is left of some commits out of the ring's end. `placed`: in the order of positions.
    fn move_commits(
        &self,
        index: &Index,
        commits: &[(u64, Row)],
        placed: &[Placed],
        cleaned: &mut Cleaned,
    ) -> Result<()> {
        let mut found = Vec::new();
        for (sequence, row) in commits {
            self.check_whole(*sequence, row)?;
            let end = row.position + row.blocks;
            let range = [row.position, end].map(|position| placed.partition_point(|one| one.position < position));
            found.extend_from_slice(&placed[range[0]..range[1]]);
        }
        cleaned.moved_blocks += self.move_blocks(found)?;
        let mut one = Batch::one(self, index, cleaned);
        one.settle_moved()?;
        let versions: Vec<u64> =
            commits.iter().filter(|(_, row)| row.is_listed).map(|(sequence, _)| *sequence).collect();
        if !versions.is_empty() {
            one.step(|step| step.on(self, |work| versions.iter().try_for_each(|sequence| work.leave_ring(*sequence))))?;
        }
        one.move_tails()
    }

    /// The block of a commit that has something in the ring.
    fn commit_at(&self, sequence: u64, row: &Row) -> Result<Commit> {
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        self.read_positions(row.position, &mut block)?;
        let nonce = read(&self.state).head.nonce;
        let is_it = |found: &Commit| (found.nonce, found.position, found.sequence) == (nonce, row.position, sequence);
        let found = Commit::decode(&block).filter(|(found, _)| is_it(found));
        found.map(|(commit, _)| commit).ok_or_else(|| self.damaged(sequence))
    }

    fn damaged(&self, sequence: u64) -> Error {
        Error::Damaged(format!("version {} of object {}", version_of(sequence), self.id))
    }

    /// What is moved gets a new checksum: an error, if all data of a commit are there, and not those that it was
    /// written with.
    pub(super) fn check_whole(&self, sequence: u64, row: &Row) -> Result<()> {
        if !row.is_whole() || self.has_its_data(row.position, &self.commit_at(sequence, row)?)? {
            return Ok(());
        }
        Err(self.damaged(sequence))
    }

    /// The blocks whose data are in some commits, in the order of positions.
    pub(super) fn placed_in(&self, index: &Index, commits: &[(u64, Row)]) -> Result<Vec<Placed>> {
        let positions: Vec<_> = commits.iter().map(|(_, row)| row.position..row.position + row.blocks).collect();
        let mut found = Vec::new();
        for (version, first, count, position) in index.pieces_in(self.id, &positions)? {
            let placed = |(block, position)| Placed { block, version, position };
            found.extend((first..first + count).zip(position..).map(placed));
        }
        found.sort_unstable_by_key(|one| one.position);
        Ok(found)
    }

    /// Writes blocks anew, in the order of the object. How many.
    pub(super) fn move_blocks(&self, mut blocks: Vec<Placed>) -> Result<u64> {
        blocks.sort_unstable_by_key(|one| (one.block, one.version));
        let blocks_max = as_index(self.moved_max());
        let mut rest = &blocks[..];
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
                let bytes = as_index(range.end - range.start).min(rest.len());
                let (some, behind) = rest.split_at_mut(bytes);
                reads.push((range.start, some));
                rest = behind;
            }
        }
        self.shared.layer.read_all(&mut reads)
    }
}

const _: () = assert!(MOVED_MAX * BLOCK <= 4 << 20, "what is moved at once is in memory");
