//! `weft df`: space of a file system and of each node.

use crate::failure::{Ending, Explain, Outcome};
use crate::output;
use crate::quantity::bytes_text;
use crate::session::{Session, node_name};
use crate::table::Table;
use serde::Serialize;
use weft_client::FileSystemSpace;
use weft_protocol::ClusterMap;

const HELP: &str = "\
--json prints an object (sizes in bytes):
  name, total, free, files, nodes: [{node, host, total, free, reserve, objects,
    error}]
A size given with --store shows as far as the device has it; what nodes of one
machine have on the same device counts once in the sums.
All nodes are asked at once, and have 3 s. Of one that does not answer, `error`
says why and the numbers are null; the sums lack it. Exit code 1: a node does
not answer.

Examples:
  weft df
  weft df job42 --json";

/// Show total and free space of a file system and of its nodes
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Name of the file system [default: the only one]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    name: String,
    total: u64,
    free: u64,
    files: u64,
    nodes: Vec<NodeSpace>,
}

#[derive(Serialize)]
struct NodeSpace {
    node: u16,
    host: String,
    total: Option<u64>,
    free: Option<u64>,
    reserve: Option<u64>,
    objects: Option<u64>,
    error: Option<String>,
}

pub fn run(args: &Args) -> Outcome {
    // `weft df NAME:/` is what a hand types.
    let name = args.name.as_deref().map(|name| name.strip_suffix('/').unwrap_or(name));
    let session = Session::open(name.map(|name| name.strip_suffix(':').unwrap_or(name)))?;
    let space = session.client.space().explain(|| format!("df {}", session.instance.map.name))?;
    let report = report(&session.client.map(), space);
    output::print_either(args.json, &report, || text(&report))?;
    let complete = report.nodes.iter().all(|node| node.error.is_none());
    Ok(if complete { Ending::Done } else { Ending::No })
}

fn report(map: &ClusterMap, space: FileSystemSpace) -> Report {
    let nodes = space.nodes.into_iter().map(|(id, answer)| {
        let (known, error) = match answer {
            Ok(known) => (Some(known), None),
            Err(error) => (None, Some(error.to_string())),
        };
        NodeSpace {
            node: id.0,
            host: map.node(id).map(|node| node.host.clone()).unwrap_or_default(),
            total: known.map(|space| space.total),
            free: known.map(|space| space.free),
            reserve: known.map(|space| space.reserve),
            objects: known.map(|space| space.objects),
            error,
        }
    });
    let (total, free, files) = (space.total, space.free, space.files);
    Report { name: map.name.clone(), total, free, files, nodes: nodes.collect() }
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&["NODE", "HOST", ">TOTAL", ">FREE", ">USED", ">OBJECTS", ""]);
    let used = |total: u64, free: u64| match total {
        0 => "-".to_owned(),
        total => format!("{:.0}%", total.saturating_sub(free) as f64 * 100.0 / total as f64),
    };
    for node in &report.nodes {
        let (total, free) = (node.total.unwrap_or(0), node.free.unwrap_or(0));
        let known = |text: String| if node.error.is_none() { text } else { "-".to_owned() };
        table.row([
            node_name(weft_protocol::NodeId(node.node)),
            node.host.clone(),
            known(bytes_text(total)),
            known(bytes_text(free)),
            known(used(total, free)),
            known(node.objects.unwrap_or(0).to_string()),
            node.error.clone().unwrap_or_default(),
        ]);
    }
    table.row([
        report.name.clone(),
        "(all)".to_owned(),
        bytes_text(report.total),
        bytes_text(report.free),
        used(report.total, report.free),
        report.files.to_string(),
        String::new(),
    ]);
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::message::storage::Space;
    use weft_protocol::{Error, NodeId};

    #[test]
    fn a_node_that_does_not_answer_is_named() {
        let space = Space { total: 4 << 30, free: 1 << 30, reserve: 0, objects: 2, device: 1, device_free: 1 << 30 };
        let nodes = vec![(NodeId(0), Ok(space)), (NodeId(1), Err(Error::Unreachable))];
        let map = ClusterMap { name: "w".into(), ..ClusterMap::default() };
        let report = report(&map, FileSystemSpace { total: 4 << 30, free: 1 << 30, files: 2, nodes });
        assert_eq!(
            text(&report),
            "NODE  HOST     TOTAL     FREE  USED  OBJECTS\n\
             n00          4.0 GiB  1.0 GiB   75%        2\n\
             n01                -        -     -        -  the server is away\n\
             w     (all)  4.0 GiB  1.0 GiB   75%        2\n"
        );
        let value = serde_json::to_value(&report).expect("JSON");
        assert!(value["nodes"][1]["total"].is_null() && value["nodes"][1]["error"].is_string());
    }
}
