//! A file that a program has open: by its own client, or by a group that this has joined.

use crate::bytes::OperationId;
use crate::shell::SimShell;
use weft_client_core::{Files, FlushFor, Handle, Member, OpenOptions, Written};
use weft_protocol::{InodeNumber, Result};

/// See the module.
pub(crate) enum Opened {
    Own(Handle<SimShell>),
    OfGroup(Box<Member<SimShell>>),
}

impl Opened {
    /// The handle of a program that joins no group.
    pub fn own(&self) -> &Handle<SimShell> {
        match self {
            Self::Own(handle) => handle,
            Self::OfGroup(_) => unreachable!("only programs of groups have such handles"),
        }
    }

    /// The handle of a program that has joined a group.
    pub fn member(&self) -> Option<&Member<SimShell>> {
        match self {
            Self::Own(_) => None,
            Self::OfGroup(member) => Some(member),
        }
    }

    /// Whether what it writes is published when it synchronizes.
    pub fn holds_back(&self) -> bool {
        let open = self.member().and_then(Member::exported);
        open.is_some_and(|open| open.layout.epoch().is_some() && !open.append)
    }

    pub fn inode(&self) -> InodeNumber {
        match self {
            Self::Own(handle) => handle.open.inode,
            Self::OfGroup(member) => member.inode,
        }
    }

    pub fn options(&self) -> &OpenOptions<OperationId> {
        match self {
            Self::Own(handle) => &handle.options,
            Self::OfGroup(member) => &member.options,
        }
    }

    /// Whether the file has an object, as far as is known without a message.
    pub async fn has_object(&self, files: &Files<SimShell>) -> bool {
        match self {
            Self::Own(handle) => handle.open.has_object(&files.objects).await,
            Self::OfGroup(_) => true,
        }
    }

    pub async fn read_at(&self, files: &Files<SimShell>, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match self {
            Self::Own(handle) => handle.read_at(&files.objects, buffer, offset).await,
            Self::OfGroup(member) => member.read_at(files, buffer, offset).await,
        }
    }

    /// `tagged`: the append that it is, for the model.
    pub async fn write_at(
        &self,
        files: &Files<SimShell>,
        bytes: &[u8],
        offset: u64,
        tagged: Option<OperationId>,
    ) -> Result<Written> {
        match self {
            Self::Own(handle) => handle.write_at_with(&files.objects, bytes, offset, tagged).await,
            Self::OfGroup(member) => member.write_at_with(files, bytes, offset, tagged).await,
        }
    }

    pub async fn flush(&self, files: &Files<SimShell>) -> Result<()> {
        match self {
            Self::Own(handle) => handle.open.flush(&files.objects, FlushFor::Program).await,
            Self::OfGroup(member) => member.flush(files).await,
        }
    }

    /// Whether a flush tells what its process has lost of the file: what a member writes by a group's right is with the
    /// servers.
    pub fn tells_losses(&self) -> bool {
        self.member().is_none_or(|member| member.opened().is_some())
    }

    pub async fn close(&self, files: &Files<SimShell>) {
        match self {
            Self::Own(handle) => files.close_handle(handle).await,
            Self::OfGroup(member) => member.close(files).await,
        }
    }
}
