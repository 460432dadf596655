//! Opens in flight.
//!
//! The reply to an open and a recall of what it grants come over two connections. A recall of a file that nobody here
//! has open is answered "nothing is kept"; but if an open is in flight, the file may be open at the shard already,
//! and that answer would take it from the caller of the open. So the recall is answered "it stays open", and when all
//! opens of that moment have ended without the file being open, the lease is given back. So it is with the lease of a
//! file that is closed meanwhile.
//!
//! A report of a file's size by another handle of this client may overtake the reply of an open in flight, or the cut
//! that it makes. So files that are reported while opens are in flight are recorded.
//!
//! Invariant: an open has its file in the table of open inodes before it ends here.

use crate::lock::lock;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use weft_protocol::InodeNumber;

/// See the module.
#[derive(Default)]
pub(crate) struct Opens(Mutex<State>);

#[derive(Default)]
struct State {
    /// Number of the next open.
    next: u64,
    /// Numbers of those in flight, ascending.
    in_flight: VecDeque<u64>,
    /// Files reported while any of these was in flight.
    reported: BTreeMap<InodeNumber, Reported>,
    /// The same with their `before`, oldest first; some have been reported again.
    reported_order: VecDeque<(u64, InodeNumber)>,
    doubtful: Vec<Doubtful>,
}

/// A file that was recalled, or closed, while it may have been being opened.
pub(crate) struct Doubtful {
    /// Opens below this number were in flight.
    before: u64,
    pub inode: InodeNumber,
    /// Stamp of the recall, or of the last grant: a later one is not given back.
    pub stamp: u64,
    /// It is to be given back at once: its space is free then.
    pub at_once: bool,
    /// The reply to an open that was given up, and is awaited by nobody: if the file is kept here, with a lease of
    /// before, this grant is given back with that.
    pub is_unawaited: bool,
}

/// The last report of a file.
#[derive(Clone, Copy)]
struct Reported {
    /// Opens below this number were in flight.
    before: u64,
    /// Of its answer: replies to opens with smaller ones precede it.
    stamp: u64,
}

impl Opens {
    /// An open begins; returns its number.
    pub fn begin(&self) -> u64 {
        let mut state = lock(&self.0);
        let number = state.next;
        state.next += 1;
        state.in_flight.push_back(number);
        number
    }

    /// Whether the file was reported since the open of this number began.
    pub fn was_reported_since(&self, inode: InodeNumber, number: u64) -> bool {
        lock(&self.0).reported.get(&inode).is_some_and(|report| report.before > number)
    }

    /// A report of the file's size was answered. Must be called before the handle that made it can be closed.
    pub fn reported(&self, inode: InodeNumber, stamp: u64) {
        let mut state = lock(&self.0);
        if !state.in_flight.is_empty() {
            let before = state.next;
            state.reported.insert(inode, Reported { before, stamp });
            state.reported_order.push_back((before, inode));
        }
    }

    /// Stamp of the file's last report, if replies to opens that precede it may be in flight.
    pub fn report_of(&self, inode: InodeNumber) -> Option<u64> {
        lock(&self.0).reported.get(&inode).map(|report| report.stamp)
    }

    /// Whether a reply that opens the inode may be in flight. Must be asked *before* the inode is looked up in the
    /// table of open inodes: an open that ends in between is found there.
    pub fn may_open(&self, inode: InodeNumber, stamp: u64, at_once: bool) -> bool {
        let mut state = lock(&self.0);
        let any = !state.in_flight.is_empty();
        if any {
            let before = state.next;
            state.doubtful.push(Doubtful { before, inode, stamp, at_once, is_unawaited: false });
        }
        any
    }

    /// The call of an open that was given up has been settled: the shard takes the file for open, by a reply with this
    /// stamp that nobody awaits.
    pub fn unawaited(&self, inode: InodeNumber, stamp: u64) {
        let mut state = lock(&self.0);
        let before = state.next;
        state.doubtful.push(Doubtful { before, inode, stamp, at_once: false, is_unawaited: true });
    }

    /// What is to become of a file that is doubtful no more cannot be said yet: it is asked again when the next open
    /// ends, or by [`Opens::certain`].
    pub fn decide_later(&self, doubtful: Doubtful) {
        lock(&self.0).doubtful.push(doubtful);
    }

    /// Files that are doubtful no more, of those that were made so when no open was in flight.
    pub fn certain(&self) -> Vec<Doubtful> {
        lock(&self.0).take_certain()
    }

    /// Whether the opens because of which the file was doubtful at this stamp are still in flight. Must be asked, as
    /// [`Opens::may_open`], before the inode is looked up.
    pub fn is_doubtful(&self, inode: InodeNumber, stamp: u64) -> bool {
        lock(&self.0).doubtful.iter().any(|doubtful| doubtful.inode == inode && doubtful.stamp == stamp)
    }

    /// A file that was recalled with this stamp counts as open until it is closed: nothing is to be given back.
    pub fn stays_open(&self, inode: InodeNumber, stamp: u64) {
        lock(&self.0).doubtful.retain(|doubtful| doubtful.inode != inode || doubtful.stamp > stamp);
    }

    /// An open has ended. Returns the files that are doubtful no more.
    pub fn end(&self, number: u64) -> Vec<Doubtful> {
        let mut state = lock(&self.0);
        let index = state.in_flight.binary_search(&number).expect("an open ends once");
        state.in_flight.remove(index);
        let oldest = state.oldest();
        while let Some((before, inode)) = state.reported_order.pop_front_if(|(before, _)| *before <= oldest) {
            if state.reported.get(&inode).is_some_and(|report| report.before == before) {
                state.reported.remove(&inode);
            }
        }
        state.take_certain()
    }
}

impl State {
    /// The oldest open in flight, or the next one.
    fn oldest(&self) -> u64 {
        self.in_flight.front().copied().unwrap_or(self.next)
    }

    fn take_certain(&mut self) -> Vec<Doubtful> {
        if self.doubtful.is_empty() {
            return Vec::new();
        }
        let oldest = self.oldest();
        self.doubtful.extract_if(.., |doubtful| doubtful.before <= oldest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_ends_with_the_opens_of_its_time() {
        let opens = Opens::default();
        let inode = InodeNumber::from_raw(5);
        assert!(!opens.may_open(inode, 1, false));
        let (first, second) = (opens.begin(), opens.begin());
        assert!(opens.may_open(inode, 7, false));
        let later = opens.begin();
        assert!(opens.end(second).is_empty());
        assert!(opens.is_doubtful(inode, 7) && !opens.is_doubtful(inode, 8));
        let ended = opens.end(first);
        assert_eq!(ended.iter().map(|doubtful| (doubtful.inode, doubtful.stamp)).collect::<Vec<_>>(), [(inode, 7)]);
        assert!(!opens.is_doubtful(inode, 7));
        assert!(opens.may_open(inode, 8, false) && opens.may_open(inode, 9, false));
        opens.stays_open(inode, 8);
        assert_eq!(opens.end(later).iter().map(|doubtful| doubtful.stamp).collect::<Vec<_>>(), [9]);
        assert!(!opens.may_open(inode, 10, false));
    }

    #[test]
    fn what_nobody_awaits_is_certain_once_the_opens_of_its_time_have_ended() {
        let opens = Opens::default();
        let inode = InodeNumber::from_raw(5);
        let first = opens.begin();
        opens.unawaited(inode, 7);
        assert!(opens.certain().is_empty());
        assert_eq!(opens.end(first).len(), 1);
        opens.unawaited(inode, 8);
        assert_eq!(opens.certain().iter().map(|doubtful| doubtful.stamp).collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn a_report_is_noted_as_long_as_an_open_from_before_it_is_on_its_way() {
        let opens = Opens::default();
        let inode = InodeNumber::from_raw(5);
        opens.reported(inode, 3);
        assert_eq!(opens.report_of(inode), None, "nothing is in flight");
        let first = opens.begin();
        opens.reported(inode, 4);
        let second = opens.begin();
        opens.reported(inode, 6);
        opens.end(first);
        assert_eq!(opens.report_of(inode), Some(6));
        opens.end(second);
        assert_eq!(opens.report_of(inode), None);
        assert!(lock(&opens.0).reported_order.is_empty());
    }
}
