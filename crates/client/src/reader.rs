//! How one handle reads: a block at hand for small requests, and what a sequential reader wants next on its way.
//!
//! Sketch for a sequential reader: data requests of a turn each ([`Ahead`]), sent ahead; their bytes wait in the
//! connection. A request takes them straight into the caller's memory: one copy, out of the kernel. A small one
//! ([`SMALL_BYTES`]) takes them from a block of [`BLOCK_BYTES`], which the processor's cache still has when it is
//! copied out. Through a passed descriptor: one `pread` per block.

use crate::client::Inner;
use crate::data_calls::{Held, read_descriptor, request};
use crate::link::Link;
use crate::open_inode::Version;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_client_core::{Lane, Pace, ReadAhead};
use weft_protocol::data::DataOperation;
use weft_protocol::limits::BULK_BYTES_MAX;
use weft_protocol::{InodeNumber, Result};
use weft_transport::{Ahead, BulkConnection, Registration, TransportError};

/// What small sequential requests read or write at once, bytes.
pub(crate) const BLOCK_BYTES: usize = 128 << 10;
/// A stray read of one of several threads ends no stream; after so many in a row nobody goes on with it.
const STRAYS_MAX: u32 = 16;
/// More bytes that nobody wants cost more than another connection.
const DISCARDED_MAX: u64 = 1 << 20;
/// What is asked for at first.
const FIRST_BYTES: u64 = 256 << 10;
/// The same for a sequential reader when too many connections are in use to keep one for him.
const ALONE_BYTES: usize = 1 << 20;
/// Requests up to this many bytes are small: a call costs more than copying them once more.
pub(crate) const SMALL_BYTES: usize = 16 << 10;

/// State of one handle's reads.
#[derive(Default)]
pub(crate) struct Reader {
    ahead: ReadAhead,
    /// The inode's data version that block and stream are of.
    version: Version,
    block: Block,
    stream: Option<Stream>,
    /// Reads in a row that the stream did not lead to.
    strays: u32,
    /// Bytes are handed on from where they lie: what was asked for ahead saves more than the caller's own memory does.
    hands_on: bool,
}

/// Bytes of the file at hand.
#[derive(Default)]
struct Block {
    offset: u64,
    bytes: usize,
    memory: Vec<u8>,
}

/// Bytes on their way.
struct Stream {
    lane: Lane,
    link: Arc<Link>,
    connection: Box<dyn BulkConnection>,
}

/// What a read of one file needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub inode: InodeNumber,
    pub held: Held,
    pub size: u64,
    pub version: Version,
    pub registration: Option<Registration>,
}

impl Block {
    fn end(&self) -> u64 {
        self.offset + self.bytes as u64
    }

    fn has(&self, position: u64) -> bool {
        (self.offset..self.end()).contains(&position)
    }

    /// Copies what is at hand from `position` on. `None`: nothing.
    fn copy(&self, into: &mut [u8], position: u64) -> Option<usize> {
        let start = usize::try_from(position.checked_sub(self.offset)?).ok()?;
        let bytes = self.memory.get(start..self.bytes).filter(|bytes| !bytes.is_empty())?;
        let count = bytes.len().min(into.len());
        into.get_mut(..count)?.copy_from_slice(bytes.get(..count)?);
        Some(count)
    }

    /// Memory for other bytes.
    fn make(&mut self, offset: u64, bytes: usize) -> &mut [u8] {
        (self.offset, self.bytes) = (offset, 0);
        if self.memory.len() < bytes {
            self.memory.resize(bytes, 0);
        }
        self.memory.get_mut(..bytes).unwrap_or_default()
    }
}

impl Stream {
    /// Begins to read so many bytes, and what is behind them. `None`: there is no connection to keep for it.
    fn open(inner: &Inner, source: &Source, position: u64, wanted: u64) -> Result<Option<Self>> {
        let node = source.held.object.node();
        let Some((link, connection)) = inner.data_connection_to_keep(node)? else { return Ok(None) };
        let mut stream = Self { lane: Lane::at(position), link, connection };
        // A pooled connection may have died meanwhile: then a request of its own finds out.
        Ok(stream.ask(inner, source, wanted).is_ok().then_some(stream))
    }

    /// Asks for what a sequential reader will want, who takes so many bytes now.
    fn ask(&mut self, inner: &Inner, source: &Source, wanted: u64) -> weft_transport::Result<()> {
        let next = |stream: &Self| {
            let Ahead { turn_bytes, bytes: ahead_bytes } = stream.connection.ahead();
            stream.lane.next(source.size, wanted, &Pace { first_bytes: FIRST_BYTES, ahead_bytes, turn_bytes })
        };
        while let Some(window) = next(self) {
            let bytes = window.bytes as usize;
            self.connection.ask(&request(source.inode, DataOperation::Read, source.held, window.offset, bytes))?;
            inner.counters.data_requests.fetch_add(1, Ordering::Relaxed);
            self.lane.asked += u64::from(window.bytes);
        }
        Ok(())
    }

    /// Takes what comes next.
    fn take(&mut self, inner: &Inner, into: &mut [u8]) -> weft_transport::Result<usize> {
        let count = self.connection.receive(into)?;
        if count == 0 {
            return Err(TransportError::Malformed);
        }
        inner.count_read(self.connection.carrier(), count as u64);
        self.lane.taken += count as u64;
        Ok(count)
    }

    /// Hands out what comes next, where it lies; `false`: it does not lie anywhere in one piece.
    fn hand(&mut self, inner: &Inner, bytes: usize, give: &mut dyn FnMut(&[u8])) -> weft_transport::Result<bool> {
        let handed = self.connection.receive_in_place(bytes, give)?;
        if handed {
            inner.count_read(self.connection.carrier(), bytes as u64);
            self.lane.taken += bytes as u64;
        }
        Ok(handed)
    }

    /// Takes what was asked for, and gives the connection back; where that is much, it is closed instead.
    fn end(mut self) {
        if self.lane.asked - self.lane.taken <= DISCARDED_MAX && self.connection.discard().is_ok() {
            self.link.return_data(self.connection);
        }
    }
}

impl Reader {
    /// What is at hand or on its way is of this version, or of no use.
    pub fn at_version(&mut self, version: Version) {
        if self.version != version {
            self.end_stream();
            self.block.bytes = 0;
            self.version = version;
        }
    }

    /// Fills `into`, if all of it is at hand and of this version.
    pub fn read_at_hand(&mut self, version: Option<Version>, into: &mut [u8], offset: u64) -> bool {
        let end = offset.saturating_add(into.len() as u64);
        let is_at_hand = version == Some(self.version) && self.block.has(offset) && end <= self.block.end();
        if is_at_hand {
            self.ahead.note(offset, into.len() as u64, true);
            self.block.copy(into, offset);
        }
        is_at_hand
    }

    fn end_stream(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.end();
        }
    }

    /// Small reads through a descriptor that is held under a lease, up to the file's end.
    pub fn read_descriptor(
        &mut self,
        inner: &Inner,
        file: &OwnedFd,
        version: Version,
        into: &mut [u8],
        offset: u64,
    ) -> Result<usize> {
        self.at_version(version);
        let sequential = self.ahead.note(offset, into.len() as u64, self.block.has(offset));
        let mut have = 0;
        while have < into.len() {
            let position = offset + have as u64;
            let rest = into.get_mut(have..).unwrap_or_default();
            if let Some(count) = self.block.copy(rest, position) {
                have += count;
                continue;
            }
            let count = if sequential {
                self.block.bytes = read_descriptor(file, self.block.make(position, BLOCK_BYTES), position)?;
                self.block.bytes
            } else {
                read_descriptor(file, rest, position)?
            };
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

    /// Fills `into`, whose bytes the file has, from what is at hand or on its way. Returns how many have been read: the
    /// rest is not worth keeping others waiting, or could not be had this way.
    pub fn read(&mut self, inner: &Inner, source: &Source, into: &mut [u8], offset: u64) -> Result<usize> {
        self.at_version(source.version);
        let small = into.len() <= SMALL_BYTES;
        let at_hand = self.block.has(offset) || self.leads_to(offset, into.len());
        let sequential = self.ahead.note(offset, into.len() as u64, at_hand);
        let mut have = 0;
        while let Some(rest) = into.get_mut(have..).filter(|rest| !rest.is_empty()) {
            let position = offset + have as u64;
            if let Some(count) = self.block.copy(rest, position) {
                have += count;
            } else if !self.hands_on && inner.data_way.reads_directly(rest.len(), source.registration) {
                break;
            } else if self.streams_at(inner, source, position, rest.len(), sequential)? {
                let Some(count) = self.take(inner, source, rest, position, small) else { break };
                have += count;
            } else if sequential && rest.len() < ALONE_BYTES {
                self.read_block(inner, source, position)?;
            } else {
                break;
            }
        }
        Ok(have)
    }

    /// Whether what comes next begins at this offset: then [`Reader::hand`] is worth asking. Whoever asks hands on.
    pub fn is_next(&mut self, offset: u64) -> bool {
        self.hands_on = true;
        self.next_stream(offset).is_some()
    }

    /// The stream, if what comes next on it begins at this offset and is not at hand.
    fn next_stream(&mut self, offset: u64) -> Option<&mut Stream> {
        let is_at_hand = self.block.has(offset);
        self.stream.as_mut().filter(|stream| stream.lane.taken == offset && !is_at_hand)
    }

    /// Hands bytes that the file has to `give` where they lie, if they come next, and into memory of the connection.
    /// `false`: they do not, and `give` was not called.
    pub fn hand(
        &mut self,
        inner: &Inner,
        source: &Source,
        (offset, bytes): (u64, usize),
        give: &mut dyn FnMut(&[u8]),
    ) -> bool {
        self.at_version(source.version);
        let Some(stream) = self.next_stream(offset).filter(|_| bytes > 0) else { return false };
        let asked = stream.ask(inner, source, bytes as u64);
        let handed = asked.and_then(|()| stream.hand(inner, bytes, give));
        if let Ok(true) = handed {
            self.ahead.note(offset, bytes as u64, true);
            self.strays = 0;
        }
        self.end_taken(source, handed.is_err());
        handed.unwrap_or(false)
    }

    /// The stream is of no more use when its connection died, or all of the file was taken.
    fn end_taken(&mut self, source: &Source, is_dead: bool) {
        if is_dead {
            self.stream = None;
        } else if self.stream.as_ref().is_some_and(|stream| stream.lane.taken == source.size) {
            self.end_stream();
        }
    }

    /// Whether the bytes at `position` are on their way; sends for them if the reader is sequential.
    fn streams_at(
        &mut self,
        inner: &Inner,
        source: &Source,
        position: u64,
        wanted: usize,
        sequential: bool,
    ) -> Result<bool> {
        if self.leads_to(position, wanted) {
            self.strays = 0;
            return Ok(true);
        }
        self.strays += 1;
        if sequential || self.strays > STRAYS_MAX {
            self.end_stream();
        }
        if sequential {
            self.stream = Stream::open(inner, source, position, wanted as u64)?;
        }
        Ok(sequential && self.stream.is_some())
    }

    fn leads_to(&self, offset: u64, bytes: usize) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.lane.leads_to(offset, bytes as u64))
    }

    /// Takes bytes off the stream into the caller's memory, or, if they are few, into the block. Returns how many the
    /// caller has; `None`: the connection died, or the right to read is void. What comes of it shows in a request of
    /// its own.
    fn take(&mut self, inner: &Inner, source: &Source, rest: &mut [u8], position: u64, small: bool) -> Option<usize> {
        let taken = self.try_take(inner, source, rest, position, small).ok();
        self.end_taken(source, taken.is_none());
        taken
    }

    fn try_take(
        &mut self,
        inner: &Inner,
        source: &Source,
        rest: &mut [u8],
        position: u64,
        small: bool,
    ) -> weft_transport::Result<usize> {
        let Some(stream) = &mut self.stream else { return Ok(0) };
        let skipped = usize::try_from(position - stream.lane.taken).unwrap_or(usize::MAX);
        stream.ask(inner, source, (skipped + rest.len()) as u64)?;
        if small && skipped == 0 {
            let block = self.block.make(position, BLOCK_BYTES);
            self.block.bytes = stream.take(inner, block)?;
            return Ok(0);
        }
        if skipped > 0 {
            // Another thread of this reader may come yet for what was skipped.
            let block = self.block.make(stream.lane.taken, skipped);
            let mut have = 0;
            while let Some(rest) = block.get_mut(have..).filter(|rest| !rest.is_empty()) {
                have += stream.take(inner, rest)?;
            }
            self.block.bytes = have;
            stream.ask(inner, source, rest.len() as u64)?;
        }
        let goes_on = stream.lane.has_begun();
        let count = stream.take(inner, rest)?;
        if goes_on {
            // On its way while the caller does something with these. What fails shows when it is to be taken.
            let _ = stream.ask(inner, source, 0);
        }
        Ok(count)
    }

    /// Fills the block without a stream.
    fn read_block(&mut self, inner: &Inner, source: &Source, position: u64) -> Result<()> {
        let left = usize::try_from(source.size - position).unwrap_or(usize::MAX);
        let block = self.block.make(position, left.min(ALONE_BYTES));
        let have = read_object(inner, source.inode, source.held, block, position, source.registration)?;
        block.get_mut(have..).unwrap_or_default().fill(0);
        self.block.bytes = block.len();
        Ok(())
    }
}

/// Reads from the storage server straight into memory. Returns how many bytes the object has of it.
pub(crate) fn read_object(
    inner: &Inner,
    inode: InodeNumber,
    held: Held,
    into: &mut [u8],
    offset: u64,
    registration: Option<Registration>,
) -> Result<usize> {
    let mut have = 0;
    for piece in into.chunks_mut(BULK_BYTES_MAX as usize) {
        let request = request(inode, DataOperation::Read, held, offset + have as u64, piece.len());
        let count = inner.data_read(&request, piece, registration)?.bulk_bytes as usize;
        have += count;
        if count < piece.len() {
            break;
        }
    }
    Ok(have)
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end_stream();
    }
}
