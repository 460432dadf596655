//! Opens that are on their way.
//!
//! The reply to an open and a recall of what it grants come over two connections. A recall of a file that nobody here
//! has open is answered "nothing is kept"; but if an open is on its way the file may be open at the shard already, and
//! then that answer would take it from whoever gets the reply. So it is answered "it stays open", and when all opens of
//! that moment have ended without the file being open, the lease is given back.
//!
//! Invariant: an open has its file in the table of open inodes before it ends here.

use crate::client::Inner;
use crate::link::lock;
use std::collections::BTreeSet;
use std::sync::Mutex;
use weft_protocol::InodeNumber;

/// See the module.
#[derive(Default)]
pub(crate) struct Opens(Mutex<State>);

#[derive(Default)]
struct State {
    /// Number of the next open.
    next: u64,
    under_way: BTreeSet<u64>,
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

impl<'a> Opening<'a> {
    pub fn begin(inner: &'a Inner) -> Self {
        let mut state = lock(&inner.opens.0);
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number);
        Self { inner, number }
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
        state.under_way.remove(&number);
        let oldest = state.under_way.first().copied().unwrap_or(state.next);
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
        let begin = || {
            let mut state = lock(&opens.0);
            state.next += 1;
            let number = state.next - 1;
            state.under_way.insert(number);
            number
        };
        assert!(!opens.may_open(inode, 1));
        let (first, second) = (begin(), begin());
        assert!(opens.may_open(inode, 7));
        let later = begin();
        assert!(opens.end(second).is_empty());
        let ended = opens.end(first);
        assert_eq!(ended.iter().map(|doubtful| (doubtful.inode, doubtful.stamp)).collect::<Vec<_>>(), [(inode, 7)]);
        assert!(opens.end(later).is_empty() && !opens.may_open(inode, 8));
    }
}
