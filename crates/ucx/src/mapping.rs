//! Pages of a file as memory that transfers use.

use crate::{Error, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

/// The first bytes of a file, mapped to be read and written. Only transfers touch them: others may write the file
/// meanwhile. Nobody may cut it: a transfer that meets the end of a file that has become shorter ends the process.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub address: *mut u8,
    pub bytes: usize,
}

impl Mapping {
    pub fn new(file: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        let failed = |errno: rustix::io::Errno| Error::Failed { call: "mmap", reason: errno.to_string() };
        // SAFETY: the kernel chooses the place: nothing else is there.
        let mapped = unsafe { mmap(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0) };
        Ok(Self { address: mapped.map_err(failed)?.cast(), bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; who uses it holds this.
        let _ = unsafe { munmap(self.address.cast(), self.bytes) };
    }
}
