//! Counters for `weft status`.

use std::sync::atomic::{AtomicU64, Ordering};
use weft_protocol::message::node::{Counters, RdmaCounters};

/// Counters that any thread increments.
#[derive(Default)]
pub struct AtomicCounters {
    pub requests: AtomicU64,
    pub read_tcp_bytes: AtomicU64,
    pub read_unix_bytes: AtomicU64,
    pub write_tcp_bytes: AtomicU64,
    pub write_unix_bytes: AtomicU64,
    pub write_memory_bytes: AtomicU64,
    pub read_memory_bytes: AtomicU64,
    pub read_memory_lost_bytes: AtomicU64,
    pub read_rdma_bytes: AtomicU64,
    pub write_rdma_bytes: AtomicU64,
    pub rdma_puts: AtomicU64,
    pub rdma_gets: AtomicU64,
    pub rdma_flushes: AtomicU64,
    pub rdma_regions: AtomicU64,
    pub rdma_placed_bytes: AtomicU64,
    pub rdma_mapped_bytes: AtomicU64,
    pub rdma_streamed_bytes: AtomicU64,
    pub rdma_messages: AtomicU64,
    pub descriptors_passed: AtomicU64,
    pub capabilities_rejected: AtomicU64,
    pub peers_rejected: AtomicU64,
}

impl AtomicCounters {
    /// Adds to one of the counters.
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the current values.
    pub fn read(&self) -> Counters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            requests: value(&self.requests),
            read_tcp_bytes: value(&self.read_tcp_bytes),
            read_unix_bytes: value(&self.read_unix_bytes),
            write_tcp_bytes: value(&self.write_tcp_bytes),
            write_unix_bytes: value(&self.write_unix_bytes),
            write_memory_bytes: value(&self.write_memory_bytes),
            read_memory_bytes: value(&self.read_memory_bytes),
            read_memory_lost_bytes: value(&self.read_memory_lost_bytes),
            rdma: RdmaCounters {
                read_bytes: value(&self.read_rdma_bytes),
                write_bytes: value(&self.write_rdma_bytes),
                puts: value(&self.rdma_puts),
                gets: value(&self.rdma_gets),
                flushes: value(&self.rdma_flushes),
                regions: value(&self.rdma_regions),
                placed_bytes: value(&self.rdma_placed_bytes),
                mapped_bytes: value(&self.rdma_mapped_bytes),
                streamed_bytes: value(&self.rdma_streamed_bytes),
                messages: value(&self.rdma_messages),
            },
            descriptors_passed: value(&self.descriptors_passed),
            capabilities_rejected: value(&self.capabilities_rejected),
            peers_rejected: value(&self.peers_rejected),
        }
    }
}
