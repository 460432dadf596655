//! `weft bench`: how fast a file system is, for data and for names.

use crate::bench::{PROCESSES_MAX, data, meta, thput, worker};
use crate::failure::{Failure, Outcome};
use crate::quantity::ByteSize;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weft_client::{Rpc, Way};

const DATA_HELP: &str = "\
Each process writes a file of its own and reads it back, in requests of each
size; every 8th byte word of a page is checked for the stamp that was written.
The file is made anew for each run. With --one-file all processes have one
file, and write and read its requests in turns. Times are from a common start
to the last process's end, close included; the figures are medians of the runs.

WAY THE BYTES WENT is counted by the client: descriptor (of the object's own
file, on the same node), unix, tcp. CPU is of the client processes and of the
nodes on this machine, seconds for one run.

--json prints an object:
  name, size, processes, runs, direct, one_file,
    results: [{operation (\"write\", \"read\"), way, request, bytes,
    bytes_per_second (median), bytes_per_second_min, bytes_per_second_max,
      seconds,
    client_cpu_seconds, node_cpu_seconds, descriptor_bytes, unix_bytes,
      tcp_bytes, ucx_bytes, data_requests}]

Examples:
  weft bench data
  weft bench data job42 -p 4 --size 1GiB --request 64KiB,4MiB --way auto,tcp
    --runs 5";

const META_HELP: &str = "\
Each process makes, looks up and removes empty files, in a directory of its own
or, with --shared, all in one; with --spread, its names are on all shards
(`weft mkdir --placement hash`). Look-ups are of the files of the next process,
by a new client, so that no cache of ours answers. `ping` is an empty request
to the root shard's node on the same connection: the limit of what a call can
reach. The figures are medians of the runs; CALLS are awaited messages per
operation.

--json prints an object:
  name, files, processes, runs, shared, spread,
    results: [{operation (\"create\", \"stat\", \"unlink\", \"ping\"), way,
    operations, per_second (median), per_second_min, per_second_max, seconds,
      share_of_ping,
    calls_per_operation, client_cpu_seconds, node_cpu_seconds}]

Examples:
  weft bench meta
  weft bench meta job42 -p 4 --files 20000 --shared --way auto,tcp";

const THPUT_HELP: &str = "\
Transports beside each other, in turns: each writes and reads the same amount
in requests of each size, by each number of processes, each with a file of its
own. For each size and transport: MiB/s (the median of the runs, the least and
the most), how many times as fast as the first transport it was in the same run
(median), how long half of the requests took and 99 of 100, and CPU seconds of
clients and nodes per GiB.

tcp and unix are sockets; static, dynamic and auto are by UCX, with the
connection's memory registered, the program's, or what was measured to be
faster (docs/rdma.md). With --posix each is measured also through a mount of
its own, by system calls: through the page cache (files are read through
another mount than they were written), and past it (O_DIRECT).

--json prints an object:
  name, size, runs, direct, results: [{operation (\"write\", \"read\"), processes,
    request, transport, rpc (text or null), front (\"native\", \"mount\",
    \"mount_direct\"), bytes_per_second (median), bytes_per_second_min,
    bytes_per_second_max, ratio_to_first, p50_us, p99_us,
    client_cpu_seconds_per_gib, node_cpu_seconds_per_gib}]

Examples:
  weft bench thput
  weft bench thput job42 -p 1,4 --request 64KiB,1MiB,16MiB
    --transport tcp,dynamic --runs 9
  weft bench thput --request 4KiB --direct --transport static --rpc socket,am
  weft bench thput --posix --plot figures.svg";

const WORKER_HELP: &str = "\
Standard input and output: lines of JSON.

Examples:
  weft bench worker < orders.json";

/// Measure data throughput, or creates, look-ups and removals per second
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    Data(DataArgs),
    Meta(MetaArgs),
    Thput(ThputArgs),
    Worker(WorkerArgs),
}

/// Which way file data takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WayName {
    /// The shortest there is
    Auto,
    /// Unix sockets to nodes of this machine, TCP to others; large
    /// writes, and reads of region stores, taken out of memory
    /// where the kernel allows it
    Unix,
    /// As unix, with all bytes through the sockets
    Stream,
    /// TCP only
    Tcp,
    /// Moved by the nodes through UCX (docs/rdma.md)
    Ucx,
}

impl From<WayName> for Way {
    fn from(name: WayName) -> Way {
        match name {
            WayName::Auto => Way::Auto,
            WayName::Unix => Way::Unix,
            WayName::Stream => Way::Stream,
            WayName::Tcp => Way::Tcp,
            WayName::Ucx => Way::Ucx,
        }
    }
}

/// Write and read files, and check what was read
#[derive(clap::Args, Debug)]
#[command(after_long_help = DATA_HELP)]
pub struct DataArgs {
    /// Name of the file system [default: the only one]
    pub name: Option<String>,
    /// Bytes of the file of each process
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub size: ByteSize,
    /// Bytes of a request; several, separated by commas
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "4KiB,64KiB,1MiB,4MiB")]
    pub request: Vec<ByteSize>,
    /// Handles that buffer nothing
    #[arg(long)]
    pub direct: bool,
    /// All processes in one file, with requests in turns
    #[arg(long)]
    pub one_file: bool,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// How file data goes, for `weft bench thput`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP sockets
    Tcp,
    /// Unix sockets to nodes of this machine, TCP to others
    Unix,
    /// UCX, the connection's memory registered
    Static,
    /// UCX, the program's memory registered
    Dynamic,
    /// UCX, whichever of both was measured to be faster
    Auto,
}

impl Transport {
    /// As it is written.
    pub fn word(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Whether the nodes move the bytes.
    pub fn is_ucx(self) -> bool {
        matches!(self, Self::Static | Self::Dynamic | Self::Auto)
    }
}

/// How requests for RDMA go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RpcName {
    /// By the connection's socket
    Socket,
    /// As active messages of UCX
    Am,
}

impl RpcName {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Am => "am",
        }
    }
}

impl From<RpcName> for Rpc {
    fn from(name: RpcName) -> Rpc {
        match name {
            RpcName::Socket => Rpc::Socket,
            RpcName::Am => Rpc::Am,
        }
    }
}

/// By what a benchmark reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Front {
    /// The client library.
    Native,
    /// System calls in a mount.
    Mount,
    /// The same in one that bypasses the page cache.
    MountDirect,
}

impl Front {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Mount => "mount",
            Self::MountDirect => "mount direct",
        }
    }
}

/// Compare transports, by size of request and number of processes
#[derive(clap::Args, Debug)]
#[command(after_long_help = THPUT_HELP)]
pub struct ThputArgs {
    /// Name of the file system [default: the only one]
    pub name: Option<String>,
    /// Bytes of the files of all processes together
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub size: ByteSize,
    /// Bytes of a request; several, separated by commas
    #[arg(
        long,
        value_name = "SIZE,...",
        value_delimiter = ',',
        default_value = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB"
    )]
    pub request: Vec<ByteSize>,
    /// Processes, each a client of its own; several numbers, separated by commas
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', default_value = "1")]
    pub processes: Vec<usize>,
    /// Which transports, the first is what the others are compared with
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp,static,dynamic")]
    pub transport: Vec<Transport>,
    /// How requests go by UCX; several are compared [default: as
    /// WEFT_RDMA_RPC says]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub rpc: Vec<RpcName>,
    /// Handles that buffer nothing
    #[arg(long)]
    pub direct: bool,
    /// Also through mounts, with and without the page cache
    #[arg(long)]
    pub posix: bool,
    /// Draw the results, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Times that all is done
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Make, look up and remove empty files
#[derive(clap::Args, Debug)]
#[command(after_long_help = META_HELP)]
pub struct MetaArgs {
    /// Name of the file system [default: the only one]
    pub name: Option<String>,
    /// Files of each process
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub files: u64,
    /// All processes in one directory
    #[arg(long)]
    pub shared: bool,
    /// Directories whose names are spread over all shards
    #[arg(long)]
    pub spread: bool,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What both benchmarks have.
#[derive(clap::Args, Debug)]
pub struct CommonArgs {
    /// Processes, each a client of its own
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    pub processes: usize,
    /// Which way to go; several, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    pub way: Vec<WayName>,
    /// Times that all is done
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Be one process of a benchmark
#[derive(clap::Args, Debug)]
#[command(hide = true, after_long_help = WORKER_HELP)]
struct WorkerArgs {}

impl CommonArgs {
    /// Refuses what measures nothing.
    pub fn check(&self) -> Outcome<()> {
        if self.processes == 0 || self.processes > PROCESSES_MAX {
            return Err(Failure::new(format!("-p {}: 1 to {PROCESSES_MAX} processes", self.processes)));
        }
        if self.runs == 0 {
            return Err(Failure::new("--runs 0: nothing would be measured").remedy("--runs 1 or more"));
        }
        Ok(())
    }
}

pub fn run(args: &Args) -> Outcome {
    match &args.what {
        What::Data(args) => data::run(args),
        What::Meta(args) => meta::run(args),
        What::Thput(args) => thput::run(args),
        What::Worker(_) => worker::run(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_json_is_in_the_help() {
        let check = |value: serde_json::Value, help: &str| {
            for (field, _) in value.as_object().expect("an object") {
                assert!(help.contains(field.as_str()), "{field}");
            }
        };
        check(serde_json::to_value(data::Row::example()).expect("JSON"), DATA_HELP);
        check(serde_json::to_value(thput::Row::example()).expect("JSON"), THPUT_HELP);
        check(serde_json::to_value(meta::Row::example()).expect("JSON"), META_HELP);
    }
}
