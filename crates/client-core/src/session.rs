//! The client's session: its identifier, its terms at the shards, and everything that is only true under its leases.
//!
//! The lease cache counts the terms; they are kept once more as atomics, which every read and write of a file checks
//! without a lock. When a term has passed, the shard is asked before one of its leases is used again: it may have ended
//! the session and granted the leases to others.
//!
//! Invariant: nothing is learnt from a reply whose request was sent under an earlier session.
//! Lock order: `cache` (3) is held while the session changes; the others are leaves.

use crate::cache::{Cache, Dropped};
use crate::lock::lock;
use crate::look_ahead::LookAhead;
use crate::noted_pages::NotedPages;
use crate::numbers::Numbers;
use crate::opens::Opens;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use weft_protocol::hash::FixedMap;
use weft_protocol::limits::RELEASE_KEYS_MAX;
use weft_protocol::{LeaseKey, NodeId, SessionId, ShardId, routing};

/// Leases of closed files that are gathered before they are given back in one call.
pub const RELEASE_BATCH: usize = 512;

/// The term at one shard: when it ends, milliseconds since boot; 0: unknown, the shard has to be asked.
pub type Term = Arc<AtomicU64>;

/// See the module.
pub struct Session {
    id: AtomicU64,
    cache: Mutex<Cache>,
    /// Written with `cache` locked.
    terms: RwLock<FixedMap<ShardId, Term>>,
    /// Size reports and attribute changes of files that shards have answered, over all files.
    reports: AtomicU64,
    pub(crate) look_ahead: Mutex<LookAhead>,
    pub(crate) opens: Opens,
    pub(crate) noted_pages: NotedPages,
    /// Data leases of closed files and numbers of removed inodes, with the stamps of their grants, to be given back
    /// together.
    closed_leases: Mutex<Vec<(LeaseKey, u64)>>,
    /// Inodes whose number the cache above may use without a lease on them.
    pub(crate) numbers: Mutex<Numbers>,
}

impl Session {
    /// A session that no server has heard of yet.
    pub fn new(id: SessionId) -> Self {
        Self {
            id: AtomicU64::new(id.0),
            cache: Mutex::default(),
            terms: RwLock::default(),
            reports: AtomicU64::new(0),
            look_ahead: Mutex::default(),
            opens: Opens::default(),
            noted_pages: NotedPages::default(),
            closed_leases: Mutex::default(),
            numbers: Mutex::default(),
        }
    }

    /// The current session's identifier.
    pub fn id(&self) -> SessionId {
        SessionId(self.id.load(Ordering::Acquire))
    }

    /// Ends a session and begins another with this identifier. Returns what its leases covered, for caches above;
    /// `None`: the session had been replaced already.
    pub(crate) fn replace(&self, ended: SessionId, next: SessionId) -> Option<Dropped> {
        let mut cache = lock(&self.cache);
        if self.id() != ended {
            return None;
        }
        self.id.store(next.0, Ordering::Release);
        for term in self.terms.read().unwrap_or_else(PoisonError::into_inner).values() {
            term.store(0, Ordering::Release);
        }
        self.noted_pages.clear();
        lock(&self.closed_leases).clear();
        lock(&self.numbers).clear();
        Some(cache.clear())
    }

    /// The lease cache.
    pub fn cache(&self) -> MutexGuard<'_, Cache> {
        lock(&self.cache)
    }

    /// The lease cache, to learn from a reply; `None`: the session that sent the request has ended.
    pub(crate) fn cache_for(&self, session: SessionId) -> Option<MutexGuard<'_, Cache>> {
        let cache = lock(&self.cache);
        // A session ends under the same lock.
        (session == self.id()).then_some(cache)
    }

    /// The term at a shard; the same atomic for as long as the client lives.
    pub(crate) fn term(&self, shard: ShardId) -> Term {
        if let Some(term) = self.terms.read().unwrap_or_else(PoisonError::into_inner).get(&shard) {
            return Arc::clone(term);
        }
        let mut terms = self.terms.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(terms.entry(shard).or_default())
    }

    /// Whether the session may hold something at a shard.
    pub(crate) fn has_term(&self, shard: ShardId) -> bool {
        let terms = self.terms.read().unwrap_or_else(PoisonError::into_inner);
        terms.get(&shard).is_some_and(|term| term.load(Ordering::Acquire) > 0)
    }

    /// A shard has answered a call of this session that was sent at `sent_ms`, by a reply with this stamp.
    pub(crate) fn heard(&self, shard: ShardId, session: SessionId, stamp: u64, (sent_ms, now_ms): (u64, u64)) {
        if let Some(mut cache) = self.cache_for(session) {
            cache.stamp_seen(shard, stamp);
            cache.renewed(shard, sent_ms, now_ms);
            self.term(shard).store(cache.valid_until_ms(shard), Ordering::Release);
        }
    }

    /// A node has answered a renewal for its shards, and none of them refuses the session. The reply does not say which
    /// of them knew it before, so this extends terms and begins none.
    pub fn renewed(&self, shards: impl Iterator<Item = ShardId>, session: SessionId, sent_ms: u64, now_ms: u64) {
        let Some(mut cache) = self.cache_for(session) else { return };
        for shard in shards {
            if cache.extended(shard, sent_ms, now_ms) {
                self.term(shard).store(cache.valid_until_ms(shard), Ordering::Release);
            }
        }
    }

    /// A node has answered a renewal that does not refuse the session.
    pub fn node_heard(&self, node: NodeId, session: SessionId, sent_ms: u64) {
        if session == self.id() {
            self.noted_pages.heard(node, sent_ms);
        }
    }

    /// How many reports and changes of files have been answered.
    pub(crate) fn reports(&self) -> u64 {
        self.reports.load(Ordering::Acquire)
    }

    /// A number for a report that is made, or for a report or change that was just answered.
    pub(crate) fn next_report(&self) -> u64 {
        self.reports.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Queues a lease for release. Returns whether a batch has gathered.
    pub(crate) fn queue_release(&self, key: LeaseKey, stamp: u64) -> bool {
        let mut closed = lock(&self.closed_leases);
        closed.push((key, stamp));
        closed.len() >= RELEASE_BATCH
    }

    /// Queues leases once more that could not be given back, if their session goes on.
    pub(crate) fn queue_again(&self, session: SessionId, leases: Vec<(LeaseKey, u64)>) {
        let mut closed = lock(&self.closed_leases);
        if self.id() == session {
            closed.extend(leases);
        }
    }

    /// Whether a batch of closed files' leases has gathered.
    pub fn has_release_batch(&self) -> bool {
        lock(&self.closed_leases).len() >= RELEASE_BATCH
    }

    /// How many leases wait to be given back.
    pub(crate) fn surplus_count(&self) -> usize {
        let closed = lock(&self.closed_leases).len();
        closed + self.cache().surplus_count()
    }

    /// Leases to give back at one shard: of closed files, and those that the cache evicted.
    pub(crate) fn take_surplus(&self) -> Option<(ShardId, Vec<(LeaseKey, u64)>)> {
        let mut closed = lock(&self.closed_leases);
        let shard = closed.first().map(|(key, _)| routing::of_lease(key));
        let mut taken = Vec::new();
        closed.retain(|lease| {
            let take = Some(routing::of_lease(&lease.0)) == shard && taken.len() < RELEASE_KEYS_MAX;
            if take {
                taken.push(*lease);
            }
            !take
        });
        drop(closed);
        let mut cache = self.cache();
        let shard = shard.or_else(|| cache.surplus_shard())?;
        taken.extend(cache.take_surplus(shard, RELEASE_KEYS_MAX - taken.len()));
        Some((shard, taken))
    }
}
