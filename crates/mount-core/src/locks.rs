//! Advisory locks of open files, as the kernel asks for them.
//!
//! The kernel keeps none itself: each request is passed to the client, and with it to the file's shard. The owner of a
//! process's locks is the kernel's number of its table of descriptors; `close` sends it with FLUSH. What was locked by
//! an open file description (`flock`, F_OFD_SETLK) is unlocked when the kernel releases that.
//!
//! Not here: waiting. A lock that has to wait is granted later, to the waiter that came with it.

use crate::operations::Mount;
use crate::shell::{MountShell, WaiterOf};
use weft_client_core::LockRequest;
use weft_protocol::{HeldLock, LockOwner, LockRange, RangeLock, Result};

impl<M: MountShell> Mount<M> {
    /// Locks what nothing is in the way of.
    pub async fn try_lock(&self, handle: u64, request: &LockRequest) -> Result<()> {
        let open_file = self.files.get(handle)?;
        self.client.try_lock(&open_file.file, request).await
    }

    /// Locks; the waiter is told when that is done, or why it is not. `wait` is a number of the client's.
    pub async fn lock(&self, handle: u64, request: &LockRequest, wait: u64, waiter: WaiterOf<M>) {
        match self.files.get(handle) {
            Ok(open_file) => self.client.lock(&open_file.file, request, wait, waiter).await,
            Err(error) => self.client.tell_waiter(waiter, Err(error)),
        }
    }

    /// Gives up a wait.
    pub async fn cancel_lock(&self, wait: u64) {
        self.client.cancel_lock(wait).await;
    }

    /// Unlocks ranges.
    pub async fn unlock(&self, handle: u64, owner: LockOwner, ranges: &[LockRange]) -> Result<()> {
        let open_file = self.files.get(handle)?;
        self.client.unlock(&open_file.file, owner, ranges).await
    }

    /// Returns a lock that is in the way of this one.
    pub async fn test_lock(&self, handle: u64, owner: LockOwner, lock: RangeLock) -> Result<Option<HeldLock>> {
        let open_file = self.files.get(handle)?;
        self.client.test_lock(&open_file.file, owner, lock).await
    }

    /// Unlocks what a process holds that closes a descriptor of the open file.
    pub(crate) async fn unlock_closed(&self, handle: u64, owner: LockOwner) -> Result<()> {
        let open_file = self.files.get(handle)?;
        self.client.unlock_all(&open_file.file, owner).await
    }
}
