//! What a client tells of its open files, between two events: to the simulation, which holds it against what shards
//! have granted.
//!
//! Not here: anything that changes the state, or that decides.

use crate::files::Files;
use crate::lock::lock;
use crate::shell::Shell;
use weft_protocol::InodeNumber;

impl<S: Shell> Files<S> {
    /// Whether a file is open, or was closed and is kept with its lease.
    pub fn keeps(&self, inode: InodeNumber) -> bool {
        lock(&self.open).get(inode).is_some()
    }

    /// The files of which something is to be written or reported. Those whose state is in use are left out.
    pub fn dirty_inodes(&self) -> Vec<InodeNumber> {
        let open = lock(&self.open).all();
        open.iter().filter(|open| open.is_dirty_now() == Some(true)).map(|open| open.inode).collect()
    }
}
