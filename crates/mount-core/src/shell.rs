//! What a mount needs of the outside: its kernel, a clock, tasks beside the present one; and its client.
//!
//! As in the client machine (`weft_client_core::Shell`), every procedure here is an `async fn` over these traits. The
//! mount's shell blocks in each effect, so that a procedure ends at its first poll on the thread that serves the
//! kernel's request; the simulation's suspends it.
//!
//! Invariant: a procedure that was begun is polled until it ends, except when its whole process dies.

use crate::invalidate::Job;
use std::future::Future;
use std::time::Duration;
use weft_client_core::{OpenOptions, Registration, Shell};
use weft_protocol::{Error, InodeNumber, Name};

/// The kernel refused a notification: the error number of its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused(pub i32);

impl Refused {
    /// It does not know the inode or name (ENOENT).
    pub const NOT_FOUND: Self = Self(2);
}

/// A notification was carried out, or refused.
pub type Notified = Result<(), Refused>;

/// What is said to the kernel. A notification has been carried out when it returns.
pub trait Kernel {
    /// Drops a name. Waits for the lock of the directory. A name that it does not have is dropped.
    fn entry(&self, parent: InodeNumber, name: &Name) -> impl Future<Output = Notified>;
    /// Marks the attributes as old. Does not wait. [`Refused::NOT_FOUND`]: the kernel does not know the inode.
    fn attributes(&self, inode: InodeNumber) -> impl Future<Output = Notified>;
    /// Also writes back and drops the pages of a range (`bytes` 0: to the end). Waits for reads and writes under way.
    fn contents(&self, inode: InodeNumber, offset: u64, bytes: u64) -> impl Future<Output = Notified>;
    /// Makes the size of a file that has bytes at least so large. If it is smaller, replies to requests from before do
    /// not count; if not, nothing changes. A page with the last byte is added where there is none, to be read when it
    /// is used. Waits, when that is done, for a read or write of this page under way.
    fn grow(&self, inode: InodeNumber, size: u64) -> impl Future<Output = Notified>;
    /// Drops all names. Does not wait.
    fn increment_epoch(&self) -> impl Future<Output = Notified>;
}

/// Why the kernel does not take a file to read and write it by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// It takes none of this process.
    Never,
    /// Not this one.
    ThisOne,
}

/// Something worth a line in a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MountNotice {
    /// A notification of this was refused: the kernel knows nothing of it, or the mount is ending.
    NotInvalidated(&'static str, Refused),
    /// The epoch could not be incremented.
    EpochStays(Refused),
    /// A directory is locked for long: all names are dropped instead.
    AllNamesDropped(InodeNumber),
    /// A directory is locked for long, on a kernel without epochs: recalled names are dropped later.
    NamesDroppedLater(InodeNumber),
    /// Too many names are being dropped for this inode's to be: it stays known, or its attributes are told with no time
    /// for a while.
    StaysKnown(InodeNumber),
    /// The kernel takes no files of this process to read and write them by itself.
    NothingPassed,
    /// A file that was open at the end of the mount could not be closed.
    NotClosed(InodeNumber, Error),
}

/// The outside of one mount.
pub trait MountShell: Sized {
    /// The client's shell.
    type Client: Shell;
    type Kernel: Kernel;
    /// A file that the kernel reads and writes by itself; it is given back when this is dropped.
    type Backing;
    /// Set once, and waited for.
    type Signal: Default;

    /// Length of the kernel's pages.
    fn page_bytes(&self) -> u64;

    /// Time since some moment before the mount; it never goes back.
    fn now(&self) -> Duration;

    /// Sets a signal.
    fn set(signal: &Self::Signal);

    /// Waits for a signal. Whether it was set in time.
    fn wait(&self, signal: &Self::Signal, time: Duration) -> impl Future<Output = bool>;

    /// Has a job done soon, beside the present procedure. `false`: too many wait.
    fn submit(&self, job: Job<Self>) -> bool;

    fn notice(&self, notice: MountNotice);
}

/// How a file of the mount's client is opened.
pub type OpenOptionsOf<M> = OpenOptions<Registration<<M as MountShell>::Client>>;
/// A descriptor of the mount's client.
pub type DescriptorOf<M> = <<M as MountShell>::Client as Shell>::Descriptor;
/// Who waits for a lock of a file.
pub type WaiterOf<M> = <<M as MountShell>::Client as Shell>::LockWaiter;
/// A lock that may be held across effects.
pub type MonitorOf<M, T> = <<M as MountShell>::Client as Shell>::Monitor<T>;
