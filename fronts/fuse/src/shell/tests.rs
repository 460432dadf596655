//! The mount's invalidations on real threads, told to a kernel that writes them down.

use super::*;
use std::sync::mpsc;
use weft_mount_core::{ENTRY_WAIT, Notified};

const LONG: Duration = Duration::from_secs(20);
const DIRECTORY: InodeNumber = InodeNumber::from_raw(5);

type Caches = KernelCaches<FuseShell<Fake>>;

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

    fn tell(&self, what: String) -> Notified {
        self.told.lock().unwrap().push(what);
        Ok(())
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }
}

impl Kernel for Fake {
    async fn entry(&self, parent: InodeNumber, name: &Name) -> Notified {
        if let Some(gate) = &*self.directory_lock.lock().unwrap() {
            gate.recv_timeout(LONG).unwrap();
        }
        self.tell(format!("entry {parent} {name}"))
    }

    async fn attributes(&self, inode: InodeNumber) -> Notified {
        self.tell(format!("attributes {inode}"))?;
        if self.knows_inodes { Ok(()) } else { Err(Refused::NOT_FOUND) }
    }

    async fn contents(&self, inode: InodeNumber, offset: u64, bytes: u64) -> Notified {
        self.tell(format!("contents {inode} {offset} {bytes}"))
    }

    async fn grow(&self, inode: InodeNumber, size: u64) -> Notified {
        self.tell(format!("grow {inode} {size}"))
    }

    async fn increment_epoch(&self) -> Notified {
        self.tell("epoch".into())?;
        if self.has_epoch { Ok(()) } else { Err(Refused(22)) }
    }
}

fn caches(fake: Fake) -> (Caches, Arc<Fake>) {
    let fake = Arc::new(fake);
    let caches = KernelCaches::new(FuseShell::new());
    assert_eq!(block_on(caches.connect(fake.clone(), true)), fake.has_epoch);
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
fn look_up(caches: &Caches) {
    let mut view = caches.view();
    let ticket = view.begin();
    assert!(view.tell_name(&ticket, DIRECTORY, &name(), 9000, caches.now_ms()) > 0);
    view.end(ticket);
}

#[test]
fn the_kernel_is_told_before_the_recall_is_answered() {
    let (caches, fake) = caches(Fake::new(None, true));
    look_up(&caches);
    block_on(caches.recalled(entry()));
    assert_eq!(fake.told(), ["contents 0:5 0 0", "entry 0:5 a", "contents 0:5 0 0"]);
    block_on(caches.entries(DIRECTORY, vec![name()]));
    assert_eq!(fake.told(), [""; 0], "it was dropped already");
    block_on(caches.inode(DIRECTORY, false));
    block_on(caches.inode(DIRECTORY, true));
    assert_eq!(fake.told(), ["attributes 0:5", "contents 0:5 0 0"]);
    caches.disconnect();
    block_on(caches.inode(DIRECTORY, true));
    assert_eq!(fake.told(), [""; 0], "after the end there is nobody to tell");
}

#[test]
fn a_busy_directory_holds_up_no_recall() {
    let (open, gate) = mpsc::channel();
    let (caches, fake) = caches(Fake::new(Some(gate), true));
    look_up(&caches);
    let start = Instant::now();
    block_on(caches.recalled(entry()));
    assert!(start.elapsed() >= ENTRY_WAIT);
    assert_eq!(fake.told(), ["contents 0:5 0 0", "epoch"], "the name is still waiting for its directory");
    block_on(caches.recalled(entry()));
    assert_eq!(fake.told(), ["contents 0:5 0 0"], "the epoch has dropped it");
    open.send(()).unwrap();
    assert!(caches.shell.pool.wait_until_done(Instant::now() + LONG));
    assert_eq!(fake.told(), ["entry 0:5 a", "contents 0:5 0 0"]);
}

#[test]
fn without_epochs_a_recall_waits_for_names_told_before() {
    let (open, gate) = mpsc::channel();
    let (caches, fake) = caches(Fake::new(Some(gate), false));
    look_up(&caches);
    std::thread::scope(|scope| {
        let recall = scope.spawn(|| block_on(caches.recalled(entry())));
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
        let recall = scope.spawn(|| block_on(caches.recalled(entry())));
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
    block_on(caches.inode(inode, false));
    assert_eq!(fake.told(), ["attributes 0:9", "entry 0:5 a", "contents 0:5 0 0", "attributes 0:9"]);
    block_on(caches.inode(inode, false));
    assert_eq!(fake.told(), ["attributes 0:9"], "it never came");
    // By a name that no lease covers.
    let mut view = caches.view();
    let ticket = view.begin();
    assert!(view.tell_attributes(&ticket, inode, Some((DIRECTORY, &name())), 9000, caches.now_ms()) > 0);
    view.end(ticket);
    drop(view);
    block_on(caches.inode(inode, false));
    assert_eq!(fake.told(), ["attributes 0:9", "entry 0:5 a", "contents 0:5 0 0", "attributes 0:9"]);
}

#[test]
fn an_inode_that_a_reply_in_flight_may_tell_of_counts_as_known() {
    let (caches, _) = caches(Fake::new(None, true));
    let inode = InodeNumber::from_raw(9);
    assert!(!caches.knows(inode, 1));
    let ticket = caches.view().begin();
    assert!(caches.knows(inode, 2), "the shard may have answered the request");
    assert_eq!(caches.view().end(ticket), [(inode, 2)]);
    assert!(!caches.knows(inode, 3));
}

#[test]
fn a_range_is_never_taken_for_everything() {
    let (caches, fake) = caches(Fake::new(None, true));
    block_on(caches.drop_pages(InodeNumber::from_raw(5), 4096, 0));
    assert_eq!(fake.told(), ["contents 0:5 4096 1"]);
}
