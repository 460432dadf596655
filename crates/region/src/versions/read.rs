//! Reading: the newest version through positions kept in memory, older ones through the index.

use super::index::{Index, Row};
use super::object::{Inner, Leaf, Now, read, write};
use super::pieces::{HOLE, LEAF_BLOCKS, Look, by_leaf};
use crate::error::{Error, Result};
use crate::{BLOCK, as_index};
use std::ops::Range;

/// Blocks of the object that lie side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    first: u64,
    count: u64,
    position: u64,
}

/// Puts blocks together to runs.
#[derive(Default)]
struct Runs {
    found: Vec<Run>,
    /// Leaves in which reads have met so many places that they are worth being put together.
    worth_moving: Vec<u64>,
}

impl Runs {
    /// Some blocks of a leaf.
    fn add(&mut self, number: u64, leaf: &Leaf, part: Range<u64>) {
        let (before, at) = (self.found.len(), as_index(part.start % LEAF_BLOCKS));
        part.zip(leaf.places.iter().skip(at)).for_each(|(block, position)| self.push(block, *position));
        if leaf.has_met((self.found.len() - before).saturating_sub(1)) {
            self.worth_moving.push(number);
        }
    }

    fn push(&mut self, block: u64, position: u64) {
        if let Some(last) = self.found.last_mut()
            && last.first + last.count == block
            && (last.position == HOLE && position == HOLE
                || last.position != HOLE && last.position + last.count == position)
        {
            last.count += 1;
        } else {
            self.found.push(Run { first: block, count: 1, position });
        }
    }
}

impl Inner {
    /// Fills `into` with the newest version's bytes, as far as there are any: how many.
    pub fn read_now(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let _gate = read(&self.gate);
        self.there()?;
        let (size, runs) = self.runs_now(offset, into.len())?;
        let into = cut_to(size, offset, into);
        self.read_runs(offset, into, &runs.found)?;
        if !runs.worth_moving.is_empty() {
            self.shared.ask_together(self.id, &runs.worth_moving);
        }
        Ok(into.len())
    }

    fn runs_now(&self, offset: u64, bytes: usize) -> Result<(u64, Runs)> {
        {
            let now = read(&self.state);
            let blocks = blocks_of(now.head.size, offset, bytes);
            if let Some(runs) = now.runs(blocks) {
                return Ok((now.head.size, runs));
            }
        }
        let mut now = write(&self.state);
        let blocks = blocks_of(now.head.size, offset, bytes);
        let mut runs = Runs::default();
        for (leaf, part) in by_leaf(&blocks) {
            if !now.leaves.contains_key(&leaf) {
                self.load(&mut now, leaf)?;
            }
            if let Some(found) = now.leaves.get(&leaf) {
                runs.add(leaf, found, part);
            }
        }
        Ok((now.head.size, runs))
    }

    /// Brings a leaf to memory.
    fn load(&self, now: &mut Now, leaf: u64) -> Result<()> {
        if !self.shared.has_room_for_leaf() {
            self.forget_leaves(now);
        }
        let found = self.look(now, leaf, leaf * LEAF_BLOCKS..(leaf + 1) * LEAF_BLOCKS, now.newest)?;
        now.leaves.insert(leaf, Leaf::new(found.into_iter().map(|(_, position)| position).collect()));
        self.shared.note_leaves(0, 1);
        Ok(())
    }

    /// The version that wrote each of some blocks of a leaf last, up to one, and where they lie.
    fn look(&self, now: &Now, leaf: u64, blocks: Range<u64>, version: u64) -> Result<Vec<(u64, u64)>> {
        let mut look = Look::new(leaf, blocks);
        let levels = now.head.levels;
        if let Some(index) = self.shared.index() {
            look.add(&index.pieces(self.id)?, levels, version)?;
        }
        for recent in now.frozen.as_deref().into_iter().chain([&now.active]) {
            look.add(&recent.pieces, levels, version)?;
        }
        Ok(look.into_found())
    }

    /// Fills `into` with the bytes of a version that has this size, likewise.
    pub fn read_version(&self, version: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        let _gate = read(&self.gate);
        self.there()?;
        let row = self.listed_at_version(version)?;
        let mut runs = Runs::default();
        {
            let now = read(&self.state);
            for (leaf, part) in by_leaf(&blocks_of(row.size, offset, into.len())) {
                let found = self.look(&now, leaf, part.clone(), version)?;
                part.zip(found).for_each(|(block, (_, position))| runs.push(block, position));
            }
        }
        let into = cut_to(row.size, offset, into);
        self.read_runs(offset, into, &runs.found)?;
        Ok(into.len())
    }

    fn read_runs(&self, offset: u64, into: &mut [u8], runs: &[Run]) -> Result<()> {
        let end = offset + into.len() as u64;
        let (mut rest, mut reads) = (into, Vec::with_capacity(runs.len()));
        for run in runs {
            let start = (run.first * BLOCK).max(offset);
            let stop = ((run.first + run.count) * BLOCK).min(end);
            let bytes = as_index(stop.saturating_sub(start)).min(rest.len());
            let (some, behind) = rest.split_at_mut(bytes);
            rest = behind;
            if run.position == HOLE {
                some.fill(0);
                continue;
            }
            let mut skipped = start - run.first * BLOCK;
            let mut left = some;
            for range in self.addresses(run.position..run.position + run.count) {
                let length = range.end - range.start;
                let from = skipped.min(length);
                let bytes = as_index(length - from).min(left.len());
                let (part, behind) = left.split_at_mut(bytes);
                if !part.is_empty() {
                    reads.push((range.start + from, part));
                }
                (left, skipped) = (behind, skipped - from);
            }
        }
        self.shared.layer.read_all(&mut reads)
    }

    /// A commit that can be read. An error: it is not one.
    pub fn listed_at_version(&self, version: u64) -> Result<Row> {
        let found = self.listed_up_to(version)?.filter(|(found, _)| *found == version);
        found.map(|(_, row)| row).ok_or(Error::NoVersion)
    }

    /// The newest commit up to a sequence that can be read.
    pub fn listed_up_to(&self, sequence: u64) -> Result<Option<(u64, Row)>> {
        // Behind the newest there may be many that only have what was moved.
        let older = |index: &Index, newest: u64| index.listed_up_to(self.id, sequence.min(newest));
        self.newest_listed(|(found, _)| *found <= sequence, older)
    }

    /// The newest one up to a time.
    pub fn listed_at(&self, time: u64) -> Result<Option<(u64, Row)>> {
        self.newest_listed(|(_, row)| row.time <= time, |index, _| index.listed_at(self.id, time))
    }

    /// The newest commit that can be read, of those up to somewhere; `older`: what the index says, which is told the
    /// newest of all.
    fn newest_listed(
        &self,
        is_up_to: impl Fn(&(u64, Row)) -> bool,
        older: impl FnOnce(&Index, u64) -> Result<Option<(u64, Row)>>,
    ) -> Result<Option<(u64, Row)>> {
        // Held to the end: a version that is not the newest any more may be cleaned, and there would seem to be none.
        let now = read(&self.state);
        // Mostly what is asked for is older than all of these.
        let has_some = now.recent_commits().next().is_some_and(|oldest| is_up_to(&oldest));
        let mut recent = now.recent_commits().rev();
        let found = if has_some { recent.find(|commit| is_up_to(commit) && commit.1.is_listed) } else { None };
        match (found, self.shared.index()) {
            (None, Some(index)) => older(index, now.newest),
            (found, _) => Ok(found),
        }
    }

    /// Up to so many that can be read from a sequence on, ascending.
    pub fn listed(&self, from: u64, count: usize) -> Result<Vec<(u64, Row)>> {
        let now = read(&self.state);
        let mut found = self.shared.index().map_or(Ok(Vec::new()), |index| index.listed(self.id, from, count))?;
        let newest = found.last().map_or(0, |(sequence, _)| *sequence);
        let recent = now.recent_commits().filter(|(sequence, row)| *sequence >= from.max(newest + 1) && row.is_listed);
        let room = count - found.len();
        found.extend(recent.take(room));
        Ok(found)
    }
}

impl Now {
    /// What the index may not have, ascending.
    fn recent_commits(&self) -> impl DoubleEndedIterator<Item = (u64, Row)> + '_ {
        let frozen = self.frozen.as_deref().into_iter().flat_map(|frozen| frozen.commits.iter().copied());
        frozen.chain(self.active.commits.iter().copied())
    }

    /// Where blocks of the newest version lie. `None`: not all of it is in memory.
    fn runs(&self, blocks: Range<u64>) -> Option<Runs> {
        let mut runs = Runs::default();
        for (leaf, part) in by_leaf(&blocks) {
            runs.add(leaf, self.leaves.get(&leaf)?, part);
        }
        Some(runs)
    }
}

/// The blocks of a range of bytes, cut to a size.
fn blocks_of(size: u64, offset: u64, bytes: usize) -> Range<u64> {
    let end = offset.saturating_add(bytes as u64).min(size);
    if offset < end { offset / BLOCK..end.div_ceil(BLOCK) } else { 0..0 }
}

fn cut_to(size: u64, offset: u64, into: &mut [u8]) -> &mut [u8] {
    let have = as_index(size.saturating_sub(offset)).min(into.len());
    &mut into[..have]
}
