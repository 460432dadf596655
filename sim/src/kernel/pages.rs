//! The page cache of an inode.
//!
//! - A page is locked while it is read, and whoever drops it waits for that (`folio_lock`).
//! - Invalidation writes back dirty pages, waits, and leaves a page that was made dirty again; callers ignore that
//!   (`invalidate_inode_pages2_range`, `fuse_launder_folio`).
//! - Truncation drops dirty pages too and zeroes the rest of the last page (`truncate_inode_pages_range`).
//!
//! All pages have one size ([`super::Config::page_bytes`]); larger folios are not modelled.
//! Not here: filling pages (`read.rs`), writing them (`write.rs`, `write_back.rs`).

use super::executor::Context;
use super::requests::Errno;
use super::state::{InodeKey, Mount};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Bytes of a page. A reader keeps them while it waits, also when the page is dropped meanwhile.
pub type PageData = Rc<RefCell<Vec<u8>>>;

/// One page.
#[derive(Debug)]
pub struct Page {
    /// Tells it from another page at the same index.
    pub id: u64,
    pub data: PageData,
    pub uptodate: bool,
    pub dirty: bool,
    pub locked: bool,
    pub writeback: bool,
    /// Reading it starts the next readahead (`PG_readahead`).
    pub readahead: bool,
}

/// Pages by index.
#[derive(Default, Debug)]
pub struct Pages {
    pages: BTreeMap<u64, Page>,
}

impl Pages {
    pub fn get(&self, index: u64) -> Option<&Page> {
        self.pages.get(&index)
    }

    pub fn get_mut(&mut self, index: u64) -> Option<&mut Page> {
        self.pages.get_mut(&index)
    }

    /// The page with this identity, if it is still there.
    pub fn same_mut(&mut self, index: u64, id: u64) -> Option<&mut Page> {
        self.pages.get_mut(&index).filter(|page| page.id == id)
    }

    pub fn insert(&mut self, index: u64, page: Page) {
        self.pages.insert(index, page);
    }

    pub fn remove(&mut self, index: u64) {
        self.pages.remove(&index);
    }

    /// Indexes of cached pages in a range, its end included.
    pub fn in_range(&self, first: u64, last: u64) -> Vec<u64> {
        if first > last { Vec::new() } else { self.pages.range(first..=last).map(|(index, _)| *index).collect() }
    }

    pub fn dirty_in(&self, first: u64, last: u64) -> Vec<u64> {
        let indexes = self.in_range(first, last);
        indexes.into_iter().filter(|index| self.pages[index].dirty).collect()
    }

    /// Indexes and identities of the pages of a range that are being written back.
    pub fn written_in(&self, first: u64, last: u64) -> Vec<(u64, u64)> {
        let indexes = self.in_range(first, last).into_iter();
        indexes.filter(|index| self.pages[index].writeback).map(|index| (index, self.pages[&index].id)).collect()
    }

    /// Memory pressure: drops pages that are neither dirty nor in use.
    pub fn drop_clean(&mut self) {
        self.pages.retain(|_, page| page.dirty || page.locked || page.writeback);
    }
}

impl Mount {
    pub fn page_bytes(&self) -> u64 {
        u64::from(self.config.page_bytes)
    }

    /// Adds an empty page that the caller has locked.
    pub fn add_locked_page(&mut self, key: InodeKey, index: u64) -> u64 {
        let id = self.new_ticket();
        let data = Rc::new(RefCell::new(vec![0; self.config.page_bytes as usize]));
        let page = Page { id, data, uptodate: false, dirty: false, locked: true, writeback: false, readahead: false };
        self.inode_mut(key).pages.insert(index, page);
        id
    }

    /// Unlocks a page if it is still there.
    pub fn unlock_page(&mut self, key: InodeKey, index: u64, id: u64) {
        if let Some(page) = self.inode_mut(key).pages.same_mut(index, id) {
            page.locked = false;
            self.progress = true;
        }
    }
}

impl Context {
    /// Locks the page at this index and returns its identity; `None` if there is none (any more).
    pub async fn lock_page(&self, key: InodeKey, index: u64) -> Option<u64> {
        self.wait(|mount| match mount.inode_mut(key).pages.get_mut(index) {
            None => Some(None),
            Some(page) if page.locked => None,
            Some(page) => {
                page.locked = true;
                Some(Some(page.id))
            }
        })
        .await
    }

    /// Unlocks a page. Who waits for its lock may get it first: that is a race, which only a seed settles so.
    pub async fn let_others_lock(&self, key: InodeKey, index: u64, id: u64) {
        self.mount().unlock_page(key, index, id);
        if self.mount().config.seed.is_some() {
            self.let_others_go_on().await;
        }
    }

    /// Waits until a page is not being written back.
    pub async fn wait_writeback(&self, key: InodeKey, index: u64, id: u64) {
        self.wait(|mount| {
            let page = mount.inode_mut(key).pages.same_mut(index, id);
            page.is_none_or(|page| !page.writeback).then_some(())
        })
        .await;
    }

    /// Drops the pages of a range, after writing back dirty ones (`invalidate_inode_pages2_range`). Fails if one stays.
    pub async fn invalidate_pages(&self, key: InodeKey, first: u64, last: u64) -> Result<(), Errno> {
        let inode = self.hold(key);
        let mut result = Ok(());
        let mut from = first;
        loop {
            let next = self.mount().inode(key).pages.in_range(from, last).first().copied();
            let Some(index) = next else { break };
            from = index + 1;
            let Some(id) = self.lock_page(key, index).await else { continue };
            self.wait_writeback(key, index, id).await;
            let laundered = self.launder_page(key, index, id).await;
            let mut mount = self.mount();
            let pages = &mut mount.inode_mut(key).pages;
            let dirty = pages.same_mut(index, id).is_some_and(|page| page.dirty);
            match laundered {
                Err(error) => result = Err(error),
                Ok(()) if dirty => result = Err(Errno::EBUSY),
                Ok(()) => pages.remove(index),
            }
            mount.unlock_page(key, index, id);
            mount.progress = true;
        }
        drop(inode);
        result
    }

    /// Drops what lies behind a new size (`truncate_pagecache`).
    pub async fn truncate_pages(&self, key: InodeKey, size: u64) {
        self.truncate_page_range(key, size, u64::MAX).await;
    }

    /// Drops the whole pages of a range of bytes and zeroes the parts of others (`truncate_pagecache_range`).
    pub async fn truncate_page_range(&self, key: InodeKey, start: u64, end: u64) {
        let page_bytes = self.mount().page_bytes();
        let inode = self.hold(key);
        let mut from = start / page_bytes;
        loop {
            let next = self.mount().inode(key).pages.in_range(from, u64::MAX).first().copied();
            let Some(index) = next else { break };
            if index.saturating_mul(page_bytes) >= end {
                break;
            }
            from = index + 1;
            let Some(id) = self.lock_page(key, index).await else { continue };
            self.wait_writeback(key, index, id).await;
            let mut mount = self.mount();
            let pages = &mut mount.inode_mut(key).pages;
            let page_start = index * page_bytes;
            if start <= page_start && page_start + page_bytes <= end {
                pages.remove(index);
            } else if let Some(page) = pages.same_mut(index, id) {
                let cut = |at: u64| at.saturating_sub(page_start).min(page_bytes) as usize;
                page.data.borrow_mut()[cut(start)..cut(end)].fill(0);
            }
            mount.unlock_page(key, index, id);
            mount.progress = true;
        }
        drop(inode);
    }
}
