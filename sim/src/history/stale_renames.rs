//! Renames between two directories that the kernel of a mount refuses by itself, with ESTALE.
//!
//! Another client has renamed a directory that this kernel knows under its former name. A rename between two
//! directories that finds it by its new one holds the lock that `d_splice_alias` needs to move the dentry. A recall has
//! the kernel drop the former name, unless something is open below, or the lease on it had run out
//! (docs/guide/consistency.md).

use super::Recorded;
use super::posix::{Id, State};
use crate::kernel::requests::Errno;
use crate::kernel::{Call, CallResult};
use crate::system_calls::NATIVE;
use weft_protocol::limits::SESSION_TERM_MS;

fn paths(call: &Call) -> Vec<&[String]> {
    match call {
        Call::Open { path, .. }
        | Call::Stat { path }
        | Call::CountLinks { path }
        | Call::Truncate { path, .. }
        | Call::Mkdir { path, .. }
        | Call::Unlink { path }
        | Call::Rmdir { path } => vec![path],
        Call::Link { from, to } | Call::Rename { from, to, .. } => vec![from, to],
        _ => Vec::new(),
    }
}

impl State {
    /// A client has given these another name.
    pub(super) fn note_renamed(&mut self, client: usize, renamed: &[Id]) {
        for id in renamed {
            self.inode_mut(*id).renamed_by = Some(client);
        }
    }

    /// A call has walked these directories: from then the client's kernel holds leases on their names for a term.
    pub(super) fn note_walk(&mut self, recorded: &Recorded, told: &CallResult) {
        if matches!(told, Err(Errno::EIO | Errno::ESTALE)) {
            return;
        }
        for path in paths(&recorded.call) {
            for end in 1..=path.len() {
                let Ok(id) = self.find(&path[..end]) else { break };
                if self.is_directory(id) {
                    self.walked.insert((recorded.client, id), recorded.begun_ms);
                }
            }
        }
    }

    /// Whether the kernel may have refused the rename by itself.
    pub(super) fn may_be_stale(&self, recorded: &Recorded, told: &CallResult) -> bool {
        let Call::Rename { from, to, .. } = &recorded.call else { return false };
        let parent = |path: &[String]| path.split_last().and_then(|(_, parent)| self.find(parent).ok());
        *told == Err(Errno::ESTALE)
            && recorded.client != NATIVE
            && parent(from) != parent(to)
            && [from, to].into_iter().any(|path| self.find(path).is_ok_and(|id| self.is_known_elsewhere(id, recorded)))
    }

    /// Whether the client's kernel may know the directory under its former name.
    fn is_known_elsewhere(&self, directory: Id, recorded: &Recorded) -> bool {
        let client = recorded.client;
        let open = self.open.values().map(|open| (open.client, open.inode));
        let mapped = self.mapped.values().map(|mapped| (mapped.client, mapped.inode));
        let is_open_below = || open.chain(mapped).any(|(by, id)| by == client && self.is_within(id, directory));
        let walked_ms = self.walked.get(&(client, directory));
        let is_lease_over = walked_ms.is_some_and(|walked_ms| walked_ms + SESSION_TERM_MS <= recorded.begun_ms);
        let by_another = self.inode(directory).renamed_by.is_some_and(|by| by != client);
        self.is_directory(directory) && by_another && (is_lease_over || is_open_below())
    }
}
