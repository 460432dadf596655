//! Writes in flight on one socket: their memory, and the replies that were received before anybody asked for them.
//!
//! While a reply is due no send waits for room alone: it also takes replies, which the server may be unable to send
//! otherwise ([`InFlightWindow`]). They are kept here, 40 bytes each, until [`InFlightWrites::finish`].
//!
//! Invariant: each entry of `memory` is one request of `window`; `replies` has at most a reply for each of them.

use crate::{Result, Socket, TransportError};
use std::collections::VecDeque;
use weft_protocol::data::{DataReply, REPLY_BYTES};
use weft_protocol::limits::DATA_REQUESTS_IN_FLIGHT_MAX;
use weft_protocol::{InFlightWindow, NextStep};

/// A reply to so small a write, if it is the only one that is due, comes soon: its receiver spins before it sleeps.
const SOON_BYTES_MAX: usize = 32 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct InFlightWrites {
    memory: VecDeque<Vec<u8>>,
    window: InFlightWindow,
    /// Received replies that were not taken, the last one perhaps in part.
    replies: Vec<u8>,
}

impl InFlightWrites {
    /// None, and room for this many bytes.
    pub fn new(bytes_max: usize) -> Self {
        let window = InFlightWindow::new(DATA_REQUESTS_IN_FLIGHT_MAX, bytes_max);
        Self { memory: VecDeque::new(), window, replies: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.memory.len()
    }

    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Returns true if a write of this many bytes fits the window.
    pub fn admits(&self, bytes: usize) -> bool {
        self.window.admits(bytes)
    }

    /// Sends a request, and receives replies for as long as the socket takes no bytes.
    pub fn send(&mut self, socket: &Socket, header: &[u8], bulk: &[u8]) -> Result<()> {
        if self.is_empty() {
            return socket.send_all_with(header, bulk);
        }
        let (all, mut sent, mut takes_bytes) = (header.len() + bulk.len(), 0, true);
        while sent < all {
            match self.window.next(bulk.len(), takes_bytes, sent > 0) {
                NextStep::Send => {
                    let rest_of_header = header.get(sent..).unwrap_or_default();
                    let rest = bulk.get(sent.saturating_sub(header.len())..).unwrap_or_default();
                    sent += socket.send_now_with(rest_of_header, rest)?;
                    takes_bytes = false;
                }
                NextStep::AwaitRoomOrReply => {
                    let ready = socket.wait_for_room_or_bytes()?;
                    takes_bytes = ready.has_room;
                    if ready.has_bytes {
                        self.receive(socket, Socket::receive_now)?;
                    }
                }
                NextStep::AwaitRoom => {
                    socket.wait_for_room()?;
                    takes_bytes = true;
                }
                NextStep::ReadReply => {
                    // The caller asked `admits` first; one that did not waits here, and its replies stay in order.
                    if self.window.due_bytes() == 0 {
                        return Err(TransportError::Malformed);
                    }
                    self.receive(socket, |socket, into| socket.receive_some(into).map(Some))?;
                }
            }
        }
        Ok(())
    }

    /// Counts a write that was sent. `bytes`: of the memory, those that it writes.
    pub fn started(&mut self, memory: Vec<u8>, bytes: usize) {
        self.memory.push_back(memory);
        self.window.sent(bytes);
    }

    /// Waits for the reply to the oldest write. `None`: there is none.
    pub fn finish(&mut self, socket: &Socket) -> Option<(Vec<u8>, Result<DataReply>)> {
        let bytes = self.window.oldest_bytes()?;
        let soon = self.len() == 1 && bytes <= SOON_BYTES_MAX;
        let reply = self.next_reply(socket, soon);
        self.window.answered();
        Some((self.memory.pop_front()?, reply))
    }

    fn next_reply(&mut self, socket: &Socket, soon: bool) -> Result<DataReply> {
        while self.replies.len() < REPLY_BYTES {
            let receive = if soon { Socket::receive_some_soon } else { Socket::receive_some };
            self.receive(socket, |socket, into| receive(socket, into).map(Some))?;
        }
        let header = self.replies.first_chunk().ok_or(TransportError::Malformed)?;
        let reply = DataReply::decode(header).map_err(|_| TransportError::Malformed)?;
        self.replies.drain(..REPLY_BYTES);
        // Nothing stands behind the reply to a write.
        if reply.bulk_bytes == 0 { Ok(reply) } else { Err(TransportError::Malformed) }
    }

    /// Receives as many replies as have come, with one call.
    fn receive(
        &mut self,
        socket: &Socket,
        receive: impl FnOnce(&Socket, &mut [u8]) -> Result<Option<usize>>,
    ) -> Result<()> {
        let have = self.replies.len();
        self.replies.resize(have + self.window.due_bytes(), 0);
        let received = receive(socket, self.replies.get_mut(have..).unwrap_or_default());
        let count = received.as_ref().map_or(0, |count| count.unwrap_or(0));
        self.replies.truncate(have + count);
        self.window.received(count);
        received.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;
    use std::time::Duration;
    use weft_protocol::data::{DataOperation, DataRequest, REQUEST_BYTES};

    /// As small as the kernel makes them: a few requests or replies fill one.
    const UNIX_BUFFER_BYTES: usize = 1;
    /// Requests fill it. In smaller ones TCP waits for its timers.
    const TCP_BUFFER_BYTES: usize = 48 << 10;
    const WRITES: usize = 5000;
    const DEADLINE: Duration = Duration::from_secs(30);

    fn unix() -> (Socket, Socket) {
        let (client, server) = UnixStream::pair().unwrap();
        (Socket::from_unix(client), Socket::from_unix(server))
    }

    fn tcp() -> (Socket, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Socket::from_tcp(client).unwrap(), Socket::from_tcp(listener.accept().unwrap().0).unwrap())
    }

    fn shrink_buffers(socket: &Socket, bytes: usize) {
        sockopt::set_socket_send_buffer_size(socket, bytes).unwrap();
        sockopt::set_socket_recv_buffer_size(socket, bytes).unwrap();
    }

    /// Serves writes as a node does: it reads none before its reply to the last one has gone.
    fn serve(socket: &Socket) {
        let mut header = [0; REQUEST_BYTES];
        while socket.receive_exact(&mut header).is_ok() {
            let request = DataRequest::decode(&header).unwrap();
            socket.receive_exact(&mut vec![0; request.bytes as usize]).unwrap();
            let reply = DataReply { written_bytes: request.bytes, size: request.offset, ..DataReply::default() };
            socket.send_all(&reply.encode()).unwrap();
        }
    }

    /// Sends writes of 1 to 4000 bytes, and finishes one only when the window is full.
    fn write_all(socket: &Socket) {
        let mut writes = InFlightWrites::new(1 << 20);
        let mut finished = 0;
        let finish = |writes: &mut InFlightWrites, finished: &mut u64| {
            let Some((memory, reply)) = writes.finish(socket) else { return false };
            let reply = reply.unwrap();
            assert_eq!(
                (reply.size, reply.written_bytes as usize),
                (*finished, memory.len()),
                "replies keep their order"
            );
            *finished += 1;
            true
        };
        for number in 0..WRITES {
            let memory = vec![1; if number % 10 == 0 { 4000 } else { 1 }];
            while !writes.admits(memory.len()) {
                assert!(finish(&mut writes, &mut finished));
            }
            let request = DataRequest {
                offset: number as u64,
                ..DataRequest::about_nothing(DataOperation::Write, u32::try_from(memory.len()).unwrap())
            };
            writes.send(socket, &request.encode(), &memory).unwrap();
            let bytes = memory.len();
            writes.started(memory, bytes);
        }
        while finish(&mut writes, &mut finished) {}
        assert_eq!(finished, WRITES as u64);
    }

    #[test]
    fn a_sender_takes_replies_while_the_buffers_of_both_sides_are_full() {
        for (pair, bytes) in [(unix as fn() -> _, UNIX_BUFFER_BYTES), (tcp, TCP_BUFFER_BYTES)] {
            let (client, server) = pair();
            let kind = client.kind();
            shrink_buffers(&client, bytes);
            shrink_buffers(&server, bytes);
            let (ended, end) = channel();
            std::thread::spawn(move || serve(&server));
            std::thread::spawn(move || {
                write_all(&client);
                ended.send(()).unwrap();
            });
            assert_eq!(end.recv_timeout(DEADLINE), Ok(()), "{kind:?}: both sides wait");
        }
    }

    #[test]
    fn a_server_that_goes_ends_a_send_that_waits() {
        let (client, server) = unix();
        let mut writes = InFlightWrites::new(1 << 30);
        let request = DataRequest::about_nothing(DataOperation::Write, 1);
        let waiting = std::thread::spawn(move || {
            loop {
                if let Err(error) = writes.send(&client, &request.encode(), &[1]) {
                    return error;
                }
                writes.started(vec![1], 1);
                if !writes.admits(1) {
                    return writes.finish(&client).unwrap().1.unwrap_err();
                }
            }
        });
        drop(server);
        assert!(matches!(waiting.join().unwrap(), TransportError::Io(_)));
    }
}
