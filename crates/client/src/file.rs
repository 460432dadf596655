//! Open files.
use crate::client::Client;
use crate::names::Entry;
use std::sync::Arc;
use weft_protocol::message::shard::{Access, CreateFile};
use weft_protocol::{Credentials, InodeNumber, Name, Result};

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    pub access: Access,
    pub truncate: bool,
    /// Each write goes to the end of the file.
    pub append: bool,
    /// No buffering: each call goes to the storage server (or the object's descriptor).
    pub direct: bool,
}

/// An open file. Shared by any number of threads. Dropping it without [`File::close`] loses errors of buffered writes.
#[derive(Clone)]
pub struct File(#[expect(dead_code, reason = "skeleton")] Arc<()>);

impl Client {
    /// Opens an inode.
    pub fn open(&self, who: &Credentials, inode: InodeNumber, options: OpenOptions) -> Result<File> {
        let _ = (who, inode, options);
        todo!()
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
        let _ = (who, parent, name, options, create);
        todo!()
    }
}

impl File {
    /// The inode that is open.
    pub fn inode(&self) -> InodeNumber {
        todo!()
    }

    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let _ = (buffer, offset);
        todo!()
    }

    /// Writes all bytes at an offset (of an append handle: at the end). Errors of earlier buffered writes may show here.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let _ = (bytes, offset);
        todo!()
    }

    /// Bytes of the file now, as this handle sees it.
    pub fn size(&self) -> Result<u64> {
        todo!()
    }

    /// Sends what is buffered and reports size and time to the shard: what `close` does, without closing.
    pub fn flush(&self) -> Result<()> {
        todo!()
    }

    /// As `flush`, and the data is on the storage server's device.
    pub fn sync(&self) -> Result<()> {
        todo!()
    }

    /// Whether a cache above (the kernel's) may keep the contents: a data lease is held.
    pub fn may_cache(&self) -> bool {
        todo!()
    }

    /// A descriptor of the object's file on this node, readable (and writable when the handle is), where one is passed.
    pub fn descriptor(&self) -> Option<Arc<std::os::fd::OwnedFd>> {
        todo!()
    }

    /// Flushes and closes.
    pub fn close(self) -> Result<()> {
        todo!()
    }
}
