//! The recall connections of a session: one to each node that may grant leases, and how the listener learns of them.

use crate::block_on::lock;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weft_protocol::{NodeId, Result, SessionId};
use weft_transport::before_wait::{Waiting, before_wait};
use weft_transport::{ControlConnection, Socket, TransportError};

/// A recall connection.
pub(crate) struct Listened {
    pub node: NodeId,
    pub session: SessionId,
    pub connection: Arc<Mutex<ControlConnection>>,
    /// A descriptor of the same socket, to wait on without the lock.
    pub socket: Socket,
    /// Cleared when the connection is of no more use.
    pub live: Arc<AtomicBool>,
    /// When each of the renewals in flight was sent, the oldest first.
    pub renewals_sent_ms: VecDeque<u64>,
}

/// Rest of a caller who waits for another one to connect. Connecting takes about as long.
const TURN_REST: Duration = Duration::from_millis(1);

/// A node whose recalls are listened to.
#[derive(Default)]
struct Attended {
    /// Somebody connects, which may take long: a second caller waits instead of making a second connection.
    connecting: AtomicBool,
    live: Mutex<Option<Arc<AtomicBool>>>,
}

impl Attended {
    fn is_live(&self) -> bool {
        lock(&self.live).as_ref().is_some_and(|live| live.load(Ordering::Acquire))
    }

    /// Waits for this caller's turn to connect, unless `check` fails meanwhile.
    fn turn(&self, check: impl Fn() -> Result<()>) -> Result<Turn<'_>> {
        while self.connecting.swap(true, Ordering::AcqRel) {
            check()?;
            before_wait(Waiting::Sleeps);
            std::thread::sleep(TURN_REST);
        }
        Ok(Turn(&self.connecting))
    }
}

/// A caller's turn to connect; over when it is dropped.
struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// See the module. Lock order: `attended`, a node's `live`, `new`; all are leaves to others.
pub(crate) struct RecallConnections {
    wake: Arc<OwnedFd>,
    /// Nodes whose recalls are listened to.
    attended: Mutex<HashMap<NodeId, Arc<Attended>>>,
    new: Mutex<Vec<Listened>>,
    /// Leases are to be given back before the next renewal.
    soon: Arc<AtomicBool>,
    /// The session is to be renewed at once.
    renewal: AtomicBool,
    stopping: Arc<AtomicBool>,
}

impl RecallConnections {
    /// None yet.
    pub fn new() -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (soon, renewal, stopping) = (Arc::default(), AtomicBool::new(false), Arc::default());
        Ok(Self { wake, attended: Mutex::default(), new: Mutex::default(), soon, renewal, stopping })
    }

    /// What the listener waits on beside the connections, and what tells it to end.
    pub fn signals(&self) -> (Arc<OwnedFd>, Arc<AtomicBool>) {
        (Arc::clone(&self.wake), Arc::clone(&self.stopping))
    }

    /// Wakes the listener.
    pub fn wake(&self) {
        // An eventfd refuses a write only when 2^64 - 1 wake-ups are pending.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Has leases given back in a moment. Wakes the listener, unless it knows already.
    pub fn release_soon(&self) {
        if !self.soon.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Has the session renewed at once. Wakes the listener.
    pub fn renew_soon(&self) {
        self.renewal.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Takes the request for a renewal at once, if there is one.
    pub fn take_renewal(&self) -> bool {
        self.renewal.swap(false, Ordering::SeqCst)
    }

    /// Returns true if leases are to be given back in a moment.
    pub fn is_release_soon(&self) -> bool {
        self.soon.load(Ordering::Acquire)
    }

    /// The moment has come. What is queued from here on wakes the listener again.
    pub fn release_begins(&self) {
        self.soon.store(false, Ordering::SeqCst);
    }

    /// Ends the listener and the worker.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// Connections made since the last call.
    pub fn take_new(&self) -> Vec<Listened> {
        std::mem::take(&mut lock(&self.new))
    }

    /// Makes sure that recalls of a node are listened to. `check` fails if the caller is not to wait for the node.
    pub fn attend(
        &self,
        (node, session): (NodeId, SessionId),
        check: impl Fn() -> Result<()>,
        connect: impl FnOnce() -> Result<Socket>,
    ) -> Result<()> {
        let one = Arc::clone(lock(&self.attended).entry(node).or_default());
        if one.is_live() {
            return Ok(());
        }
        let _turn = one.turn(check)?;
        if one.is_live() {
            return Ok(());
        }
        let connected = connect()?;
        let socket = connected.try_clone().map_err(TransportError::Io)?;
        let live = Arc::new(AtomicBool::new(true));
        let connection = Arc::new(Mutex::new(ControlConnection::new(connected)));
        let attended = lock(&self.attended);
        if !attended.get(&node).is_some_and(|now| Arc::ptr_eq(now, &one)) {
            // The session has ended meanwhile: what the caller is granted is void, and it notices.
            return Ok(());
        }
        *lock(&one.live) = Some(Arc::clone(&live));
        lock(&self.new).push(Listened { node, session, connection, socket, live, renewals_sent_ms: VecDeque::new() });
        drop(attended);
        self.wake();
        Ok(())
    }

    /// The session is over: its recall connections are not used any more.
    pub fn forget_all(&self) {
        for (_, one) in lock(&self.attended).drain() {
            if let Some(live) = &*lock(&one.live) {
                live.store(false, Ordering::Release);
            }
        }
        self.wake();
    }
}

impl Drop for RecallConnections {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn was_woken(connections: &RecallConnections) -> bool {
        rustix::io::read(&*connections.wake, &mut [0u8; 8][..]).is_ok()
    }

    #[test]
    fn the_listener_is_woken_once_for_all_leases_of_a_moment() {
        let connections = RecallConnections::new().unwrap();
        for _ in 0..3 {
            connections.release_soon();
        }
        assert!(was_woken(&connections) && connections.is_release_soon());
        connections.release_soon();
        assert!(!was_woken(&connections), "it waits for the moment already");
        connections.release_begins();
        assert!(!connections.is_release_soon());
        connections.release_soon();
        assert!(was_woken(&connections));
    }
}
