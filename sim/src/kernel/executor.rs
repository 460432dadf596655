//! Tasks of one kernel: system calls, notifications and background completions as futures, polled in order.
//!
//! A task waits for a condition on the mount's state, not for a waker: after each input tasks are polled until none
//! gets
//! further, the oldest first, or in an order from a seed. So one order of inputs and one seed give one run, and seeds
//! settle races between tasks that the same event lets go on. References to inodes and
//! dentries, and locks, are guards; dropping one puts it into a queue that is worked off before the state is next
//! looked at, so that a guard may be dropped anywhere.
//!
//! Not here: what tasks do.

use crate::random::Random;

use super::requests::{Answer, NodeId, Operation, Request};
use super::state::{Mount, Put};
use std::cell::{RefCell, RefMut};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Guards that were dropped.
pub type Puts = Rc<RefCell<Vec<Put>>>;

/// A task's way to the state of its kernel.
#[derive(Clone)]
pub struct Context {
    mount: Rc<RefCell<Mount>>,
    puts: Puts,
    spawned: Rc<RefCell<Vec<Task>>>,
}

impl Context {
    pub fn new(mount: Mount) -> Self {
        let puts = mount.puts.clone();
        Self { mount: Rc::new(RefCell::new(mount)), puts, spawned: Rc::default() }
    }

    /// The state. Not to be held across an await.
    pub fn mount(&self) -> RefMut<'_, Mount> {
        let mut mount = self.mount.borrow_mut();
        loop {
            let puts = std::mem::take(&mut *self.puts.borrow_mut());
            if puts.is_empty() {
                return mount;
            }
            for put in puts {
                mount.put(put);
            }
        }
    }

    /// Waits until `ready` returns a value.
    pub async fn wait<T>(&self, mut ready: impl FnMut(&mut Mount) -> Option<T>) -> T {
        poll_fn(|_| {
            let mut mount = self.mount();
            let Some(value) = ready(&mut mount) else { return Poll::Pending };
            mount.progress = true;
            Poll::Ready(value)
        })
        .await
    }

    /// Lets other tasks get further first, if it is their turn.
    pub async fn let_others_go_on(&self) {
        let mut has_waited = false;
        poll_fn(|_| {
            self.mount().progress = true;
            if std::mem::replace(&mut has_waited, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Sends a request and waits for its answer.
    pub async fn ask(&self, node: NodeId, operation: Operation) -> Answer {
        let unique = self.mount().send(node, operation);
        self.answer(unique).await
    }

    /// Waits for the answer to a request that was sent.
    pub async fn answer(&self, unique: u64) -> Answer {
        self.wait(|mount| mount.answers.remove(&unique)).await
    }

    /// Runs a task beside the present one.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.spawned.borrow_mut().push(Box::pin(task));
        self.mount().progress = true;
    }

    fn take_spawned(&self) -> Vec<Task> {
        std::mem::take(&mut *self.spawned.borrow_mut())
    }
}

/// All tasks of one kernel.
pub struct Executor {
    pub context: Context,
    tasks: Vec<Task>,
    /// Chooses who gets further first; `None`: the oldest.
    random: Option<Random>,
}

impl Executor {
    pub fn new(mount: Mount) -> Self {
        let random = mount.config.seed.map(Random::new);
        Self { context: Context::new(mount), tasks: Vec::new(), random }
    }

    /// Polls until nothing gets further.
    pub fn run(&mut self) {
        while self.step() {}
    }

    /// Polls one task after the other until one gets further.
    fn step(&mut self) -> bool {
        let mut cx = TaskContext::from_waker(Waker::noop());
        self.tasks.extend(self.context.take_spawned());
        let mut order: Vec<usize> = (0..self.tasks.len()).collect();
        if let Some(random) = &mut self.random {
            for at in (1..order.len()).rev() {
                order.swap(at, random.below(at as u64 + 1) as usize);
            }
        }
        for at in order {
            self.context.mount().progress = false;
            if self.tasks[at].as_mut().poll(&mut cx).is_ready() {
                drop(self.tasks.remove(at));
                return true;
            }
            if self.context.mount().progress {
                return true;
            }
        }
        false
    }

    /// Requests that were sent since the last time.
    pub fn take_requests(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.context.mount().outgoing)
    }
}
