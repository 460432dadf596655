//! A file system that is to be harmed, and honest clients that look whether it was.

use std::time::{Duration, Instant};
use weft_client::protocol::message::shard::CreateFile;
use weft_client::{KeyFile, OpenOptions, Way};
use weft_protocol::handshake::{ClientHello, KeyName, Purpose};
use weft_protocol::message::Message;
use weft_protocol::message::node::Counters;
use weft_protocol::{
    Attributes, Cookie, Credentials, InodeNumber, KeyId, Name, NodeIdentity, NodeKey, ObjectId, SessionId, UserKey,
    frame,
};
use weft_tests::{FileSystem, Wanted, status};
use weft_transport::{Peer, Socket, connect};

pub const ROOT: InodeNumber = InodeNumber::ROOT;
pub const CONTENTS: &[u8] = b"what the owner wrote";
/// How long a node may take to notice something.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A file system of one node with a file in it, and what is known of both.
pub struct Scene {
    pub fs: FileSystem,
    pub victim: Attributes,
    pub rejected: Counters,
    pub checks: usize,
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a valid name")
}

impl Scene {
    pub fn new() -> Self {
        let fs = FileSystem::start(Wanted { nodes: 1, ..Wanted::default() });
        let client = fs.client(Way::Tcp);
        let create = Some(CreateFile { mode: 0o600, exclusive: true, plan: None });
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

    pub fn tcp(&self) -> String {
        self.fs.instance.map.nodes[0].address.tcp.clone()
    }

    pub fn socket(&self, way: Way) -> Socket {
        let address = &self.fs.instance.map.nodes[0].address;
        match way {
            Way::Unix => Socket::connect_unix(address.unix.as_ref()).expect("connected"),
            _ => Socket::connect_tcp(&address.tcp).expect("connected"),
        }
    }

    pub fn object(&self) -> ObjectId {
        self.victim.layout.object().expect("the file has an object")
    }

    pub fn counters(&self) -> Counters {
        let client = self.fs.client(Way::Tcp);
        let status = status(&client);
        assert!(status.shards.iter().all(|shard| shard.failed.is_none()), "a shard has failed: {:?}", status.shards);
        client.close().expect("closed");
        status.counters
    }

    /// Waits until so many more peers and capabilities have been rejected.
    pub fn has_rejected(&mut self, peers: u64, capabilities: u64) {
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
    pub fn is_unharmed(&mut self, after: &str) {
        self.checks += 1;
        let me = FileSystem::me();
        let (writer, reader) = (self.fs.client(Way::Tcp), self.fs.client(Way::Unix));
        let file_name = name(&format!("honest{}", self.checks));
        let create = Some(CreateFile { mode: 0o644, exclusive: true, plan: None });
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
        let mut listed = Cookie::START;
        loop {
            let page = reader.read_directory(&me, ROOT, listed, 100, false).expect(after);
            names.extend(page.entries.into_iter().map(|entry| entry.name));
            let Some(next) = page.next else { break };
            listed = next;
        }
        assert_eq!(names, [name("victim")], "{after}");
        let now = reader.lookup(&me, ROOT, &name("victim")).expect(after).attributes;
        let kept =
            |attributes: &Attributes| (attributes.mode, attributes.uid, attributes.links, attributes.layout.clone());
        assert_eq!(kept(&now), kept(&self.victim), "{after}");
        for client in [writer, reader] {
            client.close().expect(after);
        }
    }

    /// A connection whose handshake is done. The session is that of the number.
    pub fn enter(&self, way: Way, who: &Who, purpose: Purpose, session: u64) -> weft_transport::Result<Socket> {
        let socket = self.socket(way);
        let session = SessionId(session);
        let peer = Peer { key_name: who.name.clone(), purpose, session, identity: NodeIdentity(0) };
        connect(&socket, &peer, &who.key).map(|_| socket)
    }

    /// The key of the stranger, as a file.
    pub fn key_file(&self, number: u64) -> KeyFile {
        KeyFile::make(&self.fs.key, &self.fs.instance.map, "ann", KeyId(number), stranger())
    }

    pub fn user(&self) -> Who {
        Who::derive(&self.fs.key, user_name(1, stranger()))
    }
}

/// Somebody, with his key.
pub struct Who {
    pub name: KeyName,
    pub key: UserKey,
}

impl Who {
    pub fn derive(key: &NodeKey, name: KeyName) -> Self {
        Self { key: UserKey::derive(key, &name), name }
    }
}

/// A user, with the key of this number.
pub fn user_name(key: u64, credentials: Credentials) -> KeyName {
    KeyName::User { key: KeyId(key), credentials }
}

/// A user who is not the owner. Over Unix sockets only root may use his key here, so these tests use TCP for him.
pub fn stranger() -> Credentials {
    Credentials { uid: FileSystem::me().uid + 1000, gid: 4000, groups: Box::new([4001]) }
}

pub fn hello(key_name: KeyName) -> Vec<u8> {
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

pub fn framed(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::append(&mut bytes, 1, message);
    bytes
}

pub fn random(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    getrandom::fill(&mut bytes).expect("random bytes");
    bytes
}
