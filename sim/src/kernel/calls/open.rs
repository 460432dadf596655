//! open, creat and opendir; close.
//!
//! - A cached positive name goes straight to OPEN, which carries only the inode (`lookup_fast_for_open`,
//!   `fuse_open`).
//! - O_CREAT takes the directory's lock exclusive and looks a negative name up first, then sends CREATE
//!   (`lookup_open`, `fuse_atomic_open`, `fuse_create_open`).
//! - ESTALE from any of it: all once more, asking for each name (`do_filp_open`).
//! - O_TRUNC is in OPEN with `FUSE_ATOMIC_O_TRUNC`; afterwards size and pages are cut here (`fuse_open`,
//!   `fuse_do_setattr`).
//! - Without FOPEN_KEEP_CACHE an open drops the pages (`fuse_open`, `fuse_dir_open`).
//! - close writes back and flushes; nobody waits for RELEASE (`fuse_flush`, `fuse_release`).

use crate::kernel::attributes::{Asked, Stale};
use crate::kernel::calls::attributes::Wish;
use crate::kernel::directory_stream::Stream;
use crate::kernel::executor::Context;
use crate::kernel::locks::InodeLock;
use crate::kernel::open_file::{FileKey, IoMode, OpenFile};
use crate::kernel::readahead::Readahead;
use crate::kernel::requests::{Errno, Kind, OpenFlags, Opened, Operation, Reply};
use crate::kernel::state::{DentryRef, FileRef, InodeKey};
use crate::kernel::walk::{Intent, Place};
use crate::kernel::write::drops_privileges;

/// A name that was found, or a file that was created and opened on the way.
enum Found {
    Dentry(DentryRef),
    Created(FileRef),
}

impl Context {
    /// open(2), with its second attempt.
    pub async fn open(&self, path: &[String], flags: OpenFlags, mode: u16) -> Result<FileRef, Errno> {
        match self.open_once(path, flags, mode, false).await {
            Err(Errno::ESTALE) => self.open_once(path, flags, mode, true).await,
            result => result,
        }
    }

    /// `path_openat`.
    async fn open_once(
        &self,
        path: &[String],
        flags: OpenFlags,
        mode: u16,
        revalidate: bool,
    ) -> Result<FileRef, Errno> {
        if path.is_empty() {
            let root = self.walk(path, revalidate).await?;
            return self.open_dentry(&root, flags).await;
        }
        let place = self.walk_to_parent(path, revalidate).await?;
        let dentry = match self.find_or_create(&place, flags, mode, revalidate).await? {
            Found::Created(file) => return Ok(file),
            Found::Dentry(dentry) => dentry,
        };
        if self.inode_of(&dentry).is_none() {
            return Err(Errno::ENOENT);
        }
        if flags.create && flags.exclusive {
            return Err(Errno::EEXIST);
        }
        self.open_dentry(&dentry, flags).await
    }

    /// `open_last_lookups`, `lookup_open`.
    async fn find_or_create(
        &self,
        place: &Place,
        flags: OpenFlags,
        mode: u16,
        revalidate: bool,
    ) -> Result<Found, Errno> {
        let exclusive = flags.create && flags.exclusive;
        let intent = Intent { revalidate, ask: false };
        if !exclusive {
            let cached = self.lookup_cached(&place.directory, place.inode, &place.name, intent).await?;
            if let Some(dentry) = cached.filter(|dentry| !flags.create || self.inode_of(dentry).is_some()) {
                return Ok(Found::Dentry(dentry));
            }
        }
        let _lock =
            if flags.create { self.lock_exclusive(place.inode).await } else { self.lock_shared(place.inode).await };
        let intent = Intent { revalidate, ask: exclusive };
        let dentry = self.lookup_parallel(&place.directory, place.inode, &place.name, intent).await?;
        if !flags.create || self.inode_of(&dentry).is_some() {
            return Ok(Found::Dentry(dentry));
        }
        self.create(place, dentry, flags, mode).await.map(Found::Created)
    }

    /// `fuse_create_open`, under the directory's lock.
    async fn create(&self, place: &Place, dentry: DentryRef, flags: OpenFlags, mode: u16) -> Result<FileRef, Errno> {
        let (node, epoch) = {
            let mount = self.mount();
            (mount.inode(place.inode).node, mount.epoch)
        };
        let name = place.name.clone();
        // What is made exclusively has nothing to cut (`lookup_open`).
        let flags = OpenFlags { truncate: flags.truncate && !flags.exclusive, ..flags };
        let answer = self.ask(node, Operation::Create { name, mode, flags }).await;
        let (entry, opened) = match answer {
            Ok(Reply::Created(entry, opened)) if entry.node != 0 && entry.attributes.kind == Kind::Regular => {
                (entry, opened)
            }
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
        {
            let mut mount = self.mount();
            mount.count_inode(inode.key);
            mount.give_inode(dentry.id, inode.key);
            mount.dentries.get_mut(dentry.id).epoch = epoch;
            mount.set_entry_timeout(dentry.id, entry.entry_ms);
            mount.directory_changed(place.inode);
        }
        let file = self.new_file(inode.key, &dentry, flags, opened, false);
        self.finish_open(&file).await?;
        if self.mount().config.atomic_o_trunc && flags.truncate {
            self.truncate_pages(inode.key, 0).await;
        } else if !opened.keep_cache {
            let _ = self.invalidate_pages(inode.key, 0, u64::MAX).await;
        }
        Ok(file)
    }

    fn new_file(
        &self,
        inode: InodeKey,
        dentry: &DentryRef,
        flags: OpenFlags,
        opened: Opened,
        is_directory: bool,
    ) -> FileRef {
        let mut mount = self.mount();
        let key = mount.new_file_key();
        mount.count_inode(inode);
        mount.dentries.get_mut(dentry.id).refs += 1;
        let file = OpenFile {
            inode,
            dentry: dentry.id,
            flags,
            opened,
            io_mode: IoMode::None,
            is_directory,
            position: 0,
            position_lock: InodeLock::default(),
            readahead: Readahead::default(),
            stream: Stream::default(),
            users: 0,
            handle_users: 1,
        };
        mount.files.insert(key, file);
        mount.hold_file(key)
    }

    /// `fuse_finish_open`. A file whose mode does not fit is released again.
    async fn finish_open(&self, file: &FileRef) -> Result<(), Errno> {
        self.enter_io_mode(file.key).await?;
        let mut mount = self.mount();
        let (inode, writes) = (mount.file(file.key).inode, mount.file(file.key).flags.access.writes());
        if writes && mount.config.writeback_cache {
            mount.link_write_file(inode, file.key);
        }
        Ok(())
    }

    /// `do_open`, `fuse_open`, `fuse_dir_open`.
    async fn open_dentry(&self, dentry: &DentryRef, flags: OpenFlags) -> Result<FileRef, Errno> {
        let key = self.inode_of(dentry).ok_or(Errno::ENOENT)?;
        let (node, kind, bad, atomic, writeback) = {
            let mount = self.mount();
            let inode = mount.inode(key);
            (inode.node, inode.kind, inode.bad, mount.config.atomic_o_trunc, mount.config.writeback_cache)
        };
        let is_directory = kind == Kind::Directory;
        if is_directory && (flags.create || flags.access.writes() || flags.truncate) {
            return Err(Errno::EISDIR);
        }
        if bad {
            return Err(Errno::EIO);
        }
        let truncates = flags.truncate && atomic;
        let lock = if truncates && writeback { Some(self.lock_exclusive(key).await) } else { None };
        if lock.is_some() {
            self.hold_writes(key).await;
        }
        let sent = OpenFlags { create: false, exclusive: false, truncate: truncates, ..flags };
        let operation = if is_directory { Operation::Opendir } else { Operation::Open { flags: sent } };
        let result = match self.ask(node, operation).await {
            Ok(Reply::Opened(opened)) => Ok(self.new_file(key, dentry, flags, opened, is_directory)),
            Ok(_) => Err(Errno::EIO),
            Err(error) => Err(error),
        };
        let result = match result {
            Ok(file) if is_directory => Ok(file),
            Ok(file) => self.finish_open(&file).await.map(|()| file),
            Err(error) => Err(error),
        };
        if result.is_ok() && truncates {
            let mut mount = self.mount();
            mount.advance_version(key);
            mount.set_size(key, 0);
            mount.make_stale(key, Stale::MODIFY_SIZE);
        }
        if lock.is_some() {
            self.release_writes(key);
        }
        let file = result?;
        let keeps = self.mount().file(file.key).opened.keep_cache;
        if truncates {
            self.truncate_pages(key, 0).await;
        } else if !keeps {
            let _ = self.invalidate_pages(key, 0, u64::MAX).await;
        }
        drop(lock);
        if flags.truncate {
            self.truncate_opened(&file, key, atomic).await?;
        }
        Ok(file)
    }

    /// `handle_truncate`.
    async fn truncate_opened(&self, file: &FileRef, key: InodeKey, atomic: bool) -> Result<(), Errno> {
        let _lock = self.lock_exclusive(key).await;
        let kills = {
            let mount = self.mount();
            mount.config.kills_privileges && drops_privileges(mount.inode(key).attributes.mode)
        };
        if !atomic {
            let wish = Wish { size: Some(0), kills, tells_mtime: true, ..Wish::default() };
            return self.set_attributes(key, wish).await;
        }
        if kills && !self.mount().config.handle_killpriv_v2 {
            let fh = self.mount().file(file.key).opened.fh;
            self.getattr(key, Some(fh)).await?;
        }
        self.mount().set_size(key, 0);
        self.truncate_pages(key, 0).await;
        Ok(())
    }

    /// `fuse_flush`.
    pub async fn flush(&self, file: FileKey) -> Result<(), Errno> {
        let (key, node, opened, is_directory, bad, writeback) = {
            let mount = self.mount();
            let open = mount.file(file);
            let inode = mount.inode(open.inode);
            (open.inode, inode.node, open.opened, open.is_directory, inode.bad, mount.config.writeback_cache)
        };
        if is_directory {
            return Ok(());
        }
        if bad {
            return Err(Errno::EIO);
        }
        if opened.no_flush && !writeback {
            return Ok(());
        }
        self.write_inode(key).await?;
        self.ask(node, Operation::Flush { fh: opened.fh }).await?;
        if writeback {
            self.mount().make_stale(key, Stale::BLOCKS);
        }
        Ok(())
    }
}
