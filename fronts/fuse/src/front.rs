//! What all requests of a mount share, and how they are answered that tell no more than success.

use crate::convert;
use crate::credentials::{Caller, Callers};
use crate::locks::LockWaits;
use crate::shell::FuseShell;
use fuser::{Errno, ReplyEmpty};
use weft_client::Client;
use weft_mount_core::Mount;
use weft_protocol::{Credentials, Error, Result};

/// What all requests of a mount share.
pub struct Front {
    pub mount: Mount<FuseShell>,
    callers: Callers,
    pub locks: LockWaits,
    /// Lives as long as the mount: the session ends with it.
    pub client: Client,
}

impl Front {
    /// Over a client that has done nothing yet.
    pub fn new(client: Client) -> Self {
        let callers = Callers::new(client.credentials(), client.is_for_one_user());
        Self { mount: Mount::new(client.machine(), FuseShell::new()), callers, locks: LockWaits::default(), client }
    }

    /// The credentials of a caller.
    pub fn who(&self, caller: Caller) -> Credentials {
        self.callers.credentials(caller)
    }
}

/// The error as a number, written down on the way.
pub fn failed(operation: &str, error: &Error) -> Errno {
    tracing::debug!(operation, %error);
    convert::errno(error)
}

/// Answers a request whose reply is an error or nothing.
pub fn answer(operation: &str, result: Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(failed(operation, &error)),
    }
}
