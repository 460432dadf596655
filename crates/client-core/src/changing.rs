//! Own changes in flight: what they change is asked for until their replies were applied.

use crate::cache::{Cache, Changing};
use crate::calls::Calls;
use crate::shell::Shell;
use weft_protocol::{InodeNumber, Name};

/// A change in flight. What it changes counts as unknown as long as this lives.
pub(crate) struct Change<'a, S: Shell> {
    calls: &'a Calls<S>,
    what: Vec<Changing>,
}

impl<S: Shell> Calls<S> {
    /// To be called before a change of an inode is sent; the result is to be dropped when its reply was applied.
    pub(crate) fn begin_change(&self, what: Changing) -> Change<'_, S> {
        self.session.cache().change_begins(what);
        Change { calls: self, what: vec![what] }
    }

    /// As [`Calls::begin_change`], of a change of names: with each goes what it is known to name, whose links and times
    /// change too.
    pub(crate) fn begin_change_of_names<'n>(
        &self,
        names: impl IntoIterator<Item = (InodeNumber, &'n Name)>,
    ) -> Change<'_, S> {
        let mut cache = self.session.cache();
        let mut what = Vec::new();
        for (parent, name) in names {
            what.push(Changing::name(parent, name));
            what.extend(cache.latest_known(parent, name).map(|(inode, _)| Changing::Attributes(inode)));
        }
        what.iter().for_each(|what| cache.change_begins(*what));
        Change { calls: self, what }
    }
}

impl<S: Shell> Change<'_, S> {
    /// Drops it while the caller has the cache locked.
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
