//! Advisory locks: the kernel's requests for them, and those of them that wait.
//!
//! A request that has to wait keeps no thread: its reply is sent when the client learns that the lock is granted. The
//! kernel wants a wait to end early by FUSE_INTERRUPT, which may overtake the request, since another thread reads it:
//! the last interrupts that named no wait are kept for waits to come.
//!
//! Lock order: `waits` is a leaf.

use crate::convert;
use crate::front::{Front, answer};
use crate::workers::Workers;
use fuser::{ReplyEmpty, ReplyLock};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weft_client::{LockRequest, block_on};
use weft_protocol::{Error, LockKind, LockOwner, LockRange, RangeLock, Result};

/// Interrupts that are kept for waits to come. Each is overtaken by one request of the thread that it interrupts.
const EARLY_MAX: usize = 64;

/// Requests that wait, by their number in the kernel's protocol.
#[derive(Default)]
pub struct LockWaits {
    waits: Mutex<Waits>,
    has_records: AtomicBool,
}

#[derive(Default)]
struct Waits {
    /// The client's number of the wait; and whether the kernel wants it to end.
    begun: HashMap<u64, (u64, bool)>,
    early: VecDeque<u64>,
}

/// What SETLKW asks for.
#[derive(Clone)]
pub struct Asked {
    /// Number of the request.
    pub unique: u64,
    pub handle: u64,
    pub request: LockRequest,
}

impl LockWaits {
    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A program of this mount locks by `fcntl`: from now on `close` has to be told of each open file.
    pub fn note_record_lock(&self) {
        self.has_records.store(true, Ordering::Relaxed);
    }

    /// Returns true if a program of this mount has locked by `fcntl`.
    pub fn has_record_locks(&self) -> bool {
        self.has_records.load(Ordering::Relaxed)
    }

    /// A request waits from now on under this number of the client's. `false`: it was interrupted.
    fn begin(&self, unique: u64, wait: u64) -> bool {
        let mut waits = self.waits();
        let early = waits.early.iter().position(|early| *early == unique);
        let interrupted = early.and_then(|index| waits.early.remove(index)).is_some();
        let entry = waits.begun.entry(unique).or_insert((wait, false));
        entry.0 = wait;
        !(interrupted || entry.1)
    }

    fn end(&self, unique: u64) {
        self.waits().begun.remove(&unique);
    }

    /// The kernel wants a request to end. Returns the client's number of the wait.
    pub fn interrupt(&self, unique: u64) -> Option<u64> {
        let mut waits = self.waits();
        if let Some((wait, interrupted)) = waits.begun.get_mut(&unique) {
            *interrupted = true;
            return Some(*wait);
        }
        waits.early.push_back(unique);
        if waits.early.len() > EARLY_MAX {
            waits.early.pop_front();
        }
        None
    }
}

/// Locks, and answers when that is done. After the end of the session it is begun anew.
pub fn wait_for(front: &Arc<Front>, workers: &Arc<Workers>, asked: Asked, reply: ReplyEmpty) {
    let client = front.client.machine();
    let wait = client.calls().locks.next_number();
    if !front.locks.begin(asked.unique, wait) {
        front.locks.end(asked.unique);
        return answer("setlkw", Err(Error::Interrupted), reply);
    }
    let (handle, request) = (asked.handle, asked.request.clone());
    // While it waits, nothing of the mount is kept by it.
    let (weak, weak_workers) = (Arc::downgrade(front), Arc::downgrade(workers));
    let waiter = Box::new(move |result| ended(&weak, &weak_workers, asked, result, reply));
    block_on(front.mount.lock(handle, &request, wait, waiter));
}

/// On whatever thread learns that the wait is over.
fn ended(front: &Weak<Front>, workers: &Weak<Workers>, asked: Asked, result: Result<()>, reply: ReplyEmpty) {
    let (Some(front), Some(workers)) = (front.upgrade(), workers.upgrade()) else { return };
    if result == Err(Error::SessionEnded) {
        let again = Arc::clone(&workers);
        // Without a thread the reply is dropped, and the program gets EIO.
        return workers.spill_or_drop(move || wait_for(&front, &again, asked, reply));
    }
    front.locks.end(asked.unique);
    answer("setlkw", result, reply);
}

/// What GETLK asks for.
pub fn test(front: &Front, handle: u64, owner: LockOwner, lock: RangeLock, reply: ReplyLock) {
    match block_on(front.mount.test_lock(handle, owner, lock)) {
        Ok(None) => reply.locked(lock.range.start, lock.range.end, convert::F_UNLCK, 0),
        Ok(Some(held)) => {
            let RangeLock { range, mode } = held.lock;
            reply.locked(range.start, range.end, convert::lock_type(mode), held.pid);
        }
        Err(error) => reply.error(convert::errno(&error)),
    }
}

/// Owner of the locks that a request is about.
pub fn owner(number: fuser::LockOwner, is_flock: bool) -> LockOwner {
    let kind = if is_flock { LockKind::Flock } else { LockKind::Process };
    LockOwner { kind, number: number.0 }
}

/// Answers SETLK, which does not wait. `lock`: `None` unlocks.
pub fn set(front: &Front, handle: u64, request: &LockRequest, range: LockRange, reply: ReplyEmpty) {
    let result = if request.locks.is_empty() {
        block_on(front.mount.unlock(handle, request.owner, &[range]))
    } else {
        block_on(front.mount.try_lock(handle, request))
    };
    answer("setlk", result, reply);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_that_overtakes_its_request_ends_it() {
        let waits = LockWaits::default();
        assert_eq!(waits.interrupt(4), None);
        assert!(waits.begin(2, 20));
        assert!(!waits.begin(4, 21));
        waits.end(4);
        assert_eq!(waits.interrupt(2), Some(20));
        assert!(!waits.begin(2, 22), "it does not begin anew");
        waits.end(2);
        (100..200).for_each(|unique| assert_eq!(waits.interrupt(unique), None));
        assert!(waits.begin(100, 1) && !waits.begin(199, 2), "those of long ago are forgotten");
    }
}
