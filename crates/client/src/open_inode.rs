//! A regular file that this client has open: what all its handles share.
//!
//! Lease, size, object, the run of written bytes that the server does not have yet, and the ways to the data. Under an
//! exclusive lease small writes are gathered; without it each write is at the server when it returns. A descriptor of
//! the object's file is used under a lease only, and given up with it; but see [`passthrough`].
//!
//! Invariant: as soon as a file has an object, the object's size is the file's (but for what is gathered here).
//!
//! Lock order: `Inner::open` (0), `state` (1). `state` is held across data requests of the buffered path (they wait for
//! no lease), and across calls about this inode, which the shard never makes wait for a recall to the session that
//! sends them.

mod passthrough;
mod runs;

use crate::client::Inner;
use crate::data_calls::{Held, of_errno, request, write_descriptor};
use crate::link::{Link, SlotFor, lock};
use crate::reader::DESCRIPTOR_SMALL_BYTES;
use passthrough::{KernelUse, stat_of};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use weft_client_core::WriteBehind;
use weft_protocol::data::{DataOperation, DataReply, DataRequest};
use weft_protocol::limits::{BULK_BYTES_MAX, FILE_BYTES_MAX};
use weft_protocol::message::shard::{Access, OpenFlags, ShardAnswer, ShardRequest, whole};
use weft_protocol::{
    Attributes, Capability, Credentials, Error, Grants, InodeNumber, LeaseMode, Result, Rights, SessionId, Timestamp,
};
use weft_transport::BulkConnection;

/// A run's length at most, bytes: small enough to be in the processor's cache still when it is sent.
const RUN_BYTES_MAX: usize = 256 << 10;
/// How long a recall waits for calls that are using a passed descriptor.
const DESCRIPTOR_USE_MAX: Duration = Duration::from_secs(1);

/// An open inode.
pub(crate) struct OpenInode {
    pub inode: InodeNumber,
    /// Handles; changed under the lock of `Inner::open`.
    pub handles: AtomicU32,
    state: Mutex<State>,
    /// Grows when bytes that a reader has at hand may be old.
    pub data_version: AtomicU64,
}

struct State {
    /// The session that lease and right belong to.
    session: SessionId,
    /// Who opened it last through the shard: he may open it again under the lease without asking.
    opener: Option<Credentials>,
    /// Whether any handle writes: what the capability must allow.
    writes: bool,
    mode: LeaseMode,
    /// Stamp of the last grant of the data lease.
    stamp: u64,
    /// Size, times and layout as this client knows them.
    attributes: Attributes,
    /// Stamp of the last reply that told them.
    told_stamp: u64,
    /// The shard knows that this session has no exclusive lease: it asks the storage server for size and time.
    shard_asks: bool,
    held: Option<Held>,
    /// The shard does not know the object yet.
    object_is_new: bool,
    /// Size or time have changed since the last commit.
    dirty: bool,
    run: WriteBehind,
    sending: Option<Sending>,
    spare: Vec<Vec<u8>>,
    descriptor: Descriptor,
    /// There while a kernel has the object's file.
    kernel: Option<KernelUse>,
    /// Why gathered bytes could not be written: told by the next write, flush or close.
    error: Option<Error>,
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
    pub fn new(attributes: &Attributes, buffer_bytes: usize, session: SessionId) -> Self {
        Self {
            inode: attributes.inode,
            handles: AtomicU32::new(0),
            data_version: AtomicU64::new(0),
            state: Mutex::new(State {
                session,
                opener: None,
                writes: false,
                mode: LeaseMode::Open,
                stamp: 0,
                attributes: attributes.clone(),
                told_stamp: 0,
                shard_asks: false,
                held: None,
                object_is_new: false,
                dirty: false,
                run: WriteBehind::new(buffer_bytes.min(RUN_BYTES_MAX)),
                sending: None,
                spare: Vec::new(),
                descriptor: Descriptor::NotAsked,
                kernel: None,
                error: None,
            }),
        }
    }

    /// The state, as it is under the session of now. A session that ended took leases and rights with it; that is
    /// noticed
    /// here, by whoever comes next, since whoever notices the end itself may hold some inode's state.
    fn lock(&self, inner: &Inner) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        if state.session != inner.session() {
            state.lose_session();
            state.session = inner.session();
            self.changed();
        }
        state
    }

    fn changed(&self) {
        self.data_version.fetch_add(1, Ordering::AcqRel);
    }

    /// A handle was opened: takes over what the reply told.
    pub fn opened(&self, inner: &Inner, who: &Credentials, access: Access, opened: &Opened) {
        let mut state = self.lock(inner);
        state.opener = Some(who.clone());
        state.writes |= access.writes();
        state.learn(inner, opened);
        self.changed();
    }

    /// What an open would answer, if the lease that is still held allows it to be answered here: the same user, an
    /// access that the right to the object covers, a mode that others do not have to be asked for.
    pub fn reopen(&self, inner: &Inner, who: &Credentials, access: Access) -> Option<Attributes> {
        let mut state = self.lock(inner);
        state.look();
        let rights = state.held.map(|held| held.capability.rights);
        let covered = |right| rights.is_none_or(|rights| rights.contains(right));
        let allowed = state.opener.as_ref() == Some(who)
            && state.mode >= if access.writes() { LeaseMode::Exclusive } else { LeaseMode::Shared }
            && (!access.reads() || covered(Rights::READ))
            && (!access.writes() || (state.writes && covered(Rights::WRITE)))
            && state.error.is_none();
        if allowed {
            state.writes |= access.writes();
        }
        allowed.then(|| state.attributes.clone())
    }

    /// Whether it is worth keeping when nobody has it open.
    pub fn keeps_lease(&self, inner: &Inner) -> bool {
        let state = self.lock(inner);
        state.mode >= LeaseMode::Shared && state.error.is_none() && !state.dirty
    }

    /// A handle was closed: frees the memory of runs that were sent. Thousands of closed files are kept with their
    /// leases.
    pub fn free_buffers(&self, inner: &Inner) {
        self.lock(inner).spare = Vec::new();
    }

    /// Stamp of the lease's last grant.
    pub fn stamp(&self, inner: &Inner) -> u64 {
        self.lock(inner).stamp
    }

    /// A recall: from now on nothing is gathered or believed, and no descriptor is used; [`OpenInode::flush`] follows.
    pub fn weaken(&self, inner: &Inner) {
        let (descriptor, kernel_has_it) = {
            let mut state = self.lock(inner);
            state.mode = LeaseMode::Open;
            (std::mem::replace(&mut state.descriptor, Descriptor::NotAsked), state.kernel.is_some())
        };
        self.changed();
        // A kernel goes on using it: the shard asks the storage server for size and time.
        if let Descriptor::Passed(file, _) = descriptor
            && !kernel_has_it
        {
            let mut waited = Duration::ZERO;
            let pause = Duration::from_micros(50);
            while Arc::strong_count(&file) > 1 && waited < DESCRIPTOR_USE_MAX {
                std::thread::sleep(pause);
                waited += pause;
            }
        }
    }

    /// Whether anybody here has it open.
    pub fn is_open(&self) -> bool {
        self.handles.load(Ordering::Acquire) > 0
    }

    /// Whether what was read may be kept by a cache above.
    pub fn may_cache(&self, inner: &Inner) -> bool {
        self.lock(inner).mode >= LeaseMode::Shared
    }

    /// Size and times as this client has changed them, over what the shard told, now (`fresh`) or earlier. Returns
    /// whether they may be others at any moment, unseen from here.
    pub fn overlay(&self, inner: &Inner, attributes: &mut Attributes, fresh: bool) -> bool {
        let mut state = self.lock(inner);
        state.look();
        if state.kernel_file().is_some() {
            attributes.size = state.attributes.size;
        }
        // Others may write too: then their changes and ours are in what the shard tells.
        let told_all = fresh && state.shard_asks;
        if state.mode == LeaseMode::Exclusive || (state.dirty && !told_all) {
            attributes.size = state.attributes.size;
            attributes.mtime = state.attributes.mtime.max(attributes.mtime);
            attributes.ctime = attributes.ctime.max(attributes.mtime);
        } else if state.attributes.ctime > attributes.ctime {
            // Overtaken by our own report of what was written.
            let State { attributes: told, .. } = &*state;
            (attributes.size, attributes.mtime, attributes.ctime) = (told.size, told.mtime, told.ctime);
        }
        state.kernel_writes()
    }

    /// The file's size as this client knows it under a lease; `None`: it has to be asked for.
    pub fn known_size(&self, inner: &Inner) -> Option<u64> {
        let mut state = self.lock(inner);
        state.look();
        (state.mode >= LeaseMode::Shared || state.kernel_file().is_some()).then_some(state.attributes.size)
    }

    /// The shard has changed attributes on our behalf (a truncate among them): what it answered holds.
    pub fn attributes_changed(&self, inner: &Inner, attributes: &Attributes, stamp: u64) {
        let mut state = self.lock(inner);
        if stamp < state.told_stamp {
            return;
        }
        state.told_stamp = stamp;
        if attributes.layout.object() != state.held.map(|held| held.object) {
            state.held = None;
            state.object_is_new = false;
            state.descriptor = Descriptor::NotAsked;
        }
        state.attributes = attributes.clone();
        state.kernel_sees_change();
        self.changed();
    }

    /// Writes back and reports to the shard.
    pub fn flush(&self, inner: &Inner, slot: SlotFor) -> Result<()> {
        let mut state = self.lock(inner);
        if state.kernel.is_some() {
            // After the end of a session: whether the kernel still writes to the file's object is known then.
            state.regain(inner)?;
            state.look();
        }
        let written = state.send_all(inner);
        let committed = if written.is_ok() { state.commit(inner, slot) } else { Ok(()) };
        if committed.is_ok() {
            // After a recall this comes before its answer.
            state.shard_asks = state.mode == LeaseMode::Open;
        }
        let earlier = state.error.take().map_or(Ok(()), Err);
        earlier.and(written).and(committed)
    }

    /// Has the server bring what it has onto its device.
    pub fn sync(&self, inner: &Inner) -> Result<()> {
        self.flush(inner, SlotFor::Caller)?;
        let mut state = self.lock(inner);
        if let Some(file) = state.own_file() {
            return rustix::fs::fdatasync(&**file).map_err(of_errno);
        }
        if !state.writes {
            return Ok(());
        }
        let Some(held) = state.regain(inner)? else { return Ok(()) };
        inner.data_write(&request(self.inode, DataOperation::Sync, held, 0, 0), &[]).map(|_| ())
    }

    /// A write. Returns when the bytes are gathered (exclusive lease), in the object's file, or at the server.
    pub fn write(&self, inner: &Inner, bytes: &[u8], offset: u64, append: bool, direct: bool) -> Result<()> {
        let mut state = self.lock(inner);
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        state.regain(inner)?;
        // A kernel may be writing the object beside us.
        let exclusive = state.mode == LeaseMode::Exclusive && state.kernel.is_none();
        let offset = if append && exclusive { state.attributes.size } else { offset };
        let end =
            offset.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::FileTooLarge)?;
        state.ensure_object(inner)?;
        self.changed();
        if exclusive && let Some(file) = state.descriptor(inner, true) {
            if !direct && bytes.len() <= DESCRIPTOR_SMALL_BYTES {
                return state.gather(inner, bytes, offset);
            }
            state.send_all(inner)?;
            state.note_written(end);
            drop(state);
            inner.counters.descriptor_write_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            write_descriptor(&file, bytes, offset)?;
            // Somebody may have reported the size from before the bytes were there.
            self.lock(inner).note_written(end);
            return Ok(());
        }
        if exclusive && !direct && bytes.len() < inner.buffer_bytes {
            return state.gather(inner, bytes, offset);
        }
        state.send_all(inner)?;
        if exclusive && !state.object_is_new {
            state.note_written(end);
            let Some(held) = state.held else { return Err(Error::NoObject) };
            // Nobody else has a right to the file now, so what is known of the object holds without the lock.
            drop(state);
            return write_pieces(inner, self.inode, held, DataOperation::Write, bytes, offset).map(|_| ());
        }
        state.write_now(inner, bytes, offset, append && !exclusive)
    }

    /// Whether the file has an object, as far as is known here.
    pub fn has_object(&self, inner: &Inner) -> bool {
        self.lock(inner).held.is_some()
    }

    /// Decides how a read is served; answers it when gathered bytes are all it asks for.
    pub fn read_via(&self, inner: &Inner, into: &mut [u8], offset: u64) -> Result<ReadVia> {
        let mut state = self.lock(inner);
        if state.mode == LeaseMode::Open && state.held.is_none() {
            // Others may have given it an object since.
            state.mode = LeaseMode::None;
        }
        let held = state.regain(inner)?;
        if state.run.read(offset, into) {
            return Ok(ReadVia::Done(into.len()));
        }
        if !state.run.is_empty() || state.sending.is_some() {
            state.send_all(inner)?;
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
        }
        if let Some(file) = state.kernel_file() {
            return Ok(ReadVia::Descriptor { file: Arc::clone(file), leased: false });
        }
        let leased = state.mode >= LeaseMode::Shared;
        if leased && let Some(file) = state.descriptor(inner, false) {
            return Ok(ReadVia::Descriptor { file, leased: true });
        }
        let size = state.attributes.size;
        Ok(match held {
            Some(held) => ReadVia::Server { held, size: leased.then_some(size) },
            None => ReadVia::Zeros { size },
        })
    }

    /// The right to the object turned out to be void (the object was replaced, the right has ended): asks for it again
    /// with the next call.
    pub fn right_is_void(&self, inner: &Inner) {
        let mut state = self.lock(inner);
        if !state.object_is_new {
            state.mode = LeaseMode::None;
            state.held = None;
            state.descriptor = Descriptor::NotAsked;
        }
        drop(state);
        self.changed();
    }
}

/// What the reply to an open told.
pub(crate) struct Opened {
    pub attributes: Attributes,
    pub capability: Option<Capability>,
    pub grants: Grants,
    pub stamp: u64,
    /// The session when it was asked. When another one has begun since, the grant may be void.
    pub session: SessionId,
}

fn write_pieces(
    inner: &Inner,
    inode: InodeNumber,
    held: Held,
    operation: DataOperation,
    bytes: &[u8],
    offset: u64,
) -> Result<DataReply> {
    let mut position = offset;
    let mut last = DataReply::default();
    for piece in bytes.chunks(BULK_BYTES_MAX as usize) {
        last = inner.data_write(&request(inode, operation, held, position, piece.len()), piece)?;
        position += piece.len() as u64;
    }
    Ok(last)
}

impl State {
    fn inode(&self) -> InodeNumber {
        self.attributes.inode
    }

    /// The session has ended: lease and right are void. Bytes that were gathered under the lease cannot be written
    /// any more,
    /// and the next call says so.
    fn lose_session(&mut self) {
        let gathered = self.run.take_run().is_some() || self.sending.take().is_some();
        if gathered || self.object_is_new {
            self.error = Some(Error::SessionEnded);
            self.dirty = false;
        }
        self.mode = LeaseMode::None;
        self.shard_asks = false;
        self.told_stamp = 0;
        self.held = None;
        self.object_is_new = false;
        self.descriptor = Descriptor::NotAsked;
    }

    /// On whose behalf the file is asked for again.
    fn who(&self, inner: &Inner) -> Credentials {
        self.opener.clone().unwrap_or_else(|| inner.identity.credentials.clone())
    }

    fn learn(&mut self, inner: &Inner, opened: &Opened) {
        // Asked for under this lock: a recall that came before is noted, one that comes later weakens us after.
        let recalled = lock(&inner.cache).data_recalled(self.inode(), opened.stamp);
        self.mode = match opened.grants {
            _ if opened.session != inner.session() => LeaseMode::None,
            _ if recalled => LeaseMode::Open,
            grants if grants.contains(Grants::DATA_EXCLUSIVE) => LeaseMode::Exclusive,
            grants if grants.contains(Grants::DATA_SHARED) => LeaseMode::Shared,
            _ => LeaseMode::Open,
        };
        self.stamp = self.stamp.max(opened.stamp);
        self.shard_asks = self.mode == LeaseMode::Open && !recalled;
        let told = opened.attributes.layout.object();
        if !self.object_is_new || told.is_some() {
            let same = told.is_some() && self.held.map(|held| held.object) == told;
            let keep = same
                && self.held.is_some_and(|held| held.capability.rights.contains(Rights::WRITE))
                && opened.capability.is_some_and(|capability| !capability.rights.contains(Rights::WRITE));
            if !same {
                self.descriptor = Descriptor::NotAsked;
            }
            if !keep {
                self.held = told.zip(opened.capability).map(|(object, capability)| Held { object, capability });
            }
            self.object_is_new = false;
        }
        if !self.dirty && opened.stamp > self.told_stamp {
            self.attributes = opened.attributes.clone();
            self.told_stamp = opened.stamp;
        }
    }

    /// The object and the right to it, asked for again when they are not known any more. `None`: there is no object.
    fn regain(&mut self, inner: &Inner) -> Result<Option<Held>> {
        if self.mode == LeaseMode::None {
            let access = if self.writes { Access::ReadWrite } else { Access::Read };
            let flags = OpenFlags { access, truncate: false, direct: false };
            let (who, inode, session) = (self.who(inner), self.inode(), inner.session());
            let answer = inner.call(&who, inode.shard(), ShardRequest::Open { inode, flags })?;
            let ShardAnswer::Opened { attributes, capability, grants, .. } = answer.answer else {
                return Err(Error::Malformed);
            };
            self.dirty = false;
            self.learn(inner, &Opened { attributes, capability, grants, stamp: answer.stamp, session });
        }
        Ok(self.held)
    }

    fn note_written(&mut self, end: u64) {
        self.attributes.size = self.attributes.size.max(end);
        let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        self.attributes.mtime = Timestamp::from_parts(time.tv_sec, u32::try_from(time.tv_nsec).unwrap_or(0));
        self.dirty = true;
    }

    /// A file without an object gets one, at the client's own node. One that was extended by truncate gets its size.
    fn ensure_object(&mut self, inner: &Inner) -> Result<()> {
        if self.held.is_some() {
            return Ok(());
        }
        let (object, capability) = inner.new_object()?;
        let held = Held { object, capability };
        if let Some(last) = self.attributes.size.checked_sub(1) {
            inner.data_write(&request(self.inode(), DataOperation::Write, held, last, 1), &[0])?;
        }
        self.held = Some(held);
        self.object_is_new = true;
        self.attributes.layout = whole(object);
        self.descriptor = Descriptor::NotAsked;
        self.dirty = true;
        Ok(())
    }

    /// A descriptor of the object's file, if the server is on this node and passes one.
    fn descriptor(&mut self, inner: &Inner, write: bool) -> Option<Arc<OwnedFd>> {
        match &self.descriptor {
            Descriptor::Passed(file, for_writing) if *for_writing || !write => return Some(Arc::clone(file)),
            Descriptor::Refused => return None,
            _ => {}
        }
        let held = self.held?;
        if !inner.is_near(held.object.node()) {
            self.descriptor = Descriptor::Refused;
            return None;
        }
        let operation = request(self.inode(), DataOperation::Descriptor, held, 0, usize::from(self.writes));
        let asked = inner.data_call(held.object.node(), true, |connection| connection.descriptor(&operation));
        let passed = asked.ok().filter(|(reply, _)| reply.status == 0).and_then(|(_, passed)| passed);
        let Some(file) = passed.map(Arc::new) else {
            self.descriptor = Descriptor::Refused;
            return None;
        };
        self.descriptor = Descriptor::Passed(Arc::clone(&file), self.writes);
        Some(file)
    }

    /// A write that is at the server when this returns, while others may write too.
    fn write_now(&mut self, inner: &Inner, bytes: &[u8], offset: u64, append: bool) -> Result<()> {
        let operation = if append { DataOperation::Append } else { DataOperation::Write };
        for attempt in 0..2 {
            self.ensure_object(inner)?;
            let held = self.held.ok_or(Error::NoObject)?;
            match write_pieces(inner, self.inode(), held, operation, bytes, offset) {
                Ok(reply) => {
                    self.note_written(reply.size);
                    (self.attributes.size, self.attributes.mtime) = (reply.size, reply.mtime);
                    // While others may write too, they must find the object at once; one of theirs may have come first.
                    if !self.object_is_new || self.mode == LeaseMode::Exclusive || self.commit_object(inner)? {
                        return Ok(());
                    }
                }
                Err(Error::NoObject | Error::CapabilityRejected) if attempt == 0 && !self.object_is_new => {}
                Err(error) => return Err(error),
            }
            self.mode = LeaseMode::None;
            self.regain(inner)?;
        }
        Err(Error::NoObject)
    }

    /// Tells the shard of the new object. `false`: the file had got another one meanwhile.
    fn commit_object(&mut self, inner: &Inner) -> Result<bool> {
        let ours = self.held.map(|held| held.object);
        self.commit(inner, SlotFor::Caller)?;
        Ok(self.attributes.layout.object() == ours)
    }

    /// Reports object, size and time to the shard, if they have changed.
    fn commit(&mut self, inner: &Inner, slot: SlotFor) -> Result<()> {
        if !self.dirty {
            return Ok(());
        }
        self.freshen(inner)?;
        let inode = self.inode();
        let object = self.held.filter(|_| self.object_is_new).map(|held| held.object);
        let request = ShardRequest::Commit { inode, object, size: self.attributes.size, mtime: self.attributes.mtime };
        let answer = inner.call_in(slot, &self.who(inner), inode.shard(), request).map_err(|error| match error {
            // A new session was begun on the way: to the shard it is not the one that wrote.
            Error::BadHandle => Error::SessionEnded,
            error => error,
        })?;
        let ShardAnswer::Entry { attributes, grants } = answer.answer else { return Err(Error::Malformed) };
        lock(&inner.cache).learn_attributes(&attributes, grants, answer.stamp);
        self.attributes = attributes;
        self.told_stamp = self.told_stamp.max(answer.stamp);
        self.object_is_new = false;
        self.dirty = false;
        Ok(())
    }

    /// The object's file, where somebody here may be writing it.
    fn own_file(&self) -> Option<&Arc<OwnedFd>> {
        match &self.descriptor {
            Descriptor::Passed(file, true) => Some(file),
            _ => self.kernel_file(),
        }
    }

    /// Size and time from where they are decided: the object, when others may have written it or it was written by its
    /// descriptor.
    fn freshen(&mut self, inner: &Inner) -> Result<()> {
        if let Some(file) = self.own_file() {
            (self.attributes.size, self.attributes.mtime) = stat_of(file)?;
        } else if self.mode != LeaseMode::Exclusive
            && let Some(held) = self.held
        {
            let reply = inner.data_write(&request(self.inode(), DataOperation::Stat, held, 0, 0), &[])?;
            self.attributes.size = reply.size;
            self.attributes.mtime = reply.mtime;
        }
        Ok(())
    }
}
