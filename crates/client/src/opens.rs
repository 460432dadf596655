//! Opens that are on their way.
//!
//! The reply to an open and a recall of what it grants come over two connections. A recall of a file that nobody here
//! has open is answered "nothing is kept"; but if an open is on its way the file may be open at the shard already, and
//! then that answer would take it from whoever gets the reply. So it is answered "it stays open", and when all opens of
//! that moment have ended without the file being open, the lease is given back.
//!
//! A report of a file's size by another handle of this client may pass the reply of an open on its way, or the cut that
//! it makes. So the files that are reported while opens are on their way are noted.
//!
//! Invariant: an open has its file in the table of open inodes before it ends here.

use crate::client::Inner;
use crate::link::lock;
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
    /// Numbers of those on their way, ascending.
    under_way: VecDeque<u64>,
    /// Files reported while any of these was under way.
    reported: BTreeMap<InodeNumber, Reported>,
    /// The same with their `before`, oldest first; some have been reported again.
    reported_order: VecDeque<(u64, InodeNumber)>,
    doubtful: Vec<Doubtful>,
}

/// A file of which a recall came.
struct Doubtful {
    /// Opens below this number were under way.
    before: u64,
    inode: InodeNumber,
    /// Stamp of the recall: a later grant is not given back.
    stamp: u64,
}

/// An open on its way; it ends when this is dropped.
pub(crate) struct Opening<'a> {
    inner: &'a Inner,
    number: u64,
}

/// The last report of a file.
#[derive(Clone, Copy)]
struct Reported {
    /// Opens below this number were under way.
    before: u64,
    /// Of its answer: replies to opens with smaller ones are from before it.
    stamp: u64,
}

impl<'a> Opening<'a> {
    pub fn begin(inner: &'a Inner) -> Self {
        Self { inner, number: inner.opens.begin() }
    }

    /// Whether the file was reported since this open began.
    pub fn was_reported(&self, inode: InodeNumber) -> bool {
        lock(&self.inner.opens.0).reported.get(&inode).is_some_and(|report| report.before > self.number)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        for doubtful in self.inner.opens.end(self.number) {
            let open = lock(&self.inner.open).get(doubtful.inode).cloned();
            if open.is_none_or(|open| !open.is_open()) {
                self.inner.give_back(doubtful.inode, doubtful.stamp);
            }
        }
    }
}

impl Opens {
    fn begin(&self) -> u64 {
        let mut state = lock(&self.0);
        let number = state.next;
        state.next += 1;
        state.under_way.push_back(number);
        number
    }

    /// A report of the file's size was answered. To be told before the handle that had it made can be closed.
    pub fn reported(&self, inode: InodeNumber, stamp: u64) {
        let mut state = lock(&self.0);
        if !state.under_way.is_empty() {
            let before = state.next;
            state.reported.insert(inode, Reported { before, stamp });
            state.reported_order.push_back((before, inode));
        }
    }

    /// Stamp of the file's last report, if replies to opens from before it may be on their way.
    pub fn report_of(&self, inode: InodeNumber) -> Option<u64> {
        lock(&self.0).reported.get(&inode).map(|report| report.stamp)
    }

    /// Whether a reply that opens the inode may be on its way. To be asked *before* the inode is looked up in the table
    /// of open inodes: an open that ends in between is found there.
    pub fn may_open(&self, inode: InodeNumber, stamp: u64) -> bool {
        let mut state = lock(&self.0);
        let any = !state.under_way.is_empty();
        if any {
            let before = state.next;
            state.doubtful.push(Doubtful { before, inode, stamp });
        }
        any
    }

    /// An open has ended. What is doubtful no more.
    fn end(&self, number: u64) -> Vec<Doubtful> {
        let mut state = lock(&self.0);
        if let Ok(index) = state.under_way.binary_search(&number) {
            state.under_way.remove(index);
        }
        let oldest = state.under_way.front().copied().unwrap_or(state.next);
        while let Some((before, inode)) = state.reported_order.pop_front_if(|(before, _)| *before <= oldest) {
            if state.reported.get(&inode).is_some_and(|report| report.before == before) {
                state.reported.remove(&inode);
            }
        }
        if state.doubtful.is_empty() {
            return Vec::new();
        }
        state.doubtful.extract_if(.., |doubtful| doubtful.before <= oldest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_ends_with_the_opens_of_its_time() {
        let opens = Opens::default();
        let inode = InodeNumber::from_raw(5);
        assert!(!opens.may_open(inode, 1));
        let (first, second) = (opens.begin(), opens.begin());
        assert!(opens.may_open(inode, 7));
        let later = opens.begin();
        assert!(opens.end(second).is_empty());
        let ended = opens.end(first);
        assert_eq!(ended.iter().map(|doubtful| (doubtful.inode, doubtful.stamp)).collect::<Vec<_>>(), [(inode, 7)]);
        assert!(opens.end(later).is_empty() && !opens.may_open(inode, 8));
    }

    #[test]
    fn a_report_is_noted_as_long_as_an_open_from_before_it_is_on_its_way() {
        let opens = Opens::default();
        let inode = InodeNumber::from_raw(5);
        opens.reported(inode, 3);
        assert_eq!(opens.report_of(inode), None, "nothing is on its way");
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
