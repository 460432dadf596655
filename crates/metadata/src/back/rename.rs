//! Rename inside the shard.
//!
//! Order of the checks is that of Linux, so that programs see the errors they know. A directory gets a new parent only
//! when it is sure that no cycle comes of it: the new parent's ancestors are walked as far as they are at this shard;
//! where the chain leaves the shard, a directory without directories in it can still be moved here, another one needs
//! the other shards ([`Back::may_be_above`]).
//!
//! Invariant: the names and the link counts of both directories are right after each rename; `..` of a moved directory
//! too.
//! Not here: rename of what is at several shards (`across.rs`).

use super::inode::Inode;
use super::permission::{SEARCH, WRITE, check_access, check_change_names, check_sticky};
use super::{Aftermath, Back, Dentry};
use crate::kv::KeyValue;
use weft_protocol::message::shard::{RenameMode, ShardAnswer};
use weft_protocol::{Credentials, Error, FileKind, Grants, InodeNumber, Name, Result, Timestamp};

/// The two names of a rename.
#[derive(Clone, Copy)]
pub(super) struct Move<'a> {
    pub parent: InodeNumber,
    pub name: &'a Name,
    pub new_parent: InodeNumber,
    pub new_name: &'a Name,
}

impl Move<'_> {
    fn changes_parent(&self) -> bool {
        self.parent != self.new_parent
    }
}

/// One of the names, with what it names. `inode`: when it is at this shard.
struct End {
    dentry: Dentry,
    inode: Option<Inode>,
}

/// The answer; what it grants is for the front to say.
fn renamed(dentry: Dentry, replaced: Option<(InodeNumber, u32)>, exchanged: Option<Dentry>) -> ShardAnswer {
    let Dentry { inode, kind } = dentry;
    let exchanged = exchanged.map(|other| (other.inode, other.kind));
    ShardAnswer::Renamed { inode, kind, replaced, exchanged, grants: Grants::empty() }
}

impl<K: KeyValue> Back<K> {
    pub(super) fn rename(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        way: Move<'_>,
        mode: RenameMode,
        keep: bool,
        aftermath: &mut Aftermath,
    ) -> Result<ShardAnswer> {
        if !self.serves(way.new_parent, way.new_name) {
            return Err(Error::CrossShard);
        }
        let directory = self.directory(way.parent)?;
        let new_directory = self.directory(way.new_parent)?;
        check_access(&directory, caller, SEARCH)?;
        check_access(&new_directory, caller, SEARCH)?;
        self.check_serves(&directory, (way.parent, way.name))?;
        self.check_serves(&new_directory, (way.new_parent, way.new_name))?;
        new_directory.check_has_name()?;
        let source = self.end(self.existing(way.parent, way.name)?)?;
        let target = self.dentry(way.new_parent, way.new_name).map(|dentry| self.end(dentry)).transpose()?;
        match (&target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(Error::Exists),
            (None, RenameMode::Exchange) => return Err(Error::NotFound),
            _ => {}
        }
        self.check_no_cycle(&source, way.new_parent, way)?;
        match (&target, mode) {
            (Some(target), RenameMode::Exchange) => self.check_no_cycle(target, way.parent, way)?,
            // Before anything else about the two, as on Linux: a file may not replace it either.
            (Some(End { dentry, .. }), _)
                if dentry.kind == FileKind::Directory && self.is_above(dentry.inode, way.parent)? == Some(true) =>
            {
                return Err(Error::NotEmpty);
            }
            _ => {}
        }
        if target.as_ref().is_some_and(|target| target.dentry.inode == source.dentry.inode) {
            return Ok(renamed(source.dentry, None, None));
        }
        check_may_leave(caller, &directory, &source)?;
        match &target {
            None => check_change_names(&new_directory, caller)?,
            Some(target) => check_may_leave(caller, &new_directory, target)?,
        }
        if way.changes_parent() {
            check_may_move(caller, &source)?;
            if let (Some(target), RenameMode::Exchange) = (&target, mode) {
                check_may_move(caller, target)?;
            }
        }
        let dentry = source.dentry;
        if let (Some(target), RenameMode::Exchange) = (&target, mode) {
            self.exchange(time, way, source, target);
            return Ok(renamed(dentry, None, Some(target.dentry)));
        }
        if let Some(target) = &target {
            self.check_replaceable(&source, target)?;
        }
        let replaced = self.move_name(time, way, source, target, keep, aftermath);
        Ok(renamed(dentry, replaced, None))
    }

    fn end(&self, dentry: Dentry) -> Result<End> {
        let inode = if self.is_here(dentry.inode) { Some(self.present(dentry.inode)?) } else { None };
        Ok(End { dentry, inode })
    }

    /// Refuses to put a directory below itself, or where that cannot be known.
    fn check_no_cycle(&self, moved: &End, new_parent: InodeNumber, way: Move<'_>) -> Result<()> {
        if moved.dentry.kind != FileKind::Directory || !way.changes_parent() {
            return Ok(());
        }
        let Some(inode) = &moved.inode else {
            // Its `..` is at another shard.
            return Err(Error::CrossShard);
        };
        match self.is_above(moved.dentry.inode, new_parent)? {
            Some(true) => Err(Error::Invalid),
            Some(false) => Ok(()),
            // What has no directories in it has nobody below it.
            None if inode.has_no_directories() => Ok(()),
            None => Err(Error::CrossShard),
        }
    }

    /// Whether others have to be asked if this directory is above the other one.
    pub(super) fn may_be_above(&self, one: Dentry, other: InodeNumber) -> bool {
        if one.kind != FileKind::Directory {
            return false;
        }
        let Some(inode) = self.inode(one.inode) else { return !self.is_here(one.inode) };
        !inode.has_no_directories() && self.is_above(one.inode, other) == Ok(None)
    }

    /// Whether a directory is `below` or above it. `None`: what is above that is at another shard.
    fn is_above(&self, directory: InodeNumber, below: InodeNumber) -> Result<Option<bool>> {
        let mut at = below;
        while at != directory {
            if at == InodeNumber::ROOT {
                return Ok(Some(false));
            }
            if !self.is_here(at) {
                return Ok(None);
            }
            at = self.present(at)?.parent;
        }
        Ok(Some(true))
    }

    fn check_replaceable(&self, source: &End, target: &End) -> Result<()> {
        match (source.dentry.kind, target.dentry.kind) {
            (FileKind::Directory, FileKind::Directory) => match &target.inode {
                None => Err(Error::CrossShard),
                Some(inode) => self.check_empty(target.dentry.inode, inode),
            },
            (FileKind::Directory, _) => Err(Error::NotDirectory),
            (_, FileKind::Directory) => Err(Error::IsDirectory),
            _ => Ok(()),
        }
    }

    fn move_name(
        &mut self,
        time: Timestamp,
        way: Move<'_>,
        source: End,
        target: Option<End>,
        keep: bool,
        aftermath: &mut Aftermath,
    ) -> Option<(InodeNumber, u32)> {
        let new_parent = self.shown(way.new_parent);
        // A name that is replaced keeps its place in listings.
        let is_replaced = target.is_some();
        self.change_names(way.new_parent, |back, directory| {
            let place = (way.new_parent, directory);
            if is_replaced {
                back.set_dentry(time, place, way.new_name, source.dentry);
            } else {
                back.add_dentry(time, place, way.new_name, source.dentry);
            }
        });
        self.change_names(way.parent, |back, directory| {
            back.drop_dentry(time, (way.parent, directory), way.name);
        });
        let replaced = target.map(|End { dentry, inode }| {
            let inode = inode.expect("a replaced inode is at this shard: checked before");
            if dentry.kind == FileKind::Directory {
                self.drop_directory(time, dentry.inode, inode, keep, aftermath);
                return (dentry.inode, 0);
            }
            (dentry.inode, self.drop_link(time, dentry.inode, inode, keep, aftermath))
        });
        self.note_move(time, source, new_parent);
        replaced
    }

    fn exchange(&mut self, time: Timestamp, way: Move<'_>, source: End, target: &End) {
        self.change_names(way.parent, |back, directory| {
            back.set_dentry(time, (way.parent, directory), way.name, target.dentry);
        });
        self.change_names(way.new_parent, |back, directory| {
            back.set_dentry(time, (way.new_parent, directory), way.new_name, source.dentry);
        });
        let (parent, new_parent) = (self.shown(way.parent), self.shown(way.new_parent));
        self.note_move(time, source, new_parent);
        let target = End { dentry: target.dentry, inode: target.inode.clone() };
        self.note_move(time, target, parent);
    }

    /// A directory of this shard as programs know it.
    fn shown(&self, number: InodeNumber) -> InodeNumber {
        self.inode(number).expect("the directory of a rename was there a moment ago").directory_of(number)
    }

    fn change_names(&mut self, number: InodeNumber, change: impl FnOnce(&mut Self, &mut Inode)) {
        let mut directory = self.inode(number).expect("the directory of a rename was there a moment ago");
        change(self, &mut directory);
        self.put_inode(number, &directory);
    }

    /// The moved inode's change time, and a directory's `..`.
    fn note_move(&mut self, time: Timestamp, moved: End, parent: InodeNumber) {
        let Some(mut inode) = moved.inode else {
            return;
        };
        // A moved directory can itself be one of the two parents of an exchange: its record has changed since.
        if inode.kind == FileKind::Directory {
            inode = self.inode(moved.dentry.inode).expect("a moved directory is still there");
            inode.parent = parent;
        }
        inode.ctime = time.after(inode.ctime);
        self.put_inode(moved.dentry.inode, &inode);
    }
}

/// Whether the caller may take this name away from its directory: by moving or by replacing it.
fn check_may_leave(caller: &Credentials, directory: &Inode, end: &End) -> Result<()> {
    check_change_names(directory, caller)?;
    let Some(inode) = &end.inode else {
        // The owner of a directory at another shard is not known here.
        let may = directory.mode & super::inode::STICKY == 0 || super::permission::is_owner(directory, caller);
        return if may { Ok(()) } else { Err(Error::CrossShard) };
    };
    check_sticky(directory, inode, caller)
}

/// Whether the caller may give this a new parent: that changes a directory's `..`. A directory that is replaced keeps
/// its own until it goes, and needs no permission.
fn check_may_move(caller: &Credentials, end: &End) -> Result<()> {
    match &end.inode {
        Some(inode) if inode.kind == FileKind::Directory => check_access(inode, caller, WRITE),
        _ => Ok(()),
    }
}
