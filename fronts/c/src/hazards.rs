//! Hazards: which handles the calls in flight use.
//!
//! Hazard pointers (Michael, 2004), with handles instead of addresses. A call announces its handle in a hazard of its
//! thread, and then checks that the handle is open. Close marks the handle as closed, and then looks for it in the
//! hazards of all threads. Each side needs its store before its load. The barrier for that is asymmetric: calls only
//! keep the compiler from reordering, and close makes all running threads of the process execute a barrier, by
//! membarrier(2). Where the kernel refuses that, calls execute a barrier too.
//!
//! Invariant: a call whose announcement [`is_announced`] does not see after [`barrier`] finds the handle closed.
//!
//! Cost of a call: two stores into a cache line of its thread. Of the close of a handle that several threads have
//! used: a system call, which interrupts the processors that run other threads of the process.
//!
//! Lock order: the list of records is a leaf.

use rustix::thread::{MembarrierCommand, membarrier};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence, fence};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Handles that a call uses at a time: a queue and a file.
const HAZARDS: usize = 2;
/// In a hazard: no handle.
const NONE: usize = 0;

/// A thread, as long as it lives: its hazards. A cache line and the one that is fetched with it, which no other thread
/// stores to.
#[repr(align(128))]
pub struct Record {
    hazards: [AtomicUsize; HAZARDS],
    /// Whether it belongs to a thread. Changed with the list locked.
    is_taken: AtomicBool,
}

/// Records of all threads. They are never freed: those of threads that have ended are taken again.
static RECORDS: Mutex<Vec<&'static Record>> = Mutex::new(Vec::new());

/// Whether [`barrier`] reaches all threads. Changes once at most, to true.
static IS_ASYMMETRIC: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The thread's record, once it has one.
    static RECORD: Cell<Option<&'static Record>> = const { Cell::new(None) };
    /// Gives it back when the thread ends.
    static OWNER: Owner = const { Owner };
}

struct Owner;

impl Drop for Owner {
    fn drop(&mut self) {
        let records = records();
        if let Some(record) = RECORD.take() {
            record.is_taken.store(false, Ordering::Relaxed);
        }
        drop(records);
    }
}

fn records() -> MutexGuard<'static, Vec<&'static Record>> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An announced handle.
pub struct Hazard(&'static AtomicUsize);

/// The calling thread's record. `None`: the thread is about to end, and nobody would give a record back.
#[inline(always)]
pub fn this_thread() -> Option<&'static Record> {
    RECORD.get().or_else(register)
}

impl Record {
    /// Announces that the calling thread, whose record this is, uses a handle. `None`: it has no free hazard.
    #[inline(always)]
    pub fn announce(&'static self, handle: usize) -> Option<Hazard> {
        let hazard = self.hazards.iter().find(|hazard| hazard.load(Ordering::Relaxed) == NONE)?;
        // Release, as its end: what this thread has read of another handle's value was read before.
        hazard.store(handle, Ordering::Release);
        light_barrier();
        Some(Hazard(hazard))
    }

    /// Whether the thread uses a handle, or has yet to find that it is closed.
    pub fn announces(&self, handle: usize) -> bool {
        self.hazards.iter().any(|hazard| hazard.load(Ordering::Acquire) == handle)
    }
}

impl Hazard {
    /// Ends the use. Returns the handle. What was read of its value was read before.
    #[inline(always)]
    pub fn end(&self) -> usize {
        let handle = self.0.load(Ordering::Relaxed);
        self.0.store(NONE, Ordering::Release);
        light_barrier();
        handle
    }
}

/// Takes a record for this thread.
#[cold]
fn register() -> Option<&'static Record> {
    OWNER.try_with(|_| ()).ok()?;
    let mut records = records();
    let record = match records.iter().find(|record| !record.is_taken.load(Ordering::Relaxed)) {
        Some(record) => *record,
        None => {
            let hazards = [const { AtomicUsize::new(NONE) }; HAZARDS];
            let record = &*Box::leak(Box::new(Record { hazards, is_taken: AtomicBool::new(false) }));
            records.push(record);
            record
        }
    };
    record.is_taken.store(true, Ordering::Relaxed);
    RECORD.set(Some(record));
    Some(record)
}

/// Whether any thread announces a handle.
pub fn is_announced(handle: usize) -> bool {
    records().iter().any(|record| record.announces(handle))
}

/// The calls' part of the barrier.
#[inline(always)]
fn light_barrier() {
    if IS_ASYMMETRIC.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The close's part of the barrier.
pub fn barrier() {
    fence(Ordering::SeqCst);
    if IS_ASYMMETRIC.load(Ordering::Relaxed) && membarrier(MembarrierCommand::PrivateExpedited).is_err() {
        // A kernel may forget it in a forked child.
        let again = membarrier(MembarrierCommand::RegisterPrivateExpedited)
            .and_then(|()| membarrier(MembarrierCommand::PrivateExpedited));
        again.expect("the kernel has let this process use membarrier(2) before");
    }
}

/// Asks the kernel for the asymmetric barrier. To be called before the first handle is made.
pub fn prepare() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        let registered = membarrier(MembarrierCommand::RegisterPrivateExpedited);
        IS_ASYMMETRIC.store(registered.is_ok(), Ordering::Relaxed);
    });
}
