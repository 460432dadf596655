//! When blocks are used again, for who copies bytes out of a device that is a file in memory, without a lock.
//!
//! Such a reader has no gate: nobody waits for it, and the blocks may be given to somebody else before it has come to
//! them. So there is a word that changes before any block is given to anybody else: bytes that were copied before it
//! did are those of the blocks as they were looked up. What is written over them in place meanwhile may be old or new,
//! as in any read.

use std::sync::RwLockReadGuard;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often blocks became free. Its place does not move.
#[derive(Default)]
pub(crate) struct Reuses(Box<AtomicU64>);

impl Reuses {
    /// Blocks are about to be freed. Every reader that looked them up has released the gate.
    pub fn note(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// The number. The caller has the gate, and will look up what it vouches for.
    pub fn now(&self, _gate: &RwLockReadGuard<'_, ()>) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Where the number stands.
    pub fn word(&self) -> &AtomicU64 {
        &self.0
    }
}

/// See the module.
#[derive(Debug)]
pub struct InMemory<'a> {
    /// Address and length of each part, in order.
    pub parts: Vec<(u64, usize)>,
    /// The word...
    pub word: &'a AtomicU64,
    /// ... and its value as long as the parts are what they were.
    pub value: u64,
}
