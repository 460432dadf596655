//! Advisory locks of files: what this client holds and waits for.
//!
//! Locks are at the file's shard. A request is one call, which is answered at once; one that has to wait is ended by a
//! message on the recall connection ([`Files::lock_granted`]), so that no thread, slot or connection waits with it.
//! Here stands which owner may hold something: who holds nothing unlocks without a message. Locks end with the session.
//! Of a file that this client alone has open it keeps the locks itself, without a message, until the shard recalls the
//! lease, or somebody has to wait (`kept_locks.rs`).
//! The owner is told, as NFS clients do: what it reads and writes by the handles through which it locked, and its calls
//! about locks, fail until it unlocks or closes.
//!
//! A node that is gone ends no wait: a client that has not heard of the shard for a term asks it, and without an
//! answer the wait fails. An unlock at close that fails is repeated until it succeeds or the session ends, and before
//! the owner locks again ([`Files::tend_locks`]).
//!
//! No waiter is told with a lock held.

use crate::calls::{Answer, Calls};
use crate::files::Files;
use crate::handle::Handle;
use crate::kept_locks::Kept;
use crate::link::SlotFor;
use crate::lock::lock;
use crate::lock_table::{Asked, LockRequest, Locks, Wait};
use crate::shell::Shell;
use std::collections::BTreeSet;
use weft_protocol::message::recall::LockGranted;
use weft_protocol::message::shard::{LockAnswer, ShardAnswer, ShardRequest};
use weft_protocol::{
    Error, HeldLock, InodeNumber, LockKind, LockOwner, LockRange, RangeLock, Result, SessionId, ShardId, routing,
};

impl<S: Shell> Handle<S> {
    /// The owner of what is locked by this handle itself: all its users are one.
    pub fn lock_owner(&self, calls: &Calls<S>) -> LockOwner {
        let number = *self.owner.get_or_init(|| calls.locks.next_number());
        LockOwner { kind: LockKind::Description, number }
    }

    /// [`Error::SessionEnded`]: somebody who locked by this handle has lost the lock.
    pub fn check_locks(&self, calls: &Calls<S>) -> Result<()> {
        let is_lost = |owner: &LockOwner| calls.locks.is_lost(self.open.inode, *owner);
        if calls.locks.has_lost() && lock(&self.lock_owners).iter().any(is_lost) {
            return Err(Error::SessionEnded);
        }
        Ok(())
    }

    fn note_lock_owner(&self, owner: LockOwner) {
        let mut owners = lock(&self.lock_owners);
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }
}

impl<S: Shell> Files<S> {
    fn locks(&self) -> &Locks<S::LockWaiter> {
        &self.calls().locks
    }

    /// Locks what nothing is in the way of; else [`Error::WouldBlock`]. At most one message.
    pub async fn try_lock(&self, handle: &Handle<S>, request: &LockRequest) -> Result<()> {
        match self.lock_here(handle, request).await? {
            Kept::Granted => return Ok(()),
            Kept::InWay => return Err(Error::WouldBlock),
            Kept::AtShard => {}
        }
        let asked = self.ask_lock(handle, request, None).await?;
        match asked.answer {
            LockAnswer::Granted => self.calls().take_grant(handle.open.inode, request.owner, asked.session),
            LockAnswer::Queued | LockAnswer::Cancelled => Err(Error::Malformed),
        }
    }

    /// Locks, and waits for what is in the way. The shell is told the result, now or later, exactly once.
    /// [`Error::SessionEnded`]: the wait ended with its session; it may be begun again. `wait` is a
    /// [`Locks::next_number`], by which [`Files::cancel_lock`] ends the wait.
    pub async fn lock(&self, handle: &Handle<S>, request: &LockRequest, wait: u64, waiter: S::LockWaiter) {
        let (inode, owner) = (handle.open.inode, request.owner);
        let waiting = Wait { inode, owner, waiter, asked: false, queued: None, cancelled: false };
        lock(&self.locks().state).waits.insert(wait, waiting);
        match self.lock_here(handle, request).await {
            Ok(Kept::Granted) => return self.end_wait(wait, Ok(())),
            Ok(Kept::InWay | Kept::AtShard) => {}
            Err(error) => return self.end_wait(wait, Err(error)),
        }
        if !self.locks().ask(wait) {
            return self.end_wait(wait, Err(Error::Interrupted));
        }
        let result = match self.ask_lock(handle, request, Some(wait)).await {
            Ok(Asked { answer: LockAnswer::Granted, session, .. }) => self.calls().take_grant(inode, owner, session),
            Ok(Asked { answer: LockAnswer::Queued, session, .. }) => return self.queued(wait, session).await,
            Ok(Asked { answer: LockAnswer::Cancelled, .. }) => Err(Error::Malformed),
            Err(error) => Err(error),
        };
        self.end_wait(wait, result);
    }

    /// Gives up a wait: it ends with [`Error::Interrupted`], or well if the lock had been granted.
    pub async fn cancel_lock(&self, wait: u64) {
        let inode = {
            let mut state = lock(&self.locks().state);
            let Some(waiting) = state.waits.get_mut(&wait) else { return };
            waiting.cancelled = true;
            // Else whoever has the call in flight cancels.
            if waiting.queued.is_none() {
                return;
            }
            waiting.inode
        };
        self.cancel_queued(inode, wait).await;
    }

    /// Unlocks what could not be unlocked at close, and ends the waits at shards whose term has passed and that do not
    /// answer now, with the error of that. To be called as often as the session is renewed.
    pub async fn tend_locks(&self) {
        for (inode, owner) in self.locks().closed() {
            // Repeated the next time.
            let _ = self.calls().unlock_owner(&self.calls().caller.credentials, inode, owner).await;
        }
        self.end_unreachable_waits().await;
    }

    async fn end_unreachable_waits(&self) {
        let (calls, session) = (self.calls(), self.calls().session.id());
        let shards: BTreeSet<_> =
            self.locks().queued(session).iter().map(|(_, inode)| routing::of_inode(*inode)).collect();
        for shard in shards {
            let term = calls.session.term(shard);
            match calls.ensure_term(shard, &term, SlotFor::Caller).await {
                // Its waits have ended with it, or it is asked the next time.
                Ok(()) | Err(Error::SessionEnded | Error::Busy) => {}
                Err(error) => self.end_waits_at(shard, session, &error),
            }
        }
    }

    fn end_waits_at(&self, shard: ShardId, session: SessionId, error: &Error) {
        for (wait, inode) in self.locks().queued(session) {
            if routing::of_inode(inode) == shard {
                self.end_doubtful_wait(wait, error.clone());
            }
        }
    }

    /// Ends a wait of which the shard may not know so, and may yet grant the lock: the owner's close unlocks it.
    fn end_doubtful_wait(&self, wait: u64, error: Error) {
        let owner = lock(&self.locks().state).waits.get(&wait).map(|waiting| (waiting.inode, waiting.owner));
        if let Some((inode, owner)) = owner {
            self.locks().granted(inode, owner, self.calls().session.id());
        }
        self.end_wait(wait, Err(error));
    }

    /// Ends a wait that was not begun.
    pub fn tell_waiter(&self, waiter: S::LockWaiter, result: Result<()>) {
        self.calls().shell.lock_ended(waiter, result);
    }

    /// Ends all waits here, and asks nobody: the session ends next.
    pub fn give_up_locks(&self) {
        let waits = std::mem::take(&mut lock(&self.locks().state).waits);
        for (_, wait) in waits {
            self.tell_waiter(wait.waiter, Err(Error::Interrupted));
        }
    }

    /// Unlocks. Without a message if the owner holds nothing. [`Error::SessionEnded`]: its locks were lost before.
    pub async fn unlock(&self, handle: &Handle<S>, owner: LockOwner, ranges: &[LockRange]) -> Result<()> {
        owner.kind.check_ranges(ranges)?;
        handle.open.unlock_here(&self.objects, owner, ranges).await?;
        self.calls().unlock_as(&handle.who, (handle.open.inode, owner), ranges).await
    }

    /// Unlocks whatever the owner holds: it has closed the file, by this handle. After an error the client repeats it.
    pub async fn unlock_all(&self, handle: &Handle<S>, owner: LockOwner) -> Result<()> {
        lock(&handle.lock_owners).retain(|other| *other != owner);
        let here = handle.open.close_here(&self.objects, owner).await;
        let at_shard = self.calls().unlock_owner(&handle.who, handle.open.inode, owner).await;
        here.and(at_shard)
    }

    /// Returns a lock that is in the way of this one. At most one message.
    pub async fn test_lock(&self, handle: &Handle<S>, owner: LockOwner, lock: RangeLock) -> Result<Option<HeldLock>> {
        owner.kind.check_ranges(&[lock.range])?;
        handle.open.test_lock(&self.objects, &handle.who, (owner, lock)).await
    }

    /// The shard tells a session that a wait is over. It is to be told that this is known.
    pub fn lock_granted(&self, granted: &LockGranted, session: SessionId) {
        let place = lock(&self.locks().state).waits.get(&granted.wait).map(|wait| (wait.inode, wait.owner));
        // One that was told before, or that its caller gave up.
        let Some((inode, owner)) = place else { return };
        let taken = || self.calls().take_grant(inode, owner, session);
        match granted.result.clone().and_then(|()| taken()) {
            // The end of the session has ended the wait, or will.
            Err(Error::SessionEnded) => {}
            result => self.end_wait(granted.wait, result),
        }
    }

    /// Unlocks what was locked by a handle that is being closed. Who is gone is told of nothing.
    pub(crate) async fn unlock_closed(&self, handle: &Handle<S>) {
        let owners = std::mem::take(&mut *lock(&handle.lock_owners));
        for owner in owners {
            // What fails is repeated, or ends with the session.
            let _ = self.unlock_all(handle, owner).await;
        }
    }

    /// Locks where the shard need not be asked.
    async fn lock_here(&self, handle: &Handle<S>, request: &LockRequest) -> Result<Kept> {
        if self.locks().is_lost(handle.open.inode, request.owner) {
            return Err(Error::Device(weft_protocol::error::errno::EIO));
        }
        let ranges: Vec<_> = request.locks.iter().map(|lock| lock.range).collect();
        request.owner.kind.check_ranges(&ranges)?;
        handle.note_lock_owner(request.owner);
        handle.open.lock_here(&self.objects, request).await
    }

    async fn ask_lock<'a>(
        &'a self,
        handle: &Handle<S>,
        request: &LockRequest,
        wait: Option<u64>,
    ) -> Result<Asked<'a, S::LockWaiter>> {
        let (inode, owner) = (handle.open.inode, request.owner);
        if self.locks().is_closed(inode, owner) {
            self.calls().unlock_owner(&handle.who, inode, owner).await?;
        }
        handle.open.ask_lock(&self.objects, &handle.who, request, wait).await
    }

    /// The request waits at the shard.
    async fn queued(&self, wait: u64, session: SessionId) {
        let (inode, cancelled) = {
            let mut state = lock(&self.locks().state);
            // It was granted before this reply came.
            let Some(waiting) = state.waits.get_mut(&wait) else { return };
            waiting.queued = Some(session);
            (waiting.inode, waiting.cancelled)
        };
        if session != self.calls().session.id() {
            self.calls().end_locks(session);
        } else if cancelled {
            self.cancel_queued(inode, wait).await;
        }
    }

    async fn cancel_queued(&self, inode: InodeNumber, wait: u64) {
        let (calls, request) = (self.calls(), ShardRequest::CancelLock { inode, wait });
        let answer = calls.call(&calls.caller.credentials, routing::of_inode(inode), request).await;
        let result = match answer {
            Ok(Answer { answer: ShardAnswer::Lock(LockAnswer::Granted), session, .. }) => {
                let owner = lock(&self.locks().state).waits.get(&wait).map(|waiting| waiting.owner);
                // The grant came first.
                let Some(owner) = owner else { return };
                self.calls().take_grant(inode, owner, session)
            }
            Ok(_) => Err(Error::Interrupted),
            Err(_) => return self.end_doubtful_wait(wait, Error::Interrupted),
        };
        self.end_wait(wait, result);
    }

    fn end_wait(&self, wait: u64, result: Result<()>) {
        let ended = lock(&self.locks().state).waits.remove(&wait);
        if let Some(ended) = ended {
            self.calls().shell.lock_ended(ended.waiter, result);
        }
    }
}
