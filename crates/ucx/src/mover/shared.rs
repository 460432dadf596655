//! Puts out of memory that somebody else fills, as a ring that reads a device: the bytes are copied nowhere before.
//!
//! Invariant: a slot is shared until the put out of it has ended, and then no more. After an error that may be never:
//! then it is shared until the mover is dropped, whose worker ends all puts before; with one that is left as it is,
//! since it was never connected, it is shared for ever.

use super::{Memory, Mover, Slot};
use crate::ffi::UCS_INPROGRESS;
use crate::window::PageWindow;
use crate::{Error, Result};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use weft_sys::ring::SharedSlot;

impl Mover {
    /// Begins to put bytes of a slot into the client's memory. `window`: its page.
    pub fn put_shared(
        &mut self,
        window: &Arc<PageWindow>,
        (slot, range): (SharedSlot, Range<usize>),
        number: u32,
        address: u64,
    ) -> Result<()> {
        if slot.page() != window.page() {
            return Err(Error::Foreign);
        }
        let mut slot = Slot::of(Memory::Shared(Arc::clone(window), slot));
        (slot.request, slot.number) = (self.begin_put(&slot, range, number, address)?, number);
        // One that has ended at once stays behind those that have not: what is shared is the last ones.
        if !slot.request.is_null() || !self.shared.is_empty() {
            self.shared.push_back(slot);
        }
        Ok(())
    }

    /// How many slots are shared, without waiting: those are not whose puts are known to have ended, with all before.
    pub fn shared(&mut self, socket: BorrowedFd<'_>) -> Result<usize> {
        self.endpoint.worker.context.library.check_process()?;
        self.endpoint.worker.progress();
        while let Some(slot) = self.shared.front() {
            let functions = self.endpoint.worker.context.functions();
            // SAFETY: a request of this worker that was not freed.
            let is_on_its_way = || unsafe { (functions.ucp_request_check_status)(slot.request) } == UCS_INPROGRESS;
            if !slot.request.is_null() && is_on_its_way() {
                break;
            }
            self.finish_shared(self.shared.len() - 1, socket, Duration::ZERO)?;
        }
        Ok(self.shared.len())
    }

    /// Waits, in their order, until no more than so many are shared. As [`Mover::wait`].
    pub fn finish_shared(&mut self, left: usize, socket: BorrowedFd<'_>, look: Duration) -> Result<()> {
        while let Some(slot) = self.shared.front().filter(|_| self.shared.len() > left) {
            let status = self.end_of(slot.request, socket, look)?;
            self.shared.pop_front();
            self.endpoint.worker.context.library.result("the transfer", status)?;
        }
        Ok(())
    }
}
