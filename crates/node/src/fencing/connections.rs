//! The data connections of each session, and the gate of each.
//!
//! A client that gives up a write without knowing its outcome revokes the connection before it sends anything else to
//! this node: the bytes may lie in a socket of ours for as long as this process is stopped, and must not land behind a
//! later write.
//!
//! Invariant: a connection is here before its client knows that it is admitted, and until its thread has ended. So one
//! that is not here has no piece in flight, and never will.
//!
//! Lock order: `of_session` and a connection's `settled` are leaves, and never held together.

use crate::locks::lock;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use weft_protocol::{ConnectionId, SessionId};
use weft_storage::PieceGate;
use weft_transport::Socket;

/// See the module.
#[derive(Default)]
pub struct Connections {
    of_session: Mutex<HashMap<SessionId, Vec<Arc<Line>>>>,
}

/// One data connection.
pub struct Line {
    id: ConnectionId,
    pieces: PieceGate,
    /// Empty during the handshake.
    socket: OnceLock<Weak<Socket>>,
    settled: Mutex<()>,
    changed: Condvar,
}

impl Line {
    /// Admits one piece of a write, until [`Line::leave`]. Returns false if the client has given the connection up.
    pub(super) fn enter(&self) -> bool {
        self.pieces.enter()
    }

    /// A piece that was admitted is written.
    pub(super) fn leave(&self) {
        if self.pieces.leave() {
            // Under the lock, so that the waiter of `revoke` does not miss it.
            let _settled = lock(&self.settled);
            self.changed.notify_all();
        }
    }

    fn shutdown(&self) {
        if let Some(socket) = self.socket.get().and_then(Weak::upgrade) {
            socket.shutdown();
        }
    }

    /// Admits no further piece, and waits until those in flight are written.
    fn revoke(&self) {
        self.pieces.close();
        self.shutdown();
        let mut settled = lock(&self.settled);
        while !self.pieces.is_empty() {
            settled = self.changed.wait(settled).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A connection's entry, removed on drop.
pub struct Registered {
    connections: Arc<Connections>,
    session: SessionId,
    line: Arc<Line>,
}

impl Connections {
    /// Adds a connection at the end of its handshake.
    pub fn register(self: &Arc<Self>, session: SessionId, id: ConnectionId) -> Registered {
        let (pieces, socket) = (PieceGate::default(), OnceLock::new());
        let line = Arc::new(Line { id, pieces, socket, settled: Mutex::default(), changed: Condvar::new() });
        lock(&self.of_session).entry(session).or_default().push(Arc::clone(&line));
        Registered { connections: Arc::clone(self), session, line }
    }

    /// Shuts down all connections: the node ends.
    pub fn shutdown_all(&self) {
        let lines: Vec<_> = lock(&self.of_session).values().flatten().map(Arc::clone).collect();
        lines.iter().for_each(|line| line.shutdown());
    }

    /// Shuts down all connections of a session: threads that wait for the rest of a write end.
    pub fn shutdown(&self, session: SessionId) {
        let lines = lock(&self.of_session).get(&session).cloned().unwrap_or_else(Vec::new);
        lines.iter().for_each(|line| line.shutdown());
    }

    /// Ends a connection that its client has given up. When this returns no byte of its writes lands any more.
    pub fn revoke(&self, session: SessionId, id: ConnectionId) {
        let line =
            lock(&self.of_session).get(&session).and_then(|lines| lines.iter().find(|line| line.id == id).cloned());
        if let Some(line) = line {
            line.revoke();
        }
    }
}

impl Registered {
    /// The handshake is done.
    pub fn connected(&self, socket: &Arc<Socket>) {
        let _ = self.line.socket.set(Arc::downgrade(socket));
        if self.line.pieces.is_closed() {
            socket.shutdown();
        }
    }

    pub(super) fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// Returns true if the connection has this name.
    pub fn is(&self, id: ConnectionId) -> bool {
        self.line.id == id
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut sessions = lock(&self.connections.of_session);
        if let Some(lines) = sessions.get_mut(&self.session) {
            lines.retain(|line| !Arc::ptr_eq(line, &self.line));
            if lines.is_empty() {
                sessions.remove(&self.session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    const SESSION: SessionId = SessionId(5);

    #[test]
    fn a_revoked_connection_writes_the_piece_in_flight_and_no_other() {
        let connections = Arc::<Connections>::default();
        let (given_up, other) =
            (connections.register(SESSION, ConnectionId(1)), connections.register(SESSION, ConnectionId(2)));
        let (client, server) = UnixStream::pair().unwrap();
        let (client, server) = (Socket::from_unix(client), Arc::new(Socket::from_unix(server)));
        given_up.connected(&server);
        assert!(given_up.line().enter());
        let revoking = {
            let connections = Arc::clone(&connections);
            std::thread::spawn(move || connections.revoke(SESSION, ConnectionId(1)))
        };
        while !given_up.line.pieces.is_closed() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!given_up.line().enter() && other.line().enter());
        assert!(!revoking.is_finished(), "a piece is in flight");
        given_up.line().leave();
        revoking.join().unwrap();
        assert!(client.is_readable(), "it is shut down");
    }

    #[test]
    fn a_connection_is_revoked_before_its_thread_has_begun_and_after_it_has_ended() {
        let connections = Arc::<Connections>::default();
        let early = connections.register(SESSION, ConnectionId(1));
        connections.revoke(SessionId(6), ConnectionId(1));
        assert!(early.line().enter(), "that is another session's");
        early.line().leave();
        connections.revoke(SESSION, ConnectionId(1));
        let (client, server) = UnixStream::pair().unwrap();
        let (client, server) = (Socket::from_unix(client), Arc::new(Socket::from_unix(server)));
        early.connected(&server);
        assert!(!early.line().enter() && client.is_readable());
        drop(early);
        connections.revoke(SESSION, ConnectionId(1));
        assert!(lock(&connections.of_session).is_empty());
    }
}
