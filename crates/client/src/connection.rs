//! Connections as the client machine sees them.

use crate::counters::AtomicCounters;
use crate::data_pool::Pooled;
use crate::node_end::NodeEnd;
use crate::waits::{self, NodeWaits};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use weft_client_core::{ControlConnection, DataConnection, PassedDescriptor};
use weft_protocol::data::{DataReply, DataRequest};
use weft_protocol::message::Message;
use weft_protocol::{ConnectionId, Error, Result};
use weft_transport::{Ahead, Carrier, Registration};

/// A control connection.
pub struct NativeControl {
    pub(crate) connection: weft_transport::ControlConnection,
    pub(crate) waits: Arc<NodeWaits>,
    /// Identifier of the message whose reply is awaited.
    pub(crate) started: Option<u64>,
}

impl ControlConnection for NativeControl {
    async fn start(&mut self, message: &Message) -> Result<()> {
        self.waits.check()?;
        self.started = Some(self.connection.send(message)?);
        Ok(())
    }

    async fn finish(&mut self) -> Result<Message> {
        let id = self.started.take().expect("a reply is awaited after its message was started");
        self.connection.receive_reply(id).map_err(Error::from)
    }

    fn is_closed(&self) -> bool {
        self.connection.socket().is_readable()
    }
}

/// A data connection of a node's pool; bytes are counted by what carries them.
pub struct NativeData {
    pub(crate) bulk: Pooled,
    pub(crate) end: Arc<NodeEnd>,
    pub(crate) counters: Arc<AtomicCounters>,
}

impl NativeData {
    pub(crate) fn ask_descriptor(&mut self, request: &DataRequest) -> Result<PassedDescriptor<OwnedFd>> {
        self.bulk.descriptor(request).map_err(Error::from)
    }
}

impl DataConnection for NativeData {
    type Registration = Registration;

    async fn read(
        &mut self,
        request: &DataRequest,
        into: &mut [u8],
        registration: Option<Registration>,
    ) -> Result<DataReply> {
        self.bulk.choose(registration);
        let reply = self.bulk.read(request, into)?;
        self.counters.add_read(self.bulk.carrier(), u64::from(reply.bulk_bytes));
        Ok(reply)
    }

    async fn write(
        &mut self,
        request: &DataRequest,
        from: &[u8],
        registration: Option<Registration>,
    ) -> Result<DataReply> {
        self.bulk.choose(registration);
        let _kept = waits::keep_writes();
        let reply = self.bulk.write(request, from)?;
        self.counters.add_written(self.bulk.carrier(), u64::from(reply.written_bytes));
        Ok(reply)
    }

    async fn start_write(&mut self, request: &DataRequest, from: Vec<u8>) -> std::result::Result<(), Vec<u8>> {
        self.counters.add_written(self.bulk.carrier(), from.len() as u64);
        let _kept = waits::keep_writes();
        self.bulk.start_write(request, from).map_err(|failed| failed.memory)
    }

    async fn start_lent(&mut self, request: &DataRequest, from: &[u8]) -> Result<()> {
        self.counters.add_written(self.bulk.carrier(), from.len() as u64);
        let _kept = waits::keep_writes();
        self.bulk.start_lent(request, from).map_err(Error::from)
    }

    async fn finish(&mut self) -> Option<(Vec<u8>, Result<DataReply>)> {
        let _kept = waits::keep_writes();
        self.bulk.finish().map(|(memory, reply)| (memory, reply.map_err(Error::from)))
    }

    async fn ask(&mut self, request: &DataRequest) -> Result<()> {
        self.bulk.ask(request).map_err(Error::from)
    }

    async fn receive(&mut self, into: &mut [u8]) -> Result<usize> {
        let count = self.bulk.receive(into)?;
        self.counters.add_read(self.bulk.carrier(), count as u64);
        Ok(count)
    }

    fn met_end(&self) -> bool {
        self.bulk.met_end()
    }

    async fn receive_in_place(&mut self, bytes: usize, give: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let handed = self.bulk.receive_in_place(bytes, give)?;
        if handed {
            self.counters.add_read(self.bulk.carrier(), bytes as u64);
        }
        Ok(handed)
    }

    async fn discard(&mut self) -> Result<()> {
        self.bulk.discard().map_err(Error::from)
    }

    fn prefetch_window(&self) -> (u32, u64) {
        let Ahead { turn_bytes, bytes } = self.bulk.ahead();
        (turn_bytes, bytes)
    }

    fn may_start(&self, bytes: usize) -> bool {
        self.bulk.may_start(bytes)
    }

    fn registers_memory(&self) -> bool {
        self.bulk.carrier() == Carrier::Rdma
    }

    fn is_crowded(&self) -> bool {
        self.end.pool.is_crowded()
    }

    fn id(&self) -> ConnectionId {
        self.bulk.id
    }
}
