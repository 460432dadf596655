//! What programs that link Weft call, whatever their language: the base of the C library and the Python package.
//!
//! The client library has inodes and credentials; a program has paths, `open`'s flags, an umask, one user, children
//! that it forks and an end. This crate is what stands between: a [`FileSystem`] is connected as the process's user,
//! a [`Place`] is where a path is to be looked up, an [`OpenFile`] is what `open` made of it. All calls block.
//!
//! Not here: how a language passes its arguments, and what memory it lends (`fronts/c`, `fronts/python`).
#![expect(unsafe_code, reason = "fork, exit and signal handlers: each block says why it is sound")]

mod attributes;
mod failure;
mod file_system;
mod forks;
mod hints;
mod listing;
mod locate;
mod locks;
mod mode;
mod names;
mod open_file;
mod place;
mod registered;
mod signals;
mod xattrs;

pub use attributes::{BLOCK_BYTES, PREFERRED_IO_BYTES};
pub use failure::{Explain, Failure, Outcome};
pub use file_system::{FileSystem, Settings};
pub use forks::{Process, this_process};
pub use hints::Hints;
pub use listing::Cursor;
pub use locate::{Located, locate};
pub use locks::{lock_range, range_lock};
pub use mode::{file_type, mode, permission_bits};
pub use open_file::{OpenFile, checked_range};
pub use place::Place;
pub use registered::Registered;
pub use signals::blocked;
pub use weft_client::{ClientCounters, LastingMemory, ReadList};
pub use xattrs::expectation;
