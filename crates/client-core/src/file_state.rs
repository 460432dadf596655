//! What a client knows of a regular file that it has open, and what it may believe and do without asking.
//!
//! Lease, size, object, the right to it, and what of this the shard does not know yet. Whoever drives it (the client
//! library, the simulation) keeps it under the file's lock, sends what it says, and tells it the answers: replies to
//! opens and reports may come in any order, and a recall, or the end of the session, between any two of them.
//!
//! Invariants: as soon as the file has an object, the object's size is the file's, but for what is gathered.
//! No file that has an object, as far as is known, is given another one.
//! Nothing of a session that has ended is believed under the next one.
//! What the shard was told by this client is never taken back by a reply from before.
//! Not here: the gathered bytes ([`crate::WriteBehind`]), descriptors, what the session's term is worth.

use weft_protocol::error::errno;
use weft_protocol::message::shard::{Access, ShardRequest};
use weft_protocol::{
    Attributes, Capability, Error, Grants, InodeNumber, LeaseMode, Rights, SessionId, ShardId, Timestamp, routing,
};

use crate::file_objects::FileObjects;

/// Nothing was heard of the object yet.
const NO_OBJECT_MTIME: Timestamp = Timestamp(i64::MIN);

/// What the reply to an open told.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The file as the shard had it.
    pub attributes: Attributes,
    /// The right to its first object, if it has one.
    pub capability: Option<Capability>,
    /// The rights to the further objects of a striped file.
    pub others: Vec<Capability>,
    /// The lease is in it.
    pub grants: Grants,
    /// The shard's stamp of the grant.
    pub stamp: u64,
    /// The session that asked. When another one has begun since, the grant may be void.
    pub session: SessionId,
    /// How it was opened.
    pub access: Access,
}

/// See the module.
#[derive(Debug)]
pub struct FileState {
    /// The session that lease and right belong to.
    session: SessionId,
    /// Whether any handle writes: what the right must allow.
    writes: bool,
    /// The session has an open at the shard that writes: else no report of it is taken.
    is_opened_to_write: bool,
    /// `None`: it has to be asked for before anything is done.
    mode: LeaseMode,
    /// A kernel above another client may have pages of the file.
    pages_elsewhere: bool,
    /// Of the data lease's last grant.
    grant_stamp: u64,
    attributes: Attributes,
    /// The object's own modification time, as its storage server told last.
    object_mtime: Timestamp,
    /// Of the last own change that `attributes` has: what an open told before is older.
    changed_stamp: u64,
    /// Number of the last own report or change among all of this client.
    reported: u64,
    /// Most closed files that are kept have no object: in a place of its own, it makes them small.
    held: Option<Box<FileObjects>>,
    /// The shard does not know the object yet.
    object_is_new: bool,
    /// A program was told that it wrote, and the bytes are nowhere but in an object that the shard does not know.
    relies_on_new_object: bool,
    /// Size of the file when it was given the object.
    size_before_object: u64,
    /// Size or time have changed since the last report.
    dirty: bool,
    /// What is not reported was written last under an exclusive lease, and its time is this client's.
    has_own_time: bool,
    /// Of an exclusive lease that is being given up: nobody else knows the size before it was reported.
    knows_best: bool,
    /// The right was void under an exclusive lease: what is not reported holds if the lease is told again.
    was_exclusive: bool,
    /// Why written bytes are lost: told by the next write, flush or close.
    error: Option<Error>,
    /// The same, told by a write and not yet by a flush or close.
    told_by_write: Option<Error>,
    /// Since then no write has been seen to arrive.
    is_failing: bool,
}

impl FileState {
    /// Of a file of which a reply has just told.
    pub fn new(attributes: &Attributes, session: SessionId) -> Self {
        Self {
            session,
            writes: false,
            is_opened_to_write: false,
            mode: LeaseMode::Open,
            pages_elsewhere: false,
            grant_stamp: 0,
            attributes: attributes.clone(),
            object_mtime: NO_OBJECT_MTIME,
            changed_stamp: 0,
            reported: 0,
            held: None,
            object_is_new: false,
            relies_on_new_object: false,
            size_before_object: 0,
            dirty: false,
            has_own_time: false,
            knows_best: false,
            was_exclusive: false,
            error: None,
            told_by_write: None,
            is_failing: false,
        }
    }

    /// The file.
    pub fn inode(&self) -> InodeNumber {
        self.attributes.inode
    }

    /// Where its inode lives.
    pub fn shard(&self) -> ShardId {
        routing::of_inode(self.inode())
    }

    /// The session that lease and right belong to.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Size, times and layout as this client knows them.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Size as this client knows it.
    pub fn size(&self) -> u64 {
        self.attributes.size
    }

    /// Whether a lease vouches for size and contents.
    pub fn is_leased(&self) -> bool {
        self.mode >= LeaseMode::Shared
    }

    /// Whether nobody else reads or writes the file: what is written need not be told.
    pub fn is_exclusive(&self) -> bool {
        self.mode == LeaseMode::Exclusive
    }

    /// Stamp of the data lease's last grant: with it the lease is given back.
    pub fn grant_stamp(&self) -> u64 {
        self.grant_stamp
    }

    /// Whether a kernel above another client may have pages of the file, as of the last open.
    pub fn has_pages_elsewhere(&self) -> bool {
        self.pages_elsewhere
    }

    /// Whether any handle writes.
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// A handle that writes was opened.
    pub fn will_write(&mut self) {
        self.writes = true;
    }

    /// Why written bytes are lost, if nobody was told yet.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Whether a flush or close has to tell that written bytes are lost.
    pub fn owes_error(&self) -> bool {
        self.error.is_some() || self.told_by_write.is_some()
    }

    /// Why written bytes are lost, if a flush or close has to tell it: also what a write may not have told.
    pub fn error_of_flush(&self) -> Option<&Error> {
        self.error.as_ref().or(self.told_by_write.as_ref())
    }

    /// A write fails, and its program is told of it. It is told again when it flushes or closes: a kernel that makes
    /// several requests of one write does not tell it what a later one of them met.
    pub fn writer_is_told(&mut self) {
        if self.error.is_some() {
            self.told_by_write = self.error.take();
        }
    }

    /// A flush or close fails, and its program is told of all losses until now.
    pub fn flusher_is_told(&mut self) {
        (self.error, self.told_by_write) = (None, None);
    }

    /// Written bytes are lost, or a part of them. The first reason stays.
    pub fn fail(&mut self, error: Error) {
        // Who is told of this must not take it for a right that is void, and try again.
        let is_of_right = matches!(error, Error::NoObject | Error::CapabilityRejected);
        self.error.get_or_insert(if is_of_right { Error::Device(errno::EIO) } else { error });
        self.is_failing = true;
    }

    /// Gathered bytes were refused. They are not lost yet.
    pub fn write_back_failed(&mut self) {
        self.is_failing = true;
    }

    /// Whether a write may be gathered and sent behind. After one of those was lost it may not, until one arrives that
    /// is waited for: a kernel that makes several requests of a program's write tells the program of what came before
    /// an error as if there had been none, and only of one that the first request meets.
    pub fn may_gather(&self) -> bool {
        !self.is_failing
    }

    /// A write that was waited for has arrived.
    pub fn arrived(&mut self) {
        self.is_failing = false;
    }

    /// The session has ended: lease and right are void. What was gathered under the lease cannot be written any more,
    /// and the next call says so. `gathered`: there was such. `number`: as of a report that is made now: what was told
    /// to the session that has ended may count on what only this client knew. Returns whether bytes are lost.
    pub fn lose_session(&mut self, session: SessionId, gathered: bool, number: u64) -> bool {
        let lost = gathered || self.object_is_new;
        if lost {
            self.fail(Error::SessionEnded);
        }
        // The shard asks the storage server what came of the rest.
        self.dirty = false;
        self.session = session;
        self.is_opened_to_write = false;
        self.mode = LeaseMode::None;
        self.held = None;
        self.object_is_new = false;
        self.relies_on_new_object = false;
        self.knows_best = false;
        self.was_exclusive = false;
        self.reported = number;
        lost
    }

    /// How the file is to be opened before it is used; `None`: it is known well enough. A reply that was overtaken may
    /// have left us without the right to the object that the file has.
    pub fn to_open(&self) -> Option<Access> {
        (self.mode == LeaseMode::None || self.lacks_right()).then(|| self.access())
    }

    /// What the right has to allow for all handles.
    pub fn access(&self) -> Access {
        if self.writes { Access::ReadWrite } else { Access::Read }
    }

    /// Whether a report is due before the reply to an open is taken in: what was written through the server is known
    /// there only, and under a stronger lease this client's word counts.
    pub fn reports_before_lease(&self) -> bool {
        self.mode == LeaseMode::Open && self.dirty
    }

    /// Takes over what an open told. `session`: that of now. `recalled`: a recall of the grant came already. Returns
    /// whether the object is another one, or not known any more.
    pub fn opened(&mut self, opened: &Opened, session: SessionId, recalled: bool) -> bool {
        if opened.session != session {
            // It was opened by a session that is over. What was written under this one keeps its lease.
            if !self.dirty {
                self.open_anew();
            }
            return false;
        }
        self.is_opened_to_write |= opened.access.writes();
        if opened.stamp < self.grant_stamp {
            // Replies to two opens passed each other: the later one holds, but for a right to write.
            self.learn_right(opened);
            return false;
        }
        let was_exclusive = self.is_exclusive();
        self.mode = granted(opened, recalled);
        self.knows_best |= was_exclusive && !self.is_exclusive() && self.dirty;
        self.grant_stamp = opened.stamp;
        self.pages_elsewhere = opened.grants.contains(Grants::PAGES_ELSEWHERE);
        if opened.stamp <= self.changed_stamp {
            // We have reported since: the object and the size are as we told the shard.
            self.learn_right(opened);
            return false;
        }
        let before = self.object();
        let told = opened.attributes.layout.object();
        if !self.object_is_new || told.is_some() {
            if told != before {
                self.let_object_go();
                self.held = rights::told(opened);
            }
            self.learn_right(opened);
            self.object_is_known();
        }
        if self.dirty {
            // Others may have been told of the last write through the server, and of its time.
            self.attributes.ctime = self.attributes.ctime.max(opened.attributes.ctime);
            self.attributes.links = opened.attributes.links;
        } else {
            self.attributes = opened.attributes.clone();
        }
        self.object() != before
    }

    /// This client has reported the file with this stamp, perhaps when it was known here by another state that was
    /// dropped since. If so, and an open told of an earlier moment, that has to be asked for again. `number`: of the
    /// reports and changes made by now.
    pub fn reported_before(&mut self, report: u64, told: u64, number: u64) {
        if report > self.changed_stamp.max(self.grant_stamp) && report > told {
            self.open_anew();
            self.reported = number;
        }
    }

    /// Takes over the reply to the open that [`FileState::to_open`] asked for; as [`FileState::opened`].
    pub fn opened_again(&mut self, opened: &Opened, session: SessionId, recalled: bool) -> bool {
        let is_same = opened.attributes.layout.object() == self.attributes.layout.object();
        let granted = if opened.session == session { granted(opened, recalled) } else { LeaseMode::None };
        // What others may have made of the file since the exclusive lease is not ours to report. What was written
        // through the server is still to be reported, unless the size that comes with a lease takes its place.
        let reports_under = if self.was_exclusive { LeaseMode::Exclusive } else { LeaseMode::Open };
        self.dirty &= is_same && granted == reports_under;
        self.was_exclusive = false;
        self.opened(opened, session, recalled)
    }

    /// The object is not the file's: what is in it is lost.
    fn let_object_go(&mut self) {
        if self.relies_on_new_object {
            self.fail(Error::Device(errno::EIO));
        }
        self.held = None;
        self.knows_best = false;
        self.object_mtime = NO_OBJECT_MTIME;
        self.object_is_known();
    }

    fn object_is_known(&mut self) {
        self.object_is_new = false;
        self.relies_on_new_object = false;
    }

    /// Whether the lease that is held answers another open, so that nobody has to be asked. Takes note of it.
    pub fn open_again_unasked(&mut self, access: Access) -> bool {
        let rights = self.held().map(|held| held.capability.rights);
        let covered = |right| rights.is_none_or(|rights| rights.contains(right));
        let allowed = self.mode >= if access.writes() { LeaseMode::Exclusive } else { LeaseMode::Shared }
            && (!access.reads() || covered(Rights::READ))
            && (!access.writes() || (self.writes && covered(Rights::WRITE)))
            && !self.lacks_right()
            && self.error.is_none();
        self.writes |= allowed && access.writes();
        allowed
    }

    /// Whether it is kept when nobody has it open: its lease is worth something, or the shard could not be told what
    /// was written. As long as it is kept, the shard asks the storage server.
    pub fn is_kept(&self) -> bool {
        self.dirty || self.error.is_some() || (self.is_leased() && !self.owes_error() && !self.is_unlinked())
    }

    /// Whether it had no name any more when the shard was asked last. Its space is in use as long as it is kept.
    pub fn is_unlinked(&self) -> bool {
        self.attributes.links == 0
    }

    /// Whether size, time or object have changed since the last report.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// A recall: from now on nothing is gathered or believed. `session`: the one that it is of; `stamp`: the shard's
    /// when it was sent. One of a session that has ended, or one that is repeated, would take what was granted since. A
    /// lease that is lost stays lost. Returns whether it took anything.
    pub fn weaken(&mut self, session: SessionId, stamp: u64) -> bool {
        let counts = self.session == session && stamp > self.grant_stamp;
        if counts {
            self.knows_best |= self.is_exclusive() && self.dirty;
            self.mode = self.mode.min(LeaseMode::Open);
            self.was_exclusive = false;
        }
        counts
    }

    /// The file had no object and was given one.
    pub fn object_made(&mut self, objects: impl Into<FileObjects>) {
        let objects = objects.into();
        self.attributes.layout = objects.layout_in(&self.attributes.layout);
        self.held = Some(Box::new(objects));
        self.object_is_new = true;
        self.object_mtime = NO_OBJECT_MTIME;
        self.size_before_object = self.attributes.size;
        if !self.dirty {
            // Nothing was written: the file's time is not that at which its object is made.
            self.has_own_time = self.decides();
        }
        self.dirty = true;
    }

    /// The node has refused the first write to the new object, and made none: nobody is to be told of it.
    pub fn object_was_not_made(&mut self) {
        self.held = None;
        self.knows_best = false;
        self.object_is_known();
        self.attributes.layout = self.attributes.layout.without_objects();
        self.attributes.size = self.size_before_object;
        self.dirty = false;
    }

    /// The new object could not be reported, and is not to become the file's any more. If it has bytes that a program
    /// takes for written, a program is told that they are lost.
    pub fn new_object_is_lost(&mut self) {
        if self.relies_on_new_object {
            self.fail(Error::Device(errno::EIO));
        }
        self.object_was_not_made();
        self.open_anew();
    }

    /// Whether the shard is to be told of the object before a write has ended. While others may write too, they must
    /// find it at once; what is written directly survives this client.
    pub fn reports_object(&self, direct: bool) -> bool {
        self.object_is_new && (direct || !self.is_exclusive())
    }

    /// Bytes were written, or gathered, up to here. `time`: as the clock shows. Under an exclusive lease that is the
    /// time of the write, for everybody; else the shard says what it is.
    pub fn written(&mut self, end: u64, time: Timestamp) {
        // Without the lease the object is reported before anybody is told.
        self.relies_on_new_object |= self.object_is_new && self.is_exclusive();
        self.attributes.size = self.attributes.size.max(end);
        self.changed_at(time);
        self.dirty = true;
    }

    /// Bytes up to here, which were [`FileState::written`] when they were sent, have arrived. The time of the write is
    /// that from then: nobody sees two times of one write.
    pub fn landed(&mut self, end: u64) {
        self.relies_on_new_object |= self.object_is_new && self.is_exclusive();
        self.attributes.size = self.attributes.size.max(end);
        self.dirty = true;
    }

    /// A direct write up to here begins under an exclusive lease. Its time comes with the reply.
    pub fn direct_write_begins(&mut self, end: u64) {
        if !self.dirty {
            self.has_own_time = self.decides();
        }
        self.landed(end);
    }

    /// A direct write has arrived under an exclusive lease. Like its bytes, the time that programs are told of it
    /// survives this client: it is the one that the shard takes from the storage server (as `Inode::observe` does
    /// there) when the session ends before it was reported. A new object is reported at once, and may have been made at
    /// a node whose clock is ahead.
    pub fn direct_write_landed(&mut self, end: u64, object_mtime: Timestamp) {
        self.direct_write_begins(end);
        if object_mtime > self.object_mtime || self.object_is_new {
            self.object_written(object_mtime);
            self.attributes.ctime = object_mtime.after(self.attributes.ctime);
            self.attributes.mtime = self.attributes.ctime;
        }
    }

    /// The contents have changed. Each change is later than those before, whatever clocks show.
    fn changed_at(&mut self, time: Timestamp) {
        self.has_own_time = self.decides();
        self.attributes.ctime = time.after(self.attributes.ctime);
        self.attributes.mtime = self.attributes.ctime;
    }

    /// The storage server told of the object's modification time; replies come in any order.
    pub fn object_written(&mut self, object_mtime: Timestamp) {
        self.object_mtime = self.object_mtime.max(object_mtime);
    }

    /// Size and modification time of the object were looked up.
    pub fn looked_up(&mut self, size: u64, object_mtime: Timestamp) {
        self.attributes.size = size;
        self.object_written(object_mtime);
    }

    /// An open of this client has cut the file, which nobody here had open: what was not reported before is moot.
    pub fn cut_by_open(&mut self) {
        if self.object_is_new {
            self.held = None;
            self.object_is_known();
        }
        self.dirty = false;
    }

    /// Bytes were lost, and the object has this size. A new one may have nothing yet of what the file had before.
    pub fn settled(&mut self, size: u64) {
        let size = if self.object_is_new { size.max(self.size_before_object) } else { size };
        self.dirty |= size != self.attributes.size;
        self.attributes.size = size;
    }

    /// Whoever else writes the object for this client (a kernel) has changed it, or may have.
    pub fn changed_unseen(&mut self) {
        self.has_own_time &= self.decides();
        self.dirty = true;
    }

    /// The object was written before the lease was granted, by a kernel here or by another client: the shard knows the
    /// time of what it was told of.
    pub fn written_by_somebody(&mut self) {
        self.has_own_time = false;
        self.dirty = true;
    }

    /// A kernel has written the object, at this time of the object's.
    pub fn written_by_kernel(&mut self, object_mtime: Timestamp) {
        self.changed_at(object_mtime);
        self.dirty = true;
    }

    /// What the shard is to be told, as this client's report of this number; `None`: it knows all. `passed`: a kernel
    /// reads and writes the object itself, and keeps no pages.
    pub fn report(&self, number: u64, passed: bool) -> Option<ShardRequest> {
        let new = self.held.as_ref().filter(|_| self.object_is_new);
        let object = new.map(|objects| objects.first().object);
        let others = new.map_or(&[][..], |objects| objects.others()).iter().map(|held| held.object).collect();
        let Attributes { inode, size, mtime, .. } = self.attributes;
        let mtime = (self.decides() && self.has_own_time).then_some(mtime);
        let object_mtime = self.object_mtime;
        let known = self.grant_stamp.max(self.changed_stamp);
        let commit = ShardRequest::Commit { inode, object, others, size, mtime, object_mtime, known, number, passed };
        self.is_dirty().then_some(commit)
    }

    /// The shard has answered a report, as this client's `number`-th report or change. `false`: the file had got
    /// another object meanwhile, and ours is let go. If it has bytes that a program takes for written, a program is
    /// told that they are lost.
    pub fn reported(&mut self, attributes: &Attributes, stamp: u64, number: u64) -> bool {
        let lost = self.object_is_new && attributes.layout.object() != self.object();
        if lost {
            self.mode = LeaseMode::None;
            self.let_object_go();
        }
        self.object_is_known();
        self.attributes = attributes.clone();
        self.changed_stamp = stamp;
        self.reported = number;
        self.dirty = false;
        self.knows_best = false;
        !lost
    }

    /// The shard has changed attributes on our behalf (a cut among them), after all was reported: what it answered
    /// holds, unless later replies told more. As this client's `number`-th report or change. Returns whether the object
    /// is not the file's any more.
    pub fn changed(&mut self, attributes: &Attributes, stamp: u64, number: u64) -> bool {
        if stamp < self.changed_stamp.max(self.grant_stamp) {
            return false;
        }
        let replaced = attributes.layout.object() != self.object();
        if replaced {
            self.let_object_go();
        }
        self.attributes = attributes.clone();
        self.changed_stamp = stamp;
        self.reported = number;
        self.weaken_if_split();
        replaced
    }

    /// The file has other objects with the same bytes: what the shard answered holds, as this client's `number`-th
    /// report or change, and the right to them is asked for.
    pub fn relocated(&mut self, attributes: &Attributes, stamp: u64, number: u64) {
        self.attributes = attributes.clone();
        self.changed_stamp = stamp;
        self.reported = number;
        self.object_mtime = NO_OBJECT_MTIME;
        self.right_is_void();
        self.weaken_if_split();
    }

    /// Nobody caches the contents of a split file: the shard has taken the lease back with the answer.
    fn weaken_if_split(&mut self) {
        if self.is_split() {
            self.mode = self.mode.min(LeaseMode::Open);
        }
    }

    /// A flush has ended. Its failure alone loses nothing: what could not be written or reported is kept for the next.
    /// But of bytes that are lost a program has to be told, whatever later flushes do.
    /// `number`: as of a report that is made now: what the shard told before may be from before these bytes came to
    /// the server.
    pub fn flushed(&mut self, outcome: Result<(), Error>, number: impl FnOnce() -> u64) -> Result<(), Error> {
        // A recall is not answered before the shard knows a new object, or that is let go.
        let still_knows = self.knows_best && outcome.is_err() && self.object_is_new;
        if self.knows_best && !still_knows && self.dirty {
            self.reported = number();
        }
        self.knows_best = still_knows;
        self.error.clone().map_or(outcome, Err)
    }

    /// Lays what this client has made of size and times over what is known from the shard. `asked`: the shard was
    /// asked just now, so that it has what was written through the server. `since`: how many reports and changes this
    /// client had made before it was asked, or looked up. `false`: it has to be asked. Either a report or change of
    /// this file was made since, and what is known may be from before it; or the file was written through the server
    /// since, and only the shard says which time that has.
    pub fn overlay(&self, attributes: &mut Attributes, asked: bool, since: u64) -> bool {
        if self.reported > since {
            return false;
        }
        let is_own_time = self.decides() && (self.has_own_time || !self.dirty);
        if self.decides() {
            attributes.size = self.attributes.size;
        }
        if is_own_time {
            attributes.mtime = self.attributes.mtime;
            attributes.ctime = attributes.ctime.max(self.attributes.ctime);
        }
        is_own_time || asked || !self.dirty
    }

    /// Whether nobody else can know size and time of the file.
    fn decides(&self) -> bool {
        self.knows_best || self.is_exclusive()
    }
}

fn granted(opened: &Opened, recalled: bool) -> LeaseMode {
    match opened.grants {
        _ if recalled => LeaseMode::Open,
        grants if grants.contains(Grants::DATA_EXCLUSIVE) => LeaseMode::Exclusive,
        grants if grants.contains(Grants::DATA_SHARED) => LeaseMode::Shared,
        _ => LeaseMode::Open,
    }
}

mod doubt;
mod rights;
#[cfg(test)]
mod tests;
