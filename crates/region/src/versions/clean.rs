//! The cleaner: takes away versions that nobody wants to keep, and what only they have.
//!
//! Here is which versions are kept, and what the index says of an object when others are not. `batch.rs` does it.

use super::index::{
    Index, NAMES, PIECES, PieceKey, Recent, Row, TRIMS, TreeResult, VERSIONS, VersionRow, commit_of, commit_of_row,
    piece_key, piece_of,
};
use super::object::{Inner, read};
use super::pieces::{HOLE, Key, LEAF_BLOCKS, LEAF_LEVEL, by_leaf, cut};
use crate::error::{Error, Result};
use crate::{as_index, lock};
use redb::{ReadableTable, Table, WriteTransaction};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

/// With less, a cleaner would never be done.
const SHARE_MIN: f64 = 0.001;
/// Versions or pieces that one step looks at, about.
pub(super) const STEP: usize = 8192;

/// Which versions are kept: those that one of the rules keeps. The newest always is, and so are those with names.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Keep {
    /// So many of the newest.
    pub newest: u64,
    /// All that could be read at some time since then ago.
    pub younger_than: Option<Duration>,
    /// The part of the time that the cleaner works, a thousandth to 1: what it uses of the device's bandwidth.
    pub share: f64,
}

impl Default for Keep {
    /// The newest only, with all of the bandwidth.
    fn default() -> Self {
        Self { newest: 1, younger_than: None, share: 1.0 }
    }
}

impl Keep {
    /// An error: this cannot be.
    pub(super) fn check(&self) -> Result<()> {
        if (SHARE_MIN..=1.0).contains(&self.share) {
            return Ok(());
        }
        Err(Error::Setting(format!("a share of {} of the bandwidth: {SHARE_MIN} to 1 is possible", self.share)))
    }
}

/// What a cleaner has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cleaned {
    /// Versions that cannot be read any more.
    pub versions: u64,
    /// Blocks that are free.
    pub freed_blocks: u64,
    /// Blocks that were written elsewhere.
    pub moved_blocks: u64,
}

impl Cleaned {
    pub(super) fn add(&mut self, more: &Self) {
        self.versions += more.versions;
        self.freed_blocks += more.freed_blocks;
        self.moved_blocks += more.moved_blocks;
    }
}

/// Works a part of the time.
pub(super) struct Pace {
    share: f64,
    since: Instant,
}

impl Pace {
    pub fn new(share: f64) -> Self {
        Self { share, since: Instant::now() }
    }

    /// Rests as long as what was done since the last rest asks for.
    pub fn rest(&mut self) {
        std::thread::sleep(self.since.elapsed().mul_f64(1.0 / self.share - 1.0));
        self.since = Instant::now();
    }
}

/// Which versions are needed.
pub(super) struct Kept {
    /// All from this one on.
    from: u64,
    /// And these.
    named: BTreeSet<u64>,
    /// Some of them only because they are young.
    pub by_age: bool,
}

impl Kept {
    /// Whether there is a version of an object that is not kept.
    pub fn lets_go(&self, index: &Index, id: u64) -> Result<bool> {
        let oldest = index.listed(id, 0, self.named.len() + 1)?;
        Ok(oldest.iter().any(|(version, _)| !self.has(*version)))
    }

    fn has(&self, version: u64) -> bool {
        version >= self.from || self.named.contains(&version)
    }

    /// Whether one of these needs what was written by the first, and was written over by the end.
    fn any(&self, versions: Range<u64>) -> bool {
        versions.end > self.from || self.named.range(versions).next().is_some()
    }
}

impl Inner {
    /// Takes away what is not to be kept, and makes room at the ring's end.
    pub fn clean(&self, keep: &Keep) -> Result<Cleaned> {
        keep.check()?;
        let mut cleaned = Cleaned::default();
        let _cleaning = lock(&self.cleaning);
        self.there()?;
        self.shared.clean_held(vec![self], keep, &mut Pace::new(keep.share), &mut cleaned)?;
        self.there()?;
        Ok(cleaned)
    }

    pub(super) fn kept(&self, index: &Index, keep: &Keep) -> Result<Kept> {
        let newest = index.listed_back(self.id, as_index(keep.newest.max(1)))?.unwrap_or(0);
        let mut from = newest;
        if let Some(age) = keep.younger_than {
            // Before all time there was none.
            let since = SystemTime::now().checked_sub(age).map_or(0, super::nanoseconds);
            // What was the newest then could be read then.
            from = from.min(index.listed_at(self.id, since)?.map_or(0, |(version, _)| version));
        }
        let named = index.names(self.id)?.into_iter().map(|(_, version)| version).collect();
        Ok(Kept { from, named, by_age: from < newest })
    }

    /// Gives a version a name: it is kept as long as it has one.
    pub fn set_name(&self, name: &str, version: u64) -> Result<()> {
        let _cleaning = lock(&self.cleaning);
        self.there()?;
        self.listed_at_version(version)?;
        self.shared.checkpoint()?;
        let index = self.shared.index().ok_or(Error::NoVersion)?;
        let _gate = read(&self.gate);
        self.there()?;
        // Another version may have had it.
        self.needs_sweep.store(true, Ordering::Relaxed);
        index.write(|transaction| {
            transaction.open_table(NAMES)?.insert((self.id, name), version)?;
            Ok(())
        })
    }

    /// Takes a name away. `false`: there was none.
    pub fn remove_name(&self, name: &str) -> Result<bool> {
        let _cleaning = lock(&self.cleaning);
        let Some(index) = self.shared.index() else { return Ok(false) };
        let _gate = read(&self.gate);
        self.there()?;
        self.needs_sweep.store(true, Ordering::Relaxed);
        index.write(|transaction| Ok(transaction.open_table(NAMES)?.remove((self.id, name))?.is_some()))
    }
}

/// A step in a transaction, on one object.
pub(super) struct Work<'t> {
    id: u64,
    versions: Table<'t, (u64, u64), VersionRow>,
    pieces: Table<'t, PieceKey, u64>,
    trims: Table<'t, (u64, u64), u64>,
    /// Blocks that pieces are not in any more, by the commit that they are in.
    dead: BTreeMap<u64, u64>,
    unlisted: u64,
    /// Levels of new pieces, a bit each.
    levels: u64,
    /// Versions and pieces.
    pub looked_at: usize,
}

impl<'t> Work<'t> {
    pub(super) fn new(id: u64, transaction: &'t WriteTransaction) -> TreeResult<Self> {
        Ok(Self {
            id,
            versions: transaction.open_table(VERSIONS)?,
            pieces: transaction.open_table(PIECES)?,
            trims: transaction.open_table(TRIMS)?,
            dead: BTreeMap::new(),
            unlisted: 0,
            levels: 0,
            looked_at: 0,
        })
    }

    /// Takes over what is new of the object, whose pieces have these levels. What was moved is not in its former places
    /// any more.
    pub(super) fn take_over(&mut self, recent: &Recent, levels: u64) -> TreeResult<()> {
        for (sequence, row) in &recent.commits {
            self.versions.insert((self.id, *sequence), row.row())?;
        }
        for (version, blocks) in &recent.moved {
            for (leaf, part) in by_leaf(blocks) {
                self.leave(*version, leaf, &part, levels)?;
            }
        }
        for (key, position) in recent.pieces.iter() {
            self.pieces.insert(piece_key(self.id, key), position)?;
        }
        Ok(())
    }

    /// Takes blocks of a leaf out of the pieces that a version has of them.
    fn leave(&mut self, version: u64, leaf: u64, blocks: &Range<u64>, levels: u64) -> TreeResult<()> {
        let (first, mut left) = (leaf * LEAF_BLOCKS, blocks.end - blocks.start);
        for level in 0..=LEAF_LEVEL {
            if left == 0 || (levels | self.levels) >> level & 1 == 0 {
                continue;
            }
            for slot in (blocks.start - first) >> level..((blocks.end - 1 - first) >> level) + 1 {
                let key = Key { leaf, level, slot, age: !version };
                let position = self.pieces.get(piece_key(self.id, key))?.map(|position| position.value());
                if let Some(position) = position {
                    let piece = key.blocks();
                    let gone = piece.start.max(blocks.start)..piece.end.min(blocks.end);
                    left -= gone.end - gone.start;
                    self.take_away(key, position, &[gone])?;
                }
            }
        }
        Ok(())
    }

    /// Has some versions not be read any more. Where to go on.
    pub(super) fn unlist(&mut self, from: u64, kept: &Kept) -> TreeResult<Option<u64>> {
        let mut rows = Vec::new();
        for entry in self.versions.range((self.id, from)..(self.id, kept.from))?.take(STEP) {
            let (key, row) = entry?;
            rows.push(commit_of_row(key.value(), row.value())?);
        }
        self.looked_at = rows.len();
        let next = rows.last().filter(|_| rows.len() == STEP).map(|(sequence, _)| sequence + 1);
        for (sequence, row) in rows.into_iter().filter(|(sequence, row)| row.is_listed && !kept.has(*sequence)) {
            self.unlisted += 1;
            self.set(sequence, Row { is_listed: false, ..row })?;
        }
        Ok(next)
    }

    /// Writes what is known of a commit; nothing, when nothing is left of it. Its own block goes when it is no version
    /// and its data are not all there: nothing can be compared with their checksum any more.
    fn set(&mut self, sequence: u64, row: Row) -> TreeResult<()> {
        let key = (self.id, sequence);
        let is_of_use = row.is_listed || row.is_whole() && row.live > 0;
        if row.has_block() && !is_of_use {
            self.trims.insert((self.id, row.position), 1)?;
        }
        if row.is_listed || row.live > 0 {
            let row = if is_of_use { row } else { row.without_block() };
            self.versions.insert(key, row.row())?;
        } else {
            self.versions.remove(key)?;
        }
        Ok(())
    }

    /// Takes away what no version needs of some leaves. Where to go on.
    pub(super) fn sweep(&mut self, from: u64, kept: &Kept) -> TreeResult<Option<u64>> {
        let mut leaf = from;
        loop {
            let first = self.pieces.range((self.id, leaf, 0, 0, 0)..(self.id + 1, 0, 0, 0, 0))?.next().transpose()?;
            let first = first.map(|(key, position)| piece_of(key.value(), position.value())).transpose()?;
            let Some((Key { leaf: found, .. }, _)) = first else { return Ok(None) };
            let mut pieces = Vec::new();
            for entry in self.pieces.range((self.id, found, 0, 0, 0)..(self.id, found + 1, 0, 0, 0))? {
                let (key, position) = entry?;
                pieces.push(piece_of(key.value(), position.value())?);
            }
            self.looked_at += pieces.len();
            self.sweep_leaf(kept, pieces)?;
            leaf = found + 1;
            if self.looked_at >= STEP {
                return Ok(Some(leaf));
            }
        }
    }

    fn sweep_leaf(&mut self, kept: &Kept, mut pieces: Vec<(Key, u64)>) -> TreeResult<()> {
        pieces.sort_unstable_by_key(|(key, _)| key.version());
        let mut last: Vec<Option<usize>> = vec![None; as_index(LEAF_BLOCKS)];
        // Blocks of each piece that nobody needs, in ranges.
        let mut dead: BTreeMap<usize, Vec<Range<u64>>> = BTreeMap::new();
        for (number, (key, _)) in pieces.iter().enumerate() {
            for block in key.blocks() {
                let Some(before) = last[as_index(block % LEAF_BLOCKS)].replace(number) else { continue };
                let (old, _) = &pieces[before];
                if kept.any(old.version()..key.version()) {
                    continue;
                }
                let ranges = dead.entry(before).or_default();
                match ranges.last_mut().filter(|range| range.end == block) {
                    Some(range) => range.end += 1,
                    None => ranges.push(block..block + 1),
                }
            }
        }
        for (number, mut ranges) in dead {
            ranges.sort_unstable_by_key(|range| range.start);
            let (key, position) = pieces[number];
            self.take_away(key, position, &ranges)?;
        }
        Ok(())
    }

    /// Takes ranges of blocks out of a piece.
    fn take_away(&mut self, key: Key, position: u64, ranges: &[Range<u64>]) -> TreeResult<()> {
        self.pieces.remove(piece_key(self.id, key))?;
        let blocks = key.blocks();
        let at = |block: u64| if position == HOLE { HOLE } else { position + (block - blocks.start) };
        let mut next = blocks.start;
        let end = blocks.end..blocks.end;
        for range in ranges.iter().chain([&end]) {
            for rest in cut(next..range.start, key.version()) {
                self.levels |= 1 << rest.level;
                self.pieces.insert(piece_key(self.id, rest), at(rest.blocks().start))?;
            }
            next = range.end;
        }
        if position != HOLE {
            for range in ranges {
                self.free(key.version(), at(range.start), range.end - range.start)?;
            }
        }
        Ok(())
    }

    /// Blocks of a commit's data are needed by nobody.
    fn free(&mut self, version: u64, position: u64, blocks: u64) -> TreeResult<()> {
        self.trims.insert((self.id, position), blocks)?;
        let commit = commit_of(&self.versions, self.id, version, position)?;
        *self.dead.entry(commit).or_default() += blocks;
        Ok(())
    }

    /// A version whose data are elsewhere has nothing in the ring any more.
    pub(super) fn leave_ring(&mut self, sequence: u64) -> TreeResult<()> {
        let row = self.versions.get((self.id, sequence))?.map(|row| Row::of_row(row.value())).transpose()?;
        if let Some(row) = row.filter(|row| row.blocks > 0) {
            self.trims.insert((self.id, row.position), 1)?;
            self.versions.insert((self.id, sequence), Row { blocks: 0, ..row }.row())?;
        }
        Ok(())
    }

    /// Takes over how many blocks are left of each commit. How many versions cannot be read any more, and the levels of
    /// new pieces.
    pub(super) fn finish(mut self) -> TreeResult<(u64, u64)> {
        for (sequence, blocks) in std::mem::take(&mut self.dead) {
            let row = self.versions.get((self.id, sequence))?.map(|row| Row::of_row(row.value())).transpose()?;
            if let Some(row) = row {
                self.set(sequence, Row { live: row.live.saturating_sub(blocks), ..row })?;
            }
        }
        Ok((self.unlisted, self.levels))
    }
}
