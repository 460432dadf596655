//! A file in memory, mapped for the kernel to copy out of it for other processes (process_vm_readv(2)).
//!
//! Nothing here reads the mapping, and nobody can write it: its address is a number to tell others. The kernel's copy
//! of a page that is not there (a file that was cut) ends short, where a load would raise SIGBUS.

use rustix::fs::fstatfs;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

/// `TMPFS_MAGIC` of linux/magic.h: tmpfs, and the files of memfd_create(2).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// See the module.
#[derive(Debug)]
pub struct ShownFile {
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and nothing here follows its address.
unsafe impl Send for ShownFile {}
// SAFETY: as above.
unsafe impl Sync for ShownFile {}

impl ShownFile {
    /// Maps the first `bytes` bytes of a file, to be read only. `OPNOTSUPP`: it does not lie in memory, where reads and
    /// writes of the file use the very pages that are mapped.
    pub fn new(file: BorrowedFd<'_>, bytes: usize) -> Result<Self, Errno> {
        if u64::try_from(fstatfs(file)?.f_type) != Ok(TMPFS_MAGIC) {
            return Err(Errno::OPNOTSUPP);
        }
        // SAFETY: the kernel chooses an unused address, and nothing here dereferences it.
        let address = unsafe { mmap(null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
        Ok(Self { address, bytes })
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address as u64
    }
}

impl Drop for ShownFile {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no reference points into it.
        let _ = unsafe { munmap(self.address, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RemoteBytes, read_process_memory};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::io::IoSliceMut;
    use std::os::fd::AsFd;

    #[test]
    fn the_kernel_copies_what_is_in_the_file_and_ends_short_where_it_was_cut() {
        let file = memfd_create("shown", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(rustix::io::write(&file, &[7; 16384]), Ok(16384));
        let shown = ShownFile::new(file.as_fd(), 16384).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let copy = |into: &mut [u8]| {
            let from = RemoteBytes::at(shown.address(), into.len());
            read_process_memory(own, &[from], &mut [IoSliceMut::new(into)])
        };
        assert_eq!(rustix::io::pwrite(&file, &[8; 10], 5000), Ok(10));
        let mut bytes = [0; 16384];
        assert_eq!(copy(&mut bytes).unwrap(), 16384);
        assert_eq!((bytes[4999], bytes[5000], bytes[5009], bytes[5010]), (7, 8, 8, 7));
        ftruncate(&file, 8192).unwrap();
        assert_eq!(copy(&mut bytes).unwrap(), 8192);
        ftruncate(&file, 0).unwrap();
        assert!(copy(&mut bytes).is_err());
    }

    #[test]
    fn a_file_that_is_not_in_memory_is_not_mapped() {
        let proc = std::fs::File::open("/proc/self/maps").unwrap();
        assert_eq!(ShownFile::new(proc.as_fd(), 4096).err(), Some(Errno::OPNOTSUPP));
    }
}
