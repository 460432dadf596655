//! Calls about locks, which the shard answers only to who has the file open.

use super::OpenInode;
use crate::calls::Answer;
use crate::link::ATTEMPTS_MAX;
use crate::lock_table::LockRequest;
use crate::objects::Objects;
use crate::shell::Shell;
use weft_protocol::message::shard::{LockAnswer, ShardAnswer, ShardRequest};
use weft_protocol::{Credentials, Error, Result, SessionId, routing};

impl<S: Shell> OpenInode<S> {
    /// Asks the shard for a lock. [`Error::WouldBlock`]: another is in the way, and nobody waits.
    pub(crate) async fn ask_lock(
        &self,
        io: &Objects<S>,
        who: &Credentials,
        request: &LockRequest,
        wait: Option<u64>,
    ) -> Result<(LockAnswer, SessionId)> {
        let (inode, LockRequest { owner, pid, locks }) = (self.inode, request.clone());
        let asked = self.call_with_open(io, who, ShardRequest::Lock { inode, owner, pid, locks, wait }).await;
        match asked {
            Ok(Answer { answer: ShardAnswer::Lock(answer), session, .. }) => Ok((answer, session)),
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

    /// A call that the shard answers only to who has the file open: after the end of a session it is opened again.
    pub(crate) async fn call_with_open(
        &self,
        io: &Objects<S>,
        who: &Credentials,
        request: ShardRequest,
    ) -> Result<Answer> {
        let mut attempts = 0;
        loop {
            self.ensure_open(io).await?;
            match io.calls.call(who, routing::of_inode(self.inode), request.clone()).await {
                Err(Error::BadHandle) if attempts < ATTEMPTS_MAX => attempts += 1,
                result => return result,
            }
        }
    }
}
