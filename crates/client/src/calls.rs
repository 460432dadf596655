//! Calls to shards and nodes: slots, repetition, stale maps, sessions that have ended.

use crate::client::Inner;
use crate::link::{Link, Slot, SlotFor};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weft_protocol::handshake::Purpose;
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::message::shard::{ShardAnswer, ShardCall, ShardRequest};
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{Credentials, Error, MapEpoch, NodeId, Result, SessionId, ShardId};
use weft_transport::ControlConnection;

/// How often a call is sent again after its connection broke, the map changed, or the session ended.
pub(crate) const ATTEMPTS_MAX: u32 = 4;
/// How long a call waits before it is sent again to a server that is busy.
pub(crate) const BUSY_WAIT: Duration = Duration::from_millis(10);
/// How long a server may be busy before the caller is told.
pub(crate) const BUSY_MAX: Duration = Duration::from_secs(10);

/// An answer, and what is needed to believe its grants.
pub(crate) struct Answer {
    pub stamp: u64,
    pub answer: ShardAnswer,
    /// The session that asked: with its end the grants are void.
    pub session: SessionId,
    /// The call was sent again: the answer may be of the first time, and what it grants have been recalled since.
    pub resent: bool,
    /// When it had come, milliseconds since boot.
    pub now_ms: u64,
}

impl Inner {
    /// A call on behalf of a user, made exactly once. Renews the session's term at the shard.
    pub fn call(&self, who: &Credentials, shard: ShardId, request: ShardRequest) -> Result<Answer> {
        self.call_in(SlotFor::Caller, who, shard, request)
    }

    /// As [`Inner::call`], in the slot of the recall thread or in a caller's.
    pub fn call_in(&self, slot: SlotFor, who: &Credentials, shard: ShardId, request: ShardRequest) -> Result<Answer> {
        self.counters.shard_calls.fetch_add(1, Ordering::Relaxed);
        let credentials = self.identity.said(who);
        let mut message = Message::Shard(ShardCall {
            shard,
            epoch: MapEpoch(0),
            slot: Default::default(),
            sequence: 0,
            credentials,
            request,
        });
        let busy_since = Instant::now();
        let mut attempts = 0;
        loop {
            let map = self.map();
            let node = map.node_of(shard).ok_or(Error::WrongShard(shard))?;
            let link = self.link(node)?;
            match self.call_once(&link, slot, &mut message, map.epoch) {
                Err(Error::Busy) if busy_since.elapsed() < BUSY_MAX => std::thread::sleep(BUSY_WAIT),
                Err(Error::StaleMap(_) | Error::WrongShard(_)) if attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    self.refresh_map(node)?;
                }
                Err(Error::SessionEnded) if attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    self.begin_new_session(link.session);
                }
                result => return result,
            }
        }
    }

    /// One slot, one sequence; the connection is made again as often as it breaks.
    fn call_once(&self, link: &Link, slot_for: SlotFor, message: &mut Message, epoch: MapEpoch) -> Result<Answer> {
        let Message::Shard(call) = message else { return Err(Error::Malformed) };
        let mut slot = link.take_slot(slot_for);
        slot.sequence += 1;
        (call.slot, call.sequence, call.epoch) = (slot.index, slot.sequence, epoch);
        let shard = call.shard;
        let sent_ms = self.clock_ms();
        let result = self.exchange(link, &mut slot, message);
        link.return_slot(slot);
        let (Message::ShardReply(reply), resent) = result? else { return Err(Error::Malformed) };
        let session = link.session;
        let now_ms = self.clock_ms();
        // These are not of the shard, or say that it does not hear this session.
        if !matches!(reply.result, Err(Error::SessionEnded | Error::StaleMap(_) | Error::WrongShard(_))) {
            self.heard(shard, session, sent_ms, now_ms);
        }
        reply.result.map(|answer| Answer { stamp: reply.stamp, answer, session, resent, now_ms })
    }

    /// The reply, and whether the message was sent more than once for it.
    fn exchange(&self, link: &Link, slot: &mut Slot, message: &Message) -> Result<(Message, bool)> {
        let mut attempts = 0;
        loop {
            let connection = match &mut slot.connection {
                Some(connection) => connection,
                None => {
                    let socket = link.connect(&self.identity, Purpose::Control, self.way())?;
                    slot.connection.insert(ControlConnection::new(socket))
                }
            };
            match connection.call(message) {
                Ok(reply) => return Ok((reply, attempts > 0)),
                Err(error) => {
                    slot.connection = None;
                    attempts += 1;
                    if attempts >= ATTEMPTS_MAX {
                        return Err(error.into());
                    }
                }
            }
        }
    }

    /// A request to a storage server; all of them may be repeated.
    pub fn storage_call(&self, node: NodeId, request: StorageRequest) -> Result<StorageAnswer> {
        match self.node_exchange(node, &Message::Storage(request))? {
            Message::StorageReply(result) => result,
            _ => Err(Error::Malformed),
        }
    }

    /// A request to a node as such; all of them may be repeated.
    pub fn node_call(&self, node: NodeId, request: NodeRequest) -> Result<NodeAnswer> {
        match self.node_exchange(node, &Message::Node(request))? {
            Message::NodeReply(result) => *result,
            _ => Err(Error::Malformed),
        }
    }

    fn node_exchange(&self, node: NodeId, message: &Message) -> Result<Message> {
        let link = self.link_without_recalls(node)?;
        let mut slot = link.take_slot(SlotFor::Caller);
        let result = self.exchange(&link, &mut slot, message);
        link.return_slot(slot);
        result.map(|(reply, _)| reply)
    }

    /// Gets a newer map from the node that says that ours is old.
    fn refresh_map(&self, node: NodeId) -> Result<()> {
        let NodeAnswer::Map(map) = self.node_call(node, NodeRequest::GetMap)? else { return Err(Error::Malformed) };
        if !map.check() {
            return Err(Error::Malformed);
        }
        self.set_map(Arc::new(map));
        Ok(())
    }
}
