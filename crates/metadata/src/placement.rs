//! Which shard gets the inode of a new directory.
//!
//! Not here: making it (`back/intent.rs`).

use weft_protocol::hash::spread;
use weft_protocol::limits::DIRECTORY_PARTS_MAX;
use weft_protocol::{ClusterMap, InodeNumber, Name, NodeId, ShardId};

/// A shard of `home` when that node has one, else any shard; by hash, so that a repeated call chooses alike. Without a
/// map: the shard `here`.
pub fn shard_for(map: &ClusterMap, here: ShardId, home: Option<NodeId>, parent: InodeNumber, name: &Name) -> ShardId {
    let hash = spread(parent.raw() ^ name.hash64());
    let pick = |count: usize| usize::try_from(hash % count as u64).expect("a remainder by a usize is one");
    if let Some(home) = home {
        let count = map.shards_at(home).count();
        if count > 0 {
            return map.shards_at(home).nth(pick(count)).expect("the index is below the count");
        }
    }
    if map.shards.is_empty() {
        return here;
    }
    u16::try_from(pick(map.shards.len())).map_or(here, ShardId)
}

/// The shards that get parts of a directory of the shard `here`, beside that: all of them, or as many as there may be
/// parts, those after `here` first.
pub fn shards_for_parts(map: &ClusterMap, here: ShardId) -> Vec<ShardId> {
    let count = u16::try_from(map.shards.len()).expect("a map has no more shards than have numbers");
    (1..count).map(|step| ShardId((here.0 + step) % count)).take(DIRECTORY_PARTS_MAX - 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::{MapEpoch, ShardRecord};

    fn map(shards: &[u16]) -> ClusterMap {
        let record = |node: &u16| ShardRecord::new(NodeId(*node), MapEpoch(1));
        ClusterMap { shards: shards.iter().map(record).collect(), ..ClusterMap::default() }
    }

    fn chosen(map: &ClusterMap, home: Option<u16>) -> Vec<u16> {
        let mut chosen: Vec<u16> = (0..1000)
            .map(|number| Name::new(format!("d{number}").as_bytes()).expect("a valid name"))
            .map(|name| shard_for(map, ShardId(3), home.map(NodeId), InodeNumber::ROOT, &name).0)
            .collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }

    #[test]
    fn a_directory_goes_to_its_home_or_anywhere() {
        let map = map(&[1, 2, 1, 2, 5]);
        assert_eq!(chosen(&map, Some(2)), [1, 3]);
        assert_eq!(chosen(&map, Some(5)), [4]);
        assert_eq!(chosen(&map, Some(9)), [0, 1, 2, 3, 4]);
        assert_eq!(chosen(&map, None), [0, 1, 2, 3, 4]);
        assert_eq!(chosen(&ClusterMap::default(), Some(1)), [3]);
    }
}
