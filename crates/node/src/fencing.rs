//! Fences at this node's storage server: the gates of its data connections, and who waits for a fence to be settled.
//!
//! A shard fences a session that it has ended. From then on no piece of a write of that session is admitted, its data
//! connections are shut down (a thread that waits for the rest of a write ends now), and the fence is confirmed when
//! the pieces in flight are written: by the thread that writes the last of them.
//!
//! Lock order: `table`, `connections` and `unsettled` are leaves, and never held together.

mod abandon;

pub use abandon::work;

use crate::event_loop::{ConnectionRef, Sink};
use crate::state::{Node, lock};
use crate::{clock, shards};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use weft_metadata::Event;
use weft_protocol::message::Message;
use weft_protocol::message::storage::StorageAnswer;
use weft_protocol::{InodeNumber, ObjectId, Result, SessionId, ShardId};
use weft_storage::{FenceTable, Gate, ServingTerm};
use weft_store_io::WriteGuard;
use weft_transport::Socket;

/// A node's fences.
pub struct Fencing {
    table: RwLock<FenceTable>,
    /// Data connections of each session.
    connections: Mutex<HashMap<SessionId, Vec<Weak<Socket>>>>,
    /// Who waits for a fence to be settled.
    unsettled: Mutex<Vec<Unsettled>>,
    /// Settled fences whose objects are to be abandoned.
    to_abandon: Sender<Unsettled>,
    own_term: Arc<ServingTerm>,
}

impl Fencing {
    /// No fences; the second value is for [`work`].
    pub fn new() -> (Self, Receiver<Unsettled>) {
        let (to_abandon, receiver) = channel();
        let fencing = Self {
            table: RwLock::default(),
            connections: Mutex::default(),
            unsettled: Mutex::default(),
            to_abandon,
            own_term: Arc::new(ServingTerm::unlimited()),
        };
        (fencing, receiver)
    }
}

/// Who is told that nothing of a session lands here any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfirmTo {
    /// The shard, which is of this node.
    Shard,
    /// The node of the shard, as the answer to this request.
    Connection(ConnectionRef, u64),
}

/// A fence that is to be confirmed.
pub struct Unsettled {
    pub session: SessionId,
    pub shard: ShardId,
    /// To be abandoned before.
    pub objects: Vec<(InodeNumber, ObjectId)>,
    pub confirm: ConfirmTo,
}

/// Fences a session on behalf of a shard.
pub fn fence(node: &Node, session: SessionId, shard: ShardId) {
    {
        let mut table = node.fencing.table.write().unwrap_or_else(PoisonError::into_inner);
        table.add(session, shard, clock::wall_seconds());
    }
    for socket in lock(&node.fencing.connections).remove(&session).into_iter().flatten() {
        if let Some(socket) = socket.upgrade() {
            socket.shutdown();
        }
    }
}

/// Fences a session, and has that confirmed. Returns true if it is confirmed at once, by the caller.
pub fn fence_and_confirm(node: &Node, fence: Unsettled) -> bool {
    let (session, shard, confirm) = (fence.session, fence.shard, fence.confirm);
    self::fence(node, session, shard);
    // Noted before the look: whoever writes the last piece finds it.
    lock(&node.fencing.unsettled).push(fence);
    let mut settled = node.fencing.take_settled(session, shard);
    let is_ours = |other: &Unsettled| other.confirm == confirm && other.objects.is_empty();
    let ours = settled.iter().position(is_ours).map(|ours| settled.swap_remove(ours));
    complete(node, settled);
    ours.is_some()
}

impl Fencing {
    /// Takes out those who wait for this fence, if it is settled.
    fn take_settled(&self, session: SessionId, shard: ShardId) -> Vec<Unsettled> {
        let is_settled = self.table.read().unwrap_or_else(PoisonError::into_inner).is_settled(session, shard);
        if !is_settled {
            return Vec::new();
        }
        lock(&self.unsettled).extract_if(.., |fence| (fence.session, fence.shard) == (session, shard)).collect()
    }
}

/// Confirms fences that are settled, after their objects were abandoned.
fn complete(node: &Node, settled: Vec<Unsettled>) {
    for fence in settled {
        if fence.objects.is_empty() {
            confirm(node, &fence);
        } else {
            // The thread lives as long as the node: a send fails only when everything ends.
            let _ = node.fencing.to_abandon.send(fence);
        }
    }
}

fn confirm(node: &Node, fence: &Unsettled) {
    let mut sink = Sink::remote(node);
    match fence.confirm {
        ConfirmTo::Shard => {
            let event = Event::FenceConfirmed { session: fence.session, node: node.config.node };
            shards::give(node, fence.shard, event, None, &mut sink);
        }
        ConfirmTo::Connection(to, id) => sink.send(to, id, Message::StorageReply(Ok(StorageAnswer::Done))),
    }
}

/// What a data connection has of the fences: the gates for what its session writes.
pub struct Gates<'a> {
    node: &'a Node,
    session: SessionId,
    /// The gate for the shard of the last request: a client works on few shards over one connection.
    last: RefCell<Option<(ShardId, Arc<Gate>)>>,
}

impl<'a> Gates<'a> {
    /// Gates for the requests of a connection of this session, which is shut down when the session is fenced.
    pub fn new(node: &'a Node, session: SessionId, socket: &Arc<Socket>) -> Self {
        let mut connections = lock(&node.fencing.connections);
        let of_session = connections.entry(session).or_default();
        of_session.retain(|other| other.strong_count() > 0);
        of_session.push(Arc::downgrade(socket));
        drop(connections);
        Self { node, session, last: RefCell::new(None) }
    }

    /// The guard for a request about a file of this shard. An error: the session is fenced.
    pub fn guard(&self, shard: ShardId) -> Result<RequestGuard<'a>> {
        let guard = RequestGuard { node: self.node, session: self.session, shard, gate: self.gate(shard) };
        guard.check().map(|()| guard)
    }

    fn gate(&self, shard: ShardId) -> Arc<Gate> {
        let mut last = self.last.borrow_mut();
        if let Some((of, gate)) = &*last
            && *of == shard
        {
            return Arc::clone(gate);
        }
        let fencing = &self.node.fencing;
        let gate = {
            let mut table = fencing.table.write().unwrap_or_else(PoisonError::into_inner);
            table.gate(self.session, shard, &fencing.own_term)
        };
        *last = Some((shard, Arc::clone(&gate)));
        gate
    }
}

impl Drop for Gates<'_> {
    fn drop(&mut self) {
        // The connection itself is forgotten by the session's next one, unless it was the last.
        let mut connections = lock(&self.node.fencing.connections);
        if let Some(of_session) = connections.get_mut(&self.session) {
            of_session.retain(|socket| socket.strong_count() > 1);
            if of_session.is_empty() {
                connections.remove(&self.session);
            }
        }
    }
}

/// Admits the pieces of one request.
pub struct RequestGuard<'a> {
    node: &'a Node,
    session: SessionId,
    shard: ShardId,
    gate: Arc<Gate>,
}

impl RequestGuard<'_> {
    /// Whether a request may begin at all: of what is not written piece by piece.
    fn check(&self) -> Result<()> {
        if self.gate.is_fenced() { Err(weft_protocol::Error::SessionEnded) } else { Ok(()) }
    }
}

impl WriteGuard for RequestGuard<'_> {
    fn enter(&self) -> Result<()> {
        self.gate.enter(clock::boot_ms)
    }

    fn leave(&self) {
        if self.gate.leave() {
            let settled = self.node.fencing.take_settled(self.session, self.shard);
            complete(self.node, settled);
        }
    }
}
