//! Running file systems of this user on this machine: their runtime files.
//!
//! `$XDG_RUNTIME_DIR/weft` (or `/tmp/weft-UID`) holds a directory per file system, mode 0700:
//!
//! | file | content |
//! | --- | --- |
//! | `instance.json` | [`Instance`]: the map and the processes that `weft up` started here |
//! | `node.key` | 32 bytes, mode 0600: the node key; on the machines that run nodes |
//! | `nNN.sock`, `nNN.log`, `nNN.pid` | Unix socket, log and process id of each node here |
//! | `up.pid` | process id of a `weft up` that is still at work |
//! | `mounts/` | a file per mount: its mount point and process id |
//! | `users/` | a file per key that `weft user add` made here, without the key |
//!
//! `.user/NAME/mounts/` beside them has the mounts of file systems that this user opens with a key ([`KeyFile`]).
//!
//! A `.pid` file has two numbers: the process id and its start time (field 22 of /proc/PID/stat).
//!
//! On a crash: the files stay. A run that was killed before it wrote `instance.json` is still found by its `.pid`
//! files.

use crate::key_file::KeyFile;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_protocol::{ClusterMap, NodeId, NodeIdentity, NodeKey, UserKey};
use weft_sys::own_directory::{self, OwnDirectory};

/// Longest name of a file system: it stands in paths of sockets, which may have 107 bytes in all.
pub const INSTANCE_NAME_BYTES_MAX: usize = 32;
/// How often the directory of a new file system is tried to be made.
const MAKE_TRIES: usize = 10;

/// A process started by `weft up`, for finding leftovers of a killed run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeProcess {
    pub node: NodeId,
    /// Host it runs on as ssh reaches it; `None`: this machine.
    pub ssh_host: Option<String>,
    pub pid: u32,
    /// Start time of the process (field 22 of /proc/PID/stat), so that a reused pid is never signalled.
    pub start_time: u64,
    /// Directory of its store. Empty: no store.
    pub store: PathBuf,
    /// The highest directory that `up` made for the store, itself or one above: `down` removes what is empty from the
    /// store up to it. `None`: the store was there before, and stays.
    pub store_made: Option<PathBuf>,
}

/// A running file system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Instance {
    pub map: ClusterMap,
    pub processes: Vec<NodeProcess>,
    /// Directory of another file system that this one lies over.
    #[serde(default)]
    pub over: Option<PathBuf>,
    /// Directory of these files. Not stored.
    #[serde(skip)]
    pub directory: PathBuf,
    /// The key that opens it, when it is not this user's own: then nothing but its name is known of it here, until a
    /// node is asked. Not stored.
    #[serde(skip)]
    pub user_key: Option<Arc<KeyFile>>,
}

impl NodeProcess {
    /// Whether the process still runs. One on another host is taken as running: only that host can tell.
    pub fn is_alive(&self) -> bool {
        self.ssh_host.is_some() || process_start_time(self.pid) == Some(self.start_time)
    }
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

    /// The directory of the file system of this name, whether it is there or not.
    pub fn directory_of(name: &str) -> PathBuf {
        Self::runtime_directory().join(name)
    }

    /// Checks, before anything in the runtime directory is believed, changed or removed, that it is this user's own:
    /// under /tmp anybody could have put one there. False: it is not there.
    pub fn check_runtime_directory() -> io::Result<bool> {
        match own_directory::check_path(&Self::runtime_directory()) {
            Err(error) if error.is_not_found() => Ok(false),
            checked => Ok(checked.map(|()| true)?),
        }
    }

    /// A file system that a key opens.
    pub fn of_key(key: KeyFile) -> Instance {
        let map = ClusterMap { name: key.file_system.clone(), ..ClusterMap::default() };
        let directory = Self::user_directory().join(&key.file_system);
        Instance { map, processes: Vec::new(), over: None, directory, user_key: Some(Arc::new(key)) }
    }

    /// The directory that has a directory per file system of others that is mounted here. No name of a file system
    /// begins with a dot.
    pub fn user_directory() -> PathBuf {
        Self::runtime_directory().join(".user")
    }

    /// Makes sure that the directory for the records of its mounts is there, and this user's own.
    pub fn prepare_mounts(&self) -> io::Result<()> {
        let (parent, directory) = (Self::runtime_directory(), self.mounts_directory());
        let make = |path: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        make(&parent).map_err(|error| at(&parent, &error))?;
        own_directory::check_path(&parent)?;
        make(&directory).map_err(|error| at(&directory, &error))
    }

    /// Whether this can name a file system: letters, digits, `-`, `_` and `.`, the first a letter or digit.
    pub fn is_name(name: &str) -> bool {
        name.len() <= INSTANCE_NAME_BYTES_MAX
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    }

    /// Makes the directory of a new file system, mode 0700. `AlreadyExists` when there is one: of the callers that try
    /// at the same time, exactly one gets it.
    pub fn make_directory(name: &str) -> io::Result<PathBuf> {
        let parent = Self::runtime_directory();
        let directory = parent.join(name);
        // The end of another file system may remove an empty parent just now.
        for _ in 0..MAKE_TRIES {
            match fs::DirBuilder::new().recursive(true).mode(0o700).create(&parent) {
                // Something else is there: the check says what.
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(&parent, &error)),
                _ => {}
            }
            match own_directory::check_path(&parent) {
                Err(error) if error.is_not_found() => continue,
                checked => checked?,
            }
            match fs::DirBuilder::new().mode(0o700).create(&directory) {
                Ok(()) => return Ok(directory),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    OwnDirectory::open(&parent, &directory)?;
                    return Err(at(&directory, &error));
                }
            }
        }
        Err(at(&directory, &io::ErrorKind::NotFound.into()))
    }

    /// Removes the runtime directory if nothing is in it.
    pub fn remove_empty_runtime_directory() -> io::Result<()> {
        let parent = Self::runtime_directory();
        match OwnDirectory::open(parent.parent().unwrap_or(&parent), &parent) {
            Err(error) if error.is_not_found() => Ok(()),
            opened => Ok(opened?.remove().map(|_| ())?),
        }
    }

    /// The file system of this name, or the only one when `name` is `None`. Errors say what is running.
    pub fn find(name: Option<&str>) -> io::Result<Instance> {
        let mut all = Self::all()?;
        if let Some(name) = name {
            return match all.iter().position(|instance| instance.map.name == name) {
                Some(index) => Ok(all.swap_remove(index)),
                None => Err(not_found(&format!("no file system \"{name}\" is running here"), &all)),
            };
        }
        // What was killed does not hide the one that runs; when nothing runs, the only leftover is meant.
        let alive = all.iter().filter(|instance| instance.is_alive()).count();
        if alive > 0 {
            all.retain(Instance::is_alive);
        }
        match all.len() {
            1 => Ok(all.swap_remove(0)),
            0 => Err(not_found("no file system is running here", &all)),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("several file systems are here ({}): say which", names(&all)),
            )),
        }
    }

    /// All file systems of this user that have runtime files here, alive or left over, by name.
    ///
    /// One without a readable `instance.json` (its `up` was killed, or is still at work) has an empty map with its
    /// name, and the processes that its `.pid` files tell.
    pub fn all() -> io::Result<Vec<Instance>> {
        let parent = Self::runtime_directory();
        if !Self::check_runtime_directory()? {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for entry in fs::read_dir(&parent).map_err(|error| at(&parent, &error))? {
            let entry = entry.map_err(|error| at(&parent, &error))?;
            let directory = entry.path();
            if let Some(name) = entry.file_name().to_str()
                && Self::is_name(name)
                && fs::symlink_metadata(&directory).is_ok_and(|metadata| metadata.is_dir())
            {
                all.push(Self::load(name, directory)?);
            }
        }
        all.sort_by(|a, b| a.map.name.cmp(&b.map.name));
        Ok(all)
    }

    /// Reads the files of one file system.
    fn load(name: &str, directory: PathBuf) -> io::Result<Instance> {
        let path = directory.join("instance.json");
        match fs::read(&path) {
            Ok(text) => match serde_json::from_slice::<Instance>(&text) {
                Ok(instance) if instance.map.name == name => return Ok(Instance { directory, ..instance }),
                Ok(_) => tracing::warn!("{}: is of another file system", path.display()),
                Err(error) => tracing::warn!("{}: {error}", path.display()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(at(&path, &error)),
        }
        let map = ClusterMap { name: name.to_owned(), ..ClusterMap::default() };
        Ok(Instance { map, processes: processes_of_pid_files(&directory)?, over: None, directory, user_key: None })
    }

    /// The nodes that run, or ran, on this machine, by the `.pid` files of the file system of this name.
    pub fn processes_here(name: &str) -> io::Result<Vec<NodeProcess>> {
        let directory = Self::directory_of(name);
        if Self::check_runtime_directory()? && directory.exists() {
            processes_of_pid_files(&directory)
        } else {
            Ok(Vec::new())
        }
    }

    /// Whether any of its nodes still runs.
    pub fn is_alive(&self) -> bool {
        self.processes.iter().any(NodeProcess::is_alive)
    }

    /// The file that holds the node key.
    pub fn node_key_path(&self) -> PathBuf {
        self.directory.join("node.key")
    }

    /// The node key: whoever can read it owns the file system.
    pub fn node_key(&self) -> io::Result<NodeKey> {
        let path = self.node_key_path();
        let bytes = fs::read(&path).map_err(|error| at(&path, &error))?;
        let bytes: [u8; 32] = bytes
            .try_into()
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{}: is no key", path.display())))?;
        Ok(NodeKey::new(bytes))
    }

    /// The directory that has a file per mount.
    pub fn mounts_directory(&self) -> PathBuf {
        self.directory.join("mounts")
    }

    /// The directory that has a file per key that was made for a user.
    pub fn users_directory(&self) -> PathBuf {
        self.directory.join("users")
    }

    /// Writes `instance.json` (to a temporary file, then renamed).
    pub fn save(&self) -> io::Result<()> {
        let path = self.directory.join("instance.json");
        let temporary = self.directory.join("instance.json.new");
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        let write = || {
            let mut file =
                fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            file.write_all(&text)?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|error| at(&path, &error))
    }

    /// Removes the runtime files. Directories other than `mounts` and `users` (a store that `up` did not make) are
    /// left, and named in the error.
    pub fn remove(&self) -> io::Result<()> {
        let parent = self.directory.parent().unwrap_or(&self.directory);
        let opened = own_directory::check_path(parent).and_then(|()| OwnDirectory::open(parent, &self.directory));
        let own = match opened {
            Err(error) if error.is_not_found() => return Ok(()),
            opened => opened?,
        };
        for name in ["mounts", "users"] {
            match own.entry(name) {
                Err(error) if error.is_not_found() => {}
                opened => remove_flat(opened?)?,
            }
        }
        remove_flat(own)
    }
}

/// The identity of this machine: processes with the same one may pass descriptors to each other and use Unix sockets.
///
/// Made of the boot id and the network namespace, so two machines, or two containers with networks of their own,
/// differ.
pub fn local_identity() -> io::Result<NodeIdentity> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let network = fs::read_link("/proc/self/ns/net")?;
    let text = format!("{} {}", boot.trim(), network.display());
    // A public hash: the key is none, the label keeps it apart from proofs.
    let hash = UserKey::new([0; 32]).prove(b"weft node identity v1", text.as_bytes());
    let first = hash.as_bytes().first_chunk().copied().unwrap_or_default();
    // Zero stands for "none" in texts and tests.
    Ok(NodeIdentity(u64::from_le_bytes(first).max(1)))
}

/// Start time of a running process, in clock ticks since boot. `None`: it is not there, or has ended and only waits for
/// its parent.
pub fn process_start_time(pid: u32) -> Option<u64> {
    start_time_of_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22 of the text of /proc/PID/stat, unless field 3 says that the process has ended.
fn start_time_of_stat(stat: &str) -> Option<u64> {
    // Field 2 is the program's name in parentheses and may hold anything, spaces and parentheses too.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    match fields.next()? {
        "Z" | "X" | "x" => None,
        _ => fields.nth(18)?.parse().ok(),
    }
}

/// The nodes that the `.pid` files of a directory tell of.
fn processes_of_pid_files(directory: &Path) -> io::Result<Vec<NodeProcess>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir(directory).map_err(|error| at(directory, &error))? {
        let path = entry.map_err(|error| at(directory, &error))?.path();
        let number = path.file_name().and_then(|name| name.to_str()).and_then(|name| {
            name.strip_prefix('n').and_then(|name| name.strip_suffix(".pid")).and_then(|number| number.parse().ok())
        });
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut numbers = text.split_ascii_whitespace();
        let pid = numbers.next().and_then(|pid| pid.parse().ok());
        let start_time = numbers.next().and_then(|time| time.parse().ok());
        if let (Some(node), Some(pid), Some(start_time)) = (number, pid, start_time) {
            let node = NodeId(node);
            let (store, store_made) = (PathBuf::new(), None);
            processes.push(NodeProcess { node, ssh_host: None, pid, start_time, store, store_made });
        }
    }
    processes.sort_by_key(|process| process.node);
    Ok(processes)
}

/// Removes a directory that holds files only.
fn remove_flat(directory: OwnDirectory) -> io::Result<()> {
    directory.remove_files()?;
    let path = directory.path().to_owned();
    if directory.remove()? { Ok(()) } else { Err(at(&path, &io::ErrorKind::DirectoryNotEmpty.into())) }
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn names(all: &[Instance]) -> String {
    all.iter().map(|instance| instance.map.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn not_found(what: &str, all: &[Instance]) -> io::Error {
    let text = if all.is_empty() { what.to_owned() } else { format!("{what}; here are: {}", names(all)) };
    io::Error::new(io::ErrorKind::NotFound, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of its own for one test, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let directory = std::env::temp_dir().join(format!("weft-instance-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir_all(&directory).expect("a temporary directory");
            Self(directory)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for good in ["weft", "job-12.3", "A_b"] {
            assert!(Instance::is_name(good), "{good}");
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "a:b", "-x", "a b", &"x".repeat(33)] {
            assert!(!Instance::is_name(bad), "{bad}");
        }
    }

    #[test]
    fn the_start_time_is_found_behind_any_program_name() {
        let tail = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(start_time_of_stat(&format!("12 (a) b) S {tail}")), Some(777));
        assert_eq!(start_time_of_stat(&format!("12 (weft) Z {tail}")), None);
        assert_eq!(start_time_of_stat("12 (weft"), None);
        assert!(process_start_time(std::process::id()).is_some());
    }

    #[test]
    fn what_is_saved_is_loaded_and_removed() {
        let scratch = Scratch::new("saved");
        let map = ClusterMap { name: "w".into(), ..ClusterMap::default() };
        let process = NodeProcess {
            node: NodeId(1),
            ssh_host: Some("h".into()),
            pid: 7,
            start_time: 9,
            store: "/s".into(),
            store_made: Some("/s".into()),
        };
        let instance =
            Instance { map, processes: vec![process], over: None, directory: scratch.0.join("w"), user_key: None };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(instance.mounts_directory()).expect("made");
        instance.save().expect("saved");
        fs::write(instance.mounts_directory().join("1.json"), "{}").expect("written");
        assert_eq!(Instance::load("w", instance.directory.clone()).expect("loaded"), instance);
        instance.remove().expect("removed");
        assert!(!instance.directory.exists());
        instance.remove().expect("removed twice");
    }

    #[test]
    fn a_run_killed_before_it_was_recorded_is_found_by_its_pid_files() {
        let scratch = Scratch::new("killed");
        fs::write(scratch.0.join("n03.pid"), "4194304 5\n").expect("written");
        fs::write(scratch.0.join("n04.pid"), "what").expect("written");
        fs::write(scratch.0.join("instance.json"), "{").expect("written");
        let instance = Instance::load("k", scratch.0.clone()).expect("loaded");
        assert_eq!((instance.map.name.as_str(), instance.processes.len()), ("k", 1));
        assert_eq!((instance.processes[0].node, instance.processes[0].pid), (NodeId(3), 4_194_304));
        assert!(!instance.is_alive());
    }

    #[test]
    fn the_identity_of_a_machine_does_not_change() {
        assert_eq!(local_identity().expect("identity"), local_identity().expect("identity"));
    }
}
