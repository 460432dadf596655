//! One client's process: the client machine, and how its tasks ask the world for something and wait for the answer.
//!
//! A *task* is a future: a program that uses files or names, or the answer to recalls. Each time that something came
//! in, all tasks of the process are polled in their order until none gets further, so that one seed gives one run.
//!
//! Not here: the effects (`shell.rs`), what programs do (`program.rs`).

use crate::bytes::{Files as Bytes, Moment, ProcessId};
use crate::choices::Choices;
use crate::clock::Clock;
use crate::lock_program::Believed;
use crate::mount::SimMount;
use crate::random::Random;
use crate::script::Word;
use crate::shell::SimShell;
use crate::store::{Bytes as Data, DataMessage};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::Poll;
use weft_client_core::{Files, Shell};
use weft_metadata::Now;
use weft_mount_core::KernelCaches;
use weft_protocol::data::DataReply;
use weft_protocol::message::Message;
use weft_protocol::message::recall::{DropPages, PagesDropped, Recall, RecallAnswer};
use weft_protocol::message::shard::{ShardCall, ShardReply};
use weft_protocol::{Error, GroupOpen, InodeNumber, LeaseMode, NodeId, SessionId, ShardId, SlotIndex};

/// Directories that a process remembers.
const DIRECTORIES_MAX: usize = 12;

/// How long what is to be given back soon waits for more of it.
const RELEASE_SOON_MS: u64 = 5;

/// What a task asks of the world. The ticket comes back with the answer.
pub enum Ask {
    /// A message on a control connection of a session. Answered by [`Told::Reply`] or [`Told::Broken`].
    Send { session: SessionId, node: NodeId, message: Box<Message> },
    /// Answered by [`Told::Data`] or [`Told::Broken`].
    Data(Box<DataMessage>),
    /// The client reads of a data connection whose node waits for that: not answered.
    Read(u64),
    /// Answered by [`Told::Time`].
    Sleep(u64),
    /// A session is over: not answered.
    SessionOver(SessionId),
    /// A recall was answered: not answered.
    RecallAnswer { session: SessionId, answer: RecallAnswer },
    /// What was doubtful will have settled after some time: not answered.
    Settle,
    /// Pages were dropped: not answered.
    PagesDropped { session: SessionId, dropped: PagesDropped },
    /// The session is to be renewed everywhere: not answered.
    RenewSoon,
    /// The rights of a group turned out to be void: not answered.
    RightsVoid(Box<GroupOpen>),
    /// A line for the trace: not answered.
    Note(String),
}

/// The world's answer.
pub enum Told {
    Reply(Box<Message>),
    Data(DataReply, Data),
    /// The connection broke.
    Broken,
    Time,
}

/// Pages to be dropped.
pub enum Drops {
    /// A storage server has asked this session.
    Asked(SessionId, DropPages),
    /// Those of files whose node has not been heard.
    Unheard,
}

/// Names something that was asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u64);

/// See the module.
pub struct Process {
    pub id: Cell<ProcessId>,
    pub home: NodeId,
    pub clock: Clock,
    /// The simulation's time, for the clock.
    pub true_ms: Cell<u64>,
    /// Sessions before, and when they were given up.
    pub given_up: RefCell<BTreeMap<SessionId, Moment>>,
    /// Recalls to be answered, and those that were received and are not answered.
    recalls: RefCell<VecDeque<(SessionId, Recall)>>,
    working: RefCell<BTreeSet<(ShardId, u64)>>,
    /// Pages to be dropped.
    drops: RefCell<VecDeque<Drops>>,
    /// No program begins anything more.
    pub ending: Cell<bool>,
    /// The model of what files hold.
    pub files: Rc<RefCell<Bytes>>,
    pub choices: RefCell<Choices>,
    /// Which client it is.
    pub index: usize,
    /// Directories that programs use.
    pub directories: RefCell<Vec<InodeNumber>>,
    /// What a check found wrong.
    pub wrong: RefCell<Option<String>>,
    /// Grows whenever a task may get further than before.
    progress: Cell<u64>,
    /// The last session's number, of all processes.
    pub sessions: Rc<Cell<u64>>,
    asked: RefCell<Vec<(Ticket, Ask)>>,
    /// Those that wait for an answer.
    awaited: RefCell<BTreeSet<Ticket>>,
    /// Calls that may change a name and have no reply, by slot. A busy shard may carry one out that is sent again soon.
    changing: RefCell<BTreeMap<(SessionId, NodeId, SlotIndex), Ticket>>,
    answers: RefCell<BTreeMap<Ticket, Told>>,
    tickets: Cell<u64>,
    /// Its data connections have small buffers.
    pub has_small_buffers: bool,
    /// It gets descriptors of objects on its own machine.
    pub has_descriptors: bool,
    /// Its programs make system calls (`system_calls.rs`), held against a model of their own.
    pub makes_system_calls: Cell<bool>,
    /// Its programs write here and there (`program.rs`).
    pub scatters: Cell<bool>,
    /// They write strides of files, in turns with others (`lanes.rs`).
    pub takes_turns: Cell<bool>,
    /// Its programs have split files go on at another node when theirs is full.
    pub spills: Cell<bool>,
    /// Split files that a program uses as a member of a group (`group_program.rs`).
    pub member_of: RefCell<BTreeSet<InodeNumber>>,
    /// Its programs lock files (`lock_program.rs`).
    pub locks_files: Cell<bool>,
    /// What they believe to have locked.
    pub believed_locks: RefCell<Vec<Believed>>,
    /// What was lost of what its programs have written through system calls: of an inode, or with a session.
    pub losses: RefCell<Vec<Option<u64>>>,
    /// When its latest session ended, by its own clock.
    pub session_ended_ms: Cell<u64>,
    /// What its mount's kernel keeps, and its client machine.
    pub mount: RefCell<Weak<KernelCaches<SimMount>>>,
    pub machine: RefCell<Weak<Files<SimShell>>>,
    is_releasing: Cell<bool>,
    is_tending_locks: Cell<bool>,
    /// Tasks that begin.
    spawned: RefCell<Vec<Task>>,
}

/// A future that is polled whenever something came in.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Whether a call that was answered so is sent again in its slot.
fn is_sent_again(told: &Told) -> bool {
    let Told::Reply(reply) = told else { return false };
    matches!(
        &**reply,
        Message::ShardReply(ShardReply { result: Err(Error::Busy | Error::StaleMap(_) | Error::WrongShard(_)), .. })
    )
}

impl Process {
    /// A process that has just started. `sessions`: the last session's number, of all processes.
    pub fn new(
        (index, home): (usize, NodeId),
        choices: Choices,
        clock: Clock,
        sessions: &Rc<Cell<u64>>,
        files: &Rc<RefCell<Bytes>>,
    ) -> Self {
        Self {
            id: Cell::new(0),
            home,
            clock,
            true_ms: Cell::new(0),
            given_up: RefCell::default(),
            recalls: RefCell::default(),
            working: RefCell::default(),
            drops: RefCell::default(),
            ending: Cell::new(false),
            files: Rc::clone(files),
            choices: RefCell::new(choices),
            index,
            directories: RefCell::new(vec![InodeNumber::ROOT]),
            wrong: RefCell::new(None),
            progress: Cell::new(0),
            sessions: Rc::clone(sessions),
            asked: RefCell::default(),
            awaited: RefCell::default(),
            changing: RefCell::default(),
            answers: RefCell::default(),
            tickets: Cell::new(0),
            has_small_buffers: false,
            has_descriptors: false,
            makes_system_calls: Cell::new(false),
            scatters: Cell::new(false),
            takes_turns: Cell::new(false),
            spills: Cell::new(false),
            member_of: RefCell::default(),
            locks_files: Cell::new(false),
            believed_locks: RefCell::default(),
            losses: RefCell::default(),
            session_ended_ms: Cell::new(0),
            mount: RefCell::default(),
            machine: RefCell::default(),
            is_releasing: Cell::new(false),
            is_tending_locks: Cell::new(false),
            spawned: RefCell::default(),
        }
    }

    /// What the process's clock shows, milliseconds since boot.
    pub fn now_ms(&self) -> u64 {
        self.clock.boot_ms(self.true_ms.get())
    }

    /// The time on its machine.
    pub fn now(&self) -> Now {
        Now { boot_ms: self.now_ms(), wall: self.clock.wall(self.true_ms.get()) }
    }

    /// A shard has ended a session, perhaps an earlier one of this process.
    pub fn fenced(&self, current: SessionId, session: SessionId, shard: ShardId) {
        let until = self.given_up.borrow().get(&session).copied();
        if until.is_some() || current == session {
            self.files.borrow_mut().fenced(self.id.get(), shard, until);
        }
    }

    /// A number that nothing else has.
    pub fn ticket(&self) -> Ticket {
        self.tickets.set(self.tickets.get() + 1);
        Ticket(self.tickets.get())
    }

    /// Asks, without waiting for the answer.
    pub fn ask(&self, ask: Ask) -> Ticket {
        let ticket = self.ticket();
        let is_awaited = match &ask {
            Ask::Send { session, message, .. } => {
                if let Message::Shard(call) = &**message {
                    self.note_call(*session, call, ticket);
                }
                true
            }
            Ask::Data(_) | Ask::Sleep(_) => true,
            Ask::SessionOver(session) => {
                self.changing.borrow_mut().retain(|(of, ..), _| of != session);
                false
            }
            Ask::Read(_) | Ask::RecallAnswer { .. } | Ask::PagesDropped { .. } | Ask::Settle | Ask::Note(_) => false,
            Ask::RenewSoon | Ask::RightsVoid(_) => false,
        };
        if is_awaited {
            self.awaited.borrow_mut().insert(ticket);
        }
        self.asked.borrow_mut().push((ticket, ask));
        ticket
    }

    fn note_call(&self, session: SessionId, call: &ShardCall, ticket: Ticket) {
        let slot = (session, call.slots_of, call.slot);
        if call.request.is_read() {
            self.changing.borrow_mut().remove(&slot);
        } else {
            self.changing.borrow_mut().insert(slot, ticket);
        }
    }

    /// What was asked since this was called last.
    pub fn take_asked(&self) -> Vec<(Ticket, Ask)> {
        self.asked.take()
    }

    /// Whether a call that may change a name is in flight, or about to be sent again.
    pub fn is_changing(&self) -> bool {
        !self.changing.borrow().is_empty()
    }

    /// The world answers. A second answer to one ticket is of no use.
    pub fn tell(&self, ticket: Ticket, told: Told) {
        if self.awaited.borrow_mut().remove(&ticket) {
            if !is_sent_again(&told) {
                self.changing.borrow_mut().retain(|_, of| *of != ticket);
            }
            self.answers.borrow_mut().insert(ticket, told);
        }
    }

    /// Waits for an answer.
    pub async fn told(&self, ticket: Ticket) -> Told {
        let told = poll_fn(|_| match self.answers.borrow_mut().remove(&ticket) {
            Some(told) => Poll::Ready(told),
            None => Poll::Pending,
        });
        let told = told.await;
        self.progressed();
        told
    }

    /// Whether the answer is there.
    pub fn has_answer(&self, ticket: Ticket) -> bool {
        self.answers.borrow().contains_key(&ticket)
    }

    /// Whether the answer is there. It is taken, once.
    pub fn is_told(&self, ticket: Ticket) -> bool {
        self.answers.borrow_mut().remove(&ticket).is_some()
    }

    /// What its mount's kernel keeps.
    pub fn caches(&self) -> Option<Arc<KernelCaches<SimMount>>> {
        self.mount.borrow().upgrade()
    }

    /// Begins a task beside the present one.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.spawned.borrow_mut().push(Box::pin(task));
        self.progressed();
    }

    /// Gives back leases, and holds directories that the kernel keeps, soon, on a thread of its own.
    pub fn release_soon(&self) {
        let machine = Weak::clone(&self.machine.borrow());
        let Some(files) = machine.upgrade().filter(|_| !self.is_releasing.replace(true)) else { return };
        self.spawn(async move {
            let process = &files.calls().shell.0;
            let ticket = process.ask(Ask::Sleep(RELEASE_SOON_MS));
            process.told(ticket).await;
            process.is_releasing.set(false);
            files.release_surplus().await;
            files.hold_directories().await;
        });
    }

    /// Ends waits for locks at nodes that are gone, and repeats what was not unlocked, on a thread of its own.
    pub fn tend_locks(&self, files: &Arc<Files<SimShell>>) {
        if self.is_tending_locks.replace(true) {
            return;
        }
        let files = Arc::clone(files);
        self.spawn(async move {
            files.tend_locks().await;
            files.calls().shell.0.is_tending_locks.set(false);
        });
    }

    /// The tasks that were begun since this was called last.
    pub fn take_spawned(&self) -> Vec<Task> {
        self.spawned.take()
    }

    /// A task may get further than before.
    pub fn progressed(&self) {
        self.progress.set(self.progress.get() + 1);
    }

    /// Grows whenever a task may get further than before.
    pub fn progress(&self) -> u64 {
        self.progress.get()
    }

    /// A recall came; one that is sent again is not answered twice.
    pub fn recall(&self, session: SessionId, recall: Recall) {
        if self.working.borrow_mut().insert((recall.shard, recall.number)) {
            self.recalls.borrow_mut().push_back((session, recall));
        }
    }

    /// Waits for a recall to be answered.
    pub async fn next_recall(&self) -> (SessionId, Recall) {
        poll_fn(|_| self.recalls.borrow_mut().pop_front().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// A recall was answered; `None`: it is when it comes again.
    pub fn recall_done(&self, session: SessionId, recall: &Recall, kept: Option<LeaseMode>) {
        self.working.borrow_mut().remove(&(recall.shard, recall.number));
        let Some(kept) = kept else { return };
        let answer = RecallAnswer { shard: recall.shard, number: recall.number, kept };
        self.ask(Ask::RecallAnswer { session, answer });
    }

    /// A storage server has pages dropped.
    pub fn drop_pages(&self, drops: Drops) {
        self.drops.borrow_mut().push_back(drops);
    }

    /// Waits for pages to be dropped.
    pub async fn next_drop(&self) -> Drops {
        poll_fn(|_| self.drops.borrow_mut().pop_front().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// A program that goes on until the run ends waits for a moment. Returns false at the end.
    pub async fn thinks(&self, machine: &Files<SimShell>, random: &mut Random, most_ms: u64) -> bool {
        if self.ending.get() {
            return false;
        }
        machine.calls().shell.sleep_us((1 + random.below(most_ms)) * 1000).await;
        !self.ending.get()
    }

    /// A directory that programs may use.
    pub fn learn_directory(&self, inode: InodeNumber) {
        let mut directories = self.directories.borrow_mut();
        if !directories.contains(&inode) {
            if directories.len() == DIRECTORIES_MAX {
                directories.remove(1);
            }
            directories.push(inode);
        }
    }

    /// A directory is gone, or was never there: it is not used any more.
    pub fn forget_directory(&self, inode: InodeNumber) {
        self.directories.borrow_mut().retain(|known| *known != inode || *known == InodeNumber::ROOT);
    }

    /// A decision of the process's own.
    pub fn decide<T: Word>(&self, what: fmt::Arguments<'_>, usual: T, choose: impl FnOnce(&mut Random) -> T) -> T {
        self.choices.borrow_mut().decide(what, usual, choose)
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
