//! The machine that changes the map ([`weft_metadata::Membership`]): its events, and where its effects go.
//!
//! It acts at the root shard's node; the others have one that refuses. The lock is a leaf: effects are carried out
//! after it is released, in any order among threads, which the machine allows.

use crate::clock;
use crate::courier::{Couriers, Errand};
use crate::locks::lock;
use crate::mailbox::{ConnectionRef, Loops, Sink};
use crate::shard_events::ToShards;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use weft_metadata::{Membership, MembershipEffect, MembershipEvent};
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{ClusterMap, NodeChange, NodeId, NodeRecord, ShardId};

/// See the module.
pub struct Members {
    state: Mutex<State>,
    couriers: Arc<Couriers>,
    shards: ToShards,
    loops: Arc<Loops>,
    /// For what comes back from the couriers.
    own: Weak<Members>,
}

struct State {
    machine: Membership,
    /// Requests that wait for the outcome of a change, by token.
    waiting: HashMap<u64, (ConnectionRef, u64)>,
    next_token: u64,
}

impl Members {
    /// Returns the membership as this node sees it.
    pub fn new(node: NodeId, couriers: Arc<Couriers>, shards: ToShards, loops: Arc<Loops>) -> Arc<Self> {
        let state = State { machine: Membership::new(node), waiting: HashMap::new(), next_token: 0 };
        Arc::new_cyclic(|own| Self { state: Mutex::new(state), couriers, shards, loops, own: Weak::clone(own) })
    }

    /// Has nodes join. The reply goes to this connection, later.
    pub fn join(&self, to: ConnectionRef, id: u64, nodes: Vec<NodeRecord>, shards_per_node: u16) {
        let token = self.token(to, id);
        self.step(MembershipEvent::Join { token, nodes, shards_per_node });
    }

    /// Has a shard move. The reply goes to this connection, later.
    pub fn move_shard(&self, reply_to: ConnectionRef, id: u64, shard: ShardId, to: NodeId) {
        let token = self.token(reply_to, id);
        self.step(MembershipEvent::Move { token, shard, to });
    }

    /// Has a node change. The reply goes to this connection, later.
    pub fn change(&self, to: ConnectionRef, id: u64, node: NodeId, change: NodeChange) {
        let token = self.token(to, id);
        self.step(MembershipEvent::Change { token, node, change });
    }

    /// Names a request whose reply goes to this connection.
    fn token(&self, to: ConnectionRef, id: u64) -> u64 {
        let mut state = lock(&self.state);
        state.next_token += 1;
        let token = state.next_token;
        state.waiting.insert(token, (to, id));
        token
    }

    /// Another node has given this one a map.
    pub fn installed(&self, map: ClusterMap) {
        self.step(MembershipEvent::Installed(map));
    }

    /// Returns when [`Members::tick`] has something to do, milliseconds since boot.
    pub fn next_due(&self) -> Option<u64> {
        lock(&self.state).machine.deadline()
    }

    /// Goes on with what is due.
    pub fn tick(&self, now_ms: u64) {
        if self.next_due().is_some_and(|due_ms| due_ms <= now_ms) {
            self.step(MembershipEvent::Tick);
        }
    }

    fn step(&self, event: MembershipEvent) {
        let mut effects = Vec::new();
        lock(&self.state).machine.step(clock::boot_ms(), event, &mut effects);
        for effect in effects {
            self.carry_out(effect);
        }
        // The first loop sleeps until something is due.
        self.loops.all().iter().take(1).for_each(|mailbox| mailbox.look());
    }

    fn carry_out(&self, effect: MembershipEffect) {
        match effect {
            MembershipEffect::Tell { to, map } => {
                let (members, node, epoch) = (Weak::clone(&self.own), to.id, map.epoch);
                let tell = Box::new(move |answer: weft_protocol::Result<NodeAnswer>| {
                    if let Err(error) = &answer {
                        tracing::info!("node {node} has not taken the map of epoch {epoch}: {error}");
                    }
                    if let Some(members) = members.upgrade() {
                        members.step(MembershipEvent::Told { node, epoch, taken: answer.is_ok() });
                    }
                });
                let errand = Errand::Node { to: Some(to), request: NodeRequest::SetMap(map), tell };
                self.couriers.send(node, errand);
            }
            MembershipEffect::Ship { from, shard, to, epoch } => {
                let members = Weak::clone(&self.own);
                let tell = Box::new(move |answer: weft_protocol::Result<NodeAnswer>| {
                    if let Some(members) = members.upgrade() {
                        members.step(MembershipEvent::Shipped { epoch, done: answer.is_ok() });
                    }
                });
                let request = NodeRequest::Ship { shard, to: to.id, epoch };
                self.couriers.send(from.id, Errand::Node { to: None, request, tell });
            }
            MembershipEffect::Install(map) => {
                tracing::info!(
                    "the map has epoch {}, {} nodes, {} shards",
                    map.epoch,
                    map.nodes.len(),
                    map.shards.len()
                );
                if let Some(shards) = self.shards.upgrade() {
                    shards.install_map(map);
                }
            }
            MembershipEffect::Answer { token, result } => {
                let waiting = lock(&self.state).waiting.remove(&token);
                if let Some((to, id)) = waiting {
                    let reply = Message::NodeReply(Box::new(result.map(NodeAnswer::Map)));
                    Sink::remote(&self.loops).send(to, id, reply);
                }
            }
        }
    }
}
