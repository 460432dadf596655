//! What one shard asks of another: the steps of operations that touch two shards.
//!
//! The asking shard has recorded an *intent* and locked the dentry it is about. Each step carries the intent's number
//! and may be repeated: the answering shard remembers what it did for an intent until it is told to forget it.

use crate::attributes::Attributes;
use crate::credentials::Credentials;
use crate::error::Error;
use crate::ids::{InodeNumber, MapEpoch, ShardId};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Names an intent: the shard that recorded it, and its number there (never used again).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct IntentId {
    pub shard: ShardId,
    pub number: u64,
}

/// A step, from the shard in `intent` to the shard `to`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerCall {
    pub to: ShardId,
    pub epoch: MapEpoch,
    pub intent: IntentId,
    pub step: PeerStep,
}

/// The steps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerStep {
    /// Make the inode of a directory whose dentry will stand at the asking shard. Answer: `Made`.
    MakeDirectoryInode { parent: InodeNumber, mode: u16, uid: u32, gid: u32, time: Timestamp },
    /// Close an empty directory: let nothing be made in it any more, and end its inode when the intent is forgotten.
    /// Answer: `Removed`.
    /// `sticky_parent_uid`: owner of the parent, when the parent is sticky and the caller must own one of the two.
    RemoveDirectoryInode { inode: InodeNumber, credentials: Credentials, sticky_parent_uid: Option<u32> },
    /// The asking shard has finished: forget the intent. Answer: `Forgotten`.
    Forget,
    /// The asking shard has given up without an answer: take back an inode that was made, open again a directory that
    /// was closed, and forget the intent. Answer: `Forgotten`.
    Undo,
}

/// Answer to a step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerReply {
    pub intent: IntentId,
    pub result: Result<PeerAnswer, Error>,
}

/// What a step answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerAnswer {
    Made(Attributes),
    Removed,
    Forgotten,
}
