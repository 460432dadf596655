//! Calls about advisory locks (`locks.rs` has the table).
//!
//! A client that alone has a file open keeps its locks itself, and tells the shard before it gives up the file's lease
//! (`TakeLocks`).
//!
//! A lock is state of its session, as a lease is: it is in no journal and ends with the session, after the fence. A
//! call is answered at once, one that has to wait by `Queued`: neither slot nor connection waits with it. The end of
//! the wait comes over the session's recall connection, again each second until it is taken.
//!
//! Exactly once: the answer to the last call about locks of each slot is kept here, beside the last replies of the back
//! machine, and goes to whoever repeats the call.

use super::locks::{Locks, Request};
use super::park::Call;
use super::{Effect, Shard};
use crate::back::{Origin, Seen, Slot};
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::limits::LOCK_RANGES_MAX;
use weft_protocol::message::recall::LockGranted;
use weft_protocol::message::shard::{LockAnswer, ShardAnswer, ShardRequest};
use weft_protocol::{
    Error, FileKind, InodeNumber, LeaseKey, LeaseMode, LockOwner, LockRange, OwnerLocks, Result, SessionId,
};

/// The end of a wait is told again after this time, milliseconds.
const RESEND_MS: u64 = 1000;

/// See the module.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct LockCalls {
    pub table: Locks,
    /// Sequence and answer of the last call of each slot that was about locks.
    replies: BTreeMap<(SessionId, Slot), (u32, Result<ShardAnswer>)>,
    /// Ended waits that their sessions have not taken, and when they are told again.
    untaken: BTreeMap<(SessionId, u64), u64>,
    due: BTreeSet<(u64, SessionId, u64)>,
}

impl LockCalls {
    /// When the end of a wait has to be told again.
    pub fn next_due(&self) -> Option<u64> {
        self.due.first().map(|(due_ms, ..)| *due_ms)
    }

    /// Returns true if a call about locks came later in the slot.
    pub fn is_old(&self, origin: Origin) -> bool {
        let last = self.replies.get(&(origin.session, origin.slot));
        last.is_some_and(|(sequence, _)| *sequence >= origin.sequence)
    }

    /// The session knows that a wait is over.
    pub fn taken(&mut self, session: SessionId, wait: u64) {
        if let Some(due_ms) = self.untaken.remove(&(session, wait)) {
            self.due.remove(&(due_ms, session, wait));
        }
    }

    /// The session is over.
    pub fn end_session(&mut self, session: SessionId) {
        self.table.drop_session(session);
        let slots = (session, *Slot::ALL.start())..=(session, *Slot::ALL.end());
        let slots: Vec<_> = self.replies.range(slots).map(|(slot, _)| *slot).collect();
        slots.iter().for_each(|slot| drop(self.replies.remove(slot)));
        let waits = self.untaken.range((session, 0)..=(session, u64::MAX));
        let waits: Vec<u64> = waits.map(|((_, wait), _)| *wait).collect();
        waits.into_iter().for_each(|wait| self.taken(session, wait));
    }

    fn tell(&mut self, session: SessionId, wait: u64, now_ms: u64) {
        self.taken(session, wait);
        let due_ms = now_ms + RESEND_MS;
        self.untaken.insert((session, wait), due_ms);
        self.due.insert((due_ms, session, wait));
    }
}

impl<K: KeyValue> Shard<K> {
    /// Answers a call about locks.
    pub(super) fn lock_call(&mut self, call: &Call, out: &mut Vec<Effect>) {
        let result = match &call.request {
            ShardRequest::TestLock { inode, owner, lock } => {
                let test = |()| self.locks.table.test(*inode, (call.session(), *owner), *lock);
                self.check_locks(call.session(), *inode, *owner, &[lock.range]).map(test).map(ShardAnswer::LockTested)
            }
            _ => self.change_locks_once(call),
        };
        self.reply(call.token, result, out);
    }

    fn change_locks_once(&mut self, call: &Call) -> Result<ShardAnswer> {
        let Origin { session, slot, sequence } = call.origin;
        if let Some((last, result)) = self.locks.replies.get(&(session, slot))
            && *last >= sequence
        {
            return if *last == sequence { result.clone() } else { Err(Error::Invalid) };
        }
        if self.parking.in_slot(session, slot).is_some() {
            return Err(Error::Busy);
        }
        if !matches!(self.back.seen(call.origin), Seen::New) {
            return Err(Error::Invalid);
        }
        let result = self.change_locks(session, &call.request);
        self.locks.replies.insert((session, slot), (sequence, result.clone()));
        result
    }

    fn change_locks(&mut self, session: SessionId, request: &ShardRequest) -> Result<ShardAnswer> {
        match request {
            ShardRequest::Lock { inode, owner, pid, locks, wait } => {
                let ranges: Vec<_> = locks.iter().map(|lock| lock.range).collect();
                self.check_locks(session, *inode, *owner, &ranges)?;
                let request = Request { owner: (session, *owner), pid: *pid, locks: locks.clone() };
                self.locks.table.request(*inode, request, *wait).map(ShardAnswer::Lock)
            }
            ShardRequest::Unlock { inode, owner, ranges } => {
                owner.kind.check_ranges(ranges)?;
                self.locks.table.unlock(*inode, (session, *owner), ranges)?;
                Ok(ShardAnswer::Done)
            }
            ShardRequest::TakeLocks { inode, held } => {
                self.check_kept_locks(session, *inode, held)?;
                self.locks.table.replace(*inode, session, held)?;
                Ok(ShardAnswer::Done)
            }
            ShardRequest::CancelLock { wait, .. } => {
                let is_cancelled = self.locks.table.cancel(session, *wait);
                self.locks.taken(session, *wait);
                Ok(ShardAnswer::Lock(if is_cancelled { LockAnswer::Cancelled } else { LockAnswer::Granted }))
            }
            other => unreachable!("{other:?} changes no lock"),
        }
    }

    /// The session has the file open, and the ranges are such.
    fn check_locks(
        &self,
        session: SessionId,
        inode: InodeNumber,
        owner: LockOwner,
        ranges: &[LockRange],
    ) -> Result<()> {
        let record = self.back.inode(inode).ok_or(Error::Stale)?;
        if record.kind != FileKind::Regular {
            return Err(Error::Invalid);
        }
        self.leases.holder(&LeaseKey::Data(inode), session).ok_or(Error::BadHandle)?;
        owner.kind.check_ranges(ranges)
    }

    /// The session has the file's exclusive lease, and what it holds are locks.
    fn check_kept_locks(&self, session: SessionId, inode: InodeNumber, held: &[OwnerLocks]) -> Result<()> {
        for OwnerLocks { owner, locks, .. } in held {
            let ranges: Vec<_> = locks.iter().map(|lock| lock.range).collect();
            self.check_locks(session, inode, *owner, &ranges)?;
        }
        let own = self.leases.holder(&LeaseKey::Data(inode), session).ok_or(Error::BadHandle)?;
        let count: usize = held.iter().map(|owner| owner.locks.len()).sum();
        let is_valid = own.mode == LeaseMode::Exclusive && count <= LOCK_RANGES_MAX;
        if is_valid { Ok(()) } else { Err(Error::Invalid) }
    }

    /// Tells sessions of the waits that have ended.
    pub(super) fn tell_granted(&mut self, out: &mut Vec<Effect>) {
        for (session, wait) in self.locks.table.take_granted() {
            self.tell_end_of_wait(session, wait, out);
        }
    }

    /// Tells those again that did not say that they know.
    pub(super) fn tell_granted_again(&mut self, out: &mut Vec<Effect>) {
        while let Some((due_ms, session, wait)) = self.locks.due.first().copied() {
            if due_ms > self.now.boot_ms {
                return;
            }
            self.tell_end_of_wait(session, wait, out);
        }
    }

    fn tell_end_of_wait(&mut self, session: SessionId, wait: u64, out: &mut Vec<Effect>) {
        self.locks.tell(session, wait, self.now.boot_ms);
        let granted = LockGranted { shard: self.back.shard(), wait, result: Ok(()) };
        out.push(Effect::LockGranted { session, granted });
    }
}
