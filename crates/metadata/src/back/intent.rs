//! Directories whose dentry is at one shard and whose inode is at another.
//!
//! The asking shard records an intent, which locks the dentry; asks the other shard to make or remove the inode; then
//! puts or removes the dentry, and has the other shard forget the intent. The other shard remembers its answer until
//! then, so that each step may be repeated.
//!
//! Without an answer ("unreachable") nobody here knows whether the step was done: the operation fails, and the other
//! shard is asked to undo the step, until it says that it has. For that a removal only *closes* the directory: its
//! inode ends no sooner than the intent is forgotten; undone, the directory is open again. Until then calls that would
//! tell which, or make something in it, wait. So the failure of an operation is final, and both of its parts happen or
//! neither does.
//!
//! Invariant: a locked name is changed by its intent only; nothing is removed from under it. A closed directory is
//! empty and has no links, and one intent has closed it: the latest that asked for its removal.
//! Not here: sending and repeating the steps (`front/intents.rs`).
//! On a crash: intents that were recorded are asked again.

use super::create::NewOwner;
use super::inode::{EMPTY_DIRECTORY_LINKS, Inode, STICKY};
use super::permission::{SEARCH, check_access, check_change_names, is_owner};
use super::slots::Origin;
use super::{Aftermath, Back, Dentry};
use crate::kv::KeyValue;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weft_protocol::message::peer::{IntentId, PeerAnswer, PeerStep};
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{Credentials, Error, FileKind, Grants, InodeNumber, Name, Result, ShardId, Timestamp};

/// Forgotten intents of other shards that are still recognized, so that a step that comes late does nothing.
const FORGOTTEN_MAX: usize = 4096;

/// How far an intent is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    /// The other shard is asked to make or remove the inode.
    Asking,
    /// All is done here; the other shard is asked to forget it (or to undo what it may have done).
    Closing(PeerStep),
}

#[derive(Clone, Debug)]
struct Intent {
    origin: Origin,
    to: ShardId,
    parent: InodeNumber,
    name: Name,
    step: PeerStep,
    state: State,
}

/// Intents recorded here, and what was done for those of other shards.
#[derive(Default, Debug)]
pub(super) struct Intents {
    own: BTreeMap<u64, Intent>,
    locks: BTreeMap<(InodeNumber, Name), u64>,
    answered: BTreeMap<IntentId, Result<PeerAnswer>>,
    /// Directories that intents of other shards have closed, each with its time of change before that.
    closed: BTreeMap<IntentId, (InodeNumber, Timestamp)>,
    forgotten: BTreeSet<IntentId>,
    forgotten_in_order: VecDeque<IntentId>,
}

impl<K: KeyValue> Back<K> {
    /// The intent that locks this name.
    pub fn locked(&self, parent: InodeNumber, name: &Name) -> Option<u64> {
        if self.intents.locks.is_empty() {
            return None;
        }
        self.intents.locks.get(&(parent, name.clone())).copied()
    }

    /// An intent that locks a name of this directory.
    pub fn lock_within(&self, directory: InodeNumber) -> Option<u64> {
        self.intents.locks.iter().find(|((parent, _), _)| *parent == directory).map(|(_, number)| *number)
    }

    /// Whether all is done here, and only the other shard has to forget.
    pub fn is_closing(&self, number: u64) -> bool {
        self.intents.own.get(&number).is_some_and(|intent| intent.state != State::Asking)
    }

    /// What must be asked (again) for an intent. `None`: it is closed.
    pub fn question(&self, number: u64) -> Option<(ShardId, IntentId, PeerStep)> {
        let intent = self.intents.own.get(&number)?;
        let step = match &intent.state {
            State::Asking => &intent.step,
            State::Closing(step) => step,
        };
        Some((intent.to, IntentId { shard: self.shard, number }, step.clone()))
    }

    /// The directory that an intent of another shard has closed.
    pub fn closed_by(&self, intent: IntentId) -> Option<InodeNumber> {
        self.intents.closed.get(&intent).map(|(inode, _)| *inode)
    }

    /// The directory that a call is about and that an intent of another shard has closed: whether it goes is known when
    /// the intent is forgotten or undone. What is empty in either case needs not wait: lookups and listings.
    pub fn closed_for(&self, request: &ShardRequest) -> Option<InodeNumber> {
        if self.intents.closed.is_empty() {
            return None;
        }
        let about = match request {
            ShardRequest::GetAttributes { inode }
            | ShardRequest::HoldDirectory { inode }
            | ShardRequest::SetAttributes { inode, .. } => *inode,
            ShardRequest::OpenAt { parent, create: Some(_), .. }
            | ShardRequest::MakeDirectory { parent, .. }
            | ShardRequest::MakeSymlink { parent, .. }
            | ShardRequest::Link { parent, .. } => *parent,
            ShardRequest::Rename { new_parent, .. } => *new_parent,
            _ => return None,
        };
        self.intents.closed.values().any(|(inode, _)| *inode == about).then_some(about)
    }

    pub(super) fn begin_intent(
        &mut self,
        time: Timestamp,
        origin: Origin,
        caller: &Credentials,
        request: &ShardRequest,
        to: ShardId,
    ) -> Result<u64> {
        let (parent, name, step) = match request {
            ShardRequest::MakeDirectory { parent, name, mode, .. } => {
                let directory = self.free_place(caller, *parent, name)?;
                let NewOwner { uid, gid, mode } = NewOwner::of(&directory, caller, FileKind::Directory, *mode);
                (*parent, name, PeerStep::MakeDirectoryInode { parent: *parent, mode, uid, gid, time })
            }
            ShardRequest::RemoveDirectory { parent, name } => {
                let directory = self.directory(*parent)?;
                check_access(&directory, caller, SEARCH)?;
                let inode = self.existing(*parent, name)?.inode;
                check_change_names(&directory, caller)?;
                let sticky = directory.mode & STICKY != 0 && !is_owner(&directory, caller);
                let sticky_parent_uid = sticky.then_some(directory.uid);
                let credentials = caller.clone();
                (*parent, name, PeerStep::RemoveDirectoryInode { inode, credentials, sticky_parent_uid })
            }
            other => unreachable!("only mkdir and rmdir go by intent, not {other:?}"),
        };
        let number = self.next_intent;
        self.next_intent += 1;
        let locked = self.intents.locks.insert((parent, name.clone()), number);
        assert!(locked.is_none(), "{name:?} in {parent} was locked already");
        let intent = Intent { origin, to, parent, name: name.clone(), step, state: State::Asking };
        self.intents.own.insert(number, intent);
        Ok(number)
    }

    /// The other shard's answer to a step. `Some`: the operation is over, with this result.
    pub(super) fn answer_intent(
        &mut self,
        time: Timestamp,
        number: u64,
        answer: &Result<PeerAnswer>,
    ) -> Option<(Origin, Result<ShardAnswer>)> {
        let intent = self.intents.own.get(&number)?.clone();
        if let State::Closing(_) = intent.state {
            if matches!(answer, Ok(PeerAnswer::Forgotten)) {
                self.intents.own.remove(&number);
            }
            return None;
        }
        let result = match (answer, &intent.step) {
            (Ok(PeerAnswer::Made(attributes)), PeerStep::MakeDirectoryInode { .. }) => {
                let dentry = Dentry { inode: attributes.inode, kind: FileKind::Directory };
                let mut directory = self.inode(intent.parent).expect("a locked name keeps its directory");
                self.add_dentry(time, (intent.parent, &mut directory), &intent.name, dentry);
                self.put_inode(intent.parent, &directory);
                Ok(ShardAnswer::Entry { attributes: attributes.clone(), grants: Grants::empty() })
            }
            (Ok(PeerAnswer::Removed), PeerStep::RemoveDirectoryInode { inode, .. }) => {
                let mut directory = self.inode(intent.parent).expect("a locked name keeps its directory");
                self.drop_dentry(time, (intent.parent, &mut directory), &intent.name);
                self.put_inode(intent.parent, &directory);
                Ok(ShardAnswer::Removed { time, inode: *inode, links: 0 })
            }
            (Ok(_), _) => return None,
            (Err(error), _) => Err(error.clone()),
        };
        // Without an answer nobody knows whether the step was done: then it is to be taken back.
        let closing = if result.is_err() { PeerStep::Undo } else { PeerStep::Forget };
        self.intents.locks.remove(&(intent.parent, intent.name));
        let entry = self.intents.own.get_mut(&number).expect("it was there above");
        entry.state = State::Closing(closing);
        Some((intent.origin, result))
    }

    /// A step that another shard asks for. The same step again gets the same answer.
    pub(super) fn peer_step(
        &mut self,
        time: Timestamp,
        (intent, step): (IntentId, &PeerStep),
        keep: bool,
        aftermath: &mut Aftermath,
    ) -> Result<PeerAnswer> {
        match step {
            PeerStep::Forget => {
                if let Some((number, _)) = self.intents.closed.remove(&intent) {
                    self.end_closed(number, keep, aftermath);
                }
                self.forget(intent);
                return Ok(PeerAnswer::Forgotten);
            }
            PeerStep::Undo => {
                if let Some((number, ctime)) = self.intents.closed.remove(&intent) {
                    self.open_again(number, ctime);
                }
                if let Some(Ok(PeerAnswer::Made(attributes))) = self.intents.answered.get(&intent) {
                    let number = attributes.inode;
                    if let Some(inode) = self.inode(number) {
                        self.drop_inode(number, &inode, aftermath);
                    }
                }
                self.forget(intent);
                return Ok(PeerAnswer::Forgotten);
            }
            PeerStep::MakeDirectoryInode { .. } | PeerStep::RemoveDirectoryInode { .. } => {}
        }
        if self.intents.forgotten.contains(&intent) {
            return Err(Error::Invalid);
        }
        if let Some(answer) = self.intents.answered.get(&intent) {
            return answer.clone();
        }
        let answer = match step {
            PeerStep::MakeDirectoryInode { parent, mode, uid, gid, time: at } => {
                let owner = NewOwner { uid: *uid, gid: *gid, mode: *mode };
                let inode = Inode::new(FileKind::Directory, &owner, *parent, *at);
                let number = self.next_inode();
                self.inodes += 1;
                self.put_inode(number, &inode);
                Ok(PeerAnswer::Made(inode.attributes(number)))
            }
            PeerStep::RemoveDirectoryInode { inode, credentials, sticky_parent_uid } => {
                self.close_directory(time, intent, *inode, (credentials, *sticky_parent_uid))
            }
            PeerStep::Forget | PeerStep::Undo => unreachable!("answered above"),
        };
        self.intents.answered.insert(intent, answer.clone());
        answer
    }

    /// Closes an empty directory whose name goes at the shard of the intent.
    fn close_directory(
        &mut self,
        time: Timestamp,
        intent: IntentId,
        number: InodeNumber,
        (caller, sticky_parent_uid): (&Credentials, Option<u32>),
    ) -> Result<PeerAnswer> {
        let closed = self.intents.closed.iter().find(|(_, (inode, _))| *inode == number);
        let closed = closed.map(|(by, (_, ctime))| (*by, *ctime));
        // Gone already, as the shard of its name does not know: the dentry shall go too.
        let Some(mut inode) = self.inode(number).filter(|inode| inode.links > 0 || closed.is_some()) else {
            return Ok(PeerAnswer::Removed);
        };
        if inode.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        if sticky_parent_uid.is_some_and(|owner| owner != caller.uid) && !is_owner(&inode, caller) {
            return Err(Error::NotPermitted);
        }
        if let Some((by, ctime)) = closed {
            // The name is free for a later intent: the earlier one has failed, and that it is to be undone means
            // nothing any more. The step of an earlier one comes too late.
            if by.shard != intent.shard || by.number > intent.number {
                return Err(Error::Invalid);
            }
            self.intents.closed.remove(&by);
            self.forget(by);
            self.intents.closed.insert(intent, (number, ctime));
            return Ok(PeerAnswer::Removed);
        }
        self.check_empty(number, &inode)?;
        self.intents.closed.insert(intent, (number, inode.ctime));
        inode.links = 0;
        inode.ctime = time;
        self.put_inode(number, &inode);
        Ok(PeerAnswer::Removed)
    }

    /// The name of a closed directory is gone.
    fn end_closed(&mut self, number: InodeNumber, keep: bool, aftermath: &mut Aftermath) {
        let inode = self.inode(number).expect("a closed directory keeps its inode");
        self.drop_or_keep(number, &inode, keep, aftermath);
    }

    /// The name of a closed directory stays.
    fn open_again(&mut self, number: InodeNumber, ctime: Timestamp) {
        let mut inode = self.inode(number).expect("a closed directory keeps its inode");
        inode.links = EMPTY_DIRECTORY_LINKS;
        inode.ctime = ctime;
        self.put_inode(number, &inode);
    }

    fn forget(&mut self, intent: IntentId) {
        self.intents.answered.remove(&intent);
        if self.intents.forgotten.insert(intent) {
            self.intents.forgotten_in_order.push_back(intent);
        }
        if self.intents.forgotten_in_order.len() > FORGOTTEN_MAX
            && let Some(oldest) = self.intents.forgotten_in_order.pop_front()
        {
            self.intents.forgotten.remove(&oldest);
        }
    }
}
