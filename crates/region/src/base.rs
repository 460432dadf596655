//! The map as it was at the last checkpoint: a tree in its own part of the device (parts, where that has grown).
//!
//! The tree is redb's: copy-on-write, with a transaction for each checkpoint. It is opened without being read through,
//! and its pages are read when they are wanted, into a cache of [`CACHE_BYTES`].

use crate::BLOCK;
use crate::confirmed::{Changes, Mark};
use crate::decoder::{Decoder, decode_row, encode_row};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::geometry::{Checksums, Geometry};
use crate::joined::Joined;
use crate::overlay::{Overlay, Piece};
use crate::space::Space;
use crate::sums::{self, Group, Sums};
use crate::tree::{Area, Tree, guarded};
use redb::{
    AccessGuard, ReadOnlyTable, ReadableTable, ReadableTableMetadata, TableDefinition, TableError, WriteTransaction,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Virtual block: block, and how many.
const EXTENTS: TableDefinition<'_, u64, (u64, u32)> = TableDefinition::new("extents");
/// Group of data blocks: a bit for each.
const SPACE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("space");
/// Group of data blocks: a checksum for each.
const SUMS: TableDefinition<'_, u64, &[u8; sums::GROUP_BYTES]> = TableDefinition::new("sums");
/// Object that keeps versions: nonce, and the sequence up to which its commits were on the device.
const CONFIRMED: TableDefinition<'_, u64, (u64, u64)> = TableDefinition::new("confirmed");
const STATE: TableDefinition<'_, &str, (u64, u64, u32)> = TableDefinition::new("state");
const APPLIED: &str = "applied";

/// Pages of the map in memory.
const CACHE_BYTES: usize = 64 << 20;
/// Bytes of pages for a piece, for a mark, and for a group of checksums: the pages of a tree are half full at least.
const PIECE_BYTES: u64 = 2 * 20;
const MARK_BYTES: u64 = 2 * 24;
const GROUP_BYTES: u64 = 2 * (8 + sums::GROUP_BYTES as u64);

/// The first record of the log that the map does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Applied {
    pub sequence: u64,
    pub position: u64,
    /// The checksum of the record before it.
    pub chain: u32,
}

/// See the module.
pub(crate) struct Base {
    tree: Tree,
    area: Arc<Area>,
    has_sums: bool,
    /// No piece lies behind.
    data_blocks: u64,
}

/// What a checkpoint brings.
#[derive(Clone, Copy)]
pub(crate) struct Changed<'a> {
    pub extents: &'a Overlay,
    pub sums: &'a Sums,
    pub groups: &'a [(u64, Vec<u8>)],
    pub confirmed: &'a Changes,
}

impl Base {
    /// An empty map.
    pub fn create(device: Arc<dyn Device>, geometry: &Geometry) -> Result<Self> {
        let room = Joined::new(device, geometry.map_parts());
        let place = 0..room.bytes();
        let base = Self::of(Area::create(room, place, false)?, geometry, false)?;
        let (extents, sums, confirmed) = (&Overlay::default(), &Sums::default(), &Changes::new());
        let nothing = Changed { extents, sums, groups: &[], confirmed };
        base.checkpoint(&nothing, Applied::default())?;
        Ok(base)
    }

    /// The map as it was left.
    pub fn open(device: Arc<dyn Device>, geometry: &Geometry, verified: bool) -> Result<Self> {
        let room = Joined::new(device, geometry.map_parts());
        let place = 0..room.bytes();
        Self::of(Area::open(room, place, false)?, geometry, verified)
    }

    fn of(area: Arc<Area>, geometry: &Geometry, verified: bool) -> Result<Self> {
        let (has_sums, data_blocks) = (geometry.checksums == Checksums::All, geometry.data_blocks());
        Ok(Self { tree: Tree::open(&area, CACHE_BYTES, verified)?, area, has_sums, data_blocks })
    }

    /// Compares all pages on the device with their checksums. Tells of each that is damaged: returns false if one is.
    pub fn verify(&self, tell: &mut dyn FnMut(String)) -> Result<bool> {
        self.tree.verify(tell)
    }

    /// Where the log goes on.
    pub fn applied(&self) -> Result<Applied> {
        let read = || -> std::result::Result<_, redb::Error> {
            let table = self.tree.begin_read()?.open_table(STATE)?;
            Ok(table.get(APPLIED)?.map(|found| found.value()))
        };
        let (sequence, position, chain) =
            guarded(read)?.ok_or_else(|| Error::Damaged("the map has no state".to_owned()))?;
        Ok(Applied { sequence, position, chain })
    }

    /// Brings the stored bits to the space.
    pub fn load_space(&self, space: &mut Space) -> Result<()> {
        let read = || -> std::result::Result<_, redb::Error> {
            let table = self.tree.begin_read()?.open_table(SPACE)?;
            for entry in table.iter()? {
                let (group, bits) = entry?;
                space.load(group.value(), bits.value());
            }
            Ok(())
        };
        guarded(read)
    }

    /// Returns the marks of commits, by object.
    pub fn confirmed(&self) -> Result<BTreeMap<u64, Mark>> {
        let all = self.confirmed_with(|table| {
            let mut marks = BTreeMap::new();
            for entry in table.iter()? {
                let (object, mark) = entry?;
                let (nonce, sequence) = mark.value();
                marks.insert(object.value(), Mark { nonce, sequence });
            }
            Ok(marks)
        })?;
        Ok(all.unwrap_or_else(BTreeMap::new))
    }

    /// Works on the table of marks. `None`: there never was one.
    fn confirmed_with<T>(
        &self,
        work: impl FnOnce(&ReadOnlyTable<u64, (u64, u64)>) -> std::result::Result<T, redb::Error>,
    ) -> Result<Option<T>> {
        guarded(|| match self.tree.begin_read()?.open_table(CONFIRMED) {
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            table => work(&table?).map(Some),
        })
    }

    /// What is mapped in a range, cut to it, in order; and a range around it in which nothing more is.
    pub fn within(&self, range: &Range<u64>) -> Result<(Vec<Piece>, Range<u64>)> {
        let read = || -> std::result::Result<_, redb::Error> {
            let table = self.tree.begin_read()?.open_table(EXTENTS)?;
            let (pieces, around) = touching(&table, range, self.data_blocks)?;
            Ok((pieces.iter().filter_map(|piece| piece.within(range)).collect(), around))
        };
        guarded(read)
    }

    /// Where the first so many pieces from a block on end; the end of all where there are fewer.
    pub fn end_of_some(&self, from: u64, some: usize) -> Result<u64> {
        let read = || -> std::result::Result<_, redb::Error> {
            let table = self.tree.begin_read()?.open_table(EXTENTS)?;
            let entry = table.range(from..)?.nth(some).transpose()?;
            Ok(entry.map_or(u64::MAX, |(first, _)| first.value()))
        };
        guarded(read)
    }

    /// The checksums of some groups: of all blocks of those that are there, the others have none.
    pub fn sums(&self, groups: Range<u64>) -> Result<Vec<(u64, Group)>> {
        let read = || -> std::result::Result<_, redb::Error> {
            let table = self.tree.begin_read()?.open_table(SUMS)?;
            let entry = |found: std::result::Result<(AccessGuard<'_, u64>, AccessGuard<'_, _>), _>| {
                found.map(|(number, group)| (number.value(), Group::decode(group.value())))
            };
            Ok(table.range(groups)?.map(entry).collect::<std::result::Result<_, redb::StorageError>>()?)
        };
        guarded(read)
    }

    /// Takes over changes, bits, and where the log goes on, all or nothing. Safe on the device when this returns.
    pub fn checkpoint(&self, changed: &Changed<'_>, applied: Applied) -> Result<()> {
        // To fail in the middle would cost the tree.
        let room = self.room_with(changed)?;
        if room > self.area.bytes_max() {
            return Err(Error::MapFull);
        }
        let mut changed = *changed;
        let fewer;
        if room + self.room_for_marks(changed.confirmed)? > self.area.bytes_max() {
            // Marks that have no room are left out: earlier ones of the same objects are as right.
            fewer = changed.confirmed.iter().filter(|(_, mark)| mark.is_none()).map(|(id, _)| (*id, None)).collect();
            changed.confirmed = &fewer;
        }
        self.write(&changed, applied, |transaction| {
            let mut table = transaction.open_table(EXTENTS)?;
            // Behind the last change, up to where nothing is.
            let mut gap = 0..0;
            for change in changed.extents.pieces() {
                if gap.start <= change.first && change.end() <= gap.end {
                    insert(&mut table, change)?;
                } else {
                    gap.end = set(&mut table, change, self.data_blocks)?;
                }
                gap.start = change.end();
            }
            Ok(())
        })
    }

    /// Bytes that the tree may need for marks of commits beside everything else.
    fn room_for_marks(&self, changes: &Changes) -> Result<u64> {
        if changes.is_empty() {
            return Ok(0);
        }
        let count = self.confirmed_with(|table| Ok(table.len()?))?.unwrap_or(0) + changes.len() as u64;
        Ok(count.saturating_mul(MARK_BYTES).saturating_mul(4))
    }

    /// Bytes that the tree may need for these changes. None of its pieces overlap, and each has a block at least.
    fn room_with(&self, changed: &Changed<'_>) -> Result<u64> {
        let or_none = |found: std::result::Result<u64, redb::Error>| match found {
            Err(redb::Error::TableDoesNotExist(_)) => Ok(0),
            found => found,
        };
        let now = || {
            let transaction = self.tree.begin_read()?;
            let pieces = || Ok(transaction.open_table(EXTENTS)?.len()?);
            let groups = || Ok(transaction.open_table(SUMS)?.len()?);
            Ok((or_none(pieces())?, or_none(groups())?))
        };
        let (pieces, groups) = guarded(now)?;
        let pieces = (pieces + 2 * changed.extents.len() as u64).min(self.data_blocks);
        let groups = (groups + changed.sums.len() as u64).min(self.data_blocks.div_ceil(sums::GROUP_BLOCKS));
        Ok(room_for(pieces, groups))
    }

    /// Has these pieces from now on, and no others; likewise. Not refused: few are left.
    pub fn replace(&self, pieces: &[Piece], sums: &Sums, groups: &[(u64, Vec<u8>)], applied: Applied) -> Result<()> {
        let (extents, confirmed) = (&Overlay::default(), &Changes::new());
        self.write(&Changed { extents, sums, groups, confirmed }, applied, |transaction| {
            transaction.delete_table(EXTENTS)?;
            transaction.delete_table(SPACE)?;
            let mut table = transaction.open_table(EXTENTS)?;
            pieces.iter().try_for_each(|piece| insert(&mut table, *piece))
        })
    }

    /// Changes the extents, and then the rest.
    fn write(
        &self,
        changed: &Changed<'_>,
        applied: Applied,
        change: impl FnOnce(&WriteTransaction) -> std::result::Result<(), redb::Error>,
    ) -> Result<()> {
        self.tree.write(|transaction| {
            change(transaction)?;
            let mut table = transaction.open_table(SPACE)?;
            for (group, bits) in changed.groups {
                table.insert(*group, bits.as_slice())?;
            }
            if self.has_sums {
                let mut table = transaction.open_table(SUMS)?;
                changed.sums.groups().try_for_each(|(number, group)| set_sums(&mut table, number, group))?;
            }
            if !changed.confirmed.is_empty() {
                let mut table = transaction.open_table(CONFIRMED)?;
                for (object, mark) in changed.confirmed {
                    match mark {
                        Some(mark) => table.insert(*object, (mark.nonce, mark.sequence))?.map(drop),
                        None => table.remove(*object)?.map(drop),
                    };
                }
            }
            transaction.open_table(STATE)?.insert(APPLIED, (applied.sequence, applied.position, applied.chain))?;
            Ok(())
        })
    }
}

/// Adds what is known of a group of checksums to what the table has of it.
fn set_sums(
    table: &mut redb::Table<'_, u64, &[u8; sums::GROUP_BYTES]>,
    number: u64,
    group: &Group,
) -> std::result::Result<(), redb::Error> {
    let mut whole = Group::default();
    if !group.is_whole()
        && let Some(before) = table.get(number)?
    {
        whole = Group::decode(before.value());
    }
    whole.add(group);
    if whole.is_empty() {
        table.remove(number)?.map(drop)
    } else {
        table.insert(number, &whole.encode())?.map(drop)
    };
    Ok(())
}

/// Bytes of a file in which a tree of so many pieces and groups of checksums can be changed: all of it may be written
/// beside what is there, and when the file is too short for that it becomes twice as long.
fn room_for(pieces: u64, groups: u64) -> u64 {
    pieces.saturating_mul(PIECE_BYTES).saturating_add(groups.saturating_mul(GROUP_BYTES)).saturating_mul(4)
}

type Found = std::result::Result<(Vec<Piece>, Range<u64>), redb::Error>;

/// The pieces that have a part in a range, whole and in order; and a range around it in which nothing more is.
fn touching(table: &impl ReadableTable<u64, (u64, u32)>, range: &Range<u64>, blocks: u64) -> Found {
    let (mut found, mut around) = (Vec::new(), 0..u64::MAX);
    if let Some(entry) = table.range(..range.start)?.next_back() {
        let (first, place) = entry?;
        let before = piece(first.value(), place.value(), blocks)?;
        around.start = before.end().min(range.start);
        found.extend(Some(before).filter(|before| before.end() > range.start));
    }
    for entry in table.range(range.start..)? {
        let (first, place) = entry?;
        if first.value() >= range.end {
            around.end = first.value();
            break;
        }
        found.push(piece(first.value(), place.value(), blocks)?);
    }
    if found.last().is_some_and(|last| last.end() >= range.end) {
        around.end = range.end;
    }
    Ok((found, around))
}

/// A piece as the table has it, which lies in so many blocks.
fn piece(first: u64, (block, count): (u64, u32), blocks: u64) -> std::result::Result<Piece, redb::Error> {
    let count = u64::from(count);
    let is_inside = block.checked_add(count).is_some_and(|end| end <= blocks);
    if !is_inside || first.checked_add(count).is_none_or(|end| end > u64::MAX / BLOCK) {
        return Err(redb::Error::Corrupted(format!("virtual block {first:#x} is mapped where nothing can be")));
    }
    Ok(Piece { first, count, block: Some(block) })
}

/// See [`crate::decoders`].
pub(crate) const DECODER: Decoder = Decoder {
    name: "region_map_extent",
    example: || encode_row::<u64, (u64, u32)>(&(7 << 18), &(9, 3)),
    seal: <[u8]>::to_vec,
    decode: |bytes| {
        let decoded = guarded(|| {
            let (first, place) = decode_row::<u64, (u64, u32)>(bytes);
            piece(first, place, 1 << 40)
        });
        let Piece { first, count, block } = decoded.ok()?;
        Some(encode_row::<u64, (u64, u32)>(&first, &(block?, u32::try_from(count).ok()?)))
    },
};

/// A range is so from now on, whatever the table has there. Where the next piece behind it begins.
fn set(
    table: &mut redb::Table<'_, u64, (u64, u32)>,
    change: Piece,
    blocks: u64,
) -> std::result::Result<u64, redb::Error> {
    let range = change.first..change.end();
    let (touched, around) = touching(table, &range, blocks)?;
    for old in touched {
        if old.first != change.first || change.block.is_none() {
            table.remove(old.first)?;
        }
        for rest in old.without(&range) {
            insert(table, rest)?;
        }
    }
    insert(table, change)?;
    Ok(around.end)
}

fn insert(table: &mut redb::Table<'_, u64, (u64, u32)>, piece: Piece) -> std::result::Result<(), redb::Error> {
    let Some(block) = piece.block else { return Ok(()) };
    // An entry's count has 32 bits.
    let step = u64::from(u32::MAX);
    let mut done = 0;
    while done < piece.count {
        let count = (piece.count - done).min(step);
        table.insert(piece.first + done, (block + done, u32::try_from(count).expect("a step has 32 bits")))?;
        done += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK;
    use crate::geometry::Format;

    #[test]
    fn no_map_is_full_that_has_each_block_alone() {
        for checksums in [Checksums::Metadata, Checksums::All] {
            for bytes in [16 << 20, 100 << 20, 1 << 30, (1 << 40) + 4096, 1 << 46] {
                let geometry = Geometry::of(bytes, [7; 16], Format { checksums, ..Format::default() }).unwrap();
                let pieces = geometry.data_blocks();
                let groups = if checksums == Checksums::All { pieces.div_ceil(sums::GROUP_BLOCKS) } else { 0 };
                let room: u64 = geometry.map_parts().map(|part| (part.end - part.start) * BLOCK).sum();
                assert!(room_for(pieces, groups) <= room - BLOCK, "{bytes}, {checksums}");
            }
        }
    }
}
