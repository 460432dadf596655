//! Configuration that `weft up` hands to a node.

use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use weft_protocol::{NodeId, NodeIdentity, NodeKey};
use weft_store_io::{DirectoryStore, ObjectStore, RegionStore};
use weft_sys::own_directory::OwnDirectory;

/// Where objects are stored, and the capacity.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoreConfig {
    pub place: StorePlace,
    /// Ancestor of the store's directory or file that any user may own. The directories between the two must belong to
    /// this user (see [`OwnDirectory`]). `None`: the path is trusted.
    pub below: Option<PathBuf>,
    /// Capacity in bytes. `None`: the free space of the underlying file system, or half of the memory. A new region
    /// file is created with this size.
    pub size: Option<u64>,
}

/// Kind and path of a store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorePlace {
    Directory(PathBuf),
    /// An in-memory file system of the node's own; it ends with the node.
    Memory,
    /// A region store on a whole block device.
    Device(PathBuf),
    /// A region store in a file, created if missing.
    File(PathBuf),
}

/// Configuration of a node, as JSON on the standard input of `weft serve`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeConfig {
    /// Name of the file system.
    pub name: String,
    pub node: NodeId,
    pub identity: NodeIdentity,
    /// The node key, hexadecimal.
    pub node_key: String,
    /// Owner of `/`, and the default credentials of the owner's key.
    pub owner_uid: u32,
    pub owner_gid: u32,
    /// `None`: metadata only.
    pub store: Option<StoreConfig>,
    /// Directory of another file system that this one lies over.
    #[serde(default)]
    pub over: Option<PathBuf>,
    /// Directory of the Unix socket `nNN.sock`.
    pub runtime_directory: PathBuf,
    /// Address to listen on; port 0: any free one.
    pub listen: std::net::SocketAddr,
}

impl NodeConfig {
    /// Decodes the node key.
    pub fn key(&self) -> io::Result<NodeKey> {
        let digits = |index: usize| self.node_key.get(2 * index..2 * index + 2);
        let mut key = [0; 32];
        for (index, byte) in key.iter_mut().enumerate() {
            let decoded = digits(index).and_then(|digits| u8::from_str_radix(digits, 16).ok());
            *byte = decoded
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "node key: 64 hex digits expected"))?;
        }
        Ok(NodeKey::new(key))
    }
}

impl StoreConfig {
    /// Opens or creates the store.
    pub fn open(&self) -> io::Result<Arc<dyn ObjectStore>> {
        Ok(match (&self.place, &self.below) {
            (StorePlace::Directory(path), Some(below)) => {
                let directory = OwnDirectory::open(below, path)?;
                Arc::new(DirectoryStore::in_directory(&directory, path, self.size)?)
            }
            (StorePlace::Directory(path), None) => Arc::new(DirectoryStore::open(path, self.size)?),
            (StorePlace::Memory, _) => Arc::new(DirectoryStore::in_memory(self.size)?),
            (StorePlace::Device(path), _) => Arc::new(RegionStore::on_device(path)?),
            (StorePlace::File(path), Some(below)) => {
                let directory = OwnDirectory::open(below, path.parent().unwrap_or(path))?;
                let name = path.file_name().unwrap_or_default();
                Arc::new(RegionStore::in_directory(&directory, name, self.size)?)
            }
            (StorePlace::File(path), None) => Arc::new(RegionStore::in_file(path, self.size)?),
        })
    }
}
