//! The client library: one file system, as every front sees it.
//!
//! [`Client`] is connected to one file system; it is cheap to clone and used from any number of threads. Operations
//! on names and inodes are its methods; an open file is a [`File`]. All calls block the calling thread, which itself
//! reads the socket for its reply.
//!
//! What decides is the client machine of [`weft_client_core`], which does no I/O. This crate is its shell:
//! connections ([`weft_transport`]), a thread for recalls, descriptors, clocks.

mod block_on;
pub mod client;
mod connection;
mod counters;
mod data_pool;
mod data_way;
mod descriptor;
mod device_error;
pub mod file;
mod file_locks;
pub mod find;
mod identity;
pub mod instance;
mod invalidator;
pub mod job;
pub mod key_file;
mod native;
mod node_end;
mod options;
mod page_drops;
pub mod path;
mod recall_connections;
mod recalls;
mod relocation;
mod space;
mod space_questions;
pub mod waits;

pub use block_on::block_on;
pub use client::Client;
pub use counters::ClientCounters;
pub use file::{File, JoinOptions, Lent, OpenOptions};
pub use file_locks::LockWait;
pub use find::FindError;
pub use instance::Instance;
pub use invalidator::Invalidator;
pub use key_file::KeyFile;
pub use native::{LockWaiter, NativeShell};
pub use options::{ClientOptions, Way};
pub use relocation::Relocation;
pub use space::{FileSystemSpace, StatFs};
pub use weft_client_core::{
    Destination, DirectoryListing, Entry, GroupWish, LeaveStep, Leaving, Location, LockRequest, PartUse, Placement,
    ReadList, STRIPE_BYTES_UNIT, Setting, Stays, XattrKey, layout_text, may, parse_layout, stripe_plan,
};
pub use weft_protocol as protocol;
pub use weft_transport::before_wait;
pub use weft_transport::{RdmaSettings, Registration, Rpc};
pub use weft_ucx::{LastingMemory, RegisteredMemory};
