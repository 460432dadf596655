//! Recalls, pages to be dropped, and locks that were waited for, on the connection that a client keeps for them.

use crate::error::Error;
use crate::ids::{InodeNumber, ObjectId, ShardId};
use crate::lease::{LeaseKey, LeaseMode};
use serde::{Deserialize, Serialize};

/// Shard to client: weaken a lease. Repeated (same number) until it is answered or the session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recall {
    pub shard: ShardId,
    /// Names the recall at its shard.
    pub number: u64,
    pub key: LeaseKey,
    /// What may be kept: `Open` (keep it open, cache nothing), or `None` (give it up, unless it is open).
    pub to: LeaseMode,
    /// See [`crate::lease`].
    pub stamp: u64,
}

/// Client to shard, after what was cached is written back (with a commit, through a slot) and dropped. Safe to repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecallAnswer {
    pub shard: ShardId,
    pub number: u64,
    /// What the client keeps: `None`, or `Open` while it has the file open (or a call on its way that may open it).
    pub kept: LeaseMode,
}

/// Storage server to client: have the kernel drop its pages of a range, which another client is about to change.
/// Repeated (same number) until it is answered or the session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DropPages {
    pub inode: InodeNumber,
    pub object: ObjectId,
    /// Names the drop at its storage server, with the object.
    pub number: u64,
    pub offset: u64,
    /// `u64::MAX`: to the end of the file.
    pub bytes: u64,
}

/// Client to storage server: no page of the range is left that was read or written before. Safe to repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PagesDropped {
    pub object: ObjectId,
    pub number: u64,
}

/// Shard to client: the wait for a lock is over. Repeated until it is taken or the session ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockGranted {
    pub shard: ShardId,
    /// The session's number of the wait.
    pub wait: u64,
    pub result: Result<(), Error>,
}

/// Client to shard, on the same connection: the end of the wait is known. Safe to repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockGrantTaken {
    pub shard: ShardId,
    pub wait: u64,
}
