//! Shards that move between nodes: the production machines ([`weft_metadata::Membership`], [`weft_metadata::shipping`],
//! terms and fences that move along) over messages that are lost and late. Parts are small, so that shards change while
//! they are copied.
//!
//! A shard's machine is at one node at a time ([`Moves::at`]): at the source until the target has installed the map of
//! the move. What comes to another node finds no shard there. Parked calls keep their tokens on the way, by which the
//! model knows what they were; their callers are not answered at the target unless they ask again.
//!
//! Faults: those of nodes that join; so a source or target may be gone at any moment of a move.
//!
//! Not here: who is told of the map when (`joins.rs`).

use super::partitions::{Party, TIMEOUT_MS};
use super::{Answer, Message as Any, Pending, World};
use crate::bytes::ProcessId;
use crate::client::Client;
use crate::process::Ticket;
use std::collections::BTreeMap;
use weft_metadata::shipping::{Arrival, Arrived, Departing, Departure};
use weft_metadata::{MembershipEvent, MemoryStore};
use weft_protocol::message::Message as WireMessage;
use weft_protocol::message::node::ShardPart;
use weft_protocol::message::shard::ShardReply;
use weft_protocol::{ClusterMap, Error, InodeNumber, MapEpoch, NodeId, ShardId, routing};

/// Longest time between two moves, milliseconds, and how many a run has at most.
const MOVE_MS_MAX: u64 = 1_500;
const MOVES: u64 = 20;
/// Instead, a node leaves once in so many times.
const LEAVES: u64 = 6;
/// How often a source looks whether storage servers have answered, milliseconds.
const LOOK_MS: u64 = 2;
/// Smallest and largest bound of a shard's parts, bytes.
const PART_BYTES: std::ops::Range<u64> = 100..4_000;

/// What is on its way.
#[derive(Clone, Debug)]
pub(super) enum Message {
    /// So many more moves.
    Begin(u64),
    Ship(Ship),
    /// The source looks whether its shard is quiet.
    Look(Ship),
    Take(Ship, ShardPart),
    /// The target has the part of this number.
    Taken(Ship, u64),
    /// The outcome, at the node that asked for it.
    Shipped {
        at: NodeId,
        epoch: MapEpoch,
        done: bool,
    },
}

/// A shard that is to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ship {
    /// The node that has it moved.
    pub root: NodeId,
    pub from: NodeId,
    pub shard: ShardId,
    pub to: NodeId,
    pub epoch: MapEpoch,
}

/// A shard that leaves, at its source.
struct Leaving {
    epoch: MapEpoch,
    departure: Departure,
    is_frozen: bool,
    part_bytes_max: usize,
}

/// A shard that comes, at its target.
struct Arriving {
    epoch: MapEpoch,
    arrival: Arrival<MemoryStore>,
    arrived: Option<Arrived<MemoryStore>>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Moves {
    /// The node at which each shard's machine is.
    at: BTreeMap<ShardId, NodeId>,
    leaving: BTreeMap<(NodeId, ShardId), Leaving>,
    arriving: BTreeMap<(NodeId, ShardId), Arriving>,
    /// Callers at sources that have not heard that their shards have moved, of calls that were carried out since.
    callers: BTreeMap<(NodeId, ShardId), Vec<Caller>>,
}

/// Where a reply goes.
pub(super) type Caller = (usize, ProcessId, Ticket);

impl Moves {
    /// The node that has a shard's machine.
    pub(super) fn node_of(&self, shard: ShardId) -> Option<NodeId> {
        self.at.get(&shard).copied()
    }

    /// Whether a node has frozen a shard and has not heard whether it has moved.
    pub(super) fn is_frozen(&self, node: NodeId, shard: ShardId) -> bool {
        self.leaving.get(&(node, shard)).is_some_and(|leaving| leaving.is_frozen)
    }

    /// Whether a shard is on its way, or its source or target has not heard what has become of it.
    pub(super) fn is_any_on_its_way(&self) -> bool {
        !self.leaving.is_empty() || !self.arriving.is_empty()
    }

    /// A call was carried out at the target, and the source still has its caller.
    pub(super) fn keep_caller(&mut self, source: NodeId, shard: ShardId, caller: Caller) {
        self.callers.entry((source, shard)).or_default().push(caller);
    }

    /// Takes the callers that a source still has, of this shard or of all.
    pub(super) fn take_callers(&mut self, source: NodeId, of: Option<ShardId>) -> Vec<Caller> {
        let is_there = |at: NodeId, shard: ShardId| at == source && of.is_none_or(|of| of == shard);
        self.callers.extract_if(.., |(at, shard), _| is_there(*at, *shard)).flat_map(|(_, callers)| callers).collect()
    }

    /// A shard is at this node now.
    pub(super) fn set(&mut self, shard: ShardId, node: NodeId) {
        self.at.insert(shard, node);
    }
}

impl World {
    /// Has shards move in a run of that kind.
    pub(super) fn begin_moves(&mut self) {
        if self.faults.moves {
            self.move_later(MOVES);
        }
    }

    fn move_later(&mut self, left: u64) {
        let wait_ms = self.setting.decide(format_args!("move after"), MOVE_MS_MAX, |random| random.below(MOVE_MS_MAX));
        self.network.after(1 + wait_ms, Any::Moves(Message::Begin(left)));
    }

    pub(super) fn moves_event(&mut self, message: Message) {
        match message {
            Message::Begin(left) => {
                if !self.ending && left > 0 {
                    self.move_later(left - 1);
                    self.move_some();
                }
            }
            Message::Ship(ship) => self.ship_asked(ship),
            Message::Look(ship) => self.ship_next(ship),
            Message::Take(ship, part) => self.take_part(ship, &part),
            Message::Taken(ship, number) => {
                let leaving = self.moves.leaving.get_mut(&(ship.from, ship.shard));
                let leaving = leaving.filter(|leaving| leaving.epoch == ship.epoch);
                if leaving.is_some_and(|leaving| leaving.departure.taken(number)) {
                    self.ship_next(ship);
                }
            }
            Message::Shipped { at, epoch, done } => self.step_joins(at, MembershipEvent::Shipped { epoch, done }),
        }
    }

    /// A shard moves, or a node leaves.
    fn move_some(&mut self) {
        if self.setting.decide(format_args!("leave"), false, |random| random.one_in(LEAVES)) {
            return self.leave_some();
        }
        let map = self.root_map();
        let (shards, nodes) = (map.shards.len() as u64, map.nodes.len() as u64);
        let shard = self.setting.decide(format_args!("move shard"), 1, |random| random.below(shards));
        let node = self.setting.decide(format_args!("move to"), 0, |random| random.below(nodes));
        self.move_shard(shard, node);
    }

    fn leave_some(&mut self) {
        let (nodes, clients) = (self.root_map().nodes.len() as u64, self.clients.len() as u64);
        let node = self.setting.decide(format_args!("node leaves"), 0, |random| random.below(nodes));
        let client = self.setting.decide(format_args!("leaves by"), 0, |random| random.below(clients));
        if client < clients {
            self.begin_leaving(node, usize::try_from(client).expect("few clients"));
        }
    }

    /// A shard moves to a node, which is given by its place in the map.
    pub(super) fn move_shard(&mut self, shard: u64, node: u64) {
        let number = |number: u64| u16::try_from(number).expect("few nodes and shards");
        let Some(to) = self.root_map().nodes.get(usize::from(number(node))).map(|node| node.id) else { return };
        let token = self.joins.token();
        self.step_joins(self.root_node(), MembershipEvent::Move { token, shard: ShardId(number(shard)), to });
    }

    /// Sends the next message of a move. Where it is lost, or nobody answers, the root learns so after a while.
    fn send_step(&mut self, from: NodeId, to: NodeId, ship: Ship, message: Message) {
        if !self.send(Party::Node(from), Party::Node(to), Any::Moves(message)) {
            self.not_shipped(ship);
        }
    }

    fn not_shipped(&mut self, ship: Ship) {
        self.network.after(TIMEOUT_MS, Any::Moves(Message::Shipped { at: ship.root, epoch: ship.epoch, done: false }));
    }

    pub(super) fn ask_to_ship(&mut self, ship: Ship) {
        self.send_step(ship.root, ship.from, ship, Message::Ship(ship));
    }

    /// The source sends its shard, or what it has sent last once more.
    fn ship_asked(&mut self, ship: Ship) {
        let Ship { from, shard, epoch, .. } = ship;
        let is_over = self.joins.map_if_any(from).is_none_or(|map| map.epoch >= epoch);
        let is_newer = |leaving: &Leaving| leaving.epoch > epoch;
        if is_over || self.moves.leaving.get(&(from, shard)).is_some_and(is_newer) || !self.is_at_source(ship) {
            return self.not_shipped(ship);
        }
        if self.moves.leaving.get(&(from, shard)).is_none_or(|leaving| leaving.epoch < epoch) {
            let part_bytes = self.setting.decide(format_args!("part bytes"), PART_BYTES.end, |random| {
                PART_BYTES.start + random.below(PART_BYTES.end - PART_BYTES.start)
            });
            let part_bytes_max = usize::try_from(part_bytes).expect("few bytes");
            let leaving = Leaving { epoch, departure: Departure::default(), is_frozen: false, part_bytes_max };
            self.moves.leaving.insert((from, shard), leaving);
        }
        self.ship_next(ship);
    }

    fn is_at_source(&self, Ship { from, shard, .. }: Ship) -> bool {
        self.storage.contains_key(&from) && self.shards.contains_key(&shard) && self.moves.node_of(shard) == Some(from)
    }

    fn ship_next(&mut self, ship: Ship) {
        let Ship { from, shard, to, epoch, root } = ship;
        while self.is_at_source(ship) {
            let leaving = self.moves.leaving.get_mut(&(from, shard)).filter(|leaving| leaving.epoch == epoch);
            let (Some(leaving), Some(machine)) = (leaving, self.shards.get_mut(&shard)) else { return };
            match leaving.departure.next(machine, leaving.part_bytes_max) {
                Departing::Send(part) => {
                    let parts = if machine.is_frozen() { &mut self.tally.parts_frozen } else { &mut self.tally.parts };
                    *parts += 1;
                    return self.send_step(from, to, ship, Message::Take(ship, part));
                }
                Departing::Freeze => self.freeze(ship),
                Departing::Wait => return self.network.after(LOOK_MS, Any::Moves(Message::Look(ship))),
                Departing::Complete => {
                    let fences = self.grants.entry(from).or_default().begin_move(shard);
                    leaving.departure.complete(machine, &fences);
                    self.count_what_moves(shard);
                }
                Departing::Done => {
                    return self.send_step(from, root, ship, Message::Shipped { at: root, epoch, done: true });
                }
            }
        }
    }

    /// The source freezes its shard, and serves nothing of it for longer than a term.
    fn freeze(&mut self, Ship { from, shard, .. }: Ship) {
        let now = self.now_at(from);
        if let Some(leaving) = self.moves.leaving.get_mut(&(from, shard)) {
            leaving.is_frozen = true;
        }
        if let Some(machine) = self.shards.get_mut(&shard) {
            machine.freeze(now);
        }
        if let Some(storage) = self.storage.get_mut(&from) {
            storage.terms.begin_move(shard, now.boot_ms);
        }
        self.grants.entry(from).or_default().begin_move(shard);
    }

    fn take_part(&mut self, ship: Ship, part: &ShardPart) {
        let Ship { from, shard, to, epoch, .. } = ship;
        if !self.storage.contains_key(&to) || self.joins.map_if_any(to).is_none_or(|map| map.epoch >= epoch) {
            return self.not_shipped(ship);
        }
        let config = self.config_of(shard);
        let new = || Arriving { epoch, arrival: Arrival::default(), arrived: None };
        let arriving = self.moves.arriving.entry((to, shard)).or_insert_with(new);
        if arriving.epoch > epoch {
            return self.not_shipped(ship);
        }
        if arriving.epoch < epoch {
            *arriving = new();
        }
        match arriving.arrival.take(part, || config) {
            Ok(arrived) => {
                arriving.arrived = arrived.or(arriving.arrived.take());
                self.send_step(to, from, ship, Message::Taken(ship, part.number));
            }
            Err(error) => self.fail(&format!("part {} of shard {shard} is refused: {error}", part.number)),
        }
    }

    /// A node has this map: shards that leave it have moved or stay, and those that have come are served.
    pub(super) fn settle_moves(&mut self, node: NodeId, map: &ClusterMap) {
        let is_settled = |epoch: MapEpoch| epoch <= map.epoch;
        let leaving = self.moves.leaving.extract_if(.., |(at, _), leaving| *at == node && is_settled(leaving.epoch));
        for shard in leaving.map(|((_, shard), _)| shard).collect::<Vec<_>>() {
            if map.node_of(shard) == Some(node) {
                self.stays(node, shard);
            } else {
                self.grants.entry(node).or_default().left(shard);
                self.send_callers_away(node, shard);
            }
        }
        let arriving =
            self.moves.arriving.extract_if(.., |(at, _), arriving| *at == node && is_settled(arriving.epoch));
        for ((_, shard), Arriving { epoch, arrived, .. }) in arriving.collect::<Vec<_>>() {
            if map.arrived(shard, node) == Some(epoch) {
                self.arrives(node, shard, arrived, map);
            }
        }
    }

    fn stays(&mut self, node: NodeId, shard: ShardId) {
        self.tally.abandoned_moves += 1;
        self.note(&format!("shard {shard} stays at node {node}"));
        self.grants.entry(node).or_default().abandon_move(shard);
        self.resume(node, shard);
    }

    fn arrives(&mut self, node: NodeId, shard: ShardId, arrived: Option<Arrived<MemoryStore>>, map: &ClusterMap) {
        let Some(Arrived { shard: machine, fences }) = arrived else {
            self.fail(&format!("shard {shard} is at node {node} by the map, and has not come"));
        };
        self.tally.moved += 1;
        self.note(&format!("shard {shard} is at node {node}"));
        self.shards.insert(shard, machine);
        self.moves.set(shard, node);
        let others = map.nodes.iter().map(|other| other.id).filter(|other| *other != node);
        let now_ms = self.now_at(node).boot_ms;
        self.grants.entry(node).or_default().arrived(others, fences, now_ms);
        self.resume(node, shard);
    }

    /// Counts what mounts have to do with a shard that is sent to another node.
    fn count_what_moves(&mut self, shard: ShardId) {
        let mounts = || self.clients.iter().enumerate().filter(|(_, client)| client.is_mounted());
        let is_parked =
            |index: usize| self.tokens.values().any(|pending| (pending.client, pending.call.shard) == (index, shard));
        let is_of_shard = |inode: &InodeNumber| routing::of_inode(*inode) == shard;
        let parked = mounts().filter(|(index, _)| is_parked(*index)).count();
        let is_recalled = |(_, client): &(usize, &Client)| {
            self.shards.get(&shard).is_some_and(|machine| machine.recalls_of(client.session()) > 0)
        };
        let recalled = mounts().filter(is_recalled).count();
        let dirty = mounts().filter(|(_, client)| client.machine.dirty_inodes().iter().any(is_of_shard)).count();
        self.tally.moved_parked += parked as u64;
        self.tally.moved_recalled += recalled as u64;
        self.tally.moved_dirty += dirty as u64;
    }

    fn resume(&mut self, node: NodeId, shard: ShardId) {
        if let Some(storage) = self.storage.get_mut(&node) {
            storage.terms.is_own(shard);
        }
        let now = self.now_at(node);
        let mut effects = Vec::new();
        if let Some(machine) = self.shards.get_mut(&shard) {
            machine.resume(now, &mut effects);
        }
        self.carry_out_all(shard, effects);
    }

    /// Callers whose calls were parked in a shard that has moved away from their node ask elsewhere.
    fn send_callers_away(&mut self, node: NodeId, shard: ShardId) {
        let is_there = |pending: &&mut Pending| pending.node == node && pending.call.shard == shard && !pending.is_away;
        let there: Vec<_> = self.tokens.values_mut().filter(is_there).collect();
        let mut callers = Vec::new();
        for pending in there {
            pending.is_away = true;
            callers.push((pending.client, pending.process, pending.number));
        }
        callers.extend(self.moves.take_callers(node, Some(shard)));
        for caller in callers {
            self.refuse_call(caller, Error::WrongShard(shard));
        }
    }

    pub(super) fn refuse_call(&mut self, to: Caller, error: Error) {
        let reply = ShardReply { stamp: 0, result: Err(error), others: Vec::new() };
        self.answer_client(to, Answer::Reply(Box::new(WireMessage::ShardReply(reply))));
    }

    /// Whether the root shard is at this node, or may come to it.
    pub(super) fn may_have_root(&self, node: NodeId) -> bool {
        let is_at = self.root_node() == node || self.map.node_of(ShardId::ROOT) == Some(node);
        is_at || self.moves.arriving.contains_key(&(node, ShardId::ROOT))
    }

    /// By this map shards have come to nodes that are gone.
    pub(super) fn moved_to_the_gone(&self, before: &ClusterMap, map: &ClusterMap) -> Vec<ShardId> {
        let places = (0u16..).map(ShardId).zip(before.shards.iter().zip(&map.shards));
        let moved = places.filter(|(_, (before, now))| before.node != now.node);
        moved.filter(|(_, (_, now))| !self.storage.contains_key(&now.node)).map(|(shard, _)| shard).collect()
    }
}
