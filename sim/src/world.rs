//! Clients, shards and storage servers in one process, driven by one seed.
//!
//! The shards, the storage servers' collectors and their check of rights are the production machines, and so are the
//! clients. Beside the network's faults ([`crate::network`]) a client
//! may *crash* (its session must end, its leases be free, its objects without a file be collected), *pause* (it answers
//! nothing for up to 15 s, and must then believe nothing whose term has passed) or be *deaf* (it goes on, but hears of
//! no recall for up to three terms), a node may *crash* for good (an ephemeral file system loses what was there, and
//! nothing else), and a *disk* may be *full* for some seconds. What is
//! true of connections for file data: see `data.rs`.
//!
//! Not here: what each party does (`clients.rs`, `servers.rs`, `data.rs`), what must hold at the end (`end.rs`).

mod clients;
mod data;
mod end;
mod flow;
mod gone;
mod groups;
mod joins;
mod leaves;
mod locks;
mod losses;
mod map_changes;
mod mounts;
mod moves;
mod partitions;
mod parts;
mod ranges;
mod servers;
mod serving;
mod start;
mod tally;
mod wakes;

use crate::Kind;
use crate::bytes::{Files, Moment, ProcessId};
use crate::choices::{Choices, Tape};
use crate::client::Client;
use crate::clock::Clock;
use crate::group_program::Offers;
use crate::model::Model;
use crate::mount::identity;
use crate::network::Network;
use crate::process::{Process, Ticket};
use crate::random::Random;
use crate::relocations;
use crate::script::{Script, WINDOW_MS};
use crate::store::{Bytes, DataMessage, Storage};
use crate::xattrs::Xattrs;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::rc::Rc;
use weft_metadata::back::Origin;
use weft_metadata::{Event, Growth, MemoryStore, Now, Shard};
use weft_protocol::data::DataReply;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::map::FIRST_EPOCH;
use weft_protocol::message::Message as WireMessage;
use weft_protocol::message::node::NodeRequest;
use weft_protocol::message::peer::{PeerCall, PeerReply};
use weft_protocol::message::recall::{DropPages, LockGrantTaken, LockGranted, PagesDropped, Recall, RecallAnswer};
use weft_protocol::message::shard::{ShardAnswer, ShardCall, Slot};
use weft_protocol::message::storage::{ServingAnswer, SessionFence, StorageAnswer, StorageRequest};
use weft_protocol::{
    ClusterMap, Error, MapEpoch, NodeAddress, NodeId, NodeKey, NodeRecord, ObjectId, Plan, SessionId, ShardId,
    ShardRecord,
};
use weft_storage::TermGrants;

pub use tally::{Faults, Tally};

const NODES: u16 = 3;
const SHARDS: u16 = 5;
const CLIENTS: usize = 4;
/// Operations on names of one run, over all clients.
const OPERATIONS: u64 = 400;
/// How long messages between servers are waited for at the end, and inodes that may be opened for a term.
const DRAIN_MS: u64 = SESSION_TERM_MS + 2000;
/// Last events kept for the report of a failure.
const HISTORY: usize = 60;

/// What is on its way.
#[derive(Clone, Debug)]
enum Message {
    Wake(usize),
    /// Time has passed since nobody did anything any more, as it seemed.
    Idle,
    Call {
        client: usize,
        process: ProcessId,
        number: Ticket,
        session: SessionId,
        /// To which it was sent.
        node: NodeId,
        call: Box<ShardCall>,
    },
    Recall {
        session: SessionId,
        recall: Recall,
    },
    RecallAnswer {
        session: SessionId,
        node: NodeId,
        answer: RecallAnswer,
    },
    LockGranted {
        session: SessionId,
        granted: LockGranted,
    },
    LockGrantTaken {
        session: SessionId,
        node: NodeId,
        taken: LockGrantTaken,
    },
    Renew {
        client: usize,
    },
    Renewal {
        client: usize,
        process: ProcessId,
        renewal: Renewal,
        /// Renewals are counted.
        number: u64,
        /// The groups that it names.
        joined: groups::Joined,
    },
    /// A client renews its session beside the usual times.
    RenewSoon {
        client: usize,
        process: ProcessId,
    },
    Renewed {
        client: usize,
        process: ProcessId,
        renewal: Renewal,
        refused: bool,
        epoch: MapEpoch,
        shards: Vec<ShardId>,
    },
    Peer {
        from: NodeId,
        node: NodeId,
        call: PeerCall,
    },
    PeerReply {
        node: NodeId,
        reply: PeerReply,
    },
    Storage {
        shard: ShardId,
        token: Option<u64>,
        node: NodeId,
        request: StorageRequest,
    },
    StorageAnswer {
        shard: ShardId,
        token: u64,
        result: Result<StorageAnswer, Error>,
    },
    Fence {
        node: NodeId,
        fence: SessionFence,
    },
    Fenced {
        node: NodeId,
        fence: SessionFence,
    },
    FenceFailed {
        node: NodeId,
        fence: SessionFence,
    },
    FencesDue(NodeId),
    AskToServe {
        node: NodeId,
        of: NodeId,
        epoch: MapEpoch,
        settled: Vec<SessionFence>,
    },
    Serving {
        node: NodeId,
        of: NodeId,
        answer: Option<ServingAnswer>,
    },
    /// A request on this connection waits for a term.
    TermAwaited(serving::ConnectionId),
    Data {
        client: usize,
        process: ProcessId,
        number: Ticket,
        message: Box<DataMessage>,
    },
    /// A data connection on which a client waits for room may take bytes.
    Room {
        client: usize,
    },
    DropPages {
        session: SessionId,
        drop: DropPages,
    },
    PagesDropped {
        session: SessionId,
        node: NodeId,
        dropped: PagesDropped,
    },
    HeldLong {
        node: NodeId,
        number: u64,
        object: ObjectId,
    },
    StorageTick(NodeId),
    Piece(u64),
    Batch {
        client: usize,
        process: ProcessId,
        number: Ticket,
        session: SessionId,
        node: NodeId,
    },
    AskNode {
        client: usize,
        process: ProcessId,
        number: Ticket,
        node: NodeId,
        request: NodeRequest,
    },
    AskSpace {
        client: usize,
        process: ProcessId,
        number: Ticket,
        node: NodeId,
    },
    Joins(joins::Message),
    Moves(moves::Message),
    Tick(ShardId),
    /// A storage server goes on with the collection of orphans.
    Collect(NodeId),
    /// A client that is cut off from a node has had no connection to it for a term.
    Disconnected {
        client: usize,
        node: NodeId,
    },
    /// Another partition begins.
    Cut,
    CutNodes,
    /// A partition of a script begins.
    CutOff(partitions::Cut),
    SessionOver(SessionId),
    Settled(Moment),
    ToClient {
        client: usize,
        process: ProcessId,
        number: Ticket,
        answer: Answer,
    },
    NextRound,
    MountDies(usize),
    /// A client stands still for so long.
    Pauses(usize, u64),
    LossSettled {
        loss: u64,
        since: Moment,
    },
    BeginCall(u64),
    RoundLasts(u64),
}

impl Message {
    /// The word of a script for what goes over the network.
    fn kind(&self) -> &'static str {
        match self {
            Self::Call { .. } => "call-of",
            Self::ToClient { .. } => "reply",
            Self::Batch { .. } => "batch-of",
            Self::AskNode { .. } | Self::AskSpace { .. } => "ping",
            Self::Recall { .. } => "recall",
            Self::RecallAnswer { .. } => "recall-answer",
            Self::LockGranted { .. } => "lock-granted",
            Self::LockGrantTaken { .. } => "lock-grant-taken",
            Self::DropPages { .. } => "drop-pages",
            Self::PagesDropped { .. } => "pages-dropped",
            Self::Renewal { .. } => "renewal",
            Self::Renewed { .. } => "renewed",
            Self::Peer { .. } => "peer-call",
            Self::PeerReply { .. } => "peer-reply",
            _ => "message",
        }
    }
}

/// A client tells a node that its session lives.
#[derive(Clone, Copy, Debug)]
struct Renewal {
    session: SessionId,
    node: NodeId,
    sent_ms: u64,
}

/// What a client is answered.
#[derive(Clone, Debug)]
enum Answer {
    Reply(Box<WireMessage>),
    Data(DataReply, Bytes),
    /// The connection broke.
    Broken,
    Time,
}

/// A call that a shard has.
struct Pending {
    client: usize,
    process: ProcessId,
    number: Ticket,
    session: SessionId,
    /// That has received it.
    node: NodeId,
    /// Its shard has moved away from there, and its caller was told so.
    is_away: bool,
    call: Box<ShardCall>,
    /// When it arrived.
    since_ms: u64,
}

/// One run.
pub struct World {
    choices: Choices,
    /// For what is decided before the run: it leaves what follows from `choices` as it is.
    setting: Choices,
    /// When the present round began, in a run of mounts.
    round_ms: u64,
    /// What clients do in a native run that is played.
    wakes: Vec<VecDeque<wakes::Wake>>,
    faults: Faults,
    clocks: BTreeMap<NodeId, Clock>,
    partitions: partitions::Partitions,
    network: Network<Message>,
    map: ClusterMap,
    key: NodeKey,
    shards: BTreeMap<ShardId, Shard<MemoryStore>>,
    storage: BTreeMap<NodeId, Storage>,
    /// The terms that each node has granted to the storage servers of others.
    grants: BTreeMap<NodeId, TermGrants>,
    joins: joins::Joins,
    moves: moves::Moves,
    clients: Vec<Client>,
    model: Model,
    files: Rc<RefCell<Files>>,
    xattrs: Rc<RefCell<Xattrs>>,
    /// Programs use extended attributes, by numbers from this seed.
    uses_xattrs: Option<u64>,
    relocates: Option<u64>,
    /// Whether each writer of some files has a part.
    splits: bool,
    relocations: relocations::Counts,
    /// Programs spread directories, by numbers from this seed.
    spreads: Option<u64>,
    growth: Growth,
    spread: Rc<Cell<u64>>,
    /// Programs use files by groups.
    uses_groups: bool,
    offers: Rc<Offers>,
    groups: groups::Groups,
    /// Calls that a shard has, by token.
    tokens: BTreeMap<u64, Pending>,
    /// Earlier tokens of the change that has come again.
    superseded: BTreeSet<u64>,
    /// Objects that a shard has removed, and whose stores have not heard it yet.
    to_remove: BTreeSet<(ShardId, ObjectId)>,
    /// The latest call that has come in each slot of a session.
    latest_in_slot: BTreeMap<(SessionId, Slot), Ticket>,
    next_token: u64,
    /// Changes that are in the model already, with what was told of them first.
    applied: BTreeMap<(ShardId, Origin), Result<ShardAnswer, Error>>,
    /// Calls that shards have received, and when first.
    received: BTreeMap<(ShardId, Origin), u64>,
    sessions: Rc<Cell<u64>>,
    /// Control connections of each client that broke.
    unheard: BTreeMap<usize, u64>,
    connections: data::Connections,
    /// There when programs make system calls.
    mounts: Option<mounts::MountRun>,
    ending: bool,
    /// Sessions of which a call came twice by one connection, which none of ours does: of two answers to an open,
    /// clients take the first, and give back no more than that.
    doubled: BTreeSet<SessionId>,
    /// Nobody has called a shard, and no program has done anything, since.
    idle_since_ms: Option<u64>,
    forgetting: end::Forgetting,
    history: VecDeque<String>,
    trace: bool,
    /// Grows with every event: two runs of one seed have the same.
    pub fingerprint: u64,
    pub tally: Tally,
}

impl World {
    /// A run of a seed.
    pub fn new(kind: Kind, seed: u64, tape: &Tape, trace: bool) -> Self {
        Self::begin(kind, kind.faults(seed), (seed, tape), trace)
    }

    /// A run as a script says: no fault comes by itself.
    pub fn of_script(script: Script, trace: bool) -> Self {
        let (kind, tape) = (script.kind, Tape::new(script, true));
        Self::begin(kind, kind.faults_to_play(), (0, &tape), trace)
    }

    /// What was recorded, and what became of what was played.
    pub fn tape(&self) -> Tape {
        self.choices.tape.clone()
    }

    fn process(&mut self, index: usize, home: NodeId) -> Process {
        // Who gets descriptors is on the machine of a node.
        let clock = match self.faults.descriptors {
            true => self.clocks[&home],
            false => self.new_clock(format_args!("clock client{index}")),
        };
        let choices = Choices::new(self.choices.stream().next(), &self.choices.tape);
        let mut process = Process::new((index, home), choices, clock, &self.sessions, &self.files);
        process.has_small_buffers = self.faults.small_buffers;
        process.has_descriptors = self.faults.descriptors;
        process
    }

    /// The node of a client. Where descriptors are passed, several clients are often on one machine.
    fn home(&mut self, index: usize) -> NodeId {
        // Where nodes join, the last client is on the machine of the first one that does.
        let machines = NODES + u16::from(self.faults.joins);
        let usual = u16::try_from(index).unwrap_or(0) % machines;
        if !self.faults.descriptors {
            return NodeId(usual);
        }
        let chosen = self.setting.decide(format_args!("home client{index}"), u64::from(usual), |random| {
            if random.one_in(2) { 0 } else { random.below(u64::from(NODES)) }
        });
        NodeId(u16::try_from(chosen).unwrap_or(0) % NODES)
    }

    fn new_clock(&mut self, what: fmt::Arguments<'_>) -> Clock {
        if self.faults.drift { self.setting.decide(what, Clock::EXACT, Clock::new) } else { Clock::EXACT }
    }

    /// How long ago the present step began.
    fn since_step_ms(&self) -> u64 {
        let began_ms =
            if self.mounts.is_some() { self.round_ms } else { wakes::window(self.network.now_ms) * WINDOW_MS };
        self.network.now_ms - began_ms
    }

    /// The time at a node.
    fn now_at(&self, node: NodeId) -> Now {
        let (clock, now_ms) = (&self.clocks[&node], self.network.now_ms);
        Now { boot_ms: clock.boot_ms(now_ms), wall: clock.wall(now_ms) }
    }

    /// The time at a shard's node.
    fn now_of(&self, shard: ShardId) -> Now {
        self.now_at(self.node_of(shard))
    }

    /// The node that has the shard's machine.
    fn node_of(&self, shard: ShardId) -> NodeId {
        self.moves.node_of(shard).expect("every shard was started somewhere")
    }

    /// Runs to the end, and checks what is left. Panics with the history when something is wrong.
    pub fn run(&mut self) {
        let mut quiet_since = None;
        while let Some(message) = self.network.take_next() {
            self.note(&format!("{message:?}"));
            if self.mounts.is_none() {
                self.choices.tape.set_step(wakes::window(self.network.now_ms));
            }
            self.handle(message);
            self.note_idle();
            let is_done =
                self.tally.operations >= OPERATIONS && !self.choices.tape.is_playing() || self.has_played_all();
            if self.mounts.is_none() && is_done && !self.ending {
                self.begin_to_end();
            }
            if self.ending && self.network.now_ms > SESSION_TERM_MS * 400 {
                break;
            }
            // What is still on its way between servers is handled too; it may have a client begin another session.
            let is_quiet = self.ending && self.is_quiet();
            quiet_since = is_quiet.then(|| quiet_since.unwrap_or(self.network.now_ms));
            if quiet_since.is_some_and(|since| self.network.now_ms > since + DRAIN_MS) {
                break;
            }
        }
        (self.tally.lost, self.tally.doubled) = (self.network.lost, self.network.doubled);
        self.storage.values().for_each(|storage| self.tally.add_storage(storage));
        {
            let files = self.files.borrow();
            (self.tally.compared, self.tally.doubts, self.tally.seen) = (files.compared, files.doubts, files.seen);
            (self.tally.held_back, self.tally.lost_of_members) = (files.held_back, files.lost_of_members);
            (self.tally.within_ranges, self.tally.ranges_recalled) = (files.within_ranges, files.ranges_recalled);
            self.tally.spilled = files.spilled;
            self.tally.xattrs = self.xattrs.borrow().compared;
            self.tally.relocated = self.relocations.moved.get();
            self.tally.hindered = self.relocations.hindered.get();
            self.tally.planned = self.relocations.planned.get();
            self.tally.spread = self.spread.get();
            self.tally.groups = self.offers.opened.get();
            self.tally.groups_by_name = self.offers.by_name.get();
            self.tally.members = self.offers.joined.get();
            self.tally.void_rights = self.offers.void.get();
            self.tally.published_for_others = self.offers.board.as_ref().map_or(0, |board| board.made.get());
        }
        self.check_end();
    }

    /// No faults from now on, and no new operations: programs close their files.
    fn begin_to_end(&mut self) {
        self.ending = true;
        self.network.faults = false;
        for client in &self.clients {
            client.process.ending.set(true);
        }
    }

    fn note(&mut self, what: &str) {
        let line = format!("{:>7} ms {what}", self.network.now_ms);
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
        panic!("last events:\n{}\n{what}", history.join("\n"));
    }

    /// The client that a message goes to, when it can take nothing in now, and for how long.
    fn asleep(&self, message: &Message) -> Option<u64> {
        let client = match message {
            Message::ToClient { client, .. }
            | Message::Renewed { client, .. }
            | Message::RenewSoon { client, .. }
            | Message::Room { client } => self.clients.get(*client),
            Message::Recall { session, .. }
            | Message::DropPages { session, .. }
            | Message::LockGranted { session, .. } => self.clients.iter().find(|client| client.session() == *session),
            _ => None,
        };
        client?.paused_until_ms.checked_sub(self.network.now_ms).filter(|wait| *wait > 0)
    }

    fn handle(&mut self, message: Message) {
        if let Some(wait) = self.asleep(&message) {
            return self.network.after(wait, message);
        }
        match message {
            Message::Wake(client) => self.wake(client),
            Message::Idle => self.look_for_forgotten(),
            Message::Call { client, process, number, session, node, call } => {
                let (is_away, since_ms) = (false, self.network.now_ms);
                self.call_arrived(Pending { client, process, number, session, node, is_away, call, since_ms });
            }
            Message::ToClient { client, process, number, answer } => {
                self.answer_arrived(client, process, number, answer);
            }
            Message::Recall { session, recall } => self.recall_arrived(session, recall),
            Message::RecallAnswer { session, node, answer } => {
                let event = Event::RecallAnswer { session, number: answer.number, kept: answer.kept };
                self.step_at(node, answer.shard, event);
            }
            Message::LockGranted { session, granted } => self.lock_granted(session, &granted),
            Message::LockGrantTaken { session, node, taken } => {
                self.step_at(node, taken.shard, Event::LockGrantTaken { session, wait: taken.wait });
            }
            Message::Renew { client } => self.renew(client),
            Message::Renewal { client, process, renewal, number, joined } => {
                if !self.is_overtaken(process, renewal.node, number) {
                    self.renewal_arrived((client, process), renewal, &joined);
                }
            }
            Message::RenewSoon { client, process } if self.clients[client].is_process(process) => {
                self.renew_now(client);
            }
            Message::RenewSoon { .. } => {}
            Message::Renewed { client, process, renewal, refused, epoch, shards } => {
                self.renewed((client, process), renewal, refused, (epoch, &shards));
            }
            Message::Peer { from, node, call } => self.peer_asked(from, node, call),
            Message::PeerReply { node, reply } => self.step_at(node, reply.intent.shard, Event::PeerReply(reply)),
            Message::Storage { shard, token, node, request } => self.storage_asked(shard, token, node, &request),
            Message::StorageAnswer { shard, token, result } => {
                self.step(shard, Event::StorageAnswer { token, result });
            }
            Message::DropPages { session, drop } => self.drop_arrived(session, drop),
            Message::PagesDropped { session, node, dropped } => self.pages_dropped(session, node, dropped),
            Message::HeldLong { node, number, object } => self.held_long(node, number, object),
            Message::StorageTick(node) => self.storage_tick(node),
            Message::Fence { node, fence } => self.fence_arrived(node, fence),
            Message::Fenced { node, fence } => self.fence_confirmed(node, &fence),
            Message::FenceFailed { node, fence } => self.fence_failed(node, &fence),
            Message::FencesDue(node) => self.fences_due(node),
            Message::AskToServe { node, of, epoch, settled } => self.asked_to_serve(node, of, epoch, &settled),
            Message::Serving { node, of, answer } => self.serving_answered(node, of, answer.as_ref()),
            Message::TermAwaited(connection) => self.term_awaited(connection),
            Message::Data { client, process, number, message } => self.data_arrived((client, process, number), message),
            Message::Room { client } => self.poll(client),
            Message::Piece(body) => self.piece_arrived(body),
            Message::Batch { client, process, number, session, node } => {
                let result = self.lease_objects(session, node);
                let answer = match result {
                    Err(Error::Unreachable) => Answer::Broken,
                    result => {
                        let answer = result.map(|capability| StorageAnswer::Batch { capability, is_low: false });
                        Answer::Reply(Box::new(WireMessage::StorageReply(answer)))
                    }
                };
                self.answer_client((client, process, number), answer);
            }
            Message::AskSpace { client, process, number, node } => self.space_asked((client, process, number), node),
            Message::AskNode { client, process, number, node, request } => {
                self.node_asked((client, process, number), node, &request);
            }
            Message::Joins(message) => self.joins_event(message),
            Message::Moves(message) => self.moves_event(message),
            Message::Tick(shard) => self.tick(shard),
            Message::Cut => self.cut_again(),
            Message::CutNodes => self.cut_nodes_again(),
            Message::CutOff(cut) => self.cut_as_told(cut),
            Message::NextRound => self.next_round(),
            Message::MountDies(client) => self.mount_dies(client),
            Message::Pauses(client, ms) => self.pause(client, ms),
            Message::LossSettled { loss, since } => self.loss_settled(loss, since),
            Message::BeginCall(id) => self.begin_call(id),
            Message::RoundLasts(round) => self.round_lasts(round),
            Message::SessionOver(session) => self.collect(session),
            Message::Collect(node) => self.go_on_collecting(node),
            Message::Disconnected { client, node } => self.disconnected(client, node),
            Message::Settled(since) if self.may_land(since) || self.may_be_made() => self.settle_again(since),
            Message::Settled(since) => self.files.borrow_mut().settled(since),
        }
    }
}
