//! Nodes that join, and the map of each node: the production machine ([`weft_metadata::Membership`]) over messages that
//! are lost and late.
//!
//! Each node has a map of its own, and refuses calls by it ([`weft_protocol::map::admit`]). [`World::map`] is what is
//! true: every shard that exists, and its node.
//!
//! Faults: a node that joins never answers (the change is abandoned, and what has joined with it is ended, as by
//! `weft node add`), or is gone some time after it has joined.

use super::map_changes::MapChange;
use super::moves::{Caller, Ship};
use super::partitions::{Party, TIMEOUT_MS};
use super::{Answer, Message as Any, Pending, World};
use crate::mount::identity;
use crate::store::Storage;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weft_metadata::{
    Event, Membership, MembershipEffect, MembershipEvent, MemoryStore, RootDirectory, Shard, ShardConfig,
};
use weft_protocol::map::admit;
use weft_protocol::message::Message as WireMessage;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{
    ClusterMap, Error, MapEpoch, NodeAddress, NodeChange, NodeId, NodeKey, NodeRecord, Result, ShardId,
};

/// Changes of the map in one run, and the longest time between them, milliseconds.
const JOINS: u64 = 4;
const JOIN_MS_MAX: u64 = 3_000;
/// One node that joins in so many never answers, and one in so many is gone later, after at most so long.
const NEVER_ANSWERS: u64 = 8;
const GONE_LATER: u64 = 5;
const GONE_MS_MAX: u64 = 3_000;

/// What is on its way.
#[derive(Clone, Debug)]
pub(super) enum Message {
    /// So many more changes.
    Begin(u64),
    Tell {
        at: NodeId,
        node: NodeId,
        map: ClusterMap,
    },
    /// The outcome, at the node that told it.
    Told {
        at: NodeId,
        node: NodeId,
        epoch: MapEpoch,
        taken: bool,
    },
    /// At this node.
    Tick(NodeId),
    /// The node of the root shard, as far as this one knows, has been asked for the map.
    Fetched {
        node: NodeId,
        map: ClusterMap,
    },
    /// A node that has joined is gone.
    Dies(NodeId),
    /// A node that was removed ends.
    Ends(NodeId),
    /// In a run of mounts.
    Change(MapChange),
}

/// See the module.
pub(super) struct Joins {
    maps: BTreeMap<NodeId, ClusterMap>,
    machines: BTreeMap<NodeId, Membership>,
    /// The number of the next node: none is used again.
    next_node: u16,
    next_token: u64,
    /// The nodes that each request without an answer has join.
    joining: BTreeMap<u64, Vec<NodeId>>,
    never_answer: BTreeSet<NodeId>,
    /// Clients that wait for the outcome of a change, and the node that is to be removed by it.
    asking: BTreeMap<u64, (Caller, Option<NodeId>)>,
    /// Programs that have a node leave.
    pub(super) leaving: Rc<Cell<u64>>,
    /// Nodes that have left.
    pub(super) left: BTreeSet<NodeId>,
}

impl Joins {
    /// All nodes have this map.
    pub(super) fn new(map: &ClusterMap) -> Self {
        let machine = |node| {
            let mut machine = Membership::new(node);
            machine.step(0, MembershipEvent::Installed(map.clone()), &mut Vec::new());
            (node, machine)
        };
        Self {
            maps: map.nodes.iter().map(|node| (node.id, map.clone())).collect(),
            machines: map.nodes.iter().map(|node| machine(node.id)).collect(),
            next_node: map.nodes.last().map_or(0, |node| node.id.0 + 1),
            next_token: 0,
            joining: BTreeMap::new(),
            never_answer: BTreeSet::new(),
            asking: BTreeMap::new(),
            leaving: Rc::default(),
            left: BTreeSet::new(),
        }
    }

    /// The map that a node has, if it has one.
    pub(super) fn map_if_any(&self, node: NodeId) -> Option<&ClusterMap> {
        self.maps.get(&node)
    }

    /// Names a request of the owner.
    pub(super) fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// The map that a node has.
    pub(super) fn map_of(&self, node: NodeId) -> &ClusterMap {
        self.maps.get(&node).expect("a node that can be named has a map")
    }

    /// Whether nodes join or leave.
    pub(super) fn is_changing(&self) -> bool {
        !self.joining.is_empty() || self.leaving.get() > 0
    }

    /// Whether a node's map has this node.
    pub(super) fn knows(&self, node: NodeId, other: NodeId) -> bool {
        self.map_of(node).node(other).is_some()
    }
}

impl World {
    /// Has nodes join in a run of that kind.
    pub(super) fn begin_joins(&mut self) {
        if self.faults.joins {
            self.join_later(JOINS);
        }
    }

    fn join_later(&mut self, left: u64) {
        let wait_ms = self.setting.decide(format_args!("join after"), JOIN_MS_MAX, |random| random.below(JOIN_MS_MAX));
        self.network.after(1 + wait_ms, Any::Joins(Message::Begin(left)));
    }

    pub(super) fn joins_event(&mut self, message: Message) {
        match message {
            Message::Begin(left) => {
                if !self.ending && left > 0 {
                    self.join_later(left - 1);
                    self.join_some();
                }
            }
            Message::Tell { at, node, map } => self.map_arrived(at, node, &map),
            Message::Told { at, node, epoch, taken } => {
                self.step_joins(at, MembershipEvent::Told { node, epoch, taken });
            }
            Message::Tick(at) => {
                let now_ms = self.now_at(at).boot_ms;
                let deadline = self.joins.machines.get(&at).and_then(Membership::deadline);
                if deadline.is_some_and(|due_ms| due_ms <= now_ms) {
                    self.step_joins(at, MembershipEvent::Tick);
                }
            }
            Message::Fetched { node, map } if self.storage.contains_key(&node) => self.install(node, &map),
            Message::Fetched { .. } => {}
            Message::Ends(node) => self.node_ends(node),
            Message::Change(change) if !self.ending => self.change_map(change),
            Message::Change(_) => {}
            Message::Dies(node) => {
                // A file system ends with the node of its root shard.
                if !self.ending && self.storage.contains_key(&node) && !self.may_have_root(node) {
                    self.crash_node(node);
                }
            }
        }
    }

    fn join_some(&mut self) {
        let mut choose = |what, usual, count| self.setting.decide(what, usual, |random| 1 + random.below(count));
        let (count, shards) = (choose(format_args!("join nodes"), 1, 2), choose(format_args!("join shards"), 1, 2));
        self.join(count, shards);
    }

    /// So many nodes join, with so many shards each.
    pub(super) fn join(&mut self, count: u64, shards: u64) {
        let first = self.joins.next_node;
        self.joins.next_node += u16::try_from(count).expect("few nodes join");
        let mut nodes = Vec::new();
        for id in (first..self.joins.next_node).map(NodeId) {
            let clock = self.new_clock(format_args!("clock node{id}"));
            self.clocks.insert(id, clock);
            let never = self
                .setting
                .decide(format_args!("node{id} never answers"), false, |random| random.one_in(NEVER_ANSWERS));
            if never {
                self.joins.never_answer.insert(id);
            }
            nodes.push(NodeRecord {
                id,
                host: String::new(),
                site: String::new(),
                identity: identity(id),
                address: NodeAddress::default(),
                stores: true,
                drains: false,
            });
        }
        self.note(&format!("nodes {first} to {} join", self.joins.next_node - 1));
        let joining = nodes.iter().map(|node| node.id).collect();
        let token = self.joins.token();
        let shards_per_node = u16::try_from(shards).expect("few shards");
        self.joins.joining.insert(token, joining);
        self.step_joins(self.root_node(), MembershipEvent::Join { token, nodes, shards_per_node });
    }

    /// The node that has the root shard.
    pub(super) fn root_node(&self) -> NodeId {
        self.moves.node_of(ShardId::ROOT).expect("the root shard is never lost")
    }

    /// The map that the file system's record has.
    pub(super) fn root_map(&self) -> &ClusterMap {
        self.joins.map_of(self.root_node())
    }

    /// Gives an event to the machine of this node, if it is not gone.
    pub(super) fn step_joins(&mut self, at: NodeId, event: MembershipEvent) {
        let now_ms = self.now_at(at).boot_ms;
        let mut effects = Vec::new();
        let is_there = self.storage.contains_key(&at);
        let Some(machine) = self.joins.machines.get_mut(&at).filter(|_| is_there) else { return };
        machine.step(now_ms, event, &mut effects);
        for effect in effects {
            match effect {
                MembershipEffect::Tell { to, map } => self.tell_map(at, to.id, map),
                MembershipEffect::Install(map) => self.install(at, &map),
                MembershipEffect::Ship { from, shard, to, epoch } => {
                    self.ask_to_ship(Ship { root: at, from: from.id, shard, to: to.id, epoch });
                }
                MembershipEffect::Answer { token, result } => {
                    if let Some(nodes) = self.joins.joining.remove(&token) {
                        self.join_answered(&nodes, &result);
                    } else if let Some(asking) = self.joins.asking.remove(&token) {
                        self.change_answered(asking, result);
                    }
                }
            }
        }
        if let Some(deadline) = self.joins.machines.get(&at).and_then(Membership::deadline) {
            let wait_ms = self.clocks[&at].wait_ms(deadline.saturating_sub(now_ms).max(1));
            self.network.after(wait_ms, Any::Joins(Message::Tick(at)));
        }
    }

    /// Sends the map to a node. The sender of one that is lost learns so after a while.
    fn tell_map(&mut self, at: NodeId, node: NodeId, map: ClusterMap) {
        let epoch = map.epoch;
        let message = Any::Joins(Message::Tell { at, node, map });
        if !self.send(Party::Node(at), Party::Node(node), message) {
            self.network.after(TIMEOUT_MS, Any::Joins(Message::Told { at, node, epoch, taken: false }));
        }
    }

    fn map_arrived(&mut self, at: NodeId, node: NodeId, map: &ClusterMap) {
        let epoch = map.epoch;
        let is_joining = self.joins.joining.values().flatten().any(|joining| *joining == node);
        let is_there = is_joining || self.storage.contains_key(&node);
        let answers = is_there && !self.joins.never_answer.contains(&node);
        if answers {
            self.install(node, map);
        }
        let told = |taken| Any::Joins(Message::Told { at, node, epoch, taken });
        if !answers || !self.send(Party::Node(node), Party::Node(at), told(true)) {
            self.network.after(TIMEOUT_MS, told(false));
        }
    }

    /// A node installs a map, if it is newer, and starts its shards that are new in it.
    fn install(&mut self, node: NodeId, map: &ClusterMap) {
        let previous = self.joins.maps.get(&node).cloned().unwrap_or_default();
        if map.epoch <= previous.epoch {
            return;
        }
        self.note(&format!("node {node} has the map of epoch {}", map.epoch));
        if map.epoch > self.map.epoch {
            let gone = self.moved_to_the_gone(&self.map, map);
            self.map = map.clone();
            self.lose_shards(&gone);
        }
        let storage = self.storage.entry(node).or_insert_with(|| Storage::new(node, ClusterMap::default()));
        storage.map = map.clone();
        for shard in map.born_at(node).collect::<Vec<_>>() {
            self.start_shard(shard, node);
        }
        self.joins.maps.insert(node, map.clone());
        self.joins.machines.entry(node).or_insert_with(|| Membership::new(node));
        self.settle_moves(node, map);
        for shard in map.shards_at(node) {
            self.step_at(node, shard, Event::SetMap(map.clone()));
        }
        self.step_joins(node, MembershipEvent::Installed(map.clone()));
    }

    /// What each node makes a shard with.
    pub(super) fn config_of(&self, shard: ShardId) -> ShardConfig {
        let root = RootDirectory { mode: 0o755, uid: 0, gid: 0 };
        ShardConfig { shard, node_key: NodeKey::clone(&self.key), root, growth: self.growth }
    }

    /// Starts an empty shard.
    pub(super) fn start_shard(&mut self, shard: ShardId, node: NodeId) {
        self.moves.set(shard, node);
        let started = Shard::new(self.config_of(shard), MemoryStore::new(), self.now_of(shard));
        if self.shards.insert(shard, started).is_some() {
            self.fail(&format!("shard {shard} was started though it exists"));
        }
    }

    fn join_answered(&mut self, nodes: &[NodeId], result: &Result<ClusterMap>) {
        match result {
            Ok(_) => {
                self.tally.joined += nodes.len() as u64;
                // What mounts are told is held against all that there is (`gone.rs`).
                for node in nodes.iter().copied().filter(|_| self.mounts.is_none()) {
                    let dies = self.setting.decide(format_args!("node{node} dies"), 0, |random| {
                        if random.one_in(GONE_LATER) { 1 + random.below(GONE_MS_MAX) } else { 0 }
                    });
                    if dies > 0 {
                        self.network.after(dies, Any::Joins(Message::Dies(node)));
                    }
                }
            }
            // Another change is in progress.
            Err(Error::Busy) => {}
            Err(_) => {
                self.tally.abandoned_joins += 1;
                self.map = self.root_map().clone();
                for node in nodes.iter().copied() {
                    self.note(&format!("node {node} has not joined"));
                    self.storage.remove(&node);
                    self.joins.machines.remove(&node);
                    if let Some(map) = self.joins.maps.remove(&node) {
                        map.shards_at(node).for_each(|shard| drop(self.shards.remove(&shard)));
                    }
                }
            }
        }
    }

    fn change_answered(&mut self, (caller, removes): (Caller, Option<NodeId>), result: Result<ClusterMap>) {
        if let Some(node) = removes.filter(|_| result.is_ok()) {
            self.node_was_removed(node);
        }
        let reply = WireMessage::NodeReply(Box::new(result.map(NodeAnswer::Map)));
        self.answer_client(caller, Answer::Reply(Box::new(reply)));
    }

    /// Returns a call that its node admits. Others are answered.
    pub(super) fn admitted(&mut self, pending: Pending) -> Option<Pending> {
        let node = pending.node;
        let Err(error) = admit(self.joins.map_of(node).epoch, pending.call.epoch) else { return Some(pending) };
        if error == Error::Busy {
            self.tally.newer_epochs += 1;
            self.fetch_map(node);
        } else {
            self.tally.older_epochs += 1;
        }
        self.refuse_call((pending.client, pending.process, pending.number), error);
        None
    }

    /// A node asks the root shard's node for the map.
    pub(super) fn fetch_map(&mut self, node: NodeId) {
        let root = self.joins.map_of(node).node_of(ShardId::ROOT).expect("each map has the root shard");
        let Some(map) = self.joins.map_if_any(root).filter(|_| self.storage.contains_key(&root)).cloned() else {
            return;
        };
        self.send(Party::Node(root), Party::Node(node), Any::Joins(Message::Fetched { node, map }));
    }

    /// Whether a storage server's map has the shard. It asks for a newer one otherwise.
    pub(super) fn knows_shard(&mut self, node: NodeId, shard: ShardId) -> bool {
        let knows = self.joins.maps.get(&node).is_none_or(|map| map.node_of(shard).is_some());
        if !knows {
            self.tally.unknown_shards += 1;
            self.fetch_map(node);
        }
        knows
    }

    /// A node is asked something as such.
    pub(super) fn node_asked(&mut self, to: Caller, node: NodeId, request: &NodeRequest) {
        let answer = match request {
            _ if !self.storage.contains_key(&node) => None,
            NodeRequest::Move { shard, to: target } => {
                let token = self.joins.token();
                self.joins.asking.insert(token, (to, None));
                return self.step_joins(node, MembershipEvent::Move { token, shard: *shard, to: *target });
            }
            NodeRequest::Change { node: changed, change } => {
                let token = self.joins.token();
                self.joins.asking.insert(token, (to, (*change == NodeChange::Remove).then_some(*changed)));
                return self.step_joins(node, MembershipEvent::Change { token, node: *changed, change: *change });
            }
            NodeRequest::GetMap => Some(NodeAnswer::Map(self.joins.map_of(node).clone())),
            _ => Some(NodeAnswer::Done),
        };
        let reply = answer.map(|answer| Answer::Reply(Box::new(WireMessage::NodeReply(Box::new(Ok(answer))))));
        self.answer_client(to, reply.unwrap_or(Answer::Broken));
    }
}
