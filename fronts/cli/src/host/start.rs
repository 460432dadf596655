//! Starting nodes on this machine.
//!
//! All are started at once and then waited for. Each is a process of its own session that outlives this one; what it
//! says goes to its log. When one fails, those that were started are ended, what was made is removed, and the log of
//! the one that failed is kept beside the directory of the file system.

use super::failed_logs;
use super::stores::{self, Store};
use crate::failure::{Explain, Failure, Outcome};
use crate::listen::Listen;
use crate::output::hexadecimal;
use crate::processes::{self, Process};
use crate::session::node_name;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weft_client::Instance;
use weft_client::instance::local_identity;
use weft_node::{NodeConfig, StoreConfig, StorePlace};
use weft_protocol::{NodeAddress, NodeId, NodeIdentity};

/// How long a node may take until it listens.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// Longest path of a Unix socket, bytes: `sun_path` of sockaddr_un without its closing zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Nodes to be started on one machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StartOrder {
    /// Name of the file system.
    pub name: String,
    /// The node key, hexadecimal.
    pub node_key: String,
    pub owner_uid: u32,
    pub owner_gid: u32,
    /// Each node says that it is on a machine of its own.
    pub identity_per_node: bool,
    pub over: Option<Over>,
    pub nodes: Vec<NodeOrder>,
}

/// The directory that the file system is to lie over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Over {
    path: PathBuf,
    /// Its inode number, by which machines that share it are told from those that have another one of this name.
    inode: u64,
}

impl Over {
    /// What this machine sees there.
    pub fn of(path: &Path) -> Outcome<Self> {
        let found = fs::metadata(path).explain(|| path.display())?;
        Ok(Self { path: path.to_owned(), inode: found.ino() })
    }

    /// The directory, if this machine sees the same one.
    fn checked(&self) -> Outcome<PathBuf> {
        if Self::of(&self.path)? == *self {
            return Ok(self.path.clone());
        }
        Err(Failure::new(format!("{}: is another directory on {}", self.path.display(), host_name()))
            .remedy("--over takes a directory that all hosts share"))
    }
}

/// One of them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeOrder {
    pub node: NodeId,
    /// Memory, a device, or the directory below which the node's own one is; `None`: the machine's default.
    pub store: Option<StorePlace>,
    /// Bytes the store may use; `None`: what is free.
    pub store_size: Option<u64>,
    /// `None`: the address at which ssh or srun reached this machine.
    pub listen: Option<Listen>,
}

/// Nodes that were started.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Started {
    /// The machine's name.
    pub host: String,
    pub nodes: Vec<StartedNode>,
}

/// One of them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StartedNode {
    pub node: NodeId,
    pub process: Process,
    pub identity: NodeIdentity,
    pub address: NodeAddress,
    /// Empty: in memory, or on a device.
    pub store: PathBuf,
    /// The highest directory that was made for the store; `None`: it was there.
    pub store_made: Option<PathBuf>,
}

/// The line that `weft serve` prints when it listens.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReadyLine {
    #[serde(flatten)]
    pub process: Process,
    pub address: NodeAddress,
}

/// A node between its start and its ready line.
struct Starting {
    config: NodeConfig,
    store_made: Option<PathBuf>,
    child: Child,
    process: Option<Process>,
}

/// Starts the nodes and waits until all listen.
pub fn start(order: &StartOrder) -> Outcome<Started> {
    let (directory, directory_made) = prepare_directory(order)?;
    let mut starting: Vec<Starting> = Vec::new();
    match begin_all(order, &directory, &mut starting).and_then(|()| await_all(&mut starting, &directory)) {
        Ok(nodes) => Ok(Started { host: host_name(), nodes }),
        Err(failure) => {
            give_up(starting);
            if directory_made {
                // The failure is the news; what is left here is found by the next `weft up`.
                let _ = fs::remove_dir_all(&directory);
                let _ = Instance::remove_empty_runtime_directory();
            }
            Err(failure)
        }
    }
}

/// Starts all processes. Those that were started are in `starting`, also when one fails.
fn begin_all(order: &StartOrder, directory: &Path, starting: &mut Vec<Starting>) -> Outcome<()> {
    for node in &order.nodes {
        let name = node_name(node.node);
        let begun = begin(order, node, directory).map_err(|failure| failure.within(&name))?;
        let process = begun.process;
        starting.push(begun);
        if let Some(process) = process {
            process.write(&directory.join(format!("{name}.pid")))?;
        }
    }
    Ok(())
}

/// The runtime directory on this machine, with the key in it; and whether it was made.
fn prepare_directory(order: &StartOrder) -> Outcome<(PathBuf, bool)> {
    let name = &order.name;
    let directory = Instance::directory_of(name);
    let key = directory.join("node.key");
    match Instance::make_directory(name) {
        Ok(directory) => {
            write_key(&key, &order.node_key)?;
            Ok((directory, true))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // `weft up` made it on its own machine; the key tells it from another file system of that name.
            let same = fs::read(&key).is_ok_and(|bytes| hexadecimal(&bytes) == order.node_key);
            if !same {
                return Err(Failure::new(format!("\"{name}\" is there already: {}", directory.display()))
                    .remedy(format!("`weft down --force {name}` on that machine, or another name")));
            }
            Ok((directory, false))
        }
        Err(error) => Err(Failure::of_io("runtime directory", &error).failed()),
    }
}

/// Writes the node key, for its owner only.
pub fn write_key(path: &Path, hexadecimal: &str) -> Outcome<()> {
    let bytes = from_hexadecimal(hexadecimal).ok_or_else(|| Failure::new("the node key is malformed"))?;
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(&bytes)
    };
    write().explain(|| path.display())
}

/// Starts one node: its store, its process, its configuration.
fn begin(order: &StartOrder, node: &NodeOrder, directory: &Path) -> Outcome<Starting> {
    let name = node_name(node.node);
    let socket = directory.join(format!("{name}.sock"));
    if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        return Err(Failure::new(format!("{}: too long for a socket", socket.display()))
            .remedy("a shorter name, or set XDG_RUNTIME_DIR to a shorter directory"));
    }
    let config = configure(order, node, directory)?;
    let log_path = directory.join(format!("{name}.log"));
    let log = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&log_path);
    let log = log.explain(|| log_path.display())?;
    let program = processes::own_program()?;
    let store_made = make_store(&config)?;
    let spawned = Command::new(program)
        .args(["serve", "--name", &order.name])
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            stores::remove(&store_of(&config, store_made).into_iter().collect::<Vec<_>>())?;
            return Err(Failure::of_io("start its process", &error).failed());
        }
    };
    let process = Process::of(child.id());
    if let Some(mut input) = child.stdin.take() {
        // One that ended already has said why in its log.
        let _ = serde_json::to_writer(&mut input, &config);
    }
    Ok(Starting { config, store_made, child, process })
}

/// What the node is told.
fn configure(order: &StartOrder, node: &NodeOrder, directory: &Path) -> Outcome<NodeConfig> {
    let listen = node.listen.clone().map_or_else(caller_address, Ok)?.resolve()?;
    let identity = local_identity().explain(|| "identity of this machine")?;
    let identity = if order.identity_per_node {
        NodeIdentity(identity.0.wrapping_add(1 + u64::from(node.node.0)))
    } else {
        identity
    };
    let own = |below: &Path| stores::stores_directory(below, &order.name).join(node_name(node.node));
    // The runtime directory is often small.
    let wanted = node.store.clone().unwrap_or_else(|| StorePlace::Directory(stores::temporary()));
    let (place, below) = match wanted {
        StorePlace::Directory(below) => (StorePlace::Directory(own(&below)), Some(below)),
        StorePlace::File(below) => (StorePlace::File(own(&below).join(stores::REGIONS)), Some(below)),
        StorePlace::Memory | StorePlace::Device(_) => (wanted, None),
    };
    Ok(NodeConfig {
        name: order.name.clone(),
        node: node.node,
        identity,
        node_key: order.node_key.clone(),
        owner_uid: order.owner_uid,
        owner_gid: order.owner_gid,
        store: Some(StoreConfig { place, below, size: node.store_size }),
        over: order.over.as_ref().map(Over::checked).transpose()?,
        runtime_directory: directory.to_owned(),
        listen: SocketAddr::new(listen, 0),
    })
}

/// The address of this machine at which ssh reached it, or from which it reaches the `srun` that did.
fn caller_address() -> Outcome<Listen> {
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    if let Some(address) = connection.split(' ').nth(2).and_then(|address| address.parse().ok()) {
        return Ok(Listen::Address(address));
    }
    match std::env::var("SLURM_LAUNCH_NODE_IPADDR") {
        Ok(caller) => Listen::toward(&caller),
        Err(_) => Err(Failure::new("no address to listen on: SSH_CONNECTION is not set")
            .remedy("write listen=IFACE|CIDR|ADDR, or give --listen")),
    }
}

/// Makes the directory of a node's store; see [`stores::make`].
fn make_store(config: &NodeConfig) -> Outcome<Option<PathBuf>> {
    match (directory_of(config), config.store.as_ref().and_then(|store| store.below.as_deref())) {
        (Some(directory), Some(below)) => stores::make(below, directory),
        _ => Ok(None),
    }
}

/// The directory of a node's store.
fn directory_of(config: &NodeConfig) -> Option<&Path> {
    match &config.store.as_ref()?.place {
        StorePlace::Directory(directory) => Some(directory),
        StorePlace::File(file) => file.parent(),
        StorePlace::Memory | StorePlace::Device(_) => None,
    }
}

/// The store of a node that was being started.
fn store_of(config: &NodeConfig, made: Option<PathBuf>) -> Option<Store> {
    directory_of(config).map(|directory| Store { directory: directory.to_owned(), made })
}

/// Waits for every ready line.
fn await_all(starting: &mut [Starting], directory: &Path) -> Outcome<Vec<StartedNode>> {
    let deadline = Instant::now() + START_PATIENCE;
    starting.iter_mut().map(|node| await_ready(node, directory, deadline)).collect()
}

fn await_ready(starting: &mut Starting, directory: &Path, deadline: Instant) -> Outcome<StartedNode> {
    let config = &starting.config;
    let line = starting.child.stdout.take().map(|output| processes::read_line(output, deadline)).unwrap_or_default();
    match serde_json::from_slice::<ReadyLine>(&line) {
        Ok(ready) => Ok(StartedNode {
            node: config.node,
            process: ready.process,
            identity: config.identity,
            address: ready.address,
            store: directory_of(config).map(Path::to_owned).unwrap_or_default(),
            store_made: starting.store_made.clone(),
        }),
        Err(_) => Err(explain_log(config, directory, Instant::now() >= deadline)),
    }
}

/// Why a node did not start, in its own last words. The log is kept where the next start does not find it in its way.
fn explain_log(config: &NodeConfig, directory: &Path, late: bool) -> Failure {
    let name = node_name(config.node);
    let log = directory.join(format!("{name}.log"));
    let text = fs::read_to_string(&log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(3)..].join("\n    ");
    let kept = failed_logs::path_of(&config.name, config.node);
    let log = fs::rename(&log, &kept).map_or(log, |()| kept);
    let why = if late { "did not listen in time" } else { "ended before it listened" };
    let last = if last.is_empty() { String::new() } else { format!("\n    {last}") };
    Failure::new(format!("node {name} {why}{last}")).remedy(format!("its log is {}; see `weft doctor`", log.display()))
}

/// Ends what was started and removes what was made for it.
fn give_up(starting: Vec<Starting>) {
    let mut stores = Vec::new();
    for mut node in starting {
        let _ = node.child.kill();
        let _ = node.child.wait();
        stores.extend(store_of(&node.config, node.store_made));
    }
    // The failure that led here is the news.
    let _ = stores::remove(&stores);
}

/// The name of this machine, for people.
pub fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

fn from_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text() {
        let key: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hexadecimal(&hexadecimal(&key)), Some(key));
        for bad in ["0", "0g", "é0"] {
            assert_eq!(from_hexadecimal(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_ready_line_is_flat() {
        let address = NodeAddress { tcp: "127.0.0.1:5".into(), unix: "/x".into() };
        let line = ReadyLine { process: Process { pid: 3, start_time: 4 }, address };
        let text = r#"{"pid":3,"start_time":4,"address":{"tcp":"127.0.0.1:5","unix":"/x"}}"#;
        assert_eq!(serde_json::to_string(&line).expect("JSON"), text);
        assert_eq!(serde_json::from_str::<ReadyLine>(text).expect("parsed"), line);
    }
}
