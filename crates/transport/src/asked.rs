//! Bytes that were asked for ahead: they wait in the socket until somebody takes them, with no memory of ours.
//!
//! Sketch, per request: a `send`, a `recv` of the reply's header, and a `recv` for each piece that is taken, straight
//! into the taker's memory: one copy, out of the kernel.

use crate::bulk::PIECE_BYTES;
use crate::low_water::{LowWater, PIECE_TIME};
use crate::patience::Wait;
use crate::{Result, Socket, SocketKind, TransportError};
use std::collections::VecDeque;
use weft_protocol::data::{DataReply, DataRequest, REPLY_BYTES};
use weft_protocol::may_prefetch;

/// Bytes that nobody wants are taken in pieces of so many.
const DISCARD_BYTES: usize = 64 << 10;

/// What was asked for over one socket and was not taken.
#[derive(Debug)]
pub(crate) struct Asked {
    is_local: bool,
    /// Bytes of each request whose reply has not begun.
    waiting: VecDeque<usize>,
    /// The last of those, which were not sent yet.
    unsent: VecDeque<DataRequest>,
    /// Of the reply that was begun last: bytes that are still to come...
    data: usize,
    /// ... and behind them those that the object does not have.
    hole: usize,
    /// Whether bytes of that were taken last.
    met_end: bool,
    low_water: LowWater,
}

impl Asked {
    /// Nothing yet.
    pub fn new(is_local: bool) -> Self {
        let (waiting, unsent) = (VecDeque::new(), VecDeque::new());
        Self { is_local, waiting, unsent, data: 0, hole: 0, met_end: false, low_water: LowWater::default() }
    }

    /// Asks for what this request says.
    pub fn ask(&mut self, socket: &Socket, request: &DataRequest) -> Result<()> {
        self.waiting.push_back(request.bytes as usize);
        self.unsent.push_back(*request);
        self.send_unsent(socket)
    }

    /// Sends what may be sent now ([`may_prefetch`]).
    fn send_unsent(&mut self, socket: &Socket) -> Result<()> {
        loop {
            let in_flight = self.waiting.len() - self.unsent.len();
            if self.unsent.is_empty() || !may_prefetch(in_flight, self.is_taken(), || socket.has_room()) {
                return Ok(());
            }
            if let Some(request) = self.unsent.pop_front() {
                socket.send_all(&request.encode())?;
            }
        }
    }

    /// Takes what has come of the next bytes, of one request, and waits for it if it must. Those behind the object's
    /// end are zeros. 0: nothing was asked for, or there is no memory.
    pub fn receive(&mut self, socket: &Socket, into: &mut [u8]) -> Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        if self.is_taken() {
            self.send_unsent(socket)?;
            let Some(bytes) = self.waiting.pop_front() else { return Ok(0) };
            // A header is little.
            self.low_water.reset(socket);
            let have = self.begin(socket, bytes, into)?;
            self.send_unsent(socket)?;
            if have > 0 {
                self.met_end = false;
                return Ok(have);
            }
        }
        let count = self.next(socket, into)?;
        if self.outstanding() == 0 {
            // Other calls on this connection wait for less.
            self.low_water.reset(socket);
        }
        Ok(count)
    }

    /// Whether what was taken last lay behind the object's end.
    pub fn met_end(&self) -> bool {
        self.met_end
    }

    /// Takes of the reply that has begun.
    fn next(&mut self, socket: &Socket, into: &mut [u8]) -> Result<usize> {
        self.met_end = self.data == 0;
        if self.data > 0 {
            let count = self.data.min(into.len());
            let count = self.receive_bulk(socket, into.get_mut(..count).unwrap_or_default())?;
            self.data -= count;
            return Ok(count);
        }
        let count = self.hole.min(into.len());
        into.get_mut(..count).unwrap_or_default().fill(0);
        self.hole -= count;
        Ok(count)
    }

    /// Receives what has come of this reply, and sleeps first if nothing has.
    fn receive_bulk(&mut self, socket: &Socket, into: &mut [u8]) -> Result<usize> {
        if socket.kind() == SocketKind::Unix {
            return socket.receive_some(into);
        }
        let mut wait = Wait::default();
        loop {
            if let Some(count) = socket.receive_now(into)? {
                return Ok(count);
            }
            // To wait for more than is wanted pays only where bytes come fast.
            let piece = if self.is_local { PIECE_BYTES } else { into.len() };
            self.low_water.wait(socket, self.data.min(piece));
            wait.slept(socket, PIECE_TIME)?;
        }
    }

    /// Receives the header of the next reply, to a request for so many bytes, and perhaps some of them.
    fn begin(&mut self, socket: &Socket, bytes: usize, into: &mut [u8]) -> Result<usize> {
        let mut header = [0; REPLY_BYTES];
        // With the header come only bytes that certainly stand behind it: no other reply may follow.
        let small = into.len().min(bytes);
        let have = if self.waiting.is_empty() && small < PIECE_BYTES {
            socket.receive_header_and_some(&mut header, into.get_mut(..small).unwrap_or_default(), false)?
        } else {
            socket.receive_exact(&mut header)?;
            0
        };
        let reply = DataReply::decode(&header).map_err(|_| TransportError::Malformed)?;
        reply.result().map_err(TransportError::Refused)?;
        let data = reply.bulk_bytes as usize;
        self.hole = bytes.checked_sub(data).ok_or(TransportError::Malformed)?;
        self.data = data.checked_sub(have).ok_or(TransportError::Malformed)?;
        Ok(have)
    }

    /// Whether nothing is left of the reply that was begun last.
    fn is_taken(&self) -> bool {
        self.data == 0 && self.hole == 0
    }

    /// Takes everything and forgets it.
    pub fn discard(&mut self, socket: &Socket) -> Result<()> {
        let mut memory = Vec::new();
        self.waiting.truncate(self.waiting.len() - self.unsent.len());
        self.unsent.clear();
        while self.outstanding() > 0 {
            memory.resize(DISCARD_BYTES, 0);
            self.receive(socket, &mut memory)?;
        }
        Ok(())
    }

    /// Requests of which something is still to be taken.
    pub fn outstanding(&self) -> usize {
        self.waiting.len() + usize::from(!self.is_taken())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;
    use std::thread::{self, JoinHandle};
    use std::time::Duration;
    use weft_protocol::Error;
    use weft_protocol::data::{DataOperation, REQUEST_BYTES};

    fn tcp() -> (Socket, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Socket::from_tcp(client).unwrap(), Socket::from_tcp(listener.accept().unwrap().0).unwrap())
    }

    fn unix() -> (Socket, Socket) {
        let (client, server) = UnixStream::pair().unwrap();
        (Socket::from_unix(client), Socket::from_unix(server))
    }

    fn read(offset: u64, bytes: usize) -> DataRequest {
        DataRequest { offset, ..DataRequest::about_nothing(DataOperation::Read, u32::try_from(bytes).unwrap()) }
    }

    fn byte(offset: u64) -> u8 {
        u8::try_from(offset * 7 / 3 % 251).unwrap()
    }

    /// Serves an object of so many bytes until the client goes.
    fn serve(socket: Socket, object_bytes: u64) -> JoinHandle<()> {
        thread::spawn(move || {
            let mut header = [0; REQUEST_BYTES];
            while socket.receive_exact(&mut header).is_ok() {
                let request = DataRequest::decode(&header).unwrap();
                let end = (request.offset + u64::from(request.bytes)).min(object_bytes);
                let bulk: Vec<u8> = (request.offset..end).map(byte).collect();
                let bulk_bytes = u32::try_from(bulk.len()).unwrap();
                let reply = DataReply { bulk_bytes, ..DataReply::default() };
                match request.operation {
                    DataOperation::Read => socket.send_all_with(&reply.encode(), &bulk).unwrap(),
                    _ => socket.send_all(&DataReply::default().encode()).unwrap(),
                }
            }
        })
    }

    /// Takes all that was asked for, in pieces of so many bytes.
    fn take_all(asked: &mut Asked, socket: &Socket, piece: usize) -> Vec<u8> {
        let (mut all, mut memory) = (Vec::new(), vec![9; piece]);
        while asked.outstanding() > 0 {
            let count = asked.receive(socket, &mut memory).unwrap();
            all.extend(&memory[..count]);
        }
        all
    }

    #[test]
    fn what_was_asked_for_comes_in_order_with_zeros_behind_the_end() {
        let object = 1_500_000;
        let expected: Vec<u8> = (0..2_000_000).map(|at| if at < object { byte(at) } else { 0 }).collect();
        for pair in [tcp as fn() -> _, unix] {
            for piece in [1 << 20, 100_000, 4096] {
                let (client, server) = pair();
                let serving = serve(server, object);
                let mut asked = Asked::new(true);
                let mut found = Vec::new();
                // Two at a time.
                for turn in 0..5u64 {
                    asked.ask(&client, &read(turn * 400_000, 390_000)).unwrap();
                    asked.ask(&client, &read(turn * 400_000 + 390_000, 10_000)).unwrap();
                    found.extend(take_all(&mut asked, &client, piece));
                }
                assert!(found == expected, "{:?}, {piece}", client.kind());
                drop(client);
                serving.join().unwrap();
            }
        }
    }

    #[test]
    fn no_number_of_requests_blocks_both_sides() {
        let (client, server) = unix();
        for socket in [&client, &server] {
            // The smallest that the kernel makes.
            sockopt::set_socket_send_buffer_size(socket, 1).unwrap();
        }
        serve(server, u64::MAX);
        let (ended, end) = channel();
        thread::spawn(move || {
            let mut asked = Asked::new(true);
            (0..2000).for_each(|number| asked.ask(&client, &read(number * 5000, 5000)).unwrap());
            let taken = take_all(&mut asked, &client, 64 << 10);
            let right = taken.iter().zip(0..).all(|(found, at)| *found == byte(at));
            (0..2000).for_each(|number| asked.ask(&client, &read(number * 5000, 5000)).unwrap());
            asked.discard(&client).unwrap();
            ended.send((taken.len(), right, asked.outstanding())).unwrap();
        });
        assert_eq!(end.recv_timeout(Duration::from_secs(30)), Ok((10_000_000, true, 0)), "both sides wait");
    }

    #[test]
    fn a_connection_is_as_before_when_all_was_taken() {
        let (client, server) = tcp();
        let serving = serve(server, u64::MAX);
        let mut asked = Asked::new(false);
        asked.ask(&client, &read(0, 3 << 20)).unwrap();
        assert_eq!(take_all(&mut asked, &client, 64 << 10).len(), 3 << 20);
        // A reply of a few bytes wakes.
        client.send_all(&DataRequest::about_nothing(DataOperation::Stat, 0).encode()).unwrap();
        client.receive_exact(&mut [0; REPLY_BYTES]).unwrap();
        drop(client);
        serving.join().unwrap();
    }

    #[test]
    fn a_server_that_refuses_or_lies_ends_the_connection() {
        let lies = |reply: DataReply| {
            let (client, server) = unix();
            let serving = thread::spawn(move || {
                let mut header = [0; REQUEST_BYTES];
                server.receive_exact(&mut header).unwrap();
                server.send_all(&reply.encode()).unwrap();
                // Until the client goes.
                let _ = server.receive_exact(&mut header);
            });
            let mut asked = Asked::new(true);
            asked.ask(&client, &read(0, 100_000)).unwrap();
            let result = asked.receive(&client, &mut [0; 10]);
            drop(client);
            serving.join().unwrap();
            result.unwrap_err()
        };
        let refused = lies(DataReply::failed(0, &Error::NoObject));
        assert!(matches!(refused, TransportError::Refused(Error::NoObject)), "{refused}");
        let too_much = lies(DataReply { bulk_bytes: 100_001, ..DataReply::default() });
        assert!(matches!(too_much, TransportError::Malformed), "{too_much}");
    }
}
