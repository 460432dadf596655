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

/// Inodes that were closed, oldest first; some are open again or gone.
struct Idle {
    inodes: VecDeque<InodeNumber>,
    max: usize,
}

impl Idle {
    fn new(max: usize) -> Self {
        Self { inodes: VecDeque::new(), max }
    }

    /// Adds one; returns the oldest if they are too many. An inode that was closed again since stands here once more:
    /// it is only evicted a little early.
    fn add(&mut self, inode: InodeNumber) -> Option<InodeNumber> {
        self.inodes.push_back(inode);
        if self.inodes.len() > self.max { self.inodes.pop_front() } else { None }
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
        if unused { self.inodes.remove(&inode) } else { None }
    }
}
