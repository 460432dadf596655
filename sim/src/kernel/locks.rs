//! Sleeping locks of inodes: `i_rwsem`, and the mutex that serializes lookups without `FUSE_PARALLEL_DIROPS`.
//!
//! Granted in the order of arrival, so that a waiting writer holds up later readers; or, where a seed settles races, to
//! whoever looks first when it is free, since the kernel's rwsem lets itself be stolen. Not here: spin locks, which
//! the steps between two waits need not have; locks of pages (`pages.rs`).

use std::collections::VecDeque;

/// Names one holder or waiter.
pub type Ticket = u64;

/// A lock that readers share.
#[derive(Default)]
pub struct InodeLock {
    holders: Vec<(Ticket, bool)>,
    waiting: VecDeque<(Ticket, bool)>,
    unfair: bool,
}

impl InodeLock {
    /// Queues up. An unfair lock is only taken by [`InodeLock::steal`].
    pub fn request(&mut self, ticket: Ticket, exclusive: bool, fair: bool) {
        self.waiting.push_back((ticket, exclusive));
        self.unfair = !fair;
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

    /// Whether the holder has it now.
    pub fn is_held_by(&self, ticket: Ticket) -> bool {
        self.holders.iter().any(|(holder, _)| *holder == ticket)
    }

    /// Takes the lock before those who came earlier, if nobody holds it (lock stealing of the kernel's rwsem), and says
    /// whether the waiter has it now. Readers join readers only if no writer waits.
    pub fn steal(&mut self, ticket: Ticket) -> bool {
        let Some(at) = self.waiting.iter().position(|(waiter, _)| *waiter == ticket) else {
            return self.is_held_by(ticket);
        };
        let exclusive = self.waiting[at].1;
        let writer_waits = self.waiting.iter().any(|(_, writer)| *writer);
        if !self.holders.is_empty() && (writer_waits || !self.is_free_for(exclusive)) {
            return false;
        }
        self.waiting.remove(at);
        self.holders.push((ticket, exclusive));
        true
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
        if self.unfair {
            return;
        }
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
    fn an_unfair_lock_goes_to_who_looks_first() {
        let mut lock = InodeLock::default();
        lock.request(1, true, false);
        lock.request(2, false, false);
        lock.request(3, false, false);
        assert!(lock.steal(2) && !lock.steal(1));
        assert!(!lock.steal(3), "a writer waits");
        lock.release(2);
        assert!(lock.steal(1) && !lock.steal(3));
    }

    #[test]
    fn a_waiting_writer_holds_up_later_readers() {
        let mut lock = InodeLock::default();
        lock.request(1, false, true);
        lock.request(2, true, true);
        lock.request(3, false, true);
        assert!(lock.is_held_by(1) && !lock.is_held_by(2) && !lock.is_held_by(3));
        assert!(!lock.try_acquire(4, false));
        lock.release(1);
        assert!(lock.is_held_by(2) && !lock.is_held_by(3));
        lock.release(2);
        assert!(lock.is_held_by(3) && lock.try_acquire(5, false));
    }
}
