//! Owners of a node's state.
//!
//! Lock order: the cluster's `map` (1), the shards' `slots` (2), one shard's machine (3), then `calls`, `sessions`,
//! couriers, membership, the map's source, `places`, data activity, cached pages, fences, moving shards, `refusals`,
//! the storage server's collector (4, never two of them together). None is held across a send, a receive, or file I/O.
//!
//! Each owner imports only owners above it in this list: mailboxes, cluster and sessions, cached pages, couriers and
//! fences, storage server, shards, membership and data server; what comes back to the shards goes through
//! [`crate::shard_events`].

use crate::below::Below;
use crate::cached_pages::CachedPages;
use crate::clock;
use crate::cluster::Cluster;
use crate::config::{NodeConfig, StoreConfig};
use crate::counters::AtomicCounters;
use crate::courier::Couriers;
use crate::data::DataServer;
use crate::fencing::{Fencing, Unsettled};
use crate::granting::Granting;
use crate::mailbox::Loops;
use crate::map_source::MapSource;
use crate::membership::Members;
use crate::places::Places;
use crate::refusals::Refusals;
use crate::revoked::Revoked;
use crate::sessions::Sessions;
use crate::shard_events::ToShards;
use crate::shards::Shards;
use crate::stop::Stop;
use crate::storage_server::{BelowJob, Job, StorageServer, Surroundings};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::Receiver;
use std::time::Instant;
use weft_store_io::ObjectStore;

/// A node.
pub struct Node {
    pub started: Instant,
    pub cluster: Arc<Cluster>,
    pub loops: Arc<Loops>,
    pub sessions: Arc<Sessions>,
    pub shards: Arc<Shards>,
    pub members: Arc<Members>,
    pub map_source: Arc<MapSource>,
    /// `None`: metadata only.
    pub data: Option<DataServer>,
    pub revoked: Arc<Revoked>,
    pub counters: Arc<AtomicCounters>,
    pub refusals: Refusals,
    pub places: Arc<Places>,
    /// Number of authenticated connections.
    pub connections: AtomicU32,
    pub stopping: Stop,
}

/// Work for the threads of the storage server.
pub struct Jobs {
    pub objects: Receiver<Job>,
    pub fences: Receiver<Unsettled>,
}

impl Node {
    /// Returns a node with this many event loops, without a map. The jobs are there if there is a store.
    pub fn new(config: &NodeConfig, loops: usize) -> io::Result<(Arc<Self>, Option<Jobs>)> {
        let cluster = Arc::new(Cluster::new(config)?);
        let store = config.store.as_ref().map(StoreConfig::open).transpose()?;
        let below = config.over.as_deref().map(Below::open).transpose()?;
        let loops = Arc::new(Loops::new(loops)?);
        let sessions = Arc::new(Sessions::default());
        let (mut jobs, mut below) = (None, below);
        let shards = Arc::new_cyclic(|shards: &std::sync::Weak<Shards>| {
            let (shards, made) = new_shards(&cluster, &loops, &sessions, (store.clone(), below.take()), shards.clone());
            jobs = made;
            shards
        });
        let to_shards: ToShards = Arc::downgrade(&shards) as ToShards;
        let members = Members::new(cluster.node, Arc::clone(&shards.couriers), to_shards, Arc::clone(&loops));
        let map_source = Arc::clone(&shards.fencing.map_source);
        let (revoked, counters) = <(Arc<Revoked>, Arc<AtomicCounters>)>::default();
        let data = store.map(|store| DataServer {
            cluster: Arc::clone(&cluster),
            store,
            fencing: Arc::clone(&shards.fencing),
            pages: Arc::clone(&shards.pages),
            revoked: Arc::clone(&revoked),
            counters: Arc::clone(&counters),
            activity: Default::default(),
            rdma: Default::default(),
        });
        let node = Self {
            started: Instant::now(),
            cluster,
            loops,
            sessions,
            shards,
            members,
            map_source,
            data,
            revoked,
            counters,
            refusals: Refusals::default(),
            places: Arc::new(Places::new()),
            connections: AtomicU32::new(0),
            stopping: Stop::default(),
        };
        Ok((Arc::new(node), jobs))
    }

    /// Logs the refusal of a peer, within the limits of [`Refusals`].
    pub fn log_refusal(&self, what: std::fmt::Arguments<'_>) {
        if self.refusals.log(clock::boot_ms(), what) {
            // The first loop wakes up for deadlines.
            self.loops.all().iter().take(1).for_each(|mailbox| mailbox.look());
        }
    }

    /// Ends the node.
    pub fn stop(&self) {
        self.stopping.ask();
        self.loops.all().iter().for_each(|mailbox| mailbox.look());
    }
}

/// Returns the shards and what their effects go to. `to_shards` will refer to them.
fn new_shards(
    cluster: &Arc<Cluster>,
    loops: &Arc<Loops>,
    sessions: &Arc<Sessions>,
    (store, below): (Option<Arc<dyn ObjectStore>>, Option<Below<BelowJob>>),
    to_shards: ToShards,
) -> (Shards, Option<Jobs>) {
    let pages = Arc::new(CachedPages::new(Arc::clone(sessions), Arc::clone(loops)));
    let granting = Arc::new(Granting::new(to_shards.clone(), Arc::clone(loops)));
    let couriers = Arc::new(Couriers::new(Arc::clone(cluster), to_shards.clone(), Arc::clone(&granting)));
    let map_source = MapSource::new(Arc::clone(cluster), Arc::clone(&couriers), to_shards.clone());
    let (fencing, fences) = Fencing::new(
        Arc::clone(cluster),
        Arc::clone(&couriers),
        Arc::new(map_source),
        Arc::clone(&pages),
        to_shards.clone(),
        Arc::clone(loops),
    );
    let fencing = Arc::new(fencing);
    let storage = store.map(|store| {
        let surroundings = Surroundings {
            cluster: Arc::clone(cluster),
            fencing: Arc::clone(&fencing),
            pages: Arc::clone(&pages),
            couriers: Arc::clone(&couriers),
            shards: to_shards,
            loops: Arc::clone(loops),
            below,
        };
        StorageServer::new(store, surroundings)
    });
    let (storage, objects) = storage.unzip();
    let shards = Shards {
        cluster: Arc::clone(cluster),
        calls: Default::default(),
        sessions: Arc::clone(sessions),
        couriers,
        granting,
        fencing,
        pages,
        storage,
        loops: Arc::clone(loops),
        moving: Default::default(),
        slots: Default::default(),
    };
    (shards, objects.map(|objects| Jobs { objects, fences }))
}
