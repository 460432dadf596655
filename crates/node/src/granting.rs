//! The serving terms that this node grants to the storage servers of other nodes, and the fences of its shards that
//! these have not confirmed ([`weft_storage::TermGrants`]).
//!
//! The lock is a leaf.

use crate::clock;
use crate::locks::lock;
use crate::mailbox::Loops;
use crate::shard_events::{ToShards, give};
use std::sync::{Arc, Mutex};
use weft_metadata::Event;
use weft_protocol::message::storage::{ServingAnswer, SessionFence};
use weft_protocol::{NodeId, SessionId, ShardId};
use weft_storage::{DueFence, TermGrants};

/// See the module.
pub struct Granting {
    grants: Mutex<TermGrants>,
    shards: ToShards,
    loops: Arc<Loops>,
}

impl Granting {
    /// Returns no grants. Confirmations go to `shards`.
    pub fn new(shards: ToShards, loops: Arc<Loops>) -> Self {
        Self { grants: Mutex::default(), shards, loops }
    }

    /// Has the first loop, which sleeps until something is due, look at [`Granting::next_due`] again.
    fn wake(&self) {
        self.loops.all().iter().take(1).for_each(|mailbox| mailbox.look());
    }

    /// Registers a fence before it is sent. `awaited`: the shard waits for it.
    pub fn fence(&self, node: NodeId, fence: &SessionFence, awaited: bool) {
        lock(&self.grants).fence(node, fence, awaited, clock::boot_ms());
        if awaited {
            self.wake();
        }
    }

    /// Answers a storage server that asks for a term.
    pub fn ask(&self, node: NodeId, settled: &[SessionFence]) -> ServingAnswer {
        let (answer, confirmed) = lock(&self.grants).ask(node, settled, clock::boot_ms());
        confirmed.into_iter().for_each(|key| self.tell(node, key));
        answer
    }

    /// A storage server has confirmed a fence, or the attempt to send it has failed.
    pub fn sent(&self, node: NodeId, fence: &SessionFence, is_confirmed: bool) {
        let mut grants = lock(&self.grants);
        if !is_confirmed {
            grants.send_failed(node, (fence.session, fence.shard), clock::boot_ms());
            drop(grants);
            return self.wake();
        }
        let confirmed = grants.confirm(node, fence);
        drop(grants);
        confirmed.into_iter().for_each(|key| self.tell(node, key));
    }

    fn tell(&self, node: NodeId, (session, shard): (SessionId, ShardId)) {
        give(&self.shards, shard, Event::FenceConfirmed { session, node });
    }

    /// The fences that this node has to confirm before it is asked for anything else.
    pub fn overdue(&self, node: NodeId) -> Vec<SessionFence> {
        lock(&self.grants).overdue(node)
    }

    /// A shard is on its way to another node: [`TermGrants::begin_move`].
    pub fn begin_move(&self, shard: ShardId) -> Vec<(NodeId, SessionFence)> {
        lock(&self.grants).begin_move(shard)
    }

    /// The shard stays.
    pub fn abandon_move(&self, shard: ShardId) {
        lock(&self.grants).abandon_move(shard);
    }

    /// The shard has another node now.
    pub fn left(&self, shard: ShardId) {
        lock(&self.grants).left(shard);
    }

    /// A shard has come with these fences; these nodes may have storage servers with terms.
    pub fn arrived(&self, nodes: impl Iterator<Item = NodeId>, fences: Vec<(NodeId, SessionFence)>) {
        lock(&self.grants).arrived(nodes, fences, clock::boot_ms());
    }

    /// When something is due, milliseconds since boot.
    pub fn next_due(&self) -> Option<u64> {
        lock(&self.grants).next_due()
    }

    /// Returns the fences to send, and tells the shards which ones are certain without a confirmation.
    pub fn take_due(&self) -> Vec<(NodeId, SessionFence)> {
        let due = lock(&self.grants).take_due(clock::boot_ms());
        let mut to_send = Vec::new();
        for due in due {
            match due {
                DueFence::Send { node, fence } => to_send.push((node, fence)),
                DueFence::Certain { node, session, shard } => {
                    tracing::debug!("shard {shard}: session {session} fenced at node {node}, whose term has ended");
                    self.tell(node, (session, shard));
                }
            }
        }
        to_send
    }
}
