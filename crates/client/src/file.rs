//! Open files.
//!
//! Ways that bytes go, the shortest that is open first: gathered bytes in this process; a descriptor of the object's
//! file (same node, under a lease); bytes asked for ahead; straight between the caller's memory and the server.

use crate::calls::Answer;
use crate::client::{Client, Inner};
use crate::data_calls::read_descriptor;
use crate::link::lock;
use crate::names::{Entry, Told};
use crate::open_inode::{FlushFor, OpenInode, ReadVia};
use crate::opens::Opening;
use crate::reader::{Reader, SMALL_BYTES, Source, read_object};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use weft_client_core::{Cached, Opened};
use weft_protocol::message::shard::{Access, CreateFile, OpenFlags, ShardAnswer, ShardRequest};
use weft_protocol::{AttributeChanges, Attributes, Credentials, Error, FileKind, InodeNumber, Name, Result};
use weft_transport::Registration;

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    pub access: Access,
    pub truncate: bool,
    /// Each write goes to the end of the file.
    pub append: bool,
    /// No buffering: each call goes to the storage server.
    pub direct: bool,
    /// Whose memory is registered for this handle's reads, and for its writes that are not gathered, where they go by
    /// RDMA; `None`: as the client was told.
    pub registration: Option<Registration>,
}

impl OpenOptions {
    /// Open for reading.
    pub const READ: Self = Self::of(Access::Read);
    /// Open for writing, cut to nothing.
    pub const WRITE: Self = Self { truncate: true, ..Self::of(Access::Write) };

    /// Open as it is, with nothing special.
    pub const fn of(access: Access) -> Self {
        Self { access, truncate: false, append: false, direct: false, registration: None }
    }

    fn flags(self) -> OpenFlags {
        OpenFlags { access: self.access, truncate: self.truncate, direct: self.direct }
    }
}

/// An open file. Shared by any number of threads. Dropping it without [`File::close`] loses errors of buffered writes.
#[derive(Clone)]
pub struct File(Arc<Handle>);

struct Handle {
    inner: Arc<Inner>,
    open: Arc<OpenInode>,
    options: OpenOptions,
    /// Who opened it.
    who: Arc<Credentials>,
    /// Rank 0: taken before the inode's state, held across data requests of what this handle asks for ahead, and while
    /// bytes are handed out.
    reader: Mutex<Reader>,
}

/// A file in the hands of a kernel. To be dropped when the kernel has closed it.
pub struct Lent {
    handle: Arc<Handle>,
    descriptor: Arc<OwnedFd>,
    may_write: bool,
}

impl Lent {
    /// Of the object's file.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Whether the kernel may write through it, if the handle writes at all. Otherwise writes have to come here.
    pub fn may_write(&self) -> bool {
        self.may_write
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.handle.open.lent_back(self.may_write);
    }
}

impl Client {
    /// Opens an inode. One message.
    pub fn open(&self, who: &Credentials, inode: InodeNumber, options: OpenOptions) -> Result<File> {
        if let Some((file, _)) = self.reopen(who, inode, options) {
            return Ok(file);
        }
        let opening = Opening::begin(&self.0);
        let request = ShardRequest::Open { inode, flags: options.flags() };
        let Answer { answer, stamp, session, now_ms, .. } = self.0.call(who, inode.shard(), request)?;
        let ShardAnswer::Opened { attributes, capability, grants, .. } = answer else {
            return Err(Error::Malformed);
        };
        if let Some(mut cache) = self.0.cache_for(session) {
            cache.learn_attributes(&attributes, grants, stamp);
        }
        let opened = Opened { attributes, capability, grants, stamp, session };
        self.opened(who, &opened, now_ms, options, &opening).map(|(file, _)| file)
    }

    /// Opens a name, and makes it when it is not there and `create` says how. One message for both.
    pub fn open_at(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &Name,
        options: OpenOptions,
        create: Option<CreateFile>,
    ) -> Result<(File, Entry)> {
        let may_be_there = create.is_none_or(|create| !create.exclusive);
        if may_be_there
            && let Cached::Found(inode, FileKind::Regular) = self.0.cached(who, parent, name)
            && let Some((file, attributes)) = self.reopen(who, inode, options)
        {
            let entry = self.0.entry_of_open(who, (parent, name), &attributes, &file.0.open, Told::HERE)?;
            return Ok((file, entry));
        }
        let opening = Opening::begin(&self.0);
        let since = self.0.reports();
        let request = ShardRequest::OpenAt { parent, name: name.clone(), flags: options.flags(), create };
        let Answer { answer, stamp, session, resent, now_ms } = self.0.call(who, parent.shard(), request)?;
        let (attributes, capability, created, grants) = match answer {
            ShardAnswer::Opened { attributes, capability, created, grants } => {
                (attributes, capability, created, grants)
            }
            ShardAnswer::Absent { grants } => {
                self.0.learn_absent(parent, name, grants, (session, stamp, resent));
                return Err(Error::NotFound);
            }
            ShardAnswer::RemoteDirectory { .. } => return Err(Error::IsDirectory),
            ShardAnswer::Entry { attributes, .. } => {
                let directory = attributes.kind == FileKind::Directory;
                return Err(if directory { Error::IsDirectory } else { Error::SymlinkLoop });
            }
            _ => return Err(Error::Malformed),
        };
        let is_new = created && !resent;
        let mut valid = (0, 0);
        if let Some(mut cache) = self.0.cache_for(session) {
            if is_new {
                valid = cache.learn_made((parent, name), &attributes, grants, stamp, now_ms);
            } else {
                if resent {
                    cache.doubt_name(parent, name, stamp);
                } else {
                    cache.learn_name(parent, name, Some((attributes.inode, attributes.kind)), grants, stamp);
                }
                cache.learn_attributes(&attributes, grants, stamp);
            }
        }
        let opened = Opened { attributes, capability, grants, stamp, session };
        let (file, in_use) = self.opened(who, &opened, now_ms, options, &opening)?;
        let attributes = opened.attributes;
        let entry = if is_new && !in_use {
            // Nobody here has made anything of it that the shard does not know.
            Entry::of(attributes, valid)
        } else {
            let told = Told { asked: false, since };
            self.0.entry_of_open(who, (parent, name), &attributes, &file.0.open, told)?
        };
        Ok((file, entry))
    }

    /// Opens an inode that was closed a while ago, or is open, under the lease that is still held: no message.
    fn reopen(&self, who: &Credentials, inode: InodeNumber, options: OpenOptions) -> Option<(File, Attributes)> {
        let inner = &self.0;
        if options.truncate || options.direct || lock(&inner.cache).holds_ms(inode.shard(), inner.clock_ms()) == 0 {
            return None;
        }
        let open = {
            let table = lock(&inner.open);
            let open = Arc::clone(table.get(inode)?);
            open.handles.fetch_add(1, Ordering::AcqRel);
            open
        };
        let file = self.handle(&inner.kept(who), open, options);
        // A lease that is being recalled is weakened before this is asked.
        let attributes = file.0.open.reopen(inner, who, options.access)?;
        Some((file, attributes))
    }

    /// A handle of what an open told; and whether the inode had handles before. `now_ms`: when the reply had come.
    fn opened(
        &self,
        who: &Credentials,
        opened: &Opened,
        now_ms: u64,
        options: OpenOptions,
        opening: &Opening<'_>,
    ) -> Result<(File, bool)> {
        let (inner, attributes) = (&self.0, &opened.attributes);
        let make = || {
            let term = inner.terms.at(attributes.inode.shard());
            OpenInode::new(attributes, inner.buffer_bytes, inner.session(), term)
        };
        let (open, in_use) = lock(&inner.open).take(attributes.inode, make);
        let file = self.handle(&inner.kept(who), open, options);
        let Handle { open, who, .. } = &*file.0;
        open.opened(inner, who, options.access, opened, now_ms)?;
        if options.truncate && (in_use || opening.was_reported(attributes.inode)) {
            // What others of this client had gathered, and reported, may have passed the cut of the open.
            let nothing = AttributeChanges { size: Some(0), ..AttributeChanges::default() };
            open.set_attributes(inner, who, &nothing)?;
        }
        Ok((file, in_use))
    }

    fn handle(&self, who: &Arc<Credentials>, open: Arc<OpenInode>, options: OpenOptions) -> File {
        let reader = Mutex::new(Reader::default());
        File(Arc::new(Handle { inner: Arc::clone(&self.0), open, options, who: Arc::clone(who), reader }))
    }
}

impl File {
    /// The inode that is open.
    pub fn inode(&self) -> InodeNumber {
        self.0.open.inode
    }

    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if !self.0.options.access.reads() {
            return Err(Error::BadHandle);
        }
        match self.0.read(buffer, offset) {
            Err(Error::NoObject | Error::CapabilityRejected) => {
                self.0.open.right_is_void();
                self.0.read(buffer, offset)
            }
            result => result,
        }
    }

    /// Hands bytes at an offset to `give` where they lie: in memory of a connection, to which they come because a
    /// sequential reader was expected to want them; waits for those that are on their way. As many as
    /// [`File::read_at`] would read. `false`: they lie nowhere in one piece; `give` was not called, and it is for
    /// `read_at` to get them. `give` must not use this file.
    pub fn read_in_place(&self, bytes: usize, offset: u64, give: &mut dyn FnMut(&[u8])) -> bool {
        let Handle { inner, open, options, reader, .. } = &*self.0;
        // Small reads may be of what is at hand, for which nobody waits.
        let Some(mut reader) = (if bytes > SMALL_BYTES { Some(lock(reader)) } else { reader.try_lock().ok() }) else {
            return false;
        };
        if !options.access.reads() || !reader.is_next(offset) {
            return false;
        }
        let Ok((ReadVia::Server { held, size: Some(size) }, version)) = open.read_via(inner, &mut [], offset) else {
            return false;
        };
        let bytes = within(size, offset, bytes);
        let source = Source { inode: open.inode, held, size, version, registration: options.registration };
        reader.hand(inner, &source, (offset, bytes), give)
    }

    /// Writes all bytes at an offset (of an append handle: at the end). Errors of earlier buffered writes may show
    /// here.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let Handle { inner, open, options, .. } = &*self.0;
        if !options.access.writes() {
            return Err(Error::BadHandle);
        }
        match open.write(inner, bytes, offset, options) {
            Err(Error::NoObject | Error::CapabilityRejected) => {
                open.right_is_void();
                open.write(inner, bytes, offset, options)
            }
            result => result,
        }
    }

    /// Cuts the file, or extends it with zeros: `ftruncate`. On behalf of whoever opened this handle; a file of his own
    /// also when its mode forbids writing by now.
    pub fn truncate(&self, size: u64) -> Result<()> {
        let Handle { inner, open, options, who, .. } = &*self.0;
        if !options.access.writes() {
            return Err(Error::BadHandle);
        }
        let changes = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
        Client(Arc::clone(inner)).set_attributes(who, open.inode, &changes).map(|_| ())
    }

    /// Bytes of the file now, as this handle sees it.
    pub fn size(&self) -> Result<u64> {
        let Handle { inner, open, .. } = &*self.0;
        match open.known_size(inner) {
            Some(size) => Ok(size),
            None => open.ask_attributes(inner, &inner.identity.credentials).map(|(attributes, _)| attributes.size),
        }
    }

    /// Sends what is buffered and reports size and time to the shard: what `close` does, without closing.
    pub fn flush(&self) -> Result<()> {
        self.0.open.flush(&self.0.inner, FlushFor::Program)
    }

    /// As `flush`, and the data is on the storage server's device.
    pub fn sync(&self) -> Result<()> {
        self.0.open.sync(&self.0.inner)
    }

    /// Whether a cache above (the kernel's) may keep the contents: a data lease is held.
    pub fn may_cache(&self) -> bool {
        self.0.open.may_cache(&self.0.inner)
    }

    /// Whether the file has an object already, as far as is known without a message.
    pub fn has_object(&self) -> bool {
        self.0.open.has_object(&self.0.inner)
    }

    /// Hands the object's file to a kernel that reads and writes it by itself from now on, where a descriptor of it is
    /// passed to this process. A file without an object gets one if the handle writes.
    pub fn lend(&self) -> Option<Lent> {
        let Handle { inner, open, options, .. } = &*self.0;
        let (descriptor, may_write) = open.lend(inner, options.access.writes(), options.direct)?;
        Some(Lent { handle: Arc::clone(&self.0), descriptor, may_write })
    }

    /// Flushes and closes: the handle counts as closed when its last clone is gone.
    pub fn close(self) -> Result<()> {
        self.flush()
    }
}

/// So many of these bytes at an offset as a file of this size has.
fn within(size: u64, offset: u64, bytes: usize) -> usize {
    usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(bytes)
}

impl Handle {
    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let Self { inner, open, options, reader, .. } = self;
        if buffer.len() <= SMALL_BYTES
            && let Ok(mut reader) = reader.try_lock()
            && reader.read_at_hand(open.version_now(inner), buffer, offset)
        {
            return Ok(buffer.len());
        }
        let (via, version) = open.read_via(inner, buffer, offset)?;
        if let Ok(mut reader) = reader.try_lock() {
            // Also where it is read by other ways now: others need the connection.
            reader.at_version(version);
        }
        let registration = options.registration;
        match via {
            ReadVia::Done(count) => Ok(count),
            ReadVia::Zeros { size } => {
                let count = within(size, offset, buffer.len());
                buffer.get_mut(..count).unwrap_or_default().fill(0);
                Ok(count)
            }
            ReadVia::Descriptor { file, leased: true } if !options.direct && buffer.len() <= SMALL_BYTES => {
                lock(reader).read_descriptor(inner, &file, version, buffer, offset)
            }
            ReadVia::Descriptor { file, .. } => {
                let count = read_descriptor(&file, buffer, offset)?;
                inner.counters.descriptor_read_bytes.fetch_add(count as u64, Ordering::Relaxed);
                Ok(count)
            }
            ReadVia::Server { held, size: None } => read_object(inner, open.inode, held, buffer, offset, registration),
            ReadVia::Server { held, size: Some(size) } => {
                let wanted = within(size, offset, buffer.len());
                let buffer = buffer.get_mut(..wanted).unwrap_or_default();
                let source = Source { inode: open.inode, held, size, version, registration };
                let have = if options.direct { 0 } else { lock(reader).read(inner, &source, buffer, offset)? };
                let rest = buffer.get_mut(have..).unwrap_or_default();
                let read = read_object(inner, open.inode, held, rest, offset + have as u64, registration)?;
                // The lease vouches for the size: what the object does not have of it is a hole.
                rest.get_mut(read..).unwrap_or_default().fill(0);
                Ok(wanted)
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let (inner, open) = (&self.inner, &self.open);
        if let Err(error) = open.flush(inner, FlushFor::Drop) {
            tracing::warn!("inode {}: buffered bytes were lost when the file was closed: {error}", open.inode);
        }
        let keep = open.handle_closed(inner);
        let evicted = lock(&inner.open).closed(open, keep);
        if let Some(open) = evicted {
            // What could not be reported is tried once more, and left to the end of the session.
            if open.flush(inner, FlushFor::Drop).is_ok() || !open.is_dirty() {
                inner.give_back(open.inode, open.stamp());
            }
        }
    }
}
