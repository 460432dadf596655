//! Connections for file data.
//!
//! [`BulkConnection`] is the seam where RDMA comes in: memory is either *lent* for the length of a call, or *given* to
//! a transfer and given back when it is finished. So no transfer can outlive the memory it moves, whatever moves it.
//!
//! Sketch for sockets, per request: one message each way; a write is one `sendmsg` (one copy into the kernel) and one
//! `recvmsg` for its reply; a read is one `send` and as many `recvmsg` as the kernel needs, straight into the
//! destination (one copy out of the kernel).

use crate::pass::receive_descriptor;
use crate::{Result, Socket, SocketKind, TransportError};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use weft_protocol::data::{DataReply, DataRequest, REPLY_BYTES};

/// Bytes of writes on their way inside a machine: more are no longer in the processor's cache when they are received.
const LOCAL_IN_FLIGHT_BYTES: usize = 512 << 10;
/// The same to other machines: enough for 10 Gb/s over a round trip of a millisecond and a half.
const FAR_IN_FLIGHT_BYTES: usize = 2 << 20;
/// Reads of so many bytes are received in pieces over TCP.
const LARGE_BYTES: usize = 256 << 10;
/// Bytes of a large read over TCP that are worth being woken for.
const PIECE_BYTES: usize = 256 << 10;

/// A descriptor that came with a reply, if one did.
pub type Passed = Option<OwnedFd>;

/// A write that could not be begun, and its memory.
#[derive(Debug)]
pub struct NotStarted {
    pub memory: Vec<u8>,
    pub error: TransportError,
}

/// A connection that carries data requests, one user at a time. Replies come in the order of the requests.
pub trait BulkConnection: Send {
    /// Reads into lent memory. Waits for everything started before. Returns when the memory is the caller's again.
    fn read(&mut self, request: &DataRequest, into: &mut [u8]) -> Result<DataReply>;

    /// Writes from lent memory, likewise. Also for requests without bulk.
    fn write(&mut self, request: &DataRequest, from: &[u8]) -> Result<DataReply>;

    /// Begins a read into given memory, which comes back from [`BulkConnection::finish`].
    fn start_read(&mut self, request: &DataRequest, into: Vec<u8>) -> Result<()>;

    /// Begins a write from given memory, likewise. When it cannot be begun the memory comes back with the error, and
    /// what was started before can still be finished (each with an error).
    fn start_write(&mut self, request: &DataRequest, from: Vec<u8>) -> std::result::Result<(), NotStarted>;

    /// Waits for the oldest transfer that was started. `None`: there is none.
    fn finish(&mut self) -> Option<(Vec<u8>, Result<DataReply>)>;

    /// Transfers started and not finished.
    fn outstanding(&self) -> usize;

    /// Bytes of writes that are worth having on their way at once.
    fn in_flight_bytes(&self) -> usize;

    /// Asks for a descriptor of the object's file; only over a Unix socket of the same node.
    fn descriptor(&mut self, request: &DataRequest) -> Result<(DataReply, Passed)>;

    /// What carries the bytes.
    fn kind(&self) -> SocketKind;
}

/// File data over a socket.
#[derive(Debug)]
pub struct SocketBulk {
    socket: Socket,
    is_local: bool,
    started: VecDeque<Started>,
}

/// A transfer on its way. Reads know where the bytes go; writes keep their memory for the caller.
#[derive(Debug)]
struct Started {
    memory: Vec<u8>,
    reads: bool,
}

impl SocketBulk {
    /// Over a socket whose handshake is done.
    pub fn new(socket: Socket) -> Self {
        let is_local = socket.is_local();
        Self { socket, is_local, started: VecDeque::new() }
    }

    fn receive_reply(&self, into: &mut [u8]) -> Result<DataReply> {
        let mut header = [0; REPLY_BYTES];
        let large = into.len() >= LARGE_BYTES && self.kind() == SocketKind::Tcp;
        // More than this reply's own bytes cannot come: the caller waits for each reply before the next memory is
        // known, so bytes of a following reply would land here. A read therefore takes the header alone when more are
        // outstanding; and when much is to come in pieces.
        let have = if large || !self.started.is_empty() {
            self.socket.receive_exact(&mut header)?;
            0
        } else {
            self.socket.receive_header_and_some(&mut header, into)?
        };
        let reply = DataReply::decode(&header).map_err(|_| TransportError::Malformed)?;
        let bulk = into.get_mut(..reply.bulk_bytes as usize).ok_or(TransportError::Malformed)?;
        let rest = bulk.get_mut(have..).ok_or(TransportError::Malformed)?;
        if large {
            self.socket.receive_in_pieces(rest, PIECE_BYTES)?;
        } else {
            self.socket.receive_exact(rest)?;
        }
        Ok(reply)
    }

    fn drain(&mut self) -> Result<()> {
        while let Some((_, result)) = self.finish() {
            result?;
        }
        Ok(())
    }
}

impl BulkConnection for SocketBulk {
    fn read(&mut self, request: &DataRequest, into: &mut [u8]) -> Result<DataReply> {
        self.drain()?;
        self.socket.send_all(&request.encode())?;
        let into = into.get_mut(..request.bytes as usize).ok_or(TransportError::Malformed)?;
        self.receive_reply(into)
    }

    fn write(&mut self, request: &DataRequest, from: &[u8]) -> Result<DataReply> {
        self.drain()?;
        self.socket.send_all_with(&request.encode(), from)?;
        self.receive_reply(&mut [])
    }

    fn start_read(&mut self, request: &DataRequest, into: Vec<u8>) -> Result<()> {
        self.socket.send_all(&request.encode())?;
        self.started.push_back(Started { memory: into, reads: true });
        Ok(())
    }

    fn start_write(&mut self, request: &DataRequest, from: Vec<u8>) -> std::result::Result<(), NotStarted> {
        let bulk = from.get(..request.bytes as usize).ok_or(TransportError::Malformed);
        match bulk.and_then(|bulk| self.socket.send_all_with(&request.encode(), bulk)) {
            Ok(()) => {
                self.started.push_back(Started { memory: from, reads: false });
                Ok(())
            }
            Err(error) => Err(NotStarted { memory: from, error }),
        }
    }

    fn finish(&mut self) -> Option<(Vec<u8>, Result<DataReply>)> {
        let mut started = self.started.pop_front()?;
        let result = self.receive_reply(if started.reads { &mut started.memory } else { &mut [] });
        Some((started.memory, result))
    }

    fn outstanding(&self) -> usize {
        self.started.len()
    }

    fn in_flight_bytes(&self) -> usize {
        if self.is_local { LOCAL_IN_FLIGHT_BYTES } else { FAR_IN_FLIGHT_BYTES }
    }

    fn descriptor(&mut self, request: &DataRequest) -> Result<(DataReply, Passed)> {
        self.drain()?;
        if self.kind() == SocketKind::Tcp {
            // Descriptors do not pass through TCP: what the server would say is known.
            return Ok((DataReply::failed(request.id, &weft_protocol::Error::NotSupported), None));
        }
        self.socket.send_all(&request.encode())?;
        let mut header = [0; REPLY_BYTES];
        let passed = receive_descriptor(&self.socket, &mut header)?;
        let reply = DataReply::decode(&header).map_err(|_| TransportError::Malformed)?;
        Ok((reply, passed))
    }

    fn kind(&self) -> SocketKind {
        self.socket.kind()
    }
}
