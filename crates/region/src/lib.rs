//! An object store for non-volatile devices, usable by itself.
//!
//! After Takatsu, Hiraga and Tatebe, "Implementation and evaluation of an object storage for non-volatile devices"
//! (2018): a sparse 64-bit address space over a device ([`Layer`]), cut into regions of one size, an object each
//! ([`Store`]), so that the address of a byte is computed. docs/formats/region-store.md tells every byte on the device.
//!
//! Layers, each of which knows those before it only:
//!
//! * [`device`]: blocks are read, written, flushed, discarded;
//! * `space`, `overlay`, `record`: which blocks are free, what was mapped since the last checkpoint, the log's bytes.
//!   They do no I/O;
//! * `base`: the map at the last checkpoint, a tree on the device; `log`: the ring of records;
//! * [`Layer`]: reads and writes of virtual addresses, updates of several extents at once, trims, recovery;
//! * [`Store`]: objects, their sizes and times, identifiers.
//!
//! What a crash leaves: everything that a [`Layer::sync`] has confirmed; of what was written later any part, as on the
//! device itself, but an update of several extents wholly or not at all. Never a block of another object.

mod base;
mod buffer;
pub mod device;
mod error;
mod geometry;
mod ids;
mod layer;
mod log;
mod object;
mod overlay;
mod record;
mod sealed;
mod space;
mod store;

pub use buffer::AlignedBuffer;
pub use device::{Device, FileDevice};
pub use error::{Error, Result};
pub use geometry::Format;
pub use layer::{Findings, Layer, Usage};
pub use object::{Object, ObjectStat, Owner};
pub use store::{Kind, Store};

/// Bytes of a block: the unit of mapping, and of I/O on the device.
pub const BLOCK_BYTES: usize = 4096;
/// The same as a count of addresses.
pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

/// Takes a lock. What is guarded is changed in steps that each leave it whole, so a panic elsewhere does not matter.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
