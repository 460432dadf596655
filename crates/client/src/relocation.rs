//! Moving the bytes of one file, by several threads.

use crate::block_on::block_on;
use crate::client::Client;
use crate::native::NativeShell;
use weft_client_core::Destination;
use weft_protocol::{Credentials, InodeNumber, Result};

/// A file whose bytes are being moved. It can be read meanwhile. To be ended with [`Relocation::end`].
#[must_use = "a file that is not ended stays open"]
pub struct Relocation<'a> {
    client: &'a Client,
    who: &'a Credentials,
    moving: weft_client_core::Relocation<NativeShell>,
}

impl Client {
    /// Begins to move a file's bytes to other nodes, or to another layout. `None`: they are where they are to be.
    ///
    /// # Errors
    /// [`weft_protocol::Error::WouldBlock`]: the file is in use.
    pub fn begin_relocation<'a>(
        &'a self,
        who: &'a Credentials,
        inode: InodeNumber,
        destination: &Destination,
    ) -> Result<Option<Relocation<'a>>> {
        let begun = block_on(self.files().begin_relocation(who, inode, destination))?;
        Ok(begun.map(|moving| Relocation { client: self, who, moving }))
    }
}

impl Relocation<'_> {
    /// Number of pieces: as many threads may copy at once.
    pub fn count(&self) -> u64 {
        self.moving.count()
    }

    /// Copies one piece after the other until none is left, or another thread has failed. `pace` is called after each
    /// part of a piece with its length; it may wait.
    ///
    /// # Errors
    /// [`weft_protocol::Error::WouldBlock`]: the file is in use.
    pub fn copy_pieces(&self, pace: &mut impl FnMut(usize)) -> Result<()> {
        block_on(self.moving.copy_pieces(self.client.files(), pace))
    }

    /// Gives the file what was copied. `made`: what has become of the copy. Returns how many bytes were moved.
    ///
    /// # Errors
    /// [`weft_protocol::Error::WouldBlock`]: the file was used meanwhile. With any error nothing has changed.
    pub fn end(self, made: Result<()>) -> Result<u64> {
        block_on(self.client.files().end_relocation(self.who, self.moving, made))
    }
}
