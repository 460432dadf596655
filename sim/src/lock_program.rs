//! Programs that lock ranges of a few files: by try, waiting, and waiting for a while only; some as processes, some as
//! open file descriptions. Under locks they write and read.
//!
//! A program locks in one file only. As a description it waits only while it holds nothing, so that no cycle of waits
//! is left to anybody but the shard. What it believes it holds stands in [`Believed`], which the world holds against
//! the beliefs of others and against the shard (`world/locks.rs`).

use crate::opened::Opened;
use crate::process::Process;
use crate::program::{Program, ProgramId, STEPS, open};
use crate::random::Random;
use crate::shell::{LockWaiter, SimShell};
use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use weft_client_core::{Files, LockRequest, OpenOptions, Shell};
use weft_protocol::message::shard::{Access, CreateFile};
use weft_protocol::{Error, InodeNumber, LockKind, LockMode, LockOwner, LockRange, Name, RangeLock, Result, SessionId};

/// Bytes that are locked.
const LOCKED_BYTES: u64 = 12;
/// Longest pause between two steps, milliseconds.
const THINK_MS: u64 = 300;

/// A lock that a program was granted and has not begun to give back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Believed {
    pub session: SessionId,
    pub inode: InodeNumber,
    pub owner: LockOwner,
    pub lock: RangeLock,
}

/// What a program does next.
enum Step {
    Lock { waits: bool, for_ms: Option<u64> },
    Unlock,
    Use,
}

/// Opens a file, and locks and unlocks ranges of it for a while.
pub async fn use_locks(machine: Arc<Files<SimShell>>, process: Rc<Process>, name: Name) {
    let id = ProgramId::new(&process);
    let options = OpenOptions { registration: None, ..OpenOptions::of(Access::ReadWrite) };
    let create = Some(CreateFile { mode: 0o644, exclusive: false, plan: None });
    let opened = open(&machine, &process, InodeNumber::ROOT, &name, options, create).await;
    let handle = match opened {
        Ok(handle) => handle,
        Err(error) => return process.note(|| format!("open {name} to lock it: {error:?}")),
    };
    let number = machine.calls().locks.next_number();
    let is_process = id.decide(&process, "owner", 0, |random| random.below(2)) == 0;
    let kind = if is_process { LockKind::Process } else { LockKind::Description };
    let owner = LockOwner { kind, number };
    let mut locker = Locker {
        program: Program::new(machine, Rc::clone(&process), Opened::Own(handle), id),
        owner,
        in_doubt: Cell::new(false),
    };
    let steps = locker.decide("steps", 2 + STEPS);
    for _ in 0..steps {
        if process.ending.get() {
            break;
        }
        let think_ms = locker.decide("pause", THINK_MS);
        locker.program.machine.calls().shell.sleep_us(think_ms * 1000).await;
        locker.step().await;
    }
    locker.forget();
    let result = locker.program.flush_all().await;
    process.note(|| format!("close {owner:?} of inode {}: {result:?}", locker.program.inode()));
    locker.program.machine.close_handle(locker.program.handle.own()).await;
}

struct Locker {
    program: Program,
    owner: LockOwner,
    /// A call has no answer, and may have left something locked in which it does not believe.
    in_doubt: Cell<bool>,
}

impl Locker {
    fn process(&self) -> &Rc<Process> {
        &self.program.process
    }

    fn decide(&self, what: &str, below: u64) -> u64 {
        self.program.id.decide(self.process(), what, 0, |random: &mut Random| random.below(below))
    }

    fn range(&self) -> LockRange {
        let (a, b) = (self.decide("from", LOCKED_BYTES), self.decide("to", LOCKED_BYTES));
        LockRange { start: a.min(b), end: a.max(b) }
    }

    fn choose(&self) -> Step {
        match self.decide("what", 10) {
            0..=2 => Step::Lock { waits: true, for_ms: None },
            3 => Step::Lock { waits: true, for_ms: Some(self.decide("patience", 400)) },
            4 | 5 => Step::Lock { waits: false, for_ms: None },
            6 | 7 => Step::Use,
            _ => Step::Unlock,
        }
    }

    async fn step(&mut self) {
        match self.choose() {
            Step::Lock { waits, for_ms } => {
                let count = 1 + self.decide("ranges", 2);
                let mode = |number| if number == 0 { LockMode::Shared } else { LockMode::Exclusive };
                let lock = |_| RangeLock { range: self.range(), mode: mode(self.decide("mode", 2)) };
                let locks: Vec<_> = (0..count).map(lock).collect();
                let may_hold = self.holds() || self.in_doubt.get();
                let waits = waits && (self.owner.kind == LockKind::Process || !may_hold);
                self.lock(locks, waits, for_ms).await;
            }
            Step::Unlock => {
                let range = if self.decide("all", 3) == 0 { self.range() } else { LockRange::ALL };
                self.unlock(range).await;
            }
            Step::Use if self.is_lost() => {
                let result = self.program.handle.read_at(&self.program.machine, &mut [0; 4], 0).await;
                self.check(result.is_err(), "reads on, though its lock was lost");
                self.unlock(LockRange::ALL).await;
            }
            Step::Use => {
                let bytes = 1 + self.decide("bytes", LOCKED_BYTES);
                if self.decide("write", 2) == 0 {
                    self.program.write(bytes).await;
                } else {
                    self.program.read(bytes).await;
                }
            }
        }
    }

    fn believed(&self) -> Vec<Believed> {
        let believed = self.process().believed_locks.borrow();
        believed.iter().filter(|one| one.owner == self.owner).copied().collect()
    }

    fn holds(&self) -> bool {
        !self.believed().is_empty()
    }

    /// Whether a session has ended with something locked, and nobody was told.
    fn is_lost(&self) -> bool {
        let session = self.program.machine.calls().session.id();
        self.believed().iter().any(|one| one.session != session)
    }

    fn check(&self, holds: bool, what: &str) {
        let wrong = || format!("{:?} of inode {} {what}", self.owner, self.program.inode());
        self.process().check(if holds { Ok(()) } else { Err(wrong()) });
    }

    /// It believes in nothing of the range any more.
    fn forget_range(&self, range: LockRange) {
        let mut believed = self.process().believed_locks.borrow_mut();
        let (own, mut others): (Vec<_>, Vec<_>) = believed.drain(..).partition(|one| one.owner == self.owner);
        for one in own {
            let (held, mode) = (one.lock.range, one.lock.mode);
            let rest = |range| Believed { lock: RangeLock { range, mode }, ..one };
            if !held.overlaps(range) {
                others.push(one);
                continue;
            }
            if held.start < range.start {
                others.push(rest(LockRange { start: held.start, end: range.start - 1 }));
            }
            if held.end > range.end {
                others.push(rest(LockRange { start: range.end + 1, end: held.end }));
            }
        }
        *believed = others;
    }

    /// It believes again in what it did before: nothing has come of a request.
    fn believe(&self, before: Vec<Believed>) {
        self.forget();
        self.process().believed_locks.borrow_mut().extend(before);
    }

    fn forget(&self) {
        self.forget_range(LockRange::ALL);
    }

    async fn lock(&self, locks: Vec<RangeLock>, waits: bool, for_ms: Option<u64>) {
        let machine = &self.program.machine;
        let lost = self.is_lost();
        let request = LockRequest { owner: self.owner, pid: 1, locks };
        // What it holds of the ranges may have the new mode before it hears so.
        let before = self.believed();
        request.locks.iter().for_each(|lock| self.forget_range(lock.range));
        let result = if waits {
            self.wait(&request, for_ms).await
        } else {
            machine.try_lock(self.program.handle.own(), &request).await
        };
        self.process().note(|| format!("lock {request:?} of inode {}: {result:?}", self.program.inode()));
        self.check(!(lost && result.is_ok()), "locks more, though a lock was lost");
        match result {
            Ok(()) => {
                // The session may have ended since the lock was granted.
                let is_lost = self.program.handle.own().check_locks(machine.calls()).is_err();
                let session = if is_lost { SessionId(0) } else { machine.calls().session.id() };
                for lock in request.locks {
                    self.forget_range(lock.range);
                    let one = Believed { session, inode: self.program.inode(), owner: self.owner, lock };
                    self.process().believed_locks.borrow_mut().push(one);
                }
            }
            Err(Error::Interrupted) => {
                self.check(for_ms.is_some(), "was interrupted by nobody");
                // Without an answer to that it may have been granted.
                self.in_doubt.set(true);
            }
            Err(Error::Deadlock) => {
                self.check(self.owner.kind == LockKind::Process, "has a deadlock");
                self.believe(before);
            }
            Err(Error::WouldBlock | Error::SessionEnded | Error::Device(_)) => self.believe(before),
            Err(_) => self.in_doubt.set(true),
        }
    }

    /// Waits, again if the session ends; gives up after some time.
    async fn wait(&self, request: &LockRequest, for_ms: Option<u64>) -> Result<()> {
        let machine = &self.program.machine;
        loop {
            let (wait, waiter) = (machine.calls().locks.next_number(), LockWaiter::default());
            if let Some(ms) = for_ms {
                let machine = Arc::clone(machine);
                self.process().spawn(async move {
                    machine.calls().shell.sleep_us(ms * 1000).await;
                    machine.cancel_lock(wait).await;
                });
            }
            machine.lock(self.program.handle.own(), request, wait, Rc::clone(&waiter)).await;
            let result = poll_fn(|_| waiter.take().map_or(Poll::Pending, Poll::Ready)).await;
            self.process().progressed();
            if result != Err(Error::SessionEnded) {
                return result;
            }
        }
    }

    async fn unlock(&self, range: LockRange) {
        let lost = self.is_lost();
        self.forget_range(range);
        let result = self.program.machine.unlock(self.program.handle.own(), self.owner, &[range]).await;
        self.process().note(|| format!("unlock {range:?} of {:?}: {result:?}", self.owner));
        if result == Err(Error::SessionEnded) || lost {
            self.check(!(lost && result.is_ok()), "unlocks well, though its lock was lost");
            self.forget();
        }
        if range == LockRange::ALL {
            self.in_doubt.set(result.is_err());
        }
    }
}
