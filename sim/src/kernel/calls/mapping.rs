//! Shared mappings: mmap, loads, stores, msync, munmap.
//!
//! - The first shared mapping of a direct file makes its inode a cached one until the file is released; the pages are
//!   dropped first (`fuse_file_mmap`).
//! - A load that misses reads a whole window around it; one behind the size's last page fails (`filemap_fault`,
//!   `do_sync_mmap_readahead`).
//! - A fault that has waited drops the lock of the address space, and begins once more when it goes on
//!   (`VM_FAULT_RETRY`); the second time it keeps the lock (`FAULT_FLAG_TRIED`). A page that is not there or not
//!   uptodate after readahead is read alone, and the error of that is SIGBUS, but for the first time (`retry_find`,
//!   `page_not_uptodate`).
//! - A store makes the page dirty and tells nobody (`fuse_page_mkwrite`).
//! - munmap of the last part writes back; msync is fsync (`fuse_vma_close`, `fuse_fsync`).
//! - A passed-through file is mapped from its backing file (`fuse_passthrough_mmap`).

use crate::kernel::executor::Context;
use crate::kernel::open_file::FileKey;
use crate::kernel::requests::{Errno, Operation, Reply};
use crate::kernel::state::{FileRef, InodeKey};

/// SIGBUS, as the error of a load or store.
pub const BUS_ERROR: Errno = Errno(14);

/// A mapping of a file from its beginning.
pub struct Mapping {
    pub file: FileRef,
    pub writable: bool,
}

impl Context {
    /// `fuse_file_mmap` for MAP_SHARED.
    pub async fn map(&self, file: FileKey, writable: bool) -> Result<Mapping, Errno> {
        let (key, opened, flags, has_backing, allowed) = {
            let mount = self.mount();
            let open = mount.file(file);
            let has_backing = mount.inode(open.inode).backing.is_some();
            (open.inode, open.opened, open.flags, has_backing, mount.config.direct_io_allow_mmap)
        };
        if !flags.access.reads() || writable && !flags.access.writes() {
            return Err(Errno(13));
        }
        let kept = self.mount().hold_file(file);
        if opened.passthrough.is_some() {
            return Ok(Mapping { file: kept, writable });
        }
        if has_backing {
            return Err(Errno::ENODEV);
        }
        if opened.direct_io {
            if !allowed {
                return Err(Errno::ENODEV);
            }
            let _ = self.invalidate_pages(key, 0, u64::MAX).await;
            self.enter_cached(file).await?;
        }
        if flags.access.writes() {
            self.mount().link_write_file(key, file);
        }
        Ok(Mapping { file: kept, writable })
    }

    /// Reads bytes of a mapping.
    pub async fn load(&self, file: FileKey, offset: u64, size: u64) -> Result<Vec<u8>, Errno> {
        if let Ok((_, node, backing)) = self.backing_of(file) {
            let operation = Operation::BackingRead { backing, offset, size: size as u32 };
            return match self.ask(node, operation).await? {
                Reply::Data(mut data) => {
                    data.resize(size as usize, 0);
                    Ok(data)
                }
                _ => Err(Errno::EIO),
            };
        }
        let page_bytes = self.mount().page_bytes();
        let mut out = Vec::new();
        while (out.len() as u64) < size {
            let at = offset + out.len() as u64;
            let (index, from) = (at / page_bytes, at % page_bytes);
            let id = self.fault(file, index).await?;
            let key = self.mount().file(file).inode;
            let mut mount = self.mount();
            if let Some(page) = mount.inode_mut(key).pages.same_mut(index, id) {
                let count = (page_bytes - from).min(size - out.len() as u64);
                out.extend_from_slice(&page.data.borrow()[from as usize..(from + count) as usize]);
            }
            mount.unlock_page(key, index, id);
        }
        Ok(out)
    }

    /// Writes bytes of a mapping.
    pub async fn store(&self, file: FileKey, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if let Ok((_, node, backing)) = self.backing_of(file) {
            let operation = Operation::BackingWrite { backing, offset, data: data.to_vec(), append: false };
            return self.ask(node, operation).await.map(|_| ());
        }
        let page_bytes = self.mount().page_bytes();
        let mut done = 0;
        while done < data.len() as u64 {
            let at = offset + done;
            let (index, from) = (at / page_bytes, at % page_bytes);
            let key = self.mount().file(file).inode;
            let id = self.fault_to_write(file, index).await?;
            let count = (page_bytes - from).min(data.len() as u64 - done);
            let mut mount = self.mount();
            if let Some(page) = mount.inode_mut(key).pages.same_mut(index, id) {
                let source = &data[done as usize..(done + count) as usize];
                page.data.borrow_mut()[from as usize..(from + count) as usize].copy_from_slice(source);
                page.dirty = true;
            }
            mount.unlock_page(key, index, id);
            done += count;
        }
        Ok(())
    }

    /// As [`Context::fault`], for a store: the page is unlocked before it is made writable, and may be gone then
    /// (`do_shared_fault`, `fuse_page_mkwrite`).
    async fn fault_to_write(&self, file: FileKey, index: u64) -> Result<u64, Errno> {
        let key = self.mount().file(file).inode;
        loop {
            let id = self.fault(file, index).await?;
            self.update_times(key);
            self.let_others_lock(key, index, id).await;
            let same = self.lock_page(key, index).await;
            if same == Some(id) {
                self.wait_writeback(key, index, id).await;
                return Ok(id);
            }
            if let Some(other) = same {
                self.mount().unlock_page(key, index, other);
            }
        }
    }

    /// The page at an index, uptodate and locked (`handle_mm_fault` until it does not return `VM_FAULT_RETRY`).
    async fn fault(&self, file: FileKey, index: u64) -> Result<u64, Errno> {
        match self.fault_once(file, index, false).await? {
            Some(id) => Ok(id),
            None => Ok(self.fault_once(file, index, true).await?.expect("a second attempt keeps its lock")),
        }
    }

    /// `filemap_fault`. `None`: it is to be made again, since the lock of the address space was dropped meanwhile.
    async fn fault_once(&self, file: FileKey, index: u64, is_tried: bool) -> Result<Option<u64>, Errno> {
        let key = self.mount().file(file).inode;
        if index >= self.pages_of_file(key) {
            return Err(BUS_ERROR);
        }
        let mut is_dropped = self.read_around(file, index, is_tried).await;
        loop {
            let waits = self.mount().inode(key).pages.get(index).is_some_and(|page| page.locked);
            is_dropped |= waits && !is_tried;
            let id = self.lock_or_add_page(key, index).await;
            let is_uptodate = self.mount().inode(key).pages.get(index).is_some_and(|page| page.uptodate);
            if !is_uptodate {
                let read = self.read_locked_page(file, index, id, true).await;
                if !is_tried {
                    self.let_others_lock(key, index, id).await;
                    return Ok(None);
                }
                read.map_err(|_| BUS_ERROR)?;
                continue;
            }
            if is_dropped {
                self.let_others_lock(key, index, id).await;
                return Ok(None);
            }
            if index >= self.pages_of_file(key) {
                self.mount().unlock_page(key, index, id);
                return Err(BUS_ERROR);
            }
            return Ok(Some(id));
        }
    }

    /// Readahead of a fault (`do_sync_mmap_readahead`, `do_async_mmap_readahead`). Returns whether the lock of the
    /// address space was dropped for it.
    async fn read_around(&self, file: FileKey, index: u64, is_tried: bool) -> bool {
        let key = self.mount().file(file).inode;
        let max = self.mount().readahead_limits().window;
        let is_marked = self.mount().inode(key).pages.get(index).map(|page| page.readahead);
        match is_marked {
            None => {
                let window = self.mount().file_mut(file).readahead.fault(index, max);
                if let Some(window) = window {
                    self.start_readahead(file, window).await;
                }
                window.is_some() && !is_tried
            }
            Some(true) if !is_tried => {
                self.continue_readahead(file, index, index + max).await;
                true
            }
            Some(_) => false,
        }
    }

    fn pages_of_file(&self, key: InodeKey) -> u64 {
        let mount = self.mount();
        mount.inode(key).size().div_ceil(mount.page_bytes())
    }

    /// munmap of a whole mapping.
    pub async fn unmap(&self, mapping: Mapping) {
        if self.backing_of(mapping.file.key).is_err() {
            let key = self.mount().file(mapping.file.key).inode;
            if let Err(error) = self.write_inode(key).await {
                self.mount().inode_mut(key).writeback_error = Some(error);
            }
        }
        drop(mapping);
    }
}
