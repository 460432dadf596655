//! Attributes.

use crate::failure::{Explain, Outcome};
use crate::open_file::OpenFile;
use crate::place::Place;
use weft_client::Entry;
use weft_protocol::{AttributeChanges, Attributes, Error};

/// What programs read and write at a time through their own buffers: `st_blksize`.
pub const PREFERRED_IO_BYTES: u32 = 128 << 10;
/// Unit of `st_blocks`, bytes.
pub const BLOCK_BYTES: u64 = 512;

impl Place<'_> {
    /// Attributes of what is there. `Error::Unreachable`: a node is away, or the size is in doubt.
    #[inline]
    pub fn attributes(&self, follows: bool, verb: &str) -> Outcome<Attributes> {
        self.walk(follows, verb, Entry::with_size)
    }

    /// Attributes of what is there, for who needs neither size nor times.
    pub(crate) fn found(&self, follows: bool, verb: &str) -> Outcome<Attributes> {
        self.walk(follows, verb, Ok)
    }

    #[inline]
    fn walk(
        &self,
        follows: bool,
        verb: &str,
        takes: impl FnOnce(Entry) -> Result<Entry, Error>,
    ) -> Outcome<Attributes> {
        self.check(verb)?;
        match self.fs.client.walk_from(&self.fs.who, self.directory, self.path, follows).and_then(takes) {
            Ok(entry) => Ok(entry.attributes),
            Err(error) => Err(error).explain(|| format!("{verb} {self}")),
        }
    }

    /// Whether the user may do with it what `bits` say: 4 read, 2 write, 1 execute or search.
    pub fn check_access(&self, bits: u16) -> Outcome {
        if weft_client::may(&self.fs.who, &self.found(true, "access")?, bits) {
            return Ok(());
        }
        Err(Error::AccessDenied).explain(|| format!("access {self}"))
    }

    /// Changes attributes of what the path leads to.
    pub fn change(&self, follows: bool, verb: &str, changes: &AttributeChanges) -> Outcome {
        let inode = self.found(follows, verb)?.inode;
        let changed = self.fs.client.set_attributes(&self.fs.who, inode, changes);
        changed.map(drop).explain(|| format!("{verb} {self}"))
    }
}

impl OpenFile {
    /// Attributes of what is open.
    pub fn attributes(&self) -> Outcome<Attributes> {
        Ok(self.fs.client.attributes(&self.fs.who, self.inode()).explain(|| "fstat")?.attributes)
    }
}
