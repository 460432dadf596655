//! The kernel's caches follow the recall of leases.
//!
//! The client library calls [`KernelCaches`] on its recall thread, with no lock held, before it answers a recall. Why
//! none of this waits for itself is argued in the crate's header.
//!
//! # Names
//! The record of what the kernel was told (`weft_client_core::KernelView`) says which names it has to drop. A
//! FUSE_NOTIFY_INVAL_ENTRY takes the directory's lock, which an operation of this mount may hold that itself waits for
//! another client, perhaps for this very recall to be answered. One that has not returned after [`ENTRY_WAIT`] is left
//! to itself, and the kernel's *epoch* is incremented instead (Linux 6.16), which drops every name of the mount and
//! takes no lock. An older kernel is told of names in directories that other sessions use with no time, so that there
//! is nothing to drop; only names told before the directory was found to be shared have to be waited for.
//!
//! # Contents
//! A file that was opened cached stays so for the kernel until it is closed, also when its lease was recalled. Its
//! reads and writes then come here one by one, and what they leave in the kernel's pages is dropped again right after
//! each, by the thread that answered it ([`KernelCaches::drop_range`]). For the microseconds between, another read here
//! can find a page that was true when it was read: the one place where a file that several clients have open, and one
//! changes, is not read strictly. Opening with O_DIRECT, or opening when another client has it open for writing
//! already, avoids it.
//!
//! Invariant: when a recall of a name or of attributes has been answered, the kernel believes nothing that it was told
//! under the lease. When a recall of contents has been answered, no page of the file that was read under the lease is
//! in memory: the kernel locks a page from before it asks for it until after the answer, and waits for that lock when
//! it drops pages. Assumed: `File::may_cache` is false from before the invalidator is called. Not here: who may cache
//! what (the client library), page cache modes (`open_modes.rs`).

use crate::kernel_inodes::KernelInodes;
use crate::notify::is_not_found;
use crate::open_modes::OpenModes;
use crate::workers::Pool;
use fuser::BackingId;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weft_client::Invalidator;
use weft_client_core::KernelView;
use weft_protocol::{InodeNumber, LeaseKey, Name};

/// How long a recall of a name waits for the directory's lock. The notification takes microseconds, except while an
/// operation on the same directory is in progress.
const ENTRY_WAIT: Duration = Duration::from_millis(10);
/// How much longer for each name that is recalled with it.
const ENTRY_WAIT_EACH: Duration = Duration::from_micros(20);
/// How long it waits where the epoch does not help: on a kernel without, and for the reply to a listing that the kernel
/// may still be processing.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// How often it looks whether that listing has been processed.
const LISTING_LOOK: Duration = Duration::from_millis(1);
/// Names that can be in the kernel's hands at the same time: each may wait for the lock of its directory.
const THREADS_MAX: usize = 64;
/// Names that wait for such a thread.
const WAITING_MAX: usize = 1 << 16;

/// What is said to the kernel. An interface so that the rules here are tested without one.
pub trait Kernel: Send + Sync {
    /// Drops a name. Waits for the lock of the directory.
    fn entry(&self, parent: InodeNumber, name: &Name) -> io::Result<()>;
    /// Marks the attributes as old. Does not wait. ENOENT: the kernel does not know the inode.
    fn attributes(&self, inode: InodeNumber) -> io::Result<()>;
    /// Also writes back and drops the pages of a range (`bytes` 0: to the end). Waits for reads and writes under way.
    fn contents(&self, inode: InodeNumber, offset: u64, bytes: u64) -> io::Result<()>;
    /// Drops all names. Does not wait.
    fn increment_epoch(&self) -> io::Result<()>;
}

/// What the kernel keeps of this mount.
pub struct KernelCaches {
    /// Rank 3. `None` before the mount is ready and after its end: then the kernel keeps nothing. Holding it keeps the
    /// connection open, which is why it is taken away at the end.
    kernel: Mutex<Option<Arc<dyn Kernel>>>,
    /// Whether the kernel has epochs.
    has_epoch: AtomicBool,
    modes: Arc<OpenModes<BackingId>>,
    /// Rank 3.
    view: Arc<Mutex<KernelView>>,
    /// The record's time is counted from here.
    start: Instant,
    pub inodes: KernelInodes,
    pool: Pool,
}

impl KernelCaches {
    pub fn new(modes: Arc<OpenModes<BackingId>>) -> Self {
        let pool = Pool::new("weft-fuse-invalidate", THREADS_MAX, WAITING_MAX);
        let view = Arc::new(Mutex::new(KernelView::new()));
        let (kernel, has_epoch) = (Mutex::new(None), AtomicBool::new(false));
        Self { kernel, has_epoch, modes, view, start: Instant::now(), inodes: KernelInodes::new(), pool }
    }

    /// The mount is ready. `use_epoch`: increment the kernel's epoch where it has one. Returns whether it has.
    pub fn connect(&self, kernel: Arc<dyn Kernel>, use_epoch: bool) -> bool {
        let has_epoch = use_epoch && kernel.increment_epoch().is_ok();
        self.has_epoch.store(has_epoch, Ordering::Relaxed);
        *self.kernel.lock().unwrap_or_else(PoisonError::into_inner) = Some(kernel);
        has_epoch
    }

    /// The mount has ended.
    pub fn disconnect(&self) {
        *self.kernel.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether the kernel has epochs.
    pub fn has_epoch(&self) -> bool {
        self.has_epoch.load(Ordering::Relaxed)
    }

    fn kernel(&self) -> Option<Arc<dyn Kernel>> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The record of what the kernel was told.
    pub fn view(&self) -> MutexGuard<'_, KernelView> {
        lock(&self.view)
    }

    /// The record's time.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Drops what a read or write without a lease left in the kernel's pages. Call it right after the reply: the kernel
    /// has locked the pages until then. It may wait for other reads of the same pages, which other threads serve.
    pub fn drop_range(&self, inode: InodeNumber, offset: u64, bytes: u64) {
        if let Some(kernel) = self.kernel() {
            report("contents", kernel.contents(inode, offset, bytes.max(1)));
        }
    }

    /// Drops names that the kernel is about to get by a rename, and that no lease covers. Its directories are locked:
    /// on a kernel without epochs they are dropped as soon as it has moved them.
    pub fn drop_moved(&self, names: &[(InodeNumber, &Name)]) {
        let Some(kernel) = self.kernel() else { return };
        if self.has_epoch() {
            return self.increment_epoch(&*kernel);
        }
        for (parent, name) in names {
            self.submit(&kernel, *parent, vec![(*name).clone()]);
        }
    }

    fn increment_epoch(&self, kernel: &dyn Kernel) {
        let mark = self.view().mark();
        match kernel.increment_epoch() {
            Ok(()) => self.view().epoch_incremented(mark),
            Err(error) => tracing::warn!("the epoch of names could not be incremented: {error}"),
        }
    }

    /// Has the kernel drop these names, on a thread that may wait for the directory's lock. `None`: too many wait.
    fn submit(&self, kernel: &Arc<dyn Kernel>, parent: InodeNumber, names: Vec<Name>) -> Option<Arc<Done>> {
        let done = Arc::new(Done::default());
        let (signal, kernel, view) = (done.clone(), kernel.clone(), self.view.clone());
        let job = move || {
            for name in &names {
                let mark = lock(&view).mark();
                report("entry", kernel.entry(parent, name));
                lock(&view).dropped(parent, name, mark);
            }
            // A listing that was in progress has been added to the pages of the directory by now.
            report("listing", kernel.contents(parent, 0, 0));
            signal.set();
        };
        self.pool.submit(Box::new(job)).is_ok().then_some(done)
    }

    /// The kernel may use no name of the directory under these leases any more: returns when it does not.
    fn drop_names(&self, parent: InodeNumber, keys: &[LeaseKey]) {
        let names: Vec<Name> = {
            let mut view = self.view();
            keys.iter().for_each(|key| view.recall(*key));
            keys.iter().flat_map(|key| view.names_under(*key)).collect()
        };
        let Some(kernel) = self.kernel().filter(|_| !names.is_empty()) else { return };
        let start = Instant::now();
        let wait = ENTRY_WAIT + ENTRY_WAIT_EACH * u32::try_from(names.len()).unwrap_or(u32::MAX);
        let done = self.submit(&kernel, parent, names);
        let has_returned = |time| done.as_ref().is_some_and(|done| done.wait(time));
        if has_returned(wait) {
            return;
        }
        if !self.has_epoch() {
            if !has_returned(LOCK_WAIT) {
                tracing::warn!("directory {parent} is busy: the kernel drops recalled names in it later");
            }
            return;
        }
        while !self.view().is_settled(parent) && start.elapsed() < LOCK_WAIT {
            if has_returned(LISTING_LOOK) {
                return;
            }
        }
        tracing::debug!("directory {parent} is busy: all names are dropped");
        self.increment_epoch(&*kernel);
    }
}

impl Invalidator for KernelCaches {
    fn recalled(&self, key: LeaseKey) {
        let (LeaseKey::Entry(parent, _) | LeaseKey::Directory(parent)) = key else { return };
        if let Some(kernel) = self.kernel() {
            // What it keeps of the listing, for those who have the directory open and begin anew.
            report("listing", kernel.contents(parent, 0, 0));
        }
        // Without epochs nothing may be left for a later recall, which may come while the directory is locked.
        let key = if self.has_epoch() { key } else { LeaseKey::Directory(parent) };
        self.drop_names(parent, &[key]);
    }

    fn entries(&self, parent: InodeNumber, names: Vec<Name>) {
        let keys: Vec<_> = names.iter().map(|name| LeaseKey::Entry(parent, name.hash64())).collect();
        self.drop_names(parent, &keys);
    }

    fn inode(&self, inode: InodeNumber, data: bool) {
        if data {
            self.modes.recalled(inode);
        }
        self.view().recall(LeaseKey::Attributes(inode));
        let Some(kernel) = self.kernel() else { return };
        let tell = || if data { kernel.contents(inode, 0, 0) } else { kernel.attributes(inode) };
        let told = tell();
        let is_unknown = told.as_ref().is_err_and(is_not_found);
        report("inode", told);
        // Bound first: the record is not locked while names are dropped.
        let place = self.view().place(inode).filter(|_| is_unknown);
        if let Some((parent, name)) = place {
            // The reply that makes it known may be in flight, with attributes of before.
            self.drop_names(parent, &[LeaseKey::Entry(parent, name.hash64())]);
            report("inode", tell());
        }
        self.view().attributes_dropped(inode);
        if !self.has_epoch() {
            // Of a directory: others are changing names in it.
            self.drop_names(inode, &[LeaseKey::Directory(inode)]);
        }
    }

    fn knows(&self, inode: InodeNumber) -> bool {
        let (Some(kernel), Some(unleased)) = (self.kernel(), self.inodes.known(inode)) else { return false };
        if let Some((parent, name)) = unleased {
            // Of no use any more; without it the kernel forgets an inode that nobody has open. Not waited for.
            let job = move || report("unleased entry", kernel.entry(parent, &name));
            if self.pool.submit(Box::new(job)).is_err() {
                tracing::debug!("inode {inode} stays in the kernel's memory: too many names are recalled at once");
            }
        }
        true
    }
}

fn lock(view: &Mutex<KernelView>) -> MutexGuard<'_, KernelView> {
    view.lock().unwrap_or_else(PoisonError::into_inner)
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
    const DIRECTORY: InodeNumber = InodeNumber::from_raw(5);

    /// A kernel that writes down what it is told; names wait until they are let through.
    struct Fake {
        told: Mutex<Vec<String>>,
        directory_lock: Mutex<Option<mpsc::Receiver<()>>>,
        has_epoch: bool,
        knows_inodes: bool,
    }

    impl Fake {
        fn new(gate: Option<mpsc::Receiver<()>>, has_epoch: bool) -> Self {
            Self { told: Mutex::default(), directory_lock: Mutex::new(gate), has_epoch, knows_inodes: true }
        }

        fn tell(&self, what: String) -> io::Result<()> {
            self.told.lock().unwrap().push(what);
            Ok(())
        }

        fn told(&self) -> Vec<String> {
            std::mem::take(&mut *self.told.lock().unwrap())
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
            self.tell(format!("attributes {inode}"))?;
            if self.knows_inodes { Ok(()) } else { Err(rustix::io::Errno::NOENT.into()) }
        }

        fn contents(&self, inode: InodeNumber, offset: u64, bytes: u64) -> io::Result<()> {
            self.tell(format!("contents {inode} {offset} {bytes}"))
        }

        fn increment_epoch(&self) -> io::Result<()> {
            self.tell("epoch".into())?;
            if self.has_epoch { Ok(()) } else { Err(rustix::io::Errno::INVAL.into()) }
        }
    }

    fn caches(fake: Fake) -> (KernelCaches, Arc<Fake>) {
        let fake = Arc::new(fake);
        let caches = KernelCaches::new(Arc::new(OpenModes::new()));
        assert_eq!(caches.connect(fake.clone(), true), fake.has_epoch);
        assert_eq!(fake.told(), ["epoch"], "whether it has epochs");
        (caches, fake)
    }

    fn name() -> Name {
        Name::new(b"a").unwrap()
    }

    fn entry() -> LeaseKey {
        LeaseKey::Entry(DIRECTORY, name().hash64())
    }

    /// Tells the kernel of a name as a look-up does.
    fn look_up(caches: &KernelCaches) {
        let mut view = caches.view();
        let ticket = view.begin();
        assert!(view.tell_name(&ticket, DIRECTORY, &name(), 9000, caches.now_ms()) > 0);
        view.end(ticket);
    }

    #[test]
    fn the_kernel_is_told_before_the_recall_is_answered() {
        let (caches, fake) = caches(Fake::new(None, true));
        look_up(&caches);
        caches.recalled(entry());
        assert_eq!(fake.told(), ["contents 0:5 0 0", "entry 0:5 a", "contents 0:5 0 0"]);
        caches.entries(DIRECTORY, vec![name()]);
        assert_eq!(fake.told(), [""; 0], "it was dropped already");
        caches.inode(DIRECTORY, false);
        caches.inode(DIRECTORY, true);
        assert_eq!(fake.told(), ["attributes 0:5", "contents 0:5 0 0"]);
        caches.disconnect();
        caches.inode(DIRECTORY, true);
        assert_eq!(fake.told(), [""; 0], "after the end there is nobody to tell");
    }

    #[test]
    fn a_busy_directory_holds_up_no_recall() {
        let (open, gate) = mpsc::channel();
        let (caches, fake) = caches(Fake::new(Some(gate), true));
        look_up(&caches);
        let start = Instant::now();
        caches.recalled(entry());
        assert!(start.elapsed() >= ENTRY_WAIT);
        assert_eq!(fake.told(), ["contents 0:5 0 0", "epoch"], "the name is still waiting for its directory");
        caches.recalled(entry());
        assert_eq!(fake.told(), ["contents 0:5 0 0"], "the epoch has dropped it");
        open.send(()).unwrap();
        assert!(caches.pool.wait_until_done(Instant::now() + LONG));
        assert_eq!(fake.told(), ["entry 0:5 a", "contents 0:5 0 0"]);
    }

    #[test]
    fn without_epochs_a_recall_waits_for_names_told_before() {
        let (open, gate) = mpsc::channel();
        let (caches, fake) = caches(Fake::new(Some(gate), false));
        look_up(&caches);
        std::thread::scope(|scope| {
            let recall = scope.spawn(|| caches.recalled(entry()));
            while fake.told.lock().unwrap().is_empty() {
                std::thread::yield_now();
            }
            open.send(()).unwrap();
            recall.join().unwrap();
        });
        assert_eq!(fake.told(), ["contents 0:5 0 0", "entry 0:5 a", "contents 0:5 0 0"]);
        assert_eq!(caches.view().counts(), (0, 0));
    }

    #[test]
    fn a_listing_in_flight_is_waited_for() {
        let (open, gate) = mpsc::channel();
        let (caches, fake) = caches(Fake::new(Some(gate), true));
        let mut view = caches.view();
        let ticket = view.begin();
        assert!(view.tell_listed(&ticket, DIRECTORY, &name(), 9000, caches.now_ms()) > 0);
        view.end(ticket);
        drop(view);
        std::thread::scope(|scope| {
            let recall = scope.spawn(|| caches.recalled(entry()));
            let start = Instant::now();
            while start.elapsed() < 5 * ENTRY_WAIT {
                assert!(!recall.is_finished(), "the epoch does not cover a listing");
                std::thread::yield_now();
            }
            open.send(()).unwrap();
            recall.join().unwrap();
        });
        assert_eq!(fake.told(), ["contents 0:5 0 0", "entry 0:5 a", "contents 0:5 0 0"], "no epoch");
    }

    #[test]
    fn an_inode_that_the_kernel_is_about_to_know_is_dropped_with_its_name() {
        let (caches, fake) = caches(Fake { knows_inodes: false, ..Fake::new(None, true) });
        let inode = InodeNumber::from_raw(9);
        let mut view = caches.view();
        let ticket = view.begin();
        assert!(view.tell_name(&ticket, DIRECTORY, &name(), 9000, caches.now_ms()) > 0);
        assert!(view.tell_attributes(&ticket, inode, Some((DIRECTORY, &name())), 9000, caches.now_ms()) > 0);
        view.end(ticket);
        drop(view);
        caches.inode(inode, false);
        assert_eq!(fake.told(), ["attributes 0:9", "entry 0:5 a", "contents 0:5 0 0", "attributes 0:9"]);
        caches.inode(inode, false);
        assert_eq!(fake.told(), ["attributes 0:9"], "it never came");
    }

    #[test]
    fn a_range_is_never_taken_for_everything() {
        let (caches, fake) = caches(Fake::new(None, true));
        caches.drop_range(InodeNumber::from_raw(5), 4096, 0);
        assert_eq!(fake.told(), ["contents 0:5 4096 1"]);
    }
}
