//! Moves bytes between objects that have no file and whoever sends or takes them, through memory of whole blocks.
//!
//! The memory begins at a block's boundary, and bytes lie in it as they do in their blocks, so that a device which
//! reads and writes past the page cache needs no copy of its own. There is a pool of it: a connection has some for as
//! long as a request takes. Large reads, where the kernel can begin them without waiting, use the device's own memory
//! ([`weft_region::Stream`]): it is registered with the kernel, and filled while other parts of it are sent. Of large
//! writes a piece is received while another is written (`turns.rs`).

mod loans;
mod turns;

use crate::guard::WriteGuard;
use crate::region::refused;
use crate::store::{BlockObject, lock};
pub use loans::Loans;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;
use turns::Turns;
use weft_protocol::Error;
use weft_region::{BLOCK_BYTES, Stream};
use weft_sys::huge::HugeBuffer;
use weft_transport::{Result, Socket, TransportError};

/// Bytes of the pool's buffers: a write of so many, from the begin of a block on, is one call of the device.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes of a piece where others are sent or received meanwhile.
const PIECE_BYTES: usize = 512 << 10;
/// More bytes than this are read in several pieces, where some can be on their way while others are sent.
const STREAM_FROM_BYTES: u64 = 256 << 10;
/// Writes of so many bytes and more are received while they are written. Measured: a thread more costs those of 1 MiB
/// up to a third, and gains these up to a fifth.
const OVERLAPPED_FROM_BYTES: u32 = 4 << 20;
/// Buffers that the pool keeps. A huge page has two, and stays as long as one of them.
const POOL_MAX: usize = 16;

static POOL: Mutex<Vec<HugeBuffer>> = Mutex::new(Vec::new());

/// Memory of the pool.
struct Lent(Option<HugeBuffer>);

impl Lent {
    fn take() -> Self {
        let mut pool = lock(&POOL);
        if pool.is_empty() {
            pool.extend(HugeBuffer::page_of(BUFFER_BYTES));
        }
        Self(pool.pop())
    }
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut pool = lock(&POOL);
        if pool.len() < POOL_MAX {
            pool.extend(self.0.take());
        }
    }
}

/// Where a piece of a transfer lies: its bytes before the block that it begins in, and how many it has.
struct Piece {
    offset: u64,
    lead: usize,
    count: usize,
}

/// Cuts bytes of an object into pieces that each fit memory of so many bytes.
fn pieces(offset: u64, bytes: u64, memory_bytes: usize) -> impl Iterator<Item = Piece> {
    let (mut at, end) = (offset, offset.saturating_add(bytes));
    std::iter::from_fn(move || {
        let lead = usize::try_from(at % BLOCK_BYTES as u64).unwrap_or(0);
        let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(memory_bytes - lead);
        let piece = Piece { offset: at, lead, count };
        at += count as u64;
        (count > 0).then_some(piece)
    })
}

/// Sends bytes of an object behind a header, piece by piece. What the object fails with before the first is the second
/// value; later it is an error: what was begun cannot be ended.
pub(crate) fn read(
    object: &dyn BlockObject,
    offset: u64,
    bytes: u64,
    (socket, mut header): (&Socket, &[u8]),
) -> Result<std::result::Result<(), Error>> {
    if bytes > STREAM_FROM_BYTES
        && let Some(stream) = object.stream(offset, bytes)
    {
        return send_stream(stream, socket, header);
    }
    let mut memory = Lent::take();
    for piece in pieces(offset, bytes, PIECE_BYTES) {
        let (lead, end) = (piece.lead, piece.lead + piece.count);
        let blocks = &mut memory[..end.next_multiple_of(BLOCK_BYTES)];
        if let Err(error) = object.read_at(piece.offset - lead as u64, blocks) {
            return failed(error, piece.offset == offset);
        }
        socket.send_all_with(std::mem::take(&mut header), &blocks[lead..end])?;
    }
    Ok(Ok(()))
}

/// The same, while further pieces are on their way from the device. They are waited for before anybody else is: as long
/// as they are on their way, others may wait for this thread.
fn send_stream(mut stream: Stream<'_>, socket: &Socket, mut header: &[u8]) -> Result<std::result::Result<(), Error>> {
    let mut is_first = true;
    loop {
        match stream.advance() {
            Ok(true) => is_first = false,
            Ok(false) => return Ok(Ok(())),
            Err(error) => return failed(refused(error), is_first),
        }
        let sent = socket.send_now_with(header, stream.bytes())?;
        let of_header = sent.min(header.len());
        header = header.get(of_header..).unwrap_or_default();
        if sent - of_header < stream.bytes().len() {
            stream.settle();
            let rest = stream.bytes().get(sent - of_header..).unwrap_or_default();
            socket.send_all_with(std::mem::take(&mut header), rest)?;
        }
    }
}

fn failed(error: Error, is_first: bool) -> Result<std::result::Result<(), Error>> {
    if is_first { Ok(Err(error)) } else { Err(TransportError::Io(io::Error::from_raw_os_error(error.to_errno()))) }
}

/// Writes bytes that `fill` brings to an object, piece by piece as `guard` admits; of a large write, a piece comes
/// while the one before is written, for which there is a thread more. Of a failure, the error and how many bytes were
/// not asked for.
pub(crate) fn write(
    object: &dyn BlockObject,
    (offset, bytes): (u64, u32),
    guard: &dyn WriteGuard,
    fill: impl FnMut(&mut [u8]) -> Result<()> + Send,
) -> Result<std::result::Result<(), (Error, usize)>> {
    let is_overlapped = bytes >= OVERLAPPED_FROM_BYTES;
    let piece_bytes = if is_overlapped { PIECE_BYTES } else { BUFFER_BYTES };
    let turns = Turns::new((object, guard), (offset, bytes), piece_bytes, fill);
    if is_overlapped {
        std::thread::scope(|scope| {
            // Where there is no thread to be had this one does all.
            drop(std::thread::Builder::new().name("pieces".to_owned()).spawn_scoped(scope, || turns.take()));
            turns.take();
        });
    } else {
        turns.take();
    }
    turns.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{Moved, Pipe};
    use crate::guard::Unguarded;
    use crate::store::{Segment, WritePlan};
    use std::os::unix::net::UnixStream;

    const BYTES: usize = 3 * PIECE_BYTES + 777;

    /// An object in memory that has room for so many bytes, and cannot read behind them.
    pub(super) struct Small(pub Mutex<Vec<u8>>, usize);

    impl Small {
        pub fn with(bytes: Vec<u8>) -> Self {
            let room = bytes.len();
            Self(Mutex::new(bytes), room)
        }

        fn is_for(&self, offset: u64, bytes: &[u8]) -> weft_protocol::Result<std::ops::Range<usize>> {
            let start = usize::try_from(offset).unwrap();
            let range = start..start + bytes.len();
            if range.end > self.1 { Err(Error::NoSpace) } else { Ok(range) }
        }
    }

    impl BlockObject for Small {
        fn read_at(&self, offset: u64, into: &mut [u8]) -> weft_protocol::Result<()> {
            assert!(offset.is_multiple_of(4096) && into.len().is_multiple_of(4096), "whole blocks");
            assert_eq!(into.as_ptr().align_offset(BLOCK_BYTES), 0, "which the device takes as they are");
            into.copy_from_slice(&lock(&self.0)[self.is_for(offset, into)?]);
            Ok(())
        }

        fn write_at(&self, offset: u64, from: &[u8]) -> weft_protocol::Result<()> {
            assert_eq!(from.as_ptr().align_offset(BLOCK_BYTES), (4096 - offset as usize % 4096) % 4096);
            lock(&self.0)[self.is_for(offset, from)?].copy_from_slice(from);
            Ok(())
        }

        fn append(&self, _: &[u8]) -> weft_protocol::Result<()> {
            Err(Error::NoSpace)
        }
    }

    pub(super) fn sockets() -> (Socket, Socket) {
        let (client, server) = UnixStream::pair().unwrap();
        (Socket::from_unix(client), Socket::from_unix(server))
    }

    pub(super) fn contents() -> Vec<u8> {
        (0..BYTES).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect()
    }

    #[test]
    fn a_write_that_fails_leaves_the_connection_in_order() {
        let bytes = contents();
        let count = u32::try_from(BYTES).unwrap();
        for (room, offset, is_done) in [(5 << 20, Some(4097), true), (PIECE_BYTES, Some(5), false), (0, None, false)] {
            let object = Small(Mutex::new(vec![0; 5 << 20]), room);
            let (client, server) = sockets();
            std::thread::scope(|scope| {
                scope.spawn(|| client.send_all_with(&bytes, b"next").unwrap());
                let plan = WritePlan::Blocks { object: &object, offset };
                let moved = Pipe::new().receive(&server, plan, count, &Unguarded).unwrap();
                assert!(if is_done {
                    matches!(moved, Moved::Done)
                } else {
                    matches!(moved, Moved::Failed(Error::NoSpace))
                });
                let mut next = [0; 4];
                server.receive_exact(&mut next).unwrap();
                assert_eq!(&next, b"next");
            });
            assert!(!is_done || lock(&object.0)[4097..4097 + BYTES] == bytes);
        }
    }

    #[test]
    fn of_a_read_that_fails_at_first_nothing_is_sent_and_later_it_is_an_error() {
        let object = Small(Mutex::new([contents(), vec![0; 1 << 20]].concat()), BYTES + (1 << 20));
        let read = |object: &Small, offset, bytes: usize| {
            let (client, server) = sockets();
            let segment = Segment::Blocks { object, offset, bytes: bytes as u64 };
            std::thread::scope(|scope| {
                let sent = scope.spawn(move || Pipe::new().send(&server, b"header", segment));
                let mut found = vec![0; bytes + 6];
                let received = client.receive_exact(&mut found);
                (sent.join().unwrap(), received.is_ok().then(|| found.split_off(6)))
            })
        };
        let (sent, found) = read(&object, 4097, BYTES - 4097);
        assert!(matches!(sent, Ok(Moved::Done)) && found.unwrap() == contents()[4097..]);
        let object = Small(object.0, PIECE_BYTES);
        assert!(matches!(read(&object, 2 * PIECE_BYTES as u64, 10), (Ok(Moved::Failed(Error::NoSpace)), None)));
        assert!(matches!(read(&object, 0, BYTES), (Err(_), None)), "what was promised cannot come");
    }

    #[test]
    fn pieces_cover_all_bytes_and_end_at_blocks() {
        for (offset, bytes) in [(0, 0), (0, 1), (4095, 2), (5, 3 << 20), (4096, 1 << 20), ((1 << 40) + 77, 600_000)] {
            let (mut at, mut last) = (offset, None);
            for piece in pieces(offset, bytes, PIECE_BYTES) {
                assert_eq!((piece.offset, piece.lead as u64), (at, at % 4096));
                assert!(piece.count > 0 && piece.lead + piece.count <= PIECE_BYTES);
                assert!(last.is_none_or(|last: u64| last.is_multiple_of(4096)), "only the first begins inside a block");
                at += piece.count as u64;
                last = Some(at);
            }
            assert_eq!(at, offset + bytes);
        }
    }
}
