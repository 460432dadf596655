//! Shards and storage servers: their machines, and what is asked of them.

use super::groups::Joined;
use super::partitions::Party;
use super::parts::is_of_pattern;
use super::{Answer, Message, Pending, Renewal, World};
use crate::bytes::ProcessId;
use crate::check::{changed, check};
use crate::network::USUAL_MS;
use crate::process::Ticket;
use crate::xattrs;
use std::fmt;
use weft_metadata::back::{Origin, Slot};
use weft_metadata::{Effect, Event, Shard};
use weft_protocol::capability::seconds_of;
use weft_protocol::error::errno;
use weft_protocol::map::FIRST_EPOCH;
use weft_protocol::message::Message as WireMessage;
use weft_protocol::message::peer::{PeerCall, PeerReply, PeerStep};
use weft_protocol::message::shard::{ShardAnswer, ShardCall, ShardReply, ShardRequest};
use weft_protocol::message::storage::{Space, StorageAnswer, StorageRequest};
use weft_protocol::{
    Capability, Credentials, Error, InodeNumber, NodeId, ObjectId, Result, SessionId, ShardId, routing,
};
use weft_storage::{CollectorEffect, LAST_LOOK_MS};

/// Identifiers that a client gets at once.
const BATCH_COUNT: u32 = 3;
/// Longest way of a message between servers, milliseconds.
const DELAY_MS_MAX: u64 = 20;
/// How often a shard's request is sent again that has to wait for a fence, milliseconds.
const RETRY_MS: u64 = 250;

impl Pending {
    fn origin(&self) -> Origin {
        let ShardCall { slots_of: of, slot: index, sequence, .. } = *self.call;
        Origin { session: self.session, slot: Slot { of, index }, sequence }
    }
}

impl World {
    pub(super) fn step(&mut self, shard: ShardId, event: Event) {
        let (now, clock) = (self.now_of(shard), self.clocks[&self.node_of(shard)]);
        let Some(machine) = self.shards.get_mut(&shard) else { return };
        let mut effects = Vec::new();
        machine.step(now, event, &mut effects);
        if let Some(deadline) = machine.deadline() {
            let wait_ms = clock.wait_ms(deadline.saturating_sub(now.boot_ms).max(1));
            self.network.after(wait_ms, Message::Tick(shard));
        }
        self.carry_out_all(shard, effects);
    }

    pub(super) fn carry_out_all(&mut self, shard: ShardId, effects: Vec<Effect>) {
        for effect in effects {
            self.carry_out(shard, effect);
        }
    }

    /// An event comes to a node. It is lost if the shard is not there.
    pub(super) fn step_at(&mut self, node: NodeId, shard: ShardId, event: Event) {
        if self.moves.node_of(shard) == Some(node) {
            self.step(shard, event);
        }
    }

    pub(super) fn tick(&mut self, shard: ShardId) {
        let due = self.shards.get(&shard).and_then(Shard::deadline);
        if due.is_some_and(|deadline| deadline <= self.now_of(shard).boot_ms) {
            self.step(shard, Event::Tick);
        }
    }

    fn carry_out(&mut self, shard: ShardId, effect: Effect) {
        match effect {
            Effect::Reply { token, reply } => {
                let Some(pending) = self.tokens.remove(&token) else {
                    // Its connection is gone.
                    self.superseded.remove(&token);
                    return;
                };
                self.answered(&pending, &reply);
                let Pending { client, process, number, .. } = pending;
                if pending.node != self.node_of(shard) {
                    // The target does not know the caller, whom the source has not sent away yet.
                    if !pending.is_away {
                        self.moves.keep_caller(pending.node, shard, (client, process, number));
                    }
                    return;
                }
                let answer = Answer::Reply(Box::new(WireMessage::ShardReply(reply)));
                let (from, to) = (Party::Node(pending.node), Party::Client(client));
                if !self.send(from, to, Message::ToClient { client, process, number, answer }) {
                    self.break_connection((client, process, number));
                }
            }
            Effect::Recall { session, recall } => {
                self.tally.recalls += 1;
                if let Some(to) = self.party_of(session) {
                    self.send(Party::Node(self.node_of(shard)), to, Message::Recall { session, recall });
                }
            }
            Effect::LockGranted { session, granted } => {
                if let Some(to) = self.party_of(session) {
                    self.send(Party::Node(self.node_of(shard)), to, Message::LockGranted { session, granted });
                }
            }
            Effect::PeerCall(call) => {
                self.tally.intents += 1;
                self.decided(shard, &call);
                let from = self.node_of(shard);
                let node = self.joins.map_of(from).node_of(call.to).unwrap_or_else(|| self.node_of(call.to));
                if self.is_peer_cut(from, node) {
                    return self.peer_unreachable(call.intent);
                }
                self.send_between(from, node, Message::Peer { from, node, call });
            }
            Effect::PeerReply { reply, .. } => {
                if self.is_all_cut(self.node_of(shard), self.node_of(reply.intent.shard)) {
                    return self.peer_unreachable(reply.intent);
                }
                let (from, node) = (self.node_of(shard), self.node_of(reply.intent.shard));
                self.send_between(from, node, Message::PeerReply { node, reply });
            }
            Effect::Storage { token, node, request } => {
                if let StorageRequest::Remove { objects } = &request {
                    self.to_remove.extend(objects.iter().map(|(_, object)| (shard, *object)));
                }
                // The shell answers each of these, be it "unreachable": it is not lost, only late.
                if self.is_all_cut(self.node_of(shard), node) {
                    return self.storage_unreachable(shard, token);
                }
                if let StorageRequest::Truncate { inode, object, size, .. } = &request {
                    self.cut_asked(*inode, *object, *size);
                }
                let delay = self.server_delay(format_args!("Storage {shard}>node{node}"));
                self.network.after(delay, Message::Storage { shard, token, node, request });
            }
            Effect::EndSession { session, fences } => {
                self.tally.fenced += 1;
                self.clients.iter().for_each(|client| client.process.fenced(client.session(), session, shard));
                self.session_lost(session);
                self.group_ends(shard, session);
                self.note(&format!("shard {shard} has ended session {session}"));
                self.fence_everywhere(shard, session, fences);
            }
        }
    }

    /// Sends between shards.
    fn send_between(&mut self, from: NodeId, to: NodeId, message: Message) {
        let what = message.kind();
        self.network.send(&mut self.choices, format_args!("{what} node{from}>node{to}"), message);
    }

    pub(super) fn server_delay(&mut self, what: fmt::Arguments<'_>) -> u64 {
        self.choices.decide(what, USUAL_MS, |random| 1 + random.below(DELAY_MS_MAX))
    }

    /// A node is told that a session lives, and tells its shards.
    pub(super) fn renewal_arrived(&mut self, (client, process): (usize, ProcessId), renewal: Renewal, joined: &Joined) {
        if !self.storage.contains_key(&renewal.node) {
            return;
        }
        let (session, map) = (renewal.session, self.joins.map_of(renewal.node));
        let epoch = map.epoch;
        let is_served = |shard: &ShardId| {
            let machine = self.shards.get(shard).filter(|machine| !machine.is_frozen());
            machine.is_some() && self.moves.node_of(*shard) == Some(renewal.node)
        };
        let shards: Vec<_> = map.shards_at(renewal.node).filter(is_served).collect();
        for shard in &shards {
            let groups = joined.iter().filter(|(at, _)| at == shard).map(|(_, group)| *group).collect();
            self.members_left(*shard, session, joined);
            self.step(*shard, Event::Heard { session, groups });
            self.members_heard(*shard, session, joined);
        }
        let now_ms = self.now_at(renewal.node).boot_ms;
        let is_overdue =
            self.storage.get(&renewal.node).is_some_and(|storage| storage.ranges.is_overdue(session, now_ms));
        let refused =
            is_overdue || shards.iter().filter_map(|shard| self.shards.get(shard)).any(|shard| shard.refuses(session));
        let from = Party::Node(renewal.node);
        self.send(from, Party::Client(client), Message::Renewed { client, process, renewal, refused, epoch, shards });
    }

    /// A shard has decided that an operation over several shards is carried out: from now on nobody is told anything
    /// else, and its caller may be gone.
    fn decided(&mut self, shard: ShardId, call: &PeerCall) {
        if self.mounts.is_none()
            && call.step == PeerStep::Forget
            && let Some(back) = self.shards.get(&shard).map(Shard::back)
            && let Some(parts) = back.spread_into(call.intent)
        {
            self.model.spread(&parts);
        }
        let PeerStep::Carry { .. } = call.step else { return };
        let decision = self.shards.get(&shard).and_then(|shard| shard.back().decision(call.intent));
        let Some((origin, request, answer)) = decision else { return };
        let session = origin.session;
        if self.mounts.is_some() || self.applied.contains_key(&(shard, origin)) {
            return;
        }
        self.applied.insert((shard, origin), Ok(answer.clone()));
        if let Err(what) = check(&mut self.model, request, &Ok(answer.clone()), self.network.now_ms) {
            self.fail(&format!("{request:?} of session {session}: {what}"));
        }
    }

    /// A shard gives an answer: this is the moment at which it has to be true.
    fn answered(&mut self, pending: &Pending, reply: &ShardReply) {
        let Pending { session, call, since_ms, .. } = pending;
        let is_through_mount = self.mounts.is_some();
        if is_through_mount && !xattrs::is_about(&call.request) {
            // Held against POSIX as a whole, above the client.
            return;
        }
        if matches!(
            reply.result,
            Err(Error::SessionEnded | Error::Busy | Error::PagesCached | Error::WrongShard(_) | Error::StaleMap(_))
        ) {
            return;
        }
        if !is_through_mount {
            self.check_doubt((call.shard, *since_ms), &reply.result);
        }
        // One that did not reach the other shard is carried out when it is sent again.
        if !call.request.is_read() && reply.result != Err(Error::Unreachable) {
            let is_known = self.applied.insert((call.shard, pending.origin()), reply.result.clone()).is_some();
            if is_known || self.was_made_before(call, reply) {
                return;
            }
        }
        let target = call.request.target();
        if is_through_mount || target.is_none_or(|inode| self.model.knows(inode)) {
            let answered = self.xattrs.borrow_mut().answered(&call.request, &reply.result);
            if let Err(what) = answered {
                self.fail(&format!("{:?} of session {session}: {what}", call.request));
            }
        }
        if is_through_mount {
            return;
        }
        let cut = match (&call.request, &reply.result) {
            (ShardRequest::OpenAt { flags, .. }, Ok(ShardAnswer::Opened { attributes, .. })) => {
                flags.truncate.then_some((attributes.inode, 0))
            }
            (ShardRequest::Open { inode, flags }, Ok(_)) => flags.truncate.then_some((*inode, 0)),
            (ShardRequest::SetAttributes { inode, changes }, Ok(_)) => changes.size.map(|size| (*inode, size)),
            _ => None,
        };
        if let Some((inode, size)) = cut {
            self.files.borrow_mut().cut_done(pending.process, inode, size);
        }
        if let (ShardRequest::Relocate { inode, objects, .. }, Ok(_)) = (&call.request, &reply.result)
            && objects.iter().any(|object| self.is_lost_with(object.node()))
        {
            // The node is gone to which its bytes were copied.
            self.files.borrow_mut().forget(*inode);
        }
        let given_objects = match (&call.request, &reply.result) {
            (ShardRequest::Commit { inode, object: Some(_), .. }, Ok(_)) => Some(*inode),
            (_, Ok(ShardAnswer::Opened { attributes, created: true, .. })) => {
                let objects = attributes.layout.objects().len();
                self.tally.made_for_groups += u64::from(objects > 0);
                self.tally.striped_for_groups += u64::from(objects > 1);
                Some(attributes.inode)
            }
            _ => None,
        };
        if let Some(inode) = given_objects
            && self.objects_of(inode).iter().any(|object| self.is_lost_with(object.node()))
        {
            // An export has made its objects before the node was gone, and nothing was done to the file.
            self.files.borrow_mut().forget(inode);
        }
        if let (ShardRequest::Publish { inode, parts, .. }, Ok(_)) = (&call.request, &reply.result) {
            parts.iter().for_each(|part| self.published(*inode, part.object));
        }
        if let (ShardRequest::GetParts { strided, .. }, Ok(answer)) = (&call.request, &reply.result) {
            self.tally.of_patterns += u64::from(is_of_pattern(strided, answer));
        }
        let first_ms = self.first_received_ms(call.shard, pending);
        if let Err(what) = check(&mut self.model, &call.request, &reply.result, first_ms) {
            self.fail(&format!("{:?} of session {session}: {what}", call.request));
        }
    }

    /// When the shard has received the call first, in this session or in one that has ended.
    fn first_received_ms(&self, shard: ShardId, pending: &Pending) -> u64 {
        let origins = pending.call.repeats.iter().copied().chain([pending.origin()]);
        let received = origins.filter_map(|origin| self.received.get(&(shard, origin)).copied());
        received.min().expect("a call that is answered was received")
    }

    /// Whether a session that has ended has made this change, which is in the model then. It must not be made again.
    fn was_made_before(&mut self, call: &ShardCall, reply: &ShardReply) -> bool {
        let made_by = |of: &Origin| self.applied.get(&(call.shard, *of))?.as_ref().ok();
        // An open that has changed nothing was made as if it were the first, each time.
        let with_change = |earlier| Some((earlier, changed(&call.request, earlier)?));
        let Some((earlier, made)) = call.repeats.iter().filter_map(made_by).find_map(with_change) else { return false };
        let opens = matches!(call.request, ShardRequest::OpenAt { .. } | ShardRequest::Open { .. });
        let told = reply.result.as_ref().ok().and_then(|answer| changed(&call.request, answer));
        let is_here = |inode| self.shards.get(&call.shard).is_some_and(|shard| shard.back().inode(inode).is_some());
        let is_same = told.as_ref() == Some(&made);
        if !is_same && opens && !made.iter().copied().any(is_here) {
            // What it has opened is gone: the name counts, unless it was cut, and there is no name.
            let cuts = matches!(
                call.request,
                ShardRequest::OpenAt { flags, .. } | ShardRequest::Open { flags, .. } if flags.truncate
            );
            return cuts && reply.result == Err(Error::Device(errno::EIO));
        }
        self.tally.repeated += 1;
        if !is_same {
            let what = format!("{:?} was made before and told {earlier:?}, and tells {reply:?} now", call.request);
            self.fail(&what);
        }
        true
    }

    pub(super) fn call_arrived(&mut self, pending: Pending) {
        let Pending { client, process, number, node, call, .. } = &pending;
        let (caller, node, shard) = ((*client, *process, *number), *node, call.shard);
        if !self.storage.contains_key(&node) || self.model.lost.contains(&shard) {
            return self.break_connection(caller);
        }
        // A connection keeps its order: what was sent in a slot before comes before, or not at all.
        let origin = pending.origin();
        let latest = self.latest_in_slot.get(&(origin.session, origin.slot)).copied();
        if latest.is_some_and(|latest| latest > *number) {
            return;
        }
        if latest == Some(*number) {
            self.doubled.insert(origin.session);
        }
        self.latest_in_slot.insert((origin.session, origin.slot), *number);
        let Some(pending) = self.admitted(pending) else { return };
        if self.moves.node_of(shard) != Some(node) {
            // A source that has not heard what has become of its shard keeps it frozen.
            let is_frozen = self.moves.is_frozen(node, shard);
            return self.refuse_call(caller, if is_frozen { Error::Busy } else { Error::WrongShard(shard) });
        }
        let Pending { session, call, .. } = &pending;
        let session = *session;
        let identity = (shard, pending.origin());
        self.tally.resent += u64::from(self.received.contains_key(&identity));
        self.received.entry(identity).or_insert(self.network.now_ms);
        let token = self.next_token;
        self.next_token += 1;
        let event = Event::Call {
            token,
            origin: pending.origin(),
            credentials: Credentials::default(),
            request: call.request.clone(),
            repeats: call.repeats.clone(),
        };
        // A call that is sent again brings a new token; the shard answers by the newest, unless it refuses the
        // session now, or all calls while it is frozen: what it carries through afterwards it answers by the one that
        // it has.
        if !self.shards.get(&shard).is_some_and(|shard| shard.refuses(session) || shard.is_frozen()) {
            let is_same = |other: &Pending| (other.call.shard, other.origin()) == identity;
            let earlier: Vec<_> = self.tokens.extract_if(.., |_, other| is_same(other)).collect();
            let is_there = |other: &Pending| !other.is_away && other.node == node && !other.call.request.is_read();
            self.superseded = earlier.iter().filter(|(_, other)| is_there(other)).map(|(token, _)| *token).collect();
        }
        self.tokens.insert(token, pending);
        self.step(shard, event);
        if !self.superseded.is_empty() {
            self.fail(&format!("tokens {:?} of a change that was sent again have not ended", self.superseded));
        }
    }

    pub(super) fn peer_asked(&mut self, from: NodeId, node: NodeId, call: PeerCall) {
        if !self.storage.contains_key(&node) || !self.shards.contains_key(&call.to) {
            if self.mounts.is_some() {
                self.model.split_ms = Some(self.network.now_ms);
            }
            let reply = PeerReply { intent: call.intent, result: Err(Error::Unreachable) };
            self.step_at(from, call.intent.shard, Event::PeerReply(reply));
        } else if self.moves.node_of(call.to) == Some(node) {
            self.step(call.to, Event::PeerCall { token: 0, call });
        } else {
            let reply = PeerReply { intent: call.intent, result: Err(Error::Busy) };
            self.send_between(node, from, Message::PeerReply { node: from, reply });
        }
    }

    pub(super) fn storage_asked(&mut self, shard: ShardId, token: Option<u64>, node: NodeId, request: &StorageRequest) {
        if !self.settle_overdue(shard, node) {
            let request = request.clone();
            return self.network.after(RETRY_MS, Message::Storage { shard, token, node, request });
        }
        if !self.begin_cut(shard, token, node, request) {
            self.perform(shard, token, node, request);
        }
    }

    pub(super) fn perform(&mut self, shard: ShardId, token: Option<u64>, node: NodeId, request: &StorageRequest) {
        let now = self.now_at(node);
        if let StorageRequest::Make { object, .. } = request
            && let Some(storage) = self.storage.get(&node)
        {
            self.tally.objects_to_come += u64::from(storage.bytes(*object).is_none());
        }
        if let StorageRequest::Truncate { inode, size, .. } = request
            && !self.is_striped(*inode)
        {
            self.files.borrow_mut().cut_seen(*inode, *size);
        }
        let result = match self.storage.get_mut(&node) {
            None => Err(Error::Unreachable),
            Some(storage) => storage.perform(request, now),
        };
        if let StorageRequest::Remove { objects } = request {
            objects.iter().for_each(|(_, object)| _ = self.to_remove.remove(&(shard, *object)));
        }
        if self.is_all_cut(node, self.node_of(shard)) {
            return self.storage_unreachable(shard, token);
        }
        self.tell_shard(shard, token, result);
    }

    /// Whether sizes of the file's objects are not its own.
    fn is_striped(&self, inode: InodeNumber) -> bool {
        let record = self.shards.get(&routing::of_inode(inode)).and_then(|shard| shard.back().inode(inode));
        record.is_some_and(|record| record.layout.stripes().is_some())
    }

    /// A shard has an object cut. Those of a striped file are cut to nothing if the first one is, which begins then.
    fn cut_asked(&mut self, inode: InodeNumber, object: ObjectId, size: u64) {
        let record = self.shards.get(&routing::of_inode(inode)).and_then(|shard| shard.back().inode(inode));
        let is_first = record.is_some_and(|record| record.layout.object() == Some(object));
        let is_striped = self.is_striped(inode);
        if is_first || !is_striped {
            self.model.cut_asked(inode, self.network.now_ms);
        }
        if is_first && is_striped && size == 0 {
            self.files.borrow_mut().cut_seen(inode, 0);
        }
    }

    pub(super) fn tell_shard(&mut self, shard: ShardId, token: Option<u64>, result: Result<StorageAnswer>) {
        if let Some(token) = token {
            let delay = self.server_delay(format_args!("StorageAnswer {shard}"));
            self.network.after(delay, Message::StorageAnswer { shard, token, result });
        }
    }

    pub(super) fn lease_objects(&mut self, session: SessionId, node: NodeId) -> Result<Capability> {
        let seconds = seconds_of(self.now_at(node).wall);
        let storage = self.storage.get_mut(&node).ok_or(Error::Unreachable)?;
        storage.collector.lease_objects(session, 0, BATCH_COUNT, &self.key, FIRST_EPOCH, seconds)
    }

    /// A client asks for a node's space. Disks that are full are so for a while, and for writes alone.
    pub(super) fn space_asked(&mut self, to: (usize, ProcessId, Ticket), node: NodeId) {
        let space = self.storage.get(&node).map(|storage| {
            let (free, objects) = (1 << 40, storage.objects().count() as u64);
            Space { total: free, free, reserve: 0, objects, device: 0, device_free: free }
        });
        let reply = |space| Answer::Reply(Box::new(WireMessage::StorageReply(Ok(StorageAnswer::Space(space)))));
        self.answer_client(to, space.map_or(Answer::Broken, reply));
    }

    /// A node other than that of the root shard is gone for good, with its shards and objects.
    pub(super) fn crash_node(&mut self, node: NodeId) {
        self.tally.crashes += 1;
        self.model.store_gone = true;
        self.note(&format!("node {node} is gone"));
        self.stop_storage(node);
        let shards: Vec<_> = self.map.shards_at(node).collect();
        self.lose_shards(&shards);
        self.break_callers(node);
        // A file whose object is not known to its shard yet may have it there too; and one that was exported may have
        // objects before anything was done to it.
        let mut files = self.files.borrow_mut();
        let known = files.known();
        for inode in known.iter().chain(self.model.inodes.keys()).copied() {
            let objects = self.objects_of(inode);
            let is_unknown = objects.is_empty() && known.contains(&inode);
            if is_unknown || objects.iter().any(|object| object.node() == node) {
                files.forget(inode);
            }
        }
    }

    /// A node's storage server ends, and with it its connections.
    pub(super) fn stop_storage(&mut self, node: NodeId) {
        if let Some(storage) = self.storage.remove(&node) {
            self.tally.add_storage(&storage);
        }
        self.forget_held(node);
        self.end_connections(None, Some(node));
    }

    /// A node ends: callers that wait there for answers of shards, also of those that have moved, learn of it.
    pub(super) fn break_callers(&mut self, node: NodeId) {
        let there = self.tokens.values_mut().filter(|pending| pending.node == node && !pending.is_away);
        let mut callers = Vec::new();
        for pending in there {
            pending.is_away = true;
            callers.push((pending.client, pending.process, pending.number));
        }
        callers.extend(self.moves.take_callers(node, None));
        callers.into_iter().for_each(|caller| self.break_connection(caller));
    }

    /// These shards are gone with their node.
    pub(super) fn lose_shards(&mut self, shards: &[ShardId]) {
        for shard in shards {
            self.shards.remove(shard);
            self.model.lost.insert(*shard);
        }
        let lost = &self.model.lost;
        let gone: Vec<_> = self.tokens.extract_if(.., |_, pending| lost.contains(&pending.call.shard)).collect();
        for (_, Pending { client, process, number, .. }) in gone.into_iter().filter(|(_, pending)| !pending.is_away) {
            self.break_connection((client, process, number));
        }
    }

    /// A session is over for the storage servers: its objects without a file are collected by the rule.
    pub(super) fn collect(&mut self, session: SessionId) {
        for node in self.storage.keys().copied().collect::<Vec<_>>() {
            self.session_left(session, node);
        }
    }

    /// A session has had no connection to a node for a term.
    fn session_left(&mut self, session: SessionId, node: NodeId) {
        let now_ms = self.now_at(node).boot_ms;
        let mut effects = Vec::new();
        if let Some(storage) = self.storage.get_mut(&node) {
            storage.collector.session_ended(session, now_ms, &mut effects);
        }
        self.caches_nothing(node, session, None);
        self.carry_out_collection(node, now_ms, effects);
    }

    /// Nothing of the client has come to the node, or the other way, for a term: the node has closed its connections.
    pub(super) fn disconnected(&mut self, client: usize, node: NodeId) {
        if self.is_cut(Party::Client(client), Party::Node(node)) {
            self.note(&format!("client {client} has no connection to node {node} any more"));
            self.session_left(self.clients[client].session(), node);
        }
    }

    pub(super) fn go_on_collecting(&mut self, node: NodeId) {
        self.collect_until(node, self.now_at(node).boot_ms);
    }

    /// When all capabilities have expired, and shards have been asked once more.
    pub(super) fn collect_last(&mut self) {
        for node in self.storage.keys().copied().collect::<Vec<_>>() {
            let last_ms = self.now_at(node).boot_ms + 2 * LAST_LOOK_MS;
            self.collect_until(node, last_ms);
            self.collect_until(node, last_ms + LAST_LOOK_MS);
        }
    }

    fn collect_until(&mut self, node: NodeId, now_ms: u64) {
        let mut effects = Vec::new();
        if let Some(storage) = self.storage.get_mut(&node) {
            storage.collector.due(now_ms, &mut effects);
        }
        self.carry_out_collection(node, now_ms, effects);
    }

    fn carry_out_collection(&mut self, node: NodeId, now_ms: u64, mut effects: Vec<CollectorEffect>) {
        while let Some(effect) = effects.pop() {
            self.collect_one(node, now_ms, effect, &mut effects);
        }
        let deadline = self.storage.get(&node).and_then(|storage| storage.collector.deadline());
        let wait_ms = deadline.map(|deadline| deadline.saturating_sub(self.now_at(node).boot_ms));
        // Rights expire long after the run: `collect_last`.
        if let Some(wait_ms) = wait_ms.filter(|wait_ms| *wait_ms < LAST_LOOK_MS / 2) {
            self.network.after(self.clocks[&node].wait_ms(wait_ms.max(1)), Message::Collect(node));
        }
    }

    fn collect_one(&mut self, node: NodeId, now_ms: u64, effect: CollectorEffect, more: &mut Vec<CollectorEffect>) {
        let asked = match &effect {
            CollectorEffect::AskShard { inode, .. } => Some(self.node_of(routing::of_inode(*inode))),
            CollectorEffect::List(_) | CollectorEffect::Remove { .. } => None,
        };
        let is_split = asked.is_some_and(|asked| self.is_peer_cut(node, asked));
        let Some(storage) = self.storage.get_mut(&node) else { return };
        match effect {
            CollectorEffect::List(run) => {
                let listed: Vec<_> = storage.objects().map(|(object, inode)| (inode, object)).collect();
                storage.collector.listed(&[run], &listed, now_ms, more);
            }
            CollectorEffect::AskShard { session, inode, object } => {
                let shard = self.shards.get(&routing::of_inode(inode)).filter(|shard| !is_split && !shard.is_frozen());
                let known = shard.map_or(Err(Error::Unreachable), |shard| shard.uses_object(session, inode, object));
                storage.collector.shard_says(inode, object, &known, more);
            }
            CollectorEffect::Remove { object, .. } => {
                self.tally.orphans += 1;
                storage.remove(object);
            }
        }
    }
}
