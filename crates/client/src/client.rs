//! A connected client.
use crate::instance::Instance;
use std::sync::Arc;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{ClusterMap, Credentials, InodeNumber, Name, NodeId, Result};

/// Which way file data takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Way {
    /// The shortest: a descriptor of the object where the server is on this node, else a Unix socket there, else TCP.
    #[default]
    Auto,
    /// Unix socket to servers of this node, no descriptors; TCP to others.
    Unix,
    /// TCP only.
    Tcp,
}

/// How a client is connected.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    pub way: Way,
    /// Bytes of write-behind and read-ahead per open file; 0: the default.
    pub buffer_bytes: usize,
}

/// What the client has done, for `weft bench` and tests: bytes by the way they went, and messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientCounters {
    pub descriptor_read_bytes: u64,
    pub descriptor_write_bytes: u64,
    pub unix_read_bytes: u64,
    pub unix_write_bytes: u64,
    pub tcp_read_bytes: u64,
    pub tcp_write_bytes: u64,
    /// Calls to shards that were awaited.
    pub shard_calls: u64,
    /// Data requests.
    pub data_requests: u64,
    pub recalls: u64,
}

/// Told when a lease is recalled, so that another cache above (the kernel's) drops what it keeps. Called on the recall
/// thread with no lock held; may block.
pub trait Invalidator: Send + Sync {
    /// The name may mean something else now.
    fn entry(&self, parent: InodeNumber, name: &Name);
    /// Attributes of the inode may be others now; with `data`, its contents too.
    fn inode(&self, inode: InodeNumber, data: bool);
}

/// A client of one file system.
#[derive(Clone)]
pub struct Client(#[expect(dead_code, reason = "skeleton")] Arc<()>);

impl Client {
    /// Connects to a running file system. Fails when none of its nodes answers or the key is refused.
    pub fn connect(instance: &Instance, options: &ClientOptions) -> Result<Client> {
        let _ = (instance, options);
        todo!()
    }

    /// The credentials of the key that the client connected with.
    pub fn credentials(&self) -> Credentials {
        todo!()
    }

    /// The map as last seen.
    pub fn map(&self) -> Arc<ClusterMap> {
        todo!()
    }

    /// Asks a node as such (status, stuck, shutdown).
    pub fn node_request(&self, node: NodeId, request: NodeRequest) -> Result<NodeAnswer> {
        let _ = (node, request);
        todo!()
    }

    /// Who is told of recalls. At most one; set it before the first operation.
    pub fn set_invalidator(&self, invalidator: Arc<dyn Invalidator>) {
        let _ = invalidator;
        todo!()
    }

    /// What was done so far.
    pub fn counters(&self) -> ClientCounters {
        todo!()
    }

    /// Writes back what is buffered and ends the session at every node. Further operations fail.
    pub fn close(&self) -> Result<()> {
        todo!()
    }
}
