//! A worker and its one endpoint, to the worker of the other side.
//!
//! Both sides make one: UCX 1.13 would make a missing one while it handles the other side's first message, and may
//! then free, over TCP, the very connection that the message came by.

use crate::ffi::{
    EndpointHandle, Status, StatusPointer, UCP_EP_PARAM_FIELD_ERR_HANDLER, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
    UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, UCP_ERR_HANDLING_MODE_NONE, UCP_ERR_HANDLING_MODE_PEER, UCS_INPROGRESS, UCS_OK,
    outcome, ucp_ep_params, ucp_err_handler, ucp_request_param, ucs_sock_addr,
};
use crate::messages::Outbox;
use crate::worker::{HUNG_UP, Worker, has_now};
use crate::{Error, Result};
use rustix::event::PollFlags;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI8, Ordering};
use std::time::{Duration, Instant};

/// How long the last message that connects an endpoint has, to come.
const LAST_LOOK: Duration = Duration::from_millis(20);
/// Zeros behind what the other side sent, for a library that reads on where a length in it was wrong.
const PADDING_BYTES: usize = 256;

/// Who notices that the other side is gone. Both sides choose the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Liveness {
    /// UCX. Its transports through shared memory cannot, and are not used then.
    Endpoint,
    /// The caller, by the socket beside.
    Caller,
}

/// It ends with its worker, if it is connected: UCX 1.13 ends the process that destroys either while the messages that
/// connect them are on their way. One that is not connected by then is left to the end of the process: nobody can
/// reach anything through it. It also ends the process that makes progress when TCP tells that the other side has gone
/// with such messages still to be sent: until it is connected, the socket beside is looked at first.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub worker: ManuallyDrop<Worker>,
    pub handle: *mut EndpointHandle,
    /// What UCX's handler was told of the other side; does not move, and is there as long as the worker.
    failure: ManuallyDrop<Box<AtomicI8>>,
    /// There as long as the worker, likewise.
    outbox: ManuallyDrop<RefCell<Outbox>>,
    /// The flush that ends when the endpoint is connected; null: it has.
    connecting: Cell<StatusPointer>,
    /// A first transfer is on its way, which may have more to connect.
    pub is_probing: bool,
    /// It was not connected in time, or the other side went before that: no progress is made any more.
    is_left: Cell<bool>,
    /// It is only dropped any more.
    has_ended: bool,
}

// SAFETY: the endpoint belongs to the worker, which is for one thread at a time; it is not `Sync`.
unsafe impl Send for Endpoint {}

unsafe extern "C" fn on_failure(failure: *mut c_void, _endpoint: *mut EndpointHandle, status: Status) {
    // SAFETY: the argument is the `failure` of an endpoint, which outlives its worker.
    unsafe { &*failure.cast::<AtomicI8>() }.store(status, Ordering::Relaxed);
}

impl Endpoint {
    /// Connects a worker to the one of this address.
    pub fn connect(worker: Worker, address: &[u8], liveness: Liveness) -> Result<Self> {
        worker.context.library.check_process()?;
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
        let mut handle = null_mut();
        // SAFETY: the worker is there; the address is a worker's as the other side says (it has proved a key that may
        // end this process anyway, see docs/rdma.md), with zeros behind it; the handler's argument outlives the worker.
        let status =
            unsafe { (worker.context.functions().ucp_ep_create)(worker.handle, &raw const params, &raw mut handle) };
        worker.context.library.result("ucp_ep_create", status)?;
        let params = ucp_request_param::NONE;
        // SAFETY: the endpoint was just made; no parameter counts.
        let flush = unsafe { (worker.context.functions().ucp_ep_flush_nbx)(handle, &raw const params) };
        // One that fails at once leaves an endpoint of which every transfer fails.
        let connecting = Cell::new(outcome(flush).ok().flatten().unwrap_or(null_mut()));
        let (worker, failure) = (ManuallyDrop::new(worker), ManuallyDrop::new(failure));
        Ok(Self {
            worker,
            handle,
            failure,
            outbox: ManuallyDrop::default(),
            connecting,
            is_probing: false,
            is_left: Cell::new(false),
            has_ended: false,
        })
    }

    /// An error once UCX has noticed that the other side is gone.
    pub fn check(&self) -> Result<()> {
        let failure = self.failure.load(Ordering::Relaxed);
        if failure == UCS_OK { Ok(()) } else { Err(self.worker.context.library.failed("the connection", failure)) }
    }

    /// Sends the other side a message.
    pub fn tell(&self, message: &[u8]) -> Result<()> {
        let (context, mut outbox) = (self.worker.context, self.outbox.borrow_mut());
        context.library.check_process()?;
        self.check()?;
        // SAFETY: the endpoint and its worker are there; the worker goes before the outbox, or neither does.
        let sent = unsafe { outbox.send(context.functions(), self.handle, message.into()) };
        sent.map_err(|status| context.library.failed("ucp_am_send", status))
    }

    /// As [`Worker::until`]; also an error when the other side goes before it is connected.
    pub fn until<T>(
        &self,
        (socket, interest): (BorrowedFd<'_>, PollFlags),
        look: Duration,
        done: impl FnMut(bool) -> Result<Option<T>>,
    ) -> Result<T> {
        let may = || {
            if !self.is_connected() && has_now(socket, HUNG_UP) {
                self.is_left.set(true);
            }
            !self.is_left.get()
        };
        self.worker.until((socket, interest), look, may, done)
    }

    fn is_connected(&self) -> bool {
        let request = self.connecting.get();
        if !request.is_null() {
            let functions = self.worker.context.functions();
            // SAFETY: a request of this worker that was not freed.
            if unsafe { (functions.ucp_request_check_status)(request) } == UCS_INPROGRESS {
                return false;
            }
            // SAFETY: it has ended, and nobody asks for it any more.
            unsafe { (functions.ucp_request_free)(request) };
            self.connecting.set(null_mut());
        }
        !self.is_probing
    }

    /// Ends it, if it is connected, or was ended before. `false`: it is left, and so is its worker.
    pub fn end(&mut self) -> bool {
        if self.has_ended {
            return true;
        }
        if !self.worker.context.library.may_release() || self.is_left.get() {
            return false;
        }
        let start = Instant::now();
        while start.elapsed() < LAST_LOOK {
            if self.is_connected() {
                self.has_ended = true;
                // SAFETY: none is used again, as the flag says, and the worker goes before what it uses.
                unsafe {
                    ManuallyDrop::drop(&mut self.worker);
                    ManuallyDrop::drop(&mut self.failure);
                    ManuallyDrop::drop(&mut self.outbox);
                }
                return true;
            }
            self.worker.progress();
        }
        self.is_left.set(true);
        false
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.end();
    }
}

/// Bytes from the other side, with zeros behind them.
pub(crate) fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = Vec::with_capacity(bytes.len() + PADDING_BYTES);
    padded.extend_from_slice(bytes);
    padded.resize(bytes.len() + PADDING_BYTES, 0);
    padded
}

/// What of a receiver a call needs that may come before or after it was connected.
#[derive(Debug)]
pub(crate) enum Side {
    /// The other side's address is not known yet.
    Alone(Worker),
    Connected(Endpoint),
    /// Its access was ended.
    Ended,
}

impl Side {
    pub fn worker(&self) -> Result<&Worker> {
        match self {
            Self::Alone(worker) => Ok(worker),
            Self::Connected(endpoint) => Ok(&endpoint.worker),
            Self::Ended => Err(Error::PeerGone),
        }
    }

    /// As [`Worker::until`].
    pub fn until<T>(
        &self,
        (socket, interest): (BorrowedFd<'_>, PollFlags),
        look: Duration,
        done: impl FnMut(bool) -> Result<Option<T>>,
    ) -> Result<T> {
        match self {
            Self::Alone(worker) => worker.until((socket, interest), look, || true, done),
            Self::Connected(endpoint) => endpoint.until((socket, interest), look, done),
            Self::Ended => Err(Error::PeerGone),
        }
    }

    /// An error once UCX has noticed that the other side is gone.
    pub fn check(&self) -> Result<()> {
        if let Self::Connected(endpoint) = self { endpoint.check() } else { Ok(()) }
    }
}
