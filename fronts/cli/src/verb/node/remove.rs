//! `weft node remove`: a node that holds nothing leaves the map, and ends.

use super::drain::{change_node, empty_of_shards, parse_node};
use super::{claim, spread, take_back};
use crate::failure::{Ending, Failure, Outcome};
use crate::output;
use crate::session::{self, Session, node_name};
use std::time::Duration;
use weft_client::Instance;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{NodeChange, NodeId};

/// How long the node may take to tell what it holds.
const PATIENCE: Duration = Duration::from_secs(10);

const HELP: &str = "\
Moves the shards of a node to others, as `weft node drain` does, and ends the
node when no file has bytes there. As long as some have, it says how many, and
the node stays; new files are made elsewhere meanwhile.

Examples:
  weft node remove job42 n03";

/// Remove a node on which no file has bytes
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Remove {
    /// Name of the file system
    name: String,
    /// Node, as `weft status` calls it
    #[arg(value_parser = parse_node)]
    node: NodeId,
}

pub fn remove(args: &Remove) -> Outcome {
    let instance = session::find_own(Some(&args.name), "node remove")?;
    let _alone = claim(&instance)?;
    let session = Session::open(Some(&args.name))?;
    let map = empty_of_shards(&session, &instance, args.node)?;
    check_is_empty(&session, args.node)?;
    let map = change_node(&session, &map, args.node, NodeChange::Remove)?;
    let (ended, kept): (Vec<_>, Vec<_>) =
        instance.processes.iter().cloned().partition(|process| process.node == args.node);
    spread(&Instance { map: map.clone(), ..instance.clone() })?;
    take_back(&args.name, &ended);
    spread(&Instance { map, processes: kept, ..instance })?;
    output::print(&format!("{} left {}\n", node_name(args.node), args.name))?;
    session.close()?;
    Ok(Ending::Done)
}

/// Refuses a node whose store has objects.
fn check_is_empty(session: &Session, node: NodeId) -> Outcome<()> {
    let name = node_name(node);
    let answers = session::ask_nodes(&session.client, [node], &NodeRequest::Status, PATIENCE);
    let status = match answers.into_iter().next().map(|(_, answer)| answer) {
        Some(Ok(NodeAnswer::Status(status))) => status,
        Some(Err(error)) => {
            return Err(Failure::of_weft(format_args!("ask node {name} what it holds"), &error).failed());
        }
        other => return Err(Failure::new(format!("unexpected reply {other:?} of node {name}"))),
    };
    match status.space.map_or(0, |space| space.objects) {
        0 => Ok(()),
        objects => Err(Failure::new(format!("{objects} objects with bytes of files are at node {name}"))
            .remedy("`weft locate` shows whose; copy these files, or remove them, and try again")),
    }
}
