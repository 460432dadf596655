//! Own changes that are under way.

use crate::cache::{Cache, Changing};
use crate::calls::Calls;
use crate::shell::Shell;

/// A change that is under way: what it changes is not believed as long as this lives.
pub(crate) struct Change<'a, S: Shell> {
    calls: &'a Calls<S>,
    what: Vec<Changing>,
}

impl<S: Shell> Calls<S> {
    /// To be called before a change is sent; the result is to be dropped when its reply was learnt.
    pub(crate) fn begin_change(&self, what: impl IntoIterator<Item = Changing>) -> Change<'_, S> {
        let what: Vec<_> = what.into_iter().collect();
        let mut cache = self.session.cache();
        what.iter().for_each(|what| cache.change_begins(*what));
        Change { calls: self, what }
    }
}

impl<S: Shell> Change<'_, S> {
    /// Ends it, with the cache in hand.
    pub fn end(mut self, cache: &mut Cache) {
        std::mem::take(&mut self.what).into_iter().for_each(|what| cache.change_ended(what));
    }
}

impl<S: Shell> Drop for Change<'_, S> {
    fn drop(&mut self) {
        if !self.what.is_empty() {
            let mut cache = self.calls.session.cache();
            self.what.drain(..).for_each(|what| cache.change_ended(what));
        }
    }
}
