//! Memory of a device that reads go to while their caller does something else.
//!
//! Invariant: nobody is lent slots of which something is on its way, from the device or out of one that is shared.

use crate::device::FileDevice;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use weft_sys::huge::HugePage;
use weft_sys::ring::{SharedSlot, Slots};

/// Slots that one reader has. When he goes, what is on its way is waited for, and others may have them as soon as
/// nobody shares any.
#[derive(Debug)]
pub struct LentSlots<'a> {
    device: &'a FileDevice,
    /// Taken when this is dropped.
    slots: Option<Slots>,
    /// Where the last of the reads ends that were begun.
    end: u64,
}

impl<'a> LentSlots<'a> {
    /// `None`: the device is not read so.
    pub(crate) fn of(device: &'a FileDevice) -> Option<Self> {
        device.rings.take_slots().map(|slots| Self { device, slots: Some(slots), end: 0 })
    }

    fn with<T>(&mut self, none: T, act: impl FnOnce(&mut Slots) -> T) -> T {
        self.slots.as_mut().map_or(none, act)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.slots.as_ref().map_or(0, Slots::count)
    }

    /// Begins to fill a part of a slot from a place; both are whole blocks.
    pub(crate) fn begin(&mut self, slot: usize, range: Range<usize>, place: u64) {
        self.end = self.end.max(place + range.len() as u64);
        self.device.done.reads.fetch_add(1, Ordering::Relaxed);
        self.with((), |slots| slots.begin(slot, range, place));
    }

    /// Sends what was begun.
    pub(crate) fn submit(&mut self) {
        self.with((), |slots| slots.submit());
    }

    /// Whether any are on their way, as far as is known without waiting.
    pub(crate) fn are_flying(&mut self) -> bool {
        self.with(false, |slots| slots.flying() > 0)
    }

    /// Waits until a slot has come; the first error of its reads.
    pub(crate) fn wait(&mut self, slot: usize) -> io::Result<()> {
        self.with(Ok(()), |slots| slots.wait(slot)).map_err(|error| self.device.beyond_end(self.end, error))
    }

    /// Waits until all have.
    pub(crate) fn wait_all(&mut self) {
        self.with((), Slots::wait_all);
    }

    /// Whether a slot can be filled: nothing of it is on its way, and nobody shares it.
    pub(crate) fn is_ours(&mut self, slot: usize) -> bool {
        self.with(false, |slots| slots.is_ours(slot))
    }

    /// Shares a slot that has come with who moves its bytes on.
    pub(crate) fn share(&self, slot: usize) -> Option<SharedSlot> {
        self.slots.as_ref()?.share(slot)
    }

    /// The page that all of them lie in.
    pub(crate) fn page(&self) -> Option<HugePage> {
        self.slots.as_ref().map(Slots::page)
    }

    /// The bytes of a slot that is the caller's.
    pub(crate) fn slot(&mut self, slot: usize) -> Option<&mut [u8]> {
        self.slots.as_mut()?.slot(slot)
    }
}

impl Drop for LentSlots<'_> {
    fn drop(&mut self) {
        if let Some(mut slots) = self.slots.take() {
            slots.wait_all();
            slots.forget_errors();
            self.device.rings.give_back(slots);
        }
    }
}
