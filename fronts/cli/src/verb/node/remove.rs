//! `weft node remove`: a node is emptied, leaves the map, and ends.

use super::drain::{leave, parse_node};
use super::{claim, spread, take_back};
use crate::failure::{Ending, Outcome};
use crate::output;
use crate::relocation::Share;
use crate::session::{self, Session, node_name};
use weft_client::{Instance, Leaving};
use weft_protocol::NodeId;

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
    let map = leave(&session, &instance, Leaving::remove(args.node), args.share)?;
    let (ended, kept): (Vec<_>, Vec<_>) =
        instance.processes.iter().cloned().partition(|process| process.node == args.node);
    take_back(&args.name, &ended);
    spread(&Instance { map, processes: kept, ..instance })?;
    output::print(&format!("{} left {}\n", node_name(args.node), args.name))?;
    session.close()?;
    Ok(Ending::Done)
}
