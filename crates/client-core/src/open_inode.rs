//! A regular file that this client has open: what all its handles share.
//!
//! What is known of it ([`FileState`] decides that), the run of written bytes that the server does not have yet, and
//! the ways to the data. A descriptor of the object's file is used under a lease only, and given up with it; but see
//! `kernel_use.rs`.
//!
//! Invariant: the holder of the lock has the state under the current session, whose term holds. After every effect
//! this is checked again.
//! Invariant: when a recall is answered, nothing that was begun under the lease is in flight.
//!
//! Lock order: `Files::open` (0), `state` (1). `state` is held across data requests of the buffered path (they wait
//! for no lease), and across calls about this inode, which the shard never makes wait for a recall to the session
//! that sends them.

mod appends;
mod cause;
mod copied;
mod holding;
mod in_flight;
mod kernel_use;
mod locking;
mod past_pages;
mod refused;
mod refused_runs;
mod reports;
mod runs;
mod set_id;
mod split;
mod state;
mod writes;

pub(crate) use copied::{Copied, CopySource};
pub use kernel_use::LentFile;

use crate::file_objects::FileObjects;
use crate::file_state::{FileState, Opened};
use crate::link::SlotFor;
use crate::objects::{ObjectWrite, Objects, Registration};
use crate::open_options::OpenOptions;
use crate::reader::{Source, Version};
use crate::session::Term;
use crate::shell::{Monitor, Shell};
use crate::split::SplitFile;
use crate::transfers::end_of;
use crate::tuning::Tuning;
use state::{Descriptor, RIGHT_MS, State};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use weft_protocol::data::DataOperation;
use weft_protocol::message::shard::{Access, PageCache, ShardRequest};
use weft_protocol::{Attributes, Credentials, InodeNumber, Layout, Plan, Result, SessionId, routing};
use writes::Target;
pub use writes::Written;
pub(crate) use writes::write_failed;

/// How long a recall waits for reads that use a passed descriptor, and how often it looks, microseconds.
const DESCRIPTOR_USE_US_MAX: u64 = 1_000_000;
const DESCRIPTOR_USE_POLL_US: u64 = 50;

/// The lock of an open inode's state.
type Guard<'a, S> = <<S as Shell>::Monitor<State<S>> as Monitor<State<S>>>::Guard<'a>;

/// An open inode.
pub struct OpenInode<S: Shell> {
    pub inode: InodeNumber,
    /// Handles; changed under the lock of the table of open inodes.
    pub(crate) handles: AtomicU32,
    /// Its condition: a write in flight has completed, or a drain of all of them has ended.
    state: S::Monitor<State<S>>,
    /// Writes under an exclusive lease that are made without the lock. Changed under it.
    in_flight: AtomicU32,
    /// Of the session at the inode's shard.
    term: Term,
    /// Grows when bytes that a reader has at hand may be stale.
    data_version: AtomicU64,
    /// Stamp of the latest reply to an open.
    granted: AtomicU64,
    /// The file had set-id bits when it was opened, and no user has written to it here since.
    set_id: AtomicBool,
    /// Its last name was removed here: it is not kept after its last close.
    nameless: AtomicBool,
    /// Of a split file, once it was read or written.
    split: OnceLock<Box<SplitFile<S>>>,
}

/// On whose behalf a file is flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushFor {
    /// A program, which is told of lost bytes.
    Program,
    /// A handle that was dropped: the next program is told.
    Drop,
    /// A recall, in its own slot: the next program is told.
    Recall,
}

/// What a closed inode holds of the process's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holds {
    Nothing,
    Descriptor,
}

/// How a read is served.
pub(crate) enum ReadVia<D> {
    /// It was answered from gathered bytes.
    Done(usize),
    /// There is no object: zeros up to the file's size.
    Zeros { size: u64, leased: bool },
    /// `leased`: nobody else changes the file, the kernel included.
    Descriptor { file: Arc<D>, leased: bool },
    /// Parts of several writers have it. The layout is that of when it was opened.
    Split(Layout),
    /// `size`: the file's, as far as a lease vouches for it.
    Server { objects: FileObjects, size: Option<u64> },
}

/// What the shard told of an open file's attributes.
pub(crate) struct AskedAttributes {
    pub attributes: Attributes,
    /// A kernel may change the file unseen.
    pub unseen: bool,
    /// The storage server of the file may have later ones, and does not answer its shard.
    pub size_in_doubt: bool,
}

impl<S: Shell> OpenInode<S> {
    pub(crate) fn new(attributes: &Attributes, tuning: &Tuning, session: SessionId, term: Term) -> Self {
        Self {
            inode: attributes.inode,
            handles: AtomicU32::new(0),
            state: S::Monitor::new(State::new(attributes, tuning, session, Arc::clone(&term))),
            in_flight: AtomicU32::new(0),
            term,
            data_version: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            set_id: AtomicBool::new(false),
            nameless: AtomicBool::new(false),
            split: OnceLock::new(),
        }
    }

    /// How the file is laid out, as far as is known without a message.
    pub async fn plan(&self) -> Plan {
        self.state.lock().await.known.attributes().layout.plan()
    }

    /// The state under the current session, whose term holds. A session that ended took leases and rights with it;
    /// whoever locks next notices it here, since whoever learnt of the end first may hold another inode's state.
    async fn lock(&self, io: &Objects<S>) -> Result<Guard<'_, S>> {
        self.lock_in(io, SlotFor::Caller).await
    }

    /// As [`OpenInode::lock`]; calls are made in this slot until the lock is taken again.
    async fn lock_in(&self, io: &Objects<S>, slot: SlotFor) -> Result<Guard<'_, S>> {
        let state = self.state.lock().await;
        self.under_term(io, state, io.calls.shell.now_ms(), slot).await
    }

    /// As [`OpenInode::lock`], right after the clock was read: it is not read again if nobody holds the lock.
    async fn lock_soon(&self, io: &Objects<S>, now_ms: u64) -> Result<Guard<'_, S>> {
        match self.state.try_lock() {
            Some(state) => self.under_term(io, state, now_ms, SlotFor::Caller).await,
            None => self.lock(io).await,
        }
    }

    async fn under_term<'a>(
        &'a self,
        io: &Objects<S>,
        mut state: Guard<'a, S>,
        mut now_ms: u64,
        slot: SlotFor,
    ) -> Result<Guard<'a, S>> {
        while now_ms >= self.term.load(Ordering::Acquire) {
            drop(state);
            io.calls.ensure_term(routing::of_inode(self.inode), &self.term, slot).await?;
            state = self.state.lock().await;
            now_ms = io.calls.shell.now_ms();
        }
        (state.slot, state.now_ms) = (slot, now_ms);
        state.notice_session(io);
        Ok(state)
    }

    fn changed(&self) {
        self.data_version.fetch_add(1, Ordering::AcqRel);
    }

    /// A handle was opened by a reply that arrived at `now_ms`: learns from the reply. One message if something that
    /// was written through the server has not been reported.
    pub(crate) async fn opened(
        &self,
        io: &Objects<S>,
        who: &Arc<Credentials>,
        options: &OpenOptions<Registration<S>>,
        opened: &Opened,
        now_ms: u64,
    ) -> Result<()> {
        let mut state = self.lock_soon(io, now_ms).await?;
        if state.known.reports_before_lease() {
            state.commit(io).await?;
        }
        (state.opener, state.runs) = (Some(Arc::clone(who)), options.access == Access::Execute);
        if options.page_cache != PageCache::None {
            state.page_cache = options.page_cache;
        }
        if options.access.writes() {
            state.known.will_write();
        }
        self.note_set_id(&opened.attributes);
        let session = &io.calls.session;
        state.take_opened(io, opened, FileState::opened);
        if state.known.held().map(|held| held.capability) == opened.capability {
            state.right_until_ms = state.now_ms + RIGHT_MS;
        }
        if let Some(report) = session.opens.report_of(self.inode) {
            state.known.reported_before(report, opened.stamp, session.reports());
        }
        self.changed();
        Ok(())
    }

    /// The answer to an open, if the lease that is still held allows it without asking: the same user, an access that
    /// the right to the object covers, a mode that needs nobody's recall, no pages that the shard has not heard of.
    pub(crate) async fn reopen(
        &self,
        io: &Objects<S>,
        who: &Credentials,
        options: &OpenOptions<Registration<S>>,
    ) -> Option<Attributes> {
        let mut state = self.lock(io).await.ok()?;
        let OpenOptions { access, page_cache, .. } = *options;
        if ![PageCache::None, state.page_cache].contains(&page_cache) {
            return None;
        }
        state.settle_doubt(io).await;
        state.look(io);
        let is_same = state.opener.as_deref() == Some(who) && state.runs == (access == Access::Execute);
        let allowed = is_same && state.known.open_again_unasked(access);
        allowed.then(|| state.known.attributes().clone())
    }

    /// A handle was closed: whether the inode is kept when nobody has it open, and what it holds then. Frees the
    /// memory of sent runs: thousands of closed files are kept with their leases. Whether the term holds is checked
    /// when the file is opened again.
    pub(crate) async fn handle_closed(&self, io: &Objects<S>) -> Option<Holds> {
        let mut state = self.state.lock().await;
        state.notice_session(io);
        state.spare = Vec::new();
        let passed = matches!(state.descriptor, Descriptor::Passed { .. });
        (state.known.is_kept() && !self.is_nameless()).then_some(if passed {
            Holds::Descriptor
        } else {
            Holds::Nothing
        })
    }

    /// Makes sure that the shard knows that this session has it open.
    pub(crate) async fn ensure_open(&self, io: &Objects<S>) -> Result<()> {
        self.lock(io).await?.regain(io).await
    }

    /// Whether a cache above may keep what was read.
    pub async fn may_cache(&self, io: &Objects<S>) -> bool {
        self.lock(io).await.is_ok_and(|state| state.known.is_leased())
    }

    /// Whether the file has an object, or gets parts instead, as far as is known here.
    pub async fn has_object(&self, io: &Objects<S>) -> bool {
        self.lock(io).await.is_ok_and(|state| state.known.held().is_some() || state.known.is_split())
    }

    /// Decides how a read is served, and answers it when gathered bytes are all it asks for. Also returns the version
    /// of the data: bytes of another version that a reader has at hand are stale.
    pub(crate) async fn read_via(
        &self,
        io: &Objects<S>,
        into: &mut [u8],
        offset: u64,
    ) -> Result<(ReadVia<S::Descriptor>, Version)> {
        let mut state = self.lock(io).await?;
        let via = state.read_via(io, into, offset).await?;
        let session = state.known.session();
        Ok((via, Version { data: self.data_version.load(Ordering::Acquire), session }))
    }

    /// The current version of the data, without the lock: a reader may use bytes of it that he has at hand. Whatever
    /// makes them stale changes the version before anybody is told of it. `None`: the term is over.
    pub(crate) fn version_now(&self, io: &Objects<S>) -> Option<Version> {
        let version = Version { data: self.data_version.load(Ordering::Acquire), session: io.calls.session.id() };
        (io.calls.shell.now_ms() < self.term.load(Ordering::Acquire)).then_some(version)
    }

    /// The right to the object turned out to be void (the object was replaced, the right has expired): the next
    /// operation asks for it again.
    pub(crate) async fn right_is_void(&self) {
        let mut state = self.state.lock().await;
        state.known.right_is_void();
        if state.known.held().is_none() {
            state.descriptor = Descriptor::NotAsked;
        }
        drop(state);
        self.changed();
    }

    /// Gathers bytes that continue the run, if nothing has to be asked, sent or told first. Returns whether it did.
    pub(crate) fn write_at_hand(&self, io: &Objects<S>, bytes: &[u8], offset: u64) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        let now_ms = io.calls.shell.now_ms();
        let holds = now_ms < self.term.load(Ordering::Acquire) && state.known.session() == io.calls.session.id();
        let gathered = holds && state.draining == 0 && state.gather_at_hand(io, bytes, offset, now_ms);
        if gathered {
            self.changed();
        }
        gathered
    }

    /// Gives a file without objects its objects, and has the shard know of them.
    pub(crate) async fn give_objects(&self, io: &Objects<S>) -> Result<()> {
        let mut state = self.lock(io).await?;
        while state.draining > 0 {
            drop(self.state.wait(state).await);
            state = self.lock(io).await?;
        }
        state.regain_to_write(io).await?;
        if state.known.is_split() {
            return Ok(());
        }
        state.ensure_object(io).await?;
        if state.known.object_is_new() {
            state.publish_objects(io).await?;
        }
        Ok(())
    }

    /// A write of ranges, each its bytes and an offset; [`OpenInode::write`] makes it again when pages of other kernels
    /// are in its way. Those of an append, and what may be gathered, are one. `None`: it was to be an append in turn,
    /// and has to be made again from the beginning.
    async fn write_once(
        &self,
        io: &Objects<S>,
        list: &[(&[u8], u64)],
        options: &OpenOptions<Registration<S>>,
        pages: bool,
    ) -> Result<Option<Written>> {
        let mut state = self.lock(io).await?;
        while state.draining > 0 {
            drop(self.state.wait(state).await);
            state = self.lock(io).await?;
        }
        if let Some(error) = state.known.error() {
            return Err(error.clone());
        }
        let &(bytes, offset) = list.first().expect("a write is of one range at least");
        if list.iter().all(|(bytes, _)| bytes.is_empty()) {
            // Nothing changes, not even the size.
            return Ok(Some(Written { offset, is_safe: true }));
        }
        state.regain_to_write(io).await?;
        if !state.refused.is_empty() {
            state.send_refused(io).await?;
        }
        if state.known.is_split() {
            return self.write_split(io, state, list, options).await.map(Some);
        }
        // A kernel may be writing the object beside us.
        let exclusive = state.known.is_exclusive() && state.kernel.is_none();
        let offset = if options.append && exclusive { state.known.size() } else { offset };
        let moved = [(bytes, offset)];
        let list = if options.append { &moved[..] } else { list };
        let mut end = 0;
        for (bytes, offset) in list.iter().filter(|(bytes, _)| !bytes.is_empty()) {
            end = end.max(end_of(*offset, bytes.len())?);
        }
        let at_end = options.append && !exclusive;
        if at_end && state.known.is_striped() {
            drop(state);
            return self.append_in_turn(io, bytes, options).await;
        }
        state.ensure_object(io).await?;
        self.changed();
        if exclusive && let Some(file) = state.descriptor(io, true).await? {
            let is_small = list.len() == 1 && bytes.len() <= io.tuning.small_bytes;
            if !options.direct && is_small && state.known.may_gather() {
                return state.gather(io, bytes, offset).await.map(|()| Some(Written { offset, is_safe: false }));
            }
            state.send_refused(io).await?;
            let target = Target::File { file, call_bytes: state.call_bytes };
            return self.write_in_flight(io, state, (list, end), options, target).await.map(Some);
        }
        let is_small = list.len() == 1 && state.is_small(io, bytes.len(), offset, options);
        if exclusive && !options.direct && is_small && state.known.may_gather() {
            return state.gather(io, bytes, offset).await.map(|()| Some(Written { offset, is_safe: false }));
        }
        state.send_refused(io).await?;
        if exclusive && !state.known.object_is_new() {
            // Nobody else has a right to the file now, so what is known of the object holds without the lock.
            // The lease covers what a kernel keeps of it.
            let write = ObjectWrite::new((self.inode, state.objects()?), DataOperation::Write, false);
            let target = Target::Object { write, registration: options.registration };
            return self.write_in_flight(io, state, (list, end), options, target).await.map(Some);
        }
        let operation = if at_end { DataOperation::Append } else { DataOperation::Write };
        state.write_now(io, list, operation, options, pages).await.map(Some)
    }

    /// A recall to this session, with its stamp: from now on nothing is gathered or trusted, and no descriptor is used;
    /// [`OpenInode::flush`] follows. Waits for writes in flight. Sends nothing.
    pub(crate) async fn weaken(&self, io: &Objects<S>, session: SessionId, stamp: u64) {
        let mut state = self.state.lock().await;
        if state.known.weaken(session, stamp) {
            let descriptor = std::mem::replace(&mut state.descriptor, Descriptor::NotAsked);
            let kernel_has_it = state.kernel.is_some();
            drop(self.drain(state).await);
            // A kernel goes on using it: the shard asks the storage server for size and time.
            if let Descriptor::Passed { file, .. } = descriptor
                && !kernel_has_it
            {
                await_reads(io, &file).await;
            }
        }
        self.changed();
    }

    /// A call that cuts the file has no answer.
    pub(crate) async fn cut_in_doubt(&self) {
        self.state.lock().await.doubt_cut();
        self.changed();
    }

    /// Waits until no write is in flight, and lets none begin meanwhile.
    async fn drain<'a>(&'a self, mut state: Guard<'a, S>) -> Guard<'a, S> {
        state.draining += 1;
        while self.in_flight.load(Ordering::Acquire) > 0 {
            state = self.state.wait(state).await;
        }
        state.draining -= 1;
        self.state.notify_all();
        state
    }

    /// Lays size and times as this client has changed them over what the shard told: just now (`asked`), or earlier;
    /// when `since` reports had been made. Returns whether a kernel may change them at any moment, unseen from here.
    /// `None`: a report was made since, and what the shard told may be older.
    pub(crate) async fn overlay(
        &self,
        io: &Objects<S>,
        attributes: &mut Attributes,
        asked: bool,
        since: u64,
    ) -> Option<bool> {
        // What cannot be published leaves the next call to tell why.
        if self.publish_held_back(io, since).await != Ok(false) {
            return None;
        }
        let mut state = match self.lock(io).await {
            Ok(mut state) => {
                state.settle_doubt(io).await;
                state.settle_seen(io).await;
                state
            }
            // The shard is away: what it told last is all there is, unless it is from before what was written here.
            Err(_) => {
                let mut state = self.state.lock().await;
                state.notice_session(io);
                state
            }
        };
        state.overlay(io, attributes, asked, since)
    }

    /// Attributes from the shard under this client's own changes; no report of its own overtakes them. One message, or
    /// more when the session ends meanwhile.
    pub(crate) async fn ask_attributes(&self, io: &Objects<S>, who: &Credentials) -> Result<AskedAttributes> {
        let mut state = self.lock(io).await?;
        loop {
            state.settle_doubt(io).await;
            self.publish_held_back(io, 0).await?;
            let since = io.calls.session.reports();
            let (mut attributes, size_in_doubt) = io.calls.ask_known_attributes(who, self.inode).await?;
            if self.publish_held_back(io, since).await? {
                continue;
            }
            io.calls.ensure_term(routing::of_inode(self.inode), &self.term, SlotFor::Caller).await?;
            state.notice_session(io);
            state.settle_seen(io).await;
            if let Some(unseen) = state.overlay(io, &mut attributes, true, since) {
                return Ok(AskedAttributes { attributes, unseen, size_in_doubt });
            }
        }
    }

    /// The file's size as this client knows it under a lease; `None`: it has to be asked for.
    pub async fn known_size(&self, io: &Objects<S>) -> Option<u64> {
        let mut state = self.lock(io).await.ok()?;
        state.settle_doubt(io).await;
        state.look(io);
        state.settle_seen(io).await;
        (state.known.is_leased() || state.kernel_file().is_some()).then(|| state.known.size())
    }

    /// A change whose reply is the attributes, the size among them: earlier writes go before, and nothing in between.
    /// One message, and those of a flush.
    ///
    /// Nobody else holds a lease on a file that this client has open for writing: the call waits for no recall, and
    /// the lock may be held. Otherwise it may wait for somebody whose call waits for us, and there is nothing that
    /// must not overtake it.
    async fn change_once(&self, io: &Objects<S>, who: &Credentials, request: &ShardRequest) -> Result<Attributes> {
        let size = match request {
            ShardRequest::SetAttributes { changes, .. } => changes.size,
            _ => None,
        };
        let mut state = self.drain(self.lock(io).await?).await;
        state.slot = SlotFor::Caller;
        state.hold(io).await?;
        self.publish_held_back(io, 0).await?;
        state.flush_before_change(io).await?;
        if let Some(size) = size {
            state.settle_before_cut(io, size).await?;
        }
        let state = Some(state).filter(|state| state.known.writes());
        let called = io.calls.change_for_attributes(who, self.inode, request.clone()).await;
        let mut state = match state {
            Some(state) => state,
            None => self.state.lock().await,
        };
        if called.is_err() && size.is_some() {
            if state.known.is_striped() {
                // Some objects may be cut, and others not: the shard has forgotten how long the file is.
                state.is_unsettled |= state.known.cut_in_part();
            }
            if io.calls.is_in_doubt(routing::of_inode(self.inode)) {
                state.doubt_cut();
            }
            self.changed();
        }
        let (attributes, stamp) = called?;
        self.note_set_id(&attributes);
        // If another session began on the way, the next user of the file opens it again.
        state.notice_session(io);
        io.calls.session.opens.reported(self.inode, stamp);
        if state.known.changed(&attributes, stamp, io.calls.session.next_report()) {
            state.descriptor = Descriptor::NotAsked;
        }
        state.note_error(io);
        if let Some(size) = size {
            state.refused.cut(size);
        }
        state.kernel_sees_change(io);
        // The attributes are seen now.
        state.settle_seen(io).await;
        self.changed();
        Ok(attributes)
    }

    /// What a reader needs to know of a file that is read through its server.
    pub(crate) fn source(
        &self,
        objects: FileObjects,
        size: u64,
        version: Version,
        registration: Option<Registration<S>>,
    ) -> Source<S> {
        Source { inode: self.inode, objects, size, version, registration }
    }
}

impl<S: Shell> State<S> {
    async fn read_via(&mut self, io: &Objects<S>, into: &mut [u8], offset: u64) -> Result<ReadVia<S::Descriptor>> {
        if !self.known.is_leased() && self.known.object_is_new() {
            // Others may not know the object that this client gave the file, and theirs may have come first.
            self.commit(io).await?;
        }
        self.known.doubt_missing_object();
        self.regain(io).await?;
        if self.run.read(offset, into) {
            return Ok(ReadVia::Done(into.len()));
        }
        if !self.run.is_empty() || self.sending.is_some() {
            self.send_all(io).await?;
            if let Some(error) = self.known.error() {
                return Err(error.clone());
            }
        }
        self.settle(io).await?;
        // The session may have ended meanwhile, with what is known of the object.
        self.regain(io).await?;
        if let Some(file) = self.kernel_file() {
            return Ok(ReadVia::Descriptor { file: Arc::clone(file), leased: false });
        }
        if self.known.is_leased()
            && let Some(file) = self.descriptor(io, false).await?
        {
            return Ok(ReadVia::Descriptor { file, leased: true });
        }
        if self.known.is_split() {
            return Ok(ReadVia::Split(self.known.attributes().layout.clone()));
        }
        let size = self.known.size();
        Ok(match self.known.objects().cloned() {
            Some(objects) => ReadVia::Server { objects, size: self.known.is_leased().then_some(size) },
            None => ReadVia::Zeros { size, leased: self.known.is_leased() },
        })
    }
}

/// Waits until nobody reads through a descriptor any more.
async fn await_reads<S: Shell>(io: &Objects<S>, file: &Arc<S::Descriptor>) {
    let mut waited_us = 0;
    while Arc::strong_count(file) > 1 && waited_us < DESCRIPTOR_USE_US_MAX {
        io.calls.shell.sleep_us(DESCRIPTOR_USE_POLL_US).await;
        waited_us += DESCRIPTOR_USE_POLL_US;
    }
}
