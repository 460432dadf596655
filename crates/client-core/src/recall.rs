//! Answers to recalls.
//!
//! A recall never waits for a caller of this client: it has a slot of its own, and the one lock that it takes, an open
//! inode's state, is never held by a call that the server keeps waiting for a recall.

use crate::files::Files;
use crate::lock::lock;
use crate::notice::Notice;
use crate::open_inode::FlushFor;
use crate::shell::Shell;
use weft_protocol::message::recall::Recall;
use weft_protocol::{InodeNumber, LeaseKey, LeaseMode, SessionId};

impl<S: Shell> Files<S> {
    /// Gives up what a recall to this session takes, after writing back what must not be lost with it and after the
    /// cache above has dropped it. Returns what is kept; `None`: it cannot be answered yet, and the shard asks again.
    /// One that is not answered for a term ends the session, with what it could not report.
    pub async fn answer_recall(&self, recall: &Recall, session: SessionId) -> Option<LeaseMode> {
        let shell = &self.calls().shell;
        shell.notice(Notice::Recall);
        if let LeaseKey::Data(inode) = recall.key {
            return self.give_up_data(inode, recall.stamp, session).await;
        }
        if let LeaseKey::Ranges(inode) = recall.key {
            let is_given_up = self.give_up_range(inode, recall.stamp, session).await;
            return is_given_up.then_some(LeaseMode::None);
        }
        if let LeaseKey::Inode(inode) = recall.key {
            if session == self.calls().session.id() {
                self.give_up_number(inode);
            }
            return Some(LeaseMode::None);
        }
        let dropped = self.calls().session.cache().recall(recall.key, recall.stamp);
        shell.invalidate(&dropped).await;
        Some(self.number_kept(recall.key))
    }

    /// Publishes what was written to a split file under its range. Returns false if that cannot be done now.
    async fn give_up_range(&self, inode: InodeNumber, stamp: u64, session: SessionId) -> bool {
        let calls = self.calls();
        calls.session.cache().note_range_recall(inode, stamp);
        let open = lock(&self.open).get(inode).cloned();
        match open.filter(|_| session == calls.session.id()) {
            Some(open) => open.give_up_range(&self.objects, stamp).await,
            None => true,
        }
    }

    async fn give_up_data(&self, inode: InodeNumber, stamp: u64, session: SessionId) -> Option<LeaseMode> {
        let calls = self.calls();
        calls.session.cache().note_data_recall(inode, stamp);
        let may_open = calls.session.opens.may_open(inode, stamp, false);
        let open = lock(&self.open).get(inode).cloned();
        if let Some(open) = &open {
            open.weaken(&self.objects, session, stamp).await;
            // Once it is answered the shard grants others what it knows of no lock of.
            if session == calls.session.id() && open.give_up_locks(&self.objects).await.is_err() {
                return None;
            }
        }
        // The kernel writes its dirty pages back to us before this returns.
        calls.shell.invalidate_inode(inode, true).await;
        let mut is_open = may_open;
        if let Some(open) = open {
            if let Err(error) = open.flush(&self.objects, FlushFor::Recall).await {
                calls.shell.notice(Notice::WritebackOnRecallFailed(inode, error));
            }
            // Once it is answered the shard lets others change the file as if it had no object, and the report that
            // gives it one may still come.
            if session == calls.session.id() && open.awaits_report_of_object().await {
                return None;
            }
            if open.is_dirty().await {
                // As long as the file counts as open, the shard asks the storage server what was written.
                is_open = true;
                calls.session.opens.stays_open(inode, stamp);
            } else {
                let is_dropped = self.drop_if_done(&open).await;
                let granted = open.stamp().await;
                if is_dropped && granted > stamp {
                    // The shard takes it for opened again since it recalled the lease.
                    calls.give_back(inode, granted, false);
                }
                // Opens that ended while the file was dirty have left its lease to this recall.
                is_open = may_open && calls.session.opens.is_doubtful(inode, stamp);
                let mut is_given_up = false;
                {
                    let mut table = lock(&self.open);
                    if open.is_nameless() && !is_open {
                        is_given_up = table.drop_idle(inode).is_some();
                    }
                    is_open |= table.get(inode).is_some_and(|open| open.is_open());
                }
                if is_given_up {
                    self.used(&open).await;
                }
            }
        }
        // What was written under a session that is over here was not reported: the shard asks for it now, and at the
        // session's end.
        is_open |= session != calls.session.id();
        Some(if is_open { LeaseMode::Open } else { LeaseMode::None })
    }
}
