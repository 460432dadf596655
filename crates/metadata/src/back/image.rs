//! A shard's namespace on its way to another node: the store, which is copied while it changes, and what is kept beside
//! the store.
//!
//! Not here: the front's part (`front/moving.rs`), where the bytes go.

use super::Back;
use crate::kv::{CopiedStore, KeyValue};
use weft_protocol::{Cookie, Result, ShardId, codec};

impl<K: KeyValue> Back<K> {
    /// The store.
    #[cfg(test)]
    pub(crate) fn store(&self) -> &CopiedStore<K> {
        &self.store
    }

    /// The store, to be copied. Nobody but [`Back::apply`] changes what is in it.
    pub(crate) fn copied_store(&mut self) -> &mut CopiedStore<K> {
        &mut self.store
    }

    /// Appends what is kept beside the store.
    pub(crate) fn append_rest(&self, rest: Vec<u8>) -> Vec<u8> {
        let numbers = (self.next_sequence, self.next_intent, self.inodes, self.dentries, self.continued, self.unread);
        codec::append(&(numbers, &self.replies, &self.intents, &self.locks), rest)
    }

    /// The namespace of a copied store and what was kept beside it, which is taken off `rest`.
    pub(crate) fn of_copy(shard: ShardId, store: K, rest: &mut &[u8]) -> Result<Self> {
        let (numbers, replies, intents, locks) = codec::take(rest)?;
        let (next_sequence, next_intent, inodes, dentries, continued, unread) = numbers;
        let store = CopiedStore::new(store);
        let (cookie_of, latest_directory) = (Cookie::of as fn(&_) -> _, None);
        Ok(Self {
            store,
            shard,
            next_sequence,
            next_intent,
            inodes,
            dentries,
            cookie_of,
            continued,
            latest_directory,
            unread,
            replies,
            intents,
            locks,
        })
    }
}
