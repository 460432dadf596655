//! Mailboxes of the event loops: how other threads reach a loop's connections.

use crate::locks::lock;
use crate::places::Place;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use weft_protocol::message::Message;
use weft_transport::{Peer, Socket};

/// Names a connection of a loop. Keys are never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionRef {
    pub loop_index: usize,
    pub key: u64,
}

/// Messages of other threads to one loop.
pub struct Mailbox {
    pub index: usize,
    /// Eventfd, readable while mail is pending.
    pub wake: OwnedFd,
    /// Held for one push or take.
    mail: Mutex<Vec<Mail>>,
}

/// A message to a loop.
pub enum Mail {
    Adopt(Box<(Socket, Peer, Place)>),
    Send {
        key: u64,
        id: u64,
        /// In a place of its own: the other mail is small.
        message: Box<Message>,
    },
    /// Check the deadlines and the shutdown request.
    Look,
}

impl Mailbox {
    /// Returns an empty mailbox for the loop with this index.
    pub fn new(index: usize) -> io::Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { index, wake, mail: Mutex::new(Vec::new()) }))
    }

    /// Wakes the loop.
    pub fn look(&self) {
        self.post(Mail::Look);
    }

    fn post(&self, mail: Mail) {
        let mut queue = lock(&self.mail);
        let first = queue.is_empty();
        queue.push(mail);
        drop(queue);
        if first {
            // The counter cannot overflow: it is written once per emptied queue, and reset by `take`.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Takes all mail and resets the eventfd.
    pub fn take(&self) -> Vec<Mail> {
        // Reset before the queue is emptied: a later post writes the eventfd again.
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8][..]);
        std::mem::take(&mut *lock(&self.mail))
    }
}

/// The mailboxes of all loops.
pub struct Loops(Vec<Arc<Mailbox>>);

impl Loops {
    /// Returns the mailboxes for `count` loops, at least one.
    pub fn new(count: usize) -> io::Result<Self> {
        Ok(Self((0..count.max(1)).map(Mailbox::new).collect::<io::Result<_>>()?))
    }

    /// All mailboxes.
    pub fn all(&self) -> &[Arc<Mailbox>] {
        &self.0
    }

    /// Hands over an authenticated connection, to a loop chosen by its number.
    pub fn adopt(&self, number: usize, socket: Socket, peer: Peer, place: Place) {
        if let Some(mailbox) = self.0.get(number % self.0.len()) {
            mailbox.post(Mail::Adopt(Box::new((socket, peer, place))));
        }
    }
}

/// Sends messages, by the loop that runs on this thread or through the mailbox of another one.
pub struct Sink<'a> {
    loops: &'a Loops,
    loop_index: Option<usize>,
    local: Vec<(u64, u64, Message)>,
}

impl<'a> Sink<'a> {
    /// Returns the sink of a loop's own thread.
    pub fn local(loops: &'a Loops, loop_index: usize) -> Self {
        Self { loops, loop_index: Some(loop_index), local: Vec::new() }
    }

    /// Returns a sink for other threads.
    pub fn remote(loops: &'a Loops) -> Self {
        Self { loops, loop_index: None, local: Vec::new() }
    }

    /// Sends a message on a connection of any loop; dropped if the connection was closed.
    pub fn send(&mut self, to: ConnectionRef, id: u64, message: Message) {
        if self.loop_index == Some(to.loop_index) {
            self.local.push((to.key, id, message));
        } else if let Some(mailbox) = self.loops.0.get(to.loop_index) {
            mailbox.post(Mail::Send { key: to.key, id, message: Box::new(message) });
        }
    }

    /// Queues a message for a connection of this sink's own loop.
    pub fn push(&mut self, key: u64, id: u64, message: Message) {
        self.local.push((key, id, message));
    }

    /// Takes the messages for the loop's own connections: key, identifier, message.
    pub fn take_local(&mut self) -> Vec<(u64, u64, Message)> {
        std::mem::take(&mut self.local)
    }
}
