//! Devices that blocks lie on.

mod host;

use crate::buffer::{AlignedBuffer, is_aligned};
use crate::error::{Error, Result, at};
use crate::lent::LentSlots;
use crate::rings::Rings;
use crate::transfer::{read_fully, write_fully};
use crate::{BLOCK, BLOCK_BYTES, as_index};
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, fallocate, flock, fstat, open};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_sys::shown::ShownFile;

/// A place, and memory that is to be filled from there.
pub type Read<'a> = (u64, &'a mut [u8]);

/// Reads and writes whole blocks. What was written is there after a power failure once it was flushed; before that any
/// part of it may be. Called from many threads.
pub trait Device: Send + Sync {
    /// Bytes that it has.
    fn bytes(&self) -> u64;

    /// Fills `into`. Both the place and the length are multiples of a block.
    fn read_at(&self, place: u64, into: &mut [u8]) -> io::Result<()>;

    /// Fills all of them, any places and lengths; side by side where it can.
    fn read_all(&self, reads: &mut [Read<'_>]) -> io::Result<()> {
        reads.iter_mut().try_for_each(|(place, into)| read_anywhere(self, *place, into))
    }

    /// Memory that reads of it go to while their caller does something else. `None`: it reads only when it is waited
    /// for.
    fn lend_slots(&self) -> Option<LentSlots<'_>> {
        None
    }

    /// Whether [`Device::lend_slots`] gives some, as far as is known without taking them.
    fn has_slots(&self) -> bool {
        false
    }

    /// Where its bytes lie in memory of this process, for the kernel to copy. `None`: nowhere.
    fn address(&self) -> Option<u64> {
        None
    }

    /// Writes all of `from`, as `read_at` reads.
    fn write_at(&self, place: u64, from: &[u8]) -> io::Result<()>;

    /// The same; it is safe when this returns, whatever is with what was written before.
    fn write_durable_at(&self, place: u64, from: &[u8]) -> io::Result<()> {
        self.write_at(place, from)?;
        self.flush()
    }

    /// Writes parts one behind the other, each whole blocks, with one call where it can; safe when this returns if it
    /// is to be `durable`.
    fn write_parts_at(&self, place: u64, parts: &[&[u8]], durable: bool) -> io::Result<()> {
        let whole = together(parts);
        if durable { self.write_durable_at(place, &whole) } else { self.write_at(place, &whole) }
    }

    /// All that was written before is safe when this returns.
    fn flush(&self) -> io::Result<()>;

    /// These bytes are of no more use; what is read there afterwards is anything.
    fn discard(&self, place: u64, bytes: u64) -> io::Result<()>;

    /// Whole blocks that read zeros from now on, and take no space. Of sparse files.
    fn punch(&self, _place: u64, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The first part of a range outside of which it has zeros only, as far as is known. Of sparse files.
    fn data_within(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        Ok(Some(range).filter(|range| !range.is_empty()))
    }

    /// Of sparse files.
    fn host_space(&self) -> io::Result<HostSpace> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// What a sparse file takes of its host file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostSpace {
    /// Bytes that the file takes.
    pub taken: u64,
    /// Bytes that it, and all others there, can take more.
    pub free: u64,
}

/// A block device, or a file that has its blocks. Past the page cache where the file system lets it.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    bytes: u64,
    /// Of a file in memory.
    shown: Option<ShownFile>,
    discards: bool,
    pub(crate) rings: Rings,
    pub(crate) done: Operations,
}

#[derive(Debug, Default)]
pub(crate) struct Operations {
    pub reads: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    /// Those of durable writes, too.
    flushes: AtomicU64,
}

/// What a device was asked for so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OperationCounts {
    pub reads: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
}

impl FileDevice {
    /// Opens what is there.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let opened = match open(path, flags | OFlags::DIRECT, Mode::empty()) {
            // Not every file system can.
            Err(Errno::INVAL) => open(path, flags, Mode::empty()),
            opened => opened,
        };
        let file = opened.map_err(|errno| at("open the device")(errno.into()))?;
        // Two that write to one store would each believe that the other's blocks are free.
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(Error::InUse),
            locked => locked.map_err(|errno| at("lock the device")(errno.into()))?,
        }
        let stat = fstat(&file).map_err(|errno| at("look at the device")(errno.into()))?;
        let is_block_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        let bytes = length_of(&file).map_err(at("measure the device"))?;
        // A file keeps what was set aside for it.
        let rings = Rings::new(&file);
        // A matter of speed only: what cannot be mapped is read.
        let shown = ShownFile::new(file.as_fd(), as_index(bytes)).ok();
        Ok(Self { file: file.into(), bytes, shown, discards: is_block_device, rings, done: Operations::default() })
    }

    /// Makes a file of so many bytes, all of which the file system sets aside, and opens it.
    pub fn create(path: &Path, bytes: u64) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| at("make the file")(errno.into()))?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes).map_err(|errno| at("set space aside")(errno.into()))?;
        drop(file);
        Self::open(path)
    }

    /// What it was asked for so far.
    pub fn operations(&self) -> OperationCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OperationCounts {
            reads: count(&self.done.reads),
            writes: count(&self.done.writes),
            written_bytes: count(&self.done.written_bytes),
            flushes: count(&self.done.flushes),
        }
    }

    fn write(&self, place: u64, parts: &[&[u8]], durable: bool) -> io::Result<()> {
        self.done.writes.fetch_add(1, Ordering::Relaxed);
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.done.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.done.flushes.fetch_add(u64::from(durable), Ordering::Relaxed);
        let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let call = |slices: &[io::IoSlice<'_>], at| rustix::io::pwritev2(&self.file, slices, at, flags);
        let written = if parts.iter().all(|part| is_aligned(part)) {
            write_fully(place, parts, call)
        } else {
            write_fully(place, &[&together(parts)], call)
        };
        written.map_err(|error| self.beyond_end(place + bytes as u64, error))
    }

    fn read(&self, place: u64, into: &mut [u8]) -> io::Result<()> {
        let end = place + into.len() as u64;
        let read = read_fully(place, into, |rest, at| rustix::io::pread(&self.file, rest, at));
        read.map_err(|error| self.beyond_end(end, error))
    }

    /// Says of what failed where the device has no bytes any more why: a block device calls that "no space left".
    pub(crate) fn beyond_end(&self, end: u64, error: io::Error) -> io::Error {
        match length_of(&self.file) {
            Ok(bytes) if bytes < end.min(self.bytes) => {
                let text = format!("the device had {} bytes, and has {bytes}: it has become smaller", self.bytes);
                io::Error::new(io::ErrorKind::UnexpectedEof, text)
            }
            _ => error,
        }
    }
}

/// Bytes of a file, or a block device.
fn length_of(file: &impl AsFd) -> io::Result<u64> {
    Ok(rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?)
}

impl Device for FileDevice {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, place: u64, into: &mut [u8]) -> io::Result<()> {
        self.done.reads.fetch_add(1, Ordering::Relaxed);
        if is_aligned(into) {
            return self.read(place, into);
        }
        let mut buffer = AlignedBuffer::new(into.len());
        self.read(place, &mut buffer)?;
        into.copy_from_slice(&buffer);
        Ok(())
    }

    fn read_all(&self, reads: &mut [Read<'_>]) -> io::Result<()> {
        let is_whole = |(place, into): &Read<'_>| {
            place.is_multiple_of(BLOCK) && into.len().is_multiple_of(BLOCK_BYTES) && is_aligned(into)
        };
        if reads.len() > 1
            && reads.iter().all(is_whole)
            && let Some(done) = self.rings.read_all(reads)
        {
            self.done.reads.fetch_add(reads.len() as u64, Ordering::Relaxed);
            let end = reads.iter().map(|(place, into)| place + into.len() as u64).max();
            return done.map_err(|error| self.beyond_end(end.unwrap_or(0), error));
        }
        reads.iter_mut().try_for_each(|(place, into)| read_anywhere(self, *place, into))
    }

    fn lend_slots(&self) -> Option<LentSlots<'_>> {
        LentSlots::of(self)
    }

    fn has_slots(&self) -> bool {
        self.rings.has_slots()
    }

    fn address(&self) -> Option<u64> {
        self.shown.as_ref().map(ShownFile::address)
    }

    fn write_at(&self, place: u64, from: &[u8]) -> io::Result<()> {
        self.write(place, &[from], false)
    }

    fn write_durable_at(&self, place: u64, from: &[u8]) -> io::Result<()> {
        self.write(place, &[from], true)
    }

    fn write_parts_at(&self, place: u64, parts: &[&[u8]], durable: bool) -> io::Result<()> {
        self.write(place, parts, durable)
    }

    fn flush(&self) -> io::Result<()> {
        self.done.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    fn discard(&self, place: u64, bytes: u64) -> io::Result<()> {
        if !self.discards {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, flags, place, bytes) {
            // A hint: nothing depends on it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            done => Ok(done?),
        }
    }

    fn punch(&self, place: u64, bytes: u64) -> io::Result<()> {
        host::punch(&self.file, place, bytes)
    }

    fn data_within(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        host::data_within(&self.file, range)
    }

    fn host_space(&self) -> io::Result<HostSpace> {
        host::space(&self.file)
    }
}

/// Reads from any place, also what is no whole block.
pub(crate) fn read_anywhere<D: Device + ?Sized>(device: &D, place: u64, into: &mut [u8]) -> io::Result<()> {
    if place.is_multiple_of(BLOCK) && into.len().is_multiple_of(BLOCK_BYTES) {
        return device.read_at(place, into);
    }
    let first = place / BLOCK * BLOCK;
    let end = (place + into.len() as u64).next_multiple_of(BLOCK);
    let mut blocks = AlignedBuffer::new(usize::try_from(end - first).map_err(io::Error::other)?);
    device.read_at(first, &mut blocks)?;
    let from = usize::try_from(place - first).map_err(io::Error::other)?;
    into.copy_from_slice(&blocks[from..from + into.len()]);
    Ok(())
}

/// Parts in aligned memory.
fn together(parts: &[&[u8]]) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(parts.iter().map(|part| part.len()).sum());
    let mut rest = &mut buffer[..];
    for part in parts {
        let (place, behind) = std::mem::take(&mut rest).split_at_mut(part.len());
        place.copy_from_slice(part);
        rest = behind;
    }
    buffer
}
