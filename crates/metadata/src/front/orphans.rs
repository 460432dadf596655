//! Inodes whose last name is gone, and who may still use them.
//!
//! An orphan stays while a session has it open, and for one lease term after its last name went while a session that
//! was told of it may open it by its number: the kernel of a mount opens by number alone, and the number may be on its
//! way when the name goes. A session was told of an inode if it holds a lease on its attributes, held one within the
//! last term, or was answered with them without a lease. It gives the number back ([`LeaseKey::Inode`]) when nobody
//! above it can use it any more: then the orphan goes at once. It gives back what replies up to some stamp have told
//! it: one that told of the number again may be on its way, or may have overtaken what is given back.
//!
//! Who holds a lease on the attributes was asked before the name went, and gives the number back unasked when its
//! kernel forgets it. Others that were told are asked when the last name goes ([`Shard::recall_numbers`]): most kernels
//! have forgotten the inode by then, and its space is free at once. The session that removed the name asks itself.
//!
//! Invariant: an orphan that nobody has open, or may open, is reaped in the same step.
//! Not here: the record of an orphan (`back/remove.rs`).

use super::plan::Plan;
use super::{Effect, Shard};
use crate::back::Command;
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::{InodeNumber, LeaseKey, LeaseMode, SessionId};

/// Sessions that were told of inodes and hold no lease on them, each with the stamp of the latest reply that told it:
/// at least those of the last term.
#[derive(Default, Serialize, Deserialize)]
pub struct Told {
    recent: BTreeMap<(InodeNumber, SessionId), u64>,
    older: BTreeMap<(InodeNumber, SessionId), u64>,
    /// When `recent` was begun.
    begun_ms: u64,
}

impl Told {
    /// Notes that the session knows the inode's number by a reply with this stamp.
    pub fn note(&mut self, inode: InodeNumber, session: SessionId, stamp: u64, now_ms: u64) {
        self.forget_old(now_ms);
        let latest = self.recent.entry((inode, session)).or_default();
        *latest = stamp.max(*latest);
    }

    /// Forgets what is older than a term.
    pub fn forget_old(&mut self, now_ms: u64) {
        let age_ms = now_ms.saturating_sub(self.begun_ms);
        if age_ms >= SESSION_TERM_MS {
            self.older = std::mem::take(&mut self.recent);
            self.begun_ms = now_ms;
        }
        if age_ms >= 2 * SESSION_TERM_MS {
            self.older.clear();
        }
    }

    /// The session has given back what replies up to this stamp have told it.
    fn drop_one(&mut self, inode: InodeNumber, session: SessionId, stamp: u64) {
        for told in [&mut self.recent, &mut self.older] {
            if told.get(&(inode, session)).is_some_and(|latest| *latest <= stamp) {
                told.remove(&(inode, session));
            }
        }
    }

    fn sessions(&self, inode: InodeNumber) -> impl Iterator<Item = (SessionId, u64)> {
        let range = (inode, SessionId(0))..=(inode, SessionId(u64::MAX));
        self.recent.range(range.clone()).chain(self.older.range(range)).map(|((_, session), stamp)| (*session, *stamp))
    }
}

/// An inode without a name.
#[derive(Serialize, Deserialize)]
struct Orphan {
    /// Sessions that may open it by its number, each with the stamp of the latest reply that told it.
    told: BTreeMap<SessionId, u64>,
    /// Another shard has asked for the removal: for a session that may have been told, and is not known here.
    anybody: bool,
    /// Until when.
    until_ms: u64,
}

impl Orphan {
    fn may_be_opened(&self) -> bool {
        self.anybody || !self.told.is_empty()
    }
}

/// All orphans of the shard.
#[derive(Default, Serialize, Deserialize)]
pub struct Orphans {
    orphans: BTreeMap<InodeNumber, Orphan>,
    due: BTreeSet<(u64, InodeNumber)>,
    /// Sessions to be asked whether they still use the number of a new orphan, at the end of the step.
    to_ask: Vec<(InodeNumber, SessionId)>,
}

impl Orphans {
    /// When the next orphan can no longer be opened by its number.
    pub fn next_due(&self) -> Option<u64> {
        self.due.first().map(|(until_ms, _)| *until_ms)
    }

    fn insert(&mut self, inode: InodeNumber, orphan: Orphan) {
        if orphan.may_be_opened() {
            self.due.insert((orphan.until_ms, inode));
        }
        self.orphans.insert(inode, orphan);
    }

    fn remove(&mut self, inode: InodeNumber) {
        if let Some(orphan) = self.orphans.remove(&inode) {
            self.due.remove(&(orphan.until_ms, inode));
        }
    }

    /// The session has given back what replies up to this stamp have told it. Returns whether it can open the inode no
    /// more, and could.
    fn drop_told(&mut self, inode: InodeNumber, session: SessionId, stamp: u64) -> bool {
        let Some(orphan) = self.orphans.get_mut(&inode) else { return false };
        let is_over = orphan.told.get(&session).is_some_and(|latest| *latest <= stamp);
        if is_over {
            orphan.told.remove(&session);
        }
        is_over
    }

    /// A reply with this stamp has told the session of an inode once more, if it may open it.
    fn told_again(&mut self, inode: InodeNumber, session: SessionId, stamp: u64) {
        let told = self.orphans.get_mut(&inode).and_then(|orphan| orphan.told.get_mut(&session));
        if let Some(latest) = told {
            *latest = stamp.max(*latest);
        }
    }

    /// Nobody can open this orphan by its number any more: the next one whose time has come.
    fn pop_due(&mut self, now_ms: u64) -> Option<InodeNumber> {
        let (until_ms, inode) = self.due.first().copied().filter(|(until_ms, _)| *until_ms <= now_ms)?;
        self.due.remove(&(until_ms, inode));
        if let Some(orphan) = self.orphans.get_mut(&inode) {
            orphan.told.clear();
            orphan.anybody = false;
        }
        Some(inode)
    }
}

impl<K: KeyValue> Shard<K> {
    /// Whether the inode that a change takes a name from has to stay if that is its last.
    pub(super) fn keeps_target(&self, plan: &Plan) -> bool {
        plan.target.is_some_and(|inode| self.is_open(inode) || !self.told_of(inode).is_empty())
    }

    pub(super) fn is_open(&self, inode: InodeNumber) -> bool {
        self.leases.holders(&LeaseKey::Data(inode)).next().is_some()
    }

    /// Sessions that may open the inode by its number, each with the stamp of the latest reply that told it.
    fn told_of(&self, inode: InodeNumber) -> BTreeMap<SessionId, u64> {
        let told = self.told.sessions(inode).filter(|(session, _)| self.sessions.is_alive(*session));
        let keys = [LeaseKey::Attributes(inode), LeaseKey::Permissions(inode)];
        let holders = keys.iter().flat_map(|key| self.leases.holders(key)).map(|holder| (holder.session, holder.stamp));
        let mut latest = BTreeMap::new();
        for (session, stamp) in told.chain(holders) {
            let known: &mut u64 = latest.entry(session).or_default();
            *known = stamp.max(*known);
        }
        latest
    }

    /// Notes that the session may use the inode's number, though it holds no lease on the attributes: a reply with this
    /// stamp tells it, or has told it.
    pub(super) fn note_told(&mut self, inode: InodeNumber, session: SessionId, stamp: u64) {
        if self.sessions.is_alive(session) {
            self.told.note(inode, session, stamp, self.now.boot_ms);
            self.orphans.told_again(inode, session, stamp);
        }
    }

    /// An inode has lost its last name, and stays. `by`: the session that removed it, which needs not be asked.
    pub(super) fn orphaned(&mut self, inode: InodeNumber, by: Option<SessionId>) {
        let told = self.told_of(inode);
        let others = told.keys().filter(|session| Some(**session) != by);
        self.orphans.to_ask.extend(others.map(|session| (inode, *session)));
        let anybody = told.is_empty() && !self.is_open(inode);
        self.orphans.insert(inode, Orphan { told, anybody, until_ms: self.now.boot_ms + SESSION_TERM_MS });
    }

    /// Asks for the numbers of new orphans. Who does not use one gives it back with a release, which says what it had
    /// been told; nobody waits for the answer.
    pub(super) fn recall_numbers(&mut self, out: &mut Vec<Effect>) {
        for (inode, session) in std::mem::take(&mut self.orphans.to_ask) {
            let is_told = self.orphans.orphans.get(&inode).is_some_and(|orphan| orphan.told.contains_key(&session));
            if is_told && self.sessions.is_alive(session) {
                self.recall(LeaseKey::Inode(inode), session, LeaseMode::None, out);
            }
        }
    }

    /// The session has given the inode's number back, as far as replies up to this stamp have told it.
    pub(super) fn number_returned(&mut self, inode: InodeNumber, session: SessionId, stamp: u64) {
        self.told.drop_one(inode, session, stamp);
        if self.orphans.drop_told(inode, session, stamp) {
            self.reap_unused(inode);
        }
    }

    /// The session has ended: it opens nothing any more.
    pub(super) fn numbers_of_ended(&mut self, session: SessionId) {
        let of_session = self.orphans.orphans.iter().filter(|(_, orphan)| orphan.told.contains_key(&session));
        let inodes: Vec<InodeNumber> = of_session.map(|(inode, _)| *inode).collect();
        for inode in inodes {
            self.number_returned(inode, session, u64::MAX);
        }
    }

    /// Reaps the orphans whose time has come.
    pub(super) fn reap_due(&mut self) {
        while let Some(inode) = self.orphans.pop_due(self.now.boot_ms) {
            self.reap_unused(inode);
        }
        self.told.forget_old(self.now.boot_ms);
    }

    /// Reaps an orphan, if it is one and nobody has it open or may open it.
    pub(super) fn reap_unused(&mut self, inode: InodeNumber) {
        let unused = self.orphans.orphans.get(&inode).is_some_and(|orphan| !orphan.may_be_opened());
        if unused && !self.is_open(inode) {
            self.orphans.remove(inode);
            self.apply(&Command::Reap { inode });
        }
    }
}
