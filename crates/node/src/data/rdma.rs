//! RDMA transfers of a data connection: the client registers its memory over the socket, and the node moves the bytes.

use super::{DataConnection, reply_with};
use crate::counters::AtomicCounters;
use crate::data_activity::Phase;
use crate::fencing::RequestGuard;
use crate::locks::lock;
use weft_protocol::Error;
use weft_protocol::data::{
    DataOperation, DataReply, DataRequest, PROBE_BYTES, PROBE_TOLD_BYTES, RDMA_PREFACE_BYTES, REQUEST_BYTES,
    SHOWN_LENGTH_BYTES,
};
use weft_protocol::handshake::KeyName;
use weft_store_io::executor::Moved;
use weft_store_io::guard::Admitted;
use weft_store_io::rdma::ClientMemory;
use weft_store_io::windows::Windows;
use weft_store_io::{ObjectStat, Segment, WritePlan};
use weft_transport::{Result, TransportError};
use weft_ucx::{Library, Liveness};

/// What the client needs to create its own endpoint, and who detects a dead peer.
type OwnEnd = (Vec<u8>, Liveness);

impl DataConnection<'_> {
    /// Waits for the next request as an RDMA message. `None`: it arrives on the socket.
    pub(super) fn next_message(&mut self) -> Result<Option<DataRequest>> {
        self.message = None;
        let Some(memory) = self.client_memory.as_ref().filter(|_| self.has_messages) else { return Ok(None) };
        let Some(message) = memory.next(self.socket)? else { return Ok(None) };
        let (header, body) = message.split_first_chunk::<REQUEST_BYTES>().ok_or(TransportError::Malformed)?;
        let request = DataRequest::decode(header).map_err(|_| TransportError::Malformed)?;
        let has_body = matches!(request.operation, DataOperation::ShowMemory | DataOperation::ProbeMemory);
        let body_bytes = if has_body { request.bytes as usize } else { 0 };
        if !request.may_be_message() || body.len() != body_bytes {
            return Err(TransportError::Malformed);
        }
        AtomicCounters::add(&self.node.counters.rdma_messages, 1);
        self.message = Some(body.into());
        Ok(Some(request))
    }

    /// Returns the body of a request.
    fn body(&mut self, request: &DataRequest) -> Result<Vec<u8>> {
        if let Some(body) = &self.message {
            return Ok(body.to_vec());
        }
        let mut body = vec![0; request.bytes as usize];
        self.socket.receive_exact(&mut body)?;
        Ok(body)
    }

    /// Replies on the transport that the request came on, without bulk data.
    pub(super) fn answer(&self, reply: &DataReply) -> Result<()> {
        self.activity.enter(Phase::Sends);
        match &self.client_memory {
            Some(memory) if self.message.is_some() => Ok(memory.tell(&reply.encode())?),
            _ => self.socket.send_all(&reply.encode()),
        }
    }

    /// Creates the endpoint for the client's memory.
    pub(super) fn open_rdma(&mut self, request: &DataRequest) -> Result<()> {
        let mut address = vec![0; request.bytes as usize];
        self.socket.receive_exact(&mut address)?;
        let (memory, (ours, liveness), said) = match self.way_to_client(&address) {
            Ok((memory, ours, said)) => (Some(memory), ours, said),
            Err(reason) => {
                tracing::warn!(peer = self.socket.peer_text(), reason, "a client's file data goes by its socket");
                (None, (Vec::new(), Liveness::Caller), reason)
            }
        };
        *lock(&self.node.rdma) = said;
        self.client_memory = memory;
        let reply = if self.client_memory.is_some() {
            let bulk_bytes = u32::try_from(ours.len()).unwrap_or(u32::MAX);
            let size = u64::from(liveness == Liveness::Endpoint);
            DataReply { id: request.id, bulk_bytes, size, ..DataReply::default() }
        } else {
            DataReply::failed(request.id, &Error::NotSupported)
        };
        self.socket.send_all_with(&reply.encode(), &ours)
    }

    /// Returns the client's memory, what the client creates its own endpoint from, and the library used; or why not.
    fn way_to_client(&mut self, told: &[u8]) -> std::result::Result<(ClientMemory, OwnEnd, String), String> {
        // UCX does not validate addresses, and a wrong one ends the process: accepted only from the owner and nodes,
        // who may end it anyway.
        if let KeyName::User { .. } = self.peer.key_name {
            return Err("clients with a user's key use sockets: UCX does not check what they say".to_owned());
        }
        let ([version @ .., rpc], address) = told.split_first_chunk::<RDMA_PREFACE_BYTES>().ok_or("no address")?;
        self.has_messages = *rpc == 1;
        let library = Library::get().map_err(|error| error.to_string())?;
        if *version != library.wire_version() {
            let [a, b, c, d] = *version;
            let (major, minor) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
            return Err(format!(
                "a client has UCX {major}.{minor}, this node {}: they have to match",
                library.version()
            ));
        }
        let opened = ClientMemory::open(address, self.socket).and_then(|memory| Ok((memory.address()?, memory)));
        let (ours, memory) = opened.map_err(|error| error.to_string())?;
        Ok((memory, ours, format!("UCX {}", library.version())))
    }

    /// Registers or unregisters memory of the client.
    pub(super) fn show_memory(&mut self, request: &DataRequest) -> Result<()> {
        let socket = self.socket;
        let shown = self.body(request)?;
        let memory = self.client_memory.as_mut().ok_or(TransportError::Malformed)?;
        let Some((length, key)) = shown.split_first_chunk::<SHOWN_LENGTH_BYTES>() else {
            return memory.hide(request.memory.key);
        };
        AtomicCounters::add(&self.node.counters.rdma_regions, 1);
        memory.show(socket, request.memory, u64::from_le_bytes(*length), key)
    }

    /// Reads a number from the client's memory, to verify the path.
    pub(super) fn probe_memory(&mut self, request: &DataRequest) -> Result<()> {
        let socket = self.socket;
        let told = self.body(request)?.as_slice().try_into().map_err(|_| TransportError::Malformed)?;
        let request = DataRequest { bytes: PROBE_BYTES, ..*request };
        let probed = match self.named_memory(&request)? {
            Some(memory) => memory.probe(socket, request.memory).map_err(|error| error.to_string()),
            None => Err("the client's memory cannot be reached from here".to_owned()),
        };
        let reply = match probed {
            Ok((size, is_shared)) => {
                self.note_crossover(told, is_shared);
                DataReply { id: request.id, size, written_bytes: u32::from(is_shared), ..DataReply::default() }
            }
            Err(reason) => {
                tracing::warn!(peer = socket.peer_text(), reason, "a client's file data goes by its socket");
                *lock(&self.node.rdma) = reason;
                self.client_memory = None;
                DataReply::failed(request.id, &Error::NotSupported)
            }
        };
        self.answer(&reply)
    }

    /// Records from which size on the client transfers directly from its caller's memory, as measured by the client.
    fn note_crossover(&self, told: [u8; PROBE_TOLD_BYTES], is_shared: bool) {
        let Ok(library) = Library::get() else { return };
        let (read, write) = told.split_at(PROBE_TOLD_BYTES / 2);
        let text = |bytes: &[u8]| match bytes.try_into().map(u64::from_le_bytes) {
            Ok(bytes) if bytes < u64::from(u32::MAX) => format!("from {} KiB", bytes.div_ceil(1024)),
            _ => "never".to_owned(),
        };
        let choice = if is_shared {
            "buffers are shared with the last client".to_owned()
        } else {
            format!("the last client's memory: reads {}, writes {}", text(read), text(write))
        };
        *lock(&self.node.rdma) = format!("UCX {}; {choice}", library.version());
    }

    /// Returns the memory that the request names. `None`: this node cannot reach it.
    fn named_memory(&mut self, request: &DataRequest) -> Result<Option<&mut ClientMemory>> {
        let memory = self.client_memory.as_mut().ok_or(TransportError::Malformed)?;
        let reached = memory.reaches(request.memory, u64::from(request.bytes))?;
        Ok(reached.then_some(memory))
    }

    /// Writes the data of a read into the client's memory.
    pub(super) fn put(
        &mut self,
        request: &DataRequest,
        (segment, stat): (Segment<'_>, ObjectStat),
        windows: Option<&Windows>,
    ) -> Result<()> {
        let bytes = segment.bytes();
        let socket = self.socket;
        self.activity.enter(Phase::Moves);
        let Some(memory) = self.named_memory(request)? else { return self.refuse(request, &Error::NotSupported) };
        let moved = if bytes == 0 { Moved::Done } else { memory.put(socket, segment, windows, request.memory)? };
        self.count_transfers();
        match moved {
            Moved::Done => {
                AtomicCounters::add(&self.node.counters.read_rdma_bytes, bytes);
                let bulk_bytes = u32::try_from(bytes).unwrap_or(request.bytes);
                self.answer(&DataReply { bulk_bytes, ..reply_with(request, stat) })
            }
            Moved::Failed(error) => self.refuse(request, &error),
        }
    }

    /// Reads the data of a write from the client's memory. `None`: this node cannot reach it.
    pub(super) fn get(
        &mut self,
        request: &DataRequest,
        plan: WritePlan<'_>,
        windows: Option<&Windows>,
        guard: &RequestGuard<'_>,
    ) -> Result<Option<Moved>> {
        let socket = self.socket;
        self.activity.enter(Phase::Moves);
        let Some(memory) = self.named_memory(request)? else { return Ok(None) };
        // An adapter may write to the file's pages until its transfers end: the guard treats them as one piece.
        let admitted = match Admitted::by(guard) {
            Ok(admitted) => admitted,
            Err(error) => return Ok(Some(Moved::Failed(error))),
        };
        let moved = memory.get(socket, request.memory, (plan, windows), request.bytes, guard);
        if moved.is_err() {
            // Aborts the pending transfers.
            self.client_memory = None;
        }
        drop(admitted);
        let moved = moved?;
        self.count_transfers();
        Ok(Some(moved))
    }

    fn count_transfers(&mut self) {
        let Some(memory) = &mut self.client_memory else { return };
        let (done, counters) = (memory.take_transfers(), &self.node.counters);
        AtomicCounters::add(&counters.rdma_puts, done.puts);
        AtomicCounters::add(&counters.rdma_gets, done.gets);
        AtomicCounters::add(&counters.rdma_flushes, done.flushes);
        AtomicCounters::add(&counters.rdma_placed_bytes, done.placed_bytes);
        AtomicCounters::add(&counters.rdma_mapped_bytes, done.mapped_bytes);
        AtomicCounters::add(&counters.rdma_streamed_bytes, done.streamed_bytes);
    }

    /// Returns true if the object's bytes are transferred by RDMA.
    pub(super) fn is_rdma(request: &DataRequest) -> bool {
        request.memory.key != 0
    }
}
