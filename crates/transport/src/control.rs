//! A control connection, as a client uses it: requests go out, replies come back, by the caller's own thread.

use crate::{Result, Socket, TransportError};
use weft_protocol::message::Message;
use weft_protocol::{codec, frame};

/// Bytes received with one call: most replies are far smaller.
const RECEIVE_BYTES: usize = 16 << 10;

/// One control connection. Used by one thread at a time.
///
/// Cost of a call: two system calls (send, receive), no thread hop.
#[derive(Debug)]
pub struct ControlConnection {
    socket: Socket,
    next_id: u64,
    out: Vec<u8>,
    /// Received and not yet taken: `received[taken..filled]`.
    received: Vec<u8>,
    taken: usize,
    filled: usize,
}

impl ControlConnection {
    /// Over a socket whose handshake is done.
    pub fn new(socket: Socket) -> Self {
        Self { socket, next_id: 1, out: Vec::with_capacity(512), received: Vec::new(), taken: 0, filled: 0 }
    }

    /// The socket, for shutting it down from another thread.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Sends a request and waits for its reply.
    pub fn call(&mut self, message: &Message) -> Result<Message> {
        let id = self.send(message)?;
        loop {
            let (reply_id, reply) = self.receive_with(Socket::receive_some_soon)?;
            if reply_id == id {
                return Ok(reply);
            }
            // A reply to an earlier request whose caller gave up: nobody waits for it.
        }
    }

    /// Sends a request without waiting; the identifier comes back with the reply.
    pub fn send(&mut self, message: &Message) -> Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        self.send_as(id, message)?;
        Ok(id)
    }

    /// Sends a message under an identifier that the peer gave.
    pub fn send_as(&mut self, id: u64, message: &Message) -> Result<()> {
        self.out.clear();
        frame::append(&mut self.out, id, message);
        self.socket.send_all(&self.out)
    }

    /// Waits for the next message.
    pub fn receive(&mut self) -> Result<(u64, Message)> {
        self.receive_with(Socket::receive_some)
    }

    fn receive_with(&mut self, receive: fn(&Socket, &mut [u8]) -> Result<usize>) -> Result<(u64, Message)> {
        loop {
            if let Some(message) = self.take_received()? {
                return Ok(message);
            }
            let into = self.room();
            let count = receive(&self.socket, self.received.get_mut(into..).unwrap_or_default())?;
            self.filled += count;
        }
    }

    /// The next message that has come already, without a system call.
    pub fn take_received(&mut self) -> Result<Option<(u64, Message)>> {
        let bytes = self.received.get(self.taken..self.filled).unwrap_or_default();
        let Some(frame) = frame::split(bytes).map_err(|_| TransportError::Malformed)? else { return Ok(None) };
        let message = codec::from_bytes(frame.body).map_err(|_| TransportError::Malformed)?;
        let id = frame.id;
        self.taken += frame.bytes();
        Ok(Some((id, message)))
    }

    /// Makes room for what comes next; where it begins.
    fn room(&mut self) -> usize {
        self.received.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        if self.received.len() < self.filled + RECEIVE_BYTES {
            self.received.resize(self.filled + RECEIVE_BYTES, 0);
        }
        self.filled
    }
}
