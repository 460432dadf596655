//! Threads that serve requests, so that a slow one holds up no other.
//!
//! The kernel crate runs a fixed number of threads, each of which reads a request from `/dev/fuse` and serves it. If
//! all of them waited (for a server that is away, for another client to give a lease back), nothing would take the next
//! request, not even the write-back of a page that the other client's recall is waiting for: two mounts could wait for
//! each other. So the last of these threads that is free serves nothing itself: it hands requests to threads made as
//! needed, and goes back to the device. Which of those that are free read it says `turns.rs`.
//!
//! Invariant: while fewer than [`SPILL_THREADS_MAX`] requests wait, one thread is reading the device, or about to.
//! Not here: what a request does (`operations.rs`, `files.rs`).
//! Cost: none while a thread is free; a hand-over to another thread (about ten microseconds) when all others are busy.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Requests that may wait at the same time beside those on the fixed threads. Beyond it the device is read more slowly.
pub const SPILL_THREADS_MAX: usize = 512;
/// How long a thread without work stays.
const IDLE_TIME: Duration = Duration::from_secs(5);
/// Stack of a spilled request's thread, bytes. Nothing here recurses.
const STACK_BYTES: usize = 512 << 10;

/// Something to be done on some thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// Threads made when there is work for them, and gone when there was none for a while.
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    threads_max: usize,
    /// Jobs that may wait for a thread when there are [`Shared::threads_max`].
    waiting_max: usize,
    /// Rank 3. Guards the queue and the counts; not held while a job runs.
    state: Mutex<State>,
    /// Signalled with each job, with each job's end when somebody waits for all, and at the end of the pool.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// Threads there are.
    threads: usize,
    /// Those of them that wait for a job.
    idle: usize,
    /// Those of them that have not begun yet; a job waits for each.
    starting: usize,
    closed: bool,
}

impl Pool {
    pub fn new(name: &'static str, threads_max: usize, waiting_max: usize) -> Self {
        let state = Mutex::new(State::default());
        Self { shared: Arc::new(Shared { name, threads_max, waiting_max, state, changed: Condvar::new() }) }
    }

    /// Has a job done soon; gives it back when the limits are reached.
    pub fn submit(&self, job: Job) -> Result<(), Job> {
        let mut state = self.shared.lock();
        let free = state.idle + state.starting;
        if free > state.waiting.len() {
            state.waiting.push_back(job);
            drop(state);
            self.shared.changed.notify_all();
            return Ok(());
        }
        if state.threads >= self.shared.threads_max {
            if state.waiting.len() - free >= self.shared.waiting_max {
                return Err(job);
            }
            state.waiting.push_back(job);
            return Ok(());
        }
        state.threads += 1;
        state.starting += 1;
        state.waiting.push_back(job);
        drop(state);
        let shared = self.shared.clone();
        let builder = thread::Builder::new().name(self.shared.name.into()).stack_size(STACK_BYTES);
        if let Err(error) = builder.spawn(move || shared.work()) {
            tracing::warn!("no thread for a request: {error}");
            let mut state = self.shared.lock();
            state.threads -= 1;
            state.starting -= 1;
            // Another thread may have taken it meanwhile; then all is well.
            return state.waiting.pop_back().map_or(Ok(()), Err);
        }
        Ok(())
    }

    /// Waits until no job is under way, at most until the deadline. Whether that was reached.
    pub fn wait_until_done(&self, deadline: Instant) -> bool {
        let mut state = self.shared.lock();
        while state.idle < state.threads || !state.waiting.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        state.starting -= 1;
        loop {
            if let Some(job) = state.waiting.pop_front() {
                drop(state);
                guarded(job);
                state = self.lock();
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            self.changed.notify_all();
            let idle_until = Instant::now() + IDLE_TIME;
            while state.waiting.is_empty() && !state.closed {
                let Some(left) = idle_until.checked_duration_since(Instant::now()) else { break };
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            state.idle -= 1;
            if state.waiting.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        drop(state);
        self.changed.notify_all();
    }
}

/// The fixed threads and the pool beside them.
pub struct Workers {
    /// Fixed threads that serve a request themselves now.
    serving: AtomicUsize,
    serving_max: usize,
    spill: Pool,
}

/// A fixed thread serves a request itself, until this is dropped.
pub struct Permit<'a>(&'a AtomicUsize);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Workers {
    /// Beside `threads` fixed threads that read the device.
    pub fn new(threads: usize) -> Self {
        Self {
            serving: AtomicUsize::new(0),
            serving_max: threads.saturating_sub(1),
            spill: Pool::new("weft-fuse-spill", SPILL_THREADS_MAX, 0),
        }
    }

    /// Asks whether the calling fixed thread may serve a request itself: another one is left to read the device.
    pub fn stay(&self) -> Option<Permit<'_>> {
        if self.serving.fetch_add(1, Ordering::Relaxed) < self.serving_max {
            return Some(Permit(&self.serving));
        }
        self.serving.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// Does the job here when that leaves a thread to read the device, else on another thread.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        match self.stay() {
            Some(_permit) => guarded(job),
            None => self.spill(job),
        }
    }

    /// Does the job on another thread; here when there are too many already.
    pub fn spill(&self, job: impl FnOnce() + Send + 'static) {
        if let Err(job) = self.spill.submit(Box::new(job)) {
            guarded(job);
        }
    }

    /// Does the job on another thread; drops it when there are too many already.
    pub fn spill_or_drop(&self, job: impl FnOnce() + Send + 'static) {
        if self.spill.submit(Box::new(job)).is_err() {
            tracing::warn!("too many requests wait: one is not answered");
        }
    }

    /// Waits until no spilled request is under way, at most until the deadline.
    pub fn wait_until_done(&self, deadline: Instant) -> bool {
        self.spill.wait_until_done(deadline)
    }
}

/// Runs a job; a panic in it ends the job (whoever waits for its reply gets EIO when the reply is dropped), not the
/// thread.
pub fn guarded(job: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("a request was given up: this is a bug, please report it with the message above");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn the_last_free_thread_serves_nothing_itself() {
        let workers = Workers::new(3);
        let first = workers.stay();
        let second = workers.stay();
        assert!(first.is_some() && second.is_some());
        assert!(workers.stay().is_none());
        let here = thread::current().id();
        let (done, ran) = mpsc::channel();
        workers.run(move || done.send(thread::current().id()).unwrap());
        assert_ne!(ran.recv_timeout(LONG).unwrap(), here);
        drop(first);
        assert!(workers.stay().is_some());
    }

    #[test]
    fn jobs_that_wait_for_each_other_all_run() {
        let workers = Workers::new(1);
        let (done, ran) = mpsc::channel();
        let mut gates = Vec::new();
        for number in 0..20 {
            let (open, gate) = mpsc::channel::<()>();
            let done = done.clone();
            gates.push(open);
            workers.run(move || {
                gate.recv_timeout(LONG).unwrap();
                done.send(number).unwrap();
            });
        }
        // The last ones first: none may stand behind another.
        for (number, gate) in gates.iter().enumerate().rev() {
            gate.send(()).unwrap();
            assert_eq!(ran.recv_timeout(LONG), Ok(number));
        }
        assert!(workers.wait_until_done(Instant::now() + LONG));
    }

    #[test]
    fn limits_give_the_job_back() {
        let pool = Pool::new("test", 1, 1);
        let (open, gate) = mpsc::channel::<()>();
        assert!(pool.submit(Box::new(move || gate.recv_timeout(LONG).unwrap())).is_ok());
        let (done, ran) = mpsc::channel();
        let waits = done.clone();
        assert!(pool.submit(Box::new(move || waits.send("waited").unwrap())).is_ok());
        let back = pool.submit(Box::new(move || done.send("back").unwrap()));
        back.expect_err("one runs, one waits: a third is too much")();
        assert_eq!(ran.recv_timeout(LONG), Ok("back"));
        assert!(!pool.wait_until_done(Instant::now()));
        open.send(()).unwrap();
        assert_eq!(ran.recv_timeout(LONG), Ok("waited"));
    }

    #[test]
    fn a_panic_ends_the_job_only() {
        let pool = Pool::new("test", 1, 8);
        let (done, ran) = mpsc::channel();
        assert!(pool.submit(Box::new(|| panic!("as a test"))).is_ok());
        assert!(pool.submit(Box::new(move || done.send(()).unwrap())).is_ok());
        assert_eq!(ran.recv_timeout(LONG), Ok(()));
    }
}
