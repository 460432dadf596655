//! Pacing: all workers together move files for a share of the time, and rest for the remainder.
//!
//! ```text
//!  workers   |--a--|--a--|      |--a--|
//!            |----b----|        |---b---|
//!  together  [   turn    ] rest [ turn  ] rest
//! ```
//!
//! A turn begins when the first worker starts a piece, and ends when none has one. After [`TURN`] no worker starts
//! another piece in it, so that the pieces of several workers do not follow each other without an end.
//!
//! Invariant: of a turn and the rest after it, the turn is the share.
//! Not here: what a piece is.

use super::locked;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long workers start pieces in one turn.
const TURN: Duration = Duration::from_millis(100);

/// What a worker does that wants to start a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Work,
    Rest(Duration),
    /// Until another worker has ended its piece.
    AwaitOthers,
}

/// The machine. Times count from any moment.
#[derive(Debug)]
struct Turns {
    percent: u32,
    /// Workers with a piece.
    working: usize,
    /// When the current turn began.
    begun: Duration,
    /// Until then no turn begins.
    rests_until: Duration,
}

impl Turns {
    fn new(percent: u32) -> Self {
        Self { percent, working: 0, begun: Duration::ZERO, rests_until: Duration::ZERO }
    }

    /// A worker wants to start a piece. After [`Step::Work`] it has one.
    fn start(&mut self, now: Duration) -> Step {
        if self.working == 0 {
            if now < self.rests_until {
                return Step::Rest(self.rests_until - now);
            }
            self.begun = now;
        } else if self.percent < 100 && now - self.begun >= TURN {
            return Step::AwaitOthers;
        }
        self.working += 1;
        Step::Work
    }

    /// A worker has ended its piece.
    fn end(&mut self, now: Duration) {
        self.working = self.working.checked_sub(1).expect("a worker that ends a piece has started it");
        if self.working == 0 {
            self.rests_until = now + (now - self.begun) * (100 - self.percent) / self.percent;
        }
    }
}

/// Makes workers wait for their turns.
pub struct Pacer {
    /// Held for a few instructions.
    turns: Mutex<Turns>,
    /// A worker has ended its piece.
    ended: Condvar,
    since: Instant,
}

impl Pacer {
    pub fn new(percent: u32) -> Self {
        Self { turns: Mutex::new(Turns::new(percent)), ended: Condvar::new(), since: Instant::now() }
    }

    /// Starts a piece, when it is time for it. Followed by [`Pacer::end`].
    pub fn start(&self) {
        let mut turns = locked(&self.turns);
        loop {
            match turns.start(self.since.elapsed()) {
                Step::Work => return,
                Step::Rest(time) => {
                    drop(turns);
                    thread::sleep(time);
                    turns = locked(&self.turns);
                }
                Step::AwaitOthers => turns = self.ended.wait(turns).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    pub fn end(&self) {
        locked(&self.turns).end(self.since.elapsed());
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What workers did whose pieces take so many milliseconds each.
    struct Run {
        /// Milliseconds in which one worker or more had a piece, and all.
        busy_ms: u64,
        all_ms: u64,
        /// Milliseconds that workers had pieces, of all of them together.
        worked_ms: u64,
    }

    fn run(percent: u32, pieces_ms: &[u64], until_ms: u64) -> Run {
        let mut turns = Turns::new(percent);
        // When the piece of each worker ends.
        let mut ends_ms: Vec<Option<u64>> = vec![None; pieces_ms.len()];
        let (mut busy_ms, mut worked_ms) = (0, 0);
        for now_ms in 0..until_ms {
            let now = Duration::from_millis(now_ms);
            for end in ends_ms.iter_mut().filter(|end| **end == Some(now_ms)) {
                turns.end(now);
                *end = None;
            }
            for (end, piece_ms) in ends_ms.iter_mut().zip(pieces_ms) {
                if end.is_none() && turns.start(now) == Step::Work {
                    *end = Some(now_ms + piece_ms);
                }
            }
            let working = ends_ms.iter().flatten().count() as u64;
            worked_ms += working;
            busy_ms += u64::from(working > 0);
        }
        Run { busy_ms, all_ms: until_ms, worked_ms }
    }

    #[test]
    fn workers_move_files_for_the_share_of_the_time_together() {
        for pieces_ms in [&[7, 11, 13, 17][..], &[20, 20, 20, 20], &[3, 40, 250, 900], &[30]] {
            for percent in [1, 20, 50, 80] {
                let Run { busy_ms, all_ms, .. } = run(percent, pieces_ms, 200_000);
                // The end may be in the midst of a turn.
                let most_ms = all_ms * u64::from(percent) / 100 + 1_000;
                assert!(busy_ms <= most_ms, "{percent} % {pieces_ms:?}: {busy_ms} of {all_ms} ms");
                assert!(busy_ms * 100 >= all_ms * u64::from(percent) * 9 / 10, "{percent} % {pieces_ms:?}: {busy_ms}");
            }
        }
    }

    #[test]
    fn workers_use_their_turn_at_the_same_time() {
        let Run { busy_ms, worked_ms, .. } = run(50, &[7, 11, 13, 17], 100_000);
        assert!(worked_ms > busy_ms * 3, "{worked_ms} in {busy_ms} ms: nearly four at a time");
    }

    #[test]
    fn with_the_whole_time_nobody_waits() {
        let Run { worked_ms, all_ms, .. } = run(100, &[7, 250], 10_000);
        assert_eq!(worked_ms, 2 * all_ms);
    }
}
