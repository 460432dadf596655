//! The shards of this node: their machines, and the effects of their steps.
//!
//! Any thread with an event steps the machine, under the shard's own lock. Effects for other shards of this node are
//! carried out one after another with no lock held, so that two shards never wait for each other.
//!
//! An assertion that fails in a machine stops that shard: from then on it replies "input/output error", and `weft
//! status` shows the assertion. The other shards continue.

use crate::cached_pages::CachedPages;
use crate::calls::{Caller, Calls};
use crate::cluster::Cluster;
use crate::courier::{Couriers, Errand};
use crate::fencing::{ConfirmTo, Fencing, Unsettled};
use crate::granting::Granting;
use crate::locks::lock;
use crate::mailbox::{Loops, Sink};
use crate::moving::{Effects, Moving};
use crate::sessions::Sessions;
use crate::shard_events::ShardEvents;
use crate::storage_server::StorageServer;
use crate::{clock, text};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;
use weft_metadata::{Effect, Event, Fences, Growth, MemoryStore, RootDirectory, Shard, ShardConfig};
use weft_protocol::limits::TEXT_BYTES_MAX;
use weft_protocol::message::Message;
use weft_protocol::message::node::{RequestInFlight, ShardStatus};
use weft_protocol::message::peer::{IntentId, PeerCall, PeerReply};
use weft_protocol::message::shard::ShardReply;
use weft_protocol::message::storage::{SessionFence, StorageRequest};
use weft_protocol::{ClusterMap, Error, InodeNumber, NodeId, ObjectId, SessionId, ShardId, routing};
use weft_transport::SocketKind;

/// No deadline.
const NEVER: u64 = u64::MAX;

/// The shards of a node, and where their effects go.
pub struct Shards {
    pub cluster: Arc<Cluster>,
    pub calls: Calls,
    pub sessions: Arc<Sessions>,
    pub couriers: Arc<Couriers>,
    pub granting: Arc<Granting>,
    pub fencing: Arc<Fencing>,
    pub pages: Arc<CachedPages>,
    pub storage: Option<Arc<StorageServer>>,
    pub loops: Arc<Loops>,
    pub moving: Moving,
    pub slots: RwLock<BTreeMap<ShardId, Arc<ShardSlot>>>,
}

/// One shard.
pub struct ShardSlot {
    id: ShardId,
    machine: Mutex<Machine>,
    /// The machine is frozen, and has got an answer.
    answered: Condvar,
    /// When the machine wants its next tick, milliseconds since boot. Read without the machine's lock.
    deadline_ms: AtomicU64,
}

enum Machine {
    Running(Box<Shard<MemoryStore>>),
    /// The assertion that failed.
    Failed(String),
}

/// An event for a shard.
struct Work {
    shard: ShardId,
    event: Event,
}

impl ShardSlot {
    /// Returns the slot of a shard.
    pub fn new(id: ShardId, shard: Shard<MemoryStore>) -> Self {
        let machine = Mutex::new(Machine::Running(Box::new(shard)));
        Self { id, machine, answered: Condvar::new(), deadline_ms: AtomicU64::new(NEVER) }
    }

    fn step(&self, event: Event, out: &mut Vec<Effect>) -> Result<(), Error> {
        self.with(|shard| shard.step(clock::now(), event, out))
    }

    /// Lets the machine do something, and notes when it wants a tick.
    pub fn with<R>(&self, act: impl FnOnce(&mut Shard<MemoryStore>) -> R) -> Result<R, Error> {
        let mut machine = lock(&self.machine);
        let Machine::Running(shard) = &mut *machine else { return Err(Error::Device(5)) };
        let result = catch_unwind(AssertUnwindSafe(|| {
            let result = act(shard);
            (result, shard.deadline(), shard.is_frozen())
        }));
        match result {
            Ok((result, deadline, is_frozen)) => {
                self.deadline_ms.store(deadline.unwrap_or(NEVER), Ordering::Relaxed);
                if is_frozen {
                    self.answered.notify_all();
                }
                Ok(result)
            }
            Err(panic) => {
                let text = panic_text(&*panic);
                tracing::error!("shard {} stopped: {text}", self.id);
                *machine = Machine::Failed(text);
                self.deadline_ms.store(NEVER, Ordering::Relaxed);
                Err(Error::Device(5))
            }
        }
    }

    /// Freezes the shard.
    pub fn freeze(&self) -> Result<(), Error> {
        self.with(|shard| shard.freeze(clock::now()))
    }

    /// Lets a frozen shard go on, and one that was to move stay.
    pub fn resume(&self, out: &mut Vec<Effect>) {
        // A shard that has failed stays so.
        let _ = self.with(|shard| shard.resume(clock::now(), out));
    }

    /// Refuses the calls that are parked in a shard that has left.
    pub fn send_callers_away(&self, out: &mut Vec<Effect>) {
        let _ = self.with(|shard| shard.send_callers_away(out));
    }

    /// Waits until all storage servers have answered a frozen shard. [`Error::Busy`]: not in this time.
    pub fn wait_until_quiet(&self, wait_max: Duration) -> Result<(), Error> {
        let is_noisy = |machine: &mut Machine| matches!(machine, Machine::Running(shard) if !shard.is_quiet());
        let waited = self.answered.wait_timeout_while(lock(&self.machine), wait_max, is_noisy);
        let (mut machine, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if is_noisy(&mut machine) { Err(Error::Busy) } else { Ok(()) }
    }

    /// The client of a session lives. Returns whether the shard refuses the session; `None`: it does not hear anybody.
    /// A failed shard refuses nobody: it grants nothing either.
    fn hear(&self, session: SessionId, groups: BTreeSet<SessionId>, out: &mut Vec<Effect>) -> Option<bool> {
        let heard = self.with(|shard| {
            shard.step(clock::now(), Event::Heard { session, groups }, out);
            (!shard.is_frozen()).then(|| shard.refuses(session))
        });
        heard.unwrap_or(Some(false))
    }

    fn uses_object(&self, session: SessionId, inode: InodeNumber, object: ObjectId) -> Result<bool, Error> {
        match &*lock(&self.machine) {
            Machine::Running(shard) => shard.uses_object(session, inode, object),
            Machine::Failed(_) => Err(Error::Device(5)),
        }
    }

    fn status(&self) -> ShardStatus {
        match &*lock(&self.machine) {
            Machine::Running(shard) => shard.status(),
            Machine::Failed(text) => ShardStatus { shard: self.id, failed: Some(text.clone()), ..Default::default() },
        }
    }

    /// Returns the calls parked in the machine by token: the request, and what it waits for.
    fn parked(&self) -> Vec<(u64, (String, String))> {
        match &*lock(&self.machine) {
            Machine::Running(shard) => {
                shard.stuck().into_iter().map(|call| (call.token, (call.request, call.waits_for))).collect()
            }
            Machine::Failed(_) => Vec::new(),
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let mut text = text.unwrap_or_else(|| "assertion failed".to_owned());
    // Every later status carries it.
    text::cut(&mut text, TEXT_BYTES_MAX);
    text
}

impl Shards {
    /// Returns the slot of a shard that is here.
    pub fn slot(&self, shard: ShardId) -> Option<Arc<ShardSlot>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).get(&shard).cloned()
    }

    fn all(&self) -> Vec<Arc<ShardSlot>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Returns the state of all shards, for `weft status`.
    pub fn status(&self) -> Vec<ShardStatus> {
        self.all().iter().map(|slot| slot.status()).collect()
    }

    /// Returns every call without a reply.
    pub fn in_flight(&self) -> Vec<RequestInFlight> {
        self.calls.in_flight(self.all().iter().flat_map(|slot| slot.parked()).collect())
    }

    /// Installs a map with a higher epoch, and starts this node's shards that begin with it. A shard that exists is
    /// never started again: it would be empty.
    pub fn set_map(&self, map: ClusterMap, sink: &mut Sink<'_>) -> Result<(), Error> {
        let (mut events, mut effects) = (VecDeque::new(), Effects::new());
        self.cluster.install(map, |map| {
            effects = self.settle_moves(map);
            let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
            for id in map.born_at(self.cluster.node) {
                slots.entry(id).or_insert_with(|| Arc::new(ShardSlot::new(id, self.new_shard(id))));
            }
            for id in slots.keys() {
                events.push_back(Work { shard: *id, event: Event::SetMap(map.clone()) });
            }
        })?;
        self.run(events, None, sink);
        self.perform(effects, sink);
        Ok(())
    }

    fn new_shard(&self, id: ShardId) -> Shard<MemoryStore> {
        let mut shard = Shard::new(self.config_of(id), MemoryStore::new(), clock::now());
        if self.cluster.is_over && id == ShardId::ROOT {
            shard.lie_over();
        }
        shard
    }

    /// What a shard of this node is made with.
    pub fn config_of(&self, shard: ShardId) -> ShardConfig {
        let cluster = &self.cluster;
        let root = RootDirectory { mode: 0o755, uid: cluster.owner_uid, gid: cluster.owner_gid };
        ShardConfig { shard, node_key: cluster.key.clone(), root, growth: Growth::USUAL }
    }

    /// Carries out effects of shards.
    pub fn perform(&self, effects: Effects, sink: &mut Sink<'_>) {
        let mut work = VecDeque::new();
        for (shard, effects) in effects {
            for effect in effects {
                self.carry_out(shard, effect, &mut None, &mut work, sink);
            }
        }
        self.run(work, None, sink);
    }

    /// Steps a shard and carries out the effects.
    pub fn give(&self, shard: ShardId, event: Event, caller: Option<Caller<'_>>, sink: &mut Sink<'_>) {
        self.run(VecDeque::from([Work { shard, event }]), caller, sink);
    }

    /// Renews a session at all shards of this node, with the groups that it has joined there. Returns whether one of
    /// them refuses it, and those that have heard.
    pub fn renew(
        &self,
        session: SessionId,
        groups: &[(ShardId, SessionId)],
        sink: &mut Sink<'_>,
    ) -> (bool, Vec<ShardId>) {
        let (mut is_refused, mut heard_by) = (false, Vec::new());
        for slot in self.all() {
            let mut out = Vec::new();
            let joined = groups.iter().filter(|(shard, _)| *shard == slot.id).map(|(_, group)| *group).collect();
            if let Some(refuses) = slot.hear(session, joined, &mut out) {
                is_refused |= refuses;
                heard_by.push(slot.id);
            }
            self.perform(vec![(slot.id, out)], sink);
        }
        (is_refused, heard_by)
    }

    /// Returns true if the file uses this object, which an ended session has made. [`Shard::uses_object`].
    pub fn uses_object(&self, session: SessionId, inode: InodeNumber, object: ObjectId) -> Result<bool, Error> {
        let shard = routing::of_inode(inode);
        let slot = self.slot(shard).ok_or(Error::WrongShard(shard))?;
        slot.uses_object(session, inode, object)
    }

    fn run(&self, mut work: VecDeque<Work>, mut caller: Option<Caller<'_>>, sink: &mut Sink<'_>) {
        let mut effects = Vec::new();
        while let Some(Work { shard, event }) = work.pop_front() {
            let caller_of_event = CallerOf::event(&event);
            let result =
                self.slot(shard).ok_or(Error::WrongShard(shard)).and_then(|slot| slot.step(event, &mut effects));
            if let (Err(error), Some(waits)) = (result, caller_of_event) {
                effects.push(waits.refused(error));
            }
            for effect in effects.drain(..) {
                self.carry_out(shard, effect, &mut caller, &mut work, sink);
            }
        }
        if let Some(caller) = caller {
            self.calls.park(caller, sink);
        }
    }

    fn carry_out(
        &self,
        shard: ShardId,
        effect: Effect,
        caller: &mut Option<Caller<'_>>,
        work: &mut VecDeque<Work>,
        sink: &mut Sink<'_>,
    ) {
        match effect {
            Effect::Reply { token, reply } => self.calls.answer(token, Message::ShardReply(reply), caller, sink),
            Effect::Recall { session, recall } => {
                // Without a recall connection the recall is lost; the shard resends it, and fences the client in the
                // end.
                if let Some(to) = self.sessions.recall_connection(session) {
                    sink.send(to, 0, Message::Recall(recall));
                }
            }
            Effect::LockGranted { session, granted } => {
                if let Some(to) = self.sessions.recall_connection(session) {
                    sink.send(to, 0, Message::LockGranted(granted));
                }
            }
            Effect::PeerCall(call) => self.call_peer(shard, call, work),
            Effect::PeerReply { token, reply } => {
                let asking = reply.intent.shard;
                if self.cluster.map().node_of(asking) == Some(self.cluster.node) {
                    work.push_back(Work { shard: asking, event: Event::PeerReply(reply) });
                } else {
                    self.calls.answer(token, Message::PeerReply(reply), caller, sink);
                }
            }
            Effect::Storage { token, node, request } => self.call_storage((shard, token), node, request, work),
            Effect::EndSession { session, fences } => self.end_session((shard, session), fences, work),
        }
    }

    fn call_peer(&self, shard: ShardId, call: PeerCall, work: &mut VecDeque<Work>) {
        let to = call.to;
        match self.cluster.map().node_of(to) {
            Some(holder) if holder == self.cluster.node => {
                work.push_back(Work { shard: to, event: Event::PeerCall { token: 0, call } });
            }
            Some(holder) => self.couriers.send_step(holder, call),
            None => {
                let reply = PeerReply { intent: call.intent, result: Err(Error::WrongShard(to)) };
                work.push_back(Work { shard, event: Event::PeerReply(reply) });
            }
        }
    }

    fn call_storage(
        &self,
        (shard, token): (ShardId, Option<u64>),
        node: NodeId,
        request: StorageRequest,
        work: &mut VecDeque<Work>,
    ) {
        match (&self.storage, token) {
            _ if node != self.cluster.node => self.couriers.send(node, Errand::Storage { shard, token, request }),
            (Some(storage), _) => storage.handle_local(shard, token, request),
            (None, Some(token)) => {
                let event = Event::StorageAnswer { token, result: Err(Error::Unreachable) };
                work.push_back(Work { shard, event });
            }
            (None, None) => {}
        }
    }

    /// Fences a session that a shard has ended at all storage servers. Those in `fences` confirm it.
    fn end_session(&self, (shard, session): (ShardId, SessionId), mut fences: Fences, work: &mut VecDeque<Work>) {
        if session.is_group() {
            tracing::debug!("shard {shard}: group {session} has ended");
        } else {
            tracing::info!("shard {shard}: session {session} fenced");
        }
        let own = self.cluster.node;
        for holder in self.cluster.map().nodes.iter().filter(|other| other.stores && other.id != own) {
            let objects = fences.remove(&holder.id);
            let is_awaited = objects.is_some();
            let objects = objects.unwrap_or_default().into_iter().collect();
            let fence = SessionFence { session, shard, objects };
            self.granting.fence(holder.id, &fence, is_awaited);
            self.couriers.send(holder.id, Errand::Fence(fence));
        }
        let of_own = fences.remove(&own);
        // A node that was removed serves nobody.
        let removed = fences.into_keys().map(|node| Work { shard, event: Event::FenceConfirmed { session, node } });
        work.extend(removed);
        let Some(objects) = of_own else { return self.fencing.fence(session, shard) };
        let objects = objects.into_iter().collect();
        if self.fencing.fence_and_confirm(Unsettled { session, shard, objects, confirm: ConfirmTo::Shard }) {
            work.push_back(Work { shard, event: Event::FenceConfirmed { session, node: own } });
        }
    }

    /// Reacts to the end of a session's last connection. On a Unix socket it means that the client's process has ended:
    /// its leases are released at once. A remote client may reconnect until its term ends.
    pub fn disconnected(&self, session: SessionId, kind: SocketKind, sink: &mut Sink<'_>) {
        if kind == SocketKind::Unix {
            for slot in self.all() {
                self.give(slot.id, Event::Lost { session }, None, sink);
            }
        }
    }

    /// Returns when the first shard wants a tick, milliseconds since boot.
    fn next_deadline(&self) -> Option<u64> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.values().map(|slot| slot.deadline_ms.load(Ordering::Relaxed)).min().filter(|deadline| *deadline != NEVER)
    }

    /// Returns when [`Shards::tick`] has something to do, milliseconds since boot.
    pub fn next_due(&self) -> Option<u64> {
        let others = [self.granting.next_due(), self.pages.deadline_ms()];
        self.next_deadline().into_iter().chain(others.into_iter().flatten()).min()
    }

    /// Returns when [`Shards::tick`] goes on with the collection of orphans, which may be in an hour.
    pub fn collection_due(&self) -> Option<u64> {
        self.storage.as_ref().and_then(|storage| storage.next_due())
    }

    /// Ticks what has a deadline that has passed, sends fences again, and collects the orphans of ended sessions.
    pub fn tick(&self, sink: &mut Sink<'_>) {
        let now = clock::boot_ms();
        for (node, fence) in self.granting.take_due() {
            self.couriers.send(node, Errand::Fence(fence));
        }
        if self.next_deadline().is_some_and(|deadline| deadline <= now) {
            let due: VecDeque<Work> = {
                let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
                let is_due = |slot: &&Arc<ShardSlot>| slot.deadline_ms.load(Ordering::Relaxed) <= now;
                slots.values().filter(is_due).map(|slot| Work { shard: slot.id, event: Event::Tick }).collect()
            };
            self.run(due, None, sink);
        }
        self.pages.tick(now);
        if let Some(storage) = &self.storage {
            storage.tick(now);
        }
        for session in self.sessions.take_ended(now) {
            self.pages.session_over(session, None);
            if let Some(storage) = &self.storage {
                storage.session_ended(session);
            }
        }
    }
}

impl ShardEvents for Shards {
    fn give(&self, shard: ShardId, event: Event) {
        Shards::give(self, shard, event, None, &mut Sink::remote(&self.loops));
    }

    fn install_map(&self, map: ClusterMap) {
        if let Err(error) = self.set_map(map, &mut Sink::remote(&self.loops)) {
            tracing::warn!("the map that the root shard's node has sent is refused: {error}");
        }
    }
}

/// Who waits for the reply to an event.
enum CallerOf {
    /// A client, under this token.
    Call(u64),
    /// Another shard, for a step of this intent.
    Step(u64, IntentId),
}

impl CallerOf {
    fn event(event: &Event) -> Option<Self> {
        match event {
            Event::Call { token, .. } => Some(Self::Call(*token)),
            Event::PeerCall { token, call } => Some(Self::Step(*token, call.intent)),
            _ => None,
        }
    }

    /// Returns the reply for an event that the shard did not take.
    fn refused(self, error: Error) -> Effect {
        match self {
            Self::Call(token) => {
                Effect::Reply { token, reply: ShardReply { stamp: 0, result: Err(error), others: Vec::new() } }
            }
            Self::Step(token, intent) => {
                let error = match error {
                    // It has moved, or is about to come: the asking shard asks again, by a newer map.
                    Error::WrongShard(_) => Error::Busy,
                    // It has failed, for good.
                    _ => Error::Unreachable,
                };
                Effect::PeerReply { token, reply: PeerReply { intent, result: Err(error) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_another_shard_is_refused_by_a_shard_that_has_failed() {
        let intent = IntentId { shard: ShardId(3), number: 7 };
        let refusal = |error| match CallerOf::Step(5, intent).refused(error) {
            Effect::PeerReply { token: 5, reply } if reply.intent == intent => reply.result,
            other => panic!("{other:?}"),
        };
        assert_eq!(refusal(Error::Device(5)), Err(Error::Unreachable));
        assert_eq!(refusal(Error::WrongShard(ShardId(1))), Err(Error::Busy), "it is asked again, by a newer map");
    }
}
