//! A shard that moves to another node: how it is frozen, and what of it is beside the store (docs/decisions/0023).
//!
//! ```text
//!  (the store is copied) ──► freeze ──► (storage servers have answered) is_quiet ──► rest ──► resume, at the target
//!                              └────────────── the move is abandoned ────────────────────────► resume
//! ```
//!
//! A frozen shard refuses calls and steps of others with `Busy`, and hears nobody. Only answers of storage servers are
//! taken, until each question has one: a cut that is still on its way would land behind those of the target. Its clock
//! stands still until it is resumed, so that no session's term ends while nobody could renew it.
//!
//! Invariant: a shard that was made of another one's store and rest does what the frozen one would have done when
//! resumed. The map is not among it. The tokens of parked calls mean nothing at the target: their callers ask again.
//! Not here: who decides, and in which order it is sent (`shipping.rs`). The bytes are no wire format of their own:
//! both nodes run the same version of the protocol.
//! On a crash: a frozen shard is as good as before until the target has all of its bytes.

use super::park::Work;
use super::{Effect, Event, Fences, Now, Shard, ShardConfig};
use crate::back::Back;
use crate::kv::{CopiedStore, KeyValue};
use weft_protocol::message::peer::PeerReply;
use weft_protocol::message::shard::ShardReply;
use weft_protocol::{Error, Result, codec};

/// The clock of a shard. It stands still while the shard is frozen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// What is added to the node's, milliseconds. Wraps.
    offset_ms: u64,
    is_stopped: bool,
}

impl Clock {
    /// The shard's time.
    pub fn read(self, now: Now) -> Now {
        Now { boot_ms: now.boot_ms.wrapping_add(self.offset_ms), ..now }
    }

    /// When a time of the shard comes, by the clock of the node: at once, if it has passed at the shard's time `now`.
    pub fn of_node(self, due_ms: u64, now: Now) -> u64 {
        now.boot_ms.wrapping_sub(self.offset_ms) + due_ms.saturating_sub(now.boot_ms)
    }
}

impl<K: KeyValue> Shard<K> {
    /// Freezes the shard, unless it is frozen.
    pub fn freeze(&mut self, now: Now) {
        if !self.clock.is_stopped {
            self.now = self.clock.read(now);
            self.clock.is_stopped = true;
        }
    }

    /// Returns true if the shard is frozen.
    pub fn is_frozen(&self) -> bool {
        self.clock.is_stopped
    }

    /// Returns true if the shard is frozen, and all storage servers have answered.
    pub fn is_quiet(&self) -> bool {
        self.clock.is_stopped && self.storage_waits.is_empty()
    }

    /// A frozen shard goes on, at this node's time `now`, and one that was to move stays. Fences that are not confirmed
    /// are sent again: the target has not sent any, and at the source confirmations may have come meanwhile. What was
    /// being read from below is read again: at the target once it has a map.
    pub fn resume(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.back.copied_store().end_copy();
        if !std::mem::take(&mut self.clock.is_stopped) {
            return;
        }
        self.clock.offset_ms = self.now.boot_ms.wrapping_sub(now.boot_ms);
        self.now = self.clock.read(now);
        for (session, fencing) in &self.fencing {
            let mut objects = self.fences_of(*session);
            let fences: Fences =
                fencing.waiting().map(|node| (node, objects.remove(&node).into_iter().flatten().collect())).collect();
            out.push(Effect::EndSession { session: *session, fences });
        }
        self.read_again();
        if !self.map.nodes.is_empty() {
            self.settle(out);
        }
    }

    /// Takes an event while the shard is frozen.
    pub(super) fn step_frozen(&mut self, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Call { token, .. } => {
                let reply = ShardReply { stamp: self.stamp, result: Err(Error::Busy), others: Vec::new() };
                out.push(Effect::Reply { token, reply });
            }
            Event::PeerCall { token, call } => {
                let reply = PeerReply { intent: call.intent, result: Err(Error::Busy) };
                out.push(Effect::PeerReply { token, reply });
            }
            Event::StorageAnswer { token, result } => {
                self.storage_answered(token, result, out);
                self.settle(out);
            }
            Event::SetMap(map) => self.set_map(map),
            // Sent again to whoever has the shard then; or as if it had been lost.
            Event::Heard { .. }
            | Event::Located { .. }
            | Event::Lost { .. }
            | Event::RecallAnswer { .. }
            | Event::LockGrantTaken { .. }
            | Event::PeerReply(_)
            | Event::FenceConfirmed { .. }
            | Event::Tick => {}
        }
    }

    /// Sends the callers of parked work away, since the shard has moved: they ask the target.
    pub fn send_callers_away(&self, out: &mut Vec<Effect>) {
        for (_, parked) in self.parking.iter() {
            out.push(match &parked.work {
                Work::Call(call) => {
                    let result = Err(Error::WrongShard(self.shard()));
                    let reply = ShardReply { stamp: self.stamp, result, others: Vec::new() };
                    Effect::Reply { token: call.token, reply }
                }
                Work::Peer { token, call } => {
                    let reply = PeerReply { intent: call.intent, result: Err(Error::Busy) };
                    Effect::PeerReply { token: *token, reply }
                }
            });
        }
    }

    /// The callers of parked work are not known at this node: nobody is answered who does not ask again.
    pub fn forget_callers(&mut self) {
        self.parking.forget_callers();
    }

    /// The store, for [`Departure`](crate::shipping::Departure).
    pub(crate) fn copied_store(&mut self) -> &mut CopiedStore<K> {
        self.back.copied_store()
    }

    /// What a frozen shard has beside the keys and values of its store. Costs some bytes for each session and lease.
    pub(crate) fn append_rest(&self, rest: Vec<u8>) -> Vec<u8> {
        let is_settled = self.ready.is_empty() && self.removals.is_empty() && self.doubted.is_empty();
        assert!(self.is_quiet() && is_settled, "only a quiet shard is copied");
        let mut rest = codec::append(&(self.shard(), self.now.boot_ms, self.stamp, self.latest_storage_token), rest);
        rest = codec::append(&(&self.sessions, &self.leases, &self.recalls, &self.parking), rest);
        rest = codec::append(&(&self.contention, &self.backlogs, &self.cuts, &self.cut_at, &self.recovering), rest);
        rest = codec::append(&(&self.orphans, &self.told, &self.fencing, &self.groups), rest);
        rest = codec::append(&(&self.intents, &self.locks, &self.locked), rest);
        self.back.append_rest(rest)
    }

    /// The frozen shard whose store was copied to this one, with what was beside it. [`Error::Malformed`]: that is of
    /// none, or of another.
    pub(crate) fn of_copy(config: ShardConfig, store: K, mut rest: &[u8]) -> Result<Self> {
        let left = &mut rest;
        let (shard, boot_ms, stamp, latest_storage_token) = codec::take(left)?;
        if config.shard != shard {
            return Err(Error::Malformed);
        }
        let (sessions, leases, recalls, parking) = codec::take(left)?;
        let (contention, backlogs, cuts, cut_at, recovering) = codec::take(left)?;
        let (orphans, told, fencing, groups) = codec::take(left)?;
        let (intents, locks, locked) = codec::take(left)?;
        let now = Now { boot_ms, ..Now::default() };
        let back = Back::of_copy(shard, store, left)?;
        if !rest.is_empty() {
            return Err(Error::Malformed);
        }
        let clock = Clock { offset_ms: 0, is_stopped: true };
        let rest = Self::over(back, config, now);
        Ok(Self {
            clock,
            sessions,
            leases,
            recalls,
            parking,
            contention,
            stamp,
            latest_storage_token,
            backlogs,
            cuts,
            cut_at,
            recovering,
            orphans,
            told,
            fencing,
            groups,
            intents,
            locks,
            locked,
            ..rest
        })
    }
}
