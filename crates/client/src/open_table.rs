//! The inodes that are open, and those that were closed lately and whose lease is kept.
//!
//! Whoever reads a file that he has just written, or opens it once more, does it without a message. The longest closed
//! is given up when there are too many: each takes about a kilobyte, and may hold a descriptor.

use crate::open_inode::OpenInode;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_protocol::InodeNumber;
use weft_protocol::hash::FixedMap;

/// Closed inodes kept at most.
const IDLE_MAX: usize = 16_384;
/// Those of them that hold a descriptor; a quarter of the process's descriptors if that is less.
const HOLDING_MAX: usize = 4096;

/// Open and idle inodes.
pub(crate) struct OpenTable {
    inodes: FixedMap<InodeNumber, Arc<OpenInode>>,
    idle: Idle,
    /// The same of those that held a descriptor.
    holding: Idle,
}

/// What a closed inode holds of the process's own.
#[derive(Clone, Copy)]
pub(crate) enum Holds {
    Nothing,
    Descriptor,
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

    /// Adds one; the oldest if they are too many. One that was closed again since stands here once more: it only goes a
    /// little early.
    fn add(&mut self, inode: InodeNumber) -> Option<InodeNumber> {
        self.inodes.push_back(inode);
        if self.inodes.len() > self.max { self.inodes.pop_front() } else { None }
    }
}

impl OpenTable {
    /// An empty table.
    pub fn new() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let holding_max = usize::try_from(limit / 4).unwrap_or(HOLDING_MAX).min(HOLDING_MAX);
        Self { inodes: FixedMap::default(), idle: Idle::new(IDLE_MAX), holding: Idle::new(holding_max) }
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

    /// A handle was closed. `keep`: whether it is kept, and what it holds then. Returns an inode whose lease is to be
    /// given back.
    pub fn closed(&mut self, open: &Arc<OpenInode>, keep: Option<Holds>) -> Option<Arc<OpenInode>> {
        if open.handles.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        let oldest = match keep {
            None => Some(open.inode),
            Some(Holds::Nothing) => self.idle.add(open.inode),
            Some(Holds::Descriptor) => self.holding.add(open.inode),
        };
        oldest.and_then(|inode| self.drop_idle(inode))
    }

    /// Takes an inode out that nobody has open.
    pub fn drop_idle(&mut self, inode: InodeNumber) -> Option<Arc<OpenInode>> {
        let unused = self.inodes.get(&inode)?.handles.load(Ordering::Acquire) == 0;
        if unused { self.inodes.remove(&inode) } else { None }
    }
}
