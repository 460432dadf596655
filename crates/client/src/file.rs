//! Open files.

use crate::block_on::block_on;
use crate::client::{Client, Connected};
use crate::native::NativeShell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use weft_client_core::{Entry, FlushFor, Handle, Objects};
use weft_protocol::message::shard::CreateFile;
use weft_protocol::{AttributeChanges, Credentials, Error, InodeNumber, Name, Result};
use weft_transport::Registration;

/// How a file is opened.
pub type OpenOptions = weft_client_core::OpenOptions<Registration>;

/// An open file. Shared by any number of threads. Dropping it without [`File::close`] loses errors of buffered writes.
#[derive(Clone)]
pub struct File(pub(crate) Arc<OpenFile>);

pub(crate) struct OpenFile {
    pub client: Arc<Connected>,
    pub handle: Handle<NativeShell>,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        block_on(self.client.0.close_handle(&self.handle));
    }
}

impl OpenFile {
    fn objects(&self) -> &Objects<NativeShell> {
        &self.client.0.objects
    }
}

/// A file in the hands of a kernel. To be dropped when the kernel has closed it.
pub struct Lent {
    file: Arc<OpenFile>,
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
        block_on(self.file.handle.open.lent_back(self.file.objects(), self.may_write));
    }
}

impl Client {
    /// Opens an inode. One message.
    pub fn open(&self, who: &Credentials, inode: InodeNumber, options: OpenOptions) -> Result<File> {
        let handle = block_on(self.0.0.open(who, inode, options))?;
        Ok(self.file(handle))
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
        let (handle, entry) = block_on(self.0.0.open_at(who, parent, name, options, create))?;
        Ok((self.file(handle), entry))
    }

    fn file(&self, handle: Handle<NativeShell>) -> File {
        File(Arc::new(OpenFile { client: Arc::clone(&self.0), handle }))
    }
}

impl File {
    /// The inode that is open.
    pub fn inode(&self) -> InodeNumber {
        self.0.handle.open.inode
    }

    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if self.0.handle.read_at_hand(self.0.objects(), buffer, offset) {
            return Ok(buffer.len());
        }
        block_on(self.0.handle.read_at(self.0.objects(), buffer, offset))
    }

    /// Passes bytes at an offset to `give` where they lie: in memory of a connection, to which they were prefetched;
    /// waits for those in flight. As many as [`File::read_at`] would read. `false`: they lie nowhere in one piece;
    /// `give` was not called, and `read_at` has to get them. `give` must not use this file.
    pub fn read_in_place(&self, bytes: usize, offset: u64, give: &mut dyn FnMut(&[u8])) -> bool {
        block_on(self.0.handle.read_in_place(self.0.objects(), bytes, offset, give))
    }

    /// Writes all bytes at an offset (of an append handle: at the end). Errors of earlier buffered writes may show
    /// here.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if self.0.handle.write_at_hand(self.0.objects(), bytes, offset) {
            return Ok(());
        }
        block_on(self.0.handle.write_at(self.0.objects(), bytes, offset)).map(|_| ())
    }

    /// Cuts the file, or extends it with zeros: `ftruncate`. On behalf of the user who opened this handle; the user's
    /// own file also when its mode forbids writing by now.
    pub fn truncate(&self, size: u64) -> Result<()> {
        let Handle { open, options, who, .. } = &self.0.handle;
        if !options.access.writes() {
            return Err(Error::BadHandle);
        }
        let changes = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
        block_on(self.0.client.0.set_attributes(who, open.inode, &changes)).map(|_| ())
    }

    /// Current size of the file, as this handle sees it.
    pub fn size(&self) -> Result<u64> {
        block_on(self.0.handle.size(self.0.objects()))
    }

    /// Sends what is buffered and reports size and time to the shard: what `close` does, without closing.
    pub fn flush(&self) -> Result<()> {
        block_on(self.0.handle.open.flush(self.0.objects(), FlushFor::Program))?;
        self.0.handle.check_locks(&self.0.objects().calls)
    }

    /// As `flush`, and the data is on the storage server's device.
    pub fn sync(&self) -> Result<()> {
        block_on(self.0.handle.open.sync(self.0.objects()))?;
        self.0.handle.check_locks(&self.0.objects().calls)
    }

    /// Whether the file has an object already, as far as is known without a message.
    pub fn has_object(&self) -> bool {
        block_on(self.0.handle.open.has_object(self.0.objects()))
    }

    /// Lends the object's file to a kernel that reads and writes it by itself from now on, where a descriptor of it
    /// is passed to this process. A file without an object gets one if the handle writes.
    pub fn lend(&self) -> Option<Lent> {
        let Handle { open, options, .. } = &self.0.handle;
        let lent = block_on(open.lend(self.0.objects(), options.access.writes(), options.direct))?;
        Some(Lent { file: Arc::clone(&self.0), descriptor: lent.file, may_write: lent.may_write })
    }

    /// Flushes and closes: the handle counts as closed when its last clone is gone.
    pub fn close(self) -> Result<()> {
        self.flush()
    }
}
