//! System calls on a descriptor that a node passed.

use rustix::io::Errno;
use std::os::fd::OwnedFd;
use weft_protocol::{Error, Result, Timestamp};

/// Writes all bytes, at most `call_bytes` with each system call.
pub(crate) fn write(file: &OwnedFd, mut bytes: &[u8], mut offset: u64, call_bytes: usize) -> Result<()> {
    while !bytes.is_empty() {
        let call = bytes.get(..call_bytes).unwrap_or(bytes);
        match rustix::io::pwrite(file, call, offset) {
            Ok(0) => return Err(Error::NoSpace),
            Ok(count) => {
                offset += count as u64;
                bytes = &bytes[count..];
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(of_errno(errno)),
        }
    }
    Ok(())
}

/// Reads up to the file's end.
pub(crate) fn read(file: &OwnedFd, into: &mut [u8], offset: u64) -> Result<usize> {
    let mut have = 0;
    while have < into.len() {
        match rustix::io::pread(file, &mut into[have..], offset + have as u64) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(of_errno(errno)),
        }
    }
    Ok(have)
}

/// Brings data to the device.
pub(crate) fn sync(file: &OwnedFd) -> Result<()> {
    rustix::fs::fdatasync(file).map_err(of_errno)
}

/// Size and modification time.
pub(crate) fn stat(file: &OwnedFd) -> Result<(u64, Timestamp)> {
    let stat = rustix::fs::fstat(file).map_err(of_errno)?;
    let nanoseconds = u32::try_from(stat.st_mtime_nsec).expect("nanoseconds are below 10^9");
    Ok((stat.st_size.cast_unsigned(), Timestamp::from_parts(stat.st_mtime, nanoseconds)))
}

/// Whether the file has lost its name: its object was removed, or has another file.
pub(crate) fn has_no_name(file: &OwnedFd) -> bool {
    // Where that cannot be told, what goes wrong with the device shows in the next write.
    rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 0)
}

/// An error of the device below, as the file system's.
fn of_errno(errno: Errno) -> Error {
    match errno {
        Errno::NOSPC | Errno::DQUOT => Error::NoSpace,
        Errno::FBIG => Error::FileTooLarge,
        other => Error::Device(other.raw_os_error()),
    }
}
