//! A group open, as the process that has made it tells others.
//!
//! The bytes are a right: whoever has them, and a key of the file system, reads and writes the file as it was opened,
//! until the group ends.

use crate::capability::Capability;
use crate::codec;
use crate::error::Error;
use crate::ids::{InodeNumber, SessionId};
use crate::layout::Layout;
use crate::message::shard::Access;
use crate::{PROTOCOL_VERSION, Result};
use serde::{Deserialize, Serialize};

/// What the bytes begin with, before the version of the protocol.
const MAGIC: &[u8; 4] = b"WGRP";

/// All that is needed to use a file that a group has open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupOpen {
    /// Name of the file system.
    pub file_system: String,
    pub inode: InodeNumber,
    pub group: SessionId,
    pub access: Access,
    /// Each write goes to the end of the file.
    pub append: bool,
    /// Each write is on the device before it returns.
    pub synced: bool,
    pub layout: Layout,
    /// The rights to its objects, in their order; none if the file had no object.
    pub rights: Vec<Capability>,
}

impl GroupOpen {
    /// As bytes, for another process of the same version.
    pub fn to_bytes(&self) -> Vec<u8> {
        codec::append(self, [MAGIC.as_slice(), &[PROTOCOL_VERSION]].concat())
    }

    /// From bytes. [`Error::Malformed`]: they are none of this version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(Error::Malformed)?;
        codec::from_bytes(rest.strip_prefix(&[PROTOCOL_VERSION]).ok_or(Error::Malformed)?)
    }
}
