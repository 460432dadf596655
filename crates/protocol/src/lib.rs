//! What the parties of Weft say to each other, and the words they use.
//!
//! Everything that crosses a socket is defined here: identifiers ([`ids`]), limits ([`limits`]), errors ([`Error`]),
//! control messages ([`message`]), the fixed headers of the data connections ([`data`]) and the signed rights to
//! objects ([`Capability`]). Inner types of the other crates are never serialized; they are converted to these.
//!
//! Not here: sockets, files, clocks, threads. This crate is pure.

pub mod attributes;
pub mod below;
mod bits;
pub mod capability;
pub mod codec;
pub mod cookie;
pub mod credentials;
pub mod data;
pub mod error;
pub mod frame;
pub mod group;
pub mod handshake;
pub mod hash;
pub mod ids;
pub mod layout;
pub mod lease;
pub mod limits;
pub mod lock;
mod locked_ranges;
pub mod map;
pub mod message;
pub mod name;
pub mod parts;
pub mod routing;
pub mod split;
pub mod time;
pub mod window;
pub mod xattr;

pub use attributes::{AttributeChanges, Attributes, FileKind, InodeFlags, TimeChange};
pub use below::{BelowEntry, BelowName, BelowNote, BelowPage, BelowStamp};
pub use capability::{Capability, NodeKey, Rights, UserKey};
pub use cookie::Cookie;
pub use credentials::Credentials;
pub use error::{Error, Result};
pub use group::{GroupOpen, Publication};
pub use ids::{
    ConnectionId, Generation, InodeNumber, KeyId, MapEpoch, NodeId, NodeIdentity, ObjectId, SessionId, ShardId,
    SlotIndex,
};
pub use layout::{Inherited, InheritedChange, Layout, Plan, StripePlan, Striped};
pub use lease::{Grants, LeaseKey, LeaseMode};
pub use lock::{HeldLock, LockKind, LockMode, LockOwner, LockRange, OwnerLocks, RangeLock};
pub use locked_ranges::LockedRanges;
pub use map::{ClusterMap, NodeAddress, NodeChange, NodeRecord, ShardRecord};
pub use name::Name;
pub use parts::Parts;
pub use split::{Extent, Pattern, PublishedPart, SplitPart};
pub use time::Timestamp;
pub use window::{InFlightWindow, NextStep, may_prefetch};
pub use xattr::{Xattr, XattrExpectation, XattrName, XattrNamespace, XattrValue};

/// Version of every message in this crate. The handshake refuses another one.
///
/// | version | change |
/// | --- | --- |
/// | 1 | first version |
/// | 2 | `KeyName::User` has the id of the key; `NodeRequest::RevokeKey`; `Status` is for the owner |
/// | 3 | storage requests: `Fence`; `Space` has `device_free`, and `device` also of a store with a cap |
/// | 4 | leases on permissions of directories; pages that grant their names one by one |
/// | 5 | `RenewReply` says if the session is refused; shards answer `Ping`; `Share`, writes from client memory |
/// | 6 | `OpenPipe` and `ReadPiped`; counters have `read_pipe_bytes` |
/// | 7 | `OpenRdma`, `ShowMemory`, `ProbeMemory`; `RdmaCounters`; `NodeStatus` has `rdma` |
/// | 8 | requests for RDMA may come as messages of UCX; counters have `messages` |
/// | 9 | counters of RDMA have `mapped_bytes` |
/// | 10 | counters of RDMA have `streamed_bytes` |
/// | 11 | without what version 6 had brought |
/// | 12 | data replies say `SessionEnded`, `Busy`; `Fence` has `objects`; `Renamed` and `Grants` tell more of names |
/// | 13 | `Access::Execute`; `HoldDirectory`; `LeaseKey::Inode`; a recall of attributes may be answered `Open` |
/// | 14 | cookies in `ReadDirectory` and its pages; `pages` of data requests, `page_cache` of opens, `DropPages`, |
/// |    | `PagesDropped`, `PagesCached`; `Truncate` has `by` |
/// | 15 | `Commit` tells the object's modification time apart from the file's |
/// | 16 | `AskToServe`, `Serving` |
/// | 17 | `UnlinkBatch`, `RemovedBatch` |
/// | 18 | replies to failed writes have `written_bytes` |
/// | 19 | `Revoke` |
/// | 20 | `AskOfObject`, `OfObject` |
/// | 21 | `Lock`, `Unlock`, `CancelLock`, `TestLock` and their answers; `LockGranted`, `LockGrantTaken` |
/// | 22 | `Commit` tells up to which stamp it knows of cuts |
/// | 23 | `Commit` has a number |
/// | 24 | `Remote` instead of `RemoteDirectory`; `ShardReply` has `others`; `Lock`, `Carry`, `AskOutcome` |
/// | 25 | extended attributes: `SetXattr`, `RemoveXattr`, `GetXattrs`; `Attributes` have `has_xattrs` |
/// | 26 | `Join` |
/// | 27 | `Lock::Tree`, `Ancestors`, `Above` |
/// | 28 | `ShardCall` has `slots_of`; maps say since when each shard is, and is at its node |
/// | 29 | `ShardCall` names calls of ended sessions that it repeats |
/// | 30 | `Lock` that does not wait, `Blocked`; `Locked` has the stamp instead of `Carried`; `Gain` has the time; |
/// |    | `Rename` has a guess |
/// | 31 | striped files: `Planned`, `Striped`; `Stripe`; `Commit` and `Opened` have `others`; directories have plans |
/// | 32 | `Commit` has `passed` |
/// | 33 | `RenewReply` names the shards that were renewed, and an epoch; `AskToServe` has one; `Move`, |
/// |    | `Ship`, `Take`, `Change`; nodes that drain |
/// | 34 | `Relocate`, `IsHeld`; a `Batch` tells whether the node has little space |
/// | 35 | directories with parts: `Attributes` have `parts`, `Split`; `Spread`, `FillPart`, `Become` |
/// | 36 | `SetInherited` instead of `Stripe`; `Attributes` have flags; `Relocate` without objects; `ShardStatus` has |
/// |    | `calls` |
/// | 37 | group opens: `OpenGroup`, rights of a group, `Renew` names the groups; exported handles |
/// | 38 | split files: `Layout::Split`, `Plan`; `Publish`, `GetParts` |
/// | 39 | `GetParts` asks for a range of bytes, and is answered in pages |
/// | 40 | `LockKind::Append` |
/// | 41 | a directory below: `ListBelow`, `FillFromBelow` and their answers; `ReadBelow`, `NoteBelow` |
/// | 42 | `CreateFile` has a plan; |
/// |    | `LeaseKey::Names`; |
/// |    | `GetParts` asks for the strided extents of a pattern; |
/// |    | `Publish` has several parts, with their writers and numbers, and `range`; `LeaseKey::Ranges`; |
/// |    | an open can be for a group: `OpenFlags` have `group`; it makes files with objects: `FirstObjects`, `Make`; |
/// |    | `Lend`, reads from server memory; counters have `read_memory_bytes` and `read_memory_lost_bytes` |
/// |    | `ShardStatus` has `renames` and `renames_across`; |
pub const PROTOCOL_VERSION: u8 = 42;
