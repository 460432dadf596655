//! What a client decides, without I/O: state machines over a [`Shell`], which makes the effects.
//!
//! [`Files`] is the whole client machine: its layers are in `files.rs`. Below them are machines without any effect:
//! what may still be believed of names ([`Cache`]) and of open files ([`FileState`]), what the kernel of a mount may
//! still believe ([`KernelView`]), which written bytes are gathered ([`WriteBehind`]), which bytes and names are
//! prefetched ([`ReadAhead`], [`LookAhead`]).
//!
//! The client library's shell is sockets, threads and files; the simulation's is a virtual network and clock. Both
//! run the same procedures.

mod below;
mod cache;
mod calls;
mod changing;
mod data_line;
mod entry;
#[cfg(test)]
mod examples;
mod file_objects;
mod file_state;
mod files;
mod forgetting;
mod group;
mod handle;
mod home;
mod inspection;
mod joined_groups;
mod kept_locks;
mod kernel_view;
mod leaving;
mod lines;
mod link;
mod lists;
mod lock;
mod lock_calls;
mod lock_table;
mod locks;
mod look_ahead;
mod lookup;
mod member;
mod memory;
mod names;
mod new_objects;
mod noted_pages;
mod notice;
mod numbers;
mod objects;
mod open;
mod open_for_group;
mod open_inode;
mod open_options;
mod open_table;
mod opens;
mod page_drops;
mod parts;
mod parts_in_use;
mod read_ahead;
mod reader;
mod recall;
mod relocate;
mod retry_stale;
mod sending;
mod session;
mod settings;
mod shell;
mod split;
mod transfers;
mod tuning;
mod write_behind;
mod write_lines;
mod xattrs;

pub use cache::{Cache, Cached, DirectoryChange, Dropped, KnownXattrs};
pub use calls::{BUSY_MS_MAX, BUSY_WAIT_US, Caller, Calls};
pub use data_line::DataLine;
pub use entry::{DirectoryListing, Entry, Location, PartUse};
pub use file_objects::{FileObjects, Held};
pub use file_state::{FileState, Opened};
pub use files::Files;
pub use group::GroupHandle;
pub use handle::Handle;
pub use joined_groups::JoinedGroups;
pub use kernel_view::{KernelView, Ticket};
pub use leaving::{LeaveStep, Leaving, Stays};
pub use link::SlotFor;
pub use lists::ReadList;
pub use lock_table::{LockRequest, Locks};
pub use look_ahead::{LookAhead, PageAhead};
pub use lookup::may;
pub use member::Member;
pub use memory::LISTING_BYTES_MAX;
pub use names::{LostName, Renamed};
pub use notice::Notice;
pub use objects::{Objects, Registration};
pub use open_for_group::{GroupWish, OpenedFile};
pub use open_inode::{FlushFor, LentFile, OpenInode, Written};
pub use open_options::{JoinOptions, OpenOptions};
pub use page_drops::Coverage;
pub use read_ahead::{Lane, Pace, ReadAhead, Window};
pub use relocate::{Destination, Relocation};
pub use retry_stale::retry_stale;
pub use session::{RELEASE_BATCH, Session};
pub use settings::{Placement, STRIPE_BYTES_UNIT, Setting, XattrKey, layout_text, parse_layout, stripe_plan};
pub use shell::{ControlConnection, DataConnection, Monitor, PassedDescriptor, Shell};
pub use tuning::{IdleLimits, Tuning};
pub use write_behind::{Taken, WriteBehind};
