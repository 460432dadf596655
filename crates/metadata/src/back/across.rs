//! The coordinator of an operation over several shards: what it locks where, and what it decides.
//!
//! ```text
//!  Locking ──(all have locked)──► Decided ──(changed here, answered)──► Closing: others change, or release
//!     │                              │                                     ▲
//!     └──(unreachable, refused)──────┴─────────────────────────────────────┘
//! ```
//!
//! What an operation needs follows from the names that it is about and from what they name, which is certain only when
//! they are locked. All that is known to be needed is asked for at once; if the answers show that something else is
//! needed, that is locked too, in a further round.
//!
//! No two operations wait for each other: one waits for the locks of others only at a shard above all others where it
//! has locked or asked to. Elsewhere a shard refuses what another one has locked. Then all is released, and asked for
//! anew from one shard to the next in ascending order, so that each can wait.
//!
//! Invariant: the caller is answered when it is decided and done here. The other shards make their changes however
//! often they have to be told; until then nothing is told there of what is locked.
//! Not here: what a lock means (`locks.rs`), what may be done (`permit.rs`), sending and repeating
//! (`front/intents.rs`).

use super::permit::{self, Facts};
use super::slots::Origin;
use super::{Back, Dentry};
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weft_protocol::message::peer::{Fate, IntentId, Lock, NameChange, PeerAnswer, PeerStep};
use weft_protocol::message::shard::{RenameMode, ShardAnswer, ShardRequest};
use weft_protocol::{Credentials, Error, FileKind, InodeNumber, Result, ShardId, Timestamp, routing};

/// What is to be done at a shard.
type Part<T> = (ShardId, Vec<T>);

/// How far an operation is.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Stage {
    Locking(Locking),
    /// All have locked. A shard is asked what the directory `of` is in, as far as `at`.
    Walking {
        of: InodeNumber,
        at: InodeNumber,
    },
    /// It will be carried out. This shard makes its changes.
    Decided {
        here: Part<NameChange>,
        others: Vec<(ShardId, PeerStep)>,
        result: Box<ShardAnswer>,
    },
    /// The caller has his answer; `result`: if it is carried out. These steps are asked for.
    Closing {
        left: Vec<(ShardId, PeerStep)>,
        result: Option<Box<ShardAnswer>>,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Locking {
    /// Of the questions that are asked now: answers to earlier ones are not taken for theirs.
    round: u32,
    /// Shards that are asked to lock and have not answered.
    asked: Vec<Part<Lock>>,
    /// Those to be asked afterwards, one by one.
    later: VecDeque<Part<Lock>>,
}

/// See the module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Across {
    origin: Origin,
    caller: Credentials,
    request: ShardRequest,
    /// Shards that have locked something.
    locked: BTreeSet<ShardId>,
    /// The stamp that each of them has told.
    stamps: BTreeMap<ShardId, u64>,
    facts: Facts,
    stage: Stage,
}

/// What an answer means for an operation.
pub(super) enum Progress {
    /// Nothing: it is of an earlier step, or others are missing.
    None,
    /// There is a next step.
    Next,
    /// It is done.
    Closed,
    /// It is given up for one that locks in ascending order.
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
        NameChange::Gain { inode, .. }
        | NameChange::Lose { inode }
        | NameChange::Move { inode, .. }
        | NameChange::Become { inode, .. } => routing::of_inode(*inode),
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

/// What is to be locked at each shard, the lowest first.
fn ascending(locks: Vec<Lock>) -> Vec<Part<Lock>> {
    let mut parts = by_shard(locks, shard_of);
    parts.sort_unstable_by_key(|(shard, _)| *shard);
    parts
}

impl Across {
    /// An operation that asks all shards at once, as far as it is known which.
    fn new(origin: Origin, caller: Credentials, request: ShardRequest, locks: Vec<Lock>) -> Self {
        let stage = Stage::Locking(Locking { round: 0, asked: ascending(locks), later: VecDeque::new() });
        let (locked, stamps, facts) = (BTreeSet::new(), BTreeMap::new(), Facts::default());
        Self { origin, caller, request, locked, stamps, facts, stage }
    }

    /// An operation like this one, anew, that asks one shard after the other.
    fn in_order(&self, request: ShardRequest) -> Self {
        let mut later = VecDeque::from(ascending(permit::needed(&request, &self.facts)));
        let asked = later.pop_front().into_iter().collect();
        let mut again = Self::new(self.origin, self.caller.clone(), request, Vec::new());
        again.stage = Stage::Locking(Locking { round: 0, asked, later });
        again
    }

    /// The present steps, each for another shard. Nothing: all is done.
    pub(super) fn questions(&self) -> Vec<(ShardId, PeerStep)> {
        match &self.stage {
            Stage::Locking(locking) => {
                let (session, round) = (self.origin.session, locking.round);
                let step = |(shard, locks): &Part<Lock>| {
                    let (waits, locks) = (self.may_wait_at(*shard, locking), locks.clone());
                    (*shard, PeerStep::Lock { session, round, waits, locks })
                };
                locking.asked.iter().map(step).collect()
            }
            Stage::Walking { at, .. } => vec![(routing::of_inode(*at), PeerStep::Ancestors { of: *at })],
            Stage::Decided { here: (own, changes), .. } => vec![(*own, PeerStep::Carry { changes: changes.clone() })],
            Stage::Closing { left, .. } => left.clone(),
        }
    }

    /// The user who asked.
    pub(super) fn caller_uid(&self) -> u32 {
        self.caller.uid
    }

    /// Whether no other shard where it has locked or asks to is above this one, which has locked nothing yet.
    fn may_wait_at(&self, shard: ShardId, locking: &Locking) -> bool {
        let asked = locking.asked.iter().map(|(asked, _)| *asked).filter(|asked| *asked != shard);
        self.locked.iter().copied().chain(asked).all(|other| other < shard)
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing { .. })
    }

    /// The request and its answer, once it is certain that it is carried out.
    pub(super) fn decision(&self) -> Option<(Origin, &ShardRequest, &ShardAnswer)> {
        match &self.stage {
            Stage::Decided { result, .. } | Stage::Closing { result: Some(result), .. } => {
                Some((self.origin, &self.request, result))
            }
            _ => None,
        }
    }

    /// Takes in what a shard says of the present step.
    pub(super) fn answered(&mut self, own: ShardId, time: Timestamp, answer: &Result<PeerAnswer>) -> Progress {
        match (&mut self.stage, answer) {
            (Stage::Locking(_) | Stage::Walking { .. }, Err(error)) => self.refused(own, error.clone()),
            (Stage::Locking(locking), Ok(PeerAnswer::Locked { shard, round, stamp, names, inodes })) => {
                let asked = locking.asked.iter().position(|(asked, _)| asked == shard);
                let Some(index) = asked.filter(|_| *round == locking.round) else { return Progress::None };
                if !self.facts.take(&locking.asked[index].1, names, inodes) {
                    return Progress::None;
                }
                locking.asked.remove(index);
                self.locked.insert(*shard);
                self.stamps.insert(*shard, *stamp);
                self.lock_on(own, time)
            }
            (Stage::Locking(locking), Ok(PeerAnswer::Blocked { shard, round })) => {
                let is_asked = locking.asked.iter().any(|(asked, _)| asked == shard);
                if !is_asked || *round != locking.round {
                    return Progress::None;
                }
                let again = self.in_order(self.request.clone());
                self.release(own);
                Progress::Again(again)
            }
            (Stage::Walking { of, at }, Ok(PeerAnswer::Above { directories, next }))
                if directories.first().is_some_and(|first| *first == *at) =>
            {
                let of = *of;
                self.facts.walked(of, directories);
                match next {
                    Some(next) => {
                        self.stage = Stage::Walking { of, at: *next };
                        Progress::Next
                    }
                    None => self.all_locked(own, time),
                }
            }
            (Stage::Decided { others, result, .. }, Ok(PeerAnswer::Carried { shard })) if *shard == own => {
                let (others, result) = (std::mem::take(others), result.clone());
                self.over(others, result)
            }
            (Stage::Closing { left, .. }, Ok(answer)) => {
                left.retain(|(asked, step)| match (answer, step) {
                    (PeerAnswer::Carried { shard }, PeerStep::Carry { .. })
                    | (PeerAnswer::Forgotten { shard }, PeerStep::Undo) => shard != asked,
                    _ => true,
                });
                // The others are asked again in their time.
                if left.is_empty() { Progress::Closed } else { Progress::None }
            }
            _ => Progress::None,
        }
    }

    /// One more shard has locked.
    fn lock_on(&mut self, own: ShardId, time: Timestamp) -> Progress {
        if let Stage::Locking(locking) = &mut self.stage {
            if !locking.asked.is_empty() {
                return Progress::None;
            }
            if let Some(next) = locking.later.pop_front() {
                locking.round += 1;
                locking.asked.push(next);
                return Progress::Next;
            }
            let more = permit::needed(&self.request, &self.facts).into_iter().filter(|lock| !self.facts.knows(lock));
            locking.asked = ascending(more.collect());
            locking.round += 1;
            if !locking.asked.is_empty() {
                return Progress::Next;
            }
        }
        self.all_locked(own, time)
    }

    fn all_locked(&mut self, own: ShardId, time: Timestamp) -> Progress {
        if let Some(of) = permit::to_walk(&self.request, &self.facts) {
            self.stage = Stage::Walking { of, at: of };
            return Progress::Next;
        }
        match permit::decide(&self.caller, &self.request, &self.facts, time) {
            Ok((changes, answer)) => self.decided(own, changes, answer),
            Err(error) => self.give_up(own, error),
        }
    }

    fn decided(&mut self, own: ShardId, changes: Vec<NameChange>, answer: ShardAnswer) -> Progress {
        let mut parts = by_shard(changes, shard_of_change);
        let here = parts.iter().position(|(shard, _)| *shard == own).map(|index| parts.swap_remove(index));
        let is_unchanged = |shard: &ShardId| *shard != own && parts.iter().all(|(changed, _)| changed != shard);
        let unchanged: Vec<_> = self.locked.iter().copied().filter(is_unchanged).collect();
        let mut others: Vec<_> =
            parts.into_iter().map(|(shard, changes)| (shard, PeerStep::Carry { changes })).collect();
        others.extend(unchanged.into_iter().map(|shard| (shard, PeerStep::Undo)));
        let result = Box::new(answer);
        let Some(here) = here else { return self.over(others, result) };
        self.stage = Stage::Decided { here, others, result };
        Progress::Next
    }

    /// All is done here: the caller is answered, and the other shards follow.
    fn over(&mut self, others: Vec<(ShardId, PeerStep)>, result: Box<ShardAnswer>) -> Progress {
        let changed = others.iter().filter(|(_, step)| *step != PeerStep::Undo).map(|(shard, _)| *shard);
        let stamps = changed.filter_map(|shard| Some((shard, *self.stamps.get(&shard)?))).collect();
        let answer = ShardAnswer::clone(&result);
        self.stage = Stage::Closing { left: others, result: Some(result) };
        Progress::Over(self.origin, Ok(answer), stamps)
    }

    /// A shard cannot take part.
    fn refused(&mut self, own: ShardId, error: Error) -> Progress {
        // Perhaps it was asked by a wrong guess alone.
        let Some(request) = permit::without_guess(&self.request, &self.facts) else { return self.give_up(own, error) };
        let again = self.in_order(request);
        self.release(own);
        Progress::Again(again)
    }

    fn give_up(&mut self, own: ShardId, error: Error) -> Progress {
        self.release(own);
        Progress::Over(self.origin, Err(error), Vec::new())
    }

    /// The other shards release what they have locked, or may have; this one does so at once.
    fn release(&mut self, own: ShardId) {
        let mut shards = std::mem::take(&mut self.locked);
        if let Stage::Locking(locking) = &self.stage {
            shards.extend(locking.asked.iter().map(|(shard, _)| *shard));
        }
        shards.remove(&own);
        let left = shards.into_iter().map(|shard| (shard, PeerStep::Undo)).collect();
        self.stage = Stage::Closing { left, result: None };
    }
}

impl<K: KeyValue> Back<K> {
    /// Whether a client's change needs other shards, too.
    pub fn crosses(&self, caller: &Credentials, request: &ShardRequest) -> bool {
        let elsewhere = |dentry: Option<Dentry>| dentry.filter(|dentry| !self.is_here(dentry.inode));
        // It may be changed only as a whole.
        let has_parts = |inode: InodeNumber| self.inode(inode).is_some_and(|record| record.parts.is_some());
        let goes_elsewhere = |dentry: Option<Dentry>| {
            dentry.is_some_and(|dentry| !self.is_here(dentry.inode) || has_parts(dentry.inode))
        };
        match request {
            ShardRequest::SetAttributes { inode, .. } | ShardRequest::SetInherited { inode, .. } => has_parts(*inode),
            ShardRequest::Unlink { parent, name } => {
                elsewhere(self.dentry(*parent, name)).is_some_and(|dentry| dentry.kind != FileKind::Directory)
            }
            ShardRequest::RemoveDirectory { parent, name } => {
                let dentry = self.dentry(*parent, name).filter(|dentry| dentry.kind == FileKind::Directory);
                goes_elsewhere(dentry)
            }
            ShardRequest::UnlinkBatch { parent, names } => {
                let first = names.first().and_then(|name| self.dentry(*parent, name));
                elsewhere(first).is_some_and(|dentry| dentry.kind != FileKind::Directory)
            }
            ShardRequest::Link { inode, .. } => !self.is_here(*inode),
            ShardRequest::Rename { parent, name, new_parent, new_name, mode, .. } => {
                if !self.serves(*new_parent, new_name) {
                    return true;
                }
                let source = self.dentry(*parent, name);
                let target = self.dentry(*new_parent, new_name);
                let is_same = source.map(|source| source.inode) == target.map(|target| target.inode);
                if source.is_none() || is_same || (target.is_some() && *mode == RenameMode::NoReplace) {
                    return false;
                }
                let is_replaced = *mode == RenameMode::Replace && goes_elsewhere(target);
                let guards = |directory: InodeNumber, dentry| {
                    elsewhere(dentry).is_some()
                        && self.inode(directory).is_some_and(|directory| permit::is_sticky(&directory, caller))
                };
                // What is replaced and above the source is refused as what has names.
                let may_be_above = |one: Option<Dentry>, other| {
                    parent != new_parent && one.is_some_and(|one| self.may_be_above(one, other))
                };
                is_replaced
                    || guards(*parent, source)
                    || guards(*new_parent, target)
                    || may_be_above(source, *new_parent)
                    || may_be_above(target, *parent)
            }
            _ => false,
        }
    }

    /// Records a client's change that needs other shards. Its number.
    pub(super) fn begin_across(&mut self, origin: Origin, caller: &Credentials, request: &ShardRequest) -> u64 {
        let mut guess = Facts::default();
        for (directory, name) in permit::names_of(request) {
            if self.serves(directory, name)
                && let Ok(told) = self.locked_name(directory, name)
            {
                let lock = Lock::Name { directory, name: name.clone(), fate: Fate::Stays };
                guess.take(&[lock], &[told], &[]);
            }
        }
        let across = Across::new(origin, caller.clone(), request.clone(), permit::needed(request, &guess));
        self.record(super::intent::Own::Across(Box::new(across)))
    }

    /// The request of an own intent and its answer, once it is certain that it is carried out.
    pub fn decision(&self, intent: IntentId) -> Option<(Origin, &ShardRequest, &ShardAnswer)> {
        self.own_across(intent)?.decision()
    }
}
