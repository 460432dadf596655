//! Rings of one device: reads of several places go to it together, and it works on all of them at a time.
//! Those with slots have memory of their own, to which reads go while their caller does something else.
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
use weft_sys::huge::HugeBuffer;
use weft_sys::ring::{Ring, Slots};

/// Reads that one ring has with the device at a time.
const DEPTH: u32 = 64;
/// Bytes of a slot, and of the slots that one ring has.
pub(crate) const SLOT_BYTES: usize = 256 << 10;
const SLOTS_BYTES: usize = 4 * SLOT_BYTES;
/// Rings with slots of one device: who sends to somebody slow has his for long. Others read without.
const SLOTS_MAX: usize = 16;

/// Those that nobody uses, and the file that they read.
#[derive(Debug)]
pub struct Rings {
    /// `None`: the device is not read by rings, or the kernel gives none.
    idle: Mutex<Option<Idle>>,
}

#[derive(Debug)]
struct Idle {
    file: OwnedFd,
    /// Whether the kernel has given any: then it may do so again.
    is_allowed: bool,
    rings: Vec<Ring>,
    slots: Vec<Slots>,
    /// How many there are, with those in use.
    slots_made: usize,
    /// Parts of a huge page of which others are in use.
    memory: Vec<HugeBuffer>,
}

impl Rings {
    /// For a device that was opened as `file`.
    pub fn new(file: &OwnedFd) -> Self {
        let none = |file| Idle {
            file,
            is_allowed: false,
            rings: Vec::new(),
            slots: Vec::new(),
            slots_made: 0,
            memory: Vec::new(),
        };
        Self { idle: Mutex::new(own_of(file).map(none)) }
    }

    /// Fills all of them. `None`: there is no ring.
    pub fn read_all(&self, reads: &mut [Read<'_>]) -> Option<io::Result<()>> {
        let mut ring = self.take(|idle| idle.rings.pop().map_or_else(|| Ring::new(idle.file.as_fd(), DEPTH), Ok))?;
        let done = ring.read_all(reads);
        if let Some(idle) = lock(&self.idle).as_mut() {
            idle.rings.push(ring);
        }
        Some(done)
    }

    /// Whether [`Rings::take_slots`] gives one, as far as is known without making it.
    pub fn has_slots(&self) -> bool {
        lock(&self.idle).as_mut().is_some_and(|idle| idle.slots_made < SLOTS_MAX || idle.free_slots().is_some())
    }

    /// A ring with slots of which nobody shares any; `give_back` takes it. `None`: there is none.
    pub fn take_slots(&self) -> Option<Slots> {
        self.take(|idle| match idle.free_slots().map(|index| idle.slots.swap_remove(index)) {
            None if idle.slots_made < SLOTS_MAX => idle.make_slots().map(Some),
            slots => Ok(slots),
        })
        .flatten()
    }

    /// Takes slots of which none is on its way from the device. Some may be shared still.
    pub fn give_back(&self, slots: Slots) {
        if let Some(idle) = lock(&self.idle).as_mut() {
            idle.slots.push(slots);
        }
    }

    fn take<T>(&self, make: impl FnOnce(&mut Idle) -> io::Result<T>) -> Option<T> {
        let mut idle = lock(&self.idle);
        let place = idle.as_mut()?;
        let made = make(place);
        if made.is_ok() {
            place.is_allowed = true;
        } else if !place.is_allowed {
            // Mostly this process may not have one: then it may not have one the next time.
            *idle = None;
        }
        made.ok()
    }
}

impl Idle {
    fn free_slots(&mut self) -> Option<usize> {
        self.slots.iter_mut().rposition(|slots| (0..slots.count()).all(|slot| slots.is_ours(slot)))
    }

    fn make_slots(&mut self) -> io::Result<Slots> {
        if self.memory.is_empty() {
            self.memory = HugeBuffer::page_of(SLOTS_BYTES);
        }
        let memory = self.memory.pop().ok_or(io::ErrorKind::OutOfMemory)?;
        let slots = Slots::new(self.file.as_fd(), DEPTH, memory, SLOT_BYTES)?;
        self.slots_made += 1;
        Ok(slots)
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
