//! Who the client is to the servers.

use crate::instance::{Instance, local_identity};
use crate::key_file::KeyFile;
use std::time::Duration;
use weft_protocol::handshake::{KeyName, Purpose};
use weft_protocol::limits::HANDSHAKE_MS_MAX;
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{ClusterMap, Credentials, Error, NodeIdentity, Result, SessionId, UserKey};
use weft_transport::{ControlConnection, Peer, Socket, connect};

/// Key, name and node of the client.
#[derive(Debug)]
pub(crate) struct Identity {
    pub key_name: KeyName,
    pub key: UserKey,
    /// The node that this process is on: descriptors are passed between processes of the same.
    pub node: NodeIdentity,
    /// On whose behalf calls are made when the caller does not say otherwise.
    pub credentials: Credentials,
}

impl Identity {
    /// Who opens this file system, and its map: from the record, or with a user's key from the first node that answers.
    pub fn of(instance: &Instance, session: SessionId) -> Result<(Self, ClusterMap)> {
        let node = local_identity().map_err(crate::device_error::device)?;
        let Some(file) = &instance.user_key else {
            let (key_name, key, credentials) = (KeyName::Owner, owner_key(instance)?, own_credentials());
            return Ok((Self { key_name, key, node, credentials }, instance.map.clone()));
        };
        let (key_name, key, credentials) = (file.key_name(), file.key.clone(), file.credentials.clone());
        let identity = Self { key_name, key, node, credentials };
        let map = identity.first_map(file, session)?;
        Ok((identity, map))
    }

    /// Whether the key speaks for one user only.
    pub fn is_user(&self) -> bool {
        matches!(self.key_name, KeyName::User { .. })
    }

    /// Asks the nodes that the key names for the map, one after the other. When none has an answer, a refusal is the
    /// news: a port that was a node's may be another program's by now.
    fn first_map(&self, file: &KeyFile, session: SessionId) -> Result<ClusterMap> {
        let mut failed = Error::Unreachable;
        for address in &file.addresses {
            match self.map_at(address, session) {
                Ok(map) => return Ok(map),
                Err(error) if failed == Error::Unreachable => failed = error,
                Err(_) => {}
            }
        }
        Err(failed)
    }

    fn map_at(&self, address: &str, session: SessionId) -> Result<ClusterMap> {
        let socket = Socket::connect_tcp(address)?;
        let (key_name, purpose) = (self.key_name.clone(), Purpose::Control);
        connect(&socket, &Peer { key_name, purpose, session, identity: self.node }, &self.key)?;
        socket.set_timeout(Some(Duration::from_millis(HANDSHAKE_MS_MAX)))?;
        let reply = ControlConnection::new(socket).call(&Message::Node(NodeRequest::GetMap))?;
        let Message::NodeReply(answer) = reply else { return Err(Error::Malformed) };
        match *answer {
            Ok(NodeAnswer::Map(map)) if map.check() => Ok(map),
            Ok(_) => Err(Error::Malformed),
            Err(error) => Err(error),
        }
    }
}

/// User and groups of this process.
fn own_credentials() -> Credentials {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let groups = rustix::process::getgroups().unwrap_or_default();
    Credentials { uid, gid, groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect() }
}

/// The owner's key, derived from the node key that `weft up` left in the runtime directory.
fn owner_key(instance: &Instance) -> Result<UserKey> {
    let key = instance.node_key().map_err(|_| Error::AccessDenied)?;
    Ok(UserKey::derive(&key, &KeyName::Owner))
}
