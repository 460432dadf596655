//! `weft balance`: shards and bytes go from the nodes that have most of them to those that have least.

use super::drain::move_shard;
use super::{claim, load, newest_map};
use crate::failure::{Ending, Explain, Outcome};
use crate::output;
use crate::relocation::{self, Relocation, Room, Share};
use crate::session::{self, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Instant;
use weft_client::{Destination, FileSystemSpace};
use weft_protocol::{Attributes, ClusterMap, Credentials, NodeId, NodeRecord, ShardId};

/// How much more than the average of its space a node may use, in hundredths of its space, before files leave it.
const TOLERANCE_PERCENT: u64 = 2;

const HELP: &str = "\
Moves shards, which hold names and attributes, until no node has two more than
another one; then, if there is much to do, those with many calls to nodes with
few, for as long as it makes the busiest node's calls less by a tenth (calls
are counted for two seconds). Then what files have on nodes that use a larger
part of their space than the average, to those that use less, until all use
about the same. Files that are in use stay. Nodes that drain get nothing.

Nodes whose stores have no size and share a device have all the same space: of
such, only shards move.

Examples:
  weft balance job42
  weft balance job42 --share 100";

/// Spread shards and bytes evenly over the nodes
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Name of the file system
    name: String,
    #[command(flatten)]
    share: Share,
}

pub fn run(args: &Args) -> Outcome {
    let instance = session::find_own(Some(&args.name), "balance")?;
    let _alone = claim(&instance)?;
    let session = Session::open(Some(&args.name))?;
    let mut map = newest_map(&session)?;
    while let Some((shard, to)) = surplus_shard(&map) {
        map = move_shard(&session, &instance, &map, (shard, to))?;
    }
    load::balance(&session, &instance, map)?;
    let moved = move_files(&session, args.share);
    session.close()?;
    moved.map(|()| Ending::Done)
}

/// A shard of a node that has two more than another, and that one. That of `/` stays where it is.
fn surplus_shard(map: &ClusterMap) -> Option<(ShardId, NodeId)> {
    let nodes = || map.nodes.iter().filter(|node| !node.drains).map(|node| node.id);
    let count = |node: &NodeId| map.shards_at(*node).count();
    let (least, most) = (nodes().min_by_key(count)?, nodes().max_by_key(count)?);
    let shard = map.shards_at(most).find(|shard| *shard != ShardId::ROOT)?;
    (count(&most) > count(&least) + 1).then_some((shard, least))
}

/// Bytes that are to leave nodes, and that others can take, so that all use the same part of their space.
#[derive(Debug, PartialEq, Eq)]
struct Shifts {
    leave: BTreeMap<NodeId, u64>,
    take: BTreeMap<NodeId, u64>,
}

impl Shifts {
    fn of(map: &ClusterMap, spaces: &FileSystemSpace) -> Self {
        let kept = |node: &NodeId| map.node(*node).is_some_and(NodeRecord::takes_files);
        let known = spaces.nodes.iter().filter_map(|(node, space)| Some((*node, space.as_ref().ok()?)));
        let known: Vec<_> = known.filter(|(node, _)| kept(node)).collect();
        let (total, free) = known.iter().fold((0, 0), |sum, (_, space)| (sum.0 + space.total, sum.1 + space.free));
        let (mut leave, mut take) = (BTreeMap::new(), BTreeMap::new());
        for (node, space) in known {
            let used = space.total.saturating_sub(space.free);
            let share = u128::from(space.total) * u128::from(total - free.min(total)) / u128::from(total.max(1));
            let share = u64::try_from(share).expect("at most the node's space");
            if used > share + space.total / 100 * TOLERANCE_PERCENT {
                leave.insert(node, used - share);
            } else if share > used {
                take.insert(node, share - used);
            }
        }
        Self { leave, take }
    }
}

fn move_files(session: &Session, share: Share) -> Outcome<()> {
    let begun = Instant::now();
    let spaces = session.client.space().explain(|| format!("df {}", session.instance.map.name))?;
    let Shifts { leave, take } = Shifts::of(&session.client.map(), &spaces);
    if leave.is_empty() || take.is_empty() {
        return output::print("no node uses much more of its space than the others\n");
    }
    let (room, leave) = (Room::new(take), Mutex::new(leave));
    // Of a file, bytes of an object, and nodes that it is to leave.
    let leaves = |attributes: &Attributes| -> (u64, BTreeSet<NodeId>) {
        let objects = attributes.layout.objects();
        let bytes = attributes.size / (objects.len() as u64).max(1);
        let left = relocation::locked(&leave);
        let goes = |node: &NodeId| bytes > 0 && left.get(node).is_some_and(|left| *left >= bytes);
        (bytes, objects.iter().map(|object| object.node()).filter(goes).collect())
    };
    let concerns = |attributes: &Attributes| {
        let (bytes, from) = leaves(attributes);
        !from.is_empty() && room.most() >= bytes
    };
    let choose = |attributes: &Attributes| {
        let (bytes, from) = leaves(attributes);
        let mut left = relocation::locked(&leave);
        for node in &from {
            left.entry(*node).and_modify(|left| *left = left.saturating_sub(bytes));
        }
        let to = room.take(bytes * from.len() as u64, from.len().max(1));
        Destination { layout: None, from, to }
    };
    let who = Credentials::default();
    let relocation = Relocation { session, who, share, concerns: &concerns, choose: &choose, verb: "move" };
    let (path, attributes) = relocation::root_of(session)?;
    let outcomes = relocation.run(&path, &attributes);
    relocation::tell(&outcomes, begun.elapsed(), "moved")
}

#[cfg(test)]
mod tests {
    use super::super::record_of;
    use super::*;
    use weft_protocol::message::storage::Space;
    use weft_protocol::{Error, MapEpoch, NodeChange};

    fn map_of(nodes: u16) -> ClusterMap {
        (0..nodes).fold(ClusterMap::default(), |map, id| {
            let shards = if id == 0 { 3 } else { 1 };
            map.with_nodes(&[record_of(id)], shards, MapEpoch(u32::from(id) + 1))
        })
    }

    #[test]
    fn shards_leave_nodes_with_two_more_and_that_of_the_root_stays() {
        let map = map_of(3);
        let (shard, to) = surplus_shard(&map).expect("three at one node");
        assert!(shard != ShardId::ROOT && map.node_of(shard) == Some(NodeId(0)) && to == NodeId(1));
        let drained = map.with_change(NodeId(0), NodeChange::Drain, MapEpoch(9)).expect("a change");
        assert_eq!(surplus_shard(&drained), None, "one each at the others");
    }

    #[test]
    fn bytes_leave_nodes_above_the_average() {
        let space = |total, free| Space { total, free, reserve: 0, objects: 1, device: 0, device_free: free };
        let nodes = vec![
            (NodeId(0), Ok(space(1000, 100))),
            (NodeId(1), Ok(space(1000, 700))),
            (NodeId(2), Ok(space(1000, 390))),
            (NodeId(7), Err(Error::Unreachable)),
        ];
        let spaces = FileSystemSpace { total: 3000, free: 1190, files: 3, nodes };
        let shifts = Shifts::of(&map_of(3), &spaces);
        assert_eq!(shifts, Shifts { leave: [(NodeId(0), 297)].into(), take: [(NodeId(1), 303)].into() });
        let even = vec![(NodeId(0), Ok(space(10, 5))), (NodeId(1), Ok(space(1000, 500)))];
        let even = FileSystemSpace { total: 1010, free: 505, files: 3, nodes: even };
        assert!(Shifts::of(&map_of(2), &even).leave.is_empty());
    }
}
