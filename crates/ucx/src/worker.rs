//! A worker: the queues of one connection, and waiting for them.

use crate::context::Context;
use crate::ffi::{
    UCP_WORKER_PARAM_FIELD_THREAD_MODE, UCS_ERR_BUSY, UCS_THREAD_MODE_SERIALIZED, WorkerHandle, ucp_worker_params,
};
use crate::messages::Inbox;
use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

/// Progress is made so many times before anything else is looked at.
const STEPS: u32 = 64;
/// How long who cannot go on and cannot be told leaves the processor to others.
const STALLED: Duration = Duration::from_micros(20);
/// Whoever sleeps wakes up after this time to look, should a wake-up be lost.
const SLEEP_MAX: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

#[derive(Debug)]
pub(crate) struct Worker {
    pub context: &'static Context,
    pub handle: *mut WorkerHandle,
    event_fd: i32,
    // Behind the worker, which ends first.
    pub inbox: Box<Inbox>,
}

// SAFETY: made for one thread at a time (`SERIALIZED`), which need not always be the same. It is not `Sync`.
unsafe impl Send for Worker {}

impl Worker {
    pub fn new() -> Result<Self> {
        let context = Context::get()?;
        let functions = context.functions();
        let params = ucp_worker_params {
            field_mask: UCP_WORKER_PARAM_FIELD_THREAD_MODE,
            thread_mode: UCS_THREAD_MODE_SERIALIZED,
            cpu_mask: [0; 16],
            events: 0,
            user_data: null_mut(),
            event_fd: 0,
            flags: 0,
            name: null(),
            am_alignment: 0,
            client_id: 0,
        };
        let mut handle = null_mut();
        // SAFETY: the context lives as long as the process; the mask says which parameters count.
        let status = unsafe { (functions.ucp_worker_create)(context.handle, &raw const params, &raw mut handle) };
        context.library.result("ucp_worker_create", status)?;
        let mut worker = Self { context, handle, event_fd: -1, inbox: Box::default() };
        // SAFETY: the worker just made, of a context with wake-up, and a place for a number.
        let status = unsafe { (functions.ucp_worker_get_efd)(handle, &raw mut worker.event_fd) };
        context.library.result("ucp_worker_get_efd", status)?;
        // SAFETY: the worker just made, which ends in `drop`, before the box does.
        let status = unsafe { worker.inbox.serve(functions, handle) };
        context.library.result("ucp_worker_set_am_recv_handler", status)?;
        Ok(worker)
    }

    /// What an endpoint to this worker is made of.
    pub fn address(&self) -> Result<Vec<u8>> {
        let functions = self.context.functions();
        let (mut address, mut bytes) = (null_mut(), 0);
        // SAFETY: a worker that is there; places for pointer and length.
        let status = unsafe { (functions.ucp_worker_get_address)(self.handle, &raw mut address, &raw mut bytes) };
        self.context.library.result("ucp_worker_get_address", status)?;
        // SAFETY: the call made `bytes` bytes at `address`.
        let copy = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), bytes) }.to_vec();
        // SAFETY: from the call above, not used any more.
        unsafe { (functions.ucp_worker_release_address)(self.handle, address) };
        Ok(copy)
    }

    /// Does what there is to do. Whether that was anything.
    pub fn progress(&self) -> bool {
        // SAFETY: a worker that is there, and one thread at a time, since it is not `Sync`.
        unsafe { (self.context.functions().ucp_worker_progress)(self.handle) != 0 }
    }

    /// Makes progress until `done` says something. Looks for `look` while nothing happens, then sleeps until the worker
    /// or `socket` has something: `done` is asked again then, and told that it slept. `may` is asked before each
    /// progress; when it says no, that is an error.
    pub fn until<T>(
        &self,
        (socket, interest): (BorrowedFd<'_>, PollFlags),
        look: Duration,
        may: impl Fn() -> bool,
        mut done: impl FnMut(bool) -> Result<Option<T>>,
    ) -> Result<T> {
        self.context.library.check_process()?;
        let (mut quiet_since, mut slept) = (Instant::now(), false);
        loop {
            // A worker that cannot get on, for want of memory, calls that progress for ever.
            let mut busy = false;
            for _ in 0..STEPS {
                if !may() {
                    return Err(Error::PeerGone);
                }
                if !self.progress() {
                    break;
                }
                busy = true;
            }
            if let Some(value) = done(slept)? {
                return Ok(value);
            }
            slept = false;
            if busy {
                quiet_since = Instant::now();
            } else if quiet_since.elapsed() < look {
                rustix::thread::sched_yield();
            } else if self.arm()? {
                self.sleep(socket, interest)?;
                (quiet_since, slept) = (Instant::now(), true);
            } else {
                // It waits for the other side to make room, of which no event tells: who else wants the processor may
                // be just that.
                std::thread::sleep(STALLED);
            }
        }
    }

    /// Asks for an event at the next thing to do. `false`: there is something already.
    fn arm(&self) -> Result<bool> {
        // SAFETY: as in `progress`.
        let status = unsafe { (self.context.functions().ucp_worker_arm)(self.handle) };
        if status == UCS_ERR_BUSY {
            return Ok(false);
        }
        self.context.library.result("ucp_worker_arm", status).map(|()| true)
    }

    /// To be asked by [`Worker::until`] for the next message of the other side. `None`: `socket` has something, to be
    /// read or that it hung up. `check`: an error if the connection is.
    pub fn next_message<'a>(
        &'a self,
        socket: BorrowedFd<'a>,
        mut check: impl FnMut() -> Result<()> + 'a,
    ) -> impl FnMut(bool) -> Result<Option<Option<Box<[u8]>>>> + 'a {
        let mut looks = LooksAtSocket::default();
        move |slept| {
            if let Some(message) = self.inbox.take()? {
                return Ok(Some(Some(message)));
            }
            check()?;
            Ok(looks.has(socket, PollFlags::IN, slept).then_some(None))
        }
    }

    fn sleep(&self, socket: BorrowedFd<'_>, interest: PollFlags) -> Result<()> {
        // SAFETY: UCX keeps the descriptor open as long as the worker is there, which is borrowed.
        let events = unsafe { BorrowedFd::borrow_raw(self.event_fd) };
        let mut polled = [PollFd::from_borrowed_fd(socket, interest), PollFd::from_borrowed_fd(events, PollFlags::IN)];
        match poll(&mut polled, Some(&SLEEP_MAX)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::Failed { call: "poll", reason: errno.to_string() }),
        }
    }
}

/// What tells that the other side is gone, while requests that it has sent ahead are no news.
pub(crate) const HUNG_UP: PollFlags = PollFlags::RDHUP.union(PollFlags::HUP).union(PollFlags::ERR);
/// The socket is looked at each time so many looks at the worker have found nothing.
const LOOKS_PER_SOCKET: u32 = 64;

/// Looks at the socket now and then, while the worker is looked at.
#[derive(Default)]
pub(crate) struct LooksAtSocket(u32);

impl LooksAtSocket {
    /// Whether the socket was looked at and has what is of interest. `slept`: it may be what has woken us.
    pub fn has(&mut self, socket: BorrowedFd<'_>, interest: PollFlags, slept: bool) -> bool {
        self.0 = self.0.wrapping_add(1);
        (slept || self.0.is_multiple_of(LOOKS_PER_SOCKET)) && has_now(socket, interest)
    }
}

/// Whether the socket has what is of interest.
pub(crate) fn has_now(socket: BorrowedFd<'_>, interest: PollFlags) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket, interest)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.context.library.may_release() {
            // SAFETY: made by `new`, destroyed once. Its endpoints end with it, and with them all access to memory that
            // is not mapped into the other process.
            unsafe { (self.context.functions().ucp_worker_destroy)(self.handle) };
        }
    }
}
