//! System calls that rustix lacks, or offers only as unsafe.

use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};

/// Closes a descriptor and returns its error, which dropping it hides.
pub fn close(descriptor: OwnedFd) -> Result<(), Errno> {
    // SAFETY: the descriptor is ours, and nobody else uses its number before this closes it.
    let result = unsafe { libc::close(descriptor.into_raw_fd()) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Sets a file's size by its path, without opening it.
pub fn truncate(path: &str, size: u64) -> Result<(), Errno> {
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    let size = libc::off64_t::try_from(size).map_err(|_| Errno::FBIG)?;
    // SAFETY: the path ends with a zero byte and lives until the call returns.
    let result = unsafe { libc::truncate64(path.as_ptr(), size) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Writes `bytes` and one byte more that nobody can read: what the kernel does before it comes to that byte is done,
/// and then it says EFAULT.
pub fn write_with_fault(descriptor: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    let parts = [
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() },
        libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 },
    ];
    // SAFETY: the first part is alive until the call returns, and the kernel only reads it. The second is in no memory:
    // the kernel looks it up before it follows it.
    let written = unsafe { libc::writev(descriptor.as_fd().as_raw_fd(), parts.as_ptr(), 2) };
    if written < 0 { Err(last_error()) } else { Ok(()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
