//! Reads whose bytes the client copies out of this process's memory.
//!
//! Lent are bytes of objects without a file: those of files go by `sendfile`, which copies no more. The next request
//! says that they were copied, and so does the end of the connection. A client that says nothing for [`LENT_TIME`] gets
//! its buffers taken back; nobody waits for one to which the store's own memory was lent.

use super::DataConnection;
use crate::counters::AtomicCounters;
use std::time::Duration;
use weft_protocol::Error;
use weft_protocol::data::{DataOperation, DataReply, DataRequest, LentBytes};
use weft_store_io::{Loans, Segment};
use weft_transport::{Result, SocketKind};

/// How long a client may take to copy what buffers have: a thousand times as long as it does.
const LENT_TIME: Duration = Duration::from_millis(100);

impl DataConnection<'_> {
    /// Tells the client of the memory that this process lends.
    pub(super) fn open_loans(&mut self, request: &DataRequest) -> Result<()> {
        if self.socket.kind() != SocketKind::Unix || !self.node.store.lends() {
            return self.refuse(request, &Error::NotSupported);
        }
        let loans = Loans::new()?;
        let reply = DataReply { id: request.id, ..DataReply::default() };
        let sent = self.socket.send_all_with(&reply.encode(), &loans.shared().encode());
        self.loans = Some(loans);
        sent
    }

    /// The bytes of a read, if they are lent and not sent.
    pub(super) fn lend(
        &mut self,
        request: &DataRequest,
        segment: Segment<'_>,
    ) -> weft_protocol::Result<Option<LentBytes>> {
        match (&mut self.loans, segment) {
            (Some(loans), Segment::Blocks { object, offset, bytes }) if request.memory.address != 0 && bytes > 0 => {
                loans.lend(object, offset, bytes)
            }
            _ => Ok(None),
        }
    }

    pub(super) fn reply_with_loan(&mut self, request: &DataRequest, reply: DataReply, lent: &LentBytes) -> Result<()> {
        let parts = u8::try_from(lent.parts.len()).expect("a loan has at most LENT_PARTS_MAX parts");
        self.last_lent = Some(*request);
        AtomicCounters::add(&self.node.counters.read_memory_bytes, lent.bytes());
        self.socket.send_all_with(&DataReply { lent_parts: parts, ..reply }.encode(), &lent.encode())
    }

    /// The client has copied what was lent, or asks for it again since it came too late.
    pub(super) fn end_loan(&mut self, next: &DataRequest) {
        if let Some(lent) = self.last_lent.take()
            && next.operation == DataOperation::Read
            && (next.object, next.offset, next.bytes, next.memory.address) == (lent.object, lent.offset, lent.bytes, 0)
        {
            AtomicCounters::add(&self.node.counters.read_memory_lost_bytes, u64::from(next.bytes));
        }
        if let Some(loans) = &mut self.loans {
            loans.take_back();
        }
    }

    /// Receives the beginning of a request, and takes buffers back that are lent for too long meanwhile.
    pub(super) fn receive_while_lent(&mut self, header: &mut [u8]) -> Result<usize> {
        let Some(loans) = self.loans.as_mut().filter(|loans| loans.has_buffers()) else {
            return self.socket.receive_some_soon(header);
        };
        if let Some(count) = self.socket.receive_some_within(header, LENT_TIME)? {
            return Ok(count);
        }
        loans.take_back();
        self.socket.receive_some(header)
    }
}
