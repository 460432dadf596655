//! What a client may still believe of names and attributes: the lease cache.
//!
//! A shard's leases hold while the session's term there holds, counted from the moment the last answered request was
//! sent. When it has passed, everything of that shard is forgotten at once (by its *age*, a number, not by a walk).
//!
//! Invariant: an answer from here is one that the shard would have given at some moment between the call and its
//! return.
//! Not here: data leases of open files; the kernel's caches above, which are told what is [`Dropped`].

use std::collections::{BTreeMap, VecDeque};
use weft_protocol::limits::{SESSION_TERM_MARGIN_MS, SESSION_TERM_MS};
use weft_protocol::{Attributes, FileKind, Grants, InodeNumber, LeaseKey, Name, ShardId, Timestamp};

/// Names kept. Beyond it the oldest are given back.
const ENTRIES_MAX: usize = 64 << 10;
/// Attributes kept.
const ATTRIBUTES_MAX: usize = 64 << 10;
/// Recalls remembered for replies that may still be on their way.
const RECALLS_MAX: usize = 4096;

/// What the cache says of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cached {
    Found(InodeNumber, FileKind),
    Absent,
    Unknown,
}

/// What a recall took away, for caches above.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Dropped {
    pub names: Vec<(InodeNumber, Name)>,
    pub inodes: Vec<InodeNumber>,
}

/// What an own operation did to a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryChange {
    /// Names more or less.
    pub entries: i64,
    /// Sub-directories more or less: each counts as a link.
    pub directories: i32,
    /// When.
    pub time: Timestamp,
}

/// A shard's term. Entries of another age are void.
#[derive(Clone, Copy, Debug, Default)]
struct Term {
    valid_until_ms: u64,
    age: u32,
}

#[derive(Debug)]
struct CachedName {
    name: Name,
    /// `None`: the name is not there.
    target: Option<(InodeNumber, FileKind)>,
    age: u32,
    /// Of the reply that granted it.
    stamp: u64,
    /// Known by the lease on the whole directory, not by one of its own.
    by_directory: bool,
}

#[derive(Debug)]
struct CachedAttributes {
    attributes: Attributes,
    age: u32,
    /// Of the reply that granted it.
    stamp: u64,
    /// Of the last own change that is accounted for.
    own_stamp: u64,
    /// Times and sizes have changed by an own operation; owner and mode still hold.
    times_stale: bool,
}

/// The lease cache of one session.
#[derive(Debug, Default)]
pub struct Cache {
    terms: BTreeMap<ShardId, Term>,
    names: BTreeMap<(InodeNumber, u64), CachedName>,
    name_order: VecDeque<(InodeNumber, u64)>,
    attributes: BTreeMap<InodeNumber, CachedAttributes>,
    attribute_order: VecDeque<InodeNumber>,
    /// Directories all of whose names are known: age of the knowledge, stamp of its grant.
    complete: BTreeMap<InodeNumber, (u32, u64)>,
    /// The stamp of the last recall of a key, while replies granted before may be on their way.
    recalls: BTreeMap<LeaseKey, u64>,
    /// Leases dropped to make room, to be given back, with the stamps of their grants.
    surplus: BTreeMap<LeaseKey, u64>,
    /// What was dropped to make room: caches above have to drop it before its leases are given back.
    evicted: Dropped,
}

impl Cache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// A request that the shard has answered was sent at this time: its leases hold for a term from then.
    pub fn renewed(&mut self, shard: ShardId, sent_ms: u64, now_ms: u64) {
        let term = self.terms.entry(shard).or_default();
        if now_ms >= term.valid_until_ms {
            // The term passed in between: the shard may have ended the session, and what it granted.
            term.age += 1;
        }
        term.valid_until_ms = term.valid_until_ms.max(sent_ms + SESSION_TERM_MS - SESSION_TERM_MARGIN_MS);
    }

    /// Forgets everything: the session has ended. Returns what was known, for caches above.
    pub fn clear(&mut self) -> Dropped {
        let names =
            std::mem::take(&mut self.names).into_iter().map(|((parent, _), known)| (parent, known.name)).collect();
        let dropped = Dropped { names, inodes: self.attributes.keys().copied().collect() };
        let terms = std::mem::take(&mut self.terms);
        *self = Self::default();
        self.terms =
            terms.into_iter().map(|(shard, term)| (shard, Term { valid_until_ms: 0, age: term.age + 1 })).collect();
        dropped
    }

    /// How long what is known of this shard still holds, milliseconds.
    pub fn holds_ms(&self, shard: ShardId, now_ms: u64) -> u64 {
        self.terms.get(&shard).map_or(0, |term| term.valid_until_ms.saturating_sub(now_ms))
    }

    /// Whether anything is kept that a renewal would keep alive.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.attributes.is_empty() && self.complete.is_empty()
    }

    fn current(&self, inode: InodeNumber, age: u32, now_ms: u64) -> bool {
        self.terms.get(&inode.shard()).is_some_and(|term| term.age == age && now_ms < term.valid_until_ms)
    }

    fn age(&self, inode: InodeNumber) -> u32 {
        self.terms.get(&inode.shard()).map_or(0, |term| term.age)
    }

    /// What is known of a name.
    pub fn lookup(&self, parent: InodeNumber, name: &Name, now_ms: u64) -> Cached {
        let complete = self.complete.get(&parent).is_some_and(|(age, _)| self.current(parent, *age, now_ms));
        match self.names.get(&(parent, name.hash64())) {
            Some(known)
                if known.name == *name
                    && self.current(parent, known.age, now_ms)
                    && (complete || !known.by_directory) =>
            {
                known.target.map_or(Cached::Absent, |(inode, kind)| Cached::Found(inode, kind))
            }
            // Another name of the same hash may have taken the place of this one.
            Some(_) => Cached::Unknown,
            None if complete => Cached::Absent,
            None => Cached::Unknown,
        }
    }

    /// What is known of an inode, all fields good.
    pub fn attributes(&self, inode: InodeNumber, now_ms: u64) -> Option<&Attributes> {
        self.permissions(inode, now_ms).filter(|_| self.attributes.get(&inode).is_some_and(|known| !known.times_stale))
    }

    /// What is known of an inode, of which kind, mode, owner and group are good.
    pub fn permissions(&self, inode: InodeNumber, now_ms: u64) -> Option<&Attributes> {
        self.attributes
            .get(&inode)
            .filter(|known| self.current(inode, known.age, now_ms))
            .map(|known| &known.attributes)
    }

    /// A reply granted the name: `target` `None` means that it is not there. A recall that was sent after wins.
    pub fn learn_name(
        &mut self,
        parent: InodeNumber,
        name: &Name,
        target: Option<(InodeNumber, FileKind)>,
        grants: Grants,
        stamp: u64,
    ) {
        let key = (parent, name.hash64());
        let own = grants.contains(Grants::ENTRY) && !self.recalled(LeaseKey::Entry(parent, key.1), stamp);
        let complete = self.complete.get(&parent).is_some_and(|(age, _)| *age == self.age(parent));
        if !own && !complete {
            self.names.remove(&key);
            return;
        }
        let cached = CachedName { name: name.clone(), target, age: self.age(parent), stamp, by_directory: !own };
        if self.names.insert(key, cached).is_none() {
            self.name_order.push_back(key);
        }
        self.make_room();
    }

    /// A reply granted attributes.
    pub fn learn_attributes(&mut self, attributes: &Attributes, grants: Grants, stamp: u64) {
        let inode = attributes.inode;
        if !grants.contains(Grants::ATTRIBUTES) || self.recalled(LeaseKey::Attributes(inode), stamp) {
            self.attributes.remove(&inode);
            return;
        }
        let cached = CachedAttributes {
            attributes: attributes.clone(),
            age: self.age(inode),
            stamp,
            own_stamp: stamp,
            times_stale: false,
        };
        if self.attributes.insert(inode, cached).is_none() {
            self.attribute_order.push_back(inode);
        }
        self.make_room();
    }

    /// A reply granted that all names of the directory are known (those learnt since its first page).
    pub fn learn_complete(&mut self, directory: InodeNumber, stamp: u64) {
        if !self.recalled(LeaseKey::Directory(directory), stamp) {
            let age = self.age(directory);
            self.complete.insert(directory, (age, stamp));
        }
    }

    /// A name that is known by the lease on its directory (a page of a listing).
    pub fn learn_listed(&mut self, directory: InodeNumber, name: &Name, target: (InodeNumber, FileKind)) {
        let key = (directory, name.hash64());
        let age = self.age(directory);
        let keeps_own = self.names.get(&key).is_some_and(|known| !known.by_directory && known.age == age);
        if keeps_own && self.names.get(&key).is_some_and(|known| known.target == Some(target)) {
            return;
        }
        let cached = CachedName { name: name.clone(), target: Some(target), age, stamp: 0, by_directory: true };
        if self.names.insert(key, cached).is_none() {
            self.name_order.push_back(key);
        }
        self.make_room();
    }

    /// An own operation added names to the directory, or removed them, as the reply with this stamp told: what is known
    /// of it is brought up to date, so that no message is needed to ask. Replies that passed each other on their way
    /// are told apart by their stamps: what is known from a later one has the change already.
    pub fn directory_became(&mut self, directory: InodeNumber, change: DirectoryChange, stamp: u64) {
        if let Some(known) = self.attributes.get_mut(&directory)
            && known.stamp <= stamp
        {
            let attributes = &mut known.attributes;
            attributes.size = attributes.size.saturating_add_signed(change.entries);
            attributes.links = attributes.links.saturating_add_signed(change.directories);
            if stamp >= known.own_stamp {
                attributes.mtime = change.time;
                attributes.ctime = change.time;
                known.own_stamp = stamp;
            }
        }
        // An answer from before the change, still on its way, is not to be taken for what holds now. A change that
        // granted nothing has the stamp of the last grant before it.
        let latest = self.recalls.entry(LeaseKey::Attributes(directory)).or_default();
        *latest = (*latest).max(stamp + 1);
    }

    /// An own operation changed the directory: its times and size are not known any more.
    pub fn directory_changed(&mut self, directory: InodeNumber) {
        self.times_changed(directory);
    }

    /// An own operation changed times or size of an inode.
    pub fn times_changed(&mut self, inode: InodeNumber) {
        if let Some(known) = self.attributes.get_mut(&inode) {
            known.times_stale = true;
        }
    }

    /// The attributes are not known any more.
    pub fn forget_attributes(&mut self, inode: InodeNumber) {
        self.attributes.remove(&inode);
    }

    /// An own operation removed the name. It is known to be absent where the lease on it, or on the directory, is held.
    pub fn name_removed(&mut self, parent: InodeNumber, name: &Name) {
        if let Some(known) = self.names.get_mut(&(parent, name.hash64())) {
            if known.name == *name {
                known.target = None;
            } else {
                self.names.remove(&(parent, name.hash64()));
            }
        }
    }

    /// Nothing is known of the name any more.
    pub fn forget_name(&mut self, parent: InodeNumber, name: &Name) {
        // A directory whose names were all known is so no more: absence of the name here would read as absence there.
        self.names.remove(&(parent, name.hash64()));
        self.complete.remove(&parent);
    }

    /// A recall came. Data leases are not kept here.
    pub fn recall(&mut self, key: LeaseKey, stamp: u64) -> Dropped {
        if self.recalls.len() >= RECALLS_MAX {
            // Replies older than thousands of recalls are not on their way any more, or their session has ended.
            let oldest = self.recalls.values().copied().min().unwrap_or(0);
            let middle = oldest + (stamp.saturating_sub(oldest)) / 2;
            self.recalls.retain(|_, stamp| *stamp > middle);
        }
        self.recalls.insert(key, stamp);
        let mut dropped = Dropped::default();
        match key {
            LeaseKey::Attributes(inode) => {
                self.attributes.remove(&inode);
                dropped.inodes.push(inode);
            }
            LeaseKey::Entry(parent, hash) => {
                if let Some(known) = self.names.remove(&(parent, hash)) {
                    dropped.names.push((parent, known.name));
                }
                self.complete.remove(&parent);
            }
            LeaseKey::Directory(directory) => {
                self.complete.remove(&directory);
                let range = (directory, 0)..=(directory, u64::MAX);
                let listed: Vec<u64> = self
                    .names
                    .range(range)
                    .filter(|(_, known)| known.by_directory)
                    .map(|((_, hash), _)| *hash)
                    .collect();
                for hash in listed {
                    if let Some(known) = self.names.remove(&(directory, hash)) {
                        dropped.names.push((directory, known.name));
                    }
                }
            }
            LeaseKey::Data(_) => {}
        }
        dropped
    }

    fn recalled(&self, key: LeaseKey, stamp: u64) -> bool {
        self.recalls.get(&key).is_some_and(|recalled| *recalled > stamp)
    }

    /// Whether a grant of a data lease with this stamp was recalled already.
    pub fn data_recalled(&self, inode: InodeNumber, stamp: u64) -> bool {
        self.recalled(LeaseKey::Data(inode), stamp)
    }

    /// Remembers a recall of a data lease for replies on their way.
    pub fn note_data_recall(&mut self, inode: InodeNumber, stamp: u64) {
        let _ = self.recall(LeaseKey::Data(inode), stamp);
    }

    fn make_room(&mut self) {
        while self.names.len() > ENTRIES_MAX {
            let Some(key) = self.name_order.pop_front() else { break };
            if let Some(known) = self.names.remove(&key) {
                // A complete directory with a name missing would lie.
                if let Some((_, stamp)) = self.complete.remove(&key.0) {
                    self.surplus.insert(LeaseKey::Directory(key.0), stamp);
                }
                if !known.by_directory {
                    self.surplus.insert(LeaseKey::Entry(key.0, key.1), known.stamp);
                }
                self.evicted.names.push((key.0, known.name));
            }
        }
        while self.attributes.len() > ATTRIBUTES_MAX {
            let Some(inode) = self.attribute_order.pop_front() else { break };
            if let Some(known) = self.attributes.remove(&inode) {
                self.surplus.insert(LeaseKey::Attributes(inode), known.stamp);
                self.evicted.inodes.push(inode);
            }
        }
        // Keys removed otherwise stay in the order queues: keep those short too.
        if self.name_order.len() > 2 * ENTRIES_MAX {
            self.name_order.retain(|key| self.names.contains_key(key));
        }
        if self.attribute_order.len() > 2 * ATTRIBUTES_MAX {
            self.attribute_order.retain(|inode| self.attributes.contains_key(inode));
        }
    }

    /// Leases to be given back, of one shard at a time, at most `count`, with the stamps of their grants.
    pub fn take_surplus(&mut self, count: usize) -> Option<(ShardId, Vec<(LeaseKey, u64)>)> {
        let shard = self.surplus.first_key_value()?.0.inode().shard();
        let of_shard = self.surplus.iter().filter(|(key, _)| key.inode().shard() == shard);
        let leases: Vec<(LeaseKey, u64)> = of_shard.take(count).map(|(key, stamp)| (*key, *stamp)).collect();
        for (key, _) in &leases {
            self.surplus.remove(key);
        }
        Some((shard, leases))
    }

    /// What was dropped to make room since this was asked last: to be dropped by caches above before
    /// [`Cache::take_surplus`].
    pub fn take_evicted(&mut self) -> Dropped {
        std::mem::take(&mut self.evicted)
    }

    /// Whether the name is known not to be there by a lease on the name itself. Only then can a recall tell a cache
    /// above which name is meant.
    pub fn is_absent_by_name(&self, parent: InodeNumber, name: &Name, now_ms: u64) -> bool {
        let own = self.names.get(&(parent, name.hash64())).is_some_and(|known| !known.by_directory);
        own && self.lookup(parent, name, now_ms) == Cached::Absent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::Layout;

    const DIRECTORY: InodeNumber = InodeNumber::ROOT;

    fn attributes(size: u64, time: i64) -> Attributes {
        let time = Timestamp(time);
        Attributes {
            inode: DIRECTORY,
            kind: FileKind::Directory,
            mode: 0o755,
            links: 2,
            uid: 0,
            gid: 0,
            size,
            atime: time,
            mtime: time,
            ctime: time,
            layout: Layout::Empty,
        }
    }

    fn made(time: i64) -> DirectoryChange {
        DirectoryChange { entries: 1, directories: 0, time: Timestamp(time) }
    }

    /// A cache whose shard has just been heard.
    fn heard() -> Cache {
        let mut cache = Cache::new();
        cache.renewed(ShardId::ROOT, 0, 0);
        cache
    }

    fn size_and_time(cache: &Cache) -> Option<(u64, i64)> {
        cache.attributes(DIRECTORY, 1).map(|known| (known.size, known.mtime.0))
    }

    #[test]
    fn own_changes_count_in_whatever_order_their_replies_come() {
        let mut cache = heard();
        cache.learn_attributes(&attributes(5, 10), Grants::ATTRIBUTES, 3);
        cache.directory_became(DIRECTORY, made(30), 6);
        cache.directory_became(DIRECTORY, made(20), 5);
        assert_eq!(size_and_time(&cache), Some((7, 30)));
        // A reply to a change from before the attributes were granted: they have it.
        cache.directory_became(DIRECTORY, made(5), 2);
        assert_eq!(size_and_time(&cache), Some((7, 30)));
    }

    #[test]
    fn an_answer_from_before_an_own_change_is_not_believed() {
        let mut cache = heard();
        cache.directory_became(DIRECTORY, made(20), 5);
        for (stamp, believed) in [(4, false), (5, false), (6, true)] {
            cache.learn_attributes(&attributes(5, 10), Grants::ATTRIBUTES, stamp);
            assert_eq!(size_and_time(&cache).is_some(), believed, "stamp {stamp}");
        }
    }

    #[test]
    fn a_recall_that_passed_the_grant_wins() {
        let mut cache = heard();
        let name = Name::new(b"n").unwrap();
        let key = LeaseKey::Entry(DIRECTORY, name.hash64());
        cache.recall(key, 8);
        cache.learn_name(DIRECTORY, &name, None, Grants::ENTRY, 7);
        assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Unknown);
        cache.learn_name(DIRECTORY, &name, None, Grants::ENTRY, 9);
        assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Absent);
        let dropped = cache.recall(key, 10);
        assert_eq!(dropped.names, [(DIRECTORY, name.clone())]);
        assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Unknown);
    }

    #[test]
    fn nothing_is_believed_after_the_term() {
        let mut cache = heard();
        cache.learn_attributes(&attributes(5, 10), Grants::ATTRIBUTES, 1);
        let end = SESSION_TERM_MS - SESSION_TERM_MARGIN_MS;
        assert!(cache.attributes(DIRECTORY, end - 1).is_some());
        assert!(cache.attributes(DIRECTORY, end).is_none());
        // Heard again only after the term: the shard may have given the lease to somebody else meanwhile.
        cache.renewed(ShardId::ROOT, end + 5, end + 6);
        assert!(cache.attributes(DIRECTORY, end + 7).is_none());
    }

    #[test]
    fn what_is_made_in_a_known_directory_and_removed_is_known() {
        let mut cache = heard();
        let name = Name::new(b"n").unwrap();
        cache.learn_complete(DIRECTORY, 1);
        assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Absent);
        cache.learn_name(DIRECTORY, &name, Some((InodeNumber::from_raw(9), FileKind::Regular)), Grants::empty(), 2);
        assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Found(InodeNumber::from_raw(9), FileKind::Regular));
        cache.name_removed(DIRECTORY, &name);
        assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Absent);
        let dropped = cache.recall(LeaseKey::Directory(DIRECTORY), 3);
        assert_eq!(dropped.names, [(DIRECTORY, name.clone())]);
        assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Unknown);
    }
}
