//! One connected stream.
//!
//! Calls block, and move bytes between the kernel and the memory they are given: no buffer of our own stands between.
//! A signal that interrupts a call does not show.

use crate::before_wait::{Waiting, before_wait};
use crate::low_water::{PIECE_TIME, Pieces};
use crate::patience::{Patience, TICK, Wait};
use crate::{Result, TransportError, unpaced};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use socket2::{Domain, SockAddr, Type};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// What a stream runs over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketKind {
    Tcp,
    /// Between processes of one node.
    Unix,
}

/// A connected stream socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    kind: SocketKind,
    /// Ends waits for a peer that makes no progress.
    patience: Option<Arc<dyn Patience>>,
}

/// A peer whose machine has vanished says nothing: after so much silence the kernel asks it, so many times, and ends
/// the connection of one that does not answer.
const SILENCE_MAX: Duration = Duration::from_secs(10);
const PROBES_APART: Duration = Duration::from_secs(5);
const PROBES_MAX: u32 = 4;
/// The same for a peer that owes an acknowledgement, for which the kernel does not probe: it would go on for a quarter
/// of an hour. Also how long a peer may take nothing at all; what was on its way to it is sent again by a connection
/// that is new.
const UNACKNOWLEDGED_MAX_MS: u32 = 60_000;
/// Upper bound of the retransmission timeout, milliseconds. The kernel's own bound (two minutes) leaves a connection
/// silent for as long again as its link was cut.
const RETRANSMISSION_MS_MAX: i32 = 2_000;

/// How long a TCP connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Socket buffer asked for on Unix sockets, bytes. Their default (208 KiB) makes sender and receiver take turns too
/// often.
const UNIX_BUFFER_BYTES: usize = 1 << 20;

/// How long whoever expects a message looks for it before going to sleep. Measured: on a virtual machine with idle
/// cores an empty call takes 60 us when both sides sleep, 10 us when they do not.
pub const LOOK_BEFORE_SLEEP: Duration = Duration::from_micros(50);

/// Socket buffers of data connections by TCP inside a machine, bytes. Measured (docs/performance.md): a large write is
/// sent with few sleeps;
const LOCAL_SENT_BUFFER_BYTES: usize = 1 << 20;
/// what a reader has asked for fits his: only the addresses of its pages lie there;
const LOCAL_READ_BUFFER_BYTES: usize = 2 << 20;
/// written bytes lie in the server's, and with megabytes of them there each is fetched from memory twice more.
const LOCAL_WRITTEN_BUFFER_BYTES: usize = 512 << 10;

/// The largest buffers that the system grants. Who asks for more gets these without a word, and keeps them, whereas the
/// kernel's own grow with what is to be moved: where the limit is lower than what is wanted, that is far better.
static RECEIVE_BUFFER_BYTES_MAX: LazyLock<usize> = LazyLock::new(|| granted("/proc/sys/net/core/rmem_max"));
static SEND_BUFFER_BYTES_MAX: LazyLock<usize> = LazyLock::new(|| granted("/proc/sys/net/core/wmem_max"));

/// `0` where that is not known.
fn granted(limit: &str) -> usize {
    std::fs::read_to_string(limit).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Fewer bytes are not worth the calls that receiving in pieces takes.
const PIECES_FROM_BYTES: usize = 96 << 10;

/// What a socket can do without waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub has_room: bool,
    pub has_bytes: bool,
}

/// Which end of a data connection a socket is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataEnd {
    Client,
    Server,
}

impl Socket {
    /// Connects to `IP:PORT`.
    pub fn connect_tcp(address: &str) -> Result<Self> {
        let address =
            address.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, format!("{error}")))?;
        Ok(Self::from_tcp(unpaced::connect(address, CONNECT_TIMEOUT)?)?)
    }

    /// Connects to the Unix socket of this path.
    pub fn connect_unix(path: &Path) -> Result<Self> {
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // A node that is stopped accepts nothing: with its queue full a connect would wait without bound.
        socket.set_write_timeout(Some(CONNECT_TIMEOUT))?;
        socket.connect(&SockAddr::unix(path)?)?;
        socket.set_write_timeout(None)?;
        Ok(Self::from_unix(OwnedFd::from(socket).into()))
    }

    /// Takes over a connected TCP stream. Small messages are sent at once, and a peer that vanishes is noticed within
    /// half a minute.
    pub fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, SILENCE_MAX)?;
        sockopt::set_tcp_keepintvl(&stream, PROBES_APART)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES_MAX)?;
        sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED_MAX_MS)?;
        // Kernels before Linux 6.15 cannot; their connections come back later.
        let _ = weft_sys::set_tcp_rto_max(stream.as_fd(), RETRANSMISSION_MS_MAX);
        Ok(Self { fd: stream.into(), kind: SocketKind::Tcp, patience: None })
    }

    /// Takes over a connected Unix stream.
    pub fn from_unix(stream: UnixStream) -> Self {
        let fd: OwnedFd = stream.into();
        // Larger buffers are a matter of speed only: where the limit of the system is lower, the kernel takes that.
        let _ = sockopt::set_socket_send_buffer_size(&fd, UNIX_BUFFER_BYTES);
        Self { fd, kind: SocketKind::Unix, patience: None }
    }

    /// Bounds what is on its way on a TCP connection inside one machine: see [`LOCAL_WRITTEN_BUFFER_BYTES`]. A
    /// connection that leaves the machine keeps the kernel's own sizes, which grow with the link.
    pub fn tune_for_data(&self, end: DataEnd) {
        if self.kind == SocketKind::Tcp && self.is_local() {
            let receive = match end {
                DataEnd::Client => LOCAL_READ_BUFFER_BYTES,
                DataEnd::Server => LOCAL_WRITTEN_BUFFER_BYTES,
            };
            // A matter of speed only: where it fails, the kernel's sizes stay.
            if LOCAL_SENT_BUFFER_BYTES <= *SEND_BUFFER_BYTES_MAX {
                let _ = sockopt::set_socket_send_buffer_size(&self.fd, LOCAL_SENT_BUFFER_BYTES);
            }
            if receive <= *RECEIVE_BUFFER_BYTES_MAX {
                let _ = sockopt::set_socket_recv_buffer_size(&self.fd, receive);
            }
        }
    }

    /// Whether the peer is on this machine, as far as the addresses tell.
    pub fn is_local(&self) -> bool {
        match self.kind {
            SocketKind::Unix => true,
            SocketKind::Tcp => {
                let own = rustix::net::getsockname(&self.fd).ok().and_then(|own| SocketAddr::try_from(own).ok());
                own.zip(self.peer_address()).is_some_and(|(own, peer)| unpaced::is_inside(own.ip(), peer.ip()))
            }
        }
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        let address = rustix::net::getpeername(&self.fd).ok().flatten()?;
        SocketAddr::try_from(address).ok()
    }

    /// What the stream runs over.
    pub fn kind(&self) -> SocketKind {
        self.kind
    }

    /// User id of the process at the other end of a Unix socket; `None` over TCP.
    pub fn peer_uid(&self) -> Option<u32> {
        match self.kind {
            SocketKind::Tcp => None,
            SocketKind::Unix => sockopt::socket_peercred(&self.fd).ok().map(|credentials| credentials.uid.as_raw()),
        }
    }

    /// The peer's address, for people.
    pub fn peer_text(&self) -> String {
        match self.kind {
            SocketKind::Unix => "unix".to_owned(),
            SocketKind::Tcp => self.peer_address().map_or_else(|| "tcp".to_owned(), |address| address.to_string()),
        }
    }

    /// Bounds each blocking receive and send; `None`: no bound.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> Result<()> {
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, timeout)?;
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Send, timeout)?;
        Ok(())
    }

    /// From now on a call that blocks asks `patience` every 100 ms whether to go on.
    pub fn set_patience(&mut self, patience: Arc<dyn Patience>) -> Result<()> {
        self.set_timeout(Some(TICK))?;
        self.patience = Some(patience);
        Ok(())
    }

    pub(crate) fn patience(&self) -> Option<&dyn Patience> {
        self.patience.as_deref()
    }

    /// Ends the connection: whoever blocks in it, here or there, gets an error.
    pub fn shutdown(&self) {
        // It may be closed by the other side already, which is what is wanted.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }

    /// Whether a receive would not wait: there are bytes, or the connection has ended. On one where nothing is expected
    /// it is the end.
    pub fn is_readable(&self) -> bool {
        let mut polled = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Returns true if the kernel takes a small message now.
    pub fn has_room(&self) -> bool {
        let mut polled = [PollFd::new(&self.fd, PollFlags::OUT)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Waits until the kernel takes bytes to send, or has bytes to receive.
    pub(crate) fn wait_for_room_or_bytes(&self) -> Result<Ready> {
        self.wait_for(PollFlags::OUT | PollFlags::IN)
    }

    /// Waits until the kernel takes bytes to send.
    pub(crate) fn wait_for_room(&self) -> Result<()> {
        self.wait_for(PollFlags::OUT).map(|_| ())
    }

    /// An end or error of the connection counts as room: the send that follows reports it.
    fn wait_for(&self, wanted: PollFlags) -> Result<Ready> {
        before_wait(Waiting::Sleeps);
        let mut wait = Wait::default();
        let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        loop {
            let mut polled = [PollFd::new(&self.fd, wanted)];
            match poll(&mut polled, self.patience.is_some().then_some(&tick)) {
                Ok(0) => wait.slept(self, TICK)?,
                Ok(_) => {
                    let [polled] = polled;
                    let has_bytes = polled.revents().contains(PollFlags::IN);
                    let ended = PollFlags::OUT | PollFlags::HUP | PollFlags::ERR;
                    return Ok(Ready { has_room: polled.revents().intersects(ended), has_bytes });
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Another handle of the same connection, for shutting it down from another thread.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, kind: self.kind, patience: self.patience.clone() })
    }

    /// Sends all of these bytes.
    pub fn send_all(&self, bytes: &[u8]) -> Result<()> {
        self.send_some(bytes, SendFlags::NOSIGNAL)
    }

    /// Sends all of these bytes, and lets the kernel join them with what follows at once.
    pub fn send_all_more(&self, bytes: &[u8]) -> Result<()> {
        self.send_some(bytes, SendFlags::NOSIGNAL | SendFlags::MORE)
    }

    fn send_some(&self, mut bytes: &[u8], flags: SendFlags) -> Result<()> {
        let mut wait = Wait::default();
        while !bytes.is_empty() {
            match send(&self.fd, bytes, flags) {
                Ok(sent) => (bytes, wait) = (bytes.get(sent..).unwrap_or_default(), Wait::default()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait.timed_out(self)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Sends header and bulk as one piece, without joining them in memory.
    pub fn send_all_with(&self, header: &[u8], bulk: &[u8]) -> Result<()> {
        if bulk.is_empty() {
            return self.send_all(header);
        }
        let slices = [IoSlice::new(header), IoSlice::new(bulk)];
        let mut wait = Wait::default();
        let sent = loop {
            match rustix::net::sendmsg(&self.fd, &slices, &mut Default::default(), SendFlags::NOSIGNAL) {
                Ok(sent) => break sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait.timed_out(self)?,
                Err(errno) => return Err(errno.into()),
            }
        };
        if let Some(rest) = header.get(sent..) {
            self.send_all(rest)?;
        }
        self.send_all(bulk.get(sent.saturating_sub(header.len())..).unwrap_or_default())
    }

    /// Receives until `bytes` is full. The other side's end of the stream is an error.
    pub fn receive_exact(&self, bytes: &mut [u8]) -> Result<()> {
        let mut have = 0;
        while have < bytes.len() {
            let Some(rest) = bytes.get_mut(have..) else { break };
            have += self.receive_some(rest)?;
        }
        Ok(())
    }

    /// As [`Socket::receive_exact`], with few wake-ups, for bytes that are certainly on their way: `piece_bytes` at a
    /// time, if they are many.
    pub fn receive_in_pieces(&self, bytes: &mut [u8], piece_bytes: usize) -> Result<()> {
        if bytes.len() < PIECES_FROM_BYTES || self.kind == SocketKind::Unix {
            return self.receive_exact(bytes);
        }
        let mut pieces = Pieces::of(self, piece_bytes);
        let (mut have, mut wait) = (0, Wait::default());
        while let Some(rest) = bytes.get_mut(have..).filter(|rest| !rest.is_empty()) {
            pieces.wait(rest.len());
            // Without waiting: a receive that sleeps would be woken when as much has come again.
            match self.receive_now(rest)? {
                Some(count) => (have, wait) = (have + count, Wait::default()),
                None => wait.slept(self, PIECE_TIME)?,
            }
        }
        Ok(())
    }

    /// As [`Socket::receive_some`], for whoever expects a message soon: looks for [`LOOK_BEFORE_SLEEP`] before it
    /// sleeps, while others that can run go first. Waking a sleeping core costs more than most replies take.
    pub fn receive_some_soon(&self, bytes: &mut [u8]) -> Result<usize> {
        match self.look_for_some(bytes)? {
            Some(count) => Ok(count),
            None => self.receive_some(bytes),
        }
    }

    /// The same, sleeping no longer than this. `None`: nothing has come.
    pub fn receive_some_within(&self, bytes: &mut [u8], time: Duration) -> Result<Option<usize>> {
        if let Some(count) = self.look_for_some(bytes)? {
            return Ok(Some(count));
        }
        before_wait(Waiting::Sleeps);
        let time = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&time)) {
            Ok(_) | Err(Errno::INTR) => self.receive_now(bytes),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Looks for bytes as long as is worth it before sleeping.
    fn look_for_some(&self, bytes: &mut [u8]) -> Result<Option<usize>> {
        let start = Instant::now();
        loop {
            if let Some(count) = self.receive_now(bytes)? {
                return Ok(Some(count));
            }
            if start.elapsed() >= LOOK_BEFORE_SLEEP {
                return Ok(None);
            }
            before_wait(Waiting::Looks);
            rustix::thread::sched_yield();
        }
    }

    /// Receives at least one byte; the end of the stream is an error.
    pub fn receive_some(&self, bytes: &mut [u8]) -> Result<usize> {
        before_wait(Waiting::Sleeps);
        let mut wait = Wait::default();
        loop {
            match recv(&self.fd, &mut *bytes, RecvFlags::empty()) {
                Ok((0, _)) => return Err(TransportError::Io(io::ErrorKind::UnexpectedEof.into())),
                Ok((count, _)) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait.timed_out(self)?,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Receives what is there now, without waiting. `None`: nothing. The end of the stream is an error.
    pub fn receive_now(&self, bytes: &mut [u8]) -> Result<Option<usize>> {
        loop {
            match recv(&self.fd, &mut *bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(TransportError::Io(io::ErrorKind::UnexpectedEof.into())),
                Ok((count, _)) => return Ok(Some(count)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends what the kernel takes now, without waiting, and returns how many bytes that were.
    pub fn send_now(&self, bytes: &[u8]) -> Result<usize> {
        loop {
            match send(&self.fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => return Ok(sent),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The same of two parts, one behind the other.
    pub fn send_now_with(&self, header: &[u8], bulk: &[u8]) -> Result<usize> {
        if header.is_empty() {
            return self.send_now(bulk);
        }
        let (slices, flags) = ([IoSlice::new(header), IoSlice::new(bulk)], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        loop {
            match rustix::net::sendmsg(&self.fd, &slices, &mut Default::default(), flags) {
                Ok(sent) => return Ok(sent),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Receives a header, and with the same call as much as has come of what stands behind it, into `bulk`. Returns how
    /// many bytes of `bulk` are filled. `bulk` must not be longer than what certainly follows this header. `soon`:
    /// looks for it before sleeping, as [`Socket::receive_some_soon`] does.
    pub fn receive_header_and_some(&self, header: &mut [u8], bulk: &mut [u8], soon: bool) -> Result<usize> {
        let (header_bytes, start) = (header.len(), Instant::now());
        let mut wait = Wait::default();
        let mut flags = if soon { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        let received = loop {
            let mut slices = [IoSliceMut::new(header), IoSliceMut::new(bulk)];
            match rustix::net::recvmsg(&self.fd, &mut slices, &mut Default::default(), flags) {
                Err(Errno::AGAIN) if flags == RecvFlags::DONTWAIT => {
                    if start.elapsed() >= LOOK_BEFORE_SLEEP {
                        before_wait(Waiting::Sleeps);
                        flags = RecvFlags::empty();
                    } else {
                        before_wait(Waiting::Looks);
                        rustix::thread::sched_yield();
                    }
                }
                Err(Errno::AGAIN) => wait.timed_out(self)?,
                Ok(message) if message.bytes == 0 => {
                    return Err(TransportError::Io(io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(message) => break message.bytes,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        if let Some(rest) = header.get_mut(received..) {
            self.receive_exact(rest)?;
        }
        Ok(received.saturating_sub(header_bytes))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_cut_link_leaves_no_end_of_a_connection_silent_for_long() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        if weft_sys::tcp_rto_max(client.as_fd()).is_err() {
            eprintln!("skipped: TCP_RTO_MAX_MS needs Linux 6.15");
            return;
        }
        for stream in [client, server] {
            let socket = Socket::from_tcp(stream).unwrap();
            assert_eq!(weft_sys::tcp_rto_max(socket.as_fd()).unwrap(), RETRANSMISSION_MS_MAX);
        }
    }
}
