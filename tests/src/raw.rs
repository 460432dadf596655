//! A session without the client library: calls and data requests of a test's own making.

use crate::FileSystem;
use std::os::fd::OwnedFd;
use weft_protocol::data::{BulkDescriptor, DataOperation, DataRequest};
use weft_protocol::handshake::{KeyName, Purpose};
use weft_protocol::message::Message;
use weft_protocol::message::shard::{Access, OpenFlags, PageCache, ShardAnswer, ShardCall, ShardRequest};
use weft_protocol::{ConnectionId, InodeNumber, MapEpoch, NodeId, SessionId, SlotIndex, UserKey, routing};
use weft_transport::{BulkConnection, ControlConnection, Peer, Socket, SocketBulk, SocketKind, connect};

/// A session of the owner. Dropping it closes its control connection: by Unix socket that ends the session.
pub struct RawSession {
    session: SessionId,
    control: ControlConnection,
}

/// Connects as the owner, in a session of the test's choice.
pub fn enter(fs: &FileSystem, node: NodeId, kind: SocketKind, session: SessionId, purpose: Purpose) -> Socket {
    enter_named(fs, node, kind, session, purpose).0
}

fn enter_named(
    fs: &FileSystem,
    node: NodeId,
    kind: SocketKind,
    session: SessionId,
    purpose: Purpose,
) -> (Socket, ConnectionId) {
    let record = fs.instance.map.node(node).expect("the node is in the map");
    let socket = match kind {
        SocketKind::Unix => Socket::connect_unix(record.address.unix.as_ref()),
        SocketKind::Tcp => Socket::connect_tcp(&record.address.tcp),
    };
    let socket = socket.expect("the node listens");
    let peer = Peer { key_name: KeyName::Owner, purpose, session, identity: record.identity };
    let welcomed = connect(&socket, &peer, &UserKey::derive(&fs.key, &KeyName::Owner)).expect("the handshake");
    (socket, welcomed.connection)
}

impl RawSession {
    /// Its name.
    pub fn id(&self) -> SessionId {
        self.session
    }

    /// A session with a control connection by Unix socket to a node.
    pub fn start(fs: &FileSystem, node: NodeId, session: u64) -> Self {
        let session = SessionId(session);
        let control = ControlConnection::new(enter(fs, node, SocketKind::Unix, session, Purpose::Control));
        Self { session, control }
    }

    /// A data connection of the session.
    pub fn data(&self, fs: &FileSystem, node: NodeId, kind: SocketKind) -> Socket {
        enter(fs, node, kind, self.session, Purpose::Data)
    }

    /// A data connection of the session, and its name at the node.
    pub fn named_data(&self, fs: &FileSystem, node: NodeId, kind: SocketKind) -> (Socket, ConnectionId) {
        enter_named(fs, node, kind, self.session, Purpose::Data)
    }

    /// A descriptor for writing of the object that a request of this session is about.
    pub fn descriptor(&self, fs: &FileSystem, node: NodeId, request: &DataRequest) -> OwnedFd {
        let mut data = SocketBulk::new(self.data(fs, node, SocketKind::Unix));
        let asked = DataRequest { operation: DataOperation::Descriptor, bytes: 1, ..*request };
        let (reply, passed) = data.descriptor(&asked).expect("the server answers");
        assert_eq!(reply.status, 0, "it is passed");
        passed.expect("a descriptor")
    }

    /// Opens a file for writing. The result is a write of no bytes, with the capability for it.
    pub fn open_for_writing(&mut self, inode: InodeNumber) -> DataRequest {
        let flags = OpenFlags {
            access: Access::ReadWrite,
            truncate: false,
            direct: false,
            page_cache: PageCache::None,
            group: None,
        };
        let reply = self.control.call(&Message::Shard(ShardCall {
            shard: routing::of_inode(inode),
            epoch: MapEpoch(1),
            slots_of: NodeId(0),
            slot: SlotIndex(0),
            sequence: 1,
            credentials: None,
            request: ShardRequest::Open { inode, flags },
            repeats: Vec::new(),
        }));
        let Message::ShardReply(reply) = reply.expect("the node answers") else { panic!("no reply of a shard") };
        let ShardAnswer::Opened { attributes, capability, .. } = reply.result.expect("opened") else {
            panic!("the answer to another call")
        };
        DataRequest {
            operation: DataOperation::Write,
            pages: false,
            bytes: 0,
            id: 0,
            object: attributes.layout.object().expect("the file has an object"),
            inode,
            offset: 0,
            memory: BulkDescriptor::default(),
            capability: capability.expect("a capability"),
        }
    }
}
