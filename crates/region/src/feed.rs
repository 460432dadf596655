//! Objects as a stream, from one store to another: for moving a store, for copies that are brought up to date.
//!
//! An object that keeps versions goes on where its copy ends ([`Have`]); one that does not goes as a whole, each time,
//! by what is mapped of it. What has been received counts as it comes: a stream that breaks off leaves whole versions
//! and whole objects, and what is missing comes with the next one. docs/formats/feed.md has the bytes.
//!
//! Memory: the sender has at most [`SendOptions::pieces`] pieces of 32 bytes and a frame; the receiver a frame, a
//! commit, and the first blocks of [`receive::UNSETTLED_MAX`] objects.

mod frames;
mod gone;
mod receive;
mod send;

use crate::error::Result;
use crate::store::Store;

/// How far a copy of an object that keeps versions is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Have {
    pub id: u64,
    /// The same in all copies of an object.
    pub lineage: u64,
    /// All before this version is there, and of it all before the block.
    pub version: u64,
    pub block: u64,
}

/// What is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SendOptions {
    /// Only these objects; none: all.
    pub objects: Vec<u64>,
    /// How far the receiver is with which objects. Those that keep versions and are not among them are sent wholly.
    pub have: Vec<Have>,
    /// Pieces of an object that are in memory at once. With more of them, the object's index is read several times.
    pub pieces: usize,
}

impl Default for SendOptions {
    fn default() -> Self {
        Self { objects: Vec::new(), have: Vec::new(), pieces: 4 << 20 }
    }
}

/// What is received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiveOptions {
    /// Objects without super block say nothing of themselves: one that is there under the same identifier is replaced
    /// only with this, or with the next.
    pub replace_plain: bool,
    /// Objects that the sender has not are removed, when all that it has came; and where it has another object, that
    /// takes the place of what is there. Only streams of whole stores tell.
    pub remove: bool,
}

/// What went through a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fed {
    /// Objects, also those of which nothing was new.
    pub objects: u64,
    /// Versions that were sent, or that the receiver did not have.
    pub versions: u64,
    /// Objects that the receiver has, or had until it removed them, and the sender has not. `None`: the stream has some
    /// objects only; or it was sent.
    pub gone: Option<u64>,
    /// Bytes of the stream.
    pub bytes: u64,
}

impl Store {
    /// How far the objects that keep versions are: what [`SendOptions::have`] asks for.
    pub fn have(&self) -> Result<Vec<Have>> {
        let cursors = self.versions().cursors()?;
        let have = |(id, lineage, (version, block))| Have { id, lineage, version, block };
        Ok(cursors.into_iter().map(have).collect())
    }
}
