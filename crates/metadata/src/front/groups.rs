//! Group opens: one open of a file, used by many sessions.
//!
//! A group has a number in place of a session's, under which its lease and its rights are granted. It has no client to
//! answer a recall, and needs none: it holds no more than `Open`. Each renewal by a member renews the group. The group
//! ends when its last member leaves or ends. If only the opener has ever joined, it lasts until its term expires:
//! another session may be about to join.
//!
//! Not here: how other processes learn of a group. The opener sends them a [`weft_protocol::GroupOpen`].

use super::park::Call;
use super::plan::{Plan, plan_open};
use super::{Effect, Shard, Verdict};
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::limits::GROUPS_PER_SESSION_MAX;
use weft_protocol::message::shard::{Access, OpenFlags, PageCache, ShardAnswer};
use weft_protocol::{Error, Grants, InodeNumber, SessionId};

#[derive(Serialize, Deserialize)]
struct Group {
    opener: SessionId,
    members: usize,
    /// By another session than its opener.
    was_joined: bool,
}

/// See the module.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Groups {
    groups: BTreeMap<SessionId, Group>,
    /// The groups that each session has joined; none without any.
    joined: BTreeMap<SessionId, BTreeSet<SessionId>>,
}

impl Groups {
    /// Whether the number is a group's.
    pub fn contains(&self, group: SessionId) -> bool {
        self.groups.contains_key(&group)
    }

    /// The groups that a session has joined.
    pub fn joined(&self, session: SessionId) -> impl Iterator<Item = SessionId> {
        self.joined.get(&session).into_iter().flatten().copied()
    }

    /// Whether a session may open one more.
    fn has_room(&self, session: SessionId) -> bool {
        self.joined.get(&session).is_none_or(|joined| joined.len() < GROUPS_PER_SESSION_MAX)
    }

    /// A session opens a file for a group, and has joined it.
    fn open(&mut self, group: SessionId, opener: SessionId) {
        self.groups.entry(group).or_insert(Group { opener, members: 0, was_joined: false });
        self.join(group, opener);
    }

    fn join(&mut self, group: SessionId, session: SessionId) {
        let Some(record) = self.groups.get_mut(&group) else { return };
        if self.joined.entry(session).or_default().insert(group) {
            record.members += 1;
            record.was_joined |= session != record.opener;
        }
    }

    /// A session is in these groups and no others. Returns the groups that end by it.
    fn set(&mut self, session: SessionId, groups: &BTreeSet<SessionId>) -> Vec<SessionId> {
        groups.iter().for_each(|group| self.join(*group, session));
        let Some(joined) = self.joined.get_mut(&session) else { return Vec::new() };
        let left: Vec<_> = joined.extract_if(.., |group| !groups.contains(group)).collect();
        if joined.is_empty() {
            self.joined.remove(&session);
        }
        let ends = |group: &SessionId| {
            self.groups.get_mut(group).is_some_and(|record| {
                record.members -= 1;
                record.members == 0 && record.was_joined
            })
        };
        left.into_iter().filter(ends).collect()
    }

    /// The session, or the group, is over. Returns the groups that end by it.
    pub fn end(&mut self, session: SessionId) -> Vec<SessionId> {
        if self.groups.remove(&session).is_some() {
            self.joined.retain(|_, joined| {
                joined.remove(&session);
                !joined.is_empty()
            });
        }
        self.set(session, &BTreeSet::new())
    }
}

impl<K: KeyValue> Shard<K> {
    /// The client of a session lives, and has joined these groups.
    pub(super) fn heard(&mut self, session: SessionId, groups: &BTreeSet<SessionId>, out: &mut Vec<Effect>) {
        if !self.sessions.hear(session, self.now.boot_ms) {
            return;
        }
        for group in groups.iter().filter(|group| self.groups.contains(**group)) {
            self.sessions.hear(*group, self.now.boot_ms);
        }
        for ended in self.groups.set(session, groups) {
            self.end_session(ended, true, out);
        }
    }

    /// Opens a file for a group, as it would be opened for direct I/O.
    pub(super) fn open_group(
        &mut self,
        call: &Call,
        (inode, access, group): (InodeNumber, Access, SessionId),
    ) -> Verdict {
        let flags = OpenFlags { access, truncate: false, direct: true, page_cache: PageCache::None };
        let record = match self.back.check_open(&call.credentials, inode, flags) {
            Ok(record) => record,
            Err(error) => return Verdict::Reply(Err(error)),
        };
        // One that has ended does not begin again.
        if !group.is_group() || self.sessions.refuses(group) || !self.groups.has_room(call.session()) {
            return Verdict::Reply(Err(Error::Invalid));
        }
        let mut plan = Plan::new();
        plan_open(&mut plan, inode, flags);
        if let Some(pause) = self.conflicts(&plan, Some(group), &[]) {
            return Verdict::Park(pause);
        }
        self.sessions.hear(group, self.now.boot_ms);
        self.groups.open(group, call.session());
        let grants = self.grant_data(group, inode, flags);
        let attributes = record.attributes(inode);
        let (capability, others) = self.capabilities(&attributes, access, group);
        let grants = grants & Grants::OPEN;
        Verdict::Reply(Ok(ShardAnswer::Opened { attributes, capability, others, created: false, grants }))
    }
}
