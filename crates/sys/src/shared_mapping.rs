//! A file mapped with MAP_SHARED, whose bytes are copied by the kernel.
//!
//! [`SharedMapping::load`] and [`SharedMapping::store`] pass the mapped address to `write` and `read` of a pipe. The
//! page faults are those of an ordinary access, but a page that cannot be had (beyond the end of the file, or because
//! its mount died) is EFAULT instead of a SIGBUS. Slower than [`crate::mapped`], and for tests of file systems only.

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use rustix::pipe::pipe;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;

/// Bytes copied at a time: a pipe takes as many without blocking.
const CHUNK_BYTES: usize = 4096;

/// A shared mapping of a file's beginning.
#[derive(Debug)]
pub struct SharedMapping {
    address: *mut c_void,
    bytes: usize,
    read_end: OwnedFd,
    write_end: OwnedFd,
}

impl SharedMapping {
    /// Maps the first `bytes` bytes of `file`, for stores too if `may_store`.
    pub fn new(file: BorrowedFd<'_>, bytes: usize, may_store: bool) -> Result<Self, Errno> {
        let protection = if may_store { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let (read_end, write_end) = pipe()?;
        // SAFETY: the kernel chooses an unused address, and nothing here dereferences it.
        let address = unsafe { mmap(null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
        Ok(Self { address, bytes, read_end, write_end })
    }

    /// Copies bytes out of the mapping. EFAULT: a page could not be had. EINVAL: the range is not mapped.
    pub fn load(&self, offset: usize, into: &mut [u8]) -> Result<(), Errno> {
        self.check(offset, into.len())?;
        for (index, chunk) in into.chunks_mut(CHUNK_BYTES).enumerate() {
            let from = self.address.wrapping_byte_add(offset + index * CHUNK_BYTES);
            // SAFETY: `check` keeps the range inside the mapping, which lives as long as `self`. The kernel reads it,
            // and answers EFAULT where a page cannot be had.
            let copied = unsafe { libc::write(self.write_end.as_raw_fd(), from, chunk.len()) };
            let copied = usize::try_from(copied).map_err(|_| last_error())?;
            let (read, _) = chunk.split_at_mut(copied);
            rustix::io::read(&self.read_end, &mut *read)?;
            if copied < chunk.len() {
                return Err(Errno::FAULT);
            }
        }
        Ok(())
    }

    /// Copies bytes into the mapping. EFAULT: a page could not be had, or must not be written.
    pub fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), Errno> {
        self.check(offset, bytes.len())?;
        for (index, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
            rustix::io::write(&self.write_end, chunk)?;
            let to = self.address.wrapping_byte_add(offset + index * CHUNK_BYTES);
            // SAFETY: as in `load`; no Rust reference points into the mapping.
            let copied = unsafe { libc::read(self.read_end.as_raw_fd(), to, chunk.len()) };
            let copied = usize::try_from(copied).map_err(|_| last_error());
            let left = chunk.len() - copied.unwrap_or(0);
            if left > 0 {
                rustix::io::read(&self.read_end, &mut vec![0; left])?;
                return Err(copied.err().unwrap_or(Errno::FAULT));
            }
        }
        Ok(())
    }

    /// Writes stored bytes back: `msync` with MS_SYNC.
    pub fn sync(&self) -> Result<(), Errno> {
        // SAFETY: the range is this mapping.
        unsafe { msync(self.address, self.bytes, MsyncFlags::SYNC) }
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        let end = offset.checked_add(bytes).ok_or(Errno::INVAL)?;
        if end <= self.bytes { Ok(()) } else { Err(Errno::INVAL) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no reference points into it.
        let _ = unsafe { munmap(self.address, self.bytes) };
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    #[test]
    fn bytes_are_stored_and_loaded_and_a_page_beyond_the_end_is_an_error() {
        let file = memfd_create("mapping", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&file, 6000).expect("extended");
        let mapping = SharedMapping::new(file.as_fd(), 16384, true).expect("mapped");
        mapping.store(4000, &[7; 500]).expect("stored");
        mapping.sync().expect("synced");
        let mut bytes = [1; 600];
        mapping.load(3950, &mut bytes).expect("loaded");
        assert_eq!((bytes[0], bytes[50], bytes[549], bytes[550]), (0, 7, 7, 0));
        let mut read = [0; 500];
        rustix::io::pread(&file, &mut read, 4000).expect("read");
        assert_eq!(read, [7; 500]);
        assert_eq!(mapping.load(8100, &mut [0; 200]), Err(Errno::FAULT));
        assert_eq!(mapping.store(8192, &[1; 5000]), Err(Errno::FAULT));
        mapping.load(4000, &mut bytes).expect("the pipe is empty after an error");
        assert_eq!(bytes[..500], [7; 500]);
        assert_eq!(mapping.load(16000, &mut [0; 500]), Err(Errno::INVAL));
    }
}
