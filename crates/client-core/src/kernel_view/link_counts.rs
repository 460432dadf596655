//! Counts of links that the kernel keeps by itself.
//!
//! When a name is removed or replaced, the kernel takes one from the count of links of its inode, to whatever
//! attributes it has then (`fuse_entry_unlinked`). If it was told attributes after the shard had removed the name, and
//! before it processes the reply to the removal, the name has been counted out twice, for as long as these attributes
//! last.
//!
//! So while the kernel may not have processed a removal that left names of an inode, the inode's attributes and names
//! are told with no time; and who removes learns whether attributes were told meanwhile that may be counted wrongly.
//! Names, since link(2) looks at the count of what a name leads to, and not at how old the attributes are: a name that
//! has a time would lead to a count of zero until it is dropped. One that has none is asked for again.
//!
//! Invariant: an inode of which [`LinkCounts::told`] said `false` was told before the shard removed a name of it, or
//! after the kernel has processed that removal, or is returned as told by [`LinkCounts::lost`].
//! Not here: the last name. The kernel does not count below zero.

use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::InodeNumber;

/// Inodes told during removals that are noted. Beyond it all are taken for told.
const TOLD_MAX: usize = 1024;
/// Longest time for which a removal is taken for not processed, milliseconds: a kernel's cache of attributes ends
/// before.
const PENDING_MS: u64 = 15_000;

#[derive(Debug, Default)]
pub struct LinkCounts {
    /// Removals that the shard has not answered.
    removals: usize,
    /// Inodes whose attributes were told since the oldest of them began.
    told: BTreeSet<InodeNumber>,
    /// Inodes that have lost a name, until the kernel has processed that.
    pending: BTreeMap<InodeNumber, Pending>,
}

#[derive(Debug)]
struct Pending {
    removals: u32,
    was_told: bool,
    until_ms: u64,
}

impl LinkCounts {
    /// A removal is about to be sent to the shard.
    pub fn begin(&mut self) {
        self.removals += 1;
    }

    /// It was answered.
    pub fn end(&mut self) {
        self.removals -= 1;
        if self.removals == 0 {
            self.told.clear();
        }
    }

    /// Attributes are about to be told. Returns whether the kernel may count them wrongly: then they have no time.
    pub fn told(&mut self, inode: InodeNumber, now_ms: u64) -> bool {
        if self.removals > 0 && self.told.len() <= TOLD_MAX {
            self.told.insert(inode);
        }
        match self.pending.get_mut(&inode) {
            Some(pending) if now_ms < pending.until_ms => {
                pending.was_told = true;
                true
            }
            Some(_) => {
                self.pending.remove(&inode);
                false
            }
            None => false,
        }
    }

    /// A name of the inode is about to be told. Returns for how long the kernel may use it, milliseconds.
    pub fn name_valid(&self, inode: InodeNumber, valid_ms: u64, now_ms: u64) -> u64 {
        let is_pending = self.pending.get(&inode).is_some_and(|pending| now_ms < pending.until_ms);
        if is_pending { 0 } else { valid_ms }
    }

    /// The shard has removed a name of an inode that has others. Returns whether attributes were told since the removal
    /// began. To be followed by [`LinkCounts::processed`].
    pub fn lost(&mut self, inode: InodeNumber, now_ms: u64) -> bool {
        let until_ms = now_ms + PENDING_MS;
        let pending = self.pending.entry(inode).or_insert(Pending { removals: 0, was_told: false, until_ms });
        pending.removals += 1;
        pending.until_ms = until_ms;
        self.told.len() > TOLD_MAX || self.told.contains(&inode)
    }

    /// The kernel has processed such a removal. Returns whether attributes were told meanwhile.
    pub fn processed(&mut self, inode: InodeNumber) -> bool {
        let Some(pending) = self.pending.get_mut(&inode) else { return false };
        pending.removals -= 1;
        let was_told = pending.was_told;
        if pending.removals == 0 {
            self.pending.remove(&inode);
        }
        was_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: InodeNumber = InodeNumber::from_raw(7);
    const OTHER: InodeNumber = InodeNumber::from_raw(8);

    #[test]
    fn what_is_told_while_a_removal_is_not_processed_has_no_time() {
        let mut counts = LinkCounts::default();
        assert!(!counts.told(INODE, 0), "nothing is being removed");
        assert_eq!(counts.name_valid(INODE, 9, 0), 9);
        counts.begin();
        assert!(!counts.told(OTHER, 0));
        assert!(!counts.lost(INODE, 0), "it was told before");
        counts.end();
        assert_eq!((counts.name_valid(INODE, 9, 1), counts.name_valid(OTHER, 9, 1)), (0, 9));
        assert!(counts.told(INODE, 1));
        assert!(!counts.told(OTHER, 1));
        assert!(counts.processed(INODE));
        assert_eq!(counts.name_valid(INODE, 9, 1), 9);
        assert!(!counts.told(INODE, 2));
        assert_eq!((counts.told.len(), counts.pending.len()), (0, 0));
    }

    #[test]
    fn a_removal_learns_what_was_told_since_it_began() {
        let mut counts = LinkCounts::default();
        counts.begin();
        counts.begin();
        counts.told(INODE, 0);
        counts.end();
        assert!(counts.lost(INODE, 0), "it may have been removed already");
        counts.end();
        assert!(!counts.processed(INODE));
        counts.begin();
        for number in 0..=TOLD_MAX as u64 {
            counts.told(InodeNumber::from_raw(100 + number), 0);
        }
        assert!(counts.lost(INODE, 0), "there was no room to note it");
        assert!(!counts.told(INODE, PENDING_MS), "nobody said that it was processed");
        assert_eq!(counts.pending.len(), 0);
        assert!(!counts.processed(INODE), "late");
    }
}
