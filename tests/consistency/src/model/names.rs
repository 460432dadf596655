//! Names: what lookups find and changes do. The order of errors is that of Linux.

use super::{Answer, Expected, Id, Inode, Interval, Kind, Model, Mtime, ROOT};
use crate::call::{Access, HandleId, OpenFlags, RenameHow, WorkerId};
use rustix::io::Errno;
use std::collections::BTreeMap;

/// Returns the directory part of a path, without the last component.
pub fn directory_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

impl Model {
    /// The inode of a path.
    pub(super) fn find(&self, path: &str) -> Result<Id, Errno> {
        let mut here = ROOT;
        for component in path.split('/').filter(|component| !component.is_empty() && *component != ".") {
            here = *self.entries(here)?.get(component).ok_or(Errno::NOENT)?;
        }
        Ok(here)
    }

    pub(super) fn entries(&self, id: Id) -> Result<&BTreeMap<String, Id>, Errno> {
        match &self.inodes[&id].kind {
            Kind::Directory(entries) => Ok(entries),
            Kind::File(_) => Err(Errno::NOTDIR),
        }
    }

    /// The directory that holds a path's last component, that component, and what it names.
    fn place<'p>(&self, path: &'p str) -> Result<(Id, &'p str, Option<Id>), Errno> {
        let directory = self.find(directory_of(path))?;
        let name = path.rsplit('/').next().unwrap_or(path);
        let found = self.entries(directory)?.get(name).copied();
        Ok((directory, name, found))
    }

    pub(super) fn is_directory(&self, id: Id) -> bool {
        matches!(self.inodes[&id].kind, Kind::Directory(_))
    }

    fn is_empty_directory(&self, id: Id) -> bool {
        self.entries(id).is_ok_and(BTreeMap::is_empty)
    }

    /// Puts an entry into a directory, or takes it out.
    fn set_entry(&mut self, directory: Id, name: &str, to: Option<Id>, at: Interval) {
        let kind = to.map(|id| self.is_directory(id));
        let inode = self.inode(directory);
        inode.mtime = Mtime::Since(at.begun);
        if let Kind::Directory(entries) = &mut inode.kind {
            let was_there = match to {
                Some(id) => entries.insert(name.to_owned(), id).is_some(),
                None => entries.remove(name).is_some(),
            };
            self.touch_listings(directory, name, kind, was_there != to.is_some());
        }
    }

    pub(super) fn open(
        &mut self,
        key: (WorkerId, HandleId),
        path: &str,
        access: Access,
        flags: OpenFlags,
        at: Interval,
    ) -> Answer {
        let writes = access != Access::Read;
        let (directory, name, found) = self.place(path)?;
        let id = match found {
            Some(_) if flags.create && flags.exclusive => return Err(Errno::EXIST),
            Some(id) if self.is_directory(id) && (flags.create || writes) => return Err(Errno::ISDIR),
            Some(id) => {
                if flags.truncate {
                    self.resize(id, 0, at)?;
                }
                id
            }
            None if !flags.create => return Err(Errno::NOENT),
            None => {
                let id = self.make(Kind::File(Vec::new()), 0o644, at);
                self.set_entry(directory, name, Some(id), at);
                id
            }
        };
        let handle = super::Handle {
            inode: id,
            access,
            append: flags.append,
            direct: flags.direct,
            position: Some(0),
            mapped: None,
            listing: None,
        };
        self.handles.insert(key, handle);
        Ok(Expected::Opened(id))
    }

    pub(super) fn open_directory(&mut self, key: (WorkerId, HandleId), path: &str) -> Answer {
        let inode = self.find(path)?;
        let listing = Some(self.begin_listing(inode)?);
        let handle = super::Handle {
            inode,
            access: Access::Read,
            append: false,
            direct: false,
            position: Some(0),
            mapped: None,
            listing,
        };
        self.handles.insert(key, handle);
        Ok(Expected::Opened(inode))
    }

    fn make(&mut self, kind: Kind, mode: u16, at: Interval) -> Id {
        let id = self.next;
        self.next += 1;
        self.inodes.insert(id, Inode::new(kind, mode, Mtime::Since(at.begun)));
        id
    }

    pub(super) fn link(&mut self, from: &str, to: &str, at: Interval) -> Answer {
        let id = self.find(from)?;
        let (directory, name, found) = self.place(to)?;
        if found.is_some() {
            return Err(Errno::EXIST);
        }
        if self.is_directory(id) {
            return Err(Errno::PERM);
        }
        self.set_entry(directory, name, Some(id), at);
        self.inode(id).links += 1;
        Ok(Expected::Done)
    }

    pub(super) fn unlink(&mut self, path: &str, at: Interval) -> Answer {
        let (directory, name, found) = self.place(path)?;
        let id = found.ok_or(Errno::NOENT)?;
        if self.is_directory(id) {
            return Err(Errno::ISDIR);
        }
        self.set_entry(directory, name, None, at);
        self.inode(id).links -= 1;
        self.collect();
        Ok(Expected::Done)
    }

    pub(super) fn make_directory(&mut self, path: &str, at: Interval) -> Answer {
        let (directory, name, found) = self.place(path)?;
        if found.is_some() {
            return Err(Errno::EXIST);
        }
        let id = self.make(Kind::Directory(BTreeMap::new()), 0o755, at);
        self.set_entry(directory, name, Some(id), at);
        self.inode(directory).links += 1;
        Ok(Expected::Done)
    }

    pub(super) fn remove_directory(&mut self, path: &str, at: Interval) -> Answer {
        let (directory, name, found) = self.place(path)?;
        let id = found.ok_or(Errno::NOENT)?;
        if !self.is_directory(id) {
            return Err(Errno::NOTDIR);
        }
        if !self.is_empty_directory(id) {
            return Err(Errno::NOTEMPTY);
        }
        self.set_entry(directory, name, None, at);
        self.remove_directory_inode(directory, id);
        self.collect();
        Ok(Expected::Done)
    }

    fn remove_directory_inode(&mut self, parent: Id, id: Id) {
        let inode = self.inode(id);
        inode.links = 0;
        inode.mtime = Mtime::Any;
        self.inode(parent).links -= 1;
    }

    pub(super) fn rename(&mut self, mount: char, (from, to): (&str, &str), how: RenameHow, at: Interval) -> Answer {
        let (old_parent, old_name, old) = self.place(from)?;
        let (new_parent, new_name, new) = self.place(to)?;
        let old = old.ok_or(Errno::NOENT)?;
        match how {
            RenameHow::NoReplace if new.is_some() => return Err(Errno::EXIST),
            RenameHow::Exchange if new.is_none() => return Err(Errno::NOENT),
            _ => {}
        }
        if self.is_above(old, new_parent) {
            return Err(Errno::INVAL);
        }
        if new.is_some_and(|new| self.is_above(new, old_parent)) {
            return Err(if how == RenameHow::Exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        if new == Some(old) {
            return Ok(Expected::Done);
        }
        let is_directory = self.is_directory(old);
        match new {
            Some(new) if how == RenameHow::Exchange => {
                self.inode(new).renamed_by = Some(mount);
                self.inode(old).renamed_by = Some(mount);
                let new_is_directory = self.is_directory(new);
                self.set_entry(old_parent, old_name, Some(new), at);
                self.set_entry(new_parent, new_name, Some(old), at);
                self.move_link(is_directory, old_parent, new_parent);
                self.move_link(new_is_directory, new_parent, old_parent);
                return Ok(Expected::Done);
            }
            Some(new) => match (is_directory, self.is_directory(new)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !self.is_empty_directory(new) => return Err(Errno::NOTEMPTY),
                (true, true) => self.remove_directory_inode(new_parent, new),
                (false, false) => self.inode(new).links -= 1,
            },
            None => {}
        }
        self.inode(old).renamed_by = Some(mount);
        self.set_entry(old_parent, old_name, None, at);
        self.set_entry(new_parent, new_name, Some(old), at);
        self.move_link(is_directory, old_parent, new_parent);
        self.collect();
        Ok(Expected::Done)
    }

    /// Returns true if the kernel of a mount may know, under its former name, a directory that a rename between two
    /// directories finds by one of its names: another client has renamed it, and something below it is open here.
    pub(super) fn may_be_stale(&self, mount: char, from: &str, to: &str) -> bool {
        let is_open_below = |id: Id| {
            let mut handles = self.handles.iter().filter(|((who, _), _)| who.mount == mount);
            handles.any(|(_, handle)| self.is_above(id, handle.inode))
        };
        let is_elsewhere = |path: &&str| {
            self.find(path).is_ok_and(|id| {
                let is_renamed = self.inodes[&id].renamed_by.is_some_and(|by| by != mount);
                self.is_directory(id) && is_renamed && is_open_below(id)
            })
        };
        self.find(directory_of(from)) != self.find(directory_of(to)) && [from, to].iter().any(is_elsewhere)
    }

    /// `..` of a directory counts as a link of its parent.
    fn move_link(&mut self, is_directory: bool, from: Id, to: Id) {
        if is_directory {
            self.inode(from).links -= 1;
            self.inode(to).links += 1;
        }
    }

    /// Returns true if `id` is `below` or one of the directories that it is in.
    fn is_above(&self, id: Id, below: Id) -> bool {
        id == below || self.entries(id).is_ok_and(|entries| entries.values().any(|entry| self.is_above(*entry, below)))
    }
}
