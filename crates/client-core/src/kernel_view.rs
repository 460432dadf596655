//! What a mount has told its kernel: names, there or not, and attributes, each with the time until which the kernel may
//! use them without asking.
//!
//! The kernel is a cache of its client: whatever it may use has to be covered by a lease that the client holds, and
//! when a lease goes, the kernel has to be told before the recall is answered. The client's own cache does not know
//! what that is: it forgets names for reasons of its own, and the kernel *moves a dentry together with its timeout*
//! when it renames. So this is the record: it follows the kernel's dentries, and answers for each recall what the
//! kernel has to drop.
//!
//! What it relies on of Linux (fs/fuse/dir.c, fs/fuse/inode.c, fs/fuse/readdir.c):
//! - FUSE_NOTIFY_INVAL_ENTRY takes the directory's lock, which a look-up, a listing and each change of names holds from
//!   before its request until its reply is processed: when the notification returns, every reply that was written
//!   before is processed and dropped. Only a revalidation takes no lock; its dentry is unhashed, which its reply does
//!   not undo.
//! - FUSE_NOTIFY_INC_EPOCH takes no lock. A dentry has the epoch of the *beginning* of the request that made it, so
//!   that replies in flight are covered; a revalidation and a rename leave it as it is. Entries of a READDIRPLUS reply
//!   have that of their processing: a listing whose reply may still be in flight is not covered
//!   ([`KernelView::is_settled`]).
//! - FUSE_NOTIFY_INVAL_INODE takes no lock. It outdates replies in flight about an inode that the kernel knows; one
//!   that it does not know yet is about to come by a name ([`KernelView::place`]).
//!
//! Invariant: for every dentry and attribute that the kernel may use there is a record that ends no earlier, or a reply
//! that is told of no time. Bounds: [`NAMES_MAX`], [`INODES_MAX`]; what would go beyond is told with no time.
//! Not here: notifications and how long they may take (`weft-fuse`), pages and open files.

mod link_counts;
mod requests;

use crate::memory::{name_bytes, queue_bytes, table_bytes};
use link_counts::LinkCounts;
use requests::Requests;
pub use requests::Ticket;
use std::collections::VecDeque;
use weft_protocol::hash::FixedMap;
use weft_protocol::{InodeNumber, LeaseKey, Name};

/// Names recorded: more than the lease cache keeps, since what that drops is still being dropped here.
const NAMES_MAX: usize = 112 << 10;
/// Inodes recorded.
const INODES_MAX: usize = 112 << 10;
/// How much longer than told the kernel may use something: it counts from when it processes the reply, in ticks.
const SLACK_MS: u64 = 1000;

/// A name, told with a time.
#[derive(Clone, Debug)]
struct ToldName {
    name: Name,
    /// Number of what it names; 0: the name was told as absent.
    inode: u64,
    until_ms: u64,
    /// When it was told, in the order of [`KernelView::clock`].
    at: u64,
}

/// What was told of a directory's names.
#[derive(Debug, Default)]
struct Directory {
    names: FixedMap<u64, ToldName>,
    /// When a name was told in the reply to a READDIRPLUS that the kernel may still be processing; 0: it is not.
    listed_at: u64,
}

/// Attributes, told with a time.
#[derive(Debug, Default)]
struct ToldInode {
    until_ms: u64,
    /// The name that it was told with last.
    place: Option<(InodeNumber, Name)>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct KernelView {
    directories: FixedMap<InodeNumber, Directory>,
    names: usize,
    inodes: FixedMap<InodeNumber, ToldInode>,
    /// When records end, about in order.
    name_ends: VecDeque<(u64, InodeNumber, u64)>,
    inode_ends: VecDeque<(u64, InodeNumber)>,
    /// Counts what is told.
    clock: u64,
    requests: Requests,
    /// See `link_counts.rs`.
    pub link_counts: LinkCounts,
}

impl KernelView {
    pub fn new() -> Self {
        Self::default()
    }

    /// A request comes whose reply may tell something. Call it before the client is asked.
    pub fn begin(&mut self) -> Ticket {
        self.requests.begin()
    }

    /// As [`KernelView::begin`], of a request during which the kernel holds the lock of these directories alone: it
    /// creates, removes or renames. So no listing of them is being processed.
    pub fn begin_change(&mut self, directories: &[InodeNumber]) -> Ticket {
        for parent in directories {
            if let Some(directory) = self.directories.get_mut(parent) {
                directory.listed_at = 0;
            }
        }
        self.begin()
    }

    /// The reply has been written. Returns the inodes of which no reply can tell any more, each with the stamp given to
    /// [`KernelView::may_tell`].
    #[expect(clippy::needless_pass_by_value, reason = "a request ends once")]
    pub fn end(&mut self, ticket: Ticket) -> Vec<(InodeNumber, u64)> {
        self.requests.end(&ticket)
    }

    /// Whether the reply to a request in flight may tell of an inode that the kernel does not know: it may have come
    /// from the shard already. If so, the inode is returned with this stamp by [`KernelView::end`] of the last of the
    /// requests that are in flight now.
    pub fn may_tell(&mut self, inode: InodeNumber, stamp: u64) -> bool {
        self.requests.may_tell(inode, stamp)
    }

    /// Records that a reply is about to tell of a name, under a lease that was held after the request had begun.
    /// Returns for how long the kernel may use it, milliseconds: zero when the lease has been recalled since.
    pub fn tell_name(&mut self, ticket: &Ticket, parent: InodeNumber, name: &Name, valid_ms: u64, now_ms: u64) -> u64 {
        self.purge(now_ms);
        let hash = name.hash64();
        if valid_ms == 0 || self.requests.name_recalled(ticket, parent, hash) {
            return 0;
        }
        let until_ms = now_ms + valid_ms + SLACK_MS;
        self.clock += 1;
        let told = ToldName { name: name.clone(), inode: 0, until_ms, at: self.clock };
        if self.put(parent, hash, told) { valid_ms } else { 0 }
    }

    /// What a name is of that was just told, if the kernel may use it.
    pub fn name_is_of(&mut self, (parent, name): (InodeNumber, &Name), inode: InodeNumber) {
        let directory = self.directories.get_mut(&parent);
        let told = directory.and_then(|directory| directory.names.get_mut(&name.hash64()));
        if let Some(told) = told.filter(|told| told.name == *name) {
            told.inode = inode.raw();
        }
    }

    /// As [`KernelView::tell_name`], in the reply to a READDIRPLUS.
    pub fn tell_listed(
        &mut self,
        ticket: &Ticket,
        parent: InodeNumber,
        name: &Name,
        valid_ms: u64,
        now_ms: u64,
    ) -> u64 {
        let valid_ms = self.tell_name(ticket, parent, name, valid_ms, now_ms);
        if valid_ms > 0
            && let Some(directory) = self.directories.get_mut(&parent)
        {
            directory.listed_at = self.clock;
        }
        valid_ms
    }

    /// Records that a reply is about to tell attributes, and by which name. As [`KernelView::tell_name`].
    pub fn tell_attributes(
        &mut self,
        ticket: &Ticket,
        inode: InodeNumber,
        place: Option<(InodeNumber, &Name)>,
        valid_ms: u64,
        now_ms: u64,
    ) -> u64 {
        self.purge(now_ms);
        let is_miscounted = self.link_counts.told(inode, now_ms);
        if valid_ms == 0 || is_miscounted || self.requests.attributes_recalled(ticket, inode) {
            return 0;
        }
        let until_ms = now_ms + valid_ms + SLACK_MS;
        let place = place.map(|(parent, name)| (parent, name.clone()));
        if self.inodes.len() >= INODES_MAX && !self.inodes.contains_key(&inode) {
            return 0;
        }
        let told = self.inodes.entry(inode).or_default();
        told.until_ms = told.until_ms.max(until_ms);
        told.place = place.or_else(|| told.place.take());
        self.inode_ends.push_back((until_ms, inode));
        valid_ms
    }

    /// The kernel is about to move a dentry, or with `exchange` two. `covered`: leases that were held after the request
    /// had begun cover what the names are now. Returns true if the kernel would go on using a name that none covers:
    /// then it must have dropped it before it gets the reply.
    ///
    /// Until the kernel has processed the reply, programs find the dentry by its old name, which others may use again
    /// already: the old name's record stays.
    pub fn renamed(
        &mut self,
        ticket: &Ticket,
        from: (InodeNumber, &Name),
        to: (InodeNumber, &Name),
        exchange: bool,
        covered: bool,
    ) -> bool {
        let recalled =
            |(parent, name): (InodeNumber, &Name)| self.requests.name_recalled(ticket, parent, name.hash64());
        let covered = covered && !recalled(to) && !(exchange && recalled(from));
        let moved = self.told(from).cloned();
        let replaced = self.told(to).cloned();
        // A revalidation of one of these names that is answered from now on would set the time of a moved dentry.
        self.requests.change_name(from.0, from.1.hash64());
        self.requests.change_name(to.0, to.1.hash64());
        let back = replaced.filter(|_| exchange);
        let is_used = moved.is_some() || back.is_some();
        for ((parent, name), told) in [(to, moved), (from, back)] {
            if let Some(told) = told {
                self.put_moved(parent, ToldName { name: name.clone(), ..told });
            }
        }
        is_used && !covered
    }

    /// The kernel is about to drop a dentry itself: the name was removed. The record stays, as that of the old name in
    /// [`KernelView::renamed`].
    pub fn removed(&mut self, parent: InodeNumber, name: &Name) {
        self.requests.change_name(parent, name.hash64());
    }

    /// The kernel has forgotten an inode.
    pub fn forgotten(&mut self, inode: InodeNumber) {
        // A reply that tells of it anew may be in flight: then the record ends with its time.
        if self.requests.is_empty() {
            self.inodes.remove(&inode);
        }
    }

    /// A lease is recalled, or given back. From now on no reply to an earlier request tells of what it covered; what
    /// was told before is returned by [`KernelView::names_under`].
    pub fn recall(&mut self, key: LeaseKey) {
        self.requests.recall(key);
    }

    /// The names of a directory that the kernel may use under a lease: on one of them, or on the directory.
    pub fn names_under(&self, key: LeaseKey) -> Vec<Name> {
        let (LeaseKey::Entry(parent, _)
        | LeaseKey::Directory(parent)
        | LeaseKey::Attributes(parent)
        | LeaseKey::Permissions(parent)
        | LeaseKey::Data(parent)
        | LeaseKey::Inode(parent)
        | LeaseKey::Ranges(parent)
        | LeaseKey::Names(parent)) = key;
        let Some(directory) = self.directories.get(&parent) else { return Vec::new() };
        match key {
            LeaseKey::Entry(_, hash) => directory.names.get(&hash).map(|told| told.name.clone()).into_iter().collect(),
            _ => directory.names.values().map(|told| told.name.clone()).collect(),
        }
    }

    /// The order of what was told until now, for [`KernelView::dropped`] and [`KernelView::epoch_incremented`].
    pub fn mark(&self) -> u64 {
        self.clock
    }

    /// A notification that was sent after `mark` has returned: the kernel has dropped the name, and has processed the
    /// listings of its directory that were answered before.
    pub fn dropped(&mut self, parent: InodeNumber, name: &Name, mark: u64) {
        let Some(directory) = self.directories.get_mut(&parent) else { return };
        let hash = name.hash64();
        if directory.names.get(&hash).is_some_and(|told| told.at <= mark && told.name == *name) {
            directory.names.remove(&hash);
            self.names -= 1;
        }
        if directory.listed_at <= mark {
            directory.listed_at = 0;
        }
        self.drop_if_empty(parent);
    }

    /// Whether an increment of the epoch makes the kernel drop all that it was told of the directory until now: not
    /// while the reply to a listing may be in flight.
    pub fn is_settled(&self, parent: InodeNumber) -> bool {
        self.directories.get(&parent).is_none_or(|directory| directory.listed_at == 0)
    }

    /// The kernel's epoch was incremented after `mark`.
    pub fn epoch_incremented(&mut self, mark: u64) {
        for directory in self.directories.values_mut().filter(|directory| directory.listed_at == 0) {
            let before = directory.names.len();
            directory.names.retain(|_, told| told.at > mark);
            self.names -= before - directory.names.len();
        }
        self.directories.retain(|_, directory| !directory.names.is_empty());
    }

    /// The name by which the kernel was last told of an inode, while it may use that: an inode that it does not know is
    /// about to come by this name.
    pub fn place(&self, inode: InodeNumber) -> Option<(InodeNumber, Name)> {
        self.inodes.get(&inode)?.place.clone()
    }

    /// The names of an inode that the kernel may use. Looks at all that are recorded.
    pub fn names_of(&self, inode: InodeNumber) -> Vec<(InodeNumber, Name)> {
        let directories = self.directories.iter();
        let names = directories.flat_map(|(parent, directory)| directory.names.values().map(|told| (*parent, told)));
        names.filter(|(_, told)| told.inode == inode.raw()).map(|(parent, told)| (parent, told.name.clone())).collect()
    }

    /// The attributes were dropped.
    pub fn attributes_dropped(&mut self, inode: InodeNumber) {
        self.inodes.remove(&inode);
    }

    /// Bytes that it takes; requests in flight apart.
    pub fn bytes(&self) -> usize {
        let of_directory = |directory: &Directory| {
            let texts: usize = directory.names.values().map(|told| name_bytes(&told.name)).sum();
            texts + table_bytes(&directory.names)
        };
        let names: usize = self.directories.values().map(of_directory).sum();
        let place_bytes = |told: &ToldInode| told.place.as_ref().map_or(0, |(_, name)| name_bytes(name));
        let places: usize = self.inodes.values().map(place_bytes).sum();
        let tables = table_bytes(&self.directories) + table_bytes(&self.inodes);
        tables + names + places + queue_bytes(&self.name_ends) + queue_bytes(&self.inode_ends)
    }

    /// Names and inodes recorded.
    pub fn counts(&self) -> (usize, usize) {
        (self.names, self.inodes.len())
    }

    /// Records a name. `false`: there is no room, or another name of the same hash is there, which a recall could not
    /// tell from this one.
    fn put(&mut self, parent: InodeNumber, hash: u64, mut told: ToldName) -> bool {
        let known = self.directories.get(&parent).and_then(|directory| directory.names.get(&hash));
        match known {
            Some(known) if known.name != told.name => return false,
            Some(known) => told.until_ms = told.until_ms.max(known.until_ms),
            None if self.names >= NAMES_MAX => return false,
            None => self.names += 1,
        }
        self.name_ends.push_back((told.until_ms, parent, hash));
        self.directories.entry(parent).or_default().names.insert(hash, told);
        true
    }

    /// Records a name that the kernel has moved: whatever was there is gone.
    fn put_moved(&mut self, parent: InodeNumber, mut told: ToldName) {
        let hash = told.name.hash64();
        // It is there from now on: a notification that was sent before is not about it.
        self.clock += 1;
        told.at = self.clock;
        self.name_ends.push_back((told.until_ms, parent, hash));
        // One of the same hash but another name is forgotten: it stays in the kernel for the rest of its time, which
        // takes two names of one hash in a directory.
        if self.directories.entry(parent).or_default().names.insert(hash, told).is_none() {
            self.names += 1;
        }
    }

    fn told(&self, (parent, name): (InodeNumber, &Name)) -> Option<&ToldName> {
        self.directories.get(&parent)?.names.get(&name.hash64()).filter(|told| told.name == *name)
    }

    fn drop_if_empty(&mut self, parent: InodeNumber) {
        if self.directories.get(&parent).is_some_and(|directory| directory.names.is_empty()) {
            // A listing of which nothing is told any more has nothing to be dropped.
            self.directories.remove(&parent);
        }
    }

    /// Forgets what the kernel does not use any more.
    fn purge(&mut self, now_ms: u64) {
        while let Some((until_ms, parent, hash)) = self.name_ends.front().copied()
            && until_ms <= now_ms
        {
            self.name_ends.pop_front();
            if let Some(directory) = self.directories.get_mut(&parent)
                && directory.names.get(&hash).is_some_and(|told| told.until_ms <= now_ms)
            {
                directory.names.remove(&hash);
                self.names -= 1;
                self.drop_if_empty(parent);
            }
        }
        while let Some((until_ms, inode)) = self.inode_ends.front().copied()
            && until_ms <= now_ms
        {
            self.inode_ends.pop_front();
            if self.inodes.get(&inode).is_some_and(|told| told.until_ms <= now_ms) {
                self.inodes.remove(&inode);
            }
        }
        // What is told again and again has many ends, of which the last counts.
        if self.name_ends.len() > 2 * NAMES_MAX {
            let directories = self.directories.iter();
            let ends = directories.flat_map(|(parent, directory)| {
                directory.names.iter().map(|(hash, told)| (told.until_ms, *parent, *hash))
            });
            self.name_ends = in_order(ends);
        }
        if self.inode_ends.len() > 2 * INODES_MAX {
            self.inode_ends = in_order(self.inodes.iter().map(|(inode, told)| (told.until_ms, *inode)));
        }
    }
}

fn in_order<T: Ord>(ends: impl Iterator<Item = T>) -> VecDeque<T> {
    let mut ends: Vec<T> = ends.collect();
    ends.sort_unstable();
    ends.into()
}

#[cfg(test)]
mod tests;
