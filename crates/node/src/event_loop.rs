//! The loop that serves control connections: one thread with epoll that blocks only in its wait.
//!
//! It owns its connections. [`crate::dispatch`] handles each request on this thread (no hop to the shard, whose lock is
//! rarely contended), and all replies of one batch leave with one send. Other threads reach a connection through the
//! loop's [`Mailbox`].
//!
//! The loop stops reading from a peer that has [`OUTPUT_BYTES_MAX`] of replies pending; the others are not delayed. A
//! malformed message closes only its own connection.

use crate::clock;
use crate::counters::AtomicCounters;
use crate::dispatch;
use crate::mailbox::{ConnectionRef, Mail, Mailbox, Sink};
use crate::places::Place;
use crate::state::Node;
use rustix::event::{Timespec, epoll};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use weft_protocol::handshake::Purpose;
use weft_protocol::message::Message;
use weft_protocol::{codec, frame};
use weft_transport::{LOOK_BEFORE_SLEEP, Peer, Result, Socket, TransportError};

/// Bytes of replies pending for a peer at which the loop stops reading its requests.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Maximum number of requests of one connection handled before the other connections are served and the replies are
/// sent: bounds the memory for pending replies.
const REQUESTS_PER_TURN: usize = 64;
/// Buffer size of one receive.
const INPUT_BYTES: usize = 64 << 10;
/// Maximum number of events per wait.
const EVENTS_MAX: usize = 128;
/// Longest sleep while sessions are known: how often ended sessions are checked for.
const SESSION_CHECK_MS: u64 = 1000;
/// The key of the loop's own eventfd.
const WAKE_KEY: u64 = u64::MAX;

/// One connection.
struct Connection {
    socket: Socket,
    peer: Arc<Peer>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Events registered with epoll.
    interest: epoll::EventFlags,
    /// Released with the connection.
    _place: Place,
}

impl Connection {
    /// Returns true if the output has room for more replies.
    fn has_room(&self) -> bool {
        self.output.len() < OUTPUT_BYTES_MAX
    }
}

/// A loop; `run` is its thread.
pub struct EventLoop {
    node: Arc<Node>,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    next_key: u64,
    buffer: Vec<u8>,
    /// Connections with output to send at the end of the batch.
    touched: Vec<u64>,
    /// Connections with complete requests left in their input.
    backlog: Vec<u64>,
}

impl EventLoop {
    /// Returns a loop for this mailbox.
    pub fn new(node: Arc<Node>, mailbox: Arc<Mailbox>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &mailbox.wake, epoll::EventData::new_u64(WAKE_KEY), epoll::EventFlags::IN)?;
        Ok(Self {
            node,
            mailbox,
            epoll,
            connections: HashMap::new(),
            next_key: 0,
            buffer: vec![0; INPUT_BYTES],
            touched: Vec::new(),
            backlog: Vec::new(),
        })
    }

    /// Serves until the node stops.
    pub fn run(mut self) {
        let node = Arc::clone(&self.node);
        let mut ready = Vec::with_capacity(EVENTS_MAX);
        let mut served = None;
        while !node.stopping.asked() {
            match self.wait(&mut ready, served) {
                Ok(()) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => {
                    tracing::error!("epoll: {errno}");
                    node.stopping.ask();
                    return;
                }
            }
            served = (!ready.is_empty()).then(Instant::now);
            let mut sink = Sink::local(&node.loops, self.mailbox.index);
            self.work_off(&mut sink);
            let mut woken = ready.is_empty();
            for event in &ready {
                let (key, flags) = (event.data.u64(), event.flags);
                if key == WAKE_KEY {
                    woken = true;
                } else {
                    self.serve(key, flags, &mut sink);
                }
            }
            if woken {
                self.take_mail(&mut sink);
            }
            if self.mailbox.index == 0 {
                node.shards.tick(&mut sink);
                node.members.tick(clock::boot_ms());
                node.refusals.log_untold(clock::boot_ms());
            }
            // Repeats, since a send that fails closes its connection, which can cause further messages.
            loop {
                let messages = sink.take_local();
                if messages.is_empty() && self.touched.is_empty() {
                    break;
                }
                self.deliver(messages, &mut sink);
            }
        }
    }

    /// Waits for events. After a batch it polls for a moment before it sleeps: a client often sends its next request
    /// right after the reply, and waking a sleeping core costs more than a request. It yields to other threads.
    fn wait(&self, ready: &mut Vec<epoll::Event>, served: Option<Instant>) -> rustix::io::Result<()> {
        ready.clear();
        if let Some(served) = served {
            while served.elapsed() < LOOK_BEFORE_SLEEP {
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(ready), Some(&now))? > 0 {
                    return Ok(());
                }
                rustix::thread::sched_yield();
            }
        }
        let timeout = self.timeout();
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(ready), timeout.as_ref()).map(|_| ())
    }

    /// Returns the timeout of the wait. Loop 0 serves the deadlines of the whole node.
    fn timeout(&self) -> Option<Timespec> {
        if self.backlog.iter().any(|key| self.connections.get(key).is_none_or(Connection::has_room)) {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        if self.mailbox.index != 0 {
            return None;
        }
        let shards = self.node.shards.next_due();
        let sessions = self.node.sessions.next_end_ms();
        let (refusals, members) = (self.node.refusals.due_ms(), self.node.members.next_due());
        let now_ms = clock::boot_ms();
        let soon = shards.into_iter().chain(sessions).chain(refusals).chain(members).min();
        let soon = soon.map(|next| next.saturating_sub(now_ms).clamp(1, SESSION_CHECK_MS));
        let collection = self.node.shards.collection_due().map(|next| next.saturating_sub(now_ms).max(1));
        let wait = soon.into_iter().chain(collection).min()?;
        Some(Timespec { tv_sec: (wait / 1000).cast_signed(), tv_nsec: (wait % 1000 * 1_000_000).cast_signed() })
    }

    fn take_mail(&mut self, sink: &mut Sink<'_>) {
        for letter in self.mailbox.take() {
            match letter {
                Mail::Adopt(connection) => self.adopt(*connection),
                Mail::Send { key, id, message } => sink.push(key, id, *message),
                Mail::Look => {}
            }
        }
    }

    fn adopt(&mut self, (socket, peer, place): (Socket, Peer, Place)) {
        let key = self.next_key;
        self.next_key += 1;
        let interest = epoll::EventFlags::IN;
        if let Err(errno) = epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(key), interest) {
            tracing::warn!("connection of {} dropped: epoll: {errno}", socket.peer_text());
            return;
        }
        self.node.sessions.opened(peer.session, self.recall_ref(key, &peer));
        self.node.connections.fetch_add(1, Ordering::Relaxed);
        let (peer, input, output) = (Arc::new(peer), Vec::new(), Vec::new());
        let connection = Connection { socket, peer, input, output, interest, _place: place };
        self.connections.insert(key, connection);
    }

    fn recall_ref(&self, key: u64, peer: &Peer) -> Option<ConnectionRef> {
        (peer.purpose == Purpose::Recall).then_some(ConnectionRef { loop_index: self.mailbox.index, key })
    }

    fn close(&mut self, key: u64, sink: &mut Sink<'_>) {
        // Dropping the socket removes it from epoll: its descriptor has no duplicate.
        let Some(connection) = self.connections.remove(&key) else { return };
        let recall = self.recall_ref(key, &connection.peer);
        let last = self.node.sessions.closed(connection.peer.session, recall, clock::boot_ms());
        self.node.connections.fetch_sub(1, Ordering::Relaxed);
        if last {
            self.node.shards.disconnected(connection.peer.session, connection.socket.kind(), sink);
        }
    }

    /// Handles an event of a connection: readable, writable, or closed.
    fn serve(&mut self, key: u64, flags: epoll::EventFlags, sink: &mut Sink<'_>) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.touched.push(key);
        }
        if !flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            return;
        }
        if let Err(error) = self.read(key, sink) {
            self.failed(key, &error, sink);
        }
    }

    /// Closes a connection that failed, and counts protocol violations.
    fn failed(&mut self, key: u64, error: &TransportError, sink: &mut Sink<'_>) {
        if matches!(error, TransportError::Malformed) {
            AtomicCounters::add(&self.node.counters.peers_rejected, 1);
            if let Some(connection) = self.connections.get(&key) {
                let peer = connection.socket.peer_text();
                self.node.log_refusal(format_args!("connection of {peer} closed: malformed message"));
            }
        }
        self.close(key, sink);
    }

    /// Serves the connections that had more requests than [`REQUESTS_PER_TURN`].
    fn work_off(&mut self, sink: &mut Sink<'_>) {
        for key in std::mem::take(&mut self.backlog) {
            let from = ConnectionRef { loop_index: self.mailbox.index, key };
            let Some(connection) = self.connections.get_mut(&key) else { continue };
            if !connection.has_room() {
                self.backlog.push(key);
                continue;
            }
            let result = handle_frames(&self.node, &connection.peer, from, &connection.input, sink).map(|turn| {
                connection.input.drain(..turn.used);
                if turn.more {
                    self.backlog.push(key);
                }
            });
            if let Err(error) = result {
                self.failed(key, &error, sink);
            }
        }
    }

    fn read(&mut self, key: u64, sink: &mut Sink<'_>) -> Result<()> {
        if self.backlog.contains(&key) {
            return Ok(());
        }
        let Some(connection) = self.connections.get_mut(&key) else { return Ok(()) };
        let Some(count) = connection.socket.receive_now(&mut self.buffer)? else { return Ok(()) };
        let received = self.buffer.get(..count).unwrap_or_default();
        let peer = Arc::clone(&connection.peer);
        let from = ConnectionRef { loop_index: self.mailbox.index, key };
        let turn = if connection.input.is_empty() {
            let turn = handle_frames(&self.node, &peer, from, received, sink)?;
            connection.input.extend_from_slice(received.get(turn.used..).unwrap_or_default());
            turn
        } else {
            connection.input.extend_from_slice(received);
            let turn = handle_frames(&self.node, &peer, from, &connection.input, sink)?;
            connection.input.drain(..turn.used);
            turn
        };
        if turn.more {
            self.backlog.push(key);
        }
        Ok(())
    }

    /// Appends messages to their connections' output, and sends as much as the sockets accept.
    fn deliver(&mut self, messages: Vec<(u64, u64, Message)>, sink: &mut Sink<'_>) {
        for (key, id, message) in messages {
            let Some(connection) = self.connections.get_mut(&key) else { continue };
            if connection.output.is_empty() {
                self.touched.push(key);
            }
            frame::append(&mut connection.output, id, &message);
        }
        for key in std::mem::take(&mut self.touched) {
            if self.send_output(key).is_err() {
                self.close(key, sink);
            }
        }
    }

    fn send_output(&mut self, key: u64) -> Result<()> {
        let Some(connection) = self.connections.get_mut(&key) else { return Ok(()) };
        if !connection.output.is_empty() {
            let sent = connection.socket.send_now(&connection.output)?;
            if sent == connection.output.len() {
                connection.output.clear();
            } else {
                connection.output.drain(..sent);
            }
        }
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::IN, connection.has_room());
        interest.set(epoll::EventFlags::OUT, !connection.output.is_empty());
        if interest != connection.interest {
            connection.interest = interest;
            epoll::modify(&self.epoll, &connection.socket, epoll::EventData::new_u64(key), interest)?;
        }
        Ok(())
    }
}

/// Progress of [`handle_frames`].
struct Turn {
    /// Bytes of the handled requests.
    used: usize,
    /// Complete requests may be left.
    more: bool,
}

/// Handles the complete frames at the beginning of `bytes`, at most [`REQUESTS_PER_TURN`].
fn handle_frames(node: &Node, peer: &Peer, from: ConnectionRef, bytes: &[u8], sink: &mut Sink<'_>) -> Result<Turn> {
    let mut used = 0;
    for _ in 0..REQUESTS_PER_TURN {
        let rest = bytes.get(used..).unwrap_or_default();
        let Some(frame) = frame::split(rest).map_err(|_| TransportError::Malformed)? else {
            return Ok(Turn { used, more: false });
        };
        let message = codec::from_bytes(frame.body).map_err(|_| TransportError::Malformed)?;
        used += frame.bytes();
        dispatch::handle(node, peer, from, frame.id, message, sink)?;
    }
    Ok(Turn { used, more: used < bytes.len() })
}
