//! A client's end of a data connection: as `SocketBulk` of `weft-transport`, over a [`Wire`].
//!
//! When it sends, waits for room and reads replies is decided by the machines of production ([`InFlightWindow`],
//! [`may_prefetch`]).

use crate::bytes::OperationId;
use crate::object_file::Descriptor;
use crate::process::{Ask, Process, Ticket, Told};
use crate::random::Random;
use crate::store::{Bytes, DataMessage};
use crate::wire::{Wire, small_buffers};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use weft_client_core::DataConnection;
use weft_protocol::data::{DataOperation, DataReply, DataRequest, REPLY_BYTES, REQUEST_BYTES};
use weft_protocol::{ConnectionId, Error, InFlightWindow, NextStep, NodeId, ObjectId, Result, SessionId, may_prefetch};

/// Writes in flight on one connection, and their bytes.
const WRITES_IN_FLIGHT_MAX: usize = 8;
const WRITE_WINDOW: usize = 128;
/// Bytes of one prefetch, and of all that were not taken yet.
const PREFETCH_WINDOW: (u32, u64) = (24, 60);

/// See the module.
pub struct SimData {
    process: Rc<Process>,
    pub session: SessionId,
    pub node: NodeId,
    number: u64,
    wire: Rc<Wire>,
    window: InFlightWindow,
    writes: VecDeque<(Ticket, Vec<u8>)>,
    /// Replies to the oldest writes, received while another one was sent.
    replies: VecDeque<Result<DataReply>>,
    /// Prefetches in flight, with their lengths; those that were not sent yet; what has come of the first one and was
    /// not taken.
    asked: VecDeque<(Ticket, usize)>,
    unsent: VecDeque<DataRequest>,
    come: VecDeque<u8>,
    /// How many of the bytes that have come lie behind the object's end, and whether such were taken last.
    hole: usize,
    met_end: bool,
}

impl SimData {
    /// A new connection.
    pub fn new(process: &Rc<Process>, node: NodeId, session: SessionId) -> Self {
        let number = process.ticket().0;
        let room = process.has_small_buffers.then(|| {
            let small = |_: &mut Random| small_buffers(process.id.get().rotate_left(32) ^ number);
            let room = process.decide(format_args!("buffers client{}>node{node}", process.index), Vec::new(), small);
            let bytes =
                |at: usize| room.get(at).map_or(usize::MAX, |bytes| usize::try_from(*bytes).unwrap_or(usize::MAX));
            (bytes(0), bytes(1))
        });
        Self {
            process: Rc::clone(process),
            session,
            node,
            number,
            wire: Rc::new(Wire::new(room)),
            window: InFlightWindow::new(WRITES_IN_FLIGHT_MAX, WRITE_WINDOW),
            writes: VecDeque::new(),
            replies: VecDeque::new(),
            asked: VecDeque::new(),
            unsent: VecDeque::new(),
            come: VecDeque::new(),
            hole: 0,
            met_end: false,
        }
    }

    /// Whether nothing is outstanding.
    pub fn is_free(&self) -> bool {
        self.writes.is_empty() && self.asked.is_empty() && self.unsent.is_empty()
    }

    /// All bytes of a request are on the wire.
    fn sent(&self, request: &DataRequest, bytes: &[u8], append: Option<OperationId>) -> Ticket {
        self.wire.sent_all();
        let (session, connection, wire) = (self.session, self.number, Rc::clone(&self.wire));
        let (mut request, bytes, pieces_ms) = (*request, Bytes(bytes.to_vec()), Vec::new());
        if request.operation == DataOperation::Revoke {
            // Requests find their node by the object.
            request.object = ObjectId::new(self.node, 0);
        }
        let sent = self.process.files.borrow_mut().moment();
        let message = DataMessage { session, connection, wire, request, bytes, append, pieces_ms, sent };
        self.process.ask(Ask::Data(Box::new(message)))
    }

    /// Waits until the connection takes bytes or `or` holds.
    async fn wait_for_room(&self, or: impl Fn() -> bool) {
        poll_fn(|_| if self.wire.has_room(1) || or() { Poll::Ready(()) } else { Poll::Pending }).await;
        self.wire.go_on();
        self.process.progressed();
    }

    /// Sends a request while no reply is due.
    async fn send(&self, request: &DataRequest, bytes: &[u8], append: Option<OperationId>) -> Ticket {
        let mut left = REQUEST_BYTES + bytes.len();
        loop {
            left -= self.wire.send(left);
            if left == 0 {
                return self.sent(request, bytes, append);
            }
            self.wire.await_room(true);
            self.wait_for_room(|| false).await;
        }
    }

    /// As `InFlightWrites::send` of `weft-transport`: receives replies for as long as the connection takes no bytes.
    async fn send_in_window(&mut self, request: &DataRequest, bytes: &[u8]) -> Ticket {
        let all = REQUEST_BYTES + bytes.len();
        let (mut sent, mut takes_bytes) = (0, true);
        while sent < all {
            match self.window.next(bytes.len(), takes_bytes, sent > 0) {
                NextStep::Send => {
                    sent += self.wire.send(all - sent);
                    takes_bytes = false;
                }
                NextStep::AwaitRoomOrReply => {
                    let oldest = self.writes[self.replies.len()].0;
                    self.wire.await_room(false);
                    self.begin_to_read(oldest);
                    self.wait_for_room(|| self.process.has_answer(oldest)).await;
                    self.wire.read(None);
                    takes_bytes = self.wire.has_room(1);
                    if self.process.has_answer(oldest) {
                        self.receive_early(oldest).await;
                    }
                }
                NextStep::AwaitRoom => {
                    self.wire.await_room(true);
                    self.wait_for_room(|| false).await;
                    takes_bytes = true;
                }
                NextStep::ReadReply => unreachable!("the machine asks whether the window admits a write"),
            }
        }
        self.sent(request, bytes, None)
    }

    async fn receive_early(&mut self, oldest: Ticket) {
        let reply = self.receive_reply(oldest).await.map(|(reply, _)| reply);
        self.window.received(REPLY_BYTES);
        self.replies.push_back(reply);
    }

    fn begin_to_read(&self, ticket: Ticket) {
        if self.wire.read(Some(ticket)) {
            self.process.ask(Ask::Read(self.number));
        }
    }

    async fn receive_reply(&self, ticket: Ticket) -> Result<(DataReply, Vec<u8>)> {
        self.begin_to_read(ticket);
        let told = self.process.told(ticket).await;
        self.wire.read(None);
        match told {
            Told::Data(reply, bytes) => {
                if self.wire.took(REPLY_BYTES + bytes.0.len()) {
                    self.process.ask(Ask::Read(self.number));
                }
                Ok((reply, bytes.0))
            }
            Told::Broken => Err(Error::Unreachable),
            Told::Reply(_) | Told::Time => unreachable!("a data request is answered by data"),
        }
    }

    /// Asks for a descriptor.
    pub async fn ask_descriptor(&mut self, request: &DataRequest) -> Result<(DataReply, Option<Descriptor>)> {
        self.drain().await?;
        let ticket = self.send(request, &[], None).await;
        let (reply, _) = self.receive_reply(ticket).await?;
        Ok((reply, self.wire.take_passed()))
    }

    /// Reads the replies to everything that was sent.
    async fn drain(&mut self) -> Result<()> {
        while let Some((_, reply)) = self.finish().await {
            reply?;
        }
        self.discard().await
    }

    /// Sends prefetches that may be sent now, as `Asked` of `weft-transport`.
    async fn send_unsent(&mut self) {
        let has_room = || self.wire.has_room(REQUEST_BYTES);
        while !self.unsent.is_empty() && may_prefetch(self.asked.len(), self.come.is_empty(), has_room) {
            let request = self.unsent.pop_front().expect("there is one");
            let ticket = self.send(&request, &[], None).await;
            self.asked.push_back((ticket, request.bytes as usize));
        }
    }
}

impl Drop for SimData {
    fn drop(&mut self) {
        if self.wire.close() {
            self.process.ask(Ask::Read(self.number));
        }
    }
}

impl DataConnection for SimData {
    /// The append that a write makes, for the model: nothing is registered here.
    type Registration = OperationId;

    async fn read(
        &mut self,
        request: &DataRequest,
        into: &mut [u8],
        _registration: Option<OperationId>,
    ) -> Result<DataReply> {
        self.drain().await?;
        let ticket = self.send(request, &[], None).await;
        let (reply, bytes) = self.receive_reply(ticket).await?;
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(reply)
    }

    async fn write(
        &mut self,
        request: &DataRequest,
        from: &[u8],
        registration: Option<OperationId>,
    ) -> Result<DataReply> {
        self.drain().await?;
        let ticket = self.send(request, from, registration).await;
        self.receive_reply(ticket).await.map(|(reply, _)| reply)
    }

    async fn start_write(&mut self, request: &DataRequest, from: Vec<u8>) -> std::result::Result<(), Vec<u8>> {
        assert!(self.asked.is_empty(), "prefetches and writes in flight use connections of their own");
        let ticket = self.send_in_window(request, &from).await;
        self.window.sent(from.len());
        self.writes.push_back((ticket, from));
        Ok(())
    }

    async fn start_lent(&mut self, request: &DataRequest, from: &[u8]) -> Result<()> {
        let started = self.start_write(request, from.to_vec()).await;
        assert!(started.is_ok(), "what breaks a connection here shows when a write is finished");
        Ok(())
    }

    async fn finish(&mut self) -> Option<(Vec<u8>, Result<DataReply>)> {
        let (ticket, memory) = self.writes.pop_front()?;
        let reply = match self.replies.pop_front() {
            Some(reply) => reply,
            None => self.receive_reply(ticket).await.map(|(reply, _)| reply),
        };
        self.window.answered();
        Some((memory, reply))
    }

    async fn ask(&mut self, request: &DataRequest) -> Result<()> {
        assert!(self.writes.is_empty(), "prefetches and writes in flight use connections of their own");
        self.unsent.push_back(*request);
        self.send_unsent().await;
        Ok(())
    }

    async fn receive(&mut self, into: &mut [u8]) -> Result<usize> {
        if self.come.is_empty() {
            self.send_unsent().await;
            let Some((ticket, length)) = self.asked.pop_front() else { return Ok(0) };
            let (reply, mut bytes) = self.receive_reply(ticket).await?;
            reply.result()?;
            self.hole = length - bytes.len();
            bytes.resize(length, 0);
            self.come = bytes.into();
            self.send_unsent().await;
        }
        let data = self.come.len() - self.hole;
        self.met_end = data == 0;
        let count = into.len().min(if self.met_end { self.hole } else { data });
        self.hole -= if self.met_end { count } else { 0 };
        for (place, byte) in into.iter_mut().zip(self.come.drain(..count)) {
            *place = byte;
        }
        Ok(count)
    }

    fn met_end(&self) -> bool {
        self.met_end
    }

    async fn receive_in_place(&mut self, _bytes: usize, _give: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(false)
    }

    async fn discard(&mut self) -> Result<()> {
        self.come.clear();
        self.hole = 0;
        self.unsent.clear();
        while let Some((ticket, _)) = self.asked.pop_front() {
            self.receive_reply(ticket).await?;
        }
        Ok(())
    }

    fn prefetch_window(&self) -> (u32, u64) {
        PREFETCH_WINDOW
    }

    fn may_start(&self, bytes: usize) -> bool {
        self.window.admits(bytes)
    }

    fn registers_memory(&self) -> bool {
        false
    }

    fn is_crowded(&self) -> bool {
        false
    }

    fn id(&self) -> ConnectionId {
        ConnectionId(self.number)
    }
}
