//! Slots out of which somebody moves bytes without looking at them, as what puts them into another machine's memory.

use crate::huge::HugePage;
use std::ops::Range;
use std::sync::Arc;

/// A slot that was filled. As long as one of these is there the slot is not filled again, nobody has a reference to its
/// bytes, and its memory stays.
#[derive(Clone, Debug)]
pub struct SharedSlot(Arc<Place>);

#[derive(Debug)]
struct Place {
    page: HugePage,
    range: Range<usize>,
}

impl SharedSlot {
    /// The first one, which the ring keeps: others are copies of it.
    pub(super) fn new(page: HugePage, range: Range<usize>) -> Self {
        Self(Arc::new(Place { page, range }))
    }

    /// Whether there is no copy of it.
    pub(super) fn is_alone(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some()
    }

    /// The page that it lies in.
    pub fn page(&self) -> &HugePage {
        &self.0.page
    }

    /// Where its bytes are in the page.
    pub fn range(&self) -> Range<usize> {
        self.0.range.clone()
    }
}
