//! One node: `weft serve`.
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use weft_protocol::{NodeAddress, NodeId, NodeIdentity};

/// Where objects are kept, and how much.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoreConfig {
    pub directory: PathBuf,
    /// Bytes the store may use; `None`: what the file system below has free.
    pub size: Option<u64>,
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
    /// Directory of the Unix socket `NODE.sock`.
    pub runtime_directory: PathBuf,
    /// Address to listen on; port 0: any free one.
    pub listen: std::net::SocketAddr,
}

/// Runs a node until it is told to stop (`Shutdown`, SIGTERM, SIGINT). `ready` is called once it listens; it serves shards
/// from the moment it has got a map (`SetMap`).
pub fn run(config: &NodeConfig, ready: impl FnOnce(&NodeAddress)) -> io::Result<()> {
    let _ = (config, ready);
    todo!()
}
