//! Files that another machine copies: what it is told, and how it does that.
//!
//! Both machines have to see the same files under the same paths. Each batch of files that go in says what was seen of
//! their sources, and a machine where they are others copies nothing; of a target that is shared, a [`Witness`] tells.

use super::place::{Item, Place};
use super::queue::Queue;
use super::{Choices, Copy, Job, Over, Report};
use crate::failure::{Explain, Failure, Outcome};
use crate::session::Sessions;
use crate::target::WeftPath;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::thread;
use weft_protocol::{Plan, Timestamp};

/// Files to be copied between a file system and paths of the machine that is told, which are the same everywhere.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Batch {
    pub file_system: String,
    /// Into the file system; otherwise out of it.
    pub goes_in: bool,
    pub verify: bool,
    pub jobs: usize,
    pub plan: Option<Plan>,
    pub xattrs: bool,
    /// What has to be there, or nothing is copied.
    pub witnesses: Vec<Witness>,
    pub files: Vec<FileOfBatch>,
}

/// A file to be copied.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FileOfBatch {
    source: Vec<u8>,
    target: Vec<u8>,
    item: Item,
    over: Over,
}

/// Something that machines which share a directory see alike, and others do not.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Witness {
    path: Vec<u8>,
    inode: u64,
    mtime: Timestamp,
}

impl Witness {
    /// What this machine sees there; `None`: nothing.
    pub fn of(path: PathBuf) -> Outcome<Option<Self>> {
        let place = Place::Local(path);
        let found = place.look(true)?;
        Ok(found.map(|item| Self { path: place.bytes().to_vec(), inode: item.identity.1, mtime: item.mtime }))
    }

    /// Fails where it is not seen.
    fn check(&self) -> Outcome<()> {
        let path = PathBuf::from(OsString::from_vec(self.path.clone()));
        if Self::of(path.clone())?.as_ref() == Some(self) {
            return Ok(());
        }
        Err(Failure::new(format!("{}: is not the same there", Place::Local(path)))
            .remedy("only hosts that share it with this one copy from or to it"))
    }
}

impl FileOfBatch {
    pub(super) fn of(job: &Job) -> Outcome<Self> {
        let (source, target) = (everywhere(&job.source)?, everywhere(&job.target)?);
        Ok(Self { source, target, item: job.item.clone(), over: job.over })
    }
}

/// The path as other machines have it, whose processes work in other directories.
fn everywhere(place: &Place) -> Outcome<Vec<u8>> {
    match place {
        Place::Local(path) => {
            let path = std::path::absolute(path).explain(|| place)?;
            Ok(path.into_os_string().into_vec())
        }
        Place::Weft(..) => Ok(place.bytes().to_vec()),
    }
}

impl Batch {
    /// The verb of the command that this is of, for what it says.
    pub fn verb(&self) -> &'static str {
        if self.goes_in { "stage in" } else { "stage out" }
    }

    /// Copies the files on this machine.
    pub fn perform(&self) -> Outcome<Report> {
        self.witnesses.iter().try_for_each(Witness::check)?;
        if self.files.is_empty() {
            return Ok(Report::default());
        }
        let mut sessions = Sessions::default();
        let root = WeftPath { file_system: Some(self.file_system.clone()), path: b"/".to_vec() };
        let session = sessions.of(&root)?;
        let inside = |path: &Vec<u8>| Place::Weft(std::sync::Arc::clone(&session), path.clone());
        let outside = |path: &Vec<u8>| Place::Local(PathBuf::from(OsString::from_vec(path.clone())));
        let job = |file: &FileOfBatch| {
            let FileOfBatch { source, target, item, over } = file;
            let (source, target) = match self.goes_in {
                true => (outside(source), inside(target)),
                false => (inside(source), outside(target)),
            };
            Job { source, target, item: item.clone(), over: *over }
        };
        let choices = Choices {
            verb: self.verb(),
            resume: true,
            verify: self.verify,
            jobs: self.jobs,
            plan: self.plan,
            xattrs: self.xattrs,
            ..Choices::default()
        };
        let report = copy_here(self.files.iter().map(job), &choices)?;
        // What only this machine's kernel has is not copied yet for the one that asked.
        if let (false, Some(file)) = (self.goes_in, self.files.first()) {
            outside(&file.target).beside(b".").sync()?;
        }
        drop(session);
        sessions.close()?;
        Ok(report)
    }
}

/// Copies files whose directories are there.
fn copy_here(jobs: impl Iterator<Item = Job>, choices: &Choices) -> Outcome<Report> {
    let jobs: Vec<Job> = jobs.collect();
    let copy = Copy::new(choices, Queue::new(0, 0, true), jobs.iter().flat_map(|job| [&job.source, &job.target]))?;
    thread::scope(|scope| {
        for _ in 0..choices.jobs.max(1) {
            scope.spawn(|| copy.work());
        }
        for job in jobs {
            match is_as_seen(&job, choices.verb) {
                Ok(()) => copy.queue.push(None, job),
                Err(failure) => copy.fail(&failure),
            }
        }
        copy.queue.end();
    });
    copy.report()
}

/// Refuses a source on this machine that is another one than where the copy was begun.
fn is_as_seen(job: &Job, verb: &str) -> Outcome<()> {
    let Place::Local(path) = &job.source else { return Ok(()) };
    let found = job.source.look(true)?;
    let is_same = |found: &Item| {
        (found.size, found.mtime, found.identity.1) == (job.item.size, job.item.mtime, job.item.identity.1)
    };
    if found.as_ref().is_some_and(is_same) {
        return Ok(());
    }
    let path = crate::output::printable(path.as_os_str().as_bytes());
    Err(Failure::new(format!("{verb} {path}: is another file there, or has changed"))
        .remedy("`--here` copies with this machine alone"))
}
