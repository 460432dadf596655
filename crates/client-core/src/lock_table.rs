//! Which owner of this client may hold locks of which file, and who waits for some.
//!
//! The locks of a file are at its shard, or kept here (`kept_locks.rs`), and never in part at either: none is granted
//! here while the shard has one of this client, is being asked for one, or has somebody wait.
//!
//! Lock order: `state` is a leaf. No waiter is told with it held.

use crate::kept_locks::{Kept, KeptLocks};
use crate::lock::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use weft_protocol::message::shard::LockAnswer;
use weft_protocol::{HeldLock, InodeNumber, LockKind, LockOwner, LockRange, OwnerLocks, RangeLock, SessionId};

/// Ranges to be locked by an owner: all of them or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockRequest {
    pub owner: LockOwner,
    /// The process, for whoever asks what is in the way of its lock.
    pub pid: u32,
    pub locks: Vec<RangeLock>,
}

/// Locks that an owner may hold in a file, at the shard, or that are lost.
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
    /// The shard is being asked.
    pub asked: bool,
    /// The session in which it waits; `None`: the call is in flight.
    pub queued: Option<SessionId>,
    /// The caller gave it up while the call was in flight.
    pub cancelled: bool,
}

pub(crate) struct State<W> {
    held: BTreeMap<(InodeNumber, LockOwner), Held>,
    kept: KeptLocks,
    /// Requests for locks at shards that have not ended.
    asking: BTreeMap<InodeNumber, usize>,
    pub waits: BTreeMap<u64, Wait<W>>,
}

impl<W> State<W> {
    /// Whether the shard has locks of this client in the file, or may.
    fn is_at_shard(&self, inode: InodeNumber, session: SessionId) -> bool {
        let first = LockOwner { kind: LockKind::Flock, number: 0 };
        let mut held = self.held.range((inode, first)..).take_while(|((of, _), _)| *of == inode);
        self.asking.contains_key(&inode)
            || held.any(|(_, held)| held.session == session)
            || self.waits.values().any(|wait| wait.inode == inode && wait.asked)
    }

    fn held_by(&mut self, inode: InodeNumber, owner: LockOwner, session: SessionId) -> &mut Held {
        self.held.entry((inode, owner)).or_insert(Held { session, lost: false, grants: 0, closed: false })
    }

    /// The owner has lost what was kept here. Returns false if it has lost something before, and was not told.
    fn lose(&mut self, inode: InodeNumber, owner: LockOwner, session: SessionId) -> bool {
        !std::mem::replace(&mut self.held_by(inode, owner, session).lost, true)
    }

    fn grant(&mut self, inode: InodeNumber, owner: LockOwner, session: SessionId) {
        let held = self.held_by(inode, owner, session);
        held.grants += 1;
        held.session = session;
        held.closed = false;
    }
}

/// The shard is being asked for a lock of a file.
pub(crate) struct Asking<'a, W> {
    locks: &'a Locks<W>,
    inode: InodeNumber,
}

/// What the shard said of a lock.
pub(crate) struct Asked<'a, W> {
    pub answer: LockAnswer,
    pub session: SessionId,
    /// Until what was answered is noted.
    _asking: Asking<'a, W>,
}

impl<'a, W> Asked<'a, W> {
    pub fn new(answer: LockAnswer, session: SessionId, asking: Asking<'a, W>) -> Self {
        Self { answer, session, _asking: asking }
    }
}

impl<W> Drop for Asking<'_, W> {
    fn drop(&mut self) {
        let mut state = lock(&self.locks.state);
        let asking = state.asking.get_mut(&self.inode).expect("it was counted when it began");
        *asking -= 1;
        if *asking == 0 {
            state.asking.remove(&self.inode);
        }
    }
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
        let (held, kept, asking) = (BTreeMap::new(), KeptLocks::default(), BTreeMap::new());
        let state = Mutex::new(State { held, kept, asking, waits: BTreeMap::new() });
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

    /// Locks here, under the exclusive lease on the file.
    pub(crate) fn lock_here(&self, inode: InodeNumber, session: SessionId, request: &LockRequest) -> Kept {
        let mut state = lock(&self.state);
        if state.is_at_shard(inode, session) { Kept::AtShard } else { state.kept.lock(inode, session, request) }
    }

    /// Whether locks of the file are kept here, or may be.
    pub(crate) fn keeps(&self, inode: InodeNumber) -> bool {
        lock(&self.state).kept.keeps(inode)
    }

    /// Unlocks what is kept here.
    pub(crate) fn unlock_here(&self, inode: InodeNumber, owner: LockOwner, ranges: &[LockRange]) {
        lock(&self.state).kept.unlock(inode, owner, ranges);
    }

    /// What is in the way of a lock, if all locks of the file are kept here, under the exclusive lease on it.
    pub(crate) fn test_here(
        &self,
        inode: InodeNumber,
        session: SessionId,
        (owner, tested): (LockOwner, RangeLock),
    ) -> Option<Option<HeldLock>> {
        let state = lock(&self.state);
        (!state.is_at_shard(inode, session)).then(|| state.kept.conflict(inode, owner, tested))
    }

    /// Whether the owner holds a lock of which the shard need not know.
    pub fn has_here(&self, inode: InodeNumber, owner: LockOwner, held: RangeLock) -> bool {
        lock(&self.state).kept.has(inode, owner, held)
    }

    /// From now on, and as long as the result lives, none is granted here.
    pub(crate) fn begin_asking(&self, inode: InodeNumber) -> Asking<'_, W> {
        *lock(&self.state).asking.entry(inode).or_default() += 1;
        Asking { locks: self, inode }
    }

    /// The locks of a file that a session keeps here, and the shard has to take; `None`: it keeps none.
    pub(crate) fn kept(&self, inode: InodeNumber, session: SessionId) -> Option<Vec<OwnerLocks>> {
        lock(&self.state).kept.all_of(inode, session)
    }

    /// The shard may have taken them.
    pub(crate) fn doubt_kept(&self, inode: InodeNumber) {
        lock(&self.state).kept.doubt(inode);
    }

    /// The shard has taken them.
    pub(crate) fn handed_over(&self, inode: InodeNumber, session: SessionId) {
        let mut state = lock(&self.state);
        let owners = state.kept.take(inode);
        owners.into_iter().for_each(|owner| state.grant(inode, owner, session));
    }

    /// Whether the owner may hold something: the session of its latest grant, and the number of grants.
    pub(crate) fn grants(&self, inode: InodeNumber, owner: LockOwner) -> Option<(SessionId, u64)> {
        lock(&self.state).held.get(&(inode, owner)).map(|held| (held.session, held.grants))
    }

    /// The owner may hold what `session` was granted.
    pub(crate) fn granted(&self, inode: InodeNumber, owner: LockOwner, session: SessionId) {
        lock(&self.state).grant(inode, owner, session);
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

    /// The shard is asked for what a wait is for. Returns false if its caller has given it up.
    pub(crate) fn ask(&self, wait: u64) -> bool {
        let mut state = lock(&self.state);
        let waiting = state.waits.get_mut(&wait).filter(|waiting| !waiting.cancelled);
        waiting.map(|waiting| waiting.asked = true).is_some()
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
        for (inode, owner) in state.kept.end_session(ended) {
            if state.lose(inode, owner, ended) {
                self.lost.fetch_add(1, Ordering::AcqRel);
            }
        }
        let waits = state.waits.extract_if(.., |_, wait| wait.queued == Some(ended));
        waits.map(|(_, wait)| wait.waiter).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::{LockMode, ShardId};

    #[test]
    fn none_is_granted_here_while_the_shard_is_asked_or_has_one_or_has_somebody_wait() {
        let locks = Locks::default();
        let (inode, session) = (InodeNumber::new(ShardId(0), 7), SessionId(1));
        let owner = |number| LockOwner { kind: LockKind::Process, number };
        let range = RangeLock { range: LockRange::ALL, mode: LockMode::Shared };
        let here = |number| {
            let request = LockRequest { owner: owner(number), pid: 1, locks: vec![range] };
            let kept = locks.lock_here(inode, session, &request);
            locks.unlock_here(inode, owner(number), &[LockRange::ALL]);
            kept
        };
        let (first, second) = (locks.begin_asking(inode), locks.begin_asking(inode));
        drop(first);
        assert_eq!(here(1), Kept::AtShard);
        drop(second);
        assert_eq!(here(1), Kept::Granted);
        locks.granted(inode, owner(2), session);
        assert_eq!(here(1), Kept::AtShard);
        locks.unlocked(inode, owner(2), Some(1), session);
        assert_eq!(here(1), Kept::Granted);
        let wait = Wait { inode, owner: owner(3), waiter: (), asked: false, queued: None, cancelled: false };
        lock(&locks.state).waits.insert(5, wait);
        assert_eq!(here(1), Kept::Granted);
        assert!(locks.ask(5));
        assert_eq!(here(1), Kept::AtShard);
    }
}
