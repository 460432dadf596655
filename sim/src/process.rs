//! One client's process: what its tasks share, and how they ask the world for something and wait for the answer.
//!
//! A *task* is a future: a program that uses files, or the thread that answers recalls. It is written as the blocking
//! code of the client library is, and waits where that blocks: for an answer, for time, for the lock of an open file.
//! Each time that something came in, all tasks of the process are polled in their order until none gets further, so
//! that one seed gives one run.
//!
//! Invariant: no lease is used and no data request is sent after the session's term has passed at the shard of the
//! file, as far as this process knows. It asks the shard first.
//! Not here: what files do with it (`file.rs`), the names (`client.rs`).

use crate::bytes::{Files, Moment, OperationId, ProcessId};
use crate::file::OpenFile;
use crate::random::Random;
use crate::store::{Bytes, DataMessage};
use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use weft_client_core::Cache;
use weft_protocol::data::{DataOperation, DataReply, DataRequest};
use weft_protocol::message::recall::{Recall, RecallAnswer};
use weft_protocol::message::shard::{ShardAnswer, ShardReply, ShardRequest};
use weft_protocol::{
    Capability, Error, InodeNumber, LeaseKey, LeaseMode, NodeId, ObjectId, Result, SessionId, ShardId, SlotIndex,
};

/// How often a call is sent again after the session ended.
const ATTEMPTS_MAX: u32 = 4;
const BUSY_WAIT_MS: u64 = 10;

/// What a task asks of the world. The ticket comes back with the answer.
pub enum Ask {
    Call {
        slot: SlotIndex,
        shard: ShardId,
        request: ShardRequest,
    },
    Data(Box<DataMessage>),
    /// A batch of object identifiers.
    Batch(NodeId),
    Sleep(u64),
    /// A session is over: not answered.
    SessionOver(SessionId),
    /// A recall was done: not answered.
    RecallAnswer {
        session: SessionId,
        answer: RecallAnswer,
    },
    /// What was doubtful will have settled after some time: not answered.
    Settle,
    /// A line for the trace: not answered.
    Note(String),
}

/// The world's answer.
pub enum Told {
    Reply {
        reply: ShardReply,
        sent_ms: u64,
        resent: bool,
    },
    /// `None`: the connection broke.
    Data(Option<(DataReply, Bytes)>),
    Batch(Result<Capability>),
    Time,
}

/// Names something that was asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u64);

/// An answer, and what is needed to believe its grants.
pub struct Answer {
    pub stamp: u64,
    pub answer: ShardAnswer,
    /// The session that asked: with its end the grants are void.
    pub session: SessionId,
    /// The call was sent again: the answer may be of the first time.
    pub resent: bool,
}

/// A batch of object identifiers.
struct Batch {
    capability: Capability,
    next: u32,
}

/// See the module.
pub struct Process {
    pub id: ProcessId,
    pub home: NodeId,
    pub session: Cell<SessionId>,
    /// Sessions before, and when they were given up.
    given_up: RefCell<BTreeMap<SessionId, Moment>>,
    pub now_ms: Cell<u64>,
    pub cache: RefCell<Cache>,
    pub open: RefCell<BTreeMap<InodeNumber, Rc<OpenFile>>>,
    /// Recalls of contents to be answered, and those that were taken in and are not done.
    pub recalls: RefCell<VecDeque<(SessionId, Recall)>>,
    working: RefCell<BTreeSet<(ShardId, u64)>>,
    /// No program begins anything more.
    pub ending: Cell<bool>,
    /// Opens on their way, and the files that were reported meanwhile, with the stamps of the answers.
    pub opening: Cell<u32>,
    pub reported: RefCell<BTreeMap<InodeNumber, u64>>,
    /// Own reports and changes of files, over all.
    pub reports: Cell<u64>,
    /// Leases of closed files to be given back.
    pub closed: RefCell<Vec<(LeaseKey, u64)>>,
    pub files: Rc<RefCell<Files>>,
    pub random: RefCell<Random>,
    /// What a check found wrong.
    pub wrong: RefCell<Option<String>>,
    /// Grows whenever a task may get further than before.
    pub changes: Cell<u64>,
    sessions: Rc<Cell<u64>>,
    batch: RefCell<Option<Batch>>,
    asked: RefCell<Vec<(Ticket, Ask)>>,
    answers: RefCell<BTreeMap<Ticket, Told>>,
    tickets: Cell<u64>,
}

/// A task's way to the world: the process, and the slot of its calls.
#[derive(Clone)]
pub struct Io {
    pub process: Rc<Process>,
    pub slot: SlotIndex,
}

impl Process {
    /// A process that has just started. `sessions`: the last session's number, of all processes.
    pub fn new(home: NodeId, seed: u64, sessions: &Rc<Cell<u64>>, files: &Rc<RefCell<Files>>) -> Self {
        let process = Self {
            id: 0,
            home,
            session: Cell::new(SessionId(0)),
            given_up: RefCell::default(),
            now_ms: Cell::new(0),
            cache: RefCell::new(Cache::new()),
            open: RefCell::default(),
            recalls: RefCell::default(),
            working: RefCell::default(),
            ending: Cell::new(false),
            opening: Cell::new(0),
            reported: RefCell::default(),
            reports: Cell::new(0),
            closed: RefCell::default(),
            files: Rc::clone(files),
            random: RefCell::new(Random::new(seed)),
            wrong: RefCell::new(None),
            changes: Cell::new(0),
            sessions: Rc::clone(sessions),
            batch: RefCell::new(None),
            asked: RefCell::default(),
            answers: RefCell::default(),
            tickets: Cell::new(0),
        };
        process.new_session();
        Self { id: process.session.get().0, ..process }
    }

    fn new_session(&self) {
        self.sessions.set(self.sessions.get() + 1);
        self.session.set(SessionId(self.sessions.get()));
    }

    /// The session has ended at a shard. A new one is begun; nothing cached holds any more. Open files notice it when
    /// they are used next.
    pub fn begin_new_session(&self, ended: SessionId) {
        if self.session.get() != ended {
            return;
        }
        let until = self.files.borrow_mut().moment();
        self.given_up.borrow_mut().insert(ended, until);
        self.new_session();
        self.cache.borrow_mut().clear();
        self.batch.borrow_mut().take();
        self.closed.borrow_mut().clear();
        self.ask(Ask::SessionOver(ended));
    }

    /// A shard has ended a session, perhaps one of this process.
    pub fn fenced(&self, session: SessionId, shard: ShardId) {
        let until = self.given_up.borrow().get(&session).copied();
        if until.is_some() || self.session.get() == session {
            self.files.borrow_mut().fenced(self.id, shard, until);
        }
    }

    /// The cache, to take in what an answer told; `None`: the session that asked for it is over.
    pub fn cache_for(&self, session: SessionId) -> Option<RefMut<'_, Cache>> {
        (session == self.session.get()).then(|| self.cache.borrow_mut())
    }

    /// Whether the session's term at the shard of this inode holds, so that its leases do.
    pub fn holds(&self, shard: ShardId) -> bool {
        self.cache.borrow().holds_ms(shard, self.now_ms.get()) > 0
    }

    /// Number of an own report or change of a file that was just answered.
    pub fn next_report(&self) -> u64 {
        self.reports.set(self.reports.get() + 1);
        self.reports.get()
    }

    /// A number that nothing else has.
    pub fn ticket(&self) -> Ticket {
        self.tickets.set(self.tickets.get() + 1);
        Ticket(self.tickets.get())
    }

    /// Asks, without waiting.
    pub fn ask(&self, ask: Ask) -> Ticket {
        let ticket = self.ticket();
        self.asked.borrow_mut().push((ticket, ask));
        ticket
    }

    /// What was asked since this was called last.
    pub fn take_asked(&self) -> Vec<(Ticket, Ask)> {
        self.asked.take()
    }

    /// The world answers.
    pub fn tell(&self, ticket: Ticket, told: Told) {
        self.answers.borrow_mut().insert(ticket, told);
    }

    async fn told(&self, ticket: Ticket) -> Told {
        let told = poll_fn(|_| match self.answers.borrow_mut().remove(&ticket) {
            Some(told) => Poll::Ready(told),
            None => Poll::Pending,
        });
        let told = told.await;
        self.changes.set(self.changes.get() + 1);
        told
    }

    /// A recall of contents came; one that is sent again is not done twice.
    pub fn recall(&self, session: SessionId, recall: Recall) {
        if self.working.borrow_mut().insert((recall.shard, recall.number)) {
            self.recalls.borrow_mut().push_back((session, recall));
        }
    }

    /// A recall was done.
    pub fn recall_done(&self, session: SessionId, recall: &Recall, kept: LeaseMode) {
        self.working.borrow_mut().remove(&(recall.shard, recall.number));
        let answer = RecallAnswer { shard: recall.shard, number: recall.number, kept };
        self.ask(Ask::RecallAnswer { session, answer });
    }

    /// Takes an inode out that no handle is left of, and whose lease is to be given back.
    pub fn give_back_idle(&self, inode: InodeNumber, stamp: u64) {
        if self.drop_idle(inode).is_some() {
            self.closed.borrow_mut().push((LeaseKey::Data(inode), stamp));
        }
    }

    /// A name of a file is gone. With the last one its lease is given back, unless it is open: it keeps the file.
    pub fn name_gone(&self, inode: InodeNumber, links: u32) {
        let stamp = self.open.borrow().get(&inode).map_or(0, |file| file.stamp.get());
        if links == 0 {
            self.give_back_idle(inode, stamp);
        }
    }

    /// Leases of closed files at one shard, to be given back.
    pub fn take_closed(&self) -> Option<Vec<(LeaseKey, u64)>> {
        let mut closed = self.closed.borrow_mut();
        let shard = closed.first()?.0.inode().shard();
        let (taken, rest) = closed.drain(..).partition(|(key, _)| key.inode().shard() == shard);
        *closed = rest;
        Some(taken)
    }

    /// Takes an inode out that no handle is left of.
    pub fn drop_idle(&self, inode: InodeNumber) -> Option<Rc<OpenFile>> {
        let mut open = self.open.borrow_mut();
        open.get(&inode).filter(|file| file.handles.get() == 0)?;
        open.remove(&inode)
    }

    /// A check is made. What is wrong ends the run.
    pub fn check(&self, result: std::result::Result<(), String>) {
        if let Err(what) = result {
            self.wrong.borrow_mut().get_or_insert(what);
        }
    }

    /// A line for the trace.
    pub fn note(&self, line: impl FnOnce() -> String) {
        self.ask(Ask::Note(line()));
    }
}

impl Io {
    /// A call, made exactly once. Renews the session's term at the shard. A new session is begun when this one has
    /// ended.
    pub async fn call(&self, shard: ShardId, request: ShardRequest) -> Result<Answer> {
        let process = &self.process;
        let mut attempts = 0;
        loop {
            let session = process.session.get();
            let ticket = process.ask(Ask::Call { slot: self.slot, shard, request: request.clone() });
            let Told::Reply { reply, sent_ms, resent } = process.told(ticket).await else {
                return Err(Error::Malformed);
            };
            match reply.result {
                Err(Error::SessionEnded) if attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    process.begin_new_session(session);
                    continue;
                }
                Err(Error::Busy) => {
                    self.sleep(BUSY_WAIT_MS).await;
                    continue;
                }
                Err(Error::Unreachable | Error::SessionEnded) => {}
                _ if session == process.session.get() => {
                    process.cache.borrow_mut().renewed(shard, sent_ms, process.now_ms.get());
                }
                _ => {}
            }
            return reply.result.map(|answer| Answer { stamp: reply.stamp, answer, session, resent });
        }
    }

    /// Makes sure that what the session holds at this shard still holds. The session may be another one afterwards.
    pub async fn ensure_term(&self, shard: ShardId) -> Result<()> {
        while !self.process.holds(shard) {
            self.call(shard, ShardRequest::Ping).await?;
        }
        Ok(())
    }

    pub async fn sleep(&self, ms: u64) {
        let ticket = self.process.ask(Ask::Sleep(ms));
        self.process.told(ticket).await;
    }

    /// Sends a data request, without waiting for its answer. The term must hold.
    pub fn start_data(&self, connection: u64, request: DataRequest, bytes: Vec<u8>) -> Ticket {
        self.start(connection, request, bytes, None)
    }

    fn start(&self, connection: u64, request: DataRequest, bytes: Vec<u8>, append: Option<OperationId>) -> Ticket {
        let session = self.process.session.get();
        let message = DataMessage { session, connection, request, bytes: Bytes(bytes), append };
        self.process.ask(Ask::Data(Box::new(message)))
    }

    /// Waits for the answer to a data request. `None`: its connection broke.
    pub async fn finish_data(&self, ticket: Ticket) -> Option<Result<(DataReply, Vec<u8>)>> {
        let Told::Data(told) = self.process.told(ticket).await else { return None };
        told.map(|(reply, bytes)| reply.result().map(|reply| (*reply, bytes.0)))
    }

    /// A connection that nobody else uses.
    pub fn new_connection(&self) -> u64 {
        self.process.ticket().0
    }

    /// One data request; when its connection breaks, once more on another, unless it is an append.
    pub async fn data(
        &self,
        request: DataRequest,
        bytes: &[u8],
        append: Option<OperationId>,
    ) -> Result<(DataReply, Vec<u8>)> {
        for _ in 0..2 {
            self.ensure_term(request.inode.shard()).await?;
            let ticket = self.start(self.new_connection(), request, bytes.to_vec(), append);
            if let Some(result) = self.finish_data(ticket).await {
                return result;
            }
            if request.operation == DataOperation::Append {
                break;
            }
        }
        Err(Error::Unreachable)
    }

    /// An identifier for a new object at home, with the right to make it.
    pub async fn new_object(&self) -> Result<(ObjectId, Capability)> {
        let process = &self.process;
        loop {
            if let Some(batch) = process.batch.borrow_mut().as_mut().filter(|batch| batch.next < batch.capability.count)
            {
                let first = batch.capability.object;
                let object = ObjectId::new(first.node(), first.sequence() + u64::from(batch.next));
                batch.next += 1;
                return Ok((object, batch.capability));
            }
            let session = process.session.get();
            let ticket = process.ask(Ask::Batch(process.home));
            let Told::Batch(result) = process.told(ticket).await else { return Err(Error::Malformed) };
            let capability = result?;
            if session == process.session.get() {
                process.batch.borrow_mut().replace(Batch { capability, next: 0 });
            }
        }
    }
}
