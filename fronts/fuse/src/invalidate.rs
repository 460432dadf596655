//! The kernel's caches follow the recall of leases.
//!
//! The client library calls [`KernelCaches`] on its recall thread, with no lock held, before it answers a recall. Why
//! none of this waits for itself is argued in the crate's header.
//!
//! A file that was opened cached stays so for the kernel until it is closed, also when its lease was recalled. Its
//! reads and writes then come here one by one, and what they leave in the kernel's pages is dropped again right after
//! each, by the thread that answered it ([`KernelCaches::drop_range`]). For the microseconds between, another read here
//! can find a page that was true when it was read: the one place where a file that several clients have open, and one
//! changes, is not read strictly. Opening with O_DIRECT, or opening when another client has it open for writing
//! already, avoids it.
//!
//! Invariant: when a recall of contents has been answered, no page of the file that was read under the lease is in
//! memory. The kernel locks a page from before it asks for it until after the answer, and waits for that lock when it
//! drops pages.
//! Assumed: `File::may_cache` is false from before the invalidator is called.
//! Not here: who may cache what (the client library), page cache modes (`open_modes.rs`).

use crate::convert;
use crate::open_modes::OpenModes;
use crate::workers::Pool;
use fuser::{BackingId, INodeNo, Notifier};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft_client::Invalidator;
use weft_protocol::{InodeNumber, Name};

/// How long a recall of a name waits for the kernel. It takes microseconds, except while an operation on the same
/// directory is under way, which may itself wait for this recall to be answered.
const ENTRY_WAIT: Duration = Duration::from_millis(50);
/// How much longer for each name that is recalled with it.
const ENTRY_WAIT_EACH: Duration = Duration::from_micros(20);
/// Names that can be in the kernel's hands at the same time: each may wait for the lock of its directory.
const THREADS_MAX: usize = 64;
/// Names that wait for such a thread. Beyond it they stay valid in the kernel for the rest of their term.
const WAITING_MAX: usize = 1 << 16;

/// What is said to the kernel. An interface so that the rules here are tested without one.
pub trait Kernel: Send + Sync {
    /// Drops a name. Waits for the lock of the directory.
    fn entry(&self, parent: InodeNumber, name: &Name) -> io::Result<()>;
    /// Marks the attributes as old. Does not wait.
    fn attributes(&self, inode: InodeNumber) -> io::Result<()>;
    /// Also writes back and drops the pages of a range (`bytes` 0: to the end). Waits for reads and writes under way.
    fn contents(&self, inode: InodeNumber, offset: u64, bytes: u64) -> io::Result<()>;
}

impl Kernel for Notifier {
    fn entry(&self, parent: InodeNumber, name: &Name) -> io::Result<()> {
        self.inval_entry(convert::kernel_inode(parent), OsStr::from_bytes(name.as_bytes()))
    }

    fn attributes(&self, inode: InodeNumber) -> io::Result<()> {
        self.inval_inode(INodeNo(inode.raw()), -1, 0)
    }

    fn contents(&self, inode: InodeNumber, offset: u64, bytes: u64) -> io::Result<()> {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.inval_inode(INodeNo(inode.raw()), signed(offset), signed(bytes))
    }
}

/// What the kernel keeps of this mount.
pub struct KernelCaches {
    /// Rank 3. `None` before the mount is ready and after its end: then the kernel keeps nothing. Holding it keeps the
    /// connection open, which is why it is taken away at the end.
    kernel: Mutex<Option<Arc<dyn Kernel>>>,
    modes: Arc<OpenModes<BackingId>>,
    pool: Pool,
}

impl KernelCaches {
    pub fn new(modes: Arc<OpenModes<BackingId>>) -> Self {
        let pool = Pool::new("weft-fuse-invalidate", THREADS_MAX, WAITING_MAX);
        Self { kernel: Mutex::new(None), modes, pool }
    }

    /// The mount is ready, or (`None`) has ended.
    pub fn connect(&self, kernel: Option<Arc<dyn Kernel>>) {
        *self.kernel.lock().unwrap_or_else(PoisonError::into_inner) = kernel;
    }

    fn kernel(&self) -> Option<Arc<dyn Kernel>> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Drops what a read or write without a lease left in the kernel's pages. Call it right after the reply: the kernel
    /// has locked the pages until then. It may wait for other reads of the same pages, which other threads serve.
    pub fn drop_range(&self, inode: InodeNumber, offset: u64, bytes: u64) {
        if let Some(kernel) = self.kernel() {
            report("contents", kernel.contents(inode, offset, bytes.max(1)));
        }
    }
}

impl Invalidator for KernelCaches {
    fn entries(&self, parent: InodeNumber, names: Vec<Name>) {
        let Some(kernel) = self.kernel() else { return };
        let done = Arc::new(Done::default());
        let signal = done.clone();
        let wait = ENTRY_WAIT + ENTRY_WAIT_EACH * u32::try_from(names.len()).unwrap_or(u32::MAX);
        let job = move || {
            for name in &names {
                report("entry", kernel.entry(parent, name));
            }
            // What it keeps of the listing, for those who have the directory open and begin anew.
            report("listing", kernel.contents(parent, 0, 0));
            signal.set();
        };
        if self.pool.submit(Box::new(job)).is_err() {
            tracing::warn!("too many names are recalled at once; the kernel keeps some until their term ends");
        } else if !done.wait(wait) {
            tracing::debug!("directory {parent} is busy: a recalled name in it is dropped later");
        }
    }

    fn inode(&self, inode: InodeNumber, data: bool) {
        if data {
            self.modes.recalled(inode);
        }
        let Some(kernel) = self.kernel() else { return };
        if data {
            report("contents", kernel.contents(inode, 0, 0));
        } else {
            report("attributes", kernel.attributes(inode));
        }
    }
}

fn report(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        // The kernel knows nothing of it, or the mount is ending.
        tracing::debug!("invalidation of {what}: {error}");
    }
}

/// Set once.
#[derive(Default)]
struct Done {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Done {
    fn set(&self) {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Whether it was set in time.
    fn wait(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        while !*set {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            set = self.changed.wait_timeout(set, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(20);

    /// A kernel that writes down what it is told; names wait until they are let through.
    struct Fake {
        told: Mutex<Vec<String>>,
        directory_lock: Mutex<Option<mpsc::Receiver<()>>>,
    }

    impl Fake {
        fn new(gate: Option<mpsc::Receiver<()>>) -> Arc<Self> {
            Arc::new(Self { told: Mutex::default(), directory_lock: Mutex::new(gate) })
        }

        fn tell(&self, what: String) -> io::Result<()> {
            self.told.lock().unwrap().push(what);
            Ok(())
        }

        fn told(&self) -> Vec<String> {
            self.told.lock().unwrap().clone()
        }
    }

    impl Kernel for Fake {
        fn entry(&self, parent: InodeNumber, name: &Name) -> io::Result<()> {
            if let Some(gate) = &*self.directory_lock.lock().unwrap() {
                gate.recv_timeout(LONG).unwrap();
            }
            self.tell(format!("entry {parent} {name}"))
        }

        fn attributes(&self, inode: InodeNumber) -> io::Result<()> {
            self.tell(format!("attributes {inode}"))
        }

        fn contents(&self, inode: InodeNumber, offset: u64, bytes: u64) -> io::Result<()> {
            self.tell(format!("contents {inode} {offset} {bytes}"))
        }
    }

    fn caches(fake: &Arc<Fake>) -> KernelCaches {
        let caches = KernelCaches::new(Arc::new(OpenModes::new()));
        caches.connect(Some(fake.clone()));
        caches
    }

    #[test]
    fn the_kernel_is_told_before_the_recall_is_answered() {
        let fake = Fake::new(None);
        let caches = caches(&fake);
        let inode = InodeNumber::from_raw(5);
        caches.entries(inode, vec![Name::new(b"a").unwrap()]);
        caches.inode(inode, false);
        caches.inode(inode, true);
        assert_eq!(fake.told(), ["entry 0:5 a", "contents 0:5 0 0", "attributes 0:5", "contents 0:5 0 0"]);
        caches.connect(None);
        caches.inode(inode, true);
        assert_eq!(fake.told().len(), 4, "after the end there is nobody to tell");
    }

    #[test]
    fn a_busy_directory_holds_up_no_recall() {
        let (open, gate) = mpsc::channel();
        let fake = Fake::new(Some(gate));
        let caches = caches(&fake);
        let inode = InodeNumber::from_raw(5);
        caches.entries(inode, vec![Name::new(b"a").unwrap()]);
        caches.inode(inode, true);
        assert_eq!(fake.told(), ["contents 0:5 0 0"], "the name is still waiting for its directory");
        open.send(()).unwrap();
        assert!(caches.pool.wait_until_done(Instant::now() + LONG));
        assert_eq!(fake.told().len(), 3);
    }

    #[test]
    fn a_range_is_never_taken_for_everything() {
        let fake = Fake::new(None);
        let caches = caches(&fake);
        caches.drop_range(InodeNumber::from_raw(5), 4096, 0);
        assert_eq!(fake.told(), ["contents 0:5 4096 1"]);
    }
}
