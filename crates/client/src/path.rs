//! Paths: `NAME:/dir/file` on the command line, components below.
use crate::client::Client;
use crate::names::Entry;
use weft_protocol::{Credentials, InodeNumber, Name, Result};

impl Client {
    /// Walks an absolute path (bytes, `/` between components, `.` and `..` understood) and follows symbolic links; the
    /// last one too when `follow_last` is set.
    pub fn walk(&self, who: &Credentials, path: &[u8], follow_last: bool) -> Result<Entry> {
        let _ = (who, path, follow_last);
        todo!()
    }

    /// Walks to the directory that holds the last component: for making, removing and renaming it.
    pub fn walk_to_parent(&self, who: &Credentials, path: &[u8]) -> Result<(InodeNumber, Name)> {
        let _ = (who, path);
        todo!()
    }
}
