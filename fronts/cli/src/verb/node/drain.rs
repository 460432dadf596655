//! `weft node drain`: all shards of a node move to others, one after the other, then the bytes of its files, and no new
//! ones come.
//!
//! Not here: what is done next ([`Leaving`]).

use super::{STATUS_PATIENCE, change_map, claim, newest_map, spread};
use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::output;
use crate::quantity::span_text;
use crate::relocation::{self, Relocation, Room, Share};
use crate::session::{self, Session, node_name};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use weft_client::{Destination, Instance, LeaveStep, Leaving, Stays};
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{Attributes, ClusterMap, Credentials, Error, NodeChange, NodeId, ShardId};

/// How long one change of the map may take, from the first request on: the root shard's node gives up before.
const PATIENCE: Duration = Duration::from_secs(30);

const HELP: &str = "\
Moves the shards of a node, which hold names and attributes, to the nodes with
the fewest shards, one after the other, while the file system is in use; that
of `/` too. A shard is copied while it is in use, then calls for what is in it
wait for a moment; a line for each shard says how long it took in all. Clients
and mounts learn of it by themselves, and make their files at other nodes from
then on.

Then what files have at the node is copied to the nodes with the most room. A
file that a program has open, or mapped, stays where it is, and is named if it
does so for some seconds: the node goes on serving it, and has to run.
--cancel has new files and shards come to the node again.

Examples:
  weft node drain job42 n03
  weft node drain job42 n03 --cancel";

/// Move everything that a node has to other nodes, and have new files made there
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Drain {
    /// Name of the file system
    name: String,
    /// Node, as `weft status` calls it
    #[arg(value_parser = parse_node)]
    node: NodeId,
    /// Have new files and shards come to it again; those that have left stay away
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    share: Share,
}

pub(super) fn parse_node(text: &str) -> Result<NodeId, String> {
    let number = text.strip_prefix('n').and_then(|number| number.parse().ok());
    number.map(NodeId).ok_or_else(|| "a node is named n00, n01, ..., as by `weft status`".to_owned())
}

pub fn drain(args: &Drain) -> Outcome {
    let instance = session::find_own(Some(&args.name), "node drain")?;
    let _alone = claim(&instance)?;
    let session = Session::open(Some(&args.name))?;
    if args.cancel {
        let map = change_node(&session, &current_map(&session, args.node)?, args.node, NodeChange::Keep)?;
        spread(&Instance { map, ..instance })?;
    } else {
        leave(&session, &instance, Leaving::drain(args.node), args.share)?;
    }
    session.close()?;
    Ok(Ending::Done)
}

/// The newest map. The node has to be in it.
fn current_map(session: &Session, node: NodeId) -> Outcome<ClusterMap> {
    let map = newest_map(session)?;
    if map.node(node).is_some() {
        return Ok(map);
    }
    Err(Failure::new(format!("\"{}\" has no node {}", map.name, node_name(node)))
        .remedy("`weft status` lists its nodes"))
}

/// Empties a node, and takes it out of the map if it is to be removed. Returns the new map.
pub(super) fn leave(session: &Session, instance: &Instance, mut leaving: Leaving, share: Share) -> Outcome<ClusterMap> {
    let (node, begun) = (leaving.node(), Instant::now());
    let mut map = current_map(session, node)?;
    let silent = silent_nodes(session, map.nodes.iter().map(|node| node.id));
    if silent.contains(&node) {
        return Err(away(&map, node));
    }
    loop {
        let now_ms = u64::try_from(begun.elapsed().as_millis()).expect("a process does not run for so long");
        match leaving.next(now_ms, &with_takers(&map, &silent)).map_err(|why| stays(&map, node, why))? {
            LeaveStep::Change(change) => {
                map = change_node(session, &map, node, change)?;
                // Of one that is removed, the process is recorded until it has ended.
                spread(&Instance { map: map.clone(), ..instance.clone() })?;
            }
            LeaveStep::MoveShard { shard, to } => map = move_shard(session, instance, &map, (shard, to))?,
            LeaveStep::MoveFiles => {
                empty_of_files(session, &map, node, share)?;
                leaving.files_moved();
            }
            LeaveStep::AwaitClients(ms) => {
                let (seconds, name) = (ms / 1000 + 1, node_name(node));
                output::print(&format!(
                    "waiting {seconds} s until every client makes its files elsewhere than {name}\n"
                ))?;
                std::thread::sleep(Duration::from_millis(ms));
            }
            LeaveStep::Count => leaving.counted(objects_at(session, node)?),
            LeaveStep::LookAgain(ms) => std::thread::sleep(Duration::from_millis(ms)),
            LeaveStep::Done => return Ok(map),
        }
    }
}

/// The nodes of these that do not answer.
fn silent_nodes(session: &Session, nodes: impl IntoIterator<Item = NodeId>) -> BTreeSet<NodeId> {
    let answers = session::ask_nodes(&session.client, nodes, &NodeRequest::Status, STATUS_PATIENCE);
    answers.into_iter().filter(|(_, answer)| answer == &Err(Error::Unreachable)).map(|(node, _)| node).collect()
}

/// The map in which no shard is to go to nodes that do not answer.
fn with_takers(map: &ClusterMap, silent: &BTreeSet<NodeId>) -> ClusterMap {
    let mut map = map.clone();
    map.nodes.iter_mut().filter(|node| silent.contains(&node.id)).for_each(|node| node.drains = true);
    map
}

/// Nothing can be moved from a node that does not answer.
fn away(map: &ClusterMap, node: NodeId) -> Failure {
    let shards: Vec<String> = map.shards_at(node).map(|shard| shard.to_string()).collect();
    let names = match &shards[..] {
        [] => String::new(),
        [shard] => format!("shard {shard} (names and attributes) and "),
        shards => format!("shards {} (names and attributes) and ", shards.join(", ")),
    };
    Failure::unreachable(format!(
        "node {} does not answer, and what is there cannot be moved: {names}the bytes that files have there",
        node_name(node)
    ))
    .remedy(
        "if it hangs (`weft status` shows its process), try again when it answers; what was at a node that has ended \
         is lost, and the rest goes on without it: `weft cp -r` copies that, `weft down` ends the file system",
    )
}

fn stays(map: &ClusterMap, node: NodeId, why: Stays) -> Failure {
    match why {
        Stays::NoOtherNode => {
            Failure::new(format!("\"{}\" has no other node for what is at {}", map.name, node_name(node)))
                .remedy("`weft node add` adds one; `weft node drain --cancel` ends the draining of another one")
        }
        Stays::Objects(objects) => {
            Failure::new(format!("{objects} objects with bytes of files are at node {}", node_name(node)))
                .remedy("they are of files without a name that somebody has open: close these, and try again")
        }
    }
}

fn objects_at(session: &Session, node: NodeId) -> Outcome<u64> {
    let name = node_name(node);
    let answers = session::ask_nodes(&session.client, [node], &NodeRequest::Status, STATUS_PATIENCE);
    match answers.into_iter().next().map(|(_, answer)| answer) {
        Some(Ok(NodeAnswer::Status(status))) => Ok(status.space.map_or(0, |space| space.objects)),
        Some(Err(error)) => Err(Failure::of_weft(format_args!("ask node {name} what it holds"), &error).failed()),
        other => Err(Failure::new(format!("unexpected reply {other:?} of node {name}"))),
    }
}

/// Moves the bytes that files have at a node.
fn empty_of_files(session: &Session, map: &ClusterMap, node: NodeId, share: Share) -> Outcome<()> {
    let begun = Instant::now();
    let spaces = session.client.space().explain(|| format!("df {}", map.name))?;
    let from: BTreeSet<NodeId> = [node].into();
    let room = Room::beside(session, &spaces, &from);
    if room.count() == 0 {
        return Err(Failure::new(format!("\"{}\" has no other node that stores files", map.name))
            .remedy("`weft node add` adds one; `weft df` tells what each has"));
    }
    // The owner of the file system moves everybody's files.
    let who = Credentials::default();
    let there = |attributes: &Attributes| match attributes.layout.epoch() {
        None => attributes.layout.objects().iter().filter(|object| object.node() == node).count(),
        Some(_) => {
            // Where nobody tells, copying the file tells why.
            let pieces = session.client.locate(&who, attributes.inode);
            pieces.map_or(1, |pieces| usize::from(pieces.iter().any(|piece| piece.node == Some(node))))
        }
    };
    let choose = |attributes: &Attributes| {
        let (all, going) = (attributes.layout.objects().len() as u64, there(attributes));
        let to = room.take(attributes.size / all.max(1) * going as u64, going.max(1));
        Destination { layout: None, from: from.clone(), to }
    };
    let concerns = |attributes: &Attributes| there(attributes) > 0;
    let relocation =
        Relocation { session, who: who.clone(), share, concerns: &concerns, choose: &choose, verb: "move" };
    let (path, attributes) = relocation::root_of(session)?;
    let outcomes = relocation.run(&path, &attributes);
    relocation::tell(&outcomes, begun.elapsed(), "moved")
}

/// Has the root shard's node change a node.
fn change_node(session: &Session, map: &ClusterMap, node: NodeId, change: NodeChange) -> Outcome<ClusterMap> {
    let what = match change {
        NodeChange::Drain => "drain",
        NodeChange::Keep => "keep",
        NodeChange::Remove => "remove",
    };
    let changed = change_map(session, map, &NodeRequest::Change { node, change }, PATIENCE)?;
    changed.map_err(|error| Failure::of_weft(format_args!("{what} node {}", node_name(node)), &error).failed())
}

/// Has the root shard's node move a shard, and tells how long it took. Returns the new map, which is recorded.
pub(super) fn move_shard(
    session: &Session,
    instance: &Instance,
    map: &ClusterMap,
    (shard, to): (ShardId, NodeId),
) -> Outcome<ClusterMap> {
    let (from, begun) = (map.node_of(shard).expect("a shard of the map"), Instant::now());
    let moved = change_map(session, map, &NodeRequest::Move { shard, to }, PATIENCE)?;
    let map = moved.map_err(|error| match error {
        Error::Unreachable => {
            let silent = silent_nodes(session, [from, to]);
            let stays = format!("shard {shard} stays where it was");
            if silent.contains(&from) {
                return away(map, from);
            }
            if silent.contains(&to) {
                return Failure::unreachable(format!("{stays}: node {} does not answer", node_name(to)))
                    .remedy("`weft status` shows which nodes answer; try again");
            }
            Failure::new(format!("{stays}: it was not at {} in time", node_name(to)))
                .remedy("see the logs of both nodes; a shard that takes longer than some seconds does not move")
        }
        error => Failure::of_weft(format_args!("move shard {shard}"), &error).failed(),
    })?;
    let took = span_text(begun.elapsed());
    output::print(&format!("shard {shard}: {} to {} in {took}\n", node_name(from), node_name(to)))?;
    spread(&Instance { map: map.clone(), ..instance.clone() })?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::super::record_of;
    use super::*;
    use weft_protocol::MapEpoch;

    #[test]
    fn what_is_at_a_node_that_does_not_answer_is_named() {
        let nodes = [0, 1].map(record_of);
        let map = ClusterMap::default().with_nodes(&nodes, 2, MapEpoch(1));
        let text = away(&map, NodeId(1)).to_string();
        let shards: Vec<String> = map.shards_at(NodeId(1)).map(|shard| shard.to_string()).collect();
        assert!(text.contains("node n01 does not answer") && text.contains("is lost"), "{text}");
        assert!(text.contains(&format!("shards {} (names", shards.join(", "))), "{text}");
    }

    #[test]
    fn nodes_that_do_not_answer_take_no_shards() {
        let nodes = [0, 1, 2].map(record_of);
        let map = ClusterMap::default().with_nodes(&nodes[..1], 3, MapEpoch(1));
        let map = map.with_nodes(&nodes[1..], 1, MapEpoch(2));
        let map = map.with_change(NodeId(2), NodeChange::Drain, MapEpoch(3)).expect("a change");
        let next = |silent: &[u16]| {
            let silent = silent.iter().copied().map(NodeId).collect();
            Leaving::drain(NodeId(2)).next(0, &with_takers(&map, &silent))
        };
        let shard = map.shards_at(NodeId(2)).next().expect("its shard");
        assert_eq!(next(&[]), Ok(LeaveStep::MoveShard { shard, to: NodeId(1) }), "the one with the fewest");
        assert_eq!(next(&[1]), Ok(LeaveStep::MoveShard { shard, to: NodeId(0) }));
        assert_eq!(next(&[0, 1]), Err(Stays::NoOtherNode));
    }

    #[test]
    fn nodes_are_named_as_in_tables() {
        assert_eq!((parse_node("n03"), parse_node("n12")), (Ok(NodeId(3)), Ok(NodeId(12))));
        assert!(parse_node("3").is_err() && parse_node("nine").is_err());
    }
}
