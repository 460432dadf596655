//! How many requests a peer may have unanswered on one data connection.
//!
//! Requests and replies share one connection, and each direction holds a bounded number of bytes. A client that only
//! sends fills the direction to the node; the node, whose replies nobody reads, fills the other one and stops reading:
//! both then wait for ever. [`InFlightWindow`] rules that out in two ways:
//!
//! * It bounds the unanswered requests, so that their replies fit a socket buffer of the default size
//!   ([`DATA_REQUESTS_IN_FLIGHT_MAX`](crate::limits::DATA_REQUESTS_IN_FLIGHT_MAX)), and their bytes.
//! * [`InFlightWindow::next`] never has a peer wait for room to send while a reply is due: it waits for either.
//!
//! The second rule suffices whatever the sizes of the buffers; the first makes the case rare and bounds the memory.
//! Prefetches, whose replies are not bounded so, never wait for room while a reply is due ([`may_prefetch`]).
//!
//! Invariant: `bytes` is the sum of `sizes`; no more bytes of replies were received than are due. Not here: the
//! connection.

use crate::data::REPLY_BYTES;
use std::collections::VecDeque;

/// Prefetches in flight at once on one connection; further ones are sent when replies have been taken. More than any
/// reader needs.
const PREFETCHES_IN_FLIGHT_MAX: usize = 32;

/// Returns true if another prefetch may be sent on a connection that has so many in flight. `is_taken`: nothing is left
/// of the reply that was begun last. While a reply is due a send does not wait for room: the server may be waiting
/// until its bytes are taken.
pub fn may_prefetch(in_flight: usize, is_taken: bool, takes_bytes: impl FnOnce() -> bool) -> bool {
    let may_wait = in_flight == 0 && is_taken;
    in_flight < PREFETCHES_IN_FLIGHT_MAX && (may_wait || takes_bytes())
}

/// What a peer that has a request to send does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextStep {
    /// Send it, or the rest of it, as far as the connection takes it now.
    Send,
    /// Read the reply that is due next: the window is full.
    ReadReply,
    /// The connection takes no more bytes: wait until it does or a reply comes, and read that.
    AwaitRoomOrReply,
    /// The connection takes no more bytes, and no byte of a reply is due: the other side has nothing to send and will
    /// read.
    AwaitRoom,
}

/// The requests of one connection whose replies have not been read. See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InFlightWindow {
    requests_max: usize,
    bytes_max: usize,
    /// Bytes of each request in flight, oldest first.
    sizes: VecDeque<usize>,
    bytes: usize,
    /// Bytes of the replies to them that were received.
    received: usize,
    /// It was full, and is more than half full since.
    is_draining: bool,
}

impl InFlightWindow {
    /// An empty window for at most this many requests, which together have at most this many bytes.
    pub fn new(requests_max: usize, bytes_max: usize) -> Self {
        Self { requests_max, bytes_max, sizes: VecDeque::new(), bytes: 0, received: 0, is_draining: false }
    }

    /// Returns true if a request of this many bytes may be sent before another reply is read. A request that is larger
    /// than the whole window goes alone. A window that has reached its number of requests admits none before half of
    /// them are answered: a sender that sleeps for each reply would be woken for each of them.
    pub fn admits(&self, bytes: usize) -> bool {
        self.sizes.is_empty() || (!self.is_draining && self.bytes + bytes <= self.bytes_max)
    }

    /// Returns what to do next for a request of this many bytes. `takes_bytes`: the connection takes bytes now;
    /// `begun`: a part of the request was sent.
    pub fn next(&self, bytes: usize, takes_bytes: bool, begun: bool) -> NextStep {
        if !begun && !self.admits(bytes) {
            NextStep::ReadReply
        } else if takes_bytes {
            NextStep::Send
        } else if self.due_bytes() == 0 {
            NextStep::AwaitRoom
        } else {
            NextStep::AwaitRoomOrReply
        }
    }

    /// Counts a request that was sent.
    pub fn sent(&mut self, bytes: usize) {
        self.sizes.push_back(bytes);
        self.bytes += bytes;
        self.is_draining |= self.sizes.len() >= self.requests_max;
    }

    /// Counts bytes of replies that were received while a request was sent.
    pub fn received(&mut self, bytes: usize) {
        self.received += bytes;
    }

    /// Bytes of replies that are due and were not received.
    pub fn due_bytes(&self) -> usize {
        (self.sizes.len() * REPLY_BYTES).saturating_sub(self.received)
    }

    /// Removes the oldest request, whose reply was read. Returns false if none was in flight.
    pub fn answered(&mut self) -> bool {
        let answered = self.sizes.pop_front();
        self.received = self.received.saturating_sub(REPLY_BYTES);
        self.bytes -= answered.unwrap_or(0);
        self.is_draining &= self.sizes.len() > self.requests_max / 2;
        answered.is_some()
    }

    /// Returns the bytes of the request whose reply is due next.
    pub fn oldest_bytes(&self) -> Option<usize> {
        self.sizes.front().copied()
    }

    /// Number of requests in flight.
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Returns true if no reply is due.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_and_bytes_are_bounded_and_a_large_request_goes_alone() {
        let mut window = InFlightWindow::new(3, 100);
        assert!(window.admits(1000));
        window.sent(1000);
        assert!(!window.admits(0));
        assert!(window.answered() && !window.answered());
        for _ in 0..3 {
            assert!(window.admits(1));
            window.sent(1);
        }
        assert!(!window.admits(1), "three requests");
        window.answered();
        assert!(!window.admits(1), "more than half of them");
        window.answered();
        assert!(window.admits(99) && !window.admits(100));
    }

    /// A direction of a connection with a bounded buffer, by the number of bytes in it.
    struct Direction {
        room: usize,
        filled: usize,
    }

    impl Direction {
        fn take(&mut self, bytes: usize) -> usize {
            let taken = bytes.min(self.room - self.filled);
            self.filled += taken;
            taken
        }

        fn give(&mut self, bytes: usize) -> usize {
            let given = bytes.min(self.filled);
            self.filled -= given;
            given
        }
    }

    /// A node that serves one request after the other, and reads none before its reply to the last one has gone.
    #[derive(Default)]
    struct Node {
        current: usize,
        reply_left: usize,
    }

    impl Node {
        /// Returns false if it has to wait.
        fn step(&mut self, sizes: &[usize], served: &mut usize, to: &mut Direction, from: &mut Direction) -> bool {
            if self.reply_left > 0 {
                let sent = from.take(self.reply_left);
                self.reply_left -= sent;
                return sent > 0;
            }
            let Some(size) = sizes.get(*served) else { return false };
            let received = to.give(size - self.current);
            self.current += received;
            if self.current == *size {
                (self.current, self.reply_left) = (0, REPLY_BYTES);
                *served += 1;
            }
            received > 0
        }
    }

    /// Runs a client that sends these requests to a node. Returns the number of answered ones when nobody can go on.
    /// `reads_while_blocked`: false for a client that ignores [`NextStep::AwaitRoomOrReply`], and only waits for room.
    fn run(sizes: &[usize], mut window: InFlightWindow, room: (usize, usize), reads_while_blocked: bool) -> usize {
        let (mut to, mut from) = (Direction { room: room.0, filled: 0 }, Direction { room: room.1, filled: 0 });
        let (mut node, mut served) = (Node::default(), 0);
        let (mut current, mut done, mut answered, mut partial) = (0, 0, 0, 0);
        let mut read_reply = |window: &mut InFlightWindow, from: &mut Direction| {
            let read = from.give(REPLY_BYTES - partial);
            partial += read;
            window.received(read);
            if partial == REPLY_BYTES {
                assert!(window.answered());
                (partial, answered) = (0, answered + 1);
            }
            read > 0
        };
        loop {
            let step = sizes.get(current).map(|size| window.next(*size, to.filled < to.room, done > 0));
            let client_went_on = match step {
                Some(NextStep::Send) => {
                    done += to.take(sizes[current] - done);
                    if done == sizes[current] {
                        window.sent(done);
                        (current, done) = (current + 1, 0);
                    }
                    true
                }
                Some(NextStep::AwaitRoom) => false,
                Some(NextStep::AwaitRoomOrReply) => reads_while_blocked && read_reply(&mut window, &mut from),
                Some(NextStep::ReadReply) => read_reply(&mut window, &mut from),
                // All were sent: a flush reads all replies.
                None => read_reply(&mut window, &mut from),
            };
            let node_went_on = node.step(sizes, &mut served, &mut to, &mut from);
            if !client_went_on && !node_went_on {
                return answered;
            }
        }
    }

    #[test]
    fn a_client_that_sends_without_reading_blocks_for_ever() {
        let sizes = [3; 100];
        let unbounded = InFlightWindow::new(usize::MAX, usize::MAX);
        assert!(run(&sizes, unbounded.clone(), (30, 30), false) < sizes.len());
        assert_eq!(run(&sizes, unbounded, (30, 30), true), sizes.len(), "reading while blocked suffices");
        let few = InFlightWindow::new(6, 1000);
        assert_eq!(run(&sizes, few, (30, 6 * REPLY_BYTES), false), sizes.len(), "and so do few requests");
    }

    #[test]
    fn who_has_received_all_that_is_due_waits_for_room_alone() {
        let mut window = InFlightWindow::new(10, 100);
        window.sent(1);
        assert_eq!(window.next(1, false, false), NextStep::AwaitRoomOrReply);
        window.received(REPLY_BYTES - 1);
        assert_eq!((window.next(1, false, false), window.due_bytes()), (NextStep::AwaitRoomOrReply, 1));
        window.received(1);
        assert_eq!(window.next(1, false, false), NextStep::AwaitRoom);
        window.sent(1);
        assert!(window.answered());
        assert_eq!(window.due_bytes(), REPLY_BYTES, "of the second request");
    }

    #[test]
    fn a_prefetch_waits_for_room_only_while_no_reply_is_due() {
        assert!(may_prefetch(0, true, || false));
        assert!(!may_prefetch(1, true, || false) && !may_prefetch(0, false, || false));
        assert!(may_prefetch(1, false, || true) && !may_prefetch(PREFETCHES_IN_FLIGHT_MAX, true, || true));
    }

    proptest! {
        /// Every request is answered, however small the buffers are.
        #[test]
        fn every_request_is_answered_whatever_the_buffers_hold(
            sizes in prop::collection::vec(1usize..200, 1..100),
            room in (1usize..300, 1usize..100),
            requests_max in 1usize..50,
            bytes_max in 1usize..500,
        ) {
            let window = InFlightWindow::new(requests_max, bytes_max);
            prop_assert_eq!(run(&sizes, window, room, true), sizes.len());
        }
    }
}
