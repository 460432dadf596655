//! Advisory locks of a shard's files: who holds what, and who waits.
//!
//! A request is for several ranges of one file and is granted whole or not at all. It waits for locks that are in its
//! way, and for requests before it that would be: no later request overtakes. Except where fairness alone would close a
//! cycle: a request may overtake one that waits, over whatever steps, for a lock of the same owner.
//!
//! The *wait-for graph* of the shard has a node for each request that waits. An edge leads to the waits of each owner
//! that holds what is in the way, and to each earlier request that is. A process whose wait would close a cycle of held
//! locks is refused, as on Linux; descriptions (`flock`, OFD locks) are not: another thread may unlock.
//!
//! Pure and volatile: a session's locks end with it. Not here: sessions, messages, exactly once (`lock_calls.rs`).
//! Cost: a request looks at each holder of the file, and at each wait in it; graph searches are made for owners only
//! that hold a lock already.

mod file;
#[cfg(test)]
mod tests;

use file::{FileLocks, Waiting};
pub use file::{Owner, Request};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::limits::{LOCK_WAITS_PER_SESSION_MAX, LOCKS_PER_SESSION_MAX};
use weft_protocol::message::shard::LockAnswer;
use weft_protocol::{Error, HeldLock, InodeNumber, LockKind, LockRange, OwnerLocks, RangeLock, Result, SessionId};

/// A request that is not in a queue comes after all that are.
const LAST: u64 = u64::MAX;

/// Where a request waits.
type Place = (InodeNumber, u64);

/// What a session has at this shard.
#[derive(Default, Serialize, Deserialize)]
struct OfSession {
    ranges: usize,
    /// Waits by their names.
    waits: BTreeMap<u64, Place>,
    /// Files that it has locks of, or waits for: how many owners hold some, and how many requests wait.
    files: BTreeMap<InodeNumber, usize>,
}

/// Which edges a search follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edges {
    All,
    /// To holders, and from waits of processes only.
    HeldByProcesses,
}

/// See the module.
#[derive(Default, Serialize, Deserialize)]
pub struct Locks {
    files: BTreeMap<InodeNumber, FileLocks>,
    sessions: BTreeMap<SessionId, OfSession>,
    waits_of: BTreeMap<Owner, BTreeSet<Place>>,
    /// Number of files in which an owner holds something.
    holding: BTreeMap<Owner, usize>,
    latest: u64,
    /// Waits that were granted since they were last taken.
    granted: Vec<(SessionId, u64)>,
}

impl Locks {
    /// Takes the waits that have been granted, in their order.
    pub fn take_granted(&mut self) -> Vec<(SessionId, u64)> {
        std::mem::take(&mut self.granted)
    }

    /// Locks, or waits under the name `wait`, or refuses.
    pub fn request(&mut self, inode: InodeNumber, request: Request, wait: Option<u64>) -> Result<LockAnswer> {
        if request.owner.1.kind == LockKind::Flock && self.converts(inode, &request) {
            // As on Linux: others that wait may come between. Else two that share would wait for each other for ever.
            self.unlock(inode, request.owner, &[LockRange::ALL])?;
        }
        if !self.is_blocked(inode, &request, LAST) {
            self.check_room(request.owner.0, 2 * request.locks.len())?;
            self.grant(inode, &request);
            self.settle(inode);
            return Ok(LockAnswer::Granted);
        }
        let Some(wait) = wait else { return Err(Error::WouldBlock) };
        let (session, owner) = (request.owner.0, request.owner);
        let waits = self.sessions.get(&session).map(|of_session| &of_session.waits);
        if waits.is_some_and(|waits| waits.len() >= LOCK_WAITS_PER_SESSION_MAX || waits.contains_key(&wait)) {
            return Err(Error::NoLocks);
        }
        let holds = self.holding.contains_key(&owner);
        let is_process = owner.1.kind == LockKind::Process;
        if holds && is_process && self.reaches((inode, LAST), &request, owner, Edges::HeldByProcesses) {
            return Err(Error::Deadlock);
        }
        self.latest += 1;
        let place = (inode, self.latest);
        let of_session = self.sessions.entry(session).or_default();
        of_session.waits.insert(wait, place);
        *of_session.files.entry(inode).or_default() += 1;
        self.waits_of.entry(owner).or_default().insert(place);
        let closes_cycle = holds && self.reaches(place, &request, owner, Edges::All);
        let file = self.files.entry(inode).or_default();
        file.queue.insert(place.1, Waiting { request, wait });
        if closes_cycle {
            // Somebody on the cycle waits for fairness alone.
            let files: Vec<_> = self.files.iter().filter(|(_, file)| !file.queue.is_empty()).map(|(i, _)| *i).collect();
            files.into_iter().for_each(|inode| self.settle(inode));
        }
        Ok(LockAnswer::Queued)
    }

    /// Unlocks ranges of an owner.
    pub fn unlock(&mut self, inode: InodeNumber, owner: Owner, ranges: &[LockRange]) -> Result<()> {
        // A piece out of the middle makes one more.
        if ranges != [LockRange::ALL] {
            self.check_room_of(owner.0, ranges.len(), 2 * LOCKS_PER_SESSION_MAX)?;
        }
        self.change(inode, owner, |held| ranges.iter().for_each(|range| held.ranges.clear(*range)));
        self.settle(inode);
        Ok(())
    }

    /// What a session holds of a file is this from now on: its client kept the locks itself, and nobody else had any.
    /// The limit is twice that of [`Locks::request`]: what a client has granted is not refused afterwards.
    pub fn replace(&mut self, inode: InodeNumber, session: SessionId, held: &[OwnerLocks]) -> Result<()> {
        let more = held.iter().map(|owner| owner.locks.len()).sum();
        self.check_room_of(session, more, 2 * LOCKS_PER_SESSION_MAX)?;
        self.unlock_session_of(session, inode);
        let granted = held.iter().try_for_each(|OwnerLocks { owner, pid, locks }| {
            let request = Request { owner: (session, *owner), pid: *pid, locks: locks.clone() };
            if self.is_blocked(inode, &request, LAST) {
                return Err(Error::Invalid);
            }
            self.grant(inode, &request);
            Ok(())
        });
        self.settle(inode);
        granted
    }

    /// Ends a wait. Returns whether there was one.
    pub fn cancel(&mut self, session: SessionId, wait: u64) -> bool {
        let place = self.sessions.get(&session).and_then(|of_session| of_session.waits.get(&wait)).copied();
        let Some(place) = place else { return false };
        self.leave(place);
        self.settle(place.0);
        true
    }

    /// Returns a lock that is in the way of this one: that which begins first.
    pub fn test(&self, inode: InodeNumber, owner: Owner, lock: RangeLock) -> Option<HeldLock> {
        let request = Request { owner, pid: 0, locks: vec![lock] };
        let in_way = self.files.get(&inode)?.holders_in_way(&request).min_by_key(|(_, lock, _)| lock.range.start);
        in_way.map(|((session, holder), lock, pid)| {
            // A number of another machine would name some process of this one.
            let pid = if session == owner.0 { pid } else { 0 };
            HeldLock { lock, kind: holder.kind, pid }
        })
    }

    /// Ends all waits of a session.
    pub fn drop_waits(&mut self, session: SessionId) {
        let waits = self.sessions.get(&session).map(|of_session| of_session.waits.values().copied().collect());
        let places: Vec<Place> = waits.unwrap_or_default();
        for place in &places {
            self.leave(*place);
        }
        places.iter().for_each(|place| self.settle(place.0));
    }

    /// Ends all locks and waits of a session.
    pub fn drop_session(&mut self, session: SessionId) {
        let files = self.sessions.get(&session).map(|of_session| of_session.files.keys().copied().collect());
        let files: Vec<InodeNumber> = files.unwrap_or_default();
        for inode in files {
            self.drop_session_of(session, inode);
        }
        self.sessions.remove(&session);
    }

    /// Ends all locks and waits of a session in a file.
    pub fn drop_session_of(&mut self, session: SessionId, inode: InodeNumber) {
        let Some(file) = self.files.get(&inode) else { return };
        let queue = file.queue.iter().filter(|(_, waiting)| waiting.request.owner.0 == session);
        let places: Vec<Place> = queue.map(|(number, _)| (inode, *number)).collect();
        for place in places {
            self.leave(place);
        }
        self.unlock_session_of(session, inode);
        self.settle(inode);
    }

    fn unlock_session_of(&mut self, session: SessionId, inode: InodeNumber) {
        let held = self.files.get(&inode).into_iter().flat_map(|file| file.held.keys());
        let owners: Vec<_> = held.filter(|owner| owner.0 == session).copied().collect();
        for owner in owners {
            self.change(inode, owner, |held| held.ranges.clear(LockRange::ALL));
        }
    }

    /// Number of ranges that are locked, and of requests that wait.
    pub fn counts(&self) -> (usize, usize) {
        let of = self.sessions.values();
        of.fold((0, 0), |(ranges, waits), of_session| (ranges + of_session.ranges, waits + of_session.waits.len()))
    }

    /// Returns true if the owner holds the whole range in this mode.
    pub fn has(&self, inode: InodeNumber, owner: Owner, lock: RangeLock) -> bool {
        let held = self.files.get(&inode).and_then(|file| file.held.get(&owner));
        held.is_some_and(|held| held.ranges.covers(lock))
    }

    /// Whether a `flock` owner holds the other mode than it asks for.
    fn converts(&self, inode: InodeNumber, request: &Request) -> bool {
        let held = self.files.get(&inode).and_then(|file| file.held.get(&request.owner));
        let held = held.and_then(|held| held.ranges.iter().next());
        held.is_some_and(|held| request.locks.iter().any(|lock| lock.mode != held.mode))
    }

    fn check_room(&self, session: SessionId, more: usize) -> Result<()> {
        self.check_room_of(session, more, LOCKS_PER_SESSION_MAX)
    }

    fn check_room_of(&self, session: SessionId, more: usize, max: usize) -> Result<()> {
        let ranges = self.sessions.get(&session).map_or(0, |of_session| of_session.ranges);
        if ranges + more > max { Err(Error::NoLocks) } else { Ok(()) }
    }

    /// Whether a request at this place of the queue has to wait.
    fn is_blocked(&self, inode: InodeNumber, request: &Request, before: u64) -> bool {
        let Some(file) = self.files.get(&inode) else { return false };
        if file.holders_in_way(request).next().is_some() {
            return true;
        }
        let holds = self.holding.contains_key(&request.owner);
        file.earlier_in_way(request, before).any(|number| {
            let earlier = &file.queue[&number].request;
            !holds || !self.reaches((inode, number), earlier, request.owner, Edges::All)
        })
    }

    /// Whether a request waits for a lock of `target`, over whatever steps.
    fn reaches(&self, place: Place, request: &Request, target: Owner, edges: Edges) -> bool {
        let mut seen = BTreeSet::from([place]);
        let mut next = Vec::new();
        if self.expand(place, request, target, edges, &mut next) {
            return true;
        }
        while let Some(place) = next.pop() {
            if !seen.insert(place) {
                continue;
            }
            let Some(waiting) = self.files.get(&place.0).and_then(|file| file.queue.get(&place.1)) else { continue };
            let counts = edges == Edges::All || waiting.request.owner.1.kind == LockKind::Process;
            if counts && self.expand(place, &waiting.request, target, edges, &mut next) {
                return true;
            }
        }
        false
    }

    /// Adds the waits that a request waits for. Returns true if `target` holds what is in its way.
    fn expand(&self, place: Place, request: &Request, target: Owner, edges: Edges, next: &mut Vec<Place>) -> bool {
        let Some(file) = self.files.get(&place.0) else { return false };
        for (owner, ..) in file.holders_in_way(request) {
            if owner == target {
                return true;
            }
            next.extend(self.waits_of.get(&owner).into_iter().flatten());
        }
        if edges == Edges::All {
            next.extend(file.earlier_in_way(request, place.1).map(|number| (place.0, number)));
        }
        false
    }

    /// Grants what nothing is in the way of any more.
    fn settle(&mut self, inode: InodeNumber) {
        loop {
            let Some(file) = self.files.get(&inode) else { return };
            let numbers: Vec<u64> = file.queue.keys().copied().collect();
            let before = self.granted.len();
            for number in numbers {
                let request = &self.files[&inode].queue[&number].request;
                if self.is_blocked(inode, request, number) {
                    continue;
                }
                let Some(waiting) = self.leave((inode, number)) else { continue };
                self.grant(inode, &waiting.request);
                self.granted.push((waiting.request.owner.0, waiting.wait));
            }
            // A grant may have made an owner's lock weaker, or taken a wait out of the way.
            if self.granted.len() == before {
                break;
            }
        }
        if self.files.get(&inode).is_some_and(FileLocks::is_empty) {
            self.files.remove(&inode);
        }
    }

    fn grant(&mut self, inode: InodeNumber, request: &Request) {
        self.change(inode, request.owner, |held| {
            held.pid = request.pid;
            request.locks.iter().for_each(|lock| held.ranges.set(*lock));
        });
    }

    /// Changes what an owner holds in a file, and what is counted by it.
    fn change(&mut self, inode: InodeNumber, owner: Owner, change: impl FnOnce(&mut file::Held)) {
        let file = self.files.entry(inode).or_default();
        let held = file.held.entry(owner).or_default();
        let before = held.ranges.len();
        change(held);
        let now = held.ranges.len();
        if now == 0 {
            file.held.remove(&owner);
        }
        if (before, now) == (0, 0) {
            return;
        }
        let of_session = self.sessions.entry(owner.0).or_default();
        of_session.ranges = of_session.ranges + now - before;
        if before == 0 {
            *of_session.files.entry(inode).or_default() += 1;
            *self.holding.entry(owner).or_default() += 1;
        } else if now == 0 {
            self.forget_file_of(owner.0, inode);
            let files = self.holding.get_mut(&owner).expect("an owner that held a lock is counted");
            *files -= 1;
            if *files == 0 {
                self.holding.remove(&owner);
            }
        }
    }

    /// Takes a request out of its queue.
    fn leave(&mut self, place: Place) -> Option<Waiting> {
        let waiting = self.files.get_mut(&place.0)?.queue.remove(&place.1)?;
        let owner = waiting.request.owner;
        if let Some(waits) = self.waits_of.get_mut(&owner) {
            waits.remove(&place);
            if waits.is_empty() {
                self.waits_of.remove(&owner);
            }
        }
        if let Some(of_session) = self.sessions.get_mut(&owner.0) {
            of_session.waits.remove(&waiting.wait);
        }
        self.forget_file_of(owner.0, place.0);
        Some(waiting)
    }

    /// One owner of the session has no lock of a file any more, or one of its requests waits no longer.
    fn forget_file_of(&mut self, session: SessionId, inode: InodeNumber) {
        let of_session = self.sessions.get_mut(&session).expect("a session with a lock or a wait is counted");
        let uses = of_session.files.get_mut(&inode).expect("its files are counted");
        *uses -= 1;
        if *uses == 0 {
            of_session.files.remove(&inode);
            if of_session.files.is_empty() {
                self.sessions.remove(&session);
            }
        }
    }
}
