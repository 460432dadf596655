//! What an operation over several shards needs to know, and whether it may be done: the checks of `create.rs`,
//! `remove.rs` and `rename.rs`, on what the shards have told of what they have locked.
//!
//! Not here: locking, and the order in which shards are asked (`across.rs`).

use super::inode::{EMPTY_DIRECTORY_LINKS, Inode, STICKY};
use super::permission::{SEARCH, WRITE, check_access, check_change_names, check_sticky, is_owner};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::message::peer::{Fate, Lock, LockedName, NameChange, PartAttributes};
use weft_protocol::message::shard::{RenameMode, ShardAnswer, ShardRequest};
use weft_protocol::{Attributes, Credentials, Error, FileKind, Grants, InodeNumber, Name, Result, Timestamp, routing};

/// What is known of names and inodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Facts {
    names: BTreeMap<(InodeNumber, Name), LockedName>,
    inodes: BTreeMap<InodeNumber, Option<Attributes>>,
    /// Those of them that are locked as ones that lose a name. What is known of the others may change: a directory may
    /// get names.
    going: BTreeSet<InodeNumber>,
    /// The tree of directories is locked.
    tree: bool,
    /// What directories are in, each from below.
    above: BTreeMap<InodeNumber, Vec<InodeNumber>>,
}

impl Facts {
    /// Takes in what a shard has told of these locks. Returns false if that is of others.
    pub(super) fn take(&mut self, locks: &[Lock], names: &[LockedName], inodes: &[Option<Attributes>]) -> bool {
        let (mut names, mut inodes) = (names.iter(), inodes.iter());
        for lock in locks {
            match lock {
                Lock::Name { directory, name, fate } => {
                    let Some(told) = names.next() else { return false };
                    if let (Some((inode, _)), Some(attributes)) = (told.entry, &told.attributes) {
                        self.learn(inode, Some(attributes.clone()), *fate);
                    }
                    self.names.insert((*directory, name.clone()), told.clone());
                }
                Lock::Inode { inode, fate } => {
                    let Some(told) = inodes.next() else { return false };
                    self.learn(*inode, told.clone(), *fate);
                }
                Lock::Tree => self.tree = true,
            }
        }
        names.next().is_none() && inodes.next().is_none()
    }

    fn learn(&mut self, inode: InodeNumber, told: Option<Attributes>, fate: Fate) {
        self.inodes.insert(inode, told);
        if fate == Fate::Loses {
            self.going.insert(inode);
        }
    }

    /// Whether what this lock is about is known, and locked so.
    pub(super) fn knows(&self, lock: &Lock) -> bool {
        match lock {
            Lock::Name { directory, name, .. } => self.name(*directory, name).is_some(),
            Lock::Inode { inode, fate } => {
                self.inodes.contains_key(inode) && (*fate == Fate::Stays || self.going.contains(inode))
            }
            Lock::Tree => self.tree,
        }
    }

    /// Takes in a part of what a directory is in.
    pub(super) fn walked(&mut self, directory: InodeNumber, above: &[InodeNumber]) {
        self.above.entry(directory).or_default().extend(above);
    }

    /// Whether a directory is `below` or above it.
    fn is_above(&self, directory: InodeNumber, below: InodeNumber) -> bool {
        self.above.get(&below).is_some_and(|above| above.contains(&directory))
    }

    fn is_directory(&self, (directory, name): (InodeNumber, &Name)) -> bool {
        let entry = self.name(directory, name).and_then(|told| told.entry);
        entry.is_some_and(|(_, kind)| kind == FileKind::Directory)
    }

    /// Whether this is a directory that has names.
    fn has_names(&self, (directory, name): (InodeNumber, &Name)) -> bool {
        let entry = self.name(directory, name).and_then(|told| told.entry);
        entry.is_some_and(|(inode, kind)| kind == FileKind::Directory && self.check_empty(inode).is_err())
    }

    fn name(&self, directory: InodeNumber, name: &Name) -> Option<&LockedName> {
        self.names.get(&(directory, name.clone()))
    }

    fn told(&self, directory: InodeNumber, name: &Name) -> Result<&LockedName> {
        self.name(directory, name).ok_or(Error::Stale)
    }

    /// The parts of a directory beside itself, as far as it is known to have any.
    fn parts_beside(&self, directory: InodeNumber) -> Vec<InodeNumber> {
        let parts = self.inode(directory).and_then(|record| record.parts);
        parts.map_or(Vec::new(), |parts| parts.others().to_vec())
    }

    /// A directory that is changed as a whole, and not one of its parts alone.
    fn whole_directory(&self, number: InodeNumber) -> Result<Inode> {
        let directory = self.inode(number).ok_or(Error::Stale)?;
        if directory.directory_of(number) == number { Ok(directory) } else { Err(Error::Invalid) }
    }

    /// Refuses a directory that has names, in itself or in another of its parts.
    fn check_empty(&self, directory: InodeNumber) -> Result<()> {
        let is_empty = |part: InodeNumber| {
            let record = self.inode(part);
            record.is_none_or(|record| record.size == 0 && record.links <= EMPTY_DIRECTORY_LINKS)
        };
        let mut all = std::iter::once(directory).chain(self.parts_beside(directory));
        if all.all(is_empty) { Ok(()) } else { Err(Error::NotEmpty) }
    }

    /// That the inode loses a name; a directory goes with all of its parts.
    fn loses(&self, inode: InodeNumber) -> impl Iterator<Item = NameChange> {
        let all = std::iter::once(inode).chain(self.parts_beside(inode));
        all.map(|inode| NameChange::Lose { inode })
    }

    /// The inode, if it is known and not gone.
    fn inode(&self, inode: InodeNumber) -> Option<Inode> {
        self.inodes.get(&inode)?.as_ref().map(Inode::told)
    }
}

/// Whether only its owner may take a name away from the directory, of which the caller is not one.
pub(super) fn is_sticky(directory: &Inode, caller: &Credentials) -> bool {
    directory.mode & STICKY != 0 && !is_owner(directory, caller)
}

/// The names that a request is about.
pub(super) fn names_of(request: &ShardRequest) -> Vec<(InodeNumber, &Name)> {
    match request {
        ShardRequest::Unlink { parent, name }
        | ShardRequest::RemoveDirectory { parent, name }
        | ShardRequest::Link { parent, name, .. } => vec![(*parent, name)],
        ShardRequest::UnlinkBatch { parent, names } => names.first().map(|name| (*parent, name)).into_iter().collect(),
        ShardRequest::Rename { parent, name, new_parent, new_name, .. } => {
            vec![(*parent, name), (*new_parent, new_name)]
        }
        ShardRequest::SetAttributes { .. } | ShardRequest::SetInherited { .. } => Vec::new(),
        other => unreachable!("{other:?} needs no other shard"),
    }
}

/// What has to be locked for a request, as far as it is known what its names are.
pub(super) fn needed(request: &ShardRequest, facts: &Facts) -> Vec<Lock> {
    let lock = |(directory, name): (InodeNumber, &Name), fate| Lock::Name { directory, name: name.clone(), fate };
    let names = names_of(request);
    let mut locks = Vec::new();
    for (index, place) in names.iter().enumerate() {
        let fate = match request {
            ShardRequest::Link { .. } => Fate::Stays,
            ShardRequest::Rename { mode: RenameMode::Exchange, .. } => Fate::Stays,
            ShardRequest::Rename { .. } if index == 0 => Fate::Stays,
            _ => Fate::Loses,
        };
        locks.push(lock(*place, fate));
        let ((inode, kind), is_guarded) = match (facts.name(place.0, place.1), guess(request)) {
            (Some(LockedName { directory, entry: Some(entry), attributes: None }), _) => {
                (*entry, directory.mode & STICKY != 0)
            }
            (None, Some(entry)) if index == 1 && routing::of_inode(entry.0) != routing::of_name(place.0, place.1) => {
                (entry, false)
            }
            _ => continue,
        };
        // A file that stays is asked about only where its owner matters.
        if fate == Fate::Loses || kind == FileKind::Directory || is_guarded {
            locks.push(Lock::Inode { inode, fate });
        }
    }
    if let ShardRequest::Link { inode, .. } = request {
        locks.push(Lock::Inode { inode: *inode, fate: Fate::Stays });
    }
    if let ShardRequest::SetAttributes { inode, .. } | ShardRequest::SetInherited { inode, .. } = request {
        locks.push(Lock::Inode { inode: *inode, fate: Fate::Loses });
    }
    locks.extend(changed_as_a_whole(request, facts).map(|inode| Lock::Inode { inode, fate: Fate::Loses }));
    if !directories_to_walk(request, facts).is_empty() {
        locks.push(Lock::Tree);
    }
    locks
}

/// The parts of a directory that goes, or is changed, beside that itself.
fn changed_as_a_whole(request: &ShardRequest, facts: &Facts) -> impl Iterator<Item = InodeNumber> {
    let named = |parent: InodeNumber, name: &Name| facts.name(parent, name)?.entry.map(|(inode, _)| inode);
    let directory = match request {
        ShardRequest::SetAttributes { inode, .. } | ShardRequest::SetInherited { inode, .. } => Some(*inode),
        ShardRequest::RemoveDirectory { parent, name } => named(*parent, name),
        ShardRequest::Rename { new_parent, new_name, mode: RenameMode::Replace, .. } => named(*new_parent, new_name),
        _ => None,
    };
    directory.into_iter().flat_map(|directory| facts.parts_beside(directory))
}

/// What the new name of a rename is said to be.
fn guess(request: &ShardRequest) -> Option<(InodeNumber, FileKind)> {
    match request {
        ShardRequest::Rename { guess, .. } => *guess,
        _ => None,
    }
}

/// The request without a guess of which it is not known that it is right.
pub(super) fn without_guess(request: &ShardRequest, facts: &Facts) -> Option<ShardRequest> {
    let ShardRequest::Rename { new_parent, new_name, guess: guessed @ Some(_), .. } = request else { return None };
    if facts.name(*new_parent, new_name).is_some_and(|told| told.entry == *guessed) {
        return None;
    }
    let mut request = request.clone();
    if let ShardRequest::Rename { guess, .. } = &mut request {
        *guess = None;
    }
    Some(request)
}

/// Directories of which it has to be known what they are in: those to which others move from another one, since no
/// cycle may come of it, and that in which the source is, if it may be below what it replaces: that is refused as not
/// empty, whatever the source is.
fn directories_to_walk(request: &ShardRequest, facts: &Facts) -> Vec<InodeNumber> {
    let ShardRequest::Rename { parent, name, new_parent, new_name, mode, .. } = request else { return Vec::new() };
    let mut directories = Vec::new();
    if parent != new_parent && facts.is_directory((*parent, name)) {
        directories.push(*new_parent);
    }
    let may_be_above = match mode {
        RenameMode::Exchange => facts.is_directory((*new_parent, new_name)),
        RenameMode::Replace => facts.has_names((*new_parent, new_name)),
        RenameMode::NoReplace => false,
    };
    if parent != new_parent && may_be_above {
        directories.push(*parent);
    }
    directories
}

/// One of these that is not known yet. All is locked.
pub(super) fn to_walk(request: &ShardRequest, facts: &Facts) -> Option<InodeNumber> {
    let is_unknown = |directory: &InodeNumber| *directory != InodeNumber::ROOT && !facts.above.contains_key(directory);
    directories_to_walk(request, facts).into_iter().find(is_unknown)
}

/// The changes that a request makes at this time, and its answer; or why it is refused.
pub(super) fn decide(
    caller: &Credentials,
    request: &ShardRequest,
    facts: &Facts,
    time: Timestamp,
) -> Result<(Vec<NameChange>, ShardAnswer)> {
    match request {
        ShardRequest::Unlink { parent, name } => {
            let (changes, inode, links) = removal(caller, (*parent, name), facts, false)?;
            Ok((changes, ShardAnswer::Removed { time, inode, links }))
        }
        ShardRequest::UnlinkBatch { parent, names } => {
            let name = names.first().ok_or(Error::Invalid)?;
            let (changes, inode, links) = removal(caller, (*parent, name), facts, false)?;
            Ok((changes, ShardAnswer::RemovedBatch { time, removed: vec![(inode, links)] }))
        }
        ShardRequest::RemoveDirectory { parent, name } => {
            let (changes, inode, links) = removal(caller, (*parent, name), facts, true)?;
            Ok((changes, ShardAnswer::Removed { time, inode, links }))
        }
        ShardRequest::Link { inode, parent, name } => link(caller, *inode, (*parent, name), facts, time),
        ShardRequest::SetAttributes { inode, changes } => {
            let mut directory = facts.whole_directory(*inode)?;
            directory.change(time, caller, changes, false)?;
            Ok(all_become(*inode, &directory, changes.mtime.map(|_| directory.mtime), facts))
        }
        ShardRequest::SetInherited { inode, change } => {
            let mut directory = facts.whole_directory(*inode)?;
            directory.set_inherited(time, caller, *change)?;
            Ok(all_become(*inode, &directory, None, facts))
        }
        ShardRequest::Rename { parent, name, new_parent, new_name, mode, .. } => {
            rename(caller, ((*parent, name), (*new_parent, new_name)), *mode, facts)
        }
        other => unreachable!("{other:?} needs no other shard"),
    }
}

/// All parts of a directory get what was changed of it.
fn all_become(
    inode: InodeNumber,
    directory: &Inode,
    mtime: Option<Timestamp>,
    facts: &Facts,
) -> (Vec<NameChange>, ShardAnswer) {
    let Inode { mode, uid, gid, atime, ctime, .. } = *directory;
    let attributes = PartAttributes { mode, uid, gid, inherited: directory.inherited(), atime, mtime, ctime };
    // Those of a directory that was removed, and is open, are gone.
    let others = facts.parts_beside(inode).into_iter().filter(|part| facts.inode(*part).is_some());
    let all = std::iter::once(inode).chain(others);
    let changes = all.map(|inode| NameChange::Become { inode, attributes: Box::new(attributes.clone()) }).collect();
    (changes, ShardAnswer::Entry { attributes: directory.attributes(inode), grants: Grants::empty() })
}

fn set((directory, name): (InodeNumber, &Name), entry: Option<(InodeNumber, FileKind)>) -> NameChange {
    NameChange::Set { directory, name: name.clone(), entry }
}

fn removal(
    caller: &Credentials,
    place: (InodeNumber, &Name),
    facts: &Facts,
    of_directory: bool,
) -> Result<(Vec<NameChange>, InodeNumber, u32)> {
    let told = facts.told(place.0, place.1)?;
    let directory = Inode::told(&told.directory);
    check_access(&directory, caller, SEARCH)?;
    let (inode, kind) = told.entry.ok_or(Error::NotFound)?;
    check_change_names(&directory, caller)?;
    match kind {
        FileKind::Directory if !of_directory => return Err(Error::IsDirectory),
        FileKind::Regular | FileKind::Symlink if of_directory => return Err(Error::NotDirectory),
        _ => {}
    }
    let Some(target) = facts.inode(inode) else {
        // Gone already, as the shard of its name does not know.
        return Ok((vec![set(place, None)], inode, 0));
    };
    check_sticky(&directory, &target, caller)?;
    if of_directory {
        facts.check_empty(inode)?;
    }
    let links = if of_directory { 0 } else { target.links.saturating_sub(1) };
    Ok((facts.loses(inode).chain([set(place, None)]).collect(), inode, links))
}

fn link(
    caller: &Credentials,
    number: InodeNumber,
    place: (InodeNumber, &Name),
    facts: &Facts,
    time: Timestamp,
) -> Result<(Vec<NameChange>, ShardAnswer)> {
    let mut inode = facts.inode(number).ok_or(Error::Stale)?;
    let told = facts.told(place.0, place.1)?;
    let directory = Inode::told(&told.directory);
    check_access(&directory, caller, SEARCH)?;
    directory.check_has_name()?;
    if told.entry.is_some() {
        return Err(Error::Exists);
    }
    check_change_names(&directory, caller)?;
    // After the place, as on Linux.
    inode.check_another_link()?;
    let changes = vec![NameChange::Gain { inode: number, time }, set(place, Some((number, inode.kind)))];
    inode.gain_name(time);
    Ok((changes, ShardAnswer::Entry { attributes: inode.attributes(number), grants: Grants::empty() }))
}

/// One of the two names of a rename, with what it names.
struct End {
    directory: Inode,
    entry: Option<(InodeNumber, FileKind)>,
    inode: Option<Inode>,
}

impl End {
    fn of(place: (InodeNumber, &Name), facts: &Facts) -> Result<Self> {
        let told = facts.told(place.0, place.1)?;
        let inode = told.entry.and_then(|(inode, _)| facts.inode(inode));
        Ok(Self { directory: Inode::told(&told.directory), entry: told.entry, inode })
    }

    /// Whether the caller may take this name away from its directory: by moving or by replacing it.
    fn check_may_leave(&self, caller: &Credentials) -> Result<()> {
        check_change_names(&self.directory, caller)?;
        // Of what is not known no owner was needed.
        self.inode.as_ref().map_or(Ok(()), |inode| check_sticky(&self.directory, inode, caller))
    }

    /// Whether the caller may give this a new parent: that changes a directory's `..`.
    fn check_may_move(&self, caller: &Credentials) -> Result<()> {
        match &self.inode {
            Some(inode) if inode.kind == FileKind::Directory => check_access(inode, caller, WRITE),
            _ => Ok(()),
        }
    }

    fn moved_to(&self, directory: InodeNumber) -> Option<NameChange> {
        let (inode, _) = self.entry.filter(|_| self.inode.is_some())?;
        Some(NameChange::Move { inode, directory })
    }
}

fn rename(
    caller: &Credentials,
    (from, to): ((InodeNumber, &Name), (InodeNumber, &Name)),
    mode: RenameMode,
    facts: &Facts,
) -> Result<(Vec<NameChange>, ShardAnswer)> {
    let (source, target) = (End::of(from, facts)?, End::of(to, facts)?);
    check_access(&source.directory, caller, SEARCH)?;
    check_access(&target.directory, caller, SEARCH)?;
    target.directory.check_has_name()?;
    let (moved, kind) = source.entry.ok_or(Error::NotFound)?;
    match (target.entry, mode) {
        (Some(_), RenameMode::NoReplace) => return Err(Error::Exists),
        (None, RenameMode::Exchange) => return Err(Error::NotFound),
        _ => {}
    }
    let (old_parent, new_parent) = (source.directory.directory_of(from.0), target.directory.directory_of(to.0));
    let changes_parent = old_parent != new_parent;
    let is_above = |entry: Option<(InodeNumber, FileKind)>, parent| {
        entry.is_some_and(|(inode, kind)| kind == FileKind::Directory && facts.is_above(inode, parent))
    };
    if changes_parent && is_above(source.entry, to.0) {
        return Err(Error::Invalid);
    }
    if changes_parent && is_above(target.entry, from.0) {
        // Before anything else about the two, as on Linux: a file may not replace it either.
        return Err(if mode == RenameMode::Exchange { Error::Invalid } else { Error::NotEmpty });
    }
    let renamed =
        |replaced, exchanged| ShardAnswer::Renamed { inode: moved, kind, replaced, exchanged, grants: Grants::empty() };
    if target.entry.is_some_and(|(inode, _)| inode == moved) {
        return Ok((Vec::new(), renamed(None, None)));
    }
    source.check_may_leave(caller)?;
    match target.entry {
        None => check_change_names(&target.directory, caller)?,
        Some(_) => target.check_may_leave(caller)?,
    }
    if changes_parent {
        source.check_may_move(caller)?;
        if mode == RenameMode::Exchange {
            target.check_may_move(caller)?;
        }
    }
    let mut changes = Vec::new();
    if mode == RenameMode::Exchange {
        changes.extend([set(to, source.entry), set(from, target.entry)]);
        changes.extend(source.moved_to(new_parent));
        changes.extend(target.moved_to(old_parent));
        return Ok((changes, renamed(None, target.entry)));
    }
    let check = |entry| check_replaceable(&source, &target, entry, facts);
    let replaced = target.entry.map(check).transpose()?;
    if let Some((inode, _)) = replaced.filter(|_| target.inode.is_some()) {
        changes.extend(facts.loses(inode));
    }
    changes.extend([set(to, source.entry), set(from, None)]);
    changes.extend(source.moved_to(new_parent));
    Ok((changes, renamed(replaced, None)))
}

/// The inode that is replaced, and the names left of it.
fn check_replaceable(
    source: &End,
    target: &End,
    (inode, kind): (InodeNumber, FileKind),
    facts: &Facts,
) -> Result<(InodeNumber, u32)> {
    match (is_kind(source), kind) {
        (true, FileKind::Directory) => facts.check_empty(inode).map(|()| (inode, 0)),
        (true, _) => Err(Error::NotDirectory),
        (false, FileKind::Directory) => Err(Error::IsDirectory),
        (false, _) => Ok((inode, target.inode.as_ref().map_or(0, |record| record.links.saturating_sub(1)))),
    }
}

fn is_kind(end: &End) -> bool {
    end.entry.is_some_and(|(_, kind)| kind == FileKind::Directory)
}
