//! Why an operation on an open inode failed: the end of the session, where the error is a consequence of that.
//!
//! A client that was starved or cut off learns of the end from whatever it does next: a storage server refuses the
//! right or shuts the connection down, the shard has given the object away. The program is told the cause.

use super::OpenInode;
use super::state::State;
use crate::link::SlotFor;
use crate::objects::Objects;
use crate::shell::Shell;
use weft_protocol::{Error, Result, SessionId, routing};

/// Returns true if the end of a session may be the cause of this error.
fn may_follow(error: &Error) -> bool {
    matches!(error, Error::NoObject | Error::CapabilityRejected | Error::Unreachable)
}

impl<S: Shell> OpenInode<S> {
    /// Returns the result of an operation that began under the session `began`, with its cause. Asks the shard (one
    /// message) if the term has passed.
    pub(crate) async fn with_cause<T>(&self, io: &Objects<S>, began: SessionId, result: Result<T>) -> Result<T> {
        let Some(error) = result.as_ref().err().filter(|error| may_follow(error)) else { return result };
        let session = &io.calls.session;
        if session.id() == began {
            // If the shard does not answer either, the error stays.
            let _ = io.calls.ensure_term(routing::of_inode(self.inode), &self.term, SlotFor::Caller).await;
        }
        Err(if session.id() == began { error.clone() } else { Error::SessionEnded })
    }
}

impl<S: Shell> State<S> {
    /// Returns the reason for lost bytes that were written under the state's session.
    pub(super) fn cause_of_loss(&self, io: &Objects<S>, error: Error) -> Error {
        let has_ended = self.known.session() != io.calls.session.id();
        if has_ended && may_follow(&error) { Error::SessionEnded } else { error }
    }
}
