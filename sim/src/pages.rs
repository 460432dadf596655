//! Pages of files in one simulated client's kernel, as far as it takes to see whether they are ever stale.
//!
//! A page is locked while it is read, and whoever drops it waits for that. The whole kernel is in `kernel.rs`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::RangeInclusive;
use std::task::Poll;
use weft_protocol::InodeNumber;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 16;

type Key = (InodeNumber, u64);

/// See the module.
#[derive(Default)]
pub struct Pages {
    pages: RefCell<BTreeMap<Key, Vec<u8>>>,
    /// Reads in flight of each page.
    locked: RefCell<BTreeMap<Key, u32>>,
    /// Grows when anything is dropped or written: a read that began before keeps nothing.
    changes: Cell<u64>,
}

fn keys(inode: InodeNumber, offset: u64, bytes: u64) -> RangeInclusive<Key> {
    let last = offset.saturating_add(bytes.max(1) - 1) / PAGE_BYTES;
    (inode, offset / PAGE_BYTES)..=(inode, last)
}

impl Pages {
    /// A page that is in memory.
    pub fn get(&self, inode: InodeNumber, page: u64) -> Option<Vec<u8>> {
        self.pages.borrow().get(&(inode, page)).cloned()
    }

    /// A read of a page begins. Returns what [`Pages::unlock`] wants to know.
    pub fn lock(&self, inode: InodeNumber, page: u64) -> u64 {
        *self.locked.borrow_mut().entry((inode, page)).or_default() += 1;
        self.changes.get()
    }

    /// It has ended, with these bytes if it went well.
    pub fn unlock(&self, inode: InodeNumber, page: u64, since: u64, bytes: Option<&[u8]>) {
        let mut locked = self.locked.borrow_mut();
        if let Some(count) = locked.get_mut(&(inode, page)) {
            *count -= 1;
            if *count == 0 {
                locked.remove(&(inode, page));
            }
        }
        let is_whole = |bytes: &&[u8]| bytes.len() as u64 == PAGE_BYTES && since == self.changes.get();
        if let Some(bytes) = bytes.filter(is_whole) {
            self.pages.borrow_mut().insert((inode, page), bytes.to_vec());
        }
    }

    /// The mark of a write that begins, for [`Pages::written`].
    pub fn begin_write(&self, inode: InodeNumber, offset: u64, bytes: u64) -> u64 {
        self.forget(inode, offset, bytes);
        self.changes.get()
    }

    /// A write has gone well: the pages that it covers hold it, unless anything was dropped since.
    pub fn written(&self, inode: InodeNumber, offset: u64, bytes: &[u8], since: u64) {
        let is_same = since == self.changes.get();
        self.forget(inode, offset, bytes.len() as u64);
        let end = offset + bytes.len() as u64;
        for page in offset.div_ceil(PAGE_BYTES)..end / PAGE_BYTES {
            let at = usize::try_from(page * PAGE_BYTES - offset).expect("writes here are short");
            if is_same {
                let content = bytes[at..].iter().take(PAGE_BYTES as usize).copied().collect();
                self.pages.borrow_mut().insert((inode, page), content);
            }
        }
    }

    /// Drops pages without waiting for reads of them, which keep nothing.
    pub fn forget(&self, inode: InodeNumber, offset: u64, bytes: u64) {
        self.changes.set(self.changes.get() + 1);
        let gone = keys(inode, offset, bytes);
        self.pages.borrow_mut().retain(|key, _| !gone.contains(key));
    }

    /// Drops everything.
    pub fn forget_all(&self) {
        self.changes.set(self.changes.get() + 1);
        self.pages.borrow_mut().clear();
    }

    /// Drops pages, once nobody reads them.
    pub async fn drop_range(&self, inode: InodeNumber, offset: u64, bytes: u64) {
        let range = keys(inode, offset, bytes);
        poll_fn(|_| {
            let is_locked = self.locked.borrow().range(range.clone()).next().is_some();
            if is_locked { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        self.forget(inode, offset, bytes);
    }
}
