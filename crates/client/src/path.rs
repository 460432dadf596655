//! Paths: components, `.` and `..`, symbolic links.

use crate::client::Client;
use std::collections::VecDeque;
use weft_client_core::Entry;
use weft_protocol::limits::SYMLINKS_FOLLOWED_MAX;
use weft_protocol::{Credentials, Error, FileKind, InodeNumber, Name, Result};

impl Client {
    /// Walks an absolute path (bytes, `/` between components, `.` and `..` understood) and follows symbolic links; the
    /// last one too when `follow_last` is set.
    pub fn walk(&self, who: &Credentials, path: &[u8], follow_last: bool) -> Result<Entry> {
        let mut left = components(path);
        // The directories walked through, for `..`: a directory's parent may be on a shard that is slow to ask.
        let mut above: Vec<Entry> = Vec::new();
        let mut here = self.attributes(who, InodeNumber::ROOT)?;
        let mut followed = 0;
        while let Some(component) = left.pop_front() {
            if here.attributes.kind != FileKind::Directory {
                return Err(Error::NotDirectory);
            }
            match &component[..] {
                b"." => continue,
                b".." => {
                    here = above.pop().unwrap_or(here);
                    continue;
                }
                _ => {}
            }
            let found = self.lookup(who, here.attributes.inode, &Name::new(&component)?)?;
            if found.attributes.kind == FileKind::Symlink && (follow_last || !left.is_empty()) {
                followed += 1;
                if followed > SYMLINKS_FOLLOWED_MAX {
                    return Err(Error::SymlinkLoop);
                }
                let target = self.read_link(who, found.attributes.inode)?;
                if target.first() == Some(&b'/') {
                    here = self.attributes(who, InodeNumber::ROOT)?;
                    above.clear();
                }
                let mut whole = components(&target);
                whole.append(&mut left);
                left = whole;
                continue;
            }
            above.push(std::mem::replace(&mut here, found));
        }
        Ok(here)
    }

    /// Walks to the directory that holds the last component: for making, removing and renaming it.
    pub fn walk_to_parent(&self, who: &Credentials, path: &[u8]) -> Result<(InodeNumber, Name)> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let path = path.get(..end).unwrap_or_default();
        let start = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (directory, name) = path.split_at(start);
        let name = Name::new(name)?;
        let parent = self.walk(who, directory, true)?;
        if parent.attributes.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        Ok((parent.attributes.inode, name))
    }
}

fn components(path: &[u8]) -> VecDeque<Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|component| !component.is_empty()).map(<[u8]>::to_vec).collect()
}
