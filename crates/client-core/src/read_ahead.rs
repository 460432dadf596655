//! What a sequential reader asks for before it wants it.
//!
//! Not here: the bytes on their way. This decides who is a sequential reader, and which range to ask for next.

/// A range to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    pub offset: u64,
    pub bytes: u32,
}

/// How one handle reads.
#[derive(Debug)]
pub struct ReadAhead {
    /// Where a sequential reader will read next.
    next: u64,
    /// Sequential reads in a row.
    run: u32,
}

/// Requests of a run that one of them may overtake, and their bytes at most.
const OVERTAKEN_MAX: u64 = 8;
const OVERTAKEN_BYTES_MAX: u64 = 1 << 20;
/// Sequential reads in a row before more is asked for than they want. The first read of a file at its beginning counts.
const RUN_MIN: u32 = 2;

impl Default for ReadAhead {
    fn default() -> Self {
        Self { next: 0, run: 1 }
    }
}

impl ReadAhead {
    /// A read of this range is about to be served; `at_hand`: by what was asked for before. Returns whether the reader
    /// is sequential. Several threads of one reader come a little out of order: what is at hand is of the same run.
    pub fn note(&mut self, offset: u64, bytes: u64, at_hand: bool) -> bool {
        self.run = if at_hand || offset == self.next { self.run.saturating_add(1) } else { 0 };
        self.next = offset + bytes;
        self.run >= RUN_MIN
    }
}

/// How far ahead is worth asking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// What waits at most for a reader of whom nothing is known yet. It grows with what he takes: who reads the
    /// beginning of a file should not wait for its middle.
    pub first_bytes: u64,
    /// What waits at most.
    pub ahead_bytes: u64,
    /// Bytes of one request at most.
    pub turn_bytes: u32,
}

/// Bytes of a file that were asked for in order, and are taken in order.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    start: u64,
    /// Up to here they were taken.
    pub taken: u64,
    /// Up to here they were asked for.
    pub asked: u64,
}

impl Lane {
    /// Nothing was asked for yet.
    pub fn at(offset: u64) -> Self {
        Self { start: offset, taken: offset, asked: offset }
    }

    /// Whether something was taken already: its reader goes on.
    pub fn has_begun(&self) -> bool {
        self.taken > self.start
    }

    /// Whether a request is the next, or one of the next few, of those that are on their way: others of its run may
    /// come after it. One that is further ahead is of a reader who jumps, and wants nothing of what lies between.
    pub fn leads_to(&self, offset: u64, bytes: u64) -> bool {
        let near = self.taken.saturating_add(bytes.saturating_mul(OVERTAKEN_MAX).min(OVERTAKEN_BYTES_MAX));
        (self.taken..=self.asked.min(near)).contains(&offset)
    }

    /// What to ask for next, when `wanted` bytes are to be taken now; `None`: nothing, as enough waits, or the file
    /// ends.
    pub fn next(&self, size: u64, wanted: u64, pace: &Pace) -> Option<Window> {
        let left = size.checked_sub(self.asked).filter(|left| *left > 0)?;
        let most = pace.ahead_bytes.min(wanted.max(pace.first_bytes).max(self.taken - self.start));
        let bytes = u32::try_from(left.min(most)).unwrap_or(u32::MAX).min(pace.turn_bytes);
        let waiting = self.asked - self.taken;
        (waiting == 0 || waiting + u64::from(bytes) <= most).then_some(Window { offset: self.asked, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sequential_reader_reads_ahead() {
        let mut reader = ReadAhead::default();
        assert!(reader.note(0, 10, false));
        assert!(reader.note(10, 10, false));
        assert!(!reader.note(500, 10, false));
        assert!(!reader.note(510, 10, false));
        assert!(reader.note(520, 10, false));
    }

    #[test]
    fn threads_of_one_reader_may_overtake_each_other() {
        let mut reader = ReadAhead::default();
        assert!(reader.note(0, 10, false));
        assert!(reader.note(20, 10, true));
        assert!(reader.note(10, 10, true));
        assert!(reader.note(30, 10, true));
    }

    const PACE: Pace = Pace { first_bytes: 1000, ahead_bytes: 2500, turn_bytes: 1000 };

    #[test]
    fn turns_are_asked_for_until_enough_waits_or_the_file_ends() {
        assert!(!Lane::at(3000).has_begun());
        let mut lane = Lane { start: 0, ..Lane::at(3000) };
        assert!(lane.has_begun());
        let mut asked = Vec::new();
        while let Some(window) = lane.next(7500, 1, &PACE) {
            asked.push((window.offset, window.bytes));
            lane.asked += u64::from(window.bytes);
            if lane.next(7500, 1, &PACE).is_none() {
                lane.taken = lane.asked;
            }
        }
        assert_eq!(asked, [(3000, 1000), (4000, 1000), (5000, 1000), (6000, 1000), (7000, 500)]);
        assert!(lane.leads_to(7500, 1) && !lane.leads_to(7499, 1));
    }

    #[test]
    fn who_jumps_far_is_not_led() {
        let lane = Lane { asked: 100_000, ..Lane::at(1000) };
        assert!(lane.leads_to(1000, 1) && lane.leads_to(1008, 1) && !lane.leads_to(1009, 1));
        assert!(lane.leads_to(81_000, 10_000) && !lane.leads_to(81_001, 10_000) && !lane.leads_to(999, 10_000));
        assert!(lane.leads_to(100_000, 50_000) && !lane.leads_to(100_001, 50_000));
    }

    #[test]
    fn as_much_waits_as_was_taken_or_is_wanted_now() {
        let pace = Pace { first_bytes: 100, ..PACE };
        let mut lane = Lane::at(0);
        assert_eq!(lane.next(9000, 10, &pace), Some(Window { offset: 0, bytes: 100 }));
        assert_eq!(lane.next(9000, 800, &pace), Some(Window { offset: 0, bytes: 800 }));
        lane = Lane { asked: 100, taken: 50, ..lane };
        assert_eq!(lane.next(9000, 10, &pace), None);
        lane = Lane { asked: 500, taken: 500, ..lane };
        assert_eq!(lane.next(9000, 10, &pace), Some(Window { offset: 500, bytes: 500 }));
    }
}
