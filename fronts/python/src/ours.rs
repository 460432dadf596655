//! Things that Python holds, until they are closed or the process is another.

use crate::raise::raise;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_library::{Failure, FileSystem, OpenFile, Outcome, Process, this_process};

/// What belongs to the process that made it.
pub trait Made: Send + Sync {
    /// That process.
    fn made_in(&self) -> Process;
}

impl Made for FileSystem {
    fn made_in(&self) -> Process {
        FileSystem::made_in(self)
    }
}

impl Made for OpenFile {
    fn made_in(&self) -> Process {
        self.fs.made_in()
    }
}

/// Something that can be closed. In a forked child it fails, and is left alone to the end: its connections, and what it
/// would say on them, are the parent's.
pub struct Ours<T: Made>(Mutex<Option<Arc<T>>>);

impl<T: Made> Ours<T> {
    /// A value that is open.
    pub fn new(value: Arc<T>) -> Self {
        Self(Mutex::new(Some(value)))
    }

    fn value(&self) -> MutexGuard<'_, Option<Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.value().is_none()
    }

    /// The value; once it is closed a `ValueError`, as of Python's files.
    pub fn get(&self) -> PyResult<Arc<T>> {
        let value = self.value().clone().ok_or_else(|| PyValueError::new_err("it is closed"))?;
        if value.made_in() == this_process() {
            return Ok(value);
        }
        let text = "it was opened before fork(): the connection is the parent's; connect again in the child";
        std::mem::forget(value);
        Err(raise(Failure::new(libc::ENOTCONN, text)))
    }

    /// Closes it. `None`: it was, or it is a parent's.
    pub fn take(&self) -> Option<Arc<T>> {
        let value = self.value().take()?;
        if value.made_in() == this_process() {
            return Some(value);
        }
        std::mem::forget(value);
        None
    }

    /// Calls it without the interpreter's lock.
    pub fn call<R: Send>(&self, py: Python<'_>, call: impl FnOnce(&Arc<T>) -> Outcome<R> + Send) -> PyResult<R> {
        let value = self.get()?;
        py.detach(|| {
            let result = call(&value);
            // If this is the last of it, what ends it may have to ask somebody, too.
            drop(value);
            result
        })
        .map_err(raise)
    }
}

impl<T: Made> Drop for Ours<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
