//! Who and what keeps an open inode in the table: handles, a name, what is still to be written or reported; and the
//! lease that is given back when it goes.

use super::OpenInode;
use crate::shell::{Monitor, Shell};
use std::sync::atomic::Ordering;

impl<S: Shell> OpenInode<S> {
    /// Its last name was removed by this client.
    pub(crate) fn lose_name(&self) {
        self.nameless.store(true, Ordering::Release);
    }

    /// Whether its last name was removed by this client.
    pub(crate) fn is_nameless(&self) -> bool {
        self.nameless.load(Ordering::Acquire)
    }

    /// Whether its last name is gone, as far as this client was told.
    pub(crate) async fn is_unlinked(&self) -> bool {
        self.is_nameless() || self.state.lock().await.known.is_unlinked()
    }

    /// Calls `drop` with whether nothing of it is still to be written, reported or told to a program. Nothing of that
    /// changes before it returns.
    pub(crate) async fn drop_if_done(&self, drop: impl FnOnce(bool) -> bool) -> bool {
        let state = self.state.lock().await;
        drop(state.is_done())
    }

    /// Whether the shard may know of a new object, or hear of it later, by a report that has no answer.
    pub(crate) async fn awaits_report_of_object(&self) -> bool {
        let state = self.state.lock().await;
        state.known.object_is_new() && state.may_be_reported
    }

    /// An open was told a grant with this stamp: it has to be given back, also where the open fails yet.
    pub(crate) fn note_grant(&self, stamp: u64) {
        self.granted.fetch_max(stamp, Ordering::AcqRel);
    }

    /// Stamp of the lease's last grant.
    pub(crate) async fn stamp(&self) -> u64 {
        let known = self.state.lock().await.known.grant_stamp();
        known.max(self.granted.load(Ordering::Acquire))
    }

    /// Whether a handle of this client has it open.
    pub(crate) fn is_open(&self) -> bool {
        self.handles.load(Ordering::Acquire) > 0
    }
}
