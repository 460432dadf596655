//! `weft debug`: looks inside.

use crate::failure::{Ending, Failure, Outcome};
use crate::output::{self, note};
use crate::quantity::{Span, span_text};
use crate::session::{self, node_name};
use crate::table::Table;
use serde::Serialize;
use std::time::Duration;
use weft_protocol::message::node::{NodeAnswer, NodeRequest, RequestInFlight};
use weft_protocol::{Error, NodeId, Result};

const STUCK_HELP: &str = "\
--json prints an object:
  nodes: [{node, name, error (null: it answered), requests: [{peer, request,
    state, age_ms}]}]
Exit code 1: a node does not answer.

Examples:
  weft debug stuck
  weft debug stuck job42 --older 5s";

/// Look inside a file system: what its nodes are waiting for
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    Stuck(Stuck),
}

/// Show every request in flight, oldest first, and what it waits for
#[derive(clap::Args, Debug)]
#[command(after_long_help = STUCK_HELP)]
struct Stuck {
    /// Name of the file system [default: the only one]
    name: Option<String>,
    /// Only requests that are older
    #[arg(long, value_name = "TIME", default_value = "0s")]
    older: Span,
    /// How long to wait for answers
    #[arg(long, value_name = "TIME", default_value = "3s")]
    timeout: Span,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    nodes: Vec<NodeReport>,
}

#[derive(Serialize)]
struct NodeReport {
    node: u16,
    name: String,
    error: Option<String>,
    requests: Vec<RequestInFlight>,
}

pub fn run(args: &Args) -> Outcome {
    match &args.what {
        What::Stuck(args) => stuck(args),
    }
}

fn stuck(args: &Stuck) -> Outcome {
    let instance = session::find_own(args.name.as_deref(), "debug stuck")?;
    session::require_alive(&instance)?;
    let client = session::connect_patiently(&instance, args.timeout.0)
        .map_err(|error| Failure::of_weft(format_args!("connect to \"{}\"", instance.map.name), &error))?;
    let nodes = instance.map.nodes.iter().map(|node| node.id);
    let answers = session::ask_nodes(&client, nodes, &NodeRequest::Stuck, args.timeout.0);
    let nodes = answers.into_iter().map(|(node, answer)| node_report(node, answer, args.older.0)).collect();
    let report = Report { nodes };
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&table(&report).to_string())?;
        for node in &report.nodes {
            if let Some(error) = &node.error {
                note(format_args!("{} does not answer: {error}", node.name));
            }
        }
    }
    let all = report.nodes.iter().all(|node| node.error.is_none());
    Ok(if all { Ending::Done } else { Ending::No })
}

fn node_report(node: NodeId, answer: Result<NodeAnswer>, older: Duration) -> NodeReport {
    let requests = answer.and_then(|answer| match answer {
        NodeAnswer::InFlight(requests) => Ok(requests),
        _ => Err(Error::Malformed),
    });
    let (error, mut requests) = match requests {
        Ok(requests) => (None, requests),
        Err(error) => (Some(error.to_string()), Vec::new()),
    };
    requests.retain(|request| Duration::from_millis(request.age_ms) >= older);
    NodeReport { node: node.0, name: node_name(node), error, requests }
}

fn table(report: &Report) -> Table {
    let mut table = Table::new(&["NODE", ">AGE", "PEER", "REQUEST", "WAITS FOR"]);
    let of_node =
        |node: &NodeReport| node.requests.iter().map(|request| (node.name.clone(), request.clone())).collect();
    let mut all: Vec<(String, RequestInFlight)> =
        report.nodes.iter().flat_map(|node| -> Vec<(String, RequestInFlight)> { of_node(node) }).collect();
    all.sort_by_key(|(_, request)| std::cmp::Reverse(request.age_ms));
    for (node, RequestInFlight { peer, request, state, age_ms }) in all {
        table.row([node, span_text(Duration::from_millis(age_ms)), peer, request, state]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_comes_first_and_a_silent_node_is_named() {
        let request = |age_ms| RequestInFlight {
            peer: "p".into(),
            request: format!("r{age_ms}"),
            state: "recall".into(),
            age_ms,
        };
        let answer = NodeAnswer::InFlight(vec![request(10), request(70_000), request(2_000)]);
        let older = Duration::from_millis(20);
        let nodes =
            vec![node_report(NodeId(0), Ok(answer), older), node_report(NodeId(1), Err(Error::Unreachable), older)];
        let report = Report { nodes };
        assert_eq!(
            table(&report).to_string(),
            "NODE    AGE  PEER  REQUEST  WAITS FOR\n\
             n00   1m10s  p     r70000   recall\n\
             n00   2.0 s  p     r2000    recall\n"
        );
        let value = serde_json::to_value(&report).expect("JSON");
        assert_eq!(value["nodes"][1]["error"], "the server is away");
        for field in ["node", "name", "error", "requests", "peer", "request", "state", "age_ms"] {
            assert!(STUCK_HELP.contains(field), "{field}");
        }
    }
}
