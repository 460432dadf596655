//! A device of which nothing is changed: what is written is kept in memory, and read from there.

use crate::device::Device;
use crate::{BLOCK, BLOCK_BYTES, lock};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

/// See the module. For looking at stores: opening one completes what a crash has left, which its device need not see.
pub struct Shadow {
    device: Arc<dyn Device>,
    written: Mutex<BTreeMap<u64, Box<[u8]>>>,
}

impl Shadow {
    /// A device that has on it what this one has.
    pub fn new(device: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { device, written: Mutex::default() })
    }
}

impl Device for Shadow {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read_at(&self, place: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read_at(place, into)?;
        let (first, blocks) = (place / BLOCK, into.len() as u64 / BLOCK);
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
}
