//! Attributes.

use crate::failure::{Explain, Outcome};
use crate::open_file::OpenFile;
use crate::place::Place;
use weft_protocol::{AttributeChanges, Attributes, Error};

/// What programs read and write at a time through their own buffers: `st_blksize`.
pub const PREFERRED_IO_BYTES: u32 = 128 << 10;
/// Unit of `st_blocks`, bytes.
pub const BLOCK_BYTES: u64 = 512;

impl Place<'_> {
    /// Attributes of what is there. `Error::Unreachable`: a node is away, or the size is in doubt.
    #[inline]
    pub fn attributes(&self, follows: bool, verb: &str) -> Outcome<Attributes> {
        self.call(verb, || Ok(self.entry(follows)?.with_size()?.attributes))
    }

    /// Whether the user may do with it what `bits` say: 4 read, 2 write, 1 execute or search.
    pub fn check_access(&self, bits: u16) -> Outcome {
        self.call("access", || {
            let may = weft_client::may(&self.fs.who, &self.entry(true)?.attributes, bits);
            if may { Ok(()) } else { Err(Error::AccessDenied) }
        })
    }

    /// Changes attributes of what the path leads to.
    pub fn change(&self, follows: bool, verb: &str, changes: &AttributeChanges) -> Outcome {
        self.call(verb, || self.fs.client.set_attributes(&self.fs.who, self.inode(follows)?, changes).map(drop))
    }
}

impl OpenFile {
    /// Attributes of what is open.
    pub fn attributes(&self) -> Outcome<Attributes> {
        Ok(self.fs.client.attributes(&self.fs.who, self.inode()).explain(|| "fstat")?.attributes)
    }
}
