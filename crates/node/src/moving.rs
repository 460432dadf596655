//! Shards that leave for other nodes, and shards that come (docs/decisions/0023).
//!
//! The root shard's node has a shard shipped: it is frozen, and its state goes to the target in parts. Source and
//! target learn by the map of the move's epoch what has become of it: the source drops its shard or goes on with it,
//! the target serves it or drops what has come. Neither does so by itself, or after a time.
//!
//! Not here: the state itself ([`weft_metadata::Shard::image`]), the decision ([`crate::membership`]).
//! Lock order: `state` has rank 4; nothing is called under it.

use crate::courier::Errand;
use crate::locks::lock;
use crate::mailbox::{ConnectionRef, Sink};
use crate::shards::{ShardSlot, Shards};
use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use weft_metadata::membership::MOVE_MS_MAX;
use weft_metadata::{Effect, MemoryStore, Shard};
use weft_protocol::limits::{SHARD_PART_BYTES_MAX, SHARD_PARTS_MAX};
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::message::storage::SessionFence;
use weft_protocol::{ClusterMap, Error, MapEpoch, NodeId, Result, ShardId, codec};

/// Effects of a shard that went on, or whose callers are sent away.
pub type Effects = Vec<(ShardId, Vec<Effect>)>;

/// See the module.
#[derive(Default)]
pub struct Moving(Mutex<State>);

#[derive(Default)]
struct State {
    leaving: BTreeMap<ShardId, Leaving>,
    arriving: BTreeMap<ShardId, Arriving>,
}

/// A shard that is frozen here, until there is a map of this epoch or a later one.
struct Leaving {
    epoch: MapEpoch,
    progress: Progress,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Nobody sends it.
    Idle,
    /// A thread sends it.
    Sending,
    /// The target has it.
    Sent,
}

/// A shard that comes with the map of this epoch.
struct Arriving {
    epoch: MapEpoch,
    parts: Vec<Option<Vec<u8>>>,
    came: Option<Came>,
}

/// A frozen shard, and the fences that storage servers have not confirmed.
struct Came {
    shard: Shard<MemoryStore>,
    fences: Vec<(NodeId, SessionFence)>,
}

/// One part of a shard.
pub struct Part {
    pub shard: ShardId,
    pub epoch: MapEpoch,
    pub index: u32,
    pub count: u32,
    pub bytes: Vec<u8>,
}

impl Shards {
    /// Freezes a shard and sends it to another node, on a thread of its own. The reply goes to this connection.
    pub fn ship(self: &Arc<Self>, shard: ShardId, to: NodeId, epoch: MapEpoch, (reply_to, id): (ConnectionRef, u64)) {
        let shards = Arc::clone(self);
        let ship = move || {
            let result = shards.send_shard(shard, to, epoch);
            if let Err(error) = &result {
                tracing::warn!("shard {shard} cannot be sent to node {to}: {error}");
            }
            shards.reply(reply_to, id, result);
        };
        if std::thread::Builder::new().name(format!("ship-{shard}")).spawn(ship).is_err() {
            self.reply(reply_to, id, Err(Error::Busy));
        }
    }

    fn reply(&self, to: ConnectionRef, id: u64, result: Result<()>) {
        let reply = Message::NodeReply(Box::new(result.map(|()| NodeAnswer::Done)));
        Sink::remote(&self.loops).send(to, id, reply);
    }

    fn send_shard(&self, shard: ShardId, to: NodeId, epoch: MapEpoch) -> Result<()> {
        let slot = self.slot(shard).ok_or(Error::WrongShard(shard))?;
        if !self.moving.begin(shard, epoch)? {
            return Ok(());
        }
        self.granting.begin_move(shard);
        self.fencing.begin_move(shard);
        let result = slot.freeze().and_then(|()| self.send_frozen(&slot, shard, to, epoch));
        self.moving.end(shard, epoch, result.is_ok());
        // The map may have come before the shard was noted as leaving.
        let map = self.cluster.map();
        if map.epoch >= epoch {
            let effects = self.settle_moves(&map);
            self.perform(effects, &mut Sink::remote(&self.loops));
        }
        result
    }

    fn send_frozen(&self, slot: &ShardSlot, shard: ShardId, to: NodeId, epoch: MapEpoch) -> Result<()> {
        let image = slot.image(Duration::from_millis(MOVE_MS_MAX))?;
        let state = codec::append(&self.granting.begin_move(shard), Vec::new());
        let state = [state, image].concat();
        let chunks = state.chunks(SHARD_PART_BYTES_MAX);
        let count = u32::try_from(chunks.len()).ok().filter(|count| *count <= SHARD_PARTS_MAX).ok_or(Error::NoSpace)?;
        for (part, bytes) in (0..).zip(chunks) {
            let (answered, answer) = channel();
            let tell = Box::new(move |result: Result<NodeAnswer>| drop(answered.send(result)));
            let request = NodeRequest::Take { shard, epoch, part, parts: count, bytes: bytes.to_vec() };
            self.couriers.send(to, Errand::Node { to: None, request, tell });
            answer.recv().map_err(|_| Error::Unreachable)??;
        }
        tracing::info!("shard {shard} was sent to node {to}: {} bytes", state.len());
        Ok(())
    }

    /// Takes a part of a shard that another node sends. The reply goes to this connection.
    pub fn take_part(self: &Arc<Self>, part: Part, (reply_to, id): (ConnectionRef, u64)) {
        let (shard, epoch) = (part.shard, part.epoch);
        let is_late = epoch <= self.cluster.epoch() || self.slot(shard).is_some();
        let taken = if is_late { Err(Error::StaleMap(self.cluster.epoch())) } else { self.moving.take(part) };
        let state = match taken {
            Ok(Some(state)) => state,
            Ok(None) => return self.reply(reply_to, id, Ok(())),
            Err(error) => return self.reply(reply_to, id, Err(error)),
        };
        let shards = Arc::clone(self);
        let restore = move || {
            let came = shards.restore(shard, &state);
            let result = came.map(|came| shards.moving.came(shard, epoch, came));
            shards.reply(reply_to, id, result);
        };
        if std::thread::Builder::new().name(format!("restore-{shard}")).spawn(restore).is_err() {
            self.reply(reply_to, id, Err(Error::Busy));
        }
    }

    fn restore(&self, shard: ShardId, mut state: &[u8]) -> Result<Came> {
        let fences = codec::take(&mut state)?;
        let mut shard = Shard::restore(self.config_of(shard), MemoryStore::new(), state)?;
        shard.forget_callers();
        Ok(Came { shard, fences })
    }

    /// With this map shards have left or stay, and shards have come or do not come. Called before other threads see it.
    pub fn settle_moves(&self, map: &ClusterMap) -> Effects {
        let mut effects = Effects::new();
        for shard in self.moving.take_left(map.epoch) {
            let Some(slot) = self.slot(shard) else { continue };
            let mut out = Vec::new();
            if map.node_of(shard) == Some(self.cluster.node) {
                tracing::info!("shard {shard} stays here");
                self.granting.abandon_move(shard);
                self.fencing.is_own(shard);
                slot.resume(&mut out);
            } else {
                tracing::info!("shard {shard} has left");
                self.slots.write().unwrap_or_else(PoisonError::into_inner).remove(&shard);
                self.granting.left(shard);
                slot.send_callers_away(&mut out);
            }
            effects.push((shard, out));
        }
        for (shard, epoch, came) in self.moving.take_come(map.epoch) {
            let is_here = map.arrived(shard, self.cluster.node) == Some(epoch);
            let Some(Came { shard: machine, fences }) = came.filter(|_| is_here) else { continue };
            tracing::info!("shard {shard} has come");
            let others = map.nodes.iter().map(|node| node.id).filter(|node| *node != self.cluster.node);
            self.granting.arrived(others, fences);
            self.fencing.is_own(shard);
            let (slot, mut out) = (Arc::new(ShardSlot::new(shard, machine)), Vec::new());
            slot.resume(&mut out);
            self.slots.write().unwrap_or_else(PoisonError::into_inner).insert(shard, slot);
            effects.push((shard, out));
        }
        effects
    }
}

impl Moving {
    /// A shard is to be sent. Returns false if the target has it.
    fn begin(&self, shard: ShardId, epoch: MapEpoch) -> Result<bool> {
        let mut state = lock(&self.0);
        let leaving = state.leaving.entry(shard).or_insert(Leaving { epoch, progress: Progress::Idle });
        if leaving.epoch > epoch || leaving.progress == Progress::Sending {
            return Err(Error::Busy);
        }
        if leaving.epoch == epoch && leaving.progress == Progress::Sent {
            return Ok(false);
        }
        *leaving = Leaving { epoch, progress: Progress::Sending };
        Ok(true)
    }

    fn end(&self, shard: ShardId, epoch: MapEpoch, is_sent: bool) {
        if let Some(leaving) = lock(&self.0).leaving.get_mut(&shard).filter(|leaving| leaving.epoch == epoch) {
            leaving.progress = if is_sent { Progress::Sent } else { Progress::Idle };
        }
    }

    /// Keeps a part. Returns the whole state, once all parts are there.
    fn take(&self, part: Part) -> Result<Option<Vec<u8>>> {
        let Part { shard, epoch, index, count, bytes } = part;
        if count > SHARD_PARTS_MAX || index >= count || bytes.len() > SHARD_PART_BYTES_MAX {
            return Err(Error::Invalid);
        }
        let mut state = lock(&self.0);
        let new = || Arriving { epoch, parts: vec![None; count as usize], came: None };
        let arriving = state.arriving.entry(shard).or_insert_with(new);
        if arriving.epoch > epoch {
            return Err(Error::Busy);
        }
        if arriving.epoch < epoch || arriving.parts.len() != count as usize {
            *arriving = new();
        }
        if let Some(place) = arriving.parts.get_mut(index as usize) {
            *place = Some(bytes);
        }
        let parts: Option<Vec<&[u8]>> = arriving.parts.iter().map(Option::as_deref).collect();
        let whole = parts.map(|parts| parts.concat());
        if whole.is_some() {
            arriving.parts.iter_mut().for_each(|part| *part = None);
        }
        Ok(whole)
    }

    fn came(&self, shard: ShardId, epoch: MapEpoch, came: Came) {
        if let Some(arriving) = lock(&self.0).arriving.get_mut(&shard).filter(|arriving| arriving.epoch == epoch) {
            arriving.came = Some(came);
        }
    }

    fn take_left(&self, epoch: MapEpoch) -> Vec<ShardId> {
        lock(&self.0).leaving.extract_if(.., |_, leaving| leaving.epoch <= epoch).map(|(shard, _)| shard).collect()
    }

    fn take_come(&self, epoch: MapEpoch) -> Vec<(ShardId, MapEpoch, Option<Came>)> {
        let come = |(shard, arriving): (ShardId, Arriving)| (shard, arriving.epoch, arriving.came);
        lock(&self.0).arriving.extract_if(.., |_, arriving| arriving.epoch <= epoch).map(come).collect()
    }
}
