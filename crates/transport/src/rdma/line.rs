//! The line beside the transfers: requests and replies go through it, and what memory the server may reach. It is the
//! connection's socket, or messages of UCX, one after the other in either case; all of them the same, since what shows
//! memory must not come behind the request that uses it.

use super::settings::Rpc;
use super::{RdmaCounters, RdmaSettings};
use crate::patience::Wait;
use crate::{Result, Socket, TransportError};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weft_protocol::data::{BulkDescriptor, DataOperation, DataReply, DataRequest, REPLY_BYTES, SHOWN_LENGTH_BYTES};
use weft_protocol::limits::RDMA_REGIONS_MAX;
use weft_ucx::{Lent, Receiver};

/// Pieces of callers' memory that a connection shows at a time; the one used longest ago is hidden for another. The
/// server keeps one more: the connection's own.
const SHOWN_MAX: usize = RDMA_REGIONS_MAX / 4;

/// Memory that the server knows.
#[derive(Debug)]
struct Shown {
    number: u32,
    address: u64,
    bytes: u64,
    key: Vec<u8>,
}

/// What of a connection carries the line, and tells that the other side is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire<'a> {
    pub socket: &'a Socket,
    pub receiver: &'a Receiver,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Line {
    rpc: Rpc,
    look: Duration,
    counters: Arc<RdmaCounters>,
    last_number: u32,
    /// The one used last at the end.
    shown: VecDeque<Shown>,
}

impl Line {
    pub fn new(settings: &RdmaSettings, counters: Arc<RdmaCounters>) -> Self {
        Self { rpc: settings.rpc, look: settings.look, counters, last_number: 0, shown: VecDeque::new() }
    }

    /// Sends a request whose bytes are moved into or out of this memory.
    pub fn send(&self, wire: Wire<'_>, request: &DataRequest, memory: BulkDescriptor) -> Result<()> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        self.put(wire, &DataRequest { memory, ..*request }, &[])
    }

    /// Sends a request and what stands behind it.
    pub fn put(&self, wire: Wire<'_>, request: &DataRequest, body: &[u8]) -> Result<()> {
        match self.rpc {
            Rpc::Socket => wire.socket.send_all_with(&request.encode(), body),
            Rpc::Am => Ok(wire.receiver.tell(&[&request.encode()[..], body].concat())?),
        }
    }

    /// As [`Line::send`], of memory of a caller, which is shown to the server first if it is new.
    pub fn send_lent(&mut self, wire: Wire<'_>, request: &DataRequest, lent: &Lent) -> Result<()> {
        if !lent.is_known() {
            self.counters.registrations.fetch_add(1, Ordering::Relaxed);
        }
        let ((address, bytes), key) = (lent.registered(), lent.packed_key()?);
        let number = self.number_of(wire, address, bytes as u64, &key)?;
        self.send(wire, request, BulkDescriptor { address: lent.address(), key: number, memory_type: 0 })
    }

    /// Sends such a request, and waits for its reply.
    pub fn call_lent(&mut self, wire: Wire<'_>, request: &DataRequest, lent: &Lent) -> Result<DataReply> {
        self.send_lent(wire, request, lent)?;
        self.reply(wire)
    }

    /// Waits for the next reply, while the server's transfers go on, for as long as the socket's patience lasts.
    pub fn reply(&self, wire: Wire<'_>) -> Result<DataReply> {
        self.reply_within(wire, None)
    }

    /// The same, which may take so long if the request goes by UCX.
    pub fn reply_within(&self, wire: Wire<'_>, patience: Option<Duration>) -> Result<DataReply> {
        let header = match self.rpc {
            Rpc::Socket => self.header_by_socket(wire)?,
            Rpc::Am => match self.message(wire, patience)? {
                Some(message) => (*message).try_into().map_err(|_| TransportError::Malformed)?,
                // A server that has no way to us any more says so there, or hangs up.
                None => self.header_by_socket(wire)?,
            },
        };
        DataReply::decode(&header).map_err(|_| TransportError::Malformed)
    }

    /// The next message of the server; `None`: the socket has something.
    fn message(&self, wire: Wire<'_>, patience: Option<Duration>) -> Result<Option<Box<[u8]>>> {
        let (since, mut wait, mut ended) = (Instant::now(), Wait::default(), None);
        let goes_on = || {
            if patience.is_some_and(|patience| since.elapsed() > patience) {
                return Err(weft_ucx::Error::Late);
            }
            wait.looked(wire.socket).map_err(|error| {
                ended = Some(error);
                weft_ucx::Error::Late
            })
        };
        let message = wire.receiver.next(wire.socket.as_fd(), self.look, goes_on);
        message.map_err(|error| ended.unwrap_or(TransportError::Rdma(error)))
    }

    fn header_by_socket(&self, Wire { socket, receiver }: Wire<'_>) -> Result<[u8; REPLY_BYTES]> {
        let (mut header, mut have, mut wait) = ([0; REPLY_BYTES], 0, Wait::default());
        receiver.until(socket.as_fd(), self.look, || {
            if let Err(error) = wait.looked(socket) {
                return Ok(Some(Err(error)));
            }
            match socket.receive_now(header.get_mut(have..).unwrap_or_default()) {
                Ok(Some(count)) => have += count,
                Ok(None) => {}
                Err(error) => return Ok(Some(Err(error))),
            }
            Ok((have == REPLY_BYTES).then_some(Ok(())))
        })??;
        Ok(header)
    }

    /// Tells the server of memory under a new number.
    pub fn show(&mut self, wire: Wire<'_>, address: u64, bytes: u64, key: &[u8]) -> Result<u32> {
        // 0 is no number.
        self.last_number = self.last_number.checked_add(1).ok_or(TransportError::Malformed)?;
        let number = self.last_number;
        let body = [&bytes.to_le_bytes()[..], key].concat();
        debug_assert_eq!(body.len(), SHOWN_LENGTH_BYTES + key.len());
        let body_bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let memory = BulkDescriptor { address, key: number, memory_type: 0 };
        let request = DataRequest { memory, ..DataRequest::about_nothing(DataOperation::ShowMemory, body_bytes) };
        self.put(wire, &request, &body)?;
        self.counters.shown.fetch_add(1, Ordering::Relaxed);
        Ok(number)
    }

    /// Tells the server that it may not use memory any more. Requests that were sent before are served before.
    pub fn hide(&self, wire: Wire<'_>, number: u32) -> Result<()> {
        let memory = BulkDescriptor { address: 0, key: number, memory_type: 0 };
        let request = DataRequest { memory, ..DataRequest::about_nothing(DataOperation::ShowMemory, 0) };
        self.put(wire, &request, &[])
    }

    /// The number of a caller's memory; it is shown if it is not known, or is another registration now.
    pub fn number_of(&mut self, wire: Wire<'_>, address: u64, bytes: u64, key: &[u8]) -> Result<u32> {
        let end = address + bytes;
        let covers = |shown: &Shown| shown.address <= address && end <= shown.address + shown.bytes && shown.key == key;
        if let Some(position) = self.shown.iter().rposition(covers)
            && let Some(known) = self.shown.remove(position)
        {
            let number = known.number;
            self.shown.push_back(known);
            return Ok(number);
        }
        while self.shown.len() >= SHOWN_MAX {
            let Some(oldest) = self.shown.pop_front() else { break };
            self.hide(wire, oldest.number)?;
        }
        let number = self.show(wire, address, bytes, key)?;
        self.shown.push_back(Shown { number, address, bytes, key: key.to_vec() });
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use weft_protocol::data::REQUEST_BYTES;

    fn shown(socket: &Socket) -> (u32, u64, Vec<u8>) {
        let mut header = [0; REQUEST_BYTES];
        socket.receive_exact(&mut header).unwrap();
        let request = DataRequest::decode(&header).unwrap();
        assert_eq!(request.operation, DataOperation::ShowMemory);
        let mut body = vec![0; request.bytes as usize];
        socket.receive_exact(&mut body).unwrap();
        (request.memory.key, request.memory.address, body)
    }

    #[test]
    fn memory_is_shown_once_for_each_registration_and_the_oldest_is_hidden() {
        let (near, far) = UnixStream::pair().unwrap();
        let (near, far) = (Socket::from_unix(near), Socket::from_unix(far));
        let Ok(receiver) = Receiver::new() else { return println!("skipped: there is no UCX") };
        let near = Wire { socket: &near, receiver: &receiver };
        let settings = RdmaSettings { rpc: Rpc::Socket, ..RdmaSettings::default() };
        let mut line = Line::new(&settings, Arc::default());
        assert_eq!(line.number_of(near, 1000, 100, b"a").unwrap(), 1);
        assert_eq!(shown(&far), (1, 1000, [&100u64.to_le_bytes()[..], b"a"].concat()));
        assert_eq!(line.number_of(near, 1010, 90, b"a").unwrap(), 1, "a part of it");
        assert_eq!(line.number_of(near, 1010, 91, b"a").unwrap(), 2, "one byte more");
        assert_eq!(line.number_of(near, 1000, 100, b"b").unwrap(), 3, "registered anew");
        assert_eq!((shown(&far).0, shown(&far).0), (2, 3));
        for count in 3..SHOWN_MAX as u64 {
            line.number_of(near, 1_000_000 * count, 1, b"a").unwrap();
            shown(&far);
        }
        assert_eq!(line.number_of(near, 1000, 100, b"a").unwrap(), 1, "used last now");
        line.number_of(near, 5, 1, b"a").unwrap();
        assert_eq!(shown(&far), (2, 0, Vec::new()), "hidden");
        assert_eq!(shown(&far).1, 5);
    }
}
