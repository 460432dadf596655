//! Memory of the other side that is mapped here too: both processes are on one machine, and UCX made it shareable.

use rustix::io::Errno;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes of such memory, for as long as its key is held. Only the kernel touches them, between file and memory: bytes
/// that the other side has taken away meanwhile are an error ([`Errno::FAULT`]) and no signal.
#[derive(Debug)]
pub struct Place<'a> {
    address: *mut u8,
    bytes: usize,
    key: PhantomData<&'a ()>,
}

impl Place<'_> {
    /// # Safety
    ///
    /// The range is the other side's memory, mapped by UCX until its key goes, and none of ours that a reference exists
    /// to.
    pub(crate) unsafe fn new(address: *mut u8, bytes: usize) -> Self {
        Self { address, bytes, key: PhantomData }
    }

    /// Fills it from a file. Returns how many bytes the file had.
    pub fn fill_from(&mut self, file: BorrowedFd<'_>, offset: u64) -> Result<usize, Errno> {
        self.all(offset, |address, bytes, offset| {
            // SAFETY: the kernel writes into a range that is the other side's (see `new`), or says that it cannot.
            unsafe { libc::pread(file.as_raw_fd(), address.cast(), bytes, offset) }
        })
    }

    /// Writes it to a file, so many bytes with a call. Returns how many were written.
    pub fn write_to(&self, file: BorrowedFd<'_>, offset: u64, call_bytes: usize) -> Result<usize, Errno> {
        self.all(offset, |address, bytes, offset| {
            // SAFETY: the kernel reads a range that is the other side's (see `new`), or says that it cannot.
            unsafe { libc::pwrite(file.as_raw_fd(), address.cast(), bytes.min(call_bytes), offset) }
        })
    }

    /// Makes calls until all bytes are done, or one does none.
    fn all(&self, offset: u64, call: impl Fn(*mut u8, usize, libc::off_t) -> isize) -> Result<usize, Errno> {
        let mut done = 0;
        while done < self.bytes {
            let at = libc::off_t::try_from(offset + done as u64).map_err(|_| Errno::OVERFLOW)?;
            // The address stays in the range: `done` is less than its bytes.
            let result = call(self.address.wrapping_add(done), self.bytes - done, at);
            match usize::try_from(result) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(_) => match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
                    Errno::INTR => {}
                    errno => return Err(errno),
                },
            }
        }
        Ok(done)
    }
}
