//! How one handle of a simulated client reads: a block at hand for small requests, and what a sequential reader wants
//! next on its way.
//!
//! The steps are those of `crates/client/src/reader.rs`; what is asked for ahead decide [`ReadAhead`] and [`Lane`].

use crate::file::request;
use crate::process::{Io, Ticket};
use std::collections::VecDeque;
use weft_client_core::{Held, Lane, Pace, ReadAhead, Window};
use weft_protocol::data::DataOperation;
use weft_protocol::{InodeNumber, Result};

/// As the constants of the same names in the client and its connections, small enough that files are longer.
const PACE: Pace = Pace { first_bytes: 16, ahead_bytes: 60, turn_bytes: 24 };
const SMALL_BYTES: usize = 10;
const BLOCK_BYTES: usize = 20;

/// State of one handle's reads.
#[derive(Default)]
pub struct Reader {
    ahead: ReadAhead,
    /// The file's data version that block and stream are of.
    version: u64,
    block: (u64, Vec<u8>),
    stream: Option<Stream>,
}

/// Bytes on their way.
struct Stream {
    lane: Lane,
    connection: u64,
    turns: VecDeque<(Window, Ticket)>,
    /// Of the turn that has come: what was not taken yet.
    come: VecDeque<u8>,
}

/// What a read of one file needs to know.
#[derive(Clone, Copy)]
pub struct Source {
    pub inode: InodeNumber,
    pub held: Held,
    pub size: u64,
    pub version: u64,
}

impl Stream {
    async fn ask(&mut self, io: &Io, source: &Source, wanted: usize) -> Result<()> {
        while let Some(window) = self.lane.next(source.size, wanted as u64, &PACE) {
            io.ensure_term(source.inode.shard()).await?;
            let read = request(source.inode, DataOperation::Read, source.held, window.offset, window.bytes as usize);
            self.turns.push_back((window, io.start_data(self.connection, read, Vec::new())));
            self.lane.asked += u64::from(window.bytes);
        }
        Ok(())
    }

    /// Takes what comes next, up to so many bytes. `None`: the connection broke, or the right to read is void.
    async fn take(&mut self, io: &Io, bytes: usize) -> Option<Vec<u8>> {
        if self.come.is_empty() {
            let (window, ticket) = self.turns.pop_front()?;
            let (_, mut bytes) = io.finish_data(ticket).await?.ok()?;
            // The lease vouches for the size: what the object does not have of it is a hole.
            bytes.resize(window.bytes as usize, 0);
            self.come = bytes.into();
        }
        let count = bytes.min(self.come.len());
        self.lane.taken += count as u64;
        Some(self.come.drain(..count).collect())
    }

    async fn end(self, io: &Io) {
        for (_, ticket) in self.turns {
            io.finish_data(ticket).await;
        }
    }
}

impl Reader {
    /// What is on its way is not wanted any more.
    pub async fn end_stream(&mut self, io: &Io) {
        if let Some(stream) = self.stream.take() {
            stream.end(io).await;
        }
    }

    /// Fills `into`, whose bytes the file has, from what is at hand or on its way. Returns how many have been read.
    pub async fn read(&mut self, io: &Io, source: &Source, into: &mut [u8], offset: u64) -> Result<usize> {
        if self.version != source.version {
            self.end_stream(io).await;
            self.block.1.clear();
            self.version = source.version;
        }
        let small = into.len() <= SMALL_BYTES;
        let at_hand = self.copy_from_block(&mut [0], offset).is_some() || self.leads_to(offset, into.len());
        let sequential = self.ahead.note(offset, into.len() as u64, at_hand);
        let mut have = 0;
        while have < into.len() {
            let position = offset + have as u64;
            let rest = &mut into[have..];
            if let Some(count) = self.copy_from_block(rest, position) {
                have += count;
            } else if self.streams_at(io, position, rest.len(), sequential).await {
                let Some(count) = self.take(io, source, rest, position, small).await else { break };
                have += count;
            } else {
                break;
            }
        }
        Ok(have)
    }

    fn copy_from_block(&self, into: &mut [u8], position: u64) -> Option<usize> {
        let (start, bytes) = &self.block;
        let from = usize::try_from(position.checked_sub(*start)?).ok()?;
        let bytes = bytes.get(from..).filter(|bytes| !bytes.is_empty())?;
        let count = bytes.len().min(into.len());
        into[..count].copy_from_slice(&bytes[..count]);
        Some(count)
    }

    /// Whether the bytes at `position` are on their way, or will be.
    async fn streams_at(&mut self, io: &Io, position: u64, wanted: usize, sequential: bool) -> bool {
        let leads = self.leads_to(position, wanted);
        if !leads && sequential {
            self.end_stream(io).await;
            let (lane, connection) = (Lane::at(position), io.new_connection());
            self.stream = Some(Stream { lane, connection, turns: VecDeque::new(), come: VecDeque::new() });
        }
        leads || sequential
    }

    fn leads_to(&self, offset: u64, bytes: usize) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.lane.leads_to(offset, bytes as u64))
    }

    async fn take(&mut self, io: &Io, source: &Source, rest: &mut [u8], position: u64, small: bool) -> Option<usize> {
        let taken = self.try_take(io, source, rest, position, small).await;
        let at_end = self.stream.as_ref().is_some_and(|stream| stream.lane.taken == source.size);
        if taken.is_none() || at_end {
            self.end_stream(io).await;
        }
        taken
    }

    async fn try_take(
        &mut self,
        io: &Io,
        source: &Source,
        rest: &mut [u8],
        position: u64,
        small: bool,
    ) -> Option<usize> {
        let stream = self.stream.as_mut()?;
        let skipped = usize::try_from(position - stream.lane.taken).unwrap_or(usize::MAX);
        stream.ask(io, source, skipped + rest.len()).await.ok()?;
        if small && skipped == 0 {
            self.block = (position, stream.take(io, BLOCK_BYTES).await?);
            return Some(0);
        }
        if skipped > 0 {
            let start = stream.lane.taken;
            let mut block = Vec::new();
            while block.len() < skipped {
                block.extend(stream.take(io, skipped - block.len()).await?);
            }
            self.block = (start, block);
            stream.ask(io, source, rest.len()).await.ok()?;
        }
        let bytes = stream.take(io, rest.len()).await?;
        rest[..bytes.len()].copy_from_slice(&bytes);
        Some(bytes.len())
    }
}
