//! Buffered reads: pages, readahead, and what a short reply does.
//!
//! - A read asks for attributes first if it goes beyond the size, or with `auto_inval_data` (`fuse_cache_read_iter`).
//! - Readahead asks for runs of missing pages in the background and keeps them locked until the reply
//!   (`fuse_readahead`, `fuse_send_readpages`).
//! - A short reply is the end of the file: the size shrinks if nothing changed the inode since; the rest of the pages
//!   is zeros (`fuse_short_read`, `fuse_read_update_size`).
//! - A reader looks at the size again after its page came, and returns fewer bytes (`filemap_read`).
//! - A page whose readahead failed is asked for again, alone (`filemap_update_page`, `fuse_read_folio`).
//! - So is a page that is gone when the reader comes back from readahead (`filemap_create_folio`): a notification took
//!   it away. The error of a page that is asked for alone is the reader's.
//!
//! Not here: windows (`readahead.rs`), direct reads (`direct.rs`).

use super::attributes::Stale;
use super::executor::Context;
use super::open_file::FileKey;
use super::pages::PageData;
use super::readahead::Window;
use super::requests::{Answer, Errno, Operation, Reply};
use super::state::{FileRef, InodeKey, Mount};

/// A run of locked pages that a READ fills.
struct Filling {
    inode: InodeKey,
    first: u64,
    ids: Vec<u64>,
    version: u64,
    /// For a reader, which makes the access time stale; not for a write of a part of the page.
    is_read: bool,
}

/// Cached pages in a row, and what is to be done about the last one.
struct Batch {
    pages: Vec<PageData>,
    marked: Option<u64>,
    not_uptodate: Option<(u64, u64)>,
}

impl Mount {
    /// Locks and adds the missing pages of a window, and returns them in runs of one request each
    /// (`page_cache_ra_unbounded`).
    fn add_window(&mut self, key: InodeKey, window: Window) -> Vec<Filling> {
        let window = self.cut_window(key, window);
        let pages_max = u64::from(self.config.max_read_bytes / self.config.page_bytes).max(1) as usize;
        let mut runs: Vec<Filling> = Vec::new();
        for index in window.start..window.start + window.pages {
            if self.inode(key).pages.get(index).is_some() {
                continue;
            }
            let id = self.add_locked_page(key, index);
            if index == window.start.saturating_add(window.mark)
                && let Some(page) = self.inode_mut(key).pages.get_mut(index)
            {
                page.readahead = true;
            }
            match runs.last_mut() {
                Some(run) if run.first + run.ids.len() as u64 == index && run.ids.len() < pages_max => run.ids.push(id),
                _ => {
                    let version = self.attr_version;
                    runs.push(Filling { inode: key, first: index, ids: vec![id], version, is_read: true });
                }
            }
        }
        runs
    }

    /// Puts a READ's answer into its pages and unlocks them (`fuse_readpages_end`, `fuse_do_readfolio`).
    fn fill(&mut self, filling: &Filling, answer: &Answer) {
        let page_bytes = self.config.page_bytes as usize;
        if let Ok(Reply::Data(data)) = answer
            && data.len() < filling.ids.len() * page_bytes
        {
            let end = filling.first * page_bytes as u64 + data.len() as u64;
            self.shrink_after_short_read(filling.inode, end, filling.version);
        }
        if filling.is_read {
            self.make_stale(filling.inode, Stale::ATIME);
        }
        for (at, id) in filling.ids.iter().enumerate() {
            let index = filling.first + at as u64;
            let Some(page) = self.inode_mut(filling.inode).pages.same_mut(index, *id) else { continue };
            if let Ok(Reply::Data(data)) = answer {
                let mut bytes = page.data.borrow_mut();
                bytes.fill(0);
                let from = (at * page_bytes).min(data.len());
                let part = &data[from..((at + 1) * page_bytes).min(data.len())];
                bytes[..part.len()].copy_from_slice(part);
                drop(bytes);
                page.uptodate = true;
            }
            page.locked = false;
        }
        self.progress = true;
    }

    /// `fuse_short_read`.
    fn shrink_after_short_read(&mut self, key: InodeKey, end: u64, version: u64) {
        if self.config.writeback_cache {
            return;
        }
        let inode = self.inode(key);
        if version >= inode.attr_version && end < inode.size() && !inode.size_unstable {
            self.advance_version(key);
            self.set_size(key, end);
        }
    }
}

impl Context {
    /// Reads through the page cache (`fuse_cache_read_iter`).
    pub async fn read_cached(&self, file: FileKey, offset: u64, size: u64) -> Result<Vec<u8>, Errno> {
        let (inode, fh, ask) = {
            let mount = self.mount();
            let open = mount.file(file);
            let beyond = offset.saturating_add(size) > mount.inode(open.inode).size();
            (open.inode, open.opened.fh, beyond || mount.config.auto_inval_data)
        };
        if ask {
            self.attributes(inode, Stale::SIZE, Some(fh)).await?;
        }
        self.read_pages(file, offset, size).await
    }

    /// `filemap_read`.
    pub async fn read_pages(&self, file: FileKey, offset: u64, size: u64) -> Result<Vec<u8>, Errno> {
        let inode = self.mount().file(file).inode;
        let page_bytes = self.mount().page_bytes();
        let end = offset.saturating_add(size);
        let mut out = Vec::new();
        while offset + (out.len() as u64) < end {
            let position = offset + out.len() as u64;
            if position >= self.mount().inode(inode).size() {
                break;
            }
            let (index, last) = (position / page_bytes, end.div_ceil(page_bytes));
            let batch = match self.pages_to_read(file, index, last).await {
                Ok(batch) => batch,
                Err(error) if out.is_empty() => return Err(error),
                Err(_) => break,
            };
            let mount = self.mount();
            let until = end.min(mount.inode(inode).size());
            if position >= until {
                break;
            }
            for data in batch {
                let at = offset + out.len() as u64;
                let from = (at % page_bytes) as usize;
                let count = (until - at).min(page_bytes - from as u64) as usize;
                out.extend_from_slice(&data.borrow()[from..from + count]);
                if at + count as u64 >= until {
                    break;
                }
            }
        }
        if !out.is_empty() {
            self.mount().file_mut(file).readahead.previous = Some(offset + out.len() as u64);
        }
        Ok(out)
    }

    /// Pages from `index` on to copy from, at least one (`filemap_get_pages`).
    async fn pages_to_read(&self, file: FileKey, index: u64, last: u64) -> Result<Vec<PageData>, Errno> {
        let inode = self.mount().file(file).inode;
        loop {
            if !self.is_cached(inode, index) {
                let window = {
                    let mut mount = self.mount();
                    let limits = mount.readahead_limits();
                    let before = mount.cached_before(inode, index, limits.max_for(last - index));
                    mount.file_mut(file).readahead.miss(index, last - index, limits, before)
                };
                self.start_readahead(file, window).await;
                self.come_late(inode, index).await;
            }
            if !self.is_cached(inode, index) {
                return Ok(vec![self.read_new_page(file, index).await?]);
            }
            let Some(mut batch) = self.batch(inode, index, last) else { continue };
            if let Some(at) = batch.marked {
                self.continue_readahead(file, at, last).await;
            }
            let Some((at, id)) = batch.not_uptodate else { return Ok(batch.pages) };
            let step = self.make_uptodate(file, at, id).await;
            if step == Ok(true) {
                return Ok(batch.pages);
            }
            batch.pages.pop();
            if !batch.pages.is_empty() {
                return Ok(batch.pages);
            }
            step?;
        }
    }

    /// A reader that was held up after it began readahead may find that its page has come and is gone again.
    async fn come_late(&self, inode: InodeKey, index: u64) {
        if self.mount().has_late_reader() {
            self.wait(|mount| mount.inode(inode).pages.get(index).is_none_or(|page| !page.locked).then_some(())).await;
            self.let_others_go_on().await;
        }
    }

    fn is_cached(&self, inode: InodeKey, index: u64) -> bool {
        self.mount().inode(inode).pages.get(index).is_some()
    }

    /// Cached pages from `index` on, up to a hole, a marked page or one that is not uptodate
    /// (`filemap_get_read_batch`).
    fn batch(&self, inode: InodeKey, index: u64, last: u64) -> Option<Batch> {
        let mount = self.mount();
        let mut batch = Batch { pages: Vec::new(), marked: None, not_uptodate: None };
        for at in index..last {
            let Some(page) = mount.inode(inode).pages.get(at) else { break };
            batch.pages.push(page.data.clone());
            batch.marked = page.readahead.then_some(at);
            batch.not_uptodate = (!page.uptodate).then_some((at, page.id));
            if page.readahead || !page.uptodate {
                break;
            }
        }
        (!batch.pages.is_empty()).then_some(batch)
    }

    /// Adds a page, reads it and returns its contents (`filemap_create_folio`).
    pub async fn read_new_page(&self, file: FileKey, index: u64) -> Result<PageData, Errno> {
        let inode = self.mount().file(file).inode;
        let (filling, data) = {
            let mut mount = self.mount();
            let id = mount.add_locked_page(inode, index);
            let data = mount.inode(inode).pages.get(index).map(|page| page.data.clone()).unwrap_or_default();
            let version = mount.attr_version;
            (Filling { inode, first: index, ids: vec![id], version, is_read: true }, data)
        };
        self.read_one(file, filling).await?;
        Ok(data)
    }

    /// Reads a page that is not uptodate (`filemap_update_page`). False: it was locked, and is to be looked at again.
    async fn make_uptodate(&self, file: FileKey, index: u64, id: u64) -> Result<bool, Errno> {
        let inode = self.mount().file(file).inode;
        let (locked, version) = {
            let mut mount = self.mount();
            let version = mount.attr_version;
            match mount.inode_mut(inode).pages.same_mut(index, id) {
                None => return Ok(false),
                Some(page) if page.uptodate => return Ok(true),
                Some(page) => (std::mem::replace(&mut page.locked, true), version),
            }
        };
        if locked {
            self.wait(|mount| {
                let page = mount.inode_mut(inode).pages.same_mut(index, id);
                page.is_none_or(|page| !page.locked).then_some(())
            })
            .await;
            return Ok(false);
        }
        self.read_one(file, Filling { inode, first: index, ids: vec![id], version, is_read: true }).await?;
        Ok(true)
    }

    /// Reads a page that the caller has locked, and unlocks it.
    pub async fn read_locked_page(&self, file: FileKey, index: u64, id: u64, is_read: bool) -> Result<(), Errno> {
        let filling = {
            let mount = self.mount();
            let (inode, version) = (mount.file(file).inode, mount.attr_version);
            Filling { inode, first: index, ids: vec![id], version, is_read }
        };
        self.read_one(file, filling).await
    }

    /// Reads one locked page and waits (`fuse_read_folio`).
    async fn read_one(&self, file: FileKey, filling: Filling) -> Result<(), Errno> {
        let unique = self.send_read(file, &filling, false);
        let answer = self.answer(unique).await;
        self.mount().fill(&filling, &answer);
        answer.map(|_| ())
    }

    fn send_read(&self, file: FileKey, filling: &Filling, in_background: bool) -> u64 {
        let mut mount = self.mount();
        let (inode, fh) = (mount.file(file).inode, mount.file(file).opened.fh);
        let node = mount.inode(inode).node;
        let page_bytes = mount.config.page_bytes;
        let offset = filling.first * u64::from(page_bytes);
        let size = filling.ids.len() as u32 * page_bytes;
        let operation = Operation::Read { fh, offset, size, has_owner: false };
        if in_background { mount.send_background(node, operation) } else { mount.send(node, operation) }
    }

    /// Reads the missing pages of a window, in the background if the server allows that (`FUSE_ASYNC_READ`).
    pub async fn start_readahead(&self, file: FileKey, window: Window) {
        let inode = self.mount().file(file).inode;
        let runs = self.mount().add_window(inode, window);
        let in_background = self.mount().config.async_read;
        for filling in runs {
            let unique = self.send_read(file, &filling, in_background);
            if in_background {
                let kept = self.mount().hold_handle(file);
                self.spawn(finish_readahead(self.clone(), kept, filling, unique));
            } else {
                let answer = self.answer(unique).await;
                self.mount().fill(&filling, &answer);
            }
        }
    }

    /// A reader came to a marked page.
    pub async fn continue_readahead(&self, file: FileKey, index: u64, last: u64) {
        let window = {
            let mut mount = self.mount();
            let inode = mount.file(file).inode;
            let limits = mount.readahead_limits();
            let hole = mount.next_hole(inode, index, limits.window);
            match mount.inode_mut(inode).pages.get_mut(index) {
                Some(page) if !page.writeback => page.readahead = false,
                _ => return,
            }
            mount.file_mut(file).readahead.marked(index, last - index, limits, hole)
        };
        if let Some(window) = window {
            self.start_readahead(file, window).await;
        }
    }
}

async fn finish_readahead(context: Context, _kept: FileRef, filling: Filling, unique: u64) {
    let answer = context.answer(unique).await;
    context.mount().fill(&filling, &answer);
}
