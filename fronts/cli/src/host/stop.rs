//! Stopping nodes on this machine, and removing what they leave.

use super::stores::{self, Store};
use crate::failure::{Failure, Outcome};
use crate::processes::{self, End, Process};
use crate::session::node_name;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use weft_client::Instance;
use weft_client::instance::NodeProcess;
use weft_protocol::{ClusterMap, NodeId};

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
}

/// How the nodes ended.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Stopped {
    /// Nodes that had to be killed.
    pub killed: Vec<NodeId>,
    /// Directories of stores that were left, since they hold what is not of Weft.
    pub left: Vec<PathBuf>,
}

/// Ends the nodes, then removes their stores and the runtime files.
pub fn stop(order: &StopOrder) -> Outcome<Stopped> {
    let marks: Vec<Process> = order.processes.iter().map(mark).collect();
    let ends = processes::end_all(&marks, Duration::from_millis(order.alone_ms), Duration::from_millis(order.asked_ms));
    let ended = order.processes.iter().zip(ends);
    let killed = ended.filter(|(_, how)| *how == End::Killed).map(|(process, _)| process.node).collect();
    if let Some(stuck) = order.processes.iter().find(|process| mark(process).is_alive()) {
        return Err(Failure::new(format!("node {}: process {} does not end", node_name(stuck.node), stuck.pid))
            .remedy("it hangs in the kernel: see /proc/PID/stack, then run this again"));
    }
    let stores = order.processes.iter().filter(|process| !process.store.as_os_str().is_empty());
    let stores: Vec<Store> =
        stores.map(|process| Store { directory: process.store.clone(), made: process.store_made.clone() }).collect();
    let left = stores::remove(&stores)?;
    let map = ClusterMap { name: order.name.clone(), ..ClusterMap::default() };
    let instance =
        Instance { map, processes: Vec::new(), directory: Instance::directory_of(&order.name), user_key: None };
    instance.remove().map_err(|error| {
        Failure::of_io("remove runtime files", &error)
            .failed()
            .remedy("remove what is left by hand when it is not needed")
    })?;
    Ok(Stopped { killed, left })
}

/// A node's process on this machine.
pub fn mark(process: &NodeProcess) -> Process {
    Process { pid: process.pid, start_time: process.start_time }
}
