//! Unlink, rmdir, and the end of inodes.
//!
//! An inode whose last name goes while somebody has it open, or may open it by its number, becomes an *orphan*: it
//! stays, marked, until [`Command::Reap`]. The front knows for whom, and says so in the command, so that the back stays
//! deterministic. A directory without a name is empty, and nothing is made in it.
//!
//! [`Command::Reap`]: super::Command::Reap

use super::inode::Inode;
use super::keys::{Key, Tag, inode_of};
use super::permission::{check_change_names, check_sticky};
use super::{Aftermath, Back};
use crate::kv::KeyValue;
use std::ops::ControlFlow;
use weft_protocol::message::shard::ShardAnswer;
use weft_protocol::{Credentials, Error, FileKind, InodeNumber, Layout, Name, ObjectId, Result, Timestamp};

impl<K: KeyValue> Back<K> {
    pub(super) fn unlink(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        place: (InodeNumber, &Name),
        keep: bool,
        aftermath: &mut Aftermath,
    ) -> Result<ShardAnswer> {
        let (parent, name) = place;
        let mut directory = self.searched(caller, (parent, name))?;
        let dentry = self.existing(parent, name)?;
        check_change_names(&directory, caller)?;
        if dentry.kind == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        let target = self.present(dentry.inode)?;
        check_sticky(&directory, &target, caller)?;
        self.drop_dentry(time, (parent, &mut directory), name);
        self.put_inode(parent, &directory);
        let links = self.drop_link(time, dentry.inode, target, keep, aftermath);
        Ok(ShardAnswer::Removed { time, inode: dentry.inode, links })
    }

    /// Removes names up to one that is refused; if that is the first one, the error is the answer.
    pub(super) fn unlink_batch(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        parent: InodeNumber,
        names: &[(Name, bool)],
    ) -> (Result<ShardAnswer>, Vec<Aftermath>) {
        let (mut removed, mut aftermaths) = (Vec::with_capacity(names.len()), Vec::with_capacity(names.len()));
        for (name, keep) in names {
            let mut aftermath = Aftermath::default();
            match self.unlink(time, caller, (parent, name), *keep, &mut aftermath) {
                Ok(ShardAnswer::Removed { inode, links, .. }) => removed.push((inode, links)),
                Ok(other) => unreachable!("a removal is answered by {other:?}"),
                Err(error) if removed.is_empty() => return (Err(error), aftermaths),
                Err(_) => break,
            }
            aftermaths.push(aftermath);
        }
        (Ok(ShardAnswer::RemovedBatch { time, removed }), aftermaths)
    }

    pub(super) fn remove_directory(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        (parent, name): (InodeNumber, &Name),
        keep: bool,
        aftermath: &mut Aftermath,
    ) -> Result<ShardAnswer> {
        let mut directory = self.searched(caller, (parent, name))?;
        let dentry = self.existing(parent, name)?;
        check_change_names(&directory, caller)?;
        if dentry.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        if !self.is_here(dentry.inode) {
            return Err(Error::CrossShard);
        }
        let target = self.present(dentry.inode)?;
        check_sticky(&directory, &target, caller)?;
        self.check_empty(dentry.inode, &target)?;
        self.drop_dentry(time, (parent, &mut directory), name);
        self.put_inode(parent, &directory);
        self.drop_directory(time, dentry.inode, target, keep, aftermath);
        Ok(ShardAnswer::Removed { time, inode: dentry.inode, links: 0 })
    }

    /// Refuses a directory with names in it, or with one on its way.
    pub(super) fn check_empty(&self, number: InodeNumber, directory: &Inode) -> Result<()> {
        if directory.size == 0 && self.lock_within(number).is_none() { Ok(()) } else { Err(Error::NotEmpty) }
    }

    /// One name less. Returns the names left.
    pub(super) fn drop_link(
        &mut self,
        time: Timestamp,
        number: InodeNumber,
        mut inode: Inode,
        keep: bool,
        aftermath: &mut Aftermath,
    ) -> u32 {
        assert!(inode.links > 0, "inode {number} has a name and no links");
        inode.links -= 1;
        inode.ctime = time.after(inode.ctime);
        if inode.links > 0 {
            self.put_inode(number, &inode);
        } else {
            self.drop_or_keep(number, &inode, keep, aftermath);
        }
        inode.links
    }

    /// The name of an empty directory is gone.
    pub(super) fn drop_directory(
        &mut self,
        time: Timestamp,
        number: InodeNumber,
        mut directory: Inode,
        keep: bool,
        aftermath: &mut Aftermath,
    ) {
        directory.links = 0;
        directory.ctime = time;
        self.drop_or_keep(number, &directory, keep, aftermath);
    }

    pub(super) fn drop_or_keep(&mut self, number: InodeNumber, inode: &Inode, keep: bool, aftermath: &mut Aftermath) {
        if keep {
            self.put_inode(number, inode);
            self.store.put(&Key::orphan(number), &[]);
            aftermath.orphaned = Some(number);
        } else {
            self.drop_inode(number, inode, aftermath);
        }
    }

    /// The inode ends, and its object with it.
    pub(super) fn drop_inode(&mut self, number: InodeNumber, inode: &Inode, aftermath: &mut Aftermath) {
        self.forget_unread(number);
        self.store.delete(&Key::inode(number));
        self.drop_xattrs(number, inode);
        self.latest_directory.take_if(|(latest, _)| *latest == number);
        if inode.kind == FileKind::Symlink {
            self.store.delete(&Key::symlink(number));
        }
        self.inodes -= 1;
        aftermath.gone = Some(number);
        aftermath.removed = objects_of(number, &inode.layout);
        aftermath.removed.append(&mut self.drop_split(number, inode));
    }

    /// Nobody uses the orphan any more. Nothing is done when it is no orphan.
    pub(super) fn reap(&mut self, number: InodeNumber, aftermath: &mut Aftermath) {
        if self.store.delete(&Key::orphan(number)) {
            let inode = self.inode(number).expect("an orphan has an inode until it is reaped");
            self.drop_inode(number, &inode, aftermath);
        }
    }

    /// All orphans, ascending.
    pub fn orphans(&self) -> Vec<InodeNumber> {
        let mut orphans = Vec::new();
        self.store.scan(&[Tag::Orphan as u8], |key, _| match inode_of(key, Tag::Orphan) {
            Some(inode) => {
                orphans.push(inode);
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        });
        orphans
    }
}

/// The objects of a file, as they are removed.
pub(super) fn objects_of(number: InodeNumber, layout: &Layout) -> Vec<(InodeNumber, ObjectId)> {
    layout.objects().iter().map(|object| (number, *object)).collect()
}
