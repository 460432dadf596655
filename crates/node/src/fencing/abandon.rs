//! Abandons the objects of which an ended session may still have descriptors, before its fence is confirmed.
//!
//! On a thread of its own: a copy may take long, and delays only those who wait for what the session held. Without
//! space the copy is retried until there is, or until the descriptors are closed.

use super::{Fencing, Unsettled};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use weft_protocol::{Error, InodeNumber, ObjectId, SessionId};
use weft_store_io::ObjectStore;

/// Delay before a copy that failed for lack of space is retried.
const RETRY: Duration = Duration::from_secs(1);

/// The thread that abandons objects.
pub fn work(fencing: &Arc<Fencing>, store: &dyn ObjectStore, fences: &Receiver<Unsettled>) {
    let mut waiting: Vec<Unsettled> = Vec::new();
    loop {
        let rest = if waiting.is_empty() { Duration::MAX } else { RETRY };
        match fences.recv_timeout(rest) {
            Ok(fence) => waiting.push(fence),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        for mut fence in std::mem::take(&mut waiting) {
            let session = fence.session;
            fence.objects.retain(|(inode, object)| !is_abandoned(store, session, *inode, *object));
            if fence.objects.is_empty() {
                fencing.confirm(&fence);
            } else {
                tracing::warn!(
                    "session {session} ended with open descriptors: {} files wait to be copied or to be closed",
                    fence.objects.len()
                );
                waiting.push(fence);
            }
        }
    }
}

/// Returns true once no write through a passed descriptor can reach the object.
fn is_abandoned(store: &dyn ObjectStore, session: SessionId, inode: InodeNumber, object: ObjectId) -> bool {
    match store.abandon(inode, object) {
        Ok(true) => {
            tracing::warn!("object {object} of inode {inode} copied: session {session} ended with a descriptor of it");
            true
        }
        Ok(false) | Err(Error::NoObject) => true,
        Err(error) => {
            tracing::debug!("cannot copy object {object} of inode {inode}: {error}");
            false
        }
    }
}
