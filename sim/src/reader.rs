//! How one handle of a simulated client reads: windows of the file at hand, and the next one on its way.
//!
//! The steps are those of `crates/client/src/reader.rs`; what is read ahead decides [`ReadAhead`].

use crate::file::{BUFFER_BYTES, request};
use crate::process::{Io, Ticket};
use weft_client_core::{Held, ReadAhead, Window};
use weft_protocol::data::DataOperation;
use weft_protocol::{InodeNumber, Result};

/// State of one handle's reads.
pub struct Reader {
    ahead: ReadAhead,
    /// The file's data version that the windows are of.
    version: u64,
    block: Option<(u64, Vec<u8>)>,
    coming: Option<(Window, Ticket)>,
}

/// What a read of one file needs to know.
#[derive(Clone, Copy)]
pub struct Source {
    pub inode: InodeNumber,
    pub held: Held,
    pub size: u64,
    pub version: u64,
}

impl Reader {
    pub fn new() -> Self {
        let window_bytes = u32::try_from(BUFFER_BYTES).unwrap_or(u32::MAX);
        Self { ahead: ReadAhead::new(window_bytes), version: 0, block: None, coming: None }
    }

    /// Reads up to the file's end.
    pub async fn read(&mut self, io: &Io, source: &Source, into: &mut [u8], offset: u64) -> Result<usize> {
        if self.version != source.version {
            self.drop_coming(io).await;
            self.block = None;
            self.version = source.version;
        }
        let wanted = usize::try_from(source.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        let sequential = self.ahead.note(offset, wanted as u64);
        let mut have = 0;
        while have < wanted {
            let position = offset + have as u64;
            let rest = &mut into[have..wanted];
            if let Some(count) = self.copy_from_block(rest, position) {
                have += count;
            } else if !self.take_coming(io, source, position).await? {
                if !sequential {
                    let read = request(source.inode, DataOperation::Read, source.held, position, rest.len());
                    let (_, bytes) = io.data(read, &[], None).await?;
                    rest[..bytes.len()].copy_from_slice(&bytes);
                    return Ok(have + bytes.len());
                }
                self.start(io, source, position).await?;
            }
        }
        if sequential && wanted > 0 && self.coming.is_none() {
            let next = self.block.as_ref().map_or(offset, |(start, bytes)| start + bytes.len() as u64);
            self.start(io, source, next).await?;
        }
        Ok(wanted)
    }

    fn copy_from_block(&self, into: &mut [u8], position: u64) -> Option<usize> {
        let (start, bytes) = self.block.as_ref()?;
        let from = usize::try_from(position.checked_sub(*start)?).ok()?;
        let bytes = bytes.get(from..).filter(|bytes| !bytes.is_empty())?;
        let count = bytes.len().min(into.len());
        into[..count].copy_from_slice(&bytes[..count]);
        Some(count)
    }

    /// Sends for the window at `offset`.
    async fn start(&mut self, io: &Io, source: &Source, offset: u64) -> Result<()> {
        if let Some(window) = self.ahead.window(offset, source.size) {
            io.ensure_term(source.inode.shard()).await?;
            let read = request(source.inode, DataOperation::Read, source.held, window.offset, window.bytes as usize);
            self.coming = Some((window, io.start_data(io.new_connection(), read, Vec::new())));
        }
        Ok(())
    }

    /// Waits for the window on its way, if `position` lies in it, and makes it the one at hand. `false`: there is none.
    async fn take_coming(&mut self, io: &Io, source: &Source, position: u64) -> Result<bool> {
        let Some((window, _)) = self.coming else { return Ok(false) };
        let end = window.offset + u64::from(window.bytes);
        if position < window.offset || position >= end {
            self.drop_coming(io).await;
            return Ok(false);
        }
        let Some((_, ticket)) = self.coming.take() else { return Ok(false) };
        let (_, mut bytes) = match io.finish_data(ticket).await {
            Some(told) => told?,
            None => {
                let bytes = window.bytes as usize;
                let again = request(source.inode, DataOperation::Read, source.held, window.offset, bytes);
                io.data(again, &[], None).await?
            }
        };
        // The lease vouches for the size: what the object does not have of it is a hole.
        bytes.resize(window.bytes as usize, 0);
        self.block = Some((window.offset, bytes));
        if end < source.size {
            self.start(io, source, end).await?;
        }
        Ok(true)
    }

    /// What was asked for ahead is not wanted any more.
    pub async fn drop_coming(&mut self, io: &Io) {
        if let Some((_, ticket)) = self.coming.take() {
            io.finish_data(ticket).await;
        }
    }
}
