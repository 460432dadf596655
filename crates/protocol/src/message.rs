//! Control messages: a file per pair of parties.
//!
//! Each says who sends it, when, and what makes it safe to repeat.

pub mod node;
pub mod peer;
pub mod recall;
pub mod shard;
pub mod storage;

use crate::error::Error;
use crate::ids::{MapEpoch, SessionId, ShardId};
use serde::{Deserialize, Serialize};

/// Everything that stands behind a control frame's header.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// Client to shard.
    Shard(shard::ShardCall),
    /// Shard to client.
    ShardReply(shard::ShardReply),
    /// Client or shard to storage server.
    Storage(storage::StorageRequest),
    /// Storage server to whoever asked.
    StorageReply(Result<storage::StorageAnswer, Error>),
    /// Anybody to a node as such.
    Node(node::NodeRequest),
    /// Node to whoever asked.
    NodeReply(Box<Result<node::NodeAnswer, Error>>),
    /// Shard to shard.
    Peer(peer::PeerCall),
    /// Shard to shard, the answer.
    PeerReply(peer::PeerReply),
    /// Shard to client, on the client's recall connection.
    Recall(recall::Recall),
    /// Client to shard, on the same connection.
    RecallAnswer(recall::RecallAnswer),
    /// Client to node, on its recall connection: the session lives. Answered by `RenewReply` with the same identifier.
    Renew {
        /// The groups that it has joined, at whichever node's shards, all of them: those that it has left are missing.
        /// At most [`crate::limits::GROUPS_PER_SESSION_MAX`]; more are as good as none.
        groups: Vec<(ShardId, SessionId)>,
    },
    /// Node to client.
    RenewReply {
        /// A shard of the node refuses the session: it was ended, or will be with the term that the client counts now.
        /// Nothing is renewed, and a new session is to be begun.
        refused: bool,
        /// Epoch of the node's map.
        epoch: MapEpoch,
        /// The shards that have heard that the session lives.
        shards: Vec<ShardId>,
    },
    /// Storage server to client, on the client's recall connection.
    DropPages(recall::DropPages),
    /// Client to storage server, on the same connection.
    PagesDropped(recall::PagesDropped),
    /// Shard to client, on the client's recall connection.
    LockGranted(recall::LockGranted),
    /// Client to shard, on the same connection.
    LockGrantTaken(recall::LockGrantTaken),
}
