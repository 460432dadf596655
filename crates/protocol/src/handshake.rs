//! The four messages that open every connection.
//!
//! ```text
//! client -> server   ClientHello   who I am, what the connection is for, a nonce
//! server -> client   ServerHello   a nonce; proof that the server knows the client's key, hence the node key
//! client -> server   ClientProof   proof that the client has the key of the name it gave
//! server -> client   Welcome       or an error, and the connection is closed
//! ```
//! Each proof is over both hellos, so neither can be replayed or moved to another connection. A peer that cannot prove
//! its name has learnt a nonce and nothing else.

use crate::credentials::Credentials;
use crate::error::Error;
use crate::ids::{ConnectionId, KeyId, MapEpoch, NodeId, NodeIdentity, SessionId};
use serde::{Deserialize, Serialize};

/// Label under which the server's proof is made.
pub const SERVER_LABEL: &[u8] = b"weft server v1";
/// Label under which the client's proof is made.
pub const CLIENT_LABEL: &[u8] = b"weft client v1";

/// Who opens the connection; fixes the key and what its requests may claim.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KeyName {
    /// A server of the same file system, which has the node key.
    Node(NodeId),
    /// The owner of the file system: may speak for every user.
    Owner,
    /// A user, with one of the keys that were made for him: his requests have exactly these credentials.
    User { key: KeyId, credentials: Credentials },
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Purpose {
    /// Requests and replies ([`crate::message::Message`]).
    Control,
    /// File data ([`crate::data`]).
    Data,
    /// Recalls from the server, answers and renewals from the client.
    Recall,
}

/// First message of the client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientHello {
    pub key_name: KeyName,
    pub purpose: Purpose,
    pub session: SessionId,
    /// Node identity of the client: the same as the server's means that descriptors may be passed.
    pub identity: NodeIdentity,
    pub nonce: [u8; 32],
}

impl ClientHello {
    /// Returns the name of the connection within its session.
    pub fn connection(&self) -> ConnectionId {
        let (first, _) = self.nonce.split_first_chunk().expect("a nonce is longer than 8 bytes");
        ConnectionId(u64::from_le_bytes(*first))
    }
}

/// Answer of the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServerHello {
    pub node: NodeId,
    pub identity: NodeIdentity,
    pub nonce: [u8; 32],
    /// Over [`SERVER_LABEL`] and both hellos (this field as zeros).
    pub proof: [u8; 32],
}

/// Second message of the client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientProof {
    /// Over [`CLIENT_LABEL`] and both hellos.
    pub proof: [u8; 32],
}

/// Last message of the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    pub result: Result<MapEpoch, Error>,
}
