//! Bytes of strangers, and users who ask for what is not theirs, harm nobody.
//!
//! Each test does something hostile to a running file system, over TCP and over the Unix socket, and then checks that
//! an honest client is served, that a file made before has its contents and the root its names, and that the node's
//! counters have seen it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use weft_client::protocol::message::shard::{Access, CreateFile, DirectoryCursor};
use weft_client::{Client, ClientOptions, Instance, KeyFile, OpenOptions, Way};
use weft_protocol::capability::CapabilityClaims;
use weft_protocol::data::{BulkDescriptor, DataOperation, DataReply, DataRequest, REPLY_BYTES};
use weft_protocol::handshake::{ClientHello, KeyName, Purpose};
use weft_protocol::limits::{BULK_BYTES_MAX, CONTROL_BODY_BYTES_MAX, HANDSHAKE_MS_MAX, SLOTS_MAX};
use weft_protocol::message::Message;
use weft_protocol::message::node::{Counters, NodeAnswer, NodeRequest};
use weft_protocol::message::peer::{IntentId, PeerCall, PeerReply, PeerStep};
use weft_protocol::message::recall::{Recall, RecallAnswer};
use weft_protocol::message::shard::{OpenFlags, ShardAnswer, ShardCall, ShardReply, ShardRequest};
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{
    AttributeChanges, Attributes, Capability, Credentials, Error, Generation, InodeNumber, KeyId, LeaseKey, LeaseMode,
    MapEpoch, Name, NodeId, NodeIdentity, NodeKey, ObjectId, Rights, SessionId, ShardId, SlotIndex, UserKey, codec,
    frame,
};
use weft_tests::{FileSystem, Wanted};
use weft_transport::{ControlConnection, Peer, Socket, TransportError, connect};

const ROOT: InodeNumber = InodeNumber::ROOT;
const CONTENTS: &[u8] = b"what the owner wrote";
/// How long a node may take to notice something.
const PATIENCE: Duration = Duration::from_secs(20);

/// A file system of one node with a file in it, and what is known of both.
struct Scene {
    fs: FileSystem,
    victim: Attributes,
    rejected: Counters,
    checks: usize,
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a valid name")
}

impl Scene {
    fn new() -> Self {
        let fs = FileSystem::start(Wanted { nodes: 1, ..Wanted::default() });
        let client = fs.client(Way::Tcp);
        let create = Some(CreateFile { mode: 0o600, exclusive: true });
        let (file, _) =
            client.open_at(&FileSystem::me(), ROOT, &name("victim"), OpenOptions::WRITE, create).expect("created");
        file.write_at(CONTENTS, 0).expect("written");
        file.close().expect("closed");
        let victim = client.lookup(&FileSystem::me(), ROOT, &name("victim")).expect("found").attributes;
        client.close().expect("closed");
        let mut scene = Self { fs, victim, rejected: Counters::default(), checks: 0 };
        scene.rejected = scene.counters();
        scene
    }

    fn tcp(&self) -> String {
        self.fs.instance.map.nodes[0].address.tcp.clone()
    }

    fn socket(&self, way: Way) -> Socket {
        let address = &self.fs.instance.map.nodes[0].address;
        match way {
            Way::Unix => Socket::connect_unix(address.unix.as_ref()).expect("connected"),
            _ => Socket::connect_tcp(&address.tcp).expect("connected"),
        }
    }

    fn object(&self) -> ObjectId {
        self.victim.layout.object().expect("the file has an object")
    }

    fn counters(&self) -> Counters {
        let client = self.fs.client(Way::Tcp);
        let NodeAnswer::Status(status) = client.node_request(NodeId(0), NodeRequest::Status).expect("status") else {
            panic!("no status")
        };
        assert!(status.shards.iter().all(|shard| shard.failed.is_none()), "a shard has failed: {:?}", status.shards);
        client.close().expect("closed");
        status.counters
    }

    /// Waits until so many more peers and capabilities have been rejected.
    fn has_rejected(&mut self, peers: u64, capabilities: u64) {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = self.counters();
            let more = (
                now.peers_rejected - self.rejected.peers_rejected,
                now.capabilities_rejected - self.rejected.capabilities_rejected,
            );
            if more == (peers, capabilities) {
                self.rejected = now;
                return;
            }
            assert!(Instant::now() < end, "{more:?} peers and capabilities rejected, not {:?}", (peers, capabilities));
            std::thread::yield_now();
        }
    }

    /// An honest client makes a file, reads it back and removes it; nothing else has changed.
    fn is_unharmed(&mut self, after: &str) {
        self.checks += 1;
        let me = FileSystem::me();
        let (writer, reader) = (self.fs.client(Way::Tcp), self.fs.client(Way::Unix));
        let file_name = name(&format!("honest{}", self.checks));
        let create = Some(CreateFile { mode: 0o644, exclusive: true });
        let (file, _) = writer.open_at(&me, ROOT, &file_name, OpenOptions::WRITE, create).expect(after);
        file.write_at(after.as_bytes(), 0).expect(after);
        file.close().expect(after);
        for (file_name, contents) in [(&file_name, after.as_bytes()), (&name("victim"), CONTENTS)] {
            let (file, entry) = reader.open_at(&me, ROOT, file_name, OpenOptions::READ, None).expect(after);
            let mut buffer = [0; 200];
            let count = file.read_at(&mut buffer, 0).expect(after);
            assert_eq!((&buffer[..count], entry.attributes.size), (contents, contents.len() as u64), "{after}");
            file.close().expect(after);
        }
        writer.unlink(&me, ROOT, &file_name).expect(after);
        let mut names = Vec::new();
        let mut cursor = DirectoryCursor::default();
        loop {
            let page = reader.read_directory(&me, ROOT, &cursor, 100, false).expect(after);
            names.extend(page.entries.into_iter().map(|entry| entry.name));
            let Some(next) = page.next else { break };
            cursor = next;
        }
        assert_eq!(names, [name("victim")], "{after}");
        let now = reader.lookup(&me, ROOT, &name("victim")).expect(after).attributes;
        let kept = |attributes: &Attributes| (attributes.mode, attributes.uid, attributes.links, attributes.layout);
        assert_eq!(kept(&now), kept(&self.victim), "{after}");
        for client in [writer, reader] {
            client.close().expect(after);
        }
    }

    /// A connection whose handshake is done. The session is that of the number.
    fn enter(&self, way: Way, who: &Who, purpose: Purpose, session: u64) -> weft_transport::Result<Socket> {
        let socket = self.socket(way);
        let session = SessionId(session);
        let peer = Peer { key_name: who.name.clone(), purpose, session, identity: NodeIdentity(0) };
        connect(&socket, &peer, &who.key).map(|_| socket)
    }

    /// The key of the stranger, as a file.
    fn key_file(&self, number: u64) -> KeyFile {
        KeyFile::make(&self.fs.key, &self.fs.instance.map, "ann", KeyId(number), stranger())
    }

    fn user(&self) -> Who {
        Who::derive(&self.fs.key, user_name(1, stranger()))
    }
}

/// Somebody, with his key.
struct Who {
    name: KeyName,
    key: UserKey,
}

impl Who {
    fn derive(key: &NodeKey, name: KeyName) -> Self {
        Self { key: UserKey::derive(key, &name), name }
    }
}

/// A user, with the key of this number.
fn user_name(key: u64, credentials: Credentials) -> KeyName {
    KeyName::User { key: KeyId(key), credentials }
}

/// A user who is not the owner. Over Unix sockets only root may use his key here, so these tests use TCP for him.
fn stranger() -> Credentials {
    Credentials { uid: FileSystem::me().uid + 1000, gid: 4000, groups: Box::new([4001]) }
}

fn hello(key_name: KeyName) -> Vec<u8> {
    let hello = ClientHello {
        key_name,
        purpose: Purpose::Control,
        session: SessionId(9),
        identity: NodeIdentity(0),
        nonce: [3; 32],
    };
    let mut bytes = Vec::new();
    frame::append_body(&mut bytes, 0, &hello);
    bytes
}

fn framed(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::append(&mut bytes, 1, message);
    bytes
}

fn random(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    getrandom::fill(&mut bytes).expect("random bytes");
    bytes
}

/// Things that are no handshake.
fn noises() -> Vec<Vec<u8>> {
    let whole = hello(KeyName::Owner);
    let mut noises: Vec<Vec<u8>> = [1, 15, 16, 17, 112, 4000, 70_000].into_iter().map(random).collect();
    noises.push(vec![0; 5000]);
    noises.push(b"GET / HTTP/1.1\r\nHost: weft\r\n\r\n".to_vec());
    // Cut at places where a field begins or not.
    noises.extend([1, 8, 16, 17, 30, whole.len() - 1].map(|end| whole[..end].to_vec()));
    // A length of a body that never comes, and one that no body may have.
    for body_bytes in [4096, 4097, u32::try_from(CONTROL_BODY_BYTES_MAX).expect("a length"), u32::MAX] {
        let mut bytes = whole.clone();
        bytes[4..8].copy_from_slice(&body_bytes.to_le_bytes());
        noises.push(bytes);
    }
    // A control message instead of a hello; a hello, then nonsense instead of a proof; the hello twice.
    noises.push(framed(&Message::Node(NodeRequest::Shutdown)));
    noises.push([whole.clone(), random(200)].concat());
    noises.push([whole.clone(), whole].concat());
    // More groups than a user can have.
    let groups = (0..1000).collect();
    noises.push(hello(user_name(1, Credentials { uid: 0, gid: 0, groups })));
    noises
}

#[test]
fn noise_instead_of_a_handshake() {
    let mut scene = Scene::new();
    let mut count = 0;
    for noise in noises() {
        // The node may close before it has all of it.
        let mut tcp = TcpStream::connect(scene.tcp()).expect("connected");
        let _ = tcp.write_all(&noise);
        let mut unix = UnixStream::connect(&scene.fs.instance.map.nodes[0].address.unix).expect("connected");
        let _ = unix.write_all(&noise);
        for stream in [&mut tcp as &mut dyn Read, &mut unix] {
            // Nothing but a hello is ever answered to a stranger.
            let mut answer = [0; 256];
            let _ = (noise.len() < 112).then_some(0).map_or_else(|| stream.read(&mut answer), Ok);
        }
        count += 2;
    }
    scene.has_rejected(count, 0);
    scene.is_unharmed("noise");
}

#[test]
fn silence_of_many_keeps_nobody_out() {
    let mut scene = Scene::new();
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(scene.tcp()).expect("connected")).collect();
    let begin = Instant::now();
    scene.is_unharmed("300 silent connections");
    assert!(begin.elapsed() < Duration::from_millis(HANDSHAKE_MS_MAX), "it was served after {:?}", begin.elapsed());
    scene.has_rejected(300, 0);
    drop(silent);
}

#[test]
fn a_handshake_byte_by_byte_ends_in_time() {
    let mut scene = Scene::new();
    let mut slow = TcpStream::connect(scene.tcp()).expect("connected");
    slow.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let begin = Instant::now();
    let bytes = hello(KeyName::Owner);
    let mut next = bytes.iter();
    let closed = loop {
        // A byte each time that nothing has come for a tenth of a second: a read never waits as long as a handshake may
        // take.
        if let Some(byte) = next.next()
            && slow.write_all(&[*byte]).is_err()
        {
            break begin.elapsed();
        }
        match slow.read(&mut [0; 64]) {
            Ok(0) => break begin.elapsed(),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break begin.elapsed(),
            _ => assert!(begin.elapsed() < PATIENCE, "the node still listens to a handshake of {PATIENCE:?}"),
        }
    };
    assert!(closed < Duration::from_millis(HANDSHAKE_MS_MAX * 2), "closed after {closed:?}");
    scene.has_rejected(1, 0);
    scene.is_unharmed("a slow handshake");
}

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
        let create = Some(CreateFile { mode, exclusive: true });
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
    assert!(recall.call(&Message::Renew).is_err());
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

/// Messages that no client may send.
fn foreign_messages(scene: &Scene) -> Vec<Message> {
    let intent = IntentId { shard: ShardId(0), number: 1 };
    let peer = |step| Message::Peer(PeerCall { to: ShardId(0), epoch: MapEpoch(1), intent, step });
    vec![
        peer(PeerStep::Forget),
        peer(PeerStep::RemoveDirectoryInode {
            inode: ROOT,
            credentials: Credentials::default(),
            sticky_parent_uid: None,
        }),
        Message::PeerReply(PeerReply { intent, result: Err(Error::NotFound) }),
        Message::ShardReply(ShardReply { stamp: 1, result: Ok(ShardAnswer::Done) }),
        Message::StorageReply(Ok(StorageAnswer::Done)),
        Message::NodeReply(Box::new(Ok(NodeAnswer::Done))),
        Message::Recall(Recall {
            shard: ShardId(0),
            number: 1,
            key: LeaseKey::Data(scene.victim.inode),
            to: LeaseMode::None,
            stamp: 1,
        }),
        Message::RenewReply { refused: false },
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
    let revoke = NodeRequest::RevokeKey(KeyId(2));
    for request in [NodeRequest::SetMap(map), NodeRequest::Status, NodeRequest::Stuck, NodeRequest::Shutdown, revoke] {
        let reply = connection.call(&Message::Node(request)).expect("answered");
        assert_eq!(reply, Message::NodeReply(Box::new(Err(Error::NotPermitted))));
    }
    let (inode, object) = (scene.victim.inode, scene.object());
    for request in [
        StorageRequest::Remove { objects: vec![(inode, object)] },
        StorageRequest::Truncate { inode, object, size: 0 },
        StorageRequest::Stat { inode, object },
        StorageRequest::Fence { session: SessionId(SESSION), shard: inode.shard() },
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

/// One session's calls over a control connection.
struct Calls {
    connection: ControlConnection,
    sequence: u32,
}

impl Calls {
    fn new(socket: Socket) -> Self {
        Self { connection: ControlConnection::new(socket), sequence: 0 }
    }

    fn call(&mut self, said: Option<Credentials>, slot: u16, request: ShardRequest) -> Result<ShardAnswer, Error> {
        self.sequence += 1;
        let shard = request.target().map_or(ShardId::ROOT, InodeNumber::shard);
        let (epoch, slot, sequence) = (MapEpoch(1), SlotIndex(slot), self.sequence);
        let call = ShardCall { shard, epoch, slot, sequence, credentials: said, request };
        match self.connection.call(&Message::Shard(call)).expect("answered") {
            Message::ShardReply(reply) => reply.result,
            other => panic!("{other:?}"),
        }
    }
}

fn open_flags(access: Access) -> OpenFlags {
    OpenFlags { access, truncate: false, direct: true }
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
        let request = ShardRequest::Commit { inode: victim, object: None, size: 0, mtime: Default::default() };
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

/// A data connection and its requests.
struct Data<'a> {
    scene: &'a Scene,
    socket: Socket,
    next_id: u64,
}

const SESSION: u64 = 77;

impl<'a> Data<'a> {
    fn new(scene: &'a Scene, way: Way, who: &Who) -> Self {
        let socket = scene.enter(way, who, Purpose::Data, SESSION).expect("entered");
        socket.set_timeout(Some(PATIENCE)).expect("a timeout");
        Self { scene, socket, next_id: 0 }
    }

    fn claims(&self) -> CapabilityClaims {
        CapabilityClaims {
            object: self.scene.object(),
            count: 1,
            inode: self.scene.victim.inode,
            generation: Generation(1),
            epoch: MapEpoch(1),
            expires_seconds: u32::MAX,
            owner_uid: self.scene.victim.uid,
            rights: Rights::READ,
            session: SessionId(SESSION),
        }
    }

    fn request(&self, operation: DataOperation, bytes: u32, capability: Capability) -> DataRequest {
        DataRequest {
            operation,
            bytes,
            id: self.next_id,
            object: self.scene.object(),
            inode: self.scene.victim.inode,
            offset: 0,
            memory: BulkDescriptor::default(),
            capability,
        }
    }

    fn signed(&self, claims: CapabilityClaims) -> Capability {
        self.scene.fs.key.sign(&claims)
    }

    /// Sends a request, with zeros behind it when it writes; returns the reply's result and the bytes that came.
    fn ask(&mut self, request: DataRequest) -> Result<Vec<u8>, Error> {
        let request = DataRequest { id: self.next_id, ..request };
        self.next_id += 1;
        self.socket.send_all_with(&request.encode(), &vec![0; request.bulk_bytes() as usize]).expect("sent");
        let mut header = [0; REPLY_BYTES];
        self.socket.receive_exact(&mut header).expect("a reply");
        let reply = DataReply::decode(&header).expect("a reply");
        assert_eq!(reply.id, request.id);
        let mut bytes = vec![0; reply.bulk_bytes as usize];
        self.socket.receive_exact(&mut bytes).expect("the bytes of the reply");
        reply.result().map(|_| bytes)
    }

    /// The connection is in order, and the right capability is good.
    fn is_in_order(&mut self) {
        let request = self.request(DataOperation::Read, 100, self.signed(self.claims()));
        assert_eq!(self.ask(request).as_deref(), Ok(CONTENTS));
    }
}

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
    for noise in [vec![0; 120], random(120), random(5000), codec::to_bytes(&Message::Renew).repeat(120)] {
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
    let create = Some(CreateFile { mode: 0o600, exclusive: false });
    let flags = open_flags(Access::ReadWrite);
    let made = calls.call(None, 0, ShardRequest::OpenAt { parent: home, name: name("thief"), flags, create });
    let Ok(ShardAnswer::Opened { attributes, .. }) = made else { panic!("{made:?}") };
    let inode = attributes.inode;
    let (object, mtime) = (Some(scene.object()), Default::default());
    // Whether the shard takes it or not, it must be of no use.
    let _ = calls.call(None, 0, ShardRequest::Commit { inode, object, size: 100, mtime });
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
    let _ = calls.call(None, 0, ShardRequest::Commit { inode, object, size: 100, mtime });
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
