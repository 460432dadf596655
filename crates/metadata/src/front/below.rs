//! Reading from the directory that the file system lies over (docs/decisions/0029).
//!
//! A call that needs names or contents that are still below waits until a storage server has listed the directory, or
//! copied the file into an object of its own, in pieces. A file goes to a node of the machine that opens it; where
//! there is none, or it has no space, to one node after the other by inode number. The shard applies the result before
//! it judges the call again, once leases on attributes that the result changes are recalled.
//!
//! Invariant: an inode is in `Readings` only while it is unread, or a storage server has yet to answer about it.
//! Not here: which inodes are unread (`back/below.rs`), access to the directory below (the storage server).
//! On a crash: unread inodes are read again; so they are when the shard moves while it reads.

use super::park::{Wait, Work};
use super::plan::Plan;
use super::storage::StorageWait;
use super::{Effect, Pause, Shard};
use crate::back::{Command, NO_OBJECT_MTIME};
use crate::kv::KeyValue;
use std::collections::BTreeMap;
use weft_protocol::message::peer::{Fate, Lock, PeerReply, PeerStep};
use weft_protocol::message::shard::ShardRequest;
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{
    BelowName, BelowStamp, Error, FileKind, InodeNumber, LeaseKey, Name, NodeId, NodeIdentity, NodeRecord, ObjectId,
    SessionId, Timestamp,
};

/// How often a file is copied from its beginning because it has changed below meanwhile.
const COPIES_MAX: u32 = 3;

/// Inodes that are being read from below.
pub(super) type Readings = BTreeMap<InodeNumber, Reading>;

/// See the module.
pub(super) struct Reading {
    path: Vec<Name>,
    so_far: SoFar,
    is_done: bool,
    /// Machine of the client whose open needs the file.
    machine: Option<NodeIdentity>,
    /// Token of the request in flight: the answer to one from before an abandoned move may come late.
    token: u64,
    /// Number of storage servers that were unreachable or full.
    away: usize,
}

enum SoFar {
    Names(Vec<BelowName>),
    Contents(Contents),
}

/// Progress of a file's copy.
struct Contents {
    object: Option<ObjectId>,
    end: u64,
    stamp: Option<BelowStamp>,
    object_mtime: Timestamp,
    copies: u32,
}

impl Reading {
    fn request(&self, inode: InodeNumber) -> StorageRequest {
        let path = self.path.clone();
        match &self.so_far {
            SoFar::Names(names) => {
                StorageRequest::ListBelow { path, after: names.last().map(|last| last.name.clone()) }
            }
            SoFar::Contents(Contents { object, end, .. }) => {
                StorageRequest::FillFromBelow { inode, object: *object, path, offset: *end }
            }
        }
    }

    /// Takes an answer. Returns true if it was the last one.
    fn take(&mut self, answer: StorageAnswer) -> Result<bool, Error> {
        match (&mut self.so_far, answer) {
            (SoFar::Names(names), StorageAnswer::NamesBelow { names: more, is_more }) => {
                if is_more && more.is_empty() {
                    return Err(Error::Malformed);
                }
                names.extend(more);
                Ok(!is_more)
            }
            (SoFar::Contents(contents), StorageAnswer::Filled { object, end, stamp, object_mtime }) => {
                contents.object = Some(object);
                let is_same = contents.stamp.is_none_or(|before| before == stamp);
                if !is_same || (end <= contents.end && end < stamp.size) {
                    contents.copies += 1;
                    if contents.copies == COPIES_MAX {
                        return Err(Error::Busy);
                    }
                    (contents.end, contents.stamp) = (0, None);
                    return Ok(false);
                }
                (contents.end, contents.stamp, contents.object_mtime) = (end, Some(stamp), object_mtime);
                Ok(end >= stamp.size)
            }
            _ => Err(Error::Malformed),
        }
    }
}

impl<K: KeyValue> Shard<K> {
    /// Marks the root directory as unread. For the root shard of a file system over a directory, before its first
    /// event.
    pub fn lie_over(&mut self) {
        self.back.lie_over();
    }

    /// Applies what was read for the request, or returns what it has to wait for.
    pub(super) fn read_first(&mut self, request: &ShardRequest) -> Option<Pause> {
        while let Some(inode) = self.unread_of(request) {
            if let Some(pause) = self.read_or_wait(inode) {
                return Some(pause);
            }
        }
        None
    }

    /// As [`Shard::read_first`], for another shard's step.
    pub(super) fn read_before_step(&mut self, step: &PeerStep) -> Option<Pause> {
        let PeerStep::Lock { locks, .. } = step else { return None };
        while let Some(inode) = locks.iter().find_map(|lock| self.unread_of_lock(lock)) {
            if let Some(pause) = self.read_or_wait(inode) {
                return Some(pause);
            }
        }
        None
    }

    /// The next unread inode that a request needs.
    fn unread_of(&self, request: &ShardRequest) -> Option<InodeNumber> {
        if !self.back.has_unread() {
            return None;
        }
        let unread = |inode: &InodeNumber| self.back.is_unread(*inode);
        let directory = |parent: &InodeNumber| Some(*parent).filter(unread);
        // A directory that is removed or replaced has to be empty.
        let going = |parent: &InodeNumber, name: &Name| {
            let dentry = self.back.dentry(*parent, name).filter(|dentry| dentry.kind == FileKind::Directory)?;
            Some(dentry.inode).filter(unread)
        };
        match request {
            ShardRequest::Lookup { parent, .. }
            | ShardRequest::MakeDirectory { parent, .. }
            | ShardRequest::MakeSymlink { parent, .. }
            | ShardRequest::Link { parent, .. }
            | ShardRequest::Unlink { parent, .. }
            | ShardRequest::UnlinkBatch { parent, .. }
            | ShardRequest::ReadDirectory { inode: parent, .. }
            | ShardRequest::Spread { inode: parent } => directory(parent),
            ShardRequest::OpenAt { parent, name, flags, .. } => directory(parent).or_else(|| {
                let dentry = self.back.dentry(*parent, name)?;
                Some(dentry.inode).filter(|inode| dentry.kind == FileKind::Regular && !flags.truncate && unread(inode))
            }),
            ShardRequest::Open { inode, flags } => Some(*inode).filter(|inode| !flags.truncate && unread(inode)),
            ShardRequest::OpenGroup { inode, .. } => Some(*inode).filter(unread),
            ShardRequest::SetAttributes { inode, changes } => {
                Some(*inode).filter(|inode| changes.size.is_some_and(|size| size > 0) && unread(inode))
            }
            ShardRequest::RemoveDirectory { parent, name } => directory(parent).or_else(|| going(parent, name)),
            ShardRequest::Rename { parent, new_parent, new_name, .. } => {
                directory(parent).or_else(|| directory(new_parent)).or_else(|| going(new_parent, new_name))
            }
            _ => None,
        }
    }

    fn unread_of_lock(&self, lock: &Lock) -> Option<InodeNumber> {
        let unread = |inode: &InodeNumber| self.back.is_unread(*inode);
        match lock {
            Lock::Name { directory, name, fate } => Some(*directory).filter(unread).or_else(|| {
                let dentry = self.back.dentry(*directory, name)?;
                let goes = *fate == Fate::Loses && dentry.kind == FileKind::Directory;
                Some(dentry.inode).filter(|inode| goes && unread(inode))
            }),
            Lock::Inode { inode, fate: Fate::Loses } => {
                let is_directory = self.back.inode(*inode).is_some_and(|inode| inode.kind == FileKind::Directory);
                Some(*inode).filter(|inode| is_directory && unread(inode))
            }
            Lock::Inode { .. } | Lock::Tree => None,
        }
    }

    /// Applies what was read of an inode. Otherwise returns what the caller has to wait for.
    fn read_or_wait(&mut self, inode: InodeNumber) -> Option<Pause> {
        let Some(reading) = self.readings.get(&inode).filter(|reading| reading.is_done) else {
            return Some(Pause::until(Wait::Below(inode), Vec::new()));
        };
        let changes = match &reading.so_far {
            SoFar::Names(names) => !names.is_empty(),
            SoFar::Contents(Contents { stamp, .. }) => {
                stamp.is_some_and(|stamp| self.back.changes_when_filled(inode, &stamp))
            }
        };
        let mut plan = Plan::new();
        if changes {
            plan.alone(LeaseKey::Attributes(inode));
        }
        if let Some(pause) = self.conflicts(&plan, None, &[]) {
            return Some(pause);
        }
        let reading = self.readings.remove(&inode).expect("it was found above");
        let command = match reading.so_far {
            SoFar::Names(names) => Command::ImportNames { directory: inode, names },
            SoFar::Contents(Contents { object: Some(object), stamp: Some(stamp), object_mtime, .. }) => {
                Command::FillFile { inode, object, stamp, object_mtime }
            }
            SoFar::Contents(_) => unreachable!("a file that is read has an object, and a stamp"),
        };
        self.apply(&command);
        None
    }

    /// Begins to read an inode for work of this session that waits for it, unless that is under way.
    pub(super) fn begin_reading(&mut self, inode: InodeNumber, opener: Option<SessionId>, out: &mut Vec<Effect>) {
        if self.readings.contains_key(&inode) {
            return;
        }
        let record = self.back.inode(inode);
        let (Some(record), Some(path)) = (record, self.back.path_below(inode)) else { return };
        let so_far = match record.kind {
            FileKind::Directory => SoFar::Names(Vec::new()),
            FileKind::Regular | FileKind::Symlink => SoFar::Contents(Contents {
                object: None,
                end: 0,
                stamp: None,
                object_mtime: NO_OBJECT_MTIME,
                copies: 0,
            }),
        };
        // Names have no place: a directory is read by any node.
        let opener = opener.filter(|_| matches!(so_far, SoFar::Contents(_)));
        let machine = opener.and_then(|session| self.sessions.machine(session));
        self.readings.insert(inode, Reading { path, so_far, is_done: false, machine, token: 0, away: 0 });
        self.go_on_reading(inode, out);
    }

    fn go_on_reading(&mut self, inode: InodeNumber, out: &mut Vec<Effect>) {
        let Some(reading) = self.readings.get(&inode) else { return };
        let request = reading.request(inode);
        let node = match &reading.so_far {
            SoFar::Contents(Contents { object: Some(object), .. }) => Some(object.node()),
            _ => self.reader_of(inode, reading.machine, reading.away),
        };
        match node {
            Some(node) => {
                let token = self.token_for(node, StorageWait::Below { inode });
                self.readings.entry(inode).and_modify(|reading| reading.token = token);
                out.push(Effect::Storage { token: Some(token), node, request });
            }
            None => self.reading_failed(inode, &Error::Unreachable, out),
        }
    }

    /// Returns the storage server that reads an inode for a client of this machine, after `away` others could not.
    fn reader_of(&self, inode: InodeNumber, machine: Option<NodeIdentity>, away: usize) -> Option<NodeId> {
        let nodes = self.map.nodes.iter().filter(|node| NodeRecord::takes_files(node));
        let (mut near, mut far): (Vec<_>, Vec<_>) = nodes.partition(|node| Some(node.identity) == machine);
        for group in [&mut near, &mut far] {
            let turn = inode.raw() % u64::try_from(group.len()).ok()?.max(1);
            group.rotate_left(usize::try_from(turn).ok()?);
        }
        near.iter().chain(&far).nth(away).map(|node| node.id)
    }

    /// Takes a storage server's answer.
    pub(super) fn below_answered(
        &mut self,
        (inode, token): (InodeNumber, u64),
        result: Result<StorageAnswer, Error>,
        out: &mut Vec<Effect>,
    ) {
        let Some(reading) = self.readings.get_mut(&inode).filter(|reading| reading.token == token) else {
            if let Ok(StorageAnswer::Filled { object, .. }) = result {
                self.removals.entry(object.node()).or_default().push((inode, object));
            }
            return;
        };
        let taken = match (result, &mut reading.so_far) {
            (
                Err(Error::Unreachable | Error::NoSpace),
                SoFar::Names(_) | SoFar::Contents(Contents { object: None, .. }),
            ) => {
                reading.away += 1;
                Ok(false)
            }
            (Err(error), _) => Err(error),
            (Ok(answer), _) => reading.take(answer),
        };
        match taken {
            // The file was truncated, or removed.
            _ if !self.back.is_unread(inode) => {
                self.drop_reading(inode);
                self.wake(Wait::Below(inode));
            }
            Err(error) => self.reading_failed(inode, &error, out),
            Ok(true) => {
                reading.is_done = true;
                self.wake(Wait::Below(inode));
            }
            // The shard is about to move: it reads from the beginning then.
            Ok(false) if self.is_frozen() => {}
            Ok(false) => self.go_on_reading(inode, out),
        }
    }

    /// Fails all work that waits for the inode. The next call reads it again.
    fn reading_failed(&mut self, inode: InodeNumber, error: &Error, out: &mut Vec<Effect>) {
        self.drop_reading(inode);
        for number in self.parking.wake(Wait::Below(inode)) {
            match self.parking.take(number).map(|parked| parked.work) {
                Some(Work::Call(call)) => {
                    self.reply(call.token, Err(error.clone()), out);
                    self.wake(Wait::Repeated(call.origin));
                }
                Some(Work::Peer { token, call }) => {
                    self.answer_step(token, PeerReply { intent: call.intent, result: Err(error.clone()) }, out);
                }
                None => {}
            }
        }
    }

    fn drop_reading(&mut self, inode: InodeNumber) {
        if let Some(Reading { so_far: SoFar::Contents(Contents { object: Some(object), .. }), .. }) =
            self.readings.remove(&inode)
        {
            self.removals.entry(object.node()).or_default().push((inode, object));
        }
    }

    /// Restarts the readings that were under way when the shard was frozen.
    pub(super) fn read_again(&mut self) {
        for inode in self.readings.keys().copied().collect::<Vec<_>>() {
            self.drop_reading(inode);
        }
        let waiting = self.parking.iter().filter_map(|(_, parked)| match parked.wait {
            Wait::Below(inode) => Some(inode),
            _ => None,
        });
        for inode in waiting.collect::<std::collections::BTreeSet<_>>() {
            self.wake(Wait::Below(inode));
        }
    }
}
