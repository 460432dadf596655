//! Receiving much with few wake-ups.
//!
//! A TCP reader that sleeps is woken by every packet. Over loopback sender and reader then take turns every 64 KiB, and
//! on few cores half of the processor's time goes into that. Whoever knows that more bytes are certainly on their way
//! sleeps until a larger piece of them is there (`SO_RCVLOWAT`). Measured in docs/performance.md.

use crate::before_wait::{Waiting, before_wait};
use crate::{Socket, SocketKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::time::Duration;

/// Longest sleep for a piece; then what is there is taken. The kernel wakes a reader also when its buffer is full, so
/// this is for what it may not foresee.
pub(crate) const PIECE_TIME: Duration = Duration::from_millis(50);
/// The kernel's default: any byte wakes.
const ANY: usize = 1;

/// How many bytes wake whoever sleeps on one socket.
#[derive(Debug)]
pub(crate) struct LowWater(usize);

impl Default for LowWater {
    fn default() -> Self {
        Self(ANY)
    }
}

impl LowWater {
    /// Sleeps until so many bytes are there, which are certainly still to come. Fewer may be there when it returns, so
    /// the receive that follows should not wait; an error of the connection shows in it.
    pub fn wait(&mut self, socket: &Socket, bytes: usize) {
        self.set(socket, bytes);
        before_wait(Waiting::Sleeps);
        let mut polled = [PollFd::new(socket, PollFlags::IN)];
        let piece_wait = Timespec { tv_sec: 0, tv_nsec: i64::from(PIECE_TIME.subsec_nanos()) };
        if poll(&mut polled, Some(&piece_wait)) != Ok(1) {
            self.set(socket, ANY);
        }
    }

    /// From now on any byte wakes.
    pub fn reset(&mut self, socket: &Socket) {
        self.set(socket, ANY);
    }

    fn set(&mut self, socket: &Socket, bytes: usize) {
        // A matter of speed only: where the kernel refuses, it wakes more often.
        if bytes != self.0 && weft_sys::set_receive_low_water(socket.as_fd(), bytes).is_ok() {
            self.0 = bytes;
        }
    }
}

/// A transfer that is received in pieces. When it is dropped, any byte wakes the reader again.
pub(crate) struct Pieces<'a> {
    socket: &'a Socket,
    piece_bytes: usize,
    low_water: LowWater,
}

impl<'a> Pieces<'a> {
    /// Of `piece_bytes` each, the last one shorter. Over Unix sockets, whose kernel side does not know it, readers are
    /// woken as ever.
    pub fn of(socket: &'a Socket, piece_bytes: usize) -> Self {
        Self { socket, piece_bytes, low_water: LowWater::default() }
    }

    /// As [`LowWater::wait`], for the next piece of `left` bytes.
    pub fn wait(&mut self, left: usize) {
        if self.socket.kind() == SocketKind::Tcp {
            self.low_water.wait(self.socket, left.min(self.piece_bytes));
        }
    }
}

impl Drop for Pieces<'_> {
    fn drop(&mut self) {
        self.low_water.reset(self.socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    fn pair() -> (Socket, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Socket::from_tcp(client).unwrap(), Socket::from_tcp(listener.accept().unwrap().0).unwrap())
    }

    #[test]
    fn a_reader_sleeps_until_a_piece_is_there() {
        let (sender, reader) = pair();
        sender.send_all(&[7; 1000]).unwrap();
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            sender.send_all(&[7; 3000]).unwrap();
            sender
        });
        let mut pieces = Pieces::of(&reader, 4000);
        pieces.wait(10_000);
        let mut bytes = [0; 10_000];
        assert_eq!(reader.receive_now(&mut bytes).unwrap(), Some(4000));
        drop(pieces);
        writer.join().unwrap().send_all(&[8]).unwrap();
        assert_eq!(reader.receive_some(&mut bytes).unwrap(), 1, "any byte wakes again");
    }

    #[test]
    fn what_never_becomes_a_piece_is_received_all_the_same() {
        let (sender, reader) = pair();
        sender.send_all(&[7; 1000]).unwrap();
        let since = Instant::now();
        let mut bytes = [0; 4000];
        let mut pieces = Pieces::of(&reader, 4000);
        pieces.wait(4000);
        assert_eq!(reader.receive_now(&mut bytes).unwrap(), Some(1000));
        drop(sender);
        pieces.wait(3000);
        assert!(reader.receive_now(&mut bytes).is_err(), "the end of the stream is noticed");
        assert!(since.elapsed() < Duration::from_secs(5));
    }
}
