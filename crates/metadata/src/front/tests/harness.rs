//! A shard with fake sessions: calls go in, and what comes out is sorted by receiver.

use crate::back::{Origin, RootDirectory, Slot};
use crate::front::park::NOBODY;
use crate::front::{Effect, Event, Growth, Now, Shard, ShardConfig};
use crate::kv::{KeyValue, MemoryStore};
use crate::shipping::{Arrival, Departing, Departure};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::peer::{PeerCall, PeerReply};
use weft_protocol::message::recall::{LockGranted, Recall};
use weft_protocol::message::shard::*;
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::*;

pub const ROOT: InodeNumber = InodeNumber::ROOT;
/// Sessions of three clients.
pub const A: SessionId = SessionId(1);
pub const B: SessionId = SessionId(2);
pub const C: SessionId = SessionId(3);

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a valid name")
}

pub fn user(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, groups: Box::default() }
}

/// Shards from 0 on, each at a node of its own: shard 0 at node 1.
pub fn map_of(shards: u16) -> ClusterMap {
    let node = |id| NodeRecord {
        id: NodeId(id),
        host: String::new(),
        site: String::new(),
        identity: NodeIdentity(0),
        address: NodeAddress::default(),
        stores: true,
        drains: false,
    };
    ClusterMap {
        name: "test".to_owned(),
        epoch: MapEpoch(1),
        nodes: (1..=shards).map(node).collect(),
        shards: (1..=shards).map(|id| ShardRecord::new(NodeId(id), MapEpoch(1))).collect(),
        removed_max: None,
    }
}

pub fn object(sequence: u64) -> ObjectId {
    ObjectId::new(NodeId(4), sequence)
}

pub fn flags(access: Access) -> OpenFlags {
    OpenFlags { access, truncate: false, direct: false, page_cache: PageCache::None, group: None }
}

pub fn create(text: &str) -> ShardRequest {
    let create = Some(CreateFile { mode: 0o644, exclusive: false, plan: None });
    ShardRequest::OpenAt { parent: ROOT, name: name(text), flags: flags(Access::ReadWrite), create, objects: None }
}

pub fn open(inode: InodeNumber, access: Access) -> ShardRequest {
    ShardRequest::Open { inode, flags: flags(access) }
}

pub fn open_direct(inode: InodeNumber, access: Access) -> ShardRequest {
    ShardRequest::Open {
        inode,
        flags: OpenFlags { access, truncate: false, direct: true, page_cache: PageCache::None, group: None },
    }
}

pub fn mkdir(parent: InodeNumber, text: &str) -> ShardRequest {
    ShardRequest::MakeDirectory { parent, name: name(text), mode: 0o755, home: None }
}

pub fn rmdir(parent: InodeNumber, text: &str) -> ShardRequest {
    ShardRequest::RemoveDirectory { parent, name: name(text) }
}

pub fn lookup(text: &str) -> ShardRequest {
    ShardRequest::Lookup { parent: ROOT, name: name(text) }
}

pub fn stat(inode: InodeNumber) -> ShardRequest {
    ShardRequest::GetAttributes { inode }
}

pub fn unlink(text: &str) -> ShardRequest {
    ShardRequest::Unlink { parent: ROOT, name: name(text) }
}

pub fn unlink_batch(texts: &[&str]) -> ShardRequest {
    ShardRequest::UnlinkBatch { parent: ROOT, names: texts.iter().map(|text| name(text)).collect() }
}

pub fn rename(from: &str, to: &str) -> ShardRequest {
    let mode = RenameMode::Replace;
    let guess = None;
    ShardRequest::Rename { parent: ROOT, name: name(from), new_parent: ROOT, new_name: name(to), mode, guess }
}

pub fn resize(inode: InodeNumber, size: u64) -> ShardRequest {
    let changes = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
    ShardRequest::SetAttributes { inode, changes }
}

pub fn chmod(inode: InodeNumber, mode: u16) -> ShardRequest {
    let changes = AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
    ShardRequest::SetAttributes { inode, changes }
}

pub fn set_xattr(inode: InodeNumber, text: &str, value: &[u8]) -> ShardRequest {
    let name = XattrName::new(text.as_bytes()).expect("a valid name");
    let value = XattrValue::new(value).expect("a short value");
    ShardRequest::SetXattr { inode, name, value, expects: XattrExpectation::default() }
}

pub fn remove_xattr(inode: InodeNumber, text: &str) -> ShardRequest {
    ShardRequest::RemoveXattr { inode, name: XattrName::new(text.as_bytes()).expect("a valid name") }
}

pub fn commit(inode: InodeNumber, sequence: u64, size: u64) -> ShardRequest {
    commit_at(inode, sequence, size, (Timestamp(77), Timestamp(77)))
}

/// A report of size, and of the times of the file and its object.
pub fn commit_at(inode: InodeNumber, sequence: u64, size: u64, times: (Timestamp, Timestamp)) -> ShardRequest {
    let (mtime, object_mtime) = (Some(times.0), times.1);
    ShardRequest::Commit {
        inode,
        object: Some(object(sequence)),
        others: Vec::new(),
        size,
        mtime,
        object_mtime,
        known: u64::MAX,
        number: 0,
        passed: false,
    }
}

pub fn list(inode: InodeNumber, after: Option<&str>, entries_max: u32) -> ShardRequest {
    let after = after.map_or(Cookie::START, |text| Cookie::of(&name(text)));
    ShardRequest::ReadDirectory { inode, after, entries_max, with_attributes: true }
}

pub fn grants(answer: &ShardAnswer) -> Grants {
    match answer {
        ShardAnswer::Entry { grants, .. }
        | ShardAnswer::Remote { grants, .. }
        | ShardAnswer::Absent { grants }
        | ShardAnswer::Renamed { grants, .. }
        | ShardAnswer::Xattrs { grants, .. }
        | ShardAnswer::Opened { grants, .. } => *grants,
        ShardAnswer::Page(page) => page.grants,
        ShardAnswer::Done
        | ShardAnswer::Target(_)
        | ShardAnswer::Removed { .. }
        | ShardAnswer::RemovedBatch { .. }
        | ShardAnswer::Lock(_)
        | ShardAnswer::LockTested(_)
        | ShardAnswer::Below(_)
        | ShardAnswer::Parts { .. } => Grants::empty(),
    }
}

pub fn attributes(answer: &ShardAnswer) -> &Attributes {
    match answer {
        ShardAnswer::Entry { attributes, .. } | ShardAnswer::Opened { attributes, .. } => attributes,
        other => panic!("no attributes in {other:?}"),
    }
}

pub fn config_of(shard: u16) -> ShardConfig {
    ShardConfig {
        shard: ShardId(shard),
        node_key: NodeKey::new([9; 32]),
        growth: Growth::USUAL,
        root: RootDirectory { mode: 0o777, uid: 0, gid: 0 },
    }
}

/// A shard that may move, and one that does not: each event is given to both, and both have to do the same.
pub struct Twin {
    unmoved: Shard<MemoryStore>,
    /// Calls whose callers the shard has forgotten with a move.
    forgotten: BTreeSet<u64>,
}

/// Sends a frozen shard. `None`: a storage server has not answered.
pub fn ship(
    shard: &mut Shard<MemoryStore>,
    departure: &mut Departure,
    arrival: &mut Arrival<MemoryStore>,
) -> Option<Shard<MemoryStore>> {
    let number = shard.shard().0;
    loop {
        match departure.next(shard, 100) {
            Departing::Send(part) => {
                let arrived = arrival.take(&part, || config_of(number)).expect("the next part");
                assert!(departure.taken(part.number));
                if let Some(arrived) = arrived {
                    assert_eq!(departure.next(shard, 100), Departing::Done);
                    return Some(arrived.shard);
                }
            }
            Departing::Complete => departure.complete(shard, &Vec::new()),
            Departing::Wait => return None,
            other => panic!("{other:?} of a frozen shard"),
        }
    }
}

/// What a frozen shard is, but for its map.
#[derive(PartialEq, Eq, Debug)]
pub struct State {
    keys: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What the back has beside the keys.
    beside: Vec<u8>,
    /// The bytes of that and of the front, sorted: some of its tables are in no order.
    rest: Vec<u8>,
}

pub fn state_of(shard: &Shard<MemoryStore>) -> State {
    let mut keys = BTreeMap::new();
    shard.back().store().scan(&[], |key, value| {
        keys.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    });
    let mut rest = shard.append_rest(Vec::new());
    rest.sort_unstable();
    State { keys, beside: shard.back().append_rest(Vec::new()), rest }
}

/// One shard and what it has said.
pub struct World {
    pub shard: Shard<MemoryStore>,
    pub now: Now,
    /// How far the clock of the shard's node is ahead of `now`.
    ahead_ms: u64,
    pub twin: Option<Twin>,
    /// Who has made each call, in which slot.
    pub callers: BTreeMap<u64, (Origin, Credentials)>,
    pub replies: BTreeMap<u64, ShardReply>,
    /// Tokens of the replies, in the order in which they came.
    pub reply_order: Vec<u64>,
    pub recalls: Vec<(SessionId, Recall)>,
    pub locks_granted: Vec<(SessionId, LockGranted)>,
    pub storage: Vec<(Option<u64>, NodeId, StorageRequest)>,
    pub peer_calls: Vec<PeerCall>,
    pub peer_replies: Vec<(u64, PeerReply)>,
    pub ended: Vec<SessionId>,
    /// Fences that are not confirmed. That happens at once unless `keeps_fences`.
    pub fences: Vec<(SessionId, NodeId)>,
    pub keeps_fences: bool,
    /// Objects to be abandoned of the session that was ended last.
    pub abandoned: Vec<(InodeNumber, ObjectId)>,
    token: u64,
    sequence: u32,
    /// Of the shard's next move.
    departure: Departure,
    arrival: Arrival<MemoryStore>,
}

impl World {
    pub fn new() -> Self {
        Self::of_shard(0)
    }

    /// As [`World::new`], with a shard that may move.
    pub fn with_twin() -> Self {
        let mut world = Self::new();
        let unmoved = Shard::new(config_of(0), MemoryStore::new(), world.now);
        world.twin = Some(Twin { unmoved, forgotten: BTreeSet::new() });
        world
    }

    pub fn of_shard(shard: u16) -> Self {
        let config = config_of(shard);
        let now = Now { boot_ms: 1000, wall: Timestamp::from_parts(1_000_000, 0) };
        Self {
            shard: Shard::new(config, MemoryStore::new(), now),
            now,
            ahead_ms: 0,
            twin: None,
            callers: BTreeMap::new(),
            replies: BTreeMap::new(),
            reply_order: Vec::new(),
            recalls: Vec::new(),
            locks_granted: Vec::new(),
            storage: Vec::new(),
            peer_calls: Vec::new(),
            peer_replies: Vec::new(),
            ended: Vec::new(),
            fences: Vec::new(),
            keeps_fences: false,
            abandoned: Vec::new(),
            token: 0,
            sequence: 0,
            departure: Departure::default(),
            arrival: Arrival::default(),
        }
    }

    pub fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.now.wall.0 += 1;
        self.shard.step(self.node_now(), event.clone(), &mut out);
        if let Some(twin) = &mut self.twin {
            let mut expected = Vec::new();
            twin.unmoved.step(self.now, event, &mut expected);
            for effect in &mut expected {
                if let Effect::Reply { token, .. } = effect
                    && twin.forgotten.contains(token)
                {
                    *token = NOBODY;
                }
            }
            assert_eq!(out, expected);
            let expected = twin.unmoved.deadline();
            assert_eq!(self.deadline(), expected);
        }
        self.take(out);
    }

    fn node_now(&self) -> Now {
        Now { boot_ms: self.now.boot_ms + self.ahead_ms, ..self.now }
    }

    /// When the shard wants a tick.
    fn deadline(&self) -> Option<u64> {
        self.shard.deadline().map(|deadline_ms| deadline_ms - self.ahead_ms)
    }

    /// A piece of the shard's store goes to another node, unless little is left.
    pub fn copy_some(&mut self, part_bytes_max: usize) {
        if let Departing::Send(part) = self.departure.next(&mut self.shard, part_bytes_max) {
            assert!(self.arrival.take(&part, || config_of(0)).expect("the next part").is_none());
            assert!(self.departure.taken(part.number));
        }
    }

    /// The shard is frozen, and goes on at another node unless a storage server has not answered. Returns the calls
    /// that wait, which have to be made again.
    pub fn move_shard(&mut self) -> Vec<u64> {
        let mut out = Vec::new();
        let mut waiting = Vec::new();
        let (mut departure, mut arrival) = (std::mem::take(&mut self.departure), std::mem::take(&mut self.arrival));
        self.shard.freeze(self.node_now());
        if let Some(arrived) = ship(&mut self.shard, &mut departure, &mut arrival) {
            assert_eq!(state_of(&arrived), state_of(&self.shard));
            waiting.extend(self.shard.stuck().into_iter().map(|call| call.token).filter(|token| *token != NOBODY));
            self.shard = arrived;
            self.shard.forget_callers();
            self.ahead_ms = (self.ahead_ms * 7 + 123_456) % 1_000_000;
            if let Some(twin) = &mut self.twin {
                twin.forgotten.extend(&waiting);
            }
        }
        self.shard.resume(self.node_now(), &mut out);
        self.take(out);
        waiting
    }

    fn take(&mut self, out: Vec<Effect>) {
        for effect in out {
            match effect {
                Effect::Reply { token: NOBODY, .. } => {}
                Effect::Reply { token, reply } => {
                    self.reply_order.push(token);
                    let twice = self.replies.insert(token, reply);
                    assert!(twice.is_none(), "two replies for token {token}");
                }
                Effect::Recall { session, recall } => self.recalls.push((session, recall)),
                Effect::LockGranted { session, granted } => self.locks_granted.push((session, granted)),
                Effect::PeerCall(call) => self.peer_calls.push(call),
                Effect::PeerReply { token, reply } => self.peer_replies.push((token, reply)),
                Effect::Storage { token, node, request } => self.storage.push((token, node, request)),
                Effect::EndSession { session, fences } => {
                    self.ended.push(session);
                    self.fences.extend(fences.keys().map(|node| (session, *node)));
                    self.abandoned = fences.into_values().flatten().collect();
                }
            }
        }
        if !self.keeps_fences {
            self.confirm_fences();
        }
    }

    /// Storage servers confirm all fences that they were told of.
    pub fn confirm_fences(&mut self) {
        for (session, node) in std::mem::take(&mut self.fences) {
            self.event(Event::FenceConfirmed { session, node });
        }
    }

    /// Sends a call as user 0, each in a slot of its own. The token of its reply.
    pub fn call(&mut self, session: SessionId, request: ShardRequest) -> u64 {
        self.call_as(session, user(0), request)
    }

    pub fn call_as(&mut self, session: SessionId, credentials: Credentials, request: ShardRequest) -> u64 {
        self.sequence += 1;
        let slot = SlotIndex(u16::try_from(self.sequence % 64).expect("below 64"));
        self.call_in(session, credentials, (slot, self.sequence), request)
    }

    pub fn call_in(
        &mut self,
        session: SessionId,
        credentials: Credentials,
        (index, sequence): (SlotIndex, u32),
        request: ShardRequest,
    ) -> u64 {
        self.call_of(Origin { session, slot: Slot { of: NodeId(1), index }, sequence }, credentials, request)
    }

    pub fn call_of(&mut self, origin: Origin, credentials: Credentials, request: ShardRequest) -> u64 {
        self.repeat(origin, credentials, request, &[])
    }

    /// Sends a call that names those of ended sessions that it repeats.
    pub fn repeat(
        &mut self,
        origin: Origin,
        credentials: Credentials,
        request: ShardRequest,
        repeats: &[Origin],
    ) -> u64 {
        let repeats = repeats.to_vec();
        self.token += 1;
        let token = self.token;
        self.callers.insert(token, (origin, credentials.clone()));
        self.event(Event::Call { token, origin, credentials, request, repeats });
        token
    }

    /// The highest stamp of all replies.
    pub fn stamp(&self) -> u64 {
        self.replies.values().map(|reply| reply.stamp).max().unwrap_or(0)
    }

    /// The result of a call, if it came.
    pub fn result(&self, token: u64) -> Option<Result<ShardAnswer>> {
        self.replies.get(&token).map(|reply| reply.result.clone())
    }

    /// Sends a call that is answered at once, and well.
    pub fn ok(&mut self, session: SessionId, request: ShardRequest) -> ShardAnswer {
        let words = format!("{request:?}");
        let token = self.call(session, request);
        match self.result(token) {
            Some(Ok(answer)) => answer,
            other => panic!("{words} of session {session}: {other:?}; recalls {:?}", self.recalls),
        }
    }

    /// Sends a call that is refused at once.
    pub fn refused(&mut self, session: SessionId, request: ShardRequest) -> Error {
        let token = self.call(session, request);
        match self.result(token) {
            Some(Err(error)) => error,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Sends a call that has to wait.
    pub fn waits(&mut self, session: SessionId, request: ShardRequest) -> u64 {
        let token = self.call(session, request);
        assert_eq!(self.result(token), None, "the call should wait");
        token
    }

    /// The answer to a call that waited.
    pub fn done(&self, token: u64) -> ShardAnswer {
        match self.result(token) {
            Some(Ok(answer)) => answer,
            other => panic!("call {token}: {other:?}"),
        }
    }

    /// Takes the recalls that were sent: session, key, what may be kept.
    pub fn recalled(&mut self) -> Vec<(SessionId, LeaseKey, LeaseMode)> {
        self.recalls.iter().map(|(session, recall)| (*session, recall.key, recall.to)).collect()
    }

    /// All recalls are answered: the sessions keep `kept`.
    pub fn answer_recalls(&mut self, kept: LeaseMode) {
        for (session, recall) in std::mem::take(&mut self.recalls) {
            self.event(Event::RecallAnswer { session, number: recall.number, kept });
        }
    }

    /// The one question to a storage server that is open.
    pub fn asked_storage(&mut self) -> (u64, StorageRequest) {
        assert_eq!(self.storage.len(), 1, "{:?}", self.storage);
        let (token, node, request) = self.storage.remove(0);
        assert_eq!(node, NodeId(4));
        (token.expect("a question with a token"), request)
    }

    pub fn storage_answers(&mut self, token: u64, size: u64, mtime: i64) {
        let result = Ok(StorageAnswer::Object { size, mtime: Timestamp(mtime) });
        self.event(Event::StorageAnswer { token, result });
    }

    /// Objects that were told to be removed.
    pub fn removed_objects(&mut self) -> Vec<ObjectId> {
        let mut removed = Vec::new();
        self.storage.retain(|(_, _, request)| match request {
            StorageRequest::Remove { objects } => {
                removed.extend(objects.iter().map(|(_, object)| *object));
                false
            }
            _ => true,
        });
        removed
    }

    /// Lets time pass, with the ticks that the shard asks for. Sessions in `alive` are heard every second.
    pub fn pass(&mut self, ms: u64, alive: &[SessionId]) {
        let end_ms = self.now.boot_ms + ms;
        while self.now.boot_ms < end_ms {
            self.now.boot_ms = (self.now.boot_ms + 500).min(end_ms);
            for session in alive {
                self.event(Event::Heard { session: *session, groups: BTreeSet::new() });
            }
            if self.deadline().is_some_and(|deadline_ms| deadline_ms <= self.now.boot_ms) {
                self.event(Event::Tick);
            }
        }
    }

    /// Lets a session's term pass.
    pub fn expire(&mut self, alive: &[SessionId]) {
        self.pass(SESSION_TERM_MS + 500, alive);
    }

    /// Makes a file with an object of 100 bytes, that nobody has open.
    pub fn file(&mut self, text: &str, sequence: u64) -> InodeNumber {
        let maker = SessionId(99);
        let inode = attributes(&self.ok(maker, create(text))).inode;
        self.ok(maker, commit(inode, sequence, 100));
        self.ok(maker, ShardRequest::EndSession);
        inode
    }
}

/// A plan of stripes that may be.
pub fn stripes(width: u16, stripe_bytes: u32) -> Plan {
    Plan::Striped(StripePlan::new(width, stripe_bytes).expect("a plan"))
}
