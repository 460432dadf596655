//! The mount's shell on a real machine: each effect blocks the thread that asks for it.
//!
//! Names that wait for the lock of their directory do so on threads of a pool.
//! Not here: notifications as bytes (`notify.rs`), what is decided (`weft-mount-core`).

use crate::notify::Device;
use crate::workers::Pool;
use fuser::BackingId;
use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft_client::before_wait::{Waiting, before_wait};
use weft_client::{Invalidator, NativeShell, block_on};
use weft_mount_core::{Job, Kernel, KernelCaches, MountNotice, MountShell, Refused};
use weft_protocol::{InodeNumber, LeaseKey, Name};

/// Names that can be in the kernel's hands at the same time: each may wait for the lock of its directory.
const THREADS_MAX: usize = 64;
/// Names that wait for such a thread.
const WAITING_MAX: usize = 1 << 16;

/// See the module. The kernel is another one in tests.
pub struct FuseShell<K = Device> {
    start: Instant,
    pool: Pool,
    kernel: PhantomData<fn() -> K>,
}

impl<K> FuseShell<K> {
    pub fn new() -> Self {
        let pool = Pool::new("weft-fuse-invalidate", THREADS_MAX, WAITING_MAX);
        Self { start: Instant::now(), pool, kernel: PhantomData }
    }
}

impl<K: Kernel + Send + Sync + 'static> MountShell for FuseShell<K> {
    type Client = NativeShell;
    type Kernel = K;
    type Backing = BackingId;
    type Signal = Done;

    fn page_bytes(&self) -> u64 {
        rustix::param::page_size() as u64
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn set(done: &Done) {
        *done.set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        done.changed.notify_all();
    }

    async fn wait(&self, done: &Done, time: Duration) -> bool {
        before_wait(Waiting::Sleeps);
        let deadline = Instant::now() + time;
        let mut set = done.set.lock().unwrap_or_else(PoisonError::into_inner);
        while !*set {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            set = done.changed.wait_timeout(set, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn submit(&self, job: Job<Self>) -> bool {
        self.pool.submit(Box::new(move || block_on(job.run(log)))).is_ok()
    }

    fn notice(&self, notice: MountNotice) {
        log(notice);
    }
}

/// Set once.
#[derive(Default)]
pub struct Done {
    set: Mutex<bool>,
    changed: Condvar,
}

fn text(refused: Refused) -> io::Error {
    io::Error::from_raw_os_error(refused.0)
}

fn log(notice: MountNotice) {
    match notice {
        MountNotice::NotInvalidated(what, refused) => tracing::debug!("invalidation of {what}: {}", text(refused)),
        MountNotice::EpochStays(refused) => {
            tracing::warn!("the epoch of names could not be incremented: {}", text(refused));
        }
        MountNotice::AllNamesDropped(parent) => tracing::debug!("directory {parent} is busy: all names are dropped"),
        MountNotice::NamesDroppedLater(parent) => {
            tracing::warn!("directory {parent} is busy: the kernel drops recalled names in it later");
        }
        MountNotice::StaysKnown(inode) => {
            tracing::debug!("inode {inode} stays in the kernel's memory: too many names are recalled at once");
        }
        MountNotice::NothingPassed => {
            tracing::info!("files are not passed through: the kernel does not allow it to this process");
        }
        MountNotice::NotClosed(inode, error) => tracing::warn!("inode {inode}, which was still open: {error}"),
    }
}

/// The client's recalls, told to the kernel.
pub struct Recalls(pub Arc<KernelCaches<FuseShell>>);

impl Invalidator for Recalls {
    fn recalled(&self, key: LeaseKey) {
        block_on(self.0.recalled(key));
    }

    fn entries(&self, parent: InodeNumber, names: Vec<Name>) {
        block_on(self.0.entries(parent, names));
    }

    fn listing(&self, directory: InodeNumber) {
        block_on(self.0.drop_listing(directory));
    }

    fn inode(&self, inode: InodeNumber, data: bool) {
        block_on(self.0.inode(inode, data));
    }

    fn pages(&self, inode: InodeNumber, offset: u64, bytes: u64) {
        block_on(self.0.drop_pages(inode, offset, bytes));
    }

    fn knows(&self, inode: InodeNumber, stamp: u64) -> bool {
        self.0.knows(inode, stamp)
    }
}

#[cfg(test)]
mod tests;
