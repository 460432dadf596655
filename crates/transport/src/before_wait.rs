//! What a thread does before it waits for a peer.
//!
//! A thread may have something to pass on to another one when it is going to be held up: a front's thread that reads
//! requests has somebody else read them meanwhile. It sets a function for that ([`on_this_thread`]), which is called
//! where the thread looks for a reply, and before it sleeps. Threads without one pay for a look at a variable.

use std::cell::Cell;

/// How a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// It looks for something that is expected soon, and will look again.
    Looks,
    /// It is going to sleep, perhaps for long.
    Sleeps,
}

thread_local! {
    static BEFORE_WAIT: Cell<Option<fn(Waiting)>> = const { Cell::new(None) };
}

/// From now on this is called before the calling thread waits.
pub fn on_this_thread(call: fn(Waiting)) {
    BEFORE_WAIT.set(Some(call));
}

/// The calling thread is about to wait.
pub fn before_wait(waiting: Waiting) {
    if let Some(call) = BEFORE_WAIT.get() {
        call(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static CALLS: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }

    #[test]
    fn a_thread_is_asked_before_it_waits_and_no_other() {
        before_wait(Waiting::Sleeps);
        on_this_thread(|waiting| {
            let (looks, sleeps) = CALLS.get();
            CALLS.set(if waiting == Waiting::Looks { (looks + 1, sleeps) } else { (looks, sleeps + 1) });
        });
        before_wait(Waiting::Looks);
        std::thread::spawn(|| before_wait(Waiting::Sleeps)).join().unwrap();
        before_wait(Waiting::Sleeps);
        assert_eq!(CALLS.get(), (1, 1));
    }
}
