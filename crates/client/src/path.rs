//! Paths: components, `.` and `..`, symbolic links.

use crate::block_on::block_on;
use crate::client::Client;
use crate::file::{File, OpenOptions};
use std::collections::VecDeque;
use weft_client_core::{Entry, GroupWish, retry_stale};
use weft_protocol::limits::SYMLINKS_FOLLOWED_MAX;
use weft_protocol::message::shard::CreateFile;
use weft_protocol::{Cookie, Credentials, Error, FileKind, InodeNumber, Name, Result};

impl Client {
    /// Makes a call by a path: `call` walks it, and uses what is there. If that is gone by then, `call` is made once
    /// more, from the walk on: see [`retry_stale`].
    pub fn by_path<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        block_on(retry_stale(async || call()))
    }

    /// Walks a path from the root (bytes, `/` between components, `.` and `..` understood) and follows symbolic links;
    /// the last one too when `follow_last` is set, or `/` is behind it: then what is there has to be a directory.
    pub fn walk(&self, who: &Credentials, path: &[u8], follow_last: bool) -> Result<Entry> {
        self.walk_from(who, InodeNumber::ROOT, path, follow_last)
    }

    /// As [`Client::walk`], but a path that does not begin with `/` is walked from a directory. To go up from that by
    /// `..` needs permission to read it.
    pub fn walk_from(
        &self,
        who: &Credentials,
        directory: InodeNumber,
        path: &[u8],
        follow_last: bool,
    ) -> Result<Entry> {
        // What ends with `/` is to be a directory: then a symbolic link there is followed.
        let is_directory = path.last() == Some(&b'/');
        let follow_last = follow_last || is_directory;
        let mut left = components(path);
        // The directories walked through, for `..`: a directory's parent may be on a shard that is slow to ask.
        let mut above: Vec<Entry> = Vec::new();
        let mut here = self.attributes(who, start(directory, path))?;
        let mut followed = 0;
        while let Some(component) = left.pop_front() {
            if here.attributes.kind != FileKind::Directory {
                return Err(Error::NotDirectory);
            }
            match &component[..] {
                b"." => continue,
                b".." => {
                    here = match above.pop() {
                        Some(parent) => parent,
                        None => self.parent(who, here)?,
                    };
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
        if is_directory && here.attributes.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        Ok(here)
    }

    /// The directory above one; the root is above itself.
    fn parent(&self, who: &Credentials, directory: Entry) -> Result<Entry> {
        let inode = directory.attributes.inode;
        if inode == InodeNumber::ROOT {
            return Ok(directory);
        }
        let listing = self.read_directory(who, inode, Cookie::START, 1, false)?;
        self.attributes(who, listing.parent.ok_or(Error::Malformed)?)
    }

    /// Walks to the directory that holds the last component: for making, removing and renaming it.
    pub fn walk_to_parent(&self, who: &Credentials, path: &[u8]) -> Result<(InodeNumber, Name)> {
        self.walk_to_parent_from(who, InodeNumber::ROOT, path)
    }

    /// As [`Client::walk_to_parent`], but a path that does not begin with `/` is walked from a directory.
    pub fn walk_to_parent_from(
        &self,
        who: &Credentials,
        directory: InodeNumber,
        path: &[u8],
    ) -> Result<(InodeNumber, Name)> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let path = path.get(..end).unwrap_or_default();
        let start = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (above, name) = path.split_at(start);
        let name = Name::new(name)?;
        let parent = self.walk_from(who, directory, above, true)?;
        if parent.attributes.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        Ok((parent.attributes.inode, name))
    }

    /// Opens a path as `open(2)` does, and makes a file when there is none and `create` says how. A symbolic link at
    /// its end is followed when `follow_last` is set, [`Error::SymlinkLoop`] otherwise. A directory is
    /// [`Error::IsDirectory`].
    pub fn open_path(
        &self,
        who: &Credentials,
        (directory, path): (InodeNumber, &[u8]),
        options: OpenOptions,
        create: Option<CreateFile>,
        follow_last: bool,
    ) -> Result<(File, Entry)> {
        let follows = follow_last && !create.is_some_and(|create| create.exclusive);
        let open = |parent, name: &Name| self.open_at(who, parent, name, options, create);
        self.open_end_of(who, (directory, path), follows, open)
    }

    /// As [`Client::open_path`], for a group if the file is one that `wish` is about ([`Client::open_for_group`]).
    pub fn open_path_for_group(
        &self,
        who: &Credentials,
        place: (InodeNumber, &[u8]),
        options: OpenOptions,
        create: Option<CreateFile>,
        follow_last: bool,
        wish: GroupWish,
    ) -> Result<File> {
        let follows = follow_last && !create.is_some_and(|create| create.exclusive);
        let open = |parent, name: &Name| self.open_for_group(who, (parent, name), options, create, wish);
        self.open_end_of(who, place, follows, open)
    }

    /// Opens what a path leads to, with or without following a symbolic link at its end.
    fn open_end_of<T>(
        &self,
        who: &Credentials,
        (directory, path): (InodeNumber, &[u8]),
        follows: bool,
        open: impl Fn(InodeNumber, &Name) -> Result<T>,
    ) -> Result<T> {
        let (mut parent, mut name) = self.walk_to_parent_from(who, directory, path)?;
        for _ in 0..=SYMLINKS_FOLLOWED_MAX {
            match open(parent, &name) {
                Err(Error::SymlinkLoop) if follows => {}
                opened => return opened,
            }
            let target = match self.lookup(who, parent, &name) {
                Ok(link) if link.attributes.kind == FileKind::Symlink => self.read_link(who, link.attributes.inode),
                // It was replaced meanwhile.
                Ok(_) | Err(Error::NotFound) => continue,
                Err(error) => Err(error),
            }?;
            (parent, name) = self.walk_to_parent_from(who, parent, &target)?;
        }
        Err(Error::SymlinkLoop)
    }
}

/// Where a path begins.
fn start(directory: InodeNumber, path: &[u8]) -> InodeNumber {
    if path.first() == Some(&b'/') { InodeNumber::ROOT } else { directory }
}

fn components(path: &[u8]) -> VecDeque<Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|component| !component.is_empty()).map(<[u8]>::to_vec).collect()
}
