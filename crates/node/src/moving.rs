//! Shards that leave for other nodes, and shards that come (docs/decisions/0023).
//!
//! The root shard's node has a shard shipped: its store goes to the target in parts while it serves, then it is frozen
//! for what is left. Source and target learn by the map of the move's epoch what has become of it: the source drops its
//! shard or goes on with it, the target serves it or drops what has come. Neither does so by itself, or after a time.
//!
//! Not here: what the parts are ([`weft_metadata::shipping`]), the decision to move ([`crate::membership`]).
//! Lock order: `state` has rank 4; nothing is called under it. An [`Arrival`]'s lock is taken before it.

use crate::courier::Errand;
use crate::locks::lock;
use crate::mailbox::{ConnectionRef, Sink};
use crate::shards::{ShardSlot, Shards};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use weft_metadata::membership::MOVE_MS_MAX;
use weft_metadata::shipping::{Arrival, Arrived, Departing, Departure};
use weft_metadata::{Effect, MemoryStore};
use weft_protocol::limits::SHARD_PART_BYTES_MAX;
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest, ShardPart};
use weft_protocol::{ClusterMap, Error, MapEpoch, NodeId, Result, ShardId};

/// Effects of a shard that went on, or whose callers are sent away.
pub type Effects = Vec<(ShardId, Vec<Effect>)>;

/// See the module.
#[derive(Default)]
pub struct Moving(Mutex<State>);

#[derive(Default)]
struct State {
    leaving: BTreeMap<ShardId, Leaving>,
    /// Shards that a thread sends.
    sending: BTreeSet<ShardId>,
    arriving: BTreeMap<ShardId, Arriving>,
}

/// A shard that leaves, or stays, with the map of this epoch. It may be frozen.
struct Leaving {
    epoch: MapEpoch,
    /// The thread that sends the shard has taken it meanwhile.
    departure: Departure,
}

/// A shard that comes with the map of this epoch.
struct Arriving {
    epoch: MapEpoch,
    arrival: Arc<Mutex<Arrival<MemoryStore>>>,
    arrived: Option<Arrived<MemoryStore>>,
}

/// A shard that moves: which, to which node, with the map of which epoch.
#[derive(Clone, Copy)]
pub struct Move {
    pub shard: ShardId,
    pub to: NodeId,
    pub epoch: MapEpoch,
}

impl Shards {
    /// Sends a shard to another node, on a thread of its own. The reply goes to this connection.
    pub fn ship(self: &Arc<Self>, way: Move, (reply_to, id): (ConnectionRef, u64)) {
        let shards = Arc::clone(self);
        let Move { shard, to, .. } = way;
        let ship = move || {
            let result = shards.send_shard(way);
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

    fn send_shard(&self, way: Move) -> Result<()> {
        let Move { shard, epoch, .. } = way;
        let slot = self.slot(shard).ok_or(Error::WrongShard(shard))?;
        let mut departure = self.moving.begin(shard, epoch)?;
        let result = self.send_parts(&slot, way, &mut departure);
        self.moving.end(shard, epoch, departure);
        // The map may have come before the shard was noted as leaving, or before it was frozen.
        let map = self.cluster.map();
        if map.epoch >= epoch {
            let effects = self.settle_moves(&map);
            self.perform(effects, &mut Sink::remote(&self.loops));
        }
        result
    }

    fn send_parts(&self, slot: &ShardSlot, way: Move, departure: &mut Departure) -> Result<()> {
        let Move { shard, to, epoch } = way;
        loop {
            match slot.with(|shard| departure.next(shard, SHARD_PART_BYTES_MAX))? {
                Departing::Send(part) => {
                    let number = part.number;
                    match self.send_part(way, part) {
                        Ok(()) => drop(departure.taken(number)),
                        // It is sent again.
                        Err(Error::Unreachable) => return Err(Error::Unreachable),
                        Err(error) => {
                            departure.refused();
                            return Err(error);
                        }
                    }
                }
                Departing::Freeze if self.moving.is_leaving(shard, epoch) => {
                    self.granting.begin_move(shard);
                    self.fencing.begin_move(shard);
                    slot.freeze()?;
                }
                Departing::Freeze => return Err(Error::StaleMap(self.cluster.epoch())),
                Departing::Wait => slot.wait_until_quiet(Duration::from_millis(MOVE_MS_MAX))?,
                Departing::Complete => {
                    let fences = self.granting.begin_move(shard);
                    slot.with(|shard| departure.complete(shard, &fences))?;
                }
                Departing::Done => {
                    let sent = departure.volume();
                    let (bytes, frozen) = (sent.bytes, sent.bytes_frozen);
                    tracing::info!("shard {shard} was sent to node {to}: {bytes} bytes, {frozen} while it was frozen");
                    return Ok(());
                }
            }
        }
    }

    fn send_part(&self, Move { shard, to, epoch }: Move, part: ShardPart) -> Result<()> {
        let (answered, answer) = channel();
        let tell = Box::new(move |result: Result<NodeAnswer>| drop(answered.send(result)));
        self.couriers.send(to, Errand::Node { to: None, request: NodeRequest::Take { shard, epoch, part }, tell });
        answer.recv().map_err(|_| Error::Unreachable)?.map(drop)
    }

    /// Takes a part of a shard that another node sends, on a thread of its own. The reply goes to this connection.
    pub fn take_part(
        self: &Arc<Self>,
        (shard, epoch): (ShardId, MapEpoch),
        part: ShardPart,
        (reply_to, id): (ConnectionRef, u64),
    ) {
        let is_late = epoch <= self.cluster.epoch() || self.slot(shard).is_some();
        let stale = || Err(Error::StaleMap(self.cluster.epoch()));
        let arrival = if is_late { stale() } else { self.moving.arrival(shard, epoch) };
        let arrival = match arrival {
            Ok(arrival) => arrival,
            Err(error) => return self.reply(reply_to, id, Err(error)),
        };
        let shards = Arc::clone(self);
        let take = move || {
            let mut arrival = lock(&arrival);
            let result = arrival.take(&part, || shards.config_of(shard)).map(|arrived| {
                if let Some(mut arrived) = arrived {
                    arrived.shard.forget_callers();
                    shards.moving.arrived(shard, epoch, arrived);
                }
            });
            drop(arrival);
            shards.reply(reply_to, id, result);
        };
        if std::thread::Builder::new().name(format!("take-{shard}")).spawn(take).is_err() {
            self.reply(reply_to, id, Err(Error::Busy));
        }
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
        for (shard, epoch, arrived) in self.moving.take_come(map.epoch) {
            let is_here = map.arrived(shard, self.cluster.node) == Some(epoch);
            let Some(Arrived { shard: machine, fences }) = arrived.filter(|_| is_here) else { continue };
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
    /// A shard is to be sent, as far as that was not done.
    fn begin(&self, shard: ShardId, epoch: MapEpoch) -> Result<Departure> {
        let state = &mut *lock(&self.0);
        let new = || Leaving { epoch, departure: Departure::default() };
        let leaving = state.leaving.entry(shard).or_insert_with(new);
        if leaving.epoch > epoch || state.sending.contains(&shard) {
            return Err(Error::Busy);
        }
        if leaving.epoch < epoch {
            *leaving = new();
        }
        state.sending.insert(shard);
        Ok(std::mem::take(&mut leaving.departure))
    }

    /// Returns true until there is a map of this epoch.
    fn is_leaving(&self, shard: ShardId, epoch: MapEpoch) -> bool {
        lock(&self.0).leaving.get(&shard).is_some_and(|leaving| leaving.epoch == epoch)
    }

    /// The shard is not sent any more. If it was settled meanwhile, it has to be once more: it may be frozen since.
    fn end(&self, shard: ShardId, epoch: MapEpoch, departure: Departure) {
        let mut state = lock(&self.0);
        state.sending.remove(&shard);
        let new = || Leaving { epoch, departure: Departure::default() };
        let leaving = state.leaving.entry(shard).or_insert_with(new);
        if leaving.epoch == epoch {
            leaving.departure = departure;
        }
    }

    /// Where parts of a shard are kept.
    fn arrival(&self, shard: ShardId, epoch: MapEpoch) -> Result<Arc<Mutex<Arrival<MemoryStore>>>> {
        let mut state = lock(&self.0);
        let new = || Arriving { epoch, arrival: Arc::default(), arrived: None };
        let arriving = state.arriving.entry(shard).or_insert_with(new);
        if arriving.epoch > epoch {
            return Err(Error::Busy);
        }
        if arriving.epoch < epoch {
            *arriving = new();
        }
        Ok(Arc::clone(&arriving.arrival))
    }

    fn arrived(&self, shard: ShardId, epoch: MapEpoch, arrived: Arrived<MemoryStore>) {
        if let Some(arriving) = lock(&self.0).arriving.get_mut(&shard).filter(|arriving| arriving.epoch == epoch) {
            arriving.arrived = Some(arrived);
        }
    }

    fn take_left(&self, epoch: MapEpoch) -> Vec<ShardId> {
        lock(&self.0).leaving.extract_if(.., |_, leaving| leaving.epoch <= epoch).map(|(shard, _)| shard).collect()
    }

    fn take_come(&self, epoch: MapEpoch) -> Vec<(ShardId, MapEpoch, Option<Arrived<MemoryStore>>)> {
        let come = |(shard, arriving): (ShardId, Arriving)| (shard, arriving.epoch, arriving.arrived);
        lock(&self.0).arriving.extract_if(.., |_, arriving| arriving.epoch <= epoch).map(come).collect()
    }
}
