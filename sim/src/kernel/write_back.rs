//! Dirty pages on their way to the server: of mappings, and of write-back mode.
//!
//! - fsync, msync, munmap, close and a truncation's invalidation write back all dirty pages, and wait
//!   (`write_inode_now`, `fuse_vma_close`, `fuse_flush`, `fuse_fsync`).
//! - Runs of pages go out in one WRITE, through any file that was opened or mapped for writing
//!   (`fuse_writepages_fill`, `fuse_write_file_get`).
//! - What lies behind the size is cut off (`fuse_send_writepage`).
//! - A truncation and an fsync wait for writes in flight and hold up others (`FUSE_NOWRITE`) (`fuse_set_nowrite`).
//! - An error is told to the next fsync or close (`mapping_set_error`, `filemap_check_errors`).
//!
//! Not modelled: write-back by time or by amount; without it only the events above write.

use super::attributes::Stale;
use super::executor::Context;
use super::open_file::FileKey;
use super::requests::{Change, Errno, Operation, Reply};
use super::state::{FileRef, InodeKey, InodeRef};

/// Pages of one WRITE.
struct Run {
    inode: InodeRef,
    file: FileRef,
    pages: Vec<(u64, u64)>,
}

impl Context {
    /// Writes back the dirty pages of a range and waits (`filemap_write_and_wait_range`).
    pub async fn write_back(&self, key: InodeKey, first: u64, last: u64) -> Result<(), Errno> {
        let pages_max = {
            let mount = self.mount();
            let bytes = mount.config.max_write_bytes.min(mount.config.max_read_bytes);
            (bytes / mount.config.page_bytes).max(1) as usize
        };
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let mut all = Vec::new();
        let dirty = self.mount().inode(key).pages.dirty_in(first, last);
        for index in dirty {
            let Some(id) = self.lock_page(key, index).await else { continue };
            self.wait_writeback(key, index, id).await;
            let follows = taken.last().is_none_or(|(at, _)| at + 1 == index) && taken.len() < pages_max;
            if !follows {
                self.submit(key, std::mem::take(&mut taken))?;
            }
            if self.take_dirty(key, index, id) {
                taken.push((index, id));
                all.push((index, id));
            }
            self.mount().unlock_page(key, index, id);
        }
        self.submit(key, taken)?;
        for (index, id) in all {
            self.wait_writeback(key, index, id).await;
        }
        // Others may be written back for somebody else (`filemap_fdatawait_range`).
        let written = self.mount().inode(key).pages.written_in(first, last);
        for (index, id) in written {
            self.wait_writeback(key, index, id).await;
        }
        self.take_write_error(key)
    }

    /// All pages, and times that the server does not know (`write_inode_now`).
    pub async fn write_inode(&self, key: InodeKey) -> Result<(), Errno> {
        self.write_back(key, 0, u64::MAX).await?;
        self.write_times(key).await
    }

    /// `fuse_flush_times`.
    pub async fn write_times(&self, key: InodeKey) -> Result<(), Errno> {
        let request = {
            let mut mount = self.mount();
            let inode = mount.inode_mut(key);
            if !std::mem::take(&mut inode.times_dirty) {
                return Ok(());
            }
            let (node, writer) = (inode.node, inode.write_files.first().copied());
            let (mtime, ctime) = (Some(inode.attributes.mtime), Some(inode.attributes.ctime));
            let fh = writer.map(|file| mount.file(file).opened.fh);
            (node, Operation::Setattr(Change { fh, mtime, ctime, ..Change::default() }))
        };
        self.ask(request.0, request.1).await.map(|_| ())
    }

    fn take_write_error(&self, key: InodeKey) -> Result<(), Errno> {
        match self.mount().inode_mut(key).writeback_error.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The page goes from dirty to being written. False: it was clean.
    fn take_dirty(&self, key: InodeKey, index: u64, id: u64) -> bool {
        let mut mount = self.mount();
        let Some(page) = mount.inode_mut(key).pages.same_mut(index, id) else { return false };
        let dirty = std::mem::take(&mut page.dirty);
        page.writeback |= dirty;
        dirty
    }

    /// Sends a run in the background.
    fn submit(&self, key: InodeKey, pages: Vec<(u64, u64)>) -> Result<(), Errno> {
        if pages.is_empty() {
            return Ok(());
        }
        let writer = self.mount().inode(key).write_files.first().copied();
        let Some(writer) = writer else {
            self.end_pages(key, &pages);
            return Err(Errno::EIO);
        };
        let (inode, file) = {
            let mut mount = self.mount();
            (mount.hold(key), mount.hold_handle(writer))
        };
        self.spawn(write_run(self.clone(), Run { inode, file, pages }));
        Ok(())
    }

    fn end_pages(&self, key: InodeKey, pages: &[(u64, u64)]) {
        let mut mount = self.mount();
        for (index, id) in pages {
            if let Some(page) = mount.inode_mut(key).pages.same_mut(*index, *id) {
                page.writeback = false;
            }
        }
        mount.progress = true;
    }

    /// Writes a locked page back before it is dropped (`fuse_launder_folio`). A refusal of the server is only noted.
    pub async fn launder_page(&self, key: InodeKey, index: u64, id: u64) -> Result<(), Errno> {
        if !self.take_dirty(key, index, id) {
            return Ok(());
        }
        self.submit(key, vec![(index, id)])?;
        self.wait_writeback(key, index, id).await;
        Ok(())
    }

    /// Waits for writes in flight; later ones wait for the guard's end (`fuse_set_nowrite`).
    pub async fn hold_writes(&self, key: InodeKey) {
        self.mount().inode_mut(key).no_write += 1;
        self.wait(|mount| (mount.inode(key).writing == 0).then_some(())).await;
    }

    /// `fuse_release_nowrite`.
    pub fn release_writes(&self, key: InodeKey) {
        let mut mount = self.mount();
        mount.inode_mut(key).no_write -= 1;
        mount.progress = true;
    }

    /// Waits for writes in flight (`fuse_sync_writes`).
    pub async fn sync_writes(&self, key: InodeKey) {
        self.hold_writes(key).await;
        self.release_writes(key);
    }

    /// fsync and msync (`fuse_fsync`).
    pub async fn fsync(&self, file: FileKey, data_only: bool) -> Result<(), Errno> {
        let (key, node, fh) = {
            let mount = self.mount();
            let open = mount.file(file);
            (open.inode, mount.inode(open.inode).node, open.opened.fh)
        };
        let _lock = self.lock_exclusive(key).await;
        self.write_back(key, 0, u64::MAX).await?;
        self.sync_writes(key).await;
        // What failed meanwhile is told, too (`file_check_and_advance_wb_err`).
        self.take_write_error(key)?;
        self.write_times(key).await?;
        self.ask(node, Operation::Fsync { fh, data_only }).await.map(|_| ())
    }

    /// A write that stays in pages (write-back mode), under the inode's lock.
    pub async fn write_to_pages(&self, file: FileKey, offset: u64, data: &[u8]) -> Result<u64, Errno> {
        let inode = self.mount().file(file).inode;
        let page_bytes = self.mount().page_bytes();
        let (mut written, mut retried_at) = (0_usize, 0_usize);
        while written < data.len() {
            let at = offset + written as u64;
            let (index, from) = (at / page_bytes, (at % page_bytes) as usize);
            let count = (page_bytes as usize - from).min(data.len() - written);
            let id = self.lock_or_add_page(inode, index).await;
            self.wait_writeback(inode, index, id).await;
            let (uptodate, beyond) = {
                let mount = self.mount();
                let beyond = mount.inode(inode).size() <= index * page_bytes;
                (mount.inode(inode).pages.get(index).is_some_and(|page| page.uptodate), beyond)
            };
            if !uptodate && count < page_bytes as usize && !beyond {
                match self.read_locked_page(file, index, id, false).await {
                    // What came before counts as a step of its own, and the rest is tried again (`iomap_iter`).
                    Err(_) if written > retried_at => retried_at = written,
                    Err(_) if written > 0 => return Ok(written as u64),
                    Err(error) => return Err(error),
                    Ok(()) => {}
                }
                continue;
            }
            let mut mount = self.mount();
            if let Some(page) = mount.inode_mut(inode).pages.same_mut(index, id) {
                let mut bytes = page.data.borrow_mut();
                if !page.uptodate {
                    bytes.fill(0);
                }
                bytes[from..from + count].copy_from_slice(&data[written..written + count]);
                drop(bytes);
                page.uptodate = true;
                page.dirty = true;
            }
            written += count;
            let end = offset + written as u64;
            if end > mount.inode(inode).size() {
                mount.set_size(inode, end);
            }
            mount.unlock_page(inode, index, id);
        }
        Ok(written as u64)
    }
}

/// `fuse_send_writepage`, `fuse_writepage_end`.
async fn write_run(context: Context, run: Run) {
    let key = run.inode.key;
    let (node, fh) = {
        let mount = context.mount();
        (mount.inode(key).node, mount.file(run.file.key).opened.fh)
    };
    context
        .wait(|mount| {
            let inode = mount.inode_mut(key);
            (inode.no_write == 0).then(|| inode.writing += 1)
        })
        .await;
    let (offset, data) = contents(&context, key, &run.pages);
    let mut result = Ok(Reply::Done);
    if !data.is_empty() {
        let count = data.len();
        let write = Operation::Write { fh, offset, data, cached: true, has_owner: false, kill_privileges: false };
        let unique = context.mount().send_background(node, write);
        result = match context.answer(unique).await {
            Ok(Reply::Written(written)) if (written as usize) < count => Err(Errno::EIO),
            other => other,
        };
    }
    let mut mount = context.mount();
    if !mount.config.writeback_cache {
        mount.make_stale(key, Stale::MODIFY);
    }
    let inode = mount.inode_mut(key);
    inode.writing -= 1;
    if let Err(error) = result {
        inode.writeback_error = Some(if error == Errno::ENOSPC { error } else { Errno::EIO });
    }
    drop(mount);
    context.end_pages(key, &run.pages);
}

/// The bytes of a run up to the size of the file.
fn contents(context: &Context, key: InodeKey, pages: &[(u64, u64)]) -> (u64, Vec<u8>) {
    let mut mount = context.mount();
    let page_bytes = mount.page_bytes();
    let size = mount.inode(key).size();
    let offset = pages.first().map_or(0, |(index, _)| index * page_bytes);
    let mut data = Vec::new();
    for (index, id) in pages {
        match mount.inode_mut(key).pages.same_mut(*index, *id) {
            Some(page) => data.extend_from_slice(&page.data.borrow()),
            None => data.resize(data.len() + page_bytes as usize, 0),
        }
    }
    data.truncate(size.saturating_sub(offset).min(data.len() as u64) as usize);
    (offset, data)
}
