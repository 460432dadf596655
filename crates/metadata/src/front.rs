//! The front machine: who may keep what, who waits for whom.
//!
//! A [`Shard`] is the back (the namespace) under a front: sessions, leases, recalls, parked work. One event goes in,
//! effects come out in the order in which they are to be carried out. A call is judged: either it can be answered now,
//! or it is parked with what it waits for, and judged again from the beginning when that is there.
//!
//! ```text
//!  Call ─────────► judge ──► answer, grants ──► Reply
//!                   │  ▲
//!             park  ▼  │ ready
//!      Recall, Storage, PeerCall ──► RecallAnswer, StorageAnswer, PeerReply, Tick
//! ```
//!
//! Invariant: no change is applied while another session holds a lease that forbids it; no lease is granted on a key
//! that parked work claims; every call gets one reply, or as many as it was sent.
//! Not here: sockets, maps of connections to sessions, the check of a call's map epoch: the shell does these.
//! On a crash: the front is gone with all leases. A durable shard, once there is one, must grant nothing for one term.

mod backlog;
mod below;
mod changes;
mod contention;
mod counts;
mod data;
mod end;
mod first_objects;
mod grants;
mod groups;
mod growth;
pub mod inspection;
mod intents;
mod leases;
mod lock_calls;
mod locks;
mod moving;
mod orphans;
mod park;
mod peer;
mod plan;
mod ranges;
mod reads;
mod recall;
mod repeats;
mod sessions;
mod split;
mod storage;
#[cfg(test)]
mod tests;

use crate::back::{Back, Command, Origin, Outcome, RootDirectory};
use crate::kv::KeyValue;
pub use growth::Growth;
use leases::Leases;
pub use park::NOBODY;
use park::{Call, Parked, Parking, Wait, Work};
use recall::Recalls;
use sessions::Sessions;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weft_protocol::limits::PARKED_REQUESTS_MAX;
use weft_protocol::message::peer::{PeerCall, PeerReply};
use weft_protocol::message::recall::{LockGranted, Recall};
use weft_protocol::message::shard::{ShardAnswer, ShardReply, ShardRequest};
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{
    ClusterMap, Credentials, Error, InodeNumber, LeaseKey, LeaseMode, NodeId, NodeIdentity, NodeKey, ObjectId,
    SessionId, ShardId, Timestamp,
};

/// The time of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// CLOCK_BOOTTIME, milliseconds: terms are counted on it.
    pub boot_ms: u64,
    /// Time of day: what files get.
    pub wall: Timestamp,
}

/// Everything that can happen to a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A client's call, on an authenticated connection; `credentials` are those that its key allows. `token` names the
    /// reply's way back; the shell chooses it and may use it again after the reply. `repeats`: as in
    /// [`weft_protocol::message::shard::ShardCall`].
    Call { token: u64, origin: Origin, credentials: Credentials, request: ShardRequest, repeats: Vec<Origin> },
    /// The client of the session lives, and has joined these groups. Whether that still counts tells
    /// [`Shard::refuses`].
    Heard { session: SessionId, groups: BTreeSet<SessionId> },
    /// The client of the session lives, on this machine: a node there reads from below what it opens first.
    Located { session: SessionId, machine: NodeIdentity },
    /// The client of the session is certainly gone: its process has ended.
    Lost { session: SessionId },
    /// A client did what a recall asked.
    RecallAnswer { session: SessionId, number: u64, kept: LeaseMode },
    /// A client knows that a wait for a lock is over.
    LockGrantTaken { session: SessionId, wait: u64 },
    /// Another shard asks; `token` as in `Call`.
    PeerCall { token: u64, call: PeerCall },
    /// Another shard answers, or its node is away ([`Error::Unreachable`]).
    PeerReply(PeerReply),
    /// Answer to an [`Effect::Storage`] that had a token. Each gets one, be it [`Error::Unreachable`].
    StorageAnswer { token: u64, result: Result<StorageAnswer, Error> },
    /// Nothing that a session writes to this shard's files can land at the storage server any more: see
    /// [`Effect::EndSession`].
    FenceConfirmed { session: SessionId, node: NodeId },
    /// The map has changed.
    SetMap(ClusterMap),
    /// The time of [`Shard::deadline`] has come. Events that are at hand should be given first: they may be the
    /// messages that keep a session alive.
    Tick,
}

/// Everything that a shard asks its shell to do, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Answer a call.
    Reply { token: u64, reply: ShardReply },
    /// Send to the session's recall connection; lost without harm.
    Recall { session: SessionId, recall: Recall },
    /// Send to the session's recall connection; lost without harm.
    LockGranted { session: SessionId, granted: LockGranted },
    /// Send to the node of the shard `to`; lost without harm. When the node is away: a `PeerReply` that says so.
    PeerCall(PeerCall),
    /// Answer another shard.
    PeerReply { token: u64, reply: PeerReply },
    /// Send to a storage server. Without a token the shard needs no answer.
    Storage { token: Option<u64>, node: NodeId, request: StorageRequest },
    /// The shard has ended this session: its term has passed, after its last message, or after the last one before it
    /// was refused because it did not answer a recall. It is to be fenced at all storage servers.
    /// What it held is granted to others once each server named in `fences` has answered with
    /// [`Event::FenceConfirmed`].
    EndSession { session: SessionId, fences: Fences },
}

/// Storage servers whose confirmation the end of a session waits for, with the objects that each has to abandon if
/// somebody still has a descriptor of them.
pub type Fences = BTreeMap<NodeId, BTreeSet<(InodeNumber, ObjectId)>>;

/// What a shard is made with.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    pub shard: ShardId,
    /// Signs capabilities.
    pub node_key: NodeKey,
    /// Owner and mode of `/`; used by the root shard only.
    pub root: RootDirectory,
    pub growth: Growth,
}

/// See the module.
pub struct Shard<K> {
    back: Back<K>,
    node_key: NodeKey,
    growth: Growth,
    map: ClusterMap,
    /// The time of the event, by `clock`.
    now: Now,
    clock: moving::Clock,
    sessions: Sessions,
    groups: groups::Groups,
    leases: Leases,
    recalls: Recalls,
    parking: Parking,
    /// Parked work that can be judged again.
    ready: VecDeque<u64>,
    contention: contention::Contention,
    /// Grows with each answer and each recall.
    stamp: u64,
    /// What the answers of storage servers are for.
    storage_waits: BTreeMap<u64, (NodeId, storage::StorageWait)>,
    latest_storage_token: u64,
    backlogs: backlog::Backlogs,
    /// Files whose object is being cut.
    cuts: BTreeMap<InodeNumber, changes::Cutting>,
    /// Open files that were cut, each with a stamp that no reply from before its last cut has.
    cut_at: BTreeMap<InodeNumber, u64>,
    /// Files whose size is searched for, each with the number of searches: its writer is gone, or a storage server has
    /// not answered.
    recovering: BTreeMap<InodeNumber, u32>,
    /// Searches for sizes that begin with the end of the step.
    doubted: Vec<storage::Recovery>,
    readings: below::Readings,
    orphans: orphans::Orphans,
    told: orphans::Told,
    /// Sessions that are being ended and wait for storage servers.
    fencing: BTreeMap<SessionId, end::Fencing>,
    /// Objects to be removed, sent at the end of the step.
    removals: BTreeMap<NodeId, Vec<(InodeNumber, ObjectId)>>,
    intents: intents::Asking,
    locks: lock_calls::LockCalls,
    locked: peer::Locked,
    counts: counts::Counts,
}

/// What becomes of work when it is judged.
enum Verdict {
    /// The answer.
    Reply(Result<ShardAnswer, Error>),
    /// The answer that the call of an ended session had.
    Repeated(Result<ShardAnswer, Error>),
    /// It waits.
    Park(Pause),
}

/// Why and how work waits.
struct Pause {
    wait: Wait,
    claims: Vec<LeaseKey>,
    /// For [`Wait::Recalls`]: from whom what is to be recalled, and what may be kept.
    recalls: Vec<(LeaseKey, SessionId, LeaseMode)>,
    /// For [`Wait::Storage`]: what to ask.
    storage: Option<Box<storage::Questions>>,
}

impl Pause {
    fn until(wait: Wait, claims: Vec<LeaseKey>) -> Self {
        Self { wait, claims, recalls: Vec::new(), storage: None }
    }
}

impl<K: KeyValue> Shard<K> {
    /// A new shard over an empty store. It knows no map until [`Event::SetMap`], and makes all directories itself until
    /// then.
    pub fn new(config: ShardConfig, store: K, now: Now) -> Self {
        let back = Back::new(config.shard, store, now.wall, config.root);
        Self::over(back, config, now)
    }

    fn over(back: Back<K>, config: ShardConfig, now: Now) -> Self {
        Self {
            back,
            node_key: config.node_key,
            growth: config.growth,
            map: ClusterMap::default(),
            now,
            clock: moving::Clock::default(),
            sessions: Sessions::default(),
            groups: groups::Groups::default(),
            leases: Leases::new(),
            recalls: Recalls::default(),
            parking: Parking::default(),
            ready: VecDeque::new(),
            contention: contention::Contention::default(),
            stamp: 0,
            storage_waits: BTreeMap::new(),
            latest_storage_token: 0,
            backlogs: backlog::Backlogs::default(),
            cuts: BTreeMap::new(),
            cut_at: BTreeMap::new(),
            recovering: BTreeMap::new(),
            doubted: Vec::new(),
            readings: below::Readings::new(),
            orphans: orphans::Orphans::default(),
            told: orphans::Told::default(),
            fencing: BTreeMap::new(),
            removals: BTreeMap::new(),
            intents: intents::Asking::default(),
            locks: lock_calls::LockCalls::default(),
            locked: peer::Locked::default(),
            counts: counts::Counts::default(),
        }
    }

    /// The shard's number.
    pub fn shard(&self) -> ShardId {
        self.back.shard()
    }

    /// The namespace, to look at.
    pub fn back(&self) -> &Back<K> {
        &self.back
    }

    /// Whether this session is refused: it was ended, or will be with the term that it has. The client must be told so
    /// instead of that it was heard.
    pub fn refuses(&self, session: SessionId) -> bool {
        self.sessions.refuses(session)
    }

    /// Takes one event; appends what is to be done.
    pub fn step(&mut self, now: Now, event: Event, out: &mut Vec<Effect>) {
        if self.is_frozen() {
            return self.step_frozen(event, out);
        }
        self.now = self.clock.read(now);
        match event {
            Event::Call { token, origin, credentials, request, repeats } => {
                self.counts.calls += 1;
                let (by_name, made, asked, answers) = (None, false, None, None);
                self.receive(Call { token, origin, credentials, request, repeats, by_name, made, asked, answers }, out);
            }
            Event::Heard { session, groups } => self.heard(session, &groups, out),
            Event::Located { session, machine } => self.sessions.locate(session, machine, self.now.boot_ms),
            Event::Lost { session } => self.end_session(session, true, out),
            Event::RecallAnswer { session, number, kept } => self.recall_answered(session, number, kept),
            Event::LockGrantTaken { session, wait } => {
                if self.sessions.hear(session, self.now.boot_ms) {
                    self.locks.taken(session, wait);
                }
            }
            Event::PeerCall { token, call } => self.receive_step(token, call, out),
            Event::PeerReply(reply) => self.peer_replied(reply, out),
            Event::StorageAnswer { token, result } => self.storage_answered(token, result, out),
            Event::FenceConfirmed { session, node } => self.fence_confirmed(session, node, out),
            Event::SetMap(map) => self.set_map(map),
            Event::Tick => self.tick(out),
        }
        self.settle(out);
    }

    fn set_map(&mut self, map: ClusterMap) {
        if map.epoch >= self.map.epoch {
            self.map = map;
            self.drop_backlogs();
        }
    }

    /// Judges what has become ready, and sends what was gathered.
    fn settle(&mut self, out: &mut Vec<Effect>) {
        loop {
            if let Some(number) = self.ready.pop_front() {
                if let Some(parked) = self.parking.take(number) {
                    self.judge_again(number, parked, out);
                }
            } else if !self.ask_begun(out) {
                break;
            }
        }
        self.recall_numbers(out);
        self.tell_granted(out);
        while let Some((node, objects)) = self.removals.pop_first() {
            self.remove(node, objects, out);
        }
        for of in std::mem::take(&mut self.doubted) {
            self.recall_size(of.inode(), out);
            self.ask_size(of, out);
        }
    }

    /// [`Now::boot_ms`] at which a [`Event::Tick`] is needed. `None`: nothing waits for time.
    pub fn deadline(&self) -> Option<u64> {
        self.due_ms().filter(|_| !self.is_frozen()).map(|due_ms| self.clock.of_node(due_ms, self.now))
    }

    fn due_ms(&self) -> Option<u64> {
        let (sessions, recalls) = (self.sessions.next_check(), self.recalls.next_due());
        let others = [
            self.intents.next_due(),
            self.locked.next_due(),
            self.orphans.next_due(),
            self.backlogs.next_due(),
            self.locks.next_due(),
        ];
        others.into_iter().chain([sessions, recalls]).flatten().min()
    }

    fn tick(&mut self, out: &mut Vec<Effect>) {
        let now_ms = self.now.boot_ms;
        while let Some(session) = self.sessions.pop_expired(now_ms) {
            self.end_session(session, true, out);
        }
        while let Some(due) = self.recalls.pop_due(now_ms, |session, key| self.parking.has_call_about(session, key)) {
            match due {
                recall::Due::Resend(number) => self.send_recall(number, out),
                recall::Due::Refuse(session) => self.refuse_session(session, out),
                recall::Due::GiveUp(number) => self.end_recall(number),
            }
        }
        self.tell_granted_again(out);
        self.ask_again(out);
        self.ask_outcomes(out);
        self.probe(out);
        self.reap_due();
        self.contention.tidy(now_ms);
    }

    /// A call has arrived: who asks, and was it asked before?
    fn receive(&mut self, call: Call, out: &mut Vec<Effect>) {
        if let ShardRequest::EndSession = call.request {
            self.end_session(call.session(), false, out);
            self.reply(call.token, Ok(ShardAnswer::Done), out);
            return;
        }
        if !self.sessions.hear(call.session(), self.now.boot_ms) {
            self.reply(call.token, Err(Error::SessionEnded), out);
            return;
        }
        match &call.request {
            ShardRequest::Ping => self.reply(call.token, Ok(ShardAnswer::Done), out),
            ShardRequest::Release { leases } => {
                let result = self.release(call.session(), leases);
                self.reply(call.token, result, out);
            }
            request if request.is_about_locks() => self.lock_call(&call, out),
            request if request.is_read() => self.judge_first(call, out),
            _ => {
                if let Some(result) = self.repeated(&call, out) {
                    if let Some(result) = result {
                        self.reply_again(&call, result, out);
                    }
                } else {
                    self.judge_first(call, out);
                }
            }
        }
    }

    fn judge_first(&mut self, mut call: Call, out: &mut Vec<Effect>) {
        match self.judge(&mut call, &[], None) {
            Verdict::Reply(result) => self.reply(call.token, result, out),
            Verdict::Repeated(result) => self.reply_again(&call, result, out),
            Verdict::Park(_) if self.parking.count() >= PARKED_REQUESTS_MAX => {
                self.reply(call.token, Err(Error::Busy), out);
            }
            Verdict::Park(pause) => {
                let number = self.parking.next_number();
                self.park(number, Work::Call(Box::new(call)), Vec::new(), pause, self.now.boot_ms, out);
            }
        }
    }

    fn judge_again(&mut self, number: u64, parked: Parked, out: &mut Vec<Effect>) {
        let Parked { work, since_ms, asked, .. } = parked;
        match work {
            Work::Call(mut call) => match self.judge(&mut call, &asked, Some(number)) {
                Verdict::Reply(result) => {
                    self.end_cuts(number);
                    self.reply(call.token, result, out);
                    self.wake(Wait::Repeated(call.origin));
                }
                Verdict::Repeated(result) => self.reply_again(&call, result, out),
                Verdict::Park(pause) => self.park(number, Work::Call(call), asked, pause, since_ms, out),
            },
            Work::Peer { token, call } => match self.judge_step(&call, &asked) {
                Ok(result) => {
                    self.answer_step(token, PeerReply { intent: call.intent, result }, out);
                }
                Err(pause) => self.park(number, Work::Peer { token, call }, asked, pause, since_ms, out),
            },
        }
    }

    fn judge(&mut self, call: &mut Call, asked: &[(LeaseKey, SessionId)], number: Option<u64>) -> Verdict {
        if !call.repeats.is_empty()
            && !call.request.is_read()
            && let Some(verdict) = self.made_in_ended_session(call)
        {
            return verdict;
        }
        self.take_answers(call);
        let verdict = match self.read_first(&call.request).or_else(|| self.hidden_by(&call.request)) {
            Some(pause) => Verdict::Park(pause),
            None if call.request.is_read() => self.read(call),
            None => self.change(call, asked, number),
        };
        match verdict {
            // Its shard cannot be reached, perhaps for good.
            Verdict::Park(Pause { wait: Wait::Lock(intent), .. }) if self.locked.is_cut_off(intent) => {
                Verdict::Reply(Err(Error::Unreachable))
            }
            verdict => verdict,
        }
    }

    /// Lets work wait, and asks for what it waits for.
    fn park(
        &mut self,
        number: u64,
        mut work: Work,
        mut asked: Vec<(LeaseKey, SessionId)>,
        pause: Pause,
        since_ms: u64,
        out: &mut Vec<Effect>,
    ) {
        let Pause { wait, claims, recalls, storage } = pause;
        let mut pending = 0;
        for (key, session, to) in recalls {
            let recall = self.recall(key, session, to, out);
            self.recalls.wait(recall, number);
            pending += 1;
            if self.recalls.get(recall).is_some_and(|recall| recall.to == to) {
                asked.push((key, session));
            }
        }
        if let Some(questions) = storage {
            let of = questions.of();
            if questions.cut() {
                self.cuts.insert(of.0, changes::Cutting::new(number));
            }
            let (answers, requests) = questions.begin();
            if let Work::Call(call) = &mut work {
                (call.asked, call.answers) = (Some(of), Some(answers));
            }
            self.ask_storage(number, requests, out);
        }
        assert!(wait != Wait::Recalls || pending > 0, "{work:?} would wait for nothing");
        let opener = work.session();
        self.parking.insert(number, Parked { work, since_ms, wait, pending, claims, asked });
        if let Wait::Below(inode) = wait {
            self.begin_reading(inode, opener, out);
        }
    }

    /// The recall of a key from a session: a new one, or the one under way.
    fn recall(&mut self, key: LeaseKey, session: SessionId, to: LeaseMode, out: &mut Vec<Effect>) -> u64 {
        if let Some(number) = self.recalls.find(key, session) {
            return number;
        }
        self.stamp += 1;
        let number = self.recalls.begin(key, session, to, self.stamp, self.now.boot_ms);
        self.send_recall(number, out);
        number
    }

    fn send_recall(&self, number: u64, out: &mut Vec<Effect>) {
        let recall = self.recalls.get(number).expect("a recall is sent while it is under way");
        let message = Recall { shard: self.back.shard(), number, key: recall.key, to: recall.to, stamp: recall.stamp };
        out.push(Effect::Recall { session: recall.session, recall: message });
    }

    /// Work of this number has one recall less to wait for.
    fn one_less(&mut self, number: u64) {
        if let Some(parked) = self.parking.get_mut(number)
            && parked.wait == Wait::Recalls
        {
            parked.pending -= 1;
            if parked.pending == 0 {
                self.ready.push_back(number);
                if let Work::Call(call) = &parked.work {
                    self.recalls.restart(call.session(), parked.since_ms, self.now.boot_ms);
                }
            }
        }
    }

    fn wake(&mut self, wait: Wait) {
        let woken = self.parking.wake(wait);
        self.ready.extend(woken);
    }

    fn apply(&mut self, command: &Command) -> Outcome {
        let by = match command {
            Command::Change { origin, .. } | Command::UnlinkBatch { origin, .. } => Some(origin.session),
            Command::PeerStep { intent, .. } => self.back.lock_session(*intent),
            _ => None,
        };
        let outcome = self.back.apply(self.now.wall, command);
        self.take_aftermath(&outcome.aftermath, by);
        outcome.more.iter().for_each(|aftermath| self.take_aftermath(aftermath, by));
        outcome
    }

    fn reply(&mut self, token: u64, result: Result<ShardAnswer, Error>, out: &mut Vec<Effect>) {
        self.reply_with(token, result, Vec::new(), out);
    }

    /// Answers a call by the reply that is kept for it.
    fn reply_again(&mut self, call: &Call, result: Result<ShardAnswer, Error>, out: &mut Vec<Effect>) {
        let others = self.back.stamps_of_others(call.origin);
        self.reply_with(call.token, result, others, out);
    }

    /// As [`Shard::reply`], with the stamps of other shards that have taken part.
    fn reply_with(
        &mut self,
        token: u64,
        result: Result<ShardAnswer, Error>,
        others: Vec<(ShardId, u64)>,
        out: &mut Vec<Effect>,
    ) {
        if result.is_ok() {
            // Also of what grants nothing: a client tells by it which of its own changes came last.
            self.stamp += 1;
        }
        out.push(Effect::Reply { token, reply: ShardReply { stamp: self.stamp, result, others } });
    }
}
