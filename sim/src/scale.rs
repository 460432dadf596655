//! What one split file costs its shard and the network when very many ranks of an MPI program use it.
//!
//! The program is that of `bench/mpi/scale.c`, as the MPI-IO driver makes it: rank 0 opens the file and exports it, all
//! import it, write their records, synchronize, read their own back and close; all open and close it once more, and
//! end. Clients and shard are the production machines, so the counts are those of real processes
//! (`bench/mpi_scale.py`), for as many nodes as memory allows. Nothing is lost here, and time is that of messages
//! alone: what takes how long is a matter of measurements, and what is counted is not.
//!
//! Not here: the renewals of sessions that last for seconds, and what else comes with time.

mod cluster;
mod counts;
mod outside;
mod part_file;
mod program;
mod report;

pub use counts::{Counts, Kind, Traffic, Work};
pub use report::{json, table};

use cluster::Cluster;
use program::{Rank, Shared};
use std::rc::Rc;
use weft_protocol::{Credentials, InheritedChange, InodeNumber, NodeId, Plan};

/// What the ranks do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    pub nodes: u16,
    pub ranks_per_node: u16,
    /// Of each rank.
    pub records: u32,
    pub bytes: u32,
    /// The ranks' records alternate in the file; otherwise each rank has one segment.
    pub is_strided: bool,
    /// Each rank reads the records of the next one instead of its own: these lie at another node.
    pub reads_next: bool,
}

impl Setting {
    /// All ranks.
    pub fn ranks(&self) -> u32 {
        u32::from(self.nodes) * u32::from(self.ranks_per_node)
    }
}

/// Runs the program, and returns what it costs from its start to its end.
pub fn run(setting: &Setting) -> Counts {
    let mut cluster = Cluster::new(setting.nodes);
    cluster.start(NodeId(0), |files, _| async move {
        let split = InheritedChange::Plan(Plan::Split);
        files.set_inherited(&Credentials::default(), InodeNumber::ROOT, split).await.expect("`/` is the caller's");
        files.close().await.expect("nothing is buffered");
    });
    cluster.run();
    cluster.forget_processes();
    cluster.counts = Counts::default();
    let before = cluster.index_bytes();
    let shared = Rc::new(Shared::default());
    for number in 0..setting.ranks() {
        let node = u16::try_from(number / u32::from(setting.ranks_per_node)).expect("below the number of nodes");
        let shared = Rc::clone(&shared);
        cluster.start(NodeId(node), |files, outside| Rank { files, outside, shared, number, setting: *setting }.run());
    }
    cluster.run();
    let index_bytes = cluster.index_bytes().saturating_sub(before);
    Counts { index_bytes, ..std::mem::take(&mut cluster.counts) }
}
