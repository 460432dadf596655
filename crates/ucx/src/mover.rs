//! A server's end: puts into a client's memory and gets from it.

use crate::ffi::{
    EndpointHandle, RemoteKeyHandle, Status, StatusPointer, UCP_EP_CLOSE_FLAG_FORCE, UCP_EP_PARAM_FIELD_ERR_HANDLER,
    UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, UCP_ERR_HANDLING_MODE_NONE,
    UCP_ERR_HANDLING_MODE_PEER, UCP_OP_ATTR_FIELD_FLAGS, UCP_OP_ATTR_FIELD_MEMH, UCS_INPROGRESS, UCS_OK, outcome,
    ucp_ep_params, ucp_err_handler, ucp_request_param, ucs_sock_addr,
};
use crate::region::Region;
use crate::worker::Worker;
use crate::{Error, Result};
use rustix::event::PollFlags;
use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI8, Ordering};
use std::time::Duration;

/// Regions of a client that one mover knows at a time.
pub const REGIONS_MAX: usize = 256;
/// Zeros behind what the other side sent, for a library that reads on where a length in it was wrong.
const PADDING_BYTES: usize = 256;

/// Who notices that the other side is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Liveness {
    /// UCX. Its transports through shared memory cannot, and are not used then.
    Endpoint,
    /// The caller, by the socket beside.
    Caller,
}

/// Memory of the client.
#[derive(Debug)]
struct Remote {
    key: *mut RemoteKeyHandle,
    address: u64,
    bytes: u64,
}

/// A buffer of ours, and the transfer that uses it.
#[derive(Debug)]
struct Slot {
    region: Region,
    request: StatusPointer,
    /// The client's memory that it was used with last.
    number: u32,
}

/// One client's memory from the server's side, and a pool of registered buffers: *slots*, each of which is either the
/// caller's or on its way.
#[derive(Debug)]
pub struct Mover {
    // In this order: the worker ends all transfers before the memory goes that they use.
    worker: Worker,
    endpoint: *mut EndpointHandle,
    liveness: Liveness,
    /// What UCX's handler was told of the other side; does not move.
    failure: Box<AtomicI8>,
    remotes: HashMap<u32, Remote>,
    slots: Vec<Slot>,
    flush: StatusPointer,
}

// SAFETY: endpoint, keys and requests belong to the worker, which is for one thread at a time.
unsafe impl Send for Mover {}

unsafe extern "C" fn on_failure(failure: *mut c_void, _endpoint: *mut EndpointHandle, status: Status) {
    // SAFETY: the argument is the `failure` of a mover, which outlives its endpoint.
    unsafe { &*failure.cast::<AtomicI8>() }.store(status, Ordering::Relaxed);
}

impl Mover {
    /// An endpoint to the worker of this address.
    pub fn connect(address: &[u8], liveness: Liveness) -> Result<Self> {
        let worker = Worker::new()?;
        let failure = Box::new(AtomicI8::new(UCS_OK));
        let padded = padded(address);
        let err_mode = match liveness {
            Liveness::Endpoint => UCP_ERR_HANDLING_MODE_PEER,
            Liveness::Caller => UCP_ERR_HANDLING_MODE_NONE,
        };
        let params = ucp_ep_params {
            field_mask: UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
                | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                | UCP_EP_PARAM_FIELD_ERR_HANDLER,
            address: padded.as_ptr().cast(),
            err_mode,
            err_handler: ucp_err_handler { cb: Some(on_failure), arg: failure.as_ptr().cast() },
            user_data: null_mut(),
            flags: 0,
            sockaddr: ucs_sock_addr { addr: null(), addrlen: 0 },
            conn_request: null_mut(),
            name: null(),
            local_sockaddr: ucs_sock_addr { addr: null(), addrlen: 0 },
        };
        let mut endpoint = null_mut();
        // SAFETY: the worker is there; the address is a worker's as the other side says (it has proved the key of the
        // file system; what it could do with a wrong one is in docs/rdma.md), with zeros behind it; the handler's
        // argument outlives the endpoint.
        let status =
            unsafe { (worker.context.functions().ucp_ep_create)(worker.handle, &raw const params, &raw mut endpoint) };
        worker.context.library.result("ucp_ep_create", status)?;
        let (remotes, slots) = (HashMap::new(), Vec::new());
        Ok(Self { worker, endpoint, liveness, failure, remotes, slots, flush: null_mut() })
    }

    /// Learns of memory of the client, under a number of its choice; what was known under it is forgotten.
    pub fn learn(&mut self, number: u32, address: u64, bytes: u64, packed_key: &[u8]) -> Result<()> {
        self.forget(number)?;
        if address.checked_add(bytes).is_none() || self.remotes.len() >= REGIONS_MAX {
            return Err(Error::Foreign);
        }
        let padded = padded(packed_key);
        let mut key = null_mut();
        // SAFETY: the endpoint is there; the key is one as the other side says, with zeros behind it.
        let status = unsafe {
            (self.worker.context.functions().ucp_ep_rkey_unpack)(self.endpoint, padded.as_ptr().cast(), &raw mut key)
        };
        self.worker.context.library.result("ucp_ep_rkey_unpack", status)?;
        self.remotes.insert(number, Remote { key, address, bytes });
        Ok(())
    }

    /// Forgets memory of the client. An error: a transfer with it is on its way.
    pub fn forget(&mut self, number: u32) -> Result<()> {
        if self.slots.iter().any(|slot| !slot.request.is_null() && slot.number == number) {
            return Err(Error::Foreign);
        }
        if let Some(remote) = self.remotes.remove(&number)
            && self.worker.context.library.may_release()
        {
            // SAFETY: unpacked by `learn`, destroyed once. No transfer uses it, as the callers see to.
            unsafe { (self.worker.context.functions().ucp_rkey_destroy)(remote.key) };
        }
        Ok(())
    }

    /// Whether the client has shown all of these bytes.
    pub fn knows(&self, number: u32, address: u64, bytes: u64) -> bool {
        self.remote(number, address, bytes).is_ok()
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
            self.slots.push(Slot { region: Region::allocate(bytes)?, request: null_mut(), number: 0 });
        }
        Ok(())
    }

    /// The bytes of a slot. `None`: there is no such slot, or it is on its way.
    pub fn slot(&mut self, slot: usize) -> Option<&mut [u8]> {
        let slot = self.slots.get_mut(slot).filter(|slot| slot.request.is_null())?;
        // SAFETY: memory of the region's own, as many bytes as it has, whose key nobody else has; no transfer uses it,
        // and none can begin before this borrow of the mover ends.
        Some(unsafe { std::slice::from_raw_parts_mut(slot.region.pointer(), slot.region.bytes()) })
    }

    /// Begins to put the first `bytes` of a slot into the client's memory.
    pub fn put(&mut self, slot: usize, bytes: usize, number: u32, address: u64) -> Result<()> {
        let functions = self.worker.context.functions();
        let (key, local, params) = self.transfer(slot, bytes, number, address)?;
        // SAFETY: `transfer` has checked both ranges; the slot is not the caller's until the transfer has ended, and is
        // not freed before the worker.
        let pointer =
            unsafe { (functions.ucp_put_nbx)(self.endpoint, local.cast(), bytes, address, key, &raw const params) };
        self.begun("ucp_put", slot, number, pointer)
    }

    /// Begins to get `bytes` of the client's memory into the first of a slot.
    pub fn get(&mut self, slot: usize, bytes: usize, number: u32, address: u64) -> Result<()> {
        let functions = self.worker.context.functions();
        let (key, local, params) = self.transfer(slot, bytes, number, address)?;
        // SAFETY: as in `put`.
        let pointer =
            unsafe { (functions.ucp_get_nbx)(self.endpoint, local.cast(), bytes, address, key, &raw const params) };
        self.begun("ucp_get", slot, number, pointer)
    }

    fn transfer(
        &self,
        slot: usize,
        bytes: usize,
        number: u32,
        address: u64,
    ) -> Result<(*mut RemoteKeyHandle, *mut u8, ucp_request_param)> {
        self.worker.context.library.check_process()?;
        let remote = self.remote(number, address, bytes as u64)?;
        let free = |slot: &&Slot| slot.request.is_null() && bytes <= slot.region.bytes();
        let local = &self.slots.get(slot).filter(free).ok_or(Error::Foreign)?.region;
        let params = ucp_request_param { op_attr_mask: UCP_OP_ATTR_FIELD_MEMH, memh: local.handle(), ..NO_PARAMETERS };
        Ok((remote.key, local.pointer(), params))
    }

    fn begun(&mut self, call: &'static str, slot: usize, number: u32, pointer: StatusPointer) -> Result<()> {
        let request = outcome(pointer).map_err(|status| self.worker.context.library.failed(call, status))?;
        if let (Some(slot), Some(request)) = (self.slots.get_mut(slot), request) {
            (slot.request, slot.number) = (request, number);
        }
        Ok(())
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
        self.worker.context.library.check_process()?;
        let functions = self.worker.context.functions();
        let params = NO_PARAMETERS;
        // SAFETY: the endpoint is there; no parameter counts.
        let pointer = unsafe { (functions.ucp_ep_flush_nbx)(self.endpoint, &raw const params) };
        let request = outcome(pointer).map_err(|status| self.worker.context.library.failed("ucp_ep_flush", status))?;
        self.flush = request.unwrap_or(null_mut());
        self.wait_for(self.flush, socket, look)?;
        self.flush = null_mut();
        Ok(())
    }

    fn wait_for(&self, request: StatusPointer, socket: BorrowedFd<'_>, look: Duration) -> Result<()> {
        if request.is_null() {
            return Ok(());
        }
        let library = self.worker.context.library;
        let mut looks = 0u32;
        let status = self.worker.until(socket, HUNG_UP, look, || {
            // SAFETY: a request of this worker that was not freed.
            let status = unsafe { (library.functions.ucp_request_check_status)(request) };
            if status != UCS_INPROGRESS {
                return Ok(Some(status));
            }
            let failure = self.failure.load(Ordering::Relaxed);
            if failure != UCS_OK {
                return Err(library.failed("the connection", failure));
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS_PER_SOCKET) && has_hung_up(socket) { Err(Error::PeerGone) } else { Ok(None) }
        })?;
        // SAFETY: it has ended, and nobody asks for it any more.
        unsafe { (library.functions.ucp_request_free)(request) };
        library.result("the transfer", status)
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        if !self.worker.context.library.may_release() {
            return;
        }
        let numbers: Vec<_> = self.remotes.keys().copied().collect();
        for number in numbers {
            // The key of a transfer on its way stays until the worker ends both.
            let _ = self.forget(number);
        }
        if self.liveness == Liveness::Endpoint {
            let params = ucp_request_param {
                op_attr_mask: UCP_OP_ATTR_FIELD_FLAGS,
                flags: UCP_EP_CLOSE_FLAG_FORCE,
                ..NO_PARAMETERS
            };
            // SAFETY: the endpoint is there and is not used again. Closing by force needs nothing of the other side;
            // what is left of it the worker ends, which is dropped next. Endpoints without an error mode cannot be
            // closed so and are left to the worker alone.
            unsafe { (self.worker.context.functions().ucp_ep_close_nbx)(self.endpoint, &raw const params) };
        }
    }
}

const NO_PARAMETERS: ucp_request_param = ucp_request_param {
    op_attr_mask: 0,
    flags: 0,
    request: null_mut(),
    cb: null(),
    datatype: 0,
    user_data: null_mut(),
    reply_buffer: null_mut(),
    memory_type: 0,
    recv_info: null_mut(),
    memh: null_mut(),
};
/// The socket is looked at each time so many looks at the transfer have found it on its way.
const LOOKS_PER_SOCKET: u32 = 64;
/// What tells that the client is gone, while requests that it has sent ahead are no news.
const HUNG_UP: PollFlags = PollFlags::RDHUP.union(PollFlags::HUP).union(PollFlags::ERR);

fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [rustix::event::PollFd::from_borrowed_fd(socket, HUNG_UP)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = Vec::with_capacity(bytes.len() + PADDING_BYTES);
    padded.extend_from_slice(bytes);
    padded.resize(bytes.len() + PADDING_BYTES, 0);
    padded
}
