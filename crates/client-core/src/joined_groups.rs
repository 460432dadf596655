//! The groups whose files a client uses, which its renewals name (`group.rs`). A leaf in the order of locks.

use crate::lock::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use weft_protocol::error::errno;
use weft_protocol::limits::GROUPS_PER_SESSION_MAX;
use weft_protocol::{Error, Result, SessionId, ShardId};

/// The groups that a client has joined.
#[derive(Default)]
pub struct JoinedGroups(Mutex<BTreeMap<SessionId, Joined>>);

struct Joined {
    shard: ShardId,
    /// By so many handles.
    handles: usize,
}

impl JoinedGroups {
    /// An error like that of a program with too many open files: a renewal can name so many.
    pub(crate) fn join(&self, group: SessionId, shard: ShardId) -> Result<()> {
        let mut joined = lock(&self.0);
        if joined.len() >= GROUPS_PER_SESSION_MAX && !joined.contains_key(&group) {
            return Err(Error::Device(errno::EMFILE));
        }
        joined.entry(group).or_insert(Joined { shard, handles: 0 }).handles += 1;
        Ok(())
    }

    pub(crate) fn leave(&self, group: SessionId) {
        let mut joined = lock(&self.0);
        let Some(record) = joined.get_mut(&group) else { return };
        record.handles -= 1;
        if record.handles == 0 {
            joined.remove(&group);
        }
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// All, for a renewal, whichever node that goes to: a shard that has moved there takes those that are not named for
    /// left, and the client's map may be older.
    pub fn all(&self) -> Vec<(ShardId, SessionId)> {
        lock(&self.0).iter().map(|(group, record)| (record.shard, *group)).collect()
    }

    /// The shards that have to be told of them.
    pub fn shards(&self) -> BTreeSet<ShardId> {
        lock(&self.0).values().map(|record| record.shard).collect()
    }
}
