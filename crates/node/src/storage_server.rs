//! Control requests to the storage server: identifiers, space, and the shards' requests about objects.
//!
//! Slow requests (truncating and removing files) run on a thread of their own, and delay no others.

use crate::below::Below;
use crate::cached_pages::{CachedPages, Pass};
use crate::clock;
use crate::cluster::Cluster;
use crate::courier::{Couriers, Errand};
use crate::fencing::{ConfirmTo, Fencing, Unsettled};
use crate::locks::lock;
use crate::mailbox::{ConnectionRef, Loops, Sink};
use crate::shard_events::{ToShards, give};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use weft_metadata::Event;
use weft_protocol::handshake::KeyName;
use weft_protocol::limits::{FENCED_OBJECTS_MAX, OBJECT_BATCH_COUNT};
use weft_protocol::message::Message;
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{Error, InodeNumber, ObjectId, Result, SessionId, ShardId, routing};
use weft_storage::{Collector, CollectorEffect, RangeRequest, Run};
use weft_store_io::{ObjectStat, ObjectStore};
use weft_transport::Peer;

/// A node's storage server.
pub struct StorageServer {
    pub store: Arc<dyn ObjectStore>,
    cluster: Arc<Cluster>,
    fencing: Arc<Fencing>,
    pages: Arc<CachedPages>,
    couriers: Arc<Couriers>,
    shards: ToShards,
    loops: Arc<Loops>,
    collector: Mutex<Collector>,
    jobs: Sender<Job>,
    below: Option<Below<BelowJob>>,
    own_objects: Mutex<OwnObjects>,
}

/// Identifiers for what this node makes by itself. The collector does not ask for their objects: the shards do.
#[derive(Default)]
struct OwnObjects {
    /// The session under which they are leased; `None`: nothing was made yet.
    session: Option<SessionId>,
    /// The next one, and how many are left.
    next: Option<(ObjectId, u32)>,
}

/// Something to be read from below.
pub struct BelowJob(StorageRequest, ReplyTo);

/// What the storage server uses of the node.
pub struct Surroundings {
    pub cluster: Arc<Cluster>,
    pub fencing: Arc<Fencing>,
    pub pages: Arc<CachedPages>,
    pub couriers: Arc<Couriers>,
    pub shards: ToShards,
    pub loops: Arc<Loops>,
    /// The directory that the file system lies over.
    pub below: Option<Below<BelowJob>>,
}

/// Work for the thread.
pub enum Job {
    /// With a pass if it is a cut.
    Request(StorageRequest, ReplyTo, Option<Pass>),
    /// Lists the existing objects of these runs of identifiers, for the collector.
    List(Vec<Run>),
}

/// Recipient of a reply.
pub enum ReplyTo {
    Connection(ConnectionRef, u64),
    Shard(ShardId, u64),
    Nobody,
}

impl StorageServer {
    /// Returns a server for a store; the second value is for [`StorageServer::work`].
    pub fn new(store: Arc<dyn ObjectStore>, node: Surroundings) -> (Arc<Self>, Receiver<Job>) {
        let Surroundings { cluster, fencing, pages, couriers, shards, loops, below } = node;
        let (jobs, receiver) = channel();
        let collector = Mutex::new(Collector::new(cluster.node, 1));
        let own_objects = Mutex::default();
        let server =
            Self { store, cluster, fencing, pages, couriers, shards, loops, collector, jobs, below, own_objects };
        (Arc::new(server), receiver)
    }

    /// Has the thread perform a request, a cut when no kernel keeps pages of what it cuts off.
    fn start_request(self: &Arc<Self>, request: StorageRequest, to: ReplyTo) {
        if let StorageRequest::ListBelow { .. } | StorageRequest::FillFromBelow { .. } = request {
            return match &self.below {
                Some(below) => below.send(BelowJob(request, to)),
                None => self.reply(&to, Err(Error::NotSupported)),
            };
        }
        let StorageRequest::Truncate { inode, object, size, by } = request else {
            return self.start(Job::Request(request, to, None));
        };
        let server = Arc::clone(self);
        let proceed = Box::new(move |pass| match pass {
            Ok(pass) => server.start(Job::Request(request, to, Some(pass))),
            Err(error) => server.reply(&to, Err(error)),
        });
        self.pages.admit_cut(RangeRequest::of_cut(by, (object, inode), size), proceed);
    }

    fn start(&self, job: Job) {
        // The thread lives as long as the process: a send fails only during shutdown.
        let _ = self.jobs.send(job);
    }

    /// The thread that truncates and removes.
    pub fn work(self: &Arc<Self>, jobs: &Receiver<Job>) {
        loop {
            // Settles when the queue is empty, so that one sync covers many removals.
            let job = jobs.try_recv().or_else(|_| {
                self.store.settle();
                jobs.recv()
            });
            match job {
                Ok(Job::Request(request, to, pass)) => {
                    let result = self.perform(&request);
                    drop(pass);
                    self.reply(&to, result);
                }
                Ok(Job::List(runs)) => self.list(&runs),
                Err(_) => return,
            }
        }
    }

    /// Whether there is a directory below.
    pub fn reads_below(&self) -> bool {
        self.below.is_some()
    }

    /// A thread that reads what is below.
    pub fn work_below(&self) {
        let Some(below) = &self.below else { return };
        while let Some(BelowJob(request, to)) = below.next() {
            let result = catch_unwind(AssertUnwindSafe(|| match &request {
                StorageRequest::ListBelow { path, after } => below.list(path, after.as_ref()),
                StorageRequest::FillFromBelow { inode, object, path, offset } => {
                    below.fill(&*self.store, (*inode, *object), (path, *offset), || self.own_object())
                }
                _ => Err(Error::Invalid),
            }));
            let result = result.unwrap_or(Err(Error::Device(weft_protocol::error::errno::EIO)));
            if let Err(error) = &result {
                tracing::warn!("{request:?}: {error}");
            }
            self.reply(&to, result);
        }
    }

    /// An identifier for an object that this node makes.
    fn own_object(&self) -> Result<ObjectId> {
        let mut own = lock(&self.own_objects);
        let (object, left) = match own.next {
            Some(next) => next,
            None => {
                let fresh = || getrandom::u64().map(SessionId::of_client).map_err(|_| Error::Busy);
                let session = own.session.map_or_else(fresh, Ok)?;
                own.session = Some(session);
                let (epoch, now) = (self.cluster.epoch(), clock::wall_seconds());
                let owner = self.cluster.owner_uid;
                let capability = lock(&self.collector).lease_objects(
                    session,
                    owner,
                    OBJECT_BATCH_COUNT,
                    &self.cluster.key,
                    epoch,
                    now,
                )?;
                (capability.object, OBJECT_BATCH_COUNT)
            }
        };
        own.next = (left > 1).then(|| (ObjectId::from_raw(object.raw() + 1), left - 1));
        Ok(object)
    }

    fn perform(&self, request: &StorageRequest) -> Result<StorageAnswer> {
        // An assertion that fails in the store fails this request, not the following ones.
        let performed = catch_unwind(AssertUnwindSafe(|| perform(&*self.store, request)));
        let result = performed.unwrap_or(Err(Error::Device(weft_protocol::error::errno::EIO)));
        if let Err(error) = &result {
            tracing::warn!("{request:?}: {error}");
        }
        if let StorageRequest::Remove { objects } = request {
            objects.iter().for_each(|(_, object)| self.pages.removed(*object));
        }
        result
    }

    fn reply(&self, to: &ReplyTo, result: Result<StorageAnswer>) {
        match *to {
            ReplyTo::Connection(to, id) => Sink::remote(&self.loops).send(to, id, Message::StorageReply(result)),
            ReplyTo::Shard(shard, token) => give(&self.shards, shard, Event::StorageAnswer { token, result }),
            ReplyTo::Nobody => {}
        }
    }

    /// Handles a request of a client or of another node's shard.
    pub fn handle(
        self: &Arc<Self>,
        peer: &Peer,
        from: ConnectionRef,
        id: u64,
        request: StorageRequest,
        sink: &mut Sink<'_>,
    ) {
        let result = match &request {
            StorageRequest::LeaseObjects { count } => self.lease_objects(peer, *count),
            StorageRequest::Space => self.store.space().map(StorageAnswer::Space),
            _ if !matches!(peer.key_name, KeyName::Node(_)) => Err(Error::NotPermitted),
            StorageRequest::Fence { objects, .. } if objects.len() > FENCED_OBJECTS_MAX => Err(Error::Invalid),
            StorageRequest::Fence { session, shard, objects } => {
                let (objects, confirm) = (objects.clone(), ConfirmTo::Connection(from, id));
                let fence = Unsettled { session: *session, shard: *shard, objects, confirm };
                if !self.fencing.fence_and_confirm(fence) {
                    return;
                }
                Ok(StorageAnswer::Done)
            }
            StorageRequest::Stat { .. } => perform(&*self.store, &request),
            StorageRequest::Make { .. }
            | StorageRequest::Truncate { .. }
            | StorageRequest::Remove { .. }
            | StorageRequest::ListBelow { .. }
            | StorageRequest::FillFromBelow { .. } => {
                self.start_request(request, ReplyTo::Connection(from, id));
                return;
            }
        };
        sink.send(from, id, Message::StorageReply(result));
    }

    /// Handles a request of a shard of this node. With a token the shard waits for the reply.
    pub fn handle_local(self: &Arc<Self>, shard: ShardId, token: Option<u64>, request: StorageRequest) {
        let to = token.map_or(ReplyTo::Nobody, |token| ReplyTo::Shard(shard, token));
        self.start_request(request, to);
    }

    fn lease_objects(&self, peer: &Peer, count: u32) -> Result<StorageAnswer> {
        let owner_uid = match &peer.key_name {
            KeyName::User { credentials, .. } => credentials.uid,
            KeyName::Owner | KeyName::Node(_) => self.cluster.owner_uid,
        };
        let (epoch, now) = (self.cluster.epoch(), clock::wall_seconds());
        let is_low = self.store.space()?.is_low();
        lock(&self.collector)
            .lease_objects(peer.session, owner_uid, count, &self.cluster.key, epoch, now)
            .map(|capability| StorageAnswer::Batch { capability, is_low })
    }

    /// Collects the orphans of a session without a connection to this node for a whole term.
    pub fn session_ended(self: &Arc<Self>, session: SessionId) {
        let mut effects = Vec::new();
        {
            let mut collector = lock(&self.collector);
            collector.session_ended(session, clock::boot_ms(), &mut effects);
        }
        self.carry_out(effects);
    }

    /// Returns when [`StorageServer::tick`] has something to do, milliseconds since boot.
    pub fn next_due(&self) -> Option<u64> {
        lock(&self.collector).deadline()
    }

    /// Goes on with the collection of orphans.
    pub fn tick(self: &Arc<Self>, now_ms: u64) {
        let mut effects = Vec::new();
        lock(&self.collector).due(now_ms, &mut effects);
        self.carry_out(effects);
    }

    fn carry_out(self: &Arc<Self>, effects: Vec<CollectorEffect>) {
        // One walk over the store for all of them.
        let mut runs = Vec::new();
        for effect in effects {
            match effect {
                CollectorEffect::List(run) => runs.push(run),
                CollectorEffect::AskShard { session, inode, object } => self.ask_shard(session, inode, object),
                CollectorEffect::Remove { inode, object } => {
                    tracing::info!("object {object} of inode {inode} is an orphan: removed");
                    let request = StorageRequest::Remove { objects: vec![(inode, object)] };
                    self.start_request(request, ReplyTo::Nobody);
                }
            }
        }
        if !runs.is_empty() {
            self.start(Job::List(runs));
        }
    }

    /// Asks the inode's shard whether its file uses the object, or may come to use it.
    fn ask_shard(self: &Arc<Self>, session: SessionId, inode: InodeNumber, object: ObjectId) {
        let server = Arc::clone(self);
        let tell = Box::new(move |known| {
            let mut effects = Vec::new();
            lock(&server.collector).shard_says(inode, object, &known, &mut effects);
            server.carry_out(effects);
        });
        match self.cluster.map().node_of(routing::of_inode(inode)) {
            Some(holder) => self.couriers.send(holder, Errand::AskShard { session, inode, object, tell }),
            None => tell(Err(Error::WrongShard(routing::of_inode(inode)))),
        }
    }

    fn list(self: &Arc<Self>, runs: &[Run]) {
        let mut identifiers: Vec<(ObjectId, u32)> = runs.iter().map(|run| (run.first, run.count)).collect();
        identifiers.sort_unstable();
        let listed = self.store.list(&identifiers).unwrap_or_else(|error| {
            tracing::warn!("{}: {error}; orphans may remain", self.store.describe());
            Vec::new()
        });
        let mut effects = Vec::new();
        lock(&self.collector).listed(runs, &listed, clock::boot_ms(), &mut effects);
        self.carry_out(effects);
    }
}

fn perform(store: &dyn ObjectStore, request: &StorageRequest) -> Result<StorageAnswer> {
    let stat = |ObjectStat { size, mtime }| StorageAnswer::Object { size, mtime };
    match request {
        StorageRequest::Stat { inode, object } => store.open(*inode, *object, false)?.stat().map(stat),
        StorageRequest::Make { inode, object } => store.open(*inode, *object, true)?.stat().map(stat),
        StorageRequest::Truncate { inode, object, size, .. } => {
            let handle = store.open(*inode, *object, false)?;
            match handle.truncate(*size) {
                // Meanwhile the object was abandoned: it is in another file now.
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
        StorageRequest::LeaseObjects { .. }
        | StorageRequest::Space
        | StorageRequest::Fence { .. }
        | StorageRequest::ListBelow { .. }
        | StorageRequest::FillFromBelow { .. } => Err(Error::Invalid),
    }
}
