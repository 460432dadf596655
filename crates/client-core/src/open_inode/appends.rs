//! Appends to a striped file that several clients write: one after the other.
//!
//! No storage server knows where such a file ends: all are asked, and nobody else may append between their answers and
//! the write. So each append is made under a lock of [`LockKind::Append`]. As any lock it is one of its session, and
//! the session's fence keeps what is left of the append from the file before another client gets the lock.

use super::writes::write_failed;
use super::{OpenInode, Written};
use crate::lock_table::{Asked, LockRequest};
use crate::objects::{ObjectWrite, Objects, Registration};
use crate::open_options::OpenOptions;
use crate::shell::Shell;
use crate::transfers::end_of;
use weft_protocol::data::DataOperation;
use weft_protocol::error::errno;
use weft_protocol::message::shard::LockAnswer;
use weft_protocol::{Error, LockKind, LockMode, LockOwner, LockRange, RangeLock, Result, SessionId};

/// How long who found the lock taken waits before the next try, microseconds: doubled with each, up to the second.
const TRY_US: u64 = 100;
const TRY_US_MAX: u64 = 5_000;

/// The lock of an append.
struct Turn {
    owner: LockOwner,
    session: SessionId,
}

impl<S: Shell> OpenInode<S> {
    /// Appends. `None`: nothing was written, since the lease or the session is another one by now.
    pub(super) async fn append_in_turn(
        &self,
        io: &Objects<S>,
        bytes: &[u8],
        options: &OpenOptions<Registration<S>>,
    ) -> Result<Option<Written>> {
        let Some(turn) = self.take_turn(io).await? else { return Ok(None) };
        let written = self.append_at_end(io, &turn, bytes, options).await;
        // What fails is repeated, or ends with the session.
        let _ = io.calls.unlock_owner(&io.calls.caller.credentials, self.inode, turn.owner).await;
        written
    }

    /// Waits until nobody else appends. `None`: the session in which it was granted has ended.
    async fn take_turn(&self, io: &Objects<S>) -> Result<Option<Turn>> {
        let owner = LockOwner { kind: LockKind::Append, number: io.calls.locks.next_number() };
        let locks = vec![RangeLock { range: LockRange::ALL, mode: LockMode::Exclusive }];
        let request = LockRequest { owner, pid: 0, locks };
        let mut wait_us = TRY_US;
        loop {
            match self.ask_lock(io, &io.calls.caller.credentials, &request, None).await {
                Ok(Asked { answer: LockAnswer::Granted, session, .. }) => {
                    let taken = io.calls.take_grant(self.inode, owner, session);
                    return Ok(taken.is_ok().then_some(Turn { owner, session }));
                }
                Ok(Asked { answer: LockAnswer::Queued | LockAnswer::Cancelled, .. }) => return Err(Error::Malformed),
                Err(Error::WouldBlock) => {
                    io.calls.shell.sleep_us(wait_us + io.calls.shell.random() % wait_us).await;
                    wait_us = TRY_US_MAX.min(2 * wait_us);
                }
                Err(error) => {
                    // It may have been granted.
                    let _ = io.calls.unlock_owner(&io.calls.caller.credentials, self.inode, owner).await;
                    return Err(error);
                }
            }
        }
    }

    async fn append_at_end(
        &self,
        io: &Objects<S>,
        turn: &Turn,
        bytes: &[u8],
        options: &OpenOptions<Registration<S>>,
    ) -> Result<Option<Written>> {
        // Where it goes, once that is known, and the write, which notes whether some of it may be there.
        let mut begun: Option<(u64, ObjectWrite)> = None;
        loop {
            let mut state = self.lock(io).await?;
            if let Some(error) = state.known.error() {
                return Err(error.clone());
            }
            state.regain_to_write(io).await?;
            state.ensure_object(io).await?;
            if state.known.object_is_new() {
                state.publish_objects(io).await?;
            }
            // Gathered appends of a lease that is held again are not in the objects.
            if state.known.session() != turn.session || state.known.is_exclusive() {
                let is_begun = begun.is_some_and(|(_, write)| write.may_have_landed);
                return if is_begun { Err(Error::Device(errno::EIO)) } else { Ok(None) };
            }
            self.changed();
            let objects = state.objects()?;
            let (offset, mut write) = match begun.take() {
                Some(begun) => begun,
                None => {
                    let offset = io.stat_objects(self.inode, &objects).await?.size;
                    end_of(offset, bytes.len())?;
                    (offset, ObjectWrite::new((self.inode, objects), DataOperation::Write, false))
                }
            };
            match io.write_ranges(&mut write, &[(bytes, offset)], options.registration).await {
                Ok(reply) if state.write_landed(io, &reply, options).await? => {
                    return Ok(Some(Written { offset, is_safe: true }));
                }
                Ok(_) => return Err(Error::Device(errno::EIO)),
                // Its place stays its own.
                Err(Error::PagesCached) => {
                    state.hold(io).await?;
                    begun = Some((offset, write));
                }
                Err(error @ (Error::NoObject | Error::CapabilityRejected)) if !write.may_have_landed => {
                    return Err(error);
                }
                Err(error) => {
                    let error = write_failed(error, true, write.may_have_landed);
                    return Err(state.write_broke(io, error).await);
                }
            }
            drop(state);
            io.calls.wait_for_pages().await;
        }
    }
}
