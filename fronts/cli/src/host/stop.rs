//! Stopping nodes on this machine, and removing what they leave.

use super::start::{DIRECTORIES_ABOVE, OBJECTS, REGIONS};
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
    /// Directories of stores that were left, since they hold what is not of Weft.
    pub left: Vec<PathBuf>,
}

/// A node's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Store {
    pub directory: PathBuf,
    /// The highest directory that was made for it; `None`: it was there before.
    pub made: Option<PathBuf>,
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
    let left = remove_stores(&stores)?;
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

/// Removes what the stores of several nodes hold, side by side: they may be on devices of their own, and hold millions
/// of objects. Then the directories that were made for them, as far as they are empty. Those that hold foreign files
/// are left and answered.
pub fn remove_stores(stores: &[Store]) -> Outcome<Vec<PathBuf>> {
    let removed: Vec<Outcome<()>> = thread::scope(|scope| {
        let running: Vec<_> = stores.iter().map(|store| scope.spawn(|| remove_objects(&store.directory))).collect();
        let crashed = || Err(Failure::new("a thread that removes a store failed"));
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| crashed())).collect()
    });
    removed.into_iter().collect::<Outcome<()>>()?;
    let made: Vec<(&Path, &Path)> =
        stores.iter().filter_map(|store| Some((&*store.directory, store.made.as_deref()?))).collect();
    // Those of all nodes first: they stand side by side.
    let left = made.iter().filter(|(directory, _)| !remove_empty(directory));
    let left = left.map(|(directory, _)| PathBuf::from(directory)).collect();
    for (directory, made) in made {
        remove_above(directory, made);
    }
    Ok(left)
}

fn remove_objects(store: &Path) -> Outcome<()> {
    for removed in [fs::remove_dir_all(store.join(OBJECTS)), fs::remove_file(store.join(REGIONS))] {
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(Failure::of_io(format_args!("remove store {}", store.display()), &error).failed());
        }
    }
    Ok(())
}

/// Removes a directory, if it is empty. True: it is not there any more.
fn remove_empty(directory: &Path) -> bool {
    fs::remove_dir(directory).map_or_else(|error| error.kind() == io::ErrorKind::NotFound, |()| true)
}

/// Removes the directories above a node's that are ours by their names or were made for it, up to the first one that is
/// not empty.
fn remove_above(store: &Path, made: &Path) {
    let above = store.ancestors().enumerate().skip(1);
    let mut ours = above.filter(|(height, directory)| *height <= DIRECTORIES_ABOVE || directory.starts_with(made));
    let _ = ours.all(|(_, directory)| remove_empty(directory));
}

/// The stores of a file system whose record was lost, where they are by default.
pub fn default_stores(file_system: &str) -> Vec<Store> {
    let entries = fs::read_dir(super::start::stores_directory(None, file_system));
    let store = |directory: PathBuf| Store { made: Some(directory.clone()), directory };
    entries.map(|entries| entries.filter_map(|entry| Some(store(entry.ok()?.path()))).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_goes_and_only_when_it_is_empty() {
        let ground = std::env::temp_dir().join(format!("weft-remove-{}", std::process::id()));
        let store = |number: &str, made: Option<&str>| {
            let directory = ground.join("d/weft-1/w/store").join(number);
            fs::create_dir_all(directory.join("objects/00")).expect("made");
            fs::write(directory.join("objects/00/x"), "x").expect("written");
            Store { directory, made: made.map(|made| ground.join(made)) }
        };
        let all = [store("n00", Some("d")), store("n01", Some("d/weft-1/w/store/n01"))];
        assert_eq!(remove_stores(&all).expect("removed"), Vec::<PathBuf>::new());
        assert!(ground.is_dir() && !ground.join("d").exists());

        let all = [store("n00", Some("d")), store("n01", None)];
        fs::write(all[0].directory.join("mine"), "of the user").expect("written");
        assert_eq!(remove_stores(&all).expect("removed"), [all[0].directory.clone()]);
        assert_eq!(fs::read_dir(&all[1].directory).expect("it was there before, and stays").count(), 0);
        assert!(all[0].directory.join("mine").exists() && !all[0].directory.join("objects").exists());

        fs::remove_dir_all(ground.join("d")).expect("removed");
        let all = [store("n00", Some("d/weft-1"))];
        fs::write(ground.join("d/mine"), "of the user").expect("written");
        assert_eq!(remove_stores(&all).expect("removed"), Vec::<PathBuf>::new());
        assert!(ground.join("d/mine").exists() && !ground.join("d/weft-1").exists());
        fs::remove_dir_all(ground).expect("removed");
    }
}
