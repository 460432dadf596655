//! A control connection, as a client uses it: requests go out, replies come back, by the caller's own thread.
//!
//! A caller that waits for each reply ([`ControlConnection::call`]) may block: the node owes it nothing else. Where
//! both sides send unasked (recalls, and the answers to them), nobody blocks: [`ControlConnection::post`] queues what
//! the socket does not take, and [`ControlConnection::receive_now`] takes what has come.

use crate::{Result, Socket, TransportError};
use weft_protocol::message::Message;
use weft_protocol::{codec, frame};

/// Bytes received with one call: most replies are far smaller.
const RECEIVE_BYTES: usize = 16 << 10;
/// Posted bytes that may wait for the peer to read. A node reads, unless megabytes of its own wait for us, and those we
/// always take: one that lets so many wait is no longer there.
const POSTED_BYTES_MAX: usize = 4 << 20;

/// One control connection. Used by one thread at a time.
///
/// Cost of a call: two system calls (send, receive), no thread hop.
#[derive(Debug)]
pub struct ControlConnection {
    socket: Socket,
    next_id: u64,
    out: Vec<u8>,
    /// Posted and not yet sent.
    posted: Vec<u8>,
    /// Received and not yet taken: `received[taken..filled]`.
    received: Vec<u8>,
    taken: usize,
    filled: usize,
}

impl ControlConnection {
    /// Over a socket whose handshake is done.
    pub fn new(socket: Socket) -> Self {
        let (out, posted, received) = (Vec::with_capacity(512), Vec::new(), Vec::new());
        Self { socket, next_id: 1, out, posted, received, taken: 0, filled: 0 }
    }

    /// The socket, for shutting it down from another thread.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Sends a request and waits for its reply.
    pub fn call(&mut self, message: &Message) -> Result<Message> {
        let id = self.send(message)?;
        self.receive_reply(id)
    }

    /// Waits for the reply to a request that was sent.
    pub fn receive_reply(&mut self, id: u64) -> Result<Message> {
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

    fn send_as(&mut self, id: u64, message: &Message) -> Result<()> {
        self.out.clear();
        frame::append(&mut self.out, id, message);
        self.socket.send_all(&self.out)
    }

    /// Sends a message under an identifier that the peer gave, as far as the socket takes it, and queues the rest.
    pub fn post(&mut self, id: u64, message: &Message) -> Result<()> {
        frame::append(&mut self.posted, id, message);
        self.send_posted()?;
        if self.posted.len() > POSTED_BYTES_MAX {
            return Err(TransportError::Io(std::io::ErrorKind::TimedOut.into()));
        }
        Ok(())
    }

    /// Sends what was queued, as far as the socket takes it.
    pub fn send_posted(&mut self) -> Result<()> {
        if self.has_posted() {
            let sent = self.socket.send_now(&self.posted)?;
            self.posted.drain(..sent);
        }
        Ok(())
    }

    /// Returns true if posted bytes wait for the socket to take them.
    pub fn has_posted(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Waits for the next message.
    pub fn receive(&mut self) -> Result<(u64, Message)> {
        self.receive_with(Socket::receive_some)
    }

    /// Receives the next message, if all of it has come.
    pub fn receive_now(&mut self) -> Result<Option<(u64, Message)>> {
        loop {
            if let Some(message) = self.take_received()? {
                return Ok(Some(message));
            }
            let into = self.room();
            match self.socket.receive_now(self.received.get_mut(into..).unwrap_or_default())? {
                Some(count) => self.filled += count,
                None => return Ok(None),
            }
        }
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
    fn take_received(&mut self) -> Result<Option<(u64, Message)>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;
    use std::time::Duration;
    use weft_protocol::message::recall::{Recall, RecallAnswer};
    use weft_protocol::{InodeNumber, LeaseKey, LeaseMode, ShardId};

    const RECALLS: u64 = 20_000;
    const DEADLINE: Duration = Duration::from_secs(30);

    fn recall(number: u64) -> Message {
        let key = LeaseKey::Data(InodeNumber::from_raw(number));
        Message::Recall(Recall { shard: ShardId(0), number, key, to: LeaseMode::None, stamp: number })
    }

    /// A node that reads no answer as long as it has recalls to send, as one does to which megabytes of them are left.
    fn send_recalls(mut node: ControlConnection) -> u64 {
        (0..RECALLS).for_each(|number| node.send_as(number, &recall(number)).unwrap());
        (0..RECALLS).filter(|_| matches!(node.receive(), Ok((_, Message::RecallAnswer(_))))).count() as u64
    }

    #[test]
    fn who_answers_recalls_goes_on_reading_them() {
        let (client, node) = UnixStream::pair().unwrap();
        let node = ControlConnection::new(Socket::from_unix(node));
        let mut client = ControlConnection::new(Socket::from_unix(client));
        let sending = std::thread::spawn(move || send_recalls(node));
        let (ended, end) = channel();
        std::thread::spawn(move || {
            let mut answered = 0;
            while answered < RECALLS || client.has_posted() {
                let mut wanted = PollFlags::IN;
                wanted.set(PollFlags::OUT, client.has_posted());
                poll(&mut [PollFd::new(client.socket(), wanted)], None).unwrap();
                client.send_posted().unwrap();
                while let Some((_, message)) = client.receive_now().unwrap() {
                    let Message::Recall(Recall { shard, number, .. }) = message else { panic!("{message:?}") };
                    assert_eq!(number, answered);
                    let answer = RecallAnswer { shard, number, kept: LeaseMode::None };
                    client.post(0, &Message::RecallAnswer(answer)).unwrap();
                    answered += 1;
                }
            }
            ended.send(()).unwrap();
        });
        assert_eq!(end.recv_timeout(DEADLINE), Ok(()), "both sides wait");
        assert_eq!(sending.join().unwrap(), RECALLS);
    }
}
