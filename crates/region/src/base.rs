//! The map as it was at the last checkpoint: a tree in its own part of the device.
//!
//! The tree is redb's: copy-on-write, with a transaction for each checkpoint. It is opened without being read through,
//! and its pages are read when they are wanted, into a cache of [`CACHE_BYTES`].

use crate::buffer::AlignedBuffer;
use crate::device::{Device, read_anywhere};
use crate::error::{Error, Result, at};
use crate::geometry::Geometry;
use crate::overlay::{Overlay, Piece};
use crate::space::Space;
use crate::{BLOCK, BLOCK_BYTES, lock};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// Virtual block: block, and how many.
const EXTENTS: TableDefinition<'_, u64, (u64, u32)> = TableDefinition::new("extents");
/// Group of data blocks: a bit for each.
const SPACE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("space");
const STATE: TableDefinition<'_, &str, (u64, u64, u32)> = TableDefinition::new("state");
const APPLIED: &str = "applied";

/// Pages of the map in memory.
const CACHE_BYTES: usize = 64 << 20;
/// Transactions are refused when the tree has grown so near to the end of its part: eighths.
const FULL_EIGHTHS: u64 = 7;

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
    tree: Database,
    area: Arc<Area>,
}

impl Base {
    /// An empty map.
    pub fn create(device: Arc<dyn Device>, geometry: &Geometry) -> Result<Self> {
        let area = Arc::new(Area::new(device, geometry, 0));
        area.write_length(0)?;
        let base = Self::of(area)?;
        base.checkpoint(&Overlay::default(), &[], Applied::default())?;
        Ok(base)
    }

    /// The map as it was left.
    pub fn open(device: Arc<dyn Device>, geometry: &Geometry) -> Result<Self> {
        let length = Area::read_length(&*device, geometry)?;
        Self::of(Arc::new(Area::new(device, geometry, length)))
    }

    fn of(area: Arc<Area>) -> Result<Self> {
        let backend = Backend(Arc::clone(&area));
        let tree = guarded(|| Ok(Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)?))?;
        Ok(Self { tree, area })
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

    /// What is mapped in a range, cut to it, in order; and a range around it in which nothing more is.
    pub fn within(&self, range: &Range<u64>) -> Result<(Vec<Piece>, Range<u64>)> {
        let read = || -> std::result::Result<_, redb::Error> {
            let table = self.tree.begin_read()?.open_table(EXTENTS)?;
            let (pieces, around) = touching(&table, range)?;
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

    /// Takes over changes, bits, and where the log goes on, all or nothing. Safe on the device when this returns.
    pub fn checkpoint(&self, changes: &Overlay, groups: &[(u64, Vec<u8>)], applied: Applied) -> Result<()> {
        let growth = (changes.len() as u64).saturating_mul(64);
        if self.area.length() + growth > self.area.bytes_max / 8 * FULL_EIGHTHS {
            return Err(Error::MapFull);
        }
        let write = || -> std::result::Result<_, redb::Error> {
            let mut transaction = self.tree.begin_write()?;
            // So that it is opened after a crash without being read through.
            transaction.set_quick_repair(true);
            transaction.set_durability(Durability::Immediate)?;
            {
                let mut table = transaction.open_table(EXTENTS)?;
                for change in changes.pieces() {
                    set(&mut table, change)?;
                }
                let mut table = transaction.open_table(SPACE)?;
                for (group, bits) in groups {
                    table.insert(*group, bits.as_slice())?;
                }
                transaction.open_table(STATE)?.insert(APPLIED, (applied.sequence, applied.position, applied.chain))?;
            }
            transaction.commit()?;
            Ok(())
        };
        guarded(write)
    }
}

/// Uses the tree, which panics at some pages that are damaged.
fn guarded<T>(work: impl FnOnce() -> std::result::Result<T, redb::Error>) -> Result<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|_| Err(redb::Error::Corrupted("a page makes no sense".to_owned()))).map_err(failed)
}

fn failed(error: redb::Error) -> Error {
    match error {
        redb::Error::Io(source) if source.kind() == io::ErrorKind::StorageFull => Error::MapFull,
        redb::Error::Io(source) => Error::Device { what: "use the map", source },
        other => Error::Damaged(format!("the map: {other}")),
    }
}

type Found = std::result::Result<(Vec<Piece>, Range<u64>), redb::Error>;

/// The pieces that have a part in a range, whole and in order; and a range around it in which nothing more is.
fn touching(table: &impl ReadableTable<u64, (u64, u32)>, range: &Range<u64>) -> Found {
    let (mut found, mut around) = (Vec::new(), 0..u64::MAX);
    if let Some(entry) = table.range(..range.start)?.next_back() {
        let (first, place) = entry?;
        let before = piece(first.value(), place.value());
        around.start = before.end().min(range.start);
        found.extend(Some(before).filter(|before| before.end() > range.start));
    }
    for entry in table.range(range.start..)? {
        let (first, place) = entry?;
        if first.value() >= range.end {
            around.end = first.value();
            break;
        }
        found.push(piece(first.value(), place.value()));
    }
    if found.last().is_some_and(|last| last.end() >= range.end) {
        around.end = range.end;
    }
    Ok((found, around))
}

fn piece(first: u64, (block, count): (u64, u32)) -> Piece {
    Piece { first, count: u64::from(count), block: Some(block) }
}

/// A range is so from now on, whatever the table has there.
fn set(table: &mut redb::Table<'_, u64, (u64, u32)>, change: Piece) -> std::result::Result<(), redb::Error> {
    let range = change.first..change.end();
    let (touched, _) = touching(table, &range)?;
    for old in touched {
        table.remove(old.first)?;
        for rest in old.without(&range) {
            insert(table, rest)?;
        }
    }
    insert(table, change)
}

fn insert(table: &mut redb::Table<'_, u64, (u64, u32)>, piece: Piece) -> std::result::Result<(), redb::Error> {
    let Some(block) = piece.block else { return Ok(()) };
    // An entry's count has 32 bits.
    let step = u64::from(u32::MAX);
    let mut done = 0;
    while done < piece.count {
        let count = (piece.count - done).min(step);
        table.insert(piece.first + done, (block + done, u32::try_from(count).unwrap_or(u32::MAX)))?;
        done += count;
    }
    Ok(())
}

/// The map's part of the device, as a file for the tree: its length stands before it.
struct Area {
    device: Arc<dyn Device>,
    /// Where the file's bytes begin on the device.
    start: u64,
    length_block: u64,
    bytes_max: u64,
    /// Guards what is read and written again because it is no whole block, too.
    length: Mutex<Length>,
}

struct Length {
    now: u64,
    written: u64,
}

impl Area {
    fn new(device: Arc<dyn Device>, geometry: &Geometry, length: u64) -> Self {
        let (length_block, bytes_max) = (geometry.map_start * BLOCK, (geometry.map_blocks - 1) * BLOCK);
        let length = Mutex::new(Length { now: length, written: length });
        Self { device, start: length_block + BLOCK, length_block, bytes_max, length }
    }

    fn length(&self) -> u64 {
        lock(&self.length).now
    }

    fn read_length(device: &dyn Device, geometry: &Geometry) -> Result<u64> {
        let mut block = vec![0; BLOCK_BYTES];
        device.read_at(geometry.map_start * BLOCK, &mut block).map_err(at("read the map's length"))?;
        let (length, rest) = block.split_first_chunk::<8>().ok_or(Error::Beyond)?;
        let checksum = rest.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes));
        if checksum != Some(crc32c::crc32c(length)) {
            return Err(Error::Damaged("the length of the map".to_owned()));
        }
        Ok(u64::from_le_bytes(*length))
    }

    fn write_length(&self, length: u64) -> Result<()> {
        self.device.write_at(self.length_block, &length_block(length)).map_err(at("write the map's length"))
    }

    /// Writes a range that need not be whole blocks: what `change` makes of it.
    fn write_with(&self, offset: u64, bytes: usize, change: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let first = offset / BLOCK * BLOCK;
        let end = (offset + bytes as u64).next_multiple_of(BLOCK);
        let mut blocks = AlignedBuffer::new(usize::try_from(end - first).map_err(io::Error::other)?);
        let at = usize::try_from(offset - first).map_err(io::Error::other)?;
        if at > 0 || !(offset + bytes as u64).is_multiple_of(BLOCK) {
            self.device.read_at(self.start + first, &mut blocks)?;
        }
        change(blocks.get_mut(at..at + bytes).unwrap_or_default());
        self.device.write_at(self.start + first, &blocks)
    }
}

fn length_block(length: u64) -> Vec<u8> {
    let bytes = length.to_le_bytes();
    let mut block = [&bytes[..], &crc32c::crc32c(&bytes).to_le_bytes()].concat();
    block.resize(BLOCK_BYTES, 0);
    block
}

/// What the tree is given.
struct Backend(Arc<Area>);

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").field("start", &self.0.start).finish_non_exhaustive()
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.length())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let length = lock(&self.0.length);
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > length.now) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        drop(length);
        read_anywhere(&*self.0.device, self.0.start + offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if len > self.0.bytes_max {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut length = lock(&self.0.length);
        let zeros = AlignedBuffer::new(64 * BLOCK_BYTES);
        let mut at = length.now.next_multiple_of(BLOCK);
        if length.now < at && len > length.now {
            let rest = usize::try_from(at - length.now).map_err(io::Error::other)?;
            self.0.write_with(length.now, rest, |bytes| bytes.fill(0))?;
        }
        while at < len {
            let bytes = (len - at).next_multiple_of(BLOCK).min(zeros.len() as u64);
            let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
            self.0.device.write_at(self.0.start + at, zeros.get(..bytes).unwrap_or_default())?;
            at += bytes as u64;
        }
        length.now = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut length = lock(&self.0.length);
        if length.now != length.written {
            self.0.device.write_at(self.0.length_block, &length_block(length.now))?;
            length.written = length.now;
        }
        drop(length);
        self.0.device.flush()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        // Two that share a block would each write what the other had not read.
        let length = lock(&self.0.length);
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > length.now) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.0.write_with(offset, data.len(), |place| place.copy_from_slice(data))
    }
}
