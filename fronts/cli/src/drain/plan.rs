//! What a drain has to do: the file system's names, walked beside those below.
//!
//! A directory that is as it was read or written is compared name by name; one that was made or moved here since is
//! new where it is now, and all that is in it. A directory that was not read has no changes and is not walked.
//!
//! What is not read yet of a file that goes below, or is written over, is read first (`protect`), whatever name it has
//! here by now: inodes have one number for good.

use super::busy::Busy;
use super::decide::{Ours, Step, Theirs, decide, is_time_of};
use crate::copy::{Item, Kind, Over};
use crate::failure::{Explain, Outcome};
use crate::session::Session;
use crate::target;
use crate::tree;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weft_client::XattrKey;
use weft_protocol::{Attributes, BelowEntry, BelowNote, Error, FileKind, InodeNumber, Name, XattrName};

/// What stands behind the name of a file that is written beside one that others have changed.
const BESIDE: &str = "~weft";
/// Names that are tried for it.
const BESIDE_MAX: u32 = 1000;

/// Extended attribute of files and directories that are not written below, and its value.
const DRAIN_XATTR: &[u8] = b"user.weft.drain";
const NEVER: &[u8] = b"never";

/// What is to be done, in this order.
#[derive(Default)]
pub struct Plan {
    /// To be read from below, if they were not.
    pub protect: BTreeSet<InodeNumber>,
    /// To be removed before anything is written in their places.
    pub replaced: Vec<Removal>,
    /// To be made, those above first; with their modes.
    pub directories: Vec<(PathBuf, u16)>,
    pub files: Vec<FileWrite>,
    pub links: Vec<LinkWrite>,
    /// To be removed, what is in a directory before it.
    pub removals: Vec<Removal>,
    /// What is to be known when these are removed.
    pub removal_notes: Vec<(InodeNumber, Name)>,
    /// What is to be known then, besides what is written.
    pub notes: BTreeMap<InodeNumber, Vec<BelowNote>>,
    /// What others have changed.
    pub conflicts: Vec<Conflict>,
    /// Something was left for later.
    is_partial: bool,
}

/// Something that goes below.
pub struct Removal {
    pub path: PathBuf,
    pub kind: FileKind,
    pub over: Over,
}

/// A file that is written.
pub struct FileWrite {
    /// Its path here.
    pub source: Vec<u8>,
    pub target: PathBuf,
    pub item: Item,
    pub over: Over,
    pub known: Known,
}

/// A symbolic link that is written.
pub struct LinkWrite {
    pub inode: InodeNumber,
    pub target: PathBuf,
    pub over: Over,
    pub known: Known,
}

/// What is to be known when it is written.
pub struct Known {
    pub directory: InodeNumber,
    pub name: Name,
    /// The stamp is that of what was written, unless it differs.
    pub entry: BelowEntry,
}

/// What others have changed below, and was changed here too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    pub path: PathBuf,
    /// Where ours is written; `None`: it was removed here.
    pub beside: Option<PathBuf>,
}

impl Plan {
    /// Whether anything of this file system would be lost without it.
    pub fn has_changes(&self) -> bool {
        !(self.replaced.is_empty()
            && self.directories.is_empty()
            && self.files.is_empty()
            && self.links.is_empty()
            && self.removals.is_empty())
    }

    /// The names that it changes below, with what it does to them.
    pub fn changes(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let removed = self.replaced.iter().chain(&self.removals).map(|removal| ("remove", removal.path.as_path()));
        let made = self.directories.iter().map(|(path, _)| ("make", path.as_path()));
        let files = self.files.iter().map(|file| ("write", file.target.as_path()));
        let links = self.links.iter().map(|link| ("write", link.target.as_path()));
        made.chain(files).chain(links).chain(removed)
    }
}

/// A walk.
pub struct Planner<'a> {
    session: &'a Session,
    plan: Plan,
    /// Decides which files are left for the next drain; `None`: none is.
    busy: Option<&'a mut Busy>,
}

/// A directory that is walked.
struct Place {
    inode: InodeNumber,
    /// Here.
    path: Vec<u8>,
    /// Below.
    target: PathBuf,
    /// It is the one that is known below.
    is_known: bool,
}

impl<'a> Planner<'a> {
    /// Finds what is to be done for the whole file system, which lies over this directory. With `busy`, files may be
    /// left for later. Then nothing is removed: a file whose new name is not written yet would be nowhere below.
    pub fn plan(session: &'a Session, over: &Path, mut busy: Option<&'a mut Busy>) -> Outcome<Plan> {
        if let Some(busy) = &mut busy {
            busy.begin()?;
        }
        let mut planner = Self { session, plan: Plan::default(), busy };
        let root = Place { inode: InodeNumber::ROOT, path: b"/".to_vec(), target: over.to_owned(), is_known: true };
        let mut places = vec![root];
        while let Some(place) = places.pop() {
            planner.walk(&place, &mut places)?;
        }
        let mut plan = planner.plan;
        if plan.is_partial {
            plan.removals.clear();
            plan.removal_notes.clear();
        }
        Ok(plan)
    }

    /// What is known below a directory, and whether that was read.
    fn known(&self, directory: InodeNumber) -> Outcome<(bool, BTreeMap<Name, BelowEntry>)> {
        let (client, who) = (&self.session.client, &self.session.who);
        let (mut known, mut after) = (BTreeMap::new(), None);
        loop {
            let page = client.read_below(who, directory, after).explain(|| "drain")?;
            known.extend(page.entries);
            after = page.next;
            if after.is_none() {
                return Ok((page.is_unread, known));
            }
        }
    }

    fn walk(&mut self, place: &Place, places: &mut Vec<Place>) -> Outcome<()> {
        let (is_unread, mut known) = self.known(place.inode)?;
        if is_unread && place.is_known {
            return Ok(());
        }
        let what = || format!("drain {}", place.target.display());
        let entries = match tree::list(self.session, place.inode, true) {
            Err(Error::NotFound | Error::Stale) => return Ok(()),
            entries => entries.explain(what)?,
        };
        if !place.is_known {
            // That is of where the directory was.
            let gone = known.into_keys().map(|name| BelowNote { name, entry: None });
            self.plan.notes.entry(place.inode).or_default().extend(gone);
            known = BTreeMap::new();
        }
        for entry in entries {
            let attributes = match tree::attributes_of(self.session, &entry) {
                Err(Error::NotFound | Error::Stale) => continue,
                attributes => attributes.explain(what)?,
            };
            let before = known.remove(&entry.name);
            if self.is_kept_here(&attributes).explain(what)? {
                continue;
            }
            self.look_at(place, &entry.name, Some(&attributes), before, places)?;
        }
        for (name, before) in known {
            self.look_at(place, &name, None, Some(before), places)?;
        }
        Ok(())
    }

    /// Whether a user has said that a file, or all that is in a directory, is not to be written below: what is there by
    /// its name stays as it is.
    fn is_kept_here(&self, attributes: &Attributes) -> Result<bool, Error> {
        if !attributes.has_xattrs() {
            return Ok(false);
        }
        let key = XattrKey::Kept(XattrName::new(DRAIN_XATTR).expect("a name in the namespace of users"));
        match self.session.client.value_of(&self.session.who, attributes.inode, &key) {
            Ok(value) => Ok(value == NEVER),
            Err(Error::NoXattr | Error::NotFound | Error::Stale) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn look_at(
        &mut self,
        place: &Place,
        name: &Name,
        attributes: Option<&Attributes>,
        before: Option<BelowEntry>,
        places: &mut Vec<Place>,
    ) -> Outcome<()> {
        let ours = attributes.map(ours_of);
        let target = place.target.join(OsStr::from_bytes(name.as_bytes()));
        let found = look(&target)?;
        let theirs = found.as_ref().map(theirs_of);
        let step = decide(ours.as_ref(), before.as_ref(), theirs.as_ref());
        let replaces = matches!(step, Step::Write { removes: true } | Step::Make { removes: true });
        let is_written = matches!(step, Step::Write { .. } | Step::WriteBeside);
        if let (Some(busy), Some(ours)) = (&mut self.busy, &ours)
            && (replaces || (is_written && busy.leaves(ours)))
        {
            self.plan.is_partial = true;
            return Ok(());
        }
        if let (Step::Remove, Some(before))
        | (Step::Write { removes: true } | Step::Make { removes: true }, Some(before)) = (step, &before)
        {
            let is_replaced = step != Step::Remove;
            self.remove(&target, before, is_replaced)?;
        } else if let (Step::Write { .. }, Some(before)) = (step, &before)
            && ours.is_some_and(|ours| ours.inode != before.inode)
        {
            self.plan.protect.insert(before.inode);
        }
        let (Some(attributes), Some(ours)) = (attributes, ours) else {
            if let Step::Leave = step {
                self.plan.conflicts.push(Conflict { path: target, beside: None });
            }
            match step {
                Step::Nothing => {}
                Step::Remove => self.plan.removal_notes.push((place.inode, name.clone())),
                _ => self.note(place.inode, name, None),
            }
            return Ok(());
        };
        let stamp = theirs.map(|theirs| theirs.stamp).unwrap_or_default();
        let (inode, ctime) = (ours.inode, ours.ctime);
        let entry = BelowEntry { kind: ours.kind, stamp, inode, ctime, differs: false };
        match step {
            Step::Nothing | Step::Forget | Step::Remove | Step::Leave => {}
            Step::Know => self.note(place.inode, name, Some(entry)),
            Step::Enter => places.push(inner(place, name, inode, target, true)),
            Step::Make { .. } => {
                self.plan.directories.push((target.clone(), attributes.mode));
                self.note(place.inode, name, Some(entry));
                places.push(inner(place, name, inode, target, false));
            }
            Step::MakeBeside => {
                let beside = self.beside(&target, None)?;
                self.plan.conflicts.push(Conflict { path: target, beside: Some(beside.clone()) });
                self.plan.directories.push((beside.clone(), attributes.mode));
                self.note(place.inode, name, Some(BelowEntry { differs: true, ..entry }));
                places.push(inner(place, name, inode, beside, false));
            }
            Step::Write { removes } => {
                let over = if removes { Over::Nothing } else { over_of(found.as_ref()) };
                self.write(place, name, attributes, (target, over), entry);
            }
            Step::WriteBeside => {
                let beside = self.beside(&target, Some(&ours))?;
                self.plan.conflicts.push(Conflict { path: target, beside: Some(beside.clone()) });
                let over = over_of(look(&beside)?.as_ref());
                self.write(place, name, attributes, (beside, over), BelowEntry { differs: true, ..entry });
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        place: &Place,
        name: &Name,
        attributes: &Attributes,
        (target, over): (PathBuf, Over),
        entry: BelowEntry,
    ) {
        let known = Known { directory: place.inode, name: name.clone(), entry };
        if attributes.kind == FileKind::Symlink {
            self.plan.links.push(LinkWrite { inode: attributes.inode, target, over, known });
        } else {
            let source = target::join(&place.path, name.as_bytes());
            self.plan.files.push(FileWrite { source, target, item: Item::from(attributes), over, known });
        }
    }

    /// Has something that was read go below, with all that was read in it.
    fn remove(&mut self, path: &Path, before: &BelowEntry, is_replaced: bool) -> Outcome<()> {
        if before.kind == FileKind::Directory {
            let mut known = self.known(before.inode)?;
            if known.0 {
                // It was moved away before it was read.
                match tree::list(self.session, before.inode, false) {
                    Err(Error::NotFound | Error::Stale) => {}
                    listed => drop(listed.explain(|| format!("drain {}", path.display()))?),
                }
                known = self.known(before.inode)?;
            }
            for (name, inner) in known.1 {
                let path = path.join(OsStr::from_bytes(name.as_bytes()));
                match look(&path)?.as_ref().map(theirs_of) {
                    None => {}
                    Some(theirs) if theirs.is_as(&inner) && !inner.differs => {
                        self.remove(&path, &inner, is_replaced)?;
                    }
                    Some(_) => self.plan.conflicts.push(Conflict { path, beside: None }),
                }
            }
        } else {
            self.plan.protect.insert(before.inode);
        }
        let removals = if is_replaced { &mut self.plan.replaced } else { &mut self.plan.removals };
        removals.push(Removal { path: path.to_owned(), kind: before.kind, over: Over::This(before.stamp) });
        Ok(())
    }

    fn note(&mut self, directory: InodeNumber, name: &Name, entry: Option<BelowEntry>) {
        self.plan.notes.entry(directory).or_default().push(BelowNote { name: name.clone(), entry });
    }

    /// A name that nothing has, or a copy of this file that an interrupted drain has made.
    fn beside(&self, target: &Path, ours: Option<&Ours>) -> Outcome<PathBuf> {
        let name = target.file_name().unwrap_or_default();
        for number in 1..BESIDE_MAX {
            let mut beside = name.to_owned();
            beside.push(BESIDE);
            if number > 1 {
                beside.push(format!("-{number}"));
            }
            let beside = target.with_file_name(beside);
            let taken = self.plan.conflicts.iter().any(|conflict| conflict.beside.as_ref() == Some(&beside));
            match (look(&beside)?, ours) {
                (None, _) if !taken => return Ok(beside),
                (Some(found), Some(ours)) if found.size == ours.size && is_time_of(found.mtime, ours.mtime) => {
                    return Ok(beside);
                }
                _ => {}
            }
        }
        Err(crate::failure::Failure::new(format!("{}: no name is free beside it", target.display())))
    }
}

/// What is there; `None`: nothing.
pub fn look(path: &Path) -> Outcome<Option<Item>> {
    match fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        found => found.explain(|| path.display()).map(|metadata| Some(Item::from(&metadata))),
    }
}

fn inner(place: &Place, name: &Name, inode: InodeNumber, target: PathBuf, is_known: bool) -> Place {
    Place { inode, path: target::join(&place.path, name.as_bytes()), target, is_known: is_known && place.is_known }
}

fn ours_of(attributes: &Attributes) -> Ours {
    let Attributes { kind, inode, size, mtime, ctime, .. } = *attributes;
    Ours { kind, inode, size, mtime, ctime }
}

fn theirs_of(found: &Item) -> Theirs {
    let kind = match found.kind {
        Kind::File => Some(FileKind::Regular),
        Kind::Directory => Some(FileKind::Directory),
        Kind::Symlink => Some(FileKind::Symlink),
        Kind::Other => None,
    };
    Theirs { kind, stamp: found.stamp() }
}

/// What may be replaced of what is there.
fn over_of(found: Option<&Item>) -> Over {
    found.map_or(Over::Nothing, |found| Over::This(found.stamp()))
}
