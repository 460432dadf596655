//! Directories with parts (`weft_protocol::Parts`): names, and leases on them, are kept under the numbers of the parts,
//! by which shards know them. Caches above know the directory alone.
//!
//! Invariant: the parts of a directory are known before anything is kept of one, and until the client ends: a recall of
//! what is of a part has to drop what is told of the directory.
//! Cost: some 40 bytes for each part of each such directory that the client has met.

use super::{Cache, Dropped};
use weft_protocol::hash::FixedMap;
use weft_protocol::{Attributes, Cookie, InodeNumber, LeaseKey, Name, Parts};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct KnownParts {
    of: FixedMap<InodeNumber, Parts>,
    /// The directory of each part.
    directories: FixedMap<InodeNumber, InodeNumber>,
}

impl Cache {
    /// The part of a directory that serves a name, as far as is known here: else the directory itself.
    pub fn part(&self, directory: InodeNumber, name: &Name) -> InodeNumber {
        self.parts(directory).map_or(directory, |parts| parts.of(Cookie::of(name)))
    }

    /// The parts that a directory is known to have.
    pub fn parts(&self, directory: InodeNumber) -> Option<&Parts> {
        self.parts.of.get(&directory)
    }

    /// Learns from attributes which parts a directory has.
    pub fn learn_parts(&mut self, attributes: &Attributes) {
        let Some(parts) = &attributes.parts else { return };
        let directory = parts.directory();
        if !self.parts.of.contains_key(&directory) {
            self.changes += 1;
            self.parts.of.insert(directory, parts.clone());
            self.parts.directories.extend(parts.others().iter().map(|part| (*part, directory)));
        }
    }

    /// A directory as caches above know it.
    fn shown(&self, inode: InodeNumber) -> InodeNumber {
        self.parts.directories.get(&inode).copied().unwrap_or(inode)
    }

    /// What was dropped, as caches above know it.
    pub(super) fn above(&self, mut dropped: Dropped) -> Dropped {
        if self.parts.of.is_empty() {
            return dropped;
        }
        dropped.names.iter_mut().for_each(|(parent, _)| *parent = self.shown(*parent));
        dropped.inodes.iter_mut().for_each(|inode| *inode = self.shown(*inode));
        dropped.directories.iter_mut().for_each(|directory| *directory = self.shown(*directory));
        dropped.recalled = dropped.recalled.map(|key| match key {
            LeaseKey::Entry(parent, hash) => LeaseKey::Entry(self.shown(parent), hash),
            LeaseKey::Directory(directory) => LeaseKey::Directory(self.shown(directory)),
            LeaseKey::Names(directory) => LeaseKey::Names(self.shown(directory)),
            LeaseKey::Attributes(inode) => LeaseKey::Attributes(self.shown(inode)),
            LeaseKey::Permissions(inode) => LeaseKey::Permissions(self.shown(inode)),
            LeaseKey::Data(_) | LeaseKey::Inode(_) | LeaseKey::Ranges(_) => key,
        });
        dropped
    }
}
