//! The client library: one file system, as every front sees it.
//!
//! [`Client`] is connected to one file system; it is cheap to clone and used from any number of threads. Operations on names
//! and inodes are its methods; an open file is a [`File`]. All calls block the calling thread, which itself reads the socket
//! for its reply.
//!
//! What decides stands in [`core`] and does no I/O: the lease cache, the slots, the buffers of a file. The rest joins it to
//! connections ([`weft_transport`]), a thread for recalls, and the caller's threads.

pub mod client;
pub mod file;
pub mod instance;
pub mod names;
pub mod path;

pub use client::{Client, ClientCounters, ClientOptions, Invalidator, Way};
pub use file::{File, OpenOptions};
pub use instance::Instance;
pub use names::{DirectoryListing, Entry, FileSystemSpace, Location};
pub use weft_protocol as protocol;
