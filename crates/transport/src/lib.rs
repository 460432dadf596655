//! Connections: sockets, framing, handshake, and descriptors passed between processes of a node.
//!
//! * [`Socket`] is one connected stream, TCP or Unix, with blocking calls that move bytes straight from and to the
//!   caller's memory.
//! * [`handshake`] makes both sides prove their key before anything else is said.
//! * [`ControlConnection`] carries requests and replies, [`BulkConnection`] file data: the trait that RDMA implements
//!   beside sockets ([`SocketBulk`]).
//!
//! Not here: what the messages mean; threads; event loops. No unsafe code: system calls go through `rustix`, `socket2`
//! and `weft-sys`.

mod asked;
pub mod before_wait;
mod borrowing;
pub mod bulk;
pub mod control;
pub mod handshake;
mod in_flight;
mod low_water;
pub mod pass;
pub mod patience;
mod peer_memory;
pub mod rdma;
mod sharing;
pub mod socket;
mod unpaced;

pub use bulk::{Ahead, BulkConnection, Carrier, NotStarted, Passed, SocketBulk};
pub use control::ControlConnection;
pub use handshake::{Peer, accept, connect, connect_within};
pub use peer_memory::{Lender, PeerMemory, Seal, lent_while};
pub use rdma::{RdmaBulk, RdmaCounters, RdmaSettings, Registration, Rpc};
pub use socket::{DataEnd, LOOK_BEFORE_SLEEP, Socket, SocketKind};
pub use unpaced::Listener;

use weft_protocol::error::errno;

/// Why a connection could not be made or was lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The system call failed; the connection is of no more use.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The peer said what the protocol does not allow; the connection is of no more use.
    #[error("the peer sent a malformed message")]
    Malformed,
    /// The peer could not prove that it has the key.
    #[error("the peer does not have the key of this file system")]
    WrongKey,
    /// RDMA failed; the connection is of no more use.
    #[error("{0}")]
    Rdma(#[from] weft_ucx::Error),
    /// The server refused us.
    #[error("refused by the server: {0}")]
    Refused(weft_protocol::Error),
}

impl From<rustix::io::Errno> for TransportError {
    fn from(errno: rustix::io::Errno) -> Self {
        TransportError::Io(errno.into())
    }
}

impl From<TransportError> for weft_protocol::Error {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::Refused(error) => error,
            TransportError::WrongKey => weft_protocol::Error::AccessDenied,
            TransportError::Malformed => weft_protocol::Error::Malformed,
            // This process, or its machine, may have no more descriptors: no node is away for that.
            TransportError::Io(error) => match error.raw_os_error() {
                Some(errno @ (errno::EMFILE | errno::ENFILE)) => weft_protocol::Error::Device(errno),
                _ => weft_protocol::Error::Unreachable,
            },
            TransportError::Rdma(_) => weft_protocol::Error::Unreachable,
        }
    }
}

/// Result of a call in this crate.
pub type Result<T> = std::result::Result<T, TransportError>;
