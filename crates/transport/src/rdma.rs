//! File data by RDMA: the server moves the bytes into and out of our memory (docs/rdma.md).
//!
//! Sketch, per request: one message each way. *Static*: the bytes lie in a registered buffer of the connection, and are
//! copied out of it or into it; larger requests are cut into parts ([`CALL_PART_BYTES`]), sent ahead, so that one is
//! copied while the next is moved. *Dynamic*: no copy; the caller's memory is registered for the call, and shown to the
//! server with one message more when it is new.
//!
//! A write that was started from given memory, and what is asked for ahead, likewise: the one from the memory or
//! through the buffer, the other in the buffer until it is taken.
//!
//! What the server cannot reach ([`weft_protocol::Error::NotSupported`]) goes by the socket from then on. After any
//! other failure the way to our memory is ended before that is the caller's again.

mod asked;
mod crossover;
mod line;
mod settings;
mod staging;

pub use settings::{DIRECT_FROM_BYTES, REGISTERED_FROM_BYTES, RdmaSettings, Registration, Rpc};

use crate::bulk::{Ahead, BulkConnection, Carrier, NotStarted, Passed};
use crate::{Result, Socket, SocketBulk, TransportError};
use asked::Asked;
use crossover::Crossover;
use line::{Line, Wire};
use staging::Staging;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use weft_protocol::data::{DataOperation, DataReply, DataRequest, PROBE_BYTES, PROBE_TOLD_BYTES, REPLY_BYTES};
use weft_protocol::{Error, InFlightWindow, limits};
use weft_ucx::{Library, Liveness, Receiver, Region, Registry};

/// Bytes of one part of what goes through the connection's buffer, if nobody waits for it.
const PART_BYTES: usize = 1 << 20;
/// The same of a call that somebody waits for: one part is copied while the server moves the next. Measured: 1 MiB in
/// parts of 128 KiB takes half the time; of what goes ahead anyhow, small parts cost a tenth more.
const CALL_PART_BYTES: usize = 128 << 10;
/// Parts of a call on their way at once: enough to keep the server busy, and no flood.
const CALL_PARTS_MAX: usize = 32;
/// Writes in flight. Their requests and replies, 32 times some hundred bytes, fit the socket's buffers, so that neither
/// side blocks in a send while the other one waits for a transfer; and each may pin the memory of a whole run.
const WRITES_IN_FLIGHT_MAX: usize = 32;
/// What is asked for ahead, and written behind.
const AHEAD: Ahead = Ahead { turn_bytes: 1 << 20, bytes: 4 << 20 };

/// How long the first request may take whose way is not known to lead anywhere.
const PROBE_PATIENCE: Duration = Duration::from_secs(15);

/// What was done, for people and tests.
#[derive(Debug, Default)]
pub struct RdmaCounters {
    /// Requests whose bytes the server moved; each is one message each way.
    pub requests: AtomicU64,
    /// Messages that told of memory.
    pub shown: AtomicU64,
    /// Times that memory was registered: connections' buffers, callers' memory for one transfer, and what the program
    /// has registered.
    pub registrations: AtomicU64,
    /// Bytes that were copied into or out of the connections' buffers.
    pub copied_bytes: AtomicU64,
    /// Requests that went through the connection's buffer because memory could not be registered.
    pub not_registered: AtomicU64,
    /// Reads of so many bytes or more go into the caller's memory, over the connection made last; 0: none was made.
    pub direct_read_from: AtomicUsize,
    /// The same of memory that the program has registered.
    pub registered_read_from: AtomicUsize,
}

/// What became of asking a server for RDMA.
#[derive(Debug)]
pub enum Opened {
    Rdma(Box<RdmaBulk>),
    /// It cannot, or we cannot, for this reason. The connection is in order.
    Refused(Socket, String),
}

/// File data by RDMA beside a socket.
#[derive(Debug)]
pub struct RdmaBulk {
    // In this order: the way to the memory ends before the memory goes.
    receiver: Receiver,
    staging: Staging,
    sockets: SocketBulk,
    line: Line,
    settings: RdmaSettings,
    /// As the settings say.
    usual: Crossover,
    /// For reads and writes that wait.
    crossover: Crossover,
    counters: Arc<RdmaCounters>,
    /// Whether the server shares the connection's buffer.
    is_shared: bool,
    /// Whether the server can reach our memory.
    reached: bool,
    started: VecDeque<Started>,
    /// Of what was started.
    window: InFlightWindow,
    asked: Asked,
}

/// A write on its way.
#[derive(Debug)]
struct Started {
    request: DataRequest,
    /// Where it is, unless the receiver has it.
    memory: Option<Vec<u8>>,
    replies_left: usize,
    /// What the replies so far come to.
    reply: DataReply,
}

impl RdmaBulk {
    /// Asks the server over a socket whose handshake is done.
    pub fn open(
        socket: Socket,
        settings: RdmaSettings,
        counters: Arc<RdmaCounters>,
        registry: Arc<Registry>,
    ) -> Result<Opened> {
        let made = Library::get().and_then(|library| {
            let receiver = Receiver::with_registry(registry)?;
            Ok((library.wire_version(), receiver.address()?, receiver))
        });
        let (version, address, mut receiver) = match made {
            Ok(made) if made.1.len() <= limits::RDMA_ADDRESS_BYTES_MAX => made,
            Ok((_, address, _)) => {
                let reason = format!("UCX has an address of {} bytes: name fewer devices", address.len());
                return Ok(Opened::Refused(socket, reason));
            }
            Err(error) => return Ok(Opened::Refused(socket, error.to_string())),
        };
        let told = [&version[..], &[u8::from(settings.rpc == Rpc::Am)], &address].concat();
        let bytes = u32::try_from(told.len()).unwrap_or(u32::MAX);
        let request = DataRequest::about_nothing(DataOperation::OpenRdma, bytes);
        socket.send_all_with(&request.encode(), &told)?;
        let mut header = [0; REPLY_BYTES];
        socket.receive_exact(&mut header)?;
        let reply = DataReply::decode(&header).map_err(|_| TransportError::Malformed)?;
        if reply.result().is_err() {
            let reason =
                "the node has no UCX of this version, or cannot reach this process by it (`weft status -v` says why)";
            return Ok(Opened::Refused(socket, reason.to_owned()));
        }
        let mut theirs = vec![0; reply.bulk_bytes as usize];
        if theirs.len() > limits::RDMA_ADDRESS_BYTES_MAX {
            return Err(TransportError::Malformed);
        }
        socket.receive_exact(&mut theirs)?;
        let liveness = if reply.size == 0 { Liveness::Caller } else { Liveness::Endpoint };
        if let Err(error) = receiver.connect(&theirs, liveness) {
            return Ok(Opened::Refused(socket, error.to_string()));
        }
        let line = Line::new(&settings, Arc::clone(&counters));
        let (staging, sockets) = (Staging::default(), SocketBulk::streaming(socket));
        let (started, asked) = (VecDeque::new(), Asked::default());
        let window = InFlightWindow::new(WRITES_IN_FLIGHT_MAX, AHEAD.bytes as usize);
        let usual = Crossover::of(&settings, false, &mut receiver);
        let mut bulk = Self {
            receiver,
            staging,
            sockets,
            line,
            settings,
            usual,
            crossover: usual,
            counters,
            is_shared: false,
            reached: true,
            started,
            window,
            asked,
        };
        Ok(match bulk.probe()? {
            None => Opened::Rdma(Box::new(bulk)),
            Some(reason) => Opened::Refused(bulk.sockets.into_socket(), reason),
        })
    }

    /// Has the server get a number out of the connection's buffer, so that the way is known to lead here. A text: why
    /// it does not, or why there is no buffer.
    fn probe(&mut self) -> Result<Option<String>> {
        let mut number = [0; PROBE_BYTES as usize];
        getrandom::fill(&mut number).map_err(std::io::Error::from)?;
        match self.grow(number.len()) {
            Err(TransportError::Rdma(error)) => return Ok(Some(error.to_string())),
            grown => grown?,
        }
        if !self.staging.copy_in(0, &number) {
            return Err(TransportError::Malformed);
        }
        let told = u32::try_from(PROBE_TOLD_BYTES).unwrap_or(u32::MAX);
        let request = DataRequest::about_nothing(DataOperation::ProbeMemory, told);
        let request = DataRequest { memory: self.staging.descriptor(0), ..request };
        let Crossover { read_from, write_from, .. } = self.usual;
        let body = [(read_from as u64).to_le_bytes(), (write_from as u64).to_le_bytes()].concat();
        self.line.put(self.wire(), &request, &body)?;
        let reply = match self.line.reply_within(self.wire(), Some(PROBE_PATIENCE)) {
            Err(TransportError::Rdma(error)) => return Ok(Some(error.to_string())),
            reply => reply?,
        };
        if reply.result().is_err() || reply.size.to_le_bytes() != number {
            return Ok(Some("no byte of this process reaches the node by UCX (`weft status -v` says why)".to_owned()));
        }
        let is_shared = reply.written_bytes != 0;
        self.is_shared = is_shared;
        self.usual = Crossover::of(&self.settings, is_shared, &mut self.receiver);
        self.crossover = self.usual;
        self.counters.direct_read_from.store(self.usual.read_from, Ordering::Relaxed);
        self.counters.registered_read_from.store(self.usual.registered_from, Ordering::Relaxed);
        Ok(None)
    }

    /// Whatever failed, nobody reaches our memory any more, and the connection is of no more use.
    fn settled<T>(&mut self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.receiver.revoke();
            self.sockets.socket().shutdown();
        }
        result
    }

    /// Sees that the connection's buffer can hold so many bytes at once, as far as it may and can. Only when it is
    /// empty: whoever needs more has to wait for that.
    fn grow(&mut self, bytes: usize) -> Result<()> {
        let bytes_max = self.settings.buffer_bytes_max;
        if !self.staging.is_to_grow(bytes, bytes_max) {
            return Ok(());
        }
        let mut wanted = Staging::grown_bytes(bytes, bytes_max);
        loop {
            match Region::allocate(wanted).and_then(|region| Ok((region.packed_key()?, region))) {
                Ok((key, region)) => {
                    self.counters.registrations.fetch_add(1, Ordering::Relaxed);
                    let old = self.staging.number;
                    let wire = Wire { socket: self.sockets.socket(), receiver: &self.receiver };
                    let number = self.line.show(wire, region.address(), region.bytes() as u64, &key)?;
                    if old != 0 {
                        self.line.hide(wire, old)?;
                    }
                    self.staging.replace(region, number);
                    return Ok(());
                }
                // What may be locked in memory is used up: less will do.
                Err(_) if wanted / 2 >= PART_BYTES.min(bytes) && wanted / 2 > self.staging.bytes() => wanted /= 2,
                Err(_) if self.staging.bytes() > 0 => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn wire(&self) -> Wire<'_> {
        Wire { socket: self.sockets.socket(), receiver: &self.receiver }
    }

    fn note_copied(&self, bytes: usize) {
        self.counters.copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn drain(&mut self) -> Result<()> {
        while let Some((_, result)) = self.finish() {
            result?;
        }
        self.discard()
    }

    /// Whether a request goes by RDMA at all.
    fn moves(&self, request: &DataRequest) -> bool {
        let moved = matches!(request.operation, DataOperation::Read | DataOperation::Write);
        self.reached && moved && request.bytes > 0
    }

    /// A read by RDMA: into the caller's memory if it is large; else, or where that cannot be registered, through the
    /// buffer.
    fn read_moved(&mut self, request: &DataRequest, into: &mut [u8]) -> Result<DataReply> {
        if self.is_direct(into, self.crossover.read_from)
            && let Some(reply) = self.read_direct(request, into)?
        {
            return Ok(reply);
        }
        self.read_staged(request, into)
    }

    /// The same for a write.
    fn write_moved(&mut self, request: &DataRequest, from: &[u8]) -> Result<DataReply> {
        if self.is_direct(from, self.crossover.write_from)
            && let Some(reply) = self.write_direct(request, from)?
        {
            return Ok(reply);
        }
        self.write_staged(request, from)
    }

    /// Whether a request moves the caller's memory: `from` so many bytes on, or because it is registered.
    fn is_direct(&self, memory: &[u8], from: usize) -> bool {
        memory.len() >= from || memory.len() >= self.crossover.registered_from && self.receiver.knows(memory)
    }

    /// What a request by RDMA came to. `None`: the server cannot reach our memory, and the socket is for it from now
    /// on.
    fn answered(&mut self, result: Result<DataReply>) -> Result<Option<DataReply>> {
        let reply = self.settled(result)?;
        self.reached = reply.result().err() != Some(Error::NotSupported);
        Ok(self.reached.then_some(reply))
    }

    /// A read into the caller's own memory. `None`: that could not be registered.
    fn read_direct(&mut self, request: &DataRequest, into: &mut [u8]) -> Result<Option<DataReply>> {
        let Self { receiver, line, sockets, .. } = self;
        let socket = sockets.socket();
        let lent = receiver.lend(into, |receiver, lent| line.call_lent(Wire { socket, receiver }, request, lent));
        self.registered(lent)
    }

    /// The same for a write.
    fn write_direct(&mut self, request: &DataRequest, from: &[u8]) -> Result<Option<DataReply>> {
        let Self { receiver, line, sockets, .. } = self;
        let socket = sockets.socket();
        let lent =
            receiver.lend_to_read(from, |receiver, lent| line.call_lent(Wire { socket, receiver }, request, lent));
        self.registered(lent)
    }

    fn registered(&mut self, lent: weft_ucx::Result<Result<DataReply>>) -> Result<Option<DataReply>> {
        match lent {
            Ok(result) => result.map(Some),
            Err(weft_ucx::Error::Failed { .. }) => {
                self.counters.not_registered.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the next part of a request, of at most so many bytes, if the buffer has a place for it. `from`: what it is
    /// to hold.
    fn send_part(
        &mut self,
        request: &DataRequest,
        (done, part_bytes): (usize, usize),
        from: Option<&[u8]>,
    ) -> Result<Option<(usize, usize)>> {
        let bytes = (request.bytes as usize - done).min(self.staging.bytes()).min(part_bytes);
        let Some(at) = self.staging.take(bytes).filter(|_| bytes > 0) else { return Ok(None) };
        if let Some(from) = from {
            let part = from.get(done..done + bytes).ok_or(TransportError::Malformed)?;
            if !self.staging.copy_in(at, part) {
                return Err(TransportError::Malformed);
            }
            self.note_copied(bytes);
        }
        self.line.send(self.wire(), &part_of(request, done, bytes), self.staging.descriptor(at))?;
        Ok(Some((at, bytes)))
    }

    fn read_staged(&mut self, request: &DataRequest, into: &mut [u8]) -> Result<DataReply> {
        self.grow(into.len())?;
        let (mut sent, mut done, mut waiting) = (0, 0, VecDeque::new());
        let (mut total, mut has_ended) = (DataReply::default(), false);
        loop {
            while sent < into.len()
                && !has_ended
                && waiting.len() < CALL_PARTS_MAX
                && let Some((at, bytes)) = self.send_part(request, (sent, CALL_PART_BYTES), None)?
            {
                waiting.push_back((at, bytes));
                sent += bytes;
            }
            let Some((at, bytes)) = waiting.pop_front() else { return Ok(total) };
            let reply = self.line.reply(self.wire())?;
            if !has_ended {
                let count = reply.bulk_bytes as usize;
                let place = into.get_mut(done..done + count).filter(|_| count <= bytes);
                if !self.staging.copy_out(at, place.ok_or(TransportError::Malformed)?) {
                    return Err(TransportError::Malformed);
                }
                self.note_copied(count);
                done += count;
                total = joined(total, reply);
                // What came behind a part that is not whole is no part of what is read.
                has_ended = count < bytes;
            }
            self.staging.give_back();
        }
    }

    fn write_staged(&mut self, request: &DataRequest, from: &[u8]) -> Result<DataReply> {
        self.grow(from.len())?;
        let (mut sent, mut waiting, mut total) = (0, 0, DataReply::default());
        loop {
            while sent < from.len()
                && total.status == 0
                && waiting < CALL_PARTS_MAX
                && let Some((_, bytes)) = self.send_part(request, (sent, CALL_PART_BYTES), Some(from))?
            {
                waiting += 1;
                sent += bytes;
            }
            if waiting == 0 {
                return Ok(total);
            }
            total = joined(total, self.line.reply(self.wire())?);
            self.staging.give_back();
            waiting -= 1;
        }
    }

    /// Sends a write from given memory: from there, or through the buffer. What was sent is noted also after an error.
    fn begin(&mut self, request: &DataRequest, mut from: Vec<u8>) -> std::result::Result<(), NotStarted> {
        let bytes = request.bytes as usize;
        // Memory that was given is used again, and registered once: a threshold is for callers' memory.
        let is_given = match self.settings.registration {
            Registration::Static => false,
            Registration::Dynamic => true,
            Registration::Auto => bytes >= self.usual.write_from,
        };
        if is_given && from.len() >= bytes {
            from = match self.begin_given(request, from) {
                Ok(()) => return Ok(()),
                Err(NotStarted { memory, error: TransportError::Rdma(weft_ucx::Error::Failed { .. }) }) => memory,
                Err(failed) => return Err(failed),
            };
        }
        match self.begin_staged(request, &from) {
            Ok((replies_left, reply)) => {
                self.started.push_back(Started { request: *request, memory: Some(from), replies_left, reply });
                Ok(())
            }
            Err(error) => Err(NotStarted { memory: from, error }),
        }
    }

    fn begin_given(&mut self, request: &DataRequest, from: Vec<u8>) -> std::result::Result<(), NotStarted> {
        let Self { receiver, line, sockets, .. } = self;
        if let Err((memory, error)) = receiver.give(from) {
            self.counters.not_registered.fetch_add(1, Ordering::Relaxed);
            return Err(NotStarted { memory, error: error.into() });
        }
        let wire = Wire { socket: sockets.socket(), receiver };
        let sent = receiver.last_given().map_or(Ok(()), |lent| line.send_lent(wire, request, lent));
        let reply = DataReply::default();
        // Also after an error: it comes to whoever waits for it, in its turn.
        self.started.push_back(Started { request: *request, memory: None, replies_left: 1, reply });
        let _ = self.settled(sent);
        Ok(())
    }

    /// Sends all parts; the replies that are left, and what those that had to come first say.
    fn begin_staged(&mut self, request: &DataRequest, from: &[u8]) -> Result<(usize, DataReply)> {
        let bytes = request.bytes as usize;
        let from = from.get(..bytes).ok_or(TransportError::Malformed)?;
        if self.started.iter().all(|started| started.replies_left == 0) {
            self.grow(bytes.max(AHEAD.bytes as usize))?;
        }
        let (mut sent, mut left, mut reply) = (0, 0, DataReply::default());
        while sent < bytes {
            if let Some((_, part)) = self.send_part(request, (sent, PART_BYTES), Some(from))? {
                left += 1;
                sent += part;
            } else if self.is_awaited() {
                self.collect()?;
            } else {
                // All that is in the buffer is of this write.
                reply = joined(reply, self.line.reply(self.wire())?);
                self.staging.give_back();
                left -= 1;
            }
        }
        Ok((left, reply))
    }

    fn is_awaited(&self) -> bool {
        self.started.iter().any(|started| started.replies_left > 0)
    }

    /// Takes the next reply to a write that was started; there has to be one.
    fn collect(&mut self) -> Result<()> {
        let reply = self.line.reply(self.wire())?;
        let Some(oldest) = self.started.iter_mut().find(|started| started.replies_left > 0) else { return Ok(()) };
        oldest.reply = joined(oldest.reply, reply);
        oldest.replies_left -= 1;
        if oldest.memory.is_some() {
            self.staging.give_back();
        }
        Ok(())
    }

    /// Waits for the oldest write; one that the server could not get goes by the socket.
    fn settle_oldest(&mut self) -> Result<DataReply> {
        while self.started.front().is_some_and(|oldest| oldest.replies_left > 0) {
            self.collect()?;
        }
        let reply = self.started.front().map(|oldest| oldest.reply).unwrap_or_default();
        if reply.result().err() == Some(Error::NotSupported) {
            self.reached = false;
            while self.is_awaited() {
                self.collect()?;
            }
        }
        Ok(reply)
    }
}

/// The part of a request that starts behind `done` bytes of it.
fn part_of(request: &DataRequest, done: usize, bytes: usize) -> DataRequest {
    let bytes = u32::try_from(bytes).unwrap_or(request.bytes);
    DataRequest { offset: request.offset + done as u64, bytes, ..*request }
}

/// The reply to a request whose parts had these: the first error, and all bytes.
fn joined(so_far: DataReply, next: DataReply) -> DataReply {
    let status = if so_far.status == 0 { next.status } else { so_far.status };
    let bulk_bytes = so_far.bulk_bytes + next.bulk_bytes;
    DataReply { status, bulk_bytes, written_bytes: so_far.written_bytes + next.written_bytes, ..next }
}

impl BulkConnection for RdmaBulk {
    fn choose(&mut self, registration: Option<Registration>) {
        self.crossover = match registration {
            None => self.usual,
            Some(registration) => {
                let settings = RdmaSettings { registration, ..self.settings };
                Crossover::of(&settings, self.is_shared, &mut self.receiver)
            }
        };
    }

    fn read(&mut self, request: &DataRequest, into: &mut [u8]) -> Result<DataReply> {
        let into = into.get_mut(..request.bytes as usize).ok_or(TransportError::Malformed)?;
        self.drain()?;
        if self.moves(request) {
            let read = self.read_moved(request, into);
            if let Some(reply) = self.answered(read)? {
                return Ok(reply);
            }
        }
        self.sockets.read(request, into)
    }

    fn write(&mut self, request: &DataRequest, from: &[u8]) -> Result<DataReply> {
        self.drain()?;
        if self.moves(request) {
            let from = from.get(..request.bytes as usize).ok_or(TransportError::Malformed)?;
            let written = self.write_moved(request, from);
            if let Some(reply) = self.answered(written)? {
                return Ok(reply);
            }
        }
        self.sockets.write(request, from)
    }

    fn ask(&mut self, request: &DataRequest) -> Result<()> {
        if !self.reached {
            return self.sockets.ask(request);
        }
        self.grow(AHEAD.bytes as usize + AHEAD.turn_bytes as usize)?;
        self.asked.push(request, self.staging.bytes().min(PART_BYTES));
        let sent = self.send_asked();
        self.settled(sent)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<usize> {
        if !self.reached {
            return self.sockets.receive(into);
        }
        let taken = self.receive_asked(into);
        self.settled(taken)
    }

    fn met_end(&self) -> bool {
        if self.reached { self.asked.met_end() } else { self.sockets.met_end() }
    }

    fn receive_in_place(&mut self, bytes: usize, give: &mut dyn FnMut(&[u8])) -> Result<bool> {
        if !self.reached {
            return Ok(false);
        }
        let handed = self.hand_asked(bytes, give);
        self.settled(handed)
    }

    fn discard(&mut self) -> Result<()> {
        self.sockets.discard()?;
        let discarded = self.discard_asked();
        self.settled(discarded)
    }

    fn ahead(&self) -> Ahead {
        if self.reached { AHEAD } else { self.sockets.ahead() }
    }

    fn start_write(&mut self, request: &DataRequest, from: Vec<u8>) -> std::result::Result<(), NotStarted> {
        if !self.moves(request) {
            // Their replies would come between those of the others.
            if let Err(error) = self.drain() {
                return Err(NotStarted { memory: from, error });
            }
            return self.sockets.start_write(request, from);
        }
        match self.begin(request, from) {
            Err(NotStarted { memory, error }) => {
                let error = self.settled::<()>(Err(error)).err().unwrap_or(TransportError::Malformed);
                Err(NotStarted { memory, error })
            }
            begun => {
                self.window.sent(request.bytes as usize);
                begun
            }
        }
    }

    fn finish(&mut self) -> Option<(Vec<u8>, Result<DataReply>)> {
        if self.started.is_empty() {
            return self.sockets.finish();
        }
        let settled = self.settle_oldest();
        let settled = self.settled(settled);
        let Started { request, memory, .. } = self.started.pop_front()?;
        self.window.answered();
        let memory = match memory {
            Some(memory) => memory,
            None => self.receiver.take_back(settled.is_ok())?,
        };
        let unreached = matches!(&settled, Ok(reply) if reply.result().err() == Some(Error::NotSupported));
        let result = if unreached { self.sockets.write(&request, &memory) } else { settled };
        Some((memory, result))
    }

    fn outstanding(&self) -> usize {
        self.started.len() + self.asked.outstanding() + self.sockets.outstanding()
    }

    fn may_start(&self, bytes: usize) -> bool {
        self.window.admits(bytes) && self.sockets.may_start(bytes)
    }

    fn descriptor(&mut self, request: &DataRequest) -> Result<(DataReply, Passed)> {
        self.drain()?;
        self.sockets.descriptor(request)
    }

    fn carrier(&self) -> Carrier {
        if self.reached { Carrier::Rdma } else { self.sockets.carrier() }
    }
}
