//! Trees in a part of a device: redb's, copy-on-write.
//!
//! They are opened without being read through, and their pages are read when they are wanted.

use crate::buffer::AlignedBuffer;
use crate::device::{Device, read_anywhere};
use crate::error::{Error, Result, at};
use crate::{BLOCK, BLOCK_BYTES, lock};
use redb::{Database, Durability, ReadTransaction, ReadableDatabase, StorageBackend, WriteTransaction};
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// A tree.
pub(crate) struct Tree(
    /// There until it is dropped.
    Option<Database>,
);

impl Tree {
    /// The tree in an area, with so many bytes of its pages in memory. `verified`: after all of them were compared with
    /// their checksums.
    pub fn open(area: &Arc<Area>, cache_bytes: usize, verified: bool) -> Result<Self> {
        let backend = Backend(Arc::clone(area));
        let made = guarded(|| Ok(Database::builder().set_cache_size(cache_bytes).create_with_backend(backend)?))?;
        let mut tree = Self(Some(made));
        if let (true, Some(database)) = (verified, tree.0.as_mut())
            && !guarded(|| Ok(database.check_integrity()?))?
        {
            return Err(Error::Damaged("a tree: checksums of its pages".to_owned()));
        }
        Ok(tree)
    }

    fn database(&self) -> std::result::Result<&Database, redb::Error> {
        self.0.as_ref().ok_or_else(|| redb::Error::Corrupted("it is closed".to_owned()))
    }

    /// The tree as it is now. For use in [`guarded`].
    pub fn begin_read(&self) -> std::result::Result<ReadTransaction, redb::Error> {
        Ok(self.database()?.begin_read()?)
    }

    /// Changes it, all or nothing. Safe on the device when this returns.
    pub fn write<T>(&self, work: impl FnOnce(&WriteTransaction) -> std::result::Result<T, redb::Error>) -> Result<T> {
        guarded(|| {
            let mut transaction = self.database()?.begin_write()?;
            // So that it is opened after a crash without being read through.
            transaction.set_quick_repair(true);
            transaction.set_durability(Durability::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        })
    }
}

impl Drop for Tree {
    /// At damaged pages it panics here, too; there is nothing left to be done about it.
    fn drop(&mut self) {
        let database = self.0.take();
        drop(catch_unwind(AssertUnwindSafe(|| drop(database))));
    }
}

/// Uses a tree, which panics at some pages that are damaged.
pub(crate) fn guarded<T>(work: impl FnOnce() -> std::result::Result<T, redb::Error>) -> Result<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|_| Err(redb::Error::Corrupted("a page makes no sense".to_owned()))).map_err(failed)
}

fn failed(error: redb::Error) -> Error {
    match error {
        redb::Error::Io(source) if source.kind() == io::ErrorKind::StorageFull => Error::MapFull,
        redb::Error::Io(source) => Error::Device { what: "use a tree", source },
        other => Error::Damaged(format!("a tree: {other}")),
    }
}

/// A part of a device, as a file for a tree: its length stands before it.
pub(crate) struct Area {
    device: Arc<dyn Device>,
    /// Where the file's bytes begin on the device.
    start: u64,
    length_block: u64,
    bytes_max: u64,
    /// What was never written reads zeros.
    is_sparse: bool,
    /// Guards what is read and written again because it is no whole block, too.
    length: Mutex<Length>,
}

struct Length {
    now: u64,
    written: u64,
}

impl Area {
    /// An empty file.
    pub fn create(device: Arc<dyn Device>, place: Range<u64>, is_sparse: bool) -> Result<Arc<Self>> {
        device.write_at(place.start, &length_block(0)).map_err(at("write a tree's length"))?;
        Ok(Arc::new(Self::new(device, place, is_sparse, 0)))
    }

    /// The file as it was left.
    pub fn open(device: Arc<dyn Device>, place: Range<u64>, is_sparse: bool) -> Result<Arc<Self>> {
        let mut block = vec![0; BLOCK_BYTES];
        device.read_at(place.start, &mut block).map_err(at("read a tree's length"))?;
        let (length, rest) = block.split_first_chunk::<8>().ok_or(Error::Beyond)?;
        let checksum = rest.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes));
        if checksum != Some(crc32c::crc32c(length)) {
            return Err(Error::Damaged("the length of a tree".to_owned()));
        }
        Ok(Arc::new(Self::new(device, place, is_sparse, u64::from_le_bytes(*length))))
    }

    fn new(device: Arc<dyn Device>, place: Range<u64>, is_sparse: bool, length: u64) -> Self {
        let (start, bytes_max) = (place.start + BLOCK, place.end - place.start - BLOCK);
        let length = Mutex::new(Length { now: length, written: length });
        Self { device, start, length_block: place.start, bytes_max, is_sparse, length }
    }

    /// Bytes of the file.
    pub fn length(&self) -> u64 {
        lock(&self.length).now
    }

    /// Bytes that it can have.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
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

/// What a tree is given.
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
        if self.0.is_sparse && len < length.now {
            let first = self.0.start + len.next_multiple_of(BLOCK);
            self.0.device.discard(first, (self.0.start + length.now).saturating_sub(first))?;
        }
        let zeros = AlignedBuffer::new(64 * BLOCK_BYTES);
        let mut at = if self.0.is_sparse { len } else { length.now.next_multiple_of(BLOCK) };
        if length.now < at && len > length.now && !self.0.is_sparse {
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
