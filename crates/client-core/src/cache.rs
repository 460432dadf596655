//! What a client may still believe of names and attributes: the lease cache.
//!
//! A shard's leases hold while the session's term there holds, counted from the moment the last answered request was
//! sent. When it has passed, everything of that shard is forgotten at once (by its *age*, a number, not by a walk).
//!
//! Invariant: an answer from here is one that the shard would have given at some moment between the call and its
//! return.
//! Not here: data leases of open files; the kernel's caches above, which are told what is [`Dropped`].

mod changing;
mod listed;
mod parts;
mod room;
mod shared;
mod terms;
mod xattrs;

use shared::SharedDirectories;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use terms::{OthersDoubted, Term};
use weft_protocol::hash::FixedMap;
use weft_protocol::{
    Attributes, Cookie, FileKind, Grants, InodeNumber, LeaseKey, Name, Plan, ShardId, Timestamp, Xattr, routing,
};

/// Names kept. Beyond it the oldest are given back.
const ENTRIES_MAX: usize = 64 << 10;
/// Attributes kept.
const ATTRIBUTES_MAX: usize = 64 << 10;
/// Directories held.
const DIRECTORIES_MAX: usize = 16 << 10;
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
    /// Directories that were held as a whole: a cache above may have a listing of one, which has no name in it.
    pub directories: Vec<InodeNumber>,
    /// The lease that was recalled: a cache above may know more of what it covered.
    pub recalled: Option<LeaseKey>,
}

impl Dropped {
    /// The names, by directory.
    pub fn names_by_directory(&self) -> BTreeMap<InodeNumber, Vec<Name>> {
        let mut names: BTreeMap<InodeNumber, Vec<Name>> = BTreeMap::new();
        for (parent, name) in &self.names {
            names.entry(*parent).or_default().push(name.clone());
        }
        names
    }
}

/// What an own change in flight may have changed at the shard already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changing {
    /// A name, by its directory and its hash; with it the directory's times and size.
    Name(InodeNumber, u64),
    Attributes(InodeNumber),
    Xattrs(InodeNumber),
}

impl Changing {
    /// A name of a directory, or of a part of one.
    pub fn name(parent: InodeNumber, name: &Name) -> Self {
        Self::Name(parent, name.hash64())
    }
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

impl KnownNames {
    /// Whether the name would be known if it was there.
    fn covers(&self, name: &Name) -> bool {
        match self {
            KnownNames::Some => false,
            KnownNames::UpTo(last) => Cookie::of(name).bucket() < last.bucket(),
            KnownNames::All => true,
        }
    }
}

#[derive(Debug)]
struct CachedName {
    name: Name,
    target: Cached,
    age: u32,
    /// Of the reply that granted it.
    stamp: u64,
    /// Known by the lease on the whole directory, not by one of its own.
    by_directory: bool,
}

/// Extended attributes of an inode, each with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownXattrs {
    pub xattrs: Vec<Xattr>,
    /// Those of the namespace `trusted` are among them.
    pub has_trusted: bool,
}

/// A directory that is held as a whole.
#[derive(Debug)]
struct HeldDirectory {
    age: u32,
    /// Of the reply that granted it first: what was told before may be of an earlier hold, recalled since.
    since: u64,
    /// Of the latest reply that granted it.
    stamp: u64,
    known: KnownNames,
    /// Hashes of the names that are known by this lease; more than that now and then.
    listed: Vec<u64>,
}

/// Which names of a directory are known.
#[derive(PartialEq, Eq, Debug)]
enum KnownNames {
    Some,
    /// All up to this cookie. Collisions settle within a bucket: only of those before it, it is known which names are
    /// not there.
    UpTo(Cookie),
    All,
}

#[derive(Debug)]
struct CachedAttributes {
    attributes: Attributes,
    age: u32,
    /// Of the reply that granted it.
    stamp: u64,
    /// Of the last own change that is accounted for.
    own_stamp: u64,
    /// Times and sizes have changed, or may have; owner and mode still hold.
    times_stale: bool,
    /// Of a directory: kind, mode and owner are held by a lease of their own.
    permissions: bool,
    /// Of the inode, if they were asked for.
    xattrs: Option<Arc<KnownXattrs>>,
}

/// The lease cache of one session.
#[derive(Debug, Default)]
pub struct Cache {
    terms: BTreeMap<ShardId, Term>,
    /// While there are any, nothing is believed.
    others_doubted: OthersDoubted,
    names: FixedMap<(InodeNumber, u64), CachedName>,
    name_order: VecDeque<(InodeNumber, u64)>,
    attributes: FixedMap<InodeNumber, CachedAttributes>,
    attribute_order: VecDeque<InodeNumber>,
    /// Inodes of which extended attributes were kept, the oldest first.
    xattr_order: VecDeque<InodeNumber>,
    /// One for each own change in flight.
    changing: Vec<Changing>,
    directories: FixedMap<InodeNumber, HeldDirectory>,
    directory_order: VecDeque<InodeNumber>,
    shared: SharedDirectories,
    parts: parts::KnownParts,
    /// The stamp of the last recall of a key, while replies granted before may be on their way.
    recalls: BTreeMap<LeaseKey, u64>,
    /// Leases dropped to make room, to be given back, with the stamps of their grants.
    surplus: BTreeMap<LeaseKey, u64>,
    /// Names dropped to make room that are still listed of their directories.
    unlisted: usize,
    /// Counts what was learnt and what is not known any more.
    changes: u64,
    /// What was dropped to make room: caches above have to drop it before its leases are given back.
    evicted: Dropped,
}

impl Cache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets everything: the session has ended. Returns what was known, for caches above.
    pub fn clear(&mut self) -> Dropped {
        let names =
            std::mem::take(&mut self.names).into_iter().map(|((parent, _), known)| (parent, known.name)).collect();
        let inodes = self.attributes.keys().copied().collect();
        let directories = self.directories.keys().copied().collect();
        let dropped = self.above(Dropped { names, inodes, directories, recalled: None });
        let terms = std::mem::take(&mut self.terms);
        let (changing, parts) = (std::mem::take(&mut self.changing), std::mem::take(&mut self.parts));
        *self = Self { changes: self.changes + 1, changing, parts, ..Self::default() };
        self.terms = terms.into_iter().map(|(shard, term)| (shard, term.ended())).collect();
        dropped
    }

    /// Whether anything is kept that a renewal would keep alive.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.attributes.is_empty() && self.directories.is_empty()
    }

    fn current(&self, shard: ShardId, age: u32, now_ms: u64) -> bool {
        self.others_doubted.is_empty()
            && self.terms.get(&shard).is_some_and(|term| term.age == age && term.holds_ms(now_ms) > 0)
    }

    fn age(&self, shard: ShardId) -> u32 {
        self.terms.get(&shard).map_or(0, |term| term.age)
    }

    /// What is known of a name.
    pub fn lookup(&self, parent: InodeNumber, name: &Name, now_ms: u64) -> Cached {
        if self.is_changing(Changing::name(parent, name)) {
            return Cached::Unknown;
        }
        let held =
            self.directories.get(&parent).filter(|held| self.current(routing::of_inode(parent), held.age, now_ms));
        match self.names.get(&(parent, name.hash64())) {
            Some(known)
                if known.name == *name
                    && self.current(routing::of_name(parent, name), known.age, now_ms)
                    && (held.is_some() || !known.by_directory) =>
            {
                known.target
            }
            // Another name of the same hash may have taken the place of this one.
            Some(_) => Cached::Unknown,
            None if held.is_some_and(|held| held.known.covers(name)) => Cached::Absent,
            None => Cached::Unknown,
        }
    }

    /// What the name meant when something was known of it.
    pub fn latest_known(&self, parent: InodeNumber, name: &Name) -> Option<(InodeNumber, FileKind)> {
        match self.names.get(&(parent, name.hash64())).filter(|known| known.name == *name)?.target {
            Cached::Found(inode, kind) => Some((inode, kind)),
            Cached::Absent | Cached::Unknown => None,
        }
    }

    /// The layout of what is made in a directory, when something was known of it.
    pub fn latest_plan(&self, directory: InodeNumber) -> Option<Plan> {
        self.attributes.get(&directory).map(|known| known.attributes.layout.plan())
    }

    /// What is known of an inode, all fields good.
    pub fn attributes(&self, inode: InodeNumber, now_ms: u64) -> Option<&Attributes> {
        let are_good = |known: &CachedAttributes| !known.times_stale && !self.is_changing_times(inode);
        self.permissions(inode, now_ms).filter(|_| self.attributes.get(&inode).is_some_and(are_good))
    }

    /// What is known of an inode, of which kind, mode, owner and group are good.
    pub fn permissions(&self, inode: InodeNumber, now_ms: u64) -> Option<&Attributes> {
        self.attributes
            .get(&inode)
            .filter(|_| !self.is_changing(Changing::Attributes(inode)))
            .filter(|known| self.current(routing::of_inode(inode), known.age, now_ms))
            .map(|known| &known.attributes)
    }

    /// A reply told of a name: `target` `None` means that it is not there. It is kept under a lease of its own, or that
    /// on its directory. A recall that was sent after wins.
    pub fn learn_name(
        &mut self,
        parent: InodeNumber,
        name: &Name,
        target: Option<(InodeNumber, FileKind)>,
        grants: Grants,
        stamp: u64,
    ) {
        let target = target.map_or(Cached::Absent, |(inode, kind)| Cached::Found(inode, kind));
        self.take_name(parent, name, target, grants, stamp);
        self.make_room();
    }

    /// An own operation made the name, as the reply with this stamp told.
    pub fn name_made(
        &mut self,
        parent: InodeNumber,
        name: &Name,
        (inode, kind): (InodeNumber, FileKind),
        grants: Grants,
        stamp: u64,
    ) {
        self.take_made(parent, name, Cached::Found(inode, kind), grants, stamp);
        self.make_room();
    }

    /// As [`Cache::name_made`], without making room. Nobody recalls what an own change makes untrue: a reply from
    /// before it that is still on its way is not to be believed. Returns whether the name is known.
    fn take_made(&mut self, parent: InodeNumber, name: &Name, target: Cached, grants: Grants, stamp: u64) -> bool {
        let is_known = self.take_name(parent, name, target, grants, stamp);
        if !is_known {
            self.note_recall(LeaseKey::Entry(parent, name.hash64()), stamp);
        }
        is_known
    }

    /// As [`Cache::learn_name`], without making room. Returns whether the name is known to be what the reply told.
    fn take_name(&mut self, parent: InodeNumber, name: &Name, target: Cached, grants: Grants, stamp: u64) -> bool {
        self.changes += 1;
        self.shared.told(parent, grants, stamp);
        let key = (parent, name.hash64());
        let age = self.age(routing::of_name(parent, name));
        let known = self.known(key, name, age);
        if known.is_some_and(|known| known.stamp > stamp) {
            return false;
        }
        if grants.contains(Grants::ENTRY) && !self.recalled(LeaseKey::Entry(parent, key.1), stamp) {
            self.keep_name(key, CachedName { name: name.clone(), target, age, stamp, by_directory: false });
            return true;
        }
        let held = self.holds_since(parent, stamp);
        if !held {
            self.names.remove(&key);
            self.not_all_known(parent);
        } else if !known_apart(known, target) {
            self.keep_name(key, CachedName { name: name.clone(), target, age, stamp, by_directory: true });
        }
        held
    }

    /// What is known of the name since the directory is of this age.
    fn known(&self, key: (InodeNumber, u64), name: &Name, age: u32) -> Option<&CachedName> {
        self.names.get(&key).filter(|known| known.age == age && known.name == *name)
    }

    fn keep_name(&mut self, key: (InodeNumber, u64), known: CachedName) {
        let (by_directory, age) = (known.by_directory, known.age);
        let before = self.names.insert(key, known);
        if before.is_none() {
            self.name_order.push_back(key);
        }
        let is_listed = before.is_some_and(|before| before.by_directory && before.age == age);
        if by_directory
            && !is_listed
            && let Some(held) = self.directories.get_mut(&key.0)
        {
            held.listed.push(key.1);
            if held.listed.len() > 2 * ENTRIES_MAX {
                held.listed.sort_unstable();
                held.listed.dedup();
                held.listed.retain(|hash| self.names.contains_key(&(key.0, *hash)));
            }
        }
    }

    /// Whether the directory is held, and was when the shard gave this stamp.
    fn holds_since(&self, directory: InodeNumber, stamp: u64) -> bool {
        let age = self.age(routing::of_inode(directory));
        self.directories.get(&directory).is_some_and(|held| held.age == age && held.since <= stamp)
    }

    /// Whether the directory is held: the stamp from which on it was, without a recall in between.
    pub fn directory_held_since(&self, directory: InodeNumber, now_ms: u64) -> Option<u64> {
        let held = self
            .directories
            .get(&directory)
            .filter(|held| self.current(routing::of_inode(directory), held.age, now_ms));
        held.map(|held| held.since)
    }

    /// Of a name that is not known any more it must not be believed that it is not there.
    fn not_all_known(&mut self, directory: InodeNumber) {
        if let Some(held) = self.directories.get_mut(&directory) {
            held.known = KnownNames::Some;
        }
    }

    /// A reply granted attributes. One that was overtaken by a later reply tells nothing.
    pub fn learn_attributes(&mut self, attributes: &Attributes, grants: Grants, stamp: u64) {
        self.take_attributes(attributes, grants, stamp);
        self.make_room();
    }

    /// As [`Cache::learn_attributes`], without making room. Returns whether all fields are known to be what the reply
    /// told.
    fn take_attributes(&mut self, attributes: &Attributes, grants: Grants, stamp: u64) -> bool {
        self.changes += 1;
        self.learn_parts(attributes);
        let inode = attributes.inode;
        let age = self.age(routing::of_inode(inode));
        if self.attributes.get(&inode).is_some_and(|known| known.age == age && known.stamp > stamp) {
            return false;
        }
        let holds = |bit, key| grants.contains(bit) && !self.recalled(key, stamp);
        let all = holds(Grants::ATTRIBUTES, LeaseKey::Attributes(inode));
        let permissions = holds(Grants::PERMISSIONS, LeaseKey::Permissions(inode));
        if !all {
            // What an earlier reply grants that is still on its way is not to be taken for what holds now.
            self.note_recall(LeaseKey::Attributes(inode), stamp);
        }
        if !all && !permissions {
            self.attributes.remove(&inode);
            return false;
        }
        // As long as the lease was held, and not given anew after a change.
        let same = |known: &&CachedAttributes| {
            known.age == age && !known.times_stale && known.attributes.ctime == attributes.ctime
        };
        let xattrs = self.attributes.get(&inode).filter(same).filter(|_| all).and_then(|known| known.xattrs.clone());
        let cached = CachedAttributes {
            attributes: attributes.clone(),
            age,
            stamp,
            own_stamp: stamp,
            times_stale: !all,
            permissions,
            xattrs,
        };
        if self.attributes.insert(inode, cached).is_none() {
            self.attribute_order.push_back(inode);
        }
        all
    }

    /// An own operation made this file, as the reply with this stamp told: takes in what became of the directory, the
    /// name and the attributes. Returns how long it may be believed that the name is this inode's, and what is known of
    /// the inode, milliseconds.
    pub fn learn_made(
        &mut self,
        (parent, name): (InodeNumber, &Name),
        attributes: &Attributes,
        grants: Grants,
        stamp: u64,
        now_ms: u64,
    ) -> (u64, u64) {
        let change = DirectoryChange { entries: 1, directories: 0, time: attributes.ctime };
        self.directory_became(parent, change, stamp);
        let target = Cached::Found(attributes.inode, attributes.kind);
        let name_known = self.take_made(parent, name, target, grants, stamp);
        let attributes_known = self.take_attributes(attributes, grants, stamp);
        self.make_room();
        let until = |known, shard| if known { self.holds_ms(shard, now_ms) } else { 0 };
        let (of_name, of_inode) = (routing::of_name(parent, name), routing::of_inode(attributes.inode));
        (until(name_known, of_name), until(attributes_known, of_inode))
    }

    /// An own operation added names to the directory, or removed them, as the reply with this stamp told: what is known
    /// of it is brought up to date, so that no message is needed to ask. Replies that passed each other on their way
    /// are told apart by their stamps: what is known from a later one has the change already.
    pub fn directory_became(&mut self, directory: InodeNumber, change: DirectoryChange, stamp: u64) {
        self.changes += 1;
        if let Some(known) = self.attributes.get_mut(&directory)
            && known.stamp <= stamp
        {
            let attributes = &mut known.attributes;
            match attributes.size.checked_add_signed(change.entries) {
                Some(size) => attributes.size = size,
                // A removal is told before what made the name: they are asked for again.
                None => known.times_stale = true,
            }
            attributes.links = attributes.links.saturating_add_signed(change.directories);
            if stamp >= known.own_stamp {
                attributes.mtime = change.time;
                attributes.ctime = change.time;
                known.own_stamp = stamp;
            }
        }
        // An answer from before the change, still on its way, is not to be taken for what holds now.
        let latest = self.recalls.entry(LeaseKey::Attributes(directory)).or_default();
        *latest = (*latest).max(stamp + 1);
        self.doubt_listings(directory, stamp);
    }

    /// A listing from before an own change, still on its way, has not what it changed; if the directory is not held
    /// yet, that would be nowhere else.
    fn doubt_listings(&mut self, directory: InodeNumber, stamp: u64) {
        if !self.holds_since(directory, stamp) {
            self.note_recall(LeaseKey::Directory(directory), stamp);
        }
    }

    /// An own operation changed the directory, as the reply with this stamp told: its times and size are not known any
    /// more, and not to be learnt from replies from before that are still on their way.
    pub fn directory_changed(&mut self, directory: InodeNumber, stamp: u64) {
        self.changes += 1;
        if let Some(known) = self.attributes.get_mut(&directory) {
            known.times_stale = true;
        }
        self.note_recall(LeaseKey::Attributes(directory), stamp + 1);
        self.doubt_listings(directory, stamp);
    }

    /// An own operation changed an inode, as the reply with this stamp told: its attributes are not known any more, and
    /// not to be learnt from replies from before.
    pub fn forget_attributes(&mut self, inode: InodeNumber, stamp: u64) {
        self.changes += 1;
        self.attributes.remove(&inode);
        self.note_recall(LeaseKey::Attributes(inode), stamp + 1);
    }

    /// An own operation removed the name, as the reply with this stamp told. It is known to be absent where the lease
    /// on it, or on the directory, is held.
    pub fn name_removed(&mut self, parent: InodeNumber, name: &Name, stamp: u64) {
        self.name_changed(parent, name, Cached::Absent, stamp);
    }

    /// An own operation changed what the name stands for: nothing is known of it any more.
    pub fn forget_name(&mut self, parent: InodeNumber, name: &Name, stamp: u64) {
        self.name_changed(parent, name, Cached::Unknown, stamp);
    }

    /// The reply with this stamp may be of the first time that a change of the name was sent: what it stands for, and
    /// what became of its directory, may be something else by now.
    pub fn doubt_name(&mut self, parent: InodeNumber, name: &Name, stamp: u64) {
        self.directory_changed(parent, stamp);
        self.forget_name(parent, name, stamp);
    }

    /// Replies from before the change, still on their way, are not to be taken for what holds now; nor is this one, if
    /// a reply from after it has come already.
    fn name_changed(&mut self, parent: InodeNumber, name: &Name, target: Cached, stamp: u64) {
        self.changes += 1;
        let key = (parent, name.hash64());
        let age = self.age(routing::of_name(parent, name));
        // From a later reply than this one.
        if self.known(key, name, age).is_some_and(|known| known.stamp > stamp) {
            return;
        }
        let stamp = stamp + 1;
        if let Some(known) = self.names.get_mut(&key).filter(|known| known.age == age) {
            known.target = if known.name == *name { target } else { Cached::Unknown };
            known.stamp = known.stamp.max(stamp);
        } else if self.holds_since(parent, stamp) {
            self.keep_name(key, CachedName { name: name.clone(), target, age, stamp, by_directory: true });
        } else {
            self.names.remove(&key);
            self.note_recall(LeaseKey::Entry(parent, key.1), stamp);
        }
    }

    /// A recall came. Data leases are not kept here.
    pub fn recall(&mut self, key: LeaseKey, stamp: u64) -> Dropped {
        self.changes += 1;
        self.note_recall(key, stamp);
        let mut dropped = Dropped { recalled: Some(key), ..Dropped::default() };
        self.note_shared(key, stamp);
        match key {
            LeaseKey::Attributes(inode) => {
                match self.attributes.get_mut(&inode) {
                    Some(known) if known.permissions => known.times_stale = true,
                    _ => {
                        self.attributes.remove(&inode);
                    }
                }
                dropped.inodes.push(inode);
            }
            LeaseKey::Permissions(inode) => {
                self.attributes.remove(&inode);
                dropped.inodes.push(inode);
            }
            LeaseKey::Entry(parent, hash) => {
                if let Some(known) = self.names.remove(&(parent, hash)) {
                    dropped.names.push((parent, known.name));
                }
                self.not_all_known(parent);
            }
            LeaseKey::Directory(directory) => {
                if let Some(held) = self.directories.remove(&directory) {
                    dropped.names = self.drop_listed(directory, &held);
                }
            }
            LeaseKey::Names(directory) => {
                self.names.retain(|(parent, _), known| {
                    let stays = *parent != directory;
                    if !stays {
                        dropped.names.push((directory, known.name.clone()));
                    }
                    stays
                });
                dropped.names.sort_unstable();
                self.not_all_known(directory);
            }
            LeaseKey::Data(_) | LeaseKey::Inode(_) | LeaseKey::Ranges(_) => {}
        }
        self.above(dropped)
    }

    /// Grants of the key by replies with smaller stamps, which may be on their way, count no more.
    fn note_recall(&mut self, key: LeaseKey, stamp: u64) {
        if self.recalls.len() >= RECALLS_MAX {
            // Replies older than thousands of recalls are not on their way any more, or their session has ended.
            let oldest = self.recalls.values().copied().min().unwrap_or(0);
            let middle = oldest + (stamp.saturating_sub(oldest)) / 2;
            self.recalls.retain(|_, stamp| *stamp > middle);
        }
        let latest = self.recalls.entry(key).or_default();
        *latest = (*latest).max(stamp);
    }

    fn recalled(&self, key: LeaseKey, stamp: u64) -> bool {
        let is_recalled = |key| self.recalls.get(&key).is_some_and(|recalled| *recalled > stamp);
        is_recalled(key) || matches!(key, LeaseKey::Entry(parent, _) if is_recalled(LeaseKey::Names(parent)))
    }

    /// Whether a grant of a data lease with this stamp was recalled already.
    pub fn data_recalled(&self, inode: InodeNumber, stamp: u64) -> bool {
        self.recalled(LeaseKey::Data(inode), stamp)
    }

    /// Whether a range of the file that was granted with this stamp was recalled already.
    pub fn range_recalled(&self, inode: InodeNumber, stamp: u64) -> bool {
        self.recalled(LeaseKey::Ranges(inode), stamp)
    }

    /// Remembers a recall of a range for replies on their way.
    pub fn note_range_recall(&mut self, inode: InodeNumber, stamp: u64) {
        let _ = self.recall(LeaseKey::Ranges(inode), stamp);
    }

    /// Remembers a recall of a data lease for replies on their way.
    pub fn note_data_recall(&mut self, inode: InodeNumber, stamp: u64) {
        let _ = self.recall(LeaseKey::Data(inode), stamp);
    }

    /// Whether it is kept of this very name that it is not there (and not only of its directory that all is known).
    /// Only then can a recall tell a cache above which name is meant.
    pub fn is_absent_by_name(&self, parent: InodeNumber, name: &Name, now_ms: u64) -> bool {
        self.names.contains_key(&(parent, name.hash64())) && self.lookup(parent, name, now_ms) == Cached::Absent
    }
}

/// Whether the name is known for this target under a lease of its own: better than under that on its directory.
fn known_apart(known: Option<&CachedName>, target: Cached) -> bool {
    known.is_some_and(|known| !known.by_directory && known.target == target)
}

#[cfg(test)]
mod tests;
