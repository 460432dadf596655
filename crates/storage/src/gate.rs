//! The gates that each piece of a write passes on its way into an object.
//!
//! There is one gate per session and shard, which a fence closes, and one per data connection ([`PieceGate`]), which
//! the client closes when it gives the connection up. A thread that writes holds both for the length of one piece (one
//! `pwrite`, `splice` or device write), never while it waits for a client. So closing a gate needs no lock, and is
//! *settled* once the pieces that had passed before are written. From then on no byte of the session lands in a file of
//! the shard, or none of the connection in any.
//!
//! Cost: four atomic operations and, at another node than the shard's, a look at the clock per piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::{Error, Result};

/// Set in a [`PieceGate`] once it is closed; the other bits count pieces in flight.
const CLOSED: u64 = 1 << 63;

/// Until when a storage server may serve the capabilities of a shard, milliseconds since boot. Shared by the gates of
/// the shard, and read without a lock.
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

    /// Sets its end: the shard has come to the storage server's own node, stays there, or leaves it.
    pub fn set(&self, until_ms: u64) {
        self.0.store(until_ms, Ordering::Release);
    }

    /// Extends it. An earlier end changes nothing.
    pub fn extend(&self, until_ms: u64) {
        self.0.fetch_max(until_ms, Ordering::AcqRel);
    }
}

/// Counts the pieces in flight, and admits none any more once it is closed.
#[derive(Debug, Default)]
pub struct PieceGate(AtomicU64);

impl PieceGate {
    /// Admits one piece, until [`PieceGate::leave`]. Returns false if the gate is closed.
    pub fn enter(&self) -> bool {
        // A refused piece is never counted: the last piece that is tells that the closed gate is settled.
        let count = |state| (state & CLOSED == 0).then_some(state + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, count).is_ok()
    }

    /// A piece that had passed is written. Returns true if the gate was closed meanwhile and this was its last piece.
    pub fn leave(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == CLOSED | 1
    }

    /// Closes the gate.
    pub fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Returns true if the gate is closed.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Returns true if no piece is in flight.
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) & !CLOSED == 0
    }
}

/// The gate of a session and shard.
#[derive(Debug)]
pub struct Gate {
    pieces: PieceGate,
    term: Arc<ServingTerm>,
}

impl Gate {
    /// `fenced`: nothing passes from the start.
    pub(crate) fn new(fenced: bool, term: Arc<ServingTerm>) -> Self {
        let gate = Self { pieces: PieceGate::default(), term };
        if fenced {
            gate.fence();
        }
        gate
    }

    /// The term during which the storage server may serve the gate's shard.
    pub fn term(&self) -> &ServingTerm {
        &self.term
    }

    /// Lets one piece pass, which [`Gate::leave`] ends. [`Error::SessionEnded`]: the session is fenced.
    /// [`Error::Busy`]: the shard has not been heard for a term; nothing is wrong with the session, and the term may be
    /// renewed.
    pub fn enter(&self, now_ms: impl FnOnce() -> u64) -> Result<()> {
        if !self.term.holds(now_ms) {
            return Err(if self.is_fenced() { Error::SessionEnded } else { Error::Busy });
        }
        if self.pieces.enter() { Ok(()) } else { Err(Error::SessionEnded) }
    }

    /// A piece that had passed is written. Returns true if the session was fenced meanwhile and this was its last
    /// piece: the fence is settled.
    pub fn leave(&self) -> bool {
        self.pieces.leave()
    }

    /// Closes the gate.
    pub(crate) fn fence(&self) {
        self.pieces.close();
    }

    /// Returns true if the gate is closed.
    pub fn is_fenced(&self) -> bool {
        self.pieces.is_closed()
    }

    /// Returns true if no piece is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
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
