//! Nodes of one file system and the ranks on them, over a network that loses nothing and takes a millisecond for each
//! message.
//!
//! Shards, client machines, the check of rights, the leases of identifiers and the terms of storage servers are the
//! production machines. A file in `/` has its inode at the shard of that. Others begin when somebody calls them, which
//! a session does at its own node when it ends. What goes between two nodes is encoded as for a socket, and counted
//! with its bytes.

use super::counts::{Counts, Kind};
use super::outside::{Ask, Outside, ScaleShell, Told};
use super::part_file::PartFile;
use crate::shell::releases;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;
use weft_client_core::{Caller, Calls, Files, Tuning};
use weft_metadata::back::{Origin, Slot};
use weft_metadata::{Effect, Event, Fences, Growth, MemoryStore, Now, RootDirectory, Shard, ShardConfig};
use weft_protocol::data::{DataOperation, DataReply, DataRequest, REPLY_BYTES, REQUEST_BYTES};
use weft_protocol::frame;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::map::FIRST_EPOCH;
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::message::recall::{Recall, RecallAnswer};
use weft_protocol::message::shard::ShardCall;
use weft_protocol::message::storage::{ServingAnswer, SessionFence, StorageAnswer, StorageRequest};
use weft_protocol::{
    ClusterMap, Credentials, Error, InodeNumber, NodeAddress, NodeId, NodeIdentity, NodeKey, NodeRecord, ObjectId,
    Result, SessionId, ShardId, ShardRecord, Timestamp,
};
use weft_storage::{Collector, ServingTerms, TermGrants, check_access};

/// The node of the shard.
const CENTER: NodeId = NodeId(0);
/// How often a client's session is renewed, milliseconds; as in `weft-client`.
const RENEW_MS: u64 = SESSION_TERM_MS / 4;

/// A rank, or whatever else uses the file system, by its number.
pub type RankId = usize;
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// What is on its way.
enum Arrives {
    Control { from: (RankId, u64), session: SessionId, node: NodeId, message: Box<Message> },
    Renewal { of: RankId, session: SessionId, node: NodeId, groups: Vec<(ShardId, SessionId)> },
    Renewed { of: RankId, node: NodeId, session: SessionId, sent_ms: u64, shards: Vec<ShardId> },
    Data { from: (RankId, u64), session: SessionId, request: DataRequest, bytes: Vec<u8> },
    Told { to: (RankId, u64), told: Told },
    Recall { to: SessionId, recall: Recall },
    RecallAnswer { session: SessionId, answer: RecallAnswer },
    AskToServe { node: NodeId, settled: Vec<SessionFence> },
    Serving { node: NodeId, answer: ServingAnswer },
    Fence { node: NodeId, fence: SessionFence },
    Fenced { node: NodeId, fence: SessionFence },
}

/// A data request: who waits for its answer, the session, and the bytes behind it.
type Waiting = ((RankId, u64), SessionId, DataRequest, Vec<u8>);

/// A storage server.
struct Server {
    collector: Collector,
    terms: ServingTerms,
    objects: BTreeMap<ObjectId, (InodeNumber, Rc<PartFile>)>,
    /// Requests that wait for a term.
    waiting: Vec<Waiting>,
}

/// A process with a client.
struct Process {
    outside: Rc<Outside>,
    files: Arc<Files<ScaleShell>>,
    tasks: Vec<Task>,
    last_renewal_ms: u64,
}

/// See the module.
pub struct Cluster {
    now_ms: u64,
    queue: BTreeMap<(u64, u64), Arrives>,
    sent: u64,
    map: Arc<ClusterMap>,
    key: NodeKey,
    shards: BTreeMap<ShardId, Shard<MemoryStore>>,
    servers: Vec<Server>,
    grants: TermGrants,
    processes: Vec<Process>,
    sessions: Rc<Cell<u64>>,
    /// Who waits for a reply of the shard.
    tokens: BTreeMap<u64, (RankId, u64, Kind)>,
    next_token: u64,
    at_barrier: Vec<(RankId, u64)>,
    pub counts: Counts,
}

fn map_of(nodes: u16) -> ClusterMap {
    // As long as those of a cluster.
    let record = |id: u16| NodeRecord {
        id: NodeId(id),
        host: format!("n{id:05}"),
        site: String::new(),
        identity: NodeIdentity(u64::from(id) + 1),
        address: NodeAddress { tcp: format!("10.77.{}.{}:40000", id / 200, id % 200), unix: String::new() },
        stores: true,
        drains: false,
    };
    ClusterMap {
        name: "scale".to_owned(),
        epoch: FIRST_EPOCH,
        nodes: (0..nodes).map(record).collect(),
        shards: (0..nodes).map(|id| ShardRecord::new(NodeId(id), FIRST_EPOCH)).collect(),
        removed_max: None,
    }
}

impl Cluster {
    /// So many nodes with a shard each, of which that of `/` has begun.
    pub fn new(nodes: u16) -> Self {
        let (map, key) = (Arc::new(map_of(nodes)), NodeKey::new([7; 32]));
        let server = |id| Server {
            collector: Collector::new(NodeId(id), 1),
            terms: ServingTerms::default(),
            objects: BTreeMap::new(),
            waiting: Vec::new(),
        };
        let mut cluster = Self {
            now_ms: 1,
            queue: BTreeMap::new(),
            sent: 0,
            map,
            key,
            shards: BTreeMap::new(),
            servers: (0..nodes).map(server).collect(),
            grants: TermGrants::default(),
            processes: Vec::new(),
            sessions: Rc::new(Cell::new(0)),
            tokens: BTreeMap::new(),
            next_token: 1,
            at_barrier: Vec::new(),
            counts: Counts::default(),
        };
        cluster.step(Kind::Other, Event::SetMap((*cluster.map).clone()));
        cluster
    }

    /// Bytes that the shards store.
    pub fn index_bytes(&self) -> u64 {
        self.shards.values().map(|shard| shard.status().store_bytes).sum()
    }

    /// A new process at a node, with a program that runs from then on.
    pub fn start<P: Future<Output = ()> + 'static>(
        &mut self,
        home: NodeId,
        program: impl FnOnce(Arc<Files<ScaleShell>>, Rc<Outside>) -> P,
    ) {
        let outside = Outside::new(self.processes.len() as u64, home, &self.sessions);
        let caller = Caller { credentials: Credentials::default(), is_fixed: false };
        let calls = Calls::new(ScaleShell(Rc::clone(&outside)), caller, Arc::clone(&self.map));
        #[expect(clippy::arc_with_non_send_sync, reason = "production shares it so; here all is one thread")]
        let files = Arc::new(Files::new(calls, Tuning::NATIVE).expect("all nodes have storage"));
        let tasks: Vec<Task> = vec![Box::pin(program(Arc::clone(&files), Rc::clone(&outside)))];
        self.processes.push(Process { outside, files, tasks, last_renewal_ms: 0 });
    }

    /// Runs until all programs have ended and nothing is on its way.
    pub fn run(&mut self) {
        (0..self.processes.len()).for_each(|rank| self.poll(rank));
        while let Some(((at_ms, _), arrives)) = self.queue.pop_first() {
            self.now_ms = at_ms;
            self.handle(arrives);
        }
        for (rank, process) in self.processes.iter().enumerate() {
            assert!(process.tasks.is_empty(), "rank {rank} waits for ever");
            assert!(!process.outside.lost.get(), "rank {rank} has lost bytes");
        }
    }

    /// The processes have ended.
    pub fn forget_processes(&mut self) {
        self.processes.clear();
    }

    fn now(&self) -> Now {
        Now { boot_ms: self.now_ms, wall: Timestamp::from_parts(i64::try_from(self.now_ms / 1000).unwrap_or(0), 0) }
    }

    fn after(&mut self, ms: u64, arrives: Arrives) {
        self.sent += 1;
        self.queue.insert((self.now_ms + ms, self.sent), arrives);
    }

    fn home(&self, rank: RankId) -> NodeId {
        self.processes[rank].outside.home
    }

    /// Counts a message between two nodes, if they are two.
    fn count(&mut self, from: NodeId, to: NodeId, kind: Kind, message: &Message) {
        if from != to {
            let mut encoded = Vec::new();
            frame::append(&mut encoded, 0, message);
            self.counts.add(kind, encoded.len());
        }
    }

    /// Lets the tasks of a process go on, and carries out what they ask.
    fn poll(&mut self, rank: RankId) {
        let process = &mut self.processes[rank];
        process.outside.now_ms.set(self.now_ms);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let before = (releases(), process.tasks.len());
            process.tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
            if (releases(), process.tasks.len()) == before {
                break;
            }
        }
        for (ticket, ask) in self.processes[rank].outside.take_asked() {
            self.asked(rank, ticket, ask);
        }
        let answers = self.processes[rank].outside.answers.take();
        for (session, answer) in answers {
            self.count(self.home(rank), CENTER, Kind::Recall, &Message::RecallAnswer(answer));
            self.after(1, Arrives::RecallAnswer { session, answer });
        }
        self.listen(rank);
    }

    fn asked(&mut self, rank: RankId, ticket: u64, ask: Ask) {
        let (from, home) = ((rank, ticket), self.home(rank));
        match ask {
            Ask::Connect(node) => {
                self.counts.connections += u64::from(node != home);
                self.after(2, Arrives::Told { to: from, told: Told::Done });
            }
            Ask::Control { session, node, message } => {
                self.count(home, node, Kind::of(&message), &message);
                self.after(1, Arrives::Control { from, session, node, message });
            }
            Ask::Data { session, request, bytes } => {
                if request.object.node() != home {
                    self.counts.add(Kind::Data, REQUEST_BYTES + bytes.len());
                    self.counts.data_bytes += bytes.len() as u64;
                }
                self.after(1, Arrives::Data { from, session, request, bytes });
            }
            Ask::Sleep(ms) => self.after(ms.max(1), Arrives::Told { to: from, told: Told::Done }),
            Ask::Barrier => {
                self.at_barrier.push(from);
                if self.at_barrier.len() == self.processes.len() {
                    for to in std::mem::take(&mut self.at_barrier) {
                        self.after(1, Arrives::Told { to, told: Told::Done });
                    }
                }
            }
        }
    }

    /// What the listener of a client does when it is woken: it renews the session, and has leases given back.
    fn listen(&mut self, rank: RankId) {
        let now_ms = self.now_ms;
        let Process { outside, files, tasks, last_renewal_ms } = &mut self.processes[rank];
        let is_asked = outside.renews.take();
        if is_asked || (!outside.attended.borrow().is_empty() && now_ms >= *last_renewal_ms + RENEW_MS) {
            if now_ms >= *last_renewal_ms + RENEW_MS {
                *last_renewal_ms = now_ms;
            }
            let (session, groups, home) = (files.calls().session.id(), files.calls().groups.all(), outside.home);
            let nodes: Vec<_> = outside.attended.borrow().iter().copied().collect();
            for node in nodes {
                self.count(home, node, Kind::Renewal, &Message::Renew { groups: groups.clone() });
                self.after(1, Arrives::Renewal { of: rank, session, node, groups: groups.clone() });
            }
        } else if outside.releases.take() {
            let files = Arc::clone(files);
            tasks.push(Box::pin(async move { files.release_surplus().await }));
            self.poll(rank);
        }
    }

    fn handle(&mut self, arrives: Arrives) {
        match arrives {
            Arrives::Control { from, session, node, message } => self.control_arrived(from, session, node, *message),
            Arrives::Renewal { of, session, node, groups } => {
                self.counts.requests += 1;
                let shards = self.heard(session, node, &groups);
                let reply = Message::RenewReply { refused: false, epoch: FIRST_EPOCH, shards: shards.clone() };
                self.count(node, self.home(of), Kind::Renewal, &reply);
                let sent_ms = self.now_ms - 1;
                self.after(1, Arrives::Renewed { of, node, session, sent_ms, shards });
            }
            Arrives::Renewed { of, node, session, sent_ms, shards } => {
                let calls = self.processes[of].files.calls();
                let is_newer = calls.renewed((node, FIRST_EPOCH), &shards, session, (sent_ms, self.now_ms));
                assert!(!is_newer, "the map stays as it is");
                self.poll(of);
            }
            Arrives::Data { from, session, request, bytes } => self.data_arrived(from, session, request, bytes),
            Arrives::Told { to: (rank, ticket), told } => {
                self.processes[rank].outside.tell(ticket, told);
                self.poll(rank);
            }
            Arrives::Recall { to, recall } => self.recall_arrived(to, recall),
            Arrives::RecallAnswer { session, answer } => {
                self.counts.requests += 1;
                let (number, kept) = (answer.number, answer.kept);
                self.step(Kind::Recall, Event::RecallAnswer { session, number, kept });
            }
            Arrives::AskToServe { node, settled } => {
                self.counts.requests += 1;
                let (answer, confirmed) = self.grants.ask(node, &settled, self.now_ms);
                for (session, _) in confirmed {
                    self.step(Kind::Fence, Event::FenceConfirmed { session, node });
                }
                let reply = Message::NodeReply(Box::new(Ok(NodeAnswer::Serving(answer.clone()))));
                self.count(CENTER, node, Kind::Term, &reply);
                self.after(1, Arrives::Serving { node, answer });
            }
            Arrives::Serving { node, answer } => self.term_granted(node, &answer),
            Arrives::Fence { node, fence } => {
                self.counts.requests += 1;
                self.count(node, CENTER, Kind::Fence, &Message::StorageReply(Ok(StorageAnswer::Done)));
                self.after(1, Arrives::Fenced { node, fence });
            }
            Arrives::Fenced { node, fence } => {
                if let Some((session, _)) = self.grants.confirm(node, &fence) {
                    self.step(Kind::Fence, Event::FenceConfirmed { session, node });
                }
            }
        }
    }

    fn control_arrived(&mut self, from: (RankId, u64), session: SessionId, node: NodeId, message: Message) {
        self.counts.requests += 1;
        let kind = Kind::of(&message);
        let reply = match message {
            Message::Shard(call) => return self.call_arrived(from, session, kind, call),
            Message::Storage(StorageRequest::LeaseObjects { count }) => {
                let seconds = u32::try_from(self.now_ms / 1000).expect("a run lasts some virtual minutes");
                let collector = &mut self.servers[usize::from(node.0)].collector;
                let leased = collector.lease_objects(session, 0, count, &self.key, FIRST_EPOCH, seconds);
                Message::StorageReply(leased.map(|capability| StorageAnswer::Batch { capability, is_low: false }))
            }
            Message::Renew { groups } => {
                let shards = self.heard(session, node, &groups);
                Message::RenewReply { refused: false, epoch: FIRST_EPOCH, shards }
            }
            other => unreachable!("no program here has a client send {other:?}"),
        };
        self.reply(from, kind, node, reply);
    }

    fn reply(&mut self, to: (RankId, u64), kind: Kind, node: NodeId, reply: Message) {
        self.count(node, self.home(to.0), kind, &reply);
        self.after(1, Arrives::Told { to, told: Told::Reply(Box::new(reply)) });
    }

    /// The shards of a node hear a session, and which groups it has joined. Those other than that of `/` have nothing.
    fn heard(&mut self, session: SessionId, node: NodeId, groups: &[(ShardId, SessionId)]) -> Vec<ShardId> {
        if node == CENTER {
            let groups = groups.iter().filter(|(shard, _)| *shard == ShardId::ROOT).map(|(_, group)| *group).collect();
            self.step(Kind::Renewal, Event::Heard { session, groups });
        }
        vec![ShardId(node.0)]
    }

    fn call_arrived(&mut self, (rank, ticket): (RankId, u64), session: SessionId, kind: Kind, call: ShardCall) {
        self.counts.calls += 1;
        let token = self.next_token;
        self.next_token += 1;
        self.tokens.insert(token, (rank, ticket, kind));
        let ShardCall { shard, slots_of: of, slot: index, sequence, credentials, request, repeats, .. } = call;
        let origin = Origin { session, slot: Slot { of, index }, sequence };
        let credentials = credentials.unwrap_or_default();
        self.step_at(shard, kind, Event::Call { token, origin, credentials, request, repeats });
    }

    /// The shard of `/` takes an event.
    fn step(&mut self, kind: Kind, event: Event) {
        self.step_at(ShardId::ROOT, kind, event);
    }

    /// A shard takes an event; how long that takes is noted of the one of `/`.
    fn step_at(&mut self, shard: ShardId, kind: Kind, event: Event) {
        let (now, mut effects, is_root) = (self.now(), Vec::new(), shard == ShardId::ROOT);
        let root = RootDirectory { mode: 0o755, uid: 0, gid: 0 };
        let config = ShardConfig { shard, node_key: NodeKey::clone(&self.key), root, growth: Growth::USUAL };
        let machine = self.shards.entry(shard).or_insert_with(|| Shard::new(config, MemoryStore::new(), now));
        let begun = Instant::now();
        machine.step(now, event, &mut effects);
        if is_root {
            self.counts.took(kind, begun.elapsed());
        }
        effects.into_iter().for_each(|effect| self.carry_out(NodeId(shard.0), effect));
    }

    fn carry_out(&mut self, node: NodeId, effect: Effect) {
        match effect {
            Effect::Reply { token, reply } => {
                let Some((rank, ticket, kind)) = self.tokens.remove(&token) else { return };
                self.reply((rank, ticket), kind, node, Message::ShardReply(reply));
            }
            Effect::Recall { session, recall } => {
                assert_eq!(node, CENTER, "no other shard has granted a lease");
                if let Some(rank) = self.rank_of(session) {
                    self.count(node, self.home(rank), Kind::Recall, &Message::Recall(recall));
                    self.after(1, Arrives::Recall { to: session, recall });
                }
            }
            Effect::EndSession { session, fences } => {
                assert_eq!(node, CENTER, "no other shard has a group");
                self.fence_everywhere(session, fences);
            }
            Effect::LockGranted { .. } | Effect::PeerCall(_) | Effect::PeerReply { .. } | Effect::Storage { .. } => {
                unreachable!("nobody locks, removes or cuts a file, and no other shard has anything: {effect:?}")
            }
        }
    }

    fn rank_of(&self, session: SessionId) -> Option<RankId> {
        self.processes.iter().position(|process| process.files.calls().session.id() == session)
    }

    fn recall_arrived(&mut self, session: SessionId, recall: Recall) {
        let Some(rank) = self.rank_of(session) else { return };
        let (files, outside) = (Arc::clone(&self.processes[rank].files), Rc::clone(&self.processes[rank].outside));
        self.processes[rank].tasks.push(Box::pin(async move {
            let kept = files.answer_recall(&recall, session).await;
            let answer = kept.map(|kept| RecallAnswer { shard: recall.shard, number: recall.number, kept });
            outside.answers.borrow_mut().extend(answer.map(|answer| (session, answer)));
        }));
        self.poll(rank);
    }

    /// All storage servers are told of a session or group that has ended.
    fn fence_everywhere(&mut self, session: SessionId, mut fences: Fences) {
        let shard = ShardId::ROOT;
        for node in self.map.nodes.iter().map(|node| node.id).collect::<Vec<_>>() {
            let objects = fences.remove(&node);
            let is_awaited = objects.is_some();
            let fence = SessionFence { session, shard, objects: objects.into_iter().flatten().collect() };
            if node == CENTER {
                if is_awaited {
                    self.step(Kind::Fence, Event::FenceConfirmed { session, node });
                }
                continue;
            }
            self.grants.fence(node, &fence, is_awaited, self.now_ms);
            let objects = fence.objects.clone();
            let request = StorageRequest::Fence { session, shard, objects };
            self.count(CENTER, node, Kind::Fence, &Message::Storage(request));
            self.after(1, Arrives::Fence { node, fence });
        }
    }

    /// A data request is served during a term of the shard's node.
    fn data_arrived(&mut self, from: (RankId, u64), session: SessionId, request: DataRequest, bytes: Vec<u8>) {
        let node = request.object.node();
        let server = &mut self.servers[usize::from(node.0)];
        let term = server.terms.term(ShardId::ROOT, node == CENTER);
        if term.holds(|| self.now_ms) {
            let (reply, told, passed) = self.serve(session, &request, &bytes).unwrap_or_else(|error| {
                let failed = DataReply::failed(request.id, &error);
                (failed, Vec::new(), None)
            });
            if node != self.home(from.0) {
                self.counts.add(Kind::Data, REPLY_BYTES + told.len());
                self.counts.data_bytes += told.len() as u64;
            }
            return self.after(1, Arrives::Told { to: from, told: Told::Data(reply, told, passed) });
        }
        server.waiting.push((from, session, request, bytes));
        if let Some(settled) = server.terms.ask(CENTER, FIRST_EPOCH, self.now_ms) {
            let request = NodeRequest::AskToServe { epoch: FIRST_EPOCH, settled: settled.clone() };
            self.counts.connections += 1;
            self.count(node, CENTER, Kind::Term, &Message::Node(request));
            self.after(1, Arrives::AskToServe { node, settled });
        }
    }

    fn term_granted(&mut self, node: NodeId, answer: &ServingAnswer) {
        let terms = &mut self.servers[usize::from(node.0)].terms;
        for fence in terms.answered(CENTER, answer) {
            terms.settled(CENTER, fence.session, fence.shard);
        }
        let has_more = terms.finish(CENTER, Some(answer), &self.map);
        assert!(answer.granted && !has_more, "no group ends while its members begin to write");
        for (from, session, request, bytes) in std::mem::take(&mut self.servers[usize::from(node.0)].waiting) {
            self.data_arrived(from, session, request, bytes);
        }
    }

    fn serve(
        &mut self,
        session: SessionId,
        request: &DataRequest,
        bytes: &[u8],
    ) -> Result<(DataReply, Vec<u8>, Option<Rc<PartFile>>)> {
        let node = request.object.node();
        let seconds = u32::try_from(self.now_ms / 1000).expect("a run lasts some virtual minutes");
        let grant = check_access(request, session, node, &self.key, seconds, FIRST_EPOCH)?;
        let objects = &mut self.servers[usize::from(node.0)].objects;
        if grant.create {
            objects.entry(request.object).or_insert_with(|| (request.inode, Rc::default()));
        }
        let (_, file) =
            objects.get(&request.object).filter(|(inode, _)| *inode == request.inode).ok_or(Error::NoObject)?;
        let mut told = Vec::new();
        match request.operation {
            DataOperation::Read => {
                told.resize(request.bytes as usize, 0);
                let count = file.read(&mut told, request.offset);
                told.truncate(count);
            }
            DataOperation::Write => file.write(bytes, request.offset),
            DataOperation::Descriptor | DataOperation::Stat | DataOperation::Sync => {}
            _ => return Err(Error::NotSupported),
        }
        let bulk_bytes = u32::try_from(told.len()).expect("a request's length has 32 bits");
        let reply = DataReply { size: file.size(), bulk_bytes, ..DataReply::default() };
        let passed = (request.operation == DataOperation::Descriptor).then(|| Rc::clone(file));
        Ok((reply, told, passed))
    }
}
