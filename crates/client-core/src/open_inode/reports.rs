//! What the shard and other clients are told of a file's size, time and object, and what this client makes of theirs.

use super::state::{Descriptor, State};
use super::{FlushFor, OpenInode};
use crate::link::SlotFor;
use crate::notice::Notice;
use crate::objects::Objects;
use crate::shell::{Monitor, Shell};
use std::sync::atomic::Ordering;
use weft_protocol::{Attributes, Error, Result};

impl<S: Shell> OpenInode<S> {
    /// Whether the shard has not been told of everything that was written.
    pub(crate) async fn is_dirty(&self) -> bool {
        self.state.lock().await.known.is_dirty()
    }

    /// The same without waiting; `None` while somebody uses the state.
    pub(crate) fn is_dirty_now(&self) -> Option<bool> {
        self.state.try_lock().map(|state| state.known.is_dirty())
    }

    /// Writes back and reports to the shard. What there is no space for is kept for another attempt when a program is
    /// told; with the last handle, or a recall, it is lost.
    pub async fn flush(&self, io: &Objects<S>, by: FlushFor) -> Result<()> {
        self.flush_split(io, by).await?;
        if self.state.lock().await.is_clean() {
            return Ok(());
        }
        let slot = if by == FlushFor::Recall { SlotFor::Recall } else { SlotFor::Caller };
        let began = io.calls.session.id();
        let mut state = self.lock_in(io, slot).await?;
        let is_last = by == FlushFor::Drop && self.handles.load(Ordering::Acquire) <= 1;
        if is_last && state.refused.clear_if_told() {
            io.calls.shell.notice(Notice::GivenUp(self.inode));
        }
        let result = state.flush(io).await;
        match by {
            FlushFor::Program => {
                let result = result.and(state.known.error_of_flush().cloned().map_or(Ok(()), Err));
                drop(state);
                if result.is_err() {
                    self.program_was_told(io).await;
                    // Nothing that the cache above waits for is waited for here.
                    io.calls.shell.invalidate_inode(self.inode, true).await;
                }
                let result = self.with_cause(io, began, result).await;
                if result.is_err() {
                    // Last: who flushes meanwhile is told, too.
                    self.state.lock().await.known.flusher_is_told();
                }
                result
            }
            FlushFor::Drop | FlushFor::Recall => {
                if is_last || by == FlushFor::Recall {
                    state.lose_refused(io, Error::NoSpace);
                }
                if let (FlushFor::Recall, Err(error)) = (by, &result) {
                    state.lose_gathered(io, error).await;
                }
                result
            }
        }
    }

    /// Flushes, and brings the data to the server's device.
    pub async fn sync(&self, io: &Objects<S>) -> Result<()> {
        self.flush(io, FlushFor::Program).await?;
        let began = io.calls.session.id();
        let mut synced = self.sync_object(io).await;
        if let Err(Error::NoObject | Error::CapabilityRejected) = synced {
            self.right_is_void().await;
            synced = self.sync_object(io).await;
        }
        self.with_cause(io, began, synced).await
    }

    async fn sync_object(&self, io: &Objects<S>) -> Result<()> {
        let mut state = self.lock(io).await?;
        if let Some(file) = state.own_file() {
            return io.calls.shell.sync_file(file).await;
        }
        if !state.known.writes() {
            return Ok(());
        }
        state.regain(io).await?;
        if state.known.is_split() {
            drop(state);
            return match self.split.get() {
                Some(split) => split.sync(io).await,
                None => Ok(()),
            };
        }
        let Some(objects) = state.known.objects().cloned() else { return Ok(()) };
        io.sync_objects(self.inode, &objects).await
    }
}

impl<S: Shell> State<S> {
    /// Whether a flush would find nothing to do, and nothing to tell.
    pub fn is_clean(&self) -> bool {
        self.is_done() && !self.is_unsettled && self.kernel.is_none() && !self.known.owes_error()
    }

    /// Returns true if nothing is to be written or reported, and no program is to be told of a loss.
    pub fn is_done(&self) -> bool {
        let nothing_gathered = self.run.is_empty() && self.sending.is_none() && self.refused.is_empty();
        nothing_gathered && !self.known.is_dirty() && self.known.error().is_none()
    }

    /// Lays size and times as this client has changed them over what the shard told. Returns whether a kernel may
    /// change them at any moment; `None`: a report was made since, and the shard's word may be older.
    pub fn overlay(&mut self, io: &Objects<S>, attributes: &mut Attributes, asked: bool, since: u64) -> Option<bool> {
        self.look(io);
        if self.kernel_file().is_some() {
            attributes.size = self.known.size();
        }
        self.known.overlay(attributes, asked, since).then(|| self.kernel_writes())
    }

    /// Writes back and reports. For what there is no space is kept, and told each time, but not lost yet.
    pub async fn flush(&mut self, io: &Objects<S>) -> Result<()> {
        let outcome = self.write_back(io).await;
        if outcome == Err(Error::NoSpace) && !self.refused.is_empty() {
            return self.flushed(io, Ok(())).and(outcome);
        }
        let result = self.flushed(io, outcome);
        if result.is_ok() {
            io.calls.shell.notice(Notice::Flushed(self.known.inode()));
        }
        result
    }

    fn flushed(&mut self, io: &Objects<S>, outcome: Result<()>) -> Result<()> {
        self.known.flushed(outcome, || io.calls.session.next_report())
    }

    /// Writes back and reports before the file's attributes are changed. A loss from before does not hinder that: the
    /// next write, flush or close tells of it.
    pub async fn flush_before_change(&mut self, io: &Objects<S>) -> Result<()> {
        let outcome = self.write_back(io).await;
        if self.flushed(io, outcome.clone()).is_ok() {
            io.calls.shell.notice(Notice::Flushed(self.known.inode()));
        }
        match outcome {
            // A cut may take what there is no space for.
            Err(Error::NoSpace) if !self.refused.is_empty() => Ok(()),
            outcome => outcome,
        }
    }

    /// The lease is given up with bytes that could not be sent: others may write the file from now on.
    async fn lose_gathered(&mut self, io: &Objects<S>, error: &Error) {
        self.finish_sending(io).await;
        if self.run.take_run().is_some() {
            self.fail(io, error.clone());
        }
        self.lose_refused(io, error.clone());
        self.let_new_object_go(io);
    }

    /// The file is not under an exclusive lease any more, and an object that this client gave it could not be reported.
    /// Others do not see what is in it, so that it is lost: else it would appear with a later report.
    pub fn let_new_object_go(&mut self, io: &Objects<S>) {
        if self.known.object_is_new() && !self.may_be_reported {
            self.known.new_object_is_lost();
            self.descriptor = Descriptor::NotAsked;
            self.is_unsettled = false;
            if self.known.error().is_some() {
                io.calls.shell.contents_lost(self.known.inode());
            }
            self.note_error(io);
        }
    }

    async fn write_back(&mut self, io: &Objects<S>) -> Result<()> {
        if self.kernel.is_some() || (self.size_in_doubt && self.slot == SlotFor::Caller) {
            // After the end of a session this shows whether the kernel still writes to the file's object.
            self.regain(io).await?;
            self.look(io);
        }
        let sent = self.send_refused(io).await;
        let reported = self.commit(io).await;
        sent.and(reported.map(|_| ()))
    }

    /// Reports object, size and time to the shard if they have changed, with everything that was gathered: the object's
    /// size without it is not the file's. `false`: the file had got another object meanwhile.
    pub async fn commit(&mut self, io: &Objects<S>) -> Result<bool> {
        match self.prepare_report(io).await {
            Err(Error::Unreachable) if self.may_be_given_another_object() => {
                return if self.took_another_object(io).await? { Ok(false) } else { Err(Error::Unreachable) };
            }
            result => result?,
        }
        let passed = self.kernel.as_ref().is_some_and(|kernel| kernel.passed);
        let Some(request) = self.known.report(io.calls.session.next_report(), passed) else { return Ok(true) };
        let inode = self.known.inode();
        self.may_be_reported = true;
        let answer = io.calls.report(Some(self.known.session()), self.slot, &self.who(io), inode, request).await;
        // Whether it is made is open as long as no answer comes. That the shard is busy may be with the same report.
        self.may_be_reported = matches!(answer, Err(Error::Unreachable | Error::Busy));
        let (attributes, stamp) = answer.map_err(|error| match error {
            // A new session began on the way: to the shard it is not the one that wrote.
            Error::BadHandle => Error::SessionEnded,
            error => error,
        })?;
        io.calls.session.opens.reported(inode, stamp);
        let is_ours = self.known.reported(&attributes, stamp, io.calls.session.next_report());
        if !is_ours {
            self.descriptor = Descriptor::NotAsked;
        }
        self.note_error(io);
        Ok(is_ours)
    }

    /// Brings everything that was gathered to the object, and learns its size and time.
    async fn prepare_report(&mut self, io: &Objects<S>) -> Result<()> {
        // What is in flight may be refused: the shard is told of it when it is there.
        self.is_unsettled |= self.in_flight > 0 && self.known.is_dirty();
        self.settle_size(io).await?;
        if !self.known.is_dirty() {
            return Ok(());
        }
        self.send_all(io).await?;
        self.settle_size(io).await?;
        self.freshen(io).await
    }

    /// Whether another writer may give the file an object while this client's is not known to the shard.
    fn may_be_given_another_object(&self) -> bool {
        self.known.object_is_new() && !self.known.is_exclusive() && self.slot == SlotFor::Caller
    }

    /// The storage server of the new object is away. Whether the file has another object by now, which is taken.
    async fn took_another_object(&mut self, io: &Objects<S>) -> Result<bool> {
        let attributes = io.calls.ask_attributes(&self.who(io), self.known.inode()).await?;
        self.notice_session(io);
        let took = self.known.take_another_object(&attributes);
        if took {
            self.descriptor = Descriptor::NotAsked;
            self.note_error(io);
        }
        Ok(took)
    }

    /// Looks size and modification time of the object up, when others may have written it or when it was written
    /// through its descriptor.
    async fn freshen(&mut self, io: &Objects<S>) -> Result<()> {
        self.look(io);
        if let Some(file) = self.own_file() {
            let (size, mtime) = io.calls.shell.stat_file(file)?;
            self.known.looked_up(size, mtime);
        } else if !self.known.is_exclusive()
            && let Some(objects) = self.known.objects().cloned()
        {
            let reply = io.stat_objects(self.known.inode(), &objects).await;
            self.hold(io).await?;
            if reply == Err(Error::NoObject) && self.known.object_is_new() && !self.may_be_reported {
                // The write that was to make it failed: there is nothing to report.
                self.refused.object = None;
                self.let_new_object_go(io);
                return Ok(());
            }
            let reply = reply?;
            self.known.looked_up(reply.size, reply.mtime);
        }
        Ok(())
    }
}
