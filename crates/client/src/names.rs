//! Operations on names and inodes.
use crate::client::Client;
use std::time::Duration;
use weft_protocol::message::shard::{DirectoryCursor, DirectoryEntry, RenameMode};
use weft_protocol::message::storage::Space;
use weft_protocol::{AttributeChanges, Attributes, Credentials, InodeNumber, Name, NodeId, Result};

/// An inode, and how long a cache above may keep what is told of it (zero: not at all).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub attributes: Attributes,
    /// How long the name may be taken for this inode.
    pub name_valid: Duration,
    /// How long the attributes may be used.
    pub attributes_valid: Duration,
}

/// A page of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryListing {
    /// Attributes are there where they were asked for and cost no further message.
    pub entries: Vec<DirectoryEntry>,
    /// Where to go on; `None`: the end.
    pub next: Option<DirectoryCursor>,
    /// The directory's `..`.
    pub parent: InodeNumber,
    /// How long a cache above may keep the names and attributes of this page.
    pub valid: Duration,
}

/// Where bytes of a file live.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    pub offset: u64,
    pub bytes: u64,
    /// `None`: a hole, or an empty file.
    pub node: Option<NodeId>,
    pub host: String,
    pub site: String,
}

/// Space of the whole file system: the sum, and each storage server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileSystemSpace {
    pub total: u64,
    pub free: u64,
    pub files: u64,
    pub nodes: Vec<(NodeId, Result<Space>)>,
}

impl Client {
    /// The inode of a name. `Error::NotFound` when it is not there; see [`Client::absent_valid`].
    pub fn lookup(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Result<Entry> {
        let _ = (who, parent, name);
        todo!()
    }

    /// How long a cache above may keep that this name is not there. Asked after a lookup that found nothing.
    pub fn absent_valid(&self, parent: InodeNumber, name: &Name) -> Duration {
        let _ = (parent, name);
        todo!()
    }

    /// Attributes of an inode.
    pub fn attributes(&self, who: &Credentials, inode: InodeNumber) -> Result<Entry> {
        let _ = (who, inode);
        todo!()
    }

    /// Changes attributes; with a size: `truncate`.
    pub fn set_attributes(&self, who: &Credentials, inode: InodeNumber, changes: &AttributeChanges) -> Result<Entry> {
        let _ = (who, inode, changes);
        todo!()
    }

    /// Makes a directory. `mode` with the umask applied.
    pub fn make_directory(&self, who: &Credentials, parent: InodeNumber, name: &Name, mode: u16) -> Result<Entry> {
        let _ = (who, parent, name, mode);
        todo!()
    }

    /// Makes a symbolic link.
    pub fn make_symlink(&self, who: &Credentials, parent: InodeNumber, name: &Name, target: &[u8]) -> Result<Entry> {
        let _ = (who, parent, name, target);
        todo!()
    }

    /// Target of a symbolic link.
    pub fn read_link(&self, who: &Credentials, inode: InodeNumber) -> Result<Vec<u8>> {
        let _ = (who, inode);
        todo!()
    }

    /// Gives an inode one more name.
    pub fn link(&self, who: &Credentials, inode: InodeNumber, parent: InodeNumber, name: &Name) -> Result<Entry> {
        let _ = (who, inode, parent, name);
        todo!()
    }

    /// Removes a name of a file or symbolic link.
    pub fn unlink(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Result<()> {
        let _ = (who, parent, name);
        todo!()
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Result<()> {
        let _ = (who, parent, name);
        todo!()
    }

    /// Gives what has one name another.
    pub fn rename(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &Name,
        new_parent: InodeNumber,
        new_name: &Name,
        mode: RenameMode,
    ) -> Result<()> {
        let _ = (who, parent, name, new_parent, new_name, mode);
        todo!()
    }

    /// One page of a directory listing.
    pub fn read_directory(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        cursor: &DirectoryCursor,
        entries_max: u32,
        with_attributes: bool,
    ) -> Result<DirectoryListing> {
        let _ = (who, inode, cursor, entries_max, with_attributes);
        todo!()
    }

    /// Where the bytes of a file live.
    pub fn locate(&self, who: &Credentials, inode: InodeNumber) -> Result<Vec<Location>> {
        let _ = (who, inode);
        todo!()
    }

    /// Space of the file system.
    pub fn space(&self) -> Result<FileSystemSpace> {
        todo!()
    }
}
