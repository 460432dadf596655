//! Objects of which an ended session may still have descriptors are abandoned before its fence is confirmed.
//!
//! On a thread of its own: a copy may take long, and holds up nobody but those who want what the session held. Without
//! space for the copy it is tried again until there is, or until the descriptors are closed.

use super::{Unsettled, confirm};
use crate::state::Node;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use weft_protocol::{Error, InodeNumber, ObjectId};

/// Rest before objects are tried again for whose copy there was no space.
const RETRY: Duration = Duration::from_secs(1);

/// The thread that abandons objects.
pub fn work(node: &Node, fences: &Receiver<Unsettled>) {
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
            fence.objects.retain(|(inode, object)| !is_abandoned(node, fence.session, *inode, *object));
            if fence.objects.is_empty() {
                confirm(node, &fence);
            } else {
                tracing::warn!(
                    "session {session} ended with descriptors: {} files wait to be copied, or for these to be closed",
                    fence.objects.len()
                );
                waiting.push(fence);
            }
        }
    }
}

/// Whether nothing that is written by a descriptor can land in the object any more.
fn is_abandoned(node: &Node, session: weft_protocol::SessionId, inode: InodeNumber, object: ObjectId) -> bool {
    let Some(server) = &node.store else { return true };
    match server.store.abandon(inode, object) {
        Ok(true) => {
            tracing::warn!("object {object} of inode {inode}: copied, since session {session} ended with a descriptor");
            true
        }
        Ok(false) | Err(Error::NoObject) => true,
        Err(error) => {
            tracing::debug!("object {object} of inode {inode} cannot be copied: {error}");
            false
        }
    }
}
