//! Calls as calls of the client library, which has a session of its own.
//!
//! What the library does not have (positions of handles, mappings, locks) is ENOSYS, and [`crate::generate`] asks
//! native workers for none of it.

use super::Executor;
use crate::call::{Access, Call, HandleId, OpenFlags, RenameHow};
use crate::outcome::{Attributes, Entry, Outcome, Runs};
use rustix::io::Errno;
use std::collections::BTreeMap;
use weft_client::protocol::message::shard::{Access as WeftAccess, CreateFile, RenameMode};
use weft_client::protocol::{
    AttributeChanges, Attributes as WeftAttributes, Cookie, Credentials, Error, FileKind, InodeNumber, Name,
    TimeChange, Timestamp,
};
use weft_client::{Client, ClientOptions, File, Instance, OpenOptions};

/// How often a call on a path is made: its inode may be gone between the walk and what is asked of it, and its name be
/// another file's. (The kernel's `retry_estale`, which tries once more.)
const WALKS_MAX: u32 = 4;
/// Entries of one step of a listing.
const ENTRY_BYTES: u64 = 32;

/// A client and its open files.
pub struct Native {
    client: Client,
    who: Credentials,
    directory: String,
    handles: BTreeMap<HandleId, Handle>,
}

enum Handle {
    File(File),
    /// Where the listing goes on; `None`: at its end.
    Directory(InodeNumber, Option<Cookie>),
}

impl Native {
    /// Connects to a running file system.
    pub fn connect(name: &str) -> Result<Self, String> {
        let instance = Instance::find(Some(name)).map_err(|error| format!("file system {name}: {error}"))?;
        let options = ClientOptions::from_environment()?;
        let client = Client::connect(&instance, &options).map_err(|error| format!("connect to {name}: {error}"))?;
        let who = client.credentials();
        Ok(Self { client, who, directory: "/".to_owned(), handles: BTreeMap::new() })
    }

    fn path(&self, path: &str) -> Vec<u8> {
        format!("{}/{path}", self.directory).into_bytes()
    }

    fn inode(&self, path: &str) -> Result<InodeNumber, Error> {
        Ok(self.client.walk(&self.who, &self.path(path), false)?.attributes.inode)
    }

    fn parent(&self, path: &str) -> Result<(InodeNumber, Name), Error> {
        self.client.walk_to_parent(&self.who, &self.path(path))
    }

    fn change(&self, inode: InodeNumber, changes: &AttributeChanges) -> Result<Outcome, Error> {
        self.client.set_attributes(&self.who, inode, changes).map(|_| Outcome::Done)
    }

    fn attributes(&self, inode: InodeNumber) -> Result<Outcome, Error> {
        self.client.attributes(&self.who, inode).map(|entry| outcome_of(&entry.attributes))
    }

    fn close(&mut self, id: HandleId) -> Result<Outcome, Error> {
        match self.handles.remove(&id) {
            Some(Handle::File(file)) => file.close().map(|()| Outcome::Done),
            Some(Handle::Directory(..)) => Ok(Outcome::Done),
            None => Ok(Outcome::Skipped),
        }
    }

    fn open(&mut self, id: HandleId, path: &str, access: Access, flags: OpenFlags) -> Result<Outcome, Error> {
        let access = match access {
            Access::Read => WeftAccess::Read,
            Access::Write => WeftAccess::Write,
            Access::ReadWrite => WeftAccess::ReadWrite,
        };
        let OpenFlags { truncate, append, direct, .. } = flags;
        let options = OpenOptions { truncate, append, direct, ..OpenOptions::of(access) };
        let create = flags.create.then_some(CreateFile { mode: 0o644, exclusive: flags.exclusive, plan: None });
        let (parent, name) = self.parent(path)?;
        let (file, _) = self.client.open_at(&self.who, parent, &name, options, create)?;
        let inode = file.inode();
        self.handles.insert(id, Handle::File(file));
        Ok(Outcome::Opened(number(inode)))
    }

    fn walk_and_execute(&mut self, call: &Call) -> Result<Outcome, Error> {
        let mut result = self.execute_on_path(call);
        for _ in 1..WALKS_MAX {
            if !matches!(result, Err(Error::Stale)) {
                break;
            }
            result = self.execute_on_path(call);
        }
        result
    }

    fn execute_on_path(&mut self, call: &Call) -> Result<Outcome, Error> {
        match call {
            Call::Open { handle, path, access, flags } => return self.open(*handle, path, *access, *flags),
            Call::OpenDirectory { handle, path } => {
                let entry = self.client.walk(&self.who, &self.path(path), false)?.attributes;
                if entry.kind != FileKind::Directory {
                    return Err(Error::NotDirectory);
                }
                self.handles.insert(*handle, Handle::Directory(entry.inode, Some(Cookie::START)));
                return Ok(Outcome::Opened(number(entry.inode)));
            }
            Call::Stat { path } => return self.attributes(self.inode(path)?),
            Call::Truncate { path, size } => {
                let changes = AttributeChanges { size: Some(*size), ..AttributeChanges::default() };
                return self.change(self.inode(path)?, &changes);
            }
            Call::Rename { from, to, how } => {
                let ((parent, name), (new_parent, new_name)) = (self.parent(from)?, self.parent(to)?);
                let mode = match how {
                    RenameHow::Replace => RenameMode::Replace,
                    RenameHow::NoReplace => RenameMode::NoReplace,
                    RenameHow::Exchange => RenameMode::Exchange,
                };
                self.client.rename(&self.who, parent, &name, new_parent, &new_name, mode)?;
            }
            Call::Link { from, to } => {
                let (inode, (parent, name)) = (self.inode(from)?, self.parent(to)?);
                self.client.link(&self.who, inode, parent, &name)?;
            }
            Call::Unlink { path } => {
                let (parent, name) = self.parent(path)?;
                self.client.unlink(&self.who, parent, &name)?;
            }
            Call::MakeDirectory { path } => {
                let (parent, name) = self.parent(path)?;
                self.client.make_directory(&self.who, parent, &name, 0o755)?;
            }
            Call::RemoveDirectory { path } => {
                let (parent, name) = self.parent(path)?;
                self.client.remove_directory(&self.who, parent, &name)?;
            }
            Call::ChangeMode { path, mode } => {
                let changes = AttributeChanges { mode: Some(*mode), ..AttributeChanges::default() };
                return self.change(self.inode(path)?, &changes);
            }
            Call::SetTime { path, seconds } => {
                let seconds = i64::try_from(*seconds).map_err(|_| Error::Invalid)?;
                let time = TimeChange::To(Timestamp::from_parts(seconds, 0));
                let changes = AttributeChanges { mtime: Some(time), ..AttributeChanges::default() };
                return self.change(self.inode(path)?, &changes);
            }
            _ => return Ok(Outcome::Failed(Errno::NOSYS.raw_os_error())),
        }
        Ok(Outcome::Done)
    }

    fn execute_on_file(&self, file: &File, call: &Call) -> Result<Outcome, Error> {
        match call {
            Call::ReadAt { offset, bytes, .. } => {
                let mut buffer = vec![0xee; *bytes as usize];
                let count = file.read_at(&mut buffer, *offset)?;
                Ok(Outcome::Bytes(Runs::of(&buffer[..count])))
            }
            Call::WriteAt { offset, bytes, value, .. } => {
                file.write_at(&vec![*value; *bytes as usize], *offset)?;
                Ok(Outcome::Count(*bytes))
            }
            Call::TruncateHandle { size, .. } => file.truncate(*size).map(|()| Outcome::Done),
            Call::StatHandle { .. } => self.attributes(file.inode()),
            Call::ChangeModeHandle { mode, .. } => {
                let changes = AttributeChanges { mode: Some(*mode), ..AttributeChanges::default() };
                self.change(file.inode(), &changes)
            }
            Call::Sync { .. } => file.sync().map(|()| Outcome::Done),
            _ => Ok(Outcome::Failed(Errno::NOSYS.raw_os_error())),
        }
    }

    fn execute_on_directory(&mut self, id: HandleId, inode: InodeNumber, call: &Call) -> Result<Outcome, Error> {
        match call {
            Call::StatHandle { .. } => self.attributes(inode),
            Call::Rewind { .. } => {
                self.handles.insert(id, Handle::Directory(inode, Some(Cookie::START)));
                Ok(Outcome::Done)
            }
            Call::ReadDirectory { bytes, .. } => {
                let Some(Handle::Directory(_, Some(after))) = self.handles.get(&id) else {
                    return Ok(Outcome::Entries(Vec::new()));
                };
                let entries_max = u32::try_from(bytes / ENTRY_BYTES).unwrap_or(u32::MAX).max(1);
                let page = self.client.read_directory(&self.who, inode, *after, entries_max, false)?;
                self.handles.insert(id, Handle::Directory(inode, page.next));
                let entry = |name: &Name, kind| Entry {
                    name: String::from_utf8_lossy(name.as_bytes()).into_owned(),
                    is_directory: kind == FileKind::Directory,
                };
                Ok(Outcome::Entries(page.entries.iter().map(|found| entry(&found.name, found.kind)).collect()))
            }
            _ => Ok(Outcome::Failed(Errno::NOSYS.raw_os_error())),
        }
    }
}

impl Executor for Native {
    fn reset(&mut self, directory: &str) -> Result<(), String> {
        for id in self.handles.keys().copied().collect::<Vec<_>>() {
            // Its error belongs to a run that is over.
            let _ = self.close(id);
        }
        self.directory = directory.to_owned();
        Ok(())
    }

    fn execute(&mut self, call: &Call) -> Outcome {
        let result = match (call.uses(), call) {
            (None, _) if call.opens().is_some_and(|id| self.handles.contains_key(&id)) => return Outcome::Skipped,
            (None, _) => self.walk_and_execute(call),
            (Some(id), Call::Close { .. }) => self.close(id),
            (Some(id), _) => match self.handles.get(&id) {
                None => return Outcome::Skipped,
                Some(Handle::File(file)) => self.execute_on_file(&file.clone(), call),
                Some(Handle::Directory(inode, _)) => self.execute_on_directory(id, *inode, call),
            },
        };
        result.unwrap_or_else(|error| Outcome::Failed(error.to_errno()))
    }
}

/// The number that a mount shows as `st_ino`.
fn number(inode: InodeNumber) -> u64 {
    inode.raw()
}

fn outcome_of(attributes: &WeftAttributes) -> Outcome {
    let WeftAttributes { inode, kind, mode, links, size, mtime, .. } = attributes;
    Outcome::Attributes(Attributes {
        inode: number(*inode),
        is_directory: *kind == FileKind::Directory,
        mode: *mode,
        links: u64::from(*links),
        size: *size,
        mtime: mtime.0,
    })
}
