//! A client's end of memory that it lets a server read: see [`crate::peer_memory`].

use crate::peer_memory::Seal;
use crate::{Result, Socket, TransportError};
use weft_protocol::data::{BulkDescriptor, DataOperation, DataReply, DataRequest, REPLY_BYTES, SHARED_MEMORY_BYTES};

/// Whether the server may read our memory.
#[derive(Debug)]
pub(crate) enum Sharing {
    NotAsked,
    /// The kernel, the server or the caller does not want it; or the connection has failed.
    No,
    /// As long as the seal is whole, and in the process that made it: a child of that has another memory.
    Yes {
        seal: Seal,
        process: u32,
    },
}

impl Sharing {
    /// Asks the server, over a connection on which nothing is outstanding.
    pub fn ask(socket: &Socket) -> Result<Self> {
        let seal = Seal::new()?;
        let bytes = u32::try_from(SHARED_MEMORY_BYTES).unwrap_or(u32::MAX);
        let request = DataRequest::about_nothing(DataOperation::Share, bytes);
        socket.send_all_with(&request.encode(), &seal.shared().encode())?;
        let mut header = [0; REPLY_BYTES];
        socket.receive_exact(&mut header)?;
        let reply = DataReply::decode(&header).map_err(|_| TransportError::Malformed)?;
        let allowed = reply.result().is_ok();
        Ok(if allowed { Self::Yes { seal, process: std::process::id() } } else { Self::No })
    }

    pub fn is_to_ask(&self) -> bool {
        matches!(self, Self::NotAsked)
    }

    pub fn is_possible(&self) -> bool {
        matches!(self, Self::Yes { process, .. } if *process == std::process::id())
    }

    /// The server may read our memory no more.
    pub fn end(&mut self) {
        if let Self::Yes { seal, .. } = self {
            seal.break_it();
        }
        *self = Self::No;
    }
}

/// What the server is told of bytes that it may take out of our memory.
pub(crate) fn descriptor_of(bytes: &[u8]) -> BulkDescriptor {
    BulkDescriptor { address: bytes.as_ptr() as u64, ..BulkDescriptor::default() }
}
