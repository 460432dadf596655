//! Directories that other sessions use, as far as replies and recalls have told.
//!
//! A mount on a kernel that cannot drop names without the directory's lock keeps no names of such directories in the
//! kernel (`kernel_view.rs`). Invariant: a directory that other sessions change names in is in the set from the first
//! reply or recall on that tells.

use super::Cache;
use std::collections::BTreeMap;
use weft_protocol::{FileKind, Grants, InodeNumber, LeaseKey, Name};

/// Directories remembered. Beyond it every directory counts as shared until the session ends.
const SHARED_MAX: usize = 16 << 10;

/// See the module.
#[derive(Debug, Default)]
pub struct SharedDirectories {
    /// With the stamp of the latest reply or recall that told.
    stamps: BTreeMap<InodeNumber, u64>,
    overflowed: bool,
}

impl SharedDirectories {
    /// A reply about a name in the directory says whether others use it.
    pub fn told(&mut self, directory: InodeNumber, grants: Grants, stamp: u64) {
        if grants.contains(Grants::SHARED_DIRECTORY) {
            self.recalled(directory, stamp);
        } else if !self.stamps.is_empty() && self.stamps.get(&directory).is_some_and(|told| *told < stamp) {
            self.stamps.remove(&directory);
        }
    }

    /// Another session has changed the directory, or is about to.
    pub fn recalled(&mut self, directory: InodeNumber, stamp: u64) {
        if self.stamps.len() >= SHARED_MAX && !self.stamps.contains_key(&directory) {
            self.overflowed = true;
            return;
        }
        let told = self.stamps.entry(directory).or_default();
        *told = (*told).max(stamp);
    }

    pub fn contains(&self, directory: InodeNumber) -> bool {
        self.overflowed || self.stamps.contains_key(&directory)
    }
}

impl Cache {
    /// An own rename gave the name to this inode, as the reply with this stamp told. Without a lease on the name,
    /// nothing is known of it any more.
    pub fn learn_renamed(
        &mut self,
        parent: InodeNumber,
        name: &Name,
        target: (InodeNumber, FileKind),
        grants: Grants,
        stamp: u64,
    ) {
        if grants.contains(Grants::ENTRY) || self.holds_since(parent, stamp) {
            self.learn_name(parent, name, Some(target), grants, stamp);
        } else {
            self.shared.told(parent, grants, stamp);
            self.forget_name(parent, name, stamp);
        }
    }

    /// Whether another session uses the directory, as far as replies and recalls have told.
    pub fn is_shared(&self, directory: InodeNumber) -> bool {
        self.shared.contains(directory)
    }

    /// A recall says that another session changes a directory.
    pub(super) fn note_shared(&mut self, key: LeaseKey, stamp: u64) {
        match key {
            LeaseKey::Entry(directory, _) | LeaseKey::Directory(directory) | LeaseKey::Names(directory) => {
                self.shared.recalled(directory, stamp);
            }
            LeaseKey::Attributes(inode) if self.is_directory(inode) => self.shared.recalled(inode, stamp),
            _ => {}
        }
    }

    fn is_directory(&self, inode: InodeNumber) -> bool {
        self.attributes.get(&inode).is_some_and(|known| known.attributes.kind == FileKind::Directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_reply_or_recall_says_whether_a_directory_is_shared() {
        let mut shared = SharedDirectories::default();
        let directory = InodeNumber::from_raw(7);
        assert!(!shared.contains(directory));
        shared.told(directory, Grants::ENTRY | Grants::SHARED_DIRECTORY, 5);
        shared.told(directory, Grants::ENTRY, 4);
        assert!(shared.contains(directory), "a reply from before tells nothing");
        shared.told(directory, Grants::ENTRY, 6);
        assert!(!shared.contains(directory));
        shared.recalled(directory, 7);
        assert!(shared.contains(directory));
    }

    #[test]
    fn too_many_shared_directories_make_all_shared() {
        let mut shared = SharedDirectories::default();
        (0..=SHARED_MAX as u64).for_each(|inode| shared.recalled(InodeNumber::from_raw(inode), 1));
        assert_eq!(shared.stamps.len(), SHARED_MAX);
        assert!(shared.contains(InodeNumber::from_raw(u64::MAX)));
    }
}
