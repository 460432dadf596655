//! A data connection: one thread that checks each request and moves its bytes.
//!
//! It takes no lock but the object table's, and enters no shard; each piece of a write passes the gate of its session.
//! Requests are served in order, and the next header is read as soon as the previous reply is sent, so a client that
//! pipelines keeps this thread busy.

mod lending;
mod rdma;

use crate::cached_pages::{CachedPages, Pass};
use crate::clock;
use crate::cluster::Cluster;
use crate::counters::AtomicCounters;
use crate::data_activity::{Activity, DataActivity, Phase};
use crate::fencing::connections::Registered;
use crate::fencing::{Fencing, Gates, RequestGuard};
use crate::revoked::Revoked;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use weft_protocol::data::{DataOperation, DataReply, DataRequest, REQUEST_BYTES, SHARED_MEMORY_BYTES, SharedMemory};
use weft_protocol::handshake::KeyName;
use weft_protocol::map::FIRST_EPOCH;
use weft_protocol::{ConnectionId, Error, InodeNumber, ObjectId, SessionId, routing};
use weft_storage::{Grant, RangeRequest, check_access};
use weft_store_io::executor::{Moved, Pipe};
use weft_store_io::guard::Admitted;
use weft_store_io::rdma::ClientMemory;
use weft_store_io::{Loans, ObjectHandle, ObjectStat, ObjectStore};
use weft_transport::pass::send_descriptor;
use weft_transport::{Peer, PeerMemory, Result, Socket, SocketKind, TransportError};

/// Maximum number of open objects cached by a connection: a client uses few files over one connection.
const OBJECTS_CACHED_MAX: usize = 16;

/// What all data connections share.
pub struct DataServer {
    pub cluster: Arc<Cluster>,
    pub store: Arc<dyn ObjectStore>,
    pub fencing: Arc<Fencing>,
    pub pages: Arc<CachedPages>,
    pub revoked: Arc<Revoked>,
    pub counters: Arc<AtomicCounters>,
    pub activity: DataActivity,
    /// Outcome of the last client's RDMA negotiation, for `weft status`.
    pub rdma: Mutex<String>,
}

/// One data connection.
pub struct DataConnection<'a> {
    node: &'a DataServer,
    socket: &'a Socket,
    peer: &'a Peer,
    activity: Activity<'a>,
    gates: Gates<'a>,
    pipe: Pipe,
    /// The client's memory, if this process may read it.
    memory: Option<PeerMemory>,
    /// What the client is lent, if it has asked whether it may read this process's memory.
    loans: Option<Loans>,
    /// The read whose bytes were lent last.
    last_lent: Option<DataRequest>,
    /// The client's memory, if it is accessed by RDMA.
    client_memory: Option<ClientMemory>,
    /// Whether requests about that memory arrive as RDMA messages.
    has_messages: bool,
    /// Identifier of the last pipelined write that was refused for lack of space; 0: none.
    refused: u64,
    /// Body of the current request, if it arrived as an RDMA message.
    message: Option<Box<[u8]>>,
    /// Most recently used last. By inode and object: an object of another inode is refused.
    cached: Vec<((InodeNumber, ObjectId), Arc<dyn ObjectHandle>)>,
}

impl<'a> DataConnection<'a> {
    /// Returns an authenticated connection.
    pub fn new(node: &'a DataServer, socket: &'a Arc<Socket>, peer: &'a Peer, registered: &'a Registered) -> Self {
        registered.connected(socket);
        Self {
            gates: Gates::new(&node.fencing, registered),
            node,
            socket,
            peer,
            activity: Activity::new(&node.activity, socket, peer),
            pipe: Pipe::new(),
            memory: None,
            loans: None,
            last_lent: None,
            client_memory: None,
            has_messages: false,
            refused: 0,
            message: None,
            cached: Vec::new(),
        }
    }

    /// Serves until the peer closes the connection or violates the protocol, or its key is revoked.
    pub fn serve(&mut self) -> Result<()> {
        loop {
            let request = self.next_request()?;
            self.end_loan(&request);
            self.node.revoked.check(&self.peer.key_name).map_err(TransportError::Refused)?;
            self.activity.begin(&request);
            self.handle(&request)?;
            self.activity.end();
        }
    }

    fn next_request(&mut self) -> Result<DataRequest> {
        if let Some(request) = self.next_message()? {
            return Ok(request);
        }
        let mut header = [0; REQUEST_BYTES];
        let have = self.receive_while_lent(&mut header)?;
        self.socket.receive_exact(header.get_mut(have..).unwrap_or_default())?;
        DataRequest::decode(&header).map_err(|_| TransportError::Malformed)
    }

    fn handle(&mut self, request: &DataRequest) -> Result<()> {
        match request.operation {
            DataOperation::Share => return self.share(request),
            DataOperation::Lend => return self.open_loans(request),
            DataOperation::OpenRdma => return self.open_rdma(request),
            DataOperation::ShowMemory => return self.show_memory(request),
            DataOperation::ProbeMemory => return self.probe_memory(request),
            DataOperation::Revoke => return self.revoke(request),
            _ => {}
        }
        let (cluster, session) = (&self.node.cluster, self.peer.session);
        let now = clock::wall_seconds();
        let checked = check_access(request, session, cluster.node, &cluster.key, now, FIRST_EPOCH).and_then(|grant| {
            // The session, or the group that its rights are of.
            let guard = self.gates.guard(request.capability.session, routing::of_inode(request.inode))?;
            Ok((grant, guard))
        });
        let prepared = checked.and_then(|(grant, guard)| {
            // No object is made for a descriptor that is refused.
            if request.operation == DataOperation::Descriptor && request.bytes > 0 && !self.node.store.passes_to_write()
            {
                return Err(Error::NotSupported);
            }
            let object = self.object(request, grant)?;
            let pass = self.pass_pages(request, &*object)?;
            Ok((grant, guard, object, pass))
        });
        // With the pass the change ends, when it has landed.
        let (grant, guard, object, _pass) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                if let Error::CapabilityRejected | Error::SessionEnded = error {
                    AtomicCounters::add(&self.node.counters.capabilities_rejected, 1);
                }
                return self.refuse(request, &error);
            }
        };
        match request.operation {
            DataOperation::Read => self.read(request, &*object),
            DataOperation::Write | DataOperation::Append => self.write(request, &*object, &guard),
            DataOperation::Sync => {
                let done = object.sync().and_then(|()| object.stat());
                self.reply_stat(request, done)
            }
            DataOperation::Stat => self.reply_stat(request, object.stat()),
            DataOperation::IsHeld => {
                let held = |stat| DataReply { written_bytes: u32::from(object.is_held()), ..reply_with(request, stat) };
                let reply = object.stat().map(held);
                self.answer(&reply.unwrap_or_else(|error| DataReply::failed(request.id, &error)))
            }
            DataOperation::Descriptor => match Admitted::by(&guard) {
                // A fence waits until this guard has left, and then finds the file open elsewhere.
                Ok(_admitted) => self.pass(request, &*object, grant),
                Err(error) => self.refuse(request, &error),
            },
            // Handled above: they concern no object.
            DataOperation::Share
            | DataOperation::Lend
            | DataOperation::OpenRdma
            | DataOperation::ShowMemory
            | DataOperation::ProbeMemory
            | DataOperation::Revoke => Ok(()),
        }
    }

    /// Opens the client's memory.
    fn share(&mut self, request: &DataRequest) -> Result<()> {
        let mut shared = [0; SHARED_MEMORY_BYTES];
        self.socket.receive_exact(&mut shared)?;
        self.memory = PeerMemory::open(self.socket, SharedMemory::decode(&shared));
        let reply = if self.memory.is_some() {
            DataReply { id: request.id, ..DataReply::default() }
        } else {
            DataReply::failed(request.id, &Error::NotSupported)
        };
        self.socket.send_all(&reply.encode())
    }

    fn revoke(&self, request: &DataRequest) -> Result<()> {
        let reply = match self.gates.revoke(SessionId(request.inode.raw()), ConnectionId(request.id)) {
            Ok(()) => DataReply { id: request.id, ..DataReply::default() },
            Err(error) => DataReply::failed(request.id, &error),
        };
        self.answer(&reply)
    }

    /// Waits for pages that other clients' kernels keep, or for changes of what this one's will keep.
    fn pass_pages(&self, request: &DataRequest, object: &dyn ObjectHandle) -> weft_protocol::Result<Option<Pass>> {
        let object_bytes = || object.stat().map(|stat| stat.size);
        let Some(range) = RangeRequest::of_data(self.peer.session, request, object_bytes)? else { return Ok(None) };
        self.activity.enter(Phase::Waits);
        let pass = self.node.pages.admit(range)?;
        self.activity.enter(Phase::Stores);
        Ok(pass)
    }

    /// Returns the cached object, or opens or creates it.
    fn object(&mut self, request: &DataRequest, grant: Grant) -> weft_protocol::Result<Arc<dyn ObjectHandle>> {
        let wanted = (request.inode, request.object);
        if let Some(position) = self.cached.iter().position(|(id, _)| *id == wanted) {
            let (id, object) = self.cached.remove(position);
            if object.is_current() && (request.operation.reads() || object.stat().is_ok()) {
                self.cached.push((id, Arc::clone(&object)));
                return Ok(object);
            }
        }
        let object = self.node.store.open(request.inode, request.object, grant.create)?;
        if self.cached.len() == OBJECTS_CACHED_MAX {
            self.cached.remove(0);
        }
        self.cached.push((wanted, Arc::clone(&object)));
        Ok(object)
    }

    /// Replies with an error, after discarding the body of the request.
    fn refuse(&mut self, request: &DataRequest, error: &Error) -> Result<()> {
        self.note_refusal(request, error);
        if self.message.is_none() {
            self.activity.enter(Phase::Receives);
            self.pipe.discard(self.socket, request.bulk_bytes() as usize)?;
        }
        self.answer(&DataReply::failed(request.id, error))
    }

    fn note_refusal(&mut self, request: &DataRequest, error: &Error) {
        if request.operation == DataOperation::Write && *error == Error::NoSpace {
            self.refused = request.id;
        }
    }

    fn read(&mut self, request: &DataRequest, object: &dyn ObjectHandle) -> Result<()> {
        let (segment, stat) = match object.read_plan(request.offset, request.bytes) {
            Ok(plan) => plan,
            Err(error) => return self.refuse(request, &error),
        };
        if Self::is_rdma(request) {
            return self.put(request, (segment, stat), object.windows());
        }
        let bytes = segment.bytes();
        let bulk_bytes = u32::try_from(bytes).unwrap_or(request.bytes);
        let reply = DataReply { bulk_bytes, ..reply_with(request, stat) };
        match self.lend(request, segment) {
            Ok(Some(lent)) => return self.reply_with_loan(request, reply, &lent),
            Ok(None) => {}
            Err(error) => return self.refuse(request, &error),
        }
        self.activity.enter(Phase::Sends);
        match self.pipe.send(self.socket, &reply.encode(), segment)? {
            Moved::Done => {
                let counters = &self.node.counters;
                let counter = match self.socket.kind() {
                    SocketKind::Tcp => &counters.read_tcp_bytes,
                    SocketKind::Unix => &counters.read_unix_bytes,
                };
                AtomicCounters::add(counter, bytes);
                Ok(())
            }
            Moved::Failed(error) => self.refuse(request, &error),
        }
    }

    fn write(&mut self, request: &DataRequest, object: &dyn ObjectHandle, guard: &RequestGuard<'_>) -> Result<()> {
        if request.id != 0 && request.id == self.refused {
            return self.refuse(request, &Error::NoSpace);
        }
        let plan = match request.operation {
            DataOperation::Append => object.append_plan(request.bytes),
            _ => object.write_plan(request.offset, request.bytes),
        };
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => return self.refuse(request, &error),
        };
        let address = request.memory.address;
        let moved = if Self::is_rdma(request) {
            match self.get(request, plan, object.windows(), guard)? {
                Some(moved) => moved,
                None => return self.refuse(request, &Error::NotSupported),
            }
        } else if address == 0 {
            self.activity.enter(Phase::Receives);
            self.pipe.receive(self.socket, plan, request.bytes, guard)?
        } else {
            let memory = self.memory.as_ref().ok_or(TransportError::Malformed)?;
            self.pipe.take(memory, address, plan, request.bytes, guard)?
        };
        match moved {
            Moved::Done => {
                let counters = &self.node.counters;
                let counter = match self.socket.kind() {
                    _ if Self::is_rdma(request) => &counters.write_rdma_bytes,
                    SocketKind::Tcp => &counters.write_tcp_bytes,
                    SocketKind::Unix if address == 0 => &counters.write_unix_bytes,
                    SocketKind::Unix => &counters.write_memory_bytes,
                };
                AtomicCounters::add(counter, u64::from(request.bytes));
                self.reply_stat(request, object.stat())
            }
            // The body was received already.
            Moved::Failed(error) => {
                self.note_refusal(request, &error);
                let written_bytes = if guard.has_admitted() { request.bytes } else { 0 };
                self.answer(&DataReply::torn(request.id, &error, written_bytes))
            }
        }
    }

    fn reply_stat(&self, request: &DataRequest, stat: weft_protocol::Result<ObjectStat>) -> Result<()> {
        let reply = match stat {
            Ok(stat) => DataReply { written_bytes: request.written_bytes(), ..reply_with(request, stat) },
            Err(error) => DataReply::failed(request.id, &error),
        };
        self.answer(&reply)
    }

    /// Passes a descriptor to a client on the same host that owns the file.
    fn pass(&self, request: &DataRequest, object: &dyn ObjectHandle, grant: Grant) -> Result<()> {
        let same_node = self.socket.kind() == SocketKind::Unix && self.peer.identity == self.node.cluster.identity;
        let own = match &self.peer.key_name {
            KeyName::User { credentials, .. } => credentials.uid == request.capability.owner_uid,
            KeyName::Owner | KeyName::Node(_) => true,
        };
        let write = request.bytes == 1 && grant.write;
        let passed = (same_node && own).then(|| object.descriptor(write)).flatten();
        let descriptor = match passed.unwrap_or(Err(Error::NotSupported)) {
            Ok(descriptor) => descriptor,
            Err(error) => return self.socket.send_all(&DataReply::failed(request.id, &error).encode()),
        };
        let call_bytes = u32::try_from(object.call_bytes()).unwrap_or(0);
        let reply = DataReply { written_bytes: call_bytes, ..reply_with(request, object.stat().unwrap_or_default()) };
        AtomicCounters::add(&self.node.counters.descriptors_passed, 1);
        send_descriptor(self.socket, &reply.encode(), descriptor.as_fd())
    }
}

fn reply_with(request: &DataRequest, stat: ObjectStat) -> DataReply {
    DataReply { id: request.id, size: stat.size, mtime: stat.mtime, ..DataReply::default() }
}
