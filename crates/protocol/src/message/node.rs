//! What is asked of a node as such: the map, its state, its end.

use super::storage::{ServingAnswer, SessionFence, Space};
use crate::ids::{InodeNumber, KeyId, MapEpoch, NodeId, ObjectId, SessionId, ShardId};
use crate::map::{ClusterMap, NodeChange, NodeRecord};
use serde::{Deserialize, Serialize};

/// A request to a node. All are safe to repeat.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeRequest {
    /// Does nothing. Answer: `Done`.
    Ping,
    /// Anybody: the map. Answer: `Map`.
    GetMap,
    /// Owner or node: a map with a higher epoch. Answer: `Done`.
    SetMap(ClusterMap),
    /// Owner or node: state and counters. Answer: `Status`.
    Status,
    /// Owner: every request in flight. Answer: `InFlight`.
    Stuck,
    /// Owner: end the process. Answer: `Done`, then the sockets close.
    Shutdown,
    /// Owner: this user's key opens nothing any more; its connections are closed at their next request. `weft user
    /// remove` sends it to every node. Answer: `Done`.
    RevokeKey(KeyId),
    /// Node: its storage server asks to serve the capabilities of this node's shards, and reports fences from earlier
    /// answers as settled, at most [`crate::limits::FENCED_OBJECTS_MAX`] objects in all. Answer: `Serving`.
    /// `epoch`: of the map by which it knows them; another than this node's is refused as in a call.
    AskToServe { epoch: MapEpoch, settled: Vec<SessionFence> },
    /// Node: its storage server, which this session has left, asks the inode's shard whether the file has an object of
    /// the session's. Answer: `OfObject`, or `Busy` while the session may still give the object to the file.
    AskOfObject { session: SessionId, inode: InodeNumber, object: ObjectId },
    /// Owner, to the root shard's node: these nodes listen without a map and join, each with so many new shards. Their
    /// numbers were never used. Answer: `Map`, in which they are; `Busy` while others join.
    Join { nodes: Vec<NodeRecord>, shards_per_node: u16 },
    /// Owner, to the root shard's node: a shard moves to this node. Answer: `Map`, in which it has; `Busy` while the
    /// map changes otherwise; [`crate::Error::Unreachable`]: it stays where it was.
    Move { shard: ShardId, to: NodeId },
    /// Owner, to the root shard's node: a node is to be emptied, is not, or leaves the map. Answer: `Map`, in which it
    /// is so; `Busy` while the map changes otherwise; [`crate::Error::Invalid`]: it is not there, or has shards.
    Change { node: NodeId, change: NodeChange },
    /// Root shard's node to that of a shard: it sends the shard to the node `to`, and freezes it for the last parts.
    /// With the map of this epoch it has moved or not. Answer: `Done`, when all of it is there.
    Ship { shard: ShardId, to: NodeId, epoch: MapEpoch },
    /// Node to the one that its shard moves to with the map of this epoch: a part of the shard. One that has been taken
    /// is answered once more. Answer: `Done`; [`crate::Error::Invalid`]: it does not follow the latest one there.
    Take { shard: ShardId, epoch: MapEpoch, part: ShardPart },
}

/// A part of a shard on its way to another node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardPart {
    /// One more than that of the part before.
    pub number: u64,
    pub kind: ShardPartKind,
    /// At most [`crate::limits::SHARD_PART_BYTES_MAX`], or one record.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// What a part of a shard has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ShardPartKind {
    /// Keys of the store. All parts before it are void.
    FirstKeys,
    /// More keys of the store, or what has become of those before.
    Keys,
    /// What is beside the store.
    Rest,
    /// The end of that: the shard is there.
    LastRest,
}

/// What a node answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeAnswer {
    Done,
    Map(ClusterMap),
    Status(Box<NodeStatus>),
    InFlight(Vec<RequestInFlight>),
    Serving(ServingAnswer),
    OfObject { is_used: bool },
}

/// State of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeStatus {
    pub node: NodeId,
    pub pid: u32,
    pub uptime_seconds: u64,
    pub shards: Vec<ShardStatus>,
    /// `None`: no storage server here.
    pub space: Option<Space>,
    /// Where the store is, for people.
    pub store: String,
    /// What moves file data by RDMA, or why nothing does, for people; empty: no client has asked.
    pub rdma: String,
    pub counters: Counters,
    pub connections: u32,
}

/// State of a shard.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ShardStatus {
    pub shard: ShardId,
    pub inodes: u64,
    pub dentries: u64,
    pub sessions: u64,
    pub leases: u64,
    pub recalls: u64,
    /// Calls waiting for a recall, another shard or a storage server.
    pub parked: u64,
    /// Bytes of keys and values in the key-value store.
    pub store_bytes: u64,
    /// Calls that it was sent since it is at this node.
    pub calls: u64,
    /// Renames of files since then: those that it has made alone...
    pub renames: u64,
    /// ... and those that it has coordinated with other shards.
    pub renames_across: u64,
    /// An assertion failed in the shard, and it serves no more: the text.
    pub failed: Option<String>,
}

/// What a node has done since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Control requests answered.
    pub requests: u64,
    /// Bytes that went through the server, by the socket that carried them.
    pub read_tcp_bytes: u64,
    pub read_unix_bytes: u64,
    pub write_tcp_bytes: u64,
    pub write_unix_bytes: u64,
    /// Bytes that the server took out of the memory of clients on its node, and not out of their sockets.
    pub write_memory_bytes: u64,
    /// Bytes of reads that the server lent to clients on its node, and did not send...
    pub read_memory_bytes: u64,
    /// ... and those of them that it sent after all: they were not lent any more when the client had copied them.
    pub read_memory_lost_bytes: u64,
    /// What went by RDMA.
    pub rdma: RdmaCounters,
    /// Descriptors passed to clients of the same node: their bytes do not go through the server.
    pub descriptors_passed: u64,
    /// Data requests refused for their capability.
    pub capabilities_rejected: u64,
    /// Connections refused or closed for a failed handshake or a malformed message.
    pub peers_rejected: u64,
}

/// What a node has moved itself into and out of the memory of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RdmaCounters {
    pub read_bytes: u64,
    pub write_bytes: u64,
    /// Transfers into clients' memory, and out of it.
    pub puts: u64,
    pub gets: u64,
    /// Waits for puts to be at the other side.
    pub flushes: u64,
    /// Pieces of memory that clients have shown.
    pub regions: u64,
    /// Bytes that went between files and memory which nodes and clients share, without a transfer.
    pub placed_bytes: u64,
    /// Bytes that went between clients' memory and the pages of mapped files.
    pub mapped_bytes: u64,
    /// Bytes that went into clients' memory from where a device had read them, while further ones came.
    pub streamed_bytes: u64,
    /// Requests that came as messages of UCX, and not by the socket.
    pub messages: u64,
}

/// A request that has not been answered yet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestInFlight {
    /// Who asked: address and session.
    pub peer: String,
    /// What, in words.
    pub request: String,
    /// What it waits for.
    pub state: String,
    pub age_ms: u64,
}
