//! Where paths lead.

use crate::failure::{Explain, Outcome};
use crate::file_system::FileSystem;
use crate::open_file::OpenFile;
use std::fmt;
use std::sync::Arc;
use weft_client::Entry;
use weft_protocol::{Error, InodeNumber, Result};

/// Where a path is to be looked up.
pub struct Place<'a> {
    pub fs: &'a Arc<FileSystem>,
    /// Of paths that do not begin with `/`.
    pub directory: InodeNumber,
    pub path: &'a [u8],
}

impl<'a> Place<'a> {
    /// Below the root.
    pub fn new(fs: &'a Arc<FileSystem>, path: &'a [u8]) -> Self {
        Self { fs, directory: InodeNumber::ROOT, path }
    }

    /// Below a directory.
    pub fn at(directory: &'a OpenFile, path: &'a [u8]) -> Outcome<Self> {
        Ok(Self { fs: &directory.fs, directory: directory.directory()?, path })
    }

    /// Nothing is at an empty path.
    pub fn check(&self, verb: &str) -> Outcome {
        if self.path.is_empty() { Err(Error::NotFound).explain(|| format!("{verb} an empty path")) } else { Ok(()) }
    }

    /// What the path leads to.
    #[inline]
    pub(crate) fn entry(&self, follows: bool) -> Result<Entry> {
        self.fs.client.walk_from(&self.fs.who, self.directory, self.path, follows)
    }

    /// The inode that the path leads to.
    pub(crate) fn inode(&self, follows: bool) -> Result<InodeNumber> {
        Ok(self.entry(follows)?.attributes.inode)
    }

    /// Makes a call by the path, which `call` walks. It is made once more if what is there is gone when it is used.
    #[inline]
    pub(crate) fn call<T>(&self, verb: &str, call: impl FnMut() -> Result<T>) -> Outcome<T> {
        self.check(verb)?;
        self.fs.client.by_path(call).explain(|| format!("{verb} {self}"))
    }

    /// Whether it can only mean a directory, or nothing.
    pub fn is_of_directory(&self) -> bool {
        let last = self.path.rsplit(|byte| *byte == b'/').next();
        matches!(last, None | Some(b"" | b"." | b".."))
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.path))
    }
}
