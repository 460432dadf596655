//! The directory that the file system lies over, as this node sees it (docs/decisions/0029).
//!
//! The storage server lists directories there, and copies files into objects of its own, with the rights of the user
//! who started the node. Paths are resolved beneath the directory, and symbolic links are not followed. Threads of its
//! own do so, since the other file system may be slow.
//!
//! Not here: which files are read, and when (the shards ask). Nothing is written there.

use crate::locks::lock;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use weft_protocol::limits::{DIRECTORY_PAGE_BYTES_MAX, FILL_BYTES_MAX, NAMES_BELOW_MAX, SYMLINK_BYTES_MAX};
use weft_protocol::message::shard::SymlinkTarget;
use weft_protocol::message::storage::StorageAnswer;
use weft_protocol::{BelowName, BelowStamp, Error, FileKind, InodeNumber, Name, ObjectId, Result, Timestamp};
use weft_store_io::executor::{Moved, Pipe};
use weft_store_io::guard::Unguarded;
use weft_store_io::{ObjectHandle, ObjectStore};

/// Number of threads that read.
pub const THREADS: usize = 4;
/// Bytes that one call of a copy moves.
const COPY_BYTES: u32 = 4 << 20;
/// Prefix and suffixes of files that a copy by Weft has not finished. They are hidden.
const UNFINISHED: (&[u8], [&[u8]; 2]) = (b".", [b".weft-part", b".weft-resume"]);

/// The directory, and the queue of requests to read from it.
pub struct Below<Job> {
    directory: OwnedFd,
    jobs: Sender<Job>,
    /// Taken from by the threads. A leaf.
    queue: Mutex<Receiver<Job>>,
}

impl<Job> Below<Job> {
    /// Opens the directory.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory, flags, Mode::empty());
        let directory = opened.map_err(|errno| {
            io::Error::new(io::Error::from(errno).kind(), format!("{}: {errno}", directory.display()))
        })?;
        let (jobs, queue) = channel();
        Ok(Self { directory, jobs, queue: Mutex::new(queue) })
    }

    /// Queues a job for a thread.
    pub fn send(&self, job: Job) {
        // The queue is this value's own.
        let _ = self.jobs.send(job);
    }

    /// Waits for the next job.
    pub fn next(&self) -> Option<Job> {
        lock(&self.queue).recv().ok()
    }

    fn open_at(&self, path: &[Name], flags: OFlags) -> Result<OwnedFd> {
        let mut joined = Vec::new();
        for name in path {
            joined.extend_from_slice(name.as_bytes());
            joined.push(b'/');
        }
        joined.pop();
        let joined = if joined.is_empty() { &b"."[..] } else { &joined[..] };
        let (flags, resolve) = (flags | OFlags::CLOEXEC, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS);
        rustix::fs::openat2(&self.directory, OsStr::from_bytes(joined), flags, Mode::empty(), resolve).map_err(error_of)
    }

    /// Lists the names of a directory after one of them, in order.
    pub fn list(&self, path: &[Name], after: Option<&Name>) -> Result<StorageAnswer> {
        let directory = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut all = Vec::new();
        for entry in Dir::read_from(&directory).map_err(error_of)? {
            let entry = entry.map_err(error_of)?;
            if let Ok(name) = Name::new(entry.file_name().to_bytes())
                && !is_unfinished(&name)
                && after.is_none_or(|after| name > *after)
            {
                all.push(name);
            }
        }
        all.sort_unstable();
        let (mut names, mut bytes) = (Vec::new(), 0);
        for name in all {
            if names.len() == NAMES_BELOW_MAX || bytes >= DIRECTORY_PAGE_BYTES_MAX {
                return Ok(StorageAnswer::NamesBelow { names, is_more: true });
            }
            if let Some(name) = look(directory.as_fd(), name)? {
                bytes += name.name.as_bytes().len() + name.target.as_ref().map_or(0, |target| target.0.len());
                names.push(name);
            }
        }
        Ok(StorageAnswer::NamesBelow { names, is_more: false })
    }

    /// Copies a range of a file into its object, which `new_object` makes for the first range.
    pub fn fill(
        &self,
        store: &dyn ObjectStore,
        (inode, object): (InodeNumber, Option<ObjectId>),
        (path, offset): (&[Name], u64),
        new_object: impl FnOnce() -> Result<ObjectId>,
    ) -> Result<StorageAnswer> {
        // A pipe may have taken the file's place: do not wait for its writer.
        let file = self.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let before = rustix::fs::fstat(&file).map_err(error_of)?;
        if FileType::from_raw_mode(before.st_mode) != FileType::RegularFile {
            return Err(Error::Device(Errno::STALE.raw_os_error()));
        }
        let stamp = stamp_of(&before)?;
        let is_new = object.is_none();
        let object = object.map_or_else(new_object, Ok)?;
        let handle = store.open(inode, object, is_new)?;
        let copied = copy(&file, (offset, stamp.size), &*handle);
        let is_same = copied.is_ok() && stamp_of(&rustix::fs::fstat(&file).map_err(error_of)?)? == stamp;
        match copied {
            Ok(end) => {
                // A file that has changed meanwhile is copied again from its beginning.
                let end = if is_same { end } else { 0 };
                let object_mtime = handle.stat()?.mtime;
                Ok(StorageAnswer::Filled { object, end, stamp, object_mtime })
            }
            Err(error) => {
                if is_new {
                    // No shard knows the object. If it cannot be removed, it goes with the node.
                    let _ = store.remove(inode, object);
                }
                Err(error)
            }
        }
    }
}

/// Copies a range from `offset` on. Returns its end.
fn copy(file: &OwnedFd, (offset, size): (u64, u64), handle: &dyn ObjectHandle) -> Result<u64> {
    if offset == 0 {
        handle.truncate(0)?;
    }
    let end = size.min(offset.saturating_add(FILL_BYTES_MAX));
    let (mut pipe, mut at) = (Pipe::new(), offset);
    while at < end {
        let bytes = u32::try_from((end - at).min(COPY_BYTES.into())).expect("no more than COPY_BYTES");
        let plan = handle.write_plan(at, bytes)?;
        match pipe.copy(file.as_fd(), at, plan, bytes, &Unguarded)? {
            Moved::Done => at += u64::from(bytes),
            Moved::Failed(error) => return Err(error),
        }
    }
    Ok(at.max(offset))
}

/// Describes a name. `None`: it is gone, or neither a file, nor a directory, nor a symbolic link.
fn look(directory: BorrowedFd<'_>, name: Name) -> Result<Option<BelowName>> {
    let path = OsStr::from_bytes(name.as_bytes());
    let found = match rustix::fs::statat(directory, path, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        found => found.map_err(error_of)?,
    };
    let (kind, target) = match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => (FileKind::Regular, None),
        FileType::Directory => (FileKind::Directory, None),
        FileType::Symlink => match rustix::fs::readlinkat(directory, path, Vec::new()) {
            Ok(target) if target.as_bytes().len() <= SYMLINK_BYTES_MAX => {
                (FileKind::Symlink, Some(SymlinkTarget(target.into_bytes())))
            }
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    let mode = u16::try_from(found.st_mode & 0o7777).expect("12 bits");
    let stamp = stamp_of(&found)?;
    Ok(Some(BelowName { name, kind, mode, uid: found.st_uid, gid: found.st_gid, stamp, target }))
}

fn stamp_of(found: &Stat) -> Result<BelowStamp> {
    let size = u64::try_from(found.st_size).map_err(|_| Error::Invalid)?;
    let nanoseconds = u32::try_from(found.st_mtime_nsec).map_err(|_| Error::Invalid)?;
    Ok(BelowStamp { size, mtime: Timestamp::from_parts(found.st_mtime, nanoseconds), inode: found.st_ino })
}

fn is_unfinished(name: &Name) -> bool {
    let (begin, ends) = UNFINISHED;
    name.as_bytes().starts_with(begin) && ends.iter().any(|end| name.as_bytes().ends_with(end))
}

fn error_of(errno: Errno) -> Error {
    match errno {
        Errno::ACCESS | Errno::PERM => Error::AccessDenied,
        // The shard asks for names that were there.
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Error::Device(Errno::STALE.raw_os_error()),
        other => Error::Device(other.raw_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).expect("a name")
    }

    #[test]
    fn names_come_in_order_and_nothing_is_reached_through_links() {
        let scratch = std::env::temp_dir().join(format!("weft-below-{}", std::process::id()));
        std::fs::create_dir_all(scratch.join("over/d")).expect("made");
        for (path, text) in [("over/b", "bb"), ("over/a", ""), ("over/.x.weft-part", "x"), ("secret", "s")] {
            std::fs::write(scratch.join(path), text).expect("written");
        }
        std::os::unix::fs::symlink("..", scratch.join("over/up")).expect("made");
        let below = Below::<()>::open(&scratch.join("over")).expect("opened");
        let names = |path: &[Name], after: Option<&Name>| match below.list(path, after).expect("listed") {
            StorageAnswer::NamesBelow { names, is_more: false } => names,
            other => panic!("{other:?}"),
        };
        let all = names(&[], None);
        let texts: Vec<String> = all.iter().map(|name| name.name.to_string()).collect();
        assert_eq!(texts, ["a", "b", "d", "up"]);
        assert_eq!((all[1].stamp.size, all[2].kind), (2, FileKind::Directory));
        assert_eq!(all[3].target, Some(SymlinkTarget(b"..".to_vec())));
        assert_eq!(names(&[], Some(&name("b"))).len(), 2);
        assert!(names(&[name("d")], None).is_empty());
        let stale = Err(Error::Device(Errno::STALE.raw_os_error()));
        assert_eq!(below.list(&[name("up")], None), stale);
        assert!(below.open_at(&[name("up"), name("secret")], OFlags::RDONLY).is_err());
        std::fs::remove_dir_all(&scratch).expect("removed");
    }
}
