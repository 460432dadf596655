//! The index of objects that keep versions, as it was at the last checkpoint: tables of a tree in the address space
//! itself, behind all regions.

use super::clean::Work;
use super::object::Frozen;
use super::pieces::{Delta, Key, Slots, Source};
pub(super) use super::rows::{
    PieceKey, Row, State, StateRow, TreeResult, VersionRow, commit_of_row, piece_key, piece_of, trim_of,
};
use crate::address_space::AddressSpace;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tree::{Area, Tree, guarded};
use crate::{BLOCK, BLOCK_BYTES};
use redb::{ReadOnlyTable, ReadableTable, TableDefinition, WriteTransaction};
use std::collections::BinaryHeap;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"WEFTIDX\0";
/// Pages of the index in memory.
const CACHE_BYTES: usize = 64 << 20;

/// Version, first block, how many, position.
pub(super) type FoundPiece = (u64, u64, u64, u64);
type VersionTable = ReadOnlyTable<(u64, u64), VersionRow>;

const OBJECTS: TableDefinition<'_, u64, StateRow> = TableDefinition::new("objects");
pub(super) const VERSIONS: TableDefinition<'_, (u64, u64), VersionRow> = TableDefinition::new("versions");
pub(super) const PIECES: TableDefinition<'_, PieceKey, u64> = TableDefinition::new("pieces");
pub(super) const NAMES: TableDefinition<'_, (u64, &str), u64> = TableDefinition::new("names");
pub(super) const TRIMS: TableDefinition<'_, (u64, u64), u64> = TableDefinition::new("trims");

/// Commits that the index does not have yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    pub pieces: Delta,
    /// By sequence, ascending.
    pub commits: Vec<(u64, Row)>,
    /// Versions and blocks whose data have been moved: the index has them elsewhere.
    pub moved: Vec<(u64, Range<u64>)>,
}

impl Recent {
    pub fn len(&self) -> usize {
        self.pieces.len() + self.commits.len()
    }

    /// Takes over older ones.
    pub fn add_below(&mut self, older: Self) {
        self.pieces.add_below(older.pieces);
        let newer = std::mem::replace(&mut self.commits, older.commits);
        self.commits.extend(newer);
        let newer = std::mem::replace(&mut self.moved, older.moved);
        self.moved.extend(newer);
    }
}

/// See the module.
pub(super) struct Index {
    tree: Tree,
}

impl Index {
    /// The index of a store. `None`: it has none.
    pub fn open(layer: &Arc<dyn AddressSpace>, verified: bool) -> Result<Option<Self>> {
        let first = layer.own().index.start;
        if !layer.is_mapped(first)? {
            return Ok(None);
        }
        let mut block = vec![0; BLOCK_BYTES];
        layer.read(first, &mut block)?;
        if !block.starts_with(MAGIC) {
            return Err(Error::Damaged("the first block of the index".to_owned()));
        }
        let (window, place) = window(layer);
        let area = Area::open(window, place, true)?;
        Ok(Some(Self { tree: Tree::open(&area, CACHE_BYTES, verified)? }))
    }

    /// Makes an empty one. Its first block is written when all others are safe.
    pub fn create(layer: &Arc<dyn AddressSpace>) -> Result<Self> {
        let own = layer.own().index;
        layer.trim(own.clone())?;
        let (window, place) = window(layer);
        let area = Area::create(window, place, true)?;
        let tree = Tree::open(&area, CACHE_BYTES, false)?;
        tree.write(|transaction| {
            transaction.open_table(OBJECTS)?;
            transaction.open_table(VERSIONS)?;
            transaction.open_table(PIECES)?;
            transaction.open_table(NAMES)?;
            transaction.open_table(TRIMS)?;
            Ok(())
        })?;
        let mut block = MAGIC.to_vec();
        block.resize(BLOCK_BYTES, 0);
        layer.write(own.start, &block)?;
        layer.sync()?;
        Ok(Self { tree })
    }

    /// Compares all pages on the device with their checksums. Tells of each that is damaged: returns false if one is.
    pub fn verify(&self, tell: &mut dyn FnMut(String)) -> Result<bool> {
        self.tree.verify(tell)
    }

    /// What is known of an object.
    pub fn state(&self, id: u64) -> Result<Option<State>> {
        guarded(|| {
            let table = self.tree.begin_read()?.open_table(OBJECTS)?;
            table.get(id)?.map(|row| State::of_row(row.value())).transpose()
        })
    }

    /// Forgets objects that were removed, and takes over what is new of some, all or nothing.
    pub fn checkpoint(&self, removed: &[u64], objects: &[Frozen]) -> Result<()> {
        self.write(|transaction| {
            removed.iter().try_for_each(|id| forget(transaction, *id))?;
            let mut states = transaction.open_table(OBJECTS)?;
            for Frozen { object, state, recent } in objects {
                let mut work = Work::new(object.id, transaction)?;
                work.take_over(recent, state.levels)?;
                let (_, levels) = work.finish()?;
                object.note_levels(levels);
                states.insert(object.id, State { levels: state.levels | levels, ..*state }.row())?;
            }
            Ok(())
        })
    }

    /// Changes the tables, all or nothing. Safe when this returns.
    pub fn write<T>(&self, work: impl FnOnce(&WriteTransaction) -> TreeResult<T>) -> Result<T> {
        self.tree.write(work).map_err(|error| match error {
            // It has no end but the device's.
            Error::MapFull => Error::NoSpace,
            other => other,
        })
    }

    /// Forgets all of some objects.
    pub fn forget<'i>(&self, mut ids: impl Iterator<Item = &'i u64>) -> Result<()> {
        self.write(|transaction| ids.try_for_each(|id| forget(transaction, *id)))
    }

    /// The pieces of an object, as they are now.
    pub fn pieces(&self, id: u64) -> Result<PiecesOf<ReadOnlyTable<PieceKey, u64>>> {
        guarded(|| Ok(PiecesOf { id, table: self.tree.begin_read()?.open_table(PIECES)? }))
    }

    /// The first pieces of an object that do not end before a place, up to a version, by version and block. All of its
    /// pieces are looked at.
    pub fn pieces_after(&self, id: u64, from: (u64, u64), newest: u64, count: usize) -> Result<Vec<FoundPiece>> {
        let mut found = BinaryHeap::new();
        self.each_piece(id, |piece| {
            let (version, first, blocks, _) = piece;
            if (version, first + blocks) > from && version <= newest {
                found.push(piece);
            }
            if found.len() > count {
                found.pop();
            }
        })?;
        Ok(found.into_sorted_vec())
    }

    fn each_piece(&self, id: u64, mut tell: impl FnMut(FoundPiece)) -> Result<()> {
        guarded(|| {
            let table = self.tree.begin_read()?.open_table(PIECES)?;
            for entry in table.range((id, 0, 0, 0, 0)..(id + 1, 0, 0, 0, 0))? {
                let (key, position) = entry?;
                let (key, position) = piece_of(key.value(), position.value())?;
                let Range { start, end } = key.blocks();
                tell((key.version(), start, end - start, position));
            }
            Ok(())
        })
    }

    /// The commit that a position is in, of which a version has data there.
    pub fn commit_of(&self, id: u64, version: u64, position: u64) -> Result<Option<(u64, Row)>> {
        self.with_versions(|table| {
            let sequence = commit_of(table, id, version, position)?;
            table.get((id, sequence))?.map(|row| Ok((sequence, Row::of_row(row.value())?))).transpose()
        })
    }

    /// Up to so many commits of an object from a sequence on, those that can be read, ascending.
    pub fn listed(&self, id: u64, from: u64, count: usize) -> Result<Vec<(u64, Row)>> {
        self.with_versions(|table| commits(table, id, from, u64::MAX)?.filter(is_listed).take(count).collect())
    }

    /// The newest commit of an object up to a sequence that can be read.
    pub fn listed_up_to(&self, id: u64, sequence: u64) -> Result<Option<(u64, Row)>> {
        self.with_versions(|table| listed_up_to(table, id, sequence))
    }

    /// The newest one up to a time, likewise: times ascend as sequences do.
    pub fn listed_at(&self, id: u64, time: u64) -> Result<Option<(u64, Row)>> {
        self.with_versions(|table| {
            let last = commits(table, id, 0, u64::MAX)?.next_back().transpose()?;
            let (mut low, mut high) = (0, last.map_or(0, |(sequence, _)| sequence));
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                match commits(table, id, middle, high)?.next().transpose()? {
                    Some((sequence, row)) if row.time <= time => low = sequence,
                    _ => high = middle - 1,
                }
            }
            listed_up_to(table, id, low)
        })
    }

    /// The oldest of so many of the newest that can be read.
    pub fn listed_back(&self, id: u64, count: usize) -> Result<Option<u64>> {
        self.with_versions(|table| {
            let mut newest = commits(table, id, 0, u64::MAX)?.rev().filter(is_listed).take(count);
            newest.try_fold(None, |_, commit| Ok(Some(commit?.0)))
        })
    }

    /// The first commit from a sequence on that has something in the ring.
    pub fn first_in_ring(&self, id: u64, from: u64) -> Result<Option<(u64, Row)>> {
        let has_some = |commit: &TreeResult<(u64, Row)>| commit.as_ref().map_or(true, |(_, row)| row.blocks > 0);
        self.with_versions(|table| commits(table, id, from, u64::MAX)?.find(has_some).transpose())
    }

    /// The first commits from a sequence on that have something in the ring: so many at most, and with so many blocks
    /// of data, but one in any case.
    pub fn in_ring(&self, id: u64, from: u64, live_max: u64) -> Result<Vec<(u64, Row)>> {
        let (mut found, mut live) = (Vec::new(), 0);
        self.with_versions(|table| {
            for commit in commits(table, id, from, u64::MAX)? {
                let (sequence, row) = commit?;
                live += row.live.max(1);
                if live > live_max && !found.is_empty() {
                    break;
                }
                if row.blocks > 0 {
                    found.push((sequence, row));
                }
            }
            Ok(found)
        })
    }

    /// The first commits of an object, of those with these sequences, that are whole, are no versions that can be read,
    /// and have so many blocks of data at most: those with about so many in all.
    pub fn small(&self, id: u64, of: RangeInclusive<u64>, live_max: u64, all_max: u64) -> Result<Vec<(u64, Row)>> {
        let is_small = |(_, row): &(u64, Row)| !row.is_listed && row.is_whole() && row.live <= live_max;
        let (mut found, mut live) = (Vec::new(), 0);
        self.with_versions(|table| {
            for commit in commits(table, id, *of.start(), *of.end())? {
                let commit = commit?;
                if is_small(&commit) {
                    live += commit.1.live;
                    found.push(commit);
                }
                if live >= all_max {
                    break;
                }
            }
            Ok(found)
        })
    }

    /// Where blocks of an object lie, of those in these positions, which ascend: version, first block, how many,
    /// position. All of its pieces are looked at.
    pub fn pieces_in(&self, id: u64, positions: &[Range<u64>]) -> Result<Vec<FoundPiece>> {
        let mut found = Vec::new();
        self.each_piece(id, |piece| {
            let range = positions.partition_point(|range| range.end <= piece.3);
            if positions.get(range).is_some_and(|range| range.contains(&piece.3)) {
                found.push(piece);
            }
        })?;
        Ok(found)
    }

    /// Blocks of data that the pieces of an object are in.
    pub fn live(&self, id: u64) -> Result<u64> {
        self.with_versions(|table| {
            let mut all = commits(table, id, 0, u64::MAX)?;
            all.try_fold(0u64, |sum, commit| Ok(sum.saturating_add(commit?.1.live)))
        })
    }

    /// What is to be unmapped of an object: positions, and how many blocks.
    pub fn trims(&self, id: u64) -> Result<Vec<(u64, u64)>> {
        guarded(|| {
            let table = self.tree.begin_read()?.open_table(TRIMS)?;
            let mut found = Vec::new();
            for entry in table.range((id, 0)..=(id, u64::MAX))? {
                let (key, blocks) = entry?;
                found.push(trim_of(key.value(), blocks.value())?);
            }
            Ok(found)
        })
    }

    /// All objects.
    pub fn ids(&self) -> Result<Vec<u64>> {
        guarded(|| {
            let table = self.tree.begin_read()?.open_table(OBJECTS)?;
            let mut found = Vec::new();
            for entry in table.iter()? {
                found.push(entry?.0.value());
            }
            Ok(found)
        })
    }

    /// The names of an object's versions.
    pub fn names(&self, id: u64) -> Result<Vec<(String, u64)>> {
        guarded(|| {
            let table = self.tree.begin_read()?.open_table(NAMES)?;
            let mut found = Vec::new();
            for entry in table.range((id, "")..(id + 1, ""))? {
                let (key, version) = entry?;
                found.push((key.value().1.to_owned(), version.value()));
            }
            Ok(found)
        })
    }

    fn with_versions<T>(&self, work: impl FnOnce(&VersionTable) -> TreeResult<T>) -> Result<T> {
        guarded(|| work(&self.tree.begin_read()?.open_table(VERSIONS)?))
    }
}

fn forget(transaction: &WriteTransaction, id: u64) -> TreeResult<()> {
    transaction.open_table(OBJECTS)?.remove(id)?;
    transaction.open_table(VERSIONS)?.retain_in((id, 0)..=(id, u64::MAX), |_, _| false)?;
    let all = (id, 0, 0, 0, 0)..=(id, u64::MAX, u8::MAX, u64::MAX, u64::MAX);
    transaction.open_table(PIECES)?.retain_in(all, |_, _| false)?;
    transaction.open_table(NAMES)?.retain_in((id, "")..(id + 1, ""), |_, _| false)?;
    transaction.open_table(TRIMS)?.retain_in((id, 0)..=(id, u64::MAX), |_, _| false)?;
    Ok(())
}

/// The commits of an object from a sequence on up to another, ascending.
fn commits(
    table: &VersionTable,
    id: u64,
    from: u64,
    to: u64,
) -> TreeResult<impl DoubleEndedIterator<Item = TreeResult<(u64, Row)>>> {
    let entries = table.range((id, from)..=(id, to))?;
    Ok(entries.map(|entry| {
        let (key, row) = entry?;
        commit_of_row(key.value(), row.value())
    }))
}

/// Whether it can be read. An error is not passed over.
fn is_listed(commit: &TreeResult<(u64, Row)>) -> bool {
    commit.as_ref().map_or(true, |(_, row)| row.is_listed)
}

fn listed_up_to(table: &VersionTable, id: u64, sequence: u64) -> TreeResult<Option<(u64, Row)>> {
    commits(table, id, 0, sequence)?.rev().find(is_listed).transpose()
}

/// The commit that a position is in: the one that wrote the version, or one that data were moved to, the last that
/// begins before.
pub(super) fn commit_of(
    table: &impl ReadableTable<(u64, u64), VersionRow>,
    id: u64,
    version: u64,
    position: u64,
) -> TreeResult<u64> {
    let row = table.get((id, version))?.map(|row| Row::of_row(row.value())).transpose()?;
    if row.is_some_and(|row| (row.position..row.position + row.blocks).contains(&position)) {
        return Ok(version);
    }
    // Parts of a version that was received may have come before one of a lower sequence than its own.
    let (mut low, mut high) = (0, u64::MAX);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        let next = table.range((id, middle)..=(id, high))?.next().transpose()?;
        match next.map(|(key, row)| commit_of_row(key.value(), row.value())).transpose()? {
            // Where nothing is in the ring any more, the position is one of before.
            Some((sequence, row)) if row.blocks == 0 || row.position <= position => low = sequence,
            _ => high = middle - 1,
        }
    }
    Ok(low)
}

/// An object as it is brought up to date in a transaction.
pub(super) fn set_state(transaction: &WriteTransaction, id: u64, change: impl FnOnce(&mut State)) -> TreeResult<()> {
    let mut table = transaction.open_table(OBJECTS)?;
    let Some(mut state) = table.get(id)?.map(|row| State::of_row(row.value())).transpose()? else { return Ok(()) };
    change(&mut state);
    table.insert(id, state.row())?;
    Ok(())
}

/// The pieces of one object in a table.
pub(super) struct PiecesOf<T> {
    pub id: u64,
    pub table: T,
}

/// Entries that are passed over one by one before the tree is searched again.
const PASSED_OVER_MAX: usize = 8;

impl<T: ReadableTable<PieceKey, u64>> Source for PiecesOf<T> {
    fn newest(&self, slots: Slots, version: u64, tell: &mut dyn FnMut(Key, u64)) -> Result<()> {
        let end = piece_key(self.id, slots.end());
        let from = |slot: u64| piece_key(self.id, slots.from(slot, version));
        guarded(|| {
            let mut slot = slots.slots.start;
            let (mut entries, mut passed_over) = (self.table.range(from(slot)..end)?, 0);
            while slot < slots.slots.end {
                let Some(entry) = entries.next() else { break };
                let (key, position) = entry?;
                let (key, position) = piece_of(key.value(), position.value())?;
                if key.slot >= slot && key.version() <= version {
                    tell(key, position);
                    (slot, passed_over) = (key.slot + 1, 0);
                    continue;
                }
                slot = slot.max(key.slot);
                passed_over += 1;
                if passed_over > PASSED_OVER_MAX {
                    (entries, passed_over) = (self.table.range(from(slot)..end)?, 0);
                }
            }
            Ok(())
        })
    }
}

/// The part of the address space that the index is in, as a device.
struct Window {
    layer: Arc<dyn AddressSpace>,
    own: Range<u64>,
}

fn window(layer: &Arc<dyn AddressSpace>) -> (Arc<dyn Device>, Range<u64>) {
    let own = layer.own().index;
    let place = BLOCK..own.end - own.start;
    (Arc::new(Window { layer: Arc::clone(layer), own }), place)
}

fn as_io(error: Error) -> io::Error {
    match error {
        Error::NoSpace => io::ErrorKind::StorageFull.into(),
        Error::Device { source, .. } => source,
        other => io::Error::other(other),
    }
}

impl Device for Window {
    fn bytes(&self) -> u64 {
        self.own.end - self.own.start
    }

    fn read_at(&self, place: u64, into: &mut [u8]) -> io::Result<()> {
        self.layer.read(self.own.start + place, into).map_err(as_io)
    }

    fn write_at(&self, place: u64, from: &[u8]) -> io::Result<()> {
        self.layer.write(self.own.start + place, from).map_err(as_io)
    }

    fn flush(&self) -> io::Result<()> {
        self.layer.sync().map_err(as_io)
    }

    fn discard(&self, place: u64, bytes: u64) -> io::Result<()> {
        let first = self.own.start + place;
        self.layer.trim(first..first + bytes).map_err(as_io)
    }

    fn data_within(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        let start = self.own.start;
        let data = self.layer.data_ranges(start + range.start..start + range.end).map_err(as_io)?;
        Ok(data.first().map(|data| data.start - start..data.end - start))
    }
}
