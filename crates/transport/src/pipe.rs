//! A pipe beside a Unix socket, for bytes that a client reads of a server on its machine.
//!
//! The server puts the pages of the object's file into it by reference (splice(2)), and then sends the reply's header
//! through the socket: so all bytes of a reply are there when the client learns of it, and one copy, out of the pipe,
//! brings them into the reader's memory. Through the socket itself each 64 KiB are a packet, which wakes its reader.
//!
//! Neither end ever waits for the pipe: the client asks for no more than has room in it, and takes only what it was
//! told of. Who breaks that loses the connection.

use crate::pass::receive_descriptor;
use crate::{Result, Socket, TransportError};
use rustix::io::Errno;
use rustix::param::page_size;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use weft_protocol::data::{DataOperation, DataReply, DataRequest, REPLY_BYTES};

/// Room asked for: what an unprivileged process may have in one pipe by default.
const PIPE_BYTES: usize = 1 << 20;
/// With less room the socket is as good.
const PIPE_BYTES_MIN: usize = 512 << 10;
/// Pipes of one process: the kernel counts the pages of all pipes of a user, and makes them small beyond 64 MiB.
const OUTLETS_MAX: usize = 32;
/// Fewer bytes are not worth the pipe.
pub(crate) const PIPED_FROM_BYTES: usize = 64 << 10;

static OUTLETS: AtomicUsize = AtomicUsize::new(0);

/// A server's end.
#[derive(Debug)]
pub struct Outlet(OwnedFd);

impl Outlet {
    /// Makes a pipe; also returns the client's end, and the bytes that it has room for. `None`: there are too many, or
    /// the kernel gives no more room.
    pub fn open() -> Option<(Self, OwnedFd, usize)> {
        if OUTLETS.fetch_add(1, Ordering::Relaxed) >= OUTLETS_MAX {
            OUTLETS.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let made = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).and_then(|(output, input)| {
            let bytes = fcntl_setpipe_size(&input, PIPE_BYTES)?;
            Ok((input, output, bytes))
        });
        match made {
            Ok((input, output, bytes)) if bytes >= PIPE_BYTES_MIN => Some((Self(input), output, bytes)),
            _ => {
                OUTLETS.fetch_sub(1, Ordering::Relaxed);
                None
            }
        }
    }
}

impl AsFd for Outlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        OUTLETS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client's end, if there is one.
#[derive(Debug)]
pub(crate) enum Inlet {
    NotAsked,
    /// The server or the caller does not want it.
    No,
    Yes(Pipe),
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Pipe {
    end: OwnedFd,
    /// Pages that it has room for beside what was asked for and was not all taken.
    free: usize,
}

impl Inlet {
    /// Asks the server for a pipe, over a connection on which nothing is outstanding.
    pub fn ask(socket: &Socket) -> Result<Self> {
        socket.send_all(&DataRequest::about_nothing(DataOperation::OpenPipe, 0).encode())?;
        let mut header = [0; REPLY_BYTES];
        let passed = receive_descriptor(socket, &mut header)?;
        let reply = DataReply::decode(&header).map_err(|_| TransportError::Malformed)?;
        Ok(match (reply.result(), passed) {
            (Ok(reply), Some(end)) => {
                let bytes = usize::try_from(reply.size).unwrap_or(usize::MAX).min(PIPE_BYTES);
                Self::Yes(Pipe { end, free: bytes / page_size() })
            }
            _ => Self::No,
        })
    }

    /// Whether a reply of so many bytes is to come through the pipe; if so, they have their room.
    pub fn reserve(&mut self, bytes: usize) -> bool {
        match self {
            Self::Yes(pipe) if bytes >= PIPED_FROM_BYTES && pages(bytes) <= pipe.free => {
                pipe.free -= pages(bytes);
                true
            }
            _ => false,
        }
    }

    /// The room that was reserved for a reply is free again: its bytes were taken.
    pub fn release(&mut self, bytes: usize) {
        if let Self::Yes(pipe) = self {
            pipe.free += pages(bytes);
        }
    }

    /// Takes bytes that are in the pipe.
    pub fn take(&self, into: &mut [u8]) -> Result<usize> {
        let Self::Yes(Pipe { end, .. }) = self else { return Err(TransportError::Malformed) };
        loop {
            match rustix::io::read(end, &mut *into) {
                Ok(0) => return Err(TransportError::Io(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => {}
                // It was said to be there.
                Err(Errno::AGAIN) => return Err(TransportError::Malformed),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Pages of a pipe that so many bytes take at most: they may begin and end within one, and so may zeros behind them.
fn pages(bytes: usize) -> usize {
    bytes / page_size() + 3
}
