//! Open files: the handle at the server, and the I/O mode of their inode.
//!
//! - The first cached open keeps out passthrough, and the other way round; the wrong one fails with EIO
//!   (`fuse_file_io_open`).
//! - Direct opens are neutral until they are mapped (`fuse_file_cached_io_open` in `fuse_file_mmap`).
//! - Parallel direct writes and cached opens exclude each other; the cached open waits
//!   (`fuse_inode_uncached_io_start`, `fuse_is_io_cache_wait`).
//! - RELEASE goes out when the last descriptor, mapping and request in flight is gone, and nobody waits for it
//!   (`fuse_file_put`).
//!
//! Not here: OPEN (`calls/open.rs`), reading and writing.

use super::dentries::DentryId;
use super::directory_stream::Stream;
use super::executor::Context;
use super::locks::InodeLock;
use super::readahead::Readahead;
use super::requests::{Errno, OpenFlags, Opened, Operation};
use super::state::{InodeKey, Mount};

/// Names an open file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileKey(pub u64);

/// How an open file takes part in the I/O mode of its inode (`fuse_file.iomode`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoMode {
    None,
    Cached,
    Uncached,
}

/// `struct file` and `struct fuse_file`.
pub struct OpenFile {
    pub inode: InodeKey,
    pub dentry: DentryId,
    pub flags: OpenFlags,
    pub opened: Opened,
    pub io_mode: IoMode,
    pub is_directory: bool,
    /// Position of read, write and getdents, and the lock under which they use it (`f_pos_lock`).
    pub position: u64,
    pub position_lock: InodeLock,
    pub readahead: Readahead,
    pub stream: Stream,
    /// Descriptors and mappings; then requests in flight, of which the former count for one together.
    pub users: u32,
    pub handle_users: u32,
}

impl Mount {
    pub fn file(&self, key: FileKey) -> &OpenFile {
        self.files.get(&key).expect("a referenced file is open")
    }

    pub fn file_mut(&mut self, key: FileKey) -> &mut OpenFile {
        self.files.get_mut(&key).expect("a referenced file is open")
    }

    /// Gives up a descriptor or mapping (`fuse_release` with the last one).
    pub fn put_file(&mut self, key: FileKey) {
        let file = self.file_mut(key);
        file.users -= 1;
        if file.users > 0 {
            return;
        }
        let (inode, dentry) = (file.inode, file.dentry);
        self.inode_mut(inode).write_files.retain(|writer| *writer != key);
        self.put_handle(key);
        self.put_dentry(dentry);
    }

    /// Gives up the handle; the last user releases it.
    pub fn put_handle(&mut self, key: FileKey) {
        let file = self.file_mut(key);
        file.handle_users -= 1;
        if file.handle_users > 0 {
            return;
        }
        let file = self.files.remove(&key).expect("a file is released once");
        self.leave_io_mode(file.inode, file.io_mode);
        let fh = file.opened.fh;
        let operation = if file.is_directory { Operation::Releasedir { fh } } else { Operation::Release { fh } };
        self.send_release(file.inode, operation);
        self.put_inode(file.inode);
    }

    /// `fuse_file_io_release`.
    fn leave_io_mode(&mut self, key: InodeKey, mode: IoMode) {
        match mode {
            IoMode::None => {}
            IoMode::Cached => {
                let inode = self.inode_mut(key);
                inode.io_mode -= 1;
                if inode.io_mode == 0 {
                    inode.cache_io_mode = false;
                }
            }
            IoMode::Uncached => self.end_uncached(key),
        }
        self.progress = true;
    }

    /// `fuse_inode_uncached_io_start`.
    pub fn begin_uncached(&mut self, key: InodeKey, backing: Option<u32>) -> Result<(), Errno> {
        let inode = self.inode_mut(key);
        if backing.is_some() && inode.backing.is_some() && inode.backing != backing {
            return Err(Errno::EBUSY);
        }
        if inode.io_mode > 0 {
            return Err(Errno(26));
        }
        inode.io_mode -= 1;
        inode.backing = inode.backing.or(backing);
        Ok(())
    }

    /// `fuse_inode_uncached_io_end`.
    pub fn end_uncached(&mut self, key: InodeKey) {
        let inode = self.inode_mut(key);
        inode.io_mode += 1;
        if inode.io_mode == 0 {
            inode.backing = None;
        }
        self.progress = true;
    }

    /// Notes a file through which dirty pages may be written (`fuse_link_write_file`).
    pub fn link_write_file(&mut self, key: InodeKey, file: FileKey) {
        let writers = &mut self.inode_mut(key).write_files;
        if !writers.contains(&file) {
            writers.insert(0, file);
        }
    }
}

impl Context {
    /// Enters the I/O mode that the server's flags ask for (`fuse_file_io_open`). Any conflict is EIO.
    pub async fn enter_io_mode(&self, key: FileKey) -> Result<(), Errno> {
        let (inode, passthrough) = {
            let mut mount = self.mount();
            let can_pass = mount.config.passthrough;
            let file = mount.file_mut(key);
            let opened = &mut file.opened;
            if !opened.direct_io {
                opened.parallel_direct_writes = false;
            }
            let (opened, inode) = (*opened, file.inode);
            if mount.inode(inode).backing.is_some() && opened.passthrough.is_none() {
                return Err(Errno::EIO);
            }
            if opened.direct_io && opened.passthrough.is_none() {
                return Ok(());
            }
            if opened.passthrough.is_some() && (!can_pass || opened.keep_cache || opened.cache_dir) {
                return Err(Errno::EIO);
            }
            (inode, opened.passthrough)
        };
        match passthrough {
            None => self.enter_cached(key).await.map_err(|_| Errno::EIO),
            Some(_) => {
                let mut mount = self.mount();
                mount.begin_uncached(inode, passthrough).map_err(|_| Errno::EIO)?;
                mount.file_mut(key).io_mode = IoMode::Uncached;
                Ok(())
            }
        }
    }

    /// `fuse_file_cached_io_open`: waits for parallel direct writes.
    pub async fn enter_cached(&self, key: FileKey) -> Result<(), Errno> {
        let inode = self.mount().file(key).inode;
        self.wait(|mount| {
            let inode = mount.inode_mut(inode);
            let wait = inode.io_mode < 0 && inode.backing.is_none();
            inode.cache_io_mode |= wait;
            (!wait).then_some(())
        })
        .await;
        let mut mount = self.mount();
        if mount.inode(inode).backing.is_some() {
            mount.inode_mut(inode).cache_io_mode = false;
            return Err(Errno(26));
        }
        if mount.file(key).io_mode == IoMode::None {
            mount.file_mut(key).io_mode = IoMode::Cached;
            let inode = mount.inode_mut(inode);
            inode.cache_io_mode = true;
            inode.io_mode += 1;
        }
        Ok(())
    }
}
