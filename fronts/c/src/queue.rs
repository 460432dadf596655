//! Queues: reads and writes that are not waited for, done by threads of the queue's own.
//!
//! The client library's calls block, so as many threads as requests are under way at a time. They are started as
//! requests come, and end with the queue.
//!
//! Lock order: a queue's state is a leaf.

use crate::border::{count, status};
use crate::connection::FsHandle;
use crate::handles::{Handle, Kind};
use crate::raw;
use crate::requests::{self, Completion, Job, Request, Tag};
use crate::table::Table;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weft_library::{Failure, FileSystem, Outcome, Process};

/// Most requests that are under way at a time: threads of a queue.
const DEPTH_MAX: usize = 64;
/// Most requests that wait.
const WAITING_MAX: usize = 4096;

/// See the module.
pub struct Queue {
    fs: Arc<FileSystem>,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    depth: usize,
}

struct Shared {
    state: Mutex<State>,
    /// There is a request to do, or the queue ends.
    work: Condvar,
    /// There are completions to take.
    done: Condvar,
    /// Readable while there are.
    event: OwnedFd,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    running: usize,
    /// Threads that wait for work.
    idle: usize,
    done: VecDeque<Completion>,
    ends: bool,
}

impl Kind for Queue {
    const NUMBER: usize = 3;
    const NAME: &str = "weft_queue_t";

    fn table() -> &'static Table<Self> {
        static TABLE: Table<Queue> = Table::new();
        &TABLE
    }

    fn made_in(&self) -> Process {
        self.fs.made_in()
    }
}

type QueueHandle = Handle<Queue>;

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, state: &mut State, completion: Completion) {
        if state.done.is_empty() {
            let one = 1u64.to_ne_bytes();
            // SAFETY: the descriptor is open, and 8 bytes are what an eventfd takes.
            let written = unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
            assert!(written == 8, "an eventfd took {written} bytes: {}", io::Error::last_os_error());
        }
        state.done.push_back(completion);
        self.done.notify_all();
    }

    fn take(&self, state: &mut State, into: &mut [Completion]) -> usize {
        let count = state.done.len().min(into.len());
        for (place, completion) in into.iter_mut().zip(state.done.drain(..count)) {
            *place = completion;
        }
        if count > 0 && state.done.is_empty() {
            let mut counter = [0; 8];
            // SAFETY: the descriptor is open, and 8 bytes are what an eventfd gives.
            let read = unsafe { libc::read(self.event.as_raw_fd(), counter.as_mut_ptr().cast(), counter.len()) };
            assert!(read == 8, "an eventfd gave {read} bytes: {}", io::Error::last_os_error());
        }
        count
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                state.running += 1;
                drop(state);
                let completion = job.run();
                // The file may be closed by this: not with the state locked.
                drop(job);
                state = self.lock();
                state.running -= 1;
                self.complete(&mut state, completion);
            } else if state.ends {
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    fn cancel(&self, is_meant: impl Fn(&Job) -> bool) -> usize {
        let mut state = self.lock();
        let (cancelled, kept): (Vec<Job>, _) = std::mem::take(&mut state.waiting).into_iter().partition(is_meant);
        state.waiting = kept.into();
        for job in &cancelled {
            self.complete(&mut state, job.cancelled());
        }
        drop(state);
        cancelled.len()
    }
}

impl Queue {
    fn new(fs: &Arc<FileSystem>, depth: usize) -> Outcome<Self> {
        // SAFETY: it takes no memory.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            let error = io::Error::last_os_error();
            return Err(Failure::new(error.raw_os_error().unwrap_or(libc::EIO), format!("queue: eventfd: {error}")));
        }
        // SAFETY: it was just made, for nobody else.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        let shared = Shared { state: Mutex::default(), work: Condvar::new(), done: Condvar::new(), event };
        Ok(Self { fs: Arc::clone(fs), shared: Arc::new(shared), threads: Mutex::default(), depth })
    }

    fn submit(&self, jobs: Vec<Job>) -> Outcome {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.shared.lock();
        if state.waiting.len() + jobs.len() > WAITING_MAX {
            return Err(Failure::new(libc::EAGAIN, format!("{} requests are waiting already", state.waiting.len())));
        }
        state.waiting.extend(jobs);
        let missing = state.waiting.len().saturating_sub(state.idle);
        drop(state);
        for _ in 0..missing.min(self.depth - threads.len()) {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("weft-queue".to_owned());
            match weft_library::blocked(|| thread.spawn(move || shared.work())) {
                Ok(thread) => threads.push(thread),
                // Those that run do the rest.
                Err(_) if !threads.is_empty() => break,
                Err(error) => {
                    self.shared.lock().waiting.clear();
                    return Err(Failure::new(libc::EAGAIN, format!("submit: no thread: {error}")));
                }
            }
        }
        self.shared.work.notify_all();
        Ok(())
    }

    fn wait(&self, into: &mut [Completion], min: usize, patience: Option<Duration>) -> usize {
        let deadline = patience.map(|patience| Instant::now() + patience);
        let mut state = self.shared.lock();
        loop {
            let left = state.done.len() + state.running + state.waiting.len();
            if state.done.len() >= min.min(left) {
                return self.shared.take(&mut state, into);
            }
            let rest = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            state = match rest {
                None => self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return self.shared.take(&mut state, into),
                Some(rest) => self.shared.done.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    fn end(&self) {
        self.shared.cancel(|_| true);
        self.shared.lock().ends = true;
        self.shared.work.notify_all();
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            thread.join().expect("a call's panic is stopped at the border");
        }
    }
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_queue_create(fs: FsHandle, depth: c_uint, queue: Option<&mut QueueHandle>) -> c_int {
    status(|| {
        let queue = raw::required(queue, "queue")?;
        *queue = QueueHandle::NONE;
        let valid = usize::try_from(depth).ok().filter(|depth| (1..=DEPTH_MAX).contains(depth));
        let depth =
            valid.ok_or_else(|| Failure::invalid(format!("a queue's depth is 1 to {DEPTH_MAX}, not {depth}")))?;
        *queue = QueueHandle::new(Arc::new(Queue::new(&*fs.get()?, depth)?))?;
        Ok(())
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_submit(queue: QueueHandle, list: *const Request, length: usize) -> c_int {
    status(|| {
        let queue = queue.get()?;
        // SAFETY: they are as `weft.h` says.
        queue.submit(unsafe { requests::jobs(list, length) }?)
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_wait(
    queue: QueueHandle,
    completions: *mut Completion,
    min: usize,
    max: usize,
    timeout_ms: c_int,
) -> isize {
    count(|| {
        let queue = queue.get()?;
        // SAFETY: they are as `weft.h` says.
        let into = unsafe { raw::slice_mut(completions, max, "completions") }?;
        if min > max {
            return Err(Failure::invalid(format!("at least {min} completions, of {max} at most")));
        }
        let patience = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        Ok(queue.wait(into, min, patience))
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_cancel(queue: QueueHandle, tag: *const c_void) -> isize {
    count(|| {
        let tag = Tag(tag as usize);
        Ok(queue.get()?.shared.cancel(|job| job.tag == tag))
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_queue_eventfd(queue: QueueHandle) -> c_int {
    let descriptor = count(|| {
        let queue = queue.get()?;
        Ok(usize::try_from(queue.shared.event.as_raw_fd()).expect("an open descriptor is not negative"))
    });
    c_int::try_from(descriptor).expect("descriptors and errno are of this type")
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_queue_destroy(queue: QueueHandle) -> c_int {
    status(|| {
        queue.take()?.end();
        Ok(())
    })
}
