//! `weft status`: what runs, and how it is.

use crate::drain::{self, Drained};
use crate::failure::{Ending, Failure, Outcome};
use crate::keys;
use crate::leftovers::{self, State};
use crate::mounts::{self, Mount};
use crate::output;
use crate::quantity::{Span, bytes_text, span_text};
use crate::session::{self, ANSWER_PATIENCE, node_name};
use crate::table::Table;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_client::Instance;
use weft_protocol::message::node::{Counters, NodeAnswer, NodeRequest, NodeStatus, ShardStatus};
use weft_protocol::message::storage::Space;
use weft_protocol::{Error, NodeId, NodeRecord, Result};

const HELP: &str = "\
Without NAME: all file systems of this user on this machine. Exit code 1:
nothing runs, a node does not answer, or a shard has failed.

--json prints {\"file_systems\": [...]}, each with
  name, state (text), healthy (true or false), epoch, shards (their number),
    directory,
  nodes: [{node, name, host, site, tcp, unix, ssh_host, pid, drains, answers,
    error, uptime_seconds, store, connections,
    shards: [{shard, inodes, dentries, sessions, leases, recalls,
      parked, store_bytes, calls, renames, renames_across, failed}],
    space: {total, free, reserve, objects, device, device_free} or null,
    counters: {requests, read_tcp_bytes, read_unix_bytes,
      write_tcp_bytes, write_unix_bytes, write_memory_bytes,
      read_memory_bytes, read_memory_lost_bytes,
      descriptors_passed, capabilities_rejected, peers_rejected,
      rdma: {read_bytes, write_bytes, puts, gets, flushes, regions,
        placed_bytes, mapped_bytes, streamed_bytes, messages}},
    rdma (text)}]
  mounts: [{mount_point, pid, start_time, alive, negotiated}]
  over: the directory that it lies over, or null,
  drained: what was written back to it, or null: {files, bytes,
    verified_files, removed, conflicts, failures, writing}
Of a node that does not answer, `error` says why and what only it knows is null
or empty. RENAMES (renames) are those of files inside the shard, ACROSS
(renames_across) those for which it asked other shards, since the shard is at
its node.

Examples:
  weft status
  weft status -v job42
  weft status --json job42";

/// Show what runs: nodes, shards, space, counters, mounts
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Name of the file system [default: all]
    name: Option<String>,
    /// Each shard, counters, and what the kernel agreed to for each mount
    #[arg(short)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// How long to wait for answers
    #[arg(long, value_name = "TIME", default_value = "3s")]
    timeout: Span,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    file_systems: Vec<FileSystem>,
}

#[derive(Serialize)]
struct FileSystem {
    name: String,
    state: String,
    healthy: bool,
    epoch: u32,
    shards: usize,
    directory: PathBuf,
    nodes: Vec<NodeReport>,
    mounts: Vec<MountReport>,
    /// The directory that it lies over.
    over: Option<PathBuf>,
    /// What was written back to that; `None`: nothing yet.
    drained: Option<Drained>,
}

#[derive(Serialize)]
struct NodeReport {
    node: u16,
    name: String,
    host: String,
    site: String,
    tcp: String,
    unix: String,
    ssh_host: Option<String>,
    pid: Option<u32>,
    /// No new files and shards come to it.
    drains: bool,
    answers: bool,
    error: Option<String>,
    uptime_seconds: Option<u64>,
    store: Option<String>,
    connections: Option<u32>,
    shards: Vec<ShardStatus>,
    space: Option<Space>,
    /// What moves file data by RDMA, or why nothing does; empty: no client has asked.
    rdma: Option<String>,
    counters: Option<Counters>,
}

#[derive(Serialize)]
struct MountReport {
    #[serde(flatten)]
    mount: Mount,
    alive: bool,
}

pub fn run(args: &Args) -> Outcome {
    let instances = match (&args.name, keys::given()?) {
        (Some(name), _) => vec![session::find_own(Some(name), "status")?],
        (None, Some(key)) => return Err(session::owner_only(&key, "status")),
        (None, None) => Instance::all().map_err(|error| Failure::of_io("runtime directory", &error))?,
    };
    let file_systems: Vec<FileSystem> = instances.iter().map(|instance| examine(instance, args.timeout.0)).collect();
    let healthy = !file_systems.is_empty() && file_systems.iter().all(|file_system| file_system.healthy);
    if args.json {
        output::print_json(&Report { file_systems })?;
    } else if file_systems.is_empty() {
        return Err(Failure::no("no file system is running here").remedy("`weft up` starts one"));
    } else {
        let texts: Vec<String> = file_systems.iter().map(|file_system| text(file_system, args.verbose)).collect();
        output::print(&texts.join("\n"))?;
    }
    Ok(if healthy { Ending::Done } else { Ending::No })
}

/// Asks all nodes of a file system.
fn examine(instance: &Instance, patience: Duration) -> FileSystem {
    let state = leftovers::state_of(instance);
    let answers = match state {
        State::Running { .. } => ask(instance, patience),
        State::Starting(_) | State::HalfStarted { .. } | State::LeftOver => Vec::new(),
    };
    let answer_of = |id: NodeId| {
        let answer = answers.iter().find(|(node, _)| *node == id).map(|(_, answer)| answer.clone());
        answer.unwrap_or(Err(Error::Unreachable))
    };
    let nodes: Vec<NodeReport> =
        instance.map.nodes.iter().map(|record| node_report(instance, record, answer_of(record.id))).collect();
    let mounts: Vec<MountReport> = mounts::of_instance(instance)
        .into_iter()
        .map(|(_, mount)| MountReport { alive: mount.process.is_alive(), mount })
        .collect();
    let healthy = matches!(state, State::Running { .. })
        && nodes.iter().all(|node| node.answers && node.shards.iter().all(|shard| shard.failed.is_none()))
        && mounts.iter().all(|mount| mount.alive);
    FileSystem {
        name: instance.map.name.clone(),
        state: leftovers::describe(&state),
        healthy,
        epoch: instance.map.epoch.0,
        shards: instance.map.shards.len(),
        directory: instance.directory.clone(),
        nodes,
        mounts,
        over: instance.over.clone(),
        drained: drain::recorded(instance),
    }
}

/// The status of every node that answers in time.
fn ask(instance: &Instance, patience: Duration) -> Vec<(NodeId, Result<NodeStatus>)> {
    let nodes = instance.map.nodes.iter().map(|node| node.id);
    let client = match session::connect_patiently(instance, patience.max(ANSWER_PATIENCE)) {
        Ok(client) => client,
        Err(error) => return nodes.map(|node| (node, Err(error.clone()))).collect(),
    };
    let status = |answer| match answer {
        NodeAnswer::Status(status) => Ok(*status),
        _ => Err(Error::Malformed),
    };
    let answers = session::ask_nodes(&client, nodes, &NodeRequest::Status, patience);
    answers.into_iter().map(|(node, answer)| (node, answer.and_then(status))).collect()
}

fn node_report(instance: &Instance, record: &NodeRecord, answer: Result<NodeStatus>) -> NodeReport {
    let process = instance.processes.iter().find(|process| process.node == record.id);
    let ended = process.is_some_and(|process| !process.is_alive());
    let (status, error) = match answer {
        Ok(status) => (Some(status), None),
        Err(_) if ended => (None, Some("its process has ended".to_owned())),
        Err(error) => (None, Some(error.to_string())),
    };
    NodeReport {
        node: record.id.0,
        name: node_name(record.id),
        host: record.host.clone(),
        site: record.site.clone(),
        tcp: record.address.tcp.clone(),
        unix: record.address.unix.clone(),
        ssh_host: process.and_then(|process| process.ssh_host.clone()),
        pid: process.map(|process| process.pid),
        drains: record.drains,
        answers: error.is_none(),
        error,
        uptime_seconds: status.as_ref().map(|status| status.uptime_seconds),
        store: status.as_ref().map(|status| status.store.clone()),
        connections: status.as_ref().map(|status| status.connections),
        space: status.as_ref().and_then(|status| status.space),
        rdma: status.as_ref().map(|status| status.rdma.clone()),
        counters: status.as_ref().map(|status| status.counters),
        shards: status.map(|status| status.shards).unwrap_or_default(),
    }
}

fn text(file_system: &FileSystem, verbose: bool) -> String {
    let FileSystem { name, state, shards, nodes, mounts, .. } = file_system;
    let uptime = nodes.iter().filter_map(|node| node.uptime_seconds).max();
    let uptime = uptime.map(|seconds| format!(", up for {}", uptime_text(seconds))).unwrap_or_default();
    let mut text = format!("{name}: {state}{uptime}; {} nodes, {shards} shards\n", nodes.len());
    if state != "running" && nodes.iter().all(|node| !node.answers) {
        text.push_str(&format!("  remedy: `weft down --force {name}` clears away\n"));
        return text;
    }
    text.push_str(&node_table(nodes).to_string());
    for node in nodes {
        if let Some(error) = &node.error {
            let log = file_system.directory.join(format!("{}.log", node.name));
            text.push_str(&format!("{} does not answer: {error}; its log: {}\n", node.name, log.display()));
        }
        if node.drains {
            text.push_str(&format!("{} drains: new files and shards go elsewhere\n", node.name));
        }
        for shard in &node.shards {
            if let Some(failed) = &shard.failed {
                text.push_str(&format!("shard {} on {} has failed: {failed}\n", shard.shard, node.name));
            }
        }
    }
    if verbose {
        text.push_str(&format!("\n{}\n{}\n{}", shard_table(nodes), counter_table(nodes), rdma_table(nodes)));
    }
    for MountReport { mount, alive } in mounts {
        let state = if *alive { "mounted" } else { "mount was killed (`weft umount` clears it away)" };
        text.push_str(&format!("{}: {state}, process {}\n", mount.mount_point.display(), mount.process.pid));
        if let (true, Some(fields)) = (verbose, mount.negotiated.as_object()) {
            let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
            text.push_str(&format!("  {}\n", fields.join(" ")));
        }
    }
    if let Some(over) = &file_system.over {
        text.push_str(&over_text(over, file_system.drained.as_ref()));
    }
    text
}

/// What was written back to the directory below, and what was not.
fn over_text(over: &Path, drained: Option<&Drained>) -> String {
    let mut text = format!("lies over {}", drain::printable(over));
    let Some(Drained { files, bytes, removed, conflicts, failures, writing, .. }) = drained else {
        text.push_str("; nothing was written back yet\n");
        return text;
    };
    let bytes = bytes_text(*bytes);
    text.push_str(&format!("; written back: {files} files, {bytes}, and {removed} names removed\n"));
    if let Some((files, bytes)) = writing {
        text.push_str(&format!("  a drain writes {files} files, {}\n", bytes_text(*bytes)));
    }
    conflicts.iter().for_each(|conflict| text.push_str(&format!("  {}\n", drain::conflict_text(conflict))));
    failures.iter().for_each(|failure| text.push_str(&format!("  {failure}\n")));
    text
}

/// Nodes tell whole seconds: no more is said than that.
fn uptime_text(seconds: u64) -> String {
    match seconds {
        0 => "less than a second".to_owned(),
        1..=9 => format!("{seconds} s"),
        _ => span_text(Duration::from_secs(seconds)),
    }
}

fn node_table(nodes: &[NodeReport]) -> Table {
    let mut table =
        Table::new(&["NODE", "HOST", "SITE", ">PID", "ADDRESS", ">SHARDS", ">INODES", ">USED", ">FREE", ">OBJECTS"]);
    for node in nodes {
        let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let inodes: u64 = node.shards.iter().map(|shard| shard.inodes).sum();
        table.row([
            node.name.clone(),
            node.host.clone(),
            node.site.clone(),
            known(node.pid.map(|pid| pid.to_string())),
            node.tcp.clone(),
            known(node.answers.then(|| node.shards.len().to_string())),
            known(node.answers.then(|| inodes.to_string())),
            known(node.space.map(|space| bytes_text(space.total.saturating_sub(space.free)))),
            known(node.space.map(|space| bytes_text(space.free))),
            known(node.space.map(|space| space.objects.to_string())),
        ]);
    }
    table
}

fn shard_table(nodes: &[NodeReport]) -> Table {
    let mut table = Table::new(&[
        "NODE",
        ">SHARD",
        ">INODES",
        ">DENTRIES",
        ">SESSIONS",
        ">LEASES",
        ">RECALLS",
        ">PARKED",
        ">CALLS",
        ">RENAMES",
        ">ACROSS",
        ">MEMORY",
    ]);
    for node in nodes {
        for shard in &node.shards {
            let held = [shard.inodes, shard.dentries, shard.sessions, shard.leases, shard.recalls, shard.parked];
            let done = [shard.calls, shard.renames, shard.renames_across];
            let names = [node.name.clone(), shard.shard.to_string()];
            let numbers = held.into_iter().chain(done).map(|number| number.to_string());
            table.row_of(names.into_iter().chain(numbers).chain([bytes_text(shard.store_bytes)]).collect());
        }
    }
    table
}

fn counter_table(nodes: &[NodeReport]) -> Table {
    let mut table = Table::new(&[
        "NODE",
        ">REQUESTS",
        ">READ TCP",
        ">READ UNIX",
        ">READ MEMORY",
        ">LOST",
        ">WRITE TCP",
        ">WRITE UNIX",
        ">WRITE MEMORY",
        ">DESCRIPTORS",
        ">CONNECTIONS",
        ">REJECTED",
        "STORE",
    ]);
    for node in nodes {
        let Some(counters) = &node.counters else { continue };
        table.row([
            node.name.clone(),
            counters.requests.to_string(),
            bytes_text(counters.read_tcp_bytes),
            bytes_text(counters.read_unix_bytes),
            bytes_text(counters.read_memory_bytes),
            bytes_text(counters.read_memory_lost_bytes),
            bytes_text(counters.write_tcp_bytes),
            bytes_text(counters.write_unix_bytes),
            bytes_text(counters.write_memory_bytes),
            counters.descriptors_passed.to_string(),
            node.connections.unwrap_or(0).to_string(),
            (counters.capabilities_rejected + counters.peers_rejected).to_string(),
            node.store.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn rdma_table(nodes: &[NodeReport]) -> Table {
    let mut table = Table::new(&[
        "NODE",
        ">PUT",
        ">PUTS",
        ">FLUSHES",
        ">GOT",
        ">GETS",
        ">REGIONS",
        ">IN PLACE",
        ">MAPPED",
        ">STREAMED",
        ">MESSAGES",
        "FILE DATA BY RDMA",
    ]);
    for node in nodes {
        let (Some(counters), Some(said)) = (&node.counters, &node.rdma) else { continue };
        let rdma = &counters.rdma;
        table.row([
            node.name.clone(),
            bytes_text(rdma.read_bytes),
            rdma.puts.to_string(),
            rdma.flushes.to_string(),
            bytes_text(rdma.write_bytes),
            rdma.gets.to_string(),
            rdma.regions.to_string(),
            bytes_text(rdma.placed_bytes),
            bytes_text(rdma.mapped_bytes),
            bytes_text(rdma.streamed_bytes),
            rdma.messages.to_string(),
            if said.is_empty() { "no client has asked for it".to_owned() } else { said.clone() },
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::{ClusterMap, MapEpoch, NodeAddress, NodeIdentity, ShardId, ShardRecord};

    fn instance() -> Instance {
        let record = |id| NodeRecord {
            id: NodeId(id),
            host: "h".into(),
            site: "s".into(),
            identity: NodeIdentity(1),
            address: NodeAddress { tcp: format!("127.0.0.1:{id}"), unix: "/u".into() },
            stores: true,
            drains: id == 1,
        };
        let nodes = vec![record(0), record(1)];
        let map = ClusterMap {
            name: "w".into(),
            nodes,
            shards: vec![ShardRecord::new(NodeId(0), MapEpoch(0))],
            ..ClusterMap::default()
        };
        Instance { map, processes: Vec::new(), directory: "/r/w".into(), user_key: None, over: None }
    }

    fn file_system() -> FileSystem {
        let instance = instance();
        let failed = Some("a machine is broken".to_owned());
        let counts = ShardStatus { inodes: 7, calls: 9, renames: 5, renames_across: 2, ..ShardStatus::default() };
        let shard = ShardStatus { shard: ShardId(3), failed, ..counts };
        let space =
            Some(Space { total: 10 << 30, free: 9 << 30, reserve: 0, objects: 2, device: 1, device_free: 9 << 30 });
        let status = NodeStatus { uptime_seconds: 75, shards: vec![shard], space, ..NodeStatus::default() };
        let [first, second] = [&instance.map.nodes[0], &instance.map.nodes[1]];
        let nodes =
            vec![node_report(&instance, first, Ok(status)), node_report(&instance, second, Err(Error::Unreachable))];
        let process = crate::processes::Process { pid: 5, start_time: 6 };
        let mount = Mount { mount_point: "/m".into(), process, negotiated: serde_json::json!({"max_write": 1048576}) };
        FileSystem {
            name: "w".into(),
            state: "running".into(),
            healthy: false,
            epoch: 1,
            shards: 1,
            directory: "/r/w".into(),
            nodes,
            mounts: vec![MountReport { mount, alive: false }],
            over: Some("/project".into()),
            drained: Some(Drained { conflicts: vec![("/project/a".into(), None)], ..Drained::default() }),
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let text = text(&file_system(), true);
        for part in [
            "w: running, up for 1m15s; 2 nodes, 1 shards\n",
            "n01 does not answer: the server is away; its log: /r/w/n01.log\n",
            "n01 drains: new files",
            "shard 3 on n00 has failed: a machine is broken\n",
            "/m: mount was killed",
            "  max_write=1048576\n",
            "lies over /project",
            "/project/a was changed below",
            "1.0 GiB  9.0 GiB",
            "CALLS  RENAMES  ACROSS",
            "    9        5       2",
        ] {
            assert!(text.contains(part), "{part} in:\n{text}");
        }
    }

    #[test]
    fn a_young_node_is_not_said_to_be_up_for_nothing() {
        let texts = [0, 1, 9, 10, 75].map(uptime_text);
        assert_eq!(texts, ["less than a second", "1 s", "9 s", "10 s", "1m15s"]);
    }

    #[test]
    fn every_field_of_the_json_is_in_the_help() {
        fn check(value: &serde_json::Value) {
            match value {
                serde_json::Value::Object(fields) => {
                    for (name, value) in fields.iter().filter(|(name, _)| *name != "max_write") {
                        assert!(HELP.contains(name.as_str()), "{name}");
                        check(value);
                    }
                }
                serde_json::Value::Array(values) => values.iter().for_each(check),
                _ => {}
            }
        }
        check(&serde_json::to_value(Report { file_systems: vec![file_system()] }).expect("JSON"));
    }
}
