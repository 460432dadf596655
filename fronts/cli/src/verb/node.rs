//! `weft node`: nodes of a file system that runs.
//!
//! A node is started, recorded, and only then joins: a run of this verb that is killed leaves nothing that `weft down`
//! does not end. Who decides on the map, and who learns of it when: docs/decisions/0023.

pub mod balance;
mod drain;
mod load;
mod remove;

use super::up::{self, NodePlan};
use crate::cluster;
use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::host::start::{Over, StartOrder};
use crate::host::stop::{RuntimeFiles, StopOrder};
use crate::host::{self, Machine, Order};
use crate::hosts::{self, StoreChoice};
use crate::listen::Listen;
use crate::output;
use crate::quantity::span_text;
use crate::session::{self, Session, node_name};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weft_client::Instance;
use weft_client::instance::NodeProcess;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{ClusterMap, Error, NodeRecord, ShardId};

/// How long nodes that were started may take to join.
const JOIN_PATIENCE: Duration = Duration::from_secs(30);
/// Pause before the map's change is asked for again while it changes otherwise.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
/// How long nodes may take to tell their state.
const STATUS_PATIENCE: Duration = Duration::from_secs(10);
/// How long nodes that are in no map may take to end, milliseconds.
const STOP_PATIENCE_MS: u64 = 1_000;

const ADD_HELP: &str = "\
Starts nodes, here or on hosts reached by ssh as `weft up` does, and has them
join while the file system is in use. Each brings new shards, and its store.
Clients and mounts learn of them by themselves: files and directories that are
made on the machine of a new node go there from then on. What is there already
stays where it is.

HOST and the lines of --hosts are as for `weft up`; so is --store, whose SIZE
is what all new nodes here may use together. When a node does not join, those
that were started are ended, and the file system is as it was.

Examples:
  weft node add job42
  weft node add job42 --nodes 3 --store /nvme/scratch:100GiB
  weft node add lab n7.cluster n8.cluster --listen ib0";

/// Add nodes to a file system that runs, empty them, or remove them
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    Add(Add),
    Drain(drain::Drain),
    Remove(remove::Remove),
}

/// Start nodes and have them join a file system that runs
#[derive(clap::Args, Debug)]
#[command(after_long_help = ADD_HELP)]
struct Add {
    /// Name of the file system
    name: String,
    /// Hosts to start a node on, as ssh reaches them [default: this machine]
    #[arg(value_name = "HOST")]
    on: Vec<String>,
    /// Nodes on this machine [default: 1]
    #[arg(long, value_name = "N", conflicts_with_all = ["hosts", "on"])]
    nodes: Option<u16>,
    /// File with a host per line
    #[arg(long, value_name = "FILE", conflicts_with = "on")]
    hosts: Option<PathBuf>,
    /// Directory for the nodes' stores, or memory, and bytes that they may use; or a device, or files
    #[arg(long, value_name = "DIR[:SIZE]|memory[:SIZE]|device:PATH|file:DIR:SIZE")]
    store: Option<StoreChoice>,
    /// Interface, network or address that nodes listen on [default: loopback; of hosts: where ssh came in]
    #[arg(long, value_name = "IFACE|CIDR|ADDR")]
    listen: Option<Listen>,
    /// New shards of the namespace per node [default: 1]
    #[arg(long, value_name = "K")]
    shards_per_node: Option<u16>,
    /// Nodes of one machine count as different machines: data between them goes by TCP (tests, benchmarks)
    #[arg(long)]
    identity_per_node: bool,
}

pub fn run(args: &Args) -> Outcome {
    match &args.what {
        What::Add(args) => add(args),
        What::Drain(args) => drain::drain(args),
        What::Remove(args) => remove::remove(args),
    }
}

fn add(args: &Add) -> Outcome {
    let begun = Instant::now();
    let instance = session::find_own(Some(&args.name), "node add")?;
    let _alone = claim(&instance)?;
    let session = Session::open(Some(&args.name))?;
    let map = newest_map(&session)?;
    let plan = plan(args, &instance, &map)?;
    let shards_per_node = args.shards_per_node.unwrap_or(1);
    cluster::check_counts(map.nodes.len() + plan.len(), 1)?;
    cluster::check_counts(plan.len(), usize::from(shards_per_node))?;
    let key = instance.node_key().explain(|| "read the node key")?;
    let over = instance.over.as_deref().map(Over::of).transpose()?;
    let order =
        StartOrder { over, ..up::start_order(&args.name, output::hexadecimal(key.as_bytes()), args.identity_per_node) };
    let (records, processes, failure) = up::start_nodes(&plan, &order);
    let recorded = Instance { processes: [&instance.processes[..], &processes[..]].concat(), ..instance.clone() };
    let joined = match failure {
        Some(failure) => Err(failure),
        None => record(&recorded).and_then(|()| join(&session, &map, records, shards_per_node)),
    };
    let map = match joined {
        Ok(map) => map,
        Err(failure) => {
            take_back(&args.name, &processes);
            record(&instance)?;
            return Err(failure);
        }
    };
    let (nodes, all_shards) = (map.nodes.len(), map.shards.len());
    spread(&Instance { map, ..recorded })?;
    let names: Vec<String> = processes.iter().map(|process| node_name(process.node)).collect();
    output::print(&format!(
        "{} joined {}: {nodes} nodes, {all_shards} shards, in {}\n",
        names.join(", "),
        args.name,
        span_text(begun.elapsed())
    ))?;
    session.close()?;
    Ok(Ending::Done)
}

/// The map that the root shard's node has.
fn newest_map(session: &Session) -> Outcome<ClusterMap> {
    session.client.ping().explain(|| format!("reach the shard of {}:/", session.instance.map.name))?;
    Ok(ClusterMap::clone(&session.client.map()))
}

/// Keeps another `weft node` of this file system out, on this machine.
fn claim(instance: &Instance) -> Outcome<File> {
    let directory = File::open(&instance.directory).explain(|| instance.directory.display())?;
    rustix::fs::flock(&directory, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        Failure::new(format!("another `weft node` changes \"{}\"", instance.map.name)).remedy("try again in a moment")
    })?;
    Ok(directory)
}

/// The nodes to be started, with numbers that no node has had.
fn plan(args: &Add, instance: &Instance, map: &ClusterMap) -> Outcome<Vec<NodePlan>> {
    let known = map.nodes.iter().map(|node| node.id).chain(instance.processes.iter().map(|process| process.node));
    let first = known.max().max(map.removed_max).map_or(0, |node| node.0.saturating_add(1));
    let store = args.store.as_ref().map(up::absolute_store).transpose()?;
    let (store, listen) = (store.as_ref(), args.listen.as_ref());
    let nodes = match &args.hosts {
        Some(file) => up::host_nodes(first, file, store, listen)?,
        None if args.on.is_empty() => up::local_nodes(first, args.nodes.unwrap_or(1), store, listen)?,
        None => {
            let entries = hosts::parse(&args.on.join("\n")).map_err(Failure::new)?;
            up::nodes_of_hosts(first, entries, &args.name, store, listen)?
        }
    };
    up::check_sizes(&nodes)?;
    Ok(nodes)
}

/// Has the root shard's node take the new ones into the map.
fn join(session: &Session, map: &ClusterMap, nodes: Vec<NodeRecord>, shards_per_node: u16) -> Outcome<ClusterMap> {
    let name = &map.name;
    match change_map(session, map, &NodeRequest::Join { nodes, shards_per_node }, JOIN_PATIENCE)? {
        Err(Error::Unreachable) => {
            Err(Failure::new(format!("the node of {name}:/ and the new nodes do not reach each other"))
                .remedy("give --listen an address that the other nodes reach; `weft status` shows theirs"))
        }
        joined => joined.map_err(|error| Failure::of_weft(format_args!("join \"{name}\""), &error).failed()),
    }
}

/// Has the root shard's node change the map; asks again while it changes otherwise. Returns the new map, or why there
/// is none.
fn change_map(
    session: &Session,
    map: &ClusterMap,
    request: &NodeRequest,
    patience: Duration,
) -> Outcome<Result<ClusterMap, Error>> {
    let name = &map.name;
    let root = map.node_of(ShardId::ROOT).ok_or_else(|| Failure::new(format!("\"{name}\" has no root shard")))?;
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let answers = session::ask_nodes(&session.client, [root], request, left);
        match answers.into_iter().next().map(|(_, answer)| answer) {
            Some(Ok(NodeAnswer::Map(map))) => return Ok(Ok(map)),
            Some(Err(Error::Busy)) if Instant::now() < until => std::thread::sleep(BUSY_PAUSE),
            Some(Err(error)) => return Ok(Err(error)),
            other => return Err(Failure::new(format!("unexpected reply {other:?} of node {}", node_name(root)))),
        }
    }
}

fn record(instance: &Instance) -> Outcome<()> {
    instance.save().map_err(|error| Failure::of_io("record the file system", &error).failed())
}

/// Records the file system with its new map, here and on the other machines that have nodes.
fn spread(instance: &Instance) -> Outcome<()> {
    record(instance)?;
    let others: Vec<Machine> =
        host::machines(instance).into_iter().filter(|machine| *machine != Machine::Here).collect();
    others.into_iter().try_for_each(|machine| machine.perform(&Order::Install(Box::new(instance.clone()))).map(|_| ()))
}

/// Ends nodes that are in no map. What fails here is said and does not hide the failure that led here.
fn take_back(name: &str, processes: &[NodeProcess]) {
    let machines: BTreeSet<Machine> = processes.iter().map(|process| process.ssh_host.clone().into()).collect();
    let order = |machine: &Machine| {
        let here = |process: &&NodeProcess| Machine::from(process.ssh_host.clone()) == *machine;
        Order::Stop(StopOrder {
            name: name.to_owned(),
            processes: processes.iter().filter(here).cloned().collect(),
            alone_ms: 0,
            asked_ms: STOP_PATIENCE_MS,
            runtime_files: RuntimeFiles::RemoveOfNodes,
        })
    };
    let stopped = host::on_all(&machines, order);
    stopped.into_iter().filter_map(|(_, reply)| reply.err()).for_each(|failure| output::warn(&failure));
}

/// A node of a test.
#[cfg(test)]
pub(crate) fn record_of(id: u16) -> NodeRecord {
    let (host, site, address) = (String::new(), String::new(), weft_protocol::NodeAddress::default());
    let (identity, stores, drains) = (weft_protocol::NodeIdentity(1), true, false);
    NodeRecord { id: weft_protocol::NodeId(id), host, site, identity, address, stores, drains }
}
