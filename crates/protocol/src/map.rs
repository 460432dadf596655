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
    /// The node of each shard: index is the shard's number.
    pub shards: Vec<NodeId>,
}

impl ClusterMap {
    /// The node that holds the shard.
    pub fn node_of(&self, shard: ShardId) -> Option<NodeId> {
        self.shards.get(usize::from(shard.0)).copied()
    }

    /// The record of a node.
    pub fn node(&self, id: NodeId) -> Option<&NodeRecord> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().and_then(|index| self.nodes.get(index))
    }

    /// The shards at a node, ascending.
    pub fn shards_at(&self, node: NodeId) -> impl Iterator<Item = ShardId> + '_ {
        (0u16..).zip(&self.shards).filter(move |(_, holder)| **holder == node).map(|(shard, _)| ShardId(shard))
    }

    /// The shards of a node that are not in its previous map: it starts them empty. All other shards exist.
    pub fn new_shards_at<'a>(&'a self, node: NodeId, previous: &ClusterMap) -> impl Iterator<Item = ShardId> + 'a {
        let known = previous.shards.len();
        self.shards_at(node).filter(move |shard| usize::from(shard.0) >= known)
    }

    /// The map after these nodes have joined, each with as many new shards. The epoch is the caller's to choose.
    pub fn with_nodes(&self, nodes: &[NodeRecord], shards_per_node: u16, epoch: MapEpoch) -> ClusterMap {
        let mut map = self.clone();
        map.epoch = epoch;
        map.nodes.extend_from_slice(nodes);
        for node in nodes {
            map.shards.extend(std::iter::repeat_n(node.id, usize::from(shards_per_node)));
        }
        map
    }

    /// Refuses maps beyond the limits, with nodes out of order, or with shards at nodes that are not there.
    pub fn check(&self) -> bool {
        let texts = |node: &NodeRecord| {
            [&node.host, &node.site, &node.address.tcp, &node.address.unix].iter().all(|t| t.len() <= TEXT_BYTES_MAX)
        };
        self.nodes.len() <= NODES_MAX
            && self.shards.len() <= SHARDS_MAX
            && self.nodes.windows(2).all(|pair| matches!(pair, [a, b] if a.id < b.id))
            && self.nodes.iter().all(texts)
            && self.shards.iter().all(|node| self.node(*node).is_some())
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
        }
    }

    #[test]
    fn a_call_is_admitted_by_its_own_epoch_only() {
        assert_eq!(admit(MapEpoch(4), MapEpoch(4)), Ok(()));
        assert_eq!(admit(MapEpoch(4), MapEpoch(3)), Err(Error::StaleMap(MapEpoch(4))));
        assert_eq!(admit(MapEpoch(4), MapEpoch(5)), Err(Error::Busy));
    }

    #[test]
    fn a_node_starts_only_the_shards_that_its_previous_map_has_not() {
        let first = ClusterMap::default().with_nodes(&[record(0), record(1)], 2, FIRST_EPOCH);
        let second = first.with_nodes(&[record(3)], 1, MapEpoch(2));
        assert!(second.check());
        let new = |map: &ClusterMap, node, previous: &ClusterMap| {
            map.new_shards_at(NodeId(node), previous).map(|shard| shard.0).collect::<Vec<_>>()
        };
        assert_eq!(new(&first, 1, &ClusterMap::default()), [2, 3]);
        assert!(new(&second, 0, &first).is_empty() && new(&second, 1, &first).is_empty());
        assert_eq!(new(&second, 3, &ClusterMap::default()), [4]);
        assert_eq!(second.shards.get(..4), Some(&first.shards[..]), "no shard has another node than before");
    }
}
