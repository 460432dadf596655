//! Locks of one file: what is held, and who waits for it in which order.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weft_protocol::{LockOwner, LockedRanges, RangeLock, SessionId};

/// An owner among all sessions.
pub type Owner = (SessionId, LockOwner);

/// What is asked for: all of it, or nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    pub owner: Owner,
    pub pid: u32,
    pub locks: Vec<RangeLock>,
}

impl Request {
    /// Returns true if both cannot be held, whatever else is.
    fn conflicts(&self, other: &Request) -> bool {
        self.owner != other.owner
            && self.owner.1.kind.meets(other.owner.1.kind)
            && self.locks.iter().any(|lock| {
                other.locks.iter().any(|other| lock.range.overlaps(other.range) && lock.mode.conflicts(other.mode))
            })
    }
}

/// A request that waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Waiting {
    pub request: Request,
    /// The session's name of the wait.
    pub wait: u64,
}

/// What an owner holds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Held {
    pub pid: u32,
    pub ranges: LockedRanges,
}

/// See the module.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FileLocks {
    pub held: BTreeMap<Owner, Held>,
    /// By numbers that grow with the time of the request.
    pub queue: BTreeMap<u64, Waiting>,
}

impl FileLocks {
    /// Returns true if nothing is held or waited for.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.queue.is_empty()
    }

    /// Owners that hold what is in the way of a request.
    pub fn holders_in_way<'a>(&'a self, request: &'a Request) -> impl Iterator<Item = (Owner, RangeLock, u32)> + 'a {
        self.held.iter().filter_map(|(owner, held)| {
            if *owner == request.owner || !owner.1.kind.meets(request.owner.1.kind) {
                return None;
            }
            let conflicts = request.locks.iter().filter_map(|lock| held.ranges.conflict(*lock));
            conflicts.min_by_key(|lock| lock.range.start).map(|lock| (*owner, lock, held.pid))
        })
    }

    /// Requests that wait, came before, and would be in the way if they were granted.
    pub fn earlier_in_way<'a>(&'a self, request: &'a Request, before: u64) -> impl Iterator<Item = u64> + 'a {
        let earlier = self.queue.range(..before);
        earlier.filter(|(_, waiting)| waiting.request.conflicts(request)).map(|(number, _)| *number)
    }
}
