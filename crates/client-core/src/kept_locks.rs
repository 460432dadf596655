//! Locks of files that nobody else has open: the client keeps them by itself, and the shard hears of them when it asks
//! for the file's exclusive lease, or when one has to wait.
//!
//! A holder of the exclusive lease on a file's contents is its only opener, and only openers lock. So what is granted
//! here is in the way of no other client. Pure.

use crate::lock_table::LockRequest;
use std::collections::BTreeMap;
use weft_protocol::limits::{LOCK_RANGES_MAX, LOCKS_PER_SESSION_MAX};
use weft_protocol::{
    HeldLock, InodeNumber, LockKind, LockOwner, LockRange, LockedRanges, OwnerLocks, RangeLock, SessionId,
};

/// How a lock was asked for without the shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    Granted,
    /// Another owner of this client has what conflicts.
    InWay,
    /// The shard has the file's locks, or has to take them.
    AtShard,
}

#[derive(Default)]
struct OfOwner {
    pid: u32,
    ranges: LockedRanges,
}

/// Locks of one file.
struct OfFile {
    session: SessionId,
    owners: BTreeMap<LockOwner, OfOwner>,
    /// The shard was told of some, and has not answered.
    in_doubt: bool,
}

impl OfFile {
    fn conflict(&self, owner: LockOwner, lock: RangeLock) -> Option<HeldLock> {
        let others = self.owners.iter().filter(|(other, _)| **other != owner && other.kind.meets(owner.kind));
        let conflicts = others.filter_map(|(other, held)| {
            let conflict = held.ranges.conflict(lock);
            conflict.map(|lock| HeldLock { lock, kind: other.kind, pid: held.pid })
        });
        conflicts.min_by_key(|held| held.lock.range.start)
    }

    fn count(&self) -> usize {
        self.owners.values().map(|held| held.ranges.len()).sum()
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct KeptLocks {
    files: BTreeMap<InodeNumber, OfFile>,
    /// Ranges of all files.
    count: usize,
}

impl KeptLocks {
    /// Whether locks of the file are kept here, or may be.
    pub fn keeps(&self, inode: InodeNumber) -> bool {
        self.files.contains_key(&inode)
    }

    /// Locks all of it, or nothing.
    pub fn lock(&mut self, inode: InodeNumber, session: SessionId, request: &LockRequest) -> Kept {
        let file = self.files.get(&inode);
        // The shard bounds what one message and one session may have.
        let held = file.map_or(0, OfFile::count);
        let more = 2 * request.locks.len();
        if held + more > LOCK_RANGES_MAX || self.count + more > LOCKS_PER_SESSION_MAX {
            return Kept::AtShard;
        }
        if file.is_some_and(|file| file.session != session || file.in_doubt) {
            return Kept::AtShard;
        }
        if request.owner.kind == LockKind::Flock {
            // As on Linux, who converts a lock gives up the one that it has.
            self.unlock(inode, request.owner, &[LockRange::ALL]);
        }
        let conflict = |file: &OfFile| request.locks.iter().any(|lock| file.conflict(request.owner, *lock).is_some());
        if self.files.get(&inode).is_some_and(conflict) {
            return Kept::InWay;
        }
        self.change(inode, session, |file| {
            let held = file.owners.entry(request.owner).or_default();
            held.pid = request.pid;
            request.locks.iter().for_each(|lock| held.ranges.set(*lock));
        });
        Kept::Granted
    }

    /// Unlocks ranges of an owner.
    pub fn unlock(&mut self, inode: InodeNumber, owner: LockOwner, ranges: &[LockRange]) {
        let Some(session) = self.files.get(&inode).map(|file| file.session) else { return };
        self.change(inode, session, |file| {
            let Some(held) = file.owners.get_mut(&owner) else { return };
            ranges.iter().for_each(|range| held.ranges.clear(*range));
            if held.ranges.is_empty() {
                file.owners.remove(&owner);
            }
        });
    }

    /// A lock that is in the way of this one: that which begins first.
    pub fn conflict(&self, inode: InodeNumber, owner: LockOwner, lock: RangeLock) -> Option<HeldLock> {
        self.files.get(&inode)?.conflict(owner, lock)
    }

    /// Returns true if the owner holds the whole range in this mode, here.
    pub fn has(&self, inode: InodeNumber, owner: LockOwner, lock: RangeLock) -> bool {
        let held = self.files.get(&inode).and_then(|file| file.owners.get(&owner));
        held.is_some_and(|held| held.ranges.covers(lock))
    }

    /// What the shard has to be told, if locks of the file are kept here.
    pub fn all_of(&self, inode: InodeNumber, session: SessionId) -> Option<Vec<OwnerLocks>> {
        let file = self.files.get(&inode).filter(|file| file.session == session)?;
        let owners = file.owners.iter();
        let locks = owners.map(|(owner, held)| OwnerLocks {
            owner: *owner,
            pid: held.pid,
            locks: held.ranges.iter().collect(),
        });
        Some(locks.collect())
    }

    /// The shard was told, and may have taken them.
    pub fn doubt(&mut self, inode: InodeNumber) {
        if let Some(file) = self.files.get_mut(&inode) {
            file.in_doubt = true;
        }
    }

    /// The shard has them now. Returns whose they are.
    pub fn take(&mut self, inode: InodeNumber) -> Vec<LockOwner> {
        let Some(file) = self.files.remove(&inode) else { return Vec::new() };
        self.count -= file.count();
        file.owners.into_keys().collect()
    }

    /// A session has ended. Returns whose locks are lost.
    pub fn end_session(&mut self, ended: SessionId) -> Vec<(InodeNumber, LockOwner)> {
        let files = self.files.iter().filter(|(_, file)| file.session == ended);
        let files: Vec<InodeNumber> = files.map(|(inode, _)| *inode).collect();
        let owners = files.into_iter().flat_map(|inode| {
            let owners = self.take(inode);
            owners.into_iter().map(move |owner| (inode, owner)).collect::<Vec<_>>()
        });
        owners.collect()
    }

    fn change(&mut self, inode: InodeNumber, session: SessionId, change: impl FnOnce(&mut OfFile)) {
        let none = OfFile { session, owners: BTreeMap::new(), in_doubt: false };
        let file = self.files.entry(inode).or_insert(none);
        let before = file.count();
        change(file);
        self.count = self.count - before + file.count();
        // What the shard may have stays known until it says.
        if file.owners.is_empty() && !file.in_doubt {
            self.files.remove(&inode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_protocol::{LockMode, ShardId};

    const BYTES: usize = 12;

    fn inode(number: u64) -> InodeNumber {
        InodeNumber::new(ShardId(1), number)
    }

    fn owner(number: u64) -> LockOwner {
        LockOwner { kind: if number < 3 { LockKind::Process } else { LockKind::Flock }, number }
    }

    fn request(number: u64, from: usize, to: usize, mode: LockMode) -> LockRequest {
        let part = LockRange { start: from.min(to) as u64, end: from.max(to) as u64 };
        let range = if owner(number).kind == LockKind::Flock { LockRange::ALL } else { part };
        LockRequest { owner: owner(number), pid: 1, locks: vec![RangeLock { range, mode }] }
    }

    fn bytes(range: LockRange) -> std::ops::RangeInclusive<usize> {
        range.start as usize..=(range.end as usize).min(BYTES - 1)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Against an array for each owner with a mode for each byte.
        #[test]
        fn nobody_has_what_conflicts_and_all_else_is_granted(
            steps in proptest::collection::vec((0u64..5, 0..BYTES, 0..BYTES, 0..3u8), 1..60)
        ) {
            let (mut kept, mut model) = (KeptLocks::default(), vec![[None; BYTES]; 5]);
            for (number, from, to, what) in steps {
                let mode = if what == 0 { LockMode::Shared } else { LockMode::Exclusive };
                let request = request(number, from, to, mode);
                let (at, is_flock) = (number as usize, owner(number).kind == LockKind::Flock);
                let range = request.locks[0].range;
                if what == 2 {
                    kept.unlock(inode(7), owner(number), &[range]);
                    model[at][bytes(range)].fill(None);
                } else {
                    if is_flock {
                        model[at].fill(None);
                    }
                    let others = (0..5).filter(|other| *other != at && (*other >= 3) == is_flock);
                    let mut held = others.flat_map(|other| &model[other][bytes(range)]).flatten();
                    let in_way = held.any(|held: &LockMode| held.conflicts(mode));
                    let wanted = if in_way { Kept::InWay } else { Kept::Granted };
                    prop_assert_eq!(kept.lock(inode(7), SessionId(1), &request), wanted);
                    if !in_way {
                        model[at][bytes(range)].fill(Some(mode));
                    }
                }
                let locked = model.iter().flatten().any(Option::is_some);
                prop_assert_eq!(kept.keeps(inode(7)), locked);
                prop_assert_eq!(kept.count == 0, !locked);
            }
        }
    }

    #[test]
    fn what_one_message_or_session_may_not_have_goes_to_the_shard() {
        let mut kept = KeptLocks::default();
        let byte = |at: usize| request(1, 2 * at, 2 * at, LockMode::Shared);
        let granted =
            (0..LOCK_RANGES_MAX).take_while(|at| kept.lock(inode(1), SessionId(1), &byte(*at)) == Kept::Granted);
        assert_eq!(granted.count(), LOCK_RANGES_MAX - 1);
        let locks = kept.all_of(inode(1), SessionId(1)).expect("some are kept");
        assert_eq!(locks.iter().map(|owner| owner.locks.len()).sum::<usize>(), LOCK_RANGES_MAX - 1);
    }

    #[test]
    fn what_the_shard_may_have_is_told_again_and_ends_with_its_session() {
        let mut kept = KeptLocks::default();
        let lock = request(1, 0, 0, LockMode::Shared);
        assert_eq!(kept.lock(inode(1), SessionId(1), &lock), Kept::Granted);
        kept.doubt(inode(1));
        assert_eq!(kept.lock(inode(1), SessionId(1), &request(2, 5, 5, LockMode::Shared)), Kept::AtShard);
        kept.unlock(inode(1), owner(1), &[LockRange::ALL]);
        assert_eq!(kept.all_of(inode(1), SessionId(1)), Some(Vec::new()), "that it has none is to be told, too");
        assert_eq!(kept.all_of(inode(1), SessionId(2)), None);
        assert_eq!(kept.take(inode(1)), []);
        assert_eq!(kept.lock(inode(1), SessionId(1), &lock), Kept::Granted);
        assert_eq!(
            (kept.end_session(SessionId(2)), kept.end_session(SessionId(1))),
            (vec![], vec![(inode(1), owner(1))])
        );
        assert_eq!(kept.count, 0);
    }
}
