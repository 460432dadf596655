//! Where the bytes of a range come from.

use super::requests;
use crate::file_objects::Held;
use crate::objects::{Objects, Registration};
use crate::shell::Shell;
use std::sync::Arc;
use weft_layout::SplitPiece;
use weft_protocol::{Error, InodeNumber, ObjectId, Result};

/// Where a piece of a range comes from.
pub struct Source<S: Shell> {
    pub piece: SplitPiece<ObjectId>,
    pub held: Option<Held>,
    pub file: Option<Arc<S::Descriptor>>,
}

impl<S: Shell> Source<S> {
    /// The part's node has to be asked for the piece.
    fn is_asked_for(&self) -> bool {
        self.piece.part.is_some() && self.file.is_none()
    }
}

/// Reads a range that begins at `offset` of the file. [`Error::NoObject`]: a part has not all that was published of it.
pub async fn read<S: Shell>(
    io: &Objects<S>,
    inode: InodeNumber,
    sources: &[Source<S>],
    into: &mut [u8],
    offset: u64,
    registration: Option<Registration<S>>,
) -> Result<()> {
    let asked = sources.iter().filter(|source| source.is_asked_for());
    let asked: Option<Vec<_>> = asked.map(|source| Some((source.held?, source.piece))).collect();
    // If that fails, requests one by one tell why.
    let is_read = match &asked {
        Some(asked) if asked.len() > 1 && registration.is_none() => {
            requests::read(io, inode, asked, into, offset).await.is_ok()
        }
        _ => false,
    };
    for source in sources.iter().filter(|source| !(is_read && source.is_asked_for())) {
        read_one(io, inode, source, into, offset, registration).await?;
    }
    Ok(())
}

async fn read_one<S: Shell>(
    io: &Objects<S>,
    inode: InodeNumber,
    Source { piece, held, file }: &Source<S>,
    into: &mut [u8],
    offset: u64,
    registration: Option<Registration<S>>,
) -> Result<()> {
    let part = &mut into[piece.start..piece.start + piece.bytes];
    let at = offset + piece.start as u64;
    let have = match (piece.part, file, held) {
        (None, ..) => {
            part.fill(0);
            return Ok(());
        }
        (_, Some(file), _) => io.calls.shell.read_file(file, part, at).await?,
        (_, None, Some(held)) => io.read_object((inode, *held, false), part, at, registration).await?,
        (_, None, None) => return Err(Error::CapabilityRejected),
    };
    // What was published is there, unless its node has lost it.
    if have < part.len() { Err(Error::NoObject) } else { Ok(()) }
}
