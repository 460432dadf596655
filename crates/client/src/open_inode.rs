//! A regular file that this client has open: what all its handles share.
//!
//! What is known of it ([`FileState`] decides that), the run of written bytes that the server does not have yet, and
//! the ways to the data. A descriptor of the object's file is used under a lease only, and given up with it; but see
//! [`passthrough`].
//!
//! Invariant: whoever has the state of an open inode to do something with it, has it under the session of now, whose
//! term holds. After everything that waits this is looked at again.
//!
//! Lock order: `Inner::open` (0), `state` (1). `state` is held across data requests of the buffered path (they wait for
//! no lease), and across calls about this inode, which the shard never makes wait for a recall to the session that
//! sends them.

mod passthrough;
mod recall;
mod reports;
mod runs;
mod writes;

use crate::client::Inner;
use crate::data_calls::request;
use crate::link::{Link, SlotFor, lock};
use crate::open_table::Holds;
use crate::terms::Term;
use passthrough::KernelUse;
pub(crate) use reports::FlushFor;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use weft_client_core::{FileState, Held, Opened, WriteBehind};
use weft_protocol::data::{DataOperation, DataRequest};
use weft_protocol::limits::CAPABILITY_TERM_SECONDS;
use weft_protocol::message::shard::{Access, OpenFlags, ShardAnswer, ShardRequest};
use weft_protocol::{Attributes, Credentials, Error, InodeNumber, Result, SessionId};
use weft_transport::BulkConnection;

/// A run's length at most, bytes. Each costs both ends a wake-up; and those on their way, and the one that is gathered
/// meanwhile, should still find their memory in the processor's cache.
const RUN_BYTES_MAX: usize = 384 << 10;
/// How long before its end a right is asked for anew, milliseconds: longer than anything that is done with it takes.
const RIGHT_MARGIN_MS: u64 = 300_000;
/// How long a right is used that an open gave, counted by our own clock.
const RIGHT_MS: u64 = CAPABILITY_TERM_SECONDS as u64 * 1000 - RIGHT_MARGIN_MS;

/// An open inode.
pub(crate) struct OpenInode {
    pub inode: InodeNumber,
    /// Handles; changed under the lock of `Inner::open`.
    pub handles: AtomicU32,
    state: Mutex<State>,
    /// A write in flight has ended, or whoever waited for all of them has what he wanted.
    landed: Condvar,
    /// Of the session at the inode's shard.
    term: Term,
    /// Grows when bytes that a reader has at hand may be old.
    data_version: AtomicU64,
}

struct State {
    known: FileState,
    /// Who opened it last through the shard: he may open it again under the lease without asking.
    opener: Option<Arc<Credentials>>,
    /// In whose slot calls are made, of those who have the lock in turn.
    slot: SlotFor,
    term: Term,
    /// When the lock was taken last, milliseconds since boot.
    now_ms: u64,
    /// When the right to the object is to be asked for anew.
    right_until_ms: u64,
    run: WriteBehind,
    sending: Option<Box<Sending>>,
    spare: Vec<Vec<u8>>,
    descriptor: Descriptor,
    /// What one call should write through it at most.
    call_bytes: usize,
    /// There while a kernel has the object's file.
    kernel: Option<Box<KernelUse>>,
    /// Where a program that writes in order will write next.
    next_write: u64,
    /// Writes under an exclusive lease that are made without the lock, several at once.
    in_flight: u32,
    /// Who waits for them: no further ones begin.
    awaiting: u32,
}

/// Runs on their way, oldest first.
struct Sending {
    link: Arc<Link>,
    connection: Box<dyn BulkConnection>,
    requests: VecDeque<DataRequest>,
}

/// The object's own file, where the server is on this node.
enum Descriptor {
    NotAsked,
    /// `true`: for writing too.
    Passed(Arc<OwnedFd>, bool),
    Refused,
}

/// What bytes that a reader has at hand are of. They are good as long as it stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Version {
    data: u64,
    session: SessionId,
}

/// How a read is served.
pub(crate) enum ReadVia {
    /// It was answered from gathered bytes.
    Done(usize),
    /// There is no object: zeros up to the file's size.
    Zeros { size: u64 },
    /// `leased`: nobody else changes the file, the kernel included.
    Descriptor { file: Arc<OwnedFd>, leased: bool },
    /// `size`: the file's, as far as a lease vouches for it.
    Server { held: Held, size: Option<u64> },
}

impl OpenInode {
    pub fn new(attributes: &Attributes, buffer_bytes: usize, session: SessionId, term: Term) -> Self {
        Self {
            inode: attributes.inode,
            handles: AtomicU32::new(0),
            data_version: AtomicU64::new(0),
            landed: Condvar::new(),
            term: Arc::clone(&term),
            state: Mutex::new(State {
                known: FileState::new(attributes, session),
                opener: None,
                slot: SlotFor::Caller,
                term,
                now_ms: 0,
                right_until_ms: 0,
                run: WriteBehind::new(buffer_bytes.min(RUN_BYTES_MAX)),
                sending: None,
                spare: Vec::new(),
                descriptor: Descriptor::NotAsked,
                call_bytes: usize::MAX,
                kernel: None,
                next_write: 0,
                in_flight: 0,
                awaiting: 0,
            }),
        }
    }

    /// The state, as it is under the session of now, whose term holds. A session that ended took leases and rights with
    /// it; that is noticed here, by whoever comes next, since whoever notices the end itself may hold some inode's
    /// state.
    fn lock(&self, inner: &Inner) -> Result<MutexGuard<'_, State>> {
        self.lock_in(inner, SlotFor::Caller)
    }

    /// As [`OpenInode::lock`]; calls are made in this slot until somebody else has the lock.
    fn lock_in(&self, inner: &Inner, slot: SlotFor) -> Result<MutexGuard<'_, State>> {
        let state = lock(&self.state);
        self.under_term(inner, state, inner.clock_ms(), slot)
    }

    /// As [`OpenInode::lock`], a moment after the clock was read: it is not read again if nobody has the lock.
    fn lock_soon(&self, inner: &Inner, now_ms: u64) -> Result<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => self.under_term(inner, state, now_ms, SlotFor::Caller),
            Err(_) => self.lock(inner),
        }
    }

    fn under_term<'a>(
        &'a self,
        inner: &Inner,
        mut state: MutexGuard<'a, State>,
        mut now_ms: u64,
        slot: SlotFor,
    ) -> Result<MutexGuard<'a, State>> {
        while now_ms >= self.term.load(Ordering::Acquire) {
            drop(state);
            inner.ensure_term(self.inode.shard(), &self.term, slot)?;
            state = lock(&self.state);
            now_ms = inner.clock_ms();
        }
        (state.slot, state.now_ms) = (slot, now_ms);
        state.notice_session(inner);
        Ok(state)
    }

    fn changed(&self) {
        self.data_version.fetch_add(1, Ordering::AcqRel);
    }

    /// A handle was opened: takes over what the reply told. One message if something written through the server is not
    /// reported.
    /// `now_ms`: when the reply had come, milliseconds since boot.
    pub fn opened(
        &self,
        inner: &Inner,
        who: &Arc<Credentials>,
        access: Access,
        opened: &Opened,
        now_ms: u64,
    ) -> Result<()> {
        let mut state = self.lock_soon(inner, now_ms)?;
        if state.known.reports_before_lease() {
            state.commit(inner)?;
        }
        state.opener = Some(Arc::clone(who));
        if access.writes() {
            state.known.will_write();
        }
        let recalled = state.was_recalled(inner, opened);
        if state.known.opened(opened, inner.session(), recalled) {
            state.descriptor = Descriptor::NotAsked;
        }
        if state.known.held().map(|held| held.capability) == opened.capability {
            state.right_until_ms = state.now_ms + RIGHT_MS;
        }
        if let Some(report) = inner.opens.report_of(self.inode) {
            state.known.reported_before(report, opened.stamp, inner.reports());
        }
        self.changed();
        Ok(())
    }

    /// What an open would answer, if the lease that is still held allows it to be answered here: the same user, an
    /// access that the right to the object covers, a mode that others do not have to be asked for.
    pub fn reopen(&self, inner: &Inner, who: &Credentials, access: Access) -> Option<Attributes> {
        let mut state = self.lock(inner).ok()?;
        state.look();
        let allowed = state.opener.as_deref() == Some(who) && state.known.open_again_unasked(access);
        allowed.then(|| state.known.attributes().clone())
    }

    /// A handle was closed: whether the file is kept when nobody has it open, and what it holds then. Frees the memory
    /// of runs that were sent: thousands of closed files are kept with their leases. Whether the term holds is asked
    /// when the file is opened again.
    pub fn handle_closed(&self, inner: &Inner) -> Option<Holds> {
        let mut state = lock(&self.state);
        state.notice_session(inner);
        state.spare = Vec::new();
        let passed = matches!(state.descriptor, Descriptor::Passed(..));
        state.known.is_kept().then_some(if passed { Holds::Descriptor } else { Holds::Nothing })
    }

    /// Whether the shard has not been told what was written.
    pub fn is_dirty(&self) -> bool {
        lock(&self.state).known.is_dirty()
    }

    /// Stamp of the lease's last grant.
    pub fn stamp(&self) -> u64 {
        lock(&self.state).known.grant_stamp()
    }

    /// Whether anybody here has it open.
    pub fn is_open(&self) -> bool {
        self.handles.load(Ordering::Acquire) > 0
    }

    /// Whether what was read may be kept by a cache above.
    pub fn may_cache(&self, inner: &Inner) -> bool {
        self.lock(inner).is_ok_and(|state| state.known.is_leased())
    }

    /// Whether the file has an object, as far as is known here.
    pub fn has_object(&self, inner: &Inner) -> bool {
        self.lock(inner).is_ok_and(|state| state.known.held().is_some())
    }

    /// Decides how a read is served; answers it when gathered bytes are all it asks for. With the version of the data:
    /// bytes that a reader has at hand of another one are not to be used.
    pub fn read_via(&self, inner: &Inner, into: &mut [u8], offset: u64) -> Result<(ReadVia, Version)> {
        let mut state = self.lock(inner)?;
        let via = state.read_via(inner, into, offset)?;
        let session = state.known.session();
        Ok((via, Version { data: self.data_version.load(Ordering::Acquire), session }))
    }

    /// The version of the data now, without the lock: bytes of it that a reader has at hand are what he would be given.
    /// Whatever makes them old changes the version before anybody is told of it. `None`: the term is over.
    pub fn version_now(&self, inner: &Inner) -> Option<Version> {
        let version = Version { data: self.data_version.load(Ordering::Acquire), session: inner.session() };
        (inner.clock_ms() < self.term.load(Ordering::Acquire)).then_some(version)
    }

    /// The right to the object turned out to be void (the object was replaced, the right has ended): asks for it again
    /// with the next call.
    pub fn right_is_void(&self) {
        let mut state = lock(&self.state);
        state.known.right_is_void();
        if state.known.held().is_none() {
            state.descriptor = Descriptor::NotAsked;
        }
        drop(state);
        self.changed();
    }
}

impl State {
    fn read_via(&mut self, inner: &Inner, into: &mut [u8], offset: u64) -> Result<ReadVia> {
        if !self.known.is_leased() && self.known.object_is_new() {
            // What this client gave it may not be known to others, and theirs have come first.
            self.commit(inner)?;
        }
        self.known.doubt_missing_object();
        self.regain(inner)?;
        if self.run.read(offset, into) {
            return Ok(ReadVia::Done(into.len()));
        }
        if !self.run.is_empty() || self.sending.is_some() {
            self.send_all(inner)?;
            if let Some(error) = self.known.error() {
                return Err(error.clone());
            }
        }
        if let Some(file) = self.kernel_file() {
            return Ok(ReadVia::Descriptor { file: Arc::clone(file), leased: false });
        }
        if self.known.is_leased()
            && let Some(file) = self.descriptor(inner, false)?
        {
            return Ok(ReadVia::Descriptor { file, leased: true });
        }
        let size = self.known.size();
        Ok(match self.known.held() {
            Some(held) => ReadVia::Server { held, size: self.known.is_leased().then_some(size) },
            None => ReadVia::Zeros { size },
        })
    }

    /// Looks whether the session has ended since it was looked at last.
    fn notice_session(&mut self, inner: &Inner) -> bool {
        let has_ended = self.known.session() != inner.session();
        if has_ended {
            self.lose_session(inner);
        }
        has_ended
    }

    /// The session has ended, and what was gathered under its lease is lost.
    fn lose_session(&mut self, inner: &Inner) {
        let gathered = self.run.take_run().is_some() || self.sending.take().is_some();
        if self.known.lose_session(inner.session(), gathered, inner.next_report()) {
            tracing::warn!("inode {}: what was not at the server is lost with the session", self.known.inode());
        }
        self.descriptor = Descriptor::NotAsked;
    }

    /// After a wait: lease and right hold still, or the caller learns that they do not.
    fn hold(&mut self, inner: &Inner) -> Result<()> {
        inner.ensure_term(self.known.shard(), &self.term, self.slot)?;
        if self.notice_session(inner) {
            return Err(self.known.error().cloned().unwrap_or(Error::SessionEnded));
        }
        Ok(())
    }

    /// On whose behalf the file is asked for again.
    fn who(&self, inner: &Inner) -> Credentials {
        self.opener.as_deref().unwrap_or(&inner.identity.credentials).clone()
    }

    /// Whether a recall of what an open granted came before its reply. Asked for under this lock: one that comes later
    /// weakens us after.
    fn was_recalled(&self, inner: &Inner, opened: &Opened) -> bool {
        lock(&inner.cache).data_recalled(self.known.inode(), opened.stamp)
    }

    /// The object and the right to it, asked for again when they are not known any more, or the right ends soon: then
    /// it is still good for what is to be written and reported before.
    fn regain(&mut self, inner: &Inner) -> Result<()> {
        if self.known.held().is_some() && self.now_ms >= self.right_until_ms {
            self.send_all(inner)?;
            if self.known.object_is_new() || self.known.reports_before_lease() {
                self.commit(inner)?;
            }
            let opened = self.open_again(inner, self.known.access())?;
            let recalled = self.was_recalled(inner, &opened);
            if self.known.opened(&opened, inner.session(), recalled) {
                self.descriptor = Descriptor::NotAsked;
            }
        }
        while let Some(access) = self.known.to_open() {
            let opened = self.open_again(inner, access)?;
            let recalled = self.was_recalled(inner, &opened);
            if self.known.opened_again(&opened, inner.session(), recalled) {
                self.descriptor = Descriptor::NotAsked;
            }
        }
        Ok(())
    }

    fn open_again(&mut self, inner: &Inner, access: Access) -> Result<Opened> {
        let flags = OpenFlags { access, truncate: false, direct: false };
        let inode = self.known.inode();
        let sent_ms = inner.clock_ms();
        let answer = inner.call_in(self.slot, &self.who(inner), inode.shard(), ShardRequest::Open { inode, flags })?;
        let ShardAnswer::Opened { attributes, capability, grants, .. } = answer.answer else {
            return Err(Error::Malformed);
        };
        self.right_until_ms = sent_ms + RIGHT_MS;
        self.notice_session(inner);
        Ok(Opened { attributes, capability, grants, stamp: answer.stamp, session: answer.session })
    }

    /// A descriptor of the object's file, if the server is on this node and passes one.
    fn descriptor(&mut self, inner: &Inner, write: bool) -> Result<Option<Arc<OwnedFd>>> {
        match &self.descriptor {
            Descriptor::Passed(file, for_writing) if *for_writing || !write => return Ok(Some(Arc::clone(file))),
            Descriptor::Refused => return Ok(None),
            _ => {}
        }
        let Some(held) = self.known.held() else { return Ok(None) };
        let (node, for_writing) = (held.object.node(), self.known.writes());
        if !inner.may_pass(node, for_writing) {
            self.descriptor = Descriptor::Refused;
            return Ok(None);
        }
        let operation = request(self.known.inode(), DataOperation::Descriptor, held, 0, usize::from(for_writing));
        let asked = inner.data_call(node, true, |connection| connection.descriptor(&operation));
        self.hold(inner)?;
        if asked.as_ref().is_ok_and(|(reply, _)| reply.result().err() == Some(Error::NotSupported)) {
            inner.note_passes_none(node, for_writing);
        }
        let passed = asked.ok().filter(|(reply, _)| reply.status == 0);
        let Some((call_bytes, file)) = passed.and_then(|(reply, passed)| Some((reply.written_bytes, passed?))) else {
            self.descriptor = Descriptor::Refused;
            return Ok(None);
        };
        self.call_bytes = if call_bytes == 0 { usize::MAX } else { call_bytes as usize };
        let file = Arc::new(file);
        self.descriptor = Descriptor::Passed(Arc::clone(&file), for_writing);
        Ok(Some(file))
    }
}
