//! Which of the fixed threads reads the device, and for how long it looks for a request before it sleeps.
//!
//! Whenever a request comes, the kernel wakes the thread that has waited longest in `read`: on an idle core that takes
//! longer than most requests, and with eight threads it is a cold one each time. So one thread, the *leader*, reads the
//! device, serves what it read, and looks for the next request for a moment before it sleeps in `read`; the others are
//! parked here, where requests do not wake them. A leader that is about to wait hands the device over to a parked
//! thread first ([`before_wait`]): when it looks for a reply and another request has come, and when it is going to
//! sleep. What waits without saying so is noticed by the watcher. A leader that finds more requests when it takes one
//! shares the device at once, until half of the processors serve: the other half is the programs'.
//!
//! Looking pays when requests follow one another. After [`MISSES_MAX`] looks in vain there are none, until a request
//! has come again so soon that it would have been found.
//!
//! Invariant: while a fixed thread serves, another one reads the device, or the one that serves is the leader; who is
//! it for longer than two [`WATCH`]es with one request is leader no more, if a thread is parked.
//! Invariant: threads are parked only when all fixed threads are known here, so that one of them ends first when the
//! mount ends, and frees the others.
//! Not here: requests when all fixed threads wait (`workers.rs`).
//! Cost: two locks without contention, two looks at the clock and one at the device for each request.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::{Cell, OnceCell};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};
use weft_client::before_wait::{Waiting, on_this_thread};

/// How long the leader looks for a request before it sleeps, as whoever expects a message does.
const LOOK: Duration = Duration::from_micros(50);
/// Looks in vain in a row after which there are none.
const MISSES_MAX: u32 = 4;
/// How often the watcher looks at the leader while there are requests.
const WATCH: Duration = Duration::from_millis(5);

thread_local! {
    static MEMBER: OnceCell<Member> = const { OnceCell::new() };
    /// The turn in which this thread became leader; 0: it did not.
    static LEADS_SINCE: Cell<u64> = const { Cell::new(0) };
    /// It serves, and has not said that it sleeps.
    static IS_BUSY: Cell<bool> = const { Cell::new(false) };
    /// When its last turn ended.
    static ENDED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// A fixed thread.
struct Member(Arc<Turns>);

impl Drop for Member {
    /// The thread ends: so does the mount.
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The turns of the fixed threads.
pub struct Turns {
    threads: usize,
    /// Threads that serve without waiting, beyond which a leader keeps the device to itself.
    busy_max: usize,
    /// The kernel's connection, while the mount keeps it.
    device: OnceLock<Weak<OwnedFd>>,
    /// Looks in vain since the last request that came soon.
    misses: AtomicU32,
    /// Rank 3. Held for one look.
    state: Mutex<State>,
    /// Signalled when a parked thread is to read the device.
    promoted: Condvar,
    /// Signalled when the watcher is to begin.
    begun: Condvar,
}

#[derive(Default)]
struct State {
    /// Fixed threads that have served a request.
    known: usize,
    /// Fixed threads that read the device, or will before they do anything else.
    readers: usize,
    parked: usize,
    /// Those that serve and have not said that they sleep.
    busy: usize,
    /// Of those that are parked, how many are to read the device.
    promotions: usize,
    /// Number of the last turn.
    turns: u64,
    /// The turn of the thread that serves while nobody reads the device; 0: there is none.
    leader: u64,
    is_watched: bool,
    closed: bool,
}

impl Turns {
    /// Of `threads` fixed threads, all of which begin by reading the device.
    pub fn new(threads: usize) -> Arc<Self> {
        let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::with_busy(threads, (processors / 2).max(1))
    }

    fn with_busy(threads: usize, busy_max: usize) -> Arc<Self> {
        let state = State { readers: threads, ..State::default() };
        let (state, promoted, begun) = (Mutex::new(state), Condvar::new(), Condvar::new());
        Arc::new(Self { threads, busy_max, device: OnceLock::new(), misses: AtomicU32::new(0), state, promoted, begun })
    }

    /// From now on threads look for requests of this connection. Called once.
    pub fn begin(self: &Arc<Self>, device: &Arc<OwnedFd>) {
        let turns = Arc::clone(self);
        let watcher = move || turns.watch();
        match thread::Builder::new().name("weft-fuse-watch".into()).spawn(watcher) {
            // It is set once.
            Ok(_) => drop(self.device.set(Arc::downgrade(device))),
            Err(error) => tracing::warn!("requests wake a thread each: {error}"),
        }
    }

    /// Serves a request that this fixed thread has read, and waits for its next turn to read.
    pub fn serve(self: &Arc<Self>, request: impl FnOnce()) {
        if self.device.get().is_none() {
            return request();
        }
        self.take();
        request();
        self.end();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn begins: this thread has read a request.
    fn take(self: &Arc<Self>) {
        let is_new = MEMBER.with(|member| {
            let is_new = member.get().is_none();
            member.get_or_init(|| Member(Arc::clone(self)));
            is_new
        });
        if is_new {
            on_this_thread(before_wait);
        }
        if ENDED.get().is_some_and(|ended| ended.elapsed() < LOOK) {
            self.misses.store(0, Ordering::Relaxed);
        }
        let mut state = self.lock();
        state.known += usize::from(is_new);
        state.turns += 1;
        state.readers -= 1;
        state.busy += 1;
        IS_BUSY.set(true);
        if state.readers == 0 {
            state.leader = state.turns;
            LEADS_SINCE.set(state.turns);
            if state.busy < self.busy_max && self.has_request() {
                self.promote(&mut state);
            }
        }
        if !state.is_watched {
            state.is_watched = true;
            self.begun.notify_one();
        }
    }

    /// A turn ends. Returns when this thread is to read the device.
    fn end(&self) {
        ENDED.set(Some(Instant::now()));
        let since = LEADS_SINCE.replace(0);
        let mut state = self.lock();
        state.busy -= usize::from(IS_BUSY.replace(false));
        if since != 0 && state.leader == since {
            state.leader = 0;
        }
        let is_needed = state.readers == 0 && state.leader == 0;
        // Until all threads are known the kernel takes one after the other, if none looks.
        let all_known = state.known == self.threads;
        if is_needed || !all_known || state.closed {
            state.readers += 1;
            drop(state);
            if all_known {
                self.look();
            }
        } else {
            self.park(state);
        }
    }

    fn park(&self, mut state: MutexGuard<'_, State>) {
        state.parked += 1;
        while state.promotions == 0 && !state.closed {
            state = self.promoted.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.parked -= 1;
        match state.promotions.checked_sub(1) {
            // Counted as a reader when it was promoted.
            Some(left) => state.promotions = left,
            None => state.readers += 1,
        }
    }

    /// Has a parked thread read the device.
    fn promote(&self, state: &mut State) {
        if state.parked > state.promotions {
            state.leader = 0;
            state.readers += 1;
            state.promotions += 1;
            self.promoted.notify_one();
        }
    }

    /// This thread is about to wait: if it is the leader, it hands the device over.
    fn hand_over(&self, waiting: Waiting) {
        if waiting == Waiting::Sleeps && IS_BUSY.replace(false) {
            self.lock().busy -= 1;
        }
        let since = LEADS_SINCE.get();
        if since == 0 || (waiting == Waiting::Looks && !self.has_request()) {
            return;
        }
        let mut state = self.lock();
        if state.leader == since {
            self.promote(&mut state);
        }
        if state.leader == since && waiting == Waiting::Sleeps {
            // None is parked: whose turn ends next is to read.
            state.leader = 0;
        }
        if state.leader != since {
            LEADS_SINCE.set(0);
        }
    }

    /// Returns true if a `read` of the device would not wait: there is a request, or the mount has ended.
    fn has_request(&self) -> bool {
        let Some(device) = self.device.get().and_then(Weak::upgrade) else { return true };
        let mut polled = [PollFd::new(&*device, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0)
    }

    /// Looks for the next request for a moment, while others that can run go first. For threads that read the device.
    pub fn look(&self) {
        if self.misses.load(Ordering::Relaxed) >= MISSES_MAX {
            return;
        }
        let start = Instant::now();
        while !self.has_request() {
            if start.elapsed() >= LOOK {
                self.misses.fetch_add(1, Ordering::Relaxed);
                return;
            }
            rustix::thread::sched_yield();
        }
        self.misses.store(0, Ordering::Relaxed);
    }

    /// Takes the device from a leader that has been busy with one request for long. Sleeps while there are none.
    fn watch(&self) {
        let (mut turns, mut leader) = (0, 0);
        let mut state = self.lock();
        while !state.closed {
            if state.leader != 0 && state.leader == leader {
                self.promote(&mut state);
            }
            if state.turns == turns && state.leader == 0 {
                state.is_watched = false;
                while !state.is_watched && !state.closed {
                    state = self.begun.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
            (turns, leader) = (state.turns, state.leader);
            state = self.begun.wait_timeout(state, WATCH).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Frees all threads: a mount has ended.
    pub fn close(&self) {
        self.lock().closed = true;
        self.promoted.notify_all();
        self.begun.notify_all();
    }
}

fn before_wait(waiting: Waiting) {
    MEMBER.with(|member| {
        if let Some(Member(turns)) = member.get() {
            turns.hand_over(waiting);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
    use std::thread::ThreadId;
    use weft_client::before_wait::before_wait;

    const LONG: Duration = Duration::from_secs(20);
    const THREADS: usize = 3;

    type Request = Box<dyn FnOnce() + Send>;

    /// A device whose requests are bytes, for each of which there is a job; fixed threads read it.
    struct Bench {
        device: UnixStream,
        jobs: Sender<Request>,
        turns: Arc<Turns>,
        ended: Receiver<()>,
        _polled: Arc<OwnedFd>,
    }

    impl Bench {
        fn new(busy_max: usize) -> Self {
            let (device, read) = UnixStream::pair().unwrap();
            let (jobs, waiting) = channel::<Request>();
            let (turns, waiting) = (Turns::with_busy(THREADS, busy_max), Arc::new(Mutex::new(waiting)));
            let polled = Arc::new(OwnedFd::from(read.try_clone().unwrap()));
            turns.begin(&polled);
            let (end, ended) = channel();
            for _ in 0..THREADS {
                let (turns, waiting, end) = (turns.clone(), waiting.clone(), end.clone());
                let mut read = read.try_clone().unwrap();
                thread::spawn(move || {
                    while read.read(&mut [0]).unwrap() == 1 {
                        let job = waiting.lock().unwrap().recv().unwrap();
                        turns.serve(job);
                    }
                    drop(end);
                });
            }
            Self { device, jobs, turns, ended, _polled: polled }
        }

        fn request(&mut self, job: impl FnOnce() + Send + 'static) {
            self.jobs.send(Box::new(job)).unwrap();
            self.device.write_all(&[1]).unwrap();
        }

        /// The thread that serves a request when nothing else is under way.
        fn server(&mut self) -> ThreadId {
            let (done, ran) = channel();
            self.request(move || done.send(thread::current().id()).unwrap());
            ran.recv_timeout(LONG).unwrap()
        }

        /// Makes all threads known, and waits until all but one are parked.
        fn settled() -> Self {
            Self::settled_with(1)
        }

        fn settled_with(busy_max: usize) -> Self {
            let mut bench = Self::new(busy_max);
            let deadline = Instant::now() + LONG;
            while bench.turns.lock().parked < THREADS - 1 {
                assert!(Instant::now() < deadline, "threads are not parked");
                bench.server();
                thread::sleep(Duration::from_micros(300));
            }
            bench
        }

        /// Ends the device, and waits for the threads.
        fn end(self) {
            drop(self.device);
            assert_eq!(self.ended.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
        }
    }

    #[test]
    fn one_thread_serves_requests_that_follow_one_another() {
        let mut bench = Bench::settled();
        let leader = bench.server();
        for _ in 0..100 {
            assert_eq!(bench.server(), leader);
        }
        bench.end();
    }

    #[test]
    fn a_leader_that_waits_hands_the_device_over() {
        for says_so in [true, false] {
            let mut bench = Bench::settled();
            let mut gates = Vec::new();
            for _ in 0..THREADS - 1 {
                let (open, gate) = channel::<()>();
                let (begin, begun) = channel();
                gates.push(open);
                bench.request(move || {
                    begin.send(()).unwrap();
                    if says_so {
                        before_wait(Waiting::Sleeps);
                    }
                    gate.recv_timeout(LONG).unwrap();
                });
                begun.recv_timeout(LONG).unwrap();
            }
            bench.server();
            drop(gates.into_iter().map(|gate| gate.send(()).unwrap()).collect::<Vec<_>>());
            bench.server();
            bench.end();
        }
    }

    #[test]
    fn a_leader_that_looks_hands_over_what_has_come_meanwhile() {
        let mut bench = Bench::settled();
        let (served, other) = channel();
        let (begin, begun) = channel();
        bench.request(move || {
            begin.send(()).unwrap();
            let deadline = Instant::now() + LONG;
            while other.try_recv().is_err() {
                assert!(Instant::now() < deadline);
                before_wait(Waiting::Looks);
            }
        });
        begun.recv_timeout(LONG).unwrap();
        bench.request(move || served.send(()).unwrap());
        bench.server();
        bench.end();
    }

    /// Three requests, of which the first holds the device until all have come: how many are served at once?
    fn served_at_once(busy_max: usize) -> usize {
        let mut bench = Bench::settled_with(busy_max);
        let (open, gate) = channel::<()>();
        bench.request(move || gate.recv_timeout(LONG).unwrap());
        let running = Arc::new((Mutex::new((0, 0)), Condvar::new()));
        let (done, all_done) = channel();
        for _ in 0..2 {
            let (running, done) = (running.clone(), done.clone());
            bench.request(move || {
                let (count, changed) = &*running;
                let mut count = count.lock().unwrap();
                *count = (count.0 + 1, count.1.max(count.0 + 1));
                changed.notify_all();
                // Half of the time after which the watcher would interfere.
                let _ = changed.wait_timeout_while(count, WATCH / 2, |count| count.1 < 2).unwrap();
                running.0.lock().unwrap().0 -= 1;
                done.send(()).unwrap();
            });
        }
        open.send(()).unwrap();
        (0..2).for_each(|_| all_done.recv_timeout(LONG).unwrap());
        bench.end();
        running.0.lock().unwrap().1
    }

    #[test]
    fn a_leader_that_finds_more_requests_shares_the_device_where_processors_are_free() {
        // Each try may be disturbed by other load.
        assert!((0..200).any(|_| served_at_once(2) == 2));
        let alone = (0..20).filter(|_| served_at_once(1) == 1).count();
        assert!(alone > 0, "one processor is one thread's");
    }

    #[test]
    fn parked_threads_end_with_the_mount() {
        Bench::settled().end();
    }
}
