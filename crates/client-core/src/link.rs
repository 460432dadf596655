//! One node as a session reaches it: slots with their control connections.
//!
//! A caller takes a *slot*, a number with a sequence and a connection, and has it for itself until its reply has
//! come, so that a call that waits long at the server delays no other. When a connection breaks, the call is sent
//! again in the same slot with the same sequence number: the shard answers a duplicate request with the first reply.
//! A change that has no reply after some attempts stays in its slot: it may have been made, or be made later. Before
//! anything else goes to the node it is sent again, until a reply comes. A call whose shard moves to another node is
//! sent there in the same slot, over a connection of its own: the shard takes the replies of its slots along.
//!
//! Lock order: `slots` (3) is held to take and return one; `given_up` and `unanswered_at` are leaves.

use crate::calls::call_of;
use crate::lock::lock;
use crate::shell::{ControlConnection, Monitor, Shell};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use weft_protocol::limits::SLOTS_MAX;
use weft_protocol::message::Message;
use weft_protocol::{ConnectionId, NodeId, NodeRecord, Result, SessionId, ShardId, SlotIndex};

/// Slots for callers; the last one belongs to the answers to recalls, which must never wait for callers.
const CALLER_SLOTS_MAX: u16 = SLOTS_MAX - 1;
/// How often a call is sent again after its connection broke, the map changed, or the session ended.
pub(crate) const ATTEMPTS_MAX: u32 = 4;

/// A slot in the hands of a caller.
pub(crate) struct Slot<C> {
    pub index: SlotIndex,
    pub sequence: u32,
    /// To this node: the link's, or that to which the shard of the call has moved.
    connection: Option<(NodeId, C)>,
    /// A change that was sent and has no reply.
    unanswered: Option<Box<Message>>,
}

impl<C> Slot<C> {
    fn new(index: u16) -> Self {
        Self { index: SlotIndex(index), sequence: 0, connection: None, unanswered: None }
    }

    /// The change that has no reply.
    pub fn unanswered(&self) -> Option<&Message> {
        self.unanswered.as_deref()
    }
}

fn shard_of(change: &Message) -> ShardId {
    call_of(change).shard
}

/// On whose behalf a slot is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotFor {
    Caller,
    /// The answer to a recall; it has a slot of its own.
    Recall,
}

struct Slots<C> {
    idle: Vec<Slot<C>>,
    /// Slots with a change that has no reply. Not the recalls' own: what it reports is known to be doubtful.
    unanswered: Vec<Slot<C>>,
    made: u16,
    recall: Option<Slot<C>>,
    waiting: u32,
}

impl<C> Slots<C> {
    /// A caller's slot that is not taken.
    fn free(&mut self) -> Option<Slot<C>> {
        if let Some(slot) = self.idle.pop() {
            return Some(slot);
        }
        (self.made < CALLER_SLOTS_MAX).then(|| {
            self.made += 1;
            Slot::new(self.made - 1)
        })
    }
}

/// See the module.
pub(crate) struct Link<S: Shell> {
    pub record: NodeRecord,
    pub session: SessionId,
    slots: S::Monitor<Slots<S::Control>>,
    /// The last connection could not be made.
    refused: AtomicBool,
    /// Number of the changes that have no reply, also of those in the hands of a caller.
    unanswered: AtomicU32,
    /// Their shards.
    unanswered_at: Mutex<Vec<ShardId>>,
    given_up: Mutex<Vec<ConnectionId>>,
    /// Whether `given_up` has any.
    has_given_up: AtomicBool,
    /// The links of earlier sessions to this node on which something is given up, or may be yet.
    earlier: Mutex<Vec<Arc<Link<S>>>>,
    /// Whether `earlier` has any.
    has_earlier: AtomicBool,
}

impl<S: Shell> Link<S> {
    /// Connects to nothing before the first call. `earlier`: the links of earlier sessions.
    pub fn new(record: NodeRecord, session: SessionId, earlier: Vec<Arc<Self>>) -> Self {
        let recall = Some(Slot::new(CALLER_SLOTS_MAX));
        let slots = S::Monitor::new(Slots { idle: Vec::new(), unanswered: Vec::new(), made: 0, recall, waiting: 0 });
        Self {
            record,
            session,
            slots,
            refused: AtomicBool::new(false),
            unanswered: AtomicU32::new(0),
            unanswered_at: Mutex::default(),
            given_up: Mutex::default(),
            has_given_up: AtomicBool::new(false),
            has_earlier: AtomicBool::new(!earlier.is_empty()),
            earlier: Mutex::new(earlier),
        }
    }

    /// The node.
    pub fn node(&self) -> NodeId {
        self.record.id
    }

    /// Takes a slot; waits when all are taken.
    pub async fn take_slot(&self, slot_for: SlotFor) -> Slot<S::Control> {
        let mut slots = self.slots.lock().await;
        loop {
            if slot_for == SlotFor::Recall {
                if let Some(slot) = slots.recall.take() {
                    return slot;
                }
            } else if let Some(slot) = slots.free() {
                return slot;
            }
            slots.waiting += 1;
            slots = self.slots.wait(slots).await;
            slots.waiting -= 1;
        }
    }

    /// Takes a slot that is connected to the link's node and idle. `connects`: or another one that is free.
    pub async fn take_slot_now(&self, connects: bool) -> Option<Slot<S::Control>> {
        let mut slots = self.slots.lock().await;
        let is_connected = |slot: &Slot<S::Control>| slot.connection.as_ref().is_some_and(|(to, _)| *to == self.node());
        match slots.idle.iter().rposition(is_connected) {
            Some(index) => Some(slots.idle.remove(index)),
            None if connects => slots.free(),
            None => None,
        }
    }

    /// Returns a slot.
    pub async fn return_slot(&self, slot: Slot<S::Control>) {
        let mut slots = self.slots.lock().await;
        if slot.index.0 == CALLER_SLOTS_MAX {
            slots.recall = Some(slot);
        } else if slot.unanswered.is_some() {
            slots.unanswered.push(slot);
        } else {
            slots.idle.push(slot);
        }
        let awaited = slots.waiting > 0;
        drop(slots);
        // A notification costs a system call.
        if awaited {
            self.slots.notify_all();
        }
    }

    /// Whether a change at one of these shards has no reply.
    pub fn has_unanswered(&self, at: impl Fn(ShardId) -> bool) -> bool {
        self.unanswered.load(Ordering::Acquire) > 0 && lock(&self.unanswered_at).iter().any(|shard| at(*shard))
    }

    /// Takes a slot with a change at one of these shards that has no reply. `None`: another caller holds it.
    pub async fn take_unanswered(&self, at: impl Fn(ShardId) -> bool) -> Option<Slot<S::Control>> {
        let mut slots = self.slots.lock().await;
        let is_at = |slot: &Slot<S::Control>| slot.unanswered().is_some_and(|change| at(shard_of(change)));
        let index = slots.unanswered.iter().position(is_at)?;
        Some(slots.unanswered.swap_remove(index))
    }

    /// Keeps a change that was sent in its slot, since no reply came.
    pub fn keep_unanswered(&self, slot: &mut Slot<S::Control>, change: &Message) {
        slot.unanswered = Some(Box::new(change.clone()));
        lock(&self.unanswered_at).push(shard_of(change));
        self.unanswered.fetch_add(1, Ordering::AcqRel);
    }

    /// The change in this slot has its reply.
    pub fn answered(&self, slot: &mut Slot<S::Control>) {
        let Some(change) = slot.unanswered.take() else { return };
        self.unanswered.fetch_sub(1, Ordering::AcqRel);
        let mut shards = lock(&self.unanswered_at);
        let index = shards.iter().position(|shard| *shard == shard_of(&change));
        shards.swap_remove(index.expect("the shard was noted with the change"));
    }

    /// The reply of a node to a message, and whether the message was sent more than once for it. `sent` tells, after an
    /// error, whether it was sent at all. `to`: the link's node, as a rule.
    pub async fn exchange(
        &self,
        shell: &S,
        to: &NodeRecord,
        slot: &mut Slot<S::Control>,
        message: &Message,
        sent: &mut bool,
    ) -> Result<(Message, bool)> {
        let mut attempts = 0;
        loop {
            let connection = self.connected(shell, to, slot).await?;
            *sent = true;
            match connection.call(message).await {
                Ok(reply) => return Ok((reply, attempts > 0)),
                Err(error) => {
                    slot.connection = None;
                    attempts += 1;
                    if attempts >= ATTEMPTS_MAX {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// The slot's connection to a node; made, if there is none.
    async fn connected<'s>(
        &self,
        shell: &S,
        to: &NodeRecord,
        slot: &'s mut Slot<S::Control>,
    ) -> Result<&'s mut S::Control> {
        slot.connection.take_if(|(node, _)| *node != to.id);
        if slot.connection.is_none() {
            let connected = shell.connect(to, self.session).await;
            if to.id == self.record.id {
                self.note_connect(connected.is_ok());
            }
            slot.connection = Some((to.id, connected?));
        }
        let (_, connection) = slot.connection.as_mut().expect("it was connected above");
        Ok(connection)
    }

    /// Sends a message to the link's node. [`Link::finish`] awaits the reply. Neither sends it again.
    pub async fn start(&self, shell: &S, slot: &mut Slot<S::Control>, message: &Message) -> Result<()> {
        let started = self.connected(shell, &self.record, slot).await?.start(message).await;
        if started.is_err() {
            slot.connection = None;
        }
        started
    }

    /// Awaits the reply to the message that was started in this slot.
    pub async fn finish(&self, slot: &mut Slot<S::Control>) -> Result<Message> {
        let (_, connection) = slot.connection.as_mut().expect("a message was started on the slot's connection");
        let reply = connection.finish().await;
        if reply.is_err() {
            slot.connection = None;
        }
        reply
    }

    /// As [`Link::exchange`], if the slot was connected before; else nothing is sent.
    pub async fn exchange_if_connected(&self, slot: &mut Slot<S::Control>, message: &Message) {
        if let Some((_, connection)) = slot.connection.as_mut().filter(|(node, _)| *node == self.record.id) {
            // A server that is away ends the session by itself after its term.
            let _ = connection.call(message).await;
        }
    }

    /// A data connection failed with a write outstanding.
    pub fn give_up(&self, connection: ConnectionId) {
        lock(&self.given_up).push(connection);
        self.has_given_up.store(true, Ordering::Release);
    }

    /// Returns a data connection that is given up and not revoked, with its session: of this one or an earlier one.
    pub fn given_up(&self) -> Option<(SessionId, ConnectionId)> {
        if self.has_given_up.load(Ordering::Acquire)
            && let Some(connection) = lock(&self.given_up).last()
        {
            return Some((self.session, *connection));
        }
        if !self.has_earlier.load(Ordering::Acquire) {
            return None;
        }
        let mut earlier = lock(&self.earlier);
        // Another holder of the link may still give a connection up.
        earlier.retain(|link| Arc::strong_count(link) > 1 || link.given_up().is_some());
        self.has_earlier.store(!earlier.is_empty(), Ordering::Release);
        earlier.iter().find_map(|link| link.given_up())
    }

    /// The node has revoked a data connection of this session or an earlier one.
    pub fn revoked(&self, session: SessionId, connection: ConnectionId) {
        if session != self.session {
            return lock(&self.earlier).iter().for_each(|link| link.revoked(session, connection));
        }
        let mut given_up = lock(&self.given_up);
        given_up.retain(|other| *other != connection);
        self.has_given_up.store(!given_up.is_empty(), Ordering::Release);
    }

    /// Records whether the last connection to the node could be made.
    pub fn note_connect(&self, is_connected: bool) {
        self.refused.store(!is_connected, Ordering::Relaxed);
    }

    /// Whether the node has most likely ended: the last connection could not be made, or an idle one was closed by the
    /// node. Sends nothing.
    pub async fn seems_away(&self) -> bool {
        let slots = self.slots.lock().await;
        let own =
            |(node, connection): &'_ (NodeId, S::Control)| (*node == self.record.id).then_some(connection.is_closed());
        let idle = slots.idle.iter().rev().find_map(|slot| slot.connection.as_ref().and_then(own));
        self.refused.load(Ordering::Relaxed) || idle == Some(true)
    }
}
