//! Both sides of the handshake of [`weft_protocol::handshake`].
//!
//! Invariant: a handshake ends, well or badly, within [`HANDSHAKE_MS_MAX`], also with a peer that sends a byte now and
//! then.

use crate::{Result, Socket, TransportError};
use std::io;
use std::time::{Duration, Instant};
use weft_protocol::handshake::{
    CLIENT_LABEL, ClientHello, ClientProof, KeyName, Purpose, SERVER_LABEL, ServerHello, Welcome,
};
use weft_protocol::limits::HANDSHAKE_MS_MAX;
use weft_protocol::{ConnectionId, Error, MapEpoch, NodeId, NodeIdentity, NodeKey, SessionId, UserKey, codec, frame};

/// Largest body of a handshake message: a hello with as many groups as allowed.
const HELLO_BYTES_MAX: usize = 4096;

/// Who is at the other end, proven.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    pub key_name: KeyName,
    pub purpose: Purpose,
    pub session: SessionId,
    /// What the client says of its node: descriptors are passed only if it is the server's own.
    pub identity: NodeIdentity,
}

/// What the server told the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcomed {
    pub node: NodeId,
    pub identity: NodeIdentity,
    pub epoch: MapEpoch,
    /// The connection's name at the server.
    pub connection: ConnectionId,
}

/// The client's side. `key` must be the one that belongs to `peer.key_name`.
pub fn connect(socket: &Socket, peer: &Peer, key: &UserKey) -> Result<Welcomed> {
    connect_within(socket, peer, key, Duration::from_millis(HANDSHAKE_MS_MAX))
}

/// As [`connect`], with a timeout of its own.
pub fn connect_within(socket: &Socket, peer: &Peer, key: &UserKey, time: Duration) -> Result<Welcomed> {
    let deadline = Deadline::begin(socket, time)?;
    let hello = ClientHello {
        key_name: peer.key_name.clone(),
        purpose: peer.purpose,
        session: peer.session,
        identity: peer.identity,
        nonce: random()?,
    };
    send(socket, &hello)?;
    let server: ServerHello = receive(socket, deadline)?;
    let transcript = transcript(&hello, &server);
    // `blake3::Hash` compares in constant time.
    if key.prove(SERVER_LABEL, &transcript) != server.proof {
        return Err(TransportError::WrongKey);
    }
    send(socket, &ClientProof { proof: *key.prove(CLIENT_LABEL, &transcript).as_bytes() })?;
    let welcome: Welcome = receive(socket, deadline)?;
    let epoch = welcome.result.map_err(TransportError::Refused)?;
    socket.set_timeout(None)?;
    Ok(Welcomed { node: server.node, identity: server.identity, epoch, connection: hello.connection() })
}

/// The server's side. `admit` is asked last, of a peer whose name is proven and its connection; its refusal is told to
/// the peer. On an
/// error the connection is to be closed.
pub fn accept(
    socket: &Socket,
    key: &NodeKey,
    node: NodeId,
    identity: NodeIdentity,
    epoch: MapEpoch,
    admit: impl FnOnce(&Peer, ConnectionId) -> std::result::Result<(), Error>,
) -> Result<Peer> {
    let deadline = Deadline::begin(socket, Duration::from_millis(HANDSHAKE_MS_MAX))?;
    let hello: ClientHello = receive(socket, deadline)?;
    let user_key = UserKey::derive(key, &hello.key_name);
    let mut server = ServerHello { node, identity, nonce: random()?, proof: [0; 32] };
    let transcript = transcript(&hello, &server);
    server.proof = *user_key.prove(SERVER_LABEL, &transcript).as_bytes();
    send(socket, &server)?;
    let proof: ClientProof = receive(socket, deadline)?;
    let proven = user_key.prove(CLIENT_LABEL, &transcript) == proof.proof;
    let connection = hello.connection();
    let peer =
        Peer { key_name: hello.key_name, purpose: hello.purpose, session: hello.session, identity: hello.identity };
    let result = if proven {
        check(socket, &peer.key_name).and_then(|()| admit(&peer, connection))
    } else {
        Err(Error::AccessDenied)
    };
    send(socket, &Welcome { result: result.clone().map(|()| epoch) })?;
    socket.set_timeout(None)?;
    match result {
        Ok(()) => Ok(peer),
        Err(error) if proven => Err(TransportError::Refused(error)),
        Err(_) => Err(TransportError::WrongKey),
    }
}

/// When the handshake must be over.
#[derive(Clone, Copy)]
struct Deadline(Instant);

impl Deadline {
    /// Counts from now, and bounds what is sent, too.
    fn begin(socket: &Socket, time: Duration) -> Result<Self> {
        socket.set_timeout(Some(time))?;
        Ok(Self(Instant::now() + time))
    }

    /// Fills `bytes` before the deadline.
    fn receive_exact(self, socket: &Socket, bytes: &mut [u8]) -> Result<()> {
        let mut have = 0;
        while let Some(rest) = bytes.get_mut(have..).filter(|rest| !rest.is_empty()) {
            let left = self.0.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TransportError::Io(io::ErrorKind::TimedOut.into()));
            }
            socket.set_timeout(Some(left))?;
            have += socket.receive_some(rest)?;
        }
        Ok(())
    }
}

/// A user's key over a Unix socket is good only in the hands of a process of that user (or of root).
fn check(socket: &Socket, name: &KeyName) -> std::result::Result<(), Error> {
    match (name, socket.peer_uid()) {
        (KeyName::User { credentials, .. }, Some(uid)) if uid != credentials.uid && uid != 0 => {
            Err(Error::AccessDenied)
        }
        (KeyName::User { credentials, .. }, _) => credentials.check(),
        _ => Ok(()),
    }
}

/// Everything said before the proofs; the server's own proof as zeros.
fn transcript(client: &ClientHello, server: &ServerHello) -> Vec<u8> {
    let blank = ServerHello { proof: [0; 32], ..server.clone() };
    codec::append(&blank, codec::to_bytes(client))
}

fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(std::io::Error::from)?;
    Ok(bytes)
}

fn send<T: serde::Serialize>(socket: &Socket, message: &T) -> Result<()> {
    let mut out = Vec::with_capacity(256);
    frame::append_body(&mut out, 0, message);
    socket.send_all(&out)
}

fn receive<T: serde::de::DeserializeOwned>(socket: &Socket, deadline: Deadline) -> Result<T> {
    let mut header = [0; frame::HEADER_BYTES];
    deadline.receive_exact(socket, &mut header)?;
    let header = frame::Header::decode(&header).map_err(|_| TransportError::Malformed)?;
    if header.body_bytes > HELLO_BYTES_MAX {
        return Err(TransportError::Malformed);
    }
    let mut body = vec![0; header.body_bytes];
    deadline.receive_exact(socket, &mut body)?;
    codec::from_bytes(&body).map_err(|_| TransportError::Malformed)
}
