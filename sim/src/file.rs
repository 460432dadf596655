//! An open file of a simulated client: what `OpenInode` is in the client library.
//!
//! What is known of the file ([`FileState`]), and the run of written bytes ([`WriteBehind`]) that the server does not
//! have yet. Both are the client library's own; the steps are those of `crates/client/src/open_inode.rs` under the same
//! lock, with a wait where that blocks.
//!
//! Not here: windows read ahead (`reader.rs`), who calls (`program.rs`), descriptors passed by the server.

mod runs;

use crate::bytes::OperationId;
use crate::process::{Answer, Ask, Io, Process, Ticket};
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::task::Poll;
use weft_client_core::{FileState, Held, Opened, WriteBehind};
use weft_protocol::data::{BulkDescriptor, DataOperation, DataRequest};
use weft_protocol::message::shard::{Access, OpenFlags, ShardAnswer, ShardRequest};
use weft_protocol::{AttributeChanges, Attributes, Error, InodeNumber, Result, SessionId, ShardId, Timestamp};

/// Bytes gathered, and of a window; so few that a file has several.
pub const BUFFER_BYTES: usize = 64;
/// Runs on their way at once.
const RUNS_OUTSTANDING_MAX: usize = 2;

/// How a file is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub access: Access,
    pub truncate: bool,
    pub append: bool,
    pub direct: bool,
}

/// A data request.
pub fn request(inode: InodeNumber, operation: DataOperation, held: Held, offset: u64, bytes: usize) -> DataRequest {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    let memory = BulkDescriptor::default();
    DataRequest { operation, bytes, id: 0, object: held.object, inode, offset, memory, capability: held.capability }
}

/// See the module.
pub struct OpenFile {
    pub inode: InodeNumber,
    pub handles: Cell<u32>,
    /// Grows when bytes that a reader has at hand may be old.
    pub data_version: Cell<u64>,
    /// Of the data lease's last grant, as it was when the lock was free.
    pub stamp: Cell<u64>,
    /// Whether the shard knows of an object.
    pub has_object: Cell<bool>,
    /// Whether the shard has not been told what was written.
    pub dirty: Cell<bool>,
    /// Not there while it is locked.
    state: Cell<Option<Box<State>>>,
}

/// What is changed under the lock.
pub struct State {
    pub known: FileState,
    run: WriteBehind,
    sending: VecDeque<(Ticket, DataRequest, Vec<u8>)>,
    connection: u64,
}

/// The lock of an open file.
pub struct Guard {
    file: Rc<OpenFile>,
    process: Rc<Process>,
    state: Option<Box<State>>,
}

impl Deref for Guard {
    type Target = State;
    fn deref(&self) -> &State {
        self.state.as_ref().expect("a guard has the state until it is dropped")
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("a guard has the state until it is dropped")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.file.stamp.set(self.known.grant_stamp());
        self.file.dirty.set(self.known.is_dirty());
        self.file.has_object.set(self.known.held().is_some() && !self.known.object_is_new());
        self.file.state.set(self.state.take());
        self.process.changes.set(self.process.changes.get() + 1);
    }
}

/// How a read is served.
pub enum ReadVia {
    /// From gathered bytes.
    Done(usize),
    /// There is no object.
    Zeros {
        size: u64,
    },
    Server {
        held: Held,
        size: Option<u64>,
    },
}

impl OpenFile {
    pub fn new(attributes: &Attributes, session: SessionId) -> Self {
        let state = State {
            known: FileState::new(attributes, session),
            run: WriteBehind::new(BUFFER_BYTES),
            sending: VecDeque::new(),
            connection: 0,
        };
        Self {
            inode: attributes.inode,
            handles: Cell::new(0),
            data_version: Cell::new(0),
            stamp: Cell::new(0),
            has_object: Cell::new(false),
            dirty: Cell::new(false),
            state: Cell::new(Some(Box::new(state))),
        }
    }

    /// The state, as it is under the session of now, whose term holds.
    pub async fn lock(self: &Rc<Self>, io: &Io) -> Result<Guard> {
        loop {
            io.ensure_term(self.inode.shard()).await?;
            let state = poll_fn(|_| self.state.take().map_or(Poll::Pending, Poll::Ready)).await;
            let mut guard = Guard { file: Rc::clone(self), process: Rc::clone(&io.process), state: Some(state) };
            if guard.known.session() != io.process.session.get() {
                guard.lose_session(&io.process);
                self.changed();
            }
            if io.process.holds(self.inode.shard()) {
                return Ok(guard);
            }
        }
    }

    pub fn changed(&self) {
        self.data_version.set(self.data_version.get() + 1);
    }

    /// A handle was opened: takes over what the reply told.
    pub async fn opened(self: &Rc<Self>, io: &Io, options: Options, opened: &Opened) -> Result<()> {
        let mut state = self.lock(io).await?;
        if state.known.reports_before_lease() {
            state.commit(io).await?;
        }
        if options.access.writes() {
            state.known.will_write();
        }
        let (session, recalled) = state.now(&io.process, opened);
        state.known.opened(opened, session, recalled);
        state.note_error(&io.process);
        if let Some(report) = io.process.reported.borrow().get(&self.inode) {
            state.known.reported_before(*report, opened.stamp, io.process.reports.get());
        }
        self.changed();
        Ok(())
    }

    /// Whether an open may be answered here, by the lease that is still held.
    pub async fn reopen(self: &Rc<Self>, io: &Io, access: Access) -> Result<bool> {
        Ok(self.lock(io).await?.known.open_again_unasked(access))
    }

    /// A recall: from now on nothing is gathered or believed; [`OpenFile::flush`] follows.
    pub async fn weaken(self: &Rc<Self>, io: &Io, session: SessionId, stamp: u64) -> Result<()> {
        self.lock(io).await?.known.weaken(session, stamp);
        self.changed();
        Ok(())
    }

    /// The size that a lease vouches for.
    pub async fn leased_size(self: &Rc<Self>, io: &Io) -> Result<Option<u64>> {
        let state = self.lock(io).await?;
        Ok(state.known.is_leased().then_some(state.known.size()))
    }

    /// See [`FileState::overlay`].
    pub async fn overlay(
        self: &Rc<Self>,
        io: &Io,
        attributes: &mut Attributes,
        asked: bool,
        since: u64,
    ) -> Result<bool> {
        Ok(self.lock(io).await?.known.overlay(attributes, asked, since))
    }

    /// Cuts the file, or extends it: what was gathered before goes before, and nothing in between.
    pub async fn set_size(self: &Rc<Self>, io: &Io, size: u64) -> Result<()> {
        let mut state = self.lock(io).await?;
        state.flush(io).await?;
        let (inode, changes) = (self.inode, AttributeChanges { size: Some(size), ..AttributeChanges::default() });
        let answer = io.call(inode.shard(), ShardRequest::SetAttributes { inode, changes }).await?;
        let ShardAnswer::Entry { attributes, grants } = answer.answer else { return Err(Error::Malformed) };
        if let Some(mut cache) = io.process.cache_for(answer.session) {
            cache.learn_attributes(&attributes, grants, answer.stamp);
        }
        io.process.reported.borrow_mut().insert(self.inode, answer.stamp);
        state.known.changed(&attributes, answer.stamp, io.process.next_report());
        self.changed();
        Ok(())
    }

    /// Writes back and reports to the shard. `tells`: a program hears what comes of it; if not, the next one does.
    pub async fn flush(self: &Rc<Self>, io: &Io, tells: bool) -> Result<()> {
        let mut state = self.lock(io).await?;
        let result = state.flush(io).await;
        if tells { result.and(state.known.tell_flusher().map_or(Ok(()), Err)) } else { result }
    }

    /// A write. Returns when the bytes are gathered (exclusive lease) or at the server, and whether they are safe.
    pub async fn write(
        self: &Rc<Self>,
        io: &Io,
        operation: OperationId,
        (bytes, offset): (&[u8], u64),
        options: Options,
    ) -> Result<bool> {
        let mut state = self.lock(io).await?;
        if let Some(error) = state.known.tell_writer() {
            return Err(error);
        }
        state.regain(io).await?;
        state.ensure_object(io).await?;
        state.hold(io).await?;
        self.changed();
        let exclusive = state.known.is_exclusive();
        let mut offset = offset;
        if options.append && exclusive {
            offset = state.known.size();
            io.process.files.borrow_mut().append_placed(operation, offset);
        }
        if exclusive && !options.direct && bytes.len() < BUFFER_BYTES && state.known.may_gather() {
            state.gather(io, bytes, offset).await?;
            return Ok(false);
        }
        state.send_all(io).await?;
        if exclusive && !state.known.object_is_new() {
            state.note_written(&io.process, offset + bytes.len() as u64);
            let held = state.known.held().ok_or(Error::NoObject)?;
            io.data(request(self.inode, DataOperation::Write, held, offset, bytes.len()), bytes, None).await?;
            state.known.arrived();
            return Ok(options.direct);
        }
        state
            .write_now(io, (bytes, offset), (options.append && !exclusive).then_some(operation), options.direct)
            .await?;
        state.known.arrived();
        Ok(options.direct || !state.known.is_exclusive())
    }

    /// Decides how a read is served; answers it when gathered bytes are all it asks for.
    pub async fn read_via(self: &Rc<Self>, io: &Io, into: &mut [u8], offset: u64) -> Result<ReadVia> {
        let mut state = self.lock(io).await?;
        if !state.known.is_leased() && state.known.object_is_new() {
            // What this client gave it may not be known to others, and theirs have come first.
            state.commit(io).await?;
        }
        state.known.doubt_missing_object();
        state.regain(io).await?;
        state.hold(io).await?;
        if state.run.read(offset, into) {
            return Ok(ReadVia::Done(into.len()));
        }
        if !state.run.is_empty() || !state.sending.is_empty() {
            state.send_all(io).await?;
            if let Some(error) = state.known.error() {
                return Err(error.clone());
            }
            state.hold(io).await?;
        }
        let size = state.known.size();
        let leased = state.known.is_leased();
        Ok(match state.known.held() {
            Some(held) => ReadVia::Server { held, size: leased.then_some(size) },
            None => ReadVia::Zeros { size },
        })
    }

    /// The right to the object turned out to be void: asks for it again with the next call.
    pub async fn right_is_void(self: &Rc<Self>, io: &Io) -> Result<()> {
        self.lock(io).await?.known.right_is_void();
        self.changed();
        Ok(())
    }
}

impl State {
    /// The session has ended, and what was gathered under its lease is lost.
    fn lose_session(&mut self, process: &Process) {
        let gathered = self.run.take_run().is_some() || !self.sending.is_empty();
        self.sending.clear();
        if self.known.lose_session(process.session.get(), gathered, process.next_report()) {
            self.note_lost(process);
        }
    }

    async fn flush(&mut self, io: &Io) -> Result<()> {
        let since = io.process.files.borrow_mut().moment();
        let written = self.send_all(io).await;
        let outcome = if written.is_ok() { self.commit(io).await.map(|_| ()) } else { written };
        let result = self.known.flushed(outcome);
        match &result {
            Ok(()) => io.process.check(io.process.files.borrow_mut().flushed(io.process.id, self.known.inode(), since)),
            Err(_) => self.note_lost(&io.process),
        }
        result
    }

    /// What was gathered is lost, or a part of it.
    fn fail(&mut self, process: &Process, error: Error) {
        self.known.fail(error);
        self.note_lost(process);
    }

    /// The file may just have turned out to have another object than what was written went to.
    fn note_error(&self, process: &Process) {
        if self.known.error().is_some() {
            self.note_lost(process);
        }
    }

    fn note_lost(&self, process: &Process) {
        process.files.borrow_mut().lost_buffers(process.id, self.known.inode());
        process.ask(Ask::Settle);
    }

    /// After a wait: the lease holds still, or the caller learns that it does not.
    async fn hold(&mut self, io: &Io) -> Result<()> {
        io.ensure_term(self.shard()).await?;
        if self.known.session() != io.process.session.get() {
            self.lose_session(&io.process);
            return Err(self.known.error().cloned().unwrap_or(Error::SessionEnded));
        }
        Ok(())
    }

    /// The session of now, and whether what an open granted was recalled meanwhile.
    fn now(&self, process: &Process, opened: &Opened) -> (SessionId, bool) {
        (process.session.get(), process.cache.borrow().data_recalled(self.known.inode(), opened.stamp))
    }

    fn shard(&self) -> ShardId {
        self.known.shard()
    }

    /// The object and the right to it, asked for again when they are not known any more.
    async fn regain(&mut self, io: &Io) -> Result<()> {
        while let Some(access) = self.known.to_open() {
            let flags = OpenFlags { access, truncate: false, direct: false };
            let inode = self.known.inode();
            let Answer { stamp, answer, session, .. } =
                io.call(self.shard(), ShardRequest::Open { inode, flags }).await?;
            let ShardAnswer::Opened { attributes, capability, grants, .. } = answer else {
                return Err(Error::Malformed);
            };
            let opened = Opened { attributes, capability, grants, stamp, session };
            let (session, recalled) = self.now(&io.process, &opened);
            self.known.opened_again(&opened, session, recalled);
        }
        Ok(())
    }

    fn note_written(&mut self, process: &Process, end: u64) {
        self.known.written(end, Timestamp(i64::try_from(process.now_ms.get() * 1_000_000).unwrap_or(i64::MAX)));
    }

    /// A file without an object gets one, at the client's own node. One that was extended by truncate gets its size.
    async fn ensure_object(&mut self, io: &Io) -> Result<()> {
        if self.known.held().is_some() {
            return Ok(());
        }
        let (object, capability) = io.new_object().await?;
        let held = Held { object, capability };
        if let Some(last) = self.known.size().checked_sub(1) {
            io.data(request(self.known.inode(), DataOperation::Write, held, last, 1), &[0], None).await?;
        }
        self.known.object_made(held);
        Ok(())
    }

    /// A write that is at the server when this returns, while others may write too. `append`: at the end, as this
    /// operation.
    async fn write_now(
        &mut self,
        io: &Io,
        (bytes, offset): (&[u8], u64),
        append: Option<OperationId>,
        direct: bool,
    ) -> Result<()> {
        let operation = if append.is_some() { DataOperation::Append } else { DataOperation::Write };
        for attempt in 0..2 {
            self.ensure_object(io).await?;
            let held = self.known.held().ok_or(Error::NoObject)?;
            match io.data(request(self.known.inode(), operation, held, offset, bytes.len()), bytes, append).await {
                Ok((reply, _)) => {
                    self.note_written(&io.process, reply.size);
                    self.known.written_at(reply.mtime);
                    if !self.known.reports_object(direct) || self.commit(io).await? {
                        return Ok(());
                    }
                }
                Err(Error::NoObject | Error::CapabilityRejected) if attempt == 0 && !self.known.object_is_new() => {}
                Err(error) => return Err(error),
            }
            self.known.open_anew();
            self.regain(io).await?;
        }
        Err(Error::NoObject)
    }

    /// Reports object, size and time to the shard, if they have changed, with all that was gathered. `false`: the file
    /// had got another object meanwhile.
    async fn commit(&mut self, io: &Io) -> Result<bool> {
        if self.known.report().is_none() {
            return Ok(true);
        }
        self.send_all(io).await?;
        self.freshen(io).await?;
        let Some(request) = self.known.report() else { return Ok(true) };
        let Answer { stamp, answer, session, .. } =
            io.call(self.shard(), request).await.map_err(|error| match error {
                Error::BadHandle => Error::SessionEnded,
                error => error,
            })?;
        let ShardAnswer::Entry { attributes, grants } = answer else { return Err(Error::Malformed) };
        if let Some(mut cache) = io.process.cache_for(session) {
            cache.learn_attributes(&attributes, grants, stamp);
        }
        io.process.reported.borrow_mut().insert(self.known.inode(), stamp);
        let is_ours = self.known.reported(&attributes, stamp, io.process.next_report());
        self.note_error(&io.process);
        Ok(is_ours)
    }

    /// Size and time from the object, when others may have written it.
    async fn freshen(&mut self, io: &Io) -> Result<()> {
        if !self.known.is_exclusive()
            && let Some(held) = self.known.held()
        {
            let stat = request(self.known.inode(), DataOperation::Stat, held, 0, 0);
            let (reply, _) = io.data(stat, &[], None).await?;
            self.known.looked_up(reply.size, reply.mtime);
        }
        Ok(())
    }
}
