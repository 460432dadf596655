//! What workers are told, and what they answer.

use crate::verb::bench::WayName;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weft_client::{ClientCounters, Registration, Rpc};

/// First line to a worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// Name of the file system.
    pub name: String,
    pub way: WayName,
    /// Whose memory is registered; `None`: as the environment says.
    pub registration: Option<Registration>,
    /// How requests for RDMA go; `None`: likewise.
    pub rpc: Option<Rpc>,
    /// Through a mount, and not by this program itself.
    pub mounted: Option<Mounted>,
    /// Number of this worker, from zero.
    pub index: usize,
    /// Directory in which the benchmark takes place.
    pub directory: String,
}

/// Where the file system is mounted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mounted {
    pub writes: PathBuf,
    pub reads: PathBuf,
}

/// One thing that all workers do at the same time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Phase {
    Write(Transfer),
    Read(Transfer),
    /// Make files in the worker's directory.
    Create(Names),
    /// Look up files of another worker, as a new client.
    Stat(Names),
    Unlink(Names),
    /// Empty requests.
    Ping {
        count: u64,
    },
}

/// Data of a file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Transfer {
    pub size: u64,
    pub request: u64,
    pub direct: bool,
    /// Whether it is asked how long each request takes.
    pub timed: bool,
    /// How many workers have one file, and write their requests to it in turns. 1: each has its own.
    pub turns: u64,
    /// Part of the stamps: another one in each run, so that old contents do not pass for new ones.
    pub seed: u64,
}

impl Transfer {
    /// Where a worker's request is in the file, by the number of the request.
    pub fn offset(&self, worker: usize, number: u64) -> u64 {
        let turn = if self.turns > 1 { worker as u64 } else { 0 };
        (number * self.turns + turn) * self.request
    }
}

/// Files in a directory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Names {
    /// The directory of each worker, by its number, below the benchmark's own.
    pub directories: Vec<String>,
    /// Beginning of each file's name, by the worker's number: in a shared directory they must differ.
    pub prefixes: Vec<String>,
    pub files: u64,
}

/// What the parent says to all when all are ready.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Go;

/// What a worker says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Word {
    /// Prepared: waits for [`Go`].
    Ready,
    Done(Done),
    Failed {
        text: String,
        remedy: Option<String>,
    },
}

/// What a worker did in a phase.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    pub operations: u64,
    pub bytes: u64,
    /// CPU time of the worker in the phase, seconds.
    pub cpu_seconds: f64,
    /// How long half of the requests for data took at most, and 99 of 100; microseconds.
    pub p50_us: f64,
    pub p99_us: f64,
    pub descriptor_bytes: u64,
    pub unix_bytes: u64,
    pub tcp_bytes: u64,
    pub ucx_bytes: u64,
    pub data_requests: u64,
    /// Calls to shards that were awaited.
    pub calls: u64,
}

impl Done {
    /// What happened between two readings of the client's counters.
    pub fn between(before: &ClientCounters, after: &ClientCounters) -> Self {
        let both = |read: fn(&ClientCounters) -> u64, write: fn(&ClientCounters) -> u64| {
            read(after) + write(after) - read(before) - write(before)
        };
        Self {
            descriptor_bytes: both(|c| c.descriptor_read_bytes, |c| c.descriptor_write_bytes),
            unix_bytes: both(|c| c.unix_read_bytes, |c| c.unix_write_bytes),
            tcp_bytes: both(|c| c.tcp_read_bytes, |c| c.tcp_write_bytes),
            ucx_bytes: both(|c| c.rdma_read_bytes, |c| c.rdma_write_bytes),
            data_requests: after.data_requests - before.data_requests,
            calls: after.shard_calls - before.shard_calls,
            ..Self::default()
        }
    }

    /// The sum over workers; of times the longest.
    pub fn add(&mut self, other: &Done) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.cpu_seconds += other.cpu_seconds;
        self.p50_us = self.p50_us.max(other.p50_us);
        self.p99_us = self.p99_us.max(other.p99_us);
        self.descriptor_bytes += other.descriptor_bytes;
        self.unix_bytes += other.unix_bytes;
        self.tcp_bytes += other.tcp_bytes;
        self.ucx_bytes += other.ucx_bytes;
        self.data_requests += other.data_requests;
        self.calls += other.calls;
    }
}
