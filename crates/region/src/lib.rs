//! An object store for non-volatile devices, usable by itself.
//!
//! After Takatsu, Hiraga and Tatebe, "Implementation and evaluation of an object storage for non-volatile devices"
//! (2018): a sparse 64-bit address space over a device ([`Layer`]), cut into regions of one size, an object each
//! ([`Store`]), so that the address of a byte is computed. docs/formats/region-store.md tells every byte on the device.
//!
//! Layers, each of which knows those before it only:
//!
//! * [`device`]: blocks are read, written, flushed, discarded;
//! * `space`, `overlay`, `sums`, `record`: which blocks are free, what was mapped since the last checkpoint, what
//!   checksums blocks have, the log's bytes. They do no I/O;
//! * `tree`: trees on a device; `base`: the map at the last checkpoint, one of them; `log`: the ring of records;
//! * [`Layer`]: reads and writes of virtual addresses, updates of several extents at once, trims, recovery;
//! * `sparse`: the same address space in a sparse file, whose host file system maps; [`AddressSpace`] is what both are;
//! * [`Store`]: objects, their sizes and times, identifiers;
//! * [`Versioned`]: objects that keep versions, each write a commit in a ring that the region is, and the index of all
//!   of them;
//! * [`Store::send`], [`Store::receive`]: a stream of what one store has and another one has not.
//!
//! What a crash leaves: everything that a [`Layer::sync`] has confirmed; of what was written later any part, as on the
//! device itself, but an update of several extents wholly or not at all. Never a block of another object. (In a
//! sparse file there are no such updates: docs/region.md.)

mod address_space;
mod area;
mod base;
mod buffer;
mod confirmed;
mod decoder;
pub mod decoders;
pub mod device;
mod dump;
mod error;
mod failures;
mod feed;
mod geometry;
mod ids;
mod joined;
mod layer;
mod lent;
mod log;
mod object;
mod overlay;
mod owner;
mod quiet;
mod record;
mod reuse;
mod rings;
mod scrub;
mod sealed;
mod sectors;
mod shadow;
mod space;
mod sparse;
mod store;
mod stream;
mod sums;
pub mod testing;
mod transfer;
mod tree;
mod versions;

pub use address_space::{AddressSpace, OwnPlaces};
pub use buffer::AlignedBuffer;
pub use device::{Device, FileDevice};
pub use dump::{DumpOptions, dump};
pub use error::{Error, Result};
pub use failures::Failures;
pub use feed::{Fed, Have, ReceiveOptions, SendOptions};
pub use geometry::{Checksums, Format};
pub use layer::{Findings, Layer, Usage};
pub use lent::LentSlots;
pub use object::{Object, ObjectKind, ObjectStat};
pub use owner::{FilePart, Owner};
pub use reuse::InMemory;
pub use scrub::Scrubbed;
pub use shadow::Shadow;
pub use store::{Kind, Store};
pub use stream::Stream;
pub use versions::{Cleaned, Keep, Version, VersionStat, Versioned};

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Bytes of a block: the unit of mapping, and of I/O on the device.
pub const BLOCK_BYTES: usize = 4096;
/// The same as a count of addresses.
pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

const _: () = assert!(usize::BITS == 64, "what has so many bytes fits in memory by its number");

/// Returns a number of blocks or bytes as an index of what is in memory.
pub(crate) const fn as_index(number: u64) -> usize {
    number as usize
}

/// From this address on no regions lie, but what the store keeps for itself.
pub(crate) const OWN_START: u64 = 15 << 60;

/// Takes a lock. What is guarded is changed in steps that each leave it whole, so a panic elsewhere does not matter.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same, to share what is guarded.
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// The same, to have it alone.
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that nobody can guess.
pub(crate) fn random<const BYTES: usize>() -> Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| Error::Setting(format!("no random bytes: {error}")))?;
    Ok(bytes)
}
