//! The loop that serves control connections: one thread, epoll, no blocking call but the wait itself.
//!
//! It owns its connections. A request is decoded, handled by [`crate::dispatch`] on this very thread (no hop to the
//! shard: its lock is free nearly always), and all replies of one batch leave with one send. Other threads reach a
//! connection by its loop's [`Mailbox`].
//!
//! A peer that does not read its replies is not read from any more once [`OUTPUT_BYTES_MAX`] wait for it; it holds up
//! nobody else. A malformed message closes its connection and no more.

use crate::dispatch;
use crate::places::Place;
use crate::state::{AtomicCounters, Node, lock};
use crate::{clock, shards};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use weft_protocol::handshake::Purpose;
use weft_protocol::message::Message;
use weft_protocol::{codec, frame};
use weft_transport::{LOOK_BEFORE_SLEEP, Peer, Result, Socket, TransportError};

/// Bytes of replies that may wait for a peer before its requests are left unread.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Requests of one connection handled before the others have their turn and the replies leave: bounds what waits in
/// memory.
const REQUESTS_PER_TURN: usize = 64;
/// Bytes received with one call.
const INPUT_BYTES: usize = 64 << 10;
/// Events taken with one wait.
const EVENTS_MAX: usize = 128;
/// Longest sleep while sessions are known: how often their ends are looked for.
const SESSION_CHECK_MS: u64 = 1000;
/// The key of the loop's own eventfd.
const WAKE_KEY: u64 = u64::MAX;

/// Names a connection of a loop. Keys are not used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionRef {
    pub loop_index: usize,
    pub key: u64,
}

/// What other threads leave for a loop.
pub struct Mailbox {
    index: usize,
    wake: OwnedFd,
    /// Held for a push or a take.
    mail: Mutex<Vec<Mail>>,
}

enum Mail {
    Adopt(Box<(Socket, Peer, Place)>),
    Send {
        key: u64,
        id: u64,
        message: Message,
    },
    /// Look at the deadlines again, or at the wish to stop.
    Look,
}

impl Mailbox {
    /// A mailbox for the loop with this index.
    pub fn new(index: usize) -> io::Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { index, wake, mail: Mutex::new(Vec::new()) }))
    }

    /// Gives a connection whose handshake is done to the loop.
    pub fn adopt(&self, socket: Socket, peer: Peer, place: Place) {
        self.post(Mail::Adopt(Box::new((socket, peer, place))));
    }

    /// Sends a message on one of the loop's connections; dropped when the connection is gone.
    pub fn send(&self, key: u64, id: u64, message: Message) {
        self.post(Mail::Send { key, id, message });
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
            // The counter cannot overflow: it is written once per emptied queue. The loop reads it before the queue.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

/// One connection.
struct Connection {
    socket: Socket,
    peer: Arc<Peer>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// What epoll was asked to report.
    interest: epoll::EventFlags,
    /// Given back with the connection.
    _place: Place,
}

impl Connection {
    /// Whether there is room for more replies.
    fn may_go_on(&self) -> bool {
        self.output.len() < OUTPUT_BYTES_MAX
    }
}

/// Messages to be sent by the loop that runs now, or through the mailbox of another one.
pub struct Sink<'a> {
    node: &'a Node,
    loop_index: Option<usize>,
    local: Vec<(u64, u64, Message)>,
}

impl<'a> Sink<'a> {
    /// For threads that are no loop.
    pub fn remote(node: &'a Node) -> Self {
        Self { node, loop_index: None, local: Vec::new() }
    }

    /// Sends a message to a connection of any loop.
    pub fn send(&mut self, to: ConnectionRef, id: u64, message: Message) {
        if self.loop_index == Some(to.loop_index) {
            self.local.push((to.key, id, message));
        } else if let Some(mailbox) = self.node.loops.get(to.loop_index) {
            mailbox.send(to.key, id, message);
        }
    }
}

/// One loop's state. `run` is its thread.
pub struct EventLoop {
    node: Arc<Node>,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    next_key: u64,
    buffer: Vec<u8>,
    /// Connections with output to be flushed at the end of the batch.
    touched: Vec<u64>,
    /// Connections with requests in their input that wait for their next turn.
    backlog: Vec<u64>,
}

impl EventLoop {
    /// A loop for this mailbox.
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

    /// Serves until the node is asked to stop.
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
            let mut sink = Sink { node: &node, loop_index: Some(self.mailbox.index), local: Vec::new() };
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
                shards::tick(&node, &mut sink);
                node.refusals.log_untold(clock::boot_ms());
            }
            // What closing a connection brings about is sent too.
            while !sink.local.is_empty() || !self.touched.is_empty() {
                let messages = std::mem::take(&mut sink.local);
                self.deliver(messages, &mut sink);
            }
        }
    }

    /// Waits for events. Right after the last ones it looks for more before it sleeps, for a client that has its reply
    /// often asks again at once, and waking a sleeping core costs more than a request; others that can run go first. A
    /// loop that has nothing to do sleeps.
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

    /// How long the wait may last. Loop 0 looks after the clock of the whole node; without sessions nobody wakes up.
    fn timeout(&self) -> Option<Timespec> {
        if self.backlog.iter().any(|key| self.connections.get(key).is_none_or(Connection::may_go_on)) {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        if self.mailbox.index != 0 {
            return None;
        }
        let shards = shards::next_deadline(&self.node);
        let sessions = lock(&self.node.sessions).next_end_ms();
        let refusals = self.node.refusals.due_ms();
        let next = shards.into_iter().chain(sessions).chain(refusals).min()?;
        let wait = next.saturating_sub(clock::boot_ms()).clamp(1, SESSION_CHECK_MS);
        Some(Timespec { tv_sec: (wait / 1000).cast_signed(), tv_nsec: (wait % 1000 * 1_000_000).cast_signed() })
    }

    fn take_mail(&mut self, sink: &mut Sink<'_>) {
        // Read before the queue is taken: a post after the take writes again.
        let _ = rustix::io::read(&self.mailbox.wake, &mut [0u8; 8][..]);
        let mail = std::mem::take(&mut *lock(&self.mailbox.mail));
        for letter in mail {
            match letter {
                Mail::Adopt(connection) => self.adopt(*connection),
                Mail::Send { key, id, message } => sink.local.push((key, id, message)),
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
        lock(&self.node.sessions).opened(peer.session, self.recall_ref(key, &peer));
        self.node.connections.fetch_add(1, Ordering::Relaxed);
        let (peer, input, output) = (Arc::new(peer), Vec::new(), Vec::new());
        let connection = Connection { socket, peer, input, output, interest, _place: place };
        self.connections.insert(key, connection);
    }

    fn recall_ref(&self, key: u64, peer: &Peer) -> Option<ConnectionRef> {
        (peer.purpose == Purpose::Recall).then_some(ConnectionRef { loop_index: self.mailbox.index, key })
    }

    fn close(&mut self, key: u64, sink: &mut Sink<'_>) {
        // Dropping the socket takes it out of epoll: nobody else has its descriptor.
        let Some(connection) = self.connections.remove(&key) else { return };
        let recall = self.recall_ref(key, &connection.peer);
        let last = lock(&self.node.sessions).closed(connection.peer.session, recall, clock::boot_ms());
        self.node.connections.fetch_sub(1, Ordering::Relaxed);
        if last {
            shards::disconnected(&self.node, connection.peer.session, connection.socket.kind(), sink);
        }
    }

    /// One connection has something to read, or room for its output, or has ended.
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

    /// Closes a connection that has failed, and counts one that said what it may not.
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

    /// The next turn of the connections that had more requests than one turn allows.
    fn work_off(&mut self, sink: &mut Sink<'_>) {
        for key in std::mem::take(&mut self.backlog) {
            let from = ConnectionRef { loop_index: self.mailbox.index, key };
            let Some(connection) = self.connections.get_mut(&key) else { continue };
            if !connection.may_go_on() {
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

    /// Encodes messages onto their connections and sends what the kernels of their peers take.
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
        interest.set(epoll::EventFlags::IN, connection.may_go_on());
        interest.set(epoll::EventFlags::OUT, !connection.output.is_empty());
        if interest != connection.interest {
            connection.interest = interest;
            epoll::modify(&self.epoll, &connection.socket, epoll::EventData::new_u64(key), interest)?;
        }
        Ok(())
    }
}

/// What was done of the requests that had come.
struct Turn {
    /// Bytes of the requests that were handled.
    used: usize,
    /// There may be whole requests left.
    more: bool,
}

/// Handles the whole frames at the beginning of `bytes`, at most [`REQUESTS_PER_TURN`].
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
