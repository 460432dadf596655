//! One node as a session's sockets reach it: how it is connected to, and its pool of data connections.

use crate::data_pool::{DataPool, NewData, Pooled};
use crate::data_way::DataWay;
use crate::identity::Identity;
use crate::options::Way;
use crate::waits::{NodeWaits, SocketPatience};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weft_protocol::handshake::Purpose;
use weft_protocol::message::Message;
use weft_protocol::message::node::NodeRequest;
use weft_protocol::{ConnectionId, Error, NodeRecord, Result, SessionId};
use weft_transport::{ControlConnection, DataEnd, Peer, Socket, TransportError, connect_within};

/// How often a connection is made whose handshake is cut off.
const HANDSHAKE_ATTEMPTS_MAX: u32 = 3;

/// See the module.
pub(crate) struct NodeEnd {
    pub record: NodeRecord,
    pub session: SessionId,
    pub pool: Arc<DataPool>,
    pub waits: Arc<NodeWaits>,
}

/// A node as a client reaches it, and the waits for it.
#[derive(Clone, Copy)]
pub(crate) struct Reached<'a> {
    pub record: &'a NodeRecord,
    pub identity: &'a Identity,
    pub way: Way,
    pub waits: &'a Arc<NodeWaits>,
}

/// Connects to a node. Tries again for as long as a call may wait, if nothing answers.
pub(crate) fn connect_to(node: Reached<'_>, session: SessionId, purpose: Purpose) -> Result<(Socket, ConnectionId)> {
    let Reached { record, identity, way, waits } = node;
    let (mut attempts, mut waited) = (0, Duration::ZERO);
    loop {
        waits.check()?;
        attempts += 1;
        match connect_once(record, identity, way, (session, purpose), waits.handshake_time()) {
            Ok((mut socket, connection)) => {
                socket.set_patience(Arc::new(SocketPatience(Arc::clone(waits))))?;
                return Ok((socket, connection));
            }
            Err(TransportError::Io(error)) => match error.kind() {
                ErrorKind::TimedOut | ErrorKind::WouldBlock if waits.tries_again(&mut waited) => {}
                ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable | ErrorKind::NetworkDown
                    if waits.tries_again_later(&mut waited) => {}
                // A server with too many handshakes in progress shuts the oldest down: that may have been ours.
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
                    if attempts < HANDSHAKE_ATTEMPTS_MAX => {}
                _ => return Err(TransportError::Io(error).into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
}

/// Connects over the node's Unix socket if the node is on this machine (and TCP is not asked for). That socket is in
/// the owner's own directory: a user who cannot reach it there takes TCP.
fn connect_once(
    record: &NodeRecord,
    identity: &Identity,
    way: Way,
    (session, purpose): (SessionId, Purpose),
    time: Duration,
) -> weft_transport::Result<(Socket, ConnectionId)> {
    let address = &record.address;
    let near = record.identity == identity.node && !address.unix.is_empty() && way != Way::Tcp;
    let unix = near.then(|| Socket::connect_unix(Path::new(&address.unix)));
    let socket = match unix {
        Some(Ok(socket)) => socket,
        Some(Err(error)) if !identity.is_user() => return Err(error),
        Some(Err(_)) | None => Socket::connect_tcp(&address.tcp)?,
    };
    let peer = Peer { key_name: identity.key_name.clone(), purpose, session, identity: identity.node };
    let connection = connect_within(&socket, &peer, &identity.key, time)?.connection;
    Ok((socket, connection))
}

/// Asks a node for any answer over a new connection. In a session of its own: the last connection of one ends it.
pub(crate) fn ask(record: &NodeRecord, identity: &Identity, way: Way, time: Duration) -> Result<()> {
    let session = SessionId::of_client(getrandom::u64().map_err(|_| Error::Unreachable)?);
    let (socket, _) = connect_once(record, identity, way, (session, Purpose::Control), time)?;
    socket.set_timeout(Some(time))?;
    ControlConnection::new(socket).call(&Message::Node(NodeRequest::Ping))?;
    Ok(())
}

impl NodeEnd {
    /// Connects to nothing.
    pub fn new(record: NodeRecord, session: SessionId, waits: Arc<NodeWaits>) -> Self {
        Self { record, session, pool: Arc::default(), waits }
    }

    /// Takes a data connection, or makes one; waits when there are as many as there may be.
    pub fn take_data(&self, identity: &Identity, way: &DataWay) -> Result<Pooled> {
        self.pool.take(|| self.new_data(identity, way))
    }

    /// As [`NodeEnd::take_data`], for a connection that is kept from call to call. `None`: too many are in use.
    pub fn take_data_to_keep(&self, identity: &Identity, way: &DataWay) -> Result<Option<Pooled>> {
        self.pool.take_to_keep(|| self.new_data(identity, way))
    }

    fn new_data(&self, identity: &Identity, way: &DataWay) -> Result<NewData> {
        let node = Reached { record: &self.record, identity, way: way.way, waits: &self.waits };
        let (socket, connection) = connect_to(node, self.session, Purpose::Data)?;
        socket.tune_for_data(DataEnd::Client);
        Ok((connection, way.bulk(socket)?))
    }
}
