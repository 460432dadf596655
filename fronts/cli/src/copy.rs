//! Copies files and trees between this machine and file systems, and inside them.
//!
//! One thread walks the sources, makes directories and symbolic links, and queues files; workers copy them, many files
//! at a time, and several chunks of a large file at a time. A file is written under another name (`.NAME.weft-part`)
//! and renamed when it is whole, so a half copy never looks like a copy. Beside a large one lies a record of how far it
//! is, from which `--resume` goes on.
//!
//! Cost of a file into a file system: create, commit, attributes, rename: four awaited messages, one for each extended
//! attribute, and its data once.
//!
//! On a crash: `.NAME.weft-part` and `.NAME.weft-resume` stay; a later copy of the same name uses or replaces them.

mod batch;
mod crew;
mod file;
mod part;
mod place;
mod progress;
mod queue;
mod verify;
mod xattrs;

pub use batch::{Batch, Witness};
pub use crew::{Crew, Helper, Share, common_batch};
pub use part::part_name;
pub use place::{Item, Kind, Place};

use crate::failure::{Failure, Outcome};
use crate::output;
use progress::Progress;
use queue::Queue;
use serde::{Deserialize, Serialize};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use verify::Verifier;
use weft_protocol::{BelowStamp, NodeId, Plan};

/// Failures after which a copy gives up: more of the same would follow.
const FAILURES_MAX: usize = 20;
/// Fewest and most threads that copy when the user does not say: enough to hide the time of messages, few enough to be
/// light.
const JOBS_RANGE: (usize, usize) = (4, 16);

/// How to copy.
#[derive(Clone, Debug)]
pub struct Choices {
    /// The verb of the command, for what it says.
    pub verb: &'static str,
    /// Directories too, and symbolic links as such.
    pub recursive: bool,
    /// Pass over what is whole already, and go on where a large file was left.
    pub resume: bool,
    /// Read each copy again, and compare it with its source.
    pub verify: bool,
    /// Threads that copy.
    pub jobs: usize,
    /// Say each name.
    pub verbose: bool,
    /// Say nothing but errors.
    pub quiet: bool,
    /// How copies in a file system are striped; `None`: as their directories say.
    pub plan: Option<Plan>,
    /// Keep extended attributes of users.
    pub xattrs: bool,
}

impl Default for Choices {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let jobs = processors.clamp(JOBS_RANGE.0, JOBS_RANGE.1);
        let (recursive, resume, verify) = (false, false, false);
        let (verbose, quiet) = (false, true);
        Self { verb: "cp", recursive, resume, verify, jobs, verbose, quiet, plan: None, xattrs: true }
    }
}

impl Choices {
    /// Refuses what would copy nothing.
    pub fn check(&self) -> Outcome<()> {
        if self.jobs == 0 {
            return Err(Failure::new("-j 0: nobody would copy").remedy("-j 1 or more"));
        }
        Ok(())
    }
}

/// A file to be copied.
pub struct Job {
    pub source: Place,
    pub target: Place,
    pub item: Item,
    pub over: Over,
}

/// What a copy may take the place of, on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Over {
    Anything,
    /// There is to be nothing.
    Nothing,
    /// There is to be this file, as it was seen.
    This(BelowStamp),
}

impl Over {
    /// Fails if something else is there.
    pub fn check(self, target: &Place) -> Outcome<()> {
        let found = match self {
            Over::Anything => return Ok(()),
            Over::Nothing | Over::This(_) => target.look(false)?,
        };
        let found = found.map_or(Over::Nothing, |item| Over::This(item.stamp()));
        if found == self {
            return Ok(());
        }
        Err(Failure::new(format!("{target}: was changed by others meanwhile"))
            .remedy("the next drain keeps that, and writes ours beside it"))
    }
}

/// What a copy has done.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Files that were copied, and their bytes.
    pub files: u64,
    pub bytes: u64,
    /// Files that were there already, and bytes, those of parts of large files included.
    pub kept_files: u64,
    pub kept_bytes: u64,
    /// Copies that were read again and found to be equal.
    pub verified_files: u64,
    /// Files and directories that go without extended attributes, since the target's file system supports none.
    pub without_xattrs: u64,
    /// What could not be copied, and why.
    pub failures: Vec<String>,
}

impl Report {
    /// Warns once of all copies that go without extended attributes.
    fn warn_of_xattrs(&self, verb: &str) {
        if self.without_xattrs > 0 {
            let copies = self.without_xattrs;
            output::warn(&Failure::new(format!(
                "{verb}: the target's file system supports no extended attributes: {copies} copies lack those of their \
                 sources"
            )));
        }
    }

    /// Fails when anything could not be copied: each failure was told already.
    pub fn outcome(&self, verb: &str, remedy: &str) -> Outcome<()> {
        match self.failures.len() {
            0 => Ok(()),
            count => Err(Failure::new(format!("{verb}: {count} could not be copied")).remedy(remedy)),
        }
    }
}

/// What all threads of a copy share. Rank 1, the only lock here: `failures`, held for one text.
struct Copy<'a> {
    choices: &'a Choices,
    /// Which machine holds a file, as a lane of the queue.
    lane: Box<dyn Fn(Option<NodeId>) -> Option<usize> + Send + Sync + 'a>,
    queue: Queue,
    progress: Progress,
    /// Through which copies are read again; `None`: they are not.
    verifier: Option<Verifier>,
    failed: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

/// Copies sources to a target: into it when it is a directory.
pub fn copy(sources: &[Place], target: &Place, choices: &Choices) -> Outcome<()> {
    let into = target.look(true)?.is_some_and(|item| item.kind == Kind::Directory);
    if !into && (sources.len() > 1 || target.ends_with_slash()) {
        let verb = choices.verb;
        return Err(
            Failure::new(format!("{verb} to {target}: is not a directory")).remedy("make it, or give one source")
        );
    }
    let pairs =
        sources.iter().map(|source| (source.clone(), if into { inside(target, source) } else { target.clone() }));
    copy_all(&pairs.collect::<Vec<_>>(), choices)
}

/// Copies sources into a directory, which is made with those above it when it is not there. The same command always
/// means the same names, so that it can be run again. What could not be copied is in the report; `common` is what the
/// machines of the crew are told.
pub fn copy_into(
    sources: &[Place],
    directory: &Place,
    choices: &Choices,
    crew: &Crew<'_>,
    common: &Batch,
) -> Outcome<(Report, Vec<Share>)> {
    let pairs: Vec<_> = sources.iter().map(|source| (source.clone(), inside(directory, source))).collect();
    copy_pairs(&pairs, choices, Some((crew, common)))
}

/// The place of a source in a directory: under its name, or the directory itself for what has none, such as `/`.
fn inside(directory: &Place, source: &Place) -> Place {
    source.base_name().map_or_else(|| directory.clone(), |name| directory.join(&name))
}

fn copy_all(pairs: &[(Place, Place)], choices: &Choices) -> Outcome<()> {
    let remedy = "see the errors above; the same command with --resume copies what is missing";
    copy_pairs(pairs, choices, None)?.0.outcome(choices.verb, remedy)
}

fn copy_pairs(
    pairs: &[(Place, Place)],
    choices: &Choices,
    crew: Option<(&Crew<'_>, &Batch)>,
) -> Outcome<(Report, Vec<Share>)> {
    let places = pairs.iter().flat_map(|(source, target)| [source, target]);
    with_workers(choices, places, crew, |copy| copy.walk(pairs))
}

/// Copies files whose directories are there. What could not be copied is in the report.
pub fn copy_jobs(jobs: Vec<Job>, choices: &Choices, crew: &Crew<'_>, common: &Batch) -> Outcome<(Report, Vec<Share>)> {
    let places: Vec<Place> = jobs.iter().take(1).flat_map(|job| [job.source.clone(), job.target.clone()]).collect();
    with_workers(choices, places.iter(), Some((crew, common)), |copy| {
        for job in jobs {
            copy.progress.found(job.item.size);
            copy.queue.push((copy.lane)(job.item.holder), job);
        }
        Vec::new()
    })
}

/// A directory that was made or entered, with the attributes that it gets at the end.
struct Entered {
    source: Place,
    target: Place,
    item: Item,
}

/// Copies what `feed` queues, between these places. Returned by it are directories.
fn with_workers<'b>(
    choices: &Choices,
    places: impl Iterator<Item = &'b Place>,
    crew: Option<(&Crew<'_>, &Batch)>,
    feed: impl FnOnce(&Copy<'_>) -> Vec<Entered>,
) -> Outcome<(Report, Vec<Share>)> {
    let helpers = crew.map_or(&[][..], |(crew, _)| &crew.helpers);
    let here = crew.is_none_or(|(crew, _)| crew.here);
    let queue = Queue::new(helpers.len(), crew::BATCHES_EACH, here);
    let mut copy = Copy::new(choices, queue, places)?;
    if let Some((crew, _)) = crew {
        copy.lane = Box::new(|holder| crew.lane(holder));
    }
    let copy = &copy;
    let (finished, shares) = thread::scope(|scope| {
        for _ in 0..choices.jobs.max(1) {
            scope.spawn(|| copy.work());
        }
        let mut giving = Vec::new();
        if let Some((_, common)) = crew {
            for (index, helper) in helpers.iter().enumerate() {
                let give = move || copy.give(helper, index + 1, common);
                giving.extend((0..crew::BATCHES_EACH).map(|_| scope.spawn(give)));
            }
        }
        let finished = feed(copy);
        copy.queue.end();
        (finished, giving.into_iter().filter_map(|given| given.join().ok()).collect())
    });
    // After the last file: writing into a directory changes its time.
    for Entered { source, target, item } in finished.iter().rev() {
        let kept = copy.keep_xattrs(source, target, true);
        if let Err(failure) = kept.and_then(|()| target.set_mode_and_time(item.mode, item.mtime, true)) {
            copy.fail(&failure);
        }
    }
    copy.progress.finish();
    let report = copy.report()?;
    report.warn_of_xattrs(choices.verb);
    Ok((report, shares))
}

impl<'a> Copy<'a> {
    /// A copy that has not begun, between these places.
    fn new<'b>(choices: &'a Choices, queue: Queue, places: impl Iterator<Item = &'b Place>) -> Outcome<Self> {
        Ok(Self {
            choices,
            lane: Box::new(|_| None),
            queue,
            progress: Progress::new(choices),
            verifier: choices.verify.then(|| Verifier::new(places)).transpose()?,
            failed: AtomicUsize::new(0),
            failures: Mutex::new(Vec::new()),
        })
    }

    /// What was done, when all is.
    fn report(&self) -> Outcome<Report> {
        if let Some(verifier) = &self.verifier {
            verifier.close()?;
        }
        let failures = std::mem::take(&mut *self.failures.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Report { failures, ..self.progress.report() })
    }

    /// Walks the sources; answers the directories that were made or entered.
    fn walk(&self, pairs: &[(Place, Place)]) -> Vec<Entered> {
        let mut directories = Vec::new();
        for (source, target) in pairs {
            let walked =
                self.look_at_source(source, target).and_then(|item| self.take(source, target, item, &mut directories));
            if let Err(failure) = walked {
                self.fail(&failure);
            }
        }
        directories
    }

    /// Looks at a source of the command line, and refuses what cannot be copied there.
    fn look_at_source(&self, source: &Place, target: &Place) -> Outcome<Item> {
        let verb = self.choices.verb;
        let Some(item) = source.look(!self.choices.recursive)? else {
            return Err(Failure::new(format!("{verb} {source}: no such file or directory")));
        };
        if item.kind == Kind::Directory && !self.choices.recursive {
            return Err(Failure::new(format!("{verb} {source}: is a directory"))
                .remedy("add -r to copy it and all that is in it"));
        }
        let same = target.look(false)?.is_some_and(|found| found.identity == item.identity && source.same_tree(target));
        if same || item.kind == Kind::Directory && target.is_below(source) {
            return Err(Failure::new(format!("{verb} {source} to {target}: would copy it into itself")));
        }
        Ok(item)
    }

    /// Copies one thing: at once, or by queueing it.
    fn take(&self, source: &Place, target: &Place, item: Item, directories: &mut Vec<Entered>) -> Outcome<()> {
        if self.failed.load(Ordering::Relaxed) >= FAILURES_MAX {
            return Ok(());
        }
        match item.kind {
            Kind::File => {
                self.progress.found(item.size);
                let lane = (self.lane)(item.holder);
                let (source, target) = (source.clone(), target.clone());
                self.queue.push(lane, Job { source, target, item, over: Over::Anything });
                Ok(())
            }
            Kind::Symlink => {
                let link = source.read_link()?;
                target.make_symlink(&link)?;
                self.progress.said(target);
                Ok(())
            }
            Kind::Directory => self.enter(source, target, item, directories),
            Kind::Other => {
                let verb = self.choices.verb;
                output::warn(&Failure::new(format!(
                    "{verb} {source}: is neither file, directory nor symbolic link: left out"
                )));
                Ok(())
            }
        }
    }

    /// Makes a directory and takes what is in it.
    fn enter(&self, source: &Place, target: &Place, item: Item, directories: &mut Vec<Entered>) -> Outcome<()> {
        target.make_directory()?;
        directories.push(Entered { source: source.clone(), target: target.clone(), item });
        for (name, item) in source.list()? {
            let (source, target) = (source.join(&name), target.join(&name));
            if part::is_own_name(&name) {
                continue;
            }
            if let Err(failure) = self.take(&source, &target, item, directories) {
                self.fail(&failure);
            }
        }
        Ok(())
    }

    /// What a worker thread does until the queue has ended.
    fn work(&self) {
        let mut buffer = vec![0; file::BUFFER_BYTES];
        while let Some(task) = self.queue.next() {
            let done = match task {
                queue::Task::File(_) if self.failed.load(Ordering::Relaxed) >= FAILURES_MAX => Ok(()),
                queue::Task::File(job) => self.copy_file(&job, &mut buffer),
                queue::Task::Help(large) => self.copy_chunks(&large, &mut buffer),
            };
            if let Err(failure) = done {
                self.fail(&failure);
            }
            self.queue.done();
        }
    }

    /// One more failure, said at once.
    fn fail(&self, failure: &Failure) {
        self.progress.pause(|| output::warn(failure));
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure.text().to_owned());
        if self.failed.fetch_add(1, Ordering::Relaxed) + 1 == FAILURES_MAX {
            let verb = self.choices.verb;
            self.progress.pause(|| output::note(format_args!("{verb}: too many failures, the rest is left out")));
        }
    }
}

#[cfg(test)]
mod tests;
