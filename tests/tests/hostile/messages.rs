//! Control messages that are not the sender's to send.

use crate::connections::*;
use crate::scene::*;
use weft_client::Way;
use weft_client::protocol::message::shard::Access;
use weft_protocol::handshake::Purpose;
use weft_protocol::limits::SLOTS_MAX;
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest, ShardPart, ShardPartKind};
use weft_protocol::message::peer::{IntentId, NameChange, PeerCall, PeerReply, PeerStep};
use weft_protocol::message::recall::{Recall, RecallAnswer};
use weft_protocol::message::shard::{ShardAnswer, ShardReply, ShardRequest};
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{
    AttributeChanges, Credentials, Error, KeyId, LeaseKey, LeaseMode, MapEpoch, NodeChange, NodeId, SessionId, ShardId,
    routing,
};
use weft_tests::FileSystem;
use weft_transport::{ControlConnection, TransportError};

/// Messages that no client may send.
fn foreign_messages(scene: &Scene) -> Vec<Message> {
    let intent = IntentId { shard: ShardId(0), number: 1 };
    let peer = |step| Message::Peer(PeerCall { to: ShardId(0), epoch: MapEpoch(1), intent, step });
    vec![
        peer(PeerStep::Forget),
        peer(PeerStep::Carry { changes: vec![NameChange::Lose { inode: ROOT }] }),
        Message::PeerReply(PeerReply { intent, result: Err(Error::NotFound) }),
        Message::ShardReply(ShardReply { stamp: 1, result: Ok(ShardAnswer::Done), others: Vec::new() }),
        Message::StorageReply(Ok(StorageAnswer::Done)),
        Message::NodeReply(Box::new(Ok(NodeAnswer::Done))),
        Message::Recall(Recall {
            shard: ShardId(0),
            number: 1,
            key: LeaseKey::Data(scene.victim.inode),
            to: LeaseMode::None,
            stamp: 1,
        }),
        Message::RenewReply { refused: false, epoch: MapEpoch(1), shards: Vec::new() },
    ]
}

#[test]
fn malformed_frames_close_their_connection_and_no_more() {
    let mut scene = Scene::new();
    let good = framed(&Message::Node(NodeRequest::Ping));
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let mut bad = vec![changed(0, b'X'), changed(2, 99), changed(3, 1), changed(7, 0xff), changed(16, 200)];
    bad.push([good.clone(), random(64)].concat());
    bad.push([&good[..8], &[0; 8], &[0xff; 2]].concat());
    bad.extend(foreign_messages(&scene).iter().map(framed));
    let mut count = 0;
    for bytes in bad {
        for purpose in [Purpose::Control, Purpose::Recall] {
            let socket = scene.enter(Way::Tcp, &scene.user(), purpose, 5).expect("entered");
            socket.set_timeout(Some(PATIENCE)).expect("a timeout");
            socket.send_all(&bytes).expect("sent");
            let mut rest = [0; 4096];
            let ended = loop {
                match socket.receive_some(&mut rest) {
                    Ok(_) => {}
                    Err(TransportError::Io(error)) => break error.kind(),
                    Err(error) => panic!("{error}"),
                }
            };
            use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};
            assert!(matches!(ended, UnexpectedEof | ConnectionReset), "{ended:?} after {bytes:02x?}");
            count += 1;
        }
    }
    scene.has_rejected(count, 0);
    scene.is_unharmed("malformed frames");
}

#[test]
fn users_do_not_command_nodes_and_objects() {
    let mut scene = Scene::new();
    let socket = scene.enter(Way::Tcp, &scene.user(), Purpose::Control, 5).expect("entered");
    let mut connection = ControlConnection::new(socket);
    let mut map = scene.fs.instance.map.clone();
    map.epoch = MapEpoch(99);
    map.shards.clear();
    for request in [
        NodeRequest::SetMap(map),
        NodeRequest::Status,
        NodeRequest::Stuck,
        NodeRequest::Shutdown,
        NodeRequest::RevokeKey(KeyId(2)),
        NodeRequest::AskToServe { epoch: MapEpoch(1), settled: Vec::new() },
        NodeRequest::AskOfObject { session: SessionId(1), inode: scene.victim.inode, object: scene.object() },
        NodeRequest::Join { nodes: scene.fs.instance.map.nodes.clone(), shards_per_node: 1 },
        NodeRequest::Move { shard: ShardId::ROOT, to: NodeId(0) },
        NodeRequest::Change { node: NodeId(0), change: NodeChange::Drain },
        NodeRequest::Ship { shard: ShardId::ROOT, to: NodeId(0), epoch: MapEpoch(2) },
        NodeRequest::Take {
            shard: ShardId(9),
            epoch: MapEpoch(2),
            part: ShardPart { number: 0, kind: ShardPartKind::LastRest, bytes: vec![0; 9] },
        },
    ] {
        let reply = connection.call(&Message::Node(request)).expect("answered");
        assert_eq!(reply, Message::NodeReply(Box::new(Err(Error::NotPermitted))));
    }
    let (inode, object) = (scene.victim.inode, scene.object());
    for request in [
        StorageRequest::Remove { objects: vec![(inode, object)] },
        StorageRequest::Truncate { inode, object, size: 0, by: SessionId(1) },
        StorageRequest::Stat { inode, object },
        StorageRequest::Fence {
            session: SessionId(SESSION),
            shard: routing::of_inode(inode),
            objects: vec![(inode, object)],
        },
        StorageRequest::ListBelow { path: vec![name("victim")], after: None },
        StorageRequest::FillFromBelow { inode, object: Some(object), path: vec![name("victim")], offset: 0 },
    ] {
        let reply = connection.call(&Message::Storage(request)).expect("answered");
        assert_eq!(reply, Message::StorageReply(Err(Error::NotPermitted)));
    }
    for count in [0, 1025, u32::MAX] {
        let reply = connection.call(&Message::Storage(StorageRequest::LeaseObjects { count })).expect("answered");
        assert_eq!(reply, Message::StorageReply(Err(Error::Invalid)));
    }
    scene.is_unharmed("requests of a user");
    scene.has_rejected(0, 0);
}

#[test]
fn a_user_is_who_his_key_says() {
    let mut scene = Scene::new();
    let (victim, me) = (scene.victim.inode, FileSystem::me());
    let mut calls = Calls::new(scene.enter(Way::Tcp, &scene.user(), Purpose::Control, 5).expect("entered"));
    for said in [None, Some(me), Some(Credentials::default())] {
        let attempts = [
            ShardRequest::Open { inode: victim, flags: open_flags(Access::Read) },
            ShardRequest::Open { inode: victim, flags: open_flags(Access::Write) },
            ShardRequest::MakeDirectory { parent: ROOT, name: name("mine"), mode: 0o777, home: None },
            ShardRequest::Unlink { parent: ROOT, name: name("victim") },
            ShardRequest::Rename {
                parent: ROOT,
                name: name("victim"),
                new_parent: ROOT,
                new_name: name("mine"),
                mode: Default::default(),
                guess: None,
            },
        ];
        for request in attempts {
            assert_eq!(
                calls.call(said.clone(), 0, request.clone()),
                Err(Error::AccessDenied),
                "{request:?} as {said:?}"
            );
        }
        let changes = AttributeChanges { mode: Some(0o777), uid: Some(1), ..AttributeChanges::default() };
        let request = ShardRequest::SetAttributes { inode: victim, changes };
        assert_eq!(calls.call(said.clone(), 0, request), Err(Error::NotPermitted), "{said:?}");
        for request in [
            ShardRequest::ReadBelow { directory: ROOT, after: None },
            ShardRequest::NoteBelow { directory: ROOT, notes: Vec::new() },
        ] {
            assert_eq!(calls.call(said.clone(), 0, request), Err(Error::NotPermitted), "{said:?}");
        }
        let request = ShardRequest::Commit {
            inode: victim,
            object: None,
            others: Vec::new(),
            size: 0,
            mtime: None,
            object_mtime: Default::default(),
            known: 0,
            number: 0,
            passed: false,
        };
        assert_eq!(calls.call(said, 0, request), Err(Error::BadHandle));
    }
    // Slots are as many as the limit says; a shard keeps the last reply of each.
    let request = ShardRequest::Open { inode: victim, flags: open_flags(Access::Read) };
    assert_eq!(calls.call(None, SLOTS_MAX - 1, request.clone()), Err(Error::AccessDenied));
    assert_eq!(calls.call(None, SLOTS_MAX, request.clone()), Err(Error::Invalid));
    assert_eq!(calls.call(None, u16::MAX, request), Err(Error::Invalid));
    // Answers to recalls that were never sent.
    for number in 0..10 {
        let answer = RecallAnswer { shard: ShardId(0), number, kept: LeaseMode::Exclusive };
        calls.connection.send(&Message::RecallAnswer(answer)).expect("sent");
    }
    scene.is_unharmed("a user's calls");
    scene.has_rejected(0, 0);
}

#[test]
fn requests_without_reading_the_answers_wait() {
    let mut scene = Scene::new();
    let socket = scene.enter(Way::Tcp, &scene.user(), Purpose::Control, 5).expect("entered");
    socket.set_timeout(Some(PATIENCE)).expect("a timeout");
    let request = framed(&Message::Node(NodeRequest::GetMap));
    let count = 20_000;
    let sender = socket.try_clone().expect("a second handle");
    let many = request.repeat(count);
    // Not all of it is taken before the answers are read.
    let sending = std::thread::spawn(move || sender.send_all(&many));
    scene.is_unharmed("20,000 requests");
    let mut connection = ControlConnection::new(socket);
    for number in 0..count {
        let (_, reply) = connection.receive().expect("answered");
        assert!(matches!(&reply, Message::NodeReply(answer) if answer.is_ok()), "reply {number}: {reply:?}");
    }
    sending.join().expect("the sender").expect("sent");
    scene.has_rejected(0, 0);
    scene.is_unharmed("20,000 answers");
}
