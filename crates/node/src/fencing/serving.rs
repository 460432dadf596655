//! The terms during which this node's storage server may serve the shards of other nodes
//! ([`weft_storage::ServingTerms`]).
//!
//! A data connection that needs a term asks the shards' node for one: ahead of time while less than half of the term is
//! left, and waiting when it has ended. Without traffic nothing is asked.
//!
//! Lock order: `terms` is a leaf.

use super::{ConfirmTo, Fencing, Unsettled};
use crate::clock;
use crate::courier::Errand;
use crate::locks::lock;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::storage::{ServingAnswer, SessionFence};
use weft_protocol::{Error, NodeId, Result, SessionId, ShardId};
use weft_storage::{Gate, ServingTerm};

/// How long a request waits for the node of its shard.
const WAIT_MS_MAX: u64 = SESSION_TERM_MS;
/// Pause before a question that failed is asked again.
const RETRY: Duration = Duration::from_millis(250);

impl Fencing {
    /// Returns the term for a shard. Waits for the map if the shard is newer than it.
    pub(super) fn term_for(&self, shard: ShardId) -> Result<Arc<ServingTerm>> {
        let node = self.map_source.node_of(shard).ok_or(Error::CapabilityRejected)?;
        Ok(lock(&self.terms).term(shard, node == self.cluster.node))
    }

    /// A shard of this node leaves it.
    pub fn begin_move(&self, shard: ShardId) {
        lock(&self.terms).begin_move(shard, clock::boot_ms());
    }

    /// A shard has come to this node, or stays.
    pub fn is_own(&self, shard: ShardId) {
        lock(&self.terms).is_own(shard);
        self.term_changed.notify_all();
    }

    /// Waits until this storage server may serve a shard, unless the gate is closed.
    pub(super) fn wait_for_term(self: &Arc<Self>, shard: ShardId, gate: &Gate) -> Result<()> {
        if gate.term().wants_renewal(clock::boot_ms) {
            self.ask_for(shard);
        }
        let since_ms = clock::boot_ms();
        loop {
            if gate.is_fenced() {
                return Err(Error::SessionEnded);
            }
            let terms = lock(&self.terms);
            if gate.term().holds(clock::boot_ms) {
                return Ok(());
            }
            if clock::boot_ms() - since_ms >= WAIT_MS_MAX {
                return Err(Error::Unreachable);
            }
            // The answer changes the term under this lock, so that it is not missed.
            drop(self.term_changed.wait_timeout(terms, RETRY).unwrap_or_else(PoisonError::into_inner));
            self.ask_for(shard);
        }
    }

    /// Asks the node of a shard for a term. One that leaves this node has none before the map says where it is.
    fn ask_for(self: &Arc<Self>, shard: ShardId) {
        if let Some(node) = self.cluster.map().node_of(shard).filter(|node| *node != self.cluster.node) {
            self.ask(node);
        }
    }

    /// Asks a node for a term and reports settled fences, unless a question is pending.
    pub(super) fn ask(self: &Arc<Self>, node: NodeId) {
        let epoch = self.cluster.epoch();
        let Some(settled) = lock(&self.terms).ask(node, epoch, clock::boot_ms()) else { return };
        let fencing = Arc::downgrade(self);
        let tell = Box::new(move |answer: Result<ServingAnswer>| {
            if let Some(fencing) = fencing.upgrade() {
                if let Err(Error::StaleMap(_)) = answer {
                    fencing.map_source.ask();
                }
                fencing.answered(node, answer.ok().as_ref());
            }
        });
        self.couriers.send(node, Errand::AskToServe { epoch, settled, tell });
    }

    fn answered(self: &Arc<Self>, node: NodeId, answer: Option<&ServingAnswer>) {
        let fences = answer.map(|answer| lock(&self.terms).answered(node, answer)).unwrap_or_default();
        for SessionFence { session, shard, objects } in fences {
            let confirm = ConfirmTo::NextQuestion(node);
            if self.fence_and_confirm(Unsettled { session, shard, objects, confirm }) {
                lock(&self.terms).settled(node, session, shard);
            }
        }
        let map = self.cluster.map();
        let ask_again = lock(&self.terms).finish(node, answer, &map);
        // Without a term those that wait ask again after a pause.
        if answer.is_some_and(|answer| answer.granted) {
            self.term_changed.notify_all();
        }
        if ask_again {
            self.ask(node);
        }
    }

    /// A fence that came with an answer is settled.
    pub(super) fn report(self: &Arc<Self>, node: NodeId, session: SessionId, shard: ShardId) {
        if lock(&self.terms).settled(node, session, shard) {
            self.ask(node);
        }
    }
}
