//! `weft host`: carries out an order of `weft up` or `weft down` on the machine that ssh reached.

use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::host::{self, Order, Reply};
use crate::output;
use crate::processes::{self, Process, Stream};
use std::io::{self, Read};
use std::time::Duration;

/// How long the end of nodes is waited for at a time.
const STAY_STEP: Duration = Duration::from_secs(3600);

const HELP: &str = "\
Standard input: an order as JSON (Start, Install, Unmount, Stop, Copy).
Standard output: a line of JSON, the reply; of an order that failed {\"Failed\":
{\"text\": TEXT, \"remedy\": TEXT or null}}.

Examples:
  ssh n1.cluster weft host < order.json";

/// Start or stop nodes, or copy, on this machine (run over ssh by `weft up`)
#[derive(clap::Args, Debug)]
#[command(hide = true, after_long_help = HELP)]
pub struct Args {
    /// Stay until the nodes that were started have ended: Slurm ends them with this
    #[arg(long)]
    stay: bool,
}

pub fn run(args: &Args) -> Outcome {
    let mut text = Vec::new();
    io::stdin().lock().read_to_end(&mut text).explain(|| "read the order")?;
    let order: Result<Order, _> = serde_json::from_slice(&text);
    let done = order
        .map_err(|error| Failure::new(format!("order: {error}")).remedy("use the same version of weft on all hosts"))
        .and_then(|order| host::perform_here(&order));
    let reply = done.unwrap_or_else(|failure| Reply::Failed {
        text: failure.text().to_owned(),
        remedy: failure.remedy_text().map(str::to_owned),
    });
    let line = serde_json::to_string(&reply).map_err(|error| Failure::new(format!("reply: {error}")))?;
    output::print(&format!("{line}\n"))?;
    if let (true, Reply::Started(started)) = (args.stay, &reply) {
        processes::silence(Stream::Output)?;
        let nodes: Vec<Process> = started.nodes.iter().map(|node| node.process).collect();
        while !processes::wait_for_end(&nodes, STAY_STEP) {}
    }
    Ok(Ending::Done)
}
