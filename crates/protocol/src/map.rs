//! The map: which node holds which shard, and where the nodes are.

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
