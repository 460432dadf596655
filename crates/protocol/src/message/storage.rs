//! What is asked of a storage server beside reading and writing ([`crate::data`]).

use crate::below::{BelowName, BelowStamp};
use crate::capability::Capability;
use crate::ids::{InodeNumber, ObjectId, SessionId, ShardId};
use crate::name::Name;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A request to a storage server. All are safe to repeat.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StorageRequest {
    /// Client: lease a batch of object identifiers; at most [`crate::limits::OBJECT_BATCH_COUNT`]. Answer: `Batch`.
    LeaseObjects { count: u32 },
    /// Shard (or client with a capability): size and time of an object. Answer: `Object`.
    Stat { inode: InodeNumber, object: ObjectId },
    /// Shard: cut or extend, on behalf of a session, whose own kernel drops pages by itself. Answer: `Object`.
    Truncate { inode: InodeNumber, object: ObjectId, size: u64, by: SessionId },
    /// Shard: the objects are not needed any more. Those that are not there are passed over. Answer: `Done`.
    Remove { objects: Vec<(InodeNumber, ObjectId)> },
    /// Anybody: space. Answer: `Space`.
    Space,
    /// Shard: it ends this session, and what that holds will be others'. The session's capabilities for files of the
    /// shard are void from now on. Objects that are named are abandoned if anybody has a descriptor of them; at most
    /// [`crate::limits::FENCED_OBJECTS_MAX`]. Answer: `Done`, when nothing that the session writes can land in them any
    /// more.
    Fence { session: SessionId, shard: ShardId, objects: Vec<(InodeNumber, ObjectId)> },
    /// Shard: the names of a directory below that come after this one, with what they stand for. `path`: from the
    /// directory that the file system lies over. Answer: `NamesBelow`.
    ListBelow { path: Vec<Name>, after: Option<Name> },
    /// Shard: copy up to [`crate::limits::FILL_BYTES_MAX`] bytes from `offset` on of a file below into an object of the
    /// inode; `None`: into a new one. Answer: `Filled`.
    FillFromBelow { inode: InodeNumber, object: Option<ObjectId>, path: Vec<Name>, offset: u64 },
    /// Shard: as `Stat`; the object is made if it is not there. Answer: `Object`.
    Make { inode: InodeNumber, object: ObjectId },
}

impl StorageRequest {
    /// The object whose size and time the answer tells.
    pub fn object(&self) -> Option<(InodeNumber, ObjectId)> {
        match self {
            Self::Stat { inode, object } | Self::Make { inode, object } | Self::Truncate { inode, object, .. } => {
                Some((*inode, *object))
            }
            Self::LeaseObjects { .. }
            | Self::Remove { .. }
            | Self::Space
            | Self::Fence { .. }
            | Self::ListBelow { .. }
            | Self::FillFromBelow { .. } => None,
        }
    }
}

/// The end of a session at a shard, as its storage servers are told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionFence {
    pub session: SessionId,
    pub shard: ShardId,
    /// Objects to abandon if anybody has a descriptor of them.
    pub objects: Vec<(InodeNumber, ObjectId)>,
}

/// Answer of a node to a storage server that asks to serve the node's shards.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServingAnswer {
    /// The storage server may serve them for a term, once it has closed the gates of `fences`. Otherwise it settles
    /// these, and asks again.
    pub granted: bool,
    /// Fences that the storage server has not confirmed to the node.
    pub fences: Vec<SessionFence>,
}

/// What a storage server answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StorageAnswer {
    Done,
    /// Identifiers `capability.object` and the `capability.count - 1` after it, with the right to make and write them.
    Batch {
        capability: Capability,
        /// The store has little space left ([`Space::is_low`]): new objects are better made elsewhere.
        is_low: bool,
    },
    Object {
        size: u64,
        mtime: Timestamp,
    },
    Space(Space),
    /// Names of a directory below, in their order.
    NamesBelow {
        names: Vec<BelowName>,
        /// There are more after the last one.
        is_more: bool,
    },
    /// The object has the file's bytes up to `end`, if the file is what it was when its first ones were copied.
    Filled {
        object: ObjectId,
        end: u64,
        stamp: BelowStamp,
        /// The object's own modification time.
        object_mtime: Timestamp,
    },
}

/// Space of a storage server, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Space {
    /// What the store may use in all: its cap, or what the device can hold of it.
    pub total: u64,
    /// What can still be written by users.
    pub free: u64,
    /// What is kept back for metadata and logs. 0: the store has no cap, and takes what the device has.
    pub reserve: u64,
    /// Objects held.
    pub objects: u64,
    /// Number of the device below, the same for all stores that share its space.
    pub device: u64,
    /// What the device has free: all stores on it together cannot write more.
    pub device_free: u64,
}

impl Space {
    /// Less than a twentieth is free, and less than 16 GiB.
    pub fn is_low(&self) -> bool {
        self.free < (self.total / 20).min(16 << 30)
    }
}
