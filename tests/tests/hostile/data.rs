//! Data requests with wrong capabilities and beyond the limits.

use crate::connections::*;
use crate::scene::*;
use weft_client::protocol::message::shard::{Access, CreateFile};
use weft_client::{OpenOptions, Way};
use weft_protocol::capability::CapabilityClaims;
use weft_protocol::data::{DataOperation, DataRequest, REPLY_BYTES};
use weft_protocol::handshake::{KeyName, Purpose};
use weft_protocol::limits::BULK_BYTES_MAX;
use weft_protocol::message::Message;
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{
    AttributeChanges, Capability, Error, MapEpoch, NodeId, NodeIdentity, NodeKey, ObjectId, Rights, SessionId, codec,
};
use weft_tests::FileSystem;
use weft_transport::{Peer, connect};

#[test]
fn only_the_right_capability_opens_an_object() {
    let mut scene = Scene::new();
    let mut refused = 0;
    for way in [Way::Tcp, Way::Unix] {
        let mut data = Data::new(&scene, way, &Who::derive(&scene.fs.key, KeyName::Owner));
        data.is_in_order();
        let claims = data.claims();
        let now = u32::try_from(std::time::UNIX_EPOCH.elapsed().expect("the time").as_secs()).expect("the time");
        let object = |sequence: u64| ObjectId::new(NodeId(0), sequence);
        let mut capabilities = vec![
            NodeKey::new([5; 32]).sign(&claims),
            data.signed(CapabilityClaims { expires_seconds: now - 2, ..claims }),
            data.signed(CapabilityClaims { session: SessionId(SESSION + 1), ..claims }),
            data.signed(CapabilityClaims { object: object(claims.object.sequence() + 1), ..claims }),
            data.signed(CapabilityClaims { object: object(claims.object.sequence() - 1), ..claims }),
            data.signed(CapabilityClaims { count: 0, ..claims }),
            data.signed(CapabilityClaims { inode: ROOT, ..claims }),
            data.signed(CapabilityClaims { object: ObjectId::new(NodeId(1), claims.object.sequence()), ..claims }),
            data.signed(CapabilityClaims { rights: Rights::empty(), ..claims }),
            data.signed(CapabilityClaims { epoch: MapEpoch(0), ..claims }),
            data.signed(CapabilityClaims { rights: Rights::CREATE, ..claims }),
        ];
        let good = data.signed(claims).to_bytes();
        for bit in (0..good.len() * 8).step_by(7) {
            let mut forged = good;
            forged[bit / 8] ^= 1 << (bit % 8);
            capabilities.extend(Capability::from_bytes(&forged));
        }
        for capability in capabilities {
            for (operation, bytes) in [(DataOperation::Read, 100), (DataOperation::Write, 10), (DataOperation::Sync, 0)]
            {
                let request = data.request(operation, bytes, capability);
                assert_eq!(data.ask(request), Err(Error::CapabilityRejected), "{operation:?} {capability:?}");
                refused += 1;
            }
        }
        // A reader's right changes nothing.
        for (operation, bytes) in [
            (DataOperation::Write, 10),
            (DataOperation::Write, 100_000),
            (DataOperation::Append, 10),
            (DataOperation::Sync, 0),
            (DataOperation::Descriptor, 1),
        ] {
            let request = data.request(operation, bytes, data.signed(claims));
            assert_eq!(data.ask(request), Err(Error::CapabilityRejected), "{operation:?}");
            refused += 1;
        }
        data.is_in_order();
    }
    scene.has_rejected(0, refused);
    scene.is_unharmed("capabilities");
}

#[test]
fn descriptors_go_to_the_owner_of_the_file_on_the_same_node() {
    let mut scene = Scene::new();
    let here = scene.fs.instance.map.nodes[0].identity;
    // Over TCP; from another node; by a user whose file it is not.
    let owner = || Who::derive(&scene.fs.key, KeyName::Owner);
    for (way, who, identity) in
        [(Way::Tcp, owner(), here), (Way::Unix, owner(), NodeIdentity(here.0 ^ 1)), (Way::Tcp, scene.user(), here)]
    {
        let socket = scene.socket(way);
        let peer = Peer { key_name: who.name, purpose: Purpose::Data, session: SessionId(SESSION), identity };
        connect(&socket, &peer, &who.key).expect("entered");
        let mut data = Data { scene: &scene, socket, next_id: 0 };
        let request = data.request(DataOperation::Descriptor, 0, data.signed(data.claims()));
        assert_eq!(data.ask(request), Err(Error::NotSupported), "{way:?}");
        data.is_in_order();
    }
    scene.is_unharmed("descriptors");
    scene.has_rejected(0, 0);
}

#[test]
fn requests_beyond_the_limits_close_the_data_connection() {
    let mut scene = Scene::new();
    let mut count = 0;
    let operations = [DataOperation::Read, DataOperation::Write, DataOperation::Append, DataOperation::Stat];
    for operation in operations {
        for (offset, bytes) in
            [(u64::MAX, 1), (u64::MAX - 10, 100), (i64::MAX as u64, 1), (0, BULK_BYTES_MAX + 1), (0, u32::MAX)]
        {
            let data = Data::new(&scene, Way::Tcp, &Who::derive(&scene.fs.key, KeyName::Owner));
            let rights = Rights::READ | Rights::WRITE;
            let capability = data.signed(CapabilityClaims { rights, ..data.claims() });
            let request = DataRequest { offset, ..data.request(operation, bytes, capability) };
            data.socket.send_all(&request.encode()).expect("sent");
            let mut answer = [0; REPLY_BYTES];
            assert!(data.socket.receive_exact(&mut answer).is_err(), "{operation:?} at {offset} of {bytes}");
            count += 1;
        }
    }
    for noise in
        [vec![0; 120], random(120), random(5000), codec::to_bytes(&Message::Renew { groups: Vec::new() }).repeat(120)]
    {
        let data = Data::new(&scene, Way::Tcp, &scene.user());
        data.socket.send_all(&noise).expect("sent");
        assert!(data.socket.receive_exact(&mut [0; REPLY_BYTES]).is_err());
        count += 1;
    }
    scene.has_rejected(count, 0);
    // A write that stops half way is no malformed message: the connection just ends.
    let data = Data::new(&scene, Way::Tcp, &scene.user());
    let capability = data.signed(CapabilityClaims { rights: Rights::READ, ..data.claims() });
    data.socket.send_all(&data.request(DataOperation::Write, 1 << 20, capability).encode()).expect("sent");
    data.socket.send_all(&[1; 1000]).expect("sent");
    drop(data);
    scene.is_unharmed("data requests beyond the limits");
}

#[test]
fn a_file_cannot_claim_the_object_of_another() {
    let mut scene = Scene::new();
    let me = FileSystem::me();
    let owner = scene.fs.client(Way::Tcp);
    let home = owner.make_directory(&me, ROOT, &name("home"), 0o777).expect("made").attributes.inode;
    // The victim is open, so its object is at hand in the store.
    let (open, _) = owner.open_at(&me, ROOT, &name("victim"), OpenOptions::READ, None).expect("opened");
    assert_eq!(open.read_at(&mut [0; 100], 0), Ok(CONTENTS.len()));
    let mut calls = Calls::new(scene.enter(Way::Tcp, &scene.user(), Purpose::Control, SESSION).expect("entered"));
    let create = Some(CreateFile { mode: 0o600, exclusive: false, plan: None });
    let flags = open_flags(Access::ReadWrite);
    let made =
        calls.call(None, 0, ShardRequest::OpenAt { parent: home, name: name("thief"), flags, create, objects: None });
    let Ok(ShardAnswer::Opened { attributes, .. }) = made else { panic!("{made:?}") };
    let inode = attributes.inode;
    let (object, mtime, object_mtime, known, number) = (Some(scene.object()), None, Default::default(), 0, 0);
    // Whether the shard takes it or not, it must be of no use.
    let (others, passed) = (Vec::new(), false);
    let commit = ShardRequest::Commit { inode, object, others, size: 100, mtime, object_mtime, known, number, passed };
    let _ = calls.call(None, 0, commit);
    if let Ok(ShardAnswer::Opened { capability: Some(capability), .. }) =
        calls.call(None, 0, ShardRequest::Open { inode, flags })
    {
        let mut data = Data::new(&scene, Way::Tcp, &scene.user());
        for victim in [inode, scene.victim.inode] {
            for (operation, bytes) in [(DataOperation::Read, 100), (DataOperation::Write, 10), (DataOperation::Stat, 0)]
            {
                let request = DataRequest { inode: victim, ..data.request(operation, bytes, capability) };
                let answer = data.ask(request);
                assert!(
                    matches!(answer, Err(Error::NoObject | Error::CapabilityRejected)),
                    "{operation:?} as {victim}: {answer:?}"
                );
            }
        }
    }
    for size in [5, 0] {
        let changes = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
        let _ = calls.call(None, 0, ShardRequest::SetAttributes { inode, changes });
    }
    let (others, passed) = (Vec::new(), false);
    let commit = ShardRequest::Commit { inode, object, others, size: 100, mtime, object_mtime, known, number, passed };
    let _ = calls.call(None, 0, commit);
    calls.call(None, 0, ShardRequest::Unlink { parent: home, name: name("thief") }).expect("removed");
    let thief = calls.call(None, 0, ShardRequest::EndSession);
    assert_eq!(thief, Ok(ShardAnswer::Done));
    assert_eq!(open.read_at(&mut [0; 100], 0), Ok(CONTENTS.len()));
    open.close().expect("closed");
    owner.remove_directory(&me, ROOT, &name("home")).expect("empty");
    owner.close().expect("closed");
    scene.rejected = scene.counters();
    scene.is_unharmed("a stolen object");
}
