//! A program without a mount: the same system calls, made of the client machine's own procedures.
//!
//! Not here: mappings, which a native client does not have; the kernel (`mount.rs`).

use crate::kernel::directory_stream::DirectoryEntry;
use crate::kernel::requests::OpenFlags;
use crate::kernel::{Call, CallId, CallResult, Handle, Value};
use crate::mount::serve::{attributes, errno, kind, options, rename_mode, text};
use crate::process::Process;
use crate::shell::SimShell;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use weft_client_core::{Entry, Files, FlushFor, retry_stale};
use weft_protocol::message::shard::CreateFile;
use weft_protocol::{AttributeChanges, Cookie, Credentials, Error, FileKind, InodeNumber, Name, Result};

/// Names of one page of a listing.
const PAGE_ENTRIES: u32 = 3;

/// What is open.
#[derive(Clone)]
enum Open {
    File {
        handle: Rc<weft_client_core::Handle<SimShell>>,
        position: u64,
    },
    /// `None`: all names were listed.
    Directory {
        inode: InodeNumber,
        next: Option<Cookie>,
    },
}

/// The programs of a native client.
pub struct NativeCalls {
    machine: Arc<Files<SimShell>>,
    process: Rc<Process>,
    open: RefCell<BTreeMap<Handle, Open>>,
    pub returned: RefCell<Vec<(CallId, CallResult)>>,
    who: Credentials,
}

impl NativeCalls {
    pub fn new(machine: Arc<Files<SimShell>>, process: Rc<Process>) -> Self {
        let (open, returned) = (RefCell::default(), RefCell::default());
        Self { machine, process, open, returned, who: Credentials::default() }
    }

    /// Number of the inode that is open under this handle.
    pub fn inode_of(&self, handle: Handle) -> Option<u64> {
        self.open.borrow().get(&handle).map(|open| match open {
            Open::File { handle, .. } => handle.open.inode.raw(),
            Open::Directory { inode, .. } => inode.raw(),
        })
    }

    /// Makes a call, to its end.
    pub async fn run(self: Rc<Self>, id: CallId, call: Call) {
        let result = self.execute(&call).await.map_err(|error| errno(&error));
        self.returned.borrow_mut().push((id, result));
        self.process.progressed();
    }

    async fn execute(&self, call: &Call) -> Result<Value> {
        match call {
            Call::Open { path, flags, mode, handle } => self.open(path, *flags, *mode, *handle).await,
            Call::CountLinks { .. }
            | Call::Stat { .. }
            | Call::Truncate { .. }
            | Call::Mkdir { .. }
            | Call::Unlink { .. }
            | Call::Rmdir { .. }
            | Call::Link { .. }
            | Call::Rename { .. } => retry_stale(async || self.by_path(call).await).await,
            _ => self.use_handle(call).await,
        }
    }

    async fn by_path(&self, call: &Call) -> Result<Value> {
        match call {
            Call::CountLinks { path } => {
                let inode = self.walk(path).await?;
                match self.attributes(inode).await? {
                    Value::Attributes(attributes) => Ok(Value::Count(attributes.nlink.into())),
                    other => unreachable!("a stat returned {other:?}"),
                }
            }
            Call::Stat { path } => {
                let inode = self.walk(path).await?;
                self.attributes(inode).await
            }
            Call::Truncate { path, size } => {
                let inode = self.walk(path).await?;
                self.cut(inode, *size).await
            }
            Call::Mkdir { path, mode } => {
                let (parent, name) = self.parent(path).await?;
                self.machine.make_directory(&self.who, parent, &name, *mode).await.map(|_| Value::Done)
            }
            Call::Unlink { path } => {
                let (parent, name) = self.parent(path).await?;
                self.machine.unlink(&self.who, parent, &name).await.map(|_| Value::Done)
            }
            Call::Rmdir { path } => {
                let (parent, name) = self.parent(path).await?;
                self.machine.remove_directory(&self.who, parent, &name).await.map(|()| Value::Done)
            }
            Call::Link { from, to } => {
                let inode = self.walk(from).await?;
                let (parent, name) = self.parent(to).await?;
                self.machine.link(&self.who, inode, parent, &name).await.map(|_| Value::Done)
            }
            Call::Rename { from, to, mode } => {
                let ((from, old), (to, new)) = (self.parent(from).await?, self.parent(to).await?);
                let renamed = self.machine.rename(&self.who, (from, &old), (to, &new), rename_mode(*mode));
                renamed.await.map(|_| Value::Done)
            }
            other => unreachable!("{other:?} is no call by a path"),
        }
    }

    async fn use_handle(&self, call: &Call) -> Result<Value> {
        match call {
            Call::Close { handle } => {
                let open = self.open.borrow_mut().remove(handle).ok_or(Error::BadHandle)?;
                let Open::File { handle, .. } = open else { return Ok(Value::Done) };
                let flushed = handle.open.flush(&self.machine.objects, FlushFor::Program).await;
                self.machine.close_handle(&handle).await;
                flushed.map(|()| Value::Done)
            }
            Call::Read { handle, size } => self.read(*handle, None, *size).await,
            Call::Pread { handle, offset, size } => self.read(*handle, Some(*offset), *size).await,
            Call::Write { handle, data } => self.write(*handle, None, data).await,
            Call::Pwrite { handle, offset, data } => self.write(*handle, Some(*offset), data).await,
            Call::Fstat { handle } => {
                let inode = self.file(*handle)?.0.open.inode;
                self.attributes(inode).await
            }
            Call::Ftruncate { handle, size } => {
                let inode = self.file(*handle)?.0.open.inode;
                self.cut(inode, *size).await
            }
            Call::Fsync { handle, .. } => {
                let (file, _) = self.file(*handle)?;
                file.open.sync(&self.machine.objects).await.map(|()| Value::Done)
            }
            Call::Getdents { handle, .. } => self.list(*handle).await,
            Call::Seekdir { handle, position: 0 } => {
                if let Some(Open::Directory { next, .. }) = self.open.borrow_mut().get_mut(handle) {
                    *next = Some(Cookie::START);
                }
                Ok(Value::Done)
            }
            _ => Err(Error::NotSupported),
        }
    }

    async fn entry(&self, parent: InodeNumber, name: &str) -> Result<Entry> {
        self.machine.lookup(&self.who, parent, &Name::new(name.as_bytes())?).await
    }

    async fn walk(&self, path: &[String]) -> Result<InodeNumber> {
        let mut inode = InodeNumber::ROOT;
        for (number, name) in path.iter().enumerate() {
            let entry = self.entry(inode, name).await?;
            if entry.attributes.kind != FileKind::Directory && number + 1 < path.len() {
                return Err(Error::NotDirectory);
            }
            inode = entry.attributes.inode;
        }
        Ok(inode)
    }

    /// The directory of a path, and the name in it.
    async fn parent(&self, path: &[String]) -> Result<(InodeNumber, Name)> {
        let (name, directory) = path.split_last().ok_or(Error::Invalid)?;
        Ok((self.walk(directory).await?, Name::new(name.as_bytes())?))
    }

    async fn attributes(&self, inode: InodeNumber) -> Result<Value> {
        let entry = self.machine.attributes(&self.who, inode).await?;
        Ok(Value::Attributes(attributes(&entry.attributes)))
    }

    async fn cut(&self, inode: InodeNumber, size: u64) -> Result<Value> {
        let changes = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
        self.machine.set_attributes(&self.who, inode, &changes).await.map(|_| Value::Done)
    }

    async fn open(&self, path: &[String], flags: OpenFlags, mode: u16, number: Handle) -> Result<Value> {
        let open = if path.is_empty() {
            Open::Directory { inode: InodeNumber::ROOT, next: Some(Cookie::START) }
        } else {
            let (parent, name) = self.parent(path).await?;
            let create = flags.create.then_some(CreateFile { mode, exclusive: flags.exclusive, plan: None });
            match self.machine.open_at(&self.who, parent, &name, options(flags), create).await {
                Ok((handle, _)) => Open::File { handle: Rc::new(handle), position: 0 },
                Err(Error::IsDirectory) if !flags.access.writes() && !flags.create => {
                    let inode = self.machine.lookup(&self.who, parent, &name).await?.attributes.inode;
                    Open::Directory { inode, next: Some(Cookie::START) }
                }
                Err(error) => return Err(error),
            }
        };
        self.open.borrow_mut().insert(number, open);
        Ok(Value::Done)
    }

    fn file(&self, handle: Handle) -> Result<(Rc<weft_client_core::Handle<SimShell>>, u64)> {
        match self.open.borrow().get(&handle) {
            Some(Open::File { handle, position }) => Ok((Rc::clone(handle), *position)),
            _ => Err(Error::BadHandle),
        }
    }

    fn go_on(&self, handle: Handle, to: u64) {
        if let Some(Open::File { position, .. }) = self.open.borrow_mut().get_mut(&handle) {
            *position = to;
        }
    }

    async fn read(&self, number: Handle, offset: Option<u64>, size: u64) -> Result<Value> {
        let (file, position) = self.file(number)?;
        let at = offset.unwrap_or(position);
        let mut bytes = vec![0; usize::try_from(size).expect("reads are short")];
        let count = file.read_at(&self.machine.objects, &mut bytes, at).await?;
        bytes.truncate(count);
        if offset.is_none() {
            self.go_on(number, at + count as u64);
        }
        Ok(Value::Data(bytes))
    }

    async fn write(&self, number: Handle, offset: Option<u64>, data: &[u8]) -> Result<Value> {
        let (file, position) = self.file(number)?;
        let written = file.write_at(&self.machine.objects, data, offset.unwrap_or(position)).await?;
        if offset.is_none() {
            self.go_on(number, written.offset + data.len() as u64);
        }
        Ok(Value::Count(data.len() as u64))
    }

    async fn list(&self, number: Handle) -> Result<Value> {
        let (inode, next) = match self.open.borrow().get(&number) {
            Some(Open::Directory { inode, next }) => (*inode, *next),
            _ => return Err(Error::NotDirectory),
        };
        let Some(cursor) = next else { return Ok(Value::Entries(Vec::new())) };
        let page = self.machine.read_directory(&self.who, inode, cursor, PAGE_ENTRIES, false).await?;
        let entries: Vec<_> = page
            .entries
            .iter()
            .map(|entry| DirectoryEntry {
                ino: entry.inode.raw(),
                kind: kind(entry.kind),
                name: text(entry.name.as_bytes()),
                next: 0,
            })
            .collect();
        if let Some(Open::Directory { next, .. }) = self.open.borrow_mut().get_mut(&number) {
            *next = page.next;
        }
        Ok(Value::Entries(entries))
    }
}
