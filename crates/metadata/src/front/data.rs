//! Leases on the contents of files.
//!
//! Whoever has a file open holds `Data` with at least `Open`. A session alone with a file that it writes has
//! `Exclusive` and may keep what it writes; readers among themselves have `Shared`. Clients keep the lease after close,
//! and give it back when asked, or some time later.
//!
//! Invariant: an `Exclusive` holder is the only holder above `Open`; no holder is `Shared` while another one writes.

use super::leases::Holder;
use super::park::Call;
use super::storage::Questions;
use super::{Pause, Shard, Wait};
use crate::back::{Command, Inode};
use crate::kv::KeyValue;
use weft_protocol::capability::{CapabilityClaims, expiry, seconds_of};
use weft_protocol::limits::RELEASE_KEYS_MAX;
use weft_protocol::message::shard::{Access, OpenFlags, ShardAnswer};
use weft_protocol::{
    Attributes, Capability, Error, Generation, Grants, InodeNumber, Layout, LeaseKey, LeaseMode, ObjectId, Rights,
    SessionId,
};

/// Whether the holder may change size and time of the file without asking.
pub(super) fn may_change(holder: Holder) -> bool {
    holder.mode == LeaseMode::Exclusive || holder.writing
}

/// Whether the holder writes through the storage server, which then knows size and time better than the shard.
fn writes_through(holder: Holder) -> bool {
    holder.mode != LeaseMode::Exclusive && holder.writing
}

/// The lease that an open gets. `allowed`: nothing forbids more than to have the file open.
fn mode_of_open(flags: OpenFlags, allowed: bool) -> LeaseMode {
    match (allowed && !flags.direct, flags.access.writes()) {
        (true, true) => LeaseMode::Exclusive,
        (true, false) => LeaseMode::Shared,
        (false, _) => LeaseMode::Open,
    }
}

impl<K: KeyValue> Shard<K> {
    /// Registers an open, with the strongest lease that may be. The opens of others were made compatible before. A
    /// session that was refused while its open was carried through may write by the right that it is told of: until it
    /// has ended the file counts as open, so that its fence, and questions for the size, take account of that.
    pub(super) fn grant_data(&mut self, session: SessionId, inode: InodeNumber, flags: OpenFlags) -> Grants {
        let key = LeaseKey::Data(inode);
        if !self.sessions.knows(session) {
            return Grants::empty();
        }
        let is_refused = self.sessions.refuses(session);
        let flags = self.as_opened(inode, flags);
        let own = self.leases.holder(&key, session);
        let claimed = self.parking.is_claimed(&key);
        let (mut alone, mut shareable) = (true, true);
        for holder in self.leases.holders(&key).filter(|holder| holder.session != session) {
            alone = false;
            shareable &= !may_change(*holder);
        }
        let writes = flags.access.writes();
        // The size that is told beside a lease has to be true: of a dead writer's file it is not known yet.
        let recovering = self.recovering.contains_key(&inode);
        let unopposed = if writes { alone } else { shareable };
        let granted = mode_of_open(flags, unopposed && !claimed && !recovering && !is_refused);
        let mode = own.map_or(granted, |own| own.mode.max(granted));
        let writing = writes || own.is_some_and(|own| own.writing);
        let wrote_through =
            mode == LeaseMode::Exclusive && own.is_some_and(|own| writes_through(own) || own.wrote_through);
        let pages = self.keeps_pages(inode, flags) || own.is_some_and(|own| own.pages);
        let reported = own.map_or(0, |own| own.reported);
        let stamp = self.next_grant_stamp();
        let overtaken = false;
        self.leases.set(key, Holder { session, mode, writing, wrote_through, pages, stamp, reported, overtaken });
        let mut told = self.told_of_data(session, key, mode);
        told.set(Grants::PAGES_ELSEWHERE, self.has_pages_elsewhere(&key, session));
        told
    }

    /// How a file is opened. Nobody caches the contents of a split file, whose parts are written without a word to
    /// others.
    pub(super) fn as_opened(&self, inode: InodeNumber, flags: OpenFlags) -> OpenFlags {
        let is_split = self.back.inode(inode).is_some_and(|record| record.layout.epoch().is_some());
        OpenFlags { direct: flags.direct || is_split, ..flags }
    }

    /// Whether kernels above other sessions may keep pages of the file.
    pub(super) fn has_pages_elsewhere(&self, key: &LeaseKey, session: SessionId) -> bool {
        self.leases.holders(key).any(|holder| holder.session != session && holder.pages)
    }

    /// Whether a kernel above the session that opens the file so may keep pages of it.
    fn keeps_pages(&self, inode: InodeNumber, flags: OpenFlags) -> bool {
        let machine = match self.back.inode(inode).map(|record| record.layout) {
            Some(Layout::Whole { object, .. }) => self.map.node(object.node()).map(|node| node.identity),
            // Through its client, also where one of several objects is on its machine.
            _ => None,
        };
        flags.page_cache.keeps(machine)
    }

    /// Registers the open that has made a file, and grants its attributes. Its number is new: nobody holds anything of
    /// it, asks for it, or waits for it, and it has no object to have a right to.
    pub(super) fn grant_new_file(&mut self, session: SessionId, made: &Attributes, flags: OpenFlags) -> Grants {
        if !self.sessions.is_alive(session) {
            return Grants::empty();
        }
        let (inode, writing) = (made.inode, flags.access.writes());
        let mode = mode_of_open(flags, made.layout.epoch().is_none());
        let stamp = self.next_grant_stamp();
        let pages = flags.page_cache.keeps(None);
        self.leases.set(LeaseKey::Data(inode), Holder { writing, pages, ..Holder::new(session, mode, stamp) });
        let mut granted = bits_of(mode);
        if self.leases.has_room(session, 1) {
            let holder = Holder::new(session, LeaseMode::Shared, stamp);
            self.leases.set(LeaseKey::Attributes(inode), holder);
            granted |= Grants::ATTRIBUTES;
        }
        granted
    }

    /// Registers that a session has a directory open.
    pub(super) fn grant_open_directory(&mut self, session: SessionId, inode: InodeNumber) -> Grants {
        if !self.sessions.is_alive(session) {
            return Grants::empty();
        }
        let stamp = self.next_grant_stamp();
        let holder = Holder::new(session, LeaseMode::Open, stamp);
        self.leases.set(LeaseKey::Data(inode), holder);
        Grants::OPEN
    }

    /// What a session is told that it holds. While it is asked to give something up, it is told of nothing that it has
    /// to: the recall has an older stamp than this reply, and would seem to be done with.
    pub(super) fn told_of_data(&self, session: SessionId, key: LeaseKey, mode: LeaseMode) -> Grants {
        if self.recalls.find(key, session).is_some() { Grants::OPEN } else { bits_of(mode) }
    }

    /// The client gives leases back, each with the stamp of the latest grant that it knows of. One that was granted by
    /// a later reply, which is on its way, is kept.
    pub(super) fn release(&mut self, session: SessionId, leases: &[(LeaseKey, u64)]) -> Result<ShardAnswer, Error> {
        if leases.len() > RELEASE_KEYS_MAX {
            return Err(Error::Invalid);
        }
        for (key, stamp) in leases {
            if let LeaseKey::Inode(inode) = key {
                self.number_returned(*inode, session, *stamp);
            } else if let Some(holder) = self.leases.holder(key, session).filter(|holder| holder.stamp <= *stamp) {
                self.weaken(session, *key, LeaseMode::None);
                if let LeaseKey::Attributes(inode) = key {
                    self.note_told(*inode, session, holder.stamp);
                }
            }
        }
        Ok(ShardAnswer::Done)
    }

    /// The session keeps at most `kept` on the key. A recall of more is answered by it.
    pub(super) fn weaken(&mut self, session: SessionId, key: LeaseKey, kept: LeaseMode) {
        let kept = if matches!(key, LeaseKey::Data(_)) { kept } else { LeaseMode::None };
        if let Some(holder) = self.leases.holder(&key, session) {
            if kept == LeaseMode::None {
                self.drop_holder(&key, session);
            } else if kept < holder.mode {
                self.leases.set(key, Holder { mode: kept, ..holder });
            }
        }
        if let Some(number) = self.recalls.find(key, session)
            && (kept == LeaseMode::None || self.recalls.get(number).is_some_and(|recall| kept <= recall.to))
        {
            self.end_recall(number);
        }
    }

    /// A client's answer to a recall. A late or repeated one finds no recall and does nothing.
    pub(super) fn recall_answered(&mut self, session: SessionId, number: u64, kept: LeaseMode) {
        if !self.sessions.hear(session, self.now.boot_ms) {
            return;
        }
        let Some(recall) = self.recalls.get(number).filter(|recall| recall.session == session) else {
            return;
        };
        let (key, recalled_at) = (recall.key, recall.stamp);
        if let LeaseKey::Names(directory) = key {
            for name in self.leases.names_held(directory, session, recalled_at) {
                self.weaken(session, name, LeaseMode::None);
            }
            return self.end_recall(number);
        }
        let granted_at = self.leases.holder(&key, session).map(|holder| holder.stamp);
        // When nobody waits for the recall any more, a later reply may have granted the key anew: the client believes
        // that one, and may have answered before it came.
        let since = granted_at.is_some_and(|stamp| stamp > recalled_at);
        if since && !matches!(key, LeaseKey::Data(_)) {
            return self.end_recall(number);
        }
        // Nothing above `Open` can be kept, whatever the client says. A file that it opened again after the recall was
        // sent it has open.
        let kept = if since { LeaseMode::Open } else { kept.min(LeaseMode::Open) };
        if let (LeaseKey::Attributes(inode) | LeaseKey::Permissions(inode), LeaseMode::Open) = (key, kept) {
            self.note_told(inode, session, granted_at.unwrap_or(recalled_at));
        }
        self.weaken(session, key, kept);
        self.end_recall(number);
    }

    /// A recall is over: the key rests for a while, and who waited goes on.
    pub(super) fn end_recall(&mut self, number: u64) {
        let Some(recall) = self.recalls.end(number) else {
            return;
        };
        if !matches!(recall.key, LeaseKey::Data(_) | LeaseKey::Inode(_) | LeaseKey::Ranges(_)) {
            self.contention.recalled(recall.key, self.now.boot_ms);
        }
        if let LeaseKey::Ranges(inode) = recall.key {
            self.leases.ranges.recalled(inode, recall.session);
        }
        for waiter in recall.waiters {
            self.one_less(waiter);
        }
    }

    /// Takes a lease from a session. The last holder of an orphan takes the inode with him.
    pub(super) fn drop_holder(&mut self, key: &LeaseKey, session: SessionId) -> Option<Holder> {
        let holder = self.leases.drop_holder(key, session)?;
        if let LeaseKey::Data(inode) = key {
            // Who does not have a file open has no locks of it.
            self.locks.table.drop_session_of(session, *inode);
            if !self.cut_at.is_empty() && self.leases.holders(key).next().is_none() {
                self.cut_at.remove(inode);
            }
            self.weaken(session, LeaseKey::Ranges(*inode), LeaseMode::None);
            self.leases.ranges.closed(*inode, session);
            self.tidy_parts(*inode);
            self.reap_unused(*inode);
        }
        if let LeaseKey::Ranges(inode) = key {
            self.leases.ranges.drop(*inode, session);
        }
        Some(holder)
    }

    /// The rights to the objects of an open file: to the first, and to the others.
    pub(super) fn capabilities(
        &self,
        attributes: &Attributes,
        access: Access,
        session: SessionId,
    ) -> (Option<Capability>, Vec<Capability>) {
        let generation = match &attributes.layout {
            Layout::Whole { generation, .. } => *generation,
            Layout::Striped(striped) => striped.generation(),
            Layout::Empty | Layout::Planned(_) | Layout::Split { .. } => return (None, Vec::new()),
        };
        let objects = attributes.layout.objects().iter();
        let mut rights = objects.map(|object| self.capability((*object, generation), attributes, access, session));
        (rights.next(), rights.collect())
    }

    pub(super) fn capability(
        &self,
        (object, generation): (ObjectId, Generation),
        attributes: &Attributes,
        access: Access,
        session: SessionId,
    ) -> Capability {
        let mut rights = Rights::empty();
        rights.set(Rights::READ, access.reads());
        rights.set(Rights::WRITE, access.writes());
        rights.set(Rights::GROUP, session.is_group());
        rights.set(Rights::CREATE, session.is_group() && self.awaits_objects(attributes.inode));
        self.node_key.sign(&CapabilityClaims {
            object,
            count: 1,
            inode: attributes.inode,
            generation,
            epoch: self.map.epoch,
            expires_seconds: expiry(seconds_of(self.now.wall)),
            owner_uid: attributes.uid,
            rights,
            session,
        })
    }

    /// Attributes as another session's read must see them. `Err`: wait first.
    pub(super) fn true_attributes(
        &mut self,
        call: &Call,
        number: InodeNumber,
    ) -> Result<(Attributes, Knowledge), Answered> {
        let mut inode = self.back.inode(number).ok_or(Answered::Error(Error::Stale))?;
        if let Some(pause) = self.watch(call.session(), number) {
            return Err(Answered::Park(pause));
        }
        let key = LeaseKey::Data(number);
        for holder in self.leases.holders(&key) {
            if holder.mode == LeaseMode::Exclusive && holder.session != call.session() {
                let recalls = vec![(key, holder.session, LeaseMode::Open)];
                return Err(Answered::Park(Pause { recalls, ..Pause::until(Wait::Recalls, vec![key]) }));
            }
        }
        if self.storage_knows_better(number)
            && let Some(object) = inode.layout.object()
        {
            match call.told(number, object) {
                None => return Err(Answered::Park(stat_of(number, &inode, Vec::new()))),
                Some(Ok((size, object_mtime))) => {
                    let (size, object_mtime) = (*size, *object_mtime);
                    if object_mtime > inode.object_mtime {
                        // The time that is told now is that of the write, for everybody who asks later.
                        // Without its size it would not tell of a write to objects that were to come.
                        let size = if inode.awaits_objects() { size } else { inode.size };
                        self.apply(&Command::Observe { inode: number, size, object_mtime });
                    }
                    inode.observe(size, object_mtime);
                }
                // It may have bytes that somebody has been told are written.
                Some(Err(Error::Unreachable)) => return Ok((inode.attributes(number), Knowledge::InDoubt)),
                // It has no such object, or cannot tell of it: what the shard knows is the best there is.
                Some(Err(_)) => {}
            }
            return Ok((inode.attributes(number), Knowledge::Now));
        }
        Ok((inode.attributes(number), Knowledge::Lasting))
    }

    /// Whether a file may have been written through its storage server since the shard heard of its size and time.
    pub(super) fn storage_knows_better(&self, inode: InodeNumber) -> bool {
        let key = LeaseKey::Data(inode);
        // Who is asked to give up `Exclusive` may have done so, and write through the server, before we hear of it.
        // Nor does the session itself know at once that its word counts now: the reply that grants it may be on its
        // way while it writes on and reports.
        let may_have_written = |holder: &Holder| {
            writes_through(*holder) || holder.wrote_through || self.recalls.find(key, holder.session).is_some()
        };
        self.recovering.contains_key(&inode) || self.leases.holders(&key).any(may_have_written)
    }
}

/// What is known of a file's size and time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Knowledge {
    /// They may be granted.
    Lasting,
    /// They are right, and may change at any moment.
    Now,
    /// They are from before what a storage server may have, which does not answer.
    InDoubt,
}

/// Why there are no attributes yet.
pub(super) enum Answered {
    Error(Error),
    Park(Pause),
}

/// Waits for what the storage servers of the file's objects say of them.
pub(super) fn stat_of(inode: InodeNumber, record: &Inode, claims: Vec<LeaseKey>) -> Pause {
    Pause { storage: Some(Box::new(Questions::stat(inode, record))), ..Pause::until(Wait::Storage, claims) }
}

/// The bits that tell a client what it holds.
pub(super) fn bits_of(mode: LeaseMode) -> Grants {
    match mode {
        LeaseMode::None => Grants::empty(),
        LeaseMode::Open => Grants::OPEN,
        LeaseMode::Shared => Grants::OPEN | Grants::DATA_SHARED,
        LeaseMode::Exclusive => Grants::OPEN | Grants::DATA_EXCLUSIVE,
    }
}
