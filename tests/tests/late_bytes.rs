//! Bytes of a session that has ended never land in a file that others have gone on with: not the rest of a write whose
//! first half had been received, and not behind the size that the shard has taken over.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use weft_client::{Invalidator, OpenOptions, Way};
use weft_protocol::data::{DataOperation, DataReply, DataRequest, REPLY_BYTES};
use weft_protocol::message::shard::Access;
use weft_protocol::{ConnectionId, Error, InodeNumber, Name, NodeId};
use weft_tests::{FileSystem, RawSession, Stored, Wanted, contents, file_with_object_at, with_each_store};
use weft_transport::{BulkConnection, Socket, SocketBulk, SocketKind};

const SLOWLY: Duration = Duration::from_secs(30);
/// The session's bytes, those of the next writer, and those that the file had.
const LATE: u8 = b'S';
const NEXT: u8 = b'Z';
const OLD: u8 = b'o';

#[test]
fn what_is_written_by_a_descriptor_after_the_term_is_not_seen() {
    for node in [NodeId(0), NodeId(1)] {
        let fs = FileSystem::start(Wanted { nodes: 2, shards_per_node: 1, ..Wanted::default() });
        let inode = file_with_object_at(&fs, node, Way::Tcp, &vec![OLD; 300_000]);
        let mut session = RawSession::start(&fs, NodeId(0), 70);
        let request = session.open_for_writing(inode);
        let file = session.descriptor(&fs, node, &request);
        rustix::io::pwrite(&file, &[LATE; 1000], 0).expect("written in its term");
        drop(session);
        let next = fs.client(Way::Auto);
        let writer = next.open(&FileSystem::me(), inode, OpenOptions::of(Access::ReadWrite)).expect("opened");
        assert_eq!(contents(&fs.client(Way::Tcp), inode).first(), Some(&LATE), "what was written in time is there");
        writer.write_at(&vec![NEXT; 300_000], 0).expect("written");
        writer.sync().expect("synced");
        // The first client goes on after its term: over bytes, behind the end, and by a cut.
        rustix::io::pwrite(&file, &[LATE; 1000], 0).expect("an orphan takes it");
        rustix::io::pwrite(&file, &[LATE; 1000], 300_000).expect("an orphan takes it");
        let mut byte = [0];
        assert_eq!((writer.read_at(&mut byte, 0), byte), (Ok(1), [NEXT]), "the next writer's own descriptor");
        let found = contents(&fs.client(Way::Tcp), inode);
        assert!(found.len() == 300_000 && found.iter().all(|byte| *byte == NEXT), "bytes of the ended session");
        rustix::fs::ftruncate(&file, 0).expect("an orphan is cut");
        assert_eq!(contents(&fs.client(Way::Auto), inode), found);
        assert_eq!(contents(&next, inode), found);
    }
}

#[test]
fn a_client_that_has_closed_its_descriptors_costs_no_copy() {
    let fs = FileSystem::start(Wanted { nodes: 1, shards_per_node: 1, ..Wanted::default() });
    let inode = file_with_object_at(&fs, NodeId(0), Way::Tcp, &[OLD; 1000]);
    let mut session = RawSession::start(&fs, NodeId(0), 70);
    let request = session.open_for_writing(inode);
    let file = session.descriptor(&fs, NodeId(0), &request);
    let stat = |file: &OwnedFd| rustix::fs::fstat(file).map(|stat| stat.st_ino).expect("a number");
    let number = stat(&file);
    drop((file, session));
    let mut session = RawSession::start(&fs, NodeId(0), 71);
    let request = session.open_for_writing(inode);
    assert_eq!(stat(&session.descriptor(&fs, NodeId(0), &request)), number, "it is the same file");
}

/// A mount that answers no recall of a file until it is released.
struct Paused(Arc<Barrier>, AtomicBool);

impl Invalidator for Paused {
    fn entries(&self, _: InodeNumber, _: Vec<Name>) {}

    fn inode(&self, _: InodeNumber, _: bool) {
        if !self.1.swap(true, Ordering::SeqCst) {
            self.0.wait();
        }
    }
}

/// A kernel goes on with what its mount was passed, whatever becomes of the mount's session.
#[test]
fn a_kernel_whose_mount_was_ended_writes_into_an_orphan_and_is_told() {
    let fs = FileSystem::start(Wanted { nodes: 1, shards_per_node: 1, ..Wanted::default() });
    let (mount, other, me) = (fs.client(Way::Auto), fs.client(Way::Auto), FileSystem::me());
    let file = weft_tests::open(&mount, "f", OpenOptions::of(Access::ReadWrite));
    let lent = file.lend().expect("lent");
    rustix::io::pwrite(lent.descriptor(), b"kept", 0).expect("written");
    file.flush().expect("flushed");
    let released = Arc::new(Barrier::new(2));
    mount.set_invalidator(Arc::new(Paused(Arc::clone(&released), AtomicBool::new(false))));
    let reader = other.open(&me, file.inode(), OpenOptions::READ).expect("opened when the session has ended");
    released.wait();
    rustix::io::pwrite(lent.descriptor(), b"lost", 4).expect("written");
    assert_eq!(file.flush(), Err(Error::SessionEnded));
    assert_eq!(contents(&other, file.inode()), b"kept");
    // Who opens the file under the next session is not passed the orphan, and is told of no loss.
    let anew = mount.open(&me, file.inode(), OpenOptions::of(Access::ReadWrite)).expect("opened");
    assert!(anew.lend().is_none(), "the kernel has the orphan open");
    anew.write_at(b"next", 4).expect("written");
    anew.flush().expect("flushed");
    assert_eq!(contents(&other, file.inode()), b"keptnext");
    drop(lent);
    let lent = anew.lend().expect("the kernel has let the orphan go");
    rustix::io::pwrite(lent.descriptor(), b"last", 8).expect("written");
    anew.flush().expect("flushed");
    assert_eq!(contents(&other, file.inode()), b"keptnextlast");
    drop(reader);
}

with_each_store!(
    a_write_that_was_half_received_does_not_go_on_after_the_next_one,
    an_object_does_not_grow_after_its_size_was_settled,
    a_write_whose_connection_was_revoked_does_not_land_behind_the_next_one,
);

/// A write of which a part has been received and no more comes for now.
struct HalfWritten {
    session: RawSession,
    data: Socket,
    name: ConnectionId,
    request: DataRequest,
    rest: Vec<u8>,
}

/// Begins a write of `bytes` at the beginning of the file; returns when the server has written some of it.
fn write_half(fs: &FileSystem, node: NodeId, kind: SocketKind, inode: InodeNumber, bytes: usize) -> HalfWritten {
    let mut session = RawSession::start(fs, NodeId(0), 70);
    let request = DataRequest { bytes: u32::try_from(bytes).expect("few"), ..session.open_for_writing(inode) };
    let (data, name) = session.named_data(fs, node, kind);
    let body = vec![LATE; bytes];
    let (first, rest) = body.split_at(bytes * 3 / 4);
    // Whoever sends much waits until it was taken.
    data.send_all_with(&request.encode(), first).expect("the server takes it");
    let mut look = SocketBulk::new(session.data(fs, node, kind));
    let read = DataRequest { operation: DataOperation::Read, bytes: 1, ..request };
    let end = Instant::now() + SLOWLY;
    let mut byte = [0];
    while byte[0] != LATE {
        look.read(&read, &mut byte).expect("the server answers");
        assert!(Instant::now() < end, "nothing was written of what came");
        std::thread::yield_now();
    }
    HalfWritten { session, data, name, request, rest: rest.to_vec() }
}

impl HalfWritten {
    /// Ends the session, but not its data connection.
    fn end_session(self) -> (Socket, Vec<u8>) {
        drop(self.session);
        (self.data, self.rest)
    }
}

/// Sends the rest of a write, and waits until the server has answered it or closed the connection.
fn send_late(data: &Socket, rest: &[u8]) -> Option<DataReply> {
    // A connection that was closed takes nothing.
    let sent = data.send_all(rest);
    let mut header = [0; REPLY_BYTES];
    let received = data.receive_exact(&mut header);
    sent.ok().and(received.ok()).map(|()| DataReply::decode(&header).expect("a reply"))
}

/// The ways that writes take: received by copying, and by splicing or over pieces of regions; by TCP and Unix socket;
/// at another node than the shard's, and at the same one, where the session ends with its term only.
const WAYS: [(u16, SocketKind, usize); 5] = [
    (1, SocketKind::Tcp, 200 << 10),
    (1, SocketKind::Tcp, 6 << 20),
    (1, SocketKind::Unix, 200 << 10),
    (1, SocketKind::Unix, 6 << 20),
    (0, SocketKind::Tcp, 6 << 20),
];

fn each_way(stored: Stored, test: impl Fn(&FileSystem, NodeId, SocketKind, usize)) {
    for (node, kind, bytes) in WAYS {
        // A region store writes up to a mebibyte in one piece.
        let bytes = if stored == Stored::Regions { bytes.max(2 << 20) } else { bytes };
        let fs = FileSystem::start(Wanted { nodes: 2, shards_per_node: 1, stored, ..Wanted::default() });
        test(&fs, NodeId(node), kind, bytes);
    }
}

fn a_write_that_was_half_received_does_not_go_on_after_the_next_one(stored: Stored) {
    each_way(stored, |fs, node, kind, bytes| {
        let inode = file_with_object_at(fs, node, Way::Tcp, &vec![OLD; bytes]);
        let (data, rest) = write_half(fs, node, kind, inode, bytes).end_session();
        let next = fs.client(Way::Tcp);
        let file = next.open(&FileSystem::me(), inode, OpenOptions::of(Access::Write)).expect("opened");
        file.write_at(&vec![NEXT; bytes], 0).expect("written");
        file.sync().expect("synced");
        let told = send_late(&data, &rest);
        let found = contents(&fs.client(Way::Tcp), inode);
        let late = found.iter().filter(|byte| **byte == LATE).count();
        assert_eq!((late, found.len()), (0, bytes), "{kind:?}, {bytes}: bytes of the ended session have landed");
        assert!(told.is_none_or(|reply| reply.is_torn()), "{kind:?}, {bytes}: {told:?}");
    });
}

fn an_object_does_not_grow_after_its_size_was_settled(stored: Stored) {
    each_way(stored, |fs, node, kind, bytes| {
        let inode = file_with_object_at(fs, node, Way::Tcp, &[OLD; 100]);
        let (data, rest) = write_half(fs, node, kind, inode, bytes).end_session();
        let before = contents(&fs.client(Way::Tcp), inode).len();
        let told = send_late(&data, &rest);
        let mut session = RawSession::start(fs, NodeId(0), 71);
        let request = session.open_for_writing(inode);
        let mut look = SocketBulk::new(session.data(fs, node, kind));
        let stat = DataRequest { operation: DataOperation::Stat, ..request };
        let size = look.write(&stat, &[]).expect("the server answers").size;
        assert_eq!(size, before as u64, "{kind:?}, {bytes}: the object has grown behind the file's size");
        assert!(told.is_none_or(|reply| reply.is_torn()), "{kind:?}, {bytes}: {told:?}");
    });
}

fn a_write_whose_connection_was_revoked_does_not_land_behind_the_next_one(stored: Stored) {
    each_way(stored, |fs, node, kind, bytes| {
        let inode = file_with_object_at(fs, node, Way::Tcp, &vec![OLD; bytes]);
        let HalfWritten { session, data, name, request, rest } = write_half(fs, node, kind, inode, bytes);
        let mut next = SocketBulk::streaming(session.data(fs, node, kind));
        let revoke = DataRequest::revoke(session.id(), name);
        assert_eq!(next.write(&revoke, &[]).expect("the server answers").status, 0);
        assert_eq!(next.write(&request, &vec![NEXT; bytes]).expect("the server answers").status, 0);
        let told = send_late(&data, &rest);
        let mut found = vec![0; bytes];
        let read = DataRequest { operation: DataOperation::Read, ..request };
        next.read(&read, &mut found).expect("the server answers");
        let late = found.iter().filter(|byte| **byte == LATE).count();
        assert_eq!(late, 0, "{kind:?}, {bytes}: bytes of the revoked connection have landed");
        assert!(told.is_none_or(|reply| reply.status != 0), "{kind:?}, {bytes}: it was taken");
    });
}
