//! This node's identity and the cluster map.

use crate::config::NodeConfig;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use weft_protocol::limits::CONTROL_BODY_BYTES_MAX;
use weft_protocol::{ClusterMap, Error, MapEpoch, NodeId, NodeIdentity, NodeKey, Result, codec};

/// Bytes before the map in the reply to `GetMap`, with a margin.
const MAP_ANSWER_BYTES: usize = 16;

/// The file system that this node is part of.
pub struct Cluster {
    pub name: String,
    pub node: NodeId,
    pub identity: NodeIdentity,
    pub key: NodeKey,
    pub owner_uid: u32,
    pub owner_gid: u32,
    /// The file system lies over a directory of another one.
    pub is_over: bool,
    map: RwLock<Arc<ClusterMap>>,
    /// Epoch of `map`; read by every request.
    epoch: AtomicU32,
}

impl Cluster {
    /// Returns a cluster without a map.
    pub fn new(config: &NodeConfig) -> io::Result<Self> {
        Ok(Self {
            name: config.name.clone(),
            node: config.node,
            identity: config.identity,
            key: config.key()?,
            owner_uid: config.owner_uid,
            owner_gid: config.owner_gid,
            is_over: config.over.is_some(),
            map: RwLock::default(),
            epoch: AtomicU32::new(0),
        })
    }

    /// Returns the current map.
    pub fn map(&self) -> Arc<ClusterMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the epoch of the current map.
    pub fn epoch(&self) -> MapEpoch {
        MapEpoch(self.epoch.load(Ordering::Acquire))
    }

    /// Installs a map with a higher epoch. `before` gets it before any thread can see it, and does not run if it is not
    /// newer.
    pub fn install(&self, map: ClusterMap, before: impl FnOnce(&ClusterMap)) -> Result<()> {
        // The map must fit into the replies that carry it.
        let fits = codec::to_bytes(&map).len() <= CONTROL_BODY_BYTES_MAX - MAP_ANSWER_BYTES;
        if !map.check() || !fits || map.name != self.name || map.node(self.node).is_none() {
            return Err(Error::Invalid);
        }
        let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if map.epoch > current.epoch {
            before(&map);
            self.epoch.store(map.epoch.0, Ordering::Release);
            *current = Arc::new(map);
        }
        Ok(())
    }
}
