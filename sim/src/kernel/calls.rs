//! System calls of programs, and what each of them returns.
//!
//! A call is a task. Paths are components from the root of the mount; descriptors and mappings have names that the
//! caller chooses. Each call with a path is repeated once after ESTALE and then asks for each name (`retry_estale`).
//!
//! Not here: how they work (the modules below).

pub mod attributes;
pub mod io;
pub mod mapping;
pub mod names;
pub mod open;

use super::attributes::Stale;
use super::directory_stream::DirectoryEntry;
use super::executor::Context;
use super::open_file::FileKey;
use super::requests::{Attributes, Errno, Kind, OpenFlags, RenameMode};
use super::state::FileRef;
use super::{CallId, Handle};

/// Components of a path.
pub type Path = Vec<String>;

/// A system call.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Call {
    Stat {
        path: Path,
    },
    /// statx(2) of `STATX_NLINK` alone: it asks only if that is stale.
    CountLinks {
        path: Path,
    },
    Open {
        path: Path,
        flags: OpenFlags,
        mode: u16,
        handle: Handle,
    },
    Close {
        handle: Handle,
    },
    Read {
        handle: Handle,
        size: u64,
    },
    Pread {
        handle: Handle,
        offset: u64,
        size: u64,
    },
    Write {
        handle: Handle,
        data: Vec<u8>,
    },
    Pwrite {
        handle: Handle,
        offset: u64,
        data: Vec<u8>,
    },
    Fstat {
        handle: Handle,
    },
    Truncate {
        path: Path,
        size: u64,
    },
    Ftruncate {
        handle: Handle,
        size: u64,
    },
    Fsync {
        handle: Handle,
        data_only: bool,
    },
    Chmod {
        path: Path,
        mode: u16,
    },
    Mkdir {
        path: Path,
        mode: u16,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Link {
        from: Path,
        to: Path,
    },
    Rename {
        from: Path,
        to: Path,
        mode: RenameMode,
    },
    /// One getdents64 with a buffer of this many bytes.
    Getdents {
        handle: Handle,
        bytes: usize,
    },
    Seekdir {
        handle: Handle,
        position: u64,
    },
    /// MAP_SHARED from the beginning of the file.
    Map {
        handle: Handle,
        mapping: Handle,
        writable: bool,
    },
    Load {
        mapping: Handle,
        offset: u64,
        size: u64,
    },
    Store {
        mapping: Handle,
        offset: u64,
        data: Vec<u8>,
    },
    /// MS_SYNC.
    Msync {
        mapping: Handle,
    },
    Unmap {
        mapping: Handle,
    },
}

/// What a call returns with success.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    Done,
    Attributes(Attributes),
    Data(Vec<u8>),
    Count(u64),
    Entries(Vec<DirectoryEntry>),
}

pub type CallResult = Result<Value, Errno>;

impl Context {
    /// Runs a call and reports its result.
    pub async fn run_call(self, id: CallId, call: Call) {
        let written = self.written_by(&call);
        let result = match self.execute(&call, false).await {
            Err(Errno::ESTALE) if has_path(&call) => self.execute(&call, true).await,
            result => result,
        };
        let mut mount = self.mount();
        if let Some(pieces) = written.and_then(|file| mount.pieces.remove(&file)) {
            mount.call_pieces.insert(id, pieces);
        }
        mount.finish_call(id, result);
    }

    /// The file that a call writes.
    fn written_by(&self, call: &Call) -> Option<FileKey> {
        let (Call::Write { handle, .. } | Call::Pwrite { handle, .. }) = call else { return None };
        self.mount().handles.get(handle).map(|file| file.key)
    }

    async fn execute(&self, call: &Call, revalidate: bool) -> CallResult {
        match call {
            Call::Stat { path } => {
                let dentry = self.walk(path, revalidate).await?;
                let inode = self.inode_of(&dentry).ok_or(Errno::ENOENT)?;
                self.attributes(inode, Stale::ALL, None).await.map(Value::Attributes)
            }
            Call::CountLinks { path } => {
                let dentry = self.walk(path, revalidate).await?;
                let inode = self.inode_of(&dentry).ok_or(Errno::ENOENT)?;
                let attributes = self.attributes(inode, Stale::LINKS, None).await?;
                Ok(Value::Count(attributes.nlink.into()))
            }
            Call::Truncate { path, size } => done(self.truncate(path, *size, revalidate).await),
            Call::Chmod { path, mode } => done(self.chmod(path, *mode, revalidate).await),
            Call::Mkdir { path, mode } => done(self.mkdir(path, *mode, revalidate).await),
            Call::Unlink { path } => done(self.remove(path, Kind::Regular, revalidate).await),
            Call::Rmdir { path } => done(self.remove(path, Kind::Directory, revalidate).await),
            Call::Link { from, to } => done(self.link(from, to, revalidate).await),
            Call::Rename { from, to, mode } => done(self.rename(from, to, *mode, revalidate).await),
            Call::Open { path, flags, mode, handle } => {
                let file = self.open(path, *flags, *mode).await?;
                let old = self.mount().handles.insert(*handle, file);
                drop(old);
                Ok(Value::Done)
            }
            _ => self.execute_on_file(call).await,
        }
    }

    async fn execute_on_file(&self, call: &Call) -> CallResult {
        match call {
            Call::Close { handle } => {
                let file = self.mount().handles.remove(handle).ok_or(Errno::EBADF)?;
                let flushed = self.flush(file.key).await;
                drop(file);
                flushed.map(|()| Value::Done)
            }
            Call::Read { handle, size } => {
                let file = self.file(*handle)?;
                let _position = self.lock_position(file.key).await;
                self.read_again(file.key, None, *size).await.map(Value::Data)
            }
            Call::Pread { handle, offset, size } => {
                let file = self.file(*handle)?;
                self.read_again(file.key, Some(*offset), *size).await.map(Value::Data)
            }
            Call::Write { handle, data } => {
                let file = self.file(*handle)?;
                let _position = self.lock_position(file.key).await;
                self.write(file.key, None, data).await.map(Value::Count)
            }
            Call::Pwrite { handle, offset, data } => {
                let file = self.file(*handle)?;
                self.write(file.key, Some(*offset), data).await.map(Value::Count)
            }
            Call::Fstat { handle } => {
                let file = self.file(*handle)?;
                let inode = self.mount().file(file.key).inode;
                self.attributes(inode, Stale::ALL, None).await.map(Value::Attributes)
            }
            Call::Ftruncate { handle, size } => {
                let file = self.file(*handle)?;
                if !self.mount().file(file.key).flags.access.writes() {
                    return Err(Errno::EINVAL);
                }
                done(self.ftruncate(file.key, *size).await)
            }
            Call::Fsync { handle, data_only } => {
                let file = self.file(*handle)?;
                done(self.fsync(file.key, *data_only).await)
            }
            Call::Getdents { handle, bytes } => {
                let file = self.file(*handle)?;
                if !self.mount().file(file.key).is_directory {
                    return Err(Errno::ENOTDIR);
                }
                let _position = self.lock_position(file.key).await;
                self.getdents(file.key, *bytes).await.map(Value::Entries)
            }
            Call::Seekdir { handle, position } => {
                let file = self.file(*handle)?;
                let _position = self.lock_position(file.key).await;
                self.mount().file_mut(file.key).position = *position;
                Ok(Value::Done)
            }
            _ => self.execute_on_mapping(call).await,
        }
    }

    async fn execute_on_mapping(&self, call: &Call) -> CallResult {
        match call {
            Call::Map { handle, mapping, writable } => {
                let file = self.file(*handle)?;
                let made = self.map(file.key, *writable).await?;
                let old = self.mount().mappings.insert(*mapping, made);
                drop(old);
                Ok(Value::Done)
            }
            Call::Load { mapping, offset, size } => {
                let file = self.mapped(*mapping, false)?;
                self.load(file.key, *offset, *size).await.map(Value::Data)
            }
            Call::Store { mapping, offset, data } => {
                let file = self.mapped(*mapping, true)?;
                done(self.store(file.key, *offset, data).await)
            }
            Call::Msync { mapping } => {
                let file = self.mapped(*mapping, false)?;
                done(self.fsync(file.key, true).await)
            }
            Call::Unmap { mapping } => {
                let mapping = self.mount().mappings.remove(mapping).ok_or(Errno::EBADF)?;
                self.unmap(mapping).await;
                Ok(Value::Done)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// The file of a descriptor, kept open for the call (`fdget`).
    fn file(&self, handle: Handle) -> Result<FileRef, Errno> {
        let mut mount = self.mount();
        let key = mount.handles.get(&handle).map(|file| file.key).ok_or(Errno::EBADF)?;
        Ok(mount.hold_file(key))
    }

    fn mapped(&self, mapping: Handle, writable: bool) -> Result<FileRef, Errno> {
        let mut mount = self.mount();
        let mapping = mount.mappings.get(&mapping).ok_or(Errno::EBADF)?;
        if writable && !mapping.writable {
            return Err(Errno(14));
        }
        let key = mapping.file.key;
        Ok(mount.hold_file(key))
    }
}

fn done(result: Result<(), Errno>) -> CallResult {
    result.map(|()| Value::Done)
}

/// Whether a call looks names up; open repeats itself.
fn has_path(call: &Call) -> bool {
    matches!(
        call,
        Call::Stat { .. }
            | Call::CountLinks { .. }
            | Call::Truncate { .. }
            | Call::Chmod { .. }
            | Call::Mkdir { .. }
            | Call::Unlink { .. }
            | Call::Rmdir { .. }
            | Call::Link { .. }
            | Call::Rename { .. }
    )
}
