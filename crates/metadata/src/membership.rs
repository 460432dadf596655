//! Membership: the machine that changes the map, at the root shard's node (docs/decisions/0023).
//!
//! A node that joins gets the new map, and makes its shards, before anybody else can name it:
//!
//! ```text
//!  Join ──► Tell(joiners) ──► all taken ──► Install, Answer ──► Tell(others) until each has it
//!                   └── not taken in time ──► Answer(Unreachable); the epoch is used up
//! ```
//!
//! Invariant: an epoch names one map; node and shard numbers are never used again; nobody but the joiners has heard of
//! a map before all joiners have taken it.
//! Not here: sockets, retries inside one attempt; what an old or newer map means to a call
//! ([`weft_protocol::map::admit`]).
//! On a crash: an ephemeral file system ends with this node.

use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::{ClusterMap, Error, MapEpoch, NodeId, NodeRecord, ShardId};

/// How long nodes that join may take to accept the map, milliseconds.
pub const JOIN_MS_MAX: u64 = 10_000;
/// The map is sent again to a joining node that has not accepted it after this time, milliseconds.
const JOIN_RETRY_MS: u64 = 500;
/// The map is sent again to a node with an older one after this time, doubled up to [`TELL_MS_MAX`], milliseconds.
const TELL_MS: u64 = 1_000;
const TELL_MS_MAX: u64 = 60_000;

/// Everything that can happen to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembershipEvent {
    /// The owner has nodes join. `token` names the reply's way back.
    Join { token: u64, nodes: Vec<NodeRecord>, shards_per_node: u16 },
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
    /// Install the map at this node.
    Install(ClusterMap),
    /// Answer a `Join`.
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

impl Membership {
    /// A node without a map.
    pub fn new(own: NodeId) -> Self {
        let (map, latest) = (ClusterMap::default(), MapEpoch::default());
        Self { own, map, latest, joining: None, behind: BTreeMap::new() }
    }

    /// Takes one event; appends what is to be done.
    pub fn step(&mut self, now_ms: u64, event: MembershipEvent, out: &mut Vec<MembershipEffect>) {
        match event {
            MembershipEvent::Join { token, nodes, shards_per_node } => {
                self.join(now_ms, token, nodes, shards_per_node, out);
            }
            MembershipEvent::Told { node, epoch, taken } => self.told(now_ms, node, epoch, taken, out),
            MembershipEvent::Installed(map) => {
                if map.epoch > self.map.epoch {
                    self.latest = self.latest.max(map.epoch);
                    self.map = map;
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
        [again, ends, behind].into_iter().flatten().min()
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
        if self.map.node_of(ShardId::ROOT) != Some(self.own) {
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
        let highest = self.map.nodes.last().map(|node| node.id);
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
        self.map = map.clone();
        out.push(MembershipEffect::Install(map.clone()));
        let answers = tokens.into_iter().map(|token| MembershipEffect::Answer { token, result: Ok(map.clone()) });
        out.extend(answers);
        let joined: BTreeSet<NodeId> = nodes.iter().map(|node| node.id).collect();
        for to in map.nodes.iter().filter(|node| node.id != self.own && !joined.contains(&node.id)) {
            self.behind.insert(to.id, (now_ms + TELL_MS_MAX, TELL_MS));
            out.push(MembershipEffect::Tell { to: to.clone(), map: map.clone() });
        }
    }

    fn tick(&mut self, now_ms: u64, out: &mut Vec<MembershipEffect>) {
        if let Some(joining) = self.joining.take_if(|joining| joining.ends_ms <= now_ms) {
            let refused = |token| MembershipEffect::Answer { token, result: Err(Error::Unreachable) };
            out.extend(joining.tokens.into_iter().map(refused));
        }
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

#[cfg(test)]
mod tests;
