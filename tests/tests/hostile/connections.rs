//! Connections past the handshake, without the client library.

use crate::scene::*;
use weft_client::Way;
use weft_client::protocol::message::shard::Access;
use weft_protocol::capability::CapabilityClaims;
use weft_protocol::data::{BulkDescriptor, DataOperation, DataReply, DataRequest, REPLY_BYTES};
use weft_protocol::handshake::Purpose;
use weft_protocol::message::Message;
use weft_protocol::message::shard::{OpenFlags, PageCache, ShardAnswer, ShardCall, ShardRequest};
use weft_protocol::{
    Capability, Credentials, Error, Generation, MapEpoch, NodeId, Rights, SessionId, ShardId, SlotIndex, routing,
};
use weft_transport::{ControlConnection, Socket};

/// A data connection and its requests.
pub struct Data<'a> {
    pub scene: &'a Scene,
    pub socket: Socket,
    pub next_id: u64,
}

pub const SESSION: u64 = 77;

impl<'a> Data<'a> {
    pub fn new(scene: &'a Scene, way: Way, who: &Who) -> Self {
        let socket = scene.enter(way, who, Purpose::Data, SESSION).expect("entered");
        socket.set_timeout(Some(PATIENCE)).expect("a timeout");
        Self { scene, socket, next_id: 0 }
    }

    pub fn claims(&self) -> CapabilityClaims {
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

    pub fn request(&self, operation: DataOperation, bytes: u32, capability: Capability) -> DataRequest {
        DataRequest {
            operation,
            pages: false,
            bytes,
            id: self.next_id,
            object: self.scene.object(),
            inode: self.scene.victim.inode,
            offset: 0,
            memory: BulkDescriptor::default(),
            capability,
        }
    }

    pub fn signed(&self, claims: CapabilityClaims) -> Capability {
        self.scene.fs.key.sign(&claims)
    }

    /// Sends a request, with zeros behind it when it writes; returns the reply's result and the bytes that came.
    pub fn ask(&mut self, request: DataRequest) -> Result<Vec<u8>, Error> {
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
    pub fn is_in_order(&mut self) {
        let request = self.request(DataOperation::Read, 100, self.signed(self.claims()));
        assert_eq!(self.ask(request).as_deref(), Ok(CONTENTS));
    }
}

/// One session's calls over a control connection.
pub struct Calls {
    pub connection: ControlConnection,
    sequence: u32,
}

impl Calls {
    pub fn new(socket: Socket) -> Self {
        Self { connection: ControlConnection::new(socket), sequence: 0 }
    }

    pub fn call(&mut self, said: Option<Credentials>, slot: u16, request: ShardRequest) -> Result<ShardAnswer, Error> {
        self.sequence += 1;
        let shard = routing::of_request(&request).unwrap_or(ShardId::ROOT);
        let (epoch, slot, sequence) = (MapEpoch(1), SlotIndex(slot), self.sequence);
        let (slots_of, repeats) = (NodeId(0), Vec::new());
        let call = ShardCall { shard, epoch, slots_of, slot, sequence, credentials: said, request, repeats };
        match self.connection.call(&Message::Shard(call)).expect("answered") {
            Message::ShardReply(reply) => reply.result,
            other => panic!("{other:?}"),
        }
    }
}

pub fn open_flags(access: Access) -> OpenFlags {
    OpenFlags { access, truncate: false, direct: true, page_cache: PageCache::None, group: None }
}
