//! Pages that a kernel keeps without a lease: the storage server has them dropped before another client changes them.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use weft_client::protocol::message::shard::CreateFile;
use weft_client::{Client, Invalidator, NativeShell, OpenOptions, Way, block_on};
use weft_client_core::{Coverage, Handle};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::shard::PageCache;
use weft_protocol::{InodeNumber, Name};
use weft_tests::{FileSystem, Wanted};

const PAGE: u64 = 4096;

/// The range of a drop, and who is told when the kernel has carried it out.
type Asked = ((u64, u64), Sender<()>);

/// A kernel that drops pages when the test says so.
struct Kernel(Mutex<Sender<Asked>>);

impl Invalidator for Kernel {
    fn entries(&self, _: InodeNumber, _: Vec<Name>) {}
    fn inode(&self, _: InodeNumber, _: bool) {}

    fn pages(&self, _: InodeNumber, offset: u64, bytes: u64) {
        let (done, is_done) = channel();
        // At the end of a test nobody listens any more.
        if self.0.lock().unwrap().send(((offset, bytes), done)).is_ok() {
            let _ = is_done.recv();
        }
    }
}

/// A reader with a kernel, and a writer, of one file of four pages that both have open.
struct Shared {
    reader: Client,
    handle: Handle<NativeShell>,
    drops: Receiver<Asked>,
    writer: weft_client::File,
    _writers_client: Client,
    _fs: FileSystem,
}

impl Shared {
    fn new(way: Way) -> Self {
        let fs = FileSystem::start(Wanted { nodes: 1, shards_per_node: 1, ..Wanted::default() });
        let (reader, writers_client, me) = (fs.client(way), fs.client(way), FileSystem::me());
        let (sender, drops) = channel();
        reader.set_invalidator(Arc::new(Kernel(Mutex::new(sender))));
        let name = Name::new(b"f").unwrap();
        let create = Some(CreateFile { mode: 0o644, exclusive: true, plan: None });
        let (writer, entry) =
            writers_client.open_at(&me, InodeNumber::ROOT, &name, OpenOptions::WRITE, create).unwrap();
        writer.write_at(&[1; 4 * PAGE as usize], 0).unwrap();
        let options = OpenOptions { page_cache: PageCache::All, ..OpenOptions::READ };
        let handle = block_on(reader.machine().open(&me, entry.attributes.inode, options)).unwrap();
        Self { reader, handle, drops, writer, _writers_client: writers_client, _fs: fs }
    }

    /// The kernel reads a page. Returns its first byte.
    fn read(&self, page: u64) -> u8 {
        let mut bytes = [0; PAGE as usize];
        let read = block_on(self.handle.read_pages(&self.reader.machine().objects, &mut bytes, page * PAGE));
        assert_eq!(read.unwrap(), (PAGE as usize, Coverage::Noted));
        bytes[0]
    }

    /// What the kernel is asked to drop, and a way to say that it has.
    fn asked(&self) -> Asked {
        self.drops.recv_timeout(Duration::from_secs(30)).expect("the kernel is asked to drop pages")
    }
}

#[test]
fn a_write_returns_when_the_kernels_of_others_have_dropped_its_range() {
    for way in [Way::Auto, Way::Tcp] {
        let shared = Shared::new(way);
        assert_eq!([0, 1, 3].map(|page| shared.read(page)), [1; 3]);
        shared.writer.write_at(&[2; 10], 2 * PAGE).unwrap();
        let (writer, (written, is_written)) = (shared.writer.clone(), channel());
        let write = thread::spawn(move || {
            writer.write_at(&[2; 10], PAGE).unwrap();
            written.send(()).unwrap();
        });
        let (range, drop_them) = shared.asked();
        assert_eq!(range, (PAGE, PAGE), "nothing else is dropped, nothing of what was not read");
        // Longer than a change waits at the server: it is refused, and sent again.
        assert!(is_written.recv_timeout(Duration::from_millis(100)).is_err(), "the kernel still has the page");
        drop_them.send(()).unwrap();
        write.join().unwrap();
        assert_eq!((shared.read(1), shared.read(0)), (2, 1));
        // Noted anew, and dropped anew.
        let writer = shared.writer.clone();
        let again = thread::spawn(move || writer.write_at(&[3; 1], PAGE).map(|_| ()));
        let (range, drop_them) = shared.asked();
        assert_eq!(range, (PAGE, PAGE));
        drop_them.send(()).unwrap();
        again.join().unwrap().unwrap();
    }
}

#[test]
fn a_truncation_waits_for_the_pages_that_it_cuts_off() {
    let shared = Shared::new(Way::Auto);
    (0..4).for_each(|page| assert_eq!(shared.read(page), 1));
    let writer = shared.writer.clone();
    let cut = thread::spawn(move || writer.truncate(2 * PAGE));
    let (range, drop_them) = shared.asked();
    assert_eq!(range, (2 * PAGE, 2 * PAGE));
    thread::sleep(Duration::from_millis(100));
    assert!(!cut.is_finished(), "the kernel still has the pages");
    drop_them.send(()).unwrap();
    cut.join().unwrap().unwrap();
}

#[test]
fn a_kernel_that_never_answers_is_waited_for_two_terms() {
    let shared = Shared::new(Way::Tcp);
    shared.read(0);
    let writer = shared.writer.clone();
    let write = thread::spawn(move || writer.write_at(&[2; 10], 0).map(|_| ()));
    let (_, _never) = shared.asked();
    thread::sleep(Duration::from_millis(SESSION_TERM_MS));
    assert!(!write.is_finished(), "its session is refused first, and ends");
    write.join().unwrap().unwrap();
}
