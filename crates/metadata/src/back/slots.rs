//! Exactly once: the last reply of each slot of each session.
//!
//! Invariant: a change with the sequence of its slot's last one gets that one's answer and changes nothing; one with a
//! lower sequence is refused.
//! Not here: changes that are still waiting (`front/park.rs`); they are found by their slot there.

use super::Back;
use crate::kv::KeyValue;
use weft_protocol::message::shard::{Access, ShardAnswer};
use weft_protocol::{Error, NodeId, Result, SessionId, ShardId, SlotIndex};

/// Names a change: who asked, in which slot, as which call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Origin {
    pub session: SessionId,
    pub slot: Slot,
    /// Grows with each new call in the slot.
    pub sequence: u32,
}

/// A slot of a session. A client numbers its slots for each node by itself; a shard that has moved knows those of the
/// nodes where it was, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot {
    pub of: NodeId,
    pub index: SlotIndex,
}

impl Slot {
    /// All slots that a session can have.
    pub const ALL: std::ops::RangeInclusive<Self> =
        Self { of: NodeId(0), index: SlotIndex(0) }..=Self { of: NodeId(u16::MAX), index: SlotIndex(u16::MAX) };
}

/// The last reply of a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LastReply {
    pub sequence: u32,
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

impl<K: KeyValue> Back<K> {
    /// Whether a change was applied already.
    pub fn seen(&self, origin: Origin) -> Seen<'_> {
        match self.replies.get(&(origin.session, origin.slot)) {
            None => Seen::New,
            Some(last) => match last.sequence.cmp(&origin.sequence) {
                std::cmp::Ordering::Less => Seen::New,
                std::cmp::Ordering::Equal => Seen::Again(last),
                std::cmp::Ordering::Greater => Seen::Old,
            },
        }
    }

    /// Keeps a reply, unless it says that nothing was begun.
    pub(super) fn keep_reply(&mut self, origin: Origin, result: &Result<ShardAnswer>, access: Option<Access>) {
        if matches!(result, Err(Error::Busy | Error::Unreachable)) {
            return;
        }
        let last = LastReply { sequence: origin.sequence, result: result.clone(), access, others: Vec::new() };
        self.replies.insert((origin.session, origin.slot), last);
    }

    /// As [`Back::keep_reply`], of an operation over several shards.
    pub(super) fn keep_reply_of_many(
        &mut self,
        origin: Origin,
        result: &Result<ShardAnswer>,
        others: Vec<(ShardId, u64)>,
    ) {
        self.keep_reply(origin, result, None);
        if let Some(last) = self.replies.get_mut(&(origin.session, origin.slot))
            && last.sequence == origin.sequence
        {
            last.others = others;
        }
    }

    /// The stamps that belong to the last reply of a slot.
    pub fn stamps_of_others(&self, origin: Origin) -> Vec<(ShardId, u64)> {
        let last = self.replies.get(&(origin.session, origin.slot));
        last.filter(|last| last.sequence == origin.sequence).map_or(Vec::new(), |last| last.others.clone())
    }

    pub(super) fn forget_session(&mut self, session: SessionId) {
        let slots = (session, *Slot::ALL.start())..=(session, *Slot::ALL.end());
        let slots: Vec<_> = self.replies.range(slots).map(|(slot, _)| *slot).collect();
        for slot in slots {
            self.replies.remove(&slot);
        }
    }
}
