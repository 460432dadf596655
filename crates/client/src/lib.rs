//! The client library: one file system, as every front sees it.
//!
//! [`Client`] is connected to one file system; it is cheap to clone and used from any number of threads. Operations on
//! names and inodes are its methods; an open file is a [`File`]. All calls block the calling thread, which itself reads
//! the socket for its reply.
//!
//! What decides stands in [`weft_client_core`] and does no I/O: the lease cache, the buffers of a file. The rest joins
//! it to connections ([`weft_transport`]), a thread for recalls, and the caller's threads.

mod calls;
pub mod client;
mod data_calls;
mod data_pool;
mod data_way;
pub mod file;
mod home;
mod identity;
pub mod instance;
pub mod key_file;
mod link;
pub mod names;
mod open_inode;
mod open_table;
mod opens;
pub mod path;
mod reader;
mod recalls;
mod terms;

pub use client::{Client, ClientCounters, ClientOptions, Invalidator, Way};
pub use file::{File, Lent, OpenOptions};
pub use instance::Instance;
pub use key_file::KeyFile;
pub use names::{DirectoryListing, Entry, FileSystemSpace, Location};
pub use weft_protocol as protocol;
pub use weft_transport::{RdmaSettings, Registration, Rpc};
