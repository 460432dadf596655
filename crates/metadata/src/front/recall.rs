//! Recalls that are under way.
//!
//! One recall at a time asks one session for one key; everybody who needs the key waits on it. It is sent again each
//! second until it is answered, the lease is given back by itself, or the session ends; who renews its session but does
//! not answer for a whole term is refused from then on, and ends with the term that it has left (`end.rs`). A client
//! may not be able to answer while a call of its own waits here, for another session that is gone: the time is counted
//! anew, once, when such a call goes on, or when the time is up while a call waits that is about the same inode.
//!
//! All names of a directory that a session holds are recalled with one message ([`LeaseKey::Names`]).
//!
//! A number of a removed inode ([`LeaseKey::Inode`]) is recalled from those who were told it, but nobody waits: who
//! does not answer for a term is asked no more, since the number ends by itself.
//!
//! Not here: what is recalled when (`plan.rs`, `data.rs`, `orphans.rs`), what happens after (`park.rs`).

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::{LeaseKey, LeaseMode, SessionId};

/// An unanswered recall is sent again after this time, milliseconds.
const RESEND_MS: u64 = 1000;

/// A recall that was sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outstanding {
    pub session: SessionId,
    pub key: LeaseKey,
    /// What may be kept.
    pub to: LeaseMode,
    pub stamp: u64,
    /// When it was sent first.
    pub started_ms: u64,
    /// It was counted anew since.
    is_restarted: bool,
    /// When it is looked at next.
    due_ms: u64,
    /// Parked work that waits for it.
    pub waiters: Vec<u64>,
}

impl Outstanding {
    /// When its session has had its time.
    fn end_ms(&self) -> u64 {
        self.started_ms + SESSION_TERM_MS
    }

    /// Counts the time anew, unless that was done before.
    fn restart(&mut self, now_ms: u64) {
        if !self.is_restarted {
            (self.started_ms, self.is_restarted) = (now_ms, true);
        }
    }
}

/// What is to be done about a recall whose time has come.
#[derive(Debug)]
pub enum Due {
    Resend(u64),
    /// The session had its time.
    Refuse(SessionId),
    /// The session had its time, and does not have to answer.
    GiveUp(u64),
}

/// See the module.
#[derive(Default, Serialize, Deserialize)]
pub struct Recalls {
    outstanding: BTreeMap<u64, Outstanding>,
    numbers: BTreeMap<(LeaseKey, SessionId), u64>,
    due: BTreeSet<(u64, u64)>,
    latest: u64,
}

impl Recalls {
    /// Number of recalls under way.
    pub fn count(&self) -> u64 {
        self.outstanding.len() as u64
    }

    /// The recall of a key from a session.
    pub fn find(&self, key: LeaseKey, session: SessionId) -> Option<u64> {
        if self.numbers.is_empty() { None } else { self.numbers.get(&(key, session)).copied() }
    }

    /// A recall by its number.
    pub fn get(&self, number: u64) -> Option<&Outstanding> {
        self.outstanding.get(&number)
    }

    /// Lets work wait for a recall.
    pub fn wait(&mut self, number: u64, waiter: u64) {
        if let Some(recall) = self.outstanding.get_mut(&number)
            && !recall.waiters.contains(&waiter)
        {
            recall.waiters.push(waiter);
        }
    }

    /// A new recall. Its number.
    pub fn begin(&mut self, key: LeaseKey, session: SessionId, to: LeaseMode, stamp: u64, now_ms: u64) -> u64 {
        self.latest += 1;
        let number = self.latest;
        let due_ms = now_ms + RESEND_MS;
        let (started_ms, is_restarted, waiters) = (now_ms, false, Vec::new());
        let recall = Outstanding { session, key, to, stamp, started_ms, is_restarted, due_ms, waiters };
        self.outstanding.insert(number, recall);
        let other = self.numbers.insert((key, session), number);
        assert!(other.is_none(), "{key:?} was being recalled from {session} already");
        self.due.insert((due_ms, number));
        number
    }

    /// The recall is over.
    pub fn end(&mut self, number: u64) -> Option<Outstanding> {
        let recall = self.outstanding.remove(&number)?;
        self.numbers.remove(&(recall.key, recall.session));
        self.due.remove(&(recall.due_ms, number));
        Some(recall)
    }

    /// Numbers of the recalls from a session.
    pub fn of_session(&self, session: SessionId) -> Vec<u64> {
        self.outstanding.iter().filter(|(_, recall)| recall.session == session).map(|(number, _)| *number).collect()
    }

    /// The recalls that work waits for.
    pub fn waited_by(&self, waiter: u64) -> impl Iterator<Item = &Outstanding> {
        self.outstanding.values().filter(move |recall| recall.waiters.contains(&waiter))
    }

    /// A call of the session has waited since then, and goes on: it has a whole term to answer, unless it had a second
    /// one before.
    pub fn restart(&mut self, session: SessionId, since_ms: u64, now_ms: u64) {
        if now_ms < since_ms + RESEND_MS {
            return;
        }
        let recalls = self.outstanding.values_mut().filter(|recall| recall.session == session);
        recalls.for_each(|recall| recall.restart(now_ms));
    }

    /// When a recall is due next.
    pub fn next_due(&self) -> Option<u64> {
        self.due.first().map(|(due_ms, _)| *due_ms)
    }

    /// One recall whose time has come. `has_call`: whether a call of the session waits here that is about this key.
    pub fn pop_due(&mut self, now_ms: u64, has_call: impl FnOnce(SessionId, LeaseKey) -> bool) -> Option<Due> {
        let (due_ms, number) = self.due.first().copied().filter(|(due_ms, _)| *due_ms <= now_ms)?;
        self.due.remove(&(due_ms, number));
        let recall = self.outstanding.get_mut(&number).expect("what is due is outstanding");
        if recall.end_ms() <= now_ms && has_call(recall.session, recall.key) {
            recall.restart(now_ms);
        }
        let end_ms = recall.end_ms();
        if end_ms <= now_ms {
            let must_answer = !matches!(recall.key, LeaseKey::Inode(_));
            return Some(if must_answer { Due::Refuse(recall.session) } else { Due::GiveUp(number) });
        }
        recall.due_ms = (now_ms + RESEND_MS).min(end_ms);
        self.due.insert((recall.due_ms, number));
        Some(Due::Resend(number))
    }
}
