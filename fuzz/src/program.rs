//! Random clients for the shard: bytes are read as a program of calls and answers for two shards.
//!
//! The clients keep no rule: sequences go back, leases are given back that were never had, recalls are answered wrongly
//! or never, sizes and times are at their edges, storage servers contradict themselves, messages between the shards are
//! lost and come twice. No assertion of a shard may fail by it: a shard whose assertion has failed serves nobody any
//! more.
//!
//! Not here: whether the answers are right (`crates/metadata` has a model for that).

use std::collections::{BTreeMap, VecDeque};
use weft_metadata::back::{Origin, Slot};
use weft_metadata::{Effect, Event, Growth, MemoryStore, Now, RootDirectory, Shard, ShardConfig};
use weft_protocol::limits::{STRIPE_BYTES_MIN, XATTR_VALUE_BYTES_MAX};
use weft_protocol::message::peer::{PeerCall, PeerReply};
use weft_protocol::message::shard::{
    Access, CreateFile, ForGroup, GroupLayouts, OpenFlags, PageCache, RangeUse, RenameMode, ShardAnswer, ShardCall,
    ShardRequest, StridedQuestion, SymlinkTarget,
};
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::message::{Message, recall::Recall};
use weft_protocol::{
    AttributeChanges, ClusterMap, Cookie, Credentials, Error, FileKind, InheritedChange, InodeNumber, LeaseKey,
    LeaseMode, LockKind, LockMode, LockOwner, LockRange, MapEpoch, Name, NodeAddress, NodeId, NodeIdentity, NodeKey,
    NodeRecord, ObjectId, OwnerLocks, Pattern, Plan, PublishedPart, RangeLock, SessionId, ShardId, ShardRecord,
    SlotIndex, StripePlan, TimeChange, Timestamp, XattrExpectation, XattrName, XattrValue, codec, frame, routing,
};

/// Steps of one program.
const STEPS_MAX: usize = 400;
const SHARDS: u16 = 2;
const EDGES: [u64; 8] = [0, 1, 4096, u32::MAX as u64, 1 << 48, i64::MAX as u64, 1 << 63, u64::MAX];

/// Runs the program. `true`: it did anything.
pub fn run(bytes: &[u8]) -> bool {
    let mut world = World::new(Reader(bytes.iter()));
    let mut steps = 0;
    while world.reader.0.len() > 0 && steps < STEPS_MAX {
        world.step();
        steps += 1;
    }
    for shard in &world.shards {
        encodable(&Message::NodeReply(Box::new(Ok(weft_protocol::message::node::NodeAnswer::Status(Box::new(
            weft_protocol::message::node::NodeStatus { shards: vec![shard.status()], ..Default::default() },
        ))))));
    }
    steps > 4
}

/// What a shard sends must fit into a frame, or the node could not send it.
fn encodable(message: &Message) {
    let mut frame = Vec::new();
    frame::append(&mut frame, 1, message);
}

/// The program's bytes; zeros behind its end.
struct Reader<'a>(std::slice::Iter<'a, u8>);

impl Reader<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Small as a rule, now and then at an edge.
    fn number(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..=199 => u64::from(byte),
            byte => EDGES[usize::from(byte) % EDGES.len()],
        }
    }

    fn time(&mut self) -> Timestamp {
        Timestamp(self.number().cast_signed())
    }
}

struct World<'a> {
    reader: Reader<'a>,
    now: Now,
    shards: Vec<Shard<MemoryStore>>,
    map: ClusterMap,
    next_token: u64,
    /// The clients' present sessions: one that was ended is replaced, as a rule.
    sessions: [u64; 3],
    sequences: BTreeMap<(SessionId, Slot), u32>,
    inodes: Vec<InodeNumber>,
    directories: Vec<InodeNumber>,
    recalls: VecDeque<(usize, SessionId, Recall)>,
    storage: VecDeque<(usize, u64, StorageRequest)>,
    fences: VecDeque<(usize, SessionId, NodeId)>,
    peer_calls: VecDeque<PeerCall>,
    peer_replies: VecDeque<PeerReply>,
}

fn cluster_map() -> ClusterMap {
    let node = |id| NodeRecord {
        id: NodeId(id),
        host: String::new(),
        site: String::new(),
        identity: NodeIdentity(u64::from(id)),
        address: NodeAddress::default(),
        stores: true,
        drains: false,
    };
    ClusterMap {
        name: "w".to_owned(),
        epoch: MapEpoch(1),
        nodes: (0..SHARDS).map(node).collect(),
        shards: (0..SHARDS).map(|id| ShardRecord::new(NodeId(id), MapEpoch(1))).collect(),
        removed_max: None,
    }
}

impl<'a> World<'a> {
    fn new(reader: Reader<'a>) -> Self {
        let now = Now { boot_ms: 1000, wall: Timestamp(1_700_000_000_000_000_000) };
        let root = RootDirectory { mode: 0o777, uid: 0, gid: 0 };
        let config =
            |shard| ShardConfig { shard: ShardId(shard), node_key: NodeKey::new([7; 32]), root, growth: Growth::USUAL };
        let mut world = Self {
            reader,
            now,
            shards: (0..SHARDS).map(|shard| Shard::new(config(shard), MemoryStore::new(), now)).collect(),
            map: cluster_map(),
            next_token: 0,
            sessions: [1, 2, 3],
            sequences: BTreeMap::new(),
            inodes: vec![InodeNumber::ROOT],
            directories: vec![InodeNumber::ROOT],
            recalls: VecDeque::new(),
            storage: VecDeque::new(),
            fences: VecDeque::new(),
            peer_calls: VecDeque::new(),
            peer_replies: VecDeque::new(),
        };
        for shard in 0..world.shards.len() {
            world.give(shard, Event::SetMap(world.map.clone()));
        }
        world
    }

    fn give(&mut self, shard: usize, event: Event) {
        let mut effects = Vec::new();
        self.shards[shard].step(self.now, event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Reply { reply, .. } => {
                    if let Ok(ShardAnswer::Entry { attributes, .. } | ShardAnswer::Opened { attributes, .. }) =
                        &reply.result
                        && !self.inodes.contains(&attributes.inode)
                    {
                        self.inodes.push(attributes.inode);
                        if attributes.kind == FileKind::Directory {
                            self.directories.push(attributes.inode);
                        }
                    }
                    encodable(&Message::ShardReply(reply));
                }
                Effect::Recall { session, recall } => self.recalls.push_back((shard, session, recall)),
                Effect::LockGranted { granted, .. } => encodable(&Message::LockGranted(granted)),
                Effect::PeerCall(call) => self.peer_calls.push_back(call),
                Effect::PeerReply { reply, .. } => self.peer_replies.push_back(reply),
                Effect::Storage { token: Some(token), request, .. } => self.storage.push_back((shard, token, request)),
                Effect::Storage { token: None, request, .. } => encodable(&Message::Storage(request)),
                Effect::EndSession { session, fences } => {
                    self.fences.extend(fences.keys().map(|node| (shard, session, *node)));
                    if self.reader.byte() < 220 {
                        self.begin_new_session(session);
                    }
                }
            }
        }
    }

    fn step(&mut self) {
        match self.reader.below(16) {
            0..=7 => self.call(),
            8 => self.answer_recall(),
            9 => self.answer_storage(),
            10 | 11 => self.deliver(),
            12 => {
                let late = [0, 1, 10, 10, 100, 500, 500, 5000, 9_999, 10_000, 60_000, 1];
                self.now.boot_ms += late[self.reader.below(late.len())];
                let shard = self.reader.below(self.shards.len());
                self.give(shard, Event::Tick);
            }
            13 => {
                let (shard, session) = (self.reader.below(self.shards.len()), self.session());
                let groups = (0..self.reader.below(3)).map(|_| self.group()).collect();
                self.give(shard, Event::Heard { session, groups });
                if self.shards[shard].refuses(session) && self.reader.byte() < 220 {
                    self.begin_new_session(session);
                }
            }
            14 => {
                self.map.epoch.0 += u32::from(self.reader.flag());
                let shard = self.reader.below(self.shards.len());
                self.give(shard, Event::SetMap(self.map.clone()));
            }
            _ => self.raw_call(),
        }
    }

    /// The client of this session has noticed that it is over.
    fn begin_new_session(&mut self, ended: SessionId) {
        self.sessions.iter_mut().filter(|id| **id == ended.0).for_each(|id| *id += 3);
    }

    fn session(&mut self) -> SessionId {
        SessionId(self.sessions[self.reader.below(3)])
    }

    /// The number of a group; now and then a session's.
    fn group(&mut self) -> SessionId {
        if self.reader.byte() > 240 { self.session() } else { SessionId::of_group(self.reader.below(4) as u64) }
    }

    fn call(&mut self) {
        let session = self.session();
        let index = SlotIndex([0, 0, 1, 2, 63, u16::MAX][self.reader.below(6)]);
        let slot = Slot { of: NodeId(u16::from(self.reader.below(8) == 0)), index };
        let byte = self.reader.byte();
        let repeats = if (220..=229).contains(&byte) { self.in_last_session(session, slot) } else { Vec::new() };
        let latest = self.sequences.entry((session, slot)).or_default();
        let sequence = match byte {
            0..=229 => {
                *latest = latest.saturating_add(1);
                *latest
            }
            230..=239 => *latest,
            240..=249 => latest.saturating_sub(1),
            _ => u32::MAX,
        };
        let credentials = self.credentials();
        let request = self.request();
        let shard = match routing::of_request(&request) {
            Some(shard) if self.reader.byte() < 250 => usize::from(shard.0) % self.shards.len(),
            _ => self.reader.below(self.shards.len()),
        };
        self.next_token += 1;
        let token = self.next_token;
        let origin = Origin { session, slot, sequence };
        self.give(shard, Event::Call { token, origin, credentials, request, repeats });
    }

    /// The latest call in a slot of the session before this one.
    fn in_last_session(&self, session: SessionId, slot: Slot) -> Vec<Origin> {
        let session = SessionId(session.0.saturating_sub(3));
        let latest = self.sequences.get(&(session, slot)).copied();
        latest.map(|sequence| Origin { session, slot, sequence }).into_iter().collect()
    }

    /// A call as it could stand on the wire, whatever that is.
    fn raw_call(&mut self) {
        let bytes: Vec<u8> = self.reader.0.by_ref().take(64).copied().collect();
        let Ok(call) = codec::from_bytes::<ShardCall>(&bytes) else { return };
        let ShardCall { slots_of: of, slot: index, sequence, credentials, request, shard, repeats, .. } = call;
        self.next_token += 1;
        let (session, token, credentials) = (SessionId(1), self.next_token, credentials.unwrap_or_default());
        let shard = usize::from(shard.0) % self.shards.len();
        let origin = Origin { session, slot: Slot { of, index }, sequence };
        self.give(shard, Event::Call { token, origin, credentials, request, repeats });
    }

    fn credentials(&mut self) -> Credentials {
        let uid = [0, 0, 1000, 1001][self.reader.below(4)];
        Credentials { uid, gid: uid, groups: Box::new([7]) }
    }

    fn inode(&mut self) -> InodeNumber {
        match self.reader.byte() {
            byte @ 0..=247 => self.inodes[usize::from(byte) % self.inodes.len()],
            248 => InodeNumber::from_raw(u64::MAX),
            249 => InodeNumber::from_raw(0),
            byte => InodeNumber::new(ShardId(u16::from(byte) % (SHARDS + 1)), u64::from(byte)),
        }
    }

    /// A directory, as a rule.
    fn parent(&mut self) -> InodeNumber {
        match self.reader.byte() {
            byte @ 0..=219 => self.directories[usize::from(byte) % self.directories.len()],
            _ => self.inode(),
        }
    }

    fn name(&mut self) -> Name {
        let text = ["a", "b", "c", "d", "e"][self.reader.below(5)];
        Name::new(text.as_bytes()).expect("a valid name")
    }

    fn flags(&mut self) -> OpenFlags {
        let access = [Access::Read, Access::Write, Access::ReadWrite][self.reader.below(3)];
        let bits = self.reader.byte();
        let layouts = [GroupLayouts::All, GroupLayouts::Split, GroupLayouts::Unsplit][usize::from(bits) % 3];
        let group = (bits & 48 == 48).then(|| ForGroup { group: self.group(), layouts });
        OpenFlags { access, truncate: bits & 3 == 3, direct: bits & 12 == 12, page_cache: PageCache::None, group }
    }

    fn object(&mut self) -> ObjectId {
        ObjectId::new(NodeId(u16::try_from(self.reader.below(3)).unwrap_or(0)), self.reader.below(8) as u64)
    }

    fn changes(&mut self) -> AttributeChanges {
        let bits = self.reader.byte();
        let maybe = |bit: u8, reader: &mut Reader<'_>| (bits & bit != 0).then(|| reader.number());
        let reader = &mut self.reader;
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        AttributeChanges {
            mode: maybe(1, reader).map(|mode| u16::try_from(mode).unwrap_or(u16::MAX)),
            uid: maybe(2, reader).map(narrow),
            gid: maybe(4, reader).map(narrow),
            size: maybe(8, reader),
            atime: maybe(16, reader).map(|time| TimeChange::To(Timestamp(time.cast_signed()))),
            mtime: maybe(32, reader).map(|_| TimeChange::Now),
        }
    }

    fn lease_key(&mut self) -> LeaseKey {
        let inode = self.inode();
        match self.reader.below(7) {
            0 => LeaseKey::Attributes(inode),
            1 => LeaseKey::Entry(inode, self.name().hash64()),
            2 => LeaseKey::Directory(inode),
            3 => LeaseKey::Permissions(inode),
            4 => LeaseKey::Names(inode),
            5 => LeaseKey::Ranges(inode),
            _ => LeaseKey::Data(inode),
        }
    }

    fn xattr_name(&mut self) -> XattrName {
        let names = [&b"user.a"[..], b"user.b", b"trusted.a"];
        XattrName::new(names[self.reader.below(3)]).expect("a valid name")
    }

    fn request(&mut self) -> ShardRequest {
        let (parent, inode, name) = (self.parent(), self.inode(), self.name());
        match self.reader.below(32) {
            0 => ShardRequest::Lookup { parent, name },
            1 => ShardRequest::GetAttributes { inode },
            2 | 3 => ShardRequest::SetAttributes { inode, changes: self.changes() },
            4..=7 => {
                let create = CreateFile { mode: 0o666, exclusive: self.reader.byte() > 200, plan: None };
                let create = (self.reader.byte() < 200).then_some(create);
                ShardRequest::OpenAt { parent, name, flags: self.flags(), create, objects: None }
            }
            8 | 9 => ShardRequest::Open { inode, flags: self.flags() },
            10 | 11 => {
                let object = self.reader.flag().then(|| self.object());
                ShardRequest::Commit {
                    inode,
                    object,
                    others: (0..self.reader.below(3)).map(|_| self.object()).collect(),
                    size: self.reader.number(),
                    mtime: Some(self.reader.time()),
                    object_mtime: self.reader.time(),
                    known: self.reader.number(),
                    number: self.reader.number(),
                    passed: self.reader.flag(),
                }
            }
            12 | 13 => {
                let home = self.reader.flag().then(|| NodeId(u16::from(self.reader.byte()) % (SHARDS + 1)));
                ShardRequest::MakeDirectory { parent, name, mode: 0o777, home }
            }
            14 => {
                let target = vec![b'x'; usize::try_from(self.reader.number()).unwrap_or(0).min(5000)];
                ShardRequest::MakeSymlink { parent, name, target: SymlinkTarget(target) }
            }
            15 => ShardRequest::ReadLink { inode },
            16 => ShardRequest::Link { inode, parent, name },
            17 if self.reader.flag() => {
                ShardRequest::UnlinkBatch { parent, names: vec![name, self.name(), self.name()] }
            }
            17 => ShardRequest::Unlink { parent, name },
            18 => ShardRequest::RemoveDirectory { parent, name },
            19 | 20 => {
                let (new_parent, new_name) = (self.parent(), self.name());
                let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                let guess = self.reader.flag().then(|| (self.inode(), FileKind::Regular));
                let mode = modes[self.reader.below(3)];
                ShardRequest::Rename { parent, name, new_parent, new_name, mode, guess }
            }
            21 => {
                let after = match self.reader.below(3) {
                    0 => Cookie::START,
                    1 => Cookie::of(&self.name()),
                    _ => Cookie::from_raw(self.reader.number()),
                };
                let entries_max = u32::try_from(self.reader.number()).unwrap_or(u32::MAX);
                ShardRequest::ReadDirectory { inode: parent, after, entries_max, with_attributes: self.reader.flag() }
            }
            22 => {
                let count = self.reader.below(4);
                ShardRequest::Release { leases: (0..count).map(|_| (self.lease_key(), self.reader.number())).collect() }
            }
            23 => {
                let expects = XattrExpectation { absent: self.reader.flag(), present: self.reader.flag() };
                let bytes = usize::try_from(self.reader.number()).unwrap_or(0).min(XATTR_VALUE_BYTES_MAX);
                let value = XattrValue::new(&vec![b'x'; bytes]).expect("not longer than it may be");
                ShardRequest::SetXattr { inode, name: self.xattr_name(), value, expects }
            }
            24 => ShardRequest::RemoveXattr { inode, name: self.xattr_name() },
            25 if self.reader.flag() => {
                let plan = StripePlan::new(u16::from(self.reader.byte() & 3), STRIPE_BYTES_MIN);
                let change = match self.reader.flag() {
                    true => InheritedChange::Plan(plan.map_or(Plan::Split, Plan::Striped)),
                    false => InheritedChange::Spreads(plan.is_some()),
                };
                ShardRequest::SetInherited { inode: parent, change }
            }
            25 => ShardRequest::GetXattrs { inode },
            26..=29 => self.lock_request(inode),
            30 => {
                let access = [Access::Read, Access::Write, Access::ReadWrite, Access::Execute][self.reader.below(4)];
                ShardRequest::OpenGroup { inode, access, group: self.group() }
            }
            31 if self.reader.byte() < 160 => self.parts_request(inode),
            _ if self.reader.byte() > 240 => ShardRequest::EndSession,
            _ => ShardRequest::Ping,
        }
    }

    fn parts_request(&mut self, inode: InodeNumber) -> ShardRequest {
        let group = self.reader.flag().then(|| self.group());
        let pattern = |reader: &mut Reader<'_>| {
            let (start, bytes, gap, count) = (reader.number(), reader.number(), reader.number(), reader.number());
            Pattern::new(start, bytes, bytes.checked_add(gap)?, count).or_else(|| Pattern::run(start, 1))
        };
        if self.reader.byte() < 80 {
            let (since, start, end) = (self.reader.number(), self.reader.number(), self.reader.number());
            let (extra, own) = (u32::from(self.reader.byte()), self.reader.flag());
            let within = self.reader.flag().then(|| pattern(&mut self.reader)).flatten();
            let after = self.reader.flag().then(|| pattern(&mut self.reader)).flatten();
            let strided = StridedQuestion {
                within: within.unwrap_or(Pattern::WHOLE_FILE),
                since: self.reader.number(),
                after: after.map(|pattern| (pattern, self.object())),
                few: u32::from(self.reader.byte()),
            };
            return ShardRequest::GetParts { inode, group, since, start, end, extra, strided, own };
        }
        let patterns = (0..self.reader.below(4)).filter_map(|_| pattern(&mut self.reader)).collect();
        let appends_to = (self.reader.byte() > 200).then(|| self.reader.number());
        let writer = self.session();
        let part = PublishedPart { writer, object: self.object(), number: self.reader.number(), patterns };
        let range = RangeUse {
            given_up: self.reader.flag().then(|| self.reader.number()),
            wanted: self.reader.flag().then(|| (self.reader.number(), self.reader.number())),
        };
        ShardRequest::Publish { inode, group, parts: vec![part], appends_to, range }
    }

    fn lock_request(&mut self, inode: InodeNumber) -> ShardRequest {
        let kind = [LockKind::Flock, LockKind::Process, LockKind::Description][self.reader.below(3)];
        let owner = LockOwner { kind, number: self.reader.below(4) as u64 };
        let range = |reader: &mut Reader<'_>| match reader.byte() {
            0..=127 => LockRange::ALL,
            _ => LockRange { start: reader.number(), end: reader.number() },
        };
        let mode = [LockMode::Shared, LockMode::Exclusive][self.reader.below(2)];
        let locks = (0..self.reader.below(3)).map(|_| RangeLock { range: range(&mut self.reader), mode });
        let locks: Vec<_> = locks.chain([RangeLock { range: LockRange::ALL, mode }]).collect();
        let wait = self.reader.below(8) as u64;
        match self.reader.below(8) {
            0 => ShardRequest::CancelLock { inode, wait },
            1 => ShardRequest::TestLock { inode, owner, lock: locks[0] },
            7 => ShardRequest::TakeLocks { inode, held: vec![OwnerLocks { owner, pid: 1, locks }] },
            2 | 3 => {
                ShardRequest::Unlock { inode, owner, ranges: locks.iter().map(|lock| lock.range).take(1).collect() }
            }
            _ => ShardRequest::Lock { inode, owner, pid: 1, locks, wait: self.reader.flag().then_some(wait) },
        }
    }

    fn answer_recall(&mut self) {
        let modes = [LeaseMode::None, LeaseMode::Open, LeaseMode::Shared, LeaseMode::Exclusive];
        let kept = modes[self.reader.below(4)];
        let known = if self.reader.byte() < 230 { self.recalls.pop_front() } else { None };
        let (shard, session, number) = match known {
            Some((shard, session, recall)) => {
                if self.reader.byte() > 200 {
                    self.recalls.push_back((shard, session, recall));
                }
                encodable(&Message::Recall(recall));
                (shard, if self.reader.byte() > 240 { self.session() } else { session }, recall.number)
            }
            None => (self.reader.below(self.shards.len()), self.session(), self.reader.number()),
        };
        self.give(shard, Event::RecallAnswer { session, number, kept });
    }

    fn answer_storage(&mut self) {
        if let Some((shard, session, node)) = self.fences.pop_front() {
            // Confirmed, perhaps twice, or by another storage server; else it stays for the next time.
            let node = if self.reader.byte() < 230 { node } else { NodeId(self.reader.byte().into()) };
            if self.reader.byte() < 30 {
                self.fences.push_back((shard, session, node));
            }
            return self.give(shard, Event::FenceConfirmed { session, node });
        }
        let result = match self.reader.below(6) {
            0 => Err(Error::NoObject),
            1 => Err(Error::Unreachable),
            2 => Ok(StorageAnswer::Done),
            _ => Ok(StorageAnswer::Object { size: self.reader.number(), mtime: self.reader.time() }),
        };
        let (shard, token) = match self.storage.pop_front() {
            Some((shard, token, request)) => {
                encodable(&Message::Storage(request));
                (shard, token)
            }
            None => (self.reader.below(self.shards.len()), self.reader.number()),
        };
        self.give(shard, Event::StorageAnswer { token, result });
    }

    /// A message between the shards: it arrives, arrives and comes again later, is lost, or its node is away.
    fn deliver(&mut self) {
        let fate = self.reader.byte();
        if let Some(reply) = self.peer_replies.pop_front() {
            encodable(&Message::PeerReply(reply.clone()));
            if fate > 200 {
                self.peer_replies.push_back(reply.clone());
            }
            if fate < 230 {
                self.give(usize::from(reply.intent.shard.0), Event::PeerReply(reply));
            }
        } else if let Some(call) = self.peer_calls.pop_front() {
            encodable(&Message::Peer(call.clone()));
            if (180..220).contains(&fate) {
                self.peer_calls.push_back(call.clone());
            }
            if usize::from(call.to.0) >= self.shards.len() {
                // As a node answers for a shard that its map lacks.
                let reply = PeerReply { intent: call.intent, result: Err(Error::WrongShard(call.to)) };
                self.give(usize::from(call.intent.shard.0), Event::PeerReply(reply));
            } else if fate < 220 {
                self.next_token += 1;
                let token = self.next_token;
                self.give(usize::from(call.to.0), Event::PeerCall { token, call });
            } else if fate < 240 {
                let reply = PeerReply { intent: call.intent, result: Err(Error::Unreachable) };
                self.give(usize::from(call.intent.shard.0), Event::PeerReply(reply));
            }
        }
    }
}
