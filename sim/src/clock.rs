//! The clocks of one machine: they begin at any time, and run a little fast or slow.
//!
//! No process ever sees the simulation's own time. What one process tells another about time is wrong by the difference
//! of their clocks, and a term that both count is over at one of them first.

use crate::random::Random;
use crate::script::Word;
use weft_protocol::Timestamp;

/// How far a clock may be fast or slow, millionths. Two clocks differ by at most twice that: 400 ms in a session's
/// term, of which a client leaves 500 ms unused (`SESSION_TERM_MARGIN_MS`).
const DRIFT_MAX: u64 = 20_000;
/// How long ago machines were started, at most, milliseconds.
const UPTIME_MS_MAX: u64 = 1_000_000;
/// How far the time of day may be off, milliseconds.
const SKEW_MS_MAX: u64 = 2000;
const MILLION: u64 = 1_000_000;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    started_ms: u64,
    /// Ticks while a million milliseconds pass.
    rate: u64,
    skew_ms: u64,
}

impl Clock {
    /// A clock that tells the simulation's time.
    pub const EXACT: Self = Self { started_ms: 0, rate: MILLION, skew_ms: 0 };

    /// Some clock.
    pub fn new(random: &mut Random) -> Self {
        Self {
            started_ms: random.below(UPTIME_MS_MAX),
            rate: MILLION - DRIFT_MAX + random.below(2 * DRIFT_MAX + 1),
            skew_ms: random.below(SKEW_MS_MAX),
        }
    }

    /// What `CLOCK_BOOTTIME` shows, milliseconds.
    pub fn boot_ms(&self, true_ms: u64) -> u64 {
        self.started_ms + true_ms * self.rate / MILLION
    }

    /// What the time of day is held for.
    pub fn wall(&self, true_ms: u64) -> Timestamp {
        let wall_ns = (true_ms + self.skew_ms) * 1_000_000;
        Timestamp(i64::try_from(wall_ns).expect("a run lasts some virtual hours"))
    }

    /// How long it takes until this clock has gone on by so much.
    pub fn wait_ms(&self, ms: u64) -> u64 {
        (ms * MILLION).div_ceil(self.rate)
    }
}

impl Word for Clock {
    fn write(&self) -> String {
        format!("{} {} {}", self.started_ms, self.rate, self.skew_ms)
    }

    fn read(text: &str) -> Option<Self> {
        let [started_ms, rate, skew_ms] = Vec::read(text)?.try_into().ok()?;
        let may_be = started_ms <= UPTIME_MS_MAX && rate.abs_diff(MILLION) <= DRIFT_MAX && skew_ms <= SKEW_MS_MAX;
        may_be.then_some(Self { started_ms, rate, skew_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_over_when_the_clock_says_so() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            let (clock, from_ms, ms) = (Clock::new(&mut random), random.below(100_000), random.below(20_000));
            let deadline = clock.boot_ms(from_ms) + ms;
            // Each reading is cut to whole milliseconds.
            let late = clock.boot_ms(from_ms + clock.wait_ms(ms) + 1);
            assert!((deadline..deadline + 4).contains(&late), "{clock:?}: {late} for {deadline}");
        }
    }
}
