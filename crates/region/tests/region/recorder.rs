//! A device in memory that remembers what it was asked, and what a power failure would have left of it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use weft_region::device::HostSpace;
use weft_region::{BLOCK_BYTES, Checksums, Device, Format, Result, Store};

/// What stores may have checksums of.
pub const BOTH: [Checksums; 2] = [Checksums::Metadata, Checksums::All];

/// What stores are made on: a device, with checksums of this, or a sparse file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Mapped(Checksums),
    Sparse,
}

impl Form {
    pub const ALL: [Self; 3] = [Self::Mapped(Checksums::Metadata), Self::Mapped(Checksums::All), Self::Sparse];

    /// One of them.
    pub fn of(number: u64) -> Self {
        Self::ALL[usize::try_from(number % 3).unwrap()]
    }

    /// What has room for so many bytes, with this on it.
    pub fn device(self, bytes: u64, image: Image) -> Arc<Recorder> {
        match self {
            Self::Mapped(_) => Recorder::from(bytes, image),
            Self::Sparse => Recorder::sparse(bytes, image),
        }
    }

    pub fn format(self, device: &Arc<Recorder>, region_shift: u8) -> Result<Store> {
        let format = Format { region_shift, ..Format::default() };
        match self {
            Self::Mapped(checksums) => Store::format(device.clone(), Format { checksums, ..format }),
            Self::Sparse => Store::format_sparse(device.clone(), format),
        }
    }
}

/// What XFS lets a file have.
pub const SPARSE_BYTES: u64 = i64::MAX as u64;

const SECTOR: usize = 512;

/// Blocks that were ever written; others are zeros.
pub type Image = HashMap<u64, Box<[u8]>>;

enum Asked {
    /// Where, what, and whether it is safe by itself.
    Write(u64, Vec<u8>, bool),
    Punch(Range<u64>),
    Flush,
}

/// See the module.
pub struct Recorder {
    bytes: u64,
    /// Of a sparse file: blocks that its host has room for.
    room: Option<u64>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    before: Image,
    now: Image,
    asked: Vec<Asked>,
    /// Fails the call when it reaches 0.
    fails_in: Option<u64>,
    /// Does the write when it reaches 0, and says that it has failed.
    lies_in: Option<u64>,
    /// Blocks that cannot be read, and those that cannot be written.
    bad: HashSet<u64>,
    stuck: HashSet<u64>,
}

impl Recorder {
    pub fn new(bytes: u64) -> Arc<Self> {
        Self::from(bytes, Image::new())
    }

    /// A device that has this on it.
    pub fn from(bytes: u64, image: Image) -> Arc<Self> {
        let inner = Inner { before: image.clone(), now: image, ..Inner::default() };
        Arc::new(Self { bytes, room: None, inner: Mutex::new(inner) })
    }

    /// A sparse file that has this in it, on a host with room for so many bytes.
    pub fn sparse(room: u64, image: Image) -> Arc<Self> {
        let inner = Inner { before: image.clone(), now: image, ..Inner::default() };
        let room = Some(room / BLOCK_BYTES as u64);
        Arc::new(Self { bytes: SPARSE_BYTES, room, inner: Mutex::new(inner) })
    }

    /// What it was asked for so far.
    pub fn asked(&self) -> usize {
        self.inner.lock().unwrap().asked.len()
    }

    /// Where the call with this number writes.
    pub fn writes_at(&self, call: usize) -> Option<u64> {
        match self.inner.lock().unwrap().asked.get(call) {
            Some(Asked::Write(block, ..)) => Some(*block),
            _ => None,
        }
    }

    /// Writes and flushes so far; a write that is safe by itself is both.
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.inner.lock().unwrap();
        let count = |of: fn(&&Asked) -> bool| inner.asked.iter().filter(of).count();
        let writes = count(|asked| matches!(asked, Asked::Write(..)));
        (writes, count(|asked| matches!(asked, Asked::Flush | Asked::Write(_, _, true))))
    }

    /// The call after so many more fails, and all after it.
    pub fn fail_in(&self, calls: Option<u64>) {
        self.inner.lock().unwrap().fails_in = calls;
    }

    /// The write after so many more is said to have failed, and is there all the same.
    pub fn lie_in(&self, writes: Option<u64>) {
        self.inner.lock().unwrap().lies_in = writes;
    }

    /// A block that cannot be read any more.
    pub fn lose(&self, block: u64) {
        self.inner.lock().unwrap().bad.insert(block);
    }

    /// A block that cannot be written any more: of a write, what lies before it is done.
    pub fn stick(&self, block: u64) {
        self.inner.lock().unwrap().stuck.insert(block);
    }

    /// All blocks can be read and written again.
    pub fn repair(&self) {
        let mut inner = self.inner.lock().unwrap();
        inner.bad.clear();
        inner.stuck.clear();
    }

    /// What is on it now.
    pub fn image(&self) -> Image {
        self.inner.lock().unwrap().now.clone()
    }

    /// What a power failure leaves that comes during the call after so many: all that was flushed, and of later writes
    /// any sectors; also of the write that is on its way, whether or not it is to be safe when it returns.
    pub fn crash(&self, calls: usize, random: &mut Random) -> Image {
        let inner = self.inner.lock().unwrap();
        let flushed = inner.asked.iter().take(calls).rposition(|asked| matches!(asked, Asked::Flush)).unwrap_or(0);
        let mut image = inner.before.clone();
        for (number, asked) in inner.asked.iter().take(calls + 1).enumerate() {
            let is_over = number < calls;
            let (block, bytes, is_safe) = match asked {
                Asked::Write(block, bytes, is_safe) => (block, bytes, *is_safe),
                Asked::Punch(blocks) => {
                    let fate = if number < flushed { 0 } else { random.below(3) };
                    let mut gone: Vec<u64> = image.keys().copied().filter(|block| blocks.contains(block)).collect();
                    gone.sort_unstable();
                    gone.retain(|_| fate == 0 || (fate == 1 && random.below(2) == 0));
                    gone.iter().for_each(|block| drop(image.remove(block)));
                    continue;
                }
                Asked::Flush => continue,
            };
            let fate = if number < flushed || is_safe && is_over { 0 } else { random.below(3) };
            for (offset, new) in bytes.chunks(BLOCK_BYTES).enumerate() {
                let place = image.entry(block + offset as u64).or_insert_with(|| vec![0; BLOCK_BYTES].into());
                for (place, new) in place.chunks_mut(SECTOR).zip(new.chunks(SECTOR)) {
                    if fate == 0 || (fate == 1 && random.below(2) == 0) {
                        place.copy_from_slice(new);
                    }
                }
            }
        }
        image
    }
}

impl Inner {
    fn count(&mut self) -> io::Result<()> {
        match &mut self.fails_in {
            Some(0) => Err(io::Error::other("the device is broken")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Device for Recorder {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, place: u64, into: &mut [u8]) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap();
        inner.count()?;
        assert!(place.is_multiple_of(BLOCK_BYTES as u64) && into.len().is_multiple_of(BLOCK_BYTES));
        assert!(place + into.len() as u64 <= self.bytes);
        for (block, into) in (place / BLOCK_BYTES as u64..).zip(into.chunks_mut(BLOCK_BYTES)) {
            if inner.bad.contains(&block) {
                return Err(io::Error::other("a medium error"));
            }
            match inner.now.get(&block) {
                Some(found) => into.copy_from_slice(found),
                None => into.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, place: u64, from: &[u8]) -> io::Result<()> {
        self.write(place, from, false)
    }

    /// As devices do it: what was written before is no safer for it.
    fn write_durable_at(&self, place: u64, from: &[u8]) -> io::Result<()> {
        self.write(place, from, true)
    }

    fn flush(&self) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap();
        inner.count()?;
        inner.asked.push(Asked::Flush);
        Ok(())
    }

    fn discard(&self, place: u64, bytes: u64) -> io::Result<()> {
        // What is read there afterwards is anything: here something that nobody wrote.
        let junk = vec![0xdb; usize::try_from(bytes).unwrap()];
        self.write_at(place, &junk)
    }

    fn punch(&self, place: u64, bytes: u64) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap();
        inner.count()?;
        assert!(place.is_multiple_of(BLOCK_BYTES as u64) && bytes.is_multiple_of(BLOCK_BYTES as u64));
        assert!(place + bytes <= self.bytes && self.room.is_some());
        let blocks = place / BLOCK_BYTES as u64..(place + bytes) / BLOCK_BYTES as u64;
        inner.now.retain(|block, _| !blocks.contains(block));
        inner.asked.push(Asked::Punch(blocks));
        Ok(())
    }

    /// A block of zeros is a hole, as on hosts that compress.
    fn data_within(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        let mut inner = self.inner.lock().unwrap();
        inner.count()?;
        let block_bytes = BLOCK_BYTES as u64;
        let blocks = range.start / block_bytes..range.end / block_bytes;
        let is_data = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
        let data = inner.now.iter().filter(|(block, bytes)| blocks.contains(block) && is_data(bytes));
        let first = data.map(|(block, _)| *block).min();
        Ok(first.map(|first| {
            let is_in_run = |block: &u64| inner.now.get(block).is_some_and(|bytes| is_data(bytes));
            let count = (first..blocks.end).take_while(is_in_run).count() as u64;
            first * block_bytes..(first + count) * block_bytes
        }))
    }

    fn host_space(&self) -> io::Result<HostSpace> {
        let room = self.room.ok_or(io::ErrorKind::Unsupported)?;
        let taken = self.inner.lock().unwrap().now.len() as u64;
        let block_bytes = BLOCK_BYTES as u64;
        Ok(HostSpace { taken: taken * block_bytes, free: (room - taken) * block_bytes })
    }
}

impl Recorder {
    fn write(&self, place: u64, from: &[u8], is_safe: bool) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap();
        inner.count()?;
        assert!(place.is_multiple_of(BLOCK_BYTES as u64) && from.len().is_multiple_of(BLOCK_BYTES));
        assert!(place + from.len() as u64 <= self.bytes);
        let first = place / BLOCK_BYTES as u64;
        let mut room = self.room.map_or(u64::MAX, |room| room - inner.now.len() as u64);
        let whole = (first..).zip(from.chunks(BLOCK_BYTES)).take_while(|(block, _)| {
            let is_new = self.room.is_some() && !inner.now.contains_key(block);
            let has_room = room >= u64::from(is_new);
            room = room.saturating_sub(u64::from(is_new));
            has_room && !inner.stuck.contains(block)
        });
        let (from, all) = (&from[..whole.count() * BLOCK_BYTES], from.len());
        let is_full = from.len() < all && !inner.stuck.contains(&(first + (from.len() / BLOCK_BYTES) as u64));
        for (block, bytes) in (first..).zip(from.chunks(BLOCK_BYTES)) {
            inner.now.insert(block, bytes.into());
        }
        let is_lie = inner.lies_in == Some(0);
        inner.lies_in = inner.lies_in.and_then(|left| left.checked_sub(1));
        let is_done = from.len() == all && !is_lie;
        inner.asked.push(Asked::Write(first, from.to_vec(), is_safe && is_done));
        match (is_done, is_full) {
            (true, _) => Ok(()),
            (false, true) => Err(io::ErrorKind::StorageFull.into()),
            (false, false) => Err(io::Error::other("a medium error")),
        }
    }
}

/// Numbers that a seed decides.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
