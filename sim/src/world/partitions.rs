//! Partitions: two processes that hear nothing of each other for a while, though both go on and others hear them.

use super::{Message, World};
use crate::script::{WINDOW_MS, Word};
use std::collections::BTreeMap;
use std::fmt;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::peer::{IntentId, PeerReply};
use weft_protocol::message::shard::ShardAnswer;
use weft_protocol::{Error, Grants, NodeId, Result, SessionId, ShardId};

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

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(client) => write!(f, "client{client}"),
            Self::Node(node) => write!(f, "node{node}"),
        }
    }
}

impl Word for Party {
    fn write(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Option<Self> {
        let is_there = |number: &usize, count: usize| *number < count;
        if let Some(client) = text.strip_prefix("client") {
            return client.parse().ok().filter(|client| is_there(client, super::CLIENTS)).map(Self::Client);
        }
        let node = text.strip_prefix("node")?.parse().ok().filter(|node| is_there(node, super::NODES.into()))?;
        Some(Self::Node(NodeId(u16::try_from(node).ok()?)))
    }
}

/// Two parties that a script cuts off from each other, a while after its step has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    since_ms: u64,
    one: Party,
    other: Party,
    length_ms: u64,
}

impl Word for Cut {
    fn write(&self) -> String {
        format!("+{} {} {} for {}", self.since_ms, self.one, self.other, self.length_ms)
    }

    fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.strip_prefix('+')?.split(' ').collect();
        let [since_ms, one, other, "for", length_ms] = words[..] else { return None };
        let (one, other) = (Party::read(one)?, Party::read(other)?);
        Some(Self { since_ms: since_ms.parse().ok()?, one, other, length_ms: length_ms.parse().ok()? })
    }
}

/// Pairs that hear nothing of each other, and until when.
#[derive(Default)]
pub(super) struct Partitions {
    until_ms: BTreeMap<(Party, Party), u64>,
}

impl Partitions {
    /// Whether two nodes heard nothing of each other at some time since then.
    pub(super) fn has_cut_nodes_since(&self, since_ms: u64) -> bool {
        let is_of_nodes = |pair: &(Party, Party)| matches!(pair, (Party::Node(_), Party::Node(_)));
        self.until_ms.iter().any(|(pair, until_ms)| is_of_nodes(pair) && *until_ms >= since_ms)
    }
}

impl World {
    /// Cuts some client off from some node, now and then.
    pub(super) fn cut_again(&mut self) {
        if self.ending {
            return;
        }
        let clients = self.clients.len() as u64;
        let random = self.setting.stream();
        let client = usize::try_from(random.below(clients)).expect("there are few clients");
        let node = NodeId(u16::try_from(random.below(u64::from(super::NODES))).expect("there are few nodes"));
        let (length_ms, pause_ms) = (random.below(LENGTH_MS_MAX), random.below(PAUSE_MS_MAX));
        self.cut_off(Party::Client(client), Party::Node(node), length_ms);
        self.network.after(pause_ms, Message::Cut);
    }

    /// Cuts some node off from some other one, now and then.
    pub(super) fn cut_nodes_again(&mut self) {
        if self.ending {
            return;
        }
        let random = self.setting.stream();
        let mut some = || NodeId(u16::try_from(random.below(u64::from(super::NODES))).expect("there are few nodes"));
        let (one, other) = (some(), some());
        let (length_ms, pause_ms) = (random.below(LENGTH_MS_MAX), random.below(PAUSE_MS_MAX));
        if one != other {
            self.cut_off(Party::Node(one), Party::Node(other), length_ms);
        }
        self.network.after(pause_ms, Message::CutNodes);
    }

    /// Two parties hear nothing of each other from now on, for a while.
    fn cut_off(&mut self, one: Party, other: Party, length_ms: u64) {
        let until_ms = self.network.now_ms + length_ms;
        let since_ms = self.since_step_ms();
        self.choices.tape.record(format_args!("cut"), || Cut { since_ms, one, other, length_ms }.write());
        let who = match (one, other) {
            (Party::Client(client), Party::Node(node)) => format!("client {client} and node {node}"),
            (Party::Node(one), Party::Node(other)) => format!("nodes {one} and {other}"),
            (one, other) => format!("{one} and {other}"),
        };
        self.note(&format!("{who} hear nothing of each other until {until_ms} ms"));
        self.partitions.until_ms.insert((one.min(other), one.max(other)), until_ms);
        if let (Party::Client(client), Party::Node(node)) = (one, other)
            && length_ms > SESSION_TERM_MS
        {
            self.network.after(SESSION_TERM_MS, Message::Disconnected { client, node });
        }
        self.tally.partitions += 1;
    }

    /// Lets the cuts of a step come that a script has. In a native run before it, in one of mounts when it begins.
    pub(super) fn cuts_of_step(&mut self, step: u64) {
        let lines = self.choices.tape.lines("cut");
        for (key, text) in lines.into_iter().filter(|(key, _)| key.step == step) {
            let cut = Cut::read(&text);
            self.choices.tape.followed(&key, cut.is_some());
            if let Some(cut) = cut {
                let began_ms = if self.mounts.is_some() { self.network.now_ms } else { step * WINDOW_MS };
                let delay_ms = (began_ms + cut.since_ms).saturating_sub(self.network.now_ms);
                self.network.after(delay_ms, Message::CutOff(cut));
            }
        }
    }

    /// A cut of a script begins.
    pub(super) fn cut_as_told(&mut self, cut: Cut) {
        if !self.ending {
            self.cut_off(cut.one, cut.other, cut.length_ms);
        }
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

    /// A size is told as one in doubt where a storage server of the file is gone, or was cut off from the shard's node
    /// since the call arrived at `since_ms`, and for no other reason.
    pub(super) fn check_doubt(&mut self, (shard, since_ms): (ShardId, u64), result: &Result<ShardAnswer>) {
        let Ok(ShardAnswer::Entry { attributes, grants }) = result else { return };
        if !grants.contains(Grants::SIZE_IN_DOUBT) {
            return;
        }
        self.tally.in_doubt += 1;
        let own = Party::Node(self.node_of(shard));
        let is_away = |node: NodeId| {
            let other = Party::Node(node);
            let cut_ms = self.partitions.until_ms.get(&(own.min(other), own.max(other)));
            let was_cut = cut_ms.is_some_and(|until_ms| *until_ms >= since_ms);
            self.is_lost_with(node) || self.faults.all_cut && was_cut
        };
        if !attributes.layout.objects().iter().any(|object| is_away(object.node())) {
            self.fail(&format!("the size of inode {} is told as one in doubt, and its node answers", attributes.inode));
        }
    }

    /// A shard learns, after some time, that the other one was not reached or does not answer.
    pub(super) fn peer_unreachable(&mut self, intent: IntentId) {
        let reply = PeerReply { intent, result: Err(Error::Unreachable) };
        let node = self.node_of(intent.shard);
        self.network.after(TIMEOUT_MS, Message::PeerReply { node, reply });
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
        if self.is_cut(from, to) {
            return false;
        }
        let what = message.kind();
        self.network.send(&mut self.choices, format_args!("{what} {from}>{to}"), message)
    }

    /// The client that has this session now.
    pub(super) fn party_of(&self, session: SessionId) -> Option<Party> {
        self.clients.iter().position(|client| client.session() == session).map(Party::Client)
    }
}
