//! Set-id bits go with a user's first write, before it is made: a program that others may run with its owner's rights
//! is never one that somebody else has written to. A mount's kernel leaves it to this side, and says of each write
//! whether its program is one whose writes clear them.
//!
//! What is not known here, bits that another client set after the open, the shard clears when the write is reported;
//! and so it does with writes of a kernel to the object's file, which this side does not see: what has such bits when
//! it is opened is not given to a kernel.

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

    /// Whether the file had set-id bits when it was opened, or has got some by this client since.
    pub fn may_have_set_id(&self) -> bool {
        self.set_id.load(Ordering::Acquire)
    }

    /// Whether set-id bits are to be cleared before this user writes.
    pub(crate) fn has_set_id(&self, who: &Credentials) -> bool {
        who.uid != 0 && self.may_have_set_id()
    }

    /// Clears set-id bits for a user who is about to write. One message if the file has some.
    pub(crate) async fn clear_set_id(&self, io: &Objects<S>, who: &Credentials) -> Result<()> {
        if !self.has_set_id(who) {
            return Ok(());
        }
        self.clear_set_id_now(io, who).await
    }

    /// Clears set-id bits before a write that clears them, whoever opened the file.
    pub async fn clear_set_id_now(&self, io: &Objects<S>, who: &Credentials) -> Result<()> {
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
