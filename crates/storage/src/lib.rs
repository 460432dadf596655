//! The storage server's decisions: who may touch which object and for how long without a word from the shard's node,
//! which change waits until pages of other kernels are dropped, which identifiers are handed out, what is an orphan.
//!
//! Pure: the node joins it to sockets and a store. File data never comes here: an access takes a [`Grant`], a pure
//! check on the connection's own thread, and moves its bytes itself.
//!
//! Not here: the objects (`weft-store-io`), the shards (`weft-metadata`).

mod cached_ranges;
mod fences;
mod gate;
mod grant;
mod orphans;
mod serving;

pub use cached_ranges::{CachedRanges, RangeRequest, RangesEffect};
pub use fences::FenceTable;
pub use gate::{Gate, PieceGate, ServingTerm};
pub use grant::{Grant, check_access};
pub use orphans::{Collector, CollectorEffect, LAST_LOOK_MS, Run};
pub use serving::{DueFence, ServingTerms, TermGrants};
