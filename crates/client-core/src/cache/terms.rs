//! Terms: how long what shards have granted holds, and what is doubted.

use super::{Cache, Dropped};
use std::collections::BTreeMap;
use weft_protocol::limits::{SESSION_TERM_MARGIN_MS, SESSION_TERM_MS};
use weft_protocol::message::shard::Slot;
use weft_protocol::{InodeNumber, ShardId, routing};

/// A shard's term. Entries of another age are void.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Term {
    valid_until_ms: u64,
    pub(super) age: u32,
    /// Own changes that were sent and have no reply: while there are any, nothing is believed.
    doubts: u32,
    /// The highest stamp of all replies that have come.
    latest_stamp: u64,
}

impl Term {
    /// The term of the next session: nothing of this one holds.
    pub(super) fn ended(self) -> Self {
        Self { age: self.age + 1, ..Self::default() }
    }

    /// How long what is known still holds, milliseconds.
    pub(super) fn holds_ms(&self, now_ms: u64) -> u64 {
        if self.doubts > 0 { 0 } else { self.valid_until_ms.saturating_sub(now_ms) }
    }
}

/// Own changes, by their slots, that may be made in part by other shards than the one that has not answered: until when
/// that can be, milliseconds; `None` while the change is being sent again.
pub(super) type OthersDoubted = BTreeMap<Slot, Option<u64>>;

impl Cache {
    /// A request that the shard has answered was sent at this time: its leases hold for a term from then.
    pub fn renewed(&mut self, shard: ShardId, sent_ms: u64, now_ms: u64) {
        let doubted = self.others_doubted.len();
        self.others_doubted.retain(|_, until_ms| until_ms.is_none_or(|until_ms| now_ms < until_ms));
        if self.others_doubted.len() < doubted {
            // What was learnt meanwhile may be from before the change.
            self.terms.values_mut().for_each(|term| term.age += 1);
        }
        let term = self.terms.entry(shard).or_default();
        if now_ms >= term.valid_until_ms {
            // The term passed in between: the shard may have ended the session, and what it granted.
            term.age += 1;
        }
        term.valid_until_ms = term.valid_until_ms.max(sent_ms + SESSION_TERM_MS - SESSION_TERM_MARGIN_MS);
    }

    /// A renewal that was sent at this time was answered, and not refused: the term goes on. One that has passed does
    /// not begin anew, since a shard that has never heard of the session takes it for a new one. Returns whether it
    /// goes on.
    pub fn extended(&mut self, shard: ShardId, sent_ms: u64, now_ms: u64) -> bool {
        let holds = now_ms < self.valid_until_ms(shard);
        if holds {
            self.renewed(shard, sent_ms, now_ms);
        }
        holds
    }

    /// A reply with this stamp has come from the shard.
    pub fn stamp_seen(&mut self, shard: ShardId, stamp: u64) {
        let term = self.terms.entry(shard).or_default();
        term.latest_stamp = term.latest_stamp.max(stamp);
    }

    /// The highest stamp of the replies that have come from the shard.
    pub fn latest_stamp(&self, shard: ShardId) -> u64 {
        self.terms.get(&shard).map_or(0, |term| term.latest_stamp)
    }

    /// An own change was sent to this shard and has no reply: it may have been made, or be made later, and nobody
    /// recalls what it makes untrue. Nothing of the shard is believed until [`Cache::settled`]. Returns what was known,
    /// for caches above. `crosses`: the change, by its slot, if the shard may have others make a part of it, which are
    /// not believed either, but for no longer than it can be on its way.
    pub fn doubt(&mut self, shard: ShardId, crosses: Option<Slot>, now_ms: u64) -> Dropped {
        self.changes += 1;
        let term = self.terms.entry(shard).or_default();
        term.doubts += 1;
        term.age += 1;
        match crosses {
            Some(change) => self.doubt_others(change, Some(now_ms)),
            None => self.dropped_of(|of| of == shard),
        }
    }

    /// An own change that other shards may make a part of is being sent again, which may have them make it only now:
    /// they are not believed until [`Cache::settled`]. Or that was given up at `given_up_ms`: from then it is on its
    /// way for no longer than after the first time. Returns what was known, for caches above.
    pub fn doubt_others(&mut self, change: Slot, given_up_ms: Option<u64>) -> Dropped {
        self.changes += 1;
        self.others_doubted.insert(change, given_up_ms.map(|now_ms| now_ms + 2 * SESSION_TERM_MS));
        self.terms.values_mut().for_each(|term| term.age += 1);
        self.dropped_of(|_| true)
    }

    fn dropped_of(&mut self, is_doubtful: impl Fn(ShardId) -> bool) -> Dropped {
        let names = self.names.iter().filter(|((parent, hash), _)| is_doubtful(routing::of_name_hash(*parent, *hash)));
        let names = names.map(|((parent, _), known)| (*parent, known.name.clone())).collect();
        let is_of_shard = |inode: &InodeNumber| is_doubtful(routing::of_inode(*inode));
        let inodes = self.attributes.keys().copied().filter(is_of_shard).collect();
        let directories = self.directories.keys().copied().filter(is_of_shard).collect();
        self.above(Dropped { names, inodes, directories, recalled: None })
    }

    /// The change has a reply. What was learnt meanwhile may be from before it. `crosses`: as for [`Cache::doubt`].
    pub fn settled(&mut self, shard: ShardId, crosses: Option<Slot>) {
        self.changes += 1;
        if let Some(term) = self.terms.get_mut(&shard) {
            term.doubts -= 1;
            term.age += 1;
        }
        if crosses.is_some_and(|change| self.others_doubted.remove(&change).is_some()) {
            self.terms.values_mut().for_each(|term| term.age += 1);
        }
    }

    /// When the term at this shard ends; 0: there is none.
    pub fn valid_until_ms(&self, shard: ShardId) -> u64 {
        self.terms.get(&shard).map_or(0, |term| term.valid_until_ms)
    }

    /// How long what is known of this shard still holds, milliseconds.
    pub fn holds_ms(&self, shard: ShardId, now_ms: u64) -> u64 {
        if !self.others_doubted.is_empty() {
            return 0;
        }
        self.terms.get(&shard).map_or(0, |term| term.holds_ms(now_ms))
    }

    /// A number that grows with all that is learnt, changed or lost: while it stays, so does what is known, for as long
    /// as the term goes on.
    pub fn changes(&self) -> u64 {
        self.changes
    }
}
