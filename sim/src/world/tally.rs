//! Which faults a run has, and counts of what happened.

use crate::store::Storage;

/// One run in so many has data connections with small buffers, and one in so many bad sectors, too.
const SMALL_BUFFERS: u64 = 5;
const BAD_SECTORS: u64 = 10;

/// Counts of what happened, to see that the faults really did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    pub operations: u64,
    pub cached: u64,
    pub recalls: u64,
    pub fenced: u64,
    pub resent: u64,
    /// Changes that were made in a session that has ended, and repeated in the next one.
    pub repeated: u64,
    pub lost: u64,
    pub doubled: u64,
    pub intents: u64,
    pub crashes: u64,
    pub pauses: u64,
    /// Clients that heard of no recall for a while.
    pub deaf: u64,
    /// Pairs of processes that heard nothing of each other for a while, and messages lost by that.
    pub partitions: u64,
    pub cut_off: u64,
    /// Requests between nodes that were cut off from each other, and answers to them.
    pub unreachable: u64,
    /// Sizes that were told as in doubt.
    pub in_doubt: u64,
    /// Terms that storage servers were granted, connections that waited for one, and fences that were certain without a
    /// confirmation.
    pub terms: u64,
    pub awaited: u64,
    pub certain: u64,
    pub orphans: u64,
    /// Data requests, and connections for data that broke.
    pub data: u64,
    pub broken: u64,
    /// Replies that a node could not send before its client read.
    pub blocked: u64,
    /// Writes of which only a part came in.
    pub torn: u64,
    /// Writes that came after their client had given them up, and those of them that it had revoked.
    pub late: u64,
    pub revoked: u64,
    /// Pieces of writes that came after their header.
    pub pieces: u64,
    /// Writes that a full disk refused.
    pub refused: u64,
    /// Reads and writes that failed at bad sectors.
    pub failed_reads: u64,
    pub failed_writes: u64,
    /// Reads and sizes that were compared with the model.
    pub compared: u64,
    /// Ranges that kernels were told to drop, and changes that were sent again because of pages.
    pub drops: u64,
    pub held: u64,
    /// Writes that may be lost by the rules.
    pub doubts: u64,
    /// Looks that settled what became of such writes.
    pub seen: u64,
    /// Extended attributes that programs were told.
    pub xattrs: u64,
    /// Files of several objects that were read at the end.
    pub striped: u64,
    /// Files of several parts that were read at the end.
    pub in_parts: u64,
    /// Answers that told readers of the strided extents in a pattern.
    pub of_patterns: u64,
    /// Times that a kernel lost dentries or pages.
    pub shrunk: u64,
    /// Rounds of system calls that several orders explain.
    pub ambiguous: u64,
    /// 1 for a run that ended early: it had more possible states than are kept, and none of these explained a round.
    pub unjudged: u64,
    /// Losses of bytes that clients had not flushed, and sessions of clients that live that ended.
    pub losses: u64,
    pub sessions: u64,
    /// Nodes that were gone in runs of mounts.
    pub nodes_gone: u64,
    /// Descriptors that were passed, reads and writes through them, those of the writes that came when the object had
    /// another file, and objects that got one.
    pub passed: u64,
    pub through: u64,
    pub late_through: u64,
    pub abandoned: u64,
    /// Nodes that joined, and changes of the map that were abandoned.
    pub joined: u64,
    pub abandoned_joins: u64,
    /// Nodes that have left.
    pub removed: u64,
    /// Calls with an older epoch than the node's, and with a newer one; data requests of shards that the storage server
    /// did not know yet.
    pub older_epochs: u64,
    pub newer_epochs: u64,
    pub unknown_shards: u64,
    /// Shards that moved, and moves that were abandoned.
    pub moved: u64,
    pub abandoned_moves: u64,
    /// Their parts that were sent while they served, and while they were frozen.
    pub parts: u64,
    pub parts_frozen: u64,
    /// Mounts that had a call in a shard when it was sent to another node, one of whose leases it was recalling, and
    /// that had bytes to report of a file of it.
    pub moved_parked: u64,
    pub moved_recalled: u64,
    pub moved_dirty: u64,
    /// Files whose bytes moved, and moves that were hindered or had nothing to do.
    pub relocated: u64,
    pub hindered: u64,
    /// Empty files that were told how they are to be striped.
    pub planned: u64,
    /// Directories that were spread, or were before.
    pub spread: u64,
    /// Groups that were opened, handles that joined one, and those whose rights turned out to be void.
    pub groups: u64,
    /// Groups that were opened by the call that opened, and perhaps made, the file.
    pub groups_by_name: u64,
    /// Files that were made with their objects by that call, of these the striped ones, and objects that a shard had
    /// made later.
    pub made_for_groups: u64,
    pub striped_for_groups: u64,
    pub objects_to_come: u64,
    pub members: u64,
    pub void_rights: u64,
    /// Pieces of writes by rights of groups that landed, other requests that were carried out, and those of both that
    /// were of files without a name.
    pub group_writes: u64,
    pub group_requests: u64,
    pub group_unlinked: u64,
    /// Writes that were acknowledged to members before they were published, and those that were lost.
    pub held_back: u64,
    pub lost_of_members: u64,
    /// Writes to split files that were acknowledged under a range lease, and recalls of those.
    pub within_ranges: u64,
    pub ranges_recalled: u64,
    /// Publications that were made for members of other clients.
    pub published_for_others: u64,
    /// Writes to split files that went on at another node.
    pub spilled: u64,
}

impl Tally {
    /// What happened at a storage server.
    pub(super) fn add_storage(&mut self, storage: &Storage) {
        let device = &storage.device;
        self.refused += device.refused.get();
        self.passed += device.passed.get();
        self.through += device.through.get();
        self.late_through += device.late.get();
        self.abandoned += device.abandoned.get();
        self.failed_reads += storage.failed_reads;
        self.failed_writes += storage.failed_writes;
    }
}

/// Faults of a run, beside those that every run has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Machines have clocks of their own.
    pub drift: bool,
    /// A client and a node hear nothing of each other for a while.
    pub partitions: bool,
    /// Two nodes exchange no fences and terms for a while.
    pub fences_cut: bool,
    /// Nor requests of shards to other shards and of collectors to shards.
    pub peers_cut: bool,
    /// Nor answers to these, nor requests of shards about objects and answers to them.
    pub all_cut: bool,
    /// Data connections have small buffers.
    pub small_buffers: bool,
    /// Devices have sectors that cannot be read or written for a while.
    pub bad_sectors: bool,
    /// No fault: clients get descriptors of objects on their own machine, and mounts pass them to their kernels.
    pub descriptors: bool,
    /// No fault: nodes join.
    pub joins: bool,
    /// No fault: shards move.
    pub moves: bool,
}

impl Faults {
    /// What holds today. With partitions new seeds fail now and then (docs/simulation.md).
    pub const NOW: Self = Self {
        drift: true,
        partitions: false,
        fences_cut: true,
        peers_cut: false,
        all_cut: false,
        small_buffers: false,
        bad_sectors: false,
        descriptors: false,
        joins: false,
        moves: false,
    };
    pub const NONE: Self = Self {
        drift: false,
        partitions: false,
        fences_cut: false,
        peers_cut: false,
        all_cut: false,
        small_buffers: false,
        bad_sectors: false,
        descriptors: false,
        joins: false,
        moves: false,
    };
}

impl Faults {
    /// The same, with those that only some runs have.
    pub(crate) fn with_some(self, seed: u64) -> Self {
        let one_in = |count: u64| seed % count == count - 1;
        Self { small_buffers: one_in(SMALL_BUFFERS), bad_sectors: one_in(BAD_SECTORS), ..self }
    }
}
