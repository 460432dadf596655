//! The kernel's values and Weft's: attributes, times, flags, errors.
//!
//! Pure functions. Everything that comes from the kernel is checked here and becomes a Weft type; nothing else in this
//! crate looks at flag bits.
//!
//! Not here: what an operation does (`weft-mount-core`).

use fuser::{
    BackingId, Errno, FileAttr, FileType, FopenFlags, Generation, INodeNo, OpenAccMode, OpenFlags, RenameFlags,
    TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weft_client::OpenOptions;
use weft_mount_core::{Mode, Opened, Thread, WrittenBy};
use weft_protocol::message::shard::{Access, PageCache, RenameMode};
use weft_protocol::{
    Attributes, Error, FileKind, InodeNumber, LockMode, Name, Result, TimeChange, Timestamp, XattrExpectation,
};

/// Inode numbers of Weft are never used again, so one generation does.
pub const GENERATION: Generation = Generation(1);
/// `st_blksize`: what programs read and write at a time through their own buffers (stdio, Python). Large enough that a
/// program's small writes come as few messages, small enough that a seek does not read megabytes for nothing.
const PREFERRED_IO_BYTES: u32 = 128 << 10;
/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

const O_EXCL: i32 = OFlags::EXCL.bits() as i32;
const O_TRUNC: i32 = OFlags::TRUNC.bits() as i32;
const O_APPEND: i32 = OFlags::APPEND.bits() as i32;
const O_DIRECT: i32 = OFlags::DIRECT.bits() as i32;
/// O_SYNC's bits, of which one is O_DSYNC.
const O_SYNC: i32 = OFlags::SYNC.bits() as i32;
/// The kernel opens a program to run it. No program can set it: the kernel takes it out of the flags of `open`.
const FMODE_EXEC: i32 = 0x20;
/// Flags of `setxattr`.
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;

/// The inode that the kernel names.
pub fn inode(number: INodeNo) -> InodeNumber {
    InodeNumber::from_raw(number.0)
}

/// The kernel's number of an inode: the same one.
pub fn kernel_inode(inode: InodeNumber) -> INodeNo {
    INodeNo(inode.raw())
}

/// A name as the kernel gives it.
pub fn name(name: &OsStr) -> Result<Name> {
    Name::new(name.as_bytes())
}

/// What the caller's system call returns.
pub fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.to_errno())
}

/// Attributes as `stat` shows them.
pub fn attributes(attributes: &Attributes) -> FileAttr {
    FileAttr {
        ino: kernel_inode(attributes.inode),
        size: attributes.size,
        blocks: attributes.size.div_ceil(BLOCK_BYTES),
        atime: system_time(attributes.atime),
        mtime: system_time(attributes.mtime),
        ctime: system_time(attributes.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attributes.kind),
        perm: attributes.mode & 0o7777,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: 0,
        blksize: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

/// Attributes that tell nothing but the number and the kind: for an answer that has to carry some and is not to be
/// kept. With inode 0: what is not there.
pub fn no_attributes(inode: InodeNumber, kind: FileKind) -> FileAttr {
    FileAttr {
        ino: kernel_inode(inode),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(kind),
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

/// Kind of an inode.
pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
    }
}

/// A time as the kernel crate wants it.
pub fn system_time(time: Timestamp) -> SystemTime {
    let distance = Duration::from_nanos(time.0.unsigned_abs());
    if time.0 < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// A time to be set.
pub fn time_change(time: TimeOrNow) -> TimeChange {
    match time {
        TimeOrNow::Now => TimeChange::Now,
        TimeOrNow::SpecificTime(time) => TimeChange::To(timestamp(time)),
    }
}

/// Clamps what a [`Timestamp`] cannot hold.
fn timestamp(time: SystemTime) -> Timestamp {
    let nanoseconds = |distance: Duration| i64::try_from(distance.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp(nanoseconds(after)),
        Err(before) => Timestamp(-nanoseconds(before.duration())),
    }
}

/// The lower 12 bits of a mode.
pub fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// The permissions of what is made. The kernel has applied the umask already where it was told to; again does no harm.
pub fn new_permissions(mode: u32, umask: u32) -> u16 {
    permissions(mode & !umask)
}

/// Whether `mknod` asks for a plain file, the only kind of node that Weft has.
pub fn is_regular(mode: u32) -> bool {
    matches!(mode & S_IFMT, 0 | S_IFREG)
}

/// What `open` asks for.
pub fn open_options(flags: OpenFlags) -> OpenOptions {
    OpenOptions {
        access: match flags.acc_mode() {
            OpenAccMode::O_RDONLY if flags.0 & FMODE_EXEC != 0 => Access::Execute,
            OpenAccMode::O_RDONLY => Access::Read,
            OpenAccMode::O_WRONLY => Access::Write,
            OpenAccMode::O_RDWR => Access::ReadWrite,
        },
        truncate: flags.0 & O_TRUNC != 0,
        append: flags.0 & O_APPEND != 0,
        direct: flags.0 & O_DIRECT != 0,
        page_cache: PageCache::None,
        registration: None,
        spill: false,
        spread: false,
    }
}

/// Who writes, by the flags of the request and of the open file. The kernel names the program (a lock owner) where it
/// passes its page cache by.
pub fn written_by(write_flags: WriteFlags, flags: OpenFlags, has_owner: bool, thread: Option<Thread>) -> WrittenBy {
    if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
        WrittenBy::PageCache
    } else {
        let clears_set_id = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        WrittenBy::Program { pages: !has_owner, synced: flags.0 & O_SYNC != 0, clears_set_id, thread }
    }
}

/// What the kernel is told of how a file is open. `tells_close`: it has to tell of each `close`, which unlocks.
pub fn open_flags<B>(opened: &Opened<B>, tells_close: bool) -> FopenFlags {
    let mut flags = match &opened.mode {
        Mode::Direct => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
        Mode::Cached { keep: true } => FopenFlags::FOPEN_KEEP_CACHE,
        Mode::Cached { keep: false } | Mode::Passthrough(_) => FopenFlags::empty(),
        // Beside the flag of passthrough, this one counts.
        Mode::Joined(_) => FopenFlags::FOPEN_DIRECT_IO,
    };
    if !opened.access.writes() && !tells_close {
        // Nothing to flush: one message less at each close. Linux ignores it on a mount with write-back.
        flags |= FopenFlags::FOPEN_NOFLUSH;
    }
    flags
}

/// Types of locks in the kernel's protocol, those of `fcntl`.
const F_RDLCK: i32 = 0;
const F_WRLCK: i32 = 1;
pub const F_UNLCK: i32 = 2;

/// How to lock; `None`: unlock.
pub fn lock_mode(kind: i32) -> Option<LockMode> {
    match kind {
        F_RDLCK => Some(LockMode::Shared),
        F_WRLCK => Some(LockMode::Exclusive),
        _ => None,
    }
}

/// The type of a lock that is held.
pub fn lock_type(mode: LockMode) -> i32 {
    match mode {
        LockMode::Shared => F_RDLCK,
        LockMode::Exclusive => F_WRLCK,
    }
}

/// The file that the kernel reads and writes by itself.
pub fn backing(opened: &Opened<BackingId>) -> Option<&BackingId> {
    match &opened.mode {
        Mode::Passthrough(backing) | Mode::Joined(backing) => Some(backing),
        Mode::Direct | Mode::Cached { .. } => None,
    }
}

/// Whether a create fails when the name is there.
pub fn exclusive(flags: i32) -> bool {
    flags & O_EXCL != 0
}

/// What `setxattr` expects.
pub fn xattr_expectation(flags: i32) -> Result<XattrExpectation> {
    if flags & !(XATTR_CREATE | XATTR_REPLACE) != 0 {
        return Err(Error::Invalid);
    }
    Ok(XattrExpectation { absent: flags & XATTR_CREATE != 0, present: flags & XATTR_REPLACE != 0 })
}

/// What `renameat2` asks for.
pub fn rename_mode(flags: RenameFlags) -> Result<RenameMode> {
    if flags.is_empty() {
        Ok(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Ok(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Ok(RenameMode::Exchange)
    } else {
        Err(Error::Invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::{InodeFlags, Layout};

    fn some_attributes() -> Attributes {
        Attributes {
            inode: InodeNumber::from_raw(0x0003_0000_0000_0007),
            kind: FileKind::Regular,
            mode: 0o4755,
            links: 2,
            uid: 1000,
            gid: 100,
            size: 1025,
            atime: Timestamp::from_parts(-2, 500),
            mtime: Timestamp::from_parts(1_700_000_000, 123_456_789),
            ctime: Timestamp(0),
            layout: Layout::Empty,
            flags: InodeFlags::empty(),
            parts: None,
        }
    }

    #[test]
    fn attributes_show_as_stat_tells_them() {
        let shown = attributes(&some_attributes());
        assert_eq!(shown.ino.0, 0x0003_0000_0000_0007);
        assert_eq!((shown.size, shown.blocks), (1025, 3));
        assert_eq!((shown.perm, shown.nlink, shown.uid, shown.gid), (0o4755, 2, 1000, 100));
        assert_eq!(shown.kind, FileType::RegularFile);
        assert_eq!(shown.mtime, UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789));
        assert_eq!(shown.atime, UNIX_EPOCH - Duration::new(1, 999_999_500));
    }

    #[test]
    fn times_come_back() {
        for time in [0, 1, -1, 1_700_000_000_123_456_789, -5_000_000_001, i64::MAX, -i64::MAX] {
            let time = Timestamp(time);
            assert_eq!(time_change(TimeOrNow::SpecificTime(system_time(time))), TimeChange::To(time));
        }
        assert_eq!(time_change(TimeOrNow::Now), TimeChange::Now);
        let too_late = UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(timestamp(too_late), Timestamp(i64::MAX));
        assert!(system_time(Timestamp(i64::MIN)) < UNIX_EPOCH);
    }

    #[test]
    fn open_flags_of_linux() {
        let check = |flags: i32, access, truncate, append, direct| {
            let expected = OpenOptions {
                access,
                truncate,
                append,
                direct,
                page_cache: PageCache::None,
                registration: None,
                spill: false,
                spread: false,
            };
            assert_eq!(open_options(OpenFlags(flags)), expected, "{flags:#o}");
        };
        check(0, Access::Read, false, false, false);
        check(FMODE_EXEC | 0o100_000, Access::Execute, false, false, false);
        check(1 | O_TRUNC, Access::Write, true, false, false);
        check(2 | O_APPEND, Access::ReadWrite, false, true, false);
        check(2 | O_DIRECT | 0o100_000, Access::ReadWrite, false, false, true);
        let thread = Thread::new(7);
        assert_eq!(written_by(WriteFlags::FUSE_WRITE_CACHE, OpenFlags(O_SYNC), false, thread), WrittenBy::PageCache);
        // The last are O_DSYNC and O_SYNC of Linux.
        for (flags, synced) in [(0, false), (1 | O_DIRECT, false), (1 | 0o10_000, true), (1 | 0o4_010_000, true)] {
            for pages in [false, true] {
                for clears_set_id in [false, true] {
                    let mut write_flags = WriteFlags::empty();
                    write_flags.set(WriteFlags::FUSE_WRITE_KILL_SUIDGID, clears_set_id);
                    let found = written_by(write_flags, OpenFlags(flags), !pages, thread);
                    assert_eq!(found, WrittenBy::Program { pages, synced, clears_set_id, thread }, "{flags:#o}");
                }
            }
        }
        assert!(exclusive(O_EXCL | 1) && !exclusive(O_TRUNC | 1));
    }

    #[test]
    fn modes_as_the_kernel_knows_them() {
        let check = |mode: Mode<()>, access, expected: FopenFlags| {
            assert_eq!(open_flags(&Opened { handle: 1, mode, access }, false), expected);
        };
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        check(Mode::Direct, Access::ReadWrite, direct);
        check(Mode::Direct, Access::Read, direct | FopenFlags::FOPEN_NOFLUSH);
        check(Mode::Cached { keep: true }, Access::Write, FopenFlags::FOPEN_KEEP_CACHE);
        check(Mode::Cached { keep: false }, Access::Write, FopenFlags::empty());
    }

    #[test]
    fn renames_know_three_modes() {
        assert_eq!(rename_mode(RenameFlags::empty()), Ok(RenameMode::Replace));
        assert_eq!(rename_mode(RenameFlags::RENAME_NOREPLACE), Ok(RenameMode::NoReplace));
        assert_eq!(rename_mode(RenameFlags::RENAME_EXCHANGE), Ok(RenameMode::Exchange));
        let both = RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE;
        assert_eq!(rename_mode(both), Err(Error::Invalid));
        assert_eq!(rename_mode(RenameFlags::RENAME_WHITEOUT), Err(Error::Invalid));
    }

    #[test]
    fn flags_of_setxattr() {
        let expects = |absent, present| Ok(XattrExpectation { absent, present });
        assert_eq!(xattr_expectation(0), expects(false, false));
        assert_eq!(xattr_expectation(1), expects(true, false));
        assert_eq!(xattr_expectation(2), expects(false, true));
        assert_eq!(xattr_expectation(3), expects(true, true));
        assert_eq!(xattr_expectation(4), Err(Error::Invalid));
    }

    #[test]
    fn modes_and_names() {
        assert!(is_regular(0o100_644) && is_regular(0o644));
        assert!(!is_regular(0o010_644) && !is_regular(0o020_600) && !is_regular(0o140_600));
        assert_eq!(new_permissions(0o100_666, 0o022), 0o644);
        assert_eq!(name(OsStr::new("a")).map(|name| name.as_bytes().to_vec()), Ok(b"a".to_vec()));
        assert_eq!(name(OsStr::new(&"a".repeat(256))), Err(Error::NameTooLong));
        assert_eq!(errno(&Error::NotEmpty).code(), 39);
        assert_eq!(errno(&Error::Device(0)).code(), 5, "an errno of zero would be success");
    }
}
