//! Running file systems of this user on this machine: their runtime files.
//!
//! `$XDG_RUNTIME_DIR/weft` (or `/tmp/weft-UID`) holds a directory per file system, mode 0700:
//!
//! | file | content |
//! | --- | --- |
//! | `instance.json` | [`Instance`]: the map and the processes that `weft up` started here |
//! | `node.key` | 32 bytes, mode 0600: the node key; on the machines that run nodes |
//! | `NODE.sock`, `NODE.log`, `NODE.pid` | Unix socket, log and process id of each node here |
//! | `mounts/` | a file per mount: its mount point and process id |

use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use weft_protocol::{ClusterMap, NodeId};

/// A process started by `weft up`, for finding leftovers of a killed run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeProcess {
    pub node: NodeId,
    /// Host it runs on as ssh reaches it; `None`: this machine.
    pub ssh_host: Option<String>,
    pub pid: u32,
    /// Start time of the process (field 22 of /proc/PID/stat), so that a reused pid is never signalled.
    pub start_time: u64,
    /// Directory of its store, removed by `down` when `up` made it.
    pub store: PathBuf,
    pub store_made: bool,
}

/// A running file system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Instance {
    pub map: ClusterMap,
    pub processes: Vec<NodeProcess>,
    /// Directory of these files. Not stored.
    #[serde(skip)]
    pub directory: PathBuf,
}

impl Instance {
    /// The directory that holds all file systems of this user.
    pub fn runtime_directory() -> PathBuf {
        let uid = rustix::process::getuid().as_raw();
        match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(directory) if !directory.is_empty() => PathBuf::from(directory).join("weft"),
            _ => PathBuf::from(format!("/tmp/weft-{uid}")),
        }
    }

    /// The file system of this name, or the only one when `name` is `None`. Errors say what is running.
    pub fn find(name: Option<&str>) -> io::Result<Instance> {
        let _ = name;
        todo!()
    }

    /// All file systems of this user that have runtime files here, alive or left over.
    pub fn all() -> io::Result<Vec<Instance>> {
        todo!()
    }

    /// Writes `instance.json` (to a temporary file, then renamed).
    pub fn save(&self) -> io::Result<()> {
        todo!()
    }

    /// Removes the runtime files.
    pub fn remove(&self) -> io::Result<()> {
        todo!()
    }
}
