//! Buffered writes that go to the server at once.
//!
//! - The bytes go into pages first, then to the server; readers see them while the WRITE is in flight
//!   (`fuse_fill_write_pages`, `fuse_send_write_pages`).
//! - A page that is not uptodate stays locked until the reply, and ends a request; it does not become uptodate
//!   (`fuse_fill_write_pages`).
//! - After an error or a short count the pages are not uptodate any more (`fuse_send_write_pages`).
//! - While the file grows, replies' sizes do not count; afterwards earlier replies' attributes do not
//!   (`fuse_perform_write`).
//! - The inode's lock is held throughout (`fuse_cache_write_iter`).
//!
//! Not here: pages that are written later (`write_back.rs`), direct writes (`direct.rs`).

use super::attributes::Stale;
use super::executor::Context;
use super::open_file::FileKey;
use super::requests::{Errno, Operation, Reply};
use super::state::InodeKey;

/// Pages of one WRITE: indexes and identities, and whether the last one is locked.
struct Filled {
    pages: Vec<(u64, u64)>,
    bytes: u64,
    last_locked: bool,
}

impl Context {
    /// A buffered write at `offset`, or at the end (`fuse_cache_write_iter`). Returns where it began and the count.
    pub async fn write_cached(&self, file: FileKey, offset: Option<u64>, data: &[u8]) -> Result<(u64, u64), Errno> {
        let (inode, fh, writeback, direct) = {
            let mount = self.mount();
            let open = mount.file(file);
            (open.inode, open.opened.fh, mount.config.writeback_cache, open.flags.direct)
        };
        if writeback {
            self.attributes(inode, Stale::SIZE | Stale::MODE, Some(fh)).await?;
        }
        let _lock = self.lock_exclusive(inode).await;
        let at = offset.unwrap_or_else(|| self.mount().inode(inode).size());
        if data.is_empty() {
            return Ok((at, 0));
        }
        self.remove_privileges(inode).await?;
        self.update_times(inode);
        let written = if direct {
            self.write_direct_io(file, at, data).await?
        } else if writeback {
            self.write_to_pages(file, at, data).await?
        } else {
            self.write_through(file, at, data).await?
        };
        Ok((at, written))
    }

    /// `fuse_perform_write`, under the inode's lock.
    pub async fn write_through(&self, file: FileKey, offset: u64, data: &[u8]) -> Result<u64, Errno> {
        let inode = self.mount().file(file).inode;
        let old_size = self.mount().inode(inode).size();
        if offset > old_size {
            self.truncate_page_range(inode, old_size, offset).await;
        }
        if old_size < offset + data.len() as u64 {
            self.mount().inode_mut(inode).size_unstable = true;
        }
        let mut written = 0;
        let mut result = Ok(());
        while written < data.len() && result.is_ok() {
            let at = offset + written as u64;
            let filled = self.fill_pages(inode, at, &data[written..]).await;
            let part = &data[written..written + filled.bytes as usize];
            match self.send_pages(file, inode, at, part, &filled).await {
                Ok(count) => {
                    written += count as usize;
                    self.mount().note_piece(file, written as u64);
                    if count != filled.bytes {
                        result = Err(Errno::EIO);
                    }
                }
                Err(error) => result = Err(error),
            }
        }
        let mut mount = self.mount();
        mount.wrote(inode, offset + written as u64, written as u64);
        mount.inode_mut(inode).size_unstable = false;
        if written > 0 { Ok(written as u64) } else { result.map(|()| 0) }
    }

    /// Copies as much into pages as one request takes (`fuse_fill_write_pages`).
    async fn fill_pages(&self, inode: InodeKey, offset: u64, data: &[u8]) -> Filled {
        let (page_bytes, most, pages_max) = {
            let mount = self.mount();
            let pages_max = mount.config.max_read_bytes / mount.config.page_bytes;
            (mount.page_bytes(), u64::from(mount.config.max_write_bytes), pages_max as usize)
        };
        let total = most.min(data.len() as u64);
        let mut filled = Filled { pages: Vec::new(), bytes: 0, last_locked: false };
        while filled.bytes < total && filled.pages.len() < pages_max {
            let at = offset + filled.bytes;
            let (index, from) = (at / page_bytes, at % page_bytes);
            let count = (page_bytes - from).min(total - filled.bytes);
            let id = self.lock_or_add_page(inode, index).await;
            let mut mount = self.mount();
            let Some(page) = mount.inode_mut(inode).pages.same_mut(index, id) else { continue };
            let source = &data[filled.bytes as usize..(filled.bytes + count) as usize];
            page.data.borrow_mut()[from as usize..(from + count) as usize].copy_from_slice(source);
            page.uptodate |= count == page_bytes;
            filled.last_locked = !page.uptodate;
            if page.uptodate {
                mount.unlock_page(inode, index, id);
            }
            filled.pages.push((index, id));
            filled.bytes += count;
            if filled.last_locked || from + count != page_bytes {
                break;
            }
        }
        filled
    }

    /// The locked page at an index, made if it is missing (`FGP_WRITEBEGIN`).
    pub async fn lock_or_add_page(&self, inode: InodeKey, index: u64) -> u64 {
        match self.lock_page(inode, index).await {
            Some(id) => id,
            None => self.mount().add_locked_page(inode, index),
        }
    }

    /// `fuse_send_write_pages`.
    async fn send_pages(
        &self,
        file: FileKey,
        inode: InodeKey,
        offset: u64,
        data: &[u8],
        filled: &Filled,
    ) -> Result<u64, Errno> {
        for (index, id) in &filled.pages {
            self.wait_writeback(inode, *index, *id).await;
        }
        let (node, fh, kill) = {
            let mount = self.mount();
            let kill = mount.config.handle_killpriv_v2 && mount.config.kills_privileges;
            (mount.inode(inode).node, mount.file(file).opened.fh, kill)
        };
        let data = data.to_vec();
        let count = data.len() as u64;
        let write = Operation::Write { fh, offset, data, cached: false, has_owner: false, kill_privileges: kill };
        let result = match self.ask(node, write).await {
            Ok(Reply::Written(written)) if u64::from(written) <= count => Ok(u64::from(written)),
            Ok(_) => Err(Errno::EIO),
            Err(error) => Err(error),
        };
        let mut mount = self.mount();
        let page_bytes = mount.page_bytes();
        let good = result.unwrap_or(0);
        let is_short = good < count;
        for (at, (index, id)) in filled.pages.iter().enumerate() {
            let page_end = ((index + 1) * page_bytes).saturating_sub(offset);
            if let Some(page) = mount.inode_mut(inode).pages.same_mut(*index, *id)
                && is_short
                && page_end > good
            {
                page.uptodate = false;
            }
            if filled.last_locked && at + 1 == filled.pages.len() {
                mount.unlock_page(inode, *index, *id);
            }
        }
        result
    }

    /// `file_remove_privs`: clears set-user-ID and set-group-ID bits before a write without `CAP_FSETID`.
    pub async fn remove_privileges(&self, inode: InodeKey) -> Result<(), Errno> {
        let needed = {
            let mount = self.mount();
            mount.config.kills_privileges && drops_privileges(mount.inode(inode).attributes.mode)
        };
        if needed { self.kill_privileges(inode).await } else { Ok(()) }
    }

    /// `file_update_time`: only with write-back are the times the kernel's own.
    pub fn update_times(&self, inode: InodeKey) {
        let mut mount = self.mount();
        if mount.own_attributes(inode) != Stale::NONE {
            let now = mount.now_ms;
            let inode = mount.inode_mut(inode);
            inode.attributes.mtime = now;
            inode.attributes.ctime = now;
            inode.times_dirty = true;
        }
    }
}

/// Whether a write clears bits of this mode (`setattr_should_drop_suidgid`).
pub fn drops_privileges(mode: u16) -> bool {
    mode & 0o4000 != 0 || mode & 0o2010 == 0o2010
}
