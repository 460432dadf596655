//! Copies files and trees between this machine and file systems, and inside them.
//!
//! One thread walks the sources, makes directories and symbolic links, and queues files; workers copy them, many files
//! at a time, and several chunks of a large file at a time. A file is written under another name (`.NAME.weft-part`)
//! and renamed when it is whole, so a half copy never looks like a copy. Beside a large one lies a record of how far it
//! is, from which `--resume` goes on.
//!
//! Cost of a file into a file system: create, commit, attributes, rename: four awaited messages, and its data once.
//!
//! On a crash: `.NAME.weft-part` and `.NAME.weft-resume` stay; a later copy of the same name uses or replaces them.

mod file;
mod part;
mod place;
mod progress;
mod queue;

pub use place::{Item, Kind, Place};

use crate::failure::{Failure, Outcome};
use crate::output;
use progress::Progress;
use queue::Queue;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use weft_protocol::Plan;

/// Failures after which a copy gives up: more of the same would follow.
const FAILURES_MAX: usize = 20;
/// Fewest and most threads that copy when the user does not say: enough to hide the time of messages, few enough to be
/// light.
const JOBS_RANGE: (usize, usize) = (4, 16);

/// How to copy.
#[derive(Clone, Debug)]
pub struct Choices {
    /// Directories too, and symbolic links as such.
    pub recursive: bool,
    /// Pass over what is whole already, and go on where a large file was left.
    pub resume: bool,
    /// Threads that copy.
    pub jobs: usize,
    /// Say each name.
    pub verbose: bool,
    /// Say nothing but errors.
    pub quiet: bool,
    /// How copies in a file system are striped; `None`: as their directories say.
    pub plan: Option<Plan>,
}

impl Default for Choices {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let jobs = processors.clamp(JOBS_RANGE.0, JOBS_RANGE.1);
        Self { recursive: false, resume: false, jobs, verbose: false, quiet: true, plan: None }
    }
}

/// A file to be copied.
struct Job {
    source: Place,
    target: Place,
    item: Item,
}

/// What all threads of a copy share.
struct Copy<'a> {
    choices: &'a Choices,
    queue: Queue,
    progress: Progress,
    failures: AtomicUsize,
}

/// Copies sources to a target: into it when it is a directory.
pub fn copy(sources: &[Place], target: &Place, choices: &Choices) -> Outcome<()> {
    let into = target.look(true)?.is_some_and(|item| item.kind == Kind::Directory);
    if !into && (sources.len() > 1 || target.ends_with_slash()) {
        return Err(Failure::new(format!("cp to {target}: is not a directory")).remedy("make it, or give one source"));
    }
    let pairs = sources.iter().map(|source| {
        let target = match source.base_name() {
            Some(name) if into => target.join(&name),
            _ => target.clone(),
        };
        (source.clone(), target)
    });
    copy_pairs(&pairs.collect::<Vec<_>>(), choices)
}

/// Copies a source to exactly this name.
pub fn copy_as(source: &Place, target: &Place, choices: &Choices) -> Outcome<()> {
    copy_pairs(&[(source.clone(), target.clone())], choices)
}

fn copy_pairs(pairs: &[(Place, Place)], choices: &Choices) -> Outcome<()> {
    let copy = Copy { choices, queue: Queue::new(), progress: Progress::new(choices), failures: AtomicUsize::new(0) };
    let finished = thread::scope(|scope| {
        for _ in 0..choices.jobs.max(1) {
            scope.spawn(|| copy.work());
        }
        let finished = copy.walk(pairs);
        copy.queue.end();
        finished
    });
    // After the last file: writing into a directory changes its time.
    for (directory, item) in finished.iter().rev() {
        if let Err(failure) = directory.set_mode_and_time(item.mode, item.mtime, true) {
            copy.fail(&failure);
        }
    }
    copy.progress.finish();
    match copy.failures.load(Ordering::Relaxed) {
        0 => Ok(()),
        count => Err(Failure::new(format!("cp: {count} could not be copied"))
            .remedy("see the errors above; the same command with --resume copies what is missing")),
    }
}

impl Copy<'_> {
    /// Walks the sources; answers the directories that were made or entered, with the attributes they are to get.
    fn walk(&self, pairs: &[(Place, Place)]) -> Vec<(Place, Item)> {
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
        let Some(item) = source.look(!self.choices.recursive)? else {
            return Err(Failure::new(format!("cp {source}: no such file or directory")));
        };
        if item.kind == Kind::Directory && !self.choices.recursive {
            return Err(
                Failure::new(format!("cp {source}: is a directory")).remedy("add -r to copy it and all that is in it")
            );
        }
        let same = target.look(false)?.is_some_and(|found| found.identity == item.identity && source.same_tree(target));
        if same || item.kind == Kind::Directory && target.is_below(source) {
            return Err(Failure::new(format!("cp {source} to {target}: would copy it into itself")));
        }
        Ok(item)
    }

    /// Copies one thing: at once, or by queueing it.
    fn take(&self, source: &Place, target: &Place, item: Item, directories: &mut Vec<(Place, Item)>) -> Outcome<()> {
        if self.failures.load(Ordering::Relaxed) >= FAILURES_MAX {
            return Ok(());
        }
        match item.kind {
            Kind::File => {
                self.progress.found(item.size);
                self.queue.push(Job { source: source.clone(), target: target.clone(), item });
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
                output::warn(&Failure::new(format!(
                    "cp {source}: is neither file, directory nor symbolic link: left out"
                )));
                Ok(())
            }
        }
    }

    /// Makes a directory and takes what is in it.
    fn enter(&self, source: &Place, target: &Place, item: Item, directories: &mut Vec<(Place, Item)>) -> Outcome<()> {
        target.make_directory()?;
        directories.push((target.clone(), item));
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
                queue::Task::File(_) if self.failures.load(Ordering::Relaxed) >= FAILURES_MAX => Ok(()),
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
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 == FAILURES_MAX {
            self.progress.pause(|| output::note(format_args!("cp: too many failures, the rest is left out")));
        }
    }
}

#[cfg(test)]
mod tests;
