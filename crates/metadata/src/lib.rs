//! The metadata server's shard: names, inodes, leases.
//!
//! A shard is two machines. The [`back`] is the namespace over an ordered key-value store ([`kv`]): deterministic, the
//! only thing that a log records or replicas exchange. The [`front`] knows who is there and who may keep what:
//! sessions, leases, recalls, parked calls; it is volatile. [`Shard`] joins them: events in, effects out, no I/O, no
//! clock, no threads. Beside them, at the root shard's node, [`Membership`] changes the map; [`shipping`] takes a shard
//! to another node.
//!
//! Not here: sockets and threads (`weft-node`), the bytes of files (`weft-storage`), messages (`weft-protocol`).

pub mod back;
pub mod front;
pub mod kv;
pub mod membership;
pub mod placement;
pub mod shipping;

pub use back::RootDirectory;
pub use front::inspection::StuckCall;
pub use front::{Effect, Event, Fences, Growth, NOBODY, Now, Shard, ShardConfig};
pub use kv::{KeyValue, MemoryStore};
pub use membership::{Membership, MembershipEffect, MembershipEvent};
