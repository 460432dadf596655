//! Entries of the directory that the file system lies over, for the client that writes changes back.

use crate::files::Files;
use crate::shell::Shell;
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{BelowNote, BelowPage, Credentials, Error, InodeNumber, Name, Result, routing};

impl<S: Shell> Files<S> {
    /// What is known of the names of a directory below, after one of them. [`Error::NotPermitted`]: the caller is not
    /// the owner of the file system.
    pub async fn read_below(
        &self,
        who: &Credentials,
        directory: InodeNumber,
        after: Option<Name>,
    ) -> Result<BelowPage> {
        let request = ShardRequest::ReadBelow { directory, after };
        match self.calls().call(who, routing::of_inode(directory), request).await?.answer {
            ShardAnswer::Below(page) => Ok(page),
            _ => Err(Error::Malformed),
        }
    }

    /// Says what is below a directory from now on. The errors of [`Files::read_below`].
    pub async fn note_below(&self, who: &Credentials, directory: InodeNumber, notes: Vec<BelowNote>) -> Result<()> {
        let request = ShardRequest::NoteBelow { directory, notes };
        self.calls().call(who, routing::of_inode(directory), request).await.map(|_| ())
    }
}
