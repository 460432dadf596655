//! Rings of one device: reads of several places go to it together, and it works on all of them at a time.
//!
//! Only where the kernel can begin a read without waiting for the one before. It says so of NVMe devices, and of files
//! on ext4, XFS and btrfs; others (zram) would be read by threads of the kernel, and that costs more than such a read.

use crate::buffer::AlignedBuffer;
use crate::device::Read;
use crate::{BLOCK_BYTES, lock};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;
use weft_sys::ring::Ring;

/// Reads that one ring has with the device at a time.
const DEPTH: u32 = 64;

/// Those that nobody uses, and the file that they read.
#[derive(Debug)]
pub struct Rings {
    /// `None`: the device is not read by rings, or the kernel gives none.
    idle: Mutex<Option<(OwnedFd, Vec<Ring>)>>,
}

impl Rings {
    /// For a device that was opened as `file`.
    pub fn new(file: &OwnedFd) -> Self {
        Self { idle: Mutex::new(own_of(file).map(|own| (own, Vec::new()))) }
    }

    /// Fills all of them. `None`: there is no ring.
    pub fn read_all(&self, reads: &mut [Read<'_>]) -> Option<io::Result<()>> {
        let mut ring = self.take()?;
        let done = ring.read_all(reads);
        if let Some((_, idle)) = lock(&self.idle).as_mut() {
            idle.push(ring);
        }
        Some(done)
    }

    fn take(&self) -> Option<Ring> {
        let mut rings = lock(&self.idle);
        let (file, idle) = rings.as_mut()?;
        let ring = idle.pop().map_or_else(|| Ring::new(file.as_fd(), DEPTH), Ok);
        if ring.is_err() {
            // Mostly this process may not have one: then it may not have one the next time.
            *rings = None;
        }
        ring.ok()
    }
}

/// The file opened once more, if the kernel begins reads of it without waiting. When a process was killed, the kernel
/// lets go of its ring's file a while later: the lock on the device must not be kept so long.
fn own_of(file: &OwnedFd) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let own = open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut block = AlignedBuffer::new(BLOCK_BYTES);
    let mut memory = [IoSliceMut::new(&mut block)];
    let begun = preadv2(&own, &mut memory, 0, ReadWriteFlags::NOWAIT);
    (!matches!(begun, Err(Errno::OPNOTSUPP | Errno::INVAL))).then_some(own)
}
