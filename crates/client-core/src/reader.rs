//! How one handle reads: a block at hand for small requests, and prefetched ranges for a sequential reader.
//!
//! Sketch for a sequential reader: data requests of one prefetch turn each ([`DataConnection::prefetch_window`]),
//! sent ahead; their bytes wait in the connection. A read takes them straight into the caller's memory: one copy, out
//! of the kernel. A small one takes them from a block ([`crate::tuning::Tuning`]), which is still in the processor's
//! cache when it is copied out. Through a passed descriptor: one `pread` per block.

use crate::file_objects::FileObjects;
use crate::lines::Lines;
use crate::objects::{Objects, Registration};
use crate::read_ahead::{Lane, Pace, ReadAhead};
use crate::shell::Shell;
use weft_protocol::{InodeNumber, Result, SessionId};

/// A stray read of one of several threads ends no stream; after so many in a row nobody goes on with it.
const STRAYS_MAX: u32 = 16;
/// Discarding more unwanted bytes costs more than another connection.
const DISCARDED_MAX: u64 = 1 << 20;

/// Which state of the data bytes at hand belong to. They are good as long as it stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Version {
    pub data: u64,
    pub session: SessionId,
}

/// State of one handle's reads.
pub(crate) struct Reader<S: Shell> {
    ahead: ReadAhead,
    /// The version of the data that block and stream belong to.
    version: Version,
    block: Block,
    stream: Option<Stream<S>>,
    /// Reads in a row that the stream did not lead to.
    strays: u32,
    /// Several threads have read at once, and would take each other's stream away.
    is_shared: bool,
    /// The caller passes bytes on from where they lie: prefetching saves it more than its own memory does.
    hands_on: bool,
}

/// Bytes of the file at hand.
#[derive(Default)]
struct Block {
    offset: u64,
    bytes: usize,
    memory: Vec<u8>,
}

/// Prefetched bytes, in flight or in the connections.
struct Stream<S: Shell> {
    lane: Lane,
    lines: Lines<S>,
}

/// What a read of one file through its server needs to know.
pub(crate) struct Source<S: Shell> {
    pub inode: InodeNumber,
    pub objects: FileObjects,
    pub size: u64,
    pub version: Version,
    pub registration: Option<Registration<S>>,
}

impl<S: Shell> Source<S> {
    /// Whether a read of so many bytes keeps all nodes busy by itself.
    fn spans_stripes(&self, bytes: usize) -> bool {
        let stripes = self.objects.stripes();
        self.objects.is_striped() && stripes.pieces(0, bytes).nth(stripes.width() - 1).is_some()
    }
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
        into[..count].copy_from_slice(&bytes[..count]);
        Some(count)
    }

    /// Memory for other bytes.
    fn make(&mut self, offset: u64, bytes: usize) -> &mut [u8] {
        (self.offset, self.bytes) = (offset, 0);
        if self.memory.len() < bytes {
            self.memory.resize(bytes, 0);
        }
        &mut self.memory[..bytes]
    }
}

impl<S: Shell> Stream<S> {
    /// Prefetches so many bytes, and what follows them. `None`: there is no connection to keep for it.
    async fn open(io: &Objects<S>, source: &Source<S>, position: u64, wanted: u64) -> Result<Option<Self>> {
        let (objects, stripes) = (&source.objects, source.objects.stripes());
        let index = stripes.piece_at(position, 0, 1).index;
        let Some(lines) = Lines::open(io, objects.iter().count(), (index, objects.at(index))).await? else {
            return Ok(None);
        };
        let mut stream = Self { lane: Lane::at(position), lines };
        // A pooled connection may have died meanwhile: then a request of its own finds out.
        Ok(stream.ask(io, source, wanted).await.is_ok().then_some(stream))
    }

    /// Prefetches for a sequential reader who takes so many bytes now.
    async fn ask(&mut self, io: &Objects<S>, source: &Source<S>, wanted: u64) -> Result<()> {
        let (turn_bytes, ahead_bytes) = self.lines.window();
        let pace = Pace { first_bytes: io.tuning.first_bytes, ahead_bytes, turn_bytes };
        while let Some(window) = self.lane.next(source.size, wanted, &pace) {
            let piece = source.objects.stripes().piece_at(window.offset, 0, window.bytes as usize);
            if !self.lines.ask(io, (source.inode, source.objects.at(piece.index)), &piece).await? {
                break;
            }
            self.lane.asked += piece.bytes as u64;
        }
        Ok(())
    }

    /// Takes the next bytes.
    async fn take(&mut self, into: &mut [u8]) -> Result<usize> {
        let count = self.lines.take(into).await?;
        self.lane.taken += count as u64;
        Ok(count)
    }

    /// Hands the next bytes out where they lie; `false`: they do not lie anywhere in one piece.
    async fn hand(&mut self, bytes: usize, give: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let handed = self.lines.hand(bytes, give).await?;
        if handed {
            self.lane.taken += bytes as u64;
        }
        Ok(handed)
    }

    /// Discards what was prefetched and returns the connections; where that is much, they are closed instead.
    async fn end(self, io: &Objects<S>) {
        if self.lane.asked - self.lane.taken <= DISCARDED_MAX {
            self.lines.end(io).await;
        }
    }
}

impl<S: Shell> Reader<S> {
    /// A reader that knows of no access pattern yet.
    pub fn new() -> Self {
        Self {
            ahead: ReadAhead::default(),
            version: Version::default(),
            block: Block::default(),
            stream: None,
            strays: 0,
            is_shared: false,
            hands_on: false,
        }
    }

    /// Bytes at hand and prefetched are of this version, or of no use.
    pub async fn at_version(&mut self, io: &Objects<S>, version: Version) {
        if self.version != version {
            self.end_stream(io).await;
            self.block.bytes = 0;
            self.version = version;
        }
    }

    /// A thread has waited for another one that reads.
    pub fn note_shared(&mut self) {
        self.is_shared = true;
    }

    /// Whether the byte at an offset is at hand, good or stale.
    pub fn has(&self, offset: u64) -> bool {
        self.block.has(offset)
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

    /// Prefetched bytes are not wanted any more.
    pub async fn end_stream(&mut self, io: &Objects<S>) {
        if let Some(stream) = self.stream.take() {
            stream.end(io).await;
        }
    }

    /// Small reads through a descriptor that is held under a lease, up to the file's end.
    pub async fn read_descriptor(
        &mut self,
        io: &Objects<S>,
        file: &S::Descriptor,
        version: Version,
        into: &mut [u8],
        offset: u64,
    ) -> Result<usize> {
        let shell = &io.calls.shell;
        self.at_version(io, version).await;
        let sequential = self.ahead.note(offset, into.len() as u64, self.block.has(offset));
        let mut have = 0;
        while have < into.len() {
            let position = offset + have as u64;
            let rest = &mut into[have..];
            if let Some(count) = self.block.copy(rest, position) {
                have += count;
                continue;
            }
            if !sequential {
                return Ok(have + shell.read_file(file, rest, position).await?);
            }
            self.block.bytes =
                shell.read_file(file, self.block.make(position, io.tuning.block_bytes), position).await?;
            if self.block.bytes == 0 {
                break;
            }
        }
        Ok(have)
    }

    /// Fills `into`, whose bytes the file has, from what is at hand or prefetched. Returns how many bytes have been
    /// read: the rest is not worth keeping others waiting, or could not be had this way.
    pub async fn read(&mut self, io: &Objects<S>, source: &Source<S>, into: &mut [u8], offset: u64) -> Result<usize> {
        self.at_version(io, source.version).await;
        let small = into.len() <= io.tuning.small_bytes;
        let at_hand = self.block.has(offset) || self.leads_to(offset, into.len());
        let sequential = self.ahead.note(offset, into.len() as u64, at_hand);
        let mut have = 0;
        while have < into.len() {
            let (position, rest) = (offset + have as u64, &mut into[have..]);
            if let Some(count) = self.block.copy(rest, position) {
                have += count;
            } else if self.is_shared && source.spans_stripes(rest.len()) {
                self.end_stream(io).await;
                break;
            } else if !self.hands_on && io.calls.shell.reads_directly(rest, source.registration) {
                break;
            } else if self.streams_at(io, source, position, rest.len(), sequential).await? {
                let taken = self.take(io, source, rest, position, small).await;
                self.end_taken(io, source, taken.is_err()).await;
                let Ok(count) = taken else { break };
                have += count;
            } else if sequential && rest.len() < io.tuning.alone_bytes {
                self.read_block(io, source, position).await?;
            } else {
                break;
            }
        }
        Ok(have)
    }

    /// Whether the next prefetched bytes begin at this offset: then [`Reader::hand`] is worth calling. Callers pass
    /// bytes on.
    pub fn is_next(&mut self, offset: u64) -> bool {
        self.hands_on = true;
        self.next_stream(offset).is_some()
    }

    /// The stream, if its next bytes begin at this offset and are not at hand.
    fn next_stream(&mut self, offset: u64) -> Option<&mut Stream<S>> {
        let is_at_hand = self.block.has(offset);
        self.stream.as_mut().filter(|stream| stream.lane.taken == offset && !is_at_hand)
    }

    /// Passes bytes that the file has to `give` where they lie, if they come next and lie in memory of the connection.
    /// `false`: they do not, and `give` was not called.
    pub async fn hand(
        &mut self,
        io: &Objects<S>,
        source: &Source<S>,
        (offset, bytes): (u64, usize),
        give: &mut dyn FnMut(&[u8]),
    ) -> bool {
        self.at_version(io, source.version).await;
        let Some(stream) = self.next_stream(offset).filter(|_| bytes > 0) else { return false };
        let handed = match stream.ask(io, source, bytes as u64).await {
            Ok(()) => stream.hand(bytes, give).await,
            Err(error) => Err(error),
        };
        if let Ok(true) = handed {
            self.ahead.note(offset, bytes as u64, true);
            self.strays = 0;
        }
        self.end_taken(io, source, handed.is_err()).await;
        handed.unwrap_or(false)
    }

    /// The stream is of no more use when its connection died, or when all of the file was taken.
    async fn end_taken(&mut self, io: &Objects<S>, source: &Source<S>, is_dead: bool) {
        if is_dead {
            self.stream = None;
        } else if self.stream.as_ref().is_some_and(|stream| stream.lane.taken == source.size) {
            self.end_stream(io).await;
        }
    }

    /// Whether the bytes at `position` are prefetched; prefetches them for a sequential reader.
    async fn streams_at(
        &mut self,
        io: &Objects<S>,
        source: &Source<S>,
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
            self.end_stream(io).await;
        }
        if sequential {
            self.stream = Stream::open(io, source, position, wanted as u64).await?;
        }
        Ok(sequential && self.stream.is_some())
    }

    fn leads_to(&self, offset: u64, bytes: usize) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.lane.leads_to(offset, bytes as u64))
    }

    /// Takes bytes off the stream into the caller's memory, or, if they are few, into the block. Returns how many the
    /// caller has. An error: the connection died, or the right to read is void, which a request of its own finds out.
    async fn take(
        &mut self,
        io: &Objects<S>,
        source: &Source<S>,
        rest: &mut [u8],
        position: u64,
        small: bool,
    ) -> Result<usize> {
        let Some(stream) = &mut self.stream else { return Ok(0) };
        let skipped = usize::try_from(position - stream.lane.taken).expect("a stream leads a few requests ahead");
        stream.ask(io, source, (skipped + rest.len()) as u64).await?;
        if small && skipped == 0 {
            let block = self.block.make(position, io.tuning.block_bytes);
            self.block.bytes = stream.take(block).await?;
            return Ok(0);
        }
        if skipped > 0 {
            // Another thread of this reader may come yet for what was skipped.
            let block = self.block.make(stream.lane.taken, skipped);
            let mut have = 0;
            while have < skipped {
                have += stream.take(&mut block[have..]).await?;
            }
            self.block.bytes = have;
            stream.ask(io, source, rest.len() as u64).await?;
        }
        let goes_on = stream.lane.has_begun();
        let count = stream.take(rest).await?;
        if goes_on {
            // In flight while the caller uses these bytes. A failure shows when the next are taken.
            let _ = stream.ask(io, source, 0).await;
        }
        Ok(count)
    }

    /// Fills the block without a stream.
    async fn read_block(&mut self, io: &Objects<S>, source: &Source<S>, position: u64) -> Result<()> {
        let left = usize::try_from(source.size - position).unwrap_or(usize::MAX);
        let block = self.block.make(position, left.min(io.tuning.alone_bytes));
        io.read_within((source.inode, &source.objects), block, position, source.registration).await?;
        self.block.bytes = block.len();
        Ok(())
    }
}
