//! Notifications to the kernel, as bytes on `/dev/fuse` (include/uapi/linux/fuse.h).
//!
//! Written here rather than with the kernel crate's notifier: that has no FUSE_NOTIFY_INC_EPOCH, and takes an inode
//! that the kernel does not know for one that was invalidated.
//!
//! Not here: which notification when (`weft-mount-core`).

use rustix::io::{Errno, write};
use std::os::fd::{AsFd, OwnedFd};
use weft_client::before_wait::{Waiting, before_wait};
use weft_mount_core::{Kernel, Notified, Refused};
use weft_protocol::{InodeNumber, Name};
use weft_sys::plain_calls::write_with_fault;

const FUSE_NOTIFY_INVAL_INODE: i32 = 2;
const FUSE_NOTIFY_INVAL_ENTRY: i32 = 3;
const FUSE_NOTIFY_STORE: i32 = 4;
/// Since Linux 6.16; answered EINVAL before.
const FUSE_NOTIFY_INC_EPOCH: i32 = 8;
/// `struct fuse_out_header`.
const HEADER_BYTES: usize = 16;

/// The kernel's connection of a mount.
pub struct Device(OwnedFd);

impl Device {
    /// Of a descriptor of `/dev/fuse` that is, or will be, the mount's.
    pub const fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    fn send(&self, code: i32, payload: &[u8]) -> Notified {
        // For the lock of a directory, or for pages of which reads are under way.
        before_wait(Waiting::Sleeps);
        write(&self.0, &message(code, payload)).map_err(|error| Refused(error.raw_os_error()))?;
        Ok(())
    }
}

/// Increments the epoch of a connection: the kernel uses none of the names that it was told of before. Refused by
/// kernels that have no epoch.
pub fn increment_epoch(connection: impl AsFd) -> rustix::io::Result<()> {
    write(connection, &message(FUSE_NOTIFY_INC_EPOCH, &[])).map(|_| ())
}

/// A `fuse_out_header` with the notification's code in place of an error and no request's number, and what follows it.
fn message(code: i32, payload: &[u8]) -> Vec<u8> {
    // A payload is a name at most.
    let length = (HEADER_BYTES + payload.len()) as u32;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(code.to_ne_bytes());
    bytes.extend(0_u64.to_ne_bytes());
    bytes.extend(payload);
    bytes
}

/// `struct fuse_notify_inval_entry_out`, and the name with a zero behind it.
fn entry_payload(parent: InodeNumber, name: &Name) -> Vec<u8> {
    let name = name.as_bytes();
    let mut payload = Vec::with_capacity(HEADER_BYTES + name.len() + 1);
    payload.extend(parent.raw().to_ne_bytes());
    payload.extend((name.len() as u32).to_ne_bytes());
    // No flags: FUSE_EXPIRE_ONLY would let a revalidation in flight revive the dentry.
    payload.extend(0_u32.to_ne_bytes());
    payload.extend(name);
    payload.push(0);
    payload
}

/// `struct fuse_notify_inval_inode_out`.
fn inode_payload(inode: InodeNumber, offset: i64, bytes: i64) -> [u8; 24] {
    let mut payload = [0; 24];
    payload[..8].copy_from_slice(&inode.raw().to_ne_bytes());
    payload[8..16].copy_from_slice(&offset.to_ne_bytes());
    payload[16..].copy_from_slice(&bytes.to_ne_bytes());
    payload
}

/// A FUSE_NOTIFY_STORE (`struct fuse_notify_store_out`) of the last byte of a file, without the byte.
fn last_byte_message(inode: InodeNumber, size: u64) -> Vec<u8> {
    let mut payload = [0; 24];
    payload[..8].copy_from_slice(&inode.raw().to_ne_bytes());
    payload[8..16].copy_from_slice(&size.saturating_sub(1).to_ne_bytes());
    payload[16..20].copy_from_slice(&1_u32.to_ne_bytes());
    let mut bytes = message(FUSE_NOTIFY_STORE, &payload);
    let length = bytes.len() as u32 + 1;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes
}

impl Kernel for Device {
    async fn entry(&self, parent: InodeNumber, name: &Name) -> Notified {
        match self.send(FUSE_NOTIFY_INVAL_ENTRY, &entry_payload(parent, name)) {
            // It has no such dentry.
            Err(Refused::NOT_FOUND) => Ok(()),
            result => result,
        }
    }

    async fn attributes(&self, inode: InodeNumber) -> Notified {
        self.send(FUSE_NOTIFY_INVAL_INODE, &inode_payload(inode, -1, 0))
    }

    async fn contents(&self, inode: InodeNumber, offset: u64, bytes: u64) -> Notified {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.send(FUSE_NOTIFY_INVAL_INODE, &inode_payload(inode, signed(offset), signed(bytes)))
    }

    async fn grow(&self, inode: InodeNumber, size: u64) -> Notified {
        before_wait(Waiting::Sleeps);
        // The kernel sets the size before it reads the byte, which is not there: the page stays as it is.
        match write_with_fault(&self.0, &last_byte_message(inode, size)) {
            Ok(()) | Err(Errno::FAULT) => Ok(()),
            Err(error) => Err(Refused(error.raw_os_error())),
        }
    }

    async fn increment_epoch(&self) -> Notified {
        self.send(FUSE_NOTIFY_INC_EPOCH, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_as_the_kernel_reads_them() {
        let bytes = message(FUSE_NOTIFY_INC_EPOCH, &[]);
        assert_eq!(bytes, [16_u32.to_ne_bytes(), 8_u32.to_ne_bytes(), [0; 4], [0; 4]].concat());
        let name = Name::new(b"ab").unwrap();
        let payload = entry_payload(InodeNumber::from_raw(5), &name);
        assert_eq!(payload, [&5_u64.to_ne_bytes()[..], &2_u64.to_le_bytes()[..], b"ab\0"].concat());
        let payload = inode_payload(InodeNumber::from_raw(5), -1, 0);
        assert_eq!(payload[..], [5_u64.to_ne_bytes(), (-1_i64).to_ne_bytes(), [0; 8]].concat());
        let bytes = last_byte_message(InodeNumber::from_raw(5), 10);
        let header = [41_u32.to_ne_bytes(), 4_u32.to_ne_bytes(), [0; 4], [0; 4]].concat();
        let size = 1_u32.to_ne_bytes();
        let fields = [&header[..], &5_u64.to_ne_bytes()[..], &9_u64.to_ne_bytes()[..], &size[..], &[0; 4][..]];
        assert_eq!(bytes, fields.concat());
    }
}
