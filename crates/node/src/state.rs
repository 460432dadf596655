//! What all threads of a node share.
//!
//! Lock order: `map` (1), `shards` (2), one shard's machine (3), `pending`, `sessions`, `couriers`, `places`,
//! `data_activity`, `fencing`, the storage server's collector (4, never two of them together). None is held across a
//! send, a receive, or file I/O.

use crate::NodeConfig;
use crate::courier::Couriers;
use crate::data_activity::DataActivity;
use crate::event_loop::Mailbox;
use crate::fencing::Fencing;
use crate::places::Places;
use crate::revoked::Revoked;
use crate::sessions::Sessions;
use crate::shards::{ShardSlot, Waiting};
use crate::storage_server::StorageServer;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;
use weft_protocol::message::node::{Counters, RdmaCounters};
use weft_protocol::{ClusterMap, MapEpoch, NodeKey, ShardId};

/// A node's shared state.
pub struct Node {
    pub config: NodeConfig,
    pub key: NodeKey,
    pub started: Instant,
    pub map: RwLock<Arc<ClusterMap>>,
    /// Epoch of `map`, read with each request.
    pub epoch: AtomicU32,
    pub shards: RwLock<BTreeMap<ShardId, Arc<ShardSlot>>>,
    /// Calls that are not answered yet, by token.
    pub pending: Mutex<HashMap<u64, Waiting>>,
    pub next_token: AtomicU64,
    pub sessions: Mutex<Sessions>,
    pub revoked: Revoked,
    pub store: Option<StorageServer>,
    pub couriers: Couriers,
    pub loops: Vec<Arc<Mailbox>>,
    pub counters: AtomicCounters,
    /// What of RDMA the last client that asked was told, for people.
    pub rdma: Mutex<String>,
    pub connections: AtomicU32,
    pub data_activity: DataActivity,
    pub places: Arc<Places>,
    pub fencing: Fencing,
    pub stopping: Stop,
}

impl Node {
    /// The present map.
    pub fn map(&self) -> Arc<ClusterMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Epoch of the present map.
    pub fn epoch(&self) -> MapEpoch {
        MapEpoch(self.epoch.load(Ordering::Acquire))
    }

    /// A number for a call that a shard may answer later.
    pub fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }
}

/// Locks, also after a thread panicked while it held the lock: machines that may be in between are marked failed by
/// whoever caught the panic, everything else changes in single steps.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counters that any thread adds to.
#[derive(Default)]
pub struct AtomicCounters {
    pub requests: AtomicU64,
    pub read_tcp_bytes: AtomicU64,
    pub read_unix_bytes: AtomicU64,
    pub write_tcp_bytes: AtomicU64,
    pub write_unix_bytes: AtomicU64,
    pub write_memory_bytes: AtomicU64,
    pub read_rdma_bytes: AtomicU64,
    pub write_rdma_bytes: AtomicU64,
    pub rdma_puts: AtomicU64,
    pub rdma_gets: AtomicU64,
    pub rdma_flushes: AtomicU64,
    pub rdma_regions: AtomicU64,
    pub rdma_placed_bytes: AtomicU64,
    pub rdma_mapped_bytes: AtomicU64,
    pub rdma_streamed_bytes: AtomicU64,
    pub rdma_messages: AtomicU64,
    pub descriptors_passed: AtomicU64,
    pub capabilities_rejected: AtomicU64,
    pub peers_rejected: AtomicU64,
}

impl AtomicCounters {
    /// Adds to one of the counters.
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// The values now.
    pub fn read(&self) -> Counters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            requests: value(&self.requests),
            read_tcp_bytes: value(&self.read_tcp_bytes),
            read_unix_bytes: value(&self.read_unix_bytes),
            write_tcp_bytes: value(&self.write_tcp_bytes),
            write_unix_bytes: value(&self.write_unix_bytes),
            write_memory_bytes: value(&self.write_memory_bytes),
            rdma: RdmaCounters {
                read_bytes: value(&self.read_rdma_bytes),
                write_bytes: value(&self.write_rdma_bytes),
                puts: value(&self.rdma_puts),
                gets: value(&self.rdma_gets),
                flushes: value(&self.rdma_flushes),
                regions: value(&self.rdma_regions),
                placed_bytes: value(&self.rdma_placed_bytes),
                mapped_bytes: value(&self.rdma_mapped_bytes),
                streamed_bytes: value(&self.rdma_streamed_bytes),
                messages: value(&self.rdma_messages),
            },
            descriptors_passed: value(&self.descriptors_passed),
            capabilities_rejected: value(&self.capabilities_rejected),
            peers_rejected: value(&self.peers_rejected),
        }
    }
}

/// The wish that the node ends, and the wait for it.
#[derive(Default)]
pub struct Stop {
    asked: AtomicBool,
    gate: Mutex<()>,
    changed: Condvar,
}

impl Stop {
    /// Asks the node to end.
    pub fn ask(&self) {
        let _gate = lock(&self.gate);
        self.asked.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Whether it was asked to end.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Waits until it is asked to end.
    pub fn wait(&self) {
        let mut gate = lock(&self.gate);
        while !self.asked() {
            gate = self.changed.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
