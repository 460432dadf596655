//! Which owner of this client may hold locks of which file, and who waits for some.
//!
//! Lock order: `state` is a leaf. No waiter is told with it held.

use crate::lock::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use weft_protocol::{InodeNumber, LockOwner, RangeLock, SessionId};

/// Ranges to be locked by an owner: all of them or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockRequest {
    pub owner: LockOwner,
    /// The process, for whoever asks what is in the way of its lock.
    pub pid: u32,
    pub locks: Vec<RangeLock>,
}

/// Locks that an owner may hold in a file.
struct Held {
    /// Under which they were granted.
    session: SessionId,
    /// That has ended, and nobody was told yet who cares.
    lost: bool,
    /// Grows with each grant.
    grants: u64,
    /// The owner has closed the file, and the shard may not know so.
    closed: bool,
}

/// A request that waits.
pub(crate) struct Wait<W> {
    pub inode: InodeNumber,
    pub owner: LockOwner,
    pub waiter: W,
    /// The session in which it waits; `None`: the call is in flight.
    pub queued: Option<SessionId>,
    /// The caller gave it up while the call was in flight.
    pub cancelled: bool,
}

pub(crate) struct State<W> {
    held: BTreeMap<(InodeNumber, LockOwner), Held>,
    pub waits: BTreeMap<u64, Wait<W>>,
}

/// See the module.
pub struct Locks<W> {
    pub(crate) state: Mutex<State<W>>,
    /// Owners with lost locks that were not told.
    lost: AtomicUsize,
    latest: AtomicU64,
}

impl<W> Default for Locks<W> {
    fn default() -> Self {
        let state = Mutex::new(State { held: BTreeMap::new(), waits: BTreeMap::new() });
        Self { state, lost: AtomicUsize::new(0), latest: AtomicU64::new(0) }
    }
}

impl<W> Locks<W> {
    /// A number that no other wait of this client has, and no other owner of the kind that the client numbers itself.
    pub fn next_number(&self) -> u64 {
        self.latest.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns true if an owner has lost locks and was not told: one load, for the path of each read and write.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_lost(&self, inode: InodeNumber, owner: LockOwner) -> bool {
        self.has_lost() && lock(&self.state).held.get(&(inode, owner)).is_some_and(|held| held.lost)
    }

    /// Whether the owner may hold something: the session of its latest grant, and the number of grants.
    pub(crate) fn grants(&self, inode: InodeNumber, owner: LockOwner) -> Option<(SessionId, u64)> {
        lock(&self.state).held.get(&(inode, owner)).map(|held| (held.session, held.grants))
    }

    /// The owner may hold what `session` was granted.
    pub(crate) fn granted(&self, inode: InodeNumber, owner: LockOwner, session: SessionId) {
        let mut state = lock(&self.state);
        let held = state.held.entry((inode, owner)).or_insert(Held { session, lost: false, grants: 0, closed: false });
        held.grants += 1;
        held.session = session;
        held.closed = false;
    }

    /// The owner has unlocked: all that it held when it had been granted so much, or else a part. Returns whether
    /// something was lost before, and is told now. What it was granted since, under the current session, stays.
    pub(crate) fn unlocked(&self, inode: InodeNumber, owner: LockOwner, all: Option<u64>, current: SessionId) -> bool {
        let mut state = lock(&self.state);
        let Some(held) = state.held.get_mut(&(inode, owner)) else { return false };
        let is_lost = std::mem::take(&mut held.lost);
        if all == Some(held.grants) || (is_lost && held.session != current) {
            state.held.remove(&(inode, owner));
        }
        if is_lost {
            self.lost.fetch_sub(1, Ordering::AcqRel);
        }
        is_lost
    }

    /// The owner has closed the file, and could not unlock what it held when it had been granted so much.
    pub(crate) fn keep_closed(&self, inode: InodeNumber, owner: LockOwner, grants: u64) {
        // What was granted since is not to be lost: the owner closes the file once more.
        let mut state = lock(&self.state);
        if let Some(held) = state.held.get_mut(&(inode, owner)).filter(|held| held.grants == grants) {
            held.closed = true;
        }
    }

    pub(crate) fn is_closed(&self, inode: InodeNumber, owner: LockOwner) -> bool {
        lock(&self.state).held.get(&(inode, owner)).is_some_and(|held| held.closed)
    }

    /// Owners that have closed a file, which its shard may not know.
    pub(crate) fn closed(&self) -> Vec<(InodeNumber, LockOwner)> {
        let state = lock(&self.state);
        state.held.iter().filter(|(_, held)| held.closed).map(|(place, _)| *place).collect()
    }

    /// Whether somebody waits, or is about to.
    pub fn has_waits(&self) -> bool {
        !lock(&self.state).waits.is_empty()
    }

    /// The waits that a session has at shards: their numbers, and what they wait for.
    pub(crate) fn queued(&self, session: SessionId) -> Vec<(u64, InodeNumber)> {
        let state = lock(&self.state);
        let queued = state.waits.iter().filter(|(_, wait)| wait.queued == Some(session));
        queued.map(|(number, wait)| (*number, wait.inode)).collect()
    }

    /// A session has ended, and with it its locks. Returns those who wait in it.
    pub(crate) fn session_ended(&self, ended: SessionId) -> Vec<W> {
        let mut state = lock(&self.state);
        state.held.retain(|_, held| held.session != ended || !held.closed);
        for held in state.held.values_mut().filter(|held| held.session == ended && !held.lost) {
            held.lost = true;
            self.lost.fetch_add(1, Ordering::AcqRel);
        }
        let waits = state.waits.extract_if(.., |_, wait| wait.queued == Some(ended));
        waits.map(|(_, wait)| wait.waiter).collect()
    }
}
