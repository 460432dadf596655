//! A server's end: puts into a client's memory and gets from it.

mod shared;

use crate::endpoint::{Endpoint, Liveness, padded};
use crate::ffi::{
    RemoteKeyHandle, Status, StatusPointer, UCP_OP_ATTR_FIELD_MEMH, UCS_INPROGRESS, UCS_OK, outcome, ucp_request_param,
};
use crate::place::Place;
use crate::region::Region;
use crate::window::{FileWindow, PageWindow};
use crate::worker::{HUNG_UP, LooksAtSocket, Worker, has_now};
use crate::{Error, Result};
use rustix::event::PollFlags;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_sys::ring::SharedSlot;

/// Regions of a client that one mover knows at a time.
pub const REGIONS_MAX: usize = 256;
/// Memory of the client.
#[derive(Debug)]
struct Remote {
    key: *mut RemoteKeyHandle,
    address: u64,
    bytes: u64,
}

/// Memory of ours, and the transfer that uses it.
#[derive(Debug)]
struct Slot {
    memory: Memory,
    request: StatusPointer,
    /// The client's memory that it was used with last.
    number: u32,
}

#[derive(Debug)]
enum Memory {
    Own(Region),
    File(Arc<FileWindow>),
    /// A part of the page.
    Shared(Arc<PageWindow>, SharedSlot),
}

impl Slot {
    fn of(memory: Memory) -> Self {
        Self { memory, request: null_mut(), number: 0 }
    }

    fn region(&self) -> &Region {
        match &self.memory {
            Memory::Own(region) => region,
            Memory::File(window) => window.region(),
            Memory::Shared(window, _) => window.region(),
        }
    }

    /// Which bytes of the region it is.
    fn range(&self) -> Range<usize> {
        match &self.memory {
            Memory::Shared(_, slot) => slot.range(),
            Memory::Own(_) | Memory::File(_) => 0..self.region().bytes(),
        }
    }
}

/// One client's memory from the server's side, and a pool of registered buffers: *slots*, each of which is either the
/// caller's or on its way.
#[derive(Debug)]
pub struct Mover {
    // In this order: the worker ends all transfers before the memory goes that they use.
    endpoint: Endpoint,
    remotes: HashMap<u32, Remote>,
    slots: Vec<Slot>,
    /// Slots of others out of which puts are on their way, in their order.
    shared: VecDeque<Slot>,
    /// How long what is waited for may take.
    patience: Duration,
}

// SAFETY: keys and requests belong to the worker, which is for one thread at a time.
unsafe impl Send for Mover {}

impl Mover {
    /// An endpoint to the worker of this address.
    pub fn connect(address: &[u8], liveness: Liveness) -> Result<Self> {
        let endpoint = Endpoint::connect(Worker::new()?, address, liveness)?;
        let (remotes, slots, shared) = (HashMap::new(), Vec::new(), VecDeque::new());
        Ok(Self { endpoint, remotes, slots, shared, patience: PATIENCE })
    }

    /// What the client makes its endpoint of.
    pub fn address(&self) -> Result<Vec<u8>> {
        self.endpoint.worker.address()
    }

    /// Gets a number out of the client's memory: the first transfer, which connects what is left to be connected. It
    /// has to be there within `patience`.
    pub fn probe(
        &mut self,
        number: u32,
        address: u64,
        socket: BorrowedFd<'_>,
        look: Duration,
        patience: Duration,
    ) -> Result<u64> {
        const BYTES: usize = size_of::<u64>();
        self.reserve_slots(1, BYTES)?;
        self.endpoint.is_probing = true;
        self.get(0, 0..BYTES, number, address)?;
        self.patience = patience;
        self.wait(0, socket, look)?;
        self.flush(socket, look)?;
        self.patience = PATIENCE;
        self.endpoint.is_probing = false;
        let bytes = self.slot(0).and_then(|bytes| bytes.first_chunk().copied());
        // Slots of other lengths are made when they are needed.
        self.slots.clear();
        bytes.map(u64::from_le_bytes).ok_or(Error::Foreign)
    }

    /// Learns of memory of the client, under a number of its choice; what was known under it is forgotten. UCX 1.13
    /// ends the process when shared memory is gone with its client: so not of one that `socket` says has hung up.
    pub fn learn(
        &mut self,
        socket: BorrowedFd<'_>,
        (number, address, bytes): (u32, u64, u64),
        packed_key: &[u8],
    ) -> Result<()> {
        self.forget(number)?;
        if address.checked_add(bytes).is_none() || self.remotes.len() >= REGIONS_MAX {
            return Err(Error::Foreign);
        }
        if has_now(socket, HUNG_UP) {
            return Err(Error::PeerGone);
        }
        let padded = padded(packed_key);
        let mut key = null_mut();
        // SAFETY: the endpoint is there; the key is one as the other side says, with zeros behind it.
        let status = unsafe {
            (self.endpoint.worker.context.functions().ucp_ep_rkey_unpack)(
                self.endpoint.handle,
                padded.as_ptr().cast(),
                &raw mut key,
            )
        };
        self.endpoint.worker.context.library.result("ucp_ep_rkey_unpack", status)?;
        self.remotes.insert(number, Remote { key, address, bytes });
        Ok(())
    }

    /// Forgets memory of the client. An error: a transfer with it is on its way.
    pub fn forget(&mut self, number: u32) -> Result<()> {
        if self.slots.iter().chain(&self.shared).any(|slot| !slot.request.is_null() && slot.number == number) {
            return Err(Error::Foreign);
        }
        if let Some(remote) = self.remotes.remove(&number)
            && self.endpoint.worker.context.library.may_release()
        {
            // SAFETY: unpacked by `learn`, destroyed once. No transfer uses it, as the callers see to.
            unsafe { (self.endpoint.worker.context.functions().ucp_rkey_destroy)(remote.key) };
        }
        Ok(())
    }

    /// Whether the client has shown all of these bytes.
    pub fn knows(&self, number: u32, address: u64, bytes: u64) -> bool {
        self.remote(number, address, bytes).is_ok()
    }

    /// The client's memory, where that is mapped here too.
    pub fn place(&self, number: u32, address: u64, bytes: usize) -> Result<Option<Place<'_>>> {
        let remote = self.remote(number, address, bytes as u64)?;
        let mut pointer = null_mut();
        // SAFETY: a key that is there, an address in its memory, and a place for the pointer.
        let status =
            unsafe { (self.endpoint.worker.context.functions().ucp_rkey_ptr)(remote.key, address, &raw mut pointer) };
        // SAFETY: UCX has mapped all of the memory of this key, in which `remote` has found the range, and keeps it
        // mapped until the key is destroyed, which borrows the mover mutably. It is memory that UCX made for sharing:
        // nobody here has a reference to it.
        Ok((status == UCS_OK).then(|| unsafe { Place::new(pointer.cast(), bytes) }))
    }

    fn remote(&self, number: u32, address: u64, bytes: u64) -> Result<&Remote> {
        let inside = |remote: &&Remote| {
            let end = address.checked_add(bytes);
            address >= remote.address && end.is_some_and(|end| end <= remote.address + remote.bytes)
        };
        self.remotes.get(&number).filter(inside).ok_or(Error::Foreign)
    }

    /// Has so many slots of so many bytes from now on, if there are fewer.
    pub fn reserve_slots(&mut self, count: usize, bytes: usize) -> Result<()> {
        while self.slots.len() < count {
            self.slots.push(Slot::of(Memory::Own(Region::allocate(bytes)?)));
        }
        Ok(())
    }

    /// Adds slots that are all of this part of a file, so that several transfers can use it at a time; the number of
    /// the first.
    pub fn add_file_slots(&mut self, count: usize, window: &Arc<FileWindow>) -> usize {
        let first = self.slots.len();
        self.slots.extend((0..count).map(|_| Slot::of(Memory::File(Arc::clone(window)))));
        first
    }

    /// Takes the file's slots away. An error: one is on its way.
    pub fn remove_file_slots(&mut self) -> Result<()> {
        let is_files = |slot: &Slot| matches!(slot.memory, Memory::File(_));
        if self.slots.iter().any(|slot| is_files(slot) && !slot.request.is_null()) {
            return Err(Error::Foreign);
        }
        self.slots.retain(|slot| !is_files(slot));
        Ok(())
    }

    /// The bytes of a slot. `None`: there is no such slot, it is on its way, or it is a file's.
    pub fn slot(&mut self, slot: usize) -> Option<&mut [u8]> {
        let slot = self.slots.get_mut(slot).filter(|slot| slot.request.is_null())?;
        let Memory::Own(region) = &mut slot.memory else { return None };
        // SAFETY: memory of the region's own, as many bytes as it has, whose key nobody else has; no transfer uses it,
        // and none can begin before this borrow of the mover ends.
        Some(unsafe { std::slice::from_raw_parts_mut(region.pointer(), region.bytes()) })
    }

    /// Begins to put bytes of a slot into the client's memory.
    pub fn put(&mut self, slot: usize, range: Range<usize>, number: u32, address: u64) -> Result<()> {
        let request = self.begin_put(self.slots.get(slot).ok_or(Error::Foreign)?, range, number, address)?;
        self.note(slot, number, request);
        Ok(())
    }

    /// Begins to put bytes of a slot, which nobody else uses until the request has ended (null: it has), and which is
    /// not freed before the worker.
    fn begin_put(&self, slot: &Slot, range: Range<usize>, number: u32, address: u64) -> Result<StatusPointer> {
        let functions = self.endpoint.worker.context.functions();
        let (bytes, (key, local, params)) = (range.len(), self.transfer(slot, range, number, address)?);
        // SAFETY: `transfer` has checked both ranges; the callers keep the slot as this says.
        let pointer = unsafe {
            (functions.ucp_put_nbx)(self.endpoint.handle, local.cast(), bytes, address, key, &raw const params)
        };
        self.begun("ucp_put", pointer)
    }

    /// Begins to get bytes of the client's memory into those of a slot.
    pub fn get(&mut self, slot: usize, range: Range<usize>, number: u32, address: u64) -> Result<()> {
        let functions = self.endpoint.worker.context.functions();
        let place = self.slots.get(slot).ok_or(Error::Foreign)?;
        let (bytes, (key, local, params)) = (range.len(), self.transfer(place, range, number, address)?);
        // SAFETY: `transfer` has checked both ranges; the slot is not the caller's until the transfer has ended, and is
        // not freed before the worker.
        let pointer = unsafe {
            (functions.ucp_get_nbx)(self.endpoint.handle, local.cast(), bytes, address, key, &raw const params)
        };
        let request = self.begun("ucp_get", pointer)?;
        self.note(slot, number, request);
        Ok(())
    }

    fn transfer(
        &self,
        slot: &Slot,
        range: Range<usize>,
        number: u32,
        address: u64,
    ) -> Result<(*mut RemoteKeyHandle, *mut u8, ucp_request_param)> {
        self.endpoint.worker.context.library.check_process()?;
        let remote = self.remote(number, address, range.len() as u64)?;
        let (local, part) = (slot.region(), slot.range());
        let fits = range.start <= range.end && range.end <= part.len() && part.end <= local.bytes();
        if !slot.request.is_null() || !fits {
            return Err(Error::Foreign);
        }
        let params =
            ucp_request_param { op_attr_mask: UCP_OP_ATTR_FIELD_MEMH, memh: local.handle(), ..ucp_request_param::NONE };
        // In the region, as was just seen.
        Ok((remote.key, local.pointer().wrapping_add(part.start + range.start), params))
    }

    /// What to wait for. Null: it is done.
    fn begun(&self, call: &'static str, pointer: StatusPointer) -> Result<StatusPointer> {
        let request = outcome(pointer).map_err(|status| self.endpoint.worker.context.library.failed(call, status))?;
        Ok(request.unwrap_or(null_mut()))
    }

    fn note(&mut self, slot: usize, number: u32, request: StatusPointer) {
        if let Some(slot) = self.slots.get_mut(slot) {
            (slot.request, slot.number) = (request, number);
        }
    }

    /// Waits until a slot is the caller's again: what was put has left it, what was got is there. `socket` tells when
    /// the client is gone: its hanging up ends the wait.
    pub fn wait(&mut self, slot: usize, socket: BorrowedFd<'_>, look: Duration) -> Result<()> {
        let Some(request) = self.slots.get(slot).map(|slot| slot.request) else { return Ok(()) };
        // After an error the slot stays on its way: the mover is of no more use.
        self.wait_for(request, socket, look)?;
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.request = null_mut();
        }
        Ok(())
    }

    /// Waits until all that was put is at the other side.
    pub fn flush(&mut self, socket: BorrowedFd<'_>, look: Duration) -> Result<()> {
        self.endpoint.worker.context.library.check_process()?;
        let functions = self.endpoint.worker.context.functions();
        let params = ucp_request_param::NONE;
        // SAFETY: the endpoint is there; no parameter counts.
        let pointer = unsafe { (functions.ucp_ep_flush_nbx)(self.endpoint.handle, &raw const params) };
        let request =
            outcome(pointer).map_err(|status| self.endpoint.worker.context.library.failed("ucp_ep_flush", status))?;
        self.wait_for(request.unwrap_or(null_mut()), socket, look)
    }

    /// Sends the client a message.
    pub fn tell(&self, message: &[u8]) -> Result<()> {
        self.endpoint.tell(message)
    }

    /// Waits for the client's next message. `None`: `socket` has something, to be read or that it hung up.
    pub fn next(&self, socket: BorrowedFd<'_>, look: Duration) -> Result<Option<Box<[u8]>>> {
        let done = self.endpoint.worker.next_message(socket, || self.endpoint.check());
        self.endpoint.until((socket, PollFlags::IN), look, done)
    }

    fn wait_for(&self, request: StatusPointer, socket: BorrowedFd<'_>, look: Duration) -> Result<()> {
        let status = self.end_of(request, socket, look)?;
        self.endpoint.worker.context.library.result("the transfer", status)
    }

    /// What became of a request, once it has ended; it is not to be used any more then. After an error it has not.
    fn end_of(&self, request: StatusPointer, socket: BorrowedFd<'_>, look: Duration) -> Result<Status> {
        if request.is_null() {
            return Ok(UCS_OK);
        }
        let library = self.endpoint.worker.context.library;
        let (mut looks, since) = (LooksAtSocket::default(), Instant::now());
        let status = self.endpoint.until((socket, HUNG_UP), look, |slept| {
            // SAFETY: a request of this worker that was not freed.
            let status = unsafe { (library.functions.ucp_request_check_status)(request) };
            if status != UCS_INPROGRESS {
                return Ok(Some(status));
            }
            self.endpoint.check()?;
            if since.elapsed() > self.patience {
                return Err(Error::Late);
            }
            if looks.has(socket, HUNG_UP, slept) { Err(Error::PeerGone) } else { Ok(None) }
        })?;
        // SAFETY: it has ended, and nobody asks for it any more.
        unsafe { (library.functions.ucp_request_free)(request) };
        Ok(status)
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        if !self.endpoint.worker.context.library.may_release() {
            return;
        }
        let numbers: Vec<_> = self.remotes.keys().copied().collect();
        for number in numbers {
            // The key of a transfer on its way stays until the worker ends both.
            let _ = self.forget(number);
        }
        if !self.endpoint.end() {
            // A worker that is left may have transfers still: what they use is left, too.
            std::mem::forget((std::mem::take(&mut self.slots), std::mem::take(&mut self.shared)));
        }
    }
}

/// How long one transfer, or a flush of several, may take: adapters try again for some seconds, and those that never
/// give up are given up.
const PATIENCE: Duration = Duration::from_secs(30);
