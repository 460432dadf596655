//! How a node leaves a file system: what is to be done next until nothing is left there.
//!
//! ```text
//!  Change(Drain) ──► MoveShard each ──► MoveFiles ──► (drained)
//!                                          └──► AwaitClients ──► Count ──► Change(Remove) ──► Done
//!                                                                  └── objects are left: MoveFiles, LookAgain
//! ```
//!
//! A client that has not heard that the node drains still makes objects there. After a session's term it has heard, or
//! its session has ended; so whether the node is empty is asked for no earlier.
//!
//! Invariant: a node is removed only if it had no shard and no object a term after it was seen to drain.
//! Not here: who moves what files have at the node (`relocate.rs`); what a change of the map is
//! (docs/decisions/0023).
//! On a crash: the node still drains, and the next attempt starts from there.

use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::{ClusterMap, NodeChange, NodeId, ShardId};

/// How long the node may take to remove what is no file's any more, and how often it is asked, milliseconds.
const EMPTY_MS_MAX: u64 = 10_000;
const LOOK_MS: u64 = 200;

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaveStep {
    /// Have the root shard's node change the node.
    Change(NodeChange),
    /// Have it move a shard of the node.
    MoveShard { shard: ShardId, to: NodeId },
    /// Move what files have at the node. Followed by [`Leaving::files_moved`].
    MoveFiles,
    /// Wait for so many milliseconds, until every client makes its files elsewhere.
    AwaitClients(u64),
    /// Ask the node how many objects it has. Followed by [`Leaving::counted`].
    Count,
    /// Wait for so many milliseconds: the node still has objects.
    LookAgain(u64),
    /// All is done.
    Done,
}

/// Why a node stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stays {
    /// No other node takes shards.
    NoOtherNode,
    /// So many objects are at the node that no file with a name has.
    Objects(u64),
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Leaving {
    node: NodeId,
    /// It leaves the map, too.
    is_removed: bool,
    /// When it was first seen to drain.
    drained_ms: Option<u64>,
    /// How often files were moved.
    moves: u32,
    /// How many objects it had when it was asked last.
    objects: Option<u64>,
    /// Until then it may have objects of which no file with a name is left.
    until_ms: Option<u64>,
}

impl Leaving {
    /// A node that drains: it has nothing in the end.
    pub fn drain(node: NodeId) -> Self {
        Self { node, is_removed: false, drained_ms: None, moves: 0, objects: None, until_ms: None }
    }

    /// A node that leaves the map.
    pub fn remove(node: NodeId) -> Self {
        Self { is_removed: true, ..Self::drain(node) }
    }

    /// The node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// What is to be done next. `map` is the newest one; `now_ms` counts from any moment before the first call.
    ///
    /// # Errors
    /// The node stays as it is.
    pub fn next(&mut self, now_ms: u64, map: &ClusterMap) -> Result<LeaveStep, Stays> {
        let Some(record) = map.node(self.node) else { return Ok(LeaveStep::Done) };
        if !record.drains {
            least_loaded(map, self.node).ok_or(Stays::NoOtherNode)?;
            return Ok(LeaveStep::Change(NodeChange::Drain));
        }
        let drained_ms = *self.drained_ms.get_or_insert(now_ms);
        if let Some(shard) = map.shards_at(self.node).next() {
            let to = least_loaded(map, self.node).ok_or(Stays::NoOtherNode)?;
            return Ok(LeaveStep::MoveShard { shard, to });
        }
        if self.moves == 0 {
            return Ok(LeaveStep::MoveFiles);
        }
        if !self.is_removed {
            return Ok(LeaveStep::Done);
        }
        let wait_ms = (drained_ms + SESSION_TERM_MS).saturating_sub(now_ms);
        if wait_ms > 0 {
            return Ok(LeaveStep::AwaitClients(wait_ms));
        }
        let until_ms = *self.until_ms.get_or_insert(now_ms + EMPTY_MS_MAX);
        match self.objects.take() {
            None => Ok(LeaveStep::Count),
            Some(0) => Ok(LeaveStep::Change(NodeChange::Remove)),
            Some(_) if self.moves == 1 => Ok(LeaveStep::MoveFiles),
            Some(_) if now_ms < until_ms => Ok(LeaveStep::LookAgain(LOOK_MS)),
            Some(objects) => Err(Stays::Objects(objects)),
        }
    }

    /// What files have at the node was moved.
    pub fn files_moved(&mut self) {
        self.moves += 1;
        self.until_ms = None;
    }

    /// The node has so many objects.
    pub fn counted(&mut self, objects: u64) {
        self.objects = Some(objects);
    }
}

/// The node with the fewest shards that takes some, other than this one; of several the first.
fn least_loaded(map: &ClusterMap, leaving: NodeId) -> Option<NodeId> {
    let others = map.nodes.iter().filter(|node| node.id != leaving && !node.drains).map(|node| node.id);
    others.min_by_key(|node| map.shards_at(*node).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::{MapEpoch, NodeAddress, NodeIdentity, NodeRecord, ShardRecord};

    fn record(id: u16) -> NodeRecord {
        let (host, site, address) = (String::new(), String::new(), NodeAddress::default());
        NodeRecord { id: NodeId(id), host, site, identity: NodeIdentity(1), address, stores: true, drains: false }
    }

    fn map_of(nodes: u16, shards_per_node: u16) -> ClusterMap {
        let records: Vec<_> = (0..nodes).map(record).collect();
        ClusterMap::default().with_nodes(&records, shards_per_node, MapEpoch(1))
    }

    fn changed(map: &ClusterMap, change: NodeChange) -> ClusterMap {
        map.with_change(NodeId(1), change, MapEpoch(map.epoch.0 + 1)).expect("a change of the map")
    }

    fn moved(map: &ClusterMap, shard: ShardId, to: NodeId) -> ClusterMap {
        let mut map = map.clone();
        map.shards[usize::from(shard.0)] = ShardRecord { node: to, ..map.shards[usize::from(shard.0)] };
        map
    }

    /// Has everything done but the count of objects.
    fn emptied(leaving: &mut Leaving) -> ClusterMap {
        let map = map_of(2, 1);
        assert_eq!(leaving.next(0, &map), Ok(LeaveStep::Change(NodeChange::Drain)));
        let map = changed(&map, NodeChange::Drain);
        let shard = map.shards_at(NodeId(1)).next().expect("its shard");
        assert_eq!(leaving.next(5, &map), Ok(LeaveStep::MoveShard { shard, to: NodeId(0) }));
        let map = moved(&map, shard, NodeId(0));
        assert_eq!(leaving.next(10, &map), Ok(LeaveStep::MoveFiles));
        leaving.files_moved();
        map
    }

    #[test]
    fn a_node_that_drains_has_its_shards_moved_and_then_its_files() {
        let mut leaving = Leaving::drain(NodeId(1));
        let map = emptied(&mut leaving);
        assert_eq!(leaving.next(20, &map), Ok(LeaveStep::Done));
    }

    #[test]
    fn a_node_is_removed_when_it_is_empty_after_a_term_in_which_every_client_hears_that_it_drains() {
        let mut leaving = Leaving::remove(NodeId(1));
        let map = emptied(&mut leaving);
        assert_eq!(leaving.next(20, &map), Ok(LeaveStep::AwaitClients(SESSION_TERM_MS - 15)));
        let after_ms = 5 + SESSION_TERM_MS;
        assert_eq!(leaving.next(after_ms, &map), Ok(LeaveStep::Count));
        leaving.counted(0);
        assert_eq!(leaving.next(after_ms, &map), Ok(LeaveStep::Change(NodeChange::Remove)));
        assert_eq!(leaving.next(after_ms, &changed(&map, NodeChange::Remove)), Ok(LeaveStep::Done));
    }

    #[test]
    fn what_was_made_meanwhile_is_moved_too_and_what_no_file_has_is_waited_for() {
        let mut leaving = Leaving::remove(NodeId(1));
        let map = emptied(&mut leaving);
        let after_ms = 5 + SESSION_TERM_MS;
        assert_eq!(leaving.next(after_ms, &map), Ok(LeaveStep::Count));
        leaving.counted(3);
        assert_eq!(leaving.next(after_ms, &map), Ok(LeaveStep::MoveFiles));
        leaving.files_moved();
        for now_ms in [after_ms + 100, after_ms + 300] {
            assert_eq!(leaving.next(now_ms, &map), Ok(LeaveStep::Count));
            leaving.counted(2);
            assert_eq!(leaving.next(now_ms, &map), Ok(LeaveStep::LookAgain(LOOK_MS)));
        }
        leaving.counted(2);
        assert_eq!(leaving.next(after_ms + 100 + EMPTY_MS_MAX, &map), Err(Stays::Objects(2)));
    }

    #[test]
    fn a_shard_that_comes_to_the_node_meanwhile_moves_before_anything_else() {
        let mut leaving = Leaving::remove(NodeId(1));
        let map = emptied(&mut leaving);
        let map = moved(&map, ShardId::ROOT, NodeId(1));
        let step = leaving.next(20, &map);
        assert_eq!(step, Ok(LeaveStep::MoveShard { shard: ShardId::ROOT, to: NodeId(0) }));
    }

    #[test]
    fn the_last_node_that_takes_shards_does_not_drain() {
        let map = map_of(1, 2);
        assert_eq!(Leaving::remove(NodeId(0)).next(0, &map), Err(Stays::NoOtherNode));
        let map = changed(&map_of(2, 1), NodeChange::Drain);
        assert_eq!(Leaving::drain(NodeId(0)).next(0, &map), Err(Stays::NoOtherNode));
    }

    #[test]
    fn shards_go_to_the_node_with_the_fewest() {
        let map = map_of(2, 2).with_nodes(&[record(2)], 1, MapEpoch(2));
        assert_eq!((least_loaded(&map, NodeId(1)), least_loaded(&map, NodeId(2))), (Some(NodeId(2)), Some(NodeId(0))));
        let map = map.with_change(NodeId(2), NodeChange::Drain, MapEpoch(3)).expect("a change");
        assert_eq!(least_loaded(&map, NodeId(1)), Some(NodeId(0)), "one that drains takes none");
    }
}
