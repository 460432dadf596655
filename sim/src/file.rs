//! An open file of a simulated client: what `OpenInode` is in the client library.
//!
//! Lease, size, object, and the run of written bytes ([`WriteBehind`]) that the server does not have yet. The steps are
//! those of `crates/client/src/open_inode.rs` under the same lock, with a wait where that blocks. Where this one does
//! more than that one, it had to: `docs/simulation.md` lists these places.
//!
//! Invariant: as soon as a file has an object, the object's size is the file's (but for what is gathered here).
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
use weft_client_core::WriteBehind;
use weft_protocol::data::{BulkDescriptor, DataOperation, DataRequest};
use weft_protocol::error::errno;
use weft_protocol::message::shard::{Access, OpenFlags, ShardAnswer, ShardRequest, whole};
use weft_protocol::{
    AttributeChanges, Attributes, Capability, Error, Grants, InodeNumber, LeaseMode, ObjectId, Result, Rights,
    SessionId, ShardId, Timestamp,
};

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

/// The object of a file, and the right to it.
#[derive(Clone, Copy)]
pub struct Held {
    pub object: ObjectId,
    pub capability: Capability,
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
    /// How often size and time were reported to the shard.
    pub reports: Cell<u64>,
    /// Whether the shard knows of an object.
    pub has_object: Cell<bool>,
    /// Not there while it is locked.
    state: Cell<Option<Box<State>>>,
}

/// What is changed under the lock.
pub struct State {
    session: SessionId,
    writes: bool,
    pub mode: LeaseMode,
    stamp: u64,
    pub attributes: Attributes,
    /// Of the last own change that `attributes` has: what an open told before is older.
    changed_stamp: u64,
    reports: u64,
    pub held: Option<Held>,
    object_is_new: bool,
    pub dirty: bool,
    /// Of a lease that is being given up: nobody else knows the size before it was reported.
    knows_best: bool,
    run: WriteBehind,
    sending: VecDeque<(Ticket, DataRequest, Vec<u8>)>,
    connection: u64,
    /// Why gathered bytes could not be written: told by the next write, flush or close.
    pub error: Option<Error>,
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
        self.file.stamp.set(self.stamp);
        self.file.reports.set(self.reports);
        self.file.has_object.set(self.held.is_some() && !self.object_is_new);
        self.file.state.set(self.state.take());
        self.process.changes.set(self.process.changes.get() + 1);
    }
}

/// What the reply to an open told.
pub struct Opened {
    pub attributes: Attributes,
    pub capability: Option<Capability>,
    pub grants: Grants,
    pub stamp: u64,
    /// The session when it was asked.
    pub session: SessionId,
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
            session,
            writes: false,
            mode: LeaseMode::Open,
            stamp: 0,
            attributes: attributes.clone(),
            changed_stamp: 0,
            reports: 0,
            held: None,
            object_is_new: false,
            dirty: false,
            knows_best: false,
            run: WriteBehind::new(BUFFER_BYTES),
            sending: VecDeque::new(),
            connection: 0,
            error: None,
        };
        Self {
            inode: attributes.inode,
            handles: Cell::new(0),
            data_version: Cell::new(0),
            stamp: Cell::new(0),
            reports: Cell::new(0),
            has_object: Cell::new(false),
            state: Cell::new(Some(Box::new(state))),
        }
    }

    /// The state, as it is under the session of now, whose term holds.
    pub async fn lock(self: &Rc<Self>, io: &Io) -> Result<Guard> {
        loop {
            io.ensure_term(self.inode.shard()).await?;
            let state = poll_fn(|_| self.state.take().map_or(Poll::Pending, Poll::Ready)).await;
            let mut guard = Guard { file: Rc::clone(self), process: Rc::clone(&io.process), state: Some(state) };
            if guard.session != io.process.session.get() {
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
        if state.mode == LeaseMode::Open && state.dirty {
            // What was written through the server is known there only; under a lease our word would count.
            state.commit(io).await?;
        }
        state.writes |= options.access.writes();
        state.learn(&io.process, opened);
        if options.truncate && opened.stamp > state.changed_stamp {
            let gathered = if state.run.is_empty() { 0 } else { state.run.end() };
            state.attributes.size = opened.attributes.size.max(gathered);
        }
        self.changed();
        Ok(())
    }

    /// Whether an open may be answered here, by the lease that is still held.
    pub async fn reopen(self: &Rc<Self>, io: &Io, access: Access) -> Result<bool> {
        let mut state = self.lock(io).await?;
        let rights = state.held.map(|held| held.capability.rights);
        let covered = |right| rights.is_none_or(|rights| rights.contains(right));
        let allowed = state.mode >= if access.writes() { LeaseMode::Exclusive } else { LeaseMode::Shared }
            && (!access.reads() || covered(Rights::READ))
            && (!access.writes() || (state.writes && covered(Rights::WRITE)))
            && state.error.is_none();
        state.writes |= allowed && access.writes();
        Ok(allowed)
    }

    /// A recall: from now on nothing is gathered or believed; [`OpenFile::flush`] follows.
    pub async fn weaken(self: &Rc<Self>, io: &Io, session: SessionId) -> Result<()> {
        let mut state = self.lock(io).await?;
        // A recall from a session that has ended would take what was granted to the new one.
        if state.session == session {
            state.knows_best |= state.mode == LeaseMode::Exclusive && state.dirty;
            state.mode = state.mode.min(LeaseMode::Open);
        }
        self.changed();
        Ok(())
    }

    /// The size that a lease vouches for.
    pub async fn leased_size(self: &Rc<Self>, io: &Io) -> Result<Option<u64>> {
        let state = self.lock(io).await?;
        Ok((state.mode >= LeaseMode::Shared).then_some(state.attributes.size))
    }

    /// Size as this client has changed it, over what is known from the shard. `asked`: it was asked just now, so that
    /// it has what was written through the server. `false`: more than these reports were made by now, and what was
    /// known may be older.
    pub async fn overlay(
        self: &Rc<Self>,
        io: &Io,
        attributes: &mut Attributes,
        asked: bool,
        reports: u64,
    ) -> Result<bool> {
        let state = self.lock(io).await?;
        if reports != state.reports {
            return Ok(false);
        }
        if state.knows_best || state.mode == LeaseMode::Exclusive || (state.dirty && !asked) {
            attributes.size = state.attributes.size;
        }
        Ok(true)
    }

    /// Cuts the file, or extends it: what was gathered before goes before, and nothing in between.
    pub async fn set_size(self: &Rc<Self>, io: &Io, size: u64) -> Result<()> {
        let mut state = self.lock(io).await?;
        state.flush(io).await?;
        let (inode, changes) = (self.inode, AttributeChanges { size: Some(size), ..AttributeChanges::default() });
        let answer = io.call(state.shard(), ShardRequest::SetAttributes { inode, changes }).await?;
        let ShardAnswer::Entry { attributes, grants } = answer.answer else { return Err(Error::Malformed) };
        io.process.cache.borrow_mut().learn_attributes(&attributes, grants, answer.stamp);
        if attributes.layout.object() != state.held.map(|held| held.object) {
            state.held = None;
            state.object_is_new = false;
        }
        state.attributes = attributes;
        state.changed_stamp = answer.stamp;
        state.reports += 1;
        self.changed();
        Ok(())
    }

    /// Writes back and reports to the shard. `tells`: a program hears what comes of it; if not, the next one does.
    pub async fn flush(self: &Rc<Self>, io: &Io, tells: bool) -> Result<()> {
        let mut state = self.lock(io).await?;
        let result = state.flush(io).await;
        if tells {
            state.error = None;
        }
        result
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
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        state.regain(io).await?;
        state.ensure_object(io).await?;
        state.hold(io).await?;
        self.changed();
        let exclusive = state.mode == LeaseMode::Exclusive;
        let mut offset = offset;
        if options.append && exclusive {
            offset = state.attributes.size;
            io.process.files.borrow_mut().append_placed(operation, offset);
        }
        if exclusive && !options.direct && bytes.len() < BUFFER_BYTES {
            state.gather(io, bytes, offset).await?;
            return Ok(false);
        }
        state.send_all(io).await?;
        if exclusive && !state.object_is_new {
            state.note_written(&io.process, offset + bytes.len() as u64);
            let held = state.held.ok_or(Error::NoObject)?;
            io.data(request(self.inode, DataOperation::Write, held, offset, bytes.len()), bytes, None).await?;
            return Ok(options.direct);
        }
        state
            .write_now(io, (bytes, offset), (options.append && !exclusive).then_some(operation), options.direct)
            .await?;
        Ok(options.direct || state.mode != LeaseMode::Exclusive)
    }

    /// Decides how a read is served; answers it when gathered bytes are all it asks for.
    pub async fn read_via(self: &Rc<Self>, io: &Io, into: &mut [u8], offset: u64) -> Result<ReadVia> {
        let mut state = self.lock(io).await?;
        if state.mode < LeaseMode::Shared {
            // Another writer may have given the file an object since, and what we gave it may not be known.
            let is_known = if state.object_is_new { state.commit_object(io).await? } else { state.held.is_some() };
            if !is_known {
                state.mode = LeaseMode::None;
            }
        }
        state.regain(io).await?;
        state.hold(io).await?;
        if state.run.read(offset, into) {
            return Ok(ReadVia::Done(into.len()));
        }
        if !state.run.is_empty() || !state.sending.is_empty() {
            state.send_all(io).await?;
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            state.hold(io).await?;
        }
        let size = state.attributes.size;
        let leased = state.mode >= LeaseMode::Shared;
        Ok(match state.held {
            Some(held) => ReadVia::Server { held, size: leased.then_some(size) },
            None => ReadVia::Zeros { size },
        })
    }

    /// The right to the object turned out to be void: asks for it again with the next call.
    pub async fn right_is_void(self: &Rc<Self>, io: &Io) -> Result<()> {
        let mut state = self.lock(io).await?;
        if !state.object_is_new {
            state.mode = LeaseMode::None;
            state.held = None;
        }
        self.changed();
        Ok(())
    }
}

impl State {
    fn inode(&self) -> InodeNumber {
        self.attributes.inode
    }

    fn shard(&self) -> ShardId {
        self.inode().shard()
    }

    /// The session has ended: lease and right are void. Bytes that were gathered under the lease cannot be written any
    /// more, and the next call says so.
    fn lose_session(&mut self, process: &Process) {
        let gathered = self.run.take_run().is_some() || !self.sending.is_empty();
        self.sending.clear();
        if gathered || self.object_is_new {
            self.fail(process, Error::SessionEnded);
            self.dirty = false;
        }
        self.session = process.session.get();
        self.mode = LeaseMode::None;
        self.held = None;
        self.object_is_new = false;
        self.knows_best = false;
    }

    async fn flush(&mut self, io: &Io) -> Result<()> {
        let since = io.process.files.borrow_mut().moment();
        let written = self.send_all(io).await;
        let committed = if written.is_ok() { self.commit(io).await } else { Ok(()) };
        self.knows_best = false;
        let result = self.error.clone().map_or(Ok(()), Err).and(written).and(committed);
        match &result {
            Ok(()) => io.process.check(io.process.files.borrow_mut().flushed(io.process.id, self.inode(), since)),
            Err(error) => self.fail(&io.process, error.clone()),
        }
        result
    }

    /// What was gathered is lost, or a part of it.
    fn fail(&mut self, process: &Process, error: Error) {
        // Who is told of this must not take it for a right that is void, and try again.
        let is_of_right = matches!(error, Error::NoObject | Error::CapabilityRejected);
        self.error.get_or_insert(if is_of_right { Error::Device(errno::EIO) } else { error });
        process.files.borrow_mut().lost_buffers(process.id, self.inode());
        process.ask(Ask::Settle);
    }

    /// After a wait: the lease holds still, or the caller learns that it does not.
    async fn hold(&mut self, io: &Io) -> Result<()> {
        io.ensure_term(self.shard()).await?;
        if self.session != io.process.session.get() {
            self.lose_session(&io.process);
            return Err(self.error.clone().unwrap_or(Error::SessionEnded));
        }
        Ok(())
    }

    fn learn(&mut self, process: &Process, opened: &Opened) {
        if opened.stamp < self.stamp {
            // Replies to two opens passed each other: the later one holds, but for a right to write.
            return self.learn_right(opened);
        }
        let recalled = process.cache.borrow().data_recalled(self.inode(), opened.stamp);
        let was_exclusive = self.mode == LeaseMode::Exclusive;
        self.mode = match opened.grants {
            _ if opened.session != process.session.get() => LeaseMode::None,
            _ if recalled => LeaseMode::Open,
            grants if grants.contains(Grants::DATA_EXCLUSIVE) => LeaseMode::Exclusive,
            grants if grants.contains(Grants::DATA_SHARED) => LeaseMode::Shared,
            _ => LeaseMode::Open,
        };
        self.knows_best |= was_exclusive && self.mode < LeaseMode::Exclusive && self.dirty;
        self.stamp = opened.stamp;
        if opened.stamp <= self.changed_stamp {
            // We have reported since: the object and the size are as we told the shard.
            return self.learn_right(opened);
        }
        let told = opened.attributes.layout.object();
        if !self.object_is_new || told.is_some() {
            if told != self.held.map(|held| held.object) {
                self.held = told.zip(opened.capability).map(|(object, capability)| Held { object, capability });
            }
            self.learn_right(opened);
            self.object_is_new = false;
        }
        if !self.dirty {
            self.attributes = opened.attributes.clone();
        }
    }

    /// The stronger of the right that is held and the one that was told, if both are to the same object.
    fn learn_right(&mut self, opened: &Opened) {
        let may_write = |capability: &Capability| capability.rights.contains(Rights::WRITE);
        if let (Some(held), Some(capability)) = (&mut self.held, opened.capability)
            && capability.object == held.object
            && (may_write(&capability) || !may_write(&held.capability))
        {
            held.capability = capability;
        }
    }

    /// The object and the right to it, asked for again when they are not known any more.
    async fn regain(&mut self, io: &Io) -> Result<()> {
        if self.mode == LeaseMode::None {
            let access = if self.writes { Access::ReadWrite } else { Access::Read };
            let flags = OpenFlags { access, truncate: false, direct: false };
            let (inode, session) = (self.inode(), io.process.session.get());
            let Answer { stamp, answer, .. } = io.call(self.shard(), ShardRequest::Open { inode, flags }).await?;
            let ShardAnswer::Opened { attributes, capability, grants, .. } = answer else {
                return Err(Error::Malformed);
            };
            self.dirty = false;
            self.learn(&io.process, &Opened { attributes, capability, grants, stamp, session });
        }
        Ok(())
    }

    fn note_written(&mut self, process: &Process, end: u64) {
        self.attributes.size = self.attributes.size.max(end);
        self.attributes.mtime = Timestamp(i64::try_from(process.now_ms.get() * 1_000_000).unwrap_or(i64::MAX));
        self.dirty = true;
    }

    /// A file without an object gets one, at the client's own node. One that was extended by truncate gets its size.
    async fn ensure_object(&mut self, io: &Io) -> Result<()> {
        if self.held.is_some() {
            return Ok(());
        }
        let (object, capability) = io.new_object().await?;
        let held = Held { object, capability };
        if let Some(last) = self.attributes.size.checked_sub(1) {
            io.data(request(self.inode(), DataOperation::Write, held, last, 1), &[0], None).await?;
        }
        self.held = Some(held);
        self.object_is_new = true;
        self.attributes.layout = whole(object);
        self.dirty = true;
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
            let held = self.held.ok_or(Error::NoObject)?;
            match io.data(request(self.inode(), operation, held, offset, bytes.len()), bytes, append).await {
                Ok((reply, _)) => {
                    self.note_written(&io.process, reply.size);
                    self.attributes.mtime = reply.mtime;
                    let may_wait = self.mode == LeaseMode::Exclusive && !direct;
                    if !self.object_is_new || may_wait || self.commit_object(io).await? {
                        return Ok(());
                    }
                }
                Err(Error::NoObject | Error::CapabilityRejected) if attempt == 0 && !self.object_is_new => {}
                Err(error) => return Err(error),
            }
            self.mode = LeaseMode::None;
            self.regain(io).await?;
        }
        Err(Error::NoObject)
    }

    /// Tells the shard of the new object. `false`: the file had got another one meanwhile.
    async fn commit_object(&mut self, io: &Io) -> Result<bool> {
        let ours = self.held.map(|held| held.object);
        self.commit(io).await?;
        Ok(self.attributes.layout.object() == ours)
    }

    /// Reports object, size and time to the shard, if they have changed.
    async fn commit(&mut self, io: &Io) -> Result<()> {
        if !self.dirty {
            return Ok(());
        }
        self.freshen(io).await?;
        let inode = self.inode();
        let object = self.held.filter(|_| self.object_is_new).map(|held| held.object);
        let request = ShardRequest::Commit { inode, object, size: self.attributes.size, mtime: self.attributes.mtime };
        let Answer { stamp, answer, .. } = io.call(self.shard(), request).await.map_err(|error| match error {
            Error::BadHandle => Error::SessionEnded,
            error => error,
        })?;
        let ShardAnswer::Entry { attributes, grants } = answer else { return Err(Error::Malformed) };
        io.process.cache.borrow_mut().learn_attributes(&attributes, grants, stamp);
        if object.is_some() && attributes.layout.object() != object {
            self.mode = LeaseMode::None;
            self.held = None;
        }
        self.attributes = attributes;
        self.changed_stamp = stamp;
        self.reports += 1;
        self.object_is_new = false;
        self.dirty = false;
        self.knows_best = false;
        Ok(())
    }

    /// Size and time from the object, when others may have written it.
    async fn freshen(&mut self, io: &Io) -> Result<()> {
        if self.mode != LeaseMode::Exclusive
            && let Some(held) = self.held
        {
            let (reply, _) = io.data(request(self.inode(), DataOperation::Stat, held, 0, 0), &[], None).await?;
            self.attributes.size = reply.size;
            self.attributes.mtime = reply.mtime;
        }
        Ok(())
    }
}
