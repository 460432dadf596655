//! One node: `weft serve`.
//!
//! Connects the I/O-free machines (shards, storage server) with sockets, files, clocks and threads:
//!
//! | thread | work |
//! | --- | --- |
//! | `accept` | accepts connections; a thread each authenticates them |
//! | `loop-N` | serves control connections, steps the shards ([`event_loop`]) |
//! | `connection` | one per data connection: checks requests and moves bytes ([`data`]) |
//! | `courier-N` | requests to other nodes, on demand ([`courier`]) |
//! | `objects` | truncates, removes and lists objects ([`storage_server`]) |
//! | `below-N` | reads the directory that the file system lies over ([`below`]) |
//! | `abandon` | copies objects of which ended sessions have descriptors ([`fencing`]) |
//! | `signals` | SIGTERM and SIGINT end the node, SIGUSR1 logs the requests in flight |
//!
//! Each part of the state has one owner, a module of its own; [`state`] lists them and their order.

mod accept;
mod below;
mod cached_pages;
mod calls;
mod clock;
mod cluster;
mod config;
mod counters;
mod courier;
mod data;
mod data_activity;
mod dispatch;
mod event_loop;
mod fencing;
mod granting;
mod locks;
mod mailbox;
mod map_source;
mod membership;
mod moving;
mod places;
mod refusals;
mod revoked;
mod sessions;
mod shard_events;
mod shards;
mod state;
mod status;
mod stop;
mod storage_server;
mod text;

use crate::event_loop::EventLoop;
use crate::fencing::abandon;
use crate::state::{Jobs, Node};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use weft_protocol::NodeAddress;
use weft_transport::Listener;

pub use crate::config::{NodeConfig, StoreConfig, StorePlace};

/// Maximum number of event loops; there is one per two cores.
const LOOPS_MAX: usize = 4;

/// Runs a node until it is stopped (`Shutdown`, SIGTERM, SIGINT). Calls `ready` once it listens. It serves shards as
/// soon as it receives a map (`SetMap`).
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
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (node, jobs) = Node::new(config, (cores / 2).clamp(1, LOOPS_MAX))?;
    spawn_threads(&node, jobs)?;
    {
        let node = Arc::clone(&node);
        spawn("accept", move || accept::run(&node, &tcp, &unix))?;
    }
    tracing::info!("node {} of {} listens on {} and {}", config.node, config.name, address.tcp, address.unix);
    ready(&address);
    node.stopping.wait();
    // Lets the loops send the replies to `Shutdown`.
    std::thread::sleep(std::time::Duration::from_millis(20));
    tracing::info!("node {} ends", config.node);
    // Nobody is told any more that a write has landed.
    node.shards.fencing.connections().shutdown_all();
    if let Some(data) = &node.data
        && let Err(error) = data.store.close()
    {
        tracing::warn!("{}: {error}; objects may be left in it", data.store.describe());
    }
    // A connection wakes the accepting thread, which then finds that the node is stopping.
    drop(std::os::unix::net::UnixStream::connect(&socket_path));
    match std::fs::remove_file(&socket_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Listens on a Unix socket that only this user can connect to. Replaces the socket of a killed run.
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

fn spawn_threads(node: &Arc<Node>, jobs: Option<Jobs>) -> io::Result<()> {
    spawn_signals(node)?;
    if let (Some(Jobs { objects, fences }), Some(server)) = (jobs, &node.shards.storage) {
        let (fencing, store) = (Arc::clone(&node.shards.fencing), Arc::clone(&server.store));
        for index in (0..below::THREADS).filter(|_| server.reads_below()) {
            let server = Arc::clone(server);
            spawn(&format!("below-{index}"), move || server.work_below())?;
        }
        let server = Arc::clone(server);
        spawn("objects", move || server.work(&objects))?;
        spawn("abandon", move || abandon::work(&fencing, &*store, &fences))?;
    }
    for mailbox in node.loops.all() {
        let event_loop = EventLoop::new(Arc::clone(node), Arc::clone(mailbox))?;
        spawn(&format!("loop-{}", mailbox.index), move || event_loop.run())?;
    }
    Ok(())
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
