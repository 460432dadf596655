//! `weft node remove`: a node is emptied, leaves the map, and ends.

use super::drain::{change_node, empty_of_files, empty_of_shards, parse_node};
use super::{STATUS_PATIENCE, claim, spread, take_back};
use crate::failure::{Ending, Failure, Outcome};
use crate::output;
use crate::relocation::Share;
use crate::session::{self, Session, node_name};
use std::time::{Duration, Instant};
use weft_client::Instance;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{NodeChange, NodeId};

/// How long the node may take to remove what is no file's any more; and how often it is asked.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_PAUSE: Duration = Duration::from_millis(200);

const HELP: &str = "\
Moves the shards of a node and the bytes that files have there to others, as
`weft node drain` does, and ends the node. As long as files that are in use
have bytes there, it names them, and the node stays; new files are made
elsewhere meanwhile. It takes at least 10 s, the time in which every client
learns that the node leaves.

Examples:
  weft node remove job42 n03";

/// Move everything that a node has to other nodes, and end it
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Remove {
    /// Name of the file system
    name: String,
    /// Node, as `weft status` calls it
    #[arg(value_parser = parse_node)]
    node: NodeId,
    #[command(flatten)]
    share: Share,
}

pub fn remove(args: &Remove) -> Outcome {
    let instance = session::find_own(Some(&args.name), "node remove")?;
    let _alone = claim(&instance)?;
    let session = Session::open(Some(&args.name))?;
    let map = empty_of_shards(&session, &instance, args.node)?;
    let drained = Instant::now();
    empty_of_files(&session, &map, args.node, args.share)?;
    wait_for_clients(args.node, drained)?;
    if objects_at(&session, args.node)? > 0 {
        empty_of_files(&session, &map, args.node, args.share)?;
    }
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

/// A client that does not know yet that the node drains still makes files there. After a term it knows, or its session
/// has ended.
fn wait_for_clients(node: NodeId, drained: Instant) -> Outcome<()> {
    let left = (drained + Duration::from_millis(SESSION_TERM_MS)).saturating_duration_since(Instant::now());
    if !left.is_zero() {
        let seconds = left.as_secs() + 1;
        output::print(&format!(
            "waiting {seconds} s until every client makes its files elsewhere than {}\n",
            node_name(node)
        ))?;
        std::thread::sleep(left);
    }
    Ok(())
}

/// Refuses a node whose store keeps objects: those of files that have moved are removed within a moment.
fn check_is_empty(session: &Session, node: NodeId) -> Outcome<()> {
    let until = Instant::now() + PATIENCE;
    let mut objects = objects_at(session, node)?;
    while objects > 0 && Instant::now() < until {
        std::thread::sleep(LOOK_PAUSE);
        objects = objects_at(session, node)?;
    }
    if objects == 0 {
        return Ok(());
    }
    Err(Failure::new(format!("{objects} objects with bytes of files are at node {}", node_name(node)))
        .remedy("they are of files without a name that somebody has open: close these, and try again"))
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
