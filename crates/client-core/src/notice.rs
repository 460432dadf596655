//! What a client reports about itself while it works: for logs, counters and the simulation's checker.

use weft_protocol::{Error, InodeNumber, NodeId, SessionId, ShardId};

/// One report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A call to a shard is about to be made.
    ShardCall,
    /// A data request is about to be sent.
    DataRequest,
    /// A recall is being answered.
    Recall,
    /// The session has ended at a shard; a new one begins.
    SessionEnded(SessionId),
    /// Written bytes of this inode are lost, or may be: a program is told of it.
    BytesLost(InodeNumber),
    /// What a member of a group has written to a split file and not published is lost: it is told of it.
    UnpublishedLost(InodeNumber),
    /// What was written to a split file within the range that the session holds is not published yet.
    HeldBack(InodeNumber),
    /// That range is recalled, and given up.
    RangeRecalled(InodeNumber),
    /// Bytes of which a program was told that they could not be written are not kept any longer.
    GivenUp(InodeNumber),
    /// All bytes written to the inode have reached its server and shard.
    Flushed(InodeNumber),
    /// Somebody has seen the file after bytes of it were lost, or it could not be found out what is there.
    NotSettled(InodeNumber, Error),
    /// Dirty data could not be written back when a lease was recalled.
    WritebackOnRecallFailed(InodeNumber, Error),
    /// Dirty data could not be written back when the last handle was dropped.
    WritebackOnCloseFailed(InodeNumber, Error),
    /// A kernel got no descriptor for passthrough.
    NotLent(InodeNumber, Error),
    /// The home node is away; new files are made elsewhere.
    HomeMoved { away: NodeId, home: NodeId },
    /// A node has no space for writes to a split file: they go on at another one.
    Spilled { inode: InodeNumber, full: NodeId, node: NodeId },
    /// Leases could not be given back; they end with the session's term.
    NotReleased(ShardId, Error),
}
