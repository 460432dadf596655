//! The connection to one other node for steps of operations over several shards.
//!
//! One thread sends and receives, started on demand and ended when idle (`work_queue.rs`). It waits for no single reply
//! (`in_flight.rs`), and blocks only while it connects.

use super::in_flight::{Silence, StepsInFlight};
use super::work_queue::WorkQueue;
use super::{CALL_TIMEOUT, IDLE, Shared, open};
use crate::clock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_protocol::message::Message;
use weft_protocol::message::node::NodeRequest;
use weft_protocol::message::peer::PeerCall;
use weft_protocol::{Error, NodeId};
use weft_transport::{ControlConnection, LOOK_BEFORE_SLEEP, Result, TransportError};

/// Steps for one other node.
pub struct StepLine {
    queue: WorkQueue<PeerCall>,
    /// Eventfd, readable while steps are queued.
    wake: OwnedFd,
}

impl StepLine {
    /// Returns a line without a thread.
    pub fn new(to: NodeId) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { queue: WorkQueue::new(format!("steps-{to}"), 1, IDLE), wake })
    }

    /// Queues a step.
    pub fn send(self: &Arc<Self>, shared: &Arc<Shared>, to: NodeId, call: PeerCall) {
        let server = Server::new(Arc::clone(self), Arc::clone(shared), to);
        // Where no thread can be started, the shard sends its step again, and what is queued goes with it.
        self.queue.push(call, move || server.run());
        // The counter cannot overflow: it is reset with each take.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn take(&self) -> VecDeque<PeerCall> {
        // Reset before the queue is emptied: a later step writes the eventfd again.
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8][..]);
        self.queue.take()
    }
}

/// The thread of a line.
struct Server {
    line: Arc<StepLine>,
    shared: Arc<Shared>,
    to: NodeId,
    steps: StepsInFlight,
    connection: Option<ControlConnection>,
}

impl Server {
    fn new(line: Arc<StepLine>, shared: Arc<Shared>, to: NodeId) -> Self {
        Self { line, shared, to, steps: StepsInFlight::default(), connection: None }
    }

    fn run(mut self) {
        // The node may end while another one's reply is due.
        while self.shared.shards.strong_count() > 0 {
            let now_ms = clock::boot_ms();
            self.line.take().into_iter().for_each(|call| self.steps.add(call, now_ms));
            if !self.steps.is_empty() {
                self.serve();
            } else if !self.wait_for_steps() && self.line.queue.ends() {
                return;
            }
        }
    }

    /// Returns false if none was queued for [`IDLE`].
    fn wait_for_steps(&self) -> bool {
        poll(&mut [PollFd::new(&self.line.wake, PollFlags::IN)], Some(&time_of(IDLE))) != Ok(0)
    }

    /// One turn of the connection.
    fn serve(&mut self) {
        if self.connection.is_none() {
            match self.open() {
                Ok(connection) => {
                    self.connection = Some(connection);
                    self.steps.connected(clock::boot_ms());
                }
                Err(_) => return self.node_is_away(),
            }
        }
        match self.exchange() {
            Ok(Silence::Wait(wait_ms)) => self.wait(Duration::from_millis(wait_ms)),
            Ok(Silence::Ping(_)) => {}
            Ok(Silence::Away) => self.node_is_away(),
            Err(_) => {
                self.connection = None;
                let failed = self.steps.connection_broken();
                failed.iter().for_each(|call| self.shared.step_replied(call, Err(Error::Unreachable)));
            }
        }
    }

    fn open(&self) -> Result<ControlConnection> {
        let map = self.shared.cluster.map();
        let record = map.node(self.to).ok_or(TransportError::Refused(Error::Unreachable))?;
        open(&self.shared.cluster, record, CALL_TIMEOUT)
    }

    /// Sends what is queued, takes what has come, and judges the node's silence.
    fn exchange(&mut self) -> Result<Silence> {
        let connection = self.connection.as_mut().ok_or(TransportError::Refused(Error::Unreachable))?;
        connection.send_posted()?;
        // Sent first: a step counts as sent on a connection that the other side closes at once.
        while !connection.has_posted()
            && let Some((id, call)) = self.steps.next()
        {
            connection.post(id, &Message::Peer(call.clone()))?;
        }
        // Read before what has come is taken: what comes later is not silence.
        let now_ms = clock::boot_ms();
        while let Some((id, message)) = connection.receive_now()? {
            match (self.steps.received(id, now_ms), message) {
                (Some(call), Message::PeerReply(reply)) => self.shared.step_replied(&call, reply.result),
                (None, Message::PeerReply(_) | Message::NodeReply(_)) => {}
                _ => return Err(TransportError::Malformed),
            }
        }
        let silence = self.steps.silence(now_ms);
        if let Silence::Ping(id) = silence {
            connection.post(id, &Message::Node(NodeRequest::Ping))?;
        }
        Ok(silence)
    }

    /// Waits until there is something to send or to receive. Polls for a moment before it sleeps, as event loops do.
    fn wait(&self, time: Duration) {
        let Some(connection) = &self.connection else { return };
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, connection.has_posted());
        let mut polled = [PollFd::new(&self.line.wake, PollFlags::IN), PollFd::new(connection.socket(), wanted)];
        let began = Instant::now();
        while began.elapsed() < LOOK_BEFORE_SLEEP {
            if poll(&mut polled, Some(&time_of(Duration::ZERO))) != Ok(0) {
                return;
            }
            rustix::thread::sched_yield();
        }
        // An interrupted wait is one turn more.
        let _ = poll(&mut polled, Some(&time_of(time)));
    }

    fn node_is_away(&mut self) {
        tracing::debug!("node {} does not reply to steps", self.to);
        self.connection = None;
        self.steps.take_all().iter().for_each(|call| self.shared.step_replied(call, Err(Error::Unreachable)));
    }
}

fn time_of(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) }
}
