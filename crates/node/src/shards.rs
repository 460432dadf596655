//! The shards of this node: their machines, and what their effects become.
//!
//! A machine is stepped by whichever thread has an event for it, under the shard's own lock. Effects for other shards
//! of this node are worked off one after another with no lock held, so that two shards never wait for each other.
//!
//! An assertion that fails in a machine stops that shard: it answers "input/output error" from then on, and its text
//! shows in `weft status`. The other shards go on.

use crate::courier::Errand;
use crate::event_loop::{ConnectionRef, Sink};
use crate::fencing::{ConfirmTo, Unsettled};
use crate::state::{Node, lock};
use crate::{clock, fencing, status, storage_server};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use weft_metadata::{Effect, Event, Fences, MemoryStore, RootDirectory, Shard, ShardConfig};
use weft_protocol::limits::{CONTROL_BODY_BYTES_MAX, TEXT_BYTES_MAX};
use weft_protocol::message::Message;
use weft_protocol::message::node::ShardStatus;
use weft_protocol::message::peer::PeerReply;
use weft_protocol::message::shard::ShardReply;
use weft_protocol::{ClusterMap, Error, NodeId, SessionId, ShardId};
use weft_transport::SocketKind;

/// What stands before the map in the answer to `GetMap`, bytes, with room to spare.
const MAP_ANSWER_BYTES: usize = 16;
/// No deadline.
const NEVER: u64 = u64::MAX;

/// A shard and what is known of it without its lock.
pub struct ShardSlot {
    id: ShardId,
    machine: Mutex<Machine>,
    /// When the machine wants its next tick, milliseconds since boot.
    deadline_ms: AtomicU64,
    failed: AtomicBool,
}

enum Machine {
    Running(Box<Shard<MemoryStore>>),
    /// The text of the assertion that failed.
    Failed(String),
}

/// What is known under a token after the thread that brought the call has left it.
pub enum Waiting {
    /// The call waits for its answer.
    Call(Pending),
    /// Another thread had the answer before the call's own thread had left it: that one sends it.
    Answered(Message),
}

/// A call that a shard has not answered yet.
pub struct Pending {
    /// The connection and the identifier of its request.
    pub to: ConnectionRef,
    pub id: u64,
    pub peer: String,
    pub since_ms: u64,
}

/// An event on its way to a shard.
struct Work {
    shard: ShardId,
    event: Event,
}

/// The call that is being handled now: most are answered before it is left.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    pub token: u64,
    pub to: ConnectionRef,
    pub id: u64,
    /// For `weft debug stuck`.
    pub peer: &'a dyn Fn() -> String,
}

impl ShardSlot {
    /// A shard that serves.
    pub fn new(id: ShardId, shard: Shard<MemoryStore>) -> Self {
        Self {
            id,
            machine: Mutex::new(Machine::Running(Box::new(shard))),
            deadline_ms: AtomicU64::new(NEVER),
            failed: AtomicBool::new(false),
        }
    }

    fn step(&self, event: Event, out: &mut Vec<Effect>) -> Result<(), Error> {
        let mut machine = lock(&self.machine);
        let Machine::Running(shard) = &mut *machine else { return Err(Error::Device(5)) };
        let result = catch_unwind(AssertUnwindSafe(|| {
            shard.step(clock::now(), event, out);
            shard.deadline()
        }));
        match result {
            Ok(deadline) => {
                self.deadline_ms.store(deadline.unwrap_or(NEVER), Ordering::Relaxed);
                Ok(())
            }
            Err(panic) => {
                let text = panic_text(&*panic);
                tracing::error!("shard {} stopped: {text}", self.id);
                *machine = Machine::Failed(text);
                self.failed.store(true, Ordering::Release);
                self.deadline_ms.store(NEVER, Ordering::Relaxed);
                Err(Error::Device(5))
            }
        }
    }

    /// Whether the shard refuses this session. One that has failed grants nobody anything.
    fn refuses(&self, session: SessionId) -> bool {
        matches!(&*lock(&self.machine), Machine::Running(shard) if shard.refuses(session))
    }

    /// State, for `weft status`.
    pub fn status(&self) -> ShardStatus {
        match &*lock(&self.machine) {
            Machine::Running(shard) => shard.status(),
            Machine::Failed(text) => ShardStatus { shard: self.id, failed: Some(text.clone()), ..Default::default() },
        }
    }

    /// Calls that wait in the machine: token, request, what it waits for.
    pub fn parked(&self) -> Vec<(u64, String, String)> {
        match &*lock(&self.machine) {
            Machine::Running(shard) => {
                shard.stuck().into_iter().map(|call| (call.token, call.request, call.waits_for)).collect()
            }
            Machine::Failed(_) => Vec::new(),
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let mut text = text.unwrap_or_else(|| "assertion failed".to_owned());
    // It stands in every status from now on.
    status::cut(&mut text, TEXT_BYTES_MAX);
    text
}

/// Takes over a map with a higher epoch, and makes the shards that it gives to this node.
pub fn set_map(node: &Node, map: ClusterMap, sink: &mut Sink<'_>) -> Result<(), Error> {
    // What is taken must fit into the answers that tell it.
    let fits = weft_protocol::codec::to_bytes(&map).len() <= CONTROL_BODY_BYTES_MAX - MAP_ANSWER_BYTES;
    if !map.check() || !fits || map.name != node.config.name || map.node(node.config.node).is_none() {
        return Err(Error::Invalid);
    }
    let mut events = Vec::new();
    {
        let mut present = node.map.write().unwrap_or_else(PoisonError::into_inner);
        if map.epoch <= present.epoch {
            return Ok(());
        }
        let mut shards = node.shards.write().unwrap_or_else(PoisonError::into_inner);
        for id in map.shards_at(node.config.node) {
            shards.entry(id).or_insert_with(|| Arc::new(ShardSlot::new(id, new_shard(node, id))));
        }
        for id in shards.keys() {
            events.push(Work { shard: *id, event: Event::SetMap(map.clone()) });
        }
        node.epoch.store(map.epoch.0, Ordering::Release);
        *present = Arc::new(map);
    }
    run(node, events.into(), None, sink);
    Ok(())
}

fn new_shard(node: &Node, id: ShardId) -> Shard<MemoryStore> {
    let root = RootDirectory { mode: 0o755, uid: node.config.owner_uid, gid: node.config.owner_gid };
    Shard::new(ShardConfig { shard: id, node_key: node.key.clone(), root }, MemoryStore::new(), clock::now())
}

/// Gives one event to a shard and works off what follows from it.
pub fn give(node: &Node, shard: ShardId, event: Event, caller: Option<Caller<'_>>, sink: &mut Sink<'_>) {
    run(node, VecDeque::from([Work { shard, event }]), caller, sink);
}

/// The client of a session lives, and all shards here are told so. Returns whether one of them refuses the session.
pub fn renew(node: &Node, session: SessionId, sink: &mut Sink<'_>) -> bool {
    let slots: Vec<_> = node.shards.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
    for slot in &slots {
        give(node, slot.id, Event::Heard { session }, None, sink);
    }
    // Asked for afterwards: a shard that refuses a session does so from then on.
    slots.iter().any(|slot| slot.refuses(session))
}

fn run(node: &Node, mut work: VecDeque<Work>, caller: Option<Caller<'_>>, sink: &mut Sink<'_>) {
    let mut caller = caller;
    let mut effects = Vec::new();
    while let Some(Work { shard, event }) = work.pop_front() {
        let slot = node.shards.read().unwrap_or_else(PoisonError::into_inner).get(&shard).cloned();
        let token = answerable(&event);
        let result = match slot {
            Some(slot) => slot.step(event, &mut effects),
            None => Err(Error::WrongShard(shard)),
        };
        if let (Err(error), Some(token)) = (result, token) {
            effects.push(Effect::Reply { token, reply: ShardReply { stamp: 0, result: Err(error) } });
        }
        for effect in effects.drain(..) {
            carry_out(node, shard, effect, &mut caller, &mut work, sink);
        }
    }
    if let Some(caller) = caller {
        let peer = (caller.peer)();
        let pending = Pending { to: caller.to, id: caller.id, peer, since_ms: clock::boot_ms() };
        let early = {
            let mut table = lock(&node.pending);
            let early = table.remove(&caller.token);
            if early.is_none() {
                table.insert(caller.token, Waiting::Call(pending));
            }
            early
        };
        if let Some(Waiting::Answered(message)) = early {
            sink.send(caller.to, caller.id, message);
        }
    }
}

/// The token under which a client waits for what becomes of the event.
fn answerable(event: &Event) -> Option<u64> {
    match event {
        Event::Call { token, .. } => Some(*token),
        _ => None,
    }
}

/// Sends the answer for a token: to the present caller, who is then answered, or to one who waits.
fn answer(node: &Node, token: u64, message: Message, caller: &mut Option<Caller<'_>>, sink: &mut Sink<'_>) {
    if let Some(present) = caller.take_if(|caller| caller.token == token) {
        return sink.send(present.to, present.id, message);
    }
    let mut table = lock(&node.pending);
    match table.remove(&token) {
        Some(Waiting::Call(pending)) => {
            drop(table);
            sink.send(pending.to, pending.id, message);
        }
        _ => {
            table.insert(token, Waiting::Answered(message));
        }
    }
}

fn carry_out(
    node: &Node,
    shard: ShardId,
    effect: Effect,
    caller: &mut Option<Caller<'_>>,
    work: &mut VecDeque<Work>,
    sink: &mut Sink<'_>,
) {
    match effect {
        Effect::Reply { token, reply } => {
            answer(node, token, Message::ShardReply(reply), caller, sink);
        }
        Effect::Recall { session, recall } => {
            let connection = lock(&node.sessions).recall_connection(session);
            // Without a recall connection the recall is lost now; the shard repeats it, and fences the client in the
            // end.
            if let Some(to) = connection {
                sink.send(to, 0, Message::Recall(recall));
            }
        }
        Effect::PeerCall(call) => {
            let to = call.to;
            match node.map().node_of(to) {
                Some(holder) if holder == node.config.node => {
                    work.push_back(Work { shard: to, event: Event::PeerCall { token: 0, call } });
                }
                Some(holder) => node.couriers.send(holder, Errand::Peer(call)),
                None => {
                    let reply = PeerReply { intent: call.intent, result: Err(Error::WrongShard(to)) };
                    work.push_back(Work { shard, event: Event::PeerReply(reply) });
                }
            }
        }
        Effect::PeerReply { token, reply } => {
            let asking = reply.intent.shard;
            if node.map().node_of(asking) == Some(node.config.node) {
                work.push_back(Work { shard: asking, event: Event::PeerReply(reply) });
            } else {
                answer(node, token, Message::PeerReply(reply), caller, sink);
            }
        }
        Effect::Storage { token, node: holder, request } => {
            if holder == node.config.node {
                storage_server::for_shard(node, shard, token, request);
            } else {
                node.couriers.send(holder, Errand::Storage { shard, token, request });
            }
        }
        Effect::EndSession { session, fences } => end_session(node, (shard, session), fences, work),
    }
}

/// A shard ends a session: all storage servers fence it, and those in `fences` confirm that.
fn end_session(node: &Node, (shard, session): (ShardId, SessionId), mut fences: Fences, work: &mut VecDeque<Work>) {
    tracing::info!("shard {shard}: session {session} fenced");
    let own = node.config.node;
    for holder in node.map().nodes.iter().filter(|other| other.stores && other.id != own) {
        let objects = fences.remove(&holder.id).map(|objects| objects.into_iter().collect());
        node.couriers.send(holder.id, Errand::Fence { shard, session, objects, attempts: 0 });
    }
    let Some(objects) = fences.remove(&own) else { return fencing::fence(node, session, shard) };
    let objects = objects.into_iter().collect();
    if fencing::fence_and_confirm(node, Unsettled { session, shard, objects, confirm: ConfirmTo::Shard }) {
        work.push_back(Work { shard, event: Event::FenceConfirmed { session, node: own } });
    }
}

/// The last connection of a session was closed. Over a Unix socket that means that its process has ended: nobody is
/// made to wait for its leases. Over a network it may come back until its term ends.
pub fn disconnected(node: &Node, session: SessionId, kind: SocketKind, sink: &mut Sink<'_>) {
    if kind == SocketKind::Unix {
        let ids: Vec<_> = node.shards.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
        for shard in ids {
            give(node, shard, Event::Lost { session }, None, sink);
        }
    }
}

/// When the first shard wants a tick, milliseconds since boot.
pub fn next_deadline(node: &Node) -> Option<u64> {
    let shards = node.shards.read().unwrap_or_else(PoisonError::into_inner);
    shards.values().map(|slot| slot.deadline_ms.load(Ordering::Relaxed)).min().filter(|deadline| *deadline != NEVER)
}

/// Ticks the shards whose deadline has come, and ends the storage server's sessions that are over.
pub fn tick(node: &Node, sink: &mut Sink<'_>) {
    let now = clock::boot_ms();
    if next_deadline(node).is_some_and(|deadline| deadline <= now) {
        let due: VecDeque<Work> = {
            let shards = node.shards.read().unwrap_or_else(PoisonError::into_inner);
            let is_due = |slot: &&Arc<ShardSlot>| slot.deadline_ms.load(Ordering::Relaxed) <= now;
            shards.values().filter(is_due).map(|slot| Work { shard: slot.id, event: Event::Tick }).collect()
        };
        run(node, due, None, sink);
    }
    let ended = lock(&node.sessions).take_ended(now);
    for session in ended {
        storage_server::session_ended(node, session);
    }
}

/// The node that a storage or peer request goes to did not answer: the shard is told so.
pub fn unreachable(node: &Node, holder: NodeId, errand: Errand) {
    let mut sink = Sink::remote(node);
    tracing::debug!("node {holder} did not answer");
    match errand {
        Errand::Peer(call) => {
            let reply = PeerReply { intent: call.intent, result: Err(Error::Unreachable) };
            give(node, call.intent.shard, Event::PeerReply(reply), None, &mut sink);
        }
        Errand::Storage { shard, token: Some(token), .. } => {
            let event = Event::StorageAnswer { token, result: Err(Error::Unreachable) };
            give(node, shard, event, None, &mut sink);
        }
        Errand::Fence { shard, session, objects: Some(_), .. } => {
            give(node, shard, Event::FenceConfirmed { session, node: holder }, None, &mut sink);
        }
        Errand::Storage { token: None, .. } | Errand::AskShard { .. } | Errand::Fence { .. } => {}
    }
}
