//! Interface through which couriers, fences and the storage server deliver events to the shards.
//!
//! The shards own these three and call them; their answers come back through this trait, so that none of them depends
//! on the shards.

use std::sync::Weak;
use weft_metadata::Event;
use weft_protocol::{ClusterMap, ShardId};

/// Receiver of events for the shards of this node.
pub trait ShardEvents: Send + Sync {
    /// Steps a shard, and carries out the effects on the calling thread.
    fn give(&self, shard: ShardId, event: Event);

    /// Installs a map that another node has sent, if it is newer.
    fn install_map(&self, map: ClusterMap);
}

/// A reference to the shards that does not keep them alive.
pub type ToShards = Weak<dyn ShardEvents>;

/// Steps a shard, unless the node has ended.
pub fn give(shards: &ToShards, shard: ShardId, event: Event) {
    if let Some(shards) = shards.upgrade() {
        shards.give(shard, event);
    }
}
