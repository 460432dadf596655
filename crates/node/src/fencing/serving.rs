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
    /// Returns the term for a shard, and the node to ask for it. Waits for the map if the shard is newer than it.
    pub(super) fn term_for(&self, shard: ShardId) -> Result<(NodeId, Arc<ServingTerm>)> {
        let node = self.map_source.node_of(shard).ok_or(Error::CapabilityRejected)?;
        if node == self.cluster.node {
            return Ok((node, Arc::clone(&self.own_term)));
        }
        Ok((node, lock(&self.terms).term(node)))
    }

    /// Waits until this storage server may serve the shards of a node, unless the gate is closed.
    pub(super) fn wait_for_term(self: &Arc<Self>, node: NodeId, gate: &Gate) -> Result<()> {
        if gate.term().wants_renewal(clock::boot_ms) {
            self.ask(node);
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
            self.ask(node);
        }
    }

    /// Asks a node for a term and reports settled fences, unless a question is pending.
    pub(super) fn ask(self: &Arc<Self>, node: NodeId) {
        let Some(settled) = lock(&self.terms).ask(node, clock::boot_ms()) else { return };
        let fencing = Arc::downgrade(self);
        let tell = Box::new(move |answer: Result<ServingAnswer>| {
            if let Some(fencing) = fencing.upgrade() {
                fencing.answered(node, answer.ok().as_ref());
            }
        });
        self.couriers.send(node, Errand::AskToServe { settled, tell });
    }

    fn answered(self: &Arc<Self>, node: NodeId, answer: Option<&ServingAnswer>) {
        let fences = answer.map(|answer| lock(&self.terms).answered(node, answer)).unwrap_or_default();
        for SessionFence { session, shard, objects } in fences {
            let confirm = ConfirmTo::NextQuestion(node);
            if self.fence_and_confirm(Unsettled { session, shard, objects, confirm }) {
                lock(&self.terms).settled(node, session, shard);
            }
        }
        let ask_again = lock(&self.terms).finish(node, answer);
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
