//! Requests to storage servers over pooled data connections, and the calls on a passed descriptor.

use crate::client::Inner;
use crate::link::Link;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
pub(crate) use weft_client_core::Held;
use weft_protocol::data::{BulkDescriptor, DataOperation, DataReply, DataRequest};
use weft_protocol::{Error, InodeNumber, NodeId, Result};
use weft_transport::{BulkConnection, Carrier, Registration};

/// A data connection, and where it is given back.
pub(crate) type Connected = (Arc<Link>, Box<dyn BulkConnection>);

/// A data request over sockets.
pub(crate) fn request(
    inode: InodeNumber,
    operation: DataOperation,
    held: Held,
    offset: u64,
    bytes: usize,
) -> DataRequest {
    DataRequest {
        operation,
        bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        id: 0,
        object: held.object,
        inode,
        offset,
        memory: BulkDescriptor::default(),
        capability: held.capability,
    }
}

impl Inner {
    /// Takes a data connection to a node.
    pub fn data_connection(&self, node: NodeId) -> Result<Connected> {
        let link = self.link_without_recalls(node)?;
        let connection = link.take_data(&self.identity, &self.data_way)?;
        Ok((link, connection))
    }

    /// Takes a data connection to keep it from call to call. `None`: too many are in use.
    pub fn data_connection_to_keep(&self, node: NodeId) -> Result<Option<Connected>> {
        let link = self.link_without_recalls(node)?;
        let connection = link.take_data_to_keep(&self.identity, &self.data_way)?;
        Ok(connection.map(|connection| (link, connection)))
    }

    /// One data request that may be repeated: on a connection that turns out to be dead, once more on a new one.
    pub fn data_call<T>(
        &self,
        node: NodeId,
        repeatable: bool,
        mut exchange: impl FnMut(&mut dyn BulkConnection) -> weft_transport::Result<T>,
    ) -> Result<T> {
        let (link, mut connection) = self.data_connection(node)?;
        self.counters.data_requests.fetch_add(1, Ordering::Relaxed);
        let result = match exchange(&mut *connection) {
            Err(_) if repeatable => {
                connection = link.replace_data(connection, &self.identity, &self.data_way)?;
                exchange(&mut *connection)
            }
            result => result,
        };
        if result.is_ok() {
            link.return_data(connection);
        }
        result.map_err(Error::from)
    }

    /// Reads into the caller's memory. `registration`: of whoever reads, by RDMA; `None`: as the client was told.
    pub fn data_read(
        &self,
        request: &DataRequest,
        into: &mut [u8],
        registration: Option<Registration>,
    ) -> Result<DataReply> {
        let (reply, carrier) = self.data_call(request.object.node(), true, |connection| {
            connection.choose(registration);
            connection.read(request, into).map(|reply| (reply, connection.carrier()))
        })?;
        self.count_read(carrier, u64::from(reply.bulk_bytes));
        reply.result().copied()
    }

    /// Writes from the caller's memory, likewise; also requests without bulk.
    pub fn data_write(
        &self,
        request: &DataRequest,
        from: &[u8],
        registration: Option<Registration>,
    ) -> Result<DataReply> {
        let repeatable = request.operation != DataOperation::Append;
        let (reply, carrier) = self.data_call(request.object.node(), repeatable, |connection| {
            connection.choose(registration);
            connection.write(request, from).map(|reply| (reply, connection.carrier()))
        })?;
        self.count_write(carrier, u64::from(reply.written_bytes));
        reply.result().copied()
    }

    pub fn count_read(&self, carrier: Carrier, bytes: u64) {
        let counter = match carrier {
            Carrier::Tcp => &self.counters.tcp_read_bytes,
            Carrier::Unix => &self.counters.unix_read_bytes,
            Carrier::Rdma => &self.counters.rdma_read_bytes,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn count_write(&self, carrier: Carrier, bytes: u64) {
        let counter = match carrier {
            Carrier::Tcp => &self.counters.tcp_write_bytes,
            Carrier::Unix => &self.counters.unix_write_bytes,
            Carrier::Rdma => &self.counters.rdma_write_bytes,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Writes all bytes through a passed descriptor, as many with a call as its server wants.
pub(crate) fn write_descriptor(file: &OwnedFd, mut bytes: &[u8], mut offset: u64, call_bytes: usize) -> Result<()> {
    while !bytes.is_empty() {
        let call = bytes.get(..call_bytes).unwrap_or(bytes);
        match rustix::io::pwrite(file, call, offset) {
            Ok(0) => return Err(Error::NoSpace),
            Ok(count) => {
                offset += count as u64;
                bytes = bytes.get(count..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(of_errno(errno)),
        }
    }
    Ok(())
}

/// Reads through a passed descriptor, up to the file's end.
pub(crate) fn read_descriptor(file: &OwnedFd, into: &mut [u8], offset: u64) -> Result<usize> {
    let mut have = 0;
    while let Some(rest) = into.get_mut(have..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, offset + have as u64) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(of_errno(errno)),
        }
    }
    Ok(have)
}

/// An error of the device below, as the file system's.
pub(crate) fn of_errno(errno: Errno) -> Error {
    match errno {
        Errno::NOSPC | Errno::DQUOT => Error::NoSpace,
        Errno::FBIG => Error::FileTooLarge,
        other => Error::Device(other.raw_os_error()),
    }
}
