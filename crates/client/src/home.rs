//! Where this client makes its files and directories: its *home*, a node with storage, on this machine if there is one.
//!
//! It is picked at first by chance, so that clients spread over several, and without asking: a client that only reads
//! needs none. Whoever makes something there sees whether it lives; when it does not, another one that answers is
//! picked, and what was to be made is made there. So a node that ends costs its clients what was on it, and nothing
//! that is new.
//!
//! Not here: what becomes of files that were on it.

use crate::client::Inner;
use crate::link::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, Ordering};
use weft_protocol::limits::OBJECT_BATCH_COUNT;
use weft_protocol::message::node::NodeRequest;
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{Capability, ClusterMap, Error, NodeId, NodeIdentity, ObjectId, Result};

/// Seconds before the end of its term at which a batch is not begun any more.
pub(crate) const BATCH_MARGIN_SECONDS: u32 = 600;

/// The home of now.
pub(crate) struct Home(AtomicU16);

/// A batch of leased object identifiers.
#[derive(Clone, Copy)]
pub(crate) struct Batch {
    capability: Capability,
    next: u32,
}

impl Home {
    /// One by chance. `None`: no node has storage.
    pub fn pick(map: &ClusterMap, here: NodeIdentity, random: u64) -> Option<Self> {
        candidates(map, here, random).first().map(|node| Self(AtomicU16::new(node.0)))
    }
}

/// All nodes with storage: those of this machine, then the others, each beginning at a place by chance.
fn candidates(map: &ClusterMap, here: NodeIdentity, random: u64) -> Vec<NodeId> {
    let storing = map.nodes.iter().filter(|node| node.stores);
    let (mut near, mut far): (Vec<_>, Vec<_>) = storing.partition(|node| node.identity == here);
    for group in [&mut near, &mut far] {
        let turn = random % group.len().max(1) as u64;
        group.rotate_left(usize::try_from(turn).unwrap_or(0));
    }
    near.iter().chain(&far).map(|node| node.id).collect()
}

impl Inner {
    /// The home of now, whether it lives or not.
    pub fn home(&self) -> NodeId {
        NodeId(self.home.0.load(Ordering::Relaxed))
    }

    /// Does something that needs a home that lives: when it turns out to be away, once more at another one.
    pub fn at_home<T>(&self, mut make: impl FnMut(NodeId) -> Result<T>) -> Result<T> {
        let mut home = self.home();
        // Each change of home goes to a node that has just answered: this ends.
        let mut changes_left = self.map().nodes.len();
        loop {
            match make(home) {
                Err(Error::Unreachable) if changes_left > 0 && !self.answers(home) => {
                    changes_left -= 1;
                    home = self.leave_home(home)?;
                }
                result => return result,
            }
        }
    }

    fn answers(&self, node: NodeId) -> bool {
        self.node_call(node, NodeRequest::Ping).is_ok()
    }

    /// Picks another home than the one that is away: the first that answers.
    fn leave_home(&self, away: NodeId) -> Result<NodeId> {
        let now = self.home();
        if now != away {
            // Another thread was here first.
            return Ok(now);
        }
        let random = getrandom::u64().map_err(|_| Error::Device(weft_protocol::error::errno::EIO))?;
        let others = candidates(&self.map(), self.identity.node, random).into_iter().filter(|node| *node != away);
        let next = others.into_iter().find(|node| self.answers(*node)).ok_or(Error::Unreachable)?;
        tracing::warn!("node {away} is away: what is new is made at node {next} from now on");
        self.home.0.store(next.0, Ordering::Relaxed);
        lock(&self.batches).remove(&away);
        Ok(next)
    }

    /// An identifier for a new object, at a home that lives, with the right to make it.
    pub fn new_object(&self) -> Result<(ObjectId, Capability)> {
        self.at_home(|home| {
            // A batch is at hand also when its node has ended meanwhile: its connections tell, without a message.
            let away = lock(&self.links).get(&home).is_some_and(|link| link.seems_away());
            if away && !self.answers(home) { Err(Error::Unreachable) } else { self.new_object_at(home) }
        })
    }

    fn new_object_at(&self, node: NodeId) -> Result<(ObjectId, Capability)> {
        if let Some(taken) = take_from_batch(&mut lock(&self.batches), node) {
            return Ok(taken);
        }
        let (request, session) = (StorageRequest::LeaseObjects { count: OBJECT_BATCH_COUNT }, self.session());
        let StorageAnswer::Batch { capability } = self.storage_call(node, request)? else {
            return Err(Error::Malformed);
        };
        let mut batches = lock(&self.batches);
        if session != self.session() {
            // What was leased to one session is not good for the next.
            drop(batches);
            return self.new_object_at(node);
        }
        batches.insert(node, Batch { capability, next: 0 });
        take_from_batch(&mut batches, node).ok_or(Error::Malformed)
    }
}

fn take_from_batch(batches: &mut HashMap<NodeId, Batch>, node: NodeId) -> Option<(ObjectId, Capability)> {
    let batch = batches.get_mut(&node)?;
    let now = u32::try_from(rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec).unwrap_or(u32::MAX);
    if batch.next >= batch.capability.count
        || now.saturating_add(BATCH_MARGIN_SECONDS) > batch.capability.expires_seconds
    {
        return None;
    }
    let first = batch.capability.object;
    let object = ObjectId::new(first.node(), first.sequence() + u64::from(batch.next));
    batch.next += 1;
    Some((object, batch.capability))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::{NodeAddress, NodeRecord};

    #[test]
    fn nodes_of_this_machine_come_first_and_each_has_its_turn() {
        let record = |(id, (identity, stores)): (u16, (u64, bool))| NodeRecord {
            id: NodeId(id),
            host: String::new(),
            site: String::new(),
            identity: NodeIdentity(identity),
            address: NodeAddress::default(),
            stores,
        };
        let nodes = (0..).zip([(7, true), (8, true), (7, true), (7, false), (9, true)]).map(record).collect();
        let map = ClusterMap { nodes, ..ClusterMap::default() };
        let chosen = |random| candidates(&map, NodeIdentity(7), random).iter().map(|node| node.0).collect::<Vec<_>>();
        assert_eq!(chosen(0), [0, 2, 1, 4]);
        assert_eq!(chosen(1), [2, 0, 4, 1]);
        assert_eq!(candidates(&map, NodeIdentity(1), u64::MAX).len(), 4, "none here: any");
        assert!(Home::pick(&ClusterMap::default(), NodeIdentity(7), 3).is_none());
    }
}
