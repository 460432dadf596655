//! Changes of names: mkdir, link, unlink, rmdir, rename.
//!
//! Each holds the locks of its directories, exclusive, from the lookup of the last component until the reply. After
//! success the dentries change here as the server was asked to change them; after ENOENT they are invalidated; after
//! EEXIST a name that was thought free is.
//!
//! Not here: creating files (`open.rs`).

use crate::kernel::attributes::{Asked, Stale};
use crate::kernel::executor::Context;
use crate::kernel::requests::{Errno, Kind, Operation, RenameMode, Reply};
use crate::kernel::state::{DentryRef, InodeKey, LockGuard};
use crate::kernel::walk::{Intent, Place};

impl Context {
    /// mkdir(2).
    pub async fn mkdir(&self, path: &[String], mode: u16, revalidate: bool) -> Result<(), Errno> {
        let place = self.walk_to_parent(path, revalidate).await?;
        let _lock = self.lock_place(&place).await;
        let dentry = self.lookup_free(&place, revalidate).await?;
        let operation = Operation::Mkdir { name: place.name.clone(), mode };
        self.add_entry(&place, &dentry, operation, Kind::Directory).await
    }

    /// link(2).
    pub async fn link(&self, from: &[String], to: &[String], revalidate: bool) -> Result<(), Errno> {
        let old = self.walk(from, revalidate).await?;
        let place = self.walk_to_parent(to, revalidate).await?;
        let _lock = self.lock_place(&place).await;
        let dentry = self.lookup_free(&place, revalidate).await?;
        let inode = self.inode_of(&old).ok_or(Errno::ENOENT)?;
        let (node, kind) = self.node_and_kind(inode);
        if kind == Kind::Directory {
            return Err(Errno::EPERM);
        }
        let _inode_lock = self.lock_exclusive(inode).await;
        if self.mount().inode(inode).attributes.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        let operation = Operation::Link { inode: node, new_name: place.name.clone() };
        let result = self.add_entry(&place, &dentry, operation, Kind::Regular).await;
        match result {
            Ok(()) => self.update_ctime_in_cache(inode).await,
            Err(Errno::EINTR) => self.mount().make_stale(inode, Stale::ALL),
            Err(_) => {}
        }
        result
    }

    /// The negative dentry of a name that is to be made (`filename_create`).
    async fn lookup_free(&self, place: &Place, revalidate: bool) -> Result<DentryRef, Errno> {
        let dentry = self.lookup_locked(place, Intent { revalidate, ask: true }).await?;
        if self.inode_of(&dentry).is_some() { Err(Errno::EEXIST) } else { Ok(dentry) }
    }

    /// Asks for a new entry and takes it in (`create_new_entry`).
    async fn add_entry(
        &self,
        place: &Place,
        dentry: &DentryRef,
        operation: Operation,
        kind: Kind,
    ) -> Result<(), Errno> {
        let (node, epoch) = {
            let mount = self.mount();
            (mount.inode(place.inode).node, mount.epoch)
        };
        let entry = match self.ask(node, operation).await {
            Ok(Reply::Entry(entry)) if entry.node != 0 && entry.attributes.kind == kind => entry,
            Ok(_) => return Err(Errno::EIO),
            Err(error) => {
                if error == Errno::EEXIST {
                    let mut mount = self.mount();
                    mount.invalidate_dentry(dentry.id);
                    mount.expire_entry(dentry.id);
                }
                return Err(error);
            }
        };
        let inode = self.inode_of_entry(&entry, Asked::CREATE).await;
        self.mount().dentries.unhash(dentry.id);
        let dentry = self.splice(Some(inode), self.clone_ref(dentry))?;
        let mut mount = self.mount();
        mount.dentries.get_mut(dentry.id).epoch = epoch;
        mount.set_entry_timeout(dentry.id, entry.entry_ms);
        mount.directory_changed(place.inode);
        drop(mount);
        Ok(())
    }

    /// unlink(2) and rmdir(2).
    pub async fn remove(&self, path: &[String], kind: Kind, revalidate: bool) -> Result<(), Errno> {
        let place = self.walk_to_parent(path, revalidate).await?;
        let _lock = self.lock_place(&place).await;
        let dentry = self.lookup_locked(&place, Intent { revalidate, ask: false }).await?;
        let inode = self.inode_of(&dentry).map(|key| self.hold(key)).ok_or(Errno::ENOENT)?;
        let (_, found) = self.node_and_kind(inode.key);
        match (kind, found) {
            (Kind::Regular, Kind::Directory) => return Err(Errno::EISDIR),
            (Kind::Directory, Kind::Regular) => return Err(Errno::ENOTDIR),
            _ => {}
        }
        let inode_lock = self.lock_exclusive(inode.key).await;
        let (node, _) = self.node_and_kind(place.inode);
        let name = place.name.clone();
        let operation = if kind == Kind::Directory { Operation::Rmdir { name } } else { Operation::Unlink { name } };
        let result = self.ask(node, operation).await;
        match result {
            Ok(_) => {
                self.mount().directory_changed(place.inode);
                self.entry_unlinked(&dentry, inode.key).await;
                if kind == Kind::Directory {
                    let mut mount = self.mount();
                    mount.inode_mut(inode.key).dead = true;
                    mount.shrink_below(dentry.id);
                }
                drop(inode_lock);
                self.mount().delete_dentry(dentry.id);
                Ok(())
            }
            Err(error) => {
                if matches!(error, Errno::EINTR | Errno::ENOENT) {
                    self.forget_entry(&dentry);
                }
                Err(error)
            }
        }
    }

    /// `fuse_invalidate_entry`.
    fn forget_entry(&self, dentry: &DentryRef) {
        let mut mount = self.mount();
        mount.invalidate_dentry(dentry.id);
        mount.expire_entry(dentry.id);
    }

    /// `fuse_entry_unlinked`.
    async fn entry_unlinked(&self, dentry: &DentryRef, inode: InodeKey) {
        {
            let mut mount = self.mount();
            mount.advance_version(inode);
            let attributes = &mut mount.inode_mut(inode).attributes;
            let is_directory = attributes.kind == Kind::Directory;
            attributes.nlink = if is_directory { 0 } else { attributes.nlink.saturating_sub(1) };
            mount.expire_entry(dentry.id);
        }
        self.update_ctime(inode).await;
    }

    /// `fuse_update_ctime`.
    async fn update_ctime(&self, inode: InodeKey) {
        self.mount().make_stale(inode, Stale::CTIME);
        self.update_ctime_in_cache(inode).await;
    }

    /// With write-back the kernel's ctime is the one that counts, and is told (`fuse_update_ctime_in_cache`).
    async fn update_ctime_in_cache(&self, key: InodeKey) {
        {
            let mut mount = self.mount();
            if mount.own_attributes(key) == Stale::NONE {
                return;
            }
            let now = mount.now_ms;
            let inode = mount.inode_mut(key);
            inode.attributes.ctime = now;
            inode.times_dirty = true;
        }
        if let Err(error) = self.write_times(key).await {
            self.mount().inode_mut(key).writeback_error = Some(error);
        }
    }

    /// renameat2(2).
    pub async fn rename(
        &self,
        from: &[String],
        to: &[String],
        mode: RenameMode,
        revalidate: bool,
    ) -> Result<(), Errno> {
        let (from, to) = (self.walk_to_parent(from, revalidate).await?, self.walk_to_parent(to, revalidate).await?);
        let _locks = self.lock_both(&from, &to).await;
        let old = self.lookup_locked(&from, Intent { revalidate, ask: false }).await?;
        let source = self.inode_of(&old).map(|key| self.hold(key)).ok_or(Errno::ENOENT)?;
        let ask = mode != RenameMode::Exchange;
        let new = self.lookup_locked(&to, Intent { revalidate, ask }).await?;
        let target = self.inode_of(&new).map(|key| self.hold(key));
        match (mode, &target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        {
            let mount = self.mount();
            if mount.dentries.is_below(to.directory.id, old.id) {
                return Err(Errno::EINVAL);
            }
            if mount.dentries.is_below(from.directory.id, new.id) {
                let exchanges = mode == RenameMode::Exchange;
                return Err(if exchanges { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
        }
        let target_key = target.as_ref().map(|inode| inode.key);
        if target_key == Some(source.key) {
            return Ok(());
        }
        self.check_kinds(source.key, target_key, mode)?;
        let _children = self.lock_children(source.key, target_key, &from, &to, mode).await;
        let (node, _) = self.node_and_kind(from.inode);
        let (new_parent, _) = self.node_and_kind(to.inode);
        let (name, new_name) = (from.name.clone(), to.name.clone());
        match self.ask(node, Operation::Rename { name, new_parent, new_name, mode }).await {
            Ok(_) => {
                self.renamed((&from, &old, source.key), (&to, &new, target_key), mode).await;
                Ok(())
            }
            Err(error) => {
                if matches!(error, Errno::EINTR | Errno::ENOENT) {
                    self.forget_entry(&old);
                    if target.is_some() {
                        self.forget_entry(&new);
                    }
                }
                Err(error)
            }
        }
    }

    /// `lock_rename`: both directories, from above if one is below the other, else the new one first.
    async fn lock_both(&self, from: &Place, to: &Place) -> Vec<LockGuard> {
        if from.inode == to.inode {
            return vec![self.lock_exclusive(from.inode).await];
        }
        let mutex = self.lock_renames().await;
        let from_first = {
            let mount = self.mount();
            mount.dentries.is_below(to.directory.id, from.directory.id)
        };
        let (first, second) = if from_first { (from.inode, to.inode) } else { (to.inode, from.inode) };
        vec![mutex, self.lock_exclusive(first).await, self.lock_exclusive(second).await]
    }

    /// `may_delete` of the target.
    fn check_kinds(&self, source: InodeKey, target: Option<InodeKey>, mode: RenameMode) -> Result<(), Errno> {
        let mount = self.mount();
        let Some(target) = target.filter(|_| mode == RenameMode::Replace) else { return Ok(()) };
        match (mount.inode(source).kind, mount.inode(target).kind) {
            (Kind::Directory, Kind::Regular) => Err(Errno::ENOTDIR),
            (Kind::Regular, Kind::Directory) => Err(Errno::EISDIR),
            _ => Ok(()),
        }
    }

    /// The locks of what is renamed and of what is replaced (`vfs_rename`): files always, a directory that changes its
    /// parent or is replaced.
    async fn lock_children(
        &self,
        source: InodeKey,
        target: Option<InodeKey>,
        from: &Place,
        to: &Place,
        mode: RenameMode,
    ) -> Vec<LockGuard> {
        let moves = from.inode != to.inode;
        let mut keys = Vec::new();
        if moves || self.mount().inode(source).kind == Kind::Regular {
            keys.push(source);
        }
        if let Some(target) = target {
            let is_file = self.mount().inode(target).kind == Kind::Regular;
            if is_file || mode != RenameMode::Exchange || moves {
                keys.push(target);
            }
        }
        keys.sort();
        let mut guards = Vec::new();
        for key in keys {
            guards.push(self.lock_exclusive(key).await);
        }
        guards
    }

    /// What a rename that succeeded does to the dentries (`fuse_rename_common`, `vfs_rename`).
    async fn renamed(
        &self,
        (from, old, source): (&Place, &DentryRef, InodeKey),
        (to, new, target): (&Place, &DentryRef, Option<InodeKey>),
        mode: RenameMode,
    ) {
        self.update_ctime(source).await;
        let exchanges = mode == RenameMode::Exchange;
        if let Some(target) = target.filter(|_| exchanges) {
            self.update_ctime(target).await;
        }
        {
            let mut mount = self.mount();
            mount.directory_changed(from.inode);
            if from.inode != to.inode {
                mount.directory_changed(to.inode);
            }
        }
        if let Some(target) = target.filter(|_| !exchanges) {
            self.entry_unlinked(new, target).await;
            let mut mount = self.mount();
            if mount.inode(target).is_directory() {
                mount.shrink_below(new.id);
                mount.inode_mut(target).dead = true;
            }
        }
        let mut mount = self.mount();
        if exchanges {
            mount.exchange_dentries(old.id, new.id);
        } else {
            mount.move_dentry(old.id, new.id);
        }
    }
}
