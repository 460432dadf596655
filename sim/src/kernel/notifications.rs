//! Notifications of the server: what they drop, and which locks they wait for.
//!
//! - INVAL_ENTRY, DELETE waits for the directory's lock, exclusive; a create or rename there holds it while its
//!   request is in flight (`fuse_reverse_inval_entry`).
//! - INVAL_INODE with a range waits for locks of pages that are being read, and writes of dirty ones
//!   (`fuse_reverse_inval_inode`).
//! - INVAL_INODE without, INC_EPOCH waits for nothing (`fuse_notify_inc_epoch`).
//! - STORE raises the size at once, also while a size is in the making, and makes replies to earlier requests not
//!   count; then it waits for the locks of its pages. One that was not there stays to be read, unless all of it was
//!   stored (`fuse_notify_store`, `fuse_write_update_attr`). If the byte cannot be copied from the server's memory, the
//!   size stays raised, and the page as it is.
//!
//! INVAL_INODE makes replies to earlier requests not count; INVAL_ENTRY does nothing about a lookup in flight, and
//! INC_EPOCH does: a dentry gets the epoch of when its lookup was sent.

use super::attributes::Stale;
use super::executor::Context;
use super::requests::{Errno, NodeId, Notification};
use super::state::InodeKey;

impl Context {
    pub async fn notified(&self, notification: Notification) -> Result<(), Errno> {
        match notification {
            Notification::InvalidateEntry { parent, name, expire_only } => {
                self.invalidate_entry(parent, &name, expire_only, None).await
            }
            Notification::Delete { parent, child, name } => {
                self.invalidate_entry(parent, &name, false, Some(child)).await
            }
            Notification::InvalidateInode { node, offset, bytes } => self.invalidate_inode(node, offset, bytes).await,
            Notification::IncrementEpoch => {
                self.mount().epoch += 1;
                Ok(())
            }
            Notification::Store { node, offset, data } => self.store_in_pages(node, offset, &data).await,
            Notification::Grow { node, size } => self.store_nothing(node, size).await,
        }
    }

    async fn invalidate_entry(
        &self,
        parent: NodeId,
        name: &str,
        expire_only: bool,
        child: Option<NodeId>,
    ) -> Result<(), Errno> {
        let directory = self.mount().find_node(parent).ok_or(Errno::ENOENT)?;
        let _lock = self.lock_exclusive(directory.key).await;
        let (dentry, inode) = {
            let mut mount = self.mount();
            if !mount.inode(directory.key).is_directory() {
                return Err(Errno::ENOTDIR);
            }
            let above = mount.dentries.alias_of(directory.key).ok_or(Errno::ENOENT)?;
            let id = mount.dentries.find(above, name).ok_or(Errno::ENOENT)?;
            let dentry = mount.pin(id);
            mount.directory_changed(directory.key);
            if !expire_only {
                mount.invalidate_dentry(id);
            }
            mount.expire_entry(id);
            let inode = mount.dentries.get(id).inode.map(|key| mount.hold(key));
            (dentry, inode)
        };
        let (Some(child), Some(inode)) = (child, inode) else { return Ok(()) };
        let _child_lock = self.lock_exclusive(inode.key).await;
        let mut mount = self.mount();
        if mount.inode(inode.key).node != child {
            return Err(Errno::ENOENT);
        }
        if mount.inode(inode.key).is_directory() {
            mount.shrink_below(dentry.id);
            if mount.dentries.has_positive_child(dentry.id) {
                return Err(Errno::ENOTEMPTY);
            }
            mount.inode_mut(inode.key).dead = true;
        }
        mount.inode_mut(inode.key).attributes.nlink = 0;
        drop(mount);
        self.mount().delete_dentry(dentry.id);
        Ok(())
    }

    async fn invalidate_inode(&self, node: NodeId, offset: i64, bytes: i64) -> Result<(), Errno> {
        let inode = self.mount().find_node(node).ok_or(Errno::ENOENT)?;
        let page_bytes = {
            let mut mount = self.mount();
            mount.advance_version(inode.key);
            mount.make_stale(inode.key, Stale::ALL);
            mount.page_bytes()
        };
        if let Ok(offset) = u64::try_from(offset) {
            let last = match u64::try_from(bytes) {
                Ok(bytes) if bytes > 0 => (offset + bytes - 1) / page_bytes,
                _ => u64::MAX,
            };
            // A page that stays is not looked at again.
            let _ = self.invalidate_pages(inode.key, offset / page_bytes, last).await;
        }
        Ok(())
    }

    /// The size with which a store into pages begins.
    fn raise_size(&self, key: InodeKey, end: u64, bytes: u64) -> Result<(), Errno> {
        let mut mount = self.mount();
        if mount.inode(key).is_directory() {
            return Err(Errno::EINVAL);
        }
        if end > mount.inode(key).size() {
            mount.wrote(key, end, bytes);
        }
        Ok(())
    }

    /// A store of the last byte of a file of this size, which cannot be copied.
    async fn store_nothing(&self, node: NodeId, size: u64) -> Result<(), Errno> {
        let inode = self.mount().find_node(node).ok_or(Errno::ENOENT)?;
        self.raise_size(inode.key, size, 1)?;
        let index = size.saturating_sub(1) / self.mount().page_bytes();
        let id = self.lock_or_add_page(inode.key, index).await;
        self.mount().unlock_page(inode.key, index, id);
        Err(Errno::EFAULT)
    }

    async fn store_in_pages(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let inode = self.mount().find_node(node).ok_or(Errno::ENOENT)?;
        let end = offset + data.len() as u64;
        self.raise_size(inode.key, end, data.len() as u64)?;
        let (page_bytes, size) = {
            let mount = self.mount();
            (mount.page_bytes(), mount.inode(inode.key).size())
        };
        let mut at = offset;
        while at < end {
            let (index, from) = (at / page_bytes, at % page_bytes);
            let count = (page_bytes - from).min(end - at);
            let id = self.lock_or_add_page(inode.key, index).await;
            let mut mount = self.mount();
            if let Some(page) = mount.inode_mut(inode.key).pages.same_mut(index, id) {
                let source = &data[(at - offset) as usize..(at - offset + count) as usize];
                page.data.borrow_mut()[from as usize..(from + count) as usize].copy_from_slice(source);
                if !page.uptodate && from == 0 && (count == page_bytes || size == end) {
                    page.data.borrow_mut()[count as usize..].fill(0);
                    page.uptodate = true;
                }
            }
            mount.unlock_page(inode.key, index, id);
            at += count;
        }
        Ok(())
    }
}
