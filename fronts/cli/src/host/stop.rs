//! Stopping nodes on this machine, and removing what they leave.

use super::failed_logs;
use super::stores::{self, Store};
use crate::failure::{Explain, Failure, Outcome};
use crate::processes::{self, End, Process};
use crate::session::node_name;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use weft_client::Instance;
use weft_client::instance::{NodeProcess, local_identity};
use weft_protocol::{ClusterMap, NodeId, NodeIdentity};

/// Nodes to be ended on one machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StopOrder {
    /// Name of the file system.
    pub name: String,
    /// Its nodes on this machine.
    pub processes: Vec<NodeProcess>,
    /// How long they may take to end by themselves; zero when nobody has told them to.
    pub alone_ms: u64,
    /// How long they may take after SIGTERM.
    pub asked_ms: u64,
    pub runtime_files: RuntimeFiles,
}

/// What becomes of a file system's runtime files on a machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RuntimeFiles {
    /// They stay in this directory of this machine, which may be asked by another name: nodes elsewhere could not be
    /// ended, and the record is needed for that. Others remove theirs, as with `RemoveWithFailedLogs`.
    KeepAt {
        machine: NodeIdentity,
        directory: PathBuf,
    },
    Remove,
    /// Also the logs of nodes that did not start.
    RemoveWithFailedLogs,
    /// Only these nodes are ended, and their files removed: others of the file system may run here.
    RemoveOfNodes,
}

impl RuntimeFiles {
    /// Those of a file system on this machine stay.
    pub fn keep_here(file_system: &str) -> io::Result<Self> {
        Ok(Self::KeepAt { machine: local_identity()?, directory: Instance::directory_of(file_system) })
    }
}

/// How the nodes ended.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Stopped {
    /// Nodes that had to be killed.
    pub killed: Vec<NodeId>,
    /// Directories of stores that were left, since they hold what is not of Weft.
    pub left: Vec<PathBuf>,
    /// Region files that held data and were deleted, and what they held.
    #[serde(default)]
    pub deleted: Vec<String>,
}

/// Ends the nodes, then removes their stores and the runtime files.
pub fn stop(order: &StopOrder) -> Outcome<Stopped> {
    let processes = all_here(order)?;
    let marks: Vec<Process> = processes.iter().map(mark).collect();
    let ends = processes::end_all(&marks, Duration::from_millis(order.alone_ms), Duration::from_millis(order.asked_ms));
    let ended = processes.iter().zip(ends);
    let killed = ended.filter(|(_, how)| *how == End::Killed).map(|(process, _)| process.node).collect();
    if let Some(stuck) = processes.iter().find(|process| mark(process).is_alive()) {
        return Err(Failure::new(format!("node {}: process {} does not end", node_name(stuck.node), stuck.pid))
            .remedy("it hangs in the kernel: see /proc/PID/stack, then run this again"));
    }
    let stores = processes.iter().filter(|process| !process.store.as_os_str().is_empty());
    let stores: Vec<Store> =
        stores.map(|process| Store { directory: process.store.clone(), made: process.store_made.clone() }).collect();
    let deleted = stores::held(&stores);
    let left = stores::remove(&stores)?;
    remove_runtime_files(order).map_err(|error| {
        Failure::of_io("remove runtime files", &error)
            .failed()
            .remedy("remove what is left by hand when it is not needed")
    })?;
    Ok(Stopped { killed, left, deleted })
}

/// The nodes on this machine: those of the order, and those that the runtime directory tells of. A machine may be known
/// by several names, of which each has an order of its own; all share one directory, which is removed after its last
/// node has ended.
fn all_here(order: &StopOrder) -> Outcome<Vec<NodeProcess>> {
    let mut processes = order.processes.clone();
    if order.runtime_files == RuntimeFiles::RemoveOfNodes {
        return Ok(processes);
    }
    let told = Instance::processes_here(&order.name).explain(|| "runtime directory").map_err(Failure::failed)?;
    for process in told {
        if !processes.iter().any(|known| mark(known) == mark(&process)) {
            processes.push(process);
        }
    }
    Ok(processes)
}

fn remove_runtime_files(order: &StopOrder) -> io::Result<()> {
    if order.runtime_files == RuntimeFiles::keep_here(&order.name)? {
        return Ok(());
    }
    if order.runtime_files == RuntimeFiles::RemoveOfNodes {
        remove_files_of_nodes(order)?;
        // A machine that has neither the record nor a node was prepared for these nodes alone.
        let directory = Instance::directory_of(&order.name);
        if directory.join("instance.json").exists() || !Instance::processes_here(&order.name)?.is_empty() {
            return Ok(());
        }
    }
    let map = ClusterMap { name: order.name.clone(), ..ClusterMap::default() };
    let directory = Instance::directory_of(&order.name);
    Instance { map, processes: Vec::new(), over: None, directory, user_key: None }.remove()?;
    if order.runtime_files != RuntimeFiles::Remove {
        failed_logs::remove(Some(&order.name))?;
    }
    Instance::remove_empty_runtime_directory()
}

fn remove_files_of_nodes(order: &StopOrder) -> io::Result<()> {
    let directory = Instance::directory_of(&order.name);
    for process in &order.processes {
        for kind in ["pid", "sock", "log"] {
            match std::fs::remove_file(directory.join(format!("{}.{kind}", node_name(process.node)))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// A node's process on this machine.
pub fn mark(process: &NodeProcess) -> Process {
    Process { pid: process.pid, start_time: process.start_time }
}
