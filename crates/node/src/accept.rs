//! New connections: accepted by one thread, each proven by a thread of its own, then given to where they belong.
//!
//! A peer that says nothing, or nonsense, costs a thread for at most [`HANDSHAKE_MS_MAX`](weft_protocol::limits), and there
//! are at most [`HANDSHAKES_MAX`] of them.

use crate::clock;
use crate::data::DataConnection;
use crate::state::{AtomicCounters, Node, lock};
use rustix::event::{PollFd, PollFlags, poll};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weft_protocol::handshake::Purpose;
use weft_transport::{Socket, TransportError, accept};

/// Handshakes under way at once. More connections are closed at once; their clients try again.
const HANDSHAKES_MAX: usize = 256;
/// Stack of a connection's thread, bytes: it holds no data, and touches little of it.
const STACK_BYTES: usize = 256 << 10;

/// Accepts until the node stops.
pub fn run(node: &Arc<Node>, tcp: &TcpListener, unix: &UnixListener) {
    let handshakes = Arc::new(AtomicUsize::new(0));
    let mut next_loop = 0;
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
        let sockets = [
            tcp.accept().map(|(stream, _)| stream).and_then(Socket::from_tcp),
            unix.accept().map(|(stream, _)| Socket::from_unix(stream)),
        ];
        for socket in sockets.into_iter().flatten() {
            next_loop += 1;
            greet(node, socket, &handshakes, next_loop);
        }
    }
}

fn greet(node: &Arc<Node>, socket: Socket, handshakes: &Arc<AtomicUsize>, number: usize) {
    if handshakes.load(Ordering::Relaxed) >= HANDSHAKES_MAX {
        AtomicCounters::add(&node.counters.peers_rejected, 1);
        return;
    }
    handshakes.fetch_add(1, Ordering::Relaxed);
    let (node, under_way) = (Arc::clone(node), Arc::clone(handshakes));
    let thread = std::thread::Builder::new().name("connection".to_owned()).stack_size(STACK_BYTES);
    let spawned = thread.spawn(move || {
        let proven = accept(&socket, &node.key, node.config.node, node.config.identity, node.epoch());
        under_way.fetch_sub(1, Ordering::Relaxed);
        match proven {
            Ok(peer) if peer.purpose == Purpose::Data => serve_data(&node, &socket, &peer),
            Ok(peer) => {
                if let Some(mailbox) = node.loops.get(number % node.loops.len().max(1)) {
                    mailbox.adopt(socket, peer);
                }
            }
            Err(error) => {
                AtomicCounters::add(&node.counters.peers_rejected, 1);
                tracing::warn!("connection of {} refused: {error}", socket.peer_text());
            }
        }
    });
    if let Err(error) = spawned {
        handshakes.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!("connection refused: no thread: {error}");
    }
}

fn serve_data(node: &Arc<Node>, socket: &Socket, peer: &weft_transport::Peer) {
    let Some(server) = &node.store else { return };
    lock(&node.sessions).opened(peer.session, None);
    node.connections.fetch_add(1, Ordering::Relaxed);
    let result = DataConnection::new(node, &*server.store, socket, peer).serve();
    if matches!(result, Err(TransportError::Malformed)) {
        AtomicCounters::add(&node.counters.peers_rejected, 1);
        tracing::warn!("data connection of {} closed: malformed message", socket.peer_text());
    }
    node.connections.fetch_sub(1, Ordering::Relaxed);
    lock(&node.sessions).closed(peer.session, None, clock::boot_ms());
}
