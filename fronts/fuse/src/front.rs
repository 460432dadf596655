//! What all requests of a mount share, and how they are answered that tell no more than success.

use crate::convert;
use crate::credentials::{Caller, Callers};
use crate::locks::LockWaits;
use crate::shell::FuseShell;
use fuser::{Errno, OpenFlags, ReplyEmpty};
use weft_client::{Client, OpenOptions};
use weft_mount_core::Mount;
use weft_protocol::{Credentials, Error, Result};

/// What all requests of a mount share.
pub struct Front {
    pub mount: Mount<FuseShell>,
    callers: Callers,
    pub locks: LockWaits,
    /// Writes to split files go on at another node when that of this machine is full.
    spill: bool,
    /// Lives as long as the mount: the session ends with it.
    pub client: Client,
}

impl Front {
    /// Over a client that has done nothing yet.
    pub fn new(client: Client, spill: bool) -> Self {
        let callers = Callers::new(client.credentials(), client.is_for_one_user());
        let (mount, locks) = (Mount::new(client.machine(), FuseShell::new()), LockWaits::default());
        Self { mount, callers, locks, spill, client }
    }

    /// What `open` asks for.
    pub fn open_options(&self, flags: OpenFlags) -> OpenOptions {
        OpenOptions { spill: self.spill, ..convert::open_options(flags) }
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
