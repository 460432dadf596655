//! Getting a newer map from the root shard's node, when a request shows that there is one.
//!
//! One question at a time, however many requests want the map. Lock order: `state` is a leaf.

use crate::cluster::Cluster;
use crate::courier::{Couriers, Errand};
use crate::locks::lock;
use crate::shard_events::ToShards;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{NodeId, Result, ShardId};

/// How long a request waits for the map.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// See the module.
pub struct MapSource {
    cluster: Arc<Cluster>,
    couriers: Arc<Couriers>,
    shards: ToShards,
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    asking: bool,
    /// Number of questions that were answered, be it by nobody.
    answers: u64,
}

impl MapSource {
    /// Returns the source for a node's map. What comes is given to `shards`.
    pub fn new(cluster: Arc<Cluster>, couriers: Arc<Couriers>, shards: ToShards) -> Self {
        Self { cluster, couriers, shards, state: Mutex::default(), answered: Condvar::new() }
    }

    /// Asks the root shard's node, unless a question is in flight. Returns false if nobody can be asked.
    pub fn ask(self: &Arc<Self>) -> bool {
        let Some(root) = self.cluster.map().node_of(ShardId::ROOT).filter(|root| *root != self.cluster.node) else {
            return false;
        };
        if std::mem::replace(&mut lock(&self.state).asking, true) {
            return true;
        }
        let source = Arc::clone(self);
        let tell = Box::new(move |answer| source.told(answer));
        self.couriers.send(root, Errand::Node { to: None, request: NodeRequest::GetMap, tell });
        true
    }

    fn told(&self, answer: Result<NodeAnswer>) {
        if let (Ok(NodeAnswer::Map(map)), Some(shards)) = (answer, self.shards.upgrade()) {
            shards.install_map(map);
        }
        let mut state = lock(&self.state);
        state.asking = false;
        state.answers += 1;
        drop(state);
        self.answered.notify_all();
    }

    /// Returns the node of a shard. One that the map does not have is looked for in a newer map, for which this waits.
    pub fn node_of(self: &Arc<Self>, shard: ShardId) -> Option<NodeId> {
        let known = self.cluster.map().node_of(shard);
        if known.is_some() {
            return known;
        }
        let before = lock(&self.state).answers;
        if !self.ask() {
            return None;
        }
        let until = Instant::now() + WAIT_MAX;
        let mut state = lock(&self.state);
        while state.answers == before {
            let left = until.checked_duration_since(Instant::now())?;
            state = self.answered.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        self.cluster.map().node_of(shard)
    }
}
