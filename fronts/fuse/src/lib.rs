//! The FUSE front: a Weft file system as a directory of this machine.
//!
//! The kernel sends each system call below the mount point as a message on `/dev/fuse`; this crate turns it into a call
//! of the client library and the answer back. It decides nothing: what may be cached, for how long, and who may do
//! what, comes from [`weft_client`]; how the kernel's own caches are kept in step with the client's leases, from
//! [`weft_mount_core`], whose shell this crate is (decision 0016).
//!
//! | module | idea |
//! | --- | --- |
//! | [`mount`](mod@mount) | a mount from attaching to its end; what was agreed with the kernel |
//! | `attach` | a connection to the kernel that is mounted somewhere, with and without root |
//! | `filesystem` | the kernel's requests, each as a procedure of `weft-mount-core` |
//! | `front` | what all requests share |
//! | `shell`, `notify` | the mount's shell: threads, clock, notifications as bytes |
//! | `workers` | threads that serve requests, so that a slow one holds up no other |
//! | `turns` | which of them reads the device, and looks for a request before it sleeps |
//! | `pending` | whether the program that waits for a request was killed |
//! | `locks` | file locks that wait, and what ends a wait |
//! | `credentials` | on whose behalf a request is made |
//! | `convert` | the kernel's values and Weft's |
//! | [`unmount`](mod@unmount), `mount_table`, `holders` | taking a mount away, dead or alive |
//! | [`guard`] | a process that fails the programs of a mount whose process was killed |
//!
//! # Passthrough
//! Where the kernel allows it, a file whose object is on this machine is read and written by the kernel itself, in the
//! object's own file: neither we nor the kernel keep pages of ours then, and what others write is there at once, under
//! a lease or without. What the client does about it is in `weft-client-core`, `open_inode.rs`.
//!
//! # The kernel's page cache
//! Of the other files: one that is opened while the client holds a data lease on it goes through the page cache,
//! write-through;
//! any other file bypasses it. A recall drops the pages. The kernel's *write-back* cache is off unless asked for: with
//! it, Linux takes size and modification time of every regular file that it has in memory from itself and never again
//! from the file system (`fuse_change_attributes`, for the whole mount, dirty or not), so that a file which another
//! client appended to would keep its old end here for as long as its inode is in memory. Leases are per file, that flag
//! is not.
//!
//! # Why a recall does not wait for itself
//! Recalls come on a thread of the client library, which calls `shell` with no lock held.
//! 1. Attributes: the kernel only marks them. Reads of that file that are under way are waited for, but not for long.
//! 2. Contents: the kernel waits for the reads and writes of that file that are under way, and writes dirty pages.
//!    Those are requests to this crate. There is always a thread to take them (`workers`, `turns`), and they wait for
//!    a storage server only, never for another client's lease: while a lease is being recalled its holder reads and
//!    writes past it.
//! 3. A name: the kernel takes the directory's lock, which an operation on that directory may hold that itself waits
//!    for this recall to be answered. So this runs on a thread of its own; after 10 ms all names are dropped without
//!    that lock, by the epoch, and only then the recall is answered (`invalidate`).
//!
//! Lock order: those of `weft-mount-core` (1 to 3), `credentials` (2), `workers` (3); none is held across a call of the
//! client, of the kernel, or a reply, but where it says why.
//!
//! On a crash of this process: the mount point stays and answers "transport endpoint is not connected"; [`unmount()`]
//! takes it away. Where a thread of the process waits in the kernel for a program that waits for the process, its
//! [`guard`] ends both waits.

mod attach;
mod convert;
mod credentials;
mod filesystem;
mod front;
pub mod guard;
mod holders;
mod locks;
pub mod mount;
mod mount_table;
mod notify;
mod pending;
mod shell;
mod turns;
pub mod unmount;
mod workers;
mod xattrs;

pub use mount::{MountOptions, Mounted, Negotiated, mount};
pub use pending::has_sigkill_pending;
pub use unmount::{Connection, unmount, unmount_by_force};
