//! Keys, and what they are good for.

use crate::connections::*;
use crate::scene::*;
use weft_client::protocol::message::shard::CreateFile;
use weft_client::{Client, ClientOptions, Instance, KeyFile, OpenOptions, Way};
use weft_protocol::data::{DataOperation, REPLY_BYTES};
use weft_protocol::handshake::{KeyName, Purpose};
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{AttributeChanges, Credentials, Error, KeyId, NodeId, NodeKey, UserKey};
use weft_tests::FileSystem;
use weft_transport::{ControlConnection, TransportError};

#[test]
fn a_key_is_good_for_its_own_name_only() {
    let mut scene = Scene::new();
    let right = stranger();
    let key = |name| UserKey::derive(&scene.fs.key, &name);
    let users = |credentials| user_name(1, credentials);
    let other_key = NodeKey::new([1; 32]);
    let claims = [
        // A key of another file system.
        (KeyName::Owner, UserKey::derive(&other_key, &KeyName::Owner)),
        (users(right.clone()), UserKey::derive(&other_key, &users(right.clone()))),
        // A user's key in the name of others.
        (KeyName::Owner, key(users(right.clone()))),
        (KeyName::Node(NodeId(0)), key(users(right.clone()))),
        (users(Credentials { uid: 0, ..right.clone() }), key(users(right.clone()))),
        (users(Credentials { gid: 0, ..right.clone() }), key(users(right.clone()))),
        (users(Credentials { groups: Box::new([4001, 0]), ..right.clone() }), key(users(right.clone()))),
        (users(Credentials { groups: Box::default(), ..right.clone() }), key(users(right))),
        // The owner's key does not make a node.
        (KeyName::Node(NodeId(0)), key(KeyName::Owner)),
    ];
    let mut count = 0;
    for (name, key) in claims {
        for way in [Way::Tcp, Way::Unix] {
            for purpose in [Purpose::Control, Purpose::Data, Purpose::Recall] {
                let who = Who { name: name.clone(), key: key.clone() };
                let result = scene.enter(way, &who, purpose, 5);
                assert!(matches!(result, Err(TransportError::WrongKey)), "{:?}: {result:?}", who.name);
                count += 1;
            }
        }
    }
    // More groups than allowed are refused, whoever made the key.
    let many = users(Credentials { uid: 7, gid: 7, groups: (0..300).collect() });
    let who = Who::derive(&scene.fs.key, many);
    assert!(matches!(scene.enter(Way::Tcp, &who, Purpose::Control, 5), Err(TransportError::Refused(Error::Invalid))));
    scene.has_rejected(count + 1, 0);
    scene.is_unharmed("wrong keys");
}

#[test]
fn a_key_of_which_one_bit_is_changed_opens_nothing() {
    let mut scene = Scene::new();
    let right = scene.user();
    scene.enter(Way::Tcp, &right, Purpose::Control, 5).expect("the right one");
    let mut bytes = [0; 32];
    bytes.copy_from_slice(right.key.as_bytes());
    let keys = (0..256).map(|bit| {
        let mut changed = bytes;
        changed[bit / 8] ^= 1 << (bit % 8);
        Who { name: right.name.clone(), key: UserKey::new(changed) }
    });
    // The number of the key, by which it is revoked, is no more his to choose than his groups.
    let numbers = (0..64).map(|bit| Who { name: user_name(1 ^ 1 << bit, stranger()), key: right.key.clone() });
    let mut count = 0;
    for who in keys.chain(numbers) {
        let result = scene.enter(Way::Tcp, &who, Purpose::Control, 5);
        assert!(matches!(result, Err(TransportError::WrongKey)), "{count}: {result:?}");
        count += 1;
    }
    scene.has_rejected(count, 0);
    scene.is_unharmed("keys with a changed bit");
}

#[test]
fn over_a_unix_socket_a_key_is_good_for_its_user_and_root() {
    let mut scene = Scene::new();
    let entered = scene.enter(Way::Unix, &scene.user(), Purpose::Control, 5);
    if FileSystem::me().uid == 0 {
        assert!(entered.is_ok(), "{entered:?}");
    } else {
        assert!(matches!(entered, Err(TransportError::Refused(Error::AccessDenied))), "{entered:?}");
        scene.has_rejected(1, 0);
    }
    scene.is_unharmed("a key in other hands");
}

#[test]
fn a_key_file_with_other_claims_is_refused() {
    let scene = Scene::new();
    let right = scene.key_file(1);
    let connect = |key: KeyFile| Client::connect(&Instance::of_key(key), &ClientOptions::default());
    let client = connect(right.clone()).expect("the right one");
    assert_eq!((client.credentials(), client.map().name.as_str()), (stranger(), right.file_system.as_str()));
    client.close().expect("closed");
    let claims = |change: fn(&mut Credentials)| {
        let mut key = right.clone();
        change(&mut key.credentials);
        key
    };
    let mut foreign = scene.fs.instance.map.clone();
    foreign.name = right.file_system.clone();
    for key in [
        claims(|user| user.uid = 0),
        claims(|user| user.gid = 0),
        claims(|user| user.groups = Box::new([4001, 0])),
        claims(|user| user.groups = Box::new([0])),
        claims(|user| user.groups = Box::default()),
        KeyFile { id: KeyId(2), ..right.clone() },
        // Another file system's, with the addresses of this one.
        KeyFile::make(&NodeKey::new([9; 32]), &foreign, "ann", KeyId(1), stranger()),
    ] {
        assert_eq!(connect(key.clone()).err(), Some(Error::AccessDenied), "{key:?}");
    }
    let nowhere = KeyFile { addresses: vec!["127.0.0.1:1".to_owned()], ..right.clone() };
    assert_eq!(connect(nowhere).err(), Some(Error::Unreachable));
    // One address that is somebody else's by now does not hide the node behind the next one.
    let addresses = [vec!["127.0.0.1:1".to_owned()], right.addresses.clone()].concat();
    connect(KeyFile { addresses, ..right }).expect("connected").close().expect("closed");
}

#[test]
fn with_a_key_every_caller_is_its_user() {
    let mut scene = Scene::new();
    let (me, owner) = (FileSystem::me(), scene.fs.client(Way::Tcp));
    let put = |file: &str, mode, owned_by: AttributeChanges| {
        let create = Some(CreateFile { mode, exclusive: true, plan: None });
        let (open, entry) = owner.open_at(&me, ROOT, &name(file), OpenOptions::WRITE, create).expect("made");
        open.write_at(CONTENTS, 0).expect("written");
        open.close().expect("closed");
        owner.set_attributes(&me, entry.attributes.inode, &owned_by).expect("set");
    };
    let nobodys = AttributeChanges::default();
    put("of-his-group", 0o640, AttributeChanges { gid: Some(4001), ..nobodys.clone() });
    put("of-another-group", 0o640, AttributeChanges { gid: Some(4002), ..nobodys.clone() });
    put("his-own", 0o600, AttributeChanges { uid: Some(stranger().uid), ..nobodys });
    let user = Client::connect(&Instance::of_key(scene.key_file(1)), &ClientOptions::default()).expect("connected");
    // Whoever calls says who he is; the key says who counts.
    for who in [user.credentials(), me.clone(), Credentials { groups: Box::new([4002]), ..me.clone() }] {
        let read = |file: &str| user.open_at(&who, ROOT, &name(file), OpenOptions::READ, None).map(|(open, _)| open);
        for file in ["of-his-group", "his-own"] {
            let mut buffer = [0; 100];
            assert_eq!(read(file).expect(file).read_at(&mut buffer, 0), Ok(CONTENTS.len()), "{file} as {who:?}");
        }
        for file in ["of-another-group", "victim"] {
            assert_eq!(read(file).err(), Some(Error::AccessDenied), "{file} as {who:?}");
        }
        assert_eq!(user.make_directory(&who, ROOT, &name("mine"), 0o700).err(), Some(Error::AccessDenied));
    }
    user.close().expect("closed");
    for file in ["of-his-group", "of-another-group", "his-own"] {
        owner.unlink(&me, ROOT, &name(file)).expect("removed");
    }
    owner.close().expect("closed");
    scene.is_unharmed("a client with a user's key");
}

#[test]
fn a_revoked_key_opens_nothing_any_more() {
    let mut scene = Scene::new();
    let other = Who::derive(&scene.fs.key, user_name(2, stranger()));
    let enter = |who: &Who, purpose| scene.enter(Way::Tcp, who, purpose, SESSION);
    let control = |who| ControlConnection::new(enter(who, Purpose::Control).expect("entered"));
    let (mut revoked, mut kept) = (control(&scene.user()), control(&other));
    let mut recall = ControlConnection::new(enter(&scene.user(), Purpose::Recall).expect("entered"));
    let mut data = Data::new(&scene, Way::Tcp, &scene.user());
    data.is_in_order();
    let ping = Message::Node(NodeRequest::Ping);
    assert!(revoked.call(&ping).is_ok() && kept.call(&ping).is_ok());
    let owner = scene.fs.client(Way::Tcp);
    for _ in 0..2 {
        assert_eq!(owner.node_request(NodeId(0), NodeRequest::RevokeKey(KeyId(1))), Ok(NodeAnswer::Done));
    }
    owner.close().expect("closed");
    // What was connected before ends with the next thing that it asks: requests, renewals, data under a right that
    // would hold for an hour.
    assert!(revoked.call(&ping).is_err());
    assert!(recall.call(&Message::Renew { groups: Vec::new() }).is_err());
    let request = data.request(DataOperation::Read, 100, data.signed(data.claims()));
    data.socket.send_all(&request.encode()).expect("sent");
    assert!(data.socket.receive_exact(&mut [0; REPLY_BYTES]).is_err());
    let purposes = [Purpose::Control, Purpose::Data, Purpose::Recall];
    for purpose in purposes {
        let result = enter(&scene.user(), purpose);
        assert!(matches!(result, Err(TransportError::Refused(Error::AccessDenied))), "{result:?}");
    }
    let client = Client::connect(&Instance::of_key(scene.key_file(1)), &ClientOptions::default());
    assert_eq!(client.err(), Some(Error::AccessDenied));
    // The user's other key is as good as before.
    assert!(kept.call(&ping).is_ok());
    for purpose in purposes {
        enter(&other, purpose).expect("entered");
    }
    scene.has_rejected(4, 0);
    scene.is_unharmed("a revoked key");
}
