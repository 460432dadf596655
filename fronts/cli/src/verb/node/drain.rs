//! `weft node drain`: all shards of a node move to others, one after the other.

use super::{claim, spread};
use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::output;
use crate::quantity::span_text;
use crate::session::{self, Session, node_name};
use std::time::{Duration, Instant};
use weft_client::Instance;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{ClusterMap, Error, NodeId, ShardId};

/// How long one shard may take, from the first request on: the root shard's node gives up before.
const MOVE_PATIENCE: Duration = Duration::from_secs(30);
/// Pause before a move is asked for again while the map changes otherwise.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

const HELP: &str = "\
Moves the shards of a node, which hold names and attributes, to the nodes with
the fewest shards, one after the other, while the file system is in use. Calls
for what is in a shard wait while it moves; a line for each shard says for how
long. Clients and mounts learn of it by themselves.

The bytes of files stay where they are: the node goes on serving its files'
data, and has to run. The root shard, which has `/`, does not move.

Examples:
  weft node drain job42 n03";

/// Move all shards of a node to the other nodes; its files' data stays
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Drain {
    /// Name of the file system
    name: String,
    /// Node, as `weft status` calls it
    #[arg(value_parser = parse_node)]
    node: NodeId,
}

fn parse_node(text: &str) -> Result<NodeId, String> {
    let number = text.strip_prefix('n').and_then(|number| number.parse().ok());
    number.map(NodeId).ok_or_else(|| "a node is named n00, n01, ..., as by `weft status`".to_owned())
}

pub fn drain(args: &Drain) -> Outcome {
    let (name, node) = (&args.name, args.node);
    let instance = session::find_own(Some(name), "node drain")?;
    let _alone = claim(&instance)?;
    let session = Session::open(Some(name))?;
    session.client.ping().explain(|| format!("reach the shard of {name}:/"))?;
    let mut map = ClusterMap::clone(&session.client.map());
    if map.node(node).is_none() {
        return Err(Failure::new(format!("\"{name}\" has no node {}", node_name(node))));
    }
    let shards: Vec<ShardId> = map.shards_at(node).collect();
    for shard in shards.iter().copied().filter(|shard| *shard != ShardId::ROOT) {
        let Some(to) = least_loaded(&map, node) else {
            return Err(Failure::new(format!("\"{name}\" has no other node for the shards of {}", node_name(node))));
        };
        let begun = Instant::now();
        map = move_shard(&session, &map, shard, to)?;
        let pause = span_text(begun.elapsed());
        output::print(&format!("shard {shard}: {} to {} in {pause}\n", node_name(node), node_name(to)))?;
        spread(&Instance { map: map.clone(), ..instance.clone() })?;
    }
    session.close()?;
    if shards.contains(&ShardId::ROOT) {
        return Err(Failure::new(format!("shard 0 of \"{name}\", which has `/`, stays at {}", node_name(node)))
            .remedy("the root shard does not move; drain another node"));
    }
    Ok(Ending::Done)
}

/// The other node with the fewest shards; of several the first.
fn least_loaded(map: &ClusterMap, drained: NodeId) -> Option<NodeId> {
    let others = map.nodes.iter().map(|node| node.id).filter(|node| *node != drained);
    others.min_by_key(|node| map.shards_at(*node).count())
}

/// Has the root shard's node move a shard.
fn move_shard(session: &Session, map: &ClusterMap, shard: ShardId, to: NodeId) -> Outcome<ClusterMap> {
    let name = &map.name;
    let root = map.node_of(ShardId::ROOT).ok_or_else(|| Failure::new(format!("\"{name}\" has no root shard")))?;
    let until = Instant::now() + MOVE_PATIENCE;
    loop {
        let patience = until.saturating_duration_since(Instant::now());
        let request = NodeRequest::Move { shard, to };
        let answers = session::ask_nodes(&session.client, [root], &request, patience);
        match answers.into_iter().next().map(|(_, answer)| answer) {
            Some(Ok(NodeAnswer::Map(map))) => return Ok(map),
            Some(Err(Error::Busy)) if Instant::now() < until => std::thread::sleep(BUSY_PAUSE),
            Some(Err(Error::Unreachable)) => {
                return Err(Failure::new(format!(
                    "shard {shard} stays where it was: it was not at {} in time",
                    node_name(to)
                ))
                .remedy("see the logs of both nodes; a shard that takes longer than some seconds does not move"));
            }
            Some(Err(error)) => return Err(Failure::of_weft(format_args!("move shard {shard}"), &error).failed()),
            other => return Err(Failure::new(format!("unexpected reply {other:?} of node {}", node_name(root)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::{MapEpoch, NodeAddress, NodeIdentity, NodeRecord};

    #[test]
    fn shards_go_to_the_node_with_the_fewest() {
        let record = |id| NodeRecord {
            id: NodeId(id),
            host: String::new(),
            site: String::new(),
            identity: NodeIdentity(1),
            address: NodeAddress::default(),
            stores: true,
        };
        let map = ClusterMap::default().with_nodes(&[record(0), record(1)], 2, MapEpoch(1));
        let map = map.with_nodes(&[record(2)], 1, MapEpoch(2));
        assert_eq!((least_loaded(&map, NodeId(1)), least_loaded(&map, NodeId(2))), (Some(NodeId(2)), Some(NodeId(0))));
        assert_eq!(least_loaded(&ClusterMap::default().with_nodes(&[record(0)], 2, MapEpoch(1)), NodeId(0)), None);
    }

    #[test]
    fn nodes_are_named_as_in_tables() {
        assert_eq!((parse_node("n03"), parse_node("n12")), (Ok(NodeId(3)), Ok(NodeId(12))));
        assert!(parse_node("3").is_err() && parse_node("nine").is_err());
    }
}
