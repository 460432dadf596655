//! The first map of a file system: which node holds which shard.

use crate::failure::{Failure, Outcome};
use weft_protocol::limits::{NODES_MAX, SHARDS_MAX};
use weft_protocol::map::FIRST_EPOCH;
use weft_protocol::{ClusterMap, NodeRecord, ShardRecord};

/// Shards per node when the user does not say. One: what a client makes stays on one shard, where every rename is
/// possible.
pub const SHARDS_PER_NODE_DEFAULT: usize = 1;

/// Refuses what no map can hold.
pub fn check_counts(nodes: usize, shards_per_node: usize) -> Outcome<()> {
    if nodes == 0 || nodes > NODES_MAX {
        return Err(Failure::new(format!("{nodes} nodes: a file system has 1 to {NODES_MAX}"))
            .remedy(format!("--nodes 1 to {NODES_MAX}, or as many lines in the file of hosts")));
    }
    let shards = nodes.saturating_mul(shards_per_node);
    if shards_per_node == 0 || shards > SHARDS_MAX {
        return Err(Failure::new(format!("{shards} shards on {nodes} nodes: a file system has 1 to {SHARDS_MAX}"))
            .remedy(format!("--shards-per-node 1 to {}", SHARDS_MAX / nodes)));
    }
    Ok(())
}

/// Assigns shards round-robin: shard 0, the root shard, to node 0.
pub fn first_map(name: &str, nodes: Vec<NodeRecord>, shards_per_node: usize) -> ClusterMap {
    let records: Vec<_> = nodes.iter().map(|node| ShardRecord::new(node.id, FIRST_EPOCH)).collect();
    let shards = records.iter().copied().cycle().take(records.len() * shards_per_node).collect();
    let map = ClusterMap { name: name.to_owned(), epoch: FIRST_EPOCH, nodes, shards, removed_max: None };
    assert!(map.check(), "a map of our own making is within the limits: {map:?}");
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::{NodeAddress, NodeId, NodeIdentity, ShardId};

    fn record(id: u16) -> NodeRecord {
        let address = NodeAddress { tcp: format!("127.0.0.1:{id}"), unix: String::new() };
        let (host, site) = ("h".to_owned(), "s".to_owned());
        NodeRecord { id: NodeId(id), host, site, identity: NodeIdentity(1), address, stores: true, drains: false }
    }

    #[test]
    fn shards_go_round_and_the_root_is_on_node_0() {
        let map = first_map("w", (0..3).map(record).collect(), 2);
        let holders: Vec<u16> = map.shards.iter().map(|shard| shard.node.0).collect();
        assert_eq!(holders, [0, 1, 2, 0, 1, 2]);
        assert_eq!(map.node_of(ShardId::ROOT), Some(NodeId(0)));
        assert_eq!(map.shards_at(NodeId(2)).collect::<Vec<_>>(), [ShardId(2), ShardId(5)]);
        assert_eq!((map.epoch, map.name.as_str()), (FIRST_EPOCH, "w"));
    }

    #[test]
    fn counts_beyond_the_limits_are_refused() {
        assert!(check_counts(1, 1).is_ok());
        assert!(check_counts(NODES_MAX, 4).is_ok());
        for (nodes, shards) in [(0, 1), (NODES_MAX + 1, 1), (4, 0), (NODES_MAX, 5), (2, usize::MAX)] {
            assert!(check_counts(nodes, shards).is_err(), "{nodes} {shards}");
        }
        for nodes in 1..=64 {
            assert!(check_counts(nodes, SHARDS_PER_NODE_DEFAULT).is_ok());
        }
    }
}
