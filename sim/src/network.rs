//! Virtual time and the network between simulated processes.
//!
//! Faults that may be injected, and why the system must survive exactly these: a message is *lost* (a connection
//! broke; the
//! sender repeats it under the same slot and sequence, or the receiver asks again), *doubled* (it was repeated
//! although it had
//! arrived) or *late* (up to [`DELAY_MS_MAX`]; so a grant and a recall pass each other). Nothing is changed on its way:
//! checksums and the handshake are below this level.

use crate::random::Random;
use std::collections::BTreeMap;

/// Longest delay of a message, milliseconds.
const DELAY_MS_MAX: u64 = 40;
/// One message in so many is lost, and one in so many doubled, while faults are on.
const LOSS: u64 = 40;
const DOUBLING: u64 = 50;

/// Events in the order of their time; equal times in the order in which they were sent.
pub struct Network<M> {
    pub now_ms: u64,
    pub faults: bool,
    queue: BTreeMap<(u64, u64), M>,
    sent: u64,
    /// Messages lost and doubled.
    pub lost: u64,
    pub doubled: u64,
}

impl<M: Clone> Network<M> {
    pub fn new() -> Self {
        Self { now_ms: 1, faults: true, queue: BTreeMap::new(), sent: 0, lost: 0, doubled: 0 }
    }

    fn put(&mut self, at_ms: u64, message: M) {
        self.sent += 1;
        self.queue.insert((at_ms, self.sent), message);
    }

    /// Sends over the network: late, and now and then lost or doubled. `false`: lost.
    pub fn send(&mut self, random: &mut Random, message: M) -> bool {
        if self.faults && random.one_in(LOSS) {
            self.lost += 1;
            return false;
        }
        if self.faults && random.one_in(DOUBLING) {
            self.doubled += 1;
            let at_ms = self.now_ms + 1 + random.below(DELAY_MS_MAX);
            self.put(at_ms, message.clone());
        }
        let at_ms = self.now_ms + 1 + random.below(DELAY_MS_MAX);
        self.put(at_ms, message);
        true
    }

    /// An event of a process's own clock.
    pub fn after(&mut self, delay_ms: u64, message: M) {
        self.put(self.now_ms + delay_ms, message);
    }

    /// The next event; the clock jumps to it.
    pub fn take_next(&mut self) -> Option<M> {
        let ((at_ms, _), message) = self.queue.pop_first()?;
        self.now_ms = self.now_ms.max(at_ms);
        Some(message)
    }
}
