//! Requests of this node's shards, storage server and membership to other nodes.
//!
//! Each other node has a queue and a few threads, started on demand and ended when idle, so an idle node has none
//! (`work_queue.rs`). A thread blocks in its call; a slow node delays only the errands queued for it. Steps of
//! operations over several shards, which may wait at the other node for one another, go over a line of their own
//! (`step_line.rs`).

mod in_flight;
mod step_line;
mod work_queue;

use crate::cluster::Cluster;
use crate::granting::Granting;
use crate::locks::lock;
use crate::shard_events::{ToShards, give};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use step_line::StepLine;
use weft_metadata::Event;
use weft_protocol::handshake::{KeyName, Purpose};
use weft_protocol::limits::{FENCED_OBJECTS_MAX, SESSION_TERM_MS};
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::message::peer::{PeerAnswer, PeerCall, PeerReply};
use weft_protocol::message::storage::{ServingAnswer, SessionFence, StorageRequest};
use weft_protocol::{Error, InodeNumber, MapEpoch, NodeId, NodeRecord, ObjectId, SessionId, ShardId, UserKey};
use weft_transport::{ControlConnection, Peer, Result, Socket, TransportError, connect};
use work_queue::WorkQueue;

/// Maximum number of threads for one other node.
const THREADS_PER_NODE: usize = 4;
/// Idle time after which a thread ends.
const IDLE: Duration = Duration::from_secs(5);
/// Timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a question for a serving term: data connections wait for the answer, or soon will.
const ASK_TIMEOUT: Duration = Duration::from_millis(SESSION_TERM_MS / 4);

/// Takes the shard's verdict on an object: whether its file uses it, or why that is unknown.
pub type ToldOfObject = Box<dyn FnOnce(weft_protocol::Result<bool>) + Send>;

/// Takes the answer to a question for a serving term.
pub type ToldToServe = Box<dyn FnOnce(weft_protocol::Result<ServingAnswer>) + Send>;

/// Takes the answer of a node.
pub type ToldByNode = Box<dyn FnOnce(weft_protocol::Result<NodeAnswer>) + Send>;

/// A request to another node.
pub enum Errand {
    /// A request of a shard to a storage server.
    Storage { shard: ShardId, token: Option<u64>, request: StorageRequest },
    /// Fence of a session that a shard has ended. The outcome goes to [`Granting`].
    Fence(SessionFence),
    /// Asks for a serving term. These errands have a queue of their own, since others may wait for the term.
    AskToServe { epoch: MapEpoch, settled: Vec<SessionFence>, tell: ToldToServe },
    /// Asks the shard whether the file uses this object, to collect orphans.
    AskShard { session: SessionId, inode: InodeNumber, object: ObjectId, tell: ToldOfObject },
    /// A request to a node as such. `to`: the node's record, if this node's map does not have it yet.
    Node { to: Option<NodeRecord>, request: NodeRequest, tell: ToldByNode },
}

type Queue = WorkQueue<Errand>;

/// Queues to all other nodes.
pub struct Couriers(Arc<Shared>);

/// What the threads share.
struct Shared {
    cluster: Arc<Cluster>,
    shards: ToShards,
    granting: Arc<Granting>,
    queues: Mutex<HashMap<(NodeId, bool), Arc<Queue>>>,
    lines: Mutex<HashMap<NodeId, Arc<StepLine>>>,
}

impl Shared {
    /// Gives a step's reply to the shard that asked.
    fn step_replied(&self, call: &PeerCall, result: weft_protocol::Result<PeerAnswer>) {
        let reply = PeerReply { intent: call.intent, result };
        give(&self.shards, call.intent.shard, Event::PeerReply(reply));
    }
}

impl Couriers {
    /// Returns couriers without threads. Replies go to `shards`.
    pub fn new(cluster: Arc<Cluster>, shards: ToShards, granting: Arc<Granting>) -> Self {
        Self(Arc::new(Shared { cluster, shards, granting, queues: Mutex::default(), lines: Mutex::default() }))
    }

    /// Queues an errand. Its reply goes to the shard that sent it.
    pub fn send(&self, to: NodeId, errand: Errand) {
        send(&self.0, to, errand);
    }

    /// Sends a step of an operation over several shards. Its reply goes to the shard that asks.
    pub fn send_step(&self, to: NodeId, call: PeerCall) {
        let line = match lock(&self.0.lines).entry(to) {
            Entry::Occupied(line) => Arc::clone(line.get()),
            Entry::Vacant(place) => match StepLine::new(to) {
                Ok(line) => Arc::clone(place.insert(Arc::new(line))),
                // The shard sends its step again.
                Err(error) => return tracing::error!("cannot send steps to node {to}: {error}"),
            },
        };
        line.send(&self.0, to, call);
    }
}

fn send(shared: &Arc<Shared>, to: NodeId, errand: Errand) {
    let asks = matches!(errand, Errand::AskToServe { .. });
    let queue = {
        let mut queues = lock(&shared.queues);
        let new = || Arc::new(Queue::new(format!("courier-{to}"), THREADS_PER_NODE, IDLE));
        Arc::clone(queues.entry((to, asks)).or_insert_with(new))
    };
    let timeout = if asks { ASK_TIMEOUT } else { CALL_TIMEOUT };
    let worker = Worker { shared: Arc::clone(shared), to, timeout, queue: Arc::clone(&queue), connection: None };
    queue.push(errand, move || worker.run());
}

struct Worker {
    shared: Arc<Shared>,
    to: NodeId,
    timeout: Duration,
    queue: Arc<Queue>,
    connection: Option<ControlConnection>,
}

impl Worker {
    fn run(mut self) {
        while let Some(errand) = self.queue.next() {
            let reply = self.call_in_order(&errand);
            self.deliver(errand, reply);
        }
    }

    fn message(&self, errand: &Errand) -> Message {
        match errand {
            Errand::Storage { request, .. } => Message::Storage(request.clone()),
            Errand::Fence(fence) => fence_message(fence),
            Errand::AskToServe { epoch, settled, .. } => {
                Message::Node(NodeRequest::AskToServe { epoch: *epoch, settled: settled.clone() })
            }
            Errand::AskShard { session, inode, object, .. } => {
                Message::Node(NodeRequest::AskOfObject { session: *session, inode: *inode, object: *object })
            }
            Errand::Node { request, .. } => Message::Node(request.clone()),
        }
    }

    /// Sends an errand. A shard's request about objects comes after the fences that the storage server has missed: a
    /// late piece of an ended session would land after it.
    fn call_in_order(&mut self, errand: &Errand) -> Result<Message> {
        match errand {
            Errand::Storage { .. } => {
                for fence in self.shared.granting.overdue(self.to) {
                    let reply = self.fence(&fence)?;
                    let Message::StorageReply(Ok(_)) = reply else { return Ok(reply) };
                    self.shared.granting.sent(self.to, &fence, true);
                }
            }
            Errand::Fence(fence) => return self.fence(fence),
            Errand::Node { to: Some(record), .. } if self.connection.is_none() => {
                self.connection = Some(open(&self.shared.cluster, record, self.timeout)?);
            }
            _ => {}
        }
        self.call(&self.message(errand))
    }

    /// Sends a fence, the objects that do not fit into one message first.
    fn fence(&mut self, fence: &SessionFence) -> Result<Message> {
        let parts = fence.objects.chunks(FENCED_OBJECTS_MAX);
        let (last, before) = parts
            .collect::<Vec<_>>()
            .split_last()
            .map_or((&[][..], Vec::new()), |(last, before)| (*last, before.to_vec()));
        for objects in before {
            self.call(&fence_message(&SessionFence { objects: objects.to_vec(), ..*fence }))?;
        }
        self.call(&fence_message(&SessionFence { objects: last.to_vec(), ..*fence }))
    }

    /// Sends a call, and resends it on a new connection if the pooled one is dead: all errands are idempotent.
    fn call(&mut self, message: &Message) -> Result<Message> {
        if let Some(connection) = &mut self.connection
            && let Ok(reply) = connection.call(message)
        {
            return Ok(reply);
        }
        self.connection = None;
        let map = self.shared.cluster.map();
        let record = map.node(self.to).ok_or(TransportError::Refused(Error::Unreachable))?;
        let mut connection = open(&self.shared.cluster, record, self.timeout)?;
        let reply = connection.call(message)?;
        self.connection = Some(connection);
        Ok(reply)
    }

    fn deliver(&self, errand: Errand, reply: Result<Message>) {
        let shards = &self.shared.shards;
        match (errand, reply) {
            (Errand::Storage { shard, token: Some(token), .. }, Ok(Message::StorageReply(result))) => {
                give(shards, shard, Event::StorageAnswer { token, result });
            }
            (Errand::Storage { token: None, .. }, _) => {}
            (Errand::Fence(fence), reply) => {
                let is_confirmed = matches!(reply, Ok(Message::StorageReply(Ok(_))));
                self.shared.granting.sent(self.to, &fence, is_confirmed);
            }
            (Errand::AskToServe { tell, .. }, Ok(Message::NodeReply(reply))) => {
                tell((*reply).and_then(|answer| match answer {
                    NodeAnswer::Serving(answer) => Ok(answer),
                    _ => Err(Error::Malformed),
                }));
            }
            (Errand::AskShard { tell, .. }, Ok(Message::NodeReply(reply))) => {
                tell((*reply).and_then(|answer| match answer {
                    NodeAnswer::OfObject { is_used } => Ok(is_used),
                    _ => Err(Error::Malformed),
                }));
            }
            (Errand::Node { tell, .. }, Ok(Message::NodeReply(reply))) => tell(*reply),
            (errand, _) => self.unreachable(errand),
        }
    }

    /// Reports to the sender of an errand that the node did not reply.
    fn unreachable(&self, errand: Errand) {
        tracing::debug!("node {} did not reply", self.to);
        let shards = &self.shared.shards;
        match errand {
            Errand::Storage { shard, token: Some(token), .. } => {
                give(shards, shard, Event::StorageAnswer { token, result: Err(Error::Unreachable) });
            }
            Errand::AskShard { tell, .. } => tell(Err(Error::Unreachable)),
            Errand::AskToServe { tell, .. } => tell(Err(Error::Unreachable)),
            Errand::Node { tell, .. } => tell(Err(Error::Unreachable)),
            Errand::Storage { token: None, .. } | Errand::Fence(_) => {}
        }
    }
}

fn fence_message(fence: &SessionFence) -> Message {
    let SessionFence { session, shard, objects } = fence.clone();
    Message::Storage(StorageRequest::Fence { session, shard, objects })
}

/// Opens a control connection to another node, authenticated by this node's key name.
fn open(cluster: &Cluster, record: &NodeRecord, timeout: Duration) -> Result<ControlConnection> {
    let socket = if record.identity == cluster.identity && !record.address.unix.is_empty() {
        Socket::connect_unix(Path::new(&record.address.unix))?
    } else {
        Socket::connect_tcp(&record.address.tcp)?
    };
    let key_name = KeyName::Node(cluster.node);
    let key = UserKey::derive(&cluster.key, &key_name);
    let session = SessionId::of_client(getrandom::u64().map_err(std::io::Error::from)?);
    let peer = Peer { key_name, purpose: Purpose::Control, session, identity: cluster.identity };
    connect(&socket, &peer, &key)?;
    socket.set_timeout(Some(timeout))?;
    Ok(ControlConnection::new(socket))
}
