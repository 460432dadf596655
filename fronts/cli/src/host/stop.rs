//! Stopping nodes on this machine, and removing what they leave.

use crate::failure::{Failure, Outcome};
use crate::processes::{self, End, Process};
use crate::session::node_name;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
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
    let made = order.processes.iter().filter(|process| process.store_made && !process.store.as_os_str().is_empty());
    let stores: Vec<PathBuf> = made.map(|process| process.store.clone()).collect();
    remove_stores(&stores, &order.name)?;
    let map = ClusterMap { name: order.name.clone(), ..ClusterMap::default() };
    let instance =
        Instance { map, processes: Vec::new(), directory: Instance::directory_of(&order.name), user_key: None };
    instance.remove().map_err(|error| {
        Failure::of_io("remove runtime files", &error)
            .failed()
            .remedy("remove what is left by hand when it is not needed")
    })?;
    Ok(Stopped { killed })
}

/// A node's process on this machine.
pub fn mark(process: &NodeProcess) -> Process {
    Process { pid: process.pid, start_time: process.start_time }
}

/// Removes the directories of several nodes, side by side: they may be on devices of their own, and hold millions of
/// objects.
pub fn remove_stores(directories: &[PathBuf], file_system: &str) -> Outcome<()> {
    let removed: Vec<Outcome<()>> = thread::scope(|scope| {
        let remove = |directory| move || remove_store(directory, file_system);
        let running: Vec<_> = directories.iter().map(|directory: &PathBuf| scope.spawn(remove(directory))).collect();
        let crashed = || Err(Failure::new("a thread that removes a store failed"));
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| crashed())).collect()
    });
    removed.into_iter().collect()
}

/// Removes a node's directory; the last one takes the default directory of all of them with it.
pub fn remove_store(directory: &Path, file_system: &str) -> Outcome<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Failure::of_io(format_args!("remove store {}", directory.display()), &error).failed());
        }
        _ => {}
    }
    let default = super::start::default_store(file_system);
    if directory.parent() == Some(&default) {
        for empty in default.ancestors().take(3) {
            // What is not empty stays.
            let _ = fs::remove_dir(empty);
        }
    }
    Ok(())
}

/// The default stores of a file system whose record was lost.
pub fn default_stores(file_system: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(super::start::default_store(file_system));
    entries.map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect()).unwrap_or_default()
}
