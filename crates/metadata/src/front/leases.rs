//! The table of leases: who holds what on which key.
//!
//! Two tables in one: holders by key (what a change asks), and by session a log of the keys it was granted (what the
//! end of a session asks). The log is allowed to name keys that are no longer held; it is cleaned when most of it is
//! such.
//!
//! Invariant: `held` of a session is the number of keys that name it as a holder, and its log names each of them.
//! Not here: when to grant (`grants.rs`, `data.rs`), recalls (`recall.rs`).

use super::ranges::Ranges;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use weft_protocol::hash::{BlockHasher, FixedMap};
use weft_protocol::limits::LEASES_PER_SESSION_MAX;
use weft_protocol::{InodeNumber, LeaseKey, LeaseMode, SessionId};

/// The table is cut in parts so that the growth of one moves few keys at once.
const PARTS: usize = 64;
/// Keys in a session's log that are not worth cleaning.
const LOG_SLACK: usize = 1024;

/// One session's hold on a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    pub session: SessionId,
    pub mode: LeaseMode,
    /// Of `Data`: the session has opened the file for writing since it holds the key.
    pub writing: bool,
    /// Of `Data`: it was writing through the storage server when it got its exclusive lease, and may go on until the
    /// reply that says so reaches it, also after reports.
    pub wrote_through: bool,
    /// Of `Data`: a kernel above the session may keep pages of the file.
    pub pages: bool,
    /// Stamp of the latest reply that granted it: what the client gives back of an earlier one, it still has.
    pub stamp: u64,
    /// Of `Data`: number of the latest report that was taken.
    pub reported: u64,
    /// Of `Data`: another session has changed the split file since this was granted.
    pub overtaken: bool,
}

impl Holder {
    /// A hold of which no more is known than that it was granted by a reply with this stamp.
    pub fn new(session: SessionId, mode: LeaseMode, stamp: u64) -> Self {
        let (writing, wrote_through, pages, overtaken) = (false, false, false, false);
        Self { session, mode, writing, wrote_through, pages, stamp, reported: 0, overtaken }
    }
}

/// Holders of a key. One is the rule.
#[derive(Serialize, Deserialize)]
struct Holders {
    first: Holder,
    #[expect(clippy::box_collection, reason = "a key with one holder is the rule, and stays small")]
    more: Option<Box<Vec<Holder>>>,
}

impl Holders {
    fn iter(&self) -> impl Iterator<Item = &Holder> {
        std::iter::once(&self.first).chain(self.more.iter().flat_map(|more| more.iter()))
    }

    fn find(&mut self, session: SessionId) -> Option<&mut Holder> {
        if self.first.session == session {
            return Some(&mut self.first);
        }
        self.more.as_mut()?.iter_mut().find(|holder| holder.session == session)
    }
}

type Part = FixedMap<LeaseKey, Holders>;

/// What a session was granted.
#[derive(Default, Serialize, Deserialize)]
struct Grantee {
    held: usize,
    log: Vec<LeaseKey>,
}

fn is_name_of(key: &LeaseKey, directory: InodeNumber) -> bool {
    matches!(key, LeaseKey::Entry(of, _) if *of == directory)
}

/// See the module.
#[derive(Serialize, Deserialize)]
pub struct Leases {
    parts: Vec<Part>,
    grantees: BTreeMap<SessionId, Grantee>,
    count: u64,
    /// Which ranges [`LeaseKey::Ranges`] are of.
    pub ranges: Ranges,
}

impl Leases {
    pub fn new() -> Self {
        let parts = (0..PARTS).map(|_| Part::default()).collect();
        Self { parts, grantees: BTreeMap::new(), count: 0, ranges: Ranges::default() }
    }

    /// Leases in all.
    pub fn count(&self) -> u64 {
        self.count
    }

    fn part_index(key: &LeaseKey) -> usize {
        let mut hasher = BlockHasher::default();
        key.hash(&mut hasher);
        // The upper bits: the table inside a part uses the lower ones and the topmost seven.
        (hasher.finish() >> 40) as usize % PARTS
    }

    fn part(&self, key: &LeaseKey) -> &Part {
        &self.parts[Self::part_index(key)]
    }

    /// Whether nobody but this session holds anything: then nothing is in its way.
    pub fn are_all_of(&self, session: Option<SessionId>) -> bool {
        self.grantees.keys().all(|grantee| Some(*grantee) == session)
    }

    /// All holders of a key.
    pub fn holders(&self, key: &LeaseKey) -> impl Iterator<Item = &Holder> {
        self.part(key).get(key).into_iter().flat_map(Holders::iter)
    }

    /// A session's hold on a key.
    pub fn holder(&self, key: &LeaseKey, session: SessionId) -> Option<Holder> {
        self.holders(key).find(|holder| holder.session == session).copied()
    }

    /// Who holds names of a directory. Looks at all keys.
    pub fn holders_of_names(&self, directory: InodeNumber) -> BTreeSet<SessionId> {
        let held = self.parts.iter().flatten().filter(|(key, _)| is_name_of(key, directory));
        held.flat_map(|(_, holders)| holders.iter().map(|holder| holder.session)).collect()
    }

    /// The names of a directory that a session holds, granted by replies up to this stamp. Looks at all that it was
    /// granted.
    pub fn names_held(&self, directory: InodeNumber, session: SessionId, stamp: u64) -> BTreeSet<LeaseKey> {
        let names = self.log(session).iter().filter(|key| is_name_of(key, directory));
        let held = names.filter(|key| self.holder(key, session).is_some_and(|holder| holder.stamp <= stamp));
        held.copied().collect()
    }

    /// Whether the session may hold this many keys more.
    pub fn has_room(&self, session: SessionId, keys: usize) -> bool {
        self.grantees.get(&session).is_none_or(|grantee| grantee.held + keys <= LEASES_PER_SESSION_MAX)
    }

    /// Sets a session's hold on a key (`mode` is not `None`).
    pub fn set(&mut self, key: LeaseKey, holder: Holder) {
        assert!(holder.mode != LeaseMode::None, "to hold nothing is to be dropped");
        let part = &mut self.parts[Self::part_index(&key)];
        match part.entry(key) {
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert(Holders { first: holder, more: None });
            }
            std::collections::hash_map::Entry::Occupied(mut occupied) => {
                let holders = occupied.get_mut();
                if let Some(present) = holders.find(holder.session) {
                    *present = holder;
                    return;
                }
                holders.more.get_or_insert_default().push(holder);
            }
        }
        self.count += 1;
        let grantee = self.grantees.entry(holder.session).or_default();
        grantee.held += 1;
        grantee.log.push(key);
        if grantee.log.len() > 2 * grantee.held + LOG_SLACK {
            self.clean_log(holder.session);
        }
    }

    fn clean_log(&mut self, session: SessionId) {
        let Some(grantee) = self.grantees.get_mut(&session) else {
            return;
        };
        let mut log = std::mem::take(&mut grantee.log);
        log.sort_unstable();
        log.dedup();
        log.retain(|key| self.holder(key, session).is_some());
        if let Some(grantee) = self.grantees.get_mut(&session) {
            assert_eq!(log.len(), grantee.held, "the log of session {session} names what it holds");
            grantee.log = log;
        }
    }

    /// Drops a session's hold on a key. Returns what it was.
    pub fn drop_holder(&mut self, key: &LeaseKey, session: SessionId) -> Option<Holder> {
        let part = &mut self.parts[Self::part_index(key)];
        let holders = part.get_mut(key)?;
        let dropped;
        if holders.first.session == session {
            dropped = holders.first;
            match holders.more.as_mut().and_then(|more| more.pop()) {
                Some(next) => holders.first = next,
                None => {
                    part.remove(key);
                }
            }
        } else {
            let more = holders.more.as_mut()?;
            let index = more.iter().position(|holder| holder.session == session)?;
            dropped = more.swap_remove(index);
        }
        self.count -= 1;
        if let Some(grantee) = self.grantees.get_mut(&session) {
            grantee.held -= 1;
        }
        Some(dropped)
    }

    /// Returns the keys that the session may hold, some of them perhaps several times.
    pub fn log(&self, session: SessionId) -> &[LeaseKey] {
        self.grantees.get(&session).map_or(&[], |grantee| &grantee.log)
    }

    /// Files that count as open by the session, and that it may not cache.
    pub fn merely_open(&self, session: SessionId) -> BTreeSet<InodeNumber> {
        let open = |key: &LeaseKey| match key {
            LeaseKey::Data(inode) => {
                self.holder(key, session).filter(|holder| holder.mode == LeaseMode::Open).map(|_| *inode)
            }
            _ => None,
        };
        self.log(session).iter().filter_map(open).collect()
    }

    /// Keys that the session may hold, to be dropped one by one: its log is taken.
    pub fn take_log(&mut self, session: SessionId) -> Vec<LeaseKey> {
        let mut log =
            self.grantees.get_mut(&session).map(|grantee| std::mem::take(&mut grantee.log)).unwrap_or_default();
        log.sort_unstable();
        log.dedup();
        log
    }

    /// The session is gone; nothing may be held by it any more.
    pub fn drop_session(&mut self, session: SessionId) {
        if let Some(grantee) = self.grantees.remove(&session) {
            assert_eq!(grantee.held, 0, "session {session} ended with leases");
        }
    }

    /// The keys of an inode that end with it. Names in it are not among them: they stay absent.
    pub fn keys_of(inode: InodeNumber) -> [LeaseKey; 5] {
        [
            LeaseKey::Attributes(inode),
            LeaseKey::Directory(inode),
            LeaseKey::Data(inode),
            LeaseKey::Permissions(inode),
            LeaseKey::Ranges(inode),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(session: u64, mode: LeaseMode) -> Holder {
        Holder::new(SessionId(session), mode, 1)
    }

    #[test]
    fn holders_come_and_go() {
        let mut leases = Leases::new();
        let key = LeaseKey::Data(InodeNumber::ROOT);
        for session in 1..=3 {
            leases.set(key, holder(session, LeaseMode::Open));
        }
        leases.set(key, holder(2, LeaseMode::Shared));
        assert_eq!(leases.count(), 3);
        assert_eq!(leases.drop_holder(&key, SessionId(1)), Some(holder(1, LeaseMode::Open)));
        assert_eq!(leases.drop_holder(&key, SessionId(1)), None);
        assert_eq!(leases.holder(&key, SessionId(2)), Some(holder(2, LeaseMode::Shared)));
        for session in 2..=3 {
            for key in leases.take_log(SessionId(session)) {
                leases.drop_holder(&key, SessionId(session));
            }
            leases.drop_session(SessionId(session));
        }
        assert_eq!((leases.count(), leases.holders(&key).count()), (0, 0));
    }

    #[test]
    fn the_log_of_a_session_does_not_grow_with_what_it_gave_back() {
        let mut leases = Leases::new();
        for number in 0..100_000 {
            let key = LeaseKey::Entry(InodeNumber::ROOT, number % 5000);
            leases.set(key, holder(1, LeaseMode::Shared));
            if number % 2 == 0 {
                leases.drop_holder(&key, SessionId(1));
            }
        }
        let grantee = &leases.grantees[&SessionId(1)];
        assert!(grantee.log.len() <= 2 * grantee.held + LOG_SLACK, "{} for {}", grantee.log.len(), grantee.held);
    }
}
