//! A group open, as the process that has made it tells others.
//!
//! The bytes are a right: a process that has them, and the same key, reads and writes the file as it was opened, until
//! the group ends. They carry a proof of that key, so that damaged ones, and those of a file system that had the same
//! name before, open nothing.
//!
//! What members have written to a split file one of them publishes for the others: they tell it what, as a
//! [`Publication`]. It is no right to anything, so it carries no proof.

use crate::capability::{Capability, UserKey};
use crate::codec;
use crate::error::Error;
use crate::ids::{InodeNumber, SessionId};
use crate::layout::Layout;
use crate::message::shard::Access;
use crate::split::PublishedPart;
use crate::{PROTOCOL_VERSION, Result};
use serde::{Deserialize, Serialize};

/// What the bytes begin with, before the version of the protocol.
const MAGIC: &[u8; 4] = b"WGRP";
/// Label under which the proof at their end is made.
const LABEL: &[u8] = b"weft group open v1";
/// Bytes of the proof.
const PROOF_BYTES: usize = 32;

/// What the bytes of a publication begin with, likewise.
const PUBLICATION_MAGIC: &[u8; 4] = b"WPUB";

/// What a member of a group has written to its part of a split file, for another member that publishes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Publication {
    pub inode: InodeNumber,
    pub group: SessionId,
    pub part: PublishedPart,
}

impl Publication {
    /// As bytes, which may stand one behind another.
    pub fn to_bytes(&self) -> Vec<u8> {
        codec::append(self, [PUBLICATION_MAGIC.as_slice(), &[PROTOCOL_VERSION]].concat())
    }

    /// All that these bytes have. [`Error::Malformed`]: they are none of this version.
    pub fn all_from_bytes(mut bytes: &[u8]) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let rest = bytes.strip_prefix(PUBLICATION_MAGIC).ok_or(Error::Malformed)?;
            bytes = rest.strip_prefix(&[PROTOCOL_VERSION]).ok_or(Error::Malformed)?;
            all.push(codec::take(&mut bytes)?);
        }
        Ok(all)
    }
}

/// All that is needed to use a file that a group has open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupOpen {
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
    /// As bytes, for another process of the same version with the same key.
    pub fn to_bytes(&self, key: &UserKey) -> Vec<u8> {
        let mut bytes = codec::append(self, [MAGIC.as_slice(), &[PROTOCOL_VERSION]].concat());
        let proof = key.prove(LABEL, &bytes);
        bytes.extend(proof.as_bytes());
        bytes
    }

    /// From bytes. [`Error::Malformed`]: they are none of this version; [`Error::CapabilityRejected`]: they were made
    /// with another key, which is that of another user or file system, or are damaged.
    pub fn from_bytes(bytes: &[u8], key: &UserKey) -> Result<Self> {
        let (told, proof) = bytes.split_last_chunk::<PROOF_BYTES>().ok_or(Error::Malformed)?;
        let rest = told.strip_prefix(MAGIC).ok_or(Error::Malformed)?;
        let open = codec::from_bytes(rest.strip_prefix(&[PROTOCOL_VERSION]).ok_or(Error::Malformed)?)?;
        // Compared without a data-dependent exit.
        if key.prove(LABEL, told) == blake3::Hash::from_bytes(*proof) {
            Ok(open)
        } else {
            Err(Error::CapabilityRejected)
        }
    }
}
