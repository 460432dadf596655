//! The inodes that are open, and those that were closed lately and whose lease is kept.
//!
//! Whoever reads a file that it has just written, or opens it once more, does it without a message. The inode closed
//! longest ago is evicted when there are too many: each takes about a kilobyte, and may hold a descriptor.

use crate::open_inode::{Holds, OpenInode};
use crate::shell::Shell;
use crate::tuning::IdleLimits;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_protocol::InodeNumber;
use weft_protocol::hash::FixedMap;

/// Closed inodes that are kept for what is still to be done with them. Beyond that, servers have been away for long.
const OWING_MAX: usize = 4096;

/// Open and idle inodes.
pub(crate) struct OpenTable<S: Shell> {
    inodes: FixedMap<InodeNumber, Arc<OpenInode<S>>>,
    idle: Idle,
    /// The same of those that held a descriptor.
    holding: Idle,
    /// The same of those of which something is still to be written or reported, or a loss to be told to a program.
    owing: Idle,
}

/// Inodes that were closed, oldest first.
struct Idle {
    /// Each close with its number. Those that are not the inode's latest are skipped.
    closes: VecDeque<(InodeNumber, u64)>,
    /// The latest close of each inode that has not been opened again.
    latest: FixedMap<InodeNumber, u64>,
    closed: u64,
    max: usize,
}

impl Idle {
    fn new(max: usize) -> Self {
        Self { closes: VecDeque::new(), latest: FixedMap::default(), closed: 0, max }
    }

    /// Adds one, as the latest; returns the oldest if they are too many.
    fn add(&mut self, inode: InodeNumber) -> Option<InodeNumber> {
        self.closed += 1;
        self.latest.insert(inode, self.closed);
        self.closes.push_back((inode, self.closed));
        if self.closes.len() > 2 * self.max.max(1) {
            // As many entries go as there is room for closes until the next time.
            let latest = &self.latest;
            self.closes.retain(|(inode, number)| latest.get(inode) == Some(number));
        }
        if self.latest.len() <= self.max {
            return None;
        }
        loop {
            let (oldest, number) = self.closes.pop_front().expect("each inode's latest close is in the queue");
            if self.latest.get(&oldest) == Some(&number) {
                self.latest.remove(&oldest);
                return Some(oldest);
            }
        }
    }

    /// Takes one out that was opened again, or is gone.
    fn remove(&mut self, inode: InodeNumber) {
        self.latest.remove(&inode);
    }
}

impl<S: Shell> OpenTable<S> {
    /// An empty table.
    pub fn new(limits: IdleLimits) -> Self {
        let (idle, holding) = (Idle::new(limits.inodes), Idle::new(limits.descriptors));
        Self { inodes: FixedMap::default(), idle, holding, owing: Idle::new(OWING_MAX) }
    }

    /// The inode, if it is open or idle.
    pub fn get(&self, inode: InodeNumber) -> Option<&Arc<OpenInode<S>>> {
        self.inodes.get(&inode)
    }

    /// All that are open or idle.
    pub fn all(&self) -> Vec<Arc<OpenInode<S>>> {
        self.inodes.values().cloned().collect()
    }

    /// The inode with one more handle, made and entered when it was not there; and whether it had handles.
    pub fn take(&mut self, inode: InodeNumber, make: impl FnOnce() -> OpenInode<S>) -> (Arc<OpenInode<S>>, bool) {
        let open = Arc::clone(self.inodes.entry(inode).or_insert_with(|| Arc::new(make())));
        let handles = open.handles.fetch_add(1, Ordering::AcqRel);
        if handles == 0 {
            self.idle.remove(inode);
            self.holding.remove(inode);
        }
        (open, handles > 0)
    }

    /// A handle was closed. `keep`: whether the inode is kept, and what it holds then. Returns an inode that is to be
    /// dropped, if nothing of it is to be written, reported or told.
    pub fn closed(&mut self, open: &Arc<OpenInode<S>>, keep: Option<Holds>) -> Option<Arc<OpenInode<S>>> {
        if open.handles.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        let oldest = match keep {
            None => Some(open.inode),
            Some(Holds::Nothing) => self.idle.add(open.inode),
            Some(Holds::Descriptor) => self.holding.add(open.inode),
        };
        oldest.and_then(|inode| self.inodes.get(&inode)).filter(|open| !open.is_open()).cloned()
    }

    /// Keeps an inode of which something is to be written, reported or told. The oldest of too many
    /// is given up.
    pub fn keep(&mut self, inode: InodeNumber) {
        if let Some(oldest) = self.owing.add(inode) {
            self.drop_idle(oldest);
        }
    }

    /// Takes an inode out that nobody has open.
    pub fn drop_idle(&mut self, inode: InodeNumber) -> Option<Arc<OpenInode<S>>> {
        let unused = !self.inodes.get(&inode)?.is_open();
        if !unused {
            return None;
        }
        [&mut self.idle, &mut self.holding, &mut self.owing].into_iter().for_each(|idle| idle.remove(inode));
        self.inodes.remove(&inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inode(number: u64) -> InodeNumber {
        InodeNumber::from_raw(number)
    }

    #[test]
    fn few_inodes_that_are_closed_over_and_over_stay() {
        let mut idle = Idle::new(4);
        for round in 0..100 {
            for number in 0..4 {
                assert_eq!(idle.add(inode(number)), None, "round {round}");
                idle.remove(inode(number));
            }
        }
        assert!(idle.closes.len() <= 8);
    }

    proptest! {
        #[test]
        fn the_one_closed_longest_ago_goes(
            max in 0usize..5,
            steps in prop::collection::vec((any::<bool>(), 0u64..8), 0..200),
        ) {
            let (mut idle, mut model) = (Idle::new(max), Vec::new());
            for (closes, number) in steps {
                model.retain(|other| *other != number);
                if closes {
                    model.push(number);
                    let oldest = (model.len() > max).then(|| inode(model.remove(0)));
                    prop_assert_eq!(idle.add(inode(number)), oldest);
                } else {
                    idle.remove(inode(number));
                }
                prop_assert!(idle.closes.len() <= 2 * max.max(1));
            }
        }
    }
}
