//! Membership: the machine that changes the map, at the root shard's node (docs/decisions/0023).
//!
//! A node that joins gets the new map, and makes its shards, before anybody else can name it:
//!
//! ```text
//!  Join ──► Tell(joiners) ──► all taken ──► Install, Answer ──► Tell(others) until each has it
//!                   └── not taken in time ──► Answer(Unreachable); the epoch is used up
//! ```
//!
//! A shard that moves is at its target before anybody is told so. The source freezes it for the next map's epoch, and
//! learns by that map whether it has moved; so does the target:
//!
//! ```text
//!  Move ──► Ship(source) ──► shipped ──► Tell(target), Install, Answer ──► Tell(others) until each has it
//!               └── not in time ──► Install and Tell(all) the same map with that epoch, Answer(Unreachable)
//! ```
//!
//! Invariant: an epoch names one map; node and shard numbers are never used again; nobody but the joiners has heard of
//! a map before all joiners have taken it. One change at a time.
//! Not here: sockets, retries inside one attempt; what an old or newer map means to a call
//! ([`weft_protocol::map::admit`]).
//! On a crash: an ephemeral file system ends with this node.

use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::{ClusterMap, Error, MapEpoch, NodeChange, NodeId, NodeRecord, ShardId, ShardRecord};

/// How long nodes that join may take to accept the map, milliseconds.
pub const JOIN_MS_MAX: u64 = 10_000;
/// The map is sent again to a joining node that has not accepted it after this time, milliseconds.
const JOIN_RETRY_MS: u64 = 500;
/// How long a shard may be on its way, milliseconds. Its clients wait meanwhile, and not for longer than
/// `weft_client_core::calls::BUSY_MS_MAX`.
pub const MOVE_MS_MAX: u64 = 8_000;
/// A source that has not shipped its shard is asked again after this time, milliseconds.
const SHIP_RETRY_MS: u64 = 500;
/// The map is sent again to a node with an older one after this time, doubled up to [`TELL_MS_MAX`], milliseconds.
const TELL_MS: u64 = 1_000;
const TELL_MS_MAX: u64 = 60_000;

/// Everything that can happen to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembershipEvent {
    /// The owner has nodes join. `token` names the reply's way back.
    Join { token: u64, nodes: Vec<NodeRecord>, shards_per_node: u16 },
    /// The owner has a shard move to a node. `token` as in `Join`.
    Move { token: u64, shard: ShardId, to: NodeId },
    /// The owner changes a node. `token` as in `Join`.
    Change { token: u64, node: NodeId, change: NodeChange },
    /// The outcome of a [`MembershipEffect::Ship`]: the target has the whole shard, or that is not known.
    Shipped { epoch: MapEpoch, done: bool },
    /// The outcome of a [`MembershipEffect::Tell`]: the node has this map or a newer one, or did not answer.
    Told { node: NodeId, epoch: MapEpoch, taken: bool },
    /// This node has installed a map that another one gave it.
    Installed(ClusterMap),
    /// The time of [`Membership::deadline`] has come.
    Tick,
}

/// Everything that it asks its shell to do, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembershipEffect {
    /// Send the map to a node, which the shell's own map may not have. Each gets a `Told`.
    Tell { to: NodeRecord, map: ClusterMap },
    /// Have a node freeze its shard and send it to another one, for the map of this epoch. Each gets a `Shipped`.
    Ship { from: NodeRecord, shard: ShardId, to: NodeRecord, epoch: MapEpoch },
    /// Install the map at this node.
    Install(ClusterMap),
    /// Answer a `Join`, `Move` or `Change`.
    Answer { token: u64, result: Result<ClusterMap, Error> },
}

/// See the module.
#[derive(Debug)]
pub struct Membership {
    own: NodeId,
    map: ClusterMap,
    /// The highest epoch that a map has had, be it abandoned.
    latest: MapEpoch,
    joining: Option<Joining>,
    moving: Option<Moving>,
    /// Nodes that may have an older map: when each is told again, and the interval before that.
    behind: BTreeMap<NodeId, (u64, u64)>,
}

/// A change whose new nodes do not all have the map yet.
#[derive(Debug)]
struct Joining {
    map: ClusterMap,
    nodes: Vec<NodeRecord>,
    /// Who waits for the outcome.
    tokens: Vec<u64>,
    /// When each node that has not taken the map is told again.
    waiting: BTreeMap<NodeId, u64>,
    ends_ms: u64,
}

/// A shard on its way.
#[derive(Debug)]
struct Moving {
    shard: ShardId,
    from: NodeId,
    to: NodeId,
    epoch: MapEpoch,
    /// Who waits for the outcome.
    tokens: Vec<u64>,
    /// When the source is asked again.
    due_ms: u64,
    ends_ms: u64,
}

impl Membership {
    /// A node without a map.
    pub fn new(own: NodeId) -> Self {
        let (map, latest) = (ClusterMap::default(), MapEpoch::default());
        Self { own, map, latest, joining: None, moving: None, behind: BTreeMap::new() }
    }

    /// Takes one event; appends what is to be done.
    pub fn step(&mut self, now_ms: u64, event: MembershipEvent, out: &mut Vec<MembershipEffect>) {
        match event {
            MembershipEvent::Join { token, nodes, shards_per_node } => {
                self.join(now_ms, token, nodes, shards_per_node, out);
            }
            MembershipEvent::Move { token, shard, to } => self.move_shard(now_ms, token, (shard, to), out),
            MembershipEvent::Change { token, node, change } => {
                let result = self.change(now_ms, node, change, out);
                out.push(MembershipEffect::Answer { token, result });
            }
            MembershipEvent::Shipped { epoch, done } => self.shipped(now_ms, epoch, done, out),
            MembershipEvent::Told { node, epoch, taken } => self.told(now_ms, node, epoch, taken, out),
            MembershipEvent::Installed(map) => {
                if map.epoch > self.map.epoch {
                    self.latest = self.latest.max(map.epoch);
                    // The first map that a node gets all others have.
                    let had_root = self.map.shards.is_empty() || self.has_root();
                    self.map = map;
                    if self.has_root() && !had_root {
                        // The node that had it may be gone before it has told all.
                        self.tell_others(now_ms, &BTreeSet::new(), out);
                    }
                }
            }
            MembershipEvent::Tick => self.tick(now_ms, out),
        }
    }

    /// When a [`MembershipEvent::Tick`] is needed, milliseconds since boot.
    pub fn deadline(&self) -> Option<u64> {
        let joining = self.joining.as_ref();
        let again = joining.and_then(|joining| joining.waiting.values().min().copied());
        let ends = joining.map(|joining| joining.ends_ms);
        let behind = self.behind.values().map(|(due_ms, _)| *due_ms).min();
        let moving = self.moving.as_ref().map(|moving| moving.due_ms.min(moving.ends_ms));
        [again, ends, behind, moving].into_iter().flatten().min()
    }

    fn has_root(&self) -> bool {
        self.map.node_of(ShardId::ROOT) == Some(self.own)
    }

    fn join(
        &mut self,
        now_ms: u64,
        token: u64,
        nodes: Vec<NodeRecord>,
        shards_per_node: u16,
        out: &mut Vec<MembershipEffect>,
    ) {
        let mut answer = |result| out.push(MembershipEffect::Answer { token, result });
        if !self.has_root() {
            return answer(Err(Error::WrongShard(ShardId::ROOT)));
        }
        if nodes.iter().all(|node| self.map.node(node.id) == Some(node)) {
            return answer(Ok(self.map.clone()));
        }
        if let Some(joining) = &mut self.joining {
            if joining.nodes == nodes {
                return joining.tokens.push(token);
            }
            return answer(Err(Error::Busy));
        }
        if self.moving.is_some() {
            return answer(Err(Error::Busy));
        }
        let highest = self.map.highest_node();
        let map = self.map.with_nodes(&nodes, shards_per_node, MapEpoch(self.latest.0 + 1));
        if nodes.iter().any(|node| Some(node.id) <= highest) || !map.check() {
            return answer(Err(Error::Invalid));
        }
        self.latest = map.epoch;
        let waiting = nodes.iter().map(|node| (node.id, now_ms + JOIN_MS_MAX)).collect();
        out.extend(nodes.iter().map(|to| MembershipEffect::Tell { to: to.clone(), map: map.clone() }));
        self.joining = Some(Joining { map, nodes, tokens: vec![token], waiting, ends_ms: now_ms + JOIN_MS_MAX });
    }

    fn told(&mut self, now_ms: u64, node: NodeId, epoch: MapEpoch, taken: bool, out: &mut Vec<MembershipEffect>) {
        if let Some(joining) = self.joining.as_mut().filter(|joining| joining.map.epoch == epoch)
            && joining.waiting.contains_key(&node)
        {
            if !taken {
                joining.waiting.insert(node, now_ms + JOIN_RETRY_MS);
                return;
            }
            joining.waiting.remove(&node);
            if joining.waiting.is_empty() {
                self.complete(now_ms, out);
            }
            return;
        }
        if epoch == self.map.epoch
            && let Some((due_ms, interval_ms)) = self.behind.get_mut(&node)
        {
            if taken {
                self.behind.remove(&node);
            } else {
                *due_ms = now_ms + *interval_ms;
                *interval_ms = (*interval_ms * 2).min(TELL_MS_MAX);
            }
        }
    }

    /// All joining nodes have the map: it is the map of the file system from now on.
    fn complete(&mut self, now_ms: u64, out: &mut Vec<MembershipEffect>) {
        let Some(Joining { map, nodes, tokens, .. }) = self.joining.take() else { return };
        let joined: BTreeSet<NodeId> = nodes.iter().map(|node| node.id).collect();
        self.install(map, out);
        answer_all(tokens, &Ok(self.map.clone()), out);
        self.tell_others(now_ms, &joined, out);
    }

    /// From now on this is the map of the file system.
    fn install(&mut self, map: ClusterMap, out: &mut Vec<MembershipEffect>) {
        self.map = map;
        out.push(MembershipEffect::Install(self.map.clone()));
    }

    /// Tells the map to all nodes but these.
    fn tell_others(&mut self, now_ms: u64, told: &BTreeSet<NodeId>, out: &mut Vec<MembershipEffect>) {
        for to in self.map.nodes.iter().filter(|node| node.id != self.own && !told.contains(&node.id)) {
            self.behind.insert(to.id, (now_ms + TELL_MS_MAX, TELL_MS));
            out.push(MembershipEffect::Tell { to: to.clone(), map: self.map.clone() });
        }
    }

    fn move_shard(&mut self, now_ms: u64, token: u64, (shard, to): (ShardId, NodeId), out: &mut Vec<MembershipEffect>) {
        let mut answer = |result| out.push(MembershipEffect::Answer { token, result });
        if !self.has_root() {
            return answer(Err(Error::WrongShard(ShardId::ROOT)));
        }
        let Some(from) = self.map.node_of(shard).filter(|_| self.map.node(to).is_some()) else {
            return answer(Err(Error::Invalid));
        };
        if from == to {
            return answer(Ok(self.map.clone()));
        }
        if let Some(moving) = self.moving.as_mut().filter(|moving| (moving.shard, moving.to) == (shard, to)) {
            return moving.tokens.push(token);
        }
        if self.moving.is_some() || self.joining.is_some() {
            return answer(Err(Error::Busy));
        }
        let epoch = MapEpoch(self.latest.0 + 1);
        self.latest = epoch;
        let (tokens, ends_ms) = (vec![token], now_ms + MOVE_MS_MAX);
        self.moving = Some(Moving { shard, from, to, epoch, tokens, due_ms: ends_ms, ends_ms });
        self.ship(out);
    }

    fn change(
        &mut self,
        now_ms: u64,
        node: NodeId,
        change: NodeChange,
        out: &mut Vec<MembershipEffect>,
    ) -> Result<ClusterMap, Error> {
        if !self.has_root() {
            return Err(Error::WrongShard(ShardId::ROOT));
        }
        if self.moving.is_some() || self.joining.is_some() {
            return Err(Error::Busy);
        }
        let map = self.map.with_change(node, change, MapEpoch(self.latest.0 + 1)).ok_or(Error::Invalid)?;
        let as_before = ClusterMap { epoch: self.map.epoch, ..map.clone() } == self.map;
        if !as_before {
            self.latest = map.epoch;
            self.behind.retain(|behind, _| map.node(*behind).is_some());
            self.install(map, out);
            self.tell_others(now_ms, &BTreeSet::new(), out);
        }
        Ok(self.map.clone())
    }

    fn ship(&self, out: &mut Vec<MembershipEffect>) {
        let Some(Moving { shard, from, to, epoch, .. }) = &self.moving else { return };
        let (Some(from), Some(to)) = (self.map.node(*from), self.map.node(*to)) else { return };
        out.push(MembershipEffect::Ship { from: from.clone(), shard: *shard, to: to.clone(), epoch: *epoch });
    }

    fn shipped(&mut self, now_ms: u64, epoch: MapEpoch, done: bool, out: &mut Vec<MembershipEffect>) {
        let Some(moving) = self.moving.as_mut().filter(|moving| moving.epoch == epoch) else { return };
        if !done {
            moving.due_ms = now_ms + SHIP_RETRY_MS;
            return;
        }
        let Some(Moving { shard, to, tokens, .. }) = self.moving.take() else { return };
        let mut map = ClusterMap { epoch, ..self.map.clone() };
        if let Some(record) = map.shards.get_mut(usize::from(shard.0)) {
            *record = ShardRecord { node: to, arrived: epoch, ..*record };
        }
        if let Some(target) = map.node(to).filter(|target| target.id != self.own) {
            self.behind.insert(to, (now_ms + TELL_MS_MAX, TELL_MS));
            out.push(MembershipEffect::Tell { to: target.clone(), map: map.clone() });
        }
        self.install(map, out);
        answer_all(tokens, &Ok(self.map.clone()), out);
        self.tell_others(now_ms, &BTreeSet::from([to]), out);
    }

    /// The shard is not known to be at its target in time: with the map of the move's epoch it stays where it was.
    fn abandon_move(&mut self, now_ms: u64, out: &mut Vec<MembershipEffect>) {
        let Some(Moving { epoch, tokens, .. }) = self.moving.take() else { return };
        self.install(ClusterMap { epoch, ..self.map.clone() }, out);
        answer_all(tokens, &Err(Error::Unreachable), out);
        self.tell_others(now_ms, &BTreeSet::new(), out);
    }

    fn tick_move(&mut self, now_ms: u64, out: &mut Vec<MembershipEffect>) {
        match &mut self.moving {
            Some(moving) if moving.ends_ms <= now_ms => self.abandon_move(now_ms, out),
            Some(moving) if moving.due_ms <= now_ms => {
                // The outcome sets it anew.
                moving.due_ms = moving.ends_ms;
                self.ship(out);
            }
            _ => {}
        }
    }

    fn tick(&mut self, now_ms: u64, out: &mut Vec<MembershipEffect>) {
        if let Some(joining) = self.joining.take_if(|joining| joining.ends_ms <= now_ms) {
            answer_all(joining.tokens, &Err(Error::Unreachable), out);
        }
        self.tick_move(now_ms, out);
        if let Some(Joining { map, nodes, waiting, ends_ms, .. }) = &mut self.joining {
            for to in nodes.iter() {
                if let Some(due_ms) = waiting.get_mut(&to.id).filter(|due_ms| **due_ms <= now_ms) {
                    *due_ms = *ends_ms;
                    out.push(MembershipEffect::Tell { to: to.clone(), map: map.clone() });
                }
            }
        }
        for (node, (due_ms, _)) in &mut self.behind {
            if *due_ms <= now_ms
                && let Some(to) = self.map.node(*node)
            {
                // The outcome sets it anew.
                *due_ms = now_ms + TELL_MS_MAX;
                out.push(MembershipEffect::Tell { to: to.clone(), map: self.map.clone() });
            }
        }
    }
}

fn answer_all(tokens: Vec<u64>, result: &Result<ClusterMap, Error>, out: &mut Vec<MembershipEffect>) {
    out.extend(tokens.into_iter().map(|token| MembershipEffect::Answer { token, result: result.clone() }));
}

#[cfg(test)]
mod tests;
