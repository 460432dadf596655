//! `weft down`: ends a file system.

use crate::drain;
use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::host::stop::{RuntimeFiles, StopOrder, Stopped};
use crate::host::{self, Machine, Order, Reply, failed_logs, stores};
use crate::leftovers::{self, State};
use crate::output::{self, note};
use crate::session::{self, Session, node_name};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
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
/// Changes that were not written back, of which so many are named.
const UNDRAINED_SAID_MAX: usize = 20;

const HELP: &str = "\
Unmounts the file system on its machines, tells its nodes to end, and removes
their stores, sockets and logs, with the directories that `weft up` made. Files
that others put there stay. What was in the file system is gone: copy out what
is to stay.

--force is for what a killed run left: nothing needs to answer, busy mounts are
detached, and processes are ended by signals. A process is only signalled when
its start time is the recorded one. It also removes logs of nodes that did not
start. Region files that hold data of a killed run (--store file:DIR:SIZE) are
deleted, and each is named with what it held; without --force nothing is, and
--dry-run names them. `weft store get` extracts objects before that. Devices
(--store device:PATH) keep what is on them.

A file system that lies over a directory is not ended as long as `weft drain`
has something to write back, which is named. --drain does that first; --discard
and --force end it without.

All hosts are asked at once. What runs on hosts that cannot be reached is
named, and the exit code is 2: run the same command again when they are back.
With --force they are forgotten.

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
    /// First write changes back to the directory that the file system lies over
    #[arg(long, conflicts_with = "discard")]
    drain: bool,
    /// Also when changes were not written back to that directory
    #[arg(long)]
    discard: bool,
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
                if !args.dry_run {
                    forget_failed_logs(args.name.as_deref())?;
                }
                return Ok(Ending::Done);
            }
            Err(failure) => return Err(failure),
        }
    };
    let mut failed = None;
    for instance in &instances {
        let ended = if args.dry_run {
            describe(instance)
        } else {
            check_drained(instance, args).and_then(|()| end(instance, args.force))
        };
        if let Err(failure) = ended {
            failed.replace(failure).iter().for_each(output::warn);
        }
    }
    if args.all && args.force && !args.dry_run {
        forget_failed_logs(None)?;
    }
    failed.map_or(Ok(Ending::Done), Err)
}

/// Removes the logs of nodes that did not start, of one file system or of all.
fn forget_failed_logs(name: Option<&str>) -> Outcome<()> {
    let removed = failed_logs::remove(name).and_then(|()| Instance::remove_empty_runtime_directory());
    removed.map_err(|error| Failure::of_io("remove logs of nodes that did not start", &error).failed())
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
    for held in held_here(instance) {
        text.push_str(&format!("  delete data of a run that was killed: {held}\n"));
    }
    text.push_str(&format!("  remove {}\n", instance.directory.display()));
    output::print(&text)
}

/// What the region files of nodes on this machine hold that do not run any more.
fn held_here(instance: &Instance) -> Vec<String> {
    let here = instance.processes.iter().filter(|process| process.ssh_host.is_none() && !process.is_alive());
    let store =
        |process: &NodeProcess| stores::Store { directory: process.store.clone(), made: process.store_made.clone() };
    stores::held(&here.map(store).collect::<Vec<_>>())
}

/// Ends one file system on all machines that can be reached.
fn end(instance: &Instance, force: bool) -> Outcome<()> {
    let name = &instance.map.name;
    let state = leftovers::state_of(instance);
    check_state(instance, &state, force)?;
    let mut machines = host::machines(instance);
    let mut away = Away::default();
    for (machine, reply) in host::on_all(&machines, |_| Order::Unmount { name: name.clone(), force }) {
        match reply {
            Err(failure) if failure.is_unreachable() => away.add(&mut machines, machine, &failure),
            reply => drop(reply?),
        }
    }
    let told = if matches!(state, State::Running { .. }) { tell_to_end(instance) } else { BTreeSet::new() };
    let mut ended = Stopped::default();
    let mut failed = None;
    machines.remove(&Machine::Here);
    // This machine is the last one: whether its record is needed any more is known then, and its runtime files may be
    // those of a node that is reached by this machine's name.
    for last in [false, true] {
        let machines = if last { [Machine::Here].into() } else { machines.clone() };
        let runtime_files = match away.is_empty() || force {
            true => RuntimeFiles::RemoveWithFailedLogs,
            false => RuntimeFiles::keep_here(name).explain(|| "identity of this machine")?,
        };
        let order =
            |machine: &Machine| Order::Stop(stop_order(instance, machine, !told.is_empty(), runtime_files.clone()));
        for (machine, reply) in host::on_all(&machines, order) {
            match reply {
                Ok(Reply::Stopped(stopped)) => {
                    ended.killed.extend(stopped.killed);
                    ended.left.extend(stopped.left);
                    ended.deleted.extend(stopped.deleted);
                }
                Ok(_) => {}
                Err(failure) if failure.is_unreachable() => away.add(&mut BTreeSet::new(), machine, &failure),
                Err(failure) => failed = Some(failure),
            }
        }
    }
    if instance.map.nodes.is_empty() {
        let stores = stores::default_stores(name)?;
        ended.deleted.extend(stores::held(&stores));
        ended.left.extend(stores::remove(&stores)?);
    }
    if !ended.killed.is_empty() {
        note(format_args!("{} did not end when told to, and had to be killed", names(&ended.killed)));
    }
    for deleted in &ended.deleted {
        note(format_args!("deleted data of a run that was killed: {deleted}"));
    }
    for left in &ended.left {
        note(format_args!("{} holds files that are not of Weft, and was left", left.display()));
    }
    failed.map_or(Ok(()), Err)?;
    away.finish(instance, &told, force)
}

/// Refuses to end a file system with changes that were not written back to the directory below. Says what others have
/// changed there.
fn check_drained(instance: &Instance, args: &Args) -> Outcome<()> {
    let discards = args.discard || (args.force && !args.drain);
    if instance.over.is_none() || discards || instance.user_key.is_some() {
        return Ok(());
    }
    let name = &instance.map.name;
    let undrained = |text: String| {
        Failure::new(text)
            .remedy(format!("`weft drain {name}` writes them back; `weft down --discard {name}` ends it without them"))
    };
    let session = Session::open(Some(name)).map(Arc::new).map_err(|failure| undrained(failure.text().to_owned()))?;
    if args.drain {
        let (drained, _) = drain::drain(&session, drain::How::default(), None)?;
        drain::record(instance, &drained)?;
    }
    let pending = drain::pending(&session).map_err(|failure| undrained(failure.text().to_owned()))?;
    session.close()?;
    if pending.is_empty() {
        for conflict in drain::recorded(instance).iter().flat_map(|drained| &drained.conflicts) {
            note(format_args!("{}", drain::conflict_text(conflict)));
        }
        return Ok(());
    }
    let mut text = format!("down {name}: {} changes were not written back:", pending.len());
    for (what, path) in pending.iter().take(UNDRAINED_SAID_MAX) {
        text.push_str(&format!("\n    {what} {}", drain::printable(path)));
    }
    if pending.len() > UNDRAINED_SAID_MAX {
        text.push_str(&format!("\n    and {} more", pending.len() - UNDRAINED_SAID_MAX));
    }
    Err(undrained(text))
}

/// Refuses what needs `--force`.
fn check_state(instance: &Instance, state: &State, force: bool) -> Outcome<()> {
    let name = &instance.map.name;
    match state {
        State::Starting(_) if !force => {
            return Err(Failure::new(format!("\"{name}\" is {}", leftovers::describe(state)))
                .remedy("wait for it; or end that process, then use --force"));
        }
        State::LeftOver | State::HalfStarted { .. } if !force => {
            let mut text = format!("\"{name}\" was not ended by `weft down`: {}", leftovers::describe(state));
            let held = held_here(instance);
            held.iter().for_each(|held| text.push_str(&format!("\n    it left data in {held}")));
            let remedy = match held.is_empty() {
                true => format!("`weft down --force {name}` removes what it left"),
                false => format!(
                    "`weft store dump` and `weft store get` read the data; `weft down --force {name}` deletes all that \
                     it left"
                ),
            };
            return Err(Failure::new(text).remedy(remedy));
        }
        State::Running { dead } if !dead.is_empty() => note(format_args!("{} had ended before", names(dead))),
        _ => {}
    }
    Ok(())
}

/// Machines that could not be asked, and why.
#[derive(Default)]
struct Away(BTreeMap<Machine, String>);

impl Away {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes one that was to be asked.
    fn add(&mut self, asked: &mut BTreeSet<Machine>, machine: Machine, failure: &Failure) {
        asked.remove(&machine);
        self.0.insert(machine, failure.text().to_owned());
    }

    /// Says what is left there, and keeps a record of that, unless nothing is to be kept.
    fn finish(&self, instance: &Instance, told: &BTreeSet<NodeId>, force: bool) -> Outcome<()> {
        if self.is_empty() {
            return Ok(());
        }
        let name = &instance.map.name;
        let is_left = |process: &&NodeProcess| self.0.contains_key(&Machine::from(process.ssh_host.clone()));
        let processes: Vec<NodeProcess> = instance.processes.iter().filter(is_left).cloned().collect();
        let mut text = format!("down {name}: not everything was ended");
        for (machine, why) in &self.0 {
            text.push_str(&format!("\n    {why}; left there:"));
            for process in processes.iter().filter(|process| process.ssh_host == machine.ssh_host()) {
                let ends = if told.contains(&process.node) { ", which was told to end" } else { "" };
                text.push_str(&format!("\n      {}, process {}{ends}", node_name(process.node), process.pid));
                if !process.store.as_os_str().is_empty() {
                    text.push_str(&format!(", store {}", process.store.display()));
                }
            }
        }
        let failure = Failure::new(text);
        if force {
            return Err(failure.remedy(format!("`weft down --force {name}` there, when it is back")));
        }
        let left = Instance { processes, ..instance.clone() };
        left.save().map_err(|error| Failure::of_io("record what is left", &error).failed())?;
        Err(failure.remedy(format!(
            "`weft down {name}` again, when it is back; `weft down --force {name}` forgets what is there"
        )))
    }
}

/// Tells the nodes to end; returns those that said that they do.
fn tell_to_end(instance: &Instance) -> BTreeSet<NodeId> {
    let Ok(client) = session::connect_patiently(instance, SHUTDOWN_PATIENCE) else { return BTreeSet::new() };
    let nodes = instance.map.nodes.iter().map(|node| node.id);
    let answers = session::ask_nodes(&client, nodes, &NodeRequest::Shutdown, SHUTDOWN_PATIENCE);
    answers.into_iter().filter_map(|(node, answer)| answer.is_ok().then_some(node)).collect()
}

/// What one machine has to end and remove.
fn stop_order(instance: &Instance, machine: &Machine, told: bool, runtime_files: RuntimeFiles) -> StopOrder {
    let here = |process: &&NodeProcess| Machine::from(process.ssh_host.clone()) == *machine;
    StopOrder {
        name: instance.map.name.clone(),
        processes: instance.processes.iter().filter(here).cloned().collect(),
        alone_ms: if told { ALONE_MS } else { 0 },
        asked_ms: ASKED_MS,
        runtime_files,
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
        let instance = Instance { map, processes, over: None, directory: "/nonexistent".into(), user_key: None };
        let nodes = |order: StopOrder| order.processes.iter().map(|process| process.node.0).collect::<Vec<_>>();
        assert_eq!(nodes(stop_order(&instance, &Machine::Here, false, RuntimeFiles::Remove)), [0]);
        assert_eq!(nodes(stop_order(&instance, &Machine::Ssh("b".into()), true, RuntimeFiles::Remove)), [1, 2]);
        assert_eq!(stop_order(&instance, &Machine::Here, false, RuntimeFiles::Remove).alone_ms, 0);
    }
}
