//! Parts of split files that handles of this client write.
//!
//! The shard knows parts by session; but each has one writer within a client, too. What one handle has written and not
//! published would else be published by another one, and bytes at a place that an append has given up would be seen.
//! The publications of a client are numbered here.

use crate::lock::lock;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use weft_protocol::ObjectId;

/// See the module.
#[derive(Clone, Default)]
pub struct PartsInUse(Arc<All>);

#[derive(Default)]
struct All {
    taken: Mutex<BTreeSet<ObjectId>>,
    /// Number of the latest publication.
    published: AtomicU64,
}

/// A part that no other handle uses until this is dropped.
pub struct PartInUse {
    object: ObjectId,
    all: PartsInUse,
}

impl PartsInUse {
    /// Takes a part. `None`: another handle has it.
    pub fn take(&self, object: ObjectId) -> Option<PartInUse> {
        lock(&self.0.taken).insert(object).then(|| PartInUse { object, all: self.clone() })
    }

    /// The number of one more publication. A part has one writer at a time, so its publications have rising numbers.
    pub fn next_publication(&self) -> u64 {
        self.0.published.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Drop for PartInUse {
    fn drop(&mut self) {
        lock(&self.all.0.taken).remove(&self.object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::NodeId;

    #[test]
    fn a_part_has_one_writer_at_a_time() {
        let (all, object) = (PartsInUse::default(), ObjectId::new(NodeId(1), 2));
        let taken = all.take(object);
        assert!(taken.is_some() && all.take(object).is_none());
        drop(taken);
        assert!(all.take(object).is_some());
    }
}
