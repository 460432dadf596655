//! Sessions: who is there, and until when.
//!
//! A session lives for its term after each message. One that is to be ended although it is heard of is *refused*
//! first: nothing is answered to it any more but that it has ended, so that its term runs out on both sides, and only
//! then is it ended. One that was ended by the shard is remembered, so that a client that comes back after its leases
//! were given to others is told so, and does not believe in them.
//!
//! Invariant: each session that is not being ended stands in `checks` once, at or before the end of its term. The term
//! counts from the last message that was not refused: a client that counts from when it sent that one has stopped to
//! believe before the end. Not here: what ends with a session (`end.rs`).

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::{NodeIdentity, SessionId};

/// Ended sessions that are remembered. A client does not use a session beyond its own count of the term, so that one of
/// these shows up only when it was cut off and comes back.
const ENDED_MAX: usize = 65_536;

#[derive(Serialize, Deserialize)]
struct Alive {
    /// When the last message came that was not refused.
    heard_ms: u64,
    /// Its messages do not count any more, and it ends with the term that it has.
    refused: bool,
    /// It is being ended: its term is over, and storage servers are told.
    ending: bool,
    /// Where it stands in `checks`.
    check_ms: u64,
    /// Where its client runs, if that was told. Not taken along by a shard that moves: each open tells it again.
    #[serde(skip)]
    machine: Option<NodeIdentity>,
}

/// See the module.
#[derive(Default, Serialize, Deserialize)]
pub struct Sessions {
    alive: BTreeMap<SessionId, Alive>,
    /// When to look whether a session's term is over. Not moved by each message.
    checks: BTreeSet<(u64, SessionId)>,
    ended: BTreeSet<SessionId>,
    ended_in_order: VecDeque<SessionId>,
}

impl Sessions {
    /// Number of sessions.
    pub fn count(&self) -> u64 {
        self.alive.len() as u64
    }

    /// A message of the session: it lives for a term from now. `false`: it was ended or is refused, and stays so.
    pub fn hear(&mut self, session: SessionId, now_ms: u64) -> bool {
        if let Some(alive) = self.alive.get_mut(&session) {
            if !alive.refused {
                alive.heard_ms = now_ms;
            }
            return !alive.refused;
        }
        if self.ended.contains(&session) {
            return false;
        }
        let check_ms = now_ms + SESSION_TERM_MS;
        let alive = Alive { heard_ms: now_ms, refused: false, ending: false, check_ms, machine: None };
        self.alive.insert(session, alive);
        self.checks.insert((check_ms, session));
        true
    }

    /// A message of the session, whose client runs on this machine.
    pub fn locate(&mut self, session: SessionId, machine: NodeIdentity, now_ms: u64) {
        self.hear(session, now_ms);
        if let Some(alive) = self.alive.get_mut(&session) {
            alive.machine = Some(machine);
        }
    }

    /// Machine on which the session's client runs, if known.
    pub fn machine(&self, session: SessionId) -> Option<NodeIdentity> {
        self.alive.get(&session)?.machine
    }

    /// Whether the session has not ended yet, be it refused.
    pub fn knows(&self, session: SessionId) -> bool {
        self.alive.contains_key(&session)
    }

    /// Whether the session is known, and neither refused nor ended.
    pub fn is_alive(&self, session: SessionId) -> bool {
        self.alive.get(&session).is_some_and(|alive| !alive.refused)
    }

    /// Whether the session's messages are refused: it was ended, or will be.
    pub fn refuses(&self, session: SessionId) -> bool {
        self.alive.get(&session).map_or_else(|| self.ended.contains(&session), |alive| alive.refused)
    }

    /// From now on the session's messages are refused.
    pub fn refuse(&mut self, session: SessionId) {
        if let Some(alive) = self.alive.get_mut(&session) {
            alive.refused = true;
        }
    }

    /// When to look for ended terms next.
    pub fn next_check(&self) -> Option<u64> {
        self.checks.first().map(|(check_ms, _)| *check_ms)
    }

    /// One session whose term is over, if there is one.
    pub fn pop_expired(&mut self, now_ms: u64) -> Option<SessionId> {
        while let Some((check_ms, session)) = self.checks.first().copied() {
            if check_ms > now_ms {
                return None;
            }
            let alive = self.alive.get_mut(&session).expect("only sessions that are alive are checked");
            let end_ms = alive.heard_ms + SESSION_TERM_MS;
            if end_ms <= now_ms {
                return Some(session);
            }
            alive.check_ms = end_ms;
            self.checks.remove(&(check_ms, session));
            self.checks.insert((end_ms, session));
        }
        None
    }

    /// The session is refused from now on, and its term does not count any more. Returns false if it is not known, or
    /// is being ended already.
    pub fn begin_end(&mut self, session: SessionId) -> bool {
        let Some(alive) = self.alive.get_mut(&session).filter(|alive| !alive.ending) else { return false };
        (alive.refused, alive.ending) = (true, true);
        self.checks.remove(&(alive.check_ms, session));
        true
    }

    /// The session is over. `remember`: the client did not ask for it, and is to be told when it comes back. Returns
    /// whether it was known.
    pub fn end(&mut self, session: SessionId, remember: bool) -> bool {
        let Some(alive) = self.alive.remove(&session) else { return false };
        self.checks.remove(&(alive.check_ms, session));
        if remember && self.ended.insert(session) {
            self.ended_in_order.push_back(session);
            if self.ended_in_order.len() > ENDED_MAX
                && let Some(oldest) = self.ended_in_order.pop_front()
            {
                self.ended.remove(&oldest);
            }
        }
        true
    }
}
