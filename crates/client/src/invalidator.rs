//! The cache above the client (a mount's kernel), and how it is told to drop what leases no longer cover.

use crate::block_on::lock;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use weft_client_core::Dropped;
use weft_protocol::{InodeNumber, LeaseKey, Name};

/// Told when a lease is recalled, so that another cache above (the kernel's) drops what it keeps. Called on the recall
/// thread with no lock held; may block.
pub trait Invalidator: Send + Sync {
    /// This lease on names or attributes is recalled. What the client itself knew under it follows by the methods
    /// below; the cache above may know more.
    fn recalled(&self, _key: LeaseKey) {}
    /// These names in a directory may mean something else now.
    fn entries(&self, parent: InodeNumber, names: Vec<Name>);
    /// The directory may have other names now than when it was listed.
    fn listing(&self, _directory: InodeNumber) {}
    /// Attributes of the inode may be others now; with `data`, its contents too.
    fn inode(&self, inode: InodeNumber, data: bool);
    /// The pages of this range (`bytes` `u64::MAX`: to the end) are about to be changed by another client: returns when
    /// none is left that was there before. Called on a thread that does nothing else.
    fn pages(&self, _inode: InodeNumber, _offset: u64, _bytes: u64) {}
    /// Whether the cache above may still use the inode's number, or is about to be told of it. If so, it calls
    /// `Files::forgotten` at the end, or `Files::number_unused` with this stamp. A cache that uses no numbers knows
    /// none.
    fn knows(&self, _inode: InodeNumber, _stamp: u64) -> bool {
        false
    }
}

/// Lists the inodes that are open here.
pub(crate) trait OpenInodes: Send + Sync {
    fn open_inodes(&self) -> Vec<InodeNumber>;
}

/// The invalidator, once there is one, and whose open inodes it may know.
#[derive(Default)]
pub(crate) struct Invalidators {
    invalidator: RwLock<Option<Arc<dyn Invalidator>>>,
    open: Mutex<Option<Weak<dyn OpenInodes>>>,
}

impl Invalidators {
    /// Who is told.
    pub fn get(&self) -> Option<Arc<dyn Invalidator>> {
        self.invalidator.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets who is told.
    pub fn set(&self, invalidator: Arc<dyn Invalidator>) {
        *self.invalidator.write().unwrap_or_else(PoisonError::into_inner) = Some(invalidator);
    }

    /// Sets whose open inodes are dropped with a session.
    pub fn set_open(&self, open: Weak<dyn OpenInodes>) {
        *lock(&self.open) = Some(open);
    }

    /// Tells that a session's leases are all gone, on a thread of its own: the caller may be serving the cache above.
    pub fn tell_all(&self, dropped: Dropped) {
        let open = lock(&self.open).as_ref().and_then(Weak::upgrade);
        self.tell_later(move |invalidator| {
            for inode in open.map_or_else(Vec::new, |open| open.open_inodes()) {
                invalidator.inode(inode, true);
            }
            tell(invalidator, &dropped);
        });
    }

    /// Tells that bytes of an inode are lost, likewise.
    pub fn tell_contents_lost(&self, inode: InodeNumber) {
        self.tell_later(move |invalidator| invalidator.inode(inode, true));
    }

    fn tell_later(&self, tell: impl FnOnce(&dyn Invalidator) + Send + 'static) {
        let Some(invalidator) = self.get() else { return };
        let told = std::thread::Builder::new().name("weft-invalidate".to_owned()).spawn(move || tell(&*invalidator));
        if let Err(error) = told {
            tracing::error!("no thread to invalidate the caches above: {error}; they hold for up to a lease term");
        }
    }
}

/// Tells what was dropped, a call per directory and inode.
pub(crate) fn tell(invalidator: &dyn Invalidator, dropped: &Dropped) {
    if let Some(key) = dropped.recalled {
        invalidator.recalled(key);
    }
    for (parent, names) in dropped.names_by_directory() {
        invalidator.entries(parent, names);
    }
    for directory in &dropped.directories {
        invalidator.listing(*directory);
    }
    for inode in &dropped.inodes {
        invalidator.inode(*inode, false);
    }
}
