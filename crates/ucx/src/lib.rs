//! File data by RDMA through UCX: libucp, loaded at run time.
//!
//! * [`Receiver`] is a client's end: memory that the other side reads and writes ([`Region`], or memory lent for the
//!   length of a call), and the progress that some transports need for that.
//! * [`Mover`] is a server's end: it puts bytes into the client's memory and gets them from there.
//! * Both can send each other messages (`tell`, `next`), whole and in their order.
//!
//! There is one context for each process, of our own also where the program has loaded UCX for itself (MPI), tuned by
//! variables of our own: `WEFT_UCX_TLS` is to us what `UCX_TLS` is to others. After a fork every call of the child
//! fails with [`Error::Forked`], and nothing of the parent's is released by it.
//!
//! Not here: what is moved and when; sockets. This is the only place for UCX's foreign functions.
#![expect(unsafe_code, reason = "the place for it: each block says why it is sound")]

mod adapters;
mod context;
mod endpoint;
mod ffi;
mod library;
mod messages;
mod mover;
mod place;
mod receiver;
mod region;
mod registered;
mod transports;
mod window;
mod worker;

pub use adapters::{adapters, may_lock_files, prepare};
pub use endpoint::Liveness;
pub use library::{Library, Version};
pub use mover::{Mover, REGIONS_MAX};
pub use place::Place;
pub use receiver::{Lent, Receiver};
pub use region::Region;
pub use registered::{LastingMemory, RegisteredMemory, Registry};
pub use window::{FileWindow, PageWindow};

/// Why bytes cannot go by UCX.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such library on this machine.
    #[error("UCX cannot be loaded ({0}): install it (Debian: libucx0), or name its libucp in WEFT_UCX_LIBRARY")]
    Absent(String),
    /// The library is older than what we need.
    #[error("UCX {0} is too old: {needed} or later is needed", needed = library::OLDEST)]
    TooOld(Version),
    /// The library lacks a function.
    #[error("this libucp cannot be used: {0}")]
    Unusable(String),
    /// The process is a child of the one that uses UCX.
    #[error("UCX was set up by the parent of this process: a forked child cannot use it")]
    Forked,
    /// Less memory may be locked than UCX's own queues take.
    #[error(
        "only {0} KiB of memory may be locked, and RDMA adapters need {needed} KiB at least: `ulimit -l unlimited`",
        needed = adapters::LOCKED_BYTES_MIN >> 10
    )]
    LockedMemory(u64),
    /// A call of the library failed.
    #[error("{call}: {reason}")]
    Failed { call: &'static str, reason: String },
    /// The other side is gone, or the caller says so.
    #[error("the other side of the transfer is gone")]
    PeerGone,
    /// A transfer took too long: the transports that were chosen do not reach the other side, or not any more.
    #[error("a transfer did not end in time: the other side cannot be reached by UCX")]
    Late,
    /// The other side sent more messages than may wait, or something that is none.
    #[error("more messages than may wait")]
    Flooded,
    /// The other side named memory that it did not show, or more than it showed.
    #[error("memory that was never shown")]
    Foreign,
}

/// Result of a call in this crate.
pub type Result<T> = std::result::Result<T, Error>;
