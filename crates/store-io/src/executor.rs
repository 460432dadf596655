//! Moves bytes between objects and sockets as plans say.
//!
//! Sketch, per request, of the copies of file data in the server:
//!
//! | direction, size | calls | copies |
//! | --- | --- | --- |
//! | read, small | `pread`, `send` of header and data as one | 2 |
//! | read, large | `send` of the header, `sendfile` | TCP: 1 at the receiver only; Unix: pages go by reference |
//! | write, up to 256 KiB | `recv`, `pwrite`, up to 128 KiB at a time | 2, the second from the processor's cache |
//! | write, larger | `splice` socket to pipe, `splice` pipe to file | 1 |
//! | append | `recv`, one `pwritev2` at the end | 2 |
//! | write from the client's memory | `process_vm_readv`, `pwrite`, 128 KiB at a time | 2, the second from the cache |
//!
//! An object without a file ([`crate::blocks`]) reads whole blocks into memory, from where they are sent, and writes
//! what was received there, or read from the client. One copy; the device makes none. Of a large read, further pieces
//! come while one is sent; of a large write, while one is written.

use crate::blocks;
use crate::guard::{Admitted, WriteGuard};
use crate::store::{BlockObject, FilePlan, Segment, WritePlan, device_error};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use weft_protocol::Error;
use weft_transport::{PeerMemory, Result, Socket, TransportError};

/// Reads up to this many bytes are joined with their header in memory: one call and one packet.
pub const SMALL_READ_BYTES: usize = 32 << 10;
/// Writes up to this many bytes are received into memory first. Measured: the copy costs less than the pipe; of larger
/// ones, which come while they are written, more.
const COPIED_WRITE_BYTES: usize = 256 << 10;
/// Bytes of a write that are received into memory at a time.
const COPY_BYTES: usize = 128 << 10;
/// Memory that a connection keeps between requests; an append may take more for a moment.
const MEMORY_KEPT_BYTES: usize = 1 << 20;
/// Bytes asked for the pipe between socket and file: what an unprivileged process may have by default.
const PIPE_BYTES: usize = 1 << 20;

/// The buffers of one connection's thread: a pipe for splicing and memory for small requests.
pub struct Pipe {
    ends: Option<(OwnedFd, OwnedFd)>,
    memory: Vec<u8>,
}

/// What became of a transfer. The connection is in order in both cases.
pub enum Moved {
    Done,
    /// The store refused, with this error. A write's bytes were taken off the connection; of a read nothing was sent.
    Failed(Error),
}

impl From<std::result::Result<(), Error>> for Moved {
    fn from(done: std::result::Result<(), Error>) -> Self {
        done.map_or_else(Moved::Failed, |()| Moved::Done)
    }
}

impl From<std::result::Result<(), Errno>> for Moved {
    fn from(done: std::result::Result<(), Errno>) -> Self {
        done.map_err(device_error).into()
    }
}

impl Default for Pipe {
    fn default() -> Self {
        Self::new()
    }
}

impl Pipe {
    /// Nothing is allocated before it is needed.
    pub const fn new() -> Self {
        Self { ends: None, memory: Vec::new() }
    }

    fn memory(&mut self, bytes: usize) -> &mut [u8] {
        if self.memory.len() < bytes {
            self.memory.resize(bytes, 0);
        }
        self.memory.get_mut(..bytes).unwrap_or_default()
    }

    /// Sends `header` and then the segment. A file that became shorter meanwhile is filled up with zeros: the header
    /// has promised the bytes. A device that fails behind the header breaks the connection.
    pub fn send(&mut self, socket: &Socket, header: &[u8], segment: Segment<'_>) -> Result<Moved> {
        match segment {
            Segment::Hole { bytes } => {
                socket.send_all_more(header)?;
                self.send_zeros(socket, bytes)?;
            }
            Segment::File { bytes: 0, .. } => socket.send_all(header)?,
            Segment::File { file, offset, bytes } if bytes <= SMALL_READ_BYTES as u64 => {
                let data_bytes = usize::try_from(bytes).unwrap_or(SMALL_READ_BYTES);
                let memory = self.memory(header.len() + data_bytes);
                let (head, data) = memory.split_at_mut(header.len());
                head.copy_from_slice(header);
                if let Err(errno) = read_all(file, data, offset) {
                    return Ok(Err(errno).into());
                }
                socket.send_all(memory)?;
            }
            Segment::Blocks { bytes: 0, .. } => socket.send_all(header)?,
            Segment::Blocks { object, offset, bytes } => {
                return Ok(blocks::read(object, offset, bytes, (socket, header))?.into());
            }
            Segment::File { file, offset, bytes } => {
                socket.send_all_more(header)?;
                let mut position = offset;
                let end = offset + bytes;
                while position < end {
                    let count = usize::try_from(end - position).unwrap_or(usize::MAX);
                    match rustix::fs::sendfile(socket, file, Some(&mut position), count) {
                        Ok(0) => {
                            self.send_zeros(socket, end - position)?;
                            break;
                        }
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
            }
        }
        Ok(Moved::Done)
    }

    fn send_zeros(&mut self, socket: &Socket, mut left: u64) -> Result<()> {
        let zeros = self.memory(SMALL_READ_BYTES);
        zeros.fill(0);
        while left > 0 {
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(zeros.len());
            socket.send_all(zeros.get(..count).unwrap_or_default())?;
            left -= count as u64;
        }
        Ok(())
    }

    /// Takes `bytes` off the socket into the object, each piece of them as `guard` admits. An error is one of the
    /// connection.
    pub fn receive(
        &mut self,
        socket: &Socket,
        plan: WritePlan<'_>,
        bytes: u32,
        guard: &dyn WriteGuard,
    ) -> Result<Moved> {
        let Some(offset) = plan.offset() else {
            return self.append(plan, bytes, guard, |memory| socket.receive_exact(memory));
        };
        match plan {
            WritePlan::File(plan) if bytes as usize > COPIED_WRITE_BYTES => {
                self.receive_spliced(socket, plan, (offset, bytes), guard)
            }
            WritePlan::File(plan) => self.receive_copied(socket, plan, (offset, bytes), guard),
            WritePlan::Blocks { object, .. } => self.receive_blocks(socket, object, (offset, bytes), guard),
        }
    }

    /// Takes `bytes` out of the client's memory into the object, likewise. An error: they are not lent any more, and
    /// the connection is of no more use.
    pub fn take(
        &mut self,
        peer: &PeerMemory,
        mut address: u64,
        plan: WritePlan<'_>,
        bytes: u32,
        guard: &dyn WriteGuard,
    ) -> Result<Moved> {
        let Some(mut offset) = plan.offset() else {
            return self.append(plan, bytes, guard, |memory| peer.read(address, memory));
        };
        let file_plan = match plan {
            WritePlan::File(plan) => plan,
            WritePlan::Blocks { object, .. } => {
                let written = blocks::write(object, (offset, bytes), guard, |memory| {
                    peer.read(address, memory)?;
                    address = address.wrapping_add(memory.len() as u64);
                    Ok(())
                });
                return Ok(written?.map_err(|(error, _)| error).into());
            }
        };
        let mut left = bytes as usize;
        while left > 0 {
            let memory = self.memory(left.min(COPY_BYTES));
            peer.read(address, memory)?;
            if let Err(error) = write_admitted(file_plan, memory, offset, guard) {
                return Ok(Moved::Failed(error));
            }
            left -= memory.len();
            offset += memory.len() as u64;
            address = address.wrapping_add(memory.len() as u64);
        }
        Ok(Moved::Done)
    }

    /// Copies `bytes` of a file, from `from` on, into the object. Where the file has ended, zeros.
    pub fn copy(
        &mut self,
        file: BorrowedFd<'_>,
        mut from: u64,
        plan: WritePlan<'_>,
        bytes: u32,
        guard: &dyn WriteGuard,
    ) -> Result<Moved> {
        let mut next = |memory: &mut [u8]| {
            read_all(file, memory, from).map_err(std::io::Error::from)?;
            from += memory.len() as u64;
            Ok(())
        };
        let Some(mut offset) = plan.offset() else {
            return self.append(plan, bytes, guard, next);
        };
        let file_plan = match plan {
            WritePlan::File(plan) => plan,
            WritePlan::Blocks { object, .. } => {
                return Ok(blocks::write(object, (offset, bytes), guard, next)?.map_err(|(error, _)| error).into());
            }
        };
        let mut left = bytes as usize;
        while left > 0 {
            let memory = self.memory(left.min(COPY_BYTES));
            next(memory)?;
            if let Err(error) = write_admitted(file_plan, memory, offset, guard) {
                return Ok(Moved::Failed(error));
            }
            left -= memory.len();
            offset += memory.len() as u64;
        }
        Ok(Moved::Done)
    }

    fn append(
        &mut self,
        plan: WritePlan<'_>,
        bytes: u32,
        guard: &dyn WriteGuard,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Moved> {
        let memory = self.memory(bytes as usize);
        fill(memory)?;
        let appended = Admitted::by(guard).and_then(|_admitted| match plan {
            WritePlan::File(plan) => append_all(plan.file, memory).map_err(device_error),
            WritePlan::Blocks { object, .. } => object.append(memory),
        });
        self.memory.truncate(MEMORY_KEPT_BYTES);
        self.memory.shrink_to(MEMORY_KEPT_BYTES);
        Ok(appended.into())
    }

    fn receive_blocks(
        &mut self,
        socket: &Socket,
        object: &dyn BlockObject,
        range: (u64, u32),
        guard: &dyn WriteGuard,
    ) -> Result<Moved> {
        match blocks::write(object, range, guard, |memory| socket.receive_in_pieces(memory, COPY_BYTES))? {
            Ok(()) => Ok(Moved::Done),
            Err((error, left)) => {
                self.discard(socket, left)?;
                Ok(Moved::Failed(error))
            }
        }
    }

    fn receive_copied(
        &mut self,
        socket: &Socket,
        plan: FilePlan<'_>,
        (mut offset, bytes): (u64, u32),
        guard: &dyn WriteGuard,
    ) -> Result<Moved> {
        let mut left = bytes as usize;
        while left > 0 {
            let memory = self.memory(left.min(COPY_BYTES));
            socket.receive_in_pieces(memory, COPY_BYTES)?;
            left -= memory.len();
            if let Err(error) = write_admitted(plan, memory, offset, guard) {
                self.discard(socket, left)?;
                return Ok(Moved::Failed(error));
            }
            offset += memory.len() as u64;
        }
        Ok(Moved::Done)
    }

    fn receive_spliced(
        &mut self,
        socket: &Socket,
        plan: FilePlan<'_>,
        (mut offset, bytes): (u64, u32),
        guard: &dyn WriteGuard,
    ) -> Result<Moved> {
        let (output, input) = self.pipe_ends()?;
        let mut left = bytes as usize;
        while left > 0 {
            let mut in_pipe = match splice(socket, None, &input, None, left, SpliceFlags::MOVE | SpliceFlags::MORE) {
                Ok(0) => return Err(TransportError::Io(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            left -= in_pipe;
            let admitted = Admitted::by(guard);
            while in_pipe > 0 {
                let count = in_pipe.min(plan.call_bytes);
                let written = match &admitted {
                    Ok(_) => splice(&output, None, plan.file, Some(&mut offset), count, SpliceFlags::MOVE),
                    Err(_) => Ok(0),
                };
                match written {
                    Ok(count) if count > 0 => in_pipe -= count,
                    Err(Errno::INTR) => {}
                    failed => {
                        let error = admitted.err().unwrap_or_else(|| device_error(failed.err().unwrap_or(Errno::IO)));
                        // What is in the pipe is lost with it; what is still in the socket has to be taken off.
                        drop((output, input));
                        self.discard(socket, left)?;
                        return Ok(Moved::Failed(error));
                    }
                }
            }
        }
        self.ends = Some((output, input));
        Ok(Moved::Done)
    }

    /// Takes bytes off the socket and forgets them: the rest of a write that was refused.
    pub fn discard(&mut self, socket: &Socket, mut bytes: usize) -> Result<()> {
        let memory = self.memory(bytes.min(COPY_BYTES));
        while bytes > 0 {
            let count = bytes.min(memory.len());
            socket.receive_exact(memory.get_mut(..count).unwrap_or_default())?;
            bytes -= count;
        }
        Ok(())
    }

    /// Takes the pipe out; whoever leaves it empty puts it back.
    fn pipe_ends(&mut self) -> Result<(OwnedFd, OwnedFd)> {
        if let Some(ends) = self.ends.take() {
            return Ok(ends);
        }
        let ends = pipe_with(PipeFlags::CLOEXEC)?;
        // A smaller pipe works as well, with more calls.
        let _ = fcntl_setpipe_size(&ends.1, PIPE_BYTES);
        Ok(ends)
    }
}

/// Fills `data` from the file, and with zeros where the file has become shorter meanwhile.
pub(crate) fn read_all(
    file: std::os::fd::BorrowedFd<'_>,
    data: &mut [u8],
    offset: u64,
) -> std::result::Result<(), Errno> {
    let mut have = 0;
    while let Some(rest) = data.get_mut(have..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, &mut *rest, offset + have as u64) {
            Ok(0) => {
                rest.fill(0);
                break;
            }
            Ok(count) => have += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes to the end of the file. In one call, so that no other append comes between; a device that takes only a part
/// of it may let one.
fn append_all(file: BorrowedFd<'_>, mut bytes: &[u8]) -> std::result::Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwritev2(file, &[IoSlice::new(bytes)], 0, ReadWriteFlags::APPEND) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes one piece, if the guard admits it.
fn write_admitted(
    plan: FilePlan<'_>,
    bytes: &[u8],
    offset: u64,
    guard: &dyn WriteGuard,
) -> std::result::Result<(), Error> {
    let _admitted = Admitted::by(guard)?;
    write_all(plan, bytes, offset).map_err(device_error)
}

pub(crate) fn write_all(plan: FilePlan<'_>, mut bytes: &[u8], mut offset: u64) -> std::result::Result<(), Errno> {
    while !bytes.is_empty() {
        let call = bytes.get(..plan.call_bytes).unwrap_or(bytes);
        match rustix::io::pwrite(plan.file, call, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => {
                offset += count as u64;
                bytes = bytes.get(count..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Unguarded;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    const HEADER: &[u8] = b"header";

    fn file() -> File {
        memfd_create("weft-executor", MemfdFlags::CLOEXEC).unwrap().into()
    }

    /// What a client gets when a segment of a file of these bytes is sent to it.
    fn sent(bytes: &[u8], segment: impl Fn(BorrowedFd<'_>) -> Segment<'_>) -> Vec<u8> {
        let mut file = file();
        file.write_all(bytes).unwrap();
        let (client, server) = UnixStream::pair().unwrap();
        let (client, server) = (Socket::from_unix(client), Socket::from_unix(server));
        let segment = segment(file.as_fd());
        let mut found = vec![9; HEADER.len() + usize::try_from(segment.bytes()).unwrap()];
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(matches!(Pipe::new().send(&server, HEADER, segment), Ok(Moved::Done))));
            client.receive_exact(&mut found).unwrap();
        });
        assert_eq!(client.receive_now(&mut [0]).unwrap(), None, "nothing more was sent");
        assert!(found.starts_with(HEADER));
        found.split_off(HEADER.len())
    }

    #[test]
    fn a_segment_stands_behind_its_header_with_zeros_for_what_the_file_has_lost() {
        let bytes: Vec<u8> = (0..300_000).map(|index| u8::try_from(index % 251).unwrap()).collect();
        for count in [20_000, 200_000] {
            let found = sent(&bytes, |file| Segment::File { file, offset: 4095, bytes: count as u64 });
            assert!(found == bytes[4095..4095 + count]);
            let offset = 300_000 - count / 2;
            let found = sent(&bytes, |file| Segment::File { file, offset: offset as u64, bytes: count as u64 });
            assert!(found == [&bytes[offset..], &vec![0; count / 2]].concat());
        }
        assert!(sent(&bytes, |_| Segment::Hole { bytes: 100_000 }) == vec![0; 100_000]);
    }

    #[test]
    fn a_write_arrives_whole_in_calls_of_what_the_store_wants() {
        for count in [200_000_u32, 1_000_001] {
            let bytes: Vec<u8> = (0..count).map(|index| u8::try_from(index % 253).unwrap()).collect();
            let file = file();
            let (client, server) = UnixStream::pair().unwrap();
            let (client, server) = (Socket::from_unix(client), Socket::from_unix(server));
            let plan = WritePlan::File(FilePlan { file: file.as_fd(), offset: Some(7), call_bytes: 10_000 });
            std::thread::scope(|scope| {
                scope.spawn(|| client.send_all(&bytes).unwrap());
                assert!(matches!(Pipe::new().receive(&server, plan, count, &Unguarded), Ok(Moved::Done)));
            });
            let mut found = vec![0; bytes.len() + 1];
            assert_eq!(rustix::io::pread(&file, &mut found, 7), Ok(bytes.len()));
            assert!(found[..bytes.len()] == bytes, "{count} bytes");
        }
    }
}
