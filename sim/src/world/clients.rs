//! Clients: what they ask for, and what comes in for them.
//!
//! Not here: when they do something, and their faults (`wakes.rs`).

use super::partitions::Party;
use super::wakes::{NAMES, name_of};
use super::{Answer, Message, NODES, Renewal, World};
use crate::bytes::{Moment, ProcessId};
use crate::client::Client;
use crate::group_program::GroupProgram;
use crate::network::USUAL_MS;
use crate::process::{Ask, Drops, Ticket, Told};
use crate::program::NamesOperation;
use crate::random::Random;
use crate::relocations;
use crate::spreads;
use crate::xattrs;
use std::rc::Rc;
use std::sync::Arc;
use weft_client_core::Cached;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::Message as WireMessage;
use weft_protocol::message::recall::{DropPages, LockGrantTaken, LockGranted, Recall};
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::{
    Credentials, InheritedChange, InodeNumber, MapEpoch, Name, NodeId, Plan, SessionId, ShardId, StripePlan,
};

/// A message that was lost broke its connection, which its sender learns after this time.
const BREAK_MS: u64 = 400;
/// After this nothing is in flight of what a client gave up.
const SETTLE_MS: u64 = 300;
/// Stripes have 16 bytes, and up to so many more.
const STRIPE_BYTES_MORE: u64 = 64;
/// Programs of a client that use files by groups, beside others.
const GROUP_PROGRAMS: u64 = 2;
/// How soon a session is renewed that is to be at once, milliseconds.
const RENEW_SOON_MS: u64 = 1;

impl World {
    /// The client is gone; another one starts in its place.
    pub(super) fn crash_client(&mut self, index: usize) {
        self.tally.crashes += 1;
        let old = &self.clients[index];
        let (session, id, home) = (old.session(), old.process.id.get(), old.process.home);
        let old_locks = old.process.locks_files.get();
        self.note(&format!("client {index} dies: process {id}"));
        self.files.borrow_mut().died(id);
        self.settle_later();
        self.network.after(SESSION_TERM_MS + 1000, Message::SessionOver(session));
        let process = self.process(index, home);
        process.locks_files.set(old_locks);
        self.clients[index] = Client::new(process, self.root_map().clone());
        self.start_programs_beside(index);
        self.end_connections(Some(id), None);
        self.note(&format!("client {index} starts: process {}", self.clients[index].process.id.get()));
    }

    /// A program of a client moves the bytes of files, or spreads directories, and two use extended attributes, if the
    /// run is one with such.
    pub(super) fn start_programs_beside(&self, index: usize) {
        let Client { process, machine, .. } = &self.clients[index];
        let numbers = |seed: u64, program: u64| Random::new(seed ^ (process.id.get() << 8) ^ (program << 48));
        if let Some(seed) = self.relocates {
            let program = relocations::Program {
                machine: Arc::clone(machine),
                process: Rc::clone(process),
                random: numbers(seed, 0),
                names: self.names_of_programs(),
                // What runs of striped files through mounts find is not mended.
                stripes: self.mounts.is_none(),
                splits: self.splits,
                counts: self.relocations.clone(),
            };
            process.spawn(program.run());
        }
        if let Some(seed) = self.spreads {
            let program = spreads::Program {
                machine: Arc::clone(machine),
                process: Rc::clone(process),
                random: numbers(seed, 1),
                through_mounts: self.mounts.is_some(),
                spread: Rc::clone(&self.spread),
            };
            process.spawn(program.run());
        }
        for number in 0..if self.uses_groups { GROUP_PROGRAMS } else { 0 } {
            let program = GroupProgram {
                machine: Arc::clone(machine),
                process: Rc::clone(process),
                offers: Rc::clone(&self.offers),
                names: (0..NAMES).map(name_of).collect(),
                number,
            };
            process.spawn(program.run());
        }
        // Native ones learn directories by their numbers.
        let directory = self.mounts.as_ref().map(|_| Name::new(b"d0").expect("a valid name"));
        for (seed, program) in self.uses_xattrs.iter().flat_map(|seed| (0..2).map(move |program| (seed, program))) {
            let program = xattrs::Program {
                machine: Arc::clone(machine),
                process: Rc::clone(process),
                model: Rc::clone(&self.xattrs),
                random: numbers(*seed, program),
                names: self.names_of_programs().into_iter().chain(directory.clone()).collect(),
            };
            process.spawn(program.run());
        }
    }

    /// Names in `/` that programs use.
    fn names_of_programs(&self) -> Vec<Name> {
        match self.mounts {
            Some(_) => relocations::names_through_mounts(),
            None => (0..NAMES).map(name_of).collect(),
        }
    }

    /// A client has files that are made from then on striped over all nodes; those that come before are whole.
    pub(super) fn stripe_root(&mut self) {
        let bytes = self.setting.decide(format_args!("stripe"), 32, |random| 16 + random.below(STRIPE_BYTES_MORE));
        let plan = u32::try_from(bytes)
            .ok()
            .and_then(|bytes| StripePlan::new(NODES, bytes))
            .map_or(Plan::Whole, Plan::Striped);
        self.plan_root(plan);
    }

    /// A client has files that are made from then on begin with this layout.
    pub(super) fn plan_root(&mut self, plan: Plan) {
        let Client { process, machine, .. } = &self.clients[0];
        let (machine, noting) = (Arc::clone(machine), Rc::clone(process));
        process.spawn(async move {
            let set =
                machine.set_inherited(&Credentials::default(), InodeNumber::ROOT, InheritedChange::Plan(plan)).await;
            noting.note(|| format!("files are to be {plan:?}: {set:?}"));
        });
    }

    fn settle_later(&mut self) {
        let since = self.files.borrow_mut().moment();
        self.network.after(SETTLE_MS, Message::Settled(since));
    }

    /// Something is still on its way.
    pub(super) fn settle_again(&mut self, since: Moment) {
        self.network.after(SETTLE_MS, Message::Settled(since));
    }

    /// Lets the tasks of a client go on, and carries out what they ask.
    pub(super) fn poll(&mut self, index: usize) {
        let process = Rc::clone(&self.clients[index].process);
        process.true_ms.set(self.network.now_ms);
        let returned = self.clients[index].poll();
        let id = process.id.get();
        for (number, ask) in process.take_asked() {
            match ask {
                Ask::Send { session, node, message } => self.send_message((index, id, number), session, node, *message),
                Ask::Read(connection) => self.client_has_read((id, connection)),
                Ask::Data(message) => self.send_data(index, id, number, message),
                Ask::Sleep(ms) => {
                    let message = Message::ToClient { client: index, process: id, number, answer: Answer::Time };
                    self.network.after(process.clock.wait_ms(ms.max(1)), message);
                }
                Ask::SessionOver(session) => {
                    self.network.after(SESSION_TERM_MS + 1000, Message::SessionOver(session));
                }
                Ask::RecallAnswer { session, answer } => {
                    let node = self.node_of(answer.shard);
                    let message = Message::RecallAnswer { session, node, answer };
                    self.send(Party::Client(index), Party::Node(node), message);
                }
                Ask::PagesDropped { session, dropped } => {
                    let node = dropped.object.node();
                    let message = Message::PagesDropped { session, node, dropped };
                    self.send(Party::Client(index), Party::Node(node), message);
                }
                Ask::Settle => self.settle_later(),
                Ask::RenewSoon => {
                    self.network.after(RENEW_SOON_MS, Message::RenewSoon { client: index, process: id });
                }
                Ask::RightsVoid(open) => self.rights_void(&open),
                Ask::Note(line) => self.note(&format!("client {index}, process {id}: {line}")),
            }
        }
        self.find_deadlocks(id);
        if process.locks_files.get() {
            self.check_locks();
        }
        if let Some(what) = process.wrong.take() {
            self.fail(&format!("client {index}, process {id}: {what}"));
        }
        for of in process.losses.take() {
            self.lose(index, of);
        }
        self.returned(returned);
    }

    /// A message on a control connection.
    fn send_message(&mut self, to: (usize, ProcessId, Ticket), session: SessionId, node: NodeId, message: WireMessage) {
        let (client, process, number) = to;
        let message = match message {
            WireMessage::Shard(call) => Message::Call { client, process, number, session, node, call: Box::new(call) },
            WireMessage::Storage(StorageRequest::LeaseObjects { .. }) => {
                Message::Batch { client, process, number, session, node }
            }
            WireMessage::Storage(StorageRequest::Space) => Message::AskSpace { client, process, number, node },
            WireMessage::Node(request) => Message::AskNode { client, process, number, node, request },
            other => unreachable!("a client sends no {other:?} on a control connection"),
        };
        if !self.send(Party::Client(client), Party::Node(node), message) {
            self.break_connection(to);
        }
    }

    /// A message on this connection was lost: its sender learns that the connection broke.
    pub(super) fn break_connection(&mut self, (client, process, number): (usize, ProcessId, Ticket)) {
        *self.unheard.entry(client).or_default() += 1;
        self.network.after(BREAK_MS, Message::ToClient { client, process, number, answer: Answer::Broken });
    }

    /// Compares what the cache says of a name or inode with the model. `false`: it says nothing; a shard has to be
    /// asked.
    pub(super) fn answer_from_cache(&mut self, index: usize, operation: &NamesOperation) -> bool {
        let client = &self.clients[index];
        let now_ms = client.process.clock.boot_ms(self.network.now_ms);
        let cache = client.machine.calls().session.cache();
        // What the client itself is just changing may be told as it was or as it will be.
        let is_changing = client.process.is_changing();
        match operation {
            NamesOperation::Lookup { parent, name } => {
                let parent = &cache.part(*parent, name);
                let told = match cache.lookup(*parent, name, now_ms) {
                    Cached::Unknown => return false,
                    Cached::Absent => None,
                    Cached::Found(inode, _) => Some(inode),
                };
                let known = self.model.entry(*parent, name);
                if told != known && !is_changing && self.model.knows(*parent) {
                    self.fail(&format!(
                        "client {index} believes {told:?} of {name} in {parent}, the model has {known:?}"
                    ));
                }
            }
            NamesOperation::Attributes { inode } => {
                let Some(told) = cache.attributes(*inode, now_ms) else { return false };
                let known = self.model.inodes.get(inode);
                let removed = known.is_none() && told.links == 0;
                let same = removed
                    || known.is_some_and(|known| {
                        known.links == told.links
                            && (told.kind != known.kind || known.size == told.size || known.entries.is_empty())
                    });
                // Without a name it may be open, or its name is about to go at another shard.
                let is_gone = told.links == 0 && known.is_none_or(|known| known.entries.is_empty());
                if !same && !is_gone && !is_changing && self.model.knows(*inode) {
                    self.fail(&format!("client {index} believes {told:?}, the model has {known:?}"));
                }
            }
            _ => return false,
        }
        self.tally.cached += 1;
        true
    }

    /// An answer that is late, and comes once.
    pub(super) fn answer_client(&mut self, to: (usize, ProcessId, Ticket), answer: Answer) {
        let (client, process, number) = to;
        let what = if matches!(answer, Answer::Data(..)) { "data-reply" } else { "answer" };
        let what = format_args!("{what} client{client}");
        let delay = self.choices.decide(what, USUAL_MS, |random| 1 + random.below(20));
        self.network.after(delay, Message::ToClient { client, process, number, answer });
    }

    pub(super) fn answer_arrived(&mut self, index: usize, process: ProcessId, number: Ticket, answer: Answer) {
        if !self.clients[index].is_process(process) {
            return;
        }
        if self.stays_unread(index, &answer) {
            return self.break_connection((index, process, number));
        }
        let client = &mut self.clients[index];
        let told = match answer {
            Answer::Reply(reply) => Told::Reply(reply),
            Answer::Data(reply, bytes) => Told::Data(reply, bytes),
            Answer::Broken => Told::Broken,
            Answer::Time => Told::Time,
        };
        client.process.tell(number, told);
        self.poll(index);
    }

    /// Whether a client that stood still hears that its session has ended before it has read a reply that had come:
    /// then it closes the connection.
    fn stays_unread(&mut self, index: usize, answer: &Answer) -> bool {
        let is_reply = matches!(answer, Answer::Reply(reply) if matches!(**reply, WireMessage::ShardReply(_)));
        let (client, session) = (&self.clients[index], self.clients[index].session());
        let wakes = client.paused_until_ms == self.network.now_ms;
        if !is_reply || !wakes || self.ending || !self.shards.values().any(|shard| shard.refuses(session)) {
            return false;
        }
        self.choices.decide(format_args!("unread client{index}"), false, |random| random.one_in(2))
    }

    pub(super) fn recall_arrived(&mut self, session: SessionId, recall: Recall) {
        let Some(index) = self.clients.iter().position(|client| client.session() == session) else { return };
        if !self.ending && self.clients[index].deaf_until_ms > self.network.now_ms {
            return;
        }
        self.clients[index].process.recall(session, recall);
        self.poll(index);
    }

    /// The end of a wait for a lock. It waits for nothing, as on the listener of the client library.
    pub(super) fn lock_granted(&mut self, session: SessionId, granted: &LockGranted) {
        let Some(index) = self.clients.iter().position(|client| client.session() == session) else { return };
        if !self.ending && self.clients[index].deaf_until_ms > self.network.now_ms {
            return;
        }
        self.clients[index].machine.lock_granted(granted, session);
        let taken = LockGrantTaken { shard: granted.shard, wait: granted.wait };
        let node = self.node_of(granted.shard);
        self.send(Party::Client(index), Party::Node(node), Message::LockGrantTaken { session, node, taken });
        self.poll(index);
    }

    /// A storage server has pages of a client's kernel dropped.
    pub(super) fn drop_arrived(&mut self, session: SessionId, drop: DropPages) {
        let Some(index) = self.clients.iter().position(|client| client.session() == session) else { return };
        if self.ending || self.clients[index].deaf_until_ms <= self.network.now_ms {
            self.clients[index].process.drop_pages(Drops::Asked(session, drop));
            self.poll(index);
        }
    }

    pub(super) fn renew(&mut self, index: usize) {
        if self.ending && !self.clients.iter().any(Client::is_using_files) && !self.offers.is_running() {
            return;
        }
        self.network.after(SESSION_TERM_MS / 4, Message::Renew { client: index });
        if self.clients[index].paused_until_ms > self.network.now_ms {
            return;
        }
        self.clients[index].process.release_soon();
        self.clients[index].process.tend_locks(&self.clients[index].machine);
        self.renew_now(index);
        self.clients[index].process.drop_pages(Drops::Unheard);
        self.poll(index);
    }

    /// The reply to a renewal: a refused session is over.
    pub(super) fn renewed(
        &mut self,
        (index, process): (usize, ProcessId),
        renewal: Renewal,
        refused: bool,
        (epoch, shards): (MapEpoch, &[ShardId]),
    ) {
        if !self.clients[index].is_process(process) {
            return;
        }
        let Renewal { session, node, sent_ms } = renewal;
        self.clients[index].asked_ms = self.clients[index].asked_ms.max(sent_ms);
        let calls = self.clients[index].machine.calls();
        if refused {
            calls.begin_new_session(session);
        } else {
            let now_ms = self.clients[index].process.clock.boot_ms(self.network.now_ms);
            if calls.renewed((node, epoch), shards, session, (sent_ms, now_ms)) {
                let machine = Arc::clone(&self.clients[index].machine);
                self.clients[index].process.spawn(async move { machine.calls().catch_up().await });
            }
        }
        self.poll(index);
    }
}
