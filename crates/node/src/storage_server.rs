//! The storage server's side of the control connections: identifiers, space, and what shards ask of objects.
//!
//! What may take long (cutting and removing files) runs on a thread of its own, so that it holds up no other request.

use crate::courier::Errand;
use crate::event_loop::{ConnectionRef, Sink};
use crate::fencing::{ConfirmTo, Unsettled};
use crate::state::{Node, lock};
use crate::{clock, fencing, shards};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use weft_metadata::Event;
use weft_protocol::handshake::KeyName;
use weft_protocol::limits::FENCED_OBJECTS_MAX;
use weft_protocol::message::Message;
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{Error, InodeNumber, ObjectId, Result, SessionId, ShardId};
use weft_storage::{Collector, CollectorEffect};
use weft_store_io::{ObjectStat, ObjectStore};
use weft_transport::Peer;

/// A node's storage server.
pub struct StorageServer {
    pub store: Arc<dyn ObjectStore>,
    collector: Mutex<Collector>,
    jobs: Sender<Job>,
}

/// Work for the thread.
pub enum Job {
    Request(StorageRequest, AnswerTo),
    /// Looks which objects there are in these runs of identifiers, for the collector.
    List(Vec<(ObjectId, u32)>),
}

/// Where the answer to a request goes.
pub enum AnswerTo {
    Connection(ConnectionRef, u64),
    Shard(ShardId, u64),
    Nobody,
}

impl StorageServer {
    /// A server over a store; the second value is for [`work`].
    pub fn new(store: Arc<dyn ObjectStore>, collector: Collector) -> (Self, Receiver<Job>) {
        let (jobs, receiver) = channel();
        (Self { store, collector: Mutex::new(collector), jobs }, receiver)
    }

    fn start(&self, job: Job) {
        // The thread lives as long as the process: a send fails only when everything ends.
        let _ = self.jobs.send(job);
    }
}

/// The thread that cuts and removes.
pub fn work(node: &Node, jobs: &Receiver<Job>) {
    let Some(server) = &node.store else { return };
    loop {
        // When nothing waits, so that one sync is for many removals.
        let job = jobs.try_recv().or_else(|_| {
            server.store.settle();
            jobs.recv()
        });
        let Ok(job) = job else { return };
        let (request, answer) = match job {
            Job::Request(request, answer) => (request, answer),
            Job::List(runs) => {
                list(node, server, &runs);
                continue;
            }
        };
        // An assertion that fails in the store fails this request, not the requests behind it.
        let performed = catch_unwind(AssertUnwindSafe(|| perform(&*server.store, &request)));
        let result = performed.unwrap_or(Err(Error::Device(weft_protocol::error::errno::EIO)));
        if let Err(error) = &result {
            tracing::warn!("{request:?}: {error}");
        }
        let mut sink = Sink::remote(node);
        match answer {
            AnswerTo::Connection(to, id) => sink.send(to, id, Message::StorageReply(result)),
            AnswerTo::Shard(shard, token) => {
                shards::give(node, shard, Event::StorageAnswer { token, result }, None, &mut sink);
            }
            AnswerTo::Nobody => {}
        }
    }
}

/// A request of a client or of another node's shard.
pub fn handle(node: &Node, peer: &Peer, from: ConnectionRef, id: u64, request: StorageRequest, sink: &mut Sink<'_>) {
    let result = match (&node.store, &request) {
        (None, _) => Err(Error::NotSupported),
        (Some(server), StorageRequest::LeaseObjects { count }) => lease_objects(node, server, peer, *count),
        (Some(server), StorageRequest::Space) => server.store.space().map(StorageAnswer::Space),
        (Some(_), _) if !matches!(peer.key_name, KeyName::Node(_)) => Err(Error::NotPermitted),
        (Some(_), StorageRequest::Fence { objects, .. }) if objects.len() > FENCED_OBJECTS_MAX => Err(Error::Invalid),
        (Some(_), StorageRequest::Fence { session, shard, objects }) => {
            let (objects, confirm) = (objects.clone(), ConfirmTo::Connection(from, id));
            if !fencing::fence_and_confirm(node, Unsettled { session: *session, shard: *shard, objects, confirm }) {
                return;
            }
            Ok(StorageAnswer::Done)
        }
        (Some(server), StorageRequest::Stat { .. }) => perform(&*server.store, &request),
        (Some(server), StorageRequest::Truncate { .. } | StorageRequest::Remove { .. }) => {
            server.start(Job::Request(request, AnswerTo::Connection(from, id)));
            return;
        }
    };
    sink.send(from, id, Message::StorageReply(result));
}

/// A request of a shard of this very node.
pub fn for_shard(node: &Node, shard: ShardId, token: Option<u64>, request: StorageRequest) {
    let answer = token.map_or(AnswerTo::Nobody, |token| AnswerTo::Shard(shard, token));
    match &node.store {
        Some(server) => server.start(Job::Request(request, answer)),
        None => shards::unreachable(node, node.config.node, Errand::Storage { shard, token, request }),
    }
}

fn lease_objects(node: &Node, server: &StorageServer, peer: &Peer, count: u32) -> Result<StorageAnswer> {
    let owner_uid = match &peer.key_name {
        KeyName::User { credentials, .. } => credentials.uid,
        KeyName::Owner | KeyName::Node(_) => node.config.owner_uid,
    };
    let (epoch, now) = (node.epoch(), clock::wall_seconds());
    lock(&server.collector)
        .lease_objects(peer.session, owner_uid, count, &node.key, epoch, now)
        .map(|capability| StorageAnswer::Batch { capability })
}

fn perform(store: &dyn ObjectStore, request: &StorageRequest) -> Result<StorageAnswer> {
    let stat = |ObjectStat { size, mtime }| StorageAnswer::Object { size, mtime };
    match request {
        StorageRequest::Stat { inode, object } => store.open(*inode, *object, false)?.stat().map(stat),
        StorageRequest::Truncate { inode, object, size, .. } => {
            let handle = store.open(*inode, *object, false)?;
            match handle.truncate(*size) {
                // It was moved to a new file meanwhile.
                Err(Error::NoObject) => store.open(*inode, *object, false)?.truncate(*size),
                cut => cut,
            }
            .map(stat)
        }
        StorageRequest::Remove { objects } => {
            let mut result = Ok(StorageAnswer::Done);
            for (inode, object) in objects {
                if let Err(error) = store.remove(*inode, *object) {
                    result = Err(error);
                }
            }
            result
        }
        StorageRequest::LeaseObjects { .. } | StorageRequest::Space | StorageRequest::Fence { .. } => {
            Err(Error::Invalid)
        }
    }
}

/// A session has had no connection to this node for a whole term.
pub fn session_ended(node: &Node, session: SessionId) {
    let Some(server) = &node.store else { return };
    let mut effects = Vec::new();
    {
        let mut collector = lock(&server.collector);
        collector.session_ended(session, &mut effects);
        collector.ask_again(&mut effects);
    }
    carry_out(node, server, effects);
}

/// A shard has answered whether a file has this object.
pub fn shard_says(node: &Node, inode: InodeNumber, object: ObjectId, known: &Result<bool>) {
    let Some(server) = &node.store else { return };
    let mut effects = Vec::new();
    lock(&server.collector).shard_says(inode, object, known, &mut effects);
    carry_out(node, server, effects);
}

fn carry_out(node: &Node, server: &StorageServer, effects: Vec<CollectorEffect>) {
    // One walk over the store for all of them, on the thread for what takes long.
    let mut runs = Vec::new();
    for effect in effects {
        match effect {
            CollectorEffect::List { first, count } => runs.push((first, count)),
            CollectorEffect::AskShard { inode, object } => {
                if let Some(holder) = node.map().node_of(inode.shard()) {
                    node.couriers.send(holder, Errand::AskShard { inode, object });
                }
            }
            CollectorEffect::Remove { inode, object } => {
                tracing::info!("object {object} of inode {inode} is an orphan: removed");
                server.start(Job::Request(StorageRequest::Remove { objects: vec![(inode, object)] }, AnswerTo::Nobody));
            }
        }
    }
    if !runs.is_empty() {
        runs.sort_unstable();
        server.start(Job::List(runs));
    }
}

fn list(node: &Node, server: &StorageServer, runs: &[(ObjectId, u32)]) {
    let listed = server.store.list(runs).unwrap_or_else(|error| {
        tracing::warn!("{}: {error}; orphans may stay", server.store.describe());
        Vec::new()
    });
    let mut effects = Vec::new();
    lock(&server.collector).listed(&listed, &mut effects);
    carry_out(node, server, effects);
}
