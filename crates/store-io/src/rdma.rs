//! Moves bytes between objects and the memory of a client: the server's side of RDMA.
//!
//! Sketch, per request of `n` pieces (docs/rdma.md):
//!
//! | direction | calls | copies |
//! | --- | --- | --- |
//! | read | `n` times `pread` into a slot and a put; one flush | 1 |
//! | read, pages of a mapped file | `n` times a put; one flush | 0 |
//! | write | `n` times a get into a slot and `pwrite` | 1 |
//! | write over what a mapped file has | `n` times a get; one `futimens` | 0 |
//!
//! An object without a file reads into slots itself, and writes what is in them: a copy less than a file that is not
//! mapped. Of a large read several pieces come at a time, into memory that the device knows, and go from there
//! (`streamed.rs`).
//!
//! Memory that is mapped here too (a buffer of the client's connection, on the same machine) needs no slot, put, get or
//! flush: `pread` into it and `pwrite` out of it are the transfers, one copy each.
//!
//! There are [`SLOTS`] slots, so that while one piece is on its way the next is read, or the last one written.

mod streamed;

use crate::executor::{Moved, read_all, write_all};
use crate::guard::{Admitted, WriteGuard};
use crate::store::{FilePlan, Segment, WritePlan, device_error};
use crate::windows::{WindowPart, Windows};
use rustix::fs::{Timespec, Timestamps};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use weft_protocol::Error;
use weft_protocol::data::BulkDescriptor;
use weft_region::BLOCK_BYTES;
use weft_transport::{LOOK_BEFORE_SLEEP, Result, Socket, TransportError};
use weft_ucx::{Liveness, Mover};

/// Slots of one connection.
const SLOTS: usize = 4;
/// Bytes of a piece, unless `WEFT_RDMA_PIECE_KIB` says otherwise.
const PIECE_BYTES: usize = 256 << 10;
const PIECE_BYTES_MAX: usize = 16 << 20;
/// Bytes from which on an object without a file is read into memory that its device knows. Measured: of 128 KiB, too,
/// which is one piece: that memory is in huge pages.
const STREAM_FROM_BYTES: u64 = 64 << 10;
/// How long the first byte may take.
const PROBE_PATIENCE: Duration = Duration::from_secs(10);
/// How long a transfer is looked at before its thread sleeps.
const LOOK: Duration = LOOK_BEFORE_SLEEP;

/// What was done since it was asked for last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Transfers {
    pub puts: u64,
    pub gets: u64,
    pub flushes: u64,
    /// Bytes read and written in place.
    pub placed_bytes: u64,
    /// Bytes moved from and to the pages of files.
    pub mapped_bytes: u64,
    /// Bytes moved from where a device has read them.
    pub streamed_bytes: u64,
}

/// The way to one client's memory.
#[derive(Debug)]
pub struct ClientMemory {
    mover: Mover,
    liveness: Liveness,
    piece_bytes: usize,
    /// Numbers of memory that was shown and cannot be reached from here.
    beyond_reach: HashSet<u32>,
    transfers: Transfers,
}

impl ClientMemory {
    /// The way to the client at this address, over whose socket its requests come.
    pub fn open(address: &[u8], socket: &Socket) -> weft_ucx::Result<Self> {
        let [first, second] = livenesses(socket);
        let connect = |liveness| Mover::connect(address, liveness).map(|mover| (mover, liveness));
        // The transports that are set may allow the second only; what is said is of the better one.
        let (mover, liveness) = connect(first).or_else(|error| connect(second).map_err(|_| error))?;
        let (beyond_reach, transfers) = (HashSet::new(), Transfers::default());
        Ok(Self { mover, liveness, piece_bytes: piece_bytes(), beyond_reach, transfers })
    }

    /// What the client makes its own end of, and how.
    pub fn address(&self) -> weft_ucx::Result<(Vec<u8>, Liveness)> {
        Ok((self.mover.address()?, self.liveness))
    }

    /// Takes note of memory that the client shows. An error: of more than it may.
    pub fn show(&mut self, socket: &Socket, memory: BulkDescriptor, bytes: u64, packed_key: &[u8]) -> Result<()> {
        self.hide(memory.key)?;
        match self.mover.learn(socket.as_fd(), (memory.key, memory.address, bytes), packed_key) {
            Ok(()) => Ok(()),
            Err(weft_ucx::Error::Foreign) => Err(TransportError::Malformed),
            Err(error) => {
                tracing::debug!(%error, "memory that a client shows cannot be reached");
                if self.beyond_reach.len() >= weft_ucx::REGIONS_MAX {
                    return Err(TransportError::Malformed);
                }
                self.beyond_reach.insert(memory.key);
                Ok(())
            }
        }
    }

    /// Forgets memory that the client does not show any more.
    pub fn hide(&mut self, number: u32) -> Result<()> {
        self.beyond_reach.remove(&number);
        Ok(self.mover.forget(number)?)
    }

    /// Whether these bytes can be reached. An error: the client never showed them.
    pub fn reaches(&self, memory: BulkDescriptor, bytes: u64) -> Result<bool> {
        if self.beyond_reach.contains(&memory.key) || memory.memory_type != 0 {
            return Ok(false);
        }
        if self.mover.knows(memory.key, memory.address, bytes) { Ok(true) } else { Err(TransportError::Malformed) }
    }

    /// Gets a number out of the client's memory, the first transfer of a connection, and says whether such memory is
    /// mapped here too. An error: the way leads nowhere.
    pub fn probe(&mut self, socket: &Socket, memory: BulkDescriptor) -> weft_ucx::Result<(u64, bool)> {
        let number = self.mover.probe(memory.key, memory.address, socket.as_fd(), LOOK, PROBE_PATIENCE)?;
        Ok((number, self.mover.place(memory.key, memory.address, 1)?.is_some()))
    }

    /// Answers the client with a message.
    pub fn tell(&self, message: &[u8]) -> weft_ucx::Result<()> {
        self.mover.tell(message)
    }

    /// The client's next message; `None`: its socket has something.
    pub fn next(&self, socket: &Socket) -> weft_ucx::Result<Option<Box<[u8]>>> {
        self.mover.next(socket.as_fd(), LOOK)
    }

    /// What was done since it was asked last.
    pub fn take_transfers(&mut self) -> Transfers {
        std::mem::take(&mut self.transfers)
    }

    /// Puts a segment into the client's memory. When this returns, it is there. A file that became shorter meanwhile is
    /// filled up with zeros. `windows`: of the segment's file.
    pub fn put(
        &mut self,
        socket: &Socket,
        segment: Segment<'_>,
        windows: Option<&Windows>,
        memory: BulkDescriptor,
    ) -> Result<Moved> {
        let bytes = segment.bytes();
        if let Some(moved) = self.put_in_place(segment, memory)? {
            return Ok(moved);
        }
        if let (Segment::File { file, offset, .. }, Some(windows)) = (segment, windows)
            && let Some(parts) = windows.at(file, offset, bytes)
            && self.move_mapped(socket, &parts, memory, Direction::Put)?
        {
            return Ok(Moved::Done);
        }
        if let Segment::Blocks { object, offset, .. } = segment
            && bytes >= STREAM_FROM_BYTES
            && let Some(moved) = self.put_streamed(socket, (object, offset, bytes), memory)?
        {
            return Ok(moved);
        }
        self.mover.reserve_slots(SLOTS, self.piece_bytes)?;
        let mut failed = None;
        for (number, (at, count)) in pieces(bytes, self.piece_bytes).enumerate() {
            let slot = number % SLOTS;
            self.mover.wait(slot, socket.as_fd(), LOOK)?;
            let room = room_for(segment, count).min(self.piece_bytes);
            if let Err(error) = read_piece(segment, at, slot_of(&mut self.mover, slot, room)?) {
                failed = Some(error);
                break;
            }
            self.mover.put(slot, 0..count, memory.key, memory.address + at)?;
            self.transfers.puts += 1;
        }
        // Also after an error: the memory is the client's again when it is answered.
        self.mover.flush(socket.as_fd(), LOOK)?;
        self.transfers.flushes += 1;
        for slot in 0..SLOTS {
            self.mover.wait(slot, socket.as_fd(), LOOK)?;
        }
        Ok(failed.map_or(Moved::Done, Moved::Failed))
    }

    /// Moves bytes between pages of a file and the client's memory. `false`: the file was cut meanwhile.
    fn move_mapped(
        &mut self,
        socket: &Socket,
        parts: &[WindowPart],
        memory: BulkDescriptor,
        direction: Direction,
    ) -> Result<bool> {
        let mut address = memory.address;
        for (window, range) in parts {
            let first = self.mover.add_file_slots(SLOTS, window);
            for (number, (at, count)) in pieces(range.len() as u64, self.piece_bytes).enumerate() {
                let slot = first + number % SLOTS;
                self.mover.wait(slot, socket.as_fd(), LOOK)?;
                let start = range.start + usize::try_from(at).unwrap_or(usize::MAX);
                let (piece, to) = (start..start + count, address + at);
                if direction == Direction::Put {
                    self.mover.put(slot, piece, memory.key, to)?;
                    self.transfers.puts += 1;
                } else {
                    self.mover.get(slot, piece, memory.key, to)?;
                    self.transfers.gets += 1;
                }
            }
            if direction == Direction::Put {
                self.mover.flush(socket.as_fd(), LOOK)?;
                self.transfers.flushes += 1;
            }
            for slot in first..first + SLOTS {
                self.mover.wait(slot, socket.as_fd(), LOOK)?;
            }
            self.mover.remove_file_slots()?;
            address += range.len() as u64;
            self.transfers.mapped_bytes += range.len() as u64;
        }
        Ok(parts.iter().all(|(window, _)| window.is_whole()))
    }

    /// The same where the memory is mapped here too. `None`: it is not, or the file has become shorter.
    fn put_in_place(&mut self, segment: Segment<'_>, memory: BulkDescriptor) -> Result<Option<Moved>> {
        let Segment::File { file, offset, bytes } = segment else { return Ok(None) };
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let Some(mut place) = self.mover.place(memory.key, memory.address, length)? else { return Ok(None) };
        match place.fill_from(file, offset) {
            Ok(count) if count == length => {
                self.transfers.placed_bytes += bytes;
                Ok(Some(Moved::Done))
            }
            Ok(_) => Ok(None),
            Err(Errno::FAULT) => Err(TransportError::Malformed),
            Err(errno) => Ok(Some(Err(errno).into())),
        }
    }

    /// Gets `bytes` out of the client's memory into the object, each piece as `guard` admits. When this returns the
    /// memory is used no more; after an error this way to it has to be dropped first. `windows`: of the object's file.
    pub fn get(
        &mut self,
        socket: &Socket,
        memory: BulkDescriptor,
        (plan, windows): (WritePlan<'_>, Option<&Windows>),
        bytes: u32,
        guard: &dyn WriteGuard,
    ) -> Result<Moved> {
        // What is appended in two calls could have another's between them: it comes by the stream.
        let offset = plan.offset().ok_or(TransportError::Malformed)?;
        if let WritePlan::File(plan) = plan
            && let Some(moved) = self.get_in_place(socket, memory, (plan, windows), offset, bytes)?
        {
            return Ok(moved);
        }
        self.mover.reserve_slots(SLOTS, self.piece_bytes)?;
        let mut failed: Option<Error> = None;
        let mut ahead = pieces(u64::from(bytes), self.piece_bytes).enumerate();
        for (number, (at, count)) in pieces(u64::from(bytes), self.piece_bytes).enumerate() {
            let begun = if number == 0 { SLOTS } else { 1 };
            // After an error no more is fetched; what is on its way has to arrive.
            for (next, (at, count)) in ahead.by_ref().take(if failed.is_none() { begun } else { 0 }) {
                self.mover.get(next % SLOTS, 0..count, memory.key, memory.address + at)?;
                self.transfers.gets += 1;
            }
            let slot = number % SLOTS;
            self.mover.wait(slot, socket.as_fd(), LOOK)?;
            if failed.is_none() {
                let piece = slot_of(&mut self.mover, slot, count)?;
                failed = Admitted::by(guard).and_then(|_admitted| write_piece(plan, piece, offset + at)).err();
            }
        }
        Ok(failed.map_or(Moved::Done, Moved::Failed))
    }

    /// The same without slots, where the memory or the file's pages are mapped. `None`: neither is.
    fn get_in_place(
        &mut self,
        socket: &Socket,
        memory: BulkDescriptor,
        (plan, windows): (FilePlan<'_>, Option<&Windows>),
        offset: u64,
        bytes: u32,
    ) -> Result<Option<Moved>> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        if let Some(place) = self.mover.place(memory.key, memory.address, length)? {
            self.transfers.placed_bytes += u64::from(bytes);
            return match place.write_to(plan.file, offset, plan.call_bytes) {
                Ok(count) if count == length => Ok(Some(Moved::Done)),
                Ok(_) => Ok(Some(Err(Errno::IO).into())),
                // The client took it away: an error of the connection.
                Err(Errno::FAULT) => Err(TransportError::Malformed),
                Err(errno) => Ok(Some(Err(errno).into())),
            };
        }
        if let Some(parts) = windows.and_then(|windows| windows.at(plan.file, offset, u64::from(bytes)))
            && self.move_mapped(socket, &parts, memory, Direction::Get)?
        {
            // A file's times do not follow what is written through its pages.
            return Ok(Some(touch(plan.file).into()));
        }
        Ok(None)
    }
}

/// Bytes of a slot that a piece is read into: an object that reads itself reads whole blocks.
fn room_for(segment: Segment<'_>, count: usize) -> usize {
    if let Segment::Blocks { .. } = segment { count.next_multiple_of(BLOCK_BYTES) } else { count }
}

/// Reads bytes of a segment, from `at` on.
fn read_piece(segment: Segment<'_>, at: u64, place: &mut [u8]) -> std::result::Result<(), Error> {
    match segment {
        Segment::Hole { .. } => {
            place.fill(0);
            Ok(())
        }
        Segment::File { file, offset, .. } => read_all(file, place, offset + at).map_err(device_error),
        Segment::Blocks { object, offset, .. } => object.read_at(offset + at, place),
    }
}

fn write_piece(plan: WritePlan<'_>, bytes: &[u8], offset: u64) -> std::result::Result<(), Error> {
    match plan {
        WritePlan::File(plan) => write_all(plan, bytes, offset).map_err(device_error),
        WritePlan::Blocks { object, .. } => object.write_at(offset, bytes),
    }
}

/// Which way bytes go between a file and the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Put,
    Get,
}

/// Sets the time of the last change to now.
fn touch(file: BorrowedFd<'_>) -> std::result::Result<(), Errno> {
    let now = |nanoseconds| Timespec { tv_sec: 0, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: now(rustix::fs::UTIME_OMIT), last_modification: now(rustix::fs::UTIME_NOW) };
    rustix::fs::futimens(file, &times)
}

/// Who may watch the other end, the better one first. Inside a machine shared memory is worth more than UCX's own
/// watch: the socket tells when the client is gone.
fn livenesses(socket: &Socket) -> [Liveness; 2] {
    let both = [Liveness::Caller, Liveness::Endpoint];
    if socket.is_local() { both } else { [both[1], both[0]] }
}

/// The first bytes of a slot that is ours.
fn slot_of(mover: &mut Mover, slot: usize, count: usize) -> Result<&mut [u8]> {
    mover.slot(slot).and_then(|bytes| bytes.get_mut(..count)).ok_or(TransportError::Malformed)
}

/// Places and lengths of the pieces of so many bytes.
fn pieces(bytes: u64, piece_bytes: usize) -> impl Iterator<Item = (u64, usize)> {
    let step = piece_bytes as u64;
    (0..bytes.div_ceil(step)).map(move |number| {
        let at = number * step;
        (at, usize::try_from((bytes - at).min(step)).unwrap_or(piece_bytes))
    })
}

fn piece_bytes() -> usize {
    let said = std::env::var("WEFT_RDMA_PIECE_KIB").ok().and_then(|text| text.parse::<usize>().ok());
    said.map_or(PIECE_BYTES, |kib| kib.saturating_mul(1024).clamp(4096, PIECE_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_all_bytes_once() {
        let lengths = |bytes| pieces(bytes, 100).collect::<Vec<_>>();
        assert_eq!(lengths(0), []);
        assert_eq!(lengths(1), [(0, 1)]);
        assert_eq!(lengths(100), [(0, 100)]);
        assert_eq!(lengths(250), [(0, 100), (100, 100), (200, 50)]);
    }
}
