//! A shard on its way to another node, in parts of which each is answered before the next one is sent.
//!
//! The keys and values of the store go first, while the shard serves; those that change meanwhile are sent again. When
//! little is left, the shard is frozen: what is left goes, and what is beside the store.
//!
//! ```text
//!  source, Departure:  Send(keys) ... ──► Freeze ──► Send(keys), Wait ──► Complete ──► Send(rest) ... ──► Done
//!                                           └── too much has changed: Send(all keys) ──┘
//!  target, Arrival:    take(part) ... ──────────────────────────────────────────────────► Arrived
//! ```
//!
//! Numbers of parts ascend, also when all begins anew: the target takes a part only behind the one before, so that one
//! that was sent twice, and comes late, does no harm.
//!
//! Invariant: what has arrived is the frozen shard; the source has lost nothing, and goes on with it if it is resumed.
//! Not here: messages and threads; when a shard moves, and what has become of it (`membership.rs`).
//! On a crash: of the target, a move that is abandoned; of the source, a shard that is gone with its node.

use crate::front::{Shard, ShardConfig};
use crate::kv::{KeyValue, add_piece};
use weft_protocol::limits::{SHARD_PART_BYTES_MAX, SHARD_REST_BYTES_MAX};
use weft_protocol::message::node::{ShardPart, ShardPartKind};
use weft_protocol::message::storage::SessionFence;
use weft_protocol::{Error, NodeId, Result, codec};

/// Fences that storage servers have not confirmed.
pub type Unconfirmed = Vec<(NodeId, SessionFence)>;

/// A shard that leaves, at its source.
#[derive(Debug, Default)]
pub struct Departure {
    /// Number of the latest part; the first one is 1.
    number: u64,
    stage: Stage,
    /// The latest part, until it is answered.
    unanswered: Option<ShardPart>,
    volume: Volume,
}

/// Bytes of parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Volume {
    pub bytes: u64,
    /// Of these, what was sent while the shard was frozen.
    pub bytes_frozen: u64,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Begin,
    Keys {
        is_first: bool,
    },
    Rest {
        bytes: Vec<u8>,
        sent: usize,
    },
    Done,
}

/// What is next of a shard that leaves.
#[derive(PartialEq, Eq, Debug)]
pub enum Departing {
    /// Send this part, and give its answer to [`Departure::taken`] or [`Departure::refused`]; without one, send it
    /// again.
    Send(ShardPart),
    /// Freeze the shard.
    Freeze,
    /// Ask again when the frozen shard has got an answer of a storage server.
    Wait,
    /// Nothing changes any more: [`Departure::complete`].
    Complete,
    /// The target has the whole shard.
    Done,
}

impl Departure {
    /// Returns what is next. `part_bytes_max`: of one part, but for one record.
    pub fn next<K: KeyValue>(&mut self, shard: &mut Shard<K>, part_bytes_max: usize) -> Departing {
        if let Some(part) = &self.unanswered {
            return Departing::Send(part.clone());
        }
        let (is_frozen, is_quiet) = (shard.is_frozen(), shard.is_quiet());
        match &mut self.stage {
            Stage::Begin => {
                shard.copied_store().begin_copy();
                self.stage = Stage::Keys { is_first: true };
                self.next(shard, part_bytes_max)
            }
            Stage::Keys { is_first } => {
                let store = shard.copied_store();
                if !store.is_being_copied() && is_frozen {
                    self.stage = Stage::Begin;
                    return self.next(shard, part_bytes_max);
                }
                if !is_frozen && (!store.is_being_copied() || store.is_nearly_copied()) {
                    return Departing::Freeze;
                }
                let kind = if *is_first { ShardPartKind::FirstKeys } else { ShardPartKind::Keys };
                match store.next_piece(part_bytes_max) {
                    Some(bytes) => {
                        *is_first = false;
                        self.send(kind, bytes, is_frozen)
                    }
                    None if is_quiet => Departing::Complete,
                    None => Departing::Wait,
                }
            }
            Stage::Rest { bytes, sent } => {
                let end = bytes.len().min(*sent + part_bytes_max);
                let kind = if end == bytes.len() { ShardPartKind::LastRest } else { ShardPartKind::Rest };
                let part = bytes[*sent..end].to_vec();
                *sent = end;
                self.send(kind, part, is_frozen)
            }
            Stage::Done => Departing::Done,
        }
    }

    fn send(&mut self, kind: ShardPartKind, bytes: Vec<u8>, is_frozen: bool) -> Departing {
        self.number += 1;
        self.volume.bytes += bytes.len() as u64;
        self.volume.bytes_frozen += if is_frozen { bytes.len() as u64 } else { 0 };
        let part = ShardPart { number: self.number, kind, bytes };
        self.unanswered = Some(part.clone());
        Departing::Send(part)
    }

    /// All keys are sent, and the shard is quiet: sends what else it has.
    pub fn complete<K: KeyValue>(&mut self, shard: &Shard<K>, fences: &Unconfirmed) {
        let bytes = shard.append_rest(codec::to_bytes(fences));
        self.stage = Stage::Rest { bytes, sent: 0 };
    }

    /// The target has taken the part of this number. Returns false if that was known.
    pub fn taken(&mut self, number: u64) -> bool {
        let Some(part) = self.unanswered.take_if(|part| part.number == number) else { return false };
        if part.kind == ShardPartKind::LastRest {
            self.stage = Stage::Done;
        }
        true
    }

    /// The target does not have what was sent before, or cannot use it: all begins anew.
    pub fn refused(&mut self) {
        self.stage = Stage::Begin;
        self.unanswered = None;
    }

    /// What was sent.
    pub fn volume(&self) -> Volume {
        self.volume
    }
}

/// A shard that comes, at its target.
#[derive(Default)]
pub struct Arrival<K> {
    store: K,
    rest: Vec<u8>,
    /// Number of the latest part that was taken. Zero: none.
    number: u64,
}

/// A frozen shard that has come.
pub struct Arrived<K> {
    pub shard: Shard<K>,
    pub fences: Unconfirmed,
}

impl<K: KeyValue + Default> Arrival<K> {
    /// Takes a part; the last one returns the shard. [`Error::Invalid`]: it does not follow the latest one.
    pub fn take(&mut self, part: &ShardPart, config: impl FnOnce() -> ShardConfig) -> Result<Option<Arrived<K>>> {
        if part.number <= self.number {
            return Ok(None);
        }
        if part.kind == ShardPartKind::FirstKeys {
            *self = Self::default();
        } else if self.number == 0 || part.number != self.number + 1 {
            return Err(Error::Invalid);
        }
        // A part that is refused is followed by a first one.
        self.number = 0;
        let arrived = self.add(part, config)?;
        self.number = part.number;
        Ok(arrived)
    }

    fn add(&mut self, part: &ShardPart, config: impl FnOnce() -> ShardConfig) -> Result<Option<Arrived<K>>> {
        match part.kind {
            ShardPartKind::FirstKeys | ShardPartKind::Keys => {
                add_piece(&mut self.store, &part.bytes)?;
                return Ok(None);
            }
            ShardPartKind::Rest | ShardPartKind::LastRest => {
                if part.bytes.len() > SHARD_PART_BYTES_MAX || self.rest.len() > SHARD_REST_BYTES_MAX {
                    return Err(Error::Invalid);
                }
                self.rest.extend_from_slice(&part.bytes);
            }
        }
        if part.kind == ShardPartKind::Rest {
            return Ok(None);
        }
        let mut rest = &*std::mem::take(&mut self.rest);
        let fences = codec::take(&mut rest)?;
        let shard = Shard::of_copy(config(), std::mem::take(&mut self.store), rest)?;
        Ok(Some(Arrived { shard, fences }))
    }
}
