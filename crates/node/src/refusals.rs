//! Log lines about refused peers, rate-limited so that strangers cannot fill the log's file system.
//!
//! In each minute the first refusals get a line each. The others are counted, and logged as one number when the minute
//! is over. `weft status -v` shows the total.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Refusals that get a line of their own, in each period.
const LINES_MAX: u32 = 10;
const PERIOD_MS: u64 = 60_000;

/// Refusals of this and earlier periods.
#[derive(Default)]
pub struct Refusals(Mutex<Period>);

/// The present period.
#[derive(Default)]
struct Period {
    /// Milliseconds since boot; a period begins with a refusal.
    end_ms: u64,
    lines: u32,
    untold: u64,
}

/// What to do about a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    Write,
    /// Count it; `first`: nothing was counted before.
    Count {
        first: bool,
    },
}

impl Period {
    /// Notes a refusal.
    fn note(&mut self, now_ms: u64) -> Line {
        if now_ms >= self.end_ms {
            // What is untold yet is told with this period.
            (self.end_ms, self.lines) = (now_ms + PERIOD_MS, 0);
        }
        if self.lines < LINES_MAX {
            self.lines += 1;
            return Line::Write;
        }
        self.untold += 1;
        Line::Count { first: self.untold == 1 }
    }

    fn due_ms(&self) -> Option<u64> {
        (self.untold > 0).then_some(self.end_ms)
    }

    /// The number of those that got no line, when the period is over.
    fn take_untold(&mut self, now_ms: u64) -> Option<u64> {
        (self.due_ms()? <= now_ms).then(|| std::mem::take(&mut self.untold))
    }
}

impl Refusals {
    fn lock(&self) -> MutexGuard<'_, Period> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs that a peer was refused, or counts it. True: [`Refusals::due_ms`] has changed.
    pub fn log(&self, now_ms: u64, what: fmt::Arguments<'_>) -> bool {
        self.log_untold(now_ms);
        let noted = self.lock().note(now_ms);
        if noted == Line::Write {
            tracing::warn!("{what}");
        }
        noted == Line::Count { first: true }
    }

    /// When [`Refusals::log_untold`] has something to log.
    pub fn due_ms(&self) -> Option<u64> {
        self.lock().due_ms()
    }

    /// Logs how many refusals were counted, when their minute is over.
    pub fn log_untold(&self, now_ms: u64) {
        let untold = self.lock().take_untold(now_ms);
        if let Some(count) = untold {
            tracing::warn!("{count} more connections were refused within a minute");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_of_strangers_has_a_bounded_number_of_lines() {
        let mut refusals = Period::default();
        let noted: Vec<Line> = (0..1000).map(|index| refusals.note(5_000 + index)).collect();
        assert_eq!(noted.iter().filter(|line| **line == Line::Write).count(), LINES_MAX as usize);
        assert_eq!(noted.iter().filter(|line| **line == Line::Count { first: true }).count(), 1);
        assert_eq!((refusals.due_ms(), refusals.take_untold(64_999)), (Some(65_000), None));
        assert_eq!((refusals.take_untold(65_000), refusals.due_ms()), (Some(990), None));
        assert_eq!(refusals.note(65_001), Line::Write, "the next minute begins anew");
        assert_eq!(refusals.take_untold(200_000), None, "nothing to tell");
    }

    #[test]
    fn refusals_now_and_then_get_a_line_each() {
        let mut refusals = Period::default();
        assert!((0..100).all(|minute| refusals.note(minute * PERIOD_MS) == Line::Write));
    }
}
