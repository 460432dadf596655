//! The client machine: everything that one client decides, over its shell.
//!
//! Operations are in the files beside: `open.rs`, `names.rs`, `recall.rs`. Each layer knows the ones below only:
//!
//! ```text
//! Files     open files, names, recalls
//! Objects   file data, identifiers of new objects
//! Calls     calls to shards and nodes, exactly once
//! Session   leases and their terms
//! Shell     connections, clock, locks: not decided here
//! ```
//!
//! Lock order: `open` (0), a handle's reader (0), an open inode's state (1), links and batches (2), the cache (3).
//! None of rank 2 or 3 is held across an effect.

use crate::calls::Calls;
use crate::lock::lock;
use crate::notice::Notice;
use crate::objects::Objects;
use crate::open_inode::{FlushFor, OpenInode};
use crate::open_table::OpenTable;
use crate::shell::Shell;
use crate::tuning::Tuning;
use std::sync::{Arc, Mutex};
use weft_protocol::{Credentials, InodeNumber, Result};

/// See the module.
pub struct Files<S: Shell> {
    pub objects: Objects<S>,
    pub(crate) open: Mutex<OpenTable<S>>,
    /// Who opened a file last: handles of files that one user opens in a row share the credentials.
    opener: Mutex<Arc<Credentials>>,
}

impl<S: Shell> Files<S> {
    /// A client that has opened nothing. [`weft_protocol::Error::Unreachable`]: no node of the map has storage.
    pub fn new(calls: Calls<S>, tuning: Tuning) -> Result<Self> {
        let (objects, open) = (Objects::new(calls, tuning)?, Mutex::new(OpenTable::new(tuning.idle)));
        Ok(Self { objects, open, opener: Mutex::default() })
    }

    /// Calls to shards and nodes.
    pub fn calls(&self) -> &Calls<S> {
        &self.objects.calls
    }

    /// The inodes that are open, or were closed lately and whose lease is kept.
    pub fn open_inodes(&self) -> Vec<InodeNumber> {
        lock(&self.open).all().iter().map(|open| open.inode).collect()
    }

    /// Credentials for a handle to keep.
    pub(crate) fn kept(&self, who: &Credentials) -> Arc<Credentials> {
        let mut opener = lock(&self.opener);
        if **opener != *who {
            *opener = Arc::new(who.clone());
        }
        Arc::clone(&opener)
    }

    /// Writes back what is buffered and ends the session at every node. Later operations fail.
    pub async fn close(&self) -> Result<()> {
        let open = lock(&self.open).all();
        let mut result = Ok(());
        for inode in open {
            result = result.and(inode.flush(&self.objects, FlushFor::Program).await);
        }
        self.calls().end_sessions().await;
        result
    }

    /// Takes an inode out of the table, unless somebody has it open, or something of it is still to be written,
    /// reported or told to a program. Returns whether it did.
    pub(crate) async fn drop_if_done(&self, open: &OpenInode<S>) -> bool {
        // Nobody waits for an inode's state with the table locked.
        let drop = |is_done: bool| {
            let mut table = lock(&self.open);
            if !is_done && !open.is_nameless() {
                table.keep(open.inode);
            }
            is_done && table.drop_idle(open.inode).is_some()
        };
        open.drop_if_done(drop).await
    }

    /// Takes an inode without a name out of the table, with its lease, unless somebody has it open. While opens are in
    /// flight it stays until these have ended: who opens it is told what is lost of it.
    pub(crate) async fn drop_nameless(&self, open: &OpenInode<S>) {
        let (inode, stamp) = (open.inode, open.stamp().await);
        let may_open = self.calls().session.opens.may_open(inode, stamp, true);
        if !may_open && lock(&self.open).drop_idle(inode).is_some() {
            self.calls().give_back_now(inode, open.stamp().await, true);
        }
    }

    /// An operation without a handle is done with an inode. If that was dropped from the table meanwhile, with its
    /// lease, the operation may have opened it again, and nobody else gives that grant back.
    pub(crate) async fn used(&self, open: &Arc<OpenInode<S>>) {
        let is_kept = lock(&self.open).get(open.inode).is_some_and(|kept| Arc::ptr_eq(kept, open));
        if !is_kept {
            self.calls().session.opens.unawaited(open.inode, open.stamp().await);
        }
    }

    /// Whether a cache above may keep what was read of a file: not of one that is not open here.
    pub async fn may_cache(&self, inode: InodeNumber) -> bool {
        let Some(open) = lock(&self.open).get(inode).cloned() else { return false };
        let may_cache = open.may_cache(&self.objects).await;
        self.used(&open).await;
        may_cache
    }

    /// Writes back what a dropped handle left, where nobody can be told of an error.
    pub(crate) async fn flush_dropped(&self, open: &OpenInode<S>) -> bool {
        let flushed = open.flush(&self.objects, FlushFor::Drop).await;
        let is_clean = flushed.is_ok();
        if let Err(error) = flushed {
            self.calls().shell.notice(Notice::WritebackOnCloseFailed(open.inode, error));
        }
        is_clean
    }
}
