//! Who the client is to the servers.

use weft_protocol::handshake::KeyName;
use weft_protocol::{Credentials, NodeIdentity, UserKey};

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
    /// What a call has to say of its credentials: nothing where the key fixes them.
    pub fn said(&self, who: &Credentials) -> Option<Credentials> {
        match &self.key_name {
            KeyName::User(_) => None,
            KeyName::Owner | KeyName::Node(_) => Some(who.clone()),
        }
    }
}
