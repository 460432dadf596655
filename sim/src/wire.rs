//! The bytes of one data connection: a bounded buffer in each direction.
//!
//! The node's thread of a connection serves one request at a time. It reads the bytes of the next one when it has none,
//! and blocks in the send of a reply until the client has read what is in its way. A client sends and reads as
//! production does ([`weft_protocol::InFlightWindow`], [`weft_protocol::may_prefetch`]). If it waits for room alone
//! while the node's thread waits for it to read, neither ever goes on: the world ends the run (`world/flow.rs`).
//!
//! In some runs the buffers are so small that a request or two fill them, in the others they never fill.
//!
//! Not here: delays, and what a request does.

use crate::object_file::Descriptor;
use crate::process::Ticket;
use crate::random::Random;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use weft_protocol::data::{REPLY_BYTES, REQUEST_BYTES};

/// Largest small buffers: two requests, some replies.
const TO_NODE_BYTES_MAX: u64 = 2 * REQUEST_BYTES as u64;
const TO_CLIENT_BYTES_MAX: u64 = 4 * REPLY_BYTES as u64;

/// A direction, by the number of its bytes that were not read.
#[derive(Debug)]
struct Direction {
    room: usize,
    filled: Cell<usize>,
}

impl Direction {
    fn new(room: usize) -> Self {
        Self { room, filled: Cell::new(0) }
    }

    fn left(&self) -> usize {
        self.room.saturating_sub(self.filled.get())
    }

    fn add(&self, bytes: usize) {
        self.filled.set(self.filled.get() + bytes);
    }

    fn remove(&self, bytes: usize) {
        self.filled.set(self.filled.get().saturating_sub(bytes));
    }
}

/// See the module.
#[derive(Debug)]
pub struct Wire {
    to_node: Direction,
    to_client: Direction,
    /// Unread bytes of each request that was sent as a whole, and of the one that is being sent.
    unread: RefCell<VecDeque<usize>>,
    partial: Cell<usize>,
    /// The node's thread serves a request.
    is_serving: Cell<bool>,
    /// The node's thread waits for room to send.
    is_blocked: Cell<bool>,
    /// The client waits for room to send, and reads nothing.
    sends_only: Cell<bool>,
    /// The client waits for room to send, and perhaps for a reply.
    wants_room: Cell<bool>,
    /// The client reads the reply to this request.
    reading: Cell<Option<Ticket>>,
    /// The connection broke, or its client gave it up: sends end at once.
    is_closed: Cell<bool>,
    /// A descriptor that goes with a reply.
    passed: RefCell<Option<Descriptor>>,
}

/// Small buffers, by a number: the bytes of that to the node and of that to the client.
pub fn small_buffers(number: u64) -> Vec<u64> {
    let mut random = Random::new(number ^ 0xb0ff);
    [TO_NODE_BYTES_MAX, TO_CLIENT_BYTES_MAX].map(|max| 1 + random.below(max)).to_vec()
}

impl Wire {
    /// A connection, with the bytes of its buffers to the node and to the client; `None`: they never fill.
    pub fn new(room: Option<(usize, usize)>) -> Self {
        let (to_node, to_client) = room.unwrap_or((usize::MAX, usize::MAX));
        Self {
            to_node: Direction::new(to_node),
            to_client: Direction::new(to_client),
            unread: RefCell::default(),
            partial: Cell::new(0),
            is_serving: Cell::new(false),
            is_blocked: Cell::new(false),
            sends_only: Cell::new(false),
            wants_room: Cell::new(false),
            reading: Cell::new(None),
            is_closed: Cell::new(false),
            passed: RefCell::default(),
        }
    }

    /// The client sends bytes of a request, as many as there is room for now. Returns how many.
    pub fn send(&self, bytes: usize) -> usize {
        let count = if self.is_closed.get() { bytes } else { bytes.min(self.to_node.left()) };
        self.to_node.add(count);
        self.partial.set(self.partial.get() + count);
        self.read_partial();
        count
    }

    /// A descriptor goes with the reply.
    pub fn pass(&self, descriptor: Descriptor) {
        self.passed.replace(Some(descriptor));
    }

    /// Takes the descriptor that came with a reply.
    pub fn take_passed(&self) -> Option<Descriptor> {
        self.passed.take()
    }

    /// All bytes of the request were sent.
    pub fn sent_all(&self) {
        self.unread.borrow_mut().push_back(self.partial.replace(0));
    }

    /// Returns true if the connection takes so many bytes now.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.is_closed.get() || self.to_node.left() >= bytes || self.is_idle()
    }

    /// The client begins to wait for room; `alone`: it reads no reply meanwhile.
    pub fn await_room(&self, alone: bool) {
        self.wants_room.set(true);
        self.sends_only.set(alone);
    }

    /// The client has room, or goes on otherwise.
    pub fn go_on(&self) {
        self.wants_room.set(false);
        self.sends_only.set(false);
    }

    /// The client reads the reply to this request from now on, or none. Returns true if the node's thread waits for it.
    pub fn read(&self, reply: Option<Ticket>) -> bool {
        self.reading.set(reply);
        reply.is_some() && self.is_blocked.get()
    }

    /// The client has read a reply of so many bytes. Returns true if the node's thread waits for room.
    pub fn took(&self, bytes: usize) -> bool {
        self.to_client.remove(bytes);
        self.is_blocked.get()
    }

    /// The connection is of no more use. Returns true if the node's thread waits for room.
    pub fn close(&self) -> bool {
        self.passed.take();
        self.is_closed.set(true);
        self.is_blocked.get()
    }

    /// The node's thread neither serves a request nor has one to read as a whole.
    fn is_idle(&self) -> bool {
        !self.is_serving.get() && self.unread.borrow().is_empty()
    }

    /// An idle thread reads what has come of the next request.
    fn read_partial(&self) {
        if self.is_idle() {
            self.to_node.remove(self.partial.replace(0));
        }
    }

    /// Whether the node's thread serves a request.
    pub fn is_serving(&self) -> bool {
        self.is_serving.get()
    }

    /// The node's thread begins the next request, which has come. Returns true if the client waits for the room.
    pub fn begin(&self) -> bool {
        self.is_serving.set(true);
        let bytes = self.unread.borrow_mut().pop_front();
        self.to_node.remove(bytes.unwrap_or(0));
        self.wants_room.get()
    }

    /// The node's thread sends a reply of so many bytes. Returns false if it blocks.
    pub fn reply(&self, to: Ticket, bytes: usize) -> bool {
        let goes = self.is_closed.get() || self.to_client.left() >= bytes || self.reading.get() == Some(to);
        self.is_blocked.set(!goes);
        if goes {
            self.to_client.add(bytes);
        }
        goes
    }

    /// The node's thread has served a request. Returns true if the client waits for room.
    pub fn end(&self) -> bool {
        self.is_serving.set(false);
        self.is_blocked.set(false);
        self.read_partial();
        self.wants_room.get()
    }

    /// Whether client and node wait for each other, with the bytes that each of them leaves unread.
    pub fn deadlock(&self) -> Option<(usize, usize)> {
        let waits = self.is_blocked.get() && self.sends_only.get() && !self.is_closed.get();
        waits.then(|| (self.to_node.filled.get(), self.to_client.filled.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(to_node: usize, to_client: usize) -> Wire {
        Wire { to_node: Direction::new(to_node), to_client: Direction::new(to_client), ..Wire::new(None) }
    }

    #[test]
    fn a_client_that_only_sends_and_a_node_that_only_replies_wait_for_each_other() {
        let wire = wire(100, 50);
        assert_eq!(wire.send(120), 100, "an idle thread reads what has come");
        assert_eq!(wire.send(20), 20);
        wire.sent_all();
        assert!(!wire.begin() && wire.reply(Ticket(1), 40) && !wire.end());
        assert_eq!((wire.send(90), wire.send(30)), (90, 30));
        wire.sent_all();
        assert!(!wire.begin() && !wire.reply(Ticket(2), 40), "the first reply is in the way");
        assert_eq!(wire.send(120), 100);
        wire.await_room(false);
        assert_eq!(wire.deadlock(), None, "it reads, too");
        wire.await_room(true);
        assert_eq!(wire.deadlock(), Some((100, 40)));
        assert!(wire.took(40) && wire.reply(Ticket(2), 40) && wire.end());
        assert!(wire.has_room(20) && wire.deadlock().is_none());
    }

    #[test]
    fn a_reply_that_is_larger_than_the_buffer_passes_while_it_is_read() {
        let wire = wire(200, 10);
        wire.send(120);
        wire.sent_all();
        assert!(!wire.begin() && !wire.reply(Ticket(1), 40));
        assert!(wire.read(Some(Ticket(1))) && wire.reply(Ticket(1), 40));
    }
}
