//! Range leases of split files: what a session writes within its range it publishes later, when somebody asks.
//!
//! A range is granted in the reply to a publication that asks for it, and recalled before the shard tells anybody of
//! the file's size or extents, before it changes them by another call, and before another session publishes bytes
//! within it. Its holder answers the recall after a publication, which never waits for the range of another: ranges are
//! disjoint, and while there is one nobody holds the file's attributes.
//!
//! A file that is watched is published write by write: a session gets a range only if nobody has asked about the file
//! since its latest publication.
//!
//! Invariant: a session holds [`LeaseKey::Ranges`] of a file exactly while it has a range in it.
//! Not here: which range a session asks for (weft-client-core's `split/ranges.rs`).

use super::leases::Holder;
use super::park::{Call, Wait};
use super::plan::Plan;
use super::{Pause, Shard};
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::message::shard::{RangeUse, ShardRequest};
use weft_protocol::{Grants, InodeNumber, LeaseKey, LeaseMode, Pattern, SessionId};

/// See the module.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Ranges {
    /// Files to which sessions have published since they opened them.
    files: BTreeMap<InodeNumber, OfFile>,
}

#[derive(Default, Serialize, Deserialize)]
struct OfFile {
    /// Where each range begins and ends, and whose it is.
    held: BTreeMap<u64, (u64, SessionId)>,
    /// Where each session's range begins.
    starts: BTreeMap<SessionId, u64>,
    /// Sessions that have published since anybody has asked about the file.
    unwatched: BTreeSet<SessionId>,
}

impl OfFile {
    /// Who has ranges with bytes of the pattern.
    fn overlapping(&self, pattern: &Pattern) -> Vec<SessionId> {
        let below = self.held.range(..pattern.end()).rev();
        let overlapping = below.take_while(|(_, (end, _))| *end > pattern.start());
        let meets = |start: u64, end: u64| {
            Pattern::run(start, end - start).is_some_and(|range| weft_layout::meets(&range, pattern))
        };
        overlapping.filter(|(start, (end, _))| meets(**start, *end)).map(|(_, (_, session))| *session).collect()
    }

    fn drop(&mut self, session: SessionId) {
        if let Some(start) = self.starts.remove(&session) {
            self.held.remove(&start);
        }
    }
}

impl Ranges {
    /// Sessions with ranges in the file.
    fn holders(&self, inode: InodeNumber) -> impl Iterator<Item = SessionId> {
        self.files.get(&inode).into_iter().flat_map(|file| file.starts.keys().copied())
    }

    /// Somebody has asked about the file, or changed it by another call than a publication.
    pub fn watched(&mut self, inode: InodeNumber) {
        if let Some(file) = self.files.get_mut(&inode) {
            file.unwatched.clear();
        }
    }

    /// The range of a session was recalled.
    pub fn recalled(&mut self, inode: InodeNumber, session: SessionId) {
        if let Some(file) = self.files.get_mut(&inode) {
            file.unwatched.remove(&session);
        }
    }

    /// The session has no range in the file any more.
    pub fn drop(&mut self, inode: InodeNumber, session: SessionId) {
        if let Some(file) = self.files.get_mut(&inode) {
            file.drop(session);
        }
    }

    /// The session does not have the file open any more.
    pub fn closed(&mut self, inode: InodeNumber, session: SessionId) {
        if let Some(file) = self.files.get_mut(&inode) {
            file.drop(session);
            file.unwatched.remove(&session);
            if file.starts.is_empty() && file.unwatched.is_empty() {
                self.files.remove(&inode);
            }
        }
    }
}

impl<K: KeyValue> Shard<K> {
    /// Whether any session has a range in the file.
    pub(super) fn has_ranges(&self, inode: InodeNumber) -> bool {
        self.leases.ranges.holders(inode).next().is_some()
    }

    /// Whose ranges a publication overlaps; of an append, all, since they may make the file longer. `None`: the call
    /// is another one.
    pub(super) fn overlapped_by(&self, call: &Call) -> Option<Vec<SessionId>> {
        let ShardRequest::Publish { inode, parts, appends_to, .. } = &call.request else { return None };
        let Some(file) = self.leases.ranges.files.get(inode) else { return Some(Vec::new()) };
        Some(match appends_to {
            Some(_) => file.starts.keys().copied().collect(),
            None => parts.iter().flat_map(|part| &part.patterns).flat_map(|of| file.overlapping(of)).collect(),
        })
    }

    /// The ranges that are in the way of a change. An open is told of what is there, so the requester's own is, too:
    /// no lock of its client is held meanwhile.
    pub(super) fn ranges_in_the_way(
        &self,
        plan: &Plan,
        requester: Option<SessionId>,
    ) -> BTreeSet<(LeaseKey, SessionId)> {
        if self.leases.ranges.files.is_empty() {
            return BTreeSet::new();
        }
        let is_in_the_way = |holder: &SessionId| plan.opens || Some(*holder) != requester;
        if let Some((inode, holders)) = &plan.publishes {
            let holders = holders.iter().copied().filter(is_in_the_way);
            return holders.map(|holder| (LeaseKey::Ranges(*inode), holder)).collect();
        }
        let keys = plan.keys().into_iter();
        let inodes = keys.filter(|key| matches!(key, LeaseKey::Attributes(_) | LeaseKey::Data(_)));
        let of_inode = |key: LeaseKey| {
            let inode = key.inode();
            self.leases.ranges.holders(inode).filter(is_in_the_way).map(move |holder| (LeaseKey::Ranges(inode), holder))
        };
        inodes.flat_map(of_inode).collect()
    }

    /// Whether the call publishes a part of a file that another session has open for writing. The publisher is granted
    /// no attributes: the next one would recall them, and then nobody is granted them for a while, readers included.
    pub(super) fn publishes_beside_others(&self, call: &Call) -> bool {
        let ShardRequest::Publish { inode, group: None, .. } = call.request else { return false };
        let key = LeaseKey::Data(inode);
        self.leases.holders(&key).any(|holder| holder.session != call.session() && holder.writing)
    }

    /// A session asks about a file: what to wait for, if others have ranges in it.
    pub(super) fn watch(&mut self, session: SessionId, inode: InodeNumber) -> Option<Pause> {
        self.leases.ranges.watched(inode);
        let key = LeaseKey::Ranges(inode);
        let others = self.leases.ranges.holders(inode).filter(|holder| *holder != session);
        let recalls: Vec<_> = others.map(|holder| (key, holder, LeaseMode::None)).collect();
        (!recalls.is_empty()).then(|| Pause { recalls, ..Pause::until(Wait::Recalls, vec![key]) })
    }

    /// A change was made, which has told its caller of these files.
    pub(super) fn note_watched(&mut self, call: &Call, plan: &Plan) {
        if self.leases.ranges.files.is_empty() || matches!(call.request, ShardRequest::Publish { .. }) {
            return;
        }
        for key in plan.keys() {
            if let LeaseKey::Attributes(inode) | LeaseKey::Data(inode) = key {
                self.leases.ranges.watched(inode);
            }
        }
    }

    /// A publication was made: takes the range that it gives up, and grants the one that it asks for, if nobody is in
    /// the way or watches the file.
    pub(super) fn use_range(&mut self, call: &Call) -> Grants {
        let ShardRequest::Publish { inode, group: None, range: RangeUse { given_up, wanted }, .. } = call.request
        else {
            return Grants::empty();
        };
        let (session, key) = (call.session(), LeaseKey::Ranges(inode));
        let held = self.leases.holder(&key, session);
        if let (Some(held), Some(stamp)) = (held, given_up)
            && held.stamp <= stamp
        {
            self.weaken(session, key, LeaseMode::None);
        }
        let is_open = self.leases.holder(&LeaseKey::Data(inode), session).is_some();
        if !is_open || !self.sessions.is_alive(session) {
            return Grants::empty();
        }
        let is_first = self.leases.ranges.files.entry(inode).or_default().unwatched.insert(session);
        let Some((start, end)) = wanted else { return Grants::empty() };
        let Some(range) = end.checked_sub(start).and_then(|bytes| Pattern::run(start, bytes)) else {
            return Grants::empty();
        };
        let is_claimed = [key, LeaseKey::Attributes(inode)].iter().any(|key| self.parking.is_claimed(key));
        let has_group = self.leases.holders(&LeaseKey::Data(inode)).any(|holder| holder.session.is_group());
        let has_room = self.leases.has_room(session, 1);
        let file = self.leases.ranges.files.get_mut(&inode).expect("it was entered above");
        let is_free = file.overlapping(&range).is_empty() && !file.starts.contains_key(&session);
        if is_first || is_claimed || has_group || !is_free || !has_room {
            return Grants::empty();
        }
        file.held.insert(start, (end, session));
        file.starts.insert(session, start);
        let stamp = self.next_grant_stamp();
        self.leases.set(key, Holder::new(session, LeaseMode::Exclusive, stamp));
        Grants::RANGE
    }
}
