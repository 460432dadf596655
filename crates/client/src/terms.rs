//! Until when what the session was granted holds at each shard.
//!
//! The lease cache counts the terms; here they are once more in a place that every read and write of a file looks at
//! without a lock. When a term has passed, the shard is asked before a lease of it is used again: it may have ended the
//! session, and given to others what was held.
//!
//! Invariant: nothing of a reply is believed that was asked for by a session that is over by now.

use crate::calls::ATTEMPTS_MAX;
use crate::client::Inner;
use crate::link::{SlotFor, lock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, RwLock};
use weft_client_core::Cache;
use weft_protocol::hash::FixedMap;
use weft_protocol::message::shard::ShardRequest;
use weft_protocol::{Error, Result, SessionId, ShardId};

/// The term at one shard: when it ends, milliseconds since boot; 0: it has to be asked for.
pub(crate) type Term = Arc<AtomicU64>;

/// The terms at all shards. Written with the lock of the cache held.
#[derive(Default)]
pub(crate) struct Terms(RwLock<FixedMap<ShardId, Term>>);

impl Terms {
    /// The term at a shard, also as it will be.
    pub fn at(&self, shard: ShardId) -> Term {
        if let Some(term) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&shard) {
            return Arc::clone(term);
        }
        let mut terms = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(terms.entry(shard).or_default())
    }

    /// All have passed.
    pub fn end_all(&self) {
        for term in self.0.read().unwrap_or_else(PoisonError::into_inner).values() {
            term.store(0, Ordering::Release);
        }
    }
}

impl Inner {
    /// The cache, to take in what an answer told; `None`: the session that asked for it is over, and so is what it was
    /// granted.
    pub fn cache_for(&self, session: SessionId) -> Option<MutexGuard<'_, Cache>> {
        let cache = lock(&self.cache);
        // A session ends under the same lock.
        (session == self.session()).then_some(cache)
    }

    /// A shard has answered a call of this session that was sent at this time.
    pub fn heard(&self, shard: ShardId, session: SessionId, sent_ms: u64, now_ms: u64) {
        if let Some(mut cache) = self.cache_for(session) {
            cache.renewed(shard, sent_ms, now_ms);
            self.terms.at(shard).store(cache.valid_until_ms(shard), Ordering::Release);
        }
    }

    /// A node has answered a renewal for its shards, and none of them refuses the session. Which of them knew it before
    /// is not told, so this goes on with a term and begins none.
    pub fn renewed(&self, shards: impl Iterator<Item = ShardId>, session: SessionId, sent_ms: u64) {
        let Some(mut cache) = self.cache_for(session) else { return };
        let now_ms = self.clock_ms();
        for shard in shards {
            if cache.extended(shard, sent_ms, now_ms) {
                self.terms.at(shard).store(cache.valid_until_ms(shard), Ordering::Release);
            }
        }
    }

    /// Whether a term holds, as far as is known here.
    pub fn holds(&self, term: &Term) -> bool {
        self.clock_ms() < term.load(Ordering::Acquire)
    }

    /// Makes sure that what the session holds at this shard still holds. The session may be another one afterwards. No
    /// message as long as the term holds, which the renewals see to.
    pub fn ensure_term(&self, shard: ShardId, term: &Term, slot: SlotFor) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            if self.holds(term) {
                return Ok(());
            }
            self.call_in(slot, &self.identity.credentials, shard, ShardRequest::Ping)?;
        }
        Err(Error::SessionEnded)
    }
}
