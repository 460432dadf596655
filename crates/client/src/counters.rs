//! What the client has done, for `weft bench` and tests.

use std::sync::atomic::{AtomicU64, Ordering};
use weft_transport::{Carrier, RdmaCounters};

/// Bytes by the way they went, and messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientCounters {
    pub descriptor_read_bytes: u64,
    pub descriptor_write_bytes: u64,
    pub unix_read_bytes: u64,
    pub unix_write_bytes: u64,
    pub tcp_read_bytes: u64,
    pub tcp_write_bytes: u64,
    /// Moved by the server into and out of our memory.
    pub rdma_read_bytes: u64,
    pub rdma_write_bytes: u64,
    /// Requests whose bytes the server moved: a message each way.
    pub rdma_requests: u64,
    /// Messages that told servers of memory.
    pub rdma_shown: u64,
    /// Times that memory was registered for RDMA.
    pub rdma_registrations: u64,
    /// Bytes copied into and out of connections' registered buffers.
    pub rdma_copied_bytes: u64,
    /// Requests whose memory could not be registered.
    pub rdma_not_registered: u64,
    /// Calls to shards that were awaited.
    pub shard_calls: u64,
    /// Data requests.
    pub data_requests: u64,
    pub recalls: u64,
}

#[derive(Debug, Default)]
pub(crate) struct AtomicCounters {
    pub descriptor_read_bytes: AtomicU64,
    pub descriptor_write_bytes: AtomicU64,
    unix_read_bytes: AtomicU64,
    unix_write_bytes: AtomicU64,
    tcp_read_bytes: AtomicU64,
    tcp_write_bytes: AtomicU64,
    rdma_read_bytes: AtomicU64,
    rdma_write_bytes: AtomicU64,
    pub shard_calls: AtomicU64,
    pub data_requests: AtomicU64,
    pub recalls: AtomicU64,
}

impl AtomicCounters {
    /// Counts.
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts bytes that a data connection read.
    pub fn add_read(&self, carrier: Carrier, bytes: u64) {
        let counter = match carrier {
            Carrier::Tcp => &self.tcp_read_bytes,
            Carrier::Unix => &self.unix_read_bytes,
            Carrier::Rdma => &self.rdma_read_bytes,
        };
        Self::add(counter, bytes);
    }

    /// Counts bytes that a data connection wrote.
    pub fn add_written(&self, carrier: Carrier, bytes: u64) {
        let counter = match carrier {
            Carrier::Tcp => &self.tcp_write_bytes,
            Carrier::Unix => &self.unix_write_bytes,
            Carrier::Rdma => &self.rdma_write_bytes,
        };
        Self::add(counter, bytes);
    }

    /// All counters now, with those of RDMA.
    pub fn snapshot(&self, rdma: &RdmaCounters) -> ClientCounters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClientCounters {
            descriptor_read_bytes: value(&self.descriptor_read_bytes),
            descriptor_write_bytes: value(&self.descriptor_write_bytes),
            unix_read_bytes: value(&self.unix_read_bytes),
            unix_write_bytes: value(&self.unix_write_bytes),
            tcp_read_bytes: value(&self.tcp_read_bytes),
            tcp_write_bytes: value(&self.tcp_write_bytes),
            rdma_read_bytes: value(&self.rdma_read_bytes),
            rdma_write_bytes: value(&self.rdma_write_bytes),
            rdma_requests: value(&rdma.requests),
            rdma_shown: value(&rdma.shown),
            rdma_registrations: value(&rdma.registrations),
            rdma_copied_bytes: value(&rdma.copied_bytes),
            rdma_not_registered: value(&rdma.not_registered),
            shard_calls: value(&self.shard_calls),
            data_requests: value(&self.data_requests),
            recalls: value(&self.recalls),
        }
    }
}
