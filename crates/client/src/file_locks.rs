//! Advisory locks of open files.
//!
//! They belong to the handle, whoever uses it, as `F_OFD_SETLK` locks do, and are in the way of `fcntl` locks of
//! programs in mounts. They end with the handle's last clone, or with the session; then whatever the handle is used for
//! fails until it unlocks.

use crate::block_on::{block_on, lock};
use crate::file::{File, OpenFile};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use weft_client_core::LockRequest;
use weft_protocol::{Error, HeldLock, LockRange, RangeLock, Result};
use weft_transport::before_wait::{Waiting, before_wait};

/// Locks that a file is being locked with. Dropping it gives up what was not granted yet.
pub struct LockWait {
    file: Arc<OpenFile>,
    request: LockRequest,
    /// Of the wait that is under way.
    number: AtomicU64,
    cancelled: AtomicBool,
    ended: Arc<Ended>,
}

/// The result of a wait.
#[derive(Default)]
struct Ended {
    result: Mutex<Option<Result<()>>>,
    changed: Condvar,
}

impl File {
    /// Locks ranges, all of them or none, in one message; waits as long as others are in the way.
    /// [`Error::Deadlock`] does not come: the handle may be unlocked by another thread.
    pub fn lock(&self, locks: &[RangeLock]) -> Result<()> {
        self.begin_lock(locks)?.wait()
    }

    /// As [`File::lock`], but fails with [`Error::WouldBlock`] instead of waiting.
    pub fn try_lock(&self, locks: &[RangeLock]) -> Result<()> {
        let request = self.lock_request(locks)?;
        block_on(self.0.client.0.try_lock(self.0.own()?, &request))
    }

    /// Begins to lock ranges; another thread may give up the wait. A request that waits is granted before any that
    /// came later and is in its way.
    pub fn begin_lock(&self, locks: &[RangeLock]) -> Result<LockWait> {
        let wait = LockWait {
            file: Arc::clone(&self.0),
            request: self.lock_request(locks)?,
            number: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            ended: Arc::default(),
        };
        wait.begin();
        Ok(wait)
    }

    /// Unlocks ranges. [`Error::SessionEnded`]: they had been lost, and others may have locked them since.
    pub fn unlock(&self, ranges: &[LockRange]) -> Result<()> {
        let (files, handle) = (&self.0.client.0, self.0.own()?);
        block_on(files.unlock(handle, handle.lock_owner(files.calls()), ranges))
    }

    /// Returns a lock of another owner that is in the way of this one.
    pub fn test_lock(&self, lock: RangeLock) -> Result<Option<HeldLock>> {
        let (files, handle) = (&self.0.client.0, self.0.own()?);
        block_on(files.test_lock(handle, handle.lock_owner(files.calls()), lock))
    }

    fn lock_request(&self, locks: &[RangeLock]) -> Result<LockRequest> {
        let owner = self.0.own()?.lock_owner(self.0.client.0.calls());
        Ok(LockRequest { owner, pid: std::process::id(), locks: locks.to_vec() })
    }
}

impl LockWait {
    fn begin(&self) {
        let (client, handle) = (&self.file.client, self.file.own().expect("the request was made with it"));
        let number = client.0.calls().locks.next_number();
        self.number.store(number, Ordering::SeqCst);
        let ended = Arc::clone(&self.ended);
        let waiter = Box::new(move |result| {
            *lock(&ended.result) = Some(result);
            ended.changed.notify_all();
        });
        block_on(client.0.lock(handle, &self.request, number, waiter));
        if self.cancelled.load(Ordering::SeqCst) {
            block_on(client.0.cancel_lock(number));
        }
    }

    /// Waits until the ranges are locked. [`Error::Interrupted`]: the wait was given up.
    pub fn wait(&self) -> Result<()> {
        loop {
            if let Some(result) = self.wait_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// As [`LockWait::wait`], but returns `None` if that takes longer than `time`: then it may be waited for again.
    pub fn wait_for(&self, time: Duration) -> Option<Result<()>> {
        loop {
            match self.ended(time)? {
                // Nothing was locked yet; the request waits once more, behind those that came meanwhile.
                Err(Error::SessionEnded) if !self.cancelled.load(Ordering::SeqCst) => {
                    *lock(&self.ended.result) = None;
                    self.begin();
                }
                result => return Some(result),
            }
        }
    }

    fn ended(&self, time: Duration) -> Option<Result<()>> {
        let result = lock(&self.ended.result);
        if result.is_none() {
            before_wait(Waiting::Sleeps);
        }
        let waited = self.ended.changed.wait_timeout_while(result, time, |result| result.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Gives up, from any thread: `wait` returns [`Error::Interrupted`], or well if the ranges were locked before.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        let number = self.number.load(Ordering::SeqCst);
        block_on(self.file.client.0.cancel_lock(number));
    }
}

impl Drop for LockWait {
    fn drop(&mut self) {
        let is_over = lock(&self.ended.result).is_some();
        if !is_over {
            self.cancel();
        }
    }
}
