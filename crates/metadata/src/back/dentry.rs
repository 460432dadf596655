//! Names in directories.
//!
//! Invariant: the size of a directory is the number of its dentries; a dentry of kind `Directory` may name an inode of
//! another shard, one of another kind names an inode of this shard.

use super::Back;
use super::inode::{Inode, kind_code, kind_from};
use super::keys::Key;
use super::permission::{SEARCH, check_access};
use crate::kv::KeyValue;
use weft_protocol::{Credentials, Error, FileKind, InodeNumber, Name, Result, Timestamp};

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dentry {
    pub inode: InodeNumber,
    pub kind: FileKind,
}

impl Dentry {
    /// Bytes of the record: inode number, kind.
    pub const BYTES: usize = 9;

    pub(super) fn decode(bytes: &[u8]) -> Option<Dentry> {
        let (number, kind) = bytes.split_first_chunk()?;
        let [kind] = kind else { return None };
        Some(Dentry { inode: InodeNumber::from_raw(u64::from_le_bytes(*number)), kind: kind_from(*kind)? })
    }

    fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.inode.raw().to_le_bytes());
        bytes[8] = kind_code(self.kind);
        bytes
    }
}

impl<K: KeyValue> Back<K> {
    /// The dentry of a name, if it is there. No permission is asked.
    pub fn dentry(&self, directory: InodeNumber, name: &Name) -> Option<Dentry> {
        self.store.get(&Key::dentry(directory, name.as_bytes()), |bytes| {
            Dentry::decode(bytes).expect("a record of the store is what was put in")
        })
    }

    /// The dentry of a name, as the caller may see it: he must be allowed to pass through the directory.
    pub fn lookup(&self, caller: &Credentials, directory: InodeNumber, name: &Name) -> Result<Option<Dentry>> {
        check_access(&self.directory(directory)?, caller, SEARCH)?;
        Ok(self.dentry(directory, name))
    }

    pub(super) fn existing(&self, directory: InodeNumber, name: &Name) -> Result<Dentry> {
        self.dentry(directory, name).ok_or(Error::NotFound)
    }

    /// Puts a name into a directory whose inode the caller holds in his hand (and puts back).
    pub(super) fn add_dentry(
        &mut self,
        time: Timestamp,
        directory: (InodeNumber, &mut Inode),
        name: &Name,
        dentry: Dentry,
    ) {
        let number = directory.0;
        let added = self.add_free_dentry(time, directory, name, dentry);
        assert!(added, "{name:?} is in directory {number} already");
    }

    /// As [`Back::add_dentry`], unless the name is there already. Returns whether it was not.
    pub(super) fn add_free_dentry(
        &mut self,
        time: Timestamp,
        directory: (InodeNumber, &mut Inode),
        name: &Name,
        dentry: Dentry,
    ) -> bool {
        let (number, inode) = directory;
        if !self.store.insert(&Key::dentry(number, name.as_bytes()), &dentry.encode()) {
            return false;
        }
        self.dentries += 1;
        inode.size += 1;
        if dentry.kind == FileKind::Directory {
            inode.links += 1;
        }
        inode.mtime = time;
        inode.ctime = time;
        true
    }

    /// Takes a name out of a directory.
    pub(super) fn drop_dentry(
        &mut self,
        time: Timestamp,
        directory: (InodeNumber, &mut Inode),
        name: &Name,
        kind: FileKind,
    ) {
        let (number, inode) = directory;
        let there = self.store.delete(&Key::dentry(number, name.as_bytes()));
        assert!(there, "{name:?} is not in directory {number}");
        self.dentries -= 1;
        inode.size -= 1;
        if kind == FileKind::Directory {
            inode.links -= 1;
        }
        inode.mtime = time;
        inode.ctime = time;
    }
}
