//! Locks of values that are changed in single steps and never held across an effect.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a panic elsewhere left the guarded value whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
