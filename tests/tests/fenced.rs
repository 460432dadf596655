//! A session that its shard has ended has no rights at any storage server, and its client is told so.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::time::{Duration, Instant};
use weft_client::protocol::message::shard::{Access, CreateFile};
use weft_client::{OpenOptions, Way};
use weft_protocol::data::{BulkDescriptor, DataOperation, DataRequest};
use weft_protocol::handshake::{KeyName, Purpose};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::Message;
use weft_protocol::message::shard::{OpenFlags, PageCache, ShardAnswer, ShardCall, ShardRequest};
use weft_protocol::{Error, InodeNumber, MapEpoch, Name, NodeId, SessionId, ShardId, SlotIndex, UserKey, routing};
use weft_tests::{FileSystem, Stuck, Wanted, file_with_object_at};
use weft_transport::{BulkConnection, ControlConnection, Peer, Socket, SocketBulk, connect};

const ROOT: InodeNumber = InodeNumber::ROOT;

/// A connection of the owner over the Unix socket, where the end of a session's last one ends the session.
fn enter(fs: &FileSystem, node: usize, session: u64, purpose: Purpose) -> Socket {
    let record = &fs.instance.map.nodes[node];
    let socket = Socket::connect_unix(record.address.unix.as_ref()).unwrap();
    let session = SessionId(session);
    let peer = Peer { key_name: KeyName::Owner, purpose, session, identity: record.identity };
    connect(&socket, &peer, &UserKey::derive(&fs.key, &KeyName::Owner)).unwrap();
    socket
}

#[test]
fn a_fenced_session_has_no_rights_at_other_nodes() {
    let fs = FileSystem::start(Wanted { nodes: 2, shards_per_node: 1, ..Wanted::default() });
    let inode = file_with_object_at(&fs, NodeId(1), Way::Auto, b"hello");
    let open_for_writing = |session| {
        let mut control = ControlConnection::new(enter(&fs, 0, session, Purpose::Control));
        let flags = OpenFlags {
            access: Access::Write,
            truncate: false,
            direct: false,
            page_cache: PageCache::None,
            group: None,
        };
        let reply = control.call(&Message::Shard(ShardCall {
            shard: routing::of_inode(inode),
            epoch: MapEpoch(1),
            slots_of: NodeId(0),
            slot: SlotIndex(0),
            sequence: 1,
            credentials: None,
            request: ShardRequest::Open { inode, flags },
            repeats: Vec::new(),
        }));
        let Message::ShardReply(reply) = reply.unwrap() else { panic!("no reply") };
        let ShardAnswer::Opened { attributes, capability, .. } = reply.result.unwrap() else { panic!("not opened") };
        let request = DataRequest {
            operation: DataOperation::Write,
            pages: false,
            bytes: 3,
            id: 0,
            object: attributes.layout.object().unwrap(),
            inode,
            offset: 0,
            memory: BulkDescriptor::default(),
            capability: capability.unwrap(),
        };
        (control, request)
    };
    let write = |data: &mut SocketBulk, request| data.write(request, b"abc").map(|reply| reply.result().map(|_| ()));

    let (control, request) = open_for_writing(70);
    let mut data = SocketBulk::new(enter(&fs, 1, 70, Purpose::Data));
    assert_eq!(write(&mut data, &request).unwrap(), Ok(()));
    // Its shard ends the session, and the storage server its connection; the right has most of an hour left.
    drop(control);
    let end = Instant::now() + Duration::from_secs(20);
    while write(&mut data, &request).is_ok() {
        assert!(Instant::now() < end, "the connection still holds");
        std::thread::yield_now();
    }
    let mut data = SocketBulk::new(enter(&fs, 1, 70, Purpose::Data));
    assert_eq!(write(&mut data, &request).unwrap(), Err(Error::SessionEnded));
    let (_control, request) = open_for_writing(71);
    let mut data = SocketBulk::new(enter(&fs, 1, 71, Purpose::Data));
    assert_eq!(write(&mut data, &request).unwrap(), Ok(()), "another session is not touched");
}

#[test]
fn pings_and_renewals_tell_that_a_session_has_ended() {
    let fs = FileSystem::start(Wanted { nodes: 1, shards_per_node: 1, ..Wanted::default() });
    let ping = |sequence| {
        Message::Shard(ShardCall {
            shard: routing::of_inode(ROOT),
            epoch: MapEpoch(1),
            slots_of: NodeId(0),
            slot: SlotIndex(0),
            sequence,
            credentials: None,
            request: ShardRequest::Ping,
            repeats: Vec::new(),
        })
    };
    let result = |reply| {
        let Message::ShardReply(reply) = reply else { panic!("no reply") };
        reply.result
    };
    let mut control = ControlConnection::new(enter(&fs, 0, 80, Purpose::Control));
    assert_eq!(result(control.call(&ping(1)).unwrap()), Ok(ShardAnswer::Done));
    drop(control);
    let end = Instant::now() + Duration::from_secs(20);
    // The node takes it for the session's last connection each time.
    let renew = Message::Renew { groups: Vec::new() };
    let renewed = || ControlConnection::new(enter(&fs, 0, 80, Purpose::Recall)).call(&renew).unwrap();
    while !matches!(renewed(), Message::RenewReply { refused: true, .. }) {
        assert!(Instant::now() < end, "the session still lives");
    }
    let mut control = ControlConnection::new(enter(&fs, 0, 80, Purpose::Control));
    assert_eq!(result(control.call(&ping(2)).unwrap()), Err(Error::SessionEnded));
    let mut recall = ControlConnection::new(enter(&fs, 0, 81, Purpose::Recall));
    assert_eq!(
        recall.call(&renew).unwrap(),
        Message::RenewReply { refused: false, epoch: MapEpoch(1), shards: vec![ShardId::ROOT] }
    );
}

#[test]
fn a_client_that_renews_but_does_not_answer_a_recall_believes_nothing_when_others_go_on() {
    let fs = FileSystem::start(Wanted { nodes: 1, shards_per_node: 1, ..Wanted::default() });
    let (stuck, other, me) = (fs.client(Way::Tcp), fs.client(Way::Tcp), FileSystem::me());
    let held = Stuck::new(&stuck);
    let names = ["recalled", "believed"].map(|text| Name::new(text.as_bytes()).unwrap());
    for name in &names {
        let create = Some(CreateFile { mode: 0o644, exclusive: true, plan: None });
        other.open_at(&me, ROOT, name, OpenOptions::WRITE, create).unwrap().0.close().unwrap();
    }
    stuck.attributes(&me, ROOT).unwrap();
    for name in &names {
        stuck.lookup(&me, ROOT, name).unwrap();
    }
    let calls = stuck.counters().shard_calls;
    stuck.lookup(&me, ROOT, &names[1]).unwrap();
    assert_eq!(stuck.counters().shard_calls, calls, "it is known under a lease");
    let since = Instant::now();
    for name in &names {
        other.unlink(&me, ROOT, name).unwrap();
    }
    // A term without an answer, and the term that was left: it renews each quarter of one.
    assert!(since.elapsed() > Duration::from_millis(SESSION_TERM_MS * 3 / 2), "{:?}", since.elapsed());
    assert_eq!(stuck.lookup(&me, ROOT, &names[1]).map(|_| ()), Err(Error::NotFound));
    held.release();
}
