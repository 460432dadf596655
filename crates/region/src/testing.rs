//! Devices for tests of this crate and of those that use it.

use crate::device::Device;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Device of which all flushes fail, if so told.
pub struct Unflushed {
    device: Arc<dyn Device>,
    fails: AtomicBool,
}

impl Unflushed {
    /// Passes everything on to a device.
    pub fn new(device: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { device, fails: AtomicBool::new(false) })
    }

    /// Has flushes fail from now on, or work again.
    pub fn set_fails(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }
}

impl Device for Unflushed {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read_at(&self, place: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read_at(place, into)
    }

    fn write_at(&self, place: u64, from: &[u8]) -> io::Result<()> {
        self.device.write_at(place, from)
    }

    fn flush(&self) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) { Err(io::Error::other("no flush")) } else { self.device.flush() }
    }

    fn discard(&self, place: u64, bytes: u64) -> io::Result<()> {
        self.device.discard(place, bytes)
    }
}
