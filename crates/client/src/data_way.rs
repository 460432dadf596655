//! How file data goes: the way that is set, and what RDMA turned out to be.

use crate::block_on::lock;
use crate::options::{ClientOptions, Way};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use weft_protocol::{Error, Result};
use weft_transport::rdma::{DIRECT_FROM_BYTES, Opened};
use weft_transport::{
    BulkConnection, RdmaBulk, RdmaCounters, RdmaSettings, Registration, Socket, SocketBulk, SocketKind,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct DataWay {
    pub way: Way,
    pub settings: RdmaSettings,
    pub counters: Arc<RdmaCounters>,
    /// Why the last connection that was to be by RDMA is not.
    refused: Mutex<String>,
    /// With `Way::Auto`: RDMA is not to be tried (again).
    sockets_only: AtomicBool,
}

impl DataWay {
    /// As the options say. No device is opened before the first connection.
    pub fn of(options: &ClientOptions) -> Self {
        Self {
            way: options.way,
            settings: options.rdma,
            counters: Arc::default(),
            refused: Mutex::default(),
            sockets_only: AtomicBool::new(weft_ucx::adapters().is_empty()),
        }
    }

    /// Whether reads of so many bytes go best straight into the caller's memory, with nothing asked for ahead.
    pub fn reads_directly(&self, bytes: usize, registration: Option<Registration>) -> bool {
        let from = match registration {
            Some(Registration::Static) => return false,
            Some(Registration::Dynamic) => DIRECT_FROM_BYTES,
            Some(Registration::Auto) | None => self.counters.direct_read_from.load(Ordering::Relaxed),
        };
        self.may_use_rdma() && from != 0 && bytes >= from
    }

    /// Why the last connection that was to be by RDMA is not.
    pub fn refusal(&self) -> String {
        lock(&self.refused).clone()
    }

    fn may_use_rdma(&self) -> bool {
        match self.way {
            Way::Ucx => true,
            Way::Auto => !self.sockets_only.load(Ordering::Relaxed),
            Way::Unix | Way::Stream | Way::Tcp => false,
        }
    }

    /// A connection for file data over a socket whose handshake is done.
    pub fn bulk(&self, socket: Socket) -> Result<Box<dyn BulkConnection>> {
        // On one machine sockets and descriptors are faster than any adapter.
        let worth_while = self.way == Way::Ucx || socket.kind() == SocketKind::Tcp;
        if !self.may_use_rdma() || !worth_while {
            let streams = self.way == Way::Stream;
            return Ok(Box::new(if streams { SocketBulk::streaming(socket) } else { SocketBulk::new(socket) }));
        }
        match RdmaBulk::open(socket, self.settings, Arc::clone(&self.counters))? {
            Opened::Rdma(bulk) => Ok(bulk),
            Opened::Refused(_, reason) if self.way == Way::Ucx => {
                *lock(&self.refused) = reason;
                Err(Error::Unreachable)
            }
            Opened::Refused(socket, reason) => {
                if !self.sockets_only.swap(true, Ordering::Relaxed) {
                    tracing::info!(reason, "file data goes by sockets, though there are RDMA devices");
                }
                Ok(Box::new(SocketBulk::new(socket)))
            }
        }
    }
}
