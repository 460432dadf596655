//! Calls as system calls of this process.

use super::Executor;
use crate::call::{Access, Call, HandleId, LockHow, OpenFlags, RenameHow, Whence};
use crate::outcome::{Attributes, Entry, Outcome, Runs};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Stat, Timespec, Timestamps,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use weft_sys::shared_mapping::SharedMapping;

/// Alignment of the memory of O_DIRECT.
const ALIGNMENT: usize = 4096;

/// Descriptors of this process.
#[derive(Default)]
pub struct Kernel {
    directory: String,
    handles: BTreeMap<HandleId, Handle>,
}

struct Handle {
    descriptor: OwnedFd,
    may_write: bool,
    mapping: Option<SharedMapping>,
}

impl Executor for Kernel {
    fn reset(&mut self, directory: &str) -> Result<(), String> {
        self.handles.clear();
        self.directory = directory.to_owned();
        Ok(())
    }

    fn execute(&mut self, call: &Call) -> Outcome {
        let result = match (call.uses(), call) {
            (Some(id), Call::Close { .. }) => match self.handles.remove(&id) {
                Some(handle) => close(handle).map(|()| Outcome::Done),
                None => return Outcome::Skipped,
            },
            (Some(id), _) => match self.handles.get_mut(&id) {
                Some(handle) => handle.execute(call),
                None => return Outcome::Skipped,
            },
            (None, _) if call.opens().is_some_and(|id| self.handles.contains_key(&id)) => return Outcome::Skipped,
            (None, _) => self.execute_on_path(call),
        };
        result.unwrap_or_else(|errno| Outcome::Failed(errno.raw_os_error()))
    }
}

impl Kernel {
    fn path(&self, path: &str) -> String {
        format!("{}/{path}", self.directory)
    }

    fn open(&mut self, id: HandleId, path: &str, flags: OFlags, may_write: bool) -> Result<Outcome, Errno> {
        let descriptor = rustix::fs::open(self.path(path), flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))?;
        let inode = rustix::fs::fstat(&descriptor)?.st_ino;
        self.handles.insert(id, Handle { descriptor, may_write, mapping: None });
        Ok(Outcome::Opened(inode))
    }

    fn execute_on_path(&mut self, call: &Call) -> Result<Outcome, Errno> {
        let cwd = rustix::fs::CWD;
        match call {
            Call::Open { handle, path, access, flags } => {
                let may_write = *access == Access::ReadWrite;
                return self.open(*handle, path, open_flags(*access, *flags), may_write);
            }
            Call::OpenDirectory { handle, path } => return self.open(*handle, path, OFlags::DIRECTORY, false),
            Call::Stat { path } => return rustix::fs::lstat(self.path(path)).map(|stat| attributes(&stat)),
            Call::Truncate { path, size } => {
                // rustix has no truncate(2): the standard library's opens the file.
                let path = self.path(path);
                truncate(&path, *size)
            }
            Call::Rename { from, to, how } => {
                let flags = match how {
                    RenameHow::Replace => RenameFlags::empty(),
                    RenameHow::NoReplace => RenameFlags::NOREPLACE,
                    RenameHow::Exchange => RenameFlags::EXCHANGE,
                };
                rustix::fs::renameat_with(cwd, self.path(from), cwd, self.path(to), flags)
            }
            Call::Link { from, to } => rustix::fs::link(self.path(from), self.path(to)),
            Call::Unlink { path } => rustix::fs::unlink(self.path(path)),
            Call::MakeDirectory { path } => rustix::fs::mkdir(self.path(path), Mode::from_raw_mode(0o755)),
            Call::RemoveDirectory { path } => rustix::fs::rmdir(self.path(path)),
            Call::ChangeMode { path, mode } => {
                rustix::fs::chmod(self.path(path), Mode::from_raw_mode(u32::from(*mode)))
            }
            Call::SetTime { path, seconds } => {
                let time = Timespec { tv_sec: i64::try_from(*seconds).map_err(|_| Errno::INVAL)?, tv_nsec: 0 };
                let times = Timestamps { last_access: time, last_modification: time };
                rustix::fs::utimensat(cwd, self.path(path), &times, AtFlags::empty())
            }
            _ => Err(Errno::NOSYS),
        }
        .map(|()| Outcome::Done)
    }
}

impl Handle {
    fn execute(&mut self, call: &Call) -> Result<Outcome, Errno> {
        let file = &self.descriptor;
        match call {
            Call::Read { bytes, .. } => read(*bytes, |buffer| rustix::io::read(file, buffer)),
            Call::ReadAt { offset, bytes, .. } => {
                let mut at = *offset;
                read(*bytes, |buffer| rustix::io::pread(file, buffer, at).inspect(|count| at += *count as u64))
            }
            Call::Write { bytes, value, .. } => {
                with_buffer(*bytes, *value, |buffer| rustix::io::write(file, buffer)).map(count)
            }
            Call::WriteAt { offset, bytes, value, .. } => {
                with_buffer(*bytes, *value, |buffer| rustix::io::pwrite(file, buffer, *offset)).map(count)
            }
            Call::Seek { whence, offset, .. } => {
                let from = match whence {
                    Whence::Set => SeekFrom::Start(u64::try_from(*offset).map_err(|_| Errno::INVAL)?),
                    Whence::Current => SeekFrom::Current(*offset),
                    Whence::End => SeekFrom::End(*offset),
                };
                rustix::fs::seek(file, from).map(Outcome::Count)
            }
            Call::TruncateHandle { size, .. } => done(rustix::fs::ftruncate(file, *size)),
            Call::StatHandle { .. } => rustix::fs::fstat(file).map(|stat| attributes(&stat)),
            Call::ChangeModeHandle { mode, .. } => {
                done(rustix::fs::fchmod(file, Mode::from_raw_mode(u32::from(*mode))))
            }
            Call::ReadDirectory { bytes, .. } => read_directory(file.as_fd(), *bytes as usize),
            Call::Rewind { .. } => done(rustix::fs::seek(file, SeekFrom::Start(0))),
            Call::Sync { .. } => done(rustix::fs::fsync(file)),
            Call::MapRead { offset, bytes, .. } => load(&self.map(offset + bytes, false)?, *offset, *bytes),
            Call::MapWrite { offset, bytes, value, .. } => {
                let mapping = self.map(offset + bytes, true)?;
                mapping.store(*offset as usize, &vec![*value; *bytes as usize])?;
                done(mapping.sync())
            }
            Call::Map { bytes, .. } => {
                self.mapping = Some(self.map(*bytes, false)?);
                Ok(Outcome::Done)
            }
            Call::Load { offset, bytes, .. } => match &self.mapping {
                Some(mapping) => {
                    self.ask_size()?;
                    load(mapping, *offset, *bytes)
                }
                None => Ok(Outcome::Skipped),
            },
            Call::Unmap { .. } => Ok(self.mapping.take().map_or(Outcome::Skipped, |_| Outcome::Done)),
            Call::Lock { how, .. } => done(rustix::fs::flock(
                file,
                match how {
                    LockHow::Shared => FlockOperation::NonBlockingLockShared,
                    LockHow::Exclusive => FlockOperation::NonBlockingLockExclusive,
                    LockHow::Unlock => FlockOperation::Unlock,
                },
            )),
            _ => Err(Errno::NOSYS),
        }
    }

    /// As programs do before they touch a mapping. FUSE has no way to tell a kernel of a new size: it asks at the next
    /// fstat, and until then a page beyond the size that it knows is a SIGBUS.
    fn ask_size(&self) -> Result<(), Errno> {
        rustix::fs::fstat(&self.descriptor).map(drop)
    }

    fn map(&self, bytes: u64, may_store: bool) -> Result<SharedMapping, Errno> {
        if may_store && !self.may_write {
            return Err(Errno::ACCESS);
        }
        self.ask_size()?;
        SharedMapping::new(self.descriptor.as_fd(), bytes as usize, may_store)
    }
}

fn open_flags(access: Access, flags: OpenFlags) -> OFlags {
    let access = match access {
        Access::Read => OFlags::RDONLY,
        Access::Write => OFlags::WRONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    let all = [
        (flags.create, OFlags::CREATE),
        (flags.exclusive, OFlags::EXCL),
        (flags.truncate, OFlags::TRUNC),
        (flags.append, OFlags::APPEND),
        (flags.direct, OFlags::DIRECT),
        (flags.sync, OFlags::SYNC),
        (flags.dsync, OFlags::DSYNC),
    ];
    all.into_iter().filter(|(is_set, _)| *is_set).fold(access, |all, (_, flag)| all | flag)
}

/// Closes a descriptor and returns its error: that of a write-back that failed.
fn close(handle: Handle) -> Result<(), Errno> {
    drop(handle.mapping);
    weft_sys::plain_calls::close(handle.descriptor)
}

fn done<T>(result: Result<T, Errno>) -> Result<Outcome, Errno> {
    result.map(|_| Outcome::Done)
}

fn count(bytes: usize) -> Outcome {
    Outcome::Count(bytes as u64)
}

fn truncate(path: &str, size: u64) -> Result<(), Errno> {
    weft_sys::plain_calls::truncate(path, size)
}

/// Reads once: a short count is part of what is checked. After EINTR it calls again, as the runtimes of programs do: a
/// mount says so where it cannot tell the kernel in time that the file has been cut (docs/guide/consistency.md).
fn read(bytes: u64, mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Outcome, Errno> {
    let bytes = bytes as usize;
    let mut memory = vec![0xee; bytes + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut memory[start..start + bytes];
    let count = rustix::io::retry_on_intr(|| read(buffer))?;
    Ok(Outcome::Bytes(Runs::of(&buffer[..count])))
}

fn with_buffer<T>(bytes: u64, value: u8, write: impl FnOnce(&[u8]) -> T) -> T {
    let bytes = bytes as usize;
    let memory = vec![value; bytes + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    write(&memory[start..start + bytes])
}

fn load(mapping: &SharedMapping, offset: u64, bytes: u64) -> Result<Outcome, Errno> {
    let mut buffer = vec![0; bytes as usize];
    mapping.load(offset as usize, &mut buffer)?;
    Ok(Outcome::Bytes(Runs::of(&buffer)))
}

fn read_directory(file: BorrowedFd<'_>, bytes: usize) -> Result<Outcome, Errno> {
    let mut buffer = vec![MaybeUninit::uninit(); bytes];
    let mut listing = RawDir::new(file, &mut buffer);
    let mut entries = Vec::new();
    while let Some(entry) = listing.next() {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        entries.push(Entry { name, is_directory: entry.file_type() == FileType::Directory });
        if listing.is_buffer_empty() {
            break;
        }
    }
    Ok(Outcome::Entries(entries))
}

fn attributes(stat: &Stat) -> Outcome {
    Outcome::Attributes(Attributes {
        inode: stat.st_ino,
        is_directory: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
        mode: (stat.st_mode & 0o7777) as u16,
        links: stat.st_nlink,
        size: stat.st_size.cast_unsigned(),
        mtime: stat.st_mtime * 1_000_000_000 + stat.st_mtime_nsec.cast_signed(),
    })
}
