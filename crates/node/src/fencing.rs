//! Fences at this node's storage server: the gates of its data connections, and the pending confirmations.
//!
//! A shard fences a session that it has ended. From then on no piece of the session's writes is admitted, its data
//! connections are shut down (a thread that waits for the rest of a write ends), and the fence is confirmed when the
//! pieces in flight are written, by the thread that writes the last one. Shards of other nodes are served during terms
//! that their nodes grant ([`serving`]), so that no fence is missed.
//!
//! Lock order: `table` and `unsettled` are leaves, and never held together.

pub mod abandon;
pub mod connections;
mod serving;

use crate::cached_pages::CachedPages;
use crate::clock;
use crate::cluster::Cluster;
use crate::courier::Couriers;
use crate::locks::lock;
use crate::mailbox::{ConnectionRef, Loops, Sink};
use crate::map_source::MapSource;
use crate::shard_events::{ToShards, give};
use connections::{Connections, Line, Registered};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use weft_metadata::Event;
use weft_protocol::message::Message;
use weft_protocol::message::storage::StorageAnswer;
use weft_protocol::{ConnectionId, Error, InodeNumber, NodeId, ObjectId, Result, SessionId, ShardId};
use weft_storage::{FenceTable, Gate, ServingTerms};
use weft_store_io::WriteGuard;

/// Fences of a node.
pub struct Fencing {
    cluster: Arc<Cluster>,
    couriers: Arc<Couriers>,
    pub map_source: Arc<MapSource>,
    table: RwLock<FenceTable>,
    connections: Arc<Connections>,
    /// Fences with pieces in flight.
    unsettled: Mutex<Vec<Unsettled>>,
    /// Settled fences with objects to abandon.
    to_abandon: Sender<Unsettled>,
    terms: Mutex<ServingTerms>,
    term_changed: Condvar,
    pages: Arc<CachedPages>,
    shards: ToShards,
    loops: Arc<Loops>,
}

/// Recipient of a fence's confirmation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfirmTo {
    /// The shard, on this node.
    Shard,
    /// The shard's node, as the reply to this request.
    Connection(ConnectionRef, u64),
    /// The shard's node, with the next question for a term.
    NextQuestion(NodeId),
}

/// A fence to be confirmed.
pub struct Unsettled {
    pub session: SessionId,
    pub shard: ShardId,
    /// Objects to abandon before.
    pub objects: Vec<(InodeNumber, ObjectId)>,
    pub confirm: ConfirmTo,
}

impl Fencing {
    /// Returns no fences; the second value is for [`abandon::work`].
    pub fn new(
        cluster: Arc<Cluster>,
        couriers: Arc<Couriers>,
        map_source: Arc<MapSource>,
        pages: Arc<CachedPages>,
        shards: ToShards,
        loops: Arc<Loops>,
    ) -> (Self, Receiver<Unsettled>) {
        let (to_abandon, receiver) = channel();
        let fencing = Self {
            cluster,
            couriers,
            map_source,
            table: RwLock::default(),
            connections: Arc::default(),
            unsettled: Mutex::default(),
            to_abandon,
            terms: Mutex::default(),
            term_changed: Condvar::new(),
            pages,
            shards,
            loops,
        };
        (fencing, receiver)
    }

    /// The data connections of this node.
    pub fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Fences a session on behalf of a shard.
    pub fn fence(&self, session: SessionId, shard: ShardId) {
        {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            table.add(session, shard, clock::wall_seconds());
        }
        self.connections.shutdown(session);
        self.pages.session_over(session, Some(shard));
    }

    /// Fences a session and registers the confirmation. Returns true if the fence is settled already: then the caller
    /// confirms it.
    pub fn fence_and_confirm(self: &Arc<Self>, fence: Unsettled) -> bool {
        let (session, shard, confirm) = (fence.session, fence.shard, fence.confirm);
        self.fence(session, shard);
        // Registered before the check, so that the thread that writes the last piece finds it.
        lock(&self.unsettled).push(fence);
        let mut settled = self.take_settled(session, shard);
        let is_ours = |other: &Unsettled| other.confirm == confirm && other.objects.is_empty();
        let ours = settled.iter().position(is_ours).map(|ours| settled.swap_remove(ours));
        self.complete(settled);
        ours.is_some()
    }

    /// Removes and returns the pending confirmations of this fence, if it is settled.
    fn take_settled(&self, session: SessionId, shard: ShardId) -> Vec<Unsettled> {
        let is_settled = self.table.read().unwrap_or_else(PoisonError::into_inner).is_settled(session, shard);
        if !is_settled {
            return Vec::new();
        }
        lock(&self.unsettled).extract_if(.., |fence| (fence.session, fence.shard) == (session, shard)).collect()
    }

    /// Confirms settled fences, those with objects after these are abandoned.
    fn complete(self: &Arc<Self>, settled: Vec<Unsettled>) {
        for fence in settled {
            if fence.objects.is_empty() {
                self.confirm(&fence);
            } else {
                // The thread lives as long as the node: a send fails only during shutdown.
                let _ = self.to_abandon.send(fence);
            }
        }
    }

    fn confirm(self: &Arc<Self>, fence: &Unsettled) {
        match fence.confirm {
            ConfirmTo::Shard => {
                let event = Event::FenceConfirmed { session: fence.session, node: self.cluster.node };
                give(&self.shards, fence.shard, event);
            }
            ConfirmTo::Connection(to, id) => {
                Sink::remote(&self.loops).send(to, id, Message::StorageReply(Ok(StorageAnswer::Done)));
            }
            ConfirmTo::NextQuestion(node) => self.report(node, fence.session, fence.shard),
        }
    }
}

/// Gates of one data connection.
pub struct Gates<'a> {
    fencing: &'a Arc<Fencing>,
    connection: &'a Registered,
    /// The last request's gate: a client uses few shards over one connection.
    last: RefCell<Option<OpenGate>>,
}

/// A gate, and whose it is at which shard.
type OpenGate = ((SessionId, ShardId), Arc<Gate>);

impl<'a> Gates<'a> {
    /// Returns the gates for a connection.
    pub fn new(fencing: &'a Arc<Fencing>, connection: &'a Registered) -> Self {
        Self { fencing, connection, last: RefCell::new(None) }
    }

    /// Ends another connection, which the client has given up in this session: when this returns no byte of its writes
    /// lands any more.
    pub fn revoke(&self, session: SessionId, id: ConnectionId) -> Result<()> {
        if self.connection.is(id) {
            return Err(Error::Invalid);
        }
        self.fencing.connections.revoke(session, id);
        Ok(())
    }

    /// Returns the guard for a request about a file of this shard, by a right of this session or group. Waits until
    /// this storage server may serve the shard. [`Error::SessionEnded`]: the session is fenced;
    /// [`Error::Unreachable`]: the shard's node does not answer.
    pub fn guard(&self, session: SessionId, shard: ShardId) -> Result<RequestGuard<'a>> {
        let gate = self.gate(session, shard)?;
        let guard = RequestGuard {
            fencing: self.fencing,
            session,
            shard,
            gate,
            admitted: AtomicBool::new(false),
            line: self.connection.line(),
        };
        guard.fencing.wait_for_term(shard, &guard.gate).map(|()| guard)
    }

    fn gate(&self, session: SessionId, shard: ShardId) -> Result<Arc<Gate>> {
        let mut last = self.last.borrow_mut();
        if let Some((of, gate)) = &*last
            && *of == (session, shard)
        {
            return Ok(Arc::clone(gate));
        }
        let term = self.fencing.term_for(shard)?;
        let gate = {
            let mut table = self.fencing.table.write().unwrap_or_else(PoisonError::into_inner);
            table.gate(session, shard, &term)
        };
        *last = Some(((session, shard), Arc::clone(&gate)));
        Ok(gate)
    }
}

/// Admits the pieces of one request.
pub struct RequestGuard<'a> {
    fencing: &'a Arc<Fencing>,
    session: SessionId,
    shard: ShardId,
    gate: Arc<Gate>,
    /// The connection's.
    line: &'a Line,
    /// A piece was admitted.
    admitted: AtomicBool,
}

impl RequestGuard<'_> {
    /// Returns true if bytes of the request may have been written.
    pub fn has_admitted(&self) -> bool {
        self.admitted.load(Ordering::Relaxed)
    }
}

impl WriteGuard for RequestGuard<'_> {
    fn enter(&self) -> Result<()> {
        self.enter_session()?;
        if self.line.enter() {
            return Ok(());
        }
        self.leave_session();
        // Nobody reads this: the connection is shut down.
        Err(Error::SessionEnded)
    }

    fn leave(&self) {
        self.line.leave();
        self.leave_session();
    }
}

impl RequestGuard<'_> {
    fn enter_session(&self) -> Result<()> {
        loop {
            match self.gate.enter(clock::boot_ms) {
                // The term has ended since the request or its last piece came.
                Err(Error::Busy) => self.fencing.wait_for_term(self.shard, &self.gate)?,
                entered => {
                    // The thread that serves the request reads it after its pieces.
                    if entered.is_ok() {
                        self.admitted.store(true, Ordering::Relaxed);
                    }
                    return entered;
                }
            }
        }
    }

    fn leave_session(&self) {
        if self.gate.leave() {
            self.fencing.complete(self.fencing.take_settled(self.session, self.shard));
        }
    }
}
