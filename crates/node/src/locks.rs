//! Locking.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, ignoring poison. A shard's machine that panicked is marked failed by the thread that caught the
/// panic; all other state changes in single steps.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
