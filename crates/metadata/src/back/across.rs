//! The coordinator of an operation over several shards: what it locks where, what it decides, in which order the
//! changes are made.
//!
//! ```text
//!  Locking ──(all have locked)──► decided ──► Carrying ──(all have changed)──► answered
//!     │                              │
//!     └──(unreachable, gone)──► Closing ◄──(refused)      Closing: others release, nobody waits
//! ```
//!
//! What an operation needs follows from the names that it is about and from what they name, which is certain only when
//! they are locked. If that shows that something else is needed, it is locked too; where the ascending order forbids
//! that, all is released, and locked anew.
//!
//! Invariant: the caller is answered when every shard that can be reached has made its changes. What a shard that could
//! not be reached misses it is told until it answers; nothing is told there of what is locked.
//! Not here: what a lock means (`locks.rs`), what may be done (`permit.rs`), sending and repeating
//! (`front/intents.rs`).

use super::permit::{self, Facts};
use super::slots::Origin;
use super::{Back, Dentry};
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use weft_protocol::message::peer::{Fate, IntentId, Lock, NameChange, PeerAnswer, PeerStep};
use weft_protocol::message::shard::{RenameMode, ShardAnswer, ShardRequest};
use weft_protocol::{Credentials, Error, FileKind, InodeNumber, Name, Result, ShardId, Timestamp, routing};

/// What is to be done at a shard.
type Part<T> = (ShardId, Vec<T>);

/// How far an operation is.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Stage {
    /// The shard with this index is asked to lock.
    Locking(usize),
    /// All have locked. It is asked what the directory `of` is in, as far as `at`.
    Walking { of: InodeNumber, at: InodeNumber },
    /// The first of these parts is asked for.
    Carrying(Box<Carrying>),
    /// The caller has its answer. These steps are asked for.
    Closing(Vec<(ShardId, PeerStep)>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Carrying {
    left: VecDeque<Part<NameChange>>,
    /// Steps for shards that could not be reached, and for those that have nothing to change.
    missed: Vec<(ShardId, PeerStep)>,
    answer: ShardAnswer,
    stamps: Vec<(ShardId, u64)>,
}

/// See the module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Across {
    origin: Origin,
    caller: Credentials,
    request: ShardRequest,
    /// Ascending.
    locks: Vec<Part<Lock>>,
    facts: Facts,
    stage: Stage,
}

/// What an answer means for an operation.
pub(super) enum Progress {
    /// Nothing: it is of an earlier step.
    None,
    /// There is a next step.
    Next,
    /// It is done.
    Closed,
    /// It is given up for one that locks more.
    Again(Across),
    /// The caller's answer; with the stamps of other shards.
    Over(Origin, Result<ShardAnswer>, Vec<(ShardId, u64)>),
}

fn shard_of(lock: &Lock) -> ShardId {
    match lock {
        Lock::Name { directory, name, .. } => routing::of_name(*directory, name),
        Lock::Inode { inode, .. } => routing::of_inode(*inode),
        Lock::Tree => ShardId::ROOT,
    }
}

fn shard_of_change(change: &NameChange) -> ShardId {
    match change {
        NameChange::Set { directory, name, .. } => routing::of_name(*directory, name),
        NameChange::Gain { inode } | NameChange::Lose { inode } | NameChange::Move { inode, .. } => {
            routing::of_inode(*inode)
        }
    }
}

/// Puts what belongs to one shard together, in the order of the first of each.
fn by_shard<T>(items: Vec<T>, shard_of: impl Fn(&T) -> ShardId) -> Vec<Part<T>> {
    let mut parts: Vec<Part<T>> = Vec::new();
    for item in items {
        let shard = shard_of(&item);
        match parts.iter_mut().find(|(of, _)| *of == shard) {
            Some((_, part)) => part.push(item),
            None => parts.push((shard, vec![item])),
        }
    }
    parts
}

impl Across {
    fn new(origin: Origin, caller: Credentials, request: ShardRequest, locks: Vec<Lock>) -> Self {
        let mut locks = by_shard(locks, shard_of);
        locks.sort_unstable_by_key(|(shard, _)| *shard);
        Self { origin, caller, request, locks, facts: Facts::default(), stage: Stage::Locking(0) }
    }

    /// The present steps, each for another shard. Nothing: all is done.
    pub(super) fn questions(&self) -> Vec<(ShardId, PeerStep)> {
        match &self.stage {
            Stage::Locking(index) => {
                let (shard, locks) = &self.locks[*index];
                vec![(*shard, PeerStep::Lock { session: self.origin.session, locks: locks.clone() })]
            }
            Stage::Walking { at, .. } => vec![(routing::of_inode(*at), PeerStep::Ancestors { of: *at })],
            Stage::Carrying(carrying) => {
                let first = carrying.left.front();
                let step = |changes: &Vec<NameChange>| PeerStep::Carry { changes: changes.clone(), is_late: false };
                first.map(|(shard, changes)| (*shard, step(changes))).into_iter().collect()
            }
            Stage::Closing(left) => left.clone(),
        }
    }

    /// The user who asked.
    pub(super) fn caller_uid(&self) -> u32 {
        self.caller.uid
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing(_))
    }

    pub(super) fn is_decided(&self) -> bool {
        matches!(self.stage, Stage::Carrying(_))
    }

    /// The request and its answer, once it is certain that it is carried out.
    pub(super) fn decision(&self) -> Option<(Origin, &ShardRequest, &ShardAnswer)> {
        match &self.stage {
            Stage::Carrying(carrying) => Some((self.origin, &self.request, &carrying.answer)),
            _ => None,
        }
    }

    /// Takes in what a shard says of the present step.
    pub(super) fn answered(&mut self, own: ShardId, time: Timestamp, answer: &Result<PeerAnswer>) -> Progress {
        match &mut self.stage {
            Stage::Locking(index) => {
                let index = *index;
                match answer {
                    Ok(PeerAnswer::Locked { shard, names, inodes }) if *shard == self.locks[index].0 => {
                        if !self.facts.take(&self.locks[index].1, names, inodes) {
                            return Progress::None;
                        }
                        self.locked(own, index)
                    }
                    Ok(_) => Progress::None,
                    Err(error) => self.give_up(own, index, error.clone()),
                }
            }
            Stage::Walking { of, at } => {
                let (of, at, last) = (*of, *at, self.locks.len() - 1);
                match answer {
                    Ok(PeerAnswer::Above { directories, next }) if directories.first() == Some(&at) => {
                        self.facts.walked(of, directories);
                        match next {
                            Some(next) => {
                                self.stage = Stage::Walking { of, at: *next };
                                Progress::Next
                            }
                            None => self.locked(own, last),
                        }
                    }
                    Ok(_) => Progress::None,
                    Err(error) => self.give_up(own, last, error.clone()),
                }
            }
            Stage::Carrying(carrying) => {
                match answer {
                    Ok(PeerAnswer::Carried { shard, stamp, gained })
                        if carrying.left.front().is_some_and(|(asked, _)| asked == shard) =>
                    {
                        carrying.took_part(own, time, (*shard, *stamp), gained.as_ref());
                    }
                    Err(Error::Unreachable | Error::WrongShard(_)) => {
                        if let Some((shard, changes)) = carrying.left.pop_front() {
                            carrying.missed.push((shard, PeerStep::Carry { changes, is_late: true }));
                        }
                    }
                    _ => return Progress::None,
                }
                if !carrying.left.is_empty() {
                    return Progress::Next;
                }
                let Carrying { missed, answer, stamps, .. } = carrying.as_mut();
                let (missed, answer, stamps) = (std::mem::take(missed), answer.clone(), std::mem::take(stamps));
                self.stage = Stage::Closing(missed);
                Progress::Over(self.origin, Ok(answer), stamps)
            }
            Stage::Closing(left) => {
                left.retain(|(asked, step)| match (answer, step) {
                    (Ok(PeerAnswer::Carried { shard, .. }), PeerStep::Carry { .. })
                    | (Ok(PeerAnswer::Forgotten { shard }), PeerStep::Undo) => shard != asked,
                    _ => true,
                });
                // The others are asked again in their time.
                if left.is_empty() { Progress::Closed } else { Progress::None }
            }
        }
    }

    /// The shards up to this one have locked.
    fn locked(&mut self, own: ShardId, index: usize) -> Progress {
        if index + 1 < self.locks.len() {
            self.stage = Stage::Locking(index + 1);
            return Progress::Next;
        }
        let needed = permit::needed(&self.request, &self.facts);
        let is_locked = |lock: &Lock| self.facts.knows(lock);
        if needed.iter().all(is_locked) {
            if let Some(of) = permit::to_walk(&self.request, &self.facts) {
                self.stage = Stage::Walking { of, at: of };
                return Progress::Next;
            }
            return match permit::decide(&self.caller, &self.request, &self.facts) {
                Ok((changes, answer)) => self.decided(own, changes, answer),
                Err(error) => self.give_up(own, index, error),
            };
        }
        let more: Vec<Lock> = needed.iter().filter(|lock| !is_locked(lock)).cloned().collect();
        let last = self.locks[index].0;
        if more.iter().all(|lock| shard_of(lock) > last) {
            let mut more = by_shard(more, shard_of);
            more.sort_unstable_by_key(|(shard, _)| *shard);
            self.locks.extend(more);
            self.stage = Stage::Locking(index + 1);
            return Progress::Next;
        }
        let again = Self::new(self.origin, self.caller.clone(), self.request.clone(), needed);
        self.release(own, index);
        Progress::Again(again)
    }

    fn decided(&mut self, own: ShardId, changes: Vec<NameChange>, answer: ShardAnswer) -> Progress {
        let mut left = VecDeque::from(by_shard(changes, shard_of_change));
        // The coordinator's own changes come last: until then nobody can have seen the operation's result here.
        if let Some(index) = left.iter().position(|(shard, _)| *shard == own)
            && let Some(here) = left.remove(index)
        {
            left.push_back(here);
        }
        let unchanged = |shard: &ShardId| left.iter().all(|(changed, _)| changed != shard);
        let missed = self.locks.iter().map(|(shard, _)| *shard).filter(|shard| *shard != own).filter(unchanged);
        let missed = missed.map(|shard| (shard, PeerStep::Undo)).collect();
        if left.is_empty() {
            self.stage = Stage::Closing(missed);
            return Progress::Over(self.origin, Ok(answer), Vec::new());
        }
        let carrying = Carrying { left, missed, answer, stamps: Vec::new() };
        self.stage = Stage::Carrying(Box::new(carrying));
        Progress::Next
    }

    fn give_up(&mut self, own: ShardId, index: usize, error: Error) -> Progress {
        self.release(own, index);
        Progress::Over(self.origin, Err(error), Vec::new())
    }

    /// The shards up to this one release what they may have locked; this one does so at once.
    fn release(&mut self, own: ShardId, index: usize) {
        let others = self.locks[..=index].iter().map(|(shard, _)| *shard).filter(|shard| *shard != own);
        self.stage = Stage::Closing(others.map(|shard| (shard, PeerStep::Undo)).collect());
    }
}

impl Carrying {
    /// The first shard has made its changes.
    fn took_part(
        &mut self,
        own: ShardId,
        now: Timestamp,
        (shard, stamp): (ShardId, u64),
        gained: Option<&weft_protocol::Attributes>,
    ) {
        self.left.pop_front();
        if shard != own {
            self.stamps.push((shard, stamp));
        }
        match &mut self.answer {
            ShardAnswer::Entry { attributes, .. } => {
                if let Some(gained) = gained {
                    *attributes = gained.clone();
                }
            }
            // The names are removed here.
            ShardAnswer::Removed { time, .. } | ShardAnswer::RemovedBatch { time, .. } if shard == own => *time = now,
            _ => {}
        }
    }
}

impl<K: KeyValue> Back<K> {
    /// Whether a client's change needs other shards, too.
    pub fn crosses(&self, caller: &Credentials, request: &ShardRequest) -> bool {
        let elsewhere = |dentry: Option<Dentry>| dentry.filter(|dentry| !self.is_here(dentry.inode));
        match request {
            ShardRequest::Unlink { parent, name } => {
                elsewhere(self.dentry(*parent, name)).is_some_and(|dentry| dentry.kind != FileKind::Directory)
            }
            ShardRequest::RemoveDirectory { parent, name } => {
                elsewhere(self.dentry(*parent, name)).is_some_and(|dentry| dentry.kind == FileKind::Directory)
            }
            ShardRequest::UnlinkBatch { parent, names } => {
                let first = names.first().and_then(|name| self.dentry(*parent, name));
                elsewhere(first).is_some_and(|dentry| dentry.kind != FileKind::Directory)
            }
            ShardRequest::Link { inode, .. } => !self.is_here(*inode),
            ShardRequest::Rename { parent, name, new_parent, new_name, mode } => {
                if !self.serves(*new_parent, new_name) {
                    return true;
                }
                let source = self.dentry(*parent, name);
                let target = self.dentry(*new_parent, new_name);
                let is_same = source.map(|source| source.inode) == target.map(|target| target.inode);
                if source.is_none() || is_same || (target.is_some() && *mode == RenameMode::NoReplace) {
                    return false;
                }
                let is_replaced = *mode == RenameMode::Replace && elsewhere(target).is_some();
                let guards = |directory: InodeNumber, dentry| {
                    elsewhere(dentry).is_some()
                        && self.inode(directory).is_some_and(|directory| permit::is_sticky(&directory, caller))
                };
                let is_exchange = *mode == RenameMode::Exchange;
                let moves = |moved: Option<Dentry>, under| {
                    parent != new_parent && moved.is_some_and(|moved| self.may_close_cycle(moved, under))
                };
                is_replaced
                    || guards(*parent, source)
                    || guards(*new_parent, target)
                    || moves(source, *new_parent)
                    || (is_exchange && moves(target, *parent))
            }
            _ => false,
        }
    }

    /// Records a client's change that needs other shards. Its number.
    pub(super) fn begin_across(&mut self, origin: Origin, caller: &Credentials, request: &ShardRequest) -> u64 {
        let mut guess = Facts::default();
        for (directory, name) in permit::names_of(request) {
            if self.serves(directory, name)
                && let Ok(PeerAnswer::Locked { names, .. }) = self.glance(directory, name)
            {
                let lock = Lock::Name { directory, name: name.clone(), fate: Fate::Stays };
                guess.take(&[lock], &names, &[]);
            }
        }
        let across = Across::new(origin, caller.clone(), request.clone(), permit::needed(request, &guess));
        self.record(super::intent::Own::Across(Box::new(across)))
    }

    /// What a name is now, without a lock.
    fn glance(&self, directory: InodeNumber, name: &Name) -> Result<PeerAnswer> {
        let names = vec![self.locked_name(directory, name)?];
        Ok(PeerAnswer::Locked { shard: self.shard, names, inodes: Vec::new() })
    }

    /// The request of an own intent and its answer, once it is certain that it is carried out.
    pub fn decision(&self, intent: IntentId) -> Option<(Origin, &ShardRequest, &ShardAnswer)> {
        self.own_across(intent)?.decision()
    }
}
