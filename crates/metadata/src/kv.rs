//! The ordered key-value store under a shard.
//!
//! Keys and values are bytes, in the layout of `docs/formats/metadata-keys.md`; the store knows nothing of their
//! meaning. [`MemoryStore`] is the store of ephemeral shards; durable ones put an embedded store behind the same trait.
//!
//! Invariant: a scan meets the keys in the order of their bytes, each once.
//! Not here: transactions. A shard is one thread, and what must be durable together is one command of its back machine.
//! On a crash: what a store keeps is its own promise; a store whose device failed stops the shard (it panics with the
//! device's error), since going on from a half-written state would lose data.

mod copied;
mod memory;
mod page;

pub use copied::{CopiedStore, add_piece};
pub use memory::MemoryStore;

use std::ops::ControlFlow;

/// Longest key, bytes; the keys of today are shorter. Longest value: the target of a symbolic link.
pub const KEY_BYTES_MAX: usize = 264;

/// An ordered map from bytes to bytes.
pub trait KeyValue {
    /// Hands the value to `read` in place (no copy). `None`: the key is not there.
    fn get<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R>;

    /// Sets the value. Returns whether the key was there before.
    fn put(&mut self, key: &[u8], value: &[u8]) -> bool;

    /// Sets the value unless the key is there. Returns whether it was set.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> bool;

    /// Removes the key. Returns whether it was there.
    fn delete(&mut self, key: &[u8]) -> bool;

    /// Visits keys and values from `from` (included) upwards, until `visit` breaks.
    fn scan(&self, from: &[u8], visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>);

    /// Bytes that the store takes: for a store in memory with the allocator's share, estimated.
    fn bytes(&self) -> u64;
}
