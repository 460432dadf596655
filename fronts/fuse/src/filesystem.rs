//! The kernel's requests, each as a procedure of [`Mount`].
//!
//! Thin: a request's values are converted, the procedure runs on a thread that may wait ([`Workers`]), and its result
//! becomes the reply. What is not here is answered "not implemented", once: the kernel then does without
//! (`copy_file_range`, SEEK_DATA, `fallocate`).
//!
//! Not here: what was agreed with the kernel (`mount.rs`); requests on extended attributes (`xattrs.rs`).

use crate::convert;
use crate::credentials::Caller;
use crate::front::{Front, answer, failed};
use crate::locks::{self, Asked};
use crate::mount::Agreement;
use crate::pending::{Wait, program};
use crate::turns::Turns;
use crate::workers::{Workers, guarded};
use fuser::{
    BackingId, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek,
    ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, RequestId, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use weft_client::waits::work_for;
use weft_client::{Entry, LockRequest, StatFs, block_on};
use weft_mount_core::{Found, Make, NotTaken, ReadBy, Shown, Thread};
use weft_protocol::message::shard::CreateFile;
use weft_protocol::{AttributeChanges, Error, FileKind, InodeNumber, LockRange, RangeLock, Result};

thread_local! {
    /// Where a read puts its bytes on the way to the kernel. Grows to the largest read, which the kernel limits.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A mounted file system, as the kernel crate calls it.
pub struct MountedFilesystem {
    pub front: Arc<Front>,
    pub workers: Arc<Workers>,
    pub turns: Arc<Turns>,
    pub agreement: Agreement,
}

impl MountedFilesystem {
    /// Serves a request where it may wait.
    pub(crate) fn run(&self, request: &Request, wait: Wait, job: impl FnOnce(&Front) + Send + 'static) {
        let (front, program) = (self.front.clone(), program(request, wait));
        self.turns.serve(|| {
            self.workers.run(move || {
                let _working = work_for(program);
                job(&front);
            });
        });
    }

    fn make(
        &self,
        operation: &'static str,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        what: Make,
        reply: ReplyEntry,
    ) {
        let (caller, parent, name) = (Caller::from(request), convert::inode(parent), convert::name(name));
        self.run(request, Wait::KeepsWrites, move |front| match name {
            Ok(name) => {
                let made = block_on(front.mount.make(&front.who(caller), parent, &name, &what));
                answer_entry(operation, made.result, reply);
            }
            Err(error) => answer_entry(operation, Err(error), reply),
        });
    }

    fn remove(
        &self,
        operation: &'static str,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        is_directory: bool,
        reply: ReplyEmpty,
    ) {
        let (caller, parent, name) = (Caller::from(request), convert::inode(parent), convert::name(name));
        self.run(request, Wait::KeepsWrites, move |front| match name {
            Ok(name) => {
                let removed = block_on(front.mount.remove(&front.who(caller), parent, &name, is_directory));
                answer(operation, removed.result, reply);
            }
            Err(error) => answer(operation, Err(error), reply),
        });
    }
}

/// What became of a file that the kernel was to read and write by itself.
fn taken(registered: io::Result<BackingId>) -> std::result::Result<BackingId, NotTaken> {
    registered.map_err(|error| {
        tracing::debug!("a file is not passed through: {error}");
        if error.kind() == io::ErrorKind::PermissionDenied { NotTaken::Never } else { NotTaken::ThisOne }
    })
}

fn answer_entry(operation: &str, result: Result<Entry>, reply: ReplyEntry) {
    match result {
        Ok(entry) => {
            let attributes = convert::attributes(&entry.attributes);
            reply.entry_with_ttls(&entry.attributes_valid, &entry.name_valid, &attributes, convert::GENERATION);
        }
        Err(error) => reply.error(failed(operation, &error)),
    }
}

fn answer_attributes(operation: &str, result: Result<Entry>, reply: ReplyAttr) {
    match result {
        Ok(entry) => reply.attr(&entry.attributes_valid, &convert::attributes(&entry.attributes)),
        Err(error) => reply.error(failed(operation, &error)),
    }
}

impl Filesystem for MountedFilesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let settings = self.agreement.negotiate(config);
        // It is set once: the kernel agrees once per mount.
        let _ = self.front.mount.settings.set(settings);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, parent, name) = (Caller::from(request), convert::inode(parent), convert::name(name));
        self.run(request, Wait::KeepsWrites, move |front| {
            let name = match name {
                Ok(name) => name,
                Err(error) => return reply.error(failed("lookup", &error)),
            };
            let answer = block_on(front.mount.lookup(&front.who(caller), parent, &name));
            match answer.result {
                Ok(Found::Entry(entry)) => answer_entry("lookup", Ok(entry), reply),
                Ok(Found::Absent(valid)) => {
                    // Inode 0 means: not there, and keep that.
                    let nothing = convert::no_attributes(InodeNumber::from_raw(0), FileKind::Regular);
                    reply.entry_with_ttls(&Duration::ZERO, &valid, &nothing, convert::GENERATION);
                }
                Err(Error::NotFound) => reply.error(Errno::ENOENT),
                Err(error) => reply.error(failed("lookup", &error)),
            }
        });
    }

    fn forget(&self, _: &Request, inode: INodeNo, lookups: u64) {
        // Waits for nothing, and may come many times with one request: it is no turn.
        self.front.mount.forget(convert::inode(inode), lookups);
        self.turns.look();
    }

    fn getattr(&self, request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        self.run(request, Wait::KeepsWrites, move |front| {
            let answer = block_on(front.mount.get_attributes(&front.who(caller), inode));
            answer_attributes("getattr", answer.result, reply);
        });
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _changed: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        let changes = AttributeChanges {
            mode: mode.map(convert::permissions),
            uid,
            gid,
            size,
            atime: atime.map(convert::time_change),
            mtime: mtime.map(convert::time_change),
        };
        self.run(request, Wait::KeepsWrites, move |front| {
            let changed = block_on(front.mount.set_attributes(&front.who(caller), inode, &changes));
            answer_attributes("setattr", changed, reply);
        });
    }

    fn readlink(&self, request: &Request, inode: INodeNo, reply: ReplyData) {
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        self.run(request, Wait::KeepsWrites, move |front| match front.client.read_link(&front.who(caller), inode) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(failed("readlink", &error)),
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        if !convert::is_regular(mode) {
            return reply.error(Errno::EPERM);
        }
        let mode = convert::new_permissions(mode, umask);
        self.make("mknod", request, (parent, name), Make::File(mode), reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let mode = convert::new_permissions(mode, umask);
        self.make("mkdir", request, (parent, name), Make::Directory(mode), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove("unlink", request, (parent, name), false, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove("rmdir", request, (parent, name), true, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes().to_vec();
        self.make("symlink", request, (parent, name), Make::Symlink(target), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let caller = Caller::from(request);
        let (parent, new_parent) = (convert::inode(parent), convert::inode(new_parent));
        let from = convert::name(name).map(|name| (parent, name));
        let to = convert::name(new_name).map(|name| (new_parent, name));
        let mode = convert::rename_mode(flags);
        self.run(request, Wait::KeepsWrites, move |front| {
            let (from, to, mode) = match (from, to, mode) {
                (Ok(from), Ok(to), Ok(mode)) => (from, to, mode),
                (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => {
                    return answer("rename", Err(error), reply);
                }
            };
            let (from, to) = ((from.0, &from.1), (to.0, &to.1));
            let renamed = block_on(front.mount.rename(&front.who(caller), from, to, mode));
            answer("rename", renamed.result, reply);
        });
    }

    fn link(&self, request: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.make("link", request, (parent, name), Make::Link(convert::inode(inode)), reply);
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        self.run(request, Wait::KeepsWrites, move |front| {
            let register = |descriptor: &OwnedFd| taken(reply.open_backing(descriptor.as_fd()));
            let options = front.open_options(flags);
            match block_on(front.mount.open(front.who(caller), inode, options, register)) {
                Ok(opened) => {
                    let (handle, flags) =
                        (FileHandle(opened.handle), convert::open_flags(&opened, front.locks.has_record_locks()));
                    match convert::backing(&opened) {
                        Some(backing) => reply.opened_passthrough(handle, flags, backing),
                        None => reply.opened(handle, flags),
                    }
                }
                Err(error) => reply.error(failed("open", &error)),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (caller, parent, name) = (Caller::from(request), convert::inode(parent), convert::name(name));
        let (mode, exclusive) = (convert::new_permissions(mode, umask), convert::exclusive(flags));
        let create = CreateFile { mode, exclusive, plan: None };
        self.run(request, Wait::KeepsWrites, move |front| {
            let name = match name {
                Ok(name) => name,
                Err(error) => return reply.error(failed("create", &error)),
            };
            let register = |descriptor: &OwnedFd| taken(reply.open_backing(descriptor.as_fd()));
            let (who, options) = (front.who(caller), front.open_options(OpenFlags(flags)));
            let answer = block_on(front.mount.create(who, (parent, &name), options, create, register));
            match answer.result {
                Ok((entry, opened)) => {
                    // The kernel takes one term for both here.
                    let valid = entry.name_valid.min(entry.attributes_valid);
                    let attributes = convert::attributes(&entry.attributes);
                    let (handle, flags) =
                        (FileHandle(opened.handle), convert::open_flags(&opened, front.locks.has_record_locks()));
                    match convert::backing(&opened) {
                        Some(backing) => {
                            reply.created_passthrough(&valid, &attributes, convert::GENERATION, handle, flags, backing);
                        }
                        None => reply.created(&valid, &attributes, convert::GENERATION, handle, flags),
                    }
                }
                Err(error) => reply.error(failed("create", &error)),
            }
        });
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: u32,
        _: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let by = ReadBy { pages: owner.is_none(), thread: Thread::new(request.pid()) };
        self.run(request, Wait::KeepsWrites, move |front| {
            let reply = |read: Result<&[u8]>| match read {
                Ok(bytes) => reply.data(bytes),
                Err(error) => reply.error(failed("read", &error)),
            };
            READ_BUFFER.with_borrow_mut(|memory| {
                block_on(front.mount.read(handle.0, (offset, bytes), by, memory, reply));
            });
        });
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let by = convert::written_by(write_flags, flags, owner.is_some(), Thread::new(request.pid()));
        let serve = move |front: &Front, bytes: &[u8]| match block_on(front.mount.write(handle.0, offset, bytes, by)) {
            Ok(()) => reply.written(bytes.len() as u32),
            Err(error) => reply.error(failed("write", &error)),
        };
        let program = program(request, Wait::LosesWrites);
        self.turns.serve(|| match self.workers.stay() {
            Some(_permit) => {
                let _working = work_for(program);
                guarded(|| serve(&self.front, bytes));
            }
            None => {
                // The bytes lie in the buffer of this thread, which goes back to the device: one copy more.
                let (front, bytes) = (self.front.clone(), bytes.to_vec());
                self.workers.spill(move || {
                    let _working = work_for(program);
                    serve(&front, &bytes);
                });
            }
        });
    }

    fn flush(&self, request: &Request, _: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        self.run(request, Wait::LosesWrites, move |front| {
            answer("flush", block_on(front.mount.flush(handle.0, locks::owner(owner, false))), reply);
        });
    }

    fn release(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.run(request, Wait::KeepsWrites, move |front| {
            answer("release", block_on(front.mount.release(handle.0)), reply);
        });
    }

    fn fsync(&self, request: &Request, _: INodeNo, handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.run(request, Wait::LosesWrites, move |front| answer("fsync", block_on(front.mount.sync(handle.0)), reply));
    }

    fn getlk(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        let (owner, range) = (locks::owner(owner, false), LockRange { start, end });
        let Some(mode) = convert::lock_mode(kind) else { return reply.error(Errno::EINVAL) };
        self.run(request, Wait::KeepsWrites, move |front| {
            locks::test(front, handle.0, owner, RangeLock { range, mode }, reply);
        });
    }

    fn setlk(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        waits: bool,
        is_flock: bool,
        reply: ReplyEmpty,
    ) {
        if !is_flock {
            self.front.locks.note_record_lock();
        }
        let (handle, range) = (handle.0, LockRange { start, end });
        let lock = convert::lock_mode(kind).map(|mode| RangeLock { range, mode });
        let asked = LockRequest { owner: locks::owner(owner, is_flock), pid, locks: lock.into_iter().collect() };
        if waits && lock.is_some() {
            let asked = Asked { unique: request.unique().0, handle, request: asked };
            let (front, workers) = (self.front.clone(), self.workers.clone());
            return self.run(request, Wait::KeepsWrites, move |_| locks::wait_for(&front, &workers, asked, reply));
        }
        self.run(request, Wait::KeepsWrites, move |front| locks::set(front, handle, &asked, range, reply));
    }

    fn interrupt(&self, request: &Request, unique: RequestId, reply: ReplyEmpty) {
        reply.ok();
        if let Some(wait) = self.front.locks.interrupt(unique.0) {
            self.run(request, Wait::KeepsWrites, move |front| block_on(front.mount.cancel_lock(wait)));
        }
    }

    fn opendir(&self, request: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        self.turns.serve(|| match self.front.mount.open_directory(self.front.who(caller), inode) {
            Ok((handle, kept)) => {
                let mut flags = fuser::FopenFlags::empty();
                flags.set(fuser::FopenFlags::FOPEN_CACHE_DIR, kept.is_used);
                flags.set(fuser::FopenFlags::FOPEN_KEEP_CACHE, kept.is_kept);
                reply.opened(FileHandle(handle), flags);
            }
            Err(error) => reply.error(failed("opendir", &error)),
        });
    }

    fn readdir(&self, request: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.run(request, Wait::KeepsWrites, move |front| {
            let listed = block_on(front.mount.list(handle.0, offset, |shown| {
                let (inode, kind) = (convert::kernel_inode(shown.inode), convert::file_type(shown.kind));
                reply.add(inode, shown.next, kind, OsStr::from_bytes(shown.name))
            }));
            match listed {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(failed("readdir", &error)),
            }
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.run(request, Wait::KeepsWrites, move |front| {
            let add = |shown: &Shown<'_>| {
                // Of `.` and `..` the kernel takes the name and the number only. What is not known here is asked for
                // when somebody wants to know.
                let unknown = || convert::no_attributes(shown.inode, shown.kind);
                let attributes = shown.attributes.map_or_else(unknown, convert::attributes);
                let name = OsStr::from_bytes(shown.name);
                reply.add(attributes.ino, shown.next, name, &shown.valid, &attributes, convert::GENERATION)
            };
            let answer = block_on(front.mount.list_with_attributes(convert::inode(inode), handle.0, offset, add));
            match answer.result {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(failed("readdirplus", &error)),
            }
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.turns.serve(|| answer("releasedir", self.front.mount.close_directory(handle.0), reply));
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        // Each change of names was acknowledged by its shard before the system call returned.
        self.turns.serve(|| reply.ok());
    }

    fn statfs(&self, request: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.run(request, Wait::KeepsWrites, move |front| match front.client.space() {
            Ok(space) => {
                let StatFs { block_bytes, blocks, blocks_free, inodes, inodes_free, name_bytes_max } = space.statfs();
                let (blocks_available, fragment_bytes) = (blocks_free, block_bytes);
                reply.statfs(
                    blocks,
                    blocks_free,
                    blocks_available,
                    inodes,
                    inodes_free,
                    block_bytes,
                    name_bytes_max,
                    fragment_bytes,
                );
            }
            Err(error) => reply.error(failed("statfs", &error)),
        });
    }

    fn setxattr(&self, by: &Request, inode: INodeNo, name: &OsStr, value: &[u8], how: i32, _: u32, reply: ReplyEmpty) {
        self.set_xattr(by, (inode, name), (value, how), reply);
    }

    fn getxattr(&self, request: &Request, inode: INodeNo, name: &OsStr, room: u32, reply: ReplyXattr) {
        self.get_xattr(request, (inode, name), room, reply);
    }

    fn listxattr(&self, request: &Request, inode: INodeNo, room: u32, reply: ReplyXattr) {
        self.list_xattrs(request, inode, room, reply);
    }

    fn removexattr(&self, request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_xattr(request, (inode, name), reply);
    }

    fn access(&self, request: &Request, inode: INodeNo, mask: fuser::AccessFlags, reply: ReplyEmpty) {
        // Asked in a mount of root's own only (`attach.rs`), who is refused nothing but to run what nobody may run.
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        self.run(request, Wait::KeepsWrites, move |front| match front.client.attributes(&front.who(caller), inode) {
            Ok(entry) if mask.contains(fuser::AccessFlags::X_OK) && !may_be_run(&entry.attributes) => {
                reply.error(Errno::EACCES);
            }
            Ok(_) => reply.ok(),
            Err(error) => reply.error(failed("access", &error)),
        });
    }

    fn bmap(&self, _: &Request, _: INodeNo, _: u32, _: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, _: u64, _: i32, reply: ReplyEmpty) {
        // No store reserves space yet, and saying it did would be a lie. The caller gets EOPNOTSUPP.
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }
}

/// Whether anybody has the right to run the file, or it is a directory.
fn may_be_run(attributes: &weft_protocol::Attributes) -> bool {
    attributes.kind != weft_protocol::FileKind::Regular || attributes.mode & 0o111 != 0
}
