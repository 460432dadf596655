//! Sleeping locks of inodes: `i_rwsem`, and the mutex that serializes lookups without `FUSE_PARALLEL_DIROPS`.
//!
//! Granted in the order of arrival, so that a waiting writer holds up later readers, as the kernel's rwsem does in the
//! end. Not here: spin locks, which the steps between two waits need not have; locks of pages (`pages.rs`).

use std::collections::VecDeque;

/// Names one holder or waiter.
pub type Ticket = u64;

/// A lock that readers share.
#[derive(Default)]
pub struct InodeLock {
    holders: Vec<(Ticket, bool)>,
    waiting: VecDeque<(Ticket, bool)>,
}

impl InodeLock {
    /// Queues up.
    pub fn request(&mut self, ticket: Ticket, exclusive: bool) {
        self.waiting.push_back((ticket, exclusive));
        self.grant();
    }

    /// Takes the lock only if it is free now.
    pub fn try_acquire(&mut self, ticket: Ticket, exclusive: bool) -> bool {
        let free = self.waiting.is_empty() && self.is_free_for(exclusive);
        if free {
            self.holders.push((ticket, exclusive));
        }
        free
    }

    pub fn is_held_by(&self, ticket: Ticket) -> bool {
        self.holders.iter().any(|(holder, _)| *holder == ticket)
    }

    /// Gives up a hold or a wait.
    pub fn release(&mut self, ticket: Ticket) {
        self.holders.retain(|(holder, _)| *holder != ticket);
        self.waiting.retain(|(waiter, _)| *waiter != ticket);
        self.grant();
    }

    fn is_free_for(&self, exclusive: bool) -> bool {
        if exclusive { self.holders.is_empty() } else { self.holders.iter().all(|(_, writer)| !writer) }
    }

    fn grant(&mut self) {
        while let Some(&(ticket, exclusive)) = self.waiting.front() {
            if !self.is_free_for(exclusive) {
                return;
            }
            self.waiting.pop_front();
            self.holders.push((ticket, exclusive));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_writer_holds_up_later_readers() {
        let mut lock = InodeLock::default();
        lock.request(1, false);
        lock.request(2, true);
        lock.request(3, false);
        assert!(lock.is_held_by(1) && !lock.is_held_by(2) && !lock.is_held_by(3));
        assert!(!lock.try_acquire(4, false));
        lock.release(1);
        assert!(lock.is_held_by(2) && !lock.is_held_by(3));
        lock.release(2);
        assert!(lock.is_held_by(3) && lock.try_acquire(5, false));
    }
}
