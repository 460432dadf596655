//! The inodes that the kernel knows.
//!
//! The kernel counts how often it was told of an inode, by each reply with an entry, and gives the count back when it
//! forgets the inode: until then it may open it, or have it open. Inode numbers are Weft's own, so nothing has to be
//! found by this table; it answers whether an inode can still be used when its last name goes.
//!
//! A name that was told without a lease is asked for again before each use, but keeps the inode in the kernel's memory,
//! and no recall takes it away: it is remembered here, to be dropped with the inode's attributes.
//!
//! The kernel also counts an inode's links by itself when a name goes; what it has at least is remembered, too.
//!
//! Invariant: the count of an inode is at least the kernel's, since it grows before the reply.
//! Cost: about 30 bytes for each inode in the kernel's memory.

use crate::lock::lock;
use crate::short_reads::QUEUED_MAX;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use weft_protocol::hash::FixedMap;
use weft_protocol::{InodeNumber, Name};

/// Parts, so that threads seldom wait for each other.
const PARTS: usize = 16;

/// A name in a directory.
pub type Place = (InodeNumber, Name);

#[derive(Default)]
struct Known {
    told: u64,
    /// Its name, if the latest was told without a lease.
    unleased: Option<Box<Place>>,
    /// The kernel's count of links is at least this.
    links: u32,
    /// When it was last made to disregard replies to earlier requests.
    disregards: Option<Duration>,
}

/// See the module.
pub struct KernelInodes {
    /// Rank 3. Held for one look.
    parts: [Mutex<FixedMap<InodeNumber, Known>>; PARTS],
}

impl Default for KernelInodes {
    fn default() -> Self {
        Self { parts: std::array::from_fn(|_| Mutex::new(FixedMap::default())) }
    }
}

impl KernelInodes {
    fn part(&self, inode: InodeNumber) -> MutexGuard<'_, FixedMap<InodeNumber, Known>> {
        let index = (inode.raw() % PARTS as u64) as usize;
        lock(&self.parts[index])
    }

    /// The kernel will be told of the inode, under this name if it has no lease on it.
    pub fn told(&self, inode: InodeNumber, unleased: Option<(InodeNumber, &Name)>) {
        let unleased = unleased.map(|(parent, name)| Box::new((parent, name.clone())));
        let mut part = self.part(inode);
        let known = part.entry(inode).or_default();
        known.told += 1;
        known.unleased = unleased;
    }

    /// The kernel will be told of this count of links, in the reply to a request that was received then.
    pub fn told_links(&self, inode: InodeNumber, links: u32, received: Duration) {
        if let Some(known) = self.part(inode).get_mut(&inode)
            && known.disregards.is_none_or(|last| last + QUEUED_MAX < received)
        {
            known.links = links;
        }
    }

    /// The kernel is about to disregard replies about the inode that are in flight: its count of links may be an older
    /// one.
    pub fn disregards_replies(&self, inode: InodeNumber, now: Duration) {
        if let Some(known) = self.part(inode).get_mut(&inode) {
            (known.links, known.disregards) = (0, Some(now));
        }
    }

    /// The kernel is about to take one from the inode's count of links. Returns whether it may have none left then.
    pub fn loses_link(&self, inode: InodeNumber) -> bool {
        let mut part = self.part(inode);
        let Some(known) = part.get_mut(&inode) else { return true };
        known.links = known.links.saturating_sub(1);
        known.links == 0
    }

    /// The kernel is about to move a name of the inode. `uncovered`: there is no lease on the new one.
    pub fn moved(&self, inode: InodeNumber, from: (InodeNumber, &Name), to: (InodeNumber, &Name), uncovered: bool) {
        let mut part = self.part(inode);
        let Some(known) = part.get_mut(&inode) else { return };
        let was_unleased = known.unleased.as_deref().is_some_and(|(parent, name)| (*parent, name) == from);
        if was_unleased || uncovered {
            known.unleased = Some(Box::new((to.0, to.1.clone())));
        }
    }

    /// The kernel gives back so many times that it was told. Returns whether it knows the inode no more.
    pub fn forgotten(&self, inode: InodeNumber, times: u64) -> bool {
        let mut part = self.part(inode);
        let Some(known) = part.get_mut(&inode) else { return true };
        known.told = known.told.saturating_sub(times);
        let gone = known.told == 0;
        if gone {
            part.remove(&inode);
        }
        gone
    }

    /// Whether the kernel knows the inode, and the name that keeps it though it has no lease.
    pub fn known(&self, inode: InodeNumber) -> Option<Option<Place>> {
        self.part(inode).get(&inode).map(|known| known.unleased.as_deref().cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_known_until_each_time_that_it_was_told_is_given_back() {
        let inodes = KernelInodes::default();
        let (inode, directory) = (InodeNumber::from_raw(7), InodeNumber::ROOT);
        let name = Name::new(b"f").unwrap();
        assert_eq!(inodes.known(inode), None);
        for unleased in [None, None, Some((directory, &name))] {
            inodes.told(inode, unleased);
        }
        assert_eq!(inodes.known(inode), Some(Some((directory, name.clone()))));
        let other = Name::new(b"g").unwrap();
        inodes.moved(inode, (directory, &other), (directory, &name), false);
        inodes.moved(inode, (directory, &name), (directory, &other), false);
        assert_eq!(inodes.known(inode), Some(Some((directory, other))), "it has moved with its dentry");
        assert!(!inodes.forgotten(inode, 2));
        inodes.told(inode, None);
        assert_eq!(inodes.known(inode), Some(None), "there is a lease on the name now");
        assert!(inodes.forgotten(inode, 2));
        assert_eq!(inodes.known(inode), None);
        assert!(inodes.forgotten(inode, 1), "of a reply that the kernel did not take");
    }

    #[test]
    fn the_kernel_has_links_left_if_it_was_told_of_more_and_has_taken_that() {
        let inodes = KernelInodes::default();
        let inode = InodeNumber::from_raw(7);
        let at = |ms| Duration::from_millis(ms);
        inodes.told_links(inode, 5, at(1));
        assert!(inodes.loses_link(inode), "it does not know the inode");
        inodes.told(inode, None);
        assert!(inodes.loses_link(inode), "it was told of no count");
        inodes.told_links(inode, 3, at(2));
        assert!(!inodes.loses_link(inode));
        assert!(!inodes.loses_link(inode));
        assert!(inodes.loses_link(inode), "three names are gone");
        inodes.told_links(inode, 3, at(3));
        inodes.disregards_replies(inode, at(4));
        assert!(inodes.loses_link(inode), "it may still have an earlier count");
        inodes.told_links(inode, 3, at(5));
        assert!(inodes.loses_link(inode), "that reply may be one of those");
        inodes.told_links(inode, 3, at(5) + QUEUED_MAX);
        assert!(!inodes.loses_link(inode));
    }
}
