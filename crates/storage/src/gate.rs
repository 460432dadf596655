//! The gate that each piece of a write passes on its way into an object.
//!
//! There is one gate per session and shard. A thread that writes holds the gate for the length of one piece (one
//! `pwrite`, `splice` or device write), never while it waits for a client. So a fence needs no lock: it closes the
//! gate, and is *settled* once the pieces that had passed before are written. From then on no byte of the session lands
//! in a file of the shard.
//!
//! Cost: two atomic operations and, at another node than the shard's, a look at the clock per piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::{Error, Result};

/// Set in [`Gate::state`] once the session is fenced; the other bits count pieces in flight.
const FENCED: u64 = 1 << 63;

/// Until when a storage server may serve the capabilities of the shards of one node, milliseconds since boot. Shared by
/// the gates of these shards, and read without a lock.
#[derive(Debug)]
pub struct ServingTerm(AtomicU64);

impl ServingTerm {
    /// The term for shards of other nodes: it has to be asked for.
    pub const fn expired() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The term for shards of the storage server's own node, whose fences need no message.
    pub const fn unlimited() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    /// When it ends.
    pub fn until_ms(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Returns true if the term has not ended.
    pub fn holds(&self, now_ms: impl FnOnce() -> u64) -> bool {
        let until_ms = self.until_ms();
        until_ms == u64::MAX || now_ms() < until_ms
    }

    /// Returns true if less than half of the term is left: a storage server that is asked for data renews it.
    pub fn wants_renewal(&self, now_ms: impl FnOnce() -> u64) -> bool {
        let until_ms = self.until_ms();
        until_ms != u64::MAX && now_ms() + SESSION_TERM_MS / 2 > until_ms
    }

    /// Extends it. An earlier end changes nothing.
    pub fn extend(&self, until_ms: u64) {
        self.0.fetch_max(until_ms, Ordering::AcqRel);
    }
}

/// See the module.
#[derive(Debug)]
pub struct Gate {
    state: AtomicU64,
    term: Arc<ServingTerm>,
}

impl Gate {
    /// `fenced`: nothing passes from the start.
    pub(crate) fn new(fenced: bool, term: Arc<ServingTerm>) -> Self {
        Self { state: AtomicU64::new(if fenced { FENCED } else { 0 }), term }
    }

    /// The term during which the storage server may serve the gate's shard.
    pub fn term(&self) -> &ServingTerm {
        &self.term
    }

    /// Lets one piece pass, which [`Gate::leave`] ends. [`Error::SessionEnded`]: the session is fenced.
    /// [`Error::Busy`]: the shard has not been heard for a term; nothing is wrong with the session, and the term may be
    /// renewed.
    pub fn enter(&self, now_ms: impl FnOnce() -> u64) -> Result<()> {
        let in_term = self.term.holds(now_ms);
        // A refused piece is never counted: the last piece that is tells that the fence is settled.
        let count = |state| (state & FENCED == 0).then_some(state + u64::from(in_term));
        match self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, count) {
            Err(_) => Err(Error::SessionEnded),
            Ok(_) if in_term => Ok(()),
            Ok(_) => Err(Error::Busy),
        }
    }

    /// A piece that had passed is written. Returns true if the session was fenced meanwhile and this was its last
    /// piece: the fence is settled.
    pub fn leave(&self) -> bool {
        self.state.fetch_sub(1, Ordering::AcqRel) == FENCED | 1
    }

    /// Closes the gate.
    pub(crate) fn fence(&self) {
        self.state.fetch_or(FENCED, Ordering::AcqRel);
    }

    /// Returns true if the gate is closed.
    pub fn is_fenced(&self) -> bool {
        self.state.load(Ordering::Acquire) & FENCED != 0
    }

    /// Returns true if no piece is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.load(Ordering::Acquire) & !FENCED == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_lets_the_piece_in_flight_end_and_no_other_begin() {
        let gate = Gate::new(false, Arc::new(ServingTerm::unlimited()));
        assert_eq!((gate.enter(|| 0), gate.enter(|| 0)), (Ok(()), Ok(())));
        gate.fence();
        assert_eq!(gate.enter(|| 0), Err(Error::SessionEnded));
        assert!(!gate.is_empty() && !gate.leave(), "a piece is still in flight");
        assert!(gate.leave() && gate.is_empty(), "that was the last one");
    }

    #[test]
    fn nothing_passes_when_the_shard_has_not_been_heard_for_a_term() {
        let term = Arc::new(ServingTerm::expired());
        let gate = Gate::new(false, Arc::clone(&term));
        assert_eq!(gate.enter(|| 0), Err(Error::Busy));
        term.extend(100);
        term.extend(50);
        assert_eq!((gate.enter(|| 99), gate.enter(|| 100)), (Ok(()), Err(Error::Busy)));
        assert!(!gate.leave() && gate.is_empty());
    }
}
