//! A device in memory that remembers what it was asked, and what a power failure would have left of it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex};
use weft_region::{BLOCK_BYTES, Checksums, Device};

/// What stores may have checksums of.
pub const BOTH: [Checksums; 2] = [Checksums::Metadata, Checksums::All];

const SECTOR: usize = 512;

/// Blocks that were ever written; others are zeros.
pub type Image = HashMap<u64, Box<[u8]>>;

enum Asked {
    /// Where, what, and whether it is safe by itself.
    Write(u64, Vec<u8>, bool),
    Flush,
}

/// See the module.
pub struct Recorder {
    bytes: u64,
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
        Arc::new(Self { bytes, inner: Mutex::new(inner) })
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

    /// What a power failure leaves that comes after so many calls: all that was flushed, and of later writes any
    /// sectors.
    pub fn crash(&self, calls: usize, random: &mut Random) -> Image {
        let inner = self.inner.lock().unwrap();
        let flushed = inner.asked.iter().take(calls).rposition(|asked| matches!(asked, Asked::Flush)).unwrap_or(0);
        let mut image = inner.before.clone();
        for (number, asked) in inner.asked.iter().take(calls).enumerate() {
            let Asked::Write(block, bytes, is_safe) = asked else { continue };
            let fate = if number < flushed || *is_safe { 0 } else { random.below(3) };
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
}

impl Recorder {
    fn write(&self, place: u64, from: &[u8], is_safe: bool) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap();
        inner.count()?;
        assert!(place.is_multiple_of(BLOCK_BYTES as u64) && from.len().is_multiple_of(BLOCK_BYTES));
        assert!(place + from.len() as u64 <= self.bytes);
        let first = place / BLOCK_BYTES as u64;
        let whole = (first..).zip(from.chunks(BLOCK_BYTES)).take_while(|(block, _)| !inner.stuck.contains(block));
        let (from, all) = (&from[..whole.count() * BLOCK_BYTES], from.len());
        for (block, bytes) in (first..).zip(from.chunks(BLOCK_BYTES)) {
            inner.now.insert(block, bytes.into());
        }
        let is_lie = inner.lies_in == Some(0);
        inner.lies_in = inner.lies_in.and_then(|left| left.checked_sub(1));
        let is_done = from.len() == all && !is_lie;
        inner.asked.push(Asked::Write(first, from.to_vec(), is_safe && is_done));
        if is_done { Ok(()) } else { Err(io::Error::other("a medium error")) }
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
