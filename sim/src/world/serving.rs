//! Terms during which storage servers serve the shards of other nodes, and the fences that these nodes send them: the
//! production machines ([`weft_storage::TermGrants`], [`weft_storage::ServingTerms`]) over messages between nodes.
//!
//! Two nodes may hear nothing of each other for a while (`partitions.rs`). A data request that needs a term waits, and
//! so do those behind it on its connection.

use super::partitions::{Party, TIMEOUT_MS};
use super::{Message, World};
use crate::bytes::ProcessId;
use crate::process::Ticket;
use crate::store::{DataMessage, Storage};
use std::collections::{BTreeMap, VecDeque};
use weft_metadata::{Event, Fences};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::map::admit;
use weft_protocol::message::storage::{ServingAnswer, SessionFence};
use weft_protocol::{Error, MapEpoch, NodeId, SessionId, ShardId, routing};
use weft_storage::DueFence;

/// One message between nodes in so many is lost, while faults are on.
const LOSS: u64 = 40;
/// How long a data request waits for a term, and how often it looks.
const WAIT_MS_MAX: u64 = SESSION_TERM_MS;
const LOOK_MS: u64 = 250;

/// A data connection on which requests wait.
pub(super) type ConnectionId = (ProcessId, u64);

/// Requests that wait for a term, in the order of their connection.
#[derive(Default)]
pub(super) struct Waiting(BTreeMap<ConnectionId, VecDeque<Waits>>);

struct Waits {
    to: (usize, ProcessId, Ticket),
    message: Box<DataMessage>,
    since_ms: u64,
}

impl Waiting {
    /// Those that are there.
    pub(super) fn messages(&self) -> impl Iterator<Item = ((usize, ProcessId, Ticket), &DataMessage)> {
        self.0.values().flatten().map(|waits| (waits.to, &*waits.message))
    }
}

impl World {
    /// Ends a session at all storage servers. Those in `fences` confirm it.
    pub(super) fn fence_everywhere(&mut self, shard: ShardId, session: SessionId, mut fences: Fences) {
        let own = self.node_of(shard);
        let gone = fences.keys().copied().filter(|node| !self.storage.contains_key(node)).collect::<Vec<_>>();
        let known = self.storage.keys().copied().filter(|node| self.joins.knows(own, *node));
        for node in known.chain(gone).collect::<Vec<_>>() {
            let objects = fences.remove(&node);
            let is_awaited = objects.is_some();
            let fence = SessionFence { session, shard, objects: objects.into_iter().flatten().collect() };
            if node == own {
                self.apply_fence(&fence, node);
                let delay = self.server_delay(format_args!("Fenced node{node}>node{own}"));
                self.network.after(delay, Message::Fenced { node, fence });
            } else {
                let now_ms = self.now_at(own).boot_ms;
                self.grants.entry(own).or_default().fence(node, &fence, is_awaited, now_ms);
                self.send_fence(node, fence);
                self.look_for_due(own);
            }
        }
        if let Some((node, _)) = fences.first_key_value() {
            self.fail(&format!("shard {shard} waits for a fence of node {node}, which its node does not know"));
        }
    }

    /// Whether a message between two nodes is lost.
    fn is_lost(&mut self, one: NodeId, other: NodeId) -> bool {
        if self.is_cut(Party::Node(one), Party::Node(other)) {
            return true;
        }
        let what = format_args!("lost fence or term node{one}>node{other}");
        self.network.faults && self.choices.decide(what, false, |random| random.one_in(LOSS))
    }

    fn send_fence(&mut self, node: NodeId, fence: SessionFence) {
        let own = self.node_of(fence.shard);
        if self.is_lost(own, node) {
            self.network.after(TIMEOUT_MS, Message::FenceFailed { node, fence });
        } else {
            let delay = self.server_delay(format_args!("Fence node{own}>node{node}"));
            self.network.after(delay, Message::Fence { node, fence });
        }
    }

    /// A storage server is sent a fence. A node that is gone does not answer.
    pub(super) fn fence_arrived(&mut self, node: NodeId, fence: SessionFence) {
        self.apply_fence(&fence, node);
        if !self.storage.contains_key(&node) || self.is_lost(node, self.node_of(fence.shard)) {
            self.network.after(TIMEOUT_MS, Message::FenceFailed { node, fence });
        } else {
            let delay = self.server_delay(format_args!("Fenced node{node}>"));
            self.network.after(delay, Message::Fenced { node, fence });
        }
    }

    fn apply_fence(&mut self, fence: &SessionFence, node: NodeId) {
        let now = self.now_at(node);
        if let Some(storage) = self.storage.get_mut(&node) {
            storage.fence(fence.session, fence.shard, now);
            fence.objects.iter().for_each(|(inode, object)| storage.abandon(*inode, *object));
        }
        self.caches_nothing(node, fence.session, Some(fence.shard));
        self.fence_reached(fence.session, fence.shard, node);
    }

    pub(super) fn fence_confirmed(&mut self, node: NodeId, fence: &SessionFence) {
        let own = self.node_of(fence.shard);
        let confirmed = if node == own {
            Some((fence.session, fence.shard))
        } else {
            self.grants.get_mut(&own).and_then(|grants| grants.confirm(node, fence))
        };
        if let Some((session, shard)) = confirmed {
            self.step(shard, Event::FenceConfirmed { session, node });
        }
    }

    pub(super) fn fence_failed(&mut self, node: NodeId, fence: &SessionFence) {
        let own = self.node_of(fence.shard);
        let now_ms = self.now_at(own).boot_ms;
        if let Some(grants) = self.grants.get_mut(&own) {
            grants.send_failed(node, (fence.session, fence.shard), now_ms);
        }
        self.look_for_due(own);
    }

    fn look_for_due(&mut self, own: NodeId) {
        if let Some(due_ms) = self.grants.get(&own).and_then(weft_storage::TermGrants::next_due) {
            let wait_ms = due_ms.saturating_sub(self.now_at(own).boot_ms).max(1);
            self.network.after(self.clocks[&own].wait_ms(wait_ms), Message::FencesDue(own));
        }
    }

    pub(super) fn fences_due(&mut self, own: NodeId) {
        let now_ms = self.now_at(own).boot_ms;
        let due = self.grants.get_mut(&own).map(|grants| grants.take_due(now_ms)).unwrap_or_default();
        for due in due {
            match due {
                DueFence::Send { node, fence } => self.send_fence(node, fence),
                DueFence::Certain { node, session, shard } => {
                    self.tally.certain += 1;
                    self.note(&format!("shard {shard}: node {node} serves nothing of session {session} any more"));
                    self.step(shard, Event::FenceConfirmed { session, node });
                }
            }
        }
        self.look_for_due(own);
    }

    /// A request of a shard reaches a storage server behind the fences that it has missed. Returns false if these do
    /// not reach it now.
    pub(super) fn settle_overdue(&mut self, shard: ShardId, node: NodeId) -> bool {
        let own = self.node_of(shard);
        let overdue = self.grants.get(&own).map(|grants| grants.overdue(node)).unwrap_or_default();
        if overdue.is_empty() || !self.storage.contains_key(&node) {
            return true;
        }
        if self.is_cut(Party::Node(own), Party::Node(node)) {
            return false;
        }
        for fence in overdue {
            self.apply_fence(&fence, node);
            self.fence_confirmed(node, &fence);
        }
        true
    }

    /// A storage server asks a node for a term, unless its question is on its way.
    fn ask_to_serve(&mut self, node: NodeId, of: NodeId) {
        let now_ms = self.now_at(node).boot_ms;
        let asks = |storage: &mut Storage| {
            let epoch = storage.map.epoch;
            storage.terms.ask(of, epoch, now_ms).map(|settled| (epoch, settled))
        };
        let Some((epoch, settled)) = self.storage.get_mut(&node).and_then(asks) else { return };
        if self.is_lost(node, of) {
            self.network.after(TIMEOUT_MS, Message::Serving { node, of, answer: None });
        } else {
            let delay = self.server_delay(format_args!("AskToServe node{node}>node{of}"));
            self.network.after(delay, Message::AskToServe { node, of, epoch, settled });
        }
    }

    pub(super) fn asked_to_serve(&mut self, node: NodeId, of: NodeId, epoch: MapEpoch, settled: &[SessionFence]) {
        if let Err(error) = admit(self.joins.map_of(of).epoch, epoch) {
            // Whose map is older gets the newer one.
            self.fetch_map(if error == Error::Busy { of } else { node });
            let delay = self.server_delay(format_args!("Serving node{of}>node{node}"));
            return self.network.after(delay, Message::Serving { node, of, answer: None });
        }
        let now_ms = self.now_at(of).boot_ms;
        let (answer, confirmed) = self.grants.entry(of).or_default().ask(node, settled, now_ms);
        self.tally.terms += u64::from(answer.granted);
        for (session, shard) in confirmed {
            self.step(shard, Event::FenceConfirmed { session, node });
        }
        self.look_for_due(of);
        if !self.storage.contains_key(&of) || self.is_lost(of, node) {
            self.network.after(TIMEOUT_MS, Message::Serving { node, of, answer: None });
        } else {
            let delay = self.server_delay(format_args!("Serving node{of}>node{node}"));
            self.network.after(delay, Message::Serving { node, of, answer: Some(answer) });
        }
    }

    pub(super) fn serving_answered(&mut self, node: NodeId, of: NodeId, answer: Option<&ServingAnswer>) {
        let Some(storage) = self.storage.get_mut(&node) else { return };
        let fences = answer.map(|answer| storage.terms.answered(of, answer)).unwrap_or_default();
        for fence in fences {
            self.apply_fence(&fence, node);
            if let Some(storage) = self.storage.get_mut(&node) {
                storage.terms.settled(of, fence.session, fence.shard);
            }
        }
        let Some(storage) = self.storage.get_mut(&node) else { return };
        if storage.terms.finish(of, answer, &storage.map) {
            self.ask_to_serve(node, of);
        }
        let waits_here = |waits: &&Waits| waits.message.request.object.node() == node;
        let here = self.connections.waiting.0.iter().filter(|(_, queue)| queue.front().filter(waits_here).is_some());
        for connection in here.map(|(connection, _)| *connection).collect::<Vec<_>>() {
            self.network.after(1, Message::TermAwaited(connection));
        }
    }

    /// Returns a request that may be served now; keeps it if it has to wait for a term, or for those before it.
    pub(super) fn await_term(
        &mut self,
        to: (usize, ProcessId, Ticket),
        message: Box<DataMessage>,
    ) -> Option<Box<DataMessage>> {
        let connection = (to.1, message.connection);
        let is_first = self.connections.waiting.0.get(&connection).is_none_or(VecDeque::is_empty);
        if is_first && self.has_term(&message) {
            return Some(message);
        }
        let waits = Waits { to, message, since_ms: self.network.now_ms };
        self.connections.waiting.0.entry(connection).or_default().push_back(waits);
        if is_first {
            self.tally.awaited += 1;
            self.network.after(LOOK_MS, Message::TermAwaited(connection));
        }
        None
    }

    fn has_term(&mut self, message: &DataMessage) -> bool {
        let (node, shard) = (message.request.object.node(), routing::of_inode(message.request.inode));
        if !self.knows_shard(node, shard) {
            return false;
        }
        let now_ms = self.now_at(node).boot_ms;
        let Some(storage) = self.storage.get_mut(&node) else { return true };
        let Some(of) = storage.map.node_of(shard) else { return false };
        let term = storage.terms.term(shard, of == node);
        if of != node && term.wants_renewal(|| now_ms) {
            self.ask_to_serve(node, of);
        }
        term.holds(|| now_ms)
    }

    /// Looks whether the first request that waits on a connection may be served.
    pub(super) fn term_awaited(&mut self, connection: ConnectionId) {
        let Some(queue) = self.connections.waiting.0.get_mut(&connection) else { return };
        let Some(Waits { to, message, since_ms }) = queue.pop_front() else {
            self.connections.waiting.0.remove(&connection);
            return;
        };
        if self.has_term(&message) {
            // What comes behind it on the connection waits for its last piece.
            let end_ms = message.pieces_ms.last().copied().unwrap_or(0).max(self.network.now_ms);
            self.serve_data(to, message);
            self.network.after(end_ms - self.network.now_ms + 1, Message::TermAwaited(connection));
        } else if self.network.now_ms - since_ms >= WAIT_MS_MAX {
            self.answer_data(to, &message, None);
            self.network.after(1, Message::TermAwaited(connection));
        } else {
            let queue = self.connections.waiting.0.entry(connection).or_default();
            queue.push_front(Waits { to, message, since_ms });
            self.network.after(LOOK_MS, Message::TermAwaited(connection));
        }
    }
}
