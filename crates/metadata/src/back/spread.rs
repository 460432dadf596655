//! How a directory gets parts at other shards, which take over its names.
//!
//! ```text
//!  Locking ──► Making ──(all parts are made)──► Filling ──(all have their names)──► Closing: the parts are remembered
//!     │           │                                │                                  ▲
//!     └───────────┴──────────(refused, unreachable)┴──── parts that were made go ─────┘
//! ```
//!
//! The directory's own shard asks for it. While it is locked, no name comes or goes in it; names are still told of, and
//! granted to nobody. Each part gets the dentries of its buckets as they stand in the store, their cookies included, so
//! that open listings go on. Then this shard, in one step, drops those dentries and notes the parts, and from there on
//! answers [`Error::Split`] to whoever asks it for one of these names. Nobody knows a part's number before.
//!
//! Not here: what goes by a part's number (all of it, as with any directory), changes of a directory with parts as a
//! whole (`permit.rs`), recalls (`front/peer.rs`).

use super::inode::{EMPTY_DIRECTORY_LINKS, Inode};
use super::intent::Own;
use super::keys::{Key, cookie_of};
use super::permission::is_owner;
use super::probe::Record;
use super::slots::Origin;
use super::{Aftermath, Answer, Back};
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use weft_protocol::limits::FILL_DENTRIES_MAX;
use weft_protocol::message::peer::{Fate, IntentId, Lock, MovedDentry, PeerAnswer, PeerStep};
use weft_protocol::message::shard::ShardAnswer;
use weft_protocol::{
    Attributes, Cookie, Credentials, Error, FileKind, Grants, InodeNumber, Parts, Result, SessionId, ShardId,
};

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Stage {
    /// This shard itself is asked to lock the directory.
    Locking,
    /// Others are asked to make a part each.
    Making { step: Box<PeerStep>, made: BTreeMap<ShardId, InodeNumber> },
    /// They are asked to take dentries, each those after its cookie, and go on when all have. `asked`: those who have
    /// not answered.
    Filling { parts: Parts, left: BTreeMap<ShardId, (InodeNumber, Cookie)>, asked: BTreeSet<ShardId> },
    /// The caller has his answer. These steps are asked for.
    Closing { left: Vec<(ShardId, PeerStep)> },
}

/// See the module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Spread {
    /// The client's call that asks for it, if one does.
    origin: Option<Origin>,
    caller: Credentials,
    directory: InodeNumber,
    /// Where the other parts are to be.
    shards: Vec<ShardId>,
    stage: Stage,
}

impl Spread {
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing { .. })
    }

    /// The directory, until it is spread.
    pub(super) fn directory(&self) -> Option<InodeNumber> {
        (!self.is_closing()).then_some(self.directory)
    }

    fn lock(&self) -> PeerStep {
        let locks = vec![Lock::Inode { inode: self.directory, fate: Fate::Loses }];
        let session = self.origin.map_or(SessionId::default(), |origin| origin.session);
        PeerStep::Lock { session, round: 0, waits: true, locks }
    }
}

impl<K: KeyValue> Back<K> {
    /// The directory that an own intent spreads.
    pub fn spreads(&self, intent: IntentId) -> Option<InodeNumber> {
        match self.own(intent)? {
            Own::Spread(spread) => spread.directory(),
            Own::Make(_) | Own::Across(_) => None,
        }
    }

    /// The parts of the directory that an own intent has spread, until these have forgotten the intent.
    pub fn spread_into(&self, intent: IntentId) -> Option<Parts> {
        match self.own(intent)? {
            Own::Spread(spread) if spread.is_closing() => self.inode(spread.directory)?.parts,
            _ => None,
        }
    }

    /// Entries of a directory that has just got one, unless it has parts; and whether it has inherited that it gets
    /// some.
    pub fn entries_of_whole(&self, directory: InodeNumber) -> Option<(u64, bool)> {
        let (latest, record) = self.latest_directory.as_ref()?;
        (*latest == directory && record.parts.is_none()).then_some((record.size, record.spreads))
    }

    /// Records that the directory is to have parts at these shards.
    pub(super) fn begin_spread(
        &mut self,
        origin: Option<Origin>,
        caller: &Credentials,
        directory: InodeNumber,
        shards: &[ShardId],
    ) -> u64 {
        let (caller, shards) = (caller.clone(), shards.to_vec());
        self.record(Own::Spread(Box::new(Spread { origin, caller, directory, shards, stage: Stage::Locking })))
    }

    pub(super) fn questions_of_spread(&self, spread: &Spread) -> Vec<(ShardId, PeerStep)> {
        match &spread.stage {
            Stage::Locking => vec![(self.shard, spread.lock())],
            Stage::Making { step, made } => {
                let left = spread.shards.iter().filter(|shard| !made.contains_key(shard));
                left.map(|shard| (*shard, PeerStep::clone(step))).collect()
            }
            Stage::Filling { parts, left, asked } => {
                let fill = |(shard, (part, after)): (&ShardId, &(InodeNumber, Cookie))| {
                    let dentries = self.dentries_for(spread.directory, parts, *part, *after);
                    (*shard, PeerStep::FillPart { part: *part, parts: parts.clone(), dentries })
                };
                left.iter().filter(|(shard, _)| asked.contains(shard)).map(fill).collect()
            }
            Stage::Closing { left } => left.clone(),
        }
    }

    /// The next dentries that a part takes over. None: it has all.
    fn dentries_for(
        &self,
        directory: InodeNumber,
        parts: &Parts,
        part: InodeNumber,
        after: Cookie,
    ) -> Vec<MovedDentry> {
        let (first, _) = parts.buckets(part).expect("it is asked of the directory's own parts");
        let from = if after == Cookie::START { Cookie::first_of_bucket(first) } else { after };
        let mut dentries = Vec::new();
        self.store.scan(&Key::dentry(directory, from), |key, record| {
            match cookie_of(key, directory).filter(|cookie| parts.of(*cookie) == part) {
                Some(cookie) if dentries.len() < FILL_DENTRIES_MAX => {
                    if cookie > after {
                        dentries.push(MovedDentry { cookie, record: record.to_vec() });
                    }
                    ControlFlow::Continue(())
                }
                _ => ControlFlow::Break(()),
            }
        });
        dentries
    }

    pub(super) fn answer_spread(
        &mut self,
        number: u64,
        mut spread: Box<Spread>,
        answer: &Result<PeerAnswer>,
    ) -> Answer {
        let result = match (&mut spread.stage, answer) {
            (Stage::Closing { left }, Ok(PeerAnswer::Forgotten { shard })) => {
                left.retain(|(asked, _)| asked != shard);
                if left.is_empty() {
                    return Answer::Next;
                }
                None
            }
            (Stage::Closing { .. }, _) => None,
            (_, Err(error)) => Some(Err(error.clone())),
            (Stage::Locking, Ok(PeerAnswer::Locked { inodes, .. })) => match self.may_spread(&spread, inodes) {
                Ok(Some(step)) => {
                    spread.stage = Stage::Making { step: Box::new(step), made: BTreeMap::new() };
                    self.put_spread(number, spread);
                    return Answer::Next;
                }
                // It has parts already, or there is no other shard.
                Ok(None) => Some(Ok(())),
                Err(error) => Some(Err(error)),
            },
            (Stage::Making { made, .. }, Ok(PeerAnswer::Made(attributes))) => {
                made.insert(weft_protocol::routing::of_inode(attributes.inode), attributes.inode);
                if made.len() == spread.shards.len() {
                    let parts = std::iter::once(spread.directory).chain(made.values().copied()).collect();
                    let parts = Parts::new(parts).expect("as many shards as a directory may have parts were chosen");
                    let left = made.iter().map(|(shard, part)| (*shard, (*part, Cookie::START))).collect();
                    spread.stage = Stage::Filling { parts, left, asked: made.keys().copied().collect() };
                    self.put_spread(number, spread);
                    return Answer::Next;
                }
                None
            }
            (Stage::Filling { parts, left, asked }, Ok(PeerAnswer::Filled { shard, last })) => {
                match (last, left.get_mut(shard).filter(|_| asked.contains(shard))) {
                    (Some(last), Some((_, after))) if *last > *after => *after = *last,
                    (None, Some(_)) => drop(left.remove(shard)),
                    // It answers what was asked before.
                    _ => {
                        self.put_spread(number, spread);
                        return Answer::None;
                    }
                }
                asked.remove(shard);
                if left.is_empty() {
                    let parts = parts.clone();
                    self.hand_over(spread.directory, parts);
                    Some(Ok(()))
                } else if asked.is_empty() {
                    *asked = left.keys().copied().collect();
                    self.put_spread(number, spread);
                    return Answer::Next;
                } else {
                    None
                }
            }
            (_, Ok(_)) => None,
        };
        match result {
            Some(result) => self.end_spread(number, spread, result),
            None => {
                self.put_spread(number, spread);
                Answer::None
            }
        }
    }

    fn put_spread(&mut self, number: u64, spread: Box<Spread>) {
        self.put_own(number, Own::Spread(spread));
    }

    /// How its parts are made, if there are to be any.
    fn may_spread(&self, spread: &Spread, inodes: &[Option<Attributes>]) -> Result<Option<PeerStep>> {
        let Some(Some(attributes)) = inodes.first() else { return Err(Error::Stale) };
        let directory = Inode::told(attributes);
        if directory.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        if !is_owner(&directory, &spread.caller) {
            return Err(Error::NotPermitted);
        }
        directory.check_has_name()?;
        if directory.parts.is_some() || spread.shards.is_empty() {
            return Ok(None);
        }
        Ok(Some(PeerStep::MakeDirectoryInode {
            parent: spread.directory,
            mode: directory.mode,
            uid: directory.uid,
            gid: directory.gid,
            time: directory.mtime,
            inherited: directory.inherited(),
        }))
    }

    /// The parts have their names: from now on they serve them.
    fn hand_over(&mut self, number: InodeNumber, parts: Parts) {
        let mut going = Vec::new();
        let first = Cookie::first_of_bucket(parts.buckets(number).expect("it is the first of its parts").1);
        self.store.scan(&Key::dentry(number, first), |key, record| match cookie_of(key, number) {
            Some(cookie) => {
                let record = Record::decode(record);
                going.push((cookie, record.dentry.map(|dentry| dentry.kind), record.continued));
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        });
        let mut directory = self.inode(number).expect("a locked directory is there");
        for (cookie, kind, continued) in going {
            self.store.delete(&Key::dentry(number, cookie));
            self.continued -= u64::from(continued);
            self.dentries -= u64::from(kind.is_some());
            directory.size -= u64::from(kind.is_some());
            directory.links -= u32::from(kind == Some(FileKind::Directory));
        }
        directory.parts = Some(parts);
        self.put_inode(number, &directory);
    }

    fn end_spread(&mut self, number: u64, mut spread: Box<Spread>, result: Result<()>) -> Answer {
        let step = if result.is_ok() { PeerStep::Forget } else { PeerStep::Undo };
        let asked: &[ShardId] = if matches!(spread.stage, Stage::Locking) { &[] } else { &spread.shards };
        let left: Vec<_> = asked.iter().map(|shard| (*shard, step.clone())).collect();
        self.unlock(self.own_id(number));
        let answer = result.and_then(|()| {
            let attributes = self.present(spread.directory)?.attributes(spread.directory);
            Ok(ShardAnswer::Entry { attributes, grants: Grants::empty() })
        });
        if let Some(origin) = spread.origin {
            self.keep_reply((origin, spread.caller.uid), &answer, None);
        }
        if !left.is_empty() {
            spread.stage = Stage::Closing { left };
            self.put_spread(number, spread);
        }
        Answer::Client(answer)
    }

    /// Dentries for a part that was made here for an intent of another shard; those that it has already change nothing.
    pub(super) fn fill_part(
        &mut self,
        intent: IntentId,
        number: InodeNumber,
        parts: &Parts,
        dentries: &[MovedDentry],
    ) -> Result<PeerAnswer> {
        let is_made = self.has_made(intent, number);
        let mut part = self.inode(number).filter(|_| is_made).ok_or(Error::Invalid)?;
        for MovedDentry { cookie, record } in dentries {
            let Record { dentry, continued, .. } = Record::checked(record).ok_or(Error::Malformed)?;
            if self.store.insert(&Key::dentry(number, *cookie), record) {
                self.continued += u64::from(continued);
                self.dentries += u64::from(dentry.is_some());
                part.size += u64::from(dentry.is_some());
                part.links += u32::from(dentry.is_some_and(|dentry| dentry.kind == FileKind::Directory));
            }
        }
        part.parts = Some(parts.clone());
        self.put_inode(number, &part);
        Ok(PeerAnswer::Filled { shard: self.shard, last: dentries.last().map(|dentry| dentry.cookie) })
    }

    /// A directory that was made for an intent that is given up, and what it was filled with.
    pub(super) fn drop_made(&mut self, number: InodeNumber, aftermath: &mut Aftermath) {
        let Some(inode) = self.inode(number) else { return };
        let mut keys = Vec::new();
        self.store.scan(&Key::dentry(number, Cookie::START), |key, record| {
            if cookie_of(key, number).is_none() {
                return ControlFlow::Break(());
            }
            keys.push((key.to_vec(), Record::decode(record).continued, Record::decode(record).dentry.is_some()));
            ControlFlow::Continue(())
        });
        for (key, continued, is_dentry) in keys {
            self.store.delete(&key);
            self.continued -= u64::from(continued);
            self.dentries -= u64::from(is_dentry);
        }
        self.drop_inode(number, &inode, aftermath);
    }
}

impl Inode {
    /// Whether no directory is in it, as far as this shard knows.
    pub(super) fn has_no_directories(&self) -> bool {
        self.links == EMPTY_DIRECTORY_LINKS && self.parts.is_none()
    }
}
