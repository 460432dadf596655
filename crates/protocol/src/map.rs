//! The map: which node holds which shard, and where the nodes are.

use crate::error::{Error, Result};
use crate::ids::{MapEpoch, NodeId, NodeIdentity, ShardId};
use crate::limits::{NODES_MAX, SHARDS_MAX, TEXT_BYTES_MAX};
use serde::{Deserialize, Serialize};

/// Where a node listens.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeAddress {
    /// `IP:PORT` of its TCP socket.
    pub tcp: String,
    /// Path of its Unix socket; only processes of the same node identity use it.
    pub unix: String,
}

/// One node of a file system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeRecord {
    pub id: NodeId,
    /// Host name, for people.
    pub host: String,
    /// Name of its site, for people and for placement.
    pub site: String,
    pub identity: NodeIdentity,
    pub address: NodeAddress,
    /// Whether it has a storage server.
    pub stores: bool,
    /// Whether what is there is to go elsewhere: no new shards and objects come to it.
    pub drains: bool,
}

impl NodeRecord {
    /// Whether new files may go to it.
    pub fn takes_files(&self) -> bool {
        self.stores && !self.drains
    }
}

/// One shard of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardRecord {
    /// Where it is.
    pub node: NodeId,
    /// Epoch of the first map that has the shard.
    pub born: MapEpoch,
    /// Epoch of the map with which it came to its node.
    pub arrived: MapEpoch,
}

impl ShardRecord {
    /// A shard that begins, empty, with the map of this epoch.
    pub const fn new(node: NodeId, epoch: MapEpoch) -> Self {
        Self { node, born: epoch, arrived: epoch }
    }
}

/// What becomes of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeChange {
    /// No new shards and objects come to it.
    Drain,
    /// They come again.
    Keep,
    /// It is not in the map any more. It has no shards.
    Remove,
}

/// Epoch of the first map of a file system. No shard has moved since: a capability of any epoch is as good as it was.
pub const FIRST_EPOCH: MapEpoch = MapEpoch(1);

/// Checks the epoch of a call against that of the map of the node that received it.
///
/// [`Error::StaleMap`]: the caller gets this node's map, and sends the call again. [`Error::Busy`]: this node's map is
/// the older one; the node gets a newer one, and the caller sends the call again after a moment. Neither call was
/// carried out by this sending.
pub fn admit(own: MapEpoch, of_call: MapEpoch) -> Result<()> {
    match of_call.cmp(&own) {
        std::cmp::Ordering::Less => Err(Error::StaleMap(own)),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(Error::Busy),
    }
}

/// The map of a file system. The root shard keeps it; each change raises the epoch by one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterMap {
    /// Name of the file system.
    pub name: String,
    pub epoch: MapEpoch,
    /// Nodes, ascending by identifier.
    pub nodes: Vec<NodeRecord>,
    /// Index is the shard's number.
    pub shards: Vec<ShardRecord>,
    /// The highest number of a node that was removed. Numbers are never used again.
    pub removed_max: Option<NodeId>,
}

impl ClusterMap {
    /// The node that holds the shard.
    pub fn node_of(&self, shard: ShardId) -> Option<NodeId> {
        self.shards.get(usize::from(shard.0)).map(|record| record.node)
    }

    /// The record of a node.
    pub fn node(&self, id: NodeId) -> Option<&NodeRecord> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().and_then(|index| self.nodes.get(index))
    }

    /// The shards at a node, ascending.
    pub fn shards_at(&self, node: NodeId) -> impl Iterator<Item = ShardId> + '_ {
        (0u16..).zip(&self.shards).filter(move |(_, record)| record.node == node).map(|(shard, _)| ShardId(shard))
    }

    /// The epoch of the map with which a shard came to this node. `None`: it is not there.
    pub fn arrived(&self, shard: ShardId, node: NodeId) -> Option<MapEpoch> {
        let record = self.shards.get(usize::from(shard.0)).filter(|record| record.node == node);
        record.map(|record| record.arrived)
    }

    /// The shards of a node that begin with this map: it starts them empty. All others exist, whatever map the node had
    /// before.
    pub fn born_at(&self, node: NodeId) -> impl Iterator<Item = ShardId> + '_ {
        let is_born = move |record: &ShardRecord| record.born == self.epoch && record.node == node;
        (0u16..).zip(&self.shards).filter(move |(_, record)| is_born(record)).map(|(shard, _)| ShardId(shard))
    }

    /// The map after these nodes have joined, each with as many new shards. The epoch is the caller's to choose.
    pub fn with_nodes(&self, nodes: &[NodeRecord], shards_per_node: u16, epoch: MapEpoch) -> ClusterMap {
        let mut map = self.clone();
        map.epoch = epoch;
        map.nodes.extend_from_slice(nodes);
        for node in nodes {
            map.shards.extend(std::iter::repeat_n(ShardRecord::new(node.id, epoch), usize::from(shards_per_node)));
        }
        map
    }

    /// The map after a change of a node. `None`: it is not there, or has shards and cannot be removed.
    pub fn with_change(&self, id: NodeId, change: NodeChange, epoch: MapEpoch) -> Option<ClusterMap> {
        let mut map = ClusterMap { epoch, ..self.clone() };
        let node = map.nodes.iter_mut().find(|node| node.id == id)?;
        match change {
            NodeChange::Drain => node.drains = true,
            NodeChange::Keep => node.drains = false,
            NodeChange::Remove => {
                map.nodes.retain(|node| node.id != id);
                map.removed_max = map.removed_max.max(Some(id));
            }
        }
        map.check().then_some(map)
    }

    /// The highest number that a node has, or had.
    pub fn highest_node(&self) -> Option<NodeId> {
        self.nodes.last().map(|node| node.id).max(self.removed_max)
    }

    /// Refuses maps beyond the limits, with nodes out of order, or with shards at nodes that are not there or of a time
    /// to come.
    pub fn check(&self) -> bool {
        let texts = |node: &NodeRecord| {
            [&node.host, &node.site, &node.address.tcp, &node.address.unix].iter().all(|t| t.len() <= TEXT_BYTES_MAX)
        };
        self.nodes.len() <= NODES_MAX
            && self.shards.len() <= SHARDS_MAX
            && self.nodes.windows(2).all(|pair| matches!(pair, [a, b] if a.id < b.id))
            && self.nodes.iter().all(texts)
            && self.shards.iter().all(|shard| self.node(shard.node).is_some())
            && self.shards.iter().all(|shard| shard.born <= shard.arrived && shard.arrived <= self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: u16) -> NodeRecord {
        NodeRecord {
            id: NodeId(id),
            host: String::new(),
            site: String::new(),
            identity: NodeIdentity(1),
            address: NodeAddress::default(),
            stores: true,
            drains: false,
        }
    }

    #[test]
    fn a_call_is_admitted_by_its_own_epoch_only() {
        assert_eq!(admit(MapEpoch(4), MapEpoch(4)), Ok(()));
        assert_eq!(admit(MapEpoch(4), MapEpoch(3)), Err(Error::StaleMap(MapEpoch(4))));
        assert_eq!(admit(MapEpoch(4), MapEpoch(5)), Err(Error::Busy));
    }

    #[test]
    fn a_node_starts_only_the_shards_that_begin_with_the_map() {
        let first = ClusterMap::default().with_nodes(&[record(0), record(1)], 2, FIRST_EPOCH);
        let second = first.with_nodes(&[record(3)], 1, MapEpoch(2));
        let born = |map: &ClusterMap, node| map.born_at(NodeId(node)).map(|shard| shard.0).collect::<Vec<_>>();
        assert!(second.check());
        assert_eq!((born(&first, 1), born(&second, 3)), (vec![2, 3], vec![4]));
        // Also for a node that has no map yet, or has missed one.
        assert!(born(&second, 0).is_empty() && born(&second, 1).is_empty());
        let moved = ShardRecord { node: NodeId(3), arrived: MapEpoch(3), ..first.shards[2] };
        let mut third = ClusterMap { epoch: MapEpoch(3), ..second.clone() };
        third.shards[2] = moved;
        assert!(third.check() && born(&third, 3).is_empty(), "a shard that has come is not empty");
        assert_eq!(second.shards.get(..4), Some(&first.shards[..]), "no shard has another node than before");
        third.epoch = MapEpoch(2);
        assert!(!third.check(), "it has come with a later map");
    }
}
