//! Exactly once: the last reply of each slot of each session.
//!
//! Those of a session that was ended stay, for its client may not have received them: it makes such a call again in its
//! next session.
//!
//! Invariant: a change with the sequence of its slot's last one gets that one's answer and changes nothing; one with a
//! lower sequence is refused.
//! Not here: changes that are still waiting (`front/park.rs`); they are found by their slot there.

use super::Back;
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use weft_protocol::limits::ENDED_REPLIES_MAX;
use weft_protocol::message::shard::{Access, ShardAnswer};
pub use weft_protocol::message::shard::{Origin, Slot};
use weft_protocol::{Error, Result, SessionId, ShardId};

/// The last reply of a slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LastReply {
    pub sequence: u32,
    /// The user who asked.
    pub uid: u32,
    /// Without grants and capability: these are made anew.
    pub result: Result<ShardAnswer>,
    /// Of an open: what its capability allows.
    pub access: Option<Access>,
    /// Of an operation over several shards: the stamps of the others.
    pub others: Vec<(ShardId, u64)>,
}

/// What is known of a change before it is applied.
#[derive(Debug)]
pub enum Seen<'a> {
    /// It has not been applied.
    New,
    /// It was applied: this was the answer.
    Again(&'a LastReply),
    /// A later one was applied.
    Old,
}

/// The last replies of all slots.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Replies {
    last: BTreeMap<(SessionId, Slot), LastReply>,
    /// Sessions that were ended and whose replies are kept, with the number of these, in the order of their ends.
    ended: VecDeque<(SessionId, usize)>,
    /// Sum of these numbers.
    ended_count: usize,
}

impl Replies {
    fn of(&self, origin: Origin) -> Option<&LastReply> {
        self.last.get(&(origin.session, origin.slot))
    }

    fn slots_of(&self, session: SessionId) -> Vec<Slot> {
        let slots = (session, *Slot::ALL.start())..=(session, *Slot::ALL.end());
        self.last.range(slots).map(|((_, slot), _)| *slot).collect()
    }

    /// Keeps what a session has changed, and forgets what does not fit any more.
    fn end_session(&mut self, session: SessionId) {
        let mut count = 0;
        for slot in self.slots_of(session) {
            if self.last.get(&(session, slot)).is_some_and(|last| last.result.is_ok()) {
                count += 1;
            } else {
                self.last.remove(&(session, slot));
            }
        }
        self.ended.push_back((session, count));
        self.ended_count += count;
        while self.ended_count > ENDED_REPLIES_MAX
            && let Some((oldest, count)) = self.ended.pop_front()
        {
            self.ended_count -= count;
            self.forget_session(oldest);
        }
    }

    fn forget_session(&mut self, session: SessionId) {
        for slot in self.slots_of(session) {
            self.last.remove(&(session, slot));
        }
    }
}

impl<K: KeyValue> Back<K> {
    /// Whether a change was applied already.
    pub fn seen(&self, origin: Origin) -> Seen<'_> {
        match self.replies.of(origin) {
            None => Seen::New,
            Some(last) => match last.sequence.cmp(&origin.sequence) {
                std::cmp::Ordering::Less => Seen::New,
                std::cmp::Ordering::Equal => Seen::Again(last),
                std::cmp::Ordering::Greater => Seen::Old,
            },
        }
    }

    /// Keeps the reply to a user's change, unless it says that nothing was begun.
    pub(super) fn keep_reply(
        &mut self,
        (origin, uid): (Origin, u32),
        result: &Result<ShardAnswer>,
        access: Option<Access>,
    ) {
        if matches!(result, Err(Error::Busy | Error::Unreachable)) {
            return;
        }
        let last = LastReply { sequence: origin.sequence, uid, result: result.clone(), access, others: Vec::new() };
        self.replies.last.insert((origin.session, origin.slot), last);
    }

    /// As [`Back::keep_reply`], of an operation over several shards.
    pub(super) fn keep_reply_of_many(
        &mut self,
        (origin, uid): (Origin, u32),
        result: &Result<ShardAnswer>,
        others: Vec<(ShardId, u64)>,
    ) {
        self.keep_reply((origin, uid), result, None);
        if let Some(last) = self.replies.last.get_mut(&(origin.session, origin.slot))
            && last.sequence == origin.sequence
        {
            last.others = others;
        }
    }

    /// The reply to the change `of`, which `origin` repeats, becomes that to `origin`, too.
    pub(super) fn repeat(&mut self, origin: Origin, of: Origin) -> Result<ShardAnswer> {
        let Seen::Again(last) = self.seen(of) else { panic!("{of:?} is repeated, and has no reply") };
        let last = LastReply { sequence: origin.sequence, ..last.clone() };
        let result = last.result.clone();
        self.replies.last.insert((origin.session, origin.slot), last);
        result
    }

    /// The stamps that belong to the last reply of a slot.
    pub fn stamps_of_others(&self, origin: Origin) -> Vec<(ShardId, u64)> {
        let last = self.replies.of(origin).filter(|last| last.sequence == origin.sequence);
        last.map_or(Vec::new(), |last| last.others.clone())
    }

    pub(super) fn end_session(&mut self, session: SessionId) {
        self.replies.end_session(session);
    }

    pub(super) fn forget_session(&mut self, session: SessionId) {
        self.replies.forget_session(session);
    }
}
