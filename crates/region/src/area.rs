//! Storage of a tree in a part of a device, with a checksum for each block.
//!
//! The tree is a file to its library: a header of [`HEADER_BYTES`] that is overwritten in place, and pages that are
//! copied on write. The library keeps checksums of pages in their parents, but compares them only when it is asked to,
//! so the area verifies each block when it is read from the device, once for each miss of the library's cache.
//!
//! On the device: the *head*, one block of which the first sector counts (length of the file, header, checksum), then
//! groups of a table block and the [`GROUP_BLOCKS`] blocks whose checksums it has. A sector is written wholly or not at
//! all, so a head that does not fit its checksum is damage and never a torn write. Table blocks carry no checksum: of
//! the entries that change in one write those of committed pages stay as they are, so a torn write leaves these whole.

use crate::buffer::AlignedBuffer;
use crate::decoder::{Decoder, sealed_block};
use crate::device::Device;
use crate::error::{Error, Result, at};
use crate::sealed::{seal, seal_of, u64_at};
use crate::sums::{NO_SUM, sum_at};
use crate::{BLOCK, BLOCK_BYTES, as_index, lock};
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Bytes at the start of the file that are overwritten in place. The library uses 320.
const HEADER_BYTES: usize = SECTOR - HEADER_AT;
const SECTOR: usize = 512;
const MAGIC: &[u8; 8] = b"WEFTTREE";
const CHECKSUM_AT: usize = 8;
const LENGTH_AT: usize = 16;
const HEADER_AT: usize = 24;
/// Blocks of a group, as many as a table block has checksums of.
const GROUP_BLOCKS: u64 = BLOCK / 4;
/// Tables kept in memory, for 4 MiB of the file each.
const TABLES_MAX: usize = 4096;

/// See the module.
pub(crate) struct Area {
    device: Arc<dyn Device>,
    place: Range<u64>,
    /// What was never written reads zeros.
    is_sparse: bool,
    head: Mutex<Head>,
    tables: Mutex<BTreeMap<u64, Table>>,
}

#[derive(Clone)]
struct Head {
    length: u64,
    header: [u8; HEADER_BYTES],
    is_written: bool,
}

/// Checksums of a group's blocks. [`NO_SUM`]: the block is zeros.
struct Table {
    sums: Box<[u32]>,
    is_written: bool,
}

impl Area {
    /// Makes an empty file.
    pub fn create(device: Arc<dyn Device>, place: Range<u64>, is_sparse: bool) -> Result<Arc<Self>> {
        let area =
            Self::new(device, place, is_sparse, Head { length: 0, header: [0; HEADER_BYTES], is_written: false });
        area.write_head(&mut lock(&area.head)).map_err(at("write the head of a tree"))?;
        Ok(Arc::new(area))
    }

    /// Opens the file as it was left.
    pub fn open(device: Arc<dyn Device>, place: Range<u64>, is_sparse: bool) -> Result<Arc<Self>> {
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        device.read_at(place.start, &mut block).map_err(at("read the head of a tree"))?;
        let head = Head::decode(&block).ok_or_else(|| Error::Damaged("the head of a tree".to_owned()))?;
        let area = Self::new(device, place, is_sparse, head);
        if lock(&area.head).length > area.bytes_max() {
            return Err(Error::Damaged("the head of a tree: a length beyond its place".to_owned()));
        }
        Ok(Arc::new(area))
    }

    fn new(device: Arc<dyn Device>, place: Range<u64>, is_sparse: bool, head: Head) -> Self {
        Self { device, place, is_sparse, head: Mutex::new(head), tables: Mutex::default() }
    }

    /// The same file as it is on the device, on a device that has the same bytes.
    pub fn reopened(&self, shadow: impl FnOnce(Arc<dyn Device>) -> Arc<dyn Device>) -> Result<Arc<Self>> {
        Self::open(shadow(Arc::clone(&self.device)), self.place.clone(), self.is_sparse)
    }

    /// Returns the maximum length of the file.
    pub fn bytes_max(&self) -> u64 {
        let blocks = (self.place.end - self.place.start) / BLOCK - 1;
        let (groups, rest) = (blocks / (GROUP_BLOCKS + 1), blocks % (GROUP_BLOCKS + 1));
        (1 + groups * GROUP_BLOCKS + rest.saturating_sub(1)) * BLOCK
    }

    fn write_head(&self, head: &mut Head) -> io::Result<()> {
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        block[..SECTOR].copy_from_slice(&head.encode());
        self.device.write_at(self.place.start, &block)?;
        head.is_written = true;
        Ok(())
    }

    /// Device address of a group's table.
    fn table_at(&self, group: u64) -> u64 {
        self.place.start + (1 + group * (GROUP_BLOCKS + 1)) * BLOCK
    }

    /// Device address of a block of the file. Block 0 is in the head.
    fn block_at(&self, block: u64) -> u64 {
        let (group, index) = group_of(block);
        self.table_at(group) + (1 + index) * BLOCK
    }

    /// Runs `work` on the table of a group, which is read if need be. `is_new`: all blocks of the group are zeros.
    fn with_table<T>(
        &self,
        tables: &mut BTreeMap<u64, Table>,
        group: u64,
        is_new: bool,
        work: impl FnOnce(&mut Table) -> T,
    ) -> io::Result<T> {
        if !tables.contains_key(&group) {
            if tables.len() >= TABLES_MAX {
                tables.retain(|_, table| !table.is_written);
            }
            let table = if is_new { Table::zeros() } else { self.read_table(group)? };
            tables.insert(group, table);
        }
        tables.get_mut(&group).map(work).ok_or_else(|| io::Error::other("a table that is not there"))
    }

    fn read_table(&self, group: u64) -> io::Result<Table> {
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        self.device.read_at(self.table_at(group), &mut block)?;
        Ok(Table::decode(&block))
    }

    /// Has the checksums of blocks set by `sums`, one behind the other.
    fn set_sums(&self, blocks: Range<u64>, is_new: bool, mut sums: impl Iterator<Item = u32>) -> io::Result<()> {
        let mut tables = lock(&self.tables);
        for part in by_group(blocks) {
            let (group, index) = group_of(part.start);
            let is_new = is_new && index == 0;
            self.with_table(&mut tables, group, is_new, |table| {
                table.is_written = false;
                let places = table.sums.iter_mut().skip(as_index(index));
                places.take(as_index(part.end - part.start)).zip(&mut sums).for_each(|(place, sum)| *place = sum);
            })?;
        }
        Ok(())
    }

    /// Writes the tables that have changed.
    fn write_tables(&self) -> io::Result<()> {
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        for (group, table) in lock(&self.tables).iter_mut().filter(|(_, table)| !table.is_written) {
            table.encode(&mut block);
            self.device.write_at(self.table_at(*group), &block)?;
            table.is_written = true;
        }
        Ok(())
    }

    /// Returns the blocks of the file that cannot be read or do not match their checksums, also those of no page that
    /// is in use.
    pub fn wrong_blocks(&self) -> Vec<u64> {
        let mut buffer = AlignedBuffer::new(64 * BLOCK_BYTES);
        let mut wrong = Vec::new();
        let end = lock(&self.head).length.div_ceil(BLOCK).max(1);
        let mut from = 0;
        while let Some(group) = self.next_group_with_data(from, end) {
            let first = 1 + group * GROUP_BLOCKS;
            let part = first..(first + GROUP_BLOCKS).min(end);
            for first in part.clone().step_by(64) {
                self.wrong_among(first..part.end.min(first + 64), &mut buffer, &mut wrong);
            }
            from = group + 1;
        }
        wrong
    }

    /// The first group from `from` on where the device has more than zeros, of a file with so many blocks. A damaged
    /// head may claim a length of which next to nothing was written, and groups of zeros are right.
    fn next_group_with_data(&self, from: u64, blocks: u64) -> Option<u64> {
        let groups = (blocks - 1).div_ceil(GROUP_BLOCKS);
        if from >= groups {
            return None;
        }
        let end = self.table_at(groups).min(self.place.end);
        // Damage below the tree is reported by the check of that layer.
        let data = self.device.data_within(self.table_at(from)..end).ok()??;
        Some(from + (data.start - self.table_at(from)) / ((GROUP_BLOCKS + 1) * BLOCK))
    }

    /// Adds those of up to 64 blocks of one group that cannot be read or do not match.
    fn wrong_among(&self, blocks: Range<u64>, buffer: &mut AlignedBuffer, wrong: &mut Vec<u64>) {
        let bytes = as_index((blocks.end - blocks.start) * BLOCK);
        if let Ok(found) = self.compare(blocks.clone(), &mut buffer[..bytes]) {
            wrong.extend(found);
            return;
        }
        // Of what cannot be read together, what can be read alone.
        for block in blocks {
            match self.compare(block..block + 1, &mut buffer[..BLOCK_BYTES]) {
                Ok(found) => wrong.extend(found),
                Err(_) => wrong.push(block),
            }
        }
    }

    /// Reads whole blocks of one group, and returns those that do not match their checksums.
    fn compare(&self, blocks: Range<u64>, into: &mut [u8]) -> io::Result<Vec<u64>> {
        self.device.read_at(self.block_at(blocks.start), into)?;
        let (group, index) = group_of(blocks.start);
        let mut tables = lock(&self.tables);
        self.with_table(&mut tables, group, false, |table| {
            let sums = table.sums.iter().skip(as_index(index));
            let is_wrong = |(block, (bytes, sum)): &(u64, (&[u8], &u32))| match **sum {
                NO_SUM => bytes.iter().any(|byte| *byte != 0),
                sum => sum_at(*block, bytes) != sum,
            };
            let all = (blocks.start..).zip(into.chunks(BLOCK_BYTES).zip(sums));
            all.filter(is_wrong).map(|(block, _)| block).collect()
        })
    }

    /// Reads whole blocks of one group. An error: one does not match its checksum.
    fn read_blocks(&self, blocks: Range<u64>, into: &mut [u8]) -> io::Result<()> {
        match self.compare(blocks, into)?.first() {
            None => Ok(()),
            Some(block) => Err(io::Error::new(io::ErrorKind::InvalidData, mismatch_of(*block))),
        }
    }
}

impl Head {
    fn encode(&self) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[LENGTH_AT..HEADER_AT].copy_from_slice(&self.length.to_le_bytes());
        bytes[HEADER_AT..].copy_from_slice(&self.header);
        seal(&mut bytes, CHECKSUM_AT);
        bytes
    }

    fn decode(block: &[u8]) -> Option<Self> {
        let bytes = block.first_chunk::<SECTOR>()?;
        let header = *bytes.last_chunk::<HEADER_BYTES>()?;
        seal_of(bytes, CHECKSUM_AT).filter(|_| bytes.starts_with(MAGIC))?;
        Some(Self { length: u64_at(bytes, LENGTH_AT)?, header, is_written: true })
    }
}

impl Table {
    fn zeros() -> Self {
        Self { sums: vec![NO_SUM; as_index(GROUP_BLOCKS)].into(), is_written: false }
    }

    fn decode(block: &[u8]) -> Self {
        let sums = block.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        Self { sums, is_written: true }
    }

    fn encode(&self, block: &mut [u8]) {
        block.as_chunks_mut().0.iter_mut().zip(&self.sums).for_each(|(place, sum)| *place = sum.to_le_bytes());
    }
}

/// Says what is wrong with a block of the file.
pub(crate) fn mismatch_of(block: u64) -> String {
    format!("block {block} of its pages does not match its checksum")
}

/// The group that has a block behind the first, and which of its blocks it is.
fn group_of(block: u64) -> (u64, u64) {
    let block = block.saturating_sub(1);
    (block / GROUP_BLOCKS, block % GROUP_BLOCKS)
}

/// Cuts a range of blocks behind the first where groups end.
fn by_group(blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut next = blocks.start.max(1);
    std::iter::from_fn(move || {
        let start = next;
        next = ((group_of(start).0 + 1) * GROUP_BLOCKS + 1).min(blocks.end);
        (start < blocks.end).then_some(start..next)
    })
}

/// The whole blocks that a range of bytes behind the header is.
fn whole_blocks(offset: u64, bytes: usize) -> io::Result<Range<u64>> {
    let is_whole = offset.is_multiple_of(BLOCK) && bytes.is_multiple_of(BLOCK_BYTES) && offset > 0;
    let blocks = offset / BLOCK..offset / BLOCK + bytes as u64 / BLOCK;
    if is_whole { Ok(blocks) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, "no whole pages of a tree")) }
}

/// Whether a range of bytes is in the header.
fn is_in_header(offset: u64, bytes: usize) -> bool {
    offset.saturating_add(bytes as u64) <= HEADER_BYTES as u64
}

/// What a tree is given.
pub(crate) struct Backend(pub Arc<Area>);

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").field("place", &self.0.place).finish_non_exhaustive()
    }
}

impl Backend {
    fn is_inside(&self, offset: u64, bytes: usize) -> io::Result<()> {
        let end = offset.checked_add(bytes as u64);
        let is_inside = end.is_some_and(|end| end <= lock(&self.0.head).length);
        if is_inside { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.0.head).length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.is_inside(offset, out.len())?;
        if is_in_header(offset, out.len()) {
            let start = as_index(offset);
            let header = lock(&self.0.head).header;
            out.copy_from_slice(&header[start..start + out.len()]);
            return Ok(());
        }
        let mut rest = out;
        for part in by_group(whole_blocks(offset, rest.len())?) {
            let bytes = as_index((part.end - part.start) * BLOCK);
            self.0.read_blocks(part, rest.split_off_mut(..bytes).expect("the parts are the whole"))?;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let area = &self.0;
        if len > area.bytes_max() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut head = lock(&area.head);
        let (before, after) = (head.length.div_ceil(BLOCK).max(1), len.div_ceil(BLOCK).max(1));
        if area.is_sparse {
            for part in by_group(after..before) {
                area.device.discard(area.block_at(part.start), (part.end - part.start) * BLOCK)?;
            }
        } else {
            let zeros = AlignedBuffer::new(64 * BLOCK_BYTES);
            for part in by_group(before..after) {
                for first in part.clone().step_by(64) {
                    let bytes = as_index((part.end - first).min(64) * BLOCK);
                    area.device.write_at(area.block_at(first), &zeros[..bytes])?;
                }
            }
        }
        area.set_sums(before..after, true, std::iter::repeat(NO_SUM))?;
        (head.length, head.is_written) = (len, false);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.write_tables()?;
        let mut head = lock(&self.0.head);
        if !head.is_written {
            self.0.write_head(&mut head)?;
        }
        drop(head);
        self.0.device.flush()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.is_inside(offset, data.len())?;
        if is_in_header(offset, data.len()) {
            let mut head = lock(&self.0.head);
            let start = as_index(offset);
            head.header[start..start + data.len()].copy_from_slice(data);
            return self.0.write_head(&mut head);
        }
        let (mut rest, blocks) = (data, whole_blocks(offset, data.len())?);
        let sums = blocks.clone().zip(data.chunks(BLOCK_BYTES)).map(|(block, bytes)| sum_at(block, bytes));
        for part in by_group(blocks.clone()) {
            let (some, behind) = rest.split_at(as_index((part.end - part.start) * BLOCK));
            let mut aligned = AlignedBuffer::new(some.len());
            aligned.copy_from_slice(some);
            self.0.device.write_at(self.0.block_at(part.start), &aligned)?;
            rest = behind;
        }
        self.0.set_sums(blocks.clone(), false, sums)
    }
}

/// See [`crate::decoders`]. A table block is numbers only, so any bytes are one; its blocks are compared with it.
pub(crate) const TABLE_DECODER: Decoder = Decoder {
    name: "region_tree_table",
    example: || (0..BLOCK_BYTES / 4).flat_map(|number| [number as u8; 4]).collect(),
    seal: |bytes| {
        let mut block = bytes.to_vec();
        block.resize(BLOCK_BYTES, 0);
        block
    },
    decode: |block| {
        // A device gives whole blocks.
        let table = Table::decode(block.first_chunk::<BLOCK_BYTES>()?);
        let mut again = vec![0; BLOCK_BYTES];
        table.encode(&mut again);
        Some(again)
    },
};

/// See [`crate::decoders`].
pub(crate) const DECODER: Decoder = Decoder {
    name: "region_tree_head",
    example: || Head { length: 1 << 20, header: [7; HEADER_BYTES], is_written: true }.encode().to_vec(),
    seal: |bytes| sealed_block(bytes, SECTOR, CHECKSUM_AT),
    decode: |block| Head::decode(block).map(|head| head.encode().to_vec()),
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shadow::{Shadow, Zeros};
    use proptest::prelude::*;

    const BLOCKS: u64 = 3 + 2 * (GROUP_BLOCKS + 1);

    fn area() -> (Arc<dyn Device>, Backend) {
        let device: Arc<dyn Device> = Shadow::new(Arc::new(Zeros(BLOCKS * BLOCK)));
        let area = Area::create(Arc::clone(&device), 0..BLOCKS * BLOCK, false).unwrap();
        (device, Backend(area))
    }

    #[test]
    fn a_head_with_any_wrong_bit_is_damage() {
        let head = Head { length: 77 * BLOCK, header: [5; HEADER_BYTES], is_written: true };
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes).map(|head| head.length), Some(77 * BLOCK));
        for bit in 0..SECTOR * 8 {
            let mut wrong = bytes;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(Head::decode(&wrong).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn the_last_block_is_the_last_of_the_device() {
        let (_, backend) = area();
        let max = backend.0.bytes_max();
        assert_eq!(max, (1 + 2 * GROUP_BLOCKS + 1) * BLOCK);
        assert!(backend.set_len(max + 1).is_err());
        backend.set_len(max).unwrap();
        backend.write(max - BLOCK, &[7; BLOCK_BYTES]).unwrap();
        assert_eq!(backend.0.block_at(max / BLOCK - 1) + BLOCK, BLOCKS * BLOCK);
    }

    /// Each block of the area, head and tables among them, with a wrong bit or another block's bytes.
    #[test]
    fn no_block_that_is_damaged_is_read() {
        let (device, backend) = area();
        let length = (GROUP_BLOCKS + 3) * BLOCK;
        backend.set_len(length).unwrap();
        backend.write(0, &[1; 320]).unwrap();
        let used = [1, 2, GROUP_BLOCKS, GROUP_BLOCKS + 1];
        let bytes_of = |block: u64| vec![u8::try_from(block % 251).unwrap(); BLOCK_BYTES];
        used.iter().for_each(|block| backend.write(block * BLOCK, &bytes_of(*block)).unwrap());
        backend.sync_data().unwrap();
        let reads = |device: Arc<dyn Device>| {
            let backend = Backend(Area::open(device, 0..BLOCKS * BLOCK, false).ok()?);
            let mut found = vec![0; BLOCK_BYTES];
            for block in 1..length / BLOCK {
                backend.read(block * BLOCK, &mut found).ok()?;
                let expected = if used.contains(&block) { bytes_of(block) } else { vec![0; BLOCK_BYTES] };
                assert!(found == expected, "block {block}");
            }
            Some(())
        };
        assert!(reads(Shadow::new(Arc::clone(&device))).is_some());
        let places = used.map(|block| backend.0.block_at(block));
        let kept = [0, backend.0.table_at(0), backend.0.table_at(1)];
        for place in places.into_iter().chain(kept) {
            let mut whole = vec![0; BLOCK_BYTES];
            device.read_at(place, &mut whole).unwrap();
            // In entries of the tables that are in use.
            let bits = [0, 9, 33, 63];
            for wrong in bits.map(Some).into_iter().chain([None]) {
                let mut bytes = whole.clone();
                match wrong {
                    Some(bit) => bytes[bit / 8] ^= 1 << (bit % 8),
                    None => device.read_at((place + BLOCK) % (2 * BLOCK), &mut bytes).unwrap(),
                }
                let shadow = Shadow::new(Arc::clone(&device));
                shadow.write_at(place, &bytes).unwrap();
                assert!(reads(shadow).is_none() || bytes == whole, "block {}, {wrong:?}", place / BLOCK);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn it_is_as_a_file(changes in prop::collection::vec((0..3u8, 1..2050u64, 1..3u64, any::<u8>()), 1..20)) {
            let (device, mut backend) = area();
            let mut model: Vec<u8> = Vec::new();
            for (what, block, count, byte) in changes {
                match what {
                    0 => {
                        backend.set_len(block * BLOCK).unwrap();
                        model.resize(as_index(block * BLOCK), 0);
                    }
                    1 => {
                        let range = as_index(block * BLOCK)..as_index((block + count) * BLOCK);
                        let is_inside = range.end <= model.len();
                        let done = backend.write(block * BLOCK, &vec![byte; range.len()]);
                        prop_assert_eq!(done.is_ok(), is_inside);
                        model.get_mut(range).into_iter().for_each(|place| place.fill(byte));
                    }
                    _ => {
                        backend.sync_data().unwrap();
                        backend = Backend(Area::open(Arc::clone(&device), 0..BLOCKS * BLOCK, false).unwrap());
                    }
                }
                let mut found = vec![0; model.len().saturating_sub(BLOCK_BYTES)];
                if !found.is_empty() {
                    backend.read(BLOCK, &mut found).unwrap();
                    prop_assert!(found == model[BLOCK_BYTES..]);
                }
            }
        }
    }
}
