//! Sessions that a shard has ended: their rights to files of that shard are void, though they are signed and their term
//! has not ended.
//!
//! What a session held may be another's as soon as its shard has ended it, and a client that was only paused would go
//! on to write. A fence holds until the last right that the session can have has ended by itself.
//!
//! Not here: descriptors that were passed. Nobody can take them back.

use std::collections::{BTreeSet, VecDeque};
use weft_protocol::limits::CAPABILITY_TERM_SECONDS;
use weft_protocol::{SessionId, ShardId};

/// Fences kept, the latest ones: as many ended sessions as a shard remembers.
const FENCES_MAX: usize = 65_536;

/// See the module.
#[derive(Debug, Default)]
pub struct Fences {
    fenced: BTreeSet<(SessionId, ShardId)>,
    /// In the order of their ends.
    ends: VecDeque<(u32, (SessionId, ShardId))>,
}

impl Fences {
    /// The shard has ended the session.
    pub fn add(&mut self, session: SessionId, shard: ShardId, now_seconds: u32) {
        let full = |fences: &Self| fences.ends.len() >= FENCES_MAX;
        while self.ends.front().is_some_and(|(end, _)| *end < now_seconds) || full(self) {
            if let Some((_, fence)) = self.ends.pop_front() {
                self.fenced.remove(&fence);
            }
        }
        if self.fenced.insert((session, shard)) {
            // A right that it was given in this very second ends by then.
            self.ends.push_back((now_seconds.saturating_add(CAPABILITY_TERM_SECONDS), (session, shard)));
        }
    }

    /// Whether the session's rights to files of the shard are void.
    pub fn holds(&self, session: SessionId, shard: ShardId) -> bool {
        self.fenced.contains(&(session, shard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_holds_for_one_session_at_one_shard_until_its_rights_have_ended() {
        let mut fences = Fences::default();
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
        let mut fences = Fences::default();
        (0..=FENCES_MAX as u64).for_each(|session| fences.add(SessionId(session), ShardId(0), 1));
        assert!(!fences.holds(SessionId(0), ShardId(0)), "the oldest makes room");
        assert!(fences.holds(SessionId(FENCES_MAX as u64), ShardId(0)));
        assert_eq!((fences.fenced.len(), fences.ends.len()), (FENCES_MAX, FENCES_MAX));
    }
}
