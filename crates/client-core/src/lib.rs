//! What a client decides, without I/O: what it may still believe of names ([`Cache`]) and of the files that it has open
//! ([`FileState`]), which written bytes it gathers ([`WriteBehind`]), which bytes and which names it asks for ahead
//! ([`ReadAhead`], [`LookAhead`]).
//!
//! The client library joins this to connections and threads, the simulation to a virtual network.

mod cache;
mod file_state;
mod look_ahead;
mod read_ahead;
mod write_behind;

pub use cache::{Cache, Cached, DirectoryChange, Dropped};
pub use file_state::{FileState, Held, Opened};
pub use look_ahead::{LookAhead, PageAhead};
pub use read_ahead::{Lane, Pace, ReadAhead, Window};
pub use write_behind::{Taken, WriteBehind};
