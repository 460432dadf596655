//! The queue between the thread that walks and the threads that copy.
//!
//! It has a lane for each machine that copies, the first one for this machine. A file waits in the lane of the machine
//! that holds it, or in that with the least to do; a machine whose lane is empty takes from the one with the most.

use super::Job;
use super::file::LargeCopy;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Files of one lane that wait to be copied; beyond it the walk waits. A tree of millions of files is never in memory
/// as a whole.
const WAITING_MAX: usize = 4096;

/// This machine's lane.
const HERE: usize = 0;

/// Something for a worker of this machine to do.
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
    waiting_max: usize,
}

struct State {
    help: VecDeque<Arc<LargeCopy>>,
    lanes: Vec<Lane>,
    /// Tasks and batches that were taken and are not done: they may queue more, or come back.
    busy: usize,
    ended: bool,
    /// Threads that take batches for other machines.
    takers: usize,
    /// This machine takes files also while others do.
    here: bool,
}

#[derive(Default)]
struct Lane {
    jobs: VecDeque<Job>,
    bytes: u64,
}

impl State {
    /// A file for a machine: of its own lane, or of the one with the most to do.
    fn take(&mut self, lane: usize) -> Option<Job> {
        let own = self.lanes.get_mut(lane)?;
        let (lane, job) = match own.jobs.pop_front() {
            Some(job) => (own, job),
            None => {
                let fullest =
                    self.lanes.iter_mut().filter(|lane| !lane.jobs.is_empty()).max_by_key(|lane| lane.bytes)?;
                let job = fullest.jobs.pop_back()?;
                (fullest, job)
            }
        };
        lane.bytes -= job.item.size;
        Some(job)
    }

    fn waiting(&self) -> usize {
        self.lanes.iter().map(|lane| lane.jobs.len()).sum()
    }

    fn put(&mut self, lane: Option<usize>, job: Job) {
        let least = || {
            let taking = self.lanes.iter().enumerate().skip(usize::from(!self.here));
            taking.min_by_key(|(_, lane)| lane.bytes).map_or(HERE, |(index, _)| index)
        };
        let lane = lane.unwrap_or_else(least);
        let lane = &mut self.lanes[lane];
        lane.bytes += job.item.size;
        lane.jobs.push_back(job);
    }
}

impl Queue {
    /// For this machine and `others`, each of which has `takers` threads. `here`: this machine copies also while others
    /// do.
    pub fn new(others: usize, takers: usize, here: bool) -> Self {
        let lanes = (0..=others).map(|_| Lane::default()).collect();
        let state = State { help: VecDeque::new(), lanes, busy: 0, ended: false, takers: others * takers, here };
        let waiting_max = WAITING_MAX * (others + 1);
        Self { state: Mutex::new(state), ready: Condvar::new(), room: Condvar::new(), waiting_max }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a file, for a machine or for any; waits while the queue is full.
    pub fn push(&self, lane: Option<usize>, job: Job) {
        let mut state = self.lock();
        while state.waiting() >= self.waiting_max {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.put(lane, job);
        drop(state);
        // Whoever waits may be one that does not take files now.
        self.ready.notify_all();
    }

    /// Asks for help with a large file, before any other.
    pub fn push_help(&self, large: &Arc<LargeCopy>, helpers: usize) {
        let mut state = self.lock();
        (0..helpers).for_each(|_| state.help.push_front(Arc::clone(large)));
        drop(state);
        self.ready.notify_all();
    }

    /// Nothing more comes from the walk.
    pub fn end(&self) {
        self.lock().ended = true;
        self.ready.notify_all();
    }

    /// The next task of this machine; `None` when all is done. [`Queue::done`] follows each.
    pub fn next(&self) -> Option<Task> {
        self.await_some(|state| {
            if let Some(large) = state.help.pop_front() {
                return Some(Task::Help(large));
            }
            let takes = state.here || state.takers == 0;
            takes.then(|| state.take(HERE)).flatten().map(Task::File)
        })
    }

    /// The next files of another machine: at least one, so many and with so many bytes at most; `None` when all is
    /// done. [`Queue::done`] or [`Queue::give_back`] follows each.
    pub fn next_batch(&self, lane: usize, files_max: usize, bytes_max: u64) -> Option<Vec<Job>> {
        self.await_some(|state| {
            let mut batch = vec![state.take(lane)?];
            let mut bytes = batch[0].item.size;
            while batch.len() < files_max
                && bytes < bytes_max
                && let Some(job) = state.take(lane)
            {
                bytes = bytes.saturating_add(job.item.size);
                batch.push(job);
            }
            Some(batch)
        })
    }

    fn await_some<T>(&self, mut take: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(taken) = take(&mut state) {
                state.busy += 1;
                drop(state);
                self.room.notify_one();
                return Some(taken);
            }
            if state.ended && state.busy == 0 && state.waiting() == 0 {
                return None;
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A task or batch that was taken is done.
    pub fn done(&self) {
        let mut state = self.lock();
        state.busy -= 1;
        let last = state.busy == 0;
        drop(state);
        if last {
            self.ready.notify_all();
        }
    }

    /// A batch that was taken could not be copied there: this thread takes no more, others do.
    pub fn give_back(&self, batch: Vec<Job>) {
        let mut state = self.lock();
        batch.into_iter().for_each(|job| state.put(None, job));
        state.busy -= 1;
        state.takers -= 1;
        drop(state);
        self.ready.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::{Item, Kind, Place};
    use super::*;
    use weft_protocol::Timestamp;

    fn job(name: &str, size: u64) -> Job {
        let place = Place::Local(name.into());
        let item = Item { kind: Kind::File, size, mode: 0, mtime: Timestamp(0), identity: (0, 0), holder: None };
        Job { source: place.clone(), target: place, item, over: super::super::Over::Anything }
    }

    fn names(batch: Option<Vec<Job>>) -> String {
        let names: Vec<String> = batch.into_iter().flatten().map(|job| job.source.to_string()).collect();
        names.join(" ")
    }

    #[test]
    fn each_machine_takes_its_own_and_then_from_the_one_with_the_most() {
        let queue = Queue::new(2, 1, false);
        for (lane, name, size) in [(1, "a", 5), (2, "b", 1), (1, "c", 5), (2, "d", 1), (1, "e", 5)] {
            queue.push(Some(lane), job(name, size));
        }
        // Any machine but this one: the lane with the fewest bytes.
        queue.push(None, job("f", 1));
        queue.end();
        assert_eq!(names(queue.next_batch(2, 2, 100)), "b d");
        assert_eq!(names(queue.next_batch(2, 2, 100)), "f e", "its own, then the other's last");
        assert_eq!(names(queue.next_batch(1, 9, 4)), "a", "enough bytes");
        // It comes back, and this machine copies when the others cannot any more.
        queue.give_back(vec![job("a", 5)]);
        queue.done();
        assert!(queue.next_batch(1, 1, 1).is_some());
        queue.give_back(Vec::new());
        assert!(matches!(queue.next(), Some(Task::File(_))));
        queue.done();
        queue.done();
        assert!(queue.next().is_none() && queue.next_batch(1, 1, 1).is_none());
    }
}
