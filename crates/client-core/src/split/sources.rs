//! Where the bytes of a range come from.

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

/// Reads a range that begins at `offset` of the file. [`Error::NoObject`]: a part has not all that was published of it.
pub async fn read<S: Shell>(
    io: &Objects<S>,
    inode: InodeNumber,
    sources: &[Source<S>],
    into: &mut [u8],
    offset: u64,
    registration: Option<Registration<S>>,
) -> Result<()> {
    for Source { piece, held, file } in sources {
        let part = &mut into[piece.start..piece.start + piece.bytes];
        let at = offset + piece.start as u64;
        let have = match (piece.part, file, held) {
            (None, ..) => {
                part.fill(0);
                continue;
            }
            (_, Some(file), _) => io.calls.shell.read_file(file, part, at).await?,
            (_, None, Some(held)) => io.read_object((inode, *held, false), part, at, registration).await?,
            (_, None, None) => return Err(Error::CapabilityRejected),
        };
        if have < part.len() {
            // What was published is there, unless its node has lost it.
            return Err(Error::NoObject);
        }
    }
    Ok(())
}
