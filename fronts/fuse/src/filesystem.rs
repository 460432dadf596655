//! The kernel's requests, each as a call of [`Front`].
//!
//! Thin: a request's values are converted, the call is made on a thread that may wait ([`Workers`]), and its result
//! becomes the reply. What is not here is answered "not implemented", once: the kernel then does without (extended
//! attributes, `copy_file_range`, SEEK_DATA, `fallocate`), or does it locally (file locks).
//!
//! Not here: what was agreed with the kernel (`mount.rs`).

use crate::convert;
use crate::credentials::Caller;
use crate::listing::Item;
use crate::mount::Agreement;
use crate::operations::{Found, Front, Pages};
use crate::workers::{Workers, guarded};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, INodeNo, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};
use weft_client::Entry;
use weft_protocol::limits::NAME_BYTES_MAX;
use weft_protocol::message::shard::DirectoryEntry;
use weft_protocol::{AttributeChanges, Error, FileKind, InodeNumber, Name, Result};

/// Unit in which space is told.
const SPACE_BLOCK_BYTES: u64 = 4096;
/// Inodes that are told to be free: there are 2^48 of them in each shard.
const INODES_FREE: u64 = 1 << 32;

/// A mounted file system, as the kernel crate calls it.
pub struct MountedFilesystem {
    pub front: Arc<Front>,
    pub workers: Arc<Workers>,
    pub agreement: Agreement,
}

impl MountedFilesystem {
    /// Serves a request where it may wait.
    fn run(&self, job: impl FnOnce(&Front) + Send + 'static) {
        let front = self.front.clone();
        self.workers.run(move || job(&front));
    }
}

/// The error as a number, written down on the way.
fn failed(operation: &str, error: &Error) -> Errno {
    tracing::debug!(operation, %error);
    convert::errno(error)
}

fn answer(operation: &str, result: Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(failed(operation, &error)),
    }
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
        let _ = self.front.settings.set(settings);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, parent, name) = (Caller::from(request), convert::inode(parent), convert::name(name));
        self.run(move |front| {
            let telling = front.telling(&[parent]);
            match name.and_then(|name| Ok((front.lookup(caller, parent, &name)?, name))) {
                Ok((Found::Entry(entry), name)) => {
                    answer_entry("lookup", Ok(telling.entry(parent, &name, entry)), reply);
                }
                Ok((Found::Absent(valid), name)) => {
                    // Inode 0 means: not there, and keep that.
                    let nothing = convert::no_attributes(InodeNumber::from_raw(0), FileKind::Regular);
                    let valid = telling.absent(parent, &name, valid);
                    reply.entry_with_ttls(&Duration::ZERO, &valid, &nothing, convert::GENERATION);
                }
                Err(Error::NotFound) => reply.error(Errno::ENOENT),
                Err(error) => reply.error(failed("lookup", &error)),
            }
        });
    }

    fn forget(&self, _: &Request, inode: INodeNo, lookups: u64) {
        let inode = convert::inode(inode);
        self.front.modes.forgotten(inode);
        self.front.caches.view().forgotten(inode);
        if self.front.caches.inodes.forgotten(inode, lookups) {
            self.front.client.forgotten(inode);
        }
    }

    fn getattr(&self, request: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        self.run(move |front| {
            let telling = front.telling(&[]);
            let told = front.attributes(caller, inode).map(|entry| telling.attributes(entry));
            answer_attributes("getattr", told, reply);
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
        // The kernel takes these attributes also when it was told to drop them while the reply was in flight: it is
        // told of no time, and asks again, which costs no message.
        let told = |entry| Entry { attributes_valid: Duration::ZERO, ..entry };
        self.run(move |front| {
            answer_attributes("setattr", front.set_attributes(caller, inode, &changes).map(told), reply);
        });
    }

    fn readlink(&self, request: &Request, inode: INodeNo, reply: ReplyData) {
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        self.run(move |front| match front.read_link(caller, inode) {
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
        let (caller, parent, name) = (Caller::from(request), convert::inode(parent), convert::name(name));
        let mode = convert::new_permissions(mode, umask);
        self.run(move |front| {
            let telling = front.telling_change(&[parent]);
            let made = name.and_then(|name| {
                let entry = front.make_file(caller, parent, &name, mode)?;
                Ok(telling.entry(parent, &name, entry))
            });
            answer_entry("mknod", made, reply);
        });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let (caller, parent, name) = (Caller::from(request), convert::inode(parent), convert::name(name));
        let mode = convert::new_permissions(mode, umask);
        self.run(move |front| {
            let telling = front.telling_change(&[parent]);
            let made = name.and_then(|name| {
                let entry = front.make_directory(caller, parent, &name, mode)?;
                Ok(telling.entry(parent, &name, entry))
            });
            answer_entry("mkdir", made, reply);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, parent, name) = (Caller::from(request), convert::inode(parent), convert::name(name));
        self.run(move |front| {
            let telling = front.telling_change(&[parent]);
            let removed = name.and_then(|name| {
                front.unlink(caller, parent, &name)?;
                telling.removed(parent, &name);
                Ok(())
            });
            answer("unlink", removed, reply);
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, parent, name) = (Caller::from(request), convert::inode(parent), convert::name(name));
        self.run(move |front| {
            let telling = front.telling_change(&[parent]);
            let removed = name.and_then(|name| {
                front.remove_directory(caller, parent, &name)?;
                telling.removed(parent, &name);
                Ok(())
            });
            answer("rmdir", removed, reply);
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (caller, parent, name) = (Caller::from(request), convert::inode(parent), convert::name(name));
        let target = target.as_os_str().as_bytes().to_vec();
        self.run(move |front| {
            let telling = front.telling_change(&[parent]);
            let made = name.and_then(|name| {
                let entry = front.make_symlink(caller, parent, &name, &target)?;
                Ok(telling.entry(parent, &name, entry))
            });
            answer_entry("symlink", made, reply);
        });
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
        self.run(move |front| {
            let telling = front.telling_change(&[parent, new_parent]);
            let rename = || {
                let (from, to, mode) = (from?, to?, mode?);
                let valid = front.rename(caller, &from, &to, mode)?;
                telling.renamed(&from, &to, mode, valid);
                Ok(())
            };
            answer("rename", rename(), reply);
        });
    }

    fn link(&self, request: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, parent, name) = (Caller::from(request), convert::inode(parent), convert::name(name));
        let inode = convert::inode(inode);
        self.run(move |front| {
            let telling = front.telling_change(&[parent]);
            let made = name.and_then(|name| {
                let entry = front.link(caller, inode, parent, &name)?;
                // As in `setattr`.
                Ok(telling.entry(parent, &name, Entry { attributes_valid: Duration::ZERO, ..entry }))
            });
            answer_entry("link", made, reply);
        });
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        self.run(move |front| {
            let opened = front.open(caller, inode, flags, &|descriptor| reply.open_backing(descriptor));
            match opened {
                Ok(opened) => match &opened.backing {
                    Some(backing) => reply.opened_passthrough(FileHandle(opened.handle), opened.flags, backing),
                    None => reply.opened(FileHandle(opened.handle), opened.flags),
                },
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
        let mode = convert::new_permissions(mode, umask);
        self.run(move |front| {
            let telling = front.telling_change(&[parent]);
            let register = |descriptor: std::os::fd::BorrowedFd<'_>| reply.open_backing(descriptor);
            let create = |name: Name| {
                let (entry, opened) = front.create(caller, parent, &name, mode, flags, &register)?;
                Ok((telling.entry(parent, &name, entry), opened))
            };
            match name.and_then(create) {
                Ok((entry, opened)) => {
                    // The kernel takes one term for both here.
                    let valid = entry.name_valid.min(entry.attributes_valid);
                    let attributes = convert::attributes(&entry.attributes);
                    let (handle, flags) = (FileHandle(opened.handle), opened.flags);
                    match &opened.backing {
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
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.run(move |front| {
            front.read(handle.0, offset, bytes, |read| match read {
                Ok(bytes) => reply.data(bytes),
                Err(error) => reply.error(failed("read", &error)),
            });
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let by = convert::written_by(write_flags, flags);
        let serve = move |front: &Front, bytes: &[u8]| match front.write(handle.0, offset, bytes, by) {
            Ok(open_file) => {
                reply.written(bytes.len() as u32);
                front.after_transfer(&open_file, offset, bytes.len() as u64);
            }
            Err(error) => reply.error(failed("write", &error)),
        };
        match self.workers.stay() {
            Some(_permit) => guarded(|| serve(&self.front, bytes)),
            None => {
                // The bytes lie in the buffer of this thread, which goes back to the device: one copy more.
                let (front, bytes) = (self.front.clone(), bytes.to_vec());
                self.workers.spill(move || serve(&front, &bytes));
            }
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, handle: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.run(move |front| answer("flush", front.flush(handle.0), reply));
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.run(move |front| answer("release", front.release(handle.0), reply));
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.run(move |front| answer("fsync", front.sync(handle.0), reply));
    }

    fn opendir(&self, request: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.front.open_directory(Caller::from(request), convert::inode(inode)) {
            Ok((handle, keep)) => {
                let mut flags = fuser::FopenFlags::FOPEN_CACHE_DIR;
                flags.set(fuser::FopenFlags::FOPEN_KEEP_CACHE, keep);
                reply.opened(FileHandle(handle), flags);
            }
            Err(error) => reply.error(failed("opendir", &error)),
        }
    }

    fn readdir(&self, _: &Request, inode: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.run(move |front| {
            let shown = show(front, handle, offset, false, |_, item, next| match item {
                Item::Itself => reply.add(inode, next, fuser::FileType::Directory, "."),
                Item::Parent(parent) => {
                    reply.add(convert::kernel_inode(parent), next, fuser::FileType::Directory, "..")
                }
                Item::Entry(entry, _) => {
                    let kind = convert::file_type(entry.kind);
                    let name = OsStr::from_bytes(entry.name.as_bytes());
                    reply.add(convert::kernel_inode(entry.inode), next, kind, name)
                }
            });
            match shown {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(failed("readdir", &error)),
            }
        });
    }

    fn readdirplus(&self, _: &Request, inode: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.run(move |front| {
            let telling = front.telling(&[convert::inode(inode)]);
            let mut is_told = false;
            let shown = show(front, handle, offset, true, |pages, item, next| {
                // Of `.` and `..` the kernel takes the name and the number only.
                let unknown = |inode| convert::no_attributes(inode, FileKind::Directory);
                let mut add = |name: &OsStr, valid: Duration, attributes: FileAttr| {
                    reply.add(attributes.ino, next, name, &valid, &attributes, convert::GENERATION)
                };
                match item {
                    Item::Itself => add(OsStr::new("."), Duration::ZERO, unknown(convert::inode(inode))),
                    Item::Parent(parent) => add(OsStr::new(".."), Duration::ZERO, unknown(parent)),
                    // What was told is not to wait for a message: a recall of it may come meanwhile.
                    Item::Entry(entry, _) if is_told && needs_message(entry) => true,
                    Item::Entry(entry, valid) => {
                        let (valid, attributes) = entry_attributes(pages, entry, valid);
                        let valid = telling.listed(convert::inode(inode), &entry.name, entry.inode, valid);
                        is_told |= !valid.is_zero();
                        let is_full = add(OsStr::from_bytes(entry.name.as_bytes()), valid, attributes);
                        if is_full {
                            telling.not_listed(entry.inode);
                        }
                        is_full
                    }
                }
            });
            match shown {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(failed("readdirplus", &error)),
            }
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        answer("releasedir", self.front.directories.remove(handle.0).map(drop), reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        // Each change of names was acknowledged by its shard before the system call returned.
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.run(move |front| match front.space() {
            Ok(space) => {
                let (total, free) = (space.total / SPACE_BLOCK_BYTES, space.free / SPACE_BLOCK_BYTES);
                let inodes = space.files.saturating_add(INODES_FREE);
                let block = SPACE_BLOCK_BYTES as u32;
                reply.statfs(total, free, free, inodes, INODES_FREE, block, NAME_BYTES_MAX as u32, block);
            }
            Err(error) => reply.error(failed("statfs", &error)),
        });
    }

    fn setxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: &[u8], _: i32, _: u32, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, request: &Request, inode: INodeNo, mask: fuser::AccessFlags, reply: ReplyEmpty) {
        // Asked in a mount of root's own only (`attach.rs`), who is refused nothing but to run what nobody may run.
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        self.run(move |front| match front.attributes(caller, inode) {
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

/// Goes through an open directory from an offset, until `add` says that the reply is full, or what comes next would
/// take another message while there is something to answer already.
fn show(
    front: &Front,
    handle: FileHandle,
    offset: u64,
    with_attributes: bool,
    mut add: impl FnMut(&Pages<'_>, Item<'_>, u64) -> bool,
) -> Result<()> {
    let directory = front.directories.get(handle.0)?;
    let pages = Pages { front, directory: &directory };
    let mut listing = directory.listing.lock().unwrap_or_else(PoisonError::into_inner);
    let mut next = offset;
    while next == offset || listing.is_ready(next) {
        let Some((item, behind)) = listing.at(next, &pages, with_attributes)? else {
            front.listing_ended(&directory);
            break;
        };
        if add(&pages, item, behind) {
            break;
        }
        next = behind;
    }
    Ok(())
}

/// Whether anybody has the right to run the file, or it is a directory.
fn may_be_run(attributes: &weft_protocol::Attributes) -> bool {
    attributes.kind != weft_protocol::FileKind::Regular || attributes.mode & 0o111 != 0
}

/// Whether a message may be needed to tell of the entry.
fn needs_message(entry: &DirectoryEntry) -> bool {
    entry.attributes.is_none() && entry.kind == FileKind::Regular
}

/// What is told of an entry beside its name.
fn entry_attributes(pages: &Pages<'_>, entry: &DirectoryEntry, valid: Duration) -> (Duration, FileAttr) {
    if let Some(attributes) = &entry.attributes {
        return (valid, convert::attributes(attributes));
    }
    // The kernel would cut a file's pages to the size it is told, so that has to be the true one.
    if entry.kind == FileKind::Regular
        && let Ok(entry) = pages.attributes(entry.inode)
    {
        return (entry.attributes_valid.min(valid), convert::attributes(&entry.attributes));
    }
    // Asked for when somebody wants to know; nothing of this is kept. A name whose server is away is listed too.
    (Duration::ZERO, convert::no_attributes(entry.inode, entry.kind))
}
