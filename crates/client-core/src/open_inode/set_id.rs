//! Set-id bits go with a user's first write, before it is made: a program that others may run with its owner's rights
//! is never one that somebody else has written to. (The kernel does so itself for writes through a mount.)
//!
//! What is not known here, bits that were set after the open, the shard clears when the write is reported.

use super::OpenInode;
use crate::objects::Objects;
use crate::shell::{Monitor, Shell};
use std::sync::atomic::Ordering;
use weft_protocol::{AttributeChanges, Attributes, Credentials, Error, Result};

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// The mode after a write of somebody without privileges.
fn cleared(mode: u16) -> u16 {
    let set_gid = if mode & GROUP_EXECUTE != 0 { SET_GID } else { 0 };
    mode & !SET_UID & !set_gid
}

impl<S: Shell> OpenInode<S> {
    /// Notes whether the file had set-id bits when it was opened.
    pub(super) fn note_set_id(&self, attributes: &Attributes) {
        self.set_id.store(cleared(attributes.mode) != attributes.mode, Ordering::Release);
    }

    /// Whether set-id bits are to be cleared before this user writes.
    pub(crate) fn has_set_id(&self, who: &Credentials) -> bool {
        who.uid != 0 && self.set_id.load(Ordering::Acquire)
    }

    /// Clears set-id bits for a user who is about to write. One message if the file has some.
    pub(crate) async fn clear_set_id(&self, io: &Objects<S>, who: &Credentials) -> Result<()> {
        if !self.has_set_id(who) {
            return Ok(());
        }
        let mode = self.state.lock().await.known.attributes().mode;
        let changes = AttributeChanges { mode: Some(cleared(mode)), ..AttributeChanges::default() };
        match self.set_attributes(io, who, &changes).await {
            // Refused: the mode is another one by now, and the report of the write clears what it has.
            Ok(_) | Err(Error::NotPermitted) => {
                self.set_id.store(false, Ordering::Release);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
