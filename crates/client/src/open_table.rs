//! The inodes that are open, and those that were closed lately and whose lease is kept.
//!
//! Whoever reads a file that he has just written, or opens it once more, does it without a message. The longest closed
//! is given up when there are too many: each may hold a descriptor.

use crate::open_inode::OpenInode;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_protocol::InodeNumber;

/// Closed inodes kept at most; a quarter of the process's descriptors if that is less.
const IDLE_MAX: usize = 4096;

/// Open and idle inodes.
pub(crate) struct OpenTable {
    inodes: HashMap<InodeNumber, Arc<OpenInode>>,
    /// Inodes that were closed, oldest first; some are open again or gone.
    idle: VecDeque<InodeNumber>,
    idle_max: usize,
}

impl OpenTable {
    /// An empty table.
    pub fn new() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let idle_max = usize::try_from(limit / 4).unwrap_or(IDLE_MAX).min(IDLE_MAX);
        Self { inodes: HashMap::new(), idle: VecDeque::new(), idle_max }
    }

    /// The inode, if it is open or idle.
    pub fn get(&self, inode: InodeNumber) -> Option<&Arc<OpenInode>> {
        self.inodes.get(&inode)
    }

    /// All that are open or idle.
    pub fn all(&self) -> Vec<Arc<OpenInode>> {
        self.inodes.values().cloned().collect()
    }

    /// The inode with one more handle, made and entered when it was not there; and whether it had handles.
    pub fn take(&mut self, inode: InodeNumber, make: impl FnOnce() -> OpenInode) -> (Arc<OpenInode>, bool) {
        let open = Arc::clone(self.inodes.entry(inode).or_insert_with(|| Arc::new(make())));
        let handles = open.handles.fetch_add(1, Ordering::AcqRel);
        (open, handles > 0)
    }

    /// A handle was closed. Returns the inodes whose leases are to be given back.
    pub fn closed(&mut self, open: &Arc<OpenInode>, keep: bool) -> Vec<Arc<OpenInode>> {
        if open.handles.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Vec::new();
        }
        if !keep {
            return self.drop_idle(open.inode).into_iter().collect();
        }
        self.idle.push_back(open.inode);
        let mut evicted = Vec::new();
        while self.idle.len() > self.idle_max {
            // One that was closed again since stands in the queue once more: it only goes a little early.
            evicted.extend(self.idle.pop_front().and_then(|inode| self.drop_idle(inode)));
        }
        evicted
    }

    /// Takes an inode out that nobody has open.
    pub fn drop_idle(&mut self, inode: InodeNumber) -> Option<Arc<OpenInode>> {
        let unused = self.inodes.get(&inode)?.handles.load(Ordering::Acquire) == 0;
        if unused { self.inodes.remove(&inode) } else { None }
    }
}
