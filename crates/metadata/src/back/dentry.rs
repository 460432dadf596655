//! Names in directories.
//!
//! Invariant: the size of a directory is the number of its dentries. A dentry may name an inode of another shard.

use super::Back;
use super::inode::Inode;
use super::permission::{SEARCH, check_access};
use crate::kv::KeyValue;
use weft_protocol::{Credentials, Error, FileKind, InodeNumber, Name, Result, Timestamp};

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dentry {
    pub inode: InodeNumber,
    pub kind: FileKind,
}

impl<K: KeyValue> Back<K> {
    /// The dentry of a name, as the caller may see it: he must be allowed to pass through the directory.
    pub fn lookup(&self, caller: &Credentials, directory: InodeNumber, name: &Name) -> Result<Option<Dentry>> {
        self.searched(caller, (directory, name))?;
        Ok(self.dentry(directory, name))
    }

    /// The directory of a name, if it serves the name and the caller may pass through it.
    pub(super) fn searched(&self, caller: &Credentials, (number, name): (InodeNumber, &Name)) -> Result<Inode> {
        let directory = self.directory(number)?;
        check_access(&directory, caller, SEARCH)?;
        self.check_serves(&directory, (number, name))?;
        Ok(directory)
    }

    /// Refuses a name that another part of the directory serves.
    pub(super) fn check_serves(&self, directory: &Inode, (number, name): (InodeNumber, &Name)) -> Result<()> {
        match &directory.parts {
            Some(parts) if parts.of((self.cookie_of)(name)) != number => Err(Error::Split),
            _ => Ok(()),
        }
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
        if !self.insert_dentry(number, name, dentry) {
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
    pub(super) fn drop_dentry(&mut self, time: Timestamp, directory: (InodeNumber, &mut Inode), name: &Name) {
        let (number, inode) = directory;
        let Some(dentry) = self.remove_dentry(number, name) else {
            panic!("{name:?} is not in directory {number}");
        };
        self.dentries -= 1;
        inode.size -= 1;
        if dentry.kind == FileKind::Directory {
            inode.links -= 1;
        }
        inode.mtime = time;
        inode.ctime = time;
    }

    /// Gives a name that is in the directory another inode. Its place in listings stays.
    pub(super) fn set_dentry(
        &mut self,
        time: Timestamp,
        directory: (InodeNumber, &mut Inode),
        name: &Name,
        dentry: Dentry,
    ) {
        let (number, inode) = directory;
        let before = self.replace_dentry(number, name, dentry);
        let count = |dentry: Dentry| u32::from(dentry.kind == FileKind::Directory);
        inode.links = inode.links - count(before) + count(dentry);
        inode.mtime = time;
        inode.ctime = time;
    }
}
