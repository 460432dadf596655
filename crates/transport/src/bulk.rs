//! Connections for file data.
//!
//! [`BulkConnection`] is the seam where RDMA comes in: memory is either *lent* for the length of a call, or *given* to
//! a transfer and given back when it is finished, or the *connection's own*, where bytes wait that were asked for ahead
//! (socket buffers; registered memory). So no transfer can outlive the memory it moves, whatever moves it.
//!
//! Sketch for sockets, per request: one message each way; a write is one
//! `sendmsg` (one copy into the kernel) and one `recvmsg` for its reply; a read is one `send` and as many `recvmsg` as
//! the kernel needs, straight into the destination (one copy out of the kernel). Over a Unix socket of a server that
//! may read our memory a large write is a `send` and a `recv` of headers, and a large read likewise where the server
//! lends its memory: see [`crate::peer_memory`]. What is asked for ahead: see [`crate::asked`].

use crate::asked::Asked;
use crate::borrowing::Borrowing;
use crate::in_flight::InFlightWrites;
use crate::pass::receive_descriptor;
use crate::rdma::Registration;
use crate::sharing::{Sharing, descriptor_of};
use crate::{Result, Socket, SocketKind, TransportError};
use std::os::fd::OwnedFd;
use weft_protocol::data::{DataReply, DataRequest, REPLY_BYTES};

/// Bytes of writes on their way inside a machine. Many more are no longer in the processor's cache when they are
/// received; and with fewer than a stripe of the usual size (1 MiB) and what follows it, whoever writes a striped file
/// in order would wait for each node in turn.
const LOCAL_IN_FLIGHT_BYTES: usize = 1536 << 10;
/// The same to other machines: enough for 10 Gb/s over a round trip of two milliseconds.
const FAR_IN_FLIGHT_BYTES: usize = 2304 << 10;
/// What is asked for ahead. Measured (docs/performance.md): over a Unix socket, more than it holds, so that the server
/// never waits for a request; by TCP inside a machine, so much that one turn is on its way while another is taken. To
/// other machines: enough for 10 Gb/s over a round trip of three milliseconds.
const UNIX_AHEAD: Ahead = Ahead { turn_bytes: 1 << 20, bytes: 4 << 20 };
const LOCAL_AHEAD: Ahead = Ahead { turn_bytes: 1 << 20, bytes: 2 << 20 };
const FAR_AHEAD: Ahead = Ahead { turn_bytes: 1 << 20, bytes: 4 << 20 };
/// Bytes of a read over TCP that are worth being woken for; one of fewer comes with its header.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// The reply to a request of so few bytes is there soon: whoever waits for it looks for it first. Measured: 10 us for
/// 4 KiB instead of 28. With larger ones that takes the processor from others, where processes are more than these.
const SOON_BYTES_MAX: usize = 32 << 10;
/// Reads of fewer bytes are sent. Measured: 1 MiB that are lent are read 1.5 times as fast by one process and by two,
/// 47,008 bytes half as fast by two, which wake and wait for the server each time.
const LENT_FROM_BYTES: usize = 512 << 10;
/// Writes of fewer bytes are not worth the call that moves them from memory to memory.
const MEMORY_FROM_BYTES: usize = 64 << 10;

/// How much a sequential reader asks for before it wants it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ahead {
    /// Bytes of one request.
    pub turn_bytes: u32,
    /// Bytes of all that were not taken yet.
    pub bytes: u64,
}

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
    /// Whose memory is registered for reads and writes that wait, until it is said again; `None`: as the connection's
    /// settings say. It is for connections whose server moves the bytes.
    fn choose(&mut self, registration: Option<Registration>);

    /// Reads into lent memory. Waits for everything started before. Returns when the memory is the caller's again.
    fn read(&mut self, request: &DataRequest, into: &mut [u8]) -> Result<DataReply>;

    /// Writes from lent memory, likewise. Also for requests without bulk.
    fn write(&mut self, request: &DataRequest, from: &[u8]) -> Result<DataReply>;

    /// Asks for bytes that will be wanted: they wait in the connection until [`BulkConnection::receive`] takes them.
    fn ask(&mut self, request: &DataRequest) -> Result<()>;

    /// Takes the next bytes of what was asked for, in order: those of one request that have come, or the first that
    /// come; zeros where the object has ended. 0: nothing was asked for. After an error, also that of a request that
    /// was refused, the connection is of no more use.
    fn receive(&mut self, into: &mut [u8]) -> Result<usize>;

    /// Whether what [`BulkConnection::receive`] took last lay behind the object's end.
    fn met_end(&self) -> bool;

    /// Hands the next so many bytes of what was asked for to `give` where they lie in the connection's own memory, and
    /// takes them; waits until they are there. `false`: they do not lie in one piece there (those of a socket are in
    /// the kernel), and nothing was taken. After an error `give` was not called.
    fn receive_in_place(&mut self, _bytes: usize, _give: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(false)
    }

    /// Takes all that was asked for and forgets it.
    fn discard(&mut self) -> Result<()>;

    /// How much is worth being asked for ahead.
    fn ahead(&self) -> Ahead;

    /// Begins a write from given memory, which comes back from [`BulkConnection::finish`]. When it cannot be begun the
    /// memory comes back with the error, and what was started before can still be finished (each with an error).
    /// Only after [`BulkConnection::may_start`].
    fn start_write(&mut self, request: &DataRequest, from: Vec<u8>) -> std::result::Result<(), NotStarted>;

    /// Begins a write from lent memory, which has to stay as it is until the write is finished. Otherwise as
    /// [`BulkConnection::start_write`].
    fn start_lent(&mut self, request: &DataRequest, from: &[u8]) -> Result<()> {
        self.start_write(request, from.to_vec()).map_err(|failed| failed.error)
    }

    /// Waits for the oldest write that was started. Of one from lent memory, no memory comes back. `None`: there is
    /// none.
    fn finish(&mut self) -> Option<(Vec<u8>, Result<DataReply>)>;

    /// Writes started and not finished, and requests whose bytes were not all taken.
    fn outstanding(&self) -> usize;

    /// Returns true if a write of this many bytes may be started before another one is finished
    /// ([`weft_protocol::InFlightWindow`]).
    fn may_start(&self, bytes: usize) -> bool;

    /// Asks for a descriptor of the object's file; only over a Unix socket of the same node.
    fn descriptor(&mut self, request: &DataRequest) -> Result<(DataReply, Passed)>;

    /// What carries the bytes.
    fn carrier(&self) -> Carrier;
}

/// What carries file data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    Tcp,
    Unix,
    /// The server moves the bytes itself: [`crate::rdma`].
    Rdma,
}

impl From<SocketKind> for Carrier {
    fn from(kind: SocketKind) -> Self {
        match kind {
            SocketKind::Tcp => Self::Tcp,
            SocketKind::Unix => Self::Unix,
        }
    }
}

/// File data over a socket; to a server that may read our memory only the headers of large writes.
#[derive(Debug)]
pub struct SocketBulk {
    socket: Socket,
    is_local: bool,
    // Before the memory of transfers on their way: when both are dropped it has to be of no more use to the server.
    sharing: Sharing,
    borrowing: Borrowing,
    started: InFlightWrites,
    asked: Asked,
}

impl SocketBulk {
    /// Over a socket whose handshake is done.
    pub fn new(socket: Socket) -> Self {
        let unix = socket.kind() == SocketKind::Unix;
        let (sharing, borrowing) =
            if unix { (Sharing::NotAsked, Borrowing::NotAsked) } else { (Sharing::No, Borrowing::No) };
        let is_local = socket.is_local();
        let in_flight_bytes = if is_local { LOCAL_IN_FLIGHT_BYTES } else { FAR_IN_FLIGHT_BYTES };
        let (started, asked) = (InFlightWrites::new(in_flight_bytes), Asked::new(is_local));
        Self { is_local, socket, sharing, borrowing, started, asked }
    }

    /// The same, with all bytes on the stream.
    pub fn streaming(socket: Socket) -> Self {
        Self { sharing: Sharing::No, borrowing: Borrowing::No, ..Self::new(socket) }
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    fn kind(&self) -> SocketKind {
        self.socket.kind()
    }

    /// `moved`: bytes that the request moves.
    fn receive_reply(&self, into: &mut [u8], moved: usize) -> Result<DataReply> {
        let mut header = [0; REPLY_BYTES];
        let large = into.len() >= PIECE_BYTES && self.kind() == SocketKind::Tcp;
        // With the header come only bytes that certainly stand behind it: none of a following reply. When much is to
        // come in pieces, the header alone.
        let have = if large {
            self.socket.receive_exact(&mut header)?;
            0
        } else {
            self.socket.receive_header_and_some(&mut header, into, moved <= SOON_BYTES_MAX)?
        };
        let reply = DataReply::decode(&header).map_err(|_| TransportError::Malformed)?;
        let bulk = into.get_mut(..reply.bulk_bytes as usize).ok_or(TransportError::Malformed)?;
        let rest = bulk.get_mut(have..).ok_or(TransportError::Malformed)?;
        self.socket.receive_in_pieces(rest, PIECE_BYTES)?;
        Ok(reply)
    }

    fn drain(&mut self) -> Result<()> {
        while let Some((_, result)) = self.finish() {
            result?;
        }
        self.asked.discard(&self.socket)
    }

    /// Whether a write of so many bytes goes from memory to memory. Asks the server for it the first time.
    fn by_memory(&mut self, bytes: usize) -> Result<bool> {
        if bytes < MEMORY_FROM_BYTES {
            return Ok(false);
        }
        if self.sharing.is_to_ask() && self.started.is_empty() {
            self.sharing = Sharing::ask(&self.socket)?;
        }
        Ok(self.sharing.is_possible())
    }

    /// Sends a request and its bytes, before which others may be on their way.
    fn send_write(&mut self, request: &DataRequest, from: &[u8]) -> Result<()> {
        let begin = |bulk: &mut Self| {
            let bytes = from.get(..request.bytes as usize).ok_or(TransportError::Malformed)?;
            if bulk.by_memory(bytes.len())? {
                let request = DataRequest { memory: descriptor_of(bytes), ..*request };
                bulk.started.send(&bulk.socket, &request.encode(), &[])
            } else {
                bulk.started.send(&bulk.socket, &request.encode(), bytes)
            }
        };
        let begun = begin(self);
        self.settled(begun)
    }

    /// Whatever failed, the connection is of no more use, and memory that it had is the caller's again: the server must
    /// not take what becomes of it for what was to be written.
    fn settled<T>(&mut self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.sharing.end();
            self.socket.shutdown();
        }
        result
    }
}

impl BulkConnection for SocketBulk {
    fn choose(&mut self, _registration: Option<Registration>) {}

    fn read(&mut self, request: &DataRequest, into: &mut [u8]) -> Result<DataReply> {
        let into = into.get_mut(..request.bytes as usize).ok_or(TransportError::Malformed)?;
        self.drain()?;
        if into.len() >= LENT_FROM_BYTES
            && let Some(reply) = self.borrowing.read(&self.socket, request, into)?
        {
            return Ok(reply);
        }
        self.socket.send_all(&request.encode())?;
        self.receive_reply(into, into.len())
    }

    fn write(&mut self, request: &DataRequest, from: &[u8]) -> Result<DataReply> {
        self.drain()?;
        let sent = match self.by_memory(from.len()) {
            Ok(true) => self.socket.send_all(&DataRequest { memory: descriptor_of(from), ..*request }.encode()),
            Ok(false) => self.socket.send_all_with(&request.encode(), from),
            Err(error) => Err(error),
        };
        let result = sent.and_then(|()| self.receive_reply(&mut [], from.len()));
        self.settled(result)
    }

    fn ask(&mut self, request: &DataRequest) -> Result<()> {
        self.asked.ask(&self.socket, request)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<usize> {
        self.asked.receive(&self.socket, into)
    }

    fn met_end(&self) -> bool {
        self.asked.met_end()
    }

    fn discard(&mut self) -> Result<()> {
        self.asked.discard(&self.socket)
    }

    fn ahead(&self) -> Ahead {
        match (self.kind(), self.is_local) {
            (SocketKind::Unix, _) => UNIX_AHEAD,
            (SocketKind::Tcp, true) => LOCAL_AHEAD,
            (SocketKind::Tcp, false) => FAR_AHEAD,
        }
    }

    fn start_write(&mut self, request: &DataRequest, from: Vec<u8>) -> std::result::Result<(), NotStarted> {
        match self.send_write(request, &from) {
            Ok(()) => {
                self.started.started(from, request.bytes as usize);
                Ok(())
            }
            Err(error) => Err(NotStarted { memory: from, error }),
        }
    }

    fn start_lent(&mut self, request: &DataRequest, from: &[u8]) -> Result<()> {
        self.send_write(request, from)?;
        self.started.started(Vec::new(), request.bytes as usize);
        Ok(())
    }

    fn finish(&mut self) -> Option<(Vec<u8>, Result<DataReply>)> {
        let (memory, result) = self.started.finish(&self.socket)?;
        let result = self.settled(result);
        Some((memory, result))
    }

    fn outstanding(&self) -> usize {
        self.started.len() + self.asked.outstanding()
    }

    fn may_start(&self, bytes: usize) -> bool {
        self.started.admits(bytes)
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

    fn carrier(&self) -> Carrier {
        self.kind().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerMemory;
    use std::os::unix::net::UnixStream;
    use weft_protocol::data::{DataOperation, REQUEST_BYTES, SHARED_MEMORY_BYTES, SharedMemory};
    use weft_protocol::{Error, InodeNumber, ObjectId};

    const LARGE: usize = 1 << 20;

    fn request(operation: DataOperation, bytes: usize) -> DataRequest {
        let (object, inode) = (ObjectId::from_raw(1), InodeNumber::from_raw(1));
        let nothing = DataRequest::about_nothing(operation, u32::try_from(bytes).unwrap());
        DataRequest { id: 7, object, inode, offset: 100, ..nothing }
    }

    /// Answers requests with what `answer` says, and returns their offsets and lengths.
    fn serve(
        socket: Socket,
        answers: Vec<(DataReply, Vec<u8>)>,
    ) -> std::thread::JoinHandle<Vec<(DataOperation, u64, u32)>> {
        std::thread::spawn(move || {
            let mut seen = Vec::new();
            for (reply, bulk) in answers {
                let mut header = [0; REQUEST_BYTES];
                socket.receive_exact(&mut header).unwrap();
                let request = DataRequest::decode(&header).unwrap();
                socket.receive_exact(&mut vec![0; request.bulk_bytes() as usize]).unwrap();
                seen.push((request.operation, request.offset, request.bytes));
                socket.send_all_with(&reply.encode(), &bulk).unwrap();
            }
            seen
        })
    }

    fn read_reply(bytes: usize) -> (DataReply, Vec<u8>) {
        (DataReply { bulk_bytes: u32::try_from(bytes).unwrap(), ..DataReply::default() }, vec![3; bytes])
    }

    #[test]
    fn a_large_read_is_one_request_and_ends_with_the_object() {
        let (client, server) = UnixStream::pair().unwrap();
        let seen = serve(Socket::from_unix(server), vec![read_reply(LARGE + 10)]);
        let mut into = vec![0; 3 * LARGE];
        let request = request(DataOperation::Read, into.len());
        let reply = SocketBulk::streaming(Socket::from_unix(client)).read(&request, &mut into).unwrap();
        assert_eq!(reply.bulk_bytes as usize, LARGE + 10);
        assert!(
            into.iter().take_while(|byte| **byte == 3).count() == LARGE + 10
                && into[LARGE + 10..] == vec![0; 2 * LARGE - 10]
        );
        assert_eq!(seen.join().unwrap(), [(DataOperation::Read, 100, request.bytes)]);
    }

    #[test]
    fn a_large_write_is_one_request_that_is_told_of_what_failed() {
        let (client, server) = UnixStream::pair().unwrap();
        let all = u32::try_from(3 * LARGE).unwrap();
        let done = (DataReply { written_bytes: all, ..DataReply::default() }, Vec::new());
        let failed = (DataReply::failed(7, &Error::NoSpace), Vec::new());
        let seen = serve(Socket::from_unix(server), vec![failed, done]);
        let from = vec![1; 3 * LARGE];
        let mut connection = SocketBulk::streaming(Socket::from_unix(client));
        let reply = connection.write(&request(DataOperation::Write, from.len()), &from).unwrap();
        assert_eq!((reply.result().err(), reply.written_bytes), (Some(Error::NoSpace), 0));
        let reply = connection.write(&request(DataOperation::Append, from.len()), &from).unwrap();
        assert_eq!((reply.result().is_ok(), reply.written_bytes), (true, all));
        assert_eq!(seen.join().unwrap(), [(DataOperation::Write, 100, all), (DataOperation::Append, 100, all)]);
    }

    #[test]
    fn memory_that_comes_back_with_an_error_is_not_lent_any_more() {
        let (client, server) = UnixStream::pair().unwrap();
        let serving = std::thread::spawn(move || {
            let socket = Socket::from_unix(server);
            let (mut header, mut shared) = ([0; REQUEST_BYTES], [0; SHARED_MEMORY_BYTES]);
            socket.receive_exact(&mut header).unwrap();
            socket.receive_exact(&mut shared).unwrap();
            let memory = PeerMemory::open(&socket, SharedMemory::decode(&shared)).unwrap();
            socket.send_all(&DataReply::default().encode()).unwrap();
            let mut addresses = Vec::new();
            for _ in 0..2 {
                socket.receive_exact(&mut header).unwrap();
                addresses.push(DataRequest::decode(&header).unwrap().memory.address);
            }
            let mut taken = vec![0; MEMORY_FROM_BYTES];
            memory.read(addresses[0], &mut taken).unwrap();
            assert_eq!(taken, vec![1; MEMORY_FROM_BYTES]);
            socket.send_all(&DataReply::default().encode()).unwrap();
            // Instead of a second answer: nothing that this side could say.
            socket.send_all(&[9; REPLY_BYTES]).unwrap();
            (memory, addresses[1])
        });
        let mut connection = SocketBulk::new(Socket::from_unix(client));
        let request = request(DataOperation::Write, MEMORY_FROM_BYTES);
        for value in [1, 2] {
            connection.start_write(&request, vec![value; MEMORY_FROM_BYTES]).unwrap();
        }
        assert!(matches!(connection.finish(), Some((_, Ok(_)))));
        let (_memory, result) = connection.finish().unwrap();
        assert!(result.is_err());
        let (server, address) = serving.join().unwrap();
        assert!(server.read(address, &mut [0; MEMORY_FROM_BYTES]).is_err());
    }
}
