//! What the shard and other cachers are told of a file's size, time and object, and what is told of them here.

use super::{Descriptor, OpenInode, State};
use crate::client::Inner;
use crate::data_calls::{of_errno, request};
use crate::link::{SlotFor, lock};
use crate::open_inode::passthrough::stat_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use weft_protocol::data::DataOperation;
use weft_protocol::message::shard::ShardRequest;
use weft_protocol::{AttributeChanges, Attributes, Credentials, Error, Result};

/// Who has a file flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlushFor {
    /// A program, which is told of what was lost.
    Program,
    /// A handle that was dropped: the next program is told.
    Drop,
    /// The recall thread, in its own slot: the next program is told.
    Recall,
}

impl OpenInode {
    /// Size and times as this client has changed them, over what the shard told: just now (`asked`), or earlier; when
    /// `since` reports had been made. Returns whether they may be others at any moment, unseen from here. `None`: a
    /// report was made since, and what is told may be older.
    pub fn overlay(&self, inner: &Inner, attributes: &mut Attributes, asked: bool, since: u64) -> Option<bool> {
        let Ok(mut state) = self.lock(inner) else { return Some(false) };
        state.overlay(attributes, asked, since)
    }

    /// Attributes from the shard, with what this client has changed over them; no report of its own passes them. One
    /// message, or more when the session ends meanwhile.
    pub fn ask_attributes(&self, inner: &Inner, who: &Credentials) -> Result<(Attributes, bool)> {
        let mut state = self.lock(inner)?;
        loop {
            let since = inner.reports();
            let mut attributes = inner.ask_attributes(who, self.inode)?;
            inner.ensure_term(self.inode.shard(), &self.term, SlotFor::Caller)?;
            state.notice_session(inner);
            if let Some(unseen) = state.overlay(&mut attributes, true, since) {
                return Ok((attributes, unseen));
            }
        }
    }

    /// The file's size as this client knows it under a lease; `None`: it has to be asked for.
    pub fn known_size(&self, inner: &Inner) -> Option<u64> {
        let mut state = self.lock(inner).ok()?;
        state.look();
        (state.known.is_leased() || state.kernel_file().is_some()).then(|| state.known.size())
    }

    /// Changes attributes, a cut among them: what was written before goes before, and nothing in between. One message,
    /// and those of a flush.
    ///
    /// Nobody else holds a lease on a file that this client has open for writing: the call waits for no recall, and the
    /// lock may be held. Otherwise it may wait for somebody whose call waits for us, and there is nothing to be kept
    /// from passing it.
    pub fn set_attributes(&self, inner: &Inner, who: &Credentials, changes: &AttributeChanges) -> Result<Attributes> {
        let mut state = self.await_flights(self.lock(inner)?);
        state.slot = SlotFor::Caller;
        state.hold(inner)?;
        state.flush(inner)?;
        let state = Some(state).filter(|state| state.known.writes());
        let request = ShardRequest::SetAttributes { inode: self.inode, changes: changes.clone() };
        let (attributes, stamp) = inner.call_for_attributes(SlotFor::Caller, who, self.inode, request)?;
        let mut state = state.unwrap_or_else(|| lock(&self.state));
        // If another session was begun on the way, the next user of the file opens it again.
        state.notice_session(inner);
        inner.opens.reported(self.inode, stamp);
        if state.known.changed(&attributes, stamp, inner.next_report()) {
            state.descriptor = Descriptor::NotAsked;
        }
        state.kernel_sees_change();
        self.changed();
        Ok(attributes)
    }

    /// Writes back and reports to the shard.
    pub fn flush(&self, inner: &Inner, by: FlushFor) -> Result<()> {
        if lock(&self.state).is_clean() {
            return Ok(());
        }
        let slot = if by == FlushFor::Recall { SlotFor::Recall } else { SlotFor::Caller };
        let mut state = self.lock_in(inner, slot)?;
        let result = state.flush(inner);
        match by {
            FlushFor::Program => result.and(state.known.tell_flusher().map_or(Ok(()), Err)),
            FlushFor::Drop | FlushFor::Recall => result,
        }
    }

    /// Has the server bring what it has onto its device.
    pub fn sync(&self, inner: &Inner) -> Result<()> {
        self.flush(inner, FlushFor::Program)?;
        let mut state = self.lock(inner)?;
        if let Some(file) = state.own_file() {
            return rustix::fs::fdatasync(&**file).map_err(of_errno);
        }
        if !state.known.writes() {
            return Ok(());
        }
        state.regain(inner)?;
        let Some(held) = state.known.held() else { return Ok(()) };
        inner.data_write(&request(self.inode, DataOperation::Sync, held, 0, 0), &[], None).map(|_| ())
    }
}

impl State {
    /// Whether a flush would find nothing to do, and nothing to tell.
    fn is_clean(&self) -> bool {
        let nothing_gathered = self.run.is_empty() && self.sending.is_none();
        nothing_gathered && self.kernel.is_none() && self.known.report().is_none() && !self.known.owes_error()
    }

    fn overlay(&mut self, attributes: &mut Attributes, asked: bool, since: u64) -> Option<bool> {
        self.look();
        if self.kernel_file().is_some() {
            attributes.size = self.known.size();
        }
        self.known.overlay(attributes, asked, since).then(|| self.kernel_writes())
    }

    fn flush(&mut self, inner: &Inner) -> Result<()> {
        let outcome = self.write_back(inner);
        self.known.flushed(outcome)
    }

    fn write_back(&mut self, inner: &Inner) -> Result<()> {
        if self.kernel.is_some() {
            // After the end of a session: whether the kernel still writes to the file's object is known then.
            self.regain(inner)?;
            self.look();
        }
        self.send_all(inner)?;
        self.commit(inner).map(|_| ())
    }

    /// Reports object, size and time to the shard, if they have changed, with all that was gathered: the size that the
    /// object has without it is not the file's. `false`: the file had got another object meanwhile.
    pub(super) fn commit(&mut self, inner: &Inner) -> Result<bool> {
        if self.known.report().is_none() {
            return Ok(true);
        }
        self.send_all(inner)?;
        self.freshen(inner)?;
        let Some(request) = self.known.report() else { return Ok(true) };
        let inode = self.known.inode();
        let answer = inner.call_for_attributes(self.slot, &self.who(inner), inode, request);
        let (attributes, stamp) = answer.map_err(|error| match error {
            // A new session was begun on the way: to the shard it is not the one that wrote.
            Error::BadHandle => Error::SessionEnded,
            error => error,
        })?;
        inner.opens.reported(inode, stamp);
        let is_ours = self.known.reported(&attributes, stamp, inner.next_report());
        if !is_ours {
            self.descriptor = Descriptor::NotAsked;
        }
        Ok(is_ours)
    }

    /// The object's file, where somebody here may be writing it.
    pub(super) fn own_file(&self) -> Option<&Arc<OwnedFd>> {
        self.descriptor_to_write().or_else(|| self.kernel_file())
    }

    /// Size and time from where they are decided: the object, when others may have written it or it was written by its
    /// descriptor.
    fn freshen(&mut self, inner: &Inner) -> Result<()> {
        if let Some(file) = self.own_file() {
            let (size, mtime) = stat_of(file)?;
            self.known.looked_up(size, mtime);
        } else if !self.known.is_exclusive()
            && let Some(held) = self.known.held()
        {
            let stat = request(self.known.inode(), DataOperation::Stat, held, 0, 0);
            let reply = inner.data_write(&stat, &[], None)?;
            self.hold(inner)?;
            self.known.looked_up(reply.size, reply.mtime);
        }
        Ok(())
    }
}
