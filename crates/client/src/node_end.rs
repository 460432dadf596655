//! One node as a session's sockets reach it: how it is connected to, and its pool of data connections.

use crate::data_pool::DataPool;
use crate::data_way::DataWay;
use crate::identity::Identity;
use crate::options::Way;
use std::path::Path;
use std::sync::Arc;
use weft_protocol::handshake::Purpose;
use weft_protocol::{Error, NodeRecord, Result, SessionId};
use weft_transport::{BulkConnection, DataEnd, Peer, Socket, TransportError, connect};

/// How often a connection is made whose handshake is cut off.
const HANDSHAKE_ATTEMPTS_MAX: u32 = 3;

/// See the module.
pub(crate) struct NodeEnd {
    pub record: NodeRecord,
    pub session: SessionId,
    pub pool: Arc<DataPool>,
}

/// Connects to a node, over its Unix socket where the node is on this machine (and TCP is not asked for). That socket
/// is in the owner's own directory: a user who cannot reach it there takes TCP.
pub(crate) fn connect_to(
    record: &NodeRecord,
    session: SessionId,
    identity: &Identity,
    purpose: Purpose,
    way: Way,
) -> Result<Socket> {
    let address = &record.address;
    let near = record.identity == identity.node && !address.unix.is_empty() && way != Way::Tcp;
    let peer = Peer { key_name: identity.key_name.clone(), purpose, session, identity: identity.node };
    let mut attempts = 0;
    loop {
        let unix = near.then(|| Socket::connect_unix(Path::new(&address.unix)));
        let socket = match unix {
            Some(Ok(socket)) => Ok(socket),
            Some(Err(error)) if !identity.is_user() => Err(error),
            Some(Err(_)) | None => Socket::connect_tcp(&address.tcp),
        };
        let socket = socket.map_err(|_| Error::Unreachable)?;
        attempts += 1;
        match connect(&socket, &peer, &identity.key) {
            Ok(_) => return Ok(socket),
            // A server with too many handshakes under way cuts the oldest off: that may have been ours.
            Err(TransportError::Io(_)) if attempts < HANDSHAKE_ATTEMPTS_MAX => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl NodeEnd {
    /// Connects to nothing.
    pub fn new(record: NodeRecord, session: SessionId) -> Self {
        Self { record, session, pool: Arc::default() }
    }

    /// Takes a data connection, or makes one; waits when there are as many as there may be.
    pub fn take_data(&self, identity: &Identity, way: &DataWay) -> Result<Box<dyn BulkConnection>> {
        self.pool.take(|| self.new_data(identity, way))
    }

    /// As [`NodeEnd::take_data`], for a connection that is kept from call to call. `None`: too many are in use.
    pub fn take_data_to_keep(&self, identity: &Identity, way: &DataWay) -> Result<Option<Box<dyn BulkConnection>>> {
        self.pool.take_to_keep(|| self.new_data(identity, way))
    }

    fn new_data(&self, identity: &Identity, way: &DataWay) -> Result<Box<dyn BulkConnection>> {
        let socket = connect_to(&self.record, self.session, identity, Purpose::Data, way.way)?;
        socket.tune_for_data(DataEnd::Client);
        way.bulk(socket)
    }
}
