//! Operations over several shards that were recorded here, and the steps of those of other shards.
//!
//! A directory whose inode is made at another shard (*mkdir*) needs no lock there: the asking shard locks the name, has
//! the inode made, puts the dentry, and has the other shard forget the intent; until then that shard remembers its
//! answer, so that the step may be repeated. All else goes by locks (`across.rs`).
//!
//! Without an answer ("unreachable") nobody here knows whether a step was done: the operation fails, and the other
//! shard is asked to undo it, until it says that it has. So the failure of an operation is final, and all of its parts
//! happen or none does.
//!
//! Not here: how a directory gets parts (`spread.rs`), sending and repeating the steps (`front/intents.rs`).
//! On a crash: intents that were recorded are asked again.

use super::across::{Across, Progress};
use super::create::NewOwner;
use super::inode::Inode;
use super::slots::Origin;
use super::spread::Spread;
use super::{Aftermath, Answer, Back, Dentry};
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weft_protocol::message::peer::{IntentId, PeerAnswer, PeerStep};
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{Credentials, Error, FileKind, Grants, InodeNumber, Name, Result, ShardId, Timestamp};

/// How far the making of a directory is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum State {
    /// The other shard is asked to make the inode.
    Asking,
    /// All is done here; the other shard is asked to forget it (or to undo what it may have done).
    Closing(PeerStep),
}

/// A directory whose inode another shard makes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Make {
    origin: Origin,
    /// The caller.
    uid: u32,
    to: ShardId,
    parent: InodeNumber,
    name: Name,
    step: PeerStep,
    state: State,
}

/// An intent that was recorded here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Own {
    Make(Make),
    Across(Box<Across>),
    Spread(Box<Spread>),
}

/// Intents recorded here, and inodes that were made for those of other shards.
#[derive(Default, Debug, Serialize, Deserialize)]
pub(super) struct Intents {
    own: BTreeMap<u64, Own>,
    made: BTreeMap<IntentId, PeerAnswer>,
}

impl<K: KeyValue> Back<K> {
    pub(super) fn own_id(&self, number: u64) -> IntentId {
        IntentId { shard: self.shard, number }
    }

    /// Records an intent. Its number.
    pub(super) fn record(&mut self, intent: Own) -> u64 {
        let number = self.next_intent;
        self.next_intent += 1;
        self.intents.own.insert(number, intent);
        number
    }

    pub(super) fn own(&self, intent: IntentId) -> Option<&Own> {
        self.intents.own.get(&intent.number).filter(|_| intent.shard == self.shard)
    }

    pub(super) fn put_own(&mut self, number: u64, own: Own) {
        self.intents.own.insert(number, own);
    }

    pub(super) fn own_across(&self, intent: IntentId) -> Option<&Across> {
        match self.own(intent)? {
            Own::Across(across) => Some(across),
            Own::Make(_) | Own::Spread(_) => None,
        }
    }

    /// Whether this inode was made here for the intent of another shard, which is not over.
    pub(super) fn has_made(&self, intent: IntentId, number: InodeNumber) -> bool {
        let made = self.intents.made.get(&intent);
        matches!(made, Some(PeerAnswer::Made(attributes)) if attributes.inode == number)
    }

    /// Whether an own intent is not closed yet.
    pub fn is_open(&self, number: u64) -> bool {
        self.intents.own.contains_key(&number)
    }

    /// Whether all is done here, and only other shards have to hear of it.
    pub fn is_closing(&self, number: u64) -> bool {
        match self.intents.own.get(&number) {
            Some(Own::Make(make)) => make.state != State::Asking,
            Some(Own::Across(across)) => across.is_closing(),
            Some(Own::Spread(spread)) => spread.is_closing(),
            None => false,
        }
    }

    /// What must be asked (again) for an intent, each of another shard. Nothing: it is closed.
    pub fn questions(&self, number: u64) -> Vec<(ShardId, IntentId, PeerStep)> {
        let questions = match self.intents.own.get(&number) {
            None => Vec::new(),
            Some(Own::Make(make)) => match &make.state {
                State::Asking => vec![(make.to, make.step.clone())],
                State::Closing(step) => vec![(make.to, step.clone())],
            },
            Some(Own::Across(across)) => across.questions(),
            Some(Own::Spread(spread)) => self.questions_of_spread(spread),
        };
        questions.into_iter().map(|(to, step)| (to, self.own_id(number), step)).collect()
    }

    /// Own intents that were given up, of which a shard has not heard so.
    pub fn given_up_at(&self, shard: ShardId) -> Vec<IntentId> {
        let closing = self.intents.own.keys().filter(|number| self.is_closing(**number));
        let questions = closing.flat_map(|number| self.questions(*number));
        questions.filter(|(to, _, step)| *to == shard && *step == PeerStep::Undo).map(|(_, intent, _)| intent).collect()
    }

    /// Whether an own intent may keep what it has locked at a shard.
    fn holds_at(&self, number: u64, shard: ShardId) -> bool {
        let questions = self.questions(number);
        let is_undone = questions.iter().any(|(to, _, step)| *to == shard && *step == PeerStep::Undo);
        !questions.is_empty() && !is_undone
    }

    /// Begins to make a directory at the shard `to`.
    pub(super) fn begin_make(
        &mut self,
        time: Timestamp,
        origin: Origin,
        caller: &Credentials,
        request: &ShardRequest,
        to: ShardId,
    ) -> Result<u64> {
        let ShardRequest::MakeDirectory { parent, name, mode, .. } = request else {
            unreachable!("only mkdir goes without locks elsewhere, not {request:?}");
        };
        let directory = self.free_place(caller, *parent, name)?;
        let NewOwner { uid, gid, mode } = NewOwner::of(&directory, caller, FileKind::Directory, *mode);
        let inherited = directory.inherited();
        let shown = directory.directory_of(*parent);
        let step = PeerStep::MakeDirectoryInode { parent: shown, mode, uid, gid, time, inherited };
        let (parent, name, state) = (*parent, name.clone(), State::Asking);
        let make = Make { origin, uid: caller.uid, to, parent, name: name.clone(), step, state };
        let number = self.record(Own::Make(make));
        self.locks.take_name(self.own_id(number), parent, &name);
        Ok(number)
    }

    /// The other shard's answer to a step.
    pub(super) fn answer_intent(&mut self, time: Timestamp, number: u64, answer: &Result<PeerAnswer>) -> Answer {
        match self.intents.own.remove(&number) {
            None => Answer::None,
            Some(Own::Make(make)) => self.answer_make(time, number, make, answer),
            Some(Own::Across(across)) => self.answer_across(time, number, across, answer),
            Some(Own::Spread(spread)) => self.answer_spread(number, spread, answer),
        }
    }

    fn answer_across(
        &mut self,
        time: Timestamp,
        number: u64,
        mut across: Box<Across>,
        answer: &Result<PeerAnswer>,
    ) -> Answer {
        let id = self.own_id(number);
        let progress = across.answered(self.shard, time, answer);
        let (is_open, uid) = (!across.questions().is_empty(), across.caller_uid());
        if is_open {
            self.intents.own.insert(number, Own::Across(across));
        }
        match progress {
            Progress::None => Answer::None,
            Progress::Next | Progress::Closed => Answer::Next,
            Progress::Again(again) => {
                self.unlock(id);
                Answer::Intent(self.record(Own::Across(Box::new(again))))
            }
            Progress::Over(origin, result, others) => {
                self.unlock(id);
                self.keep_reply_of_many((origin, uid), &result, others);
                Answer::Client(result)
            }
        }
    }

    fn answer_make(&mut self, time: Timestamp, number: u64, mut make: Make, answer: &Result<PeerAnswer>) -> Answer {
        if let State::Closing(_) = make.state {
            if matches!(answer, Ok(PeerAnswer::Forgotten { .. })) {
                return Answer::Next;
            }
            self.intents.own.insert(number, Own::Make(make));
            return Answer::None;
        }
        let result = match answer {
            Ok(PeerAnswer::Made(attributes)) => {
                let dentry = Dentry { inode: attributes.inode, kind: FileKind::Directory };
                let mut directory = self.inode(make.parent).expect("a locked name keeps its directory");
                self.add_dentry(time, (make.parent, &mut directory), &make.name, dentry);
                self.put_inode(make.parent, &directory);
                Ok(ShardAnswer::Entry { attributes: attributes.clone(), grants: Grants::empty() })
            }
            Ok(_) => {
                self.intents.own.insert(number, Own::Make(make));
                return Answer::None;
            }
            Err(error) => Err(error.clone()),
        };
        // Without an answer nobody knows whether the step was done: then it is to be taken back.
        let asked_by = (make.origin, make.uid);
        make.state = State::Closing(if result.is_err() { PeerStep::Undo } else { PeerStep::Forget });
        self.locks.release(self.own_id(number));
        self.intents.own.insert(number, Own::Make(make));
        self.keep_reply(asked_by, &result, None);
        Answer::Client(result)
    }

    /// A step that a shard asks for. The same step again gets the same answer.
    pub(super) fn peer_step(
        &mut self,
        time: Timestamp,
        (intent, step): (IntentId, &PeerStep),
        keep: bool,
        aftermath: &mut Aftermath,
    ) -> Result<PeerAnswer> {
        match step {
            PeerStep::Forget => {
                self.intents.made.remove(&intent);
                self.locks.forget(intent);
                Ok(PeerAnswer::Forgotten { shard: self.shard })
            }
            PeerStep::Undo => {
                if let Some(PeerAnswer::Made(attributes)) = self.intents.made.remove(&intent) {
                    self.drop_made(attributes.inode, aftermath);
                }
                self.unlock(intent);
                Ok(PeerAnswer::Forgotten { shard: self.shard })
            }
            PeerStep::MakeDirectoryInode { .. } if self.locks.is_forgotten(intent) => Err(Error::Invalid),
            PeerStep::MakeDirectoryInode { parent, mode, uid, gid, time: at, inherited } => {
                if let Some(made) = self.intents.made.get(&intent) {
                    return Ok(made.clone());
                }
                let owner = NewOwner { uid: *uid, gid: *gid, mode: *mode };
                let mut inode = Inode::new(FileKind::Directory, &owner, *parent, *at);
                inode.inherit(*inherited);
                let number = self.next_inode();
                self.inodes += 1;
                self.put_inode(number, &inode);
                let made = PeerAnswer::Made(inode.attributes(number));
                self.intents.made.insert(intent, made.clone());
                Ok(made)
            }
            PeerStep::FillPart { part, parts, dentries } => self.fill_part(intent, *part, parts, dentries),
            PeerStep::Lock { session, round, locks, .. } => self.lock_all(intent, (*session, *round), locks),
            PeerStep::Carry { changes } => Ok(self.carry(time, intent, changes, keep, aftermath)),
            PeerStep::Ancestors { of } => self.above(intent, *of),
            PeerStep::AskOutcome { of } => {
                let is_open = of.shard == self.shard && self.holds_at(of.number, intent.shard);
                Ok(if is_open { PeerAnswer::Open } else { PeerAnswer::Forgotten { shard: self.shard } })
            }
        }
    }
}
