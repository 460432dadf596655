//! Group opens: one open of a file, used by many sessions.
//!
//! A group has a number in place of a session's, under which its lease and its rights are granted. It has no client to
//! answer a recall, and needs none: it holds no more than `Open`. Each renewal by a member renews the group. The group
//! ends when its last member leaves or ends. If only the opener has ever joined, it lasts until its term expires:
//! another session may be about to join. A file is opened for a group by a call of its own, or by the one that opens
//! its name, and perhaps makes it.
//!
//! Not here: how other processes learn of a group. The opener sends them a [`weft_protocol::GroupOpen`].

use super::park::Call;
use super::plan::{Plan, plan_open};
use super::{Effect, Shard, Verdict};
use crate::back::{SET_GID, SET_UID};
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::limits::GROUPS_PER_SESSION_MAX;
use weft_protocol::message::shard::{Access, ForGroup, OpenFlags, PageCache, ShardAnswer};
use weft_protocol::{Attributes, Error, FileKind, Grants, InodeNumber, LeaseKey, SessionId};

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

    /// A session opens a file for a group, and has joined it. The same client may do so again by its next session, if
    /// it repeats a call.
    fn open(&mut self, group: SessionId, opener: SessionId) {
        let record = self.groups.entry(group).or_insert(Group { opener, members: 0, was_joined: false });
        record.opener = opener;
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

    /// Returns true if a session may open a file for a group of this number.
    fn may_open_group(&self, session: SessionId, group: SessionId) -> bool {
        // One that has ended does not begin again.
        group.is_group() && !self.sessions.refuses(group) && self.groups.has_room(session)
    }

    /// Opens a file for a group, as it would be opened for direct I/O.
    pub(super) fn open_group(
        &mut self,
        call: &Call,
        (inode, access, group): (InodeNumber, Access, SessionId),
    ) -> Verdict {
        self.objects_were_made(call);
        if !self.sessions.is_alive(call.session()) {
            // It has ended while the objects were made: nobody would join the group, nor leave it.
            return Verdict::Reply(Err(Error::SessionEnded));
        }
        let flags = flags_for_group(access);
        let record = match self.back.check_open(&call.credentials, inode, flags) {
            Ok(record) => record,
            Err(error) => return Verdict::Reply(Err(error)),
        };
        if !self.may_open_group(call.session(), group) {
            return Verdict::Reply(Err(Error::Invalid));
        }
        let mut plan = Plan::new();
        self.plan_first_objects(&mut plan, inode);
        plan_open(&mut plan, inode, flags);
        if let Some(pause) = self.conflicts(&plan, Some(group), &[]) {
            return Verdict::Park(pause);
        }
        if let Some(pause) = self.objects_to_make(call, &plan) {
            return Verdict::Park(pause);
        }
        let attributes = record.attributes(inode);
        let grants = self.grant_to_group(call.session(), group, &attributes, access) & Grants::OPEN;
        let (capability, others) = self.capabilities(&attributes, access, group);
        Verdict::Reply(Ok(ShardAnswer::Opened { attributes, capability, others, created: false, grants }))
    }

    /// Registers the open of a group, which the session has joined then.
    fn grant_to_group(
        &mut self,
        session: SessionId,
        group: SessionId,
        attributes: &Attributes,
        access: Access,
    ) -> Grants {
        self.sessions.hear(group, self.now.boot_ms);
        self.groups.open(group, session);
        self.grant_data(group, attributes.inode, flags_for_group(access))
    }

    /// Returns the group that an open of a file opens it for, if it does: see [`ForGroup`].
    pub(super) fn group_of_open(
        &self,
        session: SessionId,
        flags: &OpenFlags,
        attributes: &Attributes,
    ) -> Option<SessionId> {
        let ForGroup { group, layouts } = self.group_wished(session, flags, attributes.mode)?;
        let is_for_group = attributes.kind == FileKind::Regular && layouts.include(&attributes.layout);
        is_for_group.then_some(group)
    }

    /// Returns the group that an open opens a file with this mode for, if its layout is one of those wished for.
    pub(super) fn group_wished(&self, session: SessionId, flags: &OpenFlags, mode: u16) -> Option<ForGroup> {
        let wish = flags.group.filter(|_| !flags.truncate)?;
        let keeps_bits = mode & (SET_UID | SET_GID) == 0 || !flags.access.writes();
        let may_open = keeps_bits && self.sessions.is_alive(session) && self.may_open_group(session, wish.group);
        may_open.then_some(wish)
    }

    /// Plans an open, for its group if it has one.
    pub(super) fn plan_open_of(&self, plan: &mut Plan, session: SessionId, inode: InodeNumber, flags: OpenFlags) {
        let attributes = flags.group.and_then(|_| Some(self.back.inode(inode)?.attributes(inode)));
        plan.group = attributes.and_then(|attributes| self.group_of_open(session, &flags, &attributes));
        let flags = if plan.group.is_some() { flags_for_group(flags.access) } else { self.as_opened(inode, flags) };
        self.plan_first_objects(plan, inode);
        plan_open(plan, inode, flags);
        plan.opens = true;
    }

    /// Fills in the answer to an open that is for a group. Returns true if it is.
    pub(super) fn grant_for_group(&mut self, call: &Call, flags: &OpenFlags, answer: &mut ShardAnswer) -> bool {
        let ShardAnswer::Opened { attributes, capability, others, grants, .. } = answer else { return false };
        let session = call.session();
        let Some(group) = self.group_of_open(session, flags, attributes) else { return false };
        self.grant_to_group(session, group, attributes, flags.access);
        (*capability, *others) = self.capabilities(attributes, flags.access, group);
        self.note_told(attributes.inode, session, self.next_grant_stamp());
        *grants = self.grant_name(call) | Grants::OPEN | Grants::FOR_GROUP;
        true
    }

    /// Answers an open again that was for a group, if the group still has the file open. Returns true if it has.
    pub(super) fn tell_again_for_group(&mut self, call: &Call, answer: &mut ShardAnswer) -> bool {
        let (Some(flags), ShardAnswer::Opened { attributes, capability, others, grants, .. }) =
            (call.request.open_flags(), answer)
        else {
            return false;
        };
        let Some(ForGroup { group, .. }) = flags.group else { return false };
        let is_open = self.groups.joined(call.session()).any(|joined| joined == group)
            && self.leases.holder(&LeaseKey::Data(attributes.inode), group).is_some();
        let Some(record) = self.back.inode(attributes.inode).filter(|_| is_open) else { return false };
        *attributes = record.attributes(attributes.inode);
        (*capability, *others) = self.capabilities(attributes, flags.access, group);
        *grants = Grants::OPEN | Grants::FOR_GROUP;
        true
    }
}

/// How a file is opened for a group: nobody caches it.
fn flags_for_group(access: Access) -> OpenFlags {
    OpenFlags { access, truncate: false, direct: true, page_cache: PageCache::None, group: None }
}
