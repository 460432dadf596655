//! Requests of this node's shards to other nodes.
//!
//! Each other node has a queue and a few threads, made when there is work and ended when there has been none for a
//! while, so an idle node has none. A thread blocks in its call; what is slow holds up only what is queued for the same
//! node.

use crate::event_loop::Sink;
use crate::state::{Node, lock};
use crate::{shards, storage_server};
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;
use weft_metadata::Event;
use weft_protocol::handshake::{KeyName, Purpose};
use weft_protocol::limits::FENCED_OBJECTS_MAX;
use weft_protocol::message::Message;
use weft_protocol::message::peer::{PeerCall, PeerReply};
use weft_protocol::message::shard::{ShardAnswer, ShardCall, ShardRequest};
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::{Error, InodeNumber, NodeId, ObjectId, SessionId, ShardId, SlotIndex, UserKey};
use weft_transport::{ControlConnection, Peer, Result, Socket, TransportError, connect};

/// Threads for one other node.
const THREADS_PER_NODE: usize = 4;
/// A thread without work ends after this time.
const IDLE: Duration = Duration::from_secs(5);
/// A call not answered in this time has failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a fence is sent again to a node that can be reached but does not answer, so that a node that hangs does
/// not keep what the session held for ever.
const FENCE_ATTEMPTS_MAX: u32 = 3;

/// Something to be asked of another node.
pub enum Errand {
    /// A step of an operation that touches two shards.
    Peer(PeerCall),
    /// A request of this node's shard to a storage server.
    Storage { shard: ShardId, token: Option<u64>, request: StorageRequest },
    /// A shard ends this session. `objects`: the shard waits for the confirmation, and these are to be abandoned.
    /// `attempts`: how often it was not answered in time.
    Fence { shard: ShardId, session: SessionId, objects: Option<Vec<(InodeNumber, ObjectId)>>, attempts: u32 },
    /// Whether the file has this object, for the collection of orphans.
    AskShard { inode: InodeNumber, object: ObjectId },
}

/// Queues to all other nodes.
pub struct Couriers {
    node: Weak<Node>,
    queues: Mutex<HashMap<NodeId, Arc<Queue>>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    work: Condvar,
}

#[derive(Default)]
struct QueueState {
    errands: VecDeque<Errand>,
    threads: usize,
    idle: usize,
}

impl Couriers {
    /// Couriers of the node that is being made.
    pub fn new(node: Weak<Node>) -> Self {
        Self { node, queues: Mutex::new(HashMap::new()) }
    }

    /// Queues an errand. Its answer goes to the shard it came from.
    pub fn send(&self, to: NodeId, errand: Errand) {
        let Some(node) = self.node.upgrade() else { return };
        let queue = Arc::clone(lock(&self.queues).entry(to).or_default());
        let mut state = lock(&queue.state);
        state.errands.push_back(errand);
        if state.errands.len() > state.idle && state.threads < THREADS_PER_NODE {
            let worker = Worker { node, to, queue: Arc::clone(&queue), connection: None };
            let spawned = std::thread::Builder::new().name(format!("courier-{to}")).spawn(move || worker.run());
            match spawned {
                Ok(_) => state.threads += 1,
                Err(error) => tracing::error!("no thread for requests to node {to}: {error}"),
            }
        }
        queue.work.notify_one();
    }
}

struct Worker {
    node: Arc<Node>,
    to: NodeId,
    queue: Arc<Queue>,
    connection: Option<ControlConnection>,
}

impl Worker {
    fn run(mut self) {
        while let Some(mut errand) = self.next() {
            let answer = self.fence_most(&mut errand).and_then(|()| {
                let message = self.message(&errand);
                self.call(&message)
            });
            if let Errand::AskShard { inode, .. } = &errand {
                self.end_session(*inode);
            }
            self.deliver(errand, answer);
        }
    }

    /// The next errand; `None`: idle for so long that this thread has ended.
    fn next(&self) -> Option<Errand> {
        let mut state = lock(&self.queue.state);
        loop {
            if let Some(errand) = state.errands.pop_front() {
                return Some(errand);
            }
            state.idle += 1;
            let (waited, timeout) = self.queue.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = waited;
            state.idle -= 1;
            if timeout.timed_out() && state.errands.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }

    fn message(&self, errand: &Errand) -> Message {
        match errand {
            Errand::Peer(call) => Message::Peer(call.clone()),
            Errand::Storage { request, .. } => Message::Storage(request.clone()),
            Errand::Fence { shard, session, objects, .. } => {
                let objects = objects.clone().unwrap_or_default();
                Message::Storage(StorageRequest::Fence { session: *session, shard: *shard, objects })
            }
            Errand::AskShard { inode, .. } => self.shard_call(*inode, ShardRequest::GetAttributes { inode: *inode }),
        }
    }

    /// Tells of the objects of a fence that do not fit one message, and leaves those that do.
    fn fence_most(&mut self, errand: &mut Errand) -> Result<()> {
        let Errand::Fence { shard, session, objects: Some(objects), .. } = errand else { return Ok(()) };
        while objects.len() > FENCED_OBJECTS_MAX {
            let part = objects.split_off(objects.len() - FENCED_OBJECTS_MAX);
            self.call(&Message::Storage(StorageRequest::Fence { session: *session, shard: *shard, objects: part }))?;
        }
        Ok(())
    }

    /// Ends the session at the shard that was asked. Its answer granted a lease, for which whoever changes the file
    /// next would wait in vain: this node takes no recalls. And a session whose term passes could never ask that shard
    /// again.
    fn end_session(&mut self, inode: InodeNumber) {
        let call = self.shard_call(inode, ShardRequest::EndSession);
        if self.call(&call).is_err() {
            self.connection = None;
        }
    }

    fn shard_call(&self, inode: InodeNumber, request: ShardRequest) -> Message {
        let (shard, epoch) = (inode.shard(), self.node.epoch());
        Message::Shard(ShardCall { shard, epoch, slot: SlotIndex(0), sequence: 0, credentials: None, request })
    }

    /// One call, on a connection made anew when the old one turns out to be dead. All errands are safe to repeat.
    fn call(&mut self, message: &Message) -> Result<Message> {
        if let Some(connection) = &mut self.connection
            && let Ok(reply) = connection.call(message)
        {
            return Ok(reply);
        }
        self.connection = None;
        let mut connection = open(&self.node, self.to)?;
        let reply = connection.call(message)?;
        self.connection = Some(connection);
        Ok(reply)
    }

    fn deliver(&self, errand: Errand, answer: Result<Message>) {
        let node = &*self.node;
        let mut sink = Sink::remote(node);
        match (errand, answer) {
            (Errand::Peer(call), Ok(Message::PeerReply(reply))) => {
                let reply = PeerReply { intent: call.intent, result: reply.result };
                shards::give(node, call.intent.shard, Event::PeerReply(reply), None, &mut sink);
            }
            (Errand::Storage { shard, token: Some(token), .. }, Ok(Message::StorageReply(result))) => {
                shards::give(node, shard, Event::StorageAnswer { token, result }, None, &mut sink);
            }
            (Errand::Storage { token: None, .. }, _) => {}
            (Errand::Fence { objects: None, .. }, _) => {}
            (Errand::Fence { shard, session, .. }, Ok(Message::StorageReply(Ok(_)))) => {
                shards::give(node, shard, Event::FenceConfirmed { session, node: self.to }, None, &mut sink);
            }
            (Errand::Fence { shard, session, objects, attempts }, Err(error))
                if is_timeout(&error) && attempts < FENCE_ATTEMPTS_MAX =>
            {
                // It may be copying what it abandons, or wait for its device.
                let errand = Errand::Fence { shard, session, objects, attempts: attempts + 1 };
                node.couriers.send(self.to, errand);
            }
            (Errand::AskShard { inode, object }, Ok(Message::ShardReply(reply))) => {
                let known = reply.result.map(|answer| match answer {
                    ShardAnswer::Entry { attributes, .. } => attributes.layout.object() == Some(object),
                    // An answer that says nothing of the layout: the object is kept.
                    _ => true,
                });
                storage_server::shard_says(node, inode, object, &known);
            }
            (Errand::AskShard { inode, object }, _) => {
                storage_server::shard_says(node, inode, object, &Err(Error::Unreachable));
            }
            (errand, _) => shards::unreachable(node, self.to, errand),
        }
    }
}

/// Whether the other node did not answer in time, and may still be at it.
fn is_timeout(error: &TransportError) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error, TransportError::Io(error) if matches!(error.kind(), TimedOut | WouldBlock))
}

/// A control connection to another node, under this node's own name.
fn open(node: &Node, to: NodeId) -> Result<ControlConnection> {
    let map = node.map();
    let record = map.node(to).ok_or(TransportError::Refused(Error::Unreachable))?;
    let socket = if record.identity == node.config.identity && !record.address.unix.is_empty() {
        Socket::connect_unix(Path::new(&record.address.unix))?
    } else {
        Socket::connect_tcp(&record.address.tcp)?
    };
    let key_name = KeyName::Node(node.config.node);
    let key = UserKey::derive(&node.key, &key_name);
    // One of its own: what ends with a session is nobody else's.
    let session = SessionId(getrandom::u64().map_err(std::io::Error::from)?);
    let peer = Peer { key_name, purpose: Purpose::Control, session, identity: node.config.identity };
    connect(&socket, &peer, &key)?;
    socket.set_timeout(Some(CALL_TIMEOUT))?;
    Ok(ControlConnection::new(socket))
}
