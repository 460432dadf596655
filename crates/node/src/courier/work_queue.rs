//! A queue whose threads are started on demand and end when idle.
//!
//! Invariant: while something is queued, a thread is there to take it, unless none could be started.
//!
//! Lock order: `state` is a leaf.

use crate::locks::lock;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// See the module.
pub struct WorkQueue<T> {
    state: Mutex<State<T>>,
    work: Condvar,
    /// Name of the threads.
    name: String,
    threads_max: usize,
    /// Time for which a thread waits for work.
    idle: Duration,
}

struct State<T> {
    queued: VecDeque<T>,
    threads: usize,
    /// Threads that wait for work in [`WorkQueue::next`].
    waiting: usize,
}

impl<T> WorkQueue<T> {
    /// Returns a queue without threads.
    pub fn new(name: String, threads_max: usize, idle: Duration) -> Self {
        let state = State { queued: VecDeque::new(), threads: 0, waiting: 0 };
        Self { state: Mutex::new(state), work: Condvar::new(), name, threads_max, idle }
    }

    /// Queues an item. If no thread is free for it and there may be another one, starts that with `run`, which must
    /// end when [`WorkQueue::next`] or [`WorkQueue::ends`] says so. Without a thread the item goes with the next one.
    pub fn push(&self, item: T, run: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        state.queued.push_back(item);
        if state.queued.len() > state.waiting && state.threads < self.threads_max {
            match std::thread::Builder::new().name(self.name.clone()).spawn(run) {
                Ok(_) => state.threads += 1,
                Err(error) => tracing::error!("cannot start thread {}: {error}", self.name),
            }
        }
        self.work.notify_one();
    }

    /// Waits for the next item. `None`: the calling thread has been idle and must end.
    pub fn next(&self) -> Option<T> {
        let mut state = lock(&self.state);
        loop {
            if let Some(item) = state.queued.pop_front() {
                return Some(item);
            }
            state.waiting += 1;
            let (waited, timeout) = self.work.wait_timeout(state, self.idle).unwrap_or_else(PoisonError::into_inner);
            state = waited;
            state.waiting -= 1;
            if timeout.timed_out() && state.ends() {
                return None;
            }
        }
    }

    /// Takes what is queued, without waiting.
    pub fn take(&self) -> VecDeque<T> {
        std::mem::take(&mut lock(&self.state).queued)
    }

    /// Returns true if the calling thread, which has waited for work elsewhere, must end: nothing was queued.
    pub fn ends(&self) -> bool {
        lock(&self.state).ends()
    }
}

impl<T> State<T> {
    /// The end of a thread and the look at the queue are one: an item is seen by the thread, or starts another one.
    fn ends(&mut self) -> bool {
        let ends = self.queued.is_empty();
        if ends {
            self.threads -= 1;
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};

    /// Queues a number, for threads that send what they take.
    fn push(queue: &Arc<WorkQueue<u32>>, number: u32, taken: &Sender<u32>) {
        let (of_thread, taken) = (Arc::clone(queue), taken.clone());
        queue.push(number, move || {
            while let Some(number) = of_thread.next() {
                taken.send(number).expect("the test waits for it");
            }
        });
    }

    #[test]
    fn a_thread_is_started_for_what_comes_after_all_have_ended() {
        let queue = Arc::new(WorkQueue::new("work".to_owned(), 1, Duration::from_millis(1)));
        let (sender, taken) = channel();
        for number in 0..3 {
            push(&queue, number, &sender);
            assert_eq!(taken.recv(), Ok(number));
            while lock(&queue.state).threads > 0 {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn there_are_no_more_threads_than_allowed_and_none_where_one_waits() {
        let queue = Arc::new(WorkQueue::new("work".to_owned(), 2, Duration::from_secs(3600)));
        let (sender, taken) = channel();
        push(&queue, 0, &sender);
        assert_eq!(taken.recv(), Ok(0));
        while lock(&queue.state).waiting == 0 {
            std::thread::yield_now();
        }
        push(&queue, 1, &sender);
        assert_eq!(lock(&queue.state).threads, 1);
        assert_eq!(taken.recv(), Ok(1));
        (0..100).for_each(|number| push(&queue, number, &sender));
        assert!(lock(&queue.state).threads <= 2);
        let mut all: Vec<u32> = taken.iter().take(100).collect();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_thread_does_not_end_while_something_is_queued() {
        let queue = WorkQueue::new("work".to_owned(), 1, Duration::ZERO);
        queue.push(1, || {});
        queue.push(2, || panic!("there may be no other one"));
        assert!(!queue.ends());
        assert_eq!(queue.take(), [1, 2]);
        assert!(queue.ends());
        let (sender, started) = channel();
        queue.push(3, move || sender.send(()).expect("the test waits for it"));
        assert_eq!(started.recv(), Ok(()));
    }
}
