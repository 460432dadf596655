//! The fences of a storage server: sessions that a shard has ended. Their capabilities for files of that shard are
//! void, though they are signed and have not expired.
//!
//! What a session held may be another's as soon as its shard has ended it, and a client that was only paused would go
//! on to write. A fence holds until the last capability that the session can have has expired.
//!
//! Invariant: whoever writes for a session holds its [`Gate`], and the gate of a fenced session is closed.
//! Not here: descriptors that were passed (`crates/node`); they cannot be revoked.

use crate::gate::{Gate, ServingTerm};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use weft_protocol::capability::expiry;
use weft_protocol::{SessionId, ShardId};

/// Fences kept, the latest ones: as many ended sessions as a shard remembers.
const FENCES_MAX: usize = 65_536;
/// Gates beyond this number are looked through for those that no connection holds any more.
const GATES_SLACK: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub struct FenceTable {
    fenced: BTreeSet<(SessionId, ShardId)>,
    /// In the order of their ends.
    ends: VecDeque<(u32, (SessionId, ShardId))>,
    gates: BTreeMap<(SessionId, ShardId), Arc<Gate>>,
    /// Number of gates at which unused ones are removed.
    sweep_at: usize,
}

impl FenceTable {
    /// Returns the gate for what a session writes to files of a shard, with the term during which this storage server
    /// may serve that shard.
    pub fn gate(&mut self, session: SessionId, shard: ShardId, term: &Arc<ServingTerm>) -> Arc<Gate> {
        let is_fenced = self.holds(session, shard);
        if self.gates.len() >= self.sweep_at {
            self.gates.retain(|_, gate| Arc::strong_count(gate) > 1);
            self.sweep_at = 2 * self.gates.len() + GATES_SLACK;
        }
        let new = || Arc::new(Gate::new(is_fenced, Arc::clone(term)));
        Arc::clone(self.gates.entry((session, shard)).or_insert_with(new))
    }

    /// Fences a session that the shard has ended.
    pub fn add(&mut self, session: SessionId, shard: ShardId, now_seconds: u32) {
        let full = |fences: &Self| fences.ends.len() >= FENCES_MAX;
        while self.ends.front().is_some_and(|(end, _)| *end < now_seconds) || full(self) {
            if let Some((_, fence)) = self.ends.pop_front() {
                self.fenced.remove(&fence);
            }
        }
        if self.fenced.insert((session, shard)) {
            // A capability signed in this very second expires by then.
            self.ends.push_back((expiry(now_seconds), (session, shard)));
        }
        if let Some(gate) = self.gates.get(&(session, shard)) {
            gate.fence();
        }
    }

    /// Returns true if the session is fenced.
    pub fn holds(&self, session: SessionId, shard: ShardId) -> bool {
        self.fenced.contains(&(session, shard))
    }

    /// Returns true if the session is fenced and no piece that it writes is in flight: none will land any more.
    pub fn is_settled(&self, session: SessionId, shard: ShardId) -> bool {
        let key = (session, shard);
        self.fenced.contains(&key) && self.gates.get(&key).is_none_or(|gate| gate.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::limits::CAPABILITY_TERM_SECONDS;

    #[test]
    fn a_fence_holds_for_one_session_at_one_shard_until_its_rights_have_ended() {
        let mut fences = FenceTable::default();
        let (one, other) = (SessionId(1), SessionId(2));
        fences.add(one, ShardId(3), 100);
        fences.add(one, ShardId(3), 200);
        assert!(fences.holds(one, ShardId(3)));
        assert!(!fences.holds(one, ShardId(4)) && !fences.holds(other, ShardId(3)));
        fences.add(other, ShardId(3), 100 + CAPABILITY_TERM_SECONDS);
        assert!(fences.holds(one, ShardId(3)));
        fences.add(other, ShardId(4), 101 + CAPABILITY_TERM_SECONDS);
        assert!(!fences.holds(one, ShardId(3)) && fences.holds(other, ShardId(3)));
    }

    #[test]
    fn there_is_a_bound() {
        let mut fences = FenceTable::default();
        (0..=FENCES_MAX as u64).for_each(|session| fences.add(SessionId(session), ShardId(0), 1));
        assert!(!fences.holds(SessionId(0), ShardId(0)), "the oldest makes room");
        assert!(fences.holds(SessionId(FENCES_MAX as u64), ShardId(0)));
        assert_eq!((fences.fenced.len(), fences.ends.len()), (FENCES_MAX, FENCES_MAX));
    }
    #[test]
    fn a_fence_is_settled_when_the_pieces_in_flight_are_written() {
        let (mut fences, term) = (FenceTable::default(), Arc::new(ServingTerm::unlimited()));
        let (one, shard) = (SessionId(1), ShardId(3));
        let gate = fences.gate(one, shard, &term);
        gate.enter(|| 0).unwrap();
        assert!(!fences.is_settled(one, shard), "it is not fenced");
        fences.add(one, shard, 100);
        assert!(!fences.is_settled(one, shard));
        assert!(gate.leave() && fences.is_settled(one, shard));
        assert!(fences.gate(one, shard, &term).enter(|| 0).is_err());
        assert!(fences.gate(one, ShardId(4), &term).enter(|| 0).is_ok(), "another shard has not ended it");
        fences.add(SessionId(2), shard, 100);
        assert!(fences.gate(SessionId(2), shard, &term).enter(|| 0).is_err(), "it was fenced before it came");
    }

    #[test]
    fn gates_that_nobody_holds_are_removed() {
        let (mut fences, term) = (FenceTable::default(), Arc::new(ServingTerm::unlimited()));
        let kept = fences.gate(SessionId(0), ShardId(0), &term);
        (1..100 * GATES_SLACK as u64).for_each(|session| drop(fences.gate(SessionId(session), ShardId(0), &term)));
        assert!(fences.gates.len() <= 2 * GATES_SLACK + 2, "{}", fences.gates.len());
        assert!(Arc::ptr_eq(&kept, &fences.gate(SessionId(0), ShardId(0), &term)));
    }
}
