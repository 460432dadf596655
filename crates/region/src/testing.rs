//! Devices for tests of this crate and of those that use it.

use crate::device::{Device, HostSpace};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type AtFlush = Box<dyn Fn() + Send + Sync>;

/// Passes everything on to a device: flushes once something was done before, and not at all if they are to fail.
pub struct Watched {
    device: Arc<dyn Device>,
    at_flush: AtFlush,
    fails: AtomicBool,
}

impl Watched {
    /// `at_flush` is called before each flush.
    pub fn new(device: Arc<dyn Device>, at_flush: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { device, at_flush: Box::new(at_flush), fails: AtomicBool::new(false) })
    }

    /// Has flushes and durable writes fail from now on, or work again.
    pub fn set_fails(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }

    fn check(&self) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) { Err(io::Error::other("no flush")) } else { Ok(()) }
    }
}

impl Device for Watched {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read_at(&self, place: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read_at(place, into)
    }

    fn write_at(&self, place: u64, from: &[u8]) -> io::Result<()> {
        self.device.write_at(place, from)
    }

    fn write_durable_at(&self, place: u64, from: &[u8]) -> io::Result<()> {
        self.check()?;
        self.device.write_durable_at(place, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.check()?;
        (self.at_flush)();
        self.device.flush()
    }

    fn discard(&self, place: u64, bytes: u64) -> io::Result<()> {
        self.device.discard(place, bytes)
    }

    fn punch(&self, place: u64, bytes: u64) -> io::Result<()> {
        self.device.punch(place, bytes)
    }

    fn data_within(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        self.device.data_within(range)
    }

    fn host_space(&self) -> io::Result<HostSpace> {
        self.device.host_space()
    }
}
