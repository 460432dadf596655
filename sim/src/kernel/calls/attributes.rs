//! Changes of attributes: chmod, truncate, ftruncate, and the bits that a write clears.
//!
//! - While a truncation is in flight replies' sizes do not count, and no write-back is sent (`fuse_do_setattr`).
//! - Its reply's attributes count in any case, with timeout 0 if something else changed the inode meanwhile
//!   (`fuse_do_setattr`).
//! - Another size drops all pages (`fuse_do_setattr`).
//! - chmod of a directory makes its name expire (`fuse_setattr`).
//! - A write or truncation without CAP_FSETID asks for the mode and clears the bits by SETATTR, unless the server
//!   does it (`fuse_setattr`, `file_remove_privs`).

use crate::kernel::attributes::Stale;
use crate::kernel::executor::Context;
use crate::kernel::open_file::FileKey;
use crate::kernel::requests::{Attributes, Change, Errno, Operation, Reply};
use crate::kernel::state::InodeKey;
use crate::kernel::write::drops_privileges;

/// What a call changes (`struct iattr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    pub mode: Option<u16>,
    pub size: Option<u64>,
    pub fh: Option<u64>,
    /// Set-user-ID bits go with it.
    pub kills: bool,
    /// ftruncate and O_TRUNC change mtime also where the size stays.
    pub tells_mtime: bool,
}

impl Context {
    /// chmod(2).
    pub async fn chmod(&self, path: &[String], mode: u16, revalidate: bool) -> Result<(), Errno> {
        let dentry = self.walk(path, revalidate).await?;
        let key = self.inode_of(&dentry).ok_or(Errno::ENOENT)?;
        let _lock = self.lock_exclusive(key).await;
        self.set_attributes(key, Wish { mode: Some(mode), ..Wish::default() }).await?;
        let mut mount = self.mount();
        if mount.inode(key).is_directory() {
            mount.expire_entry(dentry.id);
        }
        Ok(())
    }

    /// truncate(2).
    pub async fn truncate(&self, path: &[String], size: u64, revalidate: bool) -> Result<(), Errno> {
        let dentry = self.walk(path, revalidate).await?;
        let key = self.inode_of(&dentry).ok_or(Errno::ENOENT)?;
        if self.mount().inode(key).is_directory() {
            return Err(Errno::EISDIR);
        }
        let _lock = self.lock_exclusive(key).await;
        let kills = self.loses_bits(key);
        self.set_attributes(key, Wish { size: Some(size), kills, ..Wish::default() }).await
    }

    /// ftruncate(2).
    pub async fn ftruncate(&self, file: FileKey, size: u64) -> Result<(), Errno> {
        let key = self.mount().file(file).inode;
        let _lock = self.lock_exclusive(key).await;
        let kills = self.loses_bits(key);
        let fh = self.mount().file(file).opened.fh;
        self.set_attributes(key, Wish { size: Some(size), fh: Some(fh), kills, tells_mtime: true, mode: None }).await
    }

    /// Sets a size under the inode's lock (`fuse_do_truncate`).
    pub async fn set_file_size(&self, file: FileKey, size: u64) -> Result<(), Errno> {
        let (key, fh) = {
            let mount = self.mount();
            (mount.file(file).inode, mount.file(file).opened.fh)
        };
        self.set_attributes(key, Wish { size: Some(size), fh: Some(fh), ..Wish::default() }).await
    }

    fn loses_bits(&self, key: InodeKey) -> bool {
        let mount = self.mount();
        mount.config.kills_privileges && drops_privileges(mount.inode(key).attributes.mode)
    }

    /// Clears the bits before a write, under the inode's lock (`file_remove_privs`).
    pub async fn kill_privileges(&self, key: InodeKey) -> Result<(), Errno> {
        let server_does = self.mount().config.handle_killpriv_v2;
        let mode = if server_does { None } else { self.mode_without_bits(key, None).await? };
        // Also without anything to change: other flags of the change are set (`notify_change`).
        self.set_attributes(key, Wish { mode, ..Wish::default() }).await
    }

    /// The mode as the server has it now, without the bits; `None` if they are gone already.
    async fn mode_without_bits(&self, key: InodeKey, fh: Option<u64>) -> Result<Option<u16>, Errno> {
        self.getattr(key, fh).await?;
        let mode = self.mount().inode(key).attributes.mode;
        let group = if mode & 0o2010 == 0o2010 { 0o2000 } else { 0 };
        let killed = mode & !0o4000 & !group;
        Ok(drops_privileges(mode).then_some(killed))
    }

    /// `fuse_setattr`, under the inode's lock.
    pub async fn set_attributes(&self, key: InodeKey, wish: Wish) -> Result<(), Errno> {
        let Wish { mode, size, fh, kills, tells_mtime } = wish;
        let (node, bad, v2, writeback) = {
            let mount = self.mount();
            let inode = mount.inode(key);
            let v2 = mount.config.handle_killpriv_v2 && mount.config.kills_privileges && size.is_some();
            (inode.node, inode.bad, v2, mount.own_attributes(key) != Stale::NONE)
        };
        if bad {
            return Err(Errno::EIO);
        }
        let mut change = Change { fh, mode, size, kill_privileges: v2, ..Change::default() };
        if kills && !self.mount().config.handle_killpriv_v2 {
            change.mode = self.mode_without_bits(key, fh).await?;
        }
        if writeback && change.mode.is_some() {
            self.write_inode(key).await?;
            self.sync_writes(key).await;
        }
        if size.is_some() {
            self.hold_writes(key).await;
            self.mount().inode_mut(key).size_unstable = true;
        }
        if writeback {
            let mount = self.mount();
            change.ctime = Some(mount.now_ms);
            let resizes = size.is_some_and(|size| tells_mtime || size != mount.inode(key).size());
            change.mtime = resizes.then_some(mount.now_ms);
        }
        let version = self.mount().attr_version;
        let result = match self.ask(node, Operation::Setattr(change.clone())).await {
            Ok(Reply::Attributes { attributes, valid_ms }) => {
                self.apply_change(key, &attributes, valid_ms, version, &change).await;
                Ok(())
            }
            Ok(_) => Err(Errno::EIO),
            Err(error) => {
                if size.is_some() {
                    self.release_writes(key);
                }
                Err(error)
            }
        };
        self.mount().inode_mut(key).size_unstable = false;
        result
    }

    async fn apply_change(&self, key: InodeKey, attributes: &Attributes, valid_ms: u64, version: u64, change: &Change) {
        let truncates = change.size.is_some();
        let (old_size, owned) = {
            let mut mount = self.mount();
            let owned = mount.own_attributes(key) != Stale::NONE;
            if owned {
                let cached = &mut mount.inode_mut(key).attributes;
                cached.mtime = change.mtime.unwrap_or(cached.mtime);
                cached.ctime = change.ctime.unwrap_or(cached.ctime);
            }
            let overtaken = mount.inode(key).attr_version > version;
            let until = if overtaken { 0 } else { mount.deadline(valid_ms) };
            mount.store_attributes(key, attributes, until, 0);
            let old_size = mount.inode(key).size();
            if !owned || truncates {
                mount.set_size(key, attributes.size);
            }
            (old_size, owned)
        };
        if truncates {
            self.release_writes(key);
        }
        if (truncates || !owned) && !self.mount().inode(key).is_directory() && old_size != attributes.size {
            if attributes.size > old_size {
                self.truncate_page_range(key, old_size, attributes.size).await;
            }
            self.truncate_pages(key, attributes.size).await;
            let _ = self.invalidate_pages(key, 0, u64::MAX).await;
        }
    }
}
