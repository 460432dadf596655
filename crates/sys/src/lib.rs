//! System calls that no safe crate offers, each behind a safe function.
//!
//! This is the place for unsafe code that talks to the kernel. Not here: decisions of any kind.
#![expect(unsafe_code, reason = "the place for it: each block says why it is sound")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets `SO_RCVLOWAT`: `poll` calls a TCP socket readable, and a sleeping reader is woken, when so many bytes are there
/// (or the stream has ended, or no more fit its buffer). 1 is the kernel's default.
pub fn set_receive_low_water(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as it is borrowed. The kernel reads `length` bytes at the pointer, which
    // are those of `value`, alive until the call returns, and keeps none of them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const value).cast::<libc::c_void>(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
