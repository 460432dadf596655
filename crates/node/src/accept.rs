//! New connections: one thread accepts them, a thread each authenticates them and hands them to their loop or serves
//! their data requests.
//!
//! A silent or malicious peer occupies a thread for at most [`HANDSHAKE_MS_MAX`](weft_protocol::limits). At
//! [`HANDSHAKES_MAX`] of them the oldest is shut down: an honest handshake takes a few round trips, so peers without a
//! key that stall theirs do not lock out others.

use crate::clock;
use crate::counters::AtomicCounters;
use crate::data::DataConnection;
use crate::fencing::connections::Registered;
use crate::locks::lock;
use crate::mailbox::Sink;
use crate::state::Node;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weft_protocol::Error;
use weft_protocol::handshake::Purpose;
use weft_transport::{DataEnd, Listener, Peer, Socket, TransportError, accept};

/// Maximum number of handshakes in progress.
const HANDSHAKES_MAX: usize = 256;
/// Delay after an accept that failed for lack of descriptors or memory.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Stack size of a connection's thread, bytes. It holds no data.
const STACK_BYTES: usize = 256 << 10;

/// Accepts until the node stops.
pub fn run(node: &Arc<Node>, tcp: &Listener, unix: &UnixListener) {
    let handshakes = Arc::new(Handshakes::default());
    let mut number = 0;
    while !node.stopping.asked() {
        let mut ready = [PollFd::new(tcp, PollFlags::IN), PollFd::new(unix, PollFlags::IN)];
        if let Err(errno) = poll(&mut ready, None)
            && errno != rustix::io::Errno::INTR
        {
            tracing::error!("poll: {errno}");
            return;
        }
        if node.stopping.asked() {
            return;
        }
        let sockets = [tcp.accept(), unix.accept().map(|(stream, _)| Socket::from_unix(stream))];
        for socket in sockets {
            match socket {
                Ok(socket) => {
                    number += 1;
                    greet(node, socket, &handshakes, number);
                }
                // Only the other listener was ready, or the peer has disconnected.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    std::thread::sleep(ACCEPT_REST);
                }
            }
        }
    }
}

/// Sockets with a handshake in progress and the numbers of their connections, oldest first.
#[derive(Default)]
struct Handshakes(Mutex<VecDeque<(usize, Socket)>>);

impl Handshakes {
    fn begin(&self, number: usize, socket: Socket) {
        let mut under_way = lock(&self.0);
        if under_way.len() >= HANDSHAKES_MAX
            && let Some((_, oldest)) = under_way.pop_front()
        {
            // Its thread's receive fails.
            oldest.shutdown();
        }
        under_way.push_back((number, socket));
    }

    fn end(&self, number: usize) {
        lock(&self.0).retain(|(other, _)| *other != number);
    }
}

fn greet(node: &Arc<Node>, socket: Socket, handshakes: &Arc<Handshakes>, number: usize) {
    match socket.try_clone() {
        Ok(handle) => handshakes.begin(number, handle),
        Err(error) => {
            tracing::warn!("connection refused: {error}");
            return;
        }
    }
    let (node, under_way) = (Arc::clone(node), Arc::clone(handshakes));
    let thread = std::thread::Builder::new().name("connection".to_owned()).stack_size(STACK_BYTES);
    let spawned = thread.spawn(move || {
        let cluster = &node.cluster;
        let (mut place, mut registered) = (None, None);
        let admit = |peer: &Peer, connection| {
            node.revoked.check(&peer.key_name)?;
            if peer.session.is_group() {
                return Err(Error::Invalid);
            }
            place = Some(node.places.take(peer)?);
            let server = node.data.as_ref().filter(|_| peer.purpose == Purpose::Data);
            registered = server.map(|server| server.fencing.connections().register(peer.session, connection));
            Ok(())
        };
        let proven = accept(&socket, &cluster.key, cluster.node, cluster.identity, cluster.epoch(), admit);
        under_way.end(number);
        match (proven, place) {
            // The place is released when the connection ends.
            (Ok(peer), Some(_place)) if peer.purpose == Purpose::Data => {
                let Some(registered) = registered else { return };
                serve_data(&node, &Arc::new(socket), &peer, &registered);
            }
            (Ok(peer), Some(place)) => node.loops.adopt(number, socket, peer, place),
            (Err(TransportError::Refused(Error::Busy)), _) => {
                let peer = socket.peer_text();
                node.log_refusal(format_args!("connection of {peer} refused: too many connections"));
            }
            (Ok(_), None) => {}
            (Err(error), _) => {
                AtomicCounters::add(&node.counters.peers_rejected, 1);
                node.log_refusal(format_args!("connection of {} refused: {error}", socket.peer_text()));
            }
        }
    });
    if let Err(error) = spawned {
        handshakes.end(number);
        tracing::warn!("connection refused: no thread: {error}");
    }
}

fn serve_data(node: &Arc<Node>, socket: &Arc<Socket>, peer: &Peer, registered: &Registered) {
    let Some(server) = &node.data else { return };
    socket.tune_for_data(DataEnd::Server);
    node.sessions.opened(peer.session, None);
    node.connections.fetch_add(1, Ordering::Relaxed);
    let result = DataConnection::new(server, socket, peer, registered).serve();
    if matches!(result, Err(TransportError::Malformed)) {
        AtomicCounters::add(&node.counters.peers_rejected, 1);
        let peer = socket.peer_text();
        node.log_refusal(format_args!("data connection of {peer} closed: malformed message"));
    }
    node.connections.fetch_sub(1, Ordering::Relaxed);
    if node.sessions.closed(peer.session, None, clock::boot_ms()) {
        node.shards.disconnected(peer.session, socket.kind(), &mut Sink::remote(&node.loops));
    }
}
