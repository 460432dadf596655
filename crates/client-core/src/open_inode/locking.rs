//! Locks of an open file: kept here under its exclusive lease, or at the shard, which answers only to who has the file
//! open.

use super::OpenInode;
use super::state::State;
use crate::calls::Answer;
use crate::kept_locks::Kept;
use crate::link::{ATTEMPTS_MAX, SlotFor};
use crate::lock_table::{Asked, Asking, LockRequest};
use crate::objects::Objects;
use crate::shell::{Monitor, Shell};
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{Credentials, Error, HeldLock, LockOwner, LockRange, RangeLock, Result, routing};

impl<S: Shell> OpenInode<S> {
    /// Locks without the shard, if nobody else can have locks of the file.
    pub(crate) async fn lock_here(&self, io: &Objects<S>, request: &LockRequest) -> Result<Kept> {
        let state = self.lock(io).await?;
        if !state.known.is_exclusive() {
            return Ok(Kept::AtShard);
        }
        let session = state.known.session();
        let kept = io.calls.locks.lock_here(self.inode, session, request);
        if kept == Kept::Granted {
            io.calls.end_locks_if_over(session);
        }
        Ok(kept)
    }

    /// Unlocks what is kept here.
    pub(crate) async fn unlock_here(&self, io: &Objects<S>, owner: LockOwner, ranges: &[LockRange]) -> Result<()> {
        if io.calls.locks.keeps(self.inode) {
            let _state = self.lock(io).await?;
            io.calls.locks.unlock_here(self.inode, owner, ranges);
        }
        Ok(())
    }

    /// As [`OpenInode::unlock_here`], for an owner who closes the file: after an error nothing is kept for it either.
    pub(crate) async fn close_here(&self, io: &Objects<S>, owner: LockOwner) -> Result<()> {
        let unlocked = self.unlock_here(io, owner, &[LockRange::ALL]).await;
        if unlocked.is_err() {
            let _state = self.state.lock().await;
            io.calls.locks.unlock_here(self.inode, owner, &[LockRange::ALL]);
        }
        unlocked
    }

    /// A lock that is in the way of this one. At most one message.
    pub(crate) async fn test_lock(
        &self,
        io: &Objects<S>,
        who: &Credentials,
        (owner, lock): (LockOwner, RangeLock),
    ) -> Result<Option<HeldLock>> {
        let _asking = {
            let mut state = self.lock(io).await?;
            let here = io.calls.locks.test_here(self.inode, state.known.session(), (owner, lock));
            if let Some(in_way) = here.filter(|_| state.known.is_exclusive()) {
                return Ok(in_way);
            }
            self.begin_asking(io, &mut state).await?
        };
        let request = ShardRequest::TestLock { inode: self.inode, owner, lock };
        match self.call_with_open(io, who, request).await?.answer {
            ShardAnswer::LockTested(held) => Ok(held),
            _ => Err(Error::Malformed),
        }
    }

    /// Asks the shard for a lock. [`Error::WouldBlock`]: another is in the way, and nobody waits.
    pub(crate) async fn ask_lock<'a>(
        &self,
        io: &'a Objects<S>,
        who: &Credentials,
        request: &LockRequest,
        wait: Option<u64>,
    ) -> Result<Asked<'a, S::LockWaiter>> {
        let asking = {
            let mut state = self.lock(io).await?;
            self.begin_asking(io, &mut state).await?
        };
        let (inode, LockRequest { owner, pid, locks }) = (self.inode, request.clone());
        let asked = self.call_with_open(io, who, ShardRequest::Lock { inode, owner, pid, locks, wait }).await;
        match asked {
            Ok(Answer { answer: ShardAnswer::Lock(answer), session, .. }) => Ok(Asked::new(answer, session, asking)),
            Ok(_) => Err(Error::Malformed),
            Err(error) => {
                if io.calls.is_in_doubt(routing::of_inode(inode)) {
                    // It may be granted without an answer: whoever closes the file unlocks it.
                    io.calls.locks.granted(inode, owner, io.calls.session.id());
                }
                Err(error)
            }
        }
    }

    /// From now on the shard has the file's locks, and as long as the result lives none is granted here.
    async fn begin_asking<'a>(&self, io: &'a Objects<S>, state: &mut State<S>) -> Result<Asking<'a, S::LockWaiter>> {
        let asking = io.calls.locks.begin_asking(self.inode);
        state.hand_over_locks(io).await?;
        Ok(asking)
    }

    /// The exclusive lease is being recalled, and nothing is locked under it any more: the shard gets what was.
    pub(crate) async fn give_up_locks(&self, io: &Objects<S>) -> Result<()> {
        if !io.calls.locks.keeps(self.inode) {
            return Ok(());
        }
        self.lock_in(io, SlotFor::Recall).await?.hand_over_locks(io).await
    }

    /// A call that the shard answers only to who has the file open: after the end of a session it is opened again.
    pub(crate) async fn call_with_open(
        &self,
        io: &Objects<S>,
        who: &Credentials,
        request: ShardRequest,
    ) -> Result<Answer> {
        // Its session names a wait: in another one it would be begun once more, and nobody would take the lock.
        let waits = matches!(request, ShardRequest::Lock { wait: Some(_), .. });
        let mut attempts = 0;
        loop {
            self.ensure_open(io).await?;
            let (session, shard) = (waits.then(|| io.calls.session.id()), routing::of_inode(self.inode));
            match io.calls.call_of(session, SlotFor::Caller, who, shard, request.clone()).await {
                Err(Error::BadHandle) if attempts < ATTEMPTS_MAX => attempts += 1,
                result => return result,
            }
        }
    }
}

impl<S: Shell> State<S> {
    /// The shard takes the locks that are kept here. One message, if there are any.
    async fn hand_over_locks(&mut self, io: &Objects<S>) -> Result<()> {
        let (inode, session, locks) = (self.known.inode(), self.known.session(), &io.calls.locks);
        let Some(held) = locks.kept(inode, session) else { return Ok(()) };
        let request = ShardRequest::TakeLocks { inode, held };
        let (who, shard) = (&io.calls.caller.credentials, routing::of_inode(inode));
        let taken = io.calls.call_of(Some(session), self.slot, who, shard, request).await;
        match taken {
            Ok(_) => locks.handed_over(inode, session),
            Err(_) => locks.doubt_kept(inode),
        }
        taken.map(|_| ())
    }
}
