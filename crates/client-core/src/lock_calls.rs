//! What becomes of a lock once the shard has granted it: noted under its session, and given back.

use crate::calls::Calls;
use crate::shell::Shell;
use weft_protocol::message::shard::ShardRequest;
use weft_protocol::{Credentials, Error, InodeNumber, LockOwner, LockRange, Result, SessionId, routing};

impl<S: Shell> Calls<S> {
    /// Unlocks. Without a message if the owner holds nothing. [`Error::SessionEnded`]: its locks were lost before.
    pub(crate) async fn unlock_as(
        &self,
        who: &Credentials,
        (inode, owner): (InodeNumber, LockOwner),
        ranges: &[LockRange],
    ) -> Result<()> {
        let Some((session, grants)) = self.locks.grants(inode, owner) else { return Ok(()) };
        // What was lost with an ended session is unlocked; it may have been granted more since.
        if session == self.session.id() {
            let request = ShardRequest::Unlock { inode, owner, ranges: ranges.to_vec() };
            self.call(who, routing::of_inode(inode), request).await?;
        }
        let all = (ranges == [LockRange::ALL]).then_some(grants);
        let is_lost = self.locks.unlocked(inode, owner, all, self.session.id());
        if is_lost { Err(Error::SessionEnded) } else { Ok(()) }
    }

    /// Unlocks whatever the owner holds. After an error the client repeats it.
    pub(crate) async fn unlock_owner(&self, who: &Credentials, inode: InodeNumber, owner: LockOwner) -> Result<()> {
        let Some((_, grants)) = self.locks.grants(inode, owner) else { return Ok(()) };
        let result = self.unlock_as(who, (inode, owner), &[LockRange::ALL]).await;
        if !matches!(result, Ok(()) | Err(Error::SessionEnded)) {
            self.locks.keep_closed(inode, owner, grants);
        }
        result
    }

    /// A lock was granted to a session, which may have ended since.
    pub(crate) fn take_grant(&self, inode: InodeNumber, owner: LockOwner, session: SessionId) -> Result<()> {
        if session != self.session.id() {
            return Err(Error::SessionEnded);
        }
        self.locks.granted(inode, owner, session);
        self.end_locks_if_over(session);
        Ok(())
    }

    /// A lock was noted under a session: if that ended just before, its end did not see the lock.
    pub(crate) fn end_locks_if_over(&self, session: SessionId) {
        if session != self.session.id() {
            self.end_locks(session);
        }
    }
}
