//! The range of a split file that the session holds alone: what an opened handle writes there is published later.
//!
//! A sequential writer asks for the bytes ahead with its publications. While the range is held, a write within it costs
//! no call; its extents are published when the shard recalls the range, on flush and close, when this client asks about
//! the file, and with the first write beyond. Members of a group have no ranges.
//!
//! Invariant: what an opened handle has not published lies in the range, or in one whose lease may have expired.
//! Invariant: with a range held, nothing is called under the file's lock that the shard may keep waiting for the range
//! of another session: this one's would not be given up meanwhile. So the range is given up first, in the slot of the
//! recalls, which waits for no other call.
//! Not here: who is granted a range (weft-metadata's `front/ranges.rs`).
//! On a crash: of this client, what it has not published is lost, as what it buffers of other files.

use super::{SplitFile, State, UNPUBLISHED_MAX};
use crate::calls::AttributesAnswer;
use crate::lock::lock;
use crate::notice::Notice;
use crate::objects::Objects;
use crate::shell::{Monitor, Shell};
use std::ops::Range;
use std::sync::atomic::Ordering;
use weft_protocol::{Error, Grants, Result, SessionId, routing};

/// A range is at first so many times as long as the write before it, grows so many times when it was written to its
/// end, and has at most so many bytes.
const FIRST_FACTOR: u64 = 16;
const GROWTH_FACTOR: u64 = 4;
const BYTES_MAX: u64 = 1 << 30;
/// A writer whose range is taken from it over and over asks again after at most so many writes in a row.
const PATIENCE_MAX: u32 = 64;
/// How often a recall looks whether the file's lock is free, microseconds.
const POLL_US: u64 = 50;

/// A range that the session was granted.
#[derive(Clone, Copy)]
pub struct HeldRange {
    start: u64,
    end: u64,
    /// Of the reply that granted it.
    stamp: u64,
    session: SessionId,
    /// Nobody else has published bytes in it since this epoch.
    epoch: u64,
}

impl HeldRange {
    fn has(&self, range: &Range<u64>) -> bool {
        self.start <= range.start && range.end <= self.end
    }
}

/// Which range a writer asks for.
pub struct Pace {
    /// Where its latest write ended.
    end: u64,
    /// Writes until then, each of which began where the one before had ended.
    in_a_row: u32,
    /// So many in a row before a range is asked for.
    patience: u32,
    /// Bytes to ask for; 0: as many as fit the write.
    bytes: u64,
}

impl Pace {
    /// Of a writer that has not written.
    pub fn new() -> Self {
        Self { end: u64::MAX, in_a_row: 0, patience: 1, bytes: 0 }
    }

    fn wrote(&mut self, range: &Range<u64>) {
        self.in_a_row = if range.start == self.end { self.in_a_row.saturating_add(1) } else { 0 };
        self.end = range.end;
    }

    /// What to ask for with the publication of a write.
    fn wanted(&mut self, written: &Range<u64>) -> Option<(u64, u64)> {
        if self.in_a_row < self.patience {
            return None;
        }
        if self.bytes == 0 {
            self.bytes = (written.end - written.start).saturating_mul(FIRST_FACTOR).min(BYTES_MAX);
        }
        Some((written.start, written.end.saturating_add(self.bytes)))
    }

    /// The range was written to its end.
    fn used_up(&mut self) {
        (self.bytes, self.patience) = (self.bytes.saturating_mul(GROWTH_FACTOR).min(BYTES_MAX), 1);
    }

    /// The range was given up before its end was reached.
    fn interrupted(&mut self) {
        (self.in_a_row, self.bytes) = (0, 0);
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
    }

    /// The range that was asked for is not to be had.
    fn refused(&mut self) {
        self.bytes /= GROWTH_FACTOR;
    }
}

impl<S: Shell> SplitFile<S> {
    /// The range of this session, whether or not its lease still holds.
    pub(super) fn held(&self, io: &Objects<S>) -> Option<HeldRange> {
        lock(&self.range).filter(|held| held.session == io.calls.session.id())
    }

    /// The range, if its lease certainly holds.
    fn held_now(&self, io: &Objects<S>) -> Option<HeldRange> {
        let term = io.calls.session.term(routing::of_inode(self.inode));
        self.held(io).filter(|_| io.calls.shell.now_ms() < term.load(Ordering::Acquire))
    }

    /// The session holds no range any more. Only when all that was written under it is published, or lost.
    pub(super) fn forget_range(&self) {
        *lock(&self.range) = None;
    }

    /// A publication was answered that has given up the range and asked for this one.
    pub(super) fn take_answer(
        &self,
        io: &Objects<S>,
        state: &mut State<S>,
        answer: Option<&AttributesAnswer>,
        wanted: Option<(u64, u64)>,
    ) {
        // Of a file with another layout nothing is granted.
        let granted = answer.filter(|answer| answer.grants.contains(Grants::RANGE));
        let granted = granted.and_then(|answer| Some((answer.stamp, answer.attributes.layout.epoch()?)));
        let (Some((stamp, epoch)), Some((start, end))) = (granted, wanted) else { return self.forget_range() };
        state.range_stamp = Some(stamp);
        *lock(&self.range) = Some(HeldRange { start, end, stamp, session: state.session, epoch });
        // The recall may have overtaken the reply, and been answered.
        if io.calls.session.cache().range_recalled(self.inode, stamp) {
            self.forget_range();
        }
    }

    /// Pieces of an opened handle's write are in the part: publishes them, unless the range has them. Returns whether
    /// they are published.
    pub(super) async fn publish_written(
        &self,
        io: &Objects<S>,
        state: &mut State<S>,
        list: &[(&[u8], u64)],
    ) -> Result<bool> {
        let ranges = list.iter().map(|(bytes, offset)| *offset..*offset + bytes.len() as u64);
        let ranges: Vec<_> = ranges.filter(|range| !range.is_empty()).collect();
        if ranges.is_empty() {
            return Ok(true);
        }
        let held = self.held_now(io);
        let is_within = held.filter(|held| state.handed_out.is_none() && ranges.iter().all(|range| held.has(range)));
        let is_within = is_within.is_some();
        ranges.iter().for_each(|range| state.pace.wrote(range));
        if !is_within || state.unpublished.count() + ranges.len() > UNPUBLISHED_MAX {
            if held.is_some() && state.pace.in_a_row > 0 {
                state.pace.used_up();
            } else if held.is_some() {
                state.pace.interrupted();
            }
            self.give_up(io, state).await?;
        }
        ranges.iter().for_each(|range| state.landed(range.start, range.end - range.start));
        if self.held(io).is_some() {
            io.calls.shell.notice(Notice::HeldBack(self.inode));
            return Ok(false);
        }
        let wanted = match ranges.as_slice() {
            [range] => state.pace.wanted(range),
            _ => None,
        };
        self.publish_part(io, state, wanted).await?;
        if wanted.is_some() && self.held(io).is_none() {
            state.pace.refused();
        }
        Ok(true)
    }

    /// Publishes what was written in the range, and gives that up.
    async fn give_up(&self, io: &Objects<S>, state: &mut State<S>) -> Result<()> {
        let published = self.publish_unpublished(io, state).await;
        if state.handed_out.is_none() {
            self.forget_range();
        }
        published
    }

    /// As [`SplitFile::give_up`], before this client or another one asks about the file. If what was written is lost,
    /// the next write, flush or close tells of it.
    pub(super) async fn give_up_to_ask(&self, io: &Objects<S>, state: &mut State<S>) {
        if self.held(io).is_none() {
            return;
        }
        state.pace.interrupted();
        if let Err(error) = self.give_up(io, state).await
            && state.handed_out.is_none()
        {
            state.error.get_or_insert(error);
        }
    }

    /// What was written under the range is published: who was told of the file before has to ask again.
    pub(super) fn note_reported(&self, io: &Objects<S>) {
        self.reported.store(io.calls.session.next_report(), Ordering::Release);
        io.calls.shell.notice(Notice::Flushed(self.inode));
    }

    /// Gives up the range, for somebody here who asks about the file without this one's lock. Returns whether anything
    /// written under it was published since this client had made so many reports. `Err`: something is not published.
    pub(crate) async fn give_up_unpublished(&self, io: &Objects<S>, since: u64) -> Result<bool> {
        // Also one of a session that has ended, of which a loss is noted here.
        if lock(&self.range).is_some() {
            let mut state = self.state.lock().await;
            state.notice_session(io);
            self.give_up_to_ask(io, &mut state).await;
            if state.handed_out.is_some() {
                return Err(Error::Unreachable);
            }
            self.forget_range();
        }
        Ok(self.reported.load(Ordering::Acquire) > since)
    }

    /// The shard recalls what it granted before this stamp. Does not wait for whoever has given it up already, and may
    /// hold the file's lock for long. Returns false if what was written cannot be published now.
    pub(crate) async fn give_up_recalled(&self, io: &Objects<S>, stamp: u64) -> bool {
        while self.held(io).is_some_and(|held| held.stamp < stamp) {
            if let Some(mut state) = self.state.try_lock() {
                state.notice_session(io);
                io.calls.shell.notice(Notice::RangeRecalled(self.inode));
                self.give_up_to_ask(io, &mut state).await;
                return state.handed_out.is_none();
            }
            io.calls.shell.sleep_us(POLL_US).await;
        }
        true
    }

    /// Whether the range has all that a read asks for, and what others have published there before is known.
    pub(super) fn reads_held(&self, io: &Objects<S>, state: &State<S>, range: &Range<u64>) -> bool {
        let within = state.size.max(state.unpublished.end());
        let is_known = |held: HeldRange| {
            held.has(range) && state.knowledge.first_unknown(range, held.epoch).is_none() && range.end <= within
        };
        !range.is_empty() && self.held_now(io).is_some_and(is_known)
    }

    /// The range that is held, to be asked for once more by a publication that is not to give it up.
    pub(super) fn to_keep(&self, io: &Objects<S>) -> Option<(u64, u64)> {
        self.held_now(io).map(|held| (held.start, held.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a record after the last one, and returns how many bytes ahead are asked for.
    fn ahead(pace: &mut Pace, at: u64) -> Option<u64> {
        let record = at * 10..at * 10 + 10;
        pace.wrote(&record);
        pace.wanted(&record).map(|(_, end)| end - record.end)
    }

    #[test]
    fn a_range_grows_while_it_is_used_and_is_asked_for_less_often_when_it_is_taken() {
        let mut pace = Pace::new();
        assert_eq!(ahead(&mut pace, 0), None, "nothing says that the writer goes on");
        assert_eq!(ahead(&mut pace, 1), Some(160));
        pace.used_up();
        assert_eq!(ahead(&mut pace, 2), Some(640));
        pace.refused();
        assert_eq!(ahead(&mut pace, 3), Some(160));
        for taken in 1..=10 {
            pace.interrupted();
            let first = (0..100).find(|record| ahead(&mut pace, taken * 1000 + record).is_some());
            assert_eq!(first, Some(2u64.pow(u32::try_from(taken).expect("small")).min(64)));
        }
        assert_eq!(ahead(&mut pace, 50_000), None, "elsewhere");
        (0..40).for_each(|_| pace.used_up());
        assert_eq!(ahead(&mut pace, 50_001), Some(BYTES_MAX));
    }
}
