//! Shutdown request of a node.

use crate::locks::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Set once a shutdown was requested.
#[derive(Default)]
pub struct Stop {
    asked: AtomicBool,
    gate: Mutex<()>,
    changed: Condvar,
}

impl Stop {
    /// Requests the shutdown.
    pub fn ask(&self) {
        let _gate = lock(&self.gate);
        self.asked.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Returns true once the shutdown was requested.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Blocks until the shutdown is requested.
    pub fn wait(&self) {
        let mut gate = lock(&self.gate);
        while !self.asked() {
            gate = self.changed.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
