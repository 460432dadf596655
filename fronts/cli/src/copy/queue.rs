//! The queue between the thread that walks and the threads that copy.

use super::Job;
use super::file::LargeCopy;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Files that wait to be copied; beyond it the walk waits. A tree of millions of files is never in memory as a whole.
const WAITING_MAX: usize = 4096;

/// Something for a worker to do.
pub enum Task {
    File(Job),
    /// Copy chunks of a large file that another worker has opened.
    Help(Arc<LargeCopy>),
}

/// A bounded queue. Lock order: `state` (1), the only one; held for a few instructions, never across I/O.
pub struct Queue {
    state: Mutex<State>,
    /// Something to do, or the end.
    ready: Condvar,
    /// Room for more.
    room: Condvar,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    /// Tasks that were taken and are not done: they may queue more.
    busy: usize,
    ended: bool,
}

impl Queue {
    pub fn new() -> Self {
        Self { state: Mutex::new(State::default()), ready: Condvar::new(), room: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a file; waits while the queue is full.
    pub fn push(&self, job: Job) {
        let mut state = self.lock();
        while state.tasks.len() >= WAITING_MAX {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.tasks.push_back(Task::File(job));
        drop(state);
        self.ready.notify_one();
    }

    /// Asks for help with a large file, before any other.
    pub fn push_help(&self, large: &Arc<LargeCopy>, helpers: usize) {
        let mut state = self.lock();
        (0..helpers).for_each(|_| state.tasks.push_front(Task::Help(Arc::clone(large))));
        drop(state);
        self.ready.notify_all();
    }

    /// Nothing more comes from the walk.
    pub fn end(&self) {
        self.lock().ended = true;
        self.ready.notify_all();
    }

    /// The next task; `None` when all is done. [`Queue::done`] follows each.
    pub fn next(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                state.busy += 1;
                drop(state);
                self.room.notify_one();
                return Some(task);
            }
            if state.ended && state.busy == 0 {
                return None;
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A task that was taken is done.
    pub fn done(&self) {
        let mut state = self.lock();
        state.busy -= 1;
        let last = state.busy == 0;
        drop(state);
        if last {
            self.ready.notify_all();
        }
    }
}
