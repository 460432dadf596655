//! A storage server serves a shard only while it hears from the shard's node: what an ended session still sends does
//! not land after the next writer's bytes, though the storage server learns late that the session has ended.

use std::thread;
use std::time::{Duration, Instant};
use weft_client::protocol::message::shard::Access;
use weft_client::{OpenOptions, Way};
use weft_protocol::NodeId;
use weft_protocol::data::{DataOperation, DataRequest};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_tests::{FileSystem, RawSession, Wanted, contents, file_with_object_at};
use weft_transport::{BulkConnection, SocketBulk, SocketKind};

const SHARDS_NODE: NodeId = NodeId(0);
const STORAGE: NodeId = NodeId(1);
const BYTES: usize = 6 << 20;
const SLOWLY: Duration = Duration::from_secs(30);
/// Bytes of the ended session, and those of the next writer.
const LATE: u8 = b'S';
const NEXT: u8 = b'Z';

fn start() -> FileSystem {
    FileSystem::start(Wanted { nodes: 2, shards_per_node: 1, links: true, ..Wanted::default() })
}

fn cut(fs: &FileSystem, is_cut: bool) {
    fs.links.iter().for_each(|link| link.cut(is_cut));
}

#[test]
fn a_storage_server_that_is_cut_off_serves_nobody_after_its_term_and_learns_of_fences_before_it_does_again() {
    let fs = start();
    let inode = file_with_object_at(&fs, STORAGE, Way::Tcp, &vec![b'o'; BYTES]);
    let mut session = RawSession::start(&fs, SHARDS_NODE, 70);
    let bytes = u32::try_from(BYTES).expect("few");
    let request = DataRequest { bytes, ..session.open_for_writing(inode) };
    let data = session.data(&fs, STORAGE, SocketKind::Tcp);
    let body = vec![LATE; BYTES];
    let (first, rest) = body.split_at(BYTES * 3 / 4);
    data.send_all_with(&request.encode(), first).expect("the server takes it");
    let mut look = SocketBulk::new(session.data(&fs, STORAGE, SocketKind::Tcp));
    let read = DataRequest { operation: DataOperation::Read, bytes: 1, ..request };
    let (end, mut byte) = (Instant::now() + SLOWLY, [0]);
    while byte[0] != LATE {
        look.read(&read, &mut byte).expect("the server answers");
        assert!(Instant::now() < end, "nothing was written of what came");
        thread::yield_now();
    }

    cut(&fs, true);
    drop(session);
    let next = fs.client(Way::Tcp);
    let since = Instant::now();
    let file = next.open(&FileSystem::me(), inode, OpenOptions::of(Access::Write)).expect("opened");
    // As long as each of four attempts to tell the storage server would take.
    assert!(since.elapsed() < Duration::from_millis(3 * SESSION_TERM_MS), "{:?}", since.elapsed());
    thread::scope(|scope| {
        let written = scope.spawn(|| file.write_at(&vec![NEXT; BYTES], 0).and_then(|_| file.sync()));
        thread::sleep(Duration::from_secs(1));
        let late = scope.spawn(|| data.send_all(rest));
        thread::sleep(Duration::from_secs(1));
        cut(&fs, false);
        written.join().expect("no panic").expect("written when the link is there again");
        // The connection was closed, or the bytes are passed over.
        let _ = late.join().expect("no panic");
    });
    let found = contents(&fs.client(Way::Tcp), inode);
    let late = found.iter().filter(|byte| **byte == LATE).count();
    assert_eq!((late, found.len()), (0, BYTES), "bytes of the ended session have landed");
}

#[test]
fn descriptors_of_a_session_whose_end_the_storage_server_learns_late_lead_to_an_orphan() {
    let fs = start();
    let inode = file_with_object_at(&fs, STORAGE, Way::Tcp, &vec![b'o'; BYTES]);
    let mut session = RawSession::start(&fs, SHARDS_NODE, 70);
    let request = session.open_for_writing(inode);
    let descriptor = session.descriptor(&fs, STORAGE, &request);
    cut(&fs, true);
    drop(session);
    let next = fs.client(Way::Tcp);
    let file = next.open(&FileSystem::me(), inode, OpenOptions::of(Access::Write)).expect("opened");
    thread::scope(|scope| {
        let written = scope.spawn(|| file.write_at(&vec![NEXT; BYTES], 0).and_then(|_| file.sync()));
        thread::sleep(Duration::from_secs(1));
        cut(&fs, false);
        written.join().expect("no panic").expect("written when the link is there again");
    });
    rustix::io::pwrite(&descriptor, &[LATE; 1000], 0).expect("an orphan takes it");
    let found = contents(&fs.client(Way::Tcp), inode);
    assert!(found.len() == BYTES && found.iter().all(|byte| *byte == NEXT), "bytes of the ended session");
}

#[test]
fn a_storage_server_that_hears_nothing_for_long_refuses_and_serves_again_when_it_hears() {
    let fs = start();
    let inode = file_with_object_at(&fs, STORAGE, Way::Tcp, &vec![b'o'; BYTES]);
    let client = fs.client(Way::Tcp);
    let options = OpenOptions { direct: true, ..OpenOptions::of(Access::Write) };
    let file = client.open(&FileSystem::me(), inode, options).expect("opened");
    cut(&fs, true);
    let end = Instant::now() + Duration::from_millis(4 * SESSION_TERM_MS);
    while file.write_at(&[NEXT; 10], 0).is_ok() {
        assert!(Instant::now() < end, "it serves without the shard's node");
        thread::sleep(Duration::from_millis(100));
    }
    cut(&fs, false);
    let end = Instant::now() + SLOWLY;
    while file.write_at(&[NEXT; 10], 0).is_err() {
        assert!(Instant::now() < end, "it does not serve again");
        thread::sleep(Duration::from_millis(100));
    }
}
