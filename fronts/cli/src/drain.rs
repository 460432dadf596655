//! Writing changes back to the directory that a file system lies over (docs/decisions/0029).
//!
//! A plan says what differs (`plan.rs`, by `decide.rs`); it is carried out in an order in which nothing is lost where a
//! drain is interrupted: what is still below and needed is read, then files are written under other names and renamed,
//! by the hosts that hold them, and what was removed here is removed there last. When that is on its device, the shards
//! are told what is below now.
//!
//! On a crash: the next drain finds copies that have the time of their files, and does the rest.

mod busy;
mod decide;
mod plan;

pub use busy::Busy;

use crate::copy::{self, Crew, Job, Over, Place, Report, Share};
use crate::failure::{Explain, Failure, Outcome};
use crate::output;
use crate::session::Session;
use crate::verb::copying::Copying;
use crate::verb::stage;
use decide::is_time_of;
use plan::{Known, LinkWrite, Plan, Planner, Removal, look};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_client::{Instance, OpenOptions};
use weft_protocol::{BelowNote, Error, FileKind, InodeNumber};

/// Notes in one message.
const NOTES_MAX: usize = 1024;
/// Permissions of a directory that are kept, and those that it has while it is filled.
const MODE_KEPT: u16 = 0o1777;
const MODE_FILLED: u32 = 0o700;

/// What a drain has done.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Drained {
    /// Files, and their bytes.
    pub files: u64,
    pub bytes: u64,
    pub verified_files: u64,
    /// Names that were removed.
    pub removed: u64,
    /// What others have changed below: its path, and where ours is instead, if it is there still.
    pub conflicts: Vec<(PathBuf, Option<PathBuf>)>,
    /// What could not be written or removed, and why.
    pub failures: Vec<String>,
    /// Of a drain under way: files that it writes, and their bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writing: Option<(u64, u64)>,
}

/// How to drain.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    pub copying: Copying,
    /// With this machine alone.
    pub here: bool,
}

/// The directory that a file system lies over.
pub fn directory_of(instance: &Instance) -> Outcome<&Path> {
    instance.over.as_deref().ok_or_else(|| {
        let name = &instance.map.name;
        Failure::new(format!("\"{name}\" lies over no directory: nothing is to be written back"))
            .remedy(format!("`weft stage out {name}:/ DIR` copies what is in it; see `weft up --over`"))
    })
}

/// What is to be written back: what it does, and the names below.
pub fn pending(session: &Session) -> Outcome<Vec<(&'static str, PathBuf)>> {
    let plan = Planner::plan(session, directory_of(&session.instance)?, None)?;
    Ok(plan.changes().map(|(what, path)| (what, path.to_owned())).collect())
}

/// Writes all changes back, but for files that `busy` leaves for the next drain.
pub fn drain(session: &Arc<Session>, how: How, busy: Option<&mut Busy>) -> Outcome<(Drained, Vec<Share>)> {
    let over = directory_of(&session.instance)?.to_owned();
    let _alone = claim(&session.instance)?;
    let mut plan = Planner::plan(session, &over, busy)?;
    let conflicts = plan.conflicts.drain(..).map(|conflict| (conflict.path, conflict.beside));
    let mut drained = Drained { conflicts: conflicts.collect(), ..Drained::default() };
    let mut shares = Vec::new();
    if plan.has_changes() {
        let bytes = plan.files.iter().map(|file| file.item.size).sum();
        let writing = Some((plan.files.len() as u64, bytes));
        record(&session.instance, &Drained { writing, ..Drained::default() })?;
        protect(session, &plan)?;
        plan.replaced.iter().for_each(|removal| drained.remove(removal));
        for (directory, _) in &plan.directories {
            drained.try_to(make_directory(directory));
        }
        shares = write_files(session, &mut plan, (&over, how), &mut drained)?;
        for link in &plan.links {
            drained.try_to(write_link(session, link));
        }
        plan.removals.iter().for_each(|removal| drained.remove(removal));
        for (directory, mode) in plan.directories.iter().rev() {
            let mode = fs::Permissions::from_mode(u32::from(mode & MODE_KEPT));
            drained.try_to(fs::set_permissions(directory, mode).explain(|| directory.display()));
        }
        Place::Local(over).sync()?;
    }
    note(session, plan)?;
    Ok((drained, shares))
}

/// Waits until no other drain of the file system is under way, on this machine; others wait until this is dropped. Two
/// would write the same unfinished files.
fn claim(instance: &Instance) -> Outcome<fs::File> {
    let path = instance.directory.join("drain.lock");
    let opened = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = opened.explain(|| path.display())?;
    let locked = rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive);
    locked.map_err(io::Error::from).explain(|| path.display())?;
    Ok(file)
}

impl Drained {
    fn try_to(&mut self, done: Outcome<()>) {
        if let Err(failure) = done {
            output::warn(&failure);
            self.failures.push(failure.text().to_owned());
        }
    }

    fn remove(&mut self, removal: &Removal) {
        match remove(removal) {
            Ok(true) => self.removed += 1,
            // Others have made something in it.
            Ok(false) => self.conflicts.push((removal.path.clone(), None)),
            Err(failure) => self.try_to(Err(failure)),
        }
    }

    fn add(&mut self, report: Report) {
        let Report { files, bytes, verified_files, failures, .. } = report;
        self.files += files;
        self.bytes += bytes;
        self.verified_files += verified_files;
        self.failures.extend(failures);
    }
}

/// Has what goes below be read, where it is needed here.
fn protect(session: &Session, plan: &Plan) -> Outcome<()> {
    let (client, who) = (&session.client, &session.who);
    for inode in &plan.protect {
        match client.open(who, *inode, OpenOptions::READ) {
            Ok(file) => file.close().explain(|| "drain")?,
            // It is gone here, too.
            Err(Error::NotFound | Error::Stale) => {}
            Err(Error::SymlinkLoop | Error::IsDirectory) => {}
            Err(error) => return Err(error).explain(|| "drain: read what is to be removed below"),
        }
    }
    Ok(())
}

/// Removes what was read. Returns whether it is gone: a directory in which others have made something stays.
fn remove(removal: &Removal) -> Outcome<bool> {
    let path = &removal.path;
    let what = || format!("remove {}", path.display());
    if removal.kind == FileKind::Directory {
        return match fs::remove_dir(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
            removed => removed.explain(what).map(|()| true),
        };
    }
    match look(path)? {
        None => Ok(true),
        Some(found) if Over::This(found.stamp()) == removal.over => fs::remove_file(path).explain(what).map(|()| true),
        Some(_) => Ok(false),
    }
}

fn make_directory(path: &Path) -> Outcome<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(MODE_FILLED).create(path);
    made.explain(|| format!("make directory {}", path.display()))
}

/// Writes the files, by the hosts that hold them.
fn write_files(
    session: &Arc<Session>,
    plan: &mut Plan,
    (over, how): (&Path, How),
    drained: &mut Drained,
) -> Outcome<Vec<Share>> {
    let choices = how.copying.choices("drain")?;
    let mut jobs = Vec::with_capacity(plan.files.len());
    for file in &plan.files {
        // Others may have removed a directory in which something was changed here.
        if let Some(parent) = file.target.parent() {
            make_directory(parent)?;
        }
        let source = Place::Weft(Arc::clone(session), file.source.clone());
        let target = Place::Local(file.target.clone());
        jobs.push(Job { source, target, item: file.item.clone(), over: file.over });
    }
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let common = copy::common_batch(&session.instance.map.name, false, &choices);
    let mut crew = if how.here { Crew::alone() } else { stage::crew_of(&session.instance, &[]) };
    if !crew.helpers.is_empty() {
        stage::check_crew(&mut crew, &common, &[], &Place::Local(over.to_owned()))?;
    }
    let (report, shares) = copy::copy_jobs(jobs, &choices, &crew, &common)?;
    drained.add(report);
    Ok(stage::merged(shares))
}

fn write_link(session: &Session, link: &LinkWrite) -> Outcome<()> {
    let path = &link.target;
    let text = match session.client.read_link(&session.who, link.inode) {
        Err(Error::NotFound | Error::Stale) => return Ok(()),
        text => text.explain(|| format!("drain {}", path.display()))?,
    };
    if let Some(parent) = path.parent() {
        make_directory(parent)?;
    }
    let part = Place::Local(path.clone()).beside(&copy::part_name(path.file_name().unwrap_or_default().as_bytes()));
    part.make_symlink(&text)?;
    link.over.check(&Place::Local(path.clone()))?;
    part.rename_to(&Place::Local(path.clone()))
}

/// Tells the shards what is below now.
fn note(session: &Session, plan: Plan) -> Outcome<()> {
    let mut notes: BTreeMap<InodeNumber, Vec<BelowNote>> = plan.notes;
    for (directory, name) in plan.removal_notes {
        notes.entry(directory).or_default().push(BelowNote { name, entry: None });
    }
    let mut add = |known: Known, found: Option<copy::Item>| {
        let Known { directory, name, mut entry } = known;
        let Some(found) = found else { return };
        if !entry.differs {
            entry.stamp = found.stamp();
        }
        notes.entry(directory).or_default().push(BelowNote { name, entry: Some(entry) });
    };
    for file in plan.files {
        let found = look(&file.target)?;
        let is_written = |found: &copy::Item| found.size == file.item.size && is_time_of(found.mtime, file.item.mtime);
        add(file.known, found.filter(is_written));
    }
    for link in plan.links {
        let found = look(&link.target)?;
        add(link.known, found.filter(|found| found.kind == copy::Kind::Symlink));
    }
    let (client, who) = (&session.client, &session.who);
    for (directory, notes) in notes {
        for notes in notes.chunks(NOTES_MAX) {
            client.note_below(who, directory, notes.to_vec()).explain(|| "drain: note what was written")?;
        }
    }
    Ok(())
}

/// The file that tells of conflicts, for `weft status` and `weft down`.
fn record_of(instance: &Instance) -> PathBuf {
    instance.directory.join("drained.json")
}

/// What was written back so far, and what others have changed. `None`: nothing yet.
pub fn recorded(instance: &Instance) -> Option<Drained> {
    serde_json::from_slice(&fs::read(record_of(instance)).ok()?).ok()
}

/// Adds what a drain has done to that.
pub fn record(instance: &Instance, drained: &Drained) -> Outcome<()> {
    let mut all = recorded(instance).unwrap_or_default();
    all.files += drained.files;
    all.bytes += drained.bytes;
    all.verified_files += drained.verified_files;
    all.removed += drained.removed;
    all.conflicts.extend(drained.conflicts.iter().cloned());
    all.conflicts.sort_unstable();
    all.conflicts.dedup();
    all.failures.clone_from(&drained.failures);
    all.writing = drained.writing;
    let path = record_of(instance);
    let text = serde_json::to_vec(&all).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    let part = path.with_extension("json.part");
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &path));
    written.explain(|| path.display())
}

/// A conflict, for people.
pub fn conflict_text((path, beside): &(PathBuf, Option<PathBuf>)) -> String {
    let path = printable(path);
    match beside {
        Some(beside) => format!("{path} was changed below, and stays; ours is {}", printable(beside)),
        None => format!("{path} was changed below, and stays; it was removed here"),
    }
}

/// A path, for people.
pub fn printable(path: &Path) -> String {
    output::printable(OsStr::as_bytes(path.as_os_str())).to_string()
}
