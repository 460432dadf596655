//! Keys of names and attributes that rest after a recall: clients that take turns with one would spend their time on
//! recalls.
//!
//! A key rests for some times as long as its conflicts have been apart, as an average says. A conflict is a recall, or,
//! while the key rests, a change by one session after another session was refused a lease: it would have been a recall.
//! So what is changed again and again while others look is granted to nobody, what was changed once is granted again
//! soon, and a session that changes something alone gets its lease.
//!
//! Not here: what else speaks against a grant (`grants.rs`).

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weft_protocol::{LeaseKey, SessionId};

/// What is assumed to lie between conflicts when there was one, milliseconds.
const FIRST_APART_MS: u64 = 8;
/// A key rests for so many times the average.
const REST_FACTOR: u64 = 8;
const REST_MS_MIN: u64 = 8;
const REST_MS_MAX: u64 = 1000;
/// How long the average is kept after the last conflict. Longer than a key rests.
const KEPT_MS: u64 = 2 * REST_MS_MAX;
/// Part of a new distance in the average.
const NEW_SHARE: u64 = 4;

/// The keys that rest, or did lately.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Contention {
    keys: BTreeMap<LeaseKey, Rest>,
}

#[derive(Serialize, Deserialize)]
struct Rest {
    /// The last conflict.
    conflict_ms: u64,
    /// Average distance of conflicts.
    apart_ms: u64,
    refused: Refused,
}

/// Sessions that were refused a lease since the last conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Refused {
    Nobody,
    One(SessionId),
    Several,
}

impl Rest {
    fn until_ms(&self) -> u64 {
        self.conflict_ms + (REST_FACTOR * self.apart_ms).clamp(REST_MS_MIN, REST_MS_MAX)
    }

    fn conflict(&mut self, now_ms: u64) {
        let apart_ms = now_ms.saturating_sub(self.conflict_ms).min(REST_MS_MAX);
        self.apart_ms = (self.apart_ms * (NEW_SHARE - 1) + apart_ms) / NEW_SHARE;
        self.conflict_ms = now_ms;
        self.refused = Refused::Nobody;
    }
}

impl Contention {
    /// A recall of the key is over.
    pub fn recalled(&mut self, key: LeaseKey, now_ms: u64) {
        let first = Rest { conflict_ms: now_ms, apart_ms: FIRST_APART_MS, refused: Refused::Nobody };
        self.keys.entry(key).and_modify(|rest| rest.conflict(now_ms)).or_insert(first);
    }

    /// Whether nobody is granted the key now. If so, notes who was refused.
    pub fn rests(&mut self, key: &LeaseKey, session: SessionId, now_ms: u64) -> bool {
        if self.keys.is_empty() {
            return false;
        }
        let Some(rest) = self.keys.get_mut(key).filter(|rest| now_ms < rest.until_ms()) else { return false };
        rest.refused = match rest.refused {
            Refused::Nobody => Refused::One(session),
            Refused::One(other) if other == session => Refused::One(session),
            Refused::One(_) | Refused::Several => Refused::Several,
        };
        true
    }

    /// These keys are changed. `by`: `None` for another shard.
    pub fn changed(&mut self, keys: impl Iterator<Item = LeaseKey>, by: Option<SessionId>, now_ms: u64) {
        if self.keys.is_empty() {
            return;
        }
        for key in keys {
            let Some(rest) = self.keys.get_mut(&key) else { continue };
            let others = match rest.refused {
                Refused::Nobody => false,
                Refused::One(session) => Some(session) != by,
                Refused::Several => true,
            };
            if others && now_ms < rest.until_ms() {
                rest.conflict(now_ms);
            }
        }
    }

    /// Forgets what has been quiet for long.
    pub fn tidy(&mut self, now_ms: u64) {
        self.keys.retain(|_, rest| now_ms < rest.conflict_ms + KEPT_MS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::InodeNumber;

    const KEY: LeaseKey = LeaseKey::Attributes(InodeNumber::ROOT);
    const WRITER: SessionId = SessionId(1);
    const READER: SessionId = SessionId(2);

    /// One session changes the key at some distance for ten seconds, and another looks at it in between. Returns how
    /// many recalls that costs, and how many grants are kept until the next look.
    fn play(apart_ms: u64, looks: u64) -> (u64, u64) {
        let (mut contention, mut granted, mut recalls, mut hits) = (Contention::default(), true, 0, 0);
        for now_ms in 0..10_000 {
            if now_ms % apart_ms == 0 {
                if std::mem::take(&mut granted) {
                    contention.recalled(KEY, now_ms);
                    recalls += 1;
                }
                contention.changed([KEY].into_iter(), Some(WRITER), now_ms);
            } else if now_ms % looks == 0 {
                hits += u64::from(granted);
                granted |= !contention.rests(&KEY, READER, now_ms);
            }
            contention.tidy(now_ms);
        }
        (recalls, hits)
    }

    #[test]
    fn what_is_changed_again_and_again_is_soon_granted_no_more() {
        for apart_ms in [2, 3, 10, 30, 100, 300, 900] {
            let (recalls, _) = play(apart_ms, 1);
            assert!(recalls <= 5, "{recalls} recalls with changes each {apart_ms} ms");
        }
    }

    #[test]
    fn what_is_changed_seldom_costs_a_recall_each_time_and_no_more() {
        let (recalls, hits) = play(2500, 10);
        assert_eq!(recalls, 4);
        assert!(hits > 900, "{hits} of some thousand looks need no message");
    }

    #[test]
    fn what_was_changed_once_is_granted_again_soon() {
        let mut contention = Contention::default();
        contention.recalled(KEY, 1000);
        assert!(contention.rests(&KEY, READER, 1000 + REST_MS_MIN));
        assert!(!contention.rests(&KEY, READER, 1000 + REST_FACTOR * FIRST_APART_MS));
        // Many conflicts at once say that the next one would be soon, if there were one.
        for _ in 0..20 {
            contention.recalled(KEY, 1100);
        }
        assert!(contention.rests(&KEY, READER, 1100 + REST_MS_MIN - 1));
        assert!(!contention.rests(&KEY, READER, 1100 + REST_MS_MIN));
    }

    #[test]
    fn a_session_that_changes_alone_gets_its_lease() {
        let mut contention = Contention::default();
        contention.recalled(KEY, 0);
        let mut now_ms = 0;
        while contention.rests(&KEY, WRITER, now_ms) {
            now_ms += 1;
            contention.changed([KEY].into_iter(), Some(WRITER), now_ms);
            assert!(now_ms <= REST_FACTOR * FIRST_APART_MS, "its own changes are no conflicts");
        }
    }
}
