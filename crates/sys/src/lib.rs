//! System calls that no safe crate offers, each behind a safe function.
//!
//! This is the place for unsafe code that talks to the kernel. Not here: decisions of any kind.
#![expect(unsafe_code, reason = "the place for it: each block says why it is sound")]

pub mod huge;
pub mod mapped;
pub mod opened;
pub mod own_directory;
pub mod plain_calls;
pub mod ring;
pub mod shared_mapping;
pub mod shown;
pub mod tmpfs;

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};

/// From linux/tcp.h; libc 0.2.191 lacks it.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Bytes in another process: address there and length. Laid out as the kernel takes it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct RemoteBytes(libc::iovec);

impl RemoteBytes {
    /// None.
    pub const NONE: Self = Self(libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });

    /// So many bytes from an address on, which need not be mapped.
    pub fn at(address: u64, bytes: usize) -> Self {
        Self(libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes })
    }
}

/// Copies memory of process `pid` (which may be this one) into ours, in order: the bytes of `from`, one range after the
/// other, fill `into` likewise. Returns how many were copied: fewer than asked for where a range is not mapped there.
/// The kernel allows it between processes of one user that may trace each other (process_vm_readv(2)).
pub fn read_process_memory(pid: i32, from: &[RemoteBytes], into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    // SAFETY: `IoSliceMut` is laid out as `iovec`, and each is memory that is ours to write until the call returns. The
    // kernel writes there alone. `RemoteBytes` are laid out likewise. Addresses of the other process are never followed
    // here: the kernel checks them, also where that process is this one, whose memory it then reads as a debugger does.
    let copied = unsafe {
        libc::process_vm_readv(
            pid,
            into.as_mut_ptr().cast::<libc::iovec>(),
            into.len() as libc::c_ulong,
            from.as_ptr().cast::<libc::iovec>(),
            from.len() as libc::c_ulong,
            0,
        )
    };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// Sets `SO_RCVLOWAT`: `poll` calls a TCP socket readable, and a sleeping reader is woken, when so many bytes are there
/// (or the stream has ended, or no more fit its buffer). 1 is the kernel's default.
pub fn set_receive_low_water(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX))
}

/// Sets `TCP_RTO_MAX_MS`, the upper bound of the retransmission timeout's backoff: 1,000 to 120,000 ms (the default).
/// Linux 6.15 and later; an error before.
pub fn set_tcp_rto_max(socket: BorrowedFd<'_>, ms: i32) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, ms)
}

/// Returns `TCP_RTO_MAX_MS`.
pub fn tcp_rto_max(socket: BorrowedFd<'_>) -> io::Result<i32> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as it is borrowed. The kernel writes at most `length` bytes of `value`,
    // and the number of them to `length`; both are alive until the call returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw mut value).cast::<libc::c_void>(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

fn set_option(socket: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let value_at = (&raw const value).cast::<libc::c_void>();
    // SAFETY: the descriptor is open as long as it is borrowed. The kernel reads `length` bytes at the pointer, which
    // are those of `value`, alive until the call returns, and keeps none of them.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value_at, length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
