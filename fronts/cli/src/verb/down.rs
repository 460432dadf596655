//! `weft down`: ends a file system.

use crate::failure::{Ending, Failure, Outcome};
use crate::host::stop::{StopOrder, Stopped};
use crate::host::stores;
use crate::host::{Machine, Order, Reply};
use crate::leftovers::{self, State};
use crate::output::{self, note};
use crate::session::{self, node_name};
use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;
use weft_client::Instance;
use weft_client::instance::NodeProcess;
use weft_protocol::NodeId;
use weft_protocol::message::node::NodeRequest;

/// How long nodes may take to answer that they end.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(2);
/// How long nodes that were told to end may take, milliseconds.
const ALONE_MS: u64 = 5_000;
/// How long they may take after SIGTERM, milliseconds.
const ASKED_MS: u64 = 2_000;

const HELP: &str = "\
Unmounts the file system on its machines, tells its nodes to end, and removes
their stores, sockets and logs, with the directories that `weft up` made. Files
that others put there stay. What was in the file system is gone: copy out what
is to stay.

--force is for what a killed run left: nothing needs to answer, busy mounts are
detached, and processes are ended by signals. A process is only signalled when
its start time is the recorded one.

Examples:
  weft down
  weft down job42
  weft down --force job42
  weft down --all --dry-run";

/// End a file system, and remove what it leaves
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Name of the file system [default: the only one]
    name: Option<String>,
    /// Also when it was killed or does not answer, and when mounts are busy
    #[arg(long, short)]
    force: bool,
    /// All file systems of this user on this machine
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// Only say what would be ended and removed
    #[arg(long)]
    dry_run: bool,
}

pub fn run(args: &Args) -> Outcome {
    let instances = if args.all {
        Instance::all().map_err(|error| Failure::of_io("runtime directory", &error))?
    } else {
        match session::find_own(args.name.as_deref(), "down") {
            Ok(instance) => vec![instance],
            // What --force is to achieve is there already.
            Err(failure) if args.force && failure.is_no() => {
                note(format_args!("{}: nothing to do", failure.text()));
                return Ok(Ending::Done);
            }
            Err(failure) => return Err(failure),
        }
    };
    let mut failed = None;
    for instance in &instances {
        let ended = if args.dry_run { describe(instance) } else { end(instance, args.force) };
        if let Err(failure) = ended {
            failed.replace(failure).iter().for_each(output::warn);
        }
    }
    failed.map_or(Ok(Ending::Done), Err)
}

/// Says what `down` would do.
fn describe(instance: &Instance) -> Outcome<()> {
    let mut text = format!("{}: {}\n", instance.map.name, leftovers::describe(&leftovers::state_of(instance)));
    for (_, mount) in crate::mounts::of_instance(instance) {
        text.push_str(&format!("  unmount {}\n", mount.mount_point.display()));
    }
    for process in &instance.processes {
        let host = process.ssh_host.as_deref().map(|host| format!(" on {host}")).unwrap_or_default();
        text.push_str(&format!("  end {}: process {}{host}\n", node_name(process.node), process.pid));
        if process.store_made.is_some() {
            text.push_str(&format!("  remove {}{host}\n", process.store.display()));
        }
    }
    text.push_str(&format!("  remove {}\n", instance.directory.display()));
    output::print(&text)
}

/// Ends one file system.
fn end(instance: &Instance, force: bool) -> Outcome<()> {
    let name = &instance.map.name;
    let state = leftovers::state_of(instance);
    match &state {
        State::Starting(_) if !force => {
            return Err(Failure::new(format!("\"{name}\" is {}", leftovers::describe(&state)))
                .remedy("wait for it; or end that process, then use --force"));
        }
        State::LeftOver | State::HalfStarted { .. } if !force => {
            return Err(Failure::new(format!(
                "\"{name}\" was not ended by `weft down`: {}",
                leftovers::describe(&state)
            ))
            .remedy(format!("`weft down --force {name}` removes what it left")));
        }
        State::Running { dead } if !dead.is_empty() => note(format_args!("{} had ended before", names(dead))),
        _ => {}
    }
    let machines: BTreeSet<Machine> =
        instance.processes.iter().map(|process| process.ssh_host.clone().into()).chain([Machine::Here]).collect();
    let unmount = |machine: &Machine| machine.perform(&Order::Unmount { name: name.clone(), force });
    for (_, reply) in on_all(&machines, unmount) {
        reply?;
    }
    let told = matches!(state, State::Running { .. }) && tell_to_end(instance);
    let stop = |machine: &Machine| machine.perform(&Order::Stop(stop_order(instance, machine, told)));
    let mut failed = None;
    let mut ended = Stopped::default();
    for (_, reply) in on_all(&machines, stop) {
        match reply {
            Ok(Reply::Stopped(stopped)) => {
                ended.killed.extend(stopped.killed);
                ended.left.extend(stopped.left);
            }
            Ok(_) => {}
            Err(failure) => failed = Some(failure),
        }
    }
    if instance.map.nodes.is_empty() {
        ended.left.extend(stores::remove(&stores::default_stores(name)?)?);
    }
    if !ended.killed.is_empty() {
        note(format_args!("{} did not end when told to, and had to be killed", names(&ended.killed)));
    }
    for left in &ended.left {
        note(format_args!("{} holds files that are not of Weft, and was left", left.display()));
    }
    failed.map_or(Ok(()), Err)
}

/// Carries something out on all machines at the same time.
fn on_all<T: Send>(
    machines: &BTreeSet<Machine>,
    action: impl Fn(&Machine) -> Outcome<T> + Sync,
) -> Vec<(Machine, Outcome<T>)> {
    thread::scope(|scope| {
        let action = &action;
        let running: Vec<_> =
            machines.iter().map(|machine| (machine.clone(), scope.spawn(move || action(machine)))).collect();
        let crashed = || Err(Failure::new("a thread of `weft down` failed"));
        running.into_iter().map(|(machine, run)| (machine, run.join().unwrap_or_else(|_| crashed()))).collect()
    })
}

/// Tells the nodes to end; true when at least one said that it does.
fn tell_to_end(instance: &Instance) -> bool {
    let Ok(client) = session::connect_patiently(instance, SHUTDOWN_PATIENCE) else { return false };
    let nodes = instance.map.nodes.iter().map(|node| node.id);
    let answers = session::ask_nodes(&client, nodes, &NodeRequest::Shutdown, SHUTDOWN_PATIENCE);
    answers.iter().any(|(_, answer)| answer.is_ok())
}

/// What one machine has to end and remove.
fn stop_order(instance: &Instance, machine: &Machine, told: bool) -> StopOrder {
    let here = |process: &&NodeProcess| Machine::from(process.ssh_host.clone()) == *machine;
    StopOrder {
        name: instance.map.name.clone(),
        processes: instance.processes.iter().filter(here).cloned().collect(),
        alone_ms: if told { ALONE_MS } else { 0 },
        asked_ms: ASKED_MS,
    }
}

fn names(nodes: &[NodeId]) -> String {
    nodes.iter().map(|node| node_name(*node)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::ClusterMap;

    #[test]
    fn each_machine_ends_its_own_nodes() {
        let process = |node, host: Option<&str>| NodeProcess {
            node: NodeId(node),
            ssh_host: host.map(str::to_owned),
            pid: 1,
            start_time: 1,
            store: "/s".into(),
            store_made: Some("/s".into()),
        };
        let map = ClusterMap { name: "w".into(), ..ClusterMap::default() };
        let processes = vec![process(0, None), process(1, Some("b")), process(2, Some("b"))];
        let instance = Instance { map, processes, directory: "/nonexistent".into(), user_key: None };
        let nodes = |order: StopOrder| order.processes.iter().map(|process| process.node.0).collect::<Vec<_>>();
        assert_eq!(nodes(stop_order(&instance, &Machine::Here, false)), [0]);
        assert_eq!(nodes(stop_order(&instance, &Machine::Ssh("b".into()), true)), [1, 2]);
        assert_eq!(stop_order(&instance, &Machine::Here, false).alone_ms, 0);
    }
}
