//! Partitions: two processes that hear nothing of each other for a while, though both go on and others hear them.

use super::{Message, World};
use std::collections::BTreeMap;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::peer::{IntentId, PeerReply};
use weft_protocol::{Error, NodeId, SessionId, ShardId};

/// When a node gives up to wait for another one's answer, milliseconds.
pub(super) const TIMEOUT_MS: u64 = SESSION_TERM_MS / 4;
/// Longest partition, and longest time until the next, milliseconds.
const LENGTH_MS_MAX: u64 = 2 * SESSION_TERM_MS;
const PAUSE_MS_MAX: u64 = SESSION_TERM_MS;

/// A process that a partition may cut off.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Party {
    Client(usize),
    Node(NodeId),
}

/// Pairs that hear nothing of each other, and until when.
#[derive(Default)]
pub(super) struct Partitions {
    until_ms: BTreeMap<(Party, Party), u64>,
}

impl World {
    /// Cuts some client off from some node, now and then.
    pub(super) fn cut_again(&mut self) {
        if self.ending {
            return;
        }
        let client = usize::try_from(self.setting.below(self.clients.len() as u64)).expect("there are few clients");
        let node = NodeId(u16::try_from(self.setting.below(u64::from(super::NODES))).expect("there are few nodes"));
        let length_ms = self.setting.below(LENGTH_MS_MAX);
        let until_ms = self.network.now_ms + length_ms;
        self.note(&format!("client {client} and node {node} hear nothing of each other until {until_ms} ms"));
        self.partitions.until_ms.insert((Party::Client(client), Party::Node(node)), until_ms);
        if length_ms > SESSION_TERM_MS {
            self.network.after(SESSION_TERM_MS, Message::Disconnected { client, node });
        }
        self.tally.partitions += 1;
        let pause_ms = self.setting.below(PAUSE_MS_MAX);
        self.network.after(pause_ms, Message::Cut);
    }

    /// Cuts some node off from some other one, now and then.
    pub(super) fn cut_nodes_again(&mut self) {
        if self.ending {
            return;
        }
        let mut some =
            || NodeId(u16::try_from(self.setting.below(u64::from(super::NODES))).expect("there are few nodes"));
        let (one, other) = (some(), some());
        let until_ms = self.network.now_ms + self.setting.below(LENGTH_MS_MAX);
        if one != other {
            self.note(&format!("nodes {one} and {other} hear nothing of each other until {until_ms} ms"));
            let pair = (Party::Node(one.min(other)), Party::Node(one.max(other)));
            self.partitions.until_ms.insert(pair, until_ms);
            self.tally.partitions += 1;
        }
        let pause_ms = self.setting.below(PAUSE_MS_MAX);
        self.network.after(pause_ms, Message::CutNodes);
    }

    /// Whether a message between the two is lost now. The end of a run has no partitions.
    pub(super) fn is_cut(&mut self, from: Party, to: Party) -> bool {
        let until_ms = self.partitions.until_ms.get(&(from.min(to), from.max(to)));
        let is_cut = !self.ending && until_ms.is_some_and(|until_ms| *until_ms > self.network.now_ms);
        self.tally.cut_off += u64::from(is_cut);
        is_cut
    }

    /// Whether a request of a shard or collector to another shard is lost now.
    pub(super) fn is_peer_cut(&mut self, one: NodeId, other: NodeId) -> bool {
        self.faults.peers_cut && self.is_split(one, other)
    }

    /// Whether an answer to such a request, or a request of a shard about an object or its answer, is lost now.
    pub(super) fn is_all_cut(&mut self, one: NodeId, other: NodeId) -> bool {
        self.faults.all_cut && self.is_split(one, other)
    }

    fn is_split(&mut self, one: NodeId, other: NodeId) -> bool {
        let is_split = one != other && self.is_cut(Party::Node(one), Party::Node(other));
        if is_split {
            self.tally.unreachable += 1;
            self.model.split_ms = Some(self.network.now_ms);
        }
        is_split
    }

    /// A shard learns, after some time, that the other one was not reached or does not answer.
    pub(super) fn peer_unreachable(&mut self, intent: IntentId) {
        let reply = PeerReply { intent, result: Err(Error::Unreachable) };
        self.network.after(TIMEOUT_MS, Message::PeerReply(reply));
    }

    /// A shard learns the same of a storage server.
    pub(super) fn storage_unreachable(&mut self, shard: ShardId, token: Option<u64>) {
        if let Some(token) = token {
            let result = Err(Error::Unreachable);
            self.network.after(TIMEOUT_MS, Message::StorageAnswer { shard, token, result });
        }
    }

    /// Sends a message between two processes. Returns false if it is lost.
    pub(super) fn send(&mut self, from: Party, to: Party, message: Message) -> bool {
        !self.is_cut(from, to) && self.network.send(&mut self.random, message)
    }

    /// The client that has this session now.
    pub(super) fn party_of(&self, session: SessionId) -> Option<Party> {
        self.clients.iter().position(|client| client.session() == session).map(Party::Client)
    }
}
