//! Names and files of the directory that a file system lies over: which were read, and what was below then
//! (docs/decisions/0029).
//!
//! A directory from below begins without names, and a file without an object: they are *unread*. The front reads them
//! before the first call that needs them, and applies `ImportNames` and `FillFile`. For each name that was read or
//! written back, an entry under the directory's number records what was below. Entries outlive directory and name: an
//! entry whose name is not in the namespace was removed here.
//!
//! Invariant: `unread` is the number of origins that are unread; an unread directory has no names, an unread file has
//! no object.
//! Not here: when something is read (`front/below.rs`), and what is written back, which a client decides.

use super::inode::{Inode, MODE_BITS};
use super::keys::{Key, below_name_of};
use super::{Back, Dentry};
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use weft_protocol::limits::{NAMES_BELOW_MAX, SYMLINK_BYTES_MAX};
use weft_protocol::message::shard::ShardAnswer;
use weft_protocol::{
    BelowEntry, BelowName, BelowNote, BelowPage, BelowStamp, Error, FileKind, Generation, InodeNumber, Layout, Name,
    ObjectId, Result, Timestamp, codec,
};

/// Origin of an inode from below. A file's is deleted once it is read; a directory's stays, since the paths of its
/// children contain it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct BelowOrigin {
    /// Its parent directory when it was imported, and its name there; `None`: it is the root.
    place: Option<(InodeNumber, Name)>,
    is_unread: bool,
}

impl<K: KeyValue> Back<K> {
    /// Marks the root as a directory from below, and unread.
    pub fn lie_over(&mut self) {
        self.put_origin(InodeNumber::ROOT, &BelowOrigin { place: None, is_unread: true });
        self.unread += 1;
    }

    /// Returns true if anything is unread.
    pub fn has_unread(&self) -> bool {
        self.unread > 0
    }

    /// Returns true if the names or contents of this inode have yet to be read from below.
    pub fn is_unread(&self, inode: InodeNumber) -> bool {
        self.unread > 0 && self.origin(inode).is_some_and(|origin| origin.is_unread)
    }

    fn origin(&self, inode: InodeNumber) -> Option<BelowOrigin> {
        self.store.get(&Key::below_origin(inode), decoded)
    }

    fn put_origin(&mut self, inode: InodeNumber, origin: &BelowOrigin) {
        self.store.put(&Key::below_origin(inode), &codec::to_bytes(origin));
    }

    /// Returns the path below of an inode that comes from there.
    pub fn path_below(&self, inode: InodeNumber) -> Option<Vec<Name>> {
        let mut path = Vec::new();
        let mut origin = self.origin(inode)?;
        while let Some((directory, name)) = origin.place {
            path.push(name);
            origin = self.origin(directory)?;
        }
        path.reverse();
        Some(path)
    }

    /// Marks an inode as read, or as one whose contents are gone.
    pub(super) fn forget_unread(&mut self, inode: InodeNumber) {
        if self.unread == 0 {
            return;
        }
        let Some(origin) = self.origin(inode).filter(|origin| origin.is_unread) else { return };
        self.unread -= 1;
        // Paths below of a directory's children contain it, also after they were renamed.
        if self.inode(inode).is_some_and(|inode| inode.kind == FileKind::Directory) {
            self.put_origin(inode, &BelowOrigin { is_unread: false, ..origin });
        } else {
            self.store.delete(&Key::below_origin(inode));
        }
    }

    /// Adds names that were read from below to a directory. Times of the directory stay as they are below.
    pub(super) fn import_names(&mut self, number: InodeNumber, names: &[BelowName]) {
        if !self.is_unread(number) {
            return;
        }
        let Ok(mut directory) = self.directory(number) else { return };
        for name in names {
            self.import_name((number, &mut directory), name);
        }
        self.put_inode(number, &directory);
        self.forget_unread(number);
    }

    fn import_name(&mut self, (parent, directory): (InodeNumber, &mut Inode), from: &BelowName) {
        let BelowName { name, kind, stamp, .. } = from;
        let number = InodeNumber::new(self.shard, self.next_sequence);
        let is_directory = *kind == FileKind::Directory;
        let owner = super::create::NewOwner { uid: from.uid, gid: from.gid, mode: from.mode & MODE_BITS };
        let mut inode = Inode::new(*kind, &owner, parent, stamp.mtime);
        match (kind, &from.target) {
            (FileKind::Symlink, Some(target)) if (1..=SYMLINK_BYTES_MAX).contains(&target.0.len()) => {
                inode.size = target.0.len() as u64;
                self.store.put(&Key::symlink(number), &target.0);
            }
            (FileKind::Symlink, _) => return,
            (FileKind::Regular, _) => inode.size = stamp.size,
            (FileKind::Directory, _) => inode.inherit(directory.inherited()),
        }
        if !self.insert_dentry(parent, name, Dentry { inode: number, kind: *kind }) {
            return;
        }
        self.next_sequence += 1;
        self.inodes += 1;
        self.dentries += 1;
        directory.size += 1;
        directory.links += u32::from(is_directory);
        self.put_inode(number, &inode);
        if is_directory || (*kind == FileKind::Regular && stamp.size > 0) {
            let origin = BelowOrigin { place: Some((parent, name.clone())), is_unread: true };
            self.put_origin(number, &origin);
            self.unread += 1;
        }
        let entry = BelowEntry { kind: *kind, stamp: *stamp, inode: number, ctime: inode.ctime, differs: false };
        self.put_entry(parent, name, &entry);
    }

    /// Returns true if reading a file changes its attributes, since it has changed below.
    pub fn changes_when_filled(&self, number: InodeNumber, stamp: &BelowStamp) -> bool {
        self.inode(number).is_some_and(|inode| (inode.size, inode.mtime) != (stamp.size, stamp.mtime))
    }

    /// Gives a file the object to which its contents were copied. Returns false if the file needs none any more.
    pub(super) fn fill_file(
        &mut self,
        number: InodeNumber,
        object: ObjectId,
        stamp: &BelowStamp,
        object_mtime: Timestamp,
    ) -> bool {
        let Some(origin) = self.origin(number).filter(|origin| origin.is_unread) else { return false };
        let Some(mut inode) = self.inode(number) else { return false };
        inode.set_layout(Layout::Whole { object, generation: Generation(1) });
        inode.note_object_mtime(Some(object_mtime));
        let before = inode.ctime;
        if self.changes_when_filled(number, stamp) {
            (inode.size, inode.mtime) = (stamp.size, stamp.mtime);
            inode.ctime = stamp.mtime.after(before);
        }
        self.put_inode(number, &inode);
        if let Some((directory, name)) = &origin.place
            && let Some(entry) = self.entry(*directory, name).filter(|entry| entry.inode == number)
        {
            // What was changed here before it was read stays changed.
            let ctime = if entry.ctime == before { inode.ctime } else { entry.ctime };
            self.put_entry(*directory, name, &BelowEntry { stamp: *stamp, ctime, ..entry });
        }
        self.forget_unread(number);
        true
    }

    fn entry(&self, directory: InodeNumber, name: &Name) -> Option<BelowEntry> {
        self.store.get(&Key::below_name(directory, name.as_bytes()), decoded)
    }

    fn put_entry(&mut self, directory: InodeNumber, name: &Name, entry: &BelowEntry) {
        self.store.put(&Key::below_name(directory, name.as_bytes()), &codec::to_bytes(entry));
    }

    /// Returns a page of a directory's entries, after a name.
    pub fn read_below(&self, directory: InodeNumber, after: Option<&Name>) -> BelowPage {
        let mut page = BelowPage { is_unread: self.is_unread(directory), entries: Vec::new(), next: None };
        let from = Key::below_name(directory, after.map_or(&[][..], Name::as_bytes));
        self.store.scan(&from, |key, value| match below_name_of(key, directory) {
            Some(name) if Some(&name) == after => ControlFlow::Continue(()),
            Some(_) if page.entries.len() == NAMES_BELOW_MAX => {
                page.next = page.entries.last().map(|(name, _)| name.clone());
                ControlFlow::Break(())
            }
            Some(name) => {
                page.entries.push((name, decoded(value)));
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        });
        page
    }

    /// Records what is below from now on.
    pub(super) fn note_below(&mut self, directory: InodeNumber, notes: &[BelowNote]) -> Result<ShardAnswer> {
        if !self.is_here(directory) || notes.len() > NAMES_BELOW_MAX {
            return Err(Error::Invalid);
        }
        for BelowNote { name, entry } in notes {
            match entry {
                Some(entry) => self.put_entry(directory, name, entry),
                None => {
                    self.store.delete(&Key::below_name(directory, name.as_bytes()));
                }
            }
        }
        Ok(ShardAnswer::Done)
    }
}

fn decoded<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> T {
    codec::from_bytes(bytes).expect("a record of the store is what was put in")
}
