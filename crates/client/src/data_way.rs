//! How file data goes: the way that is set, and what RDMA turned out to be.

use crate::block_on::lock;
use crate::options::{ClientOptions, Way};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use weft_protocol::{Error, Result};
use weft_transport::rdma::{DIRECT_FROM_BYTES, Opened, REGISTERED_FROM_BYTES};
use weft_transport::{
    BulkConnection, RdmaBulk, RdmaCounters, RdmaSettings, Registration, Socket, SocketBulk, SocketKind,
};
use weft_ucx::{LastingMemory, RegisteredMemory, Registry};

/// See the module.
#[derive(Debug)]
pub(crate) struct DataWay {
    pub way: Way,
    pub settings: RdmaSettings,
    pub counters: Arc<RdmaCounters>,
    /// What the program has registered.
    registry: Arc<Registry>,
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
            registry: Arc::default(),
            refused: Mutex::default(),
            sockets_only: AtomicBool::new(weft_ucx::adapters().is_empty()),
        }
    }

    /// Whether reads into this memory go best straight there, with nothing asked for ahead.
    pub fn reads_directly(&self, into: &[u8], registration: Option<Registration>) -> bool {
        let told = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let (from, registered_from) = match registration {
            Some(Registration::Static) => return false,
            Some(Registration::Dynamic) => (DIRECT_FROM_BYTES, REGISTERED_FROM_BYTES),
            Some(Registration::Auto) | None => {
                (told(&self.counters.direct_read_from), told(&self.counters.registered_read_from))
            }
        };
        let is_large = into.len() >= from || into.len() >= registered_from && self.registry.has(into);
        self.may_use_rdma() && from != 0 && is_large
    }

    /// Registers memory for all transfers to come, if any go by RDMA.
    pub fn register(&self, memory: Box<dyn LastingMemory>) -> weft_ucx::Result<RegisteredMemory> {
        if !self.may_use_rdma() || memory.bytes() == 0 {
            return Ok(RegisteredMemory::unused(memory));
        }
        let registered = self.registry.register(memory)?;
        self.counters.registrations.fetch_add(1, Ordering::Relaxed);
        Ok(registered)
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
        match RdmaBulk::open(socket, self.settings, Arc::clone(&self.counters), Arc::clone(&self.registry))? {
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
