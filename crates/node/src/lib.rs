//! One node: `weft serve`.
//!
//! Joins the pure machines (shards, storage server) to sockets, files, clocks and threads:
//!
//! | thread | what it does |
//! | --- | --- |
//! | `accept` | accepts connections; a thread each proves them |
//! | `loop-N` | serves control connections, steps the shards ([`event_loop`]) |
//! | `connection` | one per data connection: checks and moves bytes ([`data`]) |
//! | `courier-N` | requests to other nodes, while there are any ([`courier`]) |
//! | `objects` | cuts, removes and lists objects ([`storage_server`]) |
//! | `abandon` | copies objects of which ended sessions have descriptors ([`fencing`]) |
//! | `signals` | SIGTERM and SIGINT end the node, SIGUSR1 writes what is in flight to the log |

mod accept;
mod clock;
mod courier;
mod data;
mod data_activity;
mod dispatch;
mod event_loop;
mod fencing;
mod places;
mod refusals;
mod revoked;
mod sessions;
mod shards;
mod state;
mod status;
mod storage_server;

use crate::event_loop::{EventLoop, Mailbox};
use crate::fencing::Fencing;
use crate::places::Places;
use crate::refusals::Refusals;
use crate::state::{AtomicCounters, Node, Stop};
use crate::storage_server::StorageServer;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;
use weft_protocol::{NodeAddress, NodeId, NodeIdentity, NodeKey};
use weft_storage::Collector;
use weft_store_io::{DirectoryStore, ObjectStore, RegionStore};
use weft_sys::own_directory::OwnDirectory;
use weft_transport::Listener;

/// Where objects are kept, and how much.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoreConfig {
    pub place: StorePlace,
    /// A directory above a store's directory or file that may be anybody's: those between them must be this user's own
    /// (see [`OwnDirectory`]). `None`: the path is taken as it is.
    pub below: Option<PathBuf>,
    /// Bytes the store may use; `None`: what the file system below has free, or half of the memory. Of a file: those
    /// that it is made with.
    pub size: Option<u64>,
}

/// Where that is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorePlace {
    Directory(PathBuf),
    /// A file system of the node's own in memory, which goes with the node.
    Memory,
    /// The region store on a block device, all of it.
    Device(PathBuf),
    /// The region store in a file, which is made when it is not there.
    File(PathBuf),
}

/// All that a node is told at its start, as JSON on the standard input of `weft serve`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeConfig {
    /// Name of the file system.
    pub name: String,
    pub node: NodeId,
    pub identity: NodeIdentity,
    /// The node key, hexadecimal.
    pub node_key: String,
    /// Owner of `/`, and who the owner's key speaks as by default.
    pub owner_uid: u32,
    pub owner_gid: u32,
    /// `None`: metadata only.
    pub store: Option<StoreConfig>,
    /// Directory of the Unix socket `nNN.sock`.
    pub runtime_directory: PathBuf,
    /// Address to listen on; port 0: any free one.
    pub listen: std::net::SocketAddr,
}

/// Threads that serve control connections: one for each two cores, at most this many.
const LOOPS_MAX: usize = 4;

/// Runs a node until it is told to stop (`Shutdown`, SIGTERM, SIGINT). `ready` is called once it listens; it serves
/// shards from the moment it has got a map (`SetMap`).
pub fn run(config: &NodeConfig, ready: impl FnOnce(&NodeAddress)) -> io::Result<()> {
    let tcp = Listener::bind(config.listen)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {}: {error}", config.listen)))?;
    let socket_path = config.runtime_directory.join(format!("n{:02}.sock", config.node.0));
    let unix = listen_unix(&socket_path)?;
    unix.set_nonblocking(true)?;
    let address = NodeAddress { tcp: tcp.address()?.to_string(), unix: socket_path.display().to_string() };

    if config.store.is_some() && !weft_ucx::adapters().is_empty() {
        match weft_ucx::prepare() {
            Ok(()) => tracing::info!("file data may go by RDMA: {}", weft_ucx::adapters().join(", ")),
            Err(error) => tracing::info!(%error, "file data goes by sockets, though there are RDMA adapters"),
        }
    }
    let (node, jobs) = new_node(config)?;
    spawn_signals(&node)?;
    if let Some(Jobs { objects, fences }) = jobs {
        let (cutting, abandoning) = (Arc::clone(&node), Arc::clone(&node));
        spawn("objects", move || storage_server::work(&cutting, &objects))?;
        spawn("abandon", move || fencing::work(&abandoning, &fences))?;
    }
    for (index, mailbox) in node.loops.iter().enumerate() {
        let event_loop = EventLoop::new(Arc::clone(&node), Arc::clone(mailbox))?;
        spawn(&format!("loop-{index}"), move || event_loop.run())?;
    }
    {
        let node = Arc::clone(&node);
        spawn("accept", move || accept::run(&node, &tcp, &unix))?;
    }
    tracing::info!("node {} of {} listens on {} and {}", config.node, config.name, address.tcp, address.unix);
    ready(&address);
    node.stopping.wait();
    // Replies of the requests that asked for the end are on their way.
    std::thread::sleep(std::time::Duration::from_millis(20));
    tracing::info!("node {} ends", config.node);
    if let Some(server) = &node.store
        && let Err(error) = server.store.close()
    {
        tracing::warn!("{}: {error}; objects may be left in it", server.store.describe());
    }
    // A connection wakes the thread that accepts, which then sees that the node stops.
    drop(std::os::unix::net::UnixStream::connect(&socket_path));
    match std::fs::remove_file(&socket_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Listens on a Unix socket that only the user's processes reach. A socket left by a killed run is replaced.
fn listen_unix(path: &std::path::Path) -> io::Result<UnixListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(named)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(named)?;
    Ok(listener)
}

struct Jobs {
    objects: Receiver<storage_server::Job>,
    fences: Receiver<fencing::Unsettled>,
}

fn new_node(config: &NodeConfig) -> io::Result<(Arc<Node>, Option<Jobs>)> {
    let key = NodeKey::new(parse_key(&config.node_key)?);
    let (store, jobs) = match &config.store {
        None => (None, None),
        Some(store) => {
            let (server, jobs) = StorageServer::new(open_store(store)?, Collector::new(config.node, 1));
            (Some(server), Some(jobs))
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let loops = (0..(cores / 2).clamp(1, LOOPS_MAX)).map(Mailbox::new).collect::<io::Result<Vec<_>>>()?;
    let (fencing, fences) = Fencing::new();
    let node = Arc::new_cyclic(|weak| Node {
        config: config.clone(),
        key,
        started: Instant::now(),
        map: RwLock::default(),
        epoch: AtomicU32::new(0),
        shards: RwLock::new(BTreeMap::new()),
        pending: Mutex::new(HashMap::new()),
        next_token: AtomicU64::new(1),
        sessions: Mutex::default(),
        revoked: revoked::Revoked::default(),
        store,
        couriers: courier::Couriers::new(weak.clone()),
        loops,
        counters: AtomicCounters::default(),
        rdma: Default::default(),
        refusals: Refusals::default(),
        connections: AtomicU32::new(0),
        data_activity: Default::default(),
        places: Arc::new(Places::new()),
        fencing,
        stopping: Stop::default(),
    });
    let jobs = jobs.map(|objects| Jobs { objects, fences });
    Ok((node, jobs))
}

fn open_store(config: &StoreConfig) -> io::Result<Arc<dyn ObjectStore>> {
    Ok(match (&config.place, &config.below) {
        (StorePlace::Directory(path), Some(below)) => {
            let directory = OwnDirectory::open(below, path)?;
            Arc::new(DirectoryStore::in_directory(&directory, path, config.size)?)
        }
        (StorePlace::Directory(path), None) => Arc::new(DirectoryStore::open(path, config.size)?),
        (StorePlace::Memory, _) => Arc::new(DirectoryStore::in_memory(config.size)?),
        (StorePlace::Device(path), _) => Arc::new(RegionStore::on_device(path)?),
        (StorePlace::File(path), Some(below)) => {
            let directory = OwnDirectory::open(below, path.parent().unwrap_or(path))?;
            let name = path.file_name().unwrap_or_default();
            Arc::new(RegionStore::in_directory(&directory, name, config.size)?)
        }
        (StorePlace::File(path), None) => Arc::new(RegionStore::in_file(path, config.size)?),
    })
}

fn parse_key(text: &str) -> io::Result<[u8; 32]> {
    let byte = |index: usize| text.get(2 * index..2 * index + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let mut key = [0; 32];
    for (index, place) in key.iter_mut().enumerate() {
        *place =
            byte(index).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "node key: 64 hex digits wanted"))?;
    }
    Ok(key)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(|_| ())
}

fn spawn_signals(node: &Arc<Node>) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    let node = Arc::clone(node);
    spawn("signals", move || {
        for signal in signals.forever() {
            match signal {
                SIGUSR1 => status::log_in_flight(&node),
                // A node outlives the terminal it was started from.
                SIGHUP => {}
                _ => node.stopping.ask(),
            }
        }
    })
}
