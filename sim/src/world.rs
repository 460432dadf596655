//! Clients, shards and storage servers in one process, driven by one seed.
//!
//! The shards and the storage servers' collectors are the production machines; the clients use the production lease
//! cache.
//! Beside the network's faults ([`crate::network`]) a client may *crash* (its session must end, its leases be free, its
//! objects without a file be collected), *pause* (it answers nothing for up to 15 s, and must then believe nothing
//! whose term
//! has passed), and a node may *crash* for good (an ephemeral file system loses what was there, and nothing else).

use crate::check::check;
use crate::client::{Call, Client};
use crate::model::Model;
use crate::network::Network;
use crate::random::Random;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weft_client_core::Cached;
use weft_metadata::{Effect, Event, MemoryStore, Now, RootDirectory, Shard, ShardConfig};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::peer::{PeerCall, PeerReply};
use weft_protocol::message::recall::{Recall, RecallAnswer};
use weft_protocol::message::shard::{ShardAnswer, ShardReply, ShardRequest};
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{
    ClusterMap, Credentials, Error, InodeNumber, LeaseKey, LeaseMode, MapEpoch, NodeAddress, NodeId, NodeIdentity,
    NodeKey, NodeRecord, ObjectId, SessionId, ShardId, SlotIndex, Timestamp,
};
use weft_storage::{Collector, CollectorEffect};

const NODES: u16 = 3;
const SHARDS: u16 = 5;
const CLIENTS: usize = 4;
/// A call not answered in this time is sent again.
const RESEND_MS: u64 = 400;
/// Operations of one run, over all clients.
const OPERATIONS: u64 = 400;
/// How long messages between servers are waited for at the end.
const DRAIN_MS: u64 = 2000;
/// Last events kept for the report of a failure.
const HISTORY: usize = 40;

/// What is on its way.
#[derive(Clone, Debug)]
enum Message {
    Wake(usize),
    Resend { client: usize, number: u64 },
    Call { client: usize, session: SessionId, call: Call },
    Reply { client: usize, session: SessionId, number: u64, reply: ShardReply },
    Recall { session: SessionId, recall: Recall },
    RecallAnswer { session: SessionId, answer: RecallAnswer },
    Renew { client: usize },
    Peer(PeerCall),
    PeerReply(PeerReply),
    Storage { shard: ShardId, token: Option<u64>, node: NodeId, request: StorageRequest },
    StorageAnswer { shard: ShardId, token: u64, result: Result<StorageAnswer, Error> },
    Tick(ShardId),
    SessionOver(SessionId),
}

/// Counts of what happened, to see that the faults really did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub operations: u64,
    pub cached: u64,
    pub recalls: u64,
    pub fenced: u64,
    pub resent: u64,
    pub lost: u64,
    pub doubled: u64,
    pub intents: u64,
    pub crashes: u64,
    pub pauses: u64,
    pub orphans: u64,
}

struct Storage {
    collector: Collector,
    objects: BTreeMap<ObjectId, InodeNumber>,
}

/// One run.
pub struct World {
    random: Random,
    network: Network<Message>,
    map: ClusterMap,
    key: NodeKey,
    shards: BTreeMap<ShardId, Shard<MemoryStore>>,
    storage: BTreeMap<NodeId, Storage>,
    clients: Vec<Client>,
    model: Model,
    /// Calls that a shard has, by token.
    tokens: BTreeMap<u64, (usize, SessionId, Call)>,
    next_token: u64,
    /// Changes that are in the model already.
    applied: BTreeSet<(SessionId, u32)>,
    next_session: u64,
    ending: bool,
    history: VecDeque<String>,
    trace: bool,
    /// Grows with every event: two runs of one seed have the same.
    pub fingerprint: u64,
    pub tally: Tally,
}

impl World {
    pub fn new(seed: u64, trace: bool) -> Self {
        let nodes = (0..NODES).map(|id| NodeRecord {
            id: NodeId(id),
            host: String::new(),
            site: String::new(),
            identity: NodeIdentity(u64::from(id)),
            address: NodeAddress::default(),
            stores: true,
        });
        let shards = (0..SHARDS).map(|shard| NodeId(shard % NODES)).collect();
        let map = ClusterMap { name: "sim".to_owned(), epoch: MapEpoch(1), nodes: nodes.collect(), shards };
        let key = NodeKey::new([7; 32]);
        let storage =
            |id: u16| (NodeId(id), Storage { collector: Collector::new(NodeId(id), 1), objects: BTreeMap::new() });
        let mut world = Self {
            random: Random::new(seed),
            network: Network::new(),
            key: key.clone(),
            shards: BTreeMap::new(),
            storage: (0..NODES).map(storage).collect(),
            clients: Vec::new(),
            model: Model::new(),
            tokens: BTreeMap::new(),
            next_token: 1,
            applied: BTreeSet::new(),
            next_session: 1,
            ending: false,
            history: VecDeque::new(),
            trace,
            fingerprint: 0,
            tally: Tally::default(),
            map,
        };
        for id in (0..SHARDS).map(ShardId) {
            let root = RootDirectory { mode: 0o755, uid: 0, gid: 0 };
            let config = ShardConfig { shard: id, node_key: key.clone(), root };
            world.shards.insert(id, Shard::new(config, MemoryStore::new(), world.now()));
            world.step(id, Event::SetMap(world.map.clone()));
        }
        for index in 0..CLIENTS {
            let session = world.session();
            world.clients.push(Client::new(session, NodeId(u16::try_from(index).unwrap_or(0) % NODES)));
            world.network.after(1, Message::Wake(index));
            world.network.after(SESSION_TERM_MS / 4, Message::Renew { client: index });
        }
        world
    }

    fn session(&mut self) -> u64 {
        self.next_session += 1;
        self.next_session
    }

    fn now(&self) -> Now {
        let now_ms = self.network.now_ms;
        Now { boot_ms: now_ms, wall: Timestamp(i64::try_from(now_ms * 1_000_000).unwrap_or(i64::MAX)) }
    }

    /// Runs to the end, and checks what is left. Panics with the history when something is wrong.
    pub fn run(&mut self) {
        while let Some(message) = self.network.take_next() {
            self.note(&message);
            self.handle(message);
            if self.tally.operations >= OPERATIONS && !self.ending {
                self.ending = true;
                self.network.faults = false;
            }
            if self.ending && self.network.now_ms > SESSION_TERM_MS * 400 {
                break;
            }
            if self.ending && self.is_quiet() {
                self.drain();
                break;
            }
        }
        (self.tally.lost, self.tally.doubled) = (self.network.lost, self.network.doubled);
        self.check_end();
    }

    /// Handles what is still on its way between servers after the last session has ended.
    fn drain(&mut self) {
        let end_ms = self.network.now_ms + DRAIN_MS;
        while let Some(message) = self.network.take_next().filter(|_| self.network.now_ms <= end_ms) {
            self.note(&message);
            self.handle(message);
        }
    }

    fn note(&mut self, message: &Message) {
        let line = format!("{:>7} ms {message:?}", self.network.now_ms);
        for byte in line.bytes() {
            self.fingerprint = (self.fingerprint ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.trace {
            println!("{line}");
        }
        self.history.push_back(line);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }

    fn fail(&self, what: &str) -> ! {
        let history: Vec<&str> = self.history.iter().map(String::as_str).collect();
        panic!("{what}\nlast events:\n{}", history.join("\n"));
    }

    fn is_quiet(&self) -> bool {
        self.clients.iter().all(|client| client.call.is_none())
            && self.tokens.is_empty()
            && self.shards.values().all(|shard| {
                let status = shard.status();
                status.sessions == 0 && status.parked == 0
            })
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Wake(client) => self.wake(client),
            Message::Resend { client, number } => self.resend(client, number),
            Message::Call { client, session, call } => self.call_arrived(client, session, call),
            Message::Reply { client, session, number, reply } => self.reply_arrived(client, session, number, reply),
            Message::Recall { session, recall } => self.recall_arrived(session, recall),
            Message::RecallAnswer { session, answer } => {
                self.step(answer.shard, Event::RecallAnswer { session, number: answer.number, kept: answer.kept });
            }
            Message::Renew { client } => self.renew(client),
            Message::Peer(call) => {
                if self.shards.contains_key(&call.to) {
                    self.step(call.to, Event::PeerCall { token: 0, call });
                } else {
                    let reply = PeerReply { intent: call.intent, result: Err(Error::Unreachable) };
                    self.step(call.intent.shard, Event::PeerReply(reply));
                }
            }
            Message::PeerReply(reply) => self.step(reply.intent.shard, Event::PeerReply(reply)),
            Message::Storage { shard, token, node, request } => self.storage_asked(shard, token, node, &request),
            Message::StorageAnswer { shard, token, result } => {
                self.step(shard, Event::StorageAnswer { token, result });
            }
            Message::Tick(shard) => self.tick(shard),
            Message::SessionOver(session) => self.collect(session),
        }
    }

    fn step(&mut self, shard: ShardId, event: Event) {
        let now = self.now();
        let Some(machine) = self.shards.get_mut(&shard) else { return };
        let mut effects = Vec::new();
        machine.step(now, event, &mut effects);
        if let Some(deadline) = machine.deadline() {
            self.network.after(deadline.saturating_sub(now.boot_ms).max(1), Message::Tick(shard));
        }
        for effect in effects {
            self.carry_out(shard, effect);
        }
    }

    fn tick(&mut self, shard: ShardId) {
        let due = self.shards.get(&shard).and_then(Shard::deadline);
        if due.is_some_and(|deadline| deadline <= self.network.now_ms) {
            self.step(shard, Event::Tick);
        }
    }

    fn carry_out(&mut self, shard: ShardId, effect: Effect) {
        match effect {
            Effect::Reply { token, reply } => {
                let Some((client, session, call)) = self.tokens.remove(&token) else { return };
                self.answered(session, &call, &reply);
                let message = Message::Reply { client, session, number: call.number, reply };
                self.network.send(&mut self.random, message);
            }
            Effect::Recall { session, recall } => {
                self.tally.recalls += 1;
                self.network.send(&mut self.random, Message::Recall { session, recall });
            }
            Effect::PeerCall(call) => {
                self.tally.intents += 1;
                self.network.send(&mut self.random, Message::Peer(call));
            }
            Effect::PeerReply { reply, .. } => self.network.send(&mut self.random, Message::PeerReply(reply)),
            Effect::Storage { token, node, request } => {
                // The shell answers each of these, be it "unreachable": it is not lost, only late.
                self.network.after(2, Message::Storage { shard, token, node, request });
            }
            Effect::EndSession { .. } => self.tally.fenced += 1,
        }
    }

    /// A shard gives an answer: this is the moment at which it has to be true.
    fn answered(&mut self, session: SessionId, call: &Call, reply: &ShardReply) {
        if matches!(reply.result, Err(Error::SessionEnded | Error::Busy)) {
            return;
        }
        let change = !call.request.is_read();
        if change && !self.applied.insert((session, call.sequence)) {
            return;
        }
        if let Err(what) = check(&mut self.model, &call.request, &reply.result) {
            self.fail(&format!("{:?} of session {session}: {what}", call.request));
        }
    }

    fn wake(&mut self, index: usize) {
        if self.ending {
            return;
        }
        self.network.after(20 + self.random.below(200), Message::Wake(index));
        if self.clients[index].paused_until_ms > self.network.now_ms || self.clients[index].call.is_some() {
            return;
        }
        self.inject(index);
        self.tally.operations += 1;
        let request = match self.clients[index].writing.take() {
            Some(inode) => self.write(index, inode),
            None => self.clients[index].choose(&mut self.random),
        };
        if !self.answer_from_cache(index, &request) {
            self.begin(index, request);
        }
    }

    /// Faults of processes.
    fn inject(&mut self, index: usize) {
        match self.random.below(300) {
            0 => {
                // The client is gone; another one starts in its place.
                self.tally.crashes += 1;
                let (old, session) = (self.clients[index].session, self.session());
                self.network.after(SESSION_TERM_MS + 1000, Message::SessionOver(old));
                self.clients[index] = Client::new(session, self.clients[index].home);
            }
            1 => {
                self.tally.pauses += 1;
                self.clients[index].paused_until_ms = self.network.now_ms + self.random.below(15_000);
            }
            2 if self.random.one_in(4) && self.storage.len() == usize::from(NODES) => self.crash_node(),
            _ => {}
        }
    }

    /// A node other than that of the root shard is gone for good, with its shards and objects.
    fn crash_node(&mut self) {
        self.tally.crashes += 1;
        let node = NodeId(1 + u16::try_from(self.random.below(u64::from(NODES) - 1)).unwrap_or(0));
        self.storage.remove(&node);
        for shard in self.map.shards_at(node) {
            self.shards.remove(&shard);
            self.model.lost.insert(shard);
        }
        let lost = &self.model.lost;
        self.tokens.retain(|_, (_, _, call)| !lost.contains(&call.shard));
    }

    /// Makes an object for a file that is open for writing, and the commit that tells of it.
    fn write(&mut self, index: usize, inode: InodeNumber) -> ShardRequest {
        let (session, home, now) = (self.clients[index].session, self.clients[index].home, self.now().wall);
        let size = 1 + self.random.below(100_000);
        let object = self.storage.get_mut(&home).and_then(|storage| {
            let leased = storage.collector.lease_objects(session, 0, 1, &self.key, MapEpoch(1), 0).ok()?;
            storage.objects.insert(leased.object, inode);
            Some(leased.object)
        });
        ShardRequest::Commit { inode, object, size, mtime: now }
    }

    /// Answers a look-up that the cache can answer, and holds it against the model. `false`: it has to be asked.
    fn answer_from_cache(&mut self, index: usize, request: &ShardRequest) -> bool {
        let now_ms = self.network.now_ms;
        let client = &self.clients[index];
        match request {
            ShardRequest::Lookup { parent, name } => {
                let told = match client.believes(*parent, name, now_ms) {
                    Cached::Unknown => return false,
                    Cached::Absent => None,
                    Cached::Found(inode, _) => Some(inode),
                };
                let known = self.model.entry(*parent, name);
                if told != known && self.model.knows(*parent) {
                    self.fail(&format!(
                        "client {index} believes {told:?} of {name} in {parent}, the model has {known:?}"
                    ));
                }
            }
            ShardRequest::GetAttributes { inode } => {
                let Some(told) = client.cache.attributes(*inode, now_ms) else { return false };
                let known = self.model.inodes.get(inode);
                let same = known.is_some_and(|known| {
                    known.links == told.links
                        && (told.kind != known.kind || known.size == told.size || known.entries.is_empty())
                });
                if !same && self.model.knows(*inode) {
                    self.fail(&format!("client {index} believes {told:?}, the model has {known:?}"));
                }
            }
            _ => return false,
        }
        self.tally.cached += 1;
        true
    }

    fn begin(&mut self, index: usize, request: ShardRequest) {
        let now_ms = self.network.now_ms;
        let client = &mut self.clients[index];
        client.sequence += 1;
        client.calls += 1;
        let leased = match &request {
            ShardRequest::Release { leases } => leases.first().map(|(key, _)| key.inode()),
            _ => None,
        };
        let shard = request.target().or(leased).unwrap_or(InodeNumber::ROOT).shard();
        if self.model.lost.contains(&shard) {
            // The client library answers "unreachable" by itself.
            if let Some(target) = request.target() {
                client.forget_directory(target);
            }
            return;
        }
        let call = Call { number: client.calls, shard, sequence: client.sequence, request, sent_ms: now_ms };
        client.call = Some(call.clone());
        let session = client.session;
        self.network.after(RESEND_MS, Message::Resend { client: index, number: call.number });
        self.network.send(&mut self.random, Message::Call { client: index, session, call });
    }

    fn resend(&mut self, index: usize, number: u64) {
        let client = &mut self.clients[index];
        let Some(call) = client.call.clone().filter(|call| call.number == number) else { return };
        if self.model.lost.contains(&call.shard) {
            client.call = None;
            return;
        }
        self.tally.resent += 1;
        let session = client.session;
        self.network.after(RESEND_MS, Message::Resend { client: index, number });
        self.network.send(&mut self.random, Message::Call { client: index, session, call });
    }

    fn call_arrived(&mut self, client: usize, session: SessionId, call: Call) {
        if !self.shards.contains_key(&call.shard) {
            return;
        }
        let token = self.next_token;
        self.next_token += 1;
        let event = Event::Call {
            session,
            token,
            credentials: Credentials::default(),
            slot: SlotIndex(0),
            sequence: call.sequence,
            request: call.request.clone(),
        };
        let shard = call.shard;
        // A repeated call brings a new token; the shard answers by the newest.
        self.tokens.retain(|_, (_, of, known)| (*of, known.number) != (session, call.number));
        self.tokens.insert(token, (client, session, call));
        self.step(shard, event);
    }

    fn reply_arrived(&mut self, index: usize, session: SessionId, number: u64, reply: ShardReply) {
        let now_ms = self.network.now_ms;
        if self.clients[index].paused_until_ms > now_ms {
            let wait = self.clients[index].paused_until_ms - now_ms;
            self.network.after(wait, Message::Reply { client: index, session, number, reply });
            return;
        }
        let fresh = self.session();
        let client = &mut self.clients[index];
        if client.session != session {
            return;
        }
        let Some(call) = client.call.take_if(|call| call.number == number) else { return };
        if reply.result == Err(Error::SessionEnded) {
            client.begin_again(fresh);
            self.network.after(SESSION_TERM_MS + 1000, Message::SessionOver(session));
            return;
        }
        client.learn(&call, &reply, now_ms);
        if let (ShardRequest::OpenAt { flags, .. }, Ok(ShardAnswer::Opened { attributes, .. })) =
            (&call.request, &reply.result)
            && flags.access.writes()
        {
            client.writing = Some(attributes.inode);
        }
        if reply.result == Err(Error::Stale)
            && let Some(target) = call.request.target()
        {
            client.forget_directory(target);
        }
    }

    fn recall_arrived(&mut self, session: SessionId, recall: Recall) {
        let now_ms = self.network.now_ms;
        let Some(client) = self.clients.iter_mut().find(|client| client.session == session) else { return };
        if client.paused_until_ms > now_ms {
            let wait = client.paused_until_ms - now_ms;
            self.network.after(wait, Message::Recall { session, recall });
            return;
        }
        client.cache.recall(recall.key, recall.stamp);
        let mut kept = LeaseMode::None;
        if let LeaseKey::Data(inode) = recall.key {
            client.held.remove(&inode);
            let opening = client.call.as_ref().is_some_and(|call| matches!(call.request, ShardRequest::OpenAt { .. }));
            let commits = client
                .call
                .as_ref()
                .is_some_and(|call| matches!(call.request, ShardRequest::Commit { inode: of, .. } if of == inode));
            if opening || commits || client.writing == Some(inode) {
                kept = LeaseMode::Open;
                client.held.insert(inode, u64::MAX);
            }
        }
        let answer = RecallAnswer { shard: recall.shard, number: recall.number, kept };
        self.network.send(&mut self.random, Message::RecallAnswer { session, answer });
    }

    fn renew(&mut self, index: usize) {
        if self.ending {
            return;
        }
        self.network.after(SESSION_TERM_MS / 4, Message::Renew { client: index });
        let (session, now_ms) = (self.clients[index].session, self.network.now_ms);
        if self.clients[index].paused_until_ms > now_ms {
            return;
        }
        let shards: Vec<ShardId> = self.shards.keys().copied().collect();
        for shard in shards {
            // A connection carries the renewal and its answer in order; a lost one is a renewal that did not happen.
            if !self.random.one_in(20) {
                self.step(shard, Event::Heard { session });
            }
        }
    }

    fn storage_asked(&mut self, shard: ShardId, token: Option<u64>, node: NodeId, request: &StorageRequest) {
        let now = self.now().wall;
        let result = match self.storage.get_mut(&node) {
            None => Err(Error::Unreachable),
            Some(storage) => match request {
                StorageRequest::Stat { object, .. } | StorageRequest::Truncate { object, .. } => {
                    let there = storage.objects.contains_key(object);
                    if there { Ok(StorageAnswer::Object { size: 1, mtime: now }) } else { Err(Error::NoObject) }
                }
                StorageRequest::Remove { objects } => {
                    for (_, object) in objects {
                        storage.objects.remove(object);
                    }
                    Ok(StorageAnswer::Done)
                }
                _ => Err(Error::Invalid),
            },
        };
        if let Some(token) = token {
            self.network.after(2, Message::StorageAnswer { shard, token, result });
        }
    }

    /// A session is over for the storage servers: its objects without a file are collected by the rule.
    fn collect(&mut self, session: SessionId) {
        let nodes: Vec<NodeId> = self.storage.keys().copied().collect();
        for node in nodes {
            let mut effects = Vec::new();
            if let Some(storage) = self.storage.get_mut(&node) {
                storage.collector.session_ended(session, &mut effects);
            }
            while let Some(effect) = effects.pop() {
                self.collect_one(node, effect, &mut effects);
            }
        }
    }

    fn collect_one(&mut self, node: NodeId, effect: CollectorEffect, more: &mut Vec<CollectorEffect>) {
        let Some(storage) = self.storage.get_mut(&node) else { return };
        match effect {
            CollectorEffect::List { first, count } => {
                let last = ObjectId::new(first.node(), first.sequence() + u64::from(count) - 1);
                let listed: Vec<_> =
                    storage.objects.range(first..=last).map(|(object, inode)| (*inode, *object)).collect();
                storage.collector.listed(&listed, more);
            }
            CollectorEffect::AskShard { inode, object } => {
                let known = match self.shards.get(&inode.shard()) {
                    None => Err(Error::Unreachable),
                    Some(shard) => match shard.back().inode(inode) {
                        None => Err(Error::NotFound),
                        Some(record) => Ok(record.layout.object() == Some(object)),
                    },
                };
                storage.collector.shard_says(inode, object, &known, more);
            }
            CollectorEffect::Remove { object, .. } => {
                self.tally.orphans += 1;
                storage.objects.remove(&object);
            }
        }
    }

    /// After everything has settled: nothing is left that nobody can reach, and every shard has what the model has.
    fn check_end(&mut self) {
        for session in 0..=self.next_session {
            self.collect(SessionId(session));
        }
        for (id, shard) in &self.shards {
            let status = shard.status();
            if (status.sessions, status.leases, status.recalls, status.parked) != (0, 0, 0, 0) {
                self.fail(&format!("shard {id} has not settled: {status:?}, stuck: {:?}", shard.stuck()));
            }
            if !self.model.lost.is_empty() {
                continue;
            }
            let inodes = self.model.inodes.keys().filter(|inode| inode.shard() == *id).count() as u64;
            let of_shard = self.model.inodes.iter().filter(|(inode, _)| inode.shard() == *id);
            let dentries: u64 = of_shard.map(|(_, inode)| inode.entries.len() as u64).sum();
            if (status.inodes, status.dentries) != (inodes, dentries) {
                self.fail(&format!("shard {id}: {status:?}, the model has {inodes} inodes, {dentries} dentries"));
            }
        }
        if self.model.lost.is_empty() {
            for (object, inode) in self.storage.values().flat_map(|storage| &storage.objects) {
                let shard = self.shards.get(&inode.shard());
                let record = shard.and_then(|shard| shard.back().inode(*inode));
                if record.and_then(|record| record.layout.object()) != Some(*object) {
                    self.fail(&format!("object {object} of inode {inode} has no file and was not collected"));
                }
            }
        }
    }
}
