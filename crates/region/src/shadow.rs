//! A device of which nothing is changed: what is written is kept in memory, and read from there.

use crate::device::{Device, HostSpace};
use crate::{BLOCK, BLOCK_BYTES, lock};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// See the module. For looking at stores: opening one completes what a crash has left, which its device need not see.
pub struct Shadow {
    device: Arc<dyn Device>,
    written: Mutex<BTreeMap<u64, Box<[u8]>>>,
    /// Of what is on the device.
    punched: Mutex<Vec<Range<u64>>>,
}

impl Shadow {
    /// A device that has on it what this one has.
    pub fn new(device: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { device, written: Mutex::default(), punched: Mutex::default() })
    }
}

impl Device for Shadow {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read_at(&self, place: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read_at(place, into)?;
        let (first, blocks) = (place / BLOCK, into.len() as u64 / BLOCK);
        for punched in lock(&self.punched).iter() {
            let (start, end) = (punched.start.max(first), punched.end.min(first + blocks));
            for block in start..end {
                let at = usize::try_from((block - first) * BLOCK).map_err(io::Error::other)?;
                into[at..at + BLOCK_BYTES].fill(0);
            }
        }
        for (block, bytes) in lock(&self.written).range(first..first + blocks) {
            let at = usize::try_from((block - first) * BLOCK).map_err(io::Error::other)?;
            if let Some(place) = into.get_mut(at..at + BLOCK_BYTES) {
                place.copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn write_at(&self, place: u64, from: &[u8]) -> io::Result<()> {
        let mut written = lock(&self.written);
        for (block, bytes) in (place / BLOCK..).zip(from.chunks(BLOCK_BYTES)) {
            written.insert(block, bytes.into());
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _place: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn punch(&self, place: u64, bytes: u64) -> io::Result<()> {
        let range = place / BLOCK..(place + bytes) / BLOCK;
        lock(&self.written).retain(|block, _| !range.contains(block));
        lock(&self.punched).push(range);
        Ok(())
    }

    /// Also what was punched.
    fn data_within(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        let data = self.device.data_within(range.clone())?;
        let written = lock(&self.written).range(range.start / BLOCK..range.end / BLOCK).next().map(|(block, _)| *block);
        Ok(match written.map(|block| block * BLOCK) {
            Some(start) if data.as_ref().is_none_or(|data| start < data.start) => Some(start..start + BLOCK),
            _ => data,
        })
    }

    fn host_space(&self) -> io::Result<HostSpace> {
        self.device.host_space()
    }
}

/// A device of so many bytes on which nothing was ever written, for tests.
#[cfg(test)]
pub struct Zeros(pub u64);

#[cfg(test)]
impl Device for Zeros {
    fn bytes(&self) -> u64 {
        self.0
    }

    fn read_at(&self, _place: u64, into: &mut [u8]) -> io::Result<()> {
        into.fill(0);
        Ok(())
    }

    fn write_at(&self, _place: u64, _from: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _place: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
}
