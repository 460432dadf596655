//! How one handle reads: windows of the file at hand, and the next one on its way.
//!
//! Sketch for a sequential reader with small requests: one data request per window (1 MiB), sent while the window
//! before is being copied out; one copy from the kernel into the window, one from the window to the caller. Through a
//! passed descriptor: one `pread` per window of [`DESCRIPTOR_WINDOW_BYTES`], which the processor's cache still has when
//! it is copied out.

use crate::client::Inner;
use crate::data_calls::{Held, read_descriptor, request};
use crate::link::Link;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_client_core::{ReadAhead, Window};
use weft_protocol::data::DataOperation;
use weft_protocol::{InodeNumber, Result};
use weft_transport::BulkConnection;

/// What small sequential requests read or write through a descriptor at once, bytes.
pub(crate) const DESCRIPTOR_WINDOW_BYTES: usize = 128 << 10;
/// Requests up to this many bytes are small for a descriptor: a call costs more than copying them once more.
pub(crate) const DESCRIPTOR_SMALL_BYTES: usize = 16 << 10;

/// State of one handle's reads.
pub(crate) struct Reader {
    ahead: ReadAhead,
    /// The inode's data version that the windows are of.
    version: u64,
    block: Option<Block>,
    coming: Option<Coming>,
    spare: Vec<Vec<u8>>,
}

struct Block {
    offset: u64,
    bytes: usize,
    memory: Vec<u8>,
}

/// A window on its way.
struct Coming {
    window: Window,
    link: Arc<Link>,
    connection: Box<dyn BulkConnection>,
}

/// When a window is needed.
#[derive(Clone, Copy)]
enum When {
    /// By the call that sends for it.
    Now,
    /// By a later one, presumably.
    Ahead,
}

/// What a read of one file needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub inode: InodeNumber,
    pub held: Held,
    pub size: u64,
    pub version: u64,
}

impl Reader {
    pub fn new(window_bytes: usize) -> Self {
        let window_bytes = u32::try_from(window_bytes).unwrap_or(weft_protocol::limits::BULK_BYTES_MAX);
        Self { ahead: ReadAhead::new(window_bytes), version: 0, block: None, coming: None, spare: Vec::new() }
    }

    fn at_version(&mut self, version: u64) {
        if self.version != version {
            self.drop_windows();
            self.version = version;
        }
    }

    /// Small reads through a descriptor that is held under a lease, up to the file's end.
    pub fn read_descriptor(
        &mut self,
        inner: &Inner,
        file: &OwnedFd,
        version: u64,
        into: &mut [u8],
        offset: u64,
    ) -> Result<usize> {
        self.at_version(version);
        let sequential = self.ahead.note(offset, into.len() as u64);
        let mut have = 0;
        while have < into.len() {
            let position = offset + have as u64;
            let rest = into.get_mut(have..).unwrap_or_default();
            if let Some(count) = self.copy_from_block(rest, position) {
                have += count;
                continue;
            }
            let count =
                if sequential { self.fill_block(file, position)? } else { read_descriptor(file, rest, position)? };
            inner.counters.descriptor_read_bytes.fetch_add(count as u64, Ordering::Relaxed);
            if !sequential {
                have += count;
            }
            if count == 0 || !sequential {
                break;
            }
        }
        Ok(have)
    }

    /// Makes what lies at `position` the window at hand; 0: the file ends there.
    fn fill_block(&mut self, file: &OwnedFd, position: u64) -> Result<usize> {
        let at_hand = self.block.take().map(|block| block.memory);
        let mut memory = at_hand.or_else(|| self.spare.pop()).unwrap_or_default();
        memory.resize(DESCRIPTOR_WINDOW_BYTES, 0);
        let bytes = read_descriptor(file, &mut memory, position)?;
        self.block = Some(Block { offset: position, bytes, memory });
        Ok(bytes)
    }

    /// Reads up to the file's end.
    pub fn read(&mut self, inner: &Inner, source: &Source, into: &mut [u8], offset: u64) -> Result<usize> {
        self.at_version(source.version);
        let wanted = usize::try_from(source.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        let into = into.get_mut(..wanted).unwrap_or_default();
        let sequential = self.ahead.note(offset, wanted as u64);
        let mut have = 0;
        while have < wanted {
            let position = offset + have as u64;
            let rest = into.get_mut(have..).unwrap_or_default();
            if let Some(count) = self.copy_from_block(rest, position) {
                have += count;
            } else if !self.take_coming(inner, source, position)? {
                if !sequential {
                    let reply = inner.data_read(
                        &request(source.inode, DataOperation::Read, source.held, position, rest.len()),
                        rest,
                    )?;
                    return Ok(have + reply.bulk_bytes as usize);
                }
                self.start(inner, source, position, When::Now)?;
            }
        }
        if sequential && wanted > 0 && self.coming.is_none() {
            // The window after the one at hand is on its way while that is used up.
            let next = self.block.as_ref().map_or(offset, |block| block.offset + block.bytes as u64);
            if next < source.size {
                self.start(inner, source, next, When::Ahead)?;
            }
        }
        Ok(wanted)
    }

    fn copy_from_block(&self, into: &mut [u8], position: u64) -> Option<usize> {
        let block = self.block.as_ref()?;
        let start = usize::try_from(position.checked_sub(block.offset)?).ok()?;
        let bytes = block.memory.get(start..block.bytes).filter(|bytes| !bytes.is_empty())?;
        let count = bytes.len().min(into.len());
        into.get_mut(..count)?.copy_from_slice(bytes.get(..count)?);
        Some(count)
    }

    /// Sends for the window at `offset`. One that is only read ahead is left for later when there are no connections to
    /// keep for it.
    fn start(&mut self, inner: &Inner, source: &Source, offset: u64, when: When) -> Result<()> {
        let Some(window) = self.ahead.window(offset, source.size) else { return Ok(()) };
        let node = source.held.object.node();
        let connection = match when {
            When::Now => Some(inner.data_connection(node)?),
            When::Ahead => inner.data_connection_to_keep(node)?,
        };
        let Some((link, mut connection)) = connection else { return Ok(()) };
        let mut memory = self.spare.pop().unwrap_or_default();
        memory.resize(window.bytes as usize, 0);
        let request = request(source.inode, DataOperation::Read, source.held, window.offset, memory.len());
        inner.counters.data_requests.fetch_add(1, Ordering::Relaxed);
        if connection.start_read(&request, memory).is_err() {
            // A pooled connection that died meanwhile: a new one is tried once.
            connection = link.replace_data(connection, &inner.identity, inner.way())?;
            connection.start_read(&request, vec![0; window.bytes as usize])?;
        }
        self.coming = Some(Coming { window, link, connection });
        Ok(())
    }

    /// Waits for the window on its way, if `position` lies in it, and makes it the one at hand. `false`: there is none.
    fn take_coming(&mut self, inner: &Inner, source: &Source, position: u64) -> Result<bool> {
        let Some(coming) = &self.coming else { return Ok(false) };
        let end = coming.window.offset + u64::from(coming.window.bytes);
        if position < coming.window.offset || position >= end {
            self.drop_coming();
            return Ok(false);
        }
        let Some(Coming { window, link, mut connection }) = self.coming.take() else { return Ok(false) };
        let Some((mut memory, reply)) = connection.finish() else { return Ok(false) };
        let received = match reply {
            Ok(reply) => {
                inner.count_read(connection.kind(), u64::from(reply.bulk_bytes));
                link.return_data(connection);
                reply.result()?.bulk_bytes as usize
            }
            Err(_) => {
                // The connection died: the window is read again on another.
                let again = request(source.inode, DataOperation::Read, source.held, window.offset, memory.len());
                inner.data_read(&again, &mut memory)?.bulk_bytes as usize
            }
        };
        // The lease vouches for the size: what the object does not have of it is a hole.
        memory.get_mut(received..window.bytes as usize).unwrap_or_default().fill(0);
        if let Some(old) = self.block.replace(Block { offset: window.offset, bytes: window.bytes as usize, memory }) {
            self.spare.push(old.memory);
        }
        if end < source.size {
            self.start(inner, source, end, When::Ahead)?;
        }
        Ok(true)
    }

    fn drop_coming(&mut self) {
        if let Some(mut coming) = self.coming.take()
            && let Some((memory, Ok(_))) = coming.connection.finish()
        {
            coming.link.return_data(coming.connection);
            self.spare.push(memory);
        }
    }

    fn drop_windows(&mut self) {
        self.drop_coming();
        if let Some(block) = self.block.take() {
            self.spare.push(block.memory);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.drop_coming();
    }
}
