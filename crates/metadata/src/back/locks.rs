//! What intents have locked here, and the changes that they make of it.
//!
//! A step locks all that it asks for, or nothing. What is locked is changed by its intent alone. Of the locks of other
//! shards' intents nothing is told until they are released, since the other shard may have told of the operation
//! already; the own ones hide nothing, since they end with the moment at which the intent is carried out.
//!
//! Invariant: a locked name keeps its directory, a directory that is to go gets no names; a step that is repeated, or
//! comes after the intent was forgotten, changes nothing.
//! Not here: recalls before a lock (`front/peer.rs`), the order of steps (`across.rs`).
//! On a crash of the coordinator: the locks stay, and calls that wait for them are told that it is unreachable.

use super::inode::{EMPTY_DIRECTORY_LINKS, Inode};
use super::{Aftermath, Back, Dentry};
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weft_protocol::message::peer::{Fate, IntentId, Lock, LockedName, NameChange, PartAttributes, PeerAnswer};
use weft_protocol::{Attributes, Error, FileKind, InodeNumber, Name, Result, SessionId, Timestamp};

/// Forgotten intents of other shards that are still recognized, so that a step that comes late does nothing.
const FORGOTTEN_MAX: usize = 4096;
/// Most directories that one answer about what is above tells of.
const ABOVE_MAX: usize = 256;

/// All that one intent has locked.
#[derive(Default, Debug, Serialize, Deserialize)]
struct Held {
    session: SessionId,
    names: Vec<(InodeNumber, Name)>,
    inodes: Vec<InodeNumber>,
}

/// See the module.
#[derive(Default, Debug, Serialize, Deserialize)]
pub(super) struct Locks {
    names: BTreeMap<InodeNumber, BTreeMap<Name, IntentId>>,
    inodes: BTreeMap<InodeNumber, (IntentId, Fate)>,
    /// Who has locked the tree of directories (at the root shard).
    tree: Option<IntentId>,
    held: BTreeMap<IntentId, Held>,
    forgotten: BTreeSet<IntentId>,
    forgotten_in_order: VecDeque<IntentId>,
}

impl Locks {
    fn name(&self, directory: InodeNumber, name: &Name) -> Option<IntentId> {
        self.names.get(&directory)?.get(name).copied()
    }

    /// An intent that has locked a name of this directory.
    fn within(&self, directory: InodeNumber) -> Option<IntentId> {
        self.names.get(&directory)?.values().next().copied()
    }

    fn inode(&self, inode: InodeNumber) -> Option<IntentId> {
        self.inodes.get(&inode).map(|(intent, _)| *intent)
    }

    /// The intent with which a directory goes.
    fn going(&self, directory: InodeNumber) -> Option<IntentId> {
        self.inodes.get(&directory).filter(|(_, fate)| *fate == Fate::Loses).map(|(intent, _)| *intent)
    }

    pub(super) fn take_name(&mut self, intent: IntentId, directory: InodeNumber, name: &Name) {
        let before = self.names.entry(directory).or_default().insert(name.clone(), intent);
        assert!(before.is_none_or(|before| before == intent), "{name:?} in {directory} was locked already");
        self.held.entry(intent).or_default().names.push((directory, name.clone()));
    }

    fn take_inode(&mut self, intent: IntentId, inode: InodeNumber, fate: Fate) {
        let before = self.inodes.get(&inode).copied();
        assert!(before.is_none_or(|(before, _)| before == intent), "inode {inode} was locked already");
        let loses = fate == Fate::Loses || before.is_some_and(|(_, fate)| fate == Fate::Loses);
        self.inodes.insert(inode, (intent, if loses { Fate::Loses } else { Fate::Stays }));
        self.held.entry(intent).or_default().inodes.push(inode);
    }

    pub(super) fn release(&mut self, intent: IntentId) {
        self.tree.take_if(|by| *by == intent);
        let Some(held) = self.held.remove(&intent) else { return };
        for (directory, name) in held.names {
            if let Some(names) = self.names.get_mut(&directory) {
                names.remove(&name);
                if names.is_empty() {
                    self.names.remove(&directory);
                }
            }
        }
        for inode in held.inodes {
            self.inodes.remove(&inode);
        }
    }

    pub(super) fn is_forgotten(&self, intent: IntentId) -> bool {
        self.forgotten.contains(&intent)
    }

    pub(super) fn forget(&mut self, intent: IntentId) {
        if self.forgotten.insert(intent) {
            self.forgotten_in_order.push_back(intent);
        }
        if self.forgotten_in_order.len() > FORGOTTEN_MAX
            && let Some(oldest) = self.forgotten_in_order.pop_front()
        {
            self.forgotten.remove(&oldest);
        }
    }
}

impl<K: KeyValue> Back<K> {
    /// Whether nothing is locked.
    pub fn has_no_locks(&self) -> bool {
        self.locks.held.is_empty()
    }

    /// The intent that has locked a name, or will remove its directory: changes of the name wait for it.
    pub fn locked(&self, directory: InodeNumber, name: &Name) -> Option<IntentId> {
        if self.has_no_locks() {
            return None;
        }
        self.locks.name(directory, name).or_else(|| self.locks.going(directory))
    }

    /// The intent that has locked an inode: changes of its names wait for it.
    pub fn locked_inode(&self, inode: InodeNumber) -> Option<IntentId> {
        self.locks.inode(inode)
    }

    /// The intent with which a directory goes, or is changed as a whole: other changes of it wait.
    pub fn locked_as_a_whole(&self, directory: InodeNumber) -> Option<IntentId> {
        self.locks.going(directory)
    }

    /// An intent that has locked a name of this directory.
    pub fn lock_within(&self, directory: InodeNumber) -> Option<IntentId> {
        self.locks.within(directory)
    }

    /// Whether an intent may have been told of elsewhere, so that nothing may be told of what it has locked.
    fn hides(&self, intent: IntentId) -> bool {
        intent.shard != self.shard
    }

    /// The intent for which a look-up of a name, or an open by it, has to wait.
    pub fn hidden_name(&self, directory: InodeNumber, name: &Name) -> Option<IntentId> {
        if self.has_no_locks() {
            return None;
        }
        let of_inode = || self.dentry(directory, name).and_then(|dentry| self.locks.inode(dentry.inode));
        self.locks.name(directory, name).or_else(of_inode).filter(|intent| self.hides(*intent))
    }

    /// The intent for which a question about an inode has to wait; about a directory also one that changes names in it.
    pub fn hidden_inode(&self, inode: InodeNumber) -> Option<IntentId> {
        if self.has_no_locks() {
            return None;
        }
        let within = self.locks.names.get(&inode).into_iter().flat_map(|names| names.values().copied());
        self.locks.inode(inode).into_iter().chain(within).find(|intent| self.hides(*intent))
    }

    /// Another intent that has locked something of this.
    pub fn blocker(&self, intent: IntentId, locks: &[Lock]) -> Option<IntentId> {
        if self.has_no_locks() {
            return None;
        }
        let of_inode = |inode: InodeNumber, fate: Fate| {
            let within = if fate == Fate::Loses { self.locks.within(inode) } else { None };
            self.locks.inode(inode).or(within)
        };
        let by = |lock: &Lock| match lock {
            Lock::Inode { inode, fate } => of_inode(*inode, *fate),
            Lock::Tree => self.locks.tree,
            Lock::Name { directory, name, fate } => self
                .locked(*directory, name)
                .or_else(|| self.dentry(*directory, name).and_then(|dentry| of_inode(dentry.inode, *fate))),
        };
        locks.iter().filter_map(by).find(|by| *by != intent)
    }

    /// Whether an intent has locked all of this.
    pub fn has_locked(&self, intent: IntentId, locks: &[Lock]) -> bool {
        let is_locked = |lock: &Lock| match lock {
            Lock::Name { directory, name, .. } => self.locks.name(*directory, name) == Some(intent),
            Lock::Inode { inode, fate } => self
                .locks
                .inodes
                .get(inode)
                .is_some_and(|(by, locked)| *by == intent && (*fate == Fate::Stays || *locked == Fate::Loses)),
            Lock::Tree => self.locks.tree == Some(intent),
        };
        locks.iter().all(is_locked)
    }

    /// Locks all of this for an intent of the session, unless it has done so. Nobody else has locked any of it.
    pub(super) fn lock_all(
        &mut self,
        intent: IntentId,
        (session, round): (SessionId, u32),
        locks: &[Lock],
    ) -> Result<PeerAnswer> {
        if self.locks.is_forgotten(intent) {
            return Err(Error::Invalid);
        }
        let (mut names, mut inodes) = (Vec::new(), Vec::new());
        for lock in locks {
            match lock {
                Lock::Name { directory, name, .. } => names.push(self.locked_name(*directory, name)?),
                Lock::Inode { inode, .. } => inodes.push(self.inode(*inode).map(|record| record.attributes(*inode))),
                Lock::Tree => {}
            }
        }
        if !self.has_locked(intent, locks) {
            for lock in locks {
                match lock {
                    Lock::Name { directory, name, fate } => {
                        self.locks.take_name(intent, *directory, name);
                        let dentry = self.dentry(*directory, name).filter(|dentry| self.is_here(dentry.inode));
                        if let Some(dentry) = dentry {
                            self.locks.take_inode(intent, dentry.inode, *fate);
                        }
                    }
                    Lock::Inode { inode, fate } => self.locks.take_inode(intent, *inode, *fate),
                    Lock::Tree => self.locks.tree = Some(intent),
                }
            }
            self.locks.held.entry(intent).or_default().session = session;
        }
        Ok(PeerAnswer::Locked { shard: self.shard, round, stamp: 0, names, inodes })
    }

    /// An intent that may change what is above `below`, or has locked a name in `directory`: a move of this directory
    /// to below that one inside the shard has to wait for it.
    pub fn lock_above(&self, directory: InodeNumber, below: InodeNumber) -> Option<IntentId> {
        if self.has_no_locks() {
            return None;
        }
        let mut at = below;
        while at != directory && self.is_here(at) {
            if let Some(intent) = self.locks.inode(at) {
                return Some(intent);
            }
            if at == InodeNumber::ROOT {
                break;
            }
            at = self.inode(at)?.parent;
        }
        self.locks.within(directory)
    }

    /// A directory and those that it is in up to `/`, as far as they are at this shard, and [`ABOVE_MAX`] at most.
    fn way_up(&self, of: InodeNumber) -> impl Iterator<Item = InodeNumber> {
        let here = |at: &InodeNumber| *at == InodeNumber::ROOT || self.is_here(*at);
        let parent = |at: &InodeNumber| self.directory(*at).ok().map(|directory| directory.parent);
        let next = move |at: &InodeNumber| parent(at).filter(|_| *at != InodeNumber::ROOT).filter(here);
        std::iter::successors(Some(of).filter(here), next).take(ABOVE_MAX)
    }

    /// The other intent that may have decided to move one of the directories that [`Back::above`] would tell of.
    pub fn lock_on_way_up(&self, intent: IntentId, of: InodeNumber) -> Option<IntentId> {
        let mut movable = self.way_up(of).filter(|at| *at != InodeNumber::ROOT);
        movable.find_map(|at| self.locks.inode(at).filter(|by| *by != intent))
    }

    /// What a directory is in, for an intent that has locked the tree. [`Error::Busy`]: another intent may have decided
    /// to move one of these, and not reached this shard yet. It cannot be waited for, since it may wait for this one.
    pub(super) fn above(&self, intent: IntentId, of: InodeNumber) -> Result<PeerAnswer> {
        if self.lock_on_way_up(intent, of).is_some() {
            return Err(Error::Busy);
        }
        let directories: Vec<_> = self.way_up(of).collect();
        let next = match directories.last() {
            Some(&InodeNumber::ROOT) => None,
            Some(&top) => Some(self.directory(top)?.parent),
            None => Some(of),
        };
        Ok(PeerAnswer::Above { directories, next })
    }

    pub(super) fn locked_name(&self, number: InodeNumber, name: &Name) -> Result<LockedName> {
        let directory = self.directory(number)?;
        self.check_serves(&directory, (number, name))?;
        let directory = directory.attributes(number);
        let dentry = self.dentry(number, name);
        let here = dentry.and_then(|dentry| Some((dentry.inode, self.inode(dentry.inode)?)));
        let attributes = here.map(|(inode, record)| record.attributes(inode));
        Ok(LockedName { directory, entry: dentry.map(|Dentry { inode, kind }| (inode, kind)), attributes })
    }

    /// The session for which an intent has locked something here.
    pub fn lock_session(&self, intent: IntentId) -> Option<SessionId> {
        self.locks.held.get(&intent).map(|held| held.session)
    }

    /// Other shards whose intents have locked something here.
    pub fn foreign_locks(&self) -> impl Iterator<Item = IntentId> {
        self.locks.held.keys().copied().filter(|intent| intent.shard != self.shard)
    }

    /// Makes the changes of an intent that has locked what they are about, and releases it. Nothing is done when it
    /// was done before.
    pub(super) fn carry(
        &mut self,
        time: Timestamp,
        intent: IntentId,
        changes: &[NameChange],
        keep: bool,
        aftermath: &mut Aftermath,
    ) -> PeerAnswer {
        if self.locks.held.contains_key(&intent) {
            for change in changes {
                match change {
                    NameChange::Set { directory, name, entry } => self.set_name(time, *directory, name, *entry),
                    NameChange::Gain { inode, time } => self.gain_name(*time, *inode),
                    NameChange::Lose { inode } => self.lose_name(time, *inode, keep, aftermath),
                    NameChange::Move { inode, directory } => self.moved(time, *inode, *directory),
                    NameChange::Become { inode, attributes } => self.become_alike(*inode, attributes),
                }
            }
            self.locks.release(intent);
        }
        self.locks.forget(intent);
        PeerAnswer::Carried { shard: self.shard }
    }

    fn set_name(&mut self, time: Timestamp, number: InodeNumber, name: &Name, entry: Option<(InodeNumber, FileKind)>) {
        let mut directory = self.inode(number).expect("a locked name keeps its directory");
        let place = (number, &mut directory);
        match (entry.map(|(inode, kind)| Dentry { inode, kind }), self.dentry(number, name)) {
            (Some(dentry), None) => self.add_dentry(time, place, name, dentry),
            (Some(dentry), Some(_)) => self.set_dentry(time, place, name, dentry),
            (None, Some(_)) => self.drop_dentry(time, place, name),
            (None, None) => unreachable!("{name:?} in {number} was locked as a name that is there"),
        }
        self.put_inode(number, &directory);
    }

    fn gain_name(&mut self, time: Timestamp, number: InodeNumber) {
        let mut inode = self.inode(number).expect("a locked inode is there");
        inode.gain_name(time);
        self.put_inode(number, &inode);
    }

    fn lose_name(&mut self, time: Timestamp, number: InodeNumber, keep: bool, aftermath: &mut Aftermath) {
        let Some(inode) = self.inode(number) else { return };
        if inode.kind == FileKind::Directory {
            assert!(
                inode.size == 0 && inode.links == EMPTY_DIRECTORY_LINKS,
                "directory {number} goes with names in it"
            );
            self.drop_directory(time, number, inode, keep, aftermath);
        } else {
            self.drop_link(time, number, inode, keep, aftermath);
        }
    }

    fn moved(&mut self, time: Timestamp, number: InodeNumber, directory: InodeNumber) {
        let Some(mut inode) = self.inode(number) else { return };
        if inode.kind == FileKind::Directory {
            inode.parent = directory;
        }
        inode.ctime = time.after(inode.ctime);
        self.put_inode(number, &inode);
    }

    /// A directory with parts, or one of these, takes on what is changed of all of them.
    fn become_alike(&mut self, number: InodeNumber, attributes: &PartAttributes) {
        // One without a name may be reaped while it is locked.
        let Some(mut directory) = self.inode(number) else { return };
        let PartAttributes { mode, uid, gid, inherited, atime, mtime, ctime } = *attributes;
        (directory.mode, directory.uid, directory.gid, directory.atime) = (mode, uid, gid, atime);
        directory.inherit(inherited);
        directory.mtime = mtime.unwrap_or(directory.mtime);
        directory.ctime = ctime.max(directory.ctime);
        self.put_inode(number, &directory);
    }

    /// Releases what an intent has locked, and has its steps do nothing from now on.
    pub(super) fn unlock(&mut self, intent: IntentId) {
        self.locks.release(intent);
        self.locks.forget(intent);
    }
}

impl Inode {
    /// There is one name more.
    pub(super) fn gain_name(&mut self, time: Timestamp) {
        self.links += 1;
        self.ctime = time.after(self.ctime);
    }

    /// The inode as another shard tells of it.
    pub(super) fn told(attributes: &Attributes) -> Self {
        let Attributes { kind, mode, links, uid, gid, size, atime, mtime, ctime, .. } = *attributes;
        let (layout, spreads, parts) =
            (attributes.layout.clone(), attributes.inherited().spreads, attributes.parts.clone());
        let (object_mtime, parent) = (super::inode::NO_OBJECT_MTIME, InodeNumber::from_raw(0));
        // The number of bytes is not part of what a shard tells; only whether there are any matters here.
        let xattr_bytes = u32::from(attributes.has_xattrs());
        Self {
            kind,
            mode,
            links,
            uid,
            gid,
            size,
            atime,
            mtime,
            ctime,
            layout,
            object_mtime,
            xattr_bytes,
            parent,
            spreads,
            parts,
        }
    }
}
