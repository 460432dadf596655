//! How the client machine's procedures run here: to their end, on the calling thread.
//!
//! Every effect of the native shell blocks its thread and is then ready, so a procedure ends at its first poll.

use std::future::Future;
use std::pin::pin;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use weft_client_core::Monitor;
use weft_transport::before_wait::{Waiting, before_wait};

/// A waiter looks again after this time: a thread that panicked may have notified without the lock, between a
/// waiter's look and its sleep.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Runs a procedure over the native shell. Always inlined: its state is kilobytes, which would be moved with the call.
#[inline(always)]
pub fn block_on<F: Future>(procedure: F) -> F::Output {
    crate::waits::begin();
    let polled = pin!(procedure).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(output) = polled else { unreachable!("an effect of the native shell did not block") };
    output
}

/// Locks; a panic elsewhere left the guarded value whole, since it is changed in single steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mutex and its condition.
pub struct NativeMonitor<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Monitor<T> for NativeMonitor<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new() }
    }

    async fn lock<'a>(&'a self) -> MutexGuard<'a, T>
    where
        T: 'a,
    {
        match self.value.try_lock() {
            Ok(guard) => guard,
            // Its holder may be waiting for a server.
            Err(_) => {
                before_wait(Waiting::Sleeps);
                lock(&self.value)
            }
        }
    }

    fn try_lock<'a>(&'a self) -> Option<MutexGuard<'a, T>>
    where
        T: 'a,
    {
        self.value.try_lock().ok()
    }

    async fn wait<'a>(&'a self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T>
    where
        T: 'a,
    {
        before_wait(Waiting::Sleeps);
        self.changed.wait_timeout(guard, WAIT_MAX).unwrap_or_else(PoisonError::into_inner).0
    }

    fn notify_all(&self) {
        self.changed.notify_all();
    }
}
