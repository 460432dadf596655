//! Objects that a copy has and the store that sends has not any more.
//!
//! The stream of a whole store has its objects in order, and so tells which it has not: those between two that come.
//! One that was made where another was removed tells it by coming itself.
//!
//! Invariant: what is gone is certain only when the stream has come to its end.

use std::iter::Peekable;
use std::vec::IntoIter;

/// See the module.
pub(super) struct Gone {
    /// Objects of the copy behind the one that came last.
    left: Peekable<IntoIter<u64>>,
    /// The last that came.
    last: u64,
    gone: Vec<u64>,
    replaced: u64,
}

impl Gone {
    /// `ids`: the copy's objects, ascending.
    pub fn among(ids: Vec<u64>) -> Self {
        Self { left: ids.into_iter().peekable(), last: 0, gone: Vec::new(), replaced: 0 }
    }

    /// An object comes. `false`: not in order.
    pub fn comes(&mut self, id: u64) -> bool {
        while let Some(gone) = self.left.next_if(|ours| *ours < id) {
            self.gone.push(gone);
        }
        self.left.next_if_eq(&id);
        std::mem::replace(&mut self.last, id) < id
    }

    /// The copy had another object under the identifier of the one that came last.
    pub fn note_replaced(&mut self) {
        self.replaced += 1;
    }

    /// No more come: those that are there still, and how many there were before.
    pub fn end(mut self) -> (Vec<u64>, u64) {
        self.gone.extend(self.left);
        let count = self.gone.len() as u64 + self.replaced;
        (self.gone, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn what_does_not_come_is_gone(ours in prop::collection::btree_set(1..60u64, 0..40),
                                      come in prop::collection::btree_set(1..60u64, 0..40), again in 0..60u64) {
            let mut gone = Gone::among(ours.iter().copied().collect());
            for id in &come {
                prop_assert!(gone.comes(*id));
            }
            if come.last().is_some_and(|last| again <= *last) {
                prop_assert!(!gone.comes(again));
            }
            gone.note_replaced();
            let (found, count) = gone.end();
            prop_assert_eq!(count, found.len() as u64 + 1);
            prop_assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), &ours - &come);
        }
    }
}
