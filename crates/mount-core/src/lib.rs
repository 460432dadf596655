//! What a mount decides, without I/O: async procedures over a [`MountShell`], which makes the effects (decision 0016).
//!
//! A mount stands between a kernel, which has caches of its own, and a client ([`weft_client_core`]), which holds the
//! leases that vouch for them. [`Mount`] has a procedure for each request of the kernel; [`KernelCaches`] has one for
//! each thing that the client wants dropped.
//!
//! | module | idea |
//! | --- | --- |
//! | `operations`, `files`, `directories` | what each request does |
//! | `open_modes` | through which cache the kernel takes an open file, per inode |
//! | `new_files` | which new files will stay empty |
//! | `telling` | what replies tell of names and attributes, and for how long |
//! | `kernel_inodes`, `kernel_listings` | which inodes and listings the kernel has |
//! | `kernel_sizes` | the kernel learns of bytes that others have added to an open file |
//! | `short_reads` | the kernel learns of a cut by a READ that is answered short, or is made to ask again |
//! | `invalidate` | the kernel's caches follow the recall of leases |
//! | `listing` | an open directory: cookies over pages of names |
//! | `locks` | advisory locks, passed to the client |
//! | `handles` | numbers for what is open |
//! | `shell` | what is asked of the outside |
//!
//! Lock order: `open_modes` (1), `new_files` (1), `handles` (2), `kernel_inodes` (3), `kernel_sizes` (3), `short_reads`
//! (3), the record and the kernel's place (3); none is held across an effect. The exceptions, a listing's own lock and
//! that of short READs, say why.

mod directories;
mod files;
mod handles;
mod invalidate;
mod kernel_inodes;
mod kernel_listings;
mod kernel_sizes;
mod listing;
mod lock;
mod locks;
mod new_files;
mod open_modes;
mod operations;
mod shell;
mod short_reads;
mod telling;
mod writer;
mod xattrs;

pub use directories::{OpenDirectory, Shown};
pub use files::{OpenFile, Opened};
pub use invalidate::{ENTRY_WAIT, Job, KernelCaches};
pub use kernel_listings::KeptListing;
pub use open_modes::Mode;
pub use operations::{Answer, Found, Make, Mount, Settings};
pub use shell::{
    DescriptorOf, Kernel, MonitorOf, MountNotice, MountShell, NotTaken, Notified, OpenOptionsOf, Refused, WaiterOf,
};
pub use weft_client_core::XattrKey;
pub use writer::{ReadBy, Thread, WrittenBy};
pub use xattrs::XattrReply;
