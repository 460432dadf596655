//! Clients: when they do something, their faults, and what comes in for them.

use super::{Answer, Message, Renewal, World};
use crate::bytes::ProcessId;
use crate::client::{Call, Chosen, Client, NAMES_SLOT};
use crate::process::{Ask, Ticket, Told};
use weft_client_core::Cached;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::recall::{Recall, RecallAnswer};
use weft_protocol::message::shard::{ShardReply, ShardRequest};
use weft_protocol::{Error, InodeNumber, LeaseKey, LeaseMode, NodeId, SessionId, ShardId, SlotIndex};

/// A call not answered in this time is sent again.
const RESEND_MS: u64 = 400;
/// After this nothing is on its way of what a client gave up.
const SETTLE_MS: u64 = 300;
/// Longest time for which a disk is full.
const FULL_MS_MAX: u64 = 4000;
/// Longest time for which a client hears of no recall, though it goes on: beyond a term its sessions are refused.
const DEAF_MS_MAX: u64 = 3 * SESSION_TERM_MS;

impl World {
    pub(super) fn wake(&mut self, index: usize) {
        if self.ending {
            return;
        }
        self.network.after(20 + self.random.below(200), Message::Wake(index));
        if self.clients[index].paused_until_ms > self.network.now_ms || self.clients[index].is_asking() {
            return;
        }
        self.inject(index);
        self.tally.operations += 1;
        match self.clients[index].choose(&mut self.random) {
            Chosen::Use { parent, name } => {
                if !self.model.lost.contains(&parent.shard()) {
                    self.clients[index].start(parent, name);
                    self.poll(index);
                }
            }
            Chosen::Ask(request) => {
                if !self.answer_from_cache(index, &request) {
                    self.begin(index, request);
                }
            }
        }
    }

    /// Faults of processes and disks.
    fn inject(&mut self, index: usize) {
        match self.random.below(300) {
            0 => self.crash_client(index),
            1 => {
                self.tally.pauses += 1;
                let pause_ms = self.random.below(15_000);
                self.note(&format!("client {index} pauses for {pause_ms} ms"));
                self.clients[index].paused_until_ms = self.network.now_ms + pause_ms;
            }
            2 if self.random.one_in(4) && self.storage.len() == usize::from(super::NODES) => self.crash_node(),
            3..=5 => {
                let (home, until_ms) =
                    (self.clients[index].process.home, self.network.now_ms + self.random.below(FULL_MS_MAX));
                self.note(&format!("the disk of node {home} is full until {until_ms} ms"));
                if let Some(storage) = self.storage.get_mut(&home) {
                    storage.full_until_ms = until_ms;
                }
            }
            6 => {
                self.tally.deaf += 1;
                let deaf_ms = self.random.below(DEAF_MS_MAX);
                self.note(&format!("client {index} hears of no recall for {deaf_ms} ms"));
                self.clients[index].deaf_until_ms = self.network.now_ms + deaf_ms;
            }
            _ => {}
        }
    }

    /// The client is gone; another one starts in its place.
    fn crash_client(&mut self, index: usize) {
        self.tally.crashes += 1;
        let old = &self.clients[index].process;
        let (session, id, home) = (old.session.get(), old.id, old.home);
        self.note(&format!("client {index} dies: process {id}"));
        self.files.borrow_mut().died(id);
        self.settle_later();
        self.network.after(SESSION_TERM_MS + 1000, Message::SessionOver(session));
        let process = self.process(home);
        self.note(&format!("client {index} starts: process {}", process.id));
        self.clients[index] = Client::new(process);
    }

    fn settle_later(&mut self) {
        let since = self.files.borrow_mut().moment();
        self.network.after(SETTLE_MS, Message::Settled(since));
    }

    /// Lets the tasks of a client go on, and carries out what they ask.
    fn poll(&mut self, index: usize) {
        let now_ms = self.network.now_ms;
        self.clients[index].process.now_ms.set(now_ms);
        self.clients[index].poll();
        let process = std::rc::Rc::clone(&self.clients[index].process);
        let mut is_lost = false;
        for (number, ask) in process.take_asked() {
            match ask {
                Ask::Call { slot, shard, request } => {
                    is_lost |= !self.call(index, (number, slot), shard, request);
                }
                Ask::Data(message) => self.send_data(index, process.id, number, message),
                Ask::Batch(node) => {
                    let (delay, session) = (1 + self.random.below(20), process.session.get());
                    let (client, process) = (index, process.id);
                    self.network.after(delay, Message::Batch { client, process, number, session, node });
                }
                Ask::Sleep(ms) => {
                    let answer = Answer::Time;
                    let message = Message::ToClient { client: index, process: process.id, number, answer };
                    self.network.after(ms.max(1), message);
                }
                Ask::SessionOver(session) => {
                    self.network.after(SESSION_TERM_MS + 1000, Message::SessionOver(session));
                }
                Ask::RecallAnswer { session, answer } => {
                    self.network.send(&mut self.random, Message::RecallAnswer { session, answer });
                }
                Ask::Settle => self.settle_later(),
                Ask::Note(line) => self.note(&format!("client {index}, process {}: {line}", process.id)),
            }
        }
        if let Some(what) = process.wrong.take() {
            self.fail(&format!("client {index}, process {}: {what}", process.id));
        }
        if is_lost {
            self.poll(index);
        }
    }

    /// Answers a look-up that the cache can answer, and holds it against the model. `false`: it has to be asked.
    fn answer_from_cache(&mut self, index: usize, request: &ShardRequest) -> bool {
        let now_ms = self.network.now_ms;
        let cache = self.clients[index].process.cache.borrow();
        // What the client itself is just changing may be told as it was or as it will be.
        let is_changing = self.clients[index].is_changing_names();
        match request {
            ShardRequest::Lookup { parent, name } => {
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
            ShardRequest::GetAttributes { inode } => {
                let Some(told) = cache.attributes(*inode, now_ms) else { return false };
                let known = self.model.inodes.get(inode);
                let same = known.is_some_and(|known| {
                    known.links == told.links
                        && (told.kind != known.kind || known.size == told.size || known.entries.is_empty())
                });
                if !same && !is_changing && self.model.knows(*inode) {
                    self.fail(&format!("client {index} believes {told:?}, the model has {known:?}"));
                }
            }
            _ => return false,
        }
        self.tally.cached += 1;
        true
    }

    /// A call about names.
    fn begin(&mut self, index: usize, request: ShardRequest) {
        let leased = match &request {
            ShardRequest::Release { leases } => leases.first().map(|(key, _)| key.inode()),
            _ => None,
        };
        let target = request.target();
        let shard = target.or(leased).unwrap_or(InodeNumber::ROOT).shard();
        let number = self.clients[index].process.ticket();
        if !self.call(index, (number, NAMES_SLOT), shard, request)
            && let Some(target) = target
        {
            self.clients[index].forget_directory(target);
        }
    }

    /// Sends a call. `false`: its shard is gone; a task is told so.
    fn call(&mut self, index: usize, from: (Ticket, SlotIndex), shard: ShardId, request: ShardRequest) -> bool {
        let (number, slot) = from;
        let client = &mut self.clients[index];
        if self.model.lost.contains(&shard) {
            // The client library answers "unreachable" by itself.
            if slot != NAMES_SLOT {
                let reply = ShardReply { stamp: 0, result: Err(Error::Unreachable) };
                client.process.tell(number, Told::Reply { reply, sent_ms: 0, resent: false });
            }
            return false;
        }
        let (session, sequence, sent_ms) = (client.session(), client.sequence(slot), self.network.now_ms);
        let call = Call { number, session, shard, slot, sequence, request, sent_ms, resent: false };
        client.calls.insert(number, call.clone());
        let process = client.process.id;
        self.network.after(RESEND_MS, Message::Resend { client: index, process, number });
        self.network.send(&mut self.random, Message::Call { client: index, process, call });
        true
    }

    pub(super) fn resend(&mut self, index: usize, process: ProcessId, number: Ticket) {
        let client = &mut self.clients[index];
        if !client.is_process(process) {
            return;
        }
        let Some(call) = client.calls.get_mut(&number) else { return };
        call.resent = true;
        let call = call.clone();
        if self.model.lost.contains(&call.shard) {
            let reply = ShardReply { stamp: 0, result: Err(Error::Unreachable) };
            return self.answer_client((index, process, number), Answer::Reply(reply));
        }
        self.tally.resent += 1;
        self.network.after(RESEND_MS, Message::Resend { client: index, process, number });
        self.network.send(&mut self.random, Message::Call { client: index, process, call });
    }

    /// An answer that is late, and comes once.
    pub(super) fn answer_client(&mut self, to: (usize, ProcessId, Ticket), answer: Answer) {
        let ((client, process, number), delay) = (to, 1 + self.random.below(20));
        self.network.after(delay, Message::ToClient { client, process, number, answer });
    }

    pub(super) fn answer_arrived(&mut self, index: usize, process: ProcessId, number: Ticket, answer: Answer) {
        let client = &mut self.clients[index];
        if !client.is_process(process) {
            return;
        }
        let told = match answer {
            Answer::Reply(reply) => {
                let Some(call) = client.calls.remove(&number) else { return };
                if call.slot == NAMES_SLOT {
                    return self.names_answered(index, &call, &reply);
                }
                Told::Reply { reply, sent_ms: call.sent_ms, resent: call.resent }
            }
            Answer::Data(told) => Told::Data(told),
            Answer::Batch(result) => Told::Batch(result),
            Answer::Time => Told::Time,
        };
        client.process.tell(number, told);
        self.poll(index);
    }

    fn names_answered(&mut self, index: usize, call: &Call, reply: &ShardReply) {
        let client = &mut self.clients[index];
        if reply.result == Err(Error::SessionEnded) {
            client.process.begin_new_session(call.session);
            return self.poll(index);
        }
        if call.session == client.session() {
            client.learn(call, reply, self.network.now_ms);
        }
        if let (Err(Error::Stale | Error::Unreachable), Some(target)) = (&reply.result, call.request.target()) {
            client.forget_directory(target);
        }
    }

    pub(super) fn recall_arrived(&mut self, session: SessionId, recall: Recall) {
        let Some(index) = self.clients.iter().position(|client| client.session() == session) else { return };
        if !self.ending && self.clients[index].deaf_until_ms > self.network.now_ms {
            return;
        }
        let process = &self.clients[index].process;
        if let LeaseKey::Data(_) = recall.key {
            process.recall(session, recall);
            return self.poll(index);
        }
        process.cache.borrow_mut().recall(recall.key, recall.stamp);
        let answer = RecallAnswer { shard: recall.shard, number: recall.number, kept: LeaseMode::None };
        self.network.send(&mut self.random, Message::RecallAnswer { session, answer });
    }

    pub(super) fn renew(&mut self, index: usize) {
        if self.ending && !self.clients.iter().any(Client::is_using_files) {
            return;
        }
        self.network.after(SESSION_TERM_MS / 4, Message::Renew { client: index });
        if self.clients[index].paused_until_ms > self.network.now_ms {
            return;
        }
        let (session, process) = (self.clients[index].session(), self.clients[index].process.id);
        for node in (0..super::NODES).map(NodeId) {
            let renewal = Renewal { session, node, sent_ms: self.network.now_ms };
            self.network.send(&mut self.random, Message::Renewal { client: index, process, renewal });
        }
    }

    /// As the library does it: who is refused begins a new session.
    pub(super) fn renewed(&mut self, index: usize, process: ProcessId, renewal: Renewal, refused: bool) {
        if !self.clients[index].is_process(process) {
            return;
        }
        let Renewal { session, node, sent_ms } = renewal;
        let process = std::rc::Rc::clone(&self.clients[index].process);
        if refused {
            process.begin_new_session(session);
        } else if session == process.session.get() {
            let mut cache = process.cache.borrow_mut();
            for shard in self.map.shards_at(node) {
                cache.extended(shard, sent_ms, self.network.now_ms);
            }
        }
        self.poll(index);
    }
}
