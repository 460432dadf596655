//! Changes that pages of other clients' kernels may be in the way of.
//!
//! The storage server has such pages dropped first; where that takes too long, it refuses the change
//! ([`Error::PagesCached`]), which is then made again from the beginning. In between no lock is held: the other clients
//! may be waiting for pages here, which are locked by reads that wait for that lock.

use super::{OpenInode, Written};
use crate::objects::{Objects, Registration};
use crate::open_options::OpenOptions;
use crate::shell::Shell;
use weft_protocol::limits::BULK_BYTES_MAX;
use weft_protocol::message::shard::ShardRequest;
use weft_protocol::{AttributeChanges, Attributes, Credentials, Error, Result};

impl<S: Shell> OpenInode<S> {
    /// A write of ranges, each its bytes and an offset, one of an append; `pages`: a kernel keeps the bytes in its
    /// pages. Returns when they are gathered (exclusive lease), in the object's file, or at the server.
    pub async fn write(
        &self,
        io: &Objects<S>,
        list: &[(&[u8], u64)],
        options: &OpenOptions<Registration<S>>,
        pages: bool,
    ) -> Result<Written> {
        let &[(bytes, offset)] = list else { return self.write_part(io, list, options, pages).await };
        // Of an append what has landed is not sent again with the rest: each part is a write of its own.
        let part_bytes = if options.append { BULK_BYTES_MAX as usize } else { bytes.len().max(1) };
        let mut parts = bytes.chunks(part_bytes);
        let first = [(parts.next().unwrap_or_default(), offset)];
        let first = self.write_part(io, &first, options, pages).await?;
        let mut is_safe = first.is_safe;
        for part in parts {
            is_safe &= self.write_part(io, &[(part, offset)], options, pages).await?.is_safe;
        }
        Ok(Written { is_safe, ..first })
    }

    /// Whether ranges are better written together than one after the other: they are not gathered.
    pub(crate) async fn writes_together(
        &self,
        io: &Objects<S>,
        options: &OpenOptions<Registration<S>>,
    ) -> Result<bool> {
        let mut state = self.lock(io).await?;
        state.regain_to_write(io).await?;
        Ok(options.direct || state.known.is_split() || !state.known.is_exclusive())
    }

    async fn write_part(
        &self,
        io: &Objects<S>,
        list: &[(&[u8], u64)],
        options: &OpenOptions<Registration<S>>,
        pages: bool,
    ) -> Result<Written> {
        let mut is_again = false;
        loop {
            match self.write_once(io, list, options, pages).await {
                Ok(Some(written)) => return Ok(written),
                Ok(None) => {}
                Err(Error::PagesCached) => io.calls.wait_for_pages().await,
                Err(Error::NoObject | Error::CapabilityRejected) if !is_again => {
                    self.right_is_void().await;
                    is_again = true;
                }
                Err(Error::NoSpace) => {
                    self.program_was_told(io).await;
                    return Err(Error::NoSpace);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Changes attributes, the size among them. One message, and those of a flush.
    pub(crate) async fn set_attributes(
        &self,
        io: &Objects<S>,
        who: &Credentials,
        changes: &AttributeChanges,
    ) -> Result<Attributes> {
        let request = ShardRequest::SetAttributes { inode: self.inode, changes: changes.clone() };
        self.change(io, who, &request).await
    }

    /// A change of the inode whose reply is its attributes. One message, and those of a flush.
    pub(crate) async fn change(
        &self,
        io: &Objects<S>,
        who: &Credentials,
        request: &ShardRequest,
    ) -> Result<Attributes> {
        loop {
            match self.change_once(io, who, request).await {
                Err(Error::PagesCached) => io.calls.wait_for_pages().await,
                result => return result,
            }
        }
    }
}
