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
    /// Received and not yet taken: `received[taken..]`.
    received: Vec<u8>,
    taken: usize,
}

impl ControlConnection {
    /// Over a socket whose handshake is done.
    pub fn new(socket: Socket) -> Self {
        Self { socket, next_id: 1, out: Vec::with_capacity(512), received: Vec::new(), taken: 0 }
    }

    /// The socket, for shutting it down from another thread.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Sends a request and waits for its reply.
    pub fn call(&mut self, message: &Message) -> Result<Message> {
        let id = self.send(message)?;
        self.socket.look_before_sleep();
        loop {
            let (reply_id, reply) = self.receive()?;
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
        loop {
            if let Some(message) = self.take_received()? {
                return Ok(message);
            }
            self.receive_more()?;
        }
    }

    /// The next message that has come already, without a system call.
    pub fn take_received(&mut self) -> Result<Option<(u64, Message)>> {
        let bytes = self.received.get(self.taken..).unwrap_or_default();
        let Some(frame) = frame::split(bytes).map_err(|_| TransportError::Malformed)? else { return Ok(None) };
        let message = codec::from_bytes(frame.body).map_err(|_| TransportError::Malformed)?;
        let id = frame.id;
        self.taken += frame.bytes();
        Ok(Some((id, message)))
    }

    fn receive_more(&mut self) -> Result<()> {
        self.received.drain(..self.taken);
        self.taken = 0;
        let have = self.received.len();
        self.received.resize(have + RECEIVE_BYTES, 0);
        let result = self.socket.receive_some(self.received.get_mut(have..).unwrap_or_default());
        self.received.truncate(have + *result.as_ref().unwrap_or(&0));
        result.map(|_| ())
    }
}
