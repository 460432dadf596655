//! read, write and their relatives: which way the bytes of an open file go (`fuse_file_read_iter`,
//! `fuse_file_write_iter`). FOPEN_DIRECT_IO comes before FOPEN_PASSTHROUGH, and both before pages.

use crate::kernel::executor::Context;
use crate::kernel::open_file::FileKey;
use crate::kernel::requests::Errno;

impl Context {
    /// Reads as programs do, whose runtimes call again after EINTR: a mount says so where it cannot tell in time that
    /// the file has been cut.
    pub async fn read_again(&self, file: FileKey, offset: Option<u64>, size: u64) -> Result<Vec<u8>, Errno> {
        loop {
            match self.read(file, offset, size).await {
                Err(Errno::EINTR) => {}
                read => return read,
            }
        }
    }

    /// Reads at the file's position, or at `offset`.
    pub async fn read(&self, file: FileKey, offset: Option<u64>, size: u64) -> Result<Vec<u8>, Errno> {
        let (opened, flags, position, bad, is_directory) = {
            let mount = self.mount();
            let open = mount.file(file);
            (open.opened, open.flags, open.position, mount.inode(open.inode).bad, open.is_directory)
        };
        if is_directory {
            return Err(Errno::EISDIR);
        }
        if !flags.access.reads() {
            return Err(Errno::EBADF);
        }
        if bad {
            return Err(Errno::EIO);
        }
        let at = offset.unwrap_or(position);
        let data = if opened.direct_io {
            self.read_direct(file, at, size).await?
        } else if opened.passthrough.is_some() {
            self.read_backing(file, at, size).await?
        } else if flags.direct {
            self.read_around_pages(file, at, size).await?
        } else {
            self.read_cached(file, at, size).await?
        };
        if offset.is_none() {
            self.mount().file_mut(file).position = at + data.len() as u64;
        }
        Ok(data)
    }

    /// Writes at the file's position, or at `offset`; O_APPEND takes the end in either case.
    pub async fn write(&self, file: FileKey, offset: Option<u64>, data: &[u8]) -> Result<u64, Errno> {
        let (opened, flags, position, bad) = {
            let mount = self.mount();
            let open = mount.file(file);
            (open.opened, open.flags, open.position, mount.inode(open.inode).bad)
        };
        if !flags.access.writes() {
            return Err(Errno::EBADF);
        }
        if bad {
            return Err(Errno::EIO);
        }
        let at = (!flags.append).then(|| offset.unwrap_or(position));
        let (at, written) = if opened.direct_io {
            self.write_direct(file, at, data).await?
        } else if opened.passthrough.is_some() {
            self.write_backing(file, at, data).await?
        } else {
            self.write_cached(file, at, data).await?
        };
        if offset.is_none() {
            self.mount().file_mut(file).position = at + written;
        }
        Ok(written)
    }
}
