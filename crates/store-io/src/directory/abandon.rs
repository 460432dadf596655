//! An object's file is abandoned: a descriptor of it that was passed cannot be revoked, so the object moves to a copy.
//!
//! The copy shares its blocks with the original where the file system can do that (btrfs, XFS); else it costs reading
//! and writing the whole object, in the kernel. It is made under another name, and takes the object's name when it is
//! complete: on a crash the object has either file.

use super::{DirectoryStore, FileObject, size_of};
use crate::store::{device_error, lock};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, copy_file_range, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_protocol::{Error, InodeNumber, ObjectId, Result};
use weft_sys::opened::is_open_elsewhere;

/// Bytes that one call copies at most.
const COPY_BYTES: usize = 1 << 30;

impl DirectoryStore {
    /// See [`crate::ObjectStore::abandon`].
    pub(super) fn move_object(&self, inode: InodeNumber, object: ObjectId) -> Result<bool> {
        let present = match self.file_object(inode, object, false) {
            Err(Error::NoObject) => return Ok(false),
            present => present?,
        };
        // Nobody cuts it meanwhile.
        let _end = lock(&present.end);
        if present.check().is_err() || !is_open_elsewhere(present.file.as_fd()) {
            return Ok(false);
        }
        let name = Self::file_name(inode, object);
        let new_name = format!("{name}.new");
        let moved = self.copy(&present, &new_name).and_then(|copied| {
            let mut open = lock(&self.open);
            if present.removed.load(Ordering::Acquire) {
                return Err(Errno::NOENT);
            }
            present.replaced.store(true, Ordering::Release);
            renameat(&self.root, &new_name, &self.root, &name)?;
            open.retain(|_, other| !Arc::ptr_eq(other, &present));
            self.keep_charged((inode, object), present.charge.leave(copied));
            Ok(())
        });
        present.close_windows();
        if let Err(errno) = moved {
            present.replaced.store(false, Ordering::Release);
            // What is there of it is of no use; where even that fails, the space is lost until the store goes.
            let _ = unlinkat(&self.root, &new_name, AtFlags::empty());
            return if errno == Errno::NOENT { Ok(false) } else { Err(device_error(errno)) };
        }
        Ok(true)
    }

    /// Returns the bytes of the copy.
    fn copy(&self, present: &FileObject, new_name: &str) -> rustix::io::Result<u64> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let new = openat(&self.root, new_name, flags, Mode::RUSR | Mode::WUSR)?;
        let before = rustix::fs::fstat(&present.file)?;
        if rustix::fs::ioctl_ficlone(&new, &present.file).is_err() {
            copy_all(present.file.as_fd(), &new)?;
        }
        let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
        let last_modification = time(before.st_mtime, before.st_mtime_nsec);
        rustix::fs::futimens(&new, &Timestamps { last_access: last_modification, last_modification })?;
        Ok(rustix::fs::fstat(&new)?.st_size.cast_unsigned())
    }
}

/// Copies a file's bytes, holes included: they stay holes.
fn copy_all(from: BorrowedFd<'_>, to: &OwnedFd) -> rustix::io::Result<()> {
    let size = size_of(from).map_err(|_| Errno::IO)?.size;
    rustix::fs::ftruncate(to, size)?;
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(from, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data,
            // A hole up to the end.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        let end = rustix::fs::seek(from, rustix::fs::SeekFrom::Hole(data))?;
        let (mut read_at, mut write_at) = (data, data);
        while read_at < end {
            let bytes = usize::try_from(end - read_at).unwrap_or(COPY_BYTES).min(COPY_BYTES);
            match copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), bytes) {
                // It was cut meanwhile by whoever has the descriptor.
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        at = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ObjectStore;
    use weft_protocol::NodeId;

    const INODE: InodeNumber = InodeNumber::ROOT;

    fn pread(file: &OwnedFd) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        let count = rustix::io::pread(file, &mut bytes[..], 0).unwrap();
        bytes.truncate(count);
        bytes
    }

    fn stays_apart(store: &DirectoryStore) {
        let object = ObjectId::new(NodeId(1), 9);
        let handle = store.open(INODE, object, true).unwrap();
        let file = handle.descriptor(true).unwrap().unwrap();
        rustix::io::pwrite(&file, b"before", 0).unwrap();
        rustix::fs::ftruncate(&file, 1 << 20).unwrap();
        rustix::io::pwrite(&file, b"behind a hole", 1 << 20).unwrap();
        let stat = handle.stat().unwrap();
        assert_eq!(store.abandon(INODE, object), Ok(true));
        assert!(!handle.is_current() && handle.stat().is_err(), "who has it at hand looks for it anew");
        rustix::io::pwrite(&file, b"late", 0).unwrap();
        rustix::fs::ftruncate(&file, 4).unwrap();
        let current = store.open(INODE, object, false).unwrap();
        assert_eq!(current.stat().unwrap(), stat);
        let moved = current.descriptor(false).unwrap().unwrap();
        assert!(pread(&moved).starts_with(b"before\0"));
        let mut tail = [0; 13];
        rustix::io::pread(&moved, &mut tail[..], 1 << 20).unwrap();
        assert_eq!(&tail, b"behind a hole");
        assert_eq!(store.list(&[(object, 1)]).unwrap(), [(INODE, object)]);
        drop((file, moved));
        assert_eq!(store.abandon(INODE, object), Ok(false), "nobody has a descriptor");
        assert_eq!(store.remove(INODE, object), Ok(true));
        assert_eq!(store.abandon(INODE, object), Ok(false), "it is not there");
    }

    #[test]
    fn what_is_written_by_a_descriptor_of_an_abandoned_file_is_in_no_object() {
        let path = std::env::temp_dir().join(format!("weft-abandon-{}", std::process::id()));
        stays_apart(&DirectoryStore::open(&path, None).unwrap());
        std::fs::remove_dir_all(path).unwrap();
        match DirectoryStore::in_memory(Some(8 << 20)) {
            Ok(store) => stays_apart(&store),
            Err(error) => println!("skipped: {error}"),
        }
    }

    #[test]
    fn an_object_for_whose_copy_there_is_no_space_stays() {
        let store = match DirectoryStore::in_memory(Some(2 << 20)) {
            Ok(store) => store,
            Err(error) => return println!("skipped: {error}"),
        };
        let object = ObjectId::new(NodeId(1), 9);
        let handle = store.open(INODE, object, true).unwrap();
        let file = handle.descriptor(true).unwrap().unwrap();
        let written = rustix::io::pwrite(&file, &vec![7; 3 << 19][..], 0).unwrap();
        assert_eq!(store.abandon(INODE, object), Err(Error::NoSpace));
        assert_eq!(handle.stat().map(|stat| stat.size), Ok(written as u64));
        drop(file);
        assert_eq!(store.abandon(INODE, object), Ok(false));
    }

    #[test]
    fn an_abandoned_file_gives_back_what_its_object_has_not() {
        let path = std::env::temp_dir().join(format!("weft-abandon-charged-{}", std::process::id()));
        let store = DirectoryStore::open(&path, Some(1 << 20)).unwrap();
        let object = ObjectId::new(NodeId(1), 9);
        let handle = store.open(INODE, object, true).unwrap();
        handle.truncate(100).unwrap();
        handle.write_plan(0, 8192).unwrap();
        let file = handle.descriptor(false).unwrap().unwrap();
        assert_eq!(store.abandon(INODE, object), Ok(true));
        assert_eq!(store.account.used(), 100);
        assert_eq!(store.remove(INODE, object), Ok(true));
        assert_eq!(store.account.used(), 0);
        drop(file);
        std::fs::remove_dir_all(path).unwrap();
    }
}
