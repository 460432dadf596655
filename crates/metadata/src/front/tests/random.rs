//! Random calls of clients that keep what they are granted, answer recalls late, and get replies late.
//!
//! Checked after each event: what a client believes is what the shard knows (names, attributes), and contents are never
//! believed by two clients when one of them may write. Checked at the end: once all is answered, nobody waits.

use super::harness::*;
use crate::front::Event;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use weft_protocol::message::recall::Recall;
use weft_protocol::message::shard::*;
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::*;

const CLIENTS: usize = 3;

#[derive(Clone, Debug)]
enum Action {
    /// Of a call: by which client, what.
    Call(usize, Operation),
    /// The oldest reply that is on its way to a client arrives.
    Arrive(usize),
    /// A client answers its oldest recall; `true`: it says that it has the file open, when that may be.
    Answer(usize, bool),
    /// The storage server answers its oldest question, or is away.
    Store(bool),
    /// Half a second passes.
    Wait,
    /// So many bytes of the shard are copied to another node.
    Copy(usize),
    /// The shard moves there.
    Move,
}

#[derive(Clone, Debug)]
enum Operation {
    Lookup(usize),
    Stat(usize),
    List,
    Create(usize, bool),
    Mkdir(usize),
    Open(usize, bool, bool),
    Commit(usize, u64),
    Resize(usize, u64),
    Chmod(usize, u16),
    Unlink(usize),
    UnlinkBatch(usize, usize),
    Rmdir(usize),
    Rename(usize, usize),
    Link(usize, usize),
    Release(usize),
    SetXattr(usize, usize),
    RemoveXattr(usize),
    GetXattrs(usize),
}

/// Mode, owner and group.
type Permissions = (u16, u32, u32);

fn permissions(attributes: &Attributes) -> Permissions {
    (attributes.mode, attributes.uid, attributes.gid)
}

#[derive(Default)]
struct Client {
    attributes: BTreeMap<InodeNumber, Attributes>,
    permissions: BTreeMap<InodeNumber, Permissions>,
    /// Believed as long as the attributes are.
    xattrs: BTreeMap<InodeNumber, Vec<Xattr>>,
    /// Names that are known: `None`, not there.
    names: BTreeMap<String, Option<InodeNumber>>,
    listing: Option<Vec<String>>,
    data: BTreeMap<InodeNumber, LeaseMode>,
    /// Stamp of the latest recall of a key, and of the latest grant.
    recalled: BTreeMap<LeaseKey, u64>,
    granted: BTreeMap<LeaseKey, u64>,
    recalls: VecDeque<Recall>,
    replies: VecDeque<(ShardRequest, ShardReply)>,
    /// Requests without a reply, by token.
    asked: BTreeMap<u64, ShardRequest>,
    writes: bool,
}

fn text(number: usize) -> &'static str {
    ["a", "b", "c", "d"][number % 4]
}

struct Play {
    world: World,
    clients: Vec<Client>,
    storage: VecDeque<(u64, StorageRequest)>,
}

fn session(client: usize) -> SessionId {
    SessionId(client as u64 + 1)
}

impl Play {
    fn new() -> Self {
        let clients = (0..CLIENTS).map(|_| Client::default()).collect();
        Self { world: World::new(), clients, storage: VecDeque::new() }
    }

    /// The inode that a name has by now; a number that was never given out when it has none.
    fn inode(&self, name_number: usize) -> InodeNumber {
        let dentry = self.world.shard.back().dentry(ROOT, &name(text(name_number)));
        dentry.map_or(InodeNumber::from_raw(2), |dentry| dentry.inode)
    }

    fn request(&self, client: usize, operation: &Operation) -> ShardRequest {
        let place = |number: usize| (ROOT, name(text(number)));
        match operation {
            Operation::Lookup(number) => lookup(text(*number)),
            Operation::Stat(number) => stat(self.inode(*number)),
            Operation::List => list(ROOT, None, 100),
            Operation::Create(number, exclusive) => {
                let (parent, name) = place(*number);
                let create = Some(CreateFile { mode: 0o644, exclusive: *exclusive, plan: None });
                ShardRequest::OpenAt { parent, name, flags: flags(Access::ReadWrite), create, objects: None }
            }
            Operation::Mkdir(number) => mkdir(ROOT, text(*number)),
            Operation::Open(number, writes, direct) => {
                let access = if *writes { Access::ReadWrite } else { Access::Read };
                let flags =
                    OpenFlags { access, truncate: false, direct: *direct, page_cache: PageCache::None, group: None };
                ShardRequest::Open { inode: self.inode(*number), flags }
            }
            Operation::Commit(number, size) => commit(self.inode(*number), 100 + client as u64, *size),
            Operation::Resize(number, size) => resize(self.inode(*number), *size),
            Operation::Chmod(number, mode) => chmod(self.inode(*number), *mode),
            Operation::Unlink(number) => unlink(text(*number)),
            Operation::UnlinkBatch(one, other) => unlink_batch(&[text(*one), text(*other)]),
            Operation::Rmdir(number) => rmdir(ROOT, text(*number)),
            Operation::Rename(from, to) => rename(text(*from), text(*to)),
            Operation::Link(from, to) => {
                let (parent, name) = place(*to);
                ShardRequest::Link { inode: self.inode(*from), parent, name }
            }
            Operation::SetXattr(number, bytes) => set_xattr(self.inode(*number), "user.a", &vec![1; *bytes]),
            Operation::RemoveXattr(number) => remove_xattr(self.inode(*number), "user.a"),
            Operation::GetXattrs(number) => ShardRequest::GetXattrs { inode: self.inode(*number) },
            Operation::Release(number) => {
                let key = LeaseKey::Data(self.inode(*number));
                let stamp = self.clients[client].granted.get(&key).copied().unwrap_or(0);
                ShardRequest::Release { leases: vec![(key, stamp)] }
            }
        }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Call(client, operation) => self.call(*client, operation),
            Action::Arrive(client) => self.arrive(*client),
            Action::Answer(client, open) => self.answer(*client, *open),
            Action::Store(there) => self.store(*there),
            Action::Wait => {
                let alive: Vec<_> = (0..CLIENTS).map(session).collect();
                self.world.pass(500, &alive);
            }
            Action::Copy(bytes) => self.world.copy_some(*bytes),
            Action::Move => {
                for token in self.world.move_shard() {
                    self.call_again(token);
                }
            }
        }
        self.sort_out();
        self.check();
    }

    /// A client that was sent away makes its call again.
    fn call_again(&mut self, token: u64) {
        let (origin, credentials) = self.world.callers[&token].clone();
        for client in 0..CLIENTS {
            if let Some(request) = self.clients[client].asked.remove(&token) {
                let again = self.world.call_of(origin, credentials.clone(), request.clone());
                self.clients[client].asked.insert(again, request);
            }
        }
    }

    fn call(&mut self, client: usize, operation: &Operation) {
        // One call at a time: what a client does to itself by several is its own matter.
        if !self.clients[client].asked.is_empty() || !self.clients[client].replies.is_empty() {
            return;
        }
        let request = self.request(client, operation);
        if let ShardRequest::Release { leases } = &request {
            let (LeaseKey::Data(inode), _) = leases[0] else { panic!("a lease on contents") };
            self.clients[client].data.remove(&inode);
        }
        self.clients[client].writes = !request.is_read();
        let token = self.world.call(session(client), request.clone());
        self.clients[client].asked.insert(token, request);
    }

    /// Gives what the shard said to whom it concerns. Recalls reach a client at once, but it acts on them later.
    fn sort_out(&mut self) {
        for token in std::mem::take(&mut self.world.reply_order) {
            let reply = self.world.replies.remove(&token).expect("a reply that came");
            for client in &mut self.clients {
                if let Some(request) = client.asked.remove(&token) {
                    client.replies.push_back((request, reply.clone()));
                }
            }
        }
        for (to, recall) in std::mem::take(&mut self.world.recalls) {
            let client = &mut self.clients[usize::try_from(to.0 - 1).expect("a client")];
            if !client.recalls.iter().any(|other| other.number == recall.number) {
                client.recalls.push_back(recall);
            }
        }
        for (token, _, request) in std::mem::take(&mut self.world.storage) {
            if let Some(token) = token {
                self.storage.push_back((token, request));
            }
        }
    }

    fn answer(&mut self, number: usize, open: bool) {
        let client = &mut self.clients[number];
        let Some(recall) = client.recalls.pop_front() else { return };
        client.recalled.insert(recall.key, recall.stamp);
        let mut kept = LeaseMode::None;
        match recall.key {
            LeaseKey::Attributes(inode) => {
                client.attributes.remove(&inode);
                client.xattrs.remove(&inode);
                if open {
                    // A kernel above may open it by its number.
                    kept = LeaseMode::Open;
                }
            }
            // Nobody waits for the answer; the client gives the number back with a release.
            LeaseKey::Inode(_) => {}
            LeaseKey::Entry(_, hash) => client.names.retain(|text, _| name(text).hash64() != hash),
            LeaseKey::Directory(_) => client.listing = None,
            LeaseKey::Names(_) => panic!("a file system of one shard spreads no directory"),
            LeaseKey::Ranges(_) => panic!("no file here is split"),
            LeaseKey::Permissions(inode) => drop(client.permissions.remove(&inode)),
            LeaseKey::Data(inode) => {
                // A call that may open it is on its way, or it is open.
                let opening = !client.asked.is_empty() || !client.replies.is_empty();
                if opening || open && client.data.contains_key(&inode) {
                    kept = LeaseMode::Open;
                    client.data.entry(inode).and_modify(|mode| *mode = LeaseMode::Open);
                } else {
                    client.data.remove(&inode);
                }
            }
        }
        self.world.event(Event::RecallAnswer { session: session(number), number: recall.number, kept });
    }

    fn store(&mut self, there: bool) {
        if let Some((token, _)) = self.storage.pop_front() {
            let object = StorageAnswer::Object { size: 50, mtime: Timestamp(5) };
            let result = if there { Ok(object) } else { Err(Error::Unreachable) };
            self.world.event(Event::StorageAnswer { token, result });
        }
    }

    fn arrive(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let Some((request, reply)) = client.replies.pop_front() else { return };
        // What it changed itself it knows anew, from the reply only.
        if client.writes {
            client.attributes.clear();
            client.xattrs.clear();
            client.permissions.clear();
            client.names.clear();
            client.listing = None;
        }
        let Ok(answer) = reply.result else { return };
        let granted = grants_or_none(&answer);
        let believes = |client: &Client, key: LeaseKey| client.recalled.get(&key).is_none_or(|at| *at < reply.stamp);
        let named = match &request {
            ShardRequest::Lookup { name, .. }
            | ShardRequest::OpenAt { name, .. }
            | ShardRequest::MakeDirectory { name, .. }
            | ShardRequest::Link { name, .. } => Some(name.clone()),
            _ => None,
        };
        let known = match &answer {
            ShardAnswer::Entry { attributes, .. } | ShardAnswer::Opened { attributes, .. } => Some(attributes.clone()),
            _ => None,
        };
        if let Some(name) = named
            && granted.contains(Grants::ENTRY)
            && believes(client, LeaseKey::Entry(ROOT, name.hash64()))
        {
            client.names.insert(name.to_string(), known.as_ref().map(|attributes| attributes.inode));
        }
        if let Some(attributes) = known {
            let inode = attributes.inode;
            if granted.contains(Grants::PERMISSIONS) && believes(client, LeaseKey::Permissions(inode)) {
                client.permissions.insert(inode, permissions(&attributes));
            }
            if granted.contains(Grants::ATTRIBUTES) && believes(client, LeaseKey::Attributes(inode)) {
                client.attributes.insert(inode, attributes);
            }
            if granted.contains(Grants::OPEN) {
                let key = LeaseKey::Data(inode);
                client.granted.insert(key, reply.stamp);
                let mode = match granted {
                    _ if !believes(client, key) => LeaseMode::Open,
                    granted if granted.contains(Grants::DATA_EXCLUSIVE) => LeaseMode::Exclusive,
                    granted if granted.contains(Grants::DATA_SHARED) => LeaseMode::Shared,
                    _ => LeaseMode::Open,
                };
                client.data.insert(inode, mode);
            }
        }
        if let ShardAnswer::Xattrs { xattrs, attributes: Some(attributes), grants } = &answer
            && grants.contains(Grants::ATTRIBUTES)
            && believes(client, LeaseKey::Attributes(attributes.inode))
        {
            client.attributes.insert(attributes.inode, attributes.clone());
            client.xattrs.insert(attributes.inode, xattrs.clone());
        }
        if let ShardAnswer::Page(page) = &answer {
            if page.grants.contains(Grants::DIRECTORY) && believes(client, LeaseKey::Directory(ROOT)) {
                client.listing = Some(page.entries.iter().map(|entry| entry.name.to_string()).collect());
            }
            for entry in page.entries.iter().filter(|_| page.grants.contains(Grants::ENTRY)) {
                if believes(client, LeaseKey::Entry(ROOT, entry.name.hash64())) {
                    client.names.insert(entry.name.to_string(), Some(entry.inode));
                }
            }
            for attributes in page.entries.iter().filter_map(|entry| entry.attributes.clone()) {
                if believes(client, LeaseKey::Attributes(attributes.inode)) {
                    client.attributes.insert(attributes.inode, attributes);
                }
            }
        }
    }

    fn check(&self) {
        let back = self.world.shard.back();
        for (number, client) in self.clients.iter().enumerate() {
            let modes = self.clients.iter().enumerate().filter(|(other, _)| *other != number);
            for (inode, mode) in &client.data {
                for (_, other) in modes.clone() {
                    let theirs = other.data.get(inode).copied().unwrap_or(LeaseMode::None);
                    let clash = *mode == LeaseMode::Exclusive && theirs > LeaseMode::Open;
                    assert!(!clash, "client {number} has {inode} alone, and another one {theirs:?}");
                }
            }
            // Its own change may be carried out and not known to it yet.
            if client.writes && (!client.asked.is_empty() || !client.replies.is_empty()) {
                continue;
            }
            for (text, known) in &client.names {
                let found = back.dentry(ROOT, &name(text)).map(|dentry| dentry.inode);
                assert_eq!(found, *known, "client {number} knows the name {text}");
            }
            for (inode, known) in &client.attributes {
                let found = back.inode(*inode).map(|record| record.attributes(*inode));
                if let Some(found) = found {
                    assert_eq!(found, *known, "client {number} knows the attributes of {inode}");
                }
                for (_, other) in modes.clone() {
                    let alone = other.data.get(inode) == Some(&LeaseMode::Exclusive);
                    assert!(!alone, "client {number} knows the attributes of {inode}, which another one has alone");
                }
            }
            for (inode, known) in &client.xattrs {
                let found = back.xattrs(&user(0), *inode);
                assert!(found.is_err() || found == Ok(known.clone()), "client {number} knows what {inode} has");
            }
            for (inode, known) in &client.permissions {
                let found = back.inode(*inode).map(|record| permissions(&record.attributes(*inode)));
                assert!(found.is_none_or(|found| found == *known), "client {number} knows the permissions of {inode}");
            }
            if let Some(listing) = &client.listing {
                let names = back.list(&user(0), ROOT, Cookie::START, 100).expect("the root").entries;
                let names: Vec<_> = names.iter().map(|listed| listed.name.to_string()).collect();
                assert_eq!(names, *listing, "client {number} knows all names");
            }
        }
    }

    /// All that is open is answered: then nobody may wait.
    fn finish(&mut self) {
        for round in 0.. {
            let open = !self.storage.is_empty() || self.clients.iter().any(|client| !client.recalls.is_empty());
            if !open {
                break;
            }
            assert!(round < 1000, "recalls and questions without an end");
            for client in 0..CLIENTS {
                self.act(&Action::Answer(client, true));
                self.act(&Action::Arrive(client));
            }
            self.act(&Action::Store(true));
        }
        for client in 0..CLIENTS {
            self.act(&Action::Arrive(client));
            assert!(self.clients[client].asked.is_empty(), "{:?}", self.world.shard.stuck());
            self.world.call(session(client), ShardRequest::EndSession);
        }
        let status = self.world.shard.status();
        assert_eq!((status.parked, status.recalls, status.leases, status.sessions), (0, 0, 0, 0));
        assert_eq!(self.world.shard.back().orphans(), []);
    }
}

fn grants_or_none(answer: &ShardAnswer) -> Grants {
    super::harness::grants(answer)
}

fn action() -> impl Strategy<Value = Action> {
    let number = || 0usize..3;
    let operation = prop_oneof![
        3 => number().prop_map(Operation::Lookup),
        3 => number().prop_map(Operation::Stat),
        2 => Just(Operation::List),
        4 => (number(), any::<bool>()).prop_map(|(number, exclusive)| Operation::Create(number, exclusive)),
        1 => number().prop_map(Operation::Mkdir),
        5 => (number(), any::<bool>(), any::<bool>())
            .prop_map(|(number, writes, direct)| Operation::Open(number, writes, direct)),
        4 => (number(), 1u64..200).prop_map(|(number, size)| Operation::Commit(number, size)),
        3 => (number(), prop::sample::select(vec![0u64, 10, 300])).prop_map(|(n, size)| Operation::Resize(n, size)),
        2 => (number(), prop::sample::select(vec![0o600u16, 0o644])).prop_map(|(n, mode)| Operation::Chmod(n, mode)),
        2 => number().prop_map(Operation::Unlink),
        1 => (number(), number()).prop_map(|(one, other)| Operation::UnlinkBatch(one, other)),
        1 => number().prop_map(Operation::Rmdir),
        2 => (number(), number()).prop_map(|(from, to)| Operation::Rename(from, to)),
        1 => (number(), number()).prop_map(|(from, to)| Operation::Link(from, to)),
        2 => number().prop_map(Operation::Release),
        2 => (number(), 0usize..3).prop_map(|(number, bytes)| Operation::SetXattr(number, bytes)),
        1 => number().prop_map(Operation::RemoveXattr),
        3 => number().prop_map(Operation::GetXattrs),
    ];
    prop_oneof![
        6 => (0..CLIENTS, operation).prop_map(|(client, operation)| Action::Call(client, operation)),
        6 => (0..CLIENTS).prop_map(Action::Arrive),
        4 => (0..CLIENTS, any::<bool>()).prop_map(|(client, open)| Action::Answer(client, open)),
        2 => prop::bool::weighted(0.9).prop_map(Action::Store),
        1 => Just(Action::Wait),
    ]
}

fn action_or_move() -> impl Strategy<Value = Action> {
    prop_oneof![10 => action(), 3 => (0usize..500).prop_map(Action::Copy), 1 => Just(Action::Move)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn what_clients_believe_is_true(actions in prop::collection::vec(action(), 1..250)) {
        let mut play = Play::new();
        for action in &actions {
            play.act(action);
        }
        play.finish();
    }

    #[test]
    fn a_shard_that_moves_does_what_it_would_have_done(actions in prop::collection::vec(action_or_move(), 1..250)) {
        let mut play = Play { world: World::with_twin(), ..Play::new() };
        for action in &actions {
            play.act(action);
        }
        play.finish();
    }
}
