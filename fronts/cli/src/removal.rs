//! Removes names and trees: many names at a time, directories after what is in them.
//!
//! Workers take tasks from a stack: list a directory, or remove a batch of files. A directory counts what is still to
//! be done below it; the worker that does the last of that removes it. The stack is bounded: a worker that finds it
//! full performs the task itself, so that memory does not grow with the tree.
//!
//! Cost: a message for up to [`UNLINK_NAMES_MAX`] files of a directory and for each file that another client has to
//! give up first, up to [`WORKERS`] of them in flight; a message per directory, and one per page of its listing.

use crate::failure::{Explain, Failure, Outcome};
use crate::output;
use crate::session::Session;
use crate::target::WeftPath;
use crate::tree::{self, Pages};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use weft_protocol::limits::UNLINK_NAMES_MAX;
use weft_protocol::message::shard::DirectoryEntry;
use weft_protocol::{Error, FileKind, InodeNumber, Name};

/// Removals in flight: fewer than a session has slots with a node.
const WORKERS: usize = 32;
/// Tasks that wait; with full batches 65,536 names.
const WAITING_MAX: usize = 1024;
/// Tasks that a worker performs one inside the other; more go to the stack, full or not.
const NESTED_MAX: usize = 64;
/// Failures after which a removal gives up: more of the same would follow.
const FAILURES_MAX: usize = 20;

/// Is told of each path that is, or would be, removed.
pub type Tell<'a> = dyn FnMut(&WeftPath) -> Outcome<()> + Send + 'a;

/// A name to be removed, and what it names.
pub struct Victim<'a> {
    pub path: &'a WeftPath,
    pub parent: InodeNumber,
    pub name: &'a Name,
    pub inode: InodeNumber,
    pub kind: FileKind,
}

/// Tells what [`remove`] would remove.
pub fn describe(
    session: &Session,
    path: &WeftPath,
    inode: InodeNumber,
    kind: FileKind,
    tell: &mut Tell<'_>,
) -> Outcome<()> {
    if kind == FileKind::Directory {
        for entry in tree::list(session, inode, false).explain(|| format!("rm {path}"))? {
            describe(session, &path.join(entry.name.as_bytes()), entry.inode, entry.kind, tell)?;
        }
    }
    tell(path)
}

/// Removes a name and, of a directory, all below it. What vanished meanwhile is as good as removed. A failure leaves
/// the directories above it and does not hinder the others; the last one is returned, those before are said.
pub fn remove(session: &Session, victim: &Victim<'_>, tell: &mut Tell<'_>) -> Outcome<()> {
    let removal = Removal {
        session,
        tell: Mutex::new(tell),
        stack: Mutex::new(Stack::default()),
        changed: Condvar::new(),
        failures: AtomicUsize::new(0),
        failed: Mutex::new(None),
    };
    match victim.kind {
        FileKind::Regular | FileKind::Symlink => removal.unlink(victim.path, victim.parent, victim.name)?,
        FileKind::Directory => {
            let root = Directory {
                above: None,
                parent: victim.parent,
                name: victim.name.clone(),
                inode: victim.inode,
                path: victim.path.clone(),
                pending: AtomicUsize::new(1),
                failed: AtomicBool::new(false),
            };
            removal.lock().tasks.push(Task::List(Arc::new(root)));
            thread::scope(|scope| {
                (0..WORKERS).for_each(|_| drop(scope.spawn(|| removal.work())));
            });
        }
    }
    let failed = removal.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok(()), Err)
}

/// A directory that is removed when nothing is left to be done below it.
struct Directory {
    above: Option<Arc<Directory>>,
    parent: InodeNumber,
    name: Name,
    inode: InodeNumber,
    path: WeftPath,
    /// Its listing, batches of its files, and directories in it, as far as they are not done.
    pending: AtomicUsize,
    /// Something below it could not be removed.
    failed: AtomicBool,
}

enum Task {
    List(Arc<Directory>),
    Unlink(Arc<Directory>, Vec<Name>),
}

#[derive(Default)]
struct Stack {
    tasks: Vec<Task>,
    /// Tasks that were taken and are not done: they may add more.
    busy: usize,
}

/// What the workers share.
struct Removal<'a, 'b> {
    session: &'a Session,
    /// Rank 1; held while the answer is written.
    tell: Mutex<&'a mut Tell<'b>>,
    /// Rank 1; held for a few instructions.
    stack: Mutex<Stack>,
    /// More tasks, or the end.
    changed: Condvar,
    failures: AtomicUsize,
    /// The last failure. Rank 1.
    failed: Mutex<Option<Failure>>,
}

impl Removal<'_, '_> {
    fn lock(&self) -> MutexGuard<'_, Stack> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each worker does until all is done.
    fn work(&self) {
        let mut stack = self.lock();
        loop {
            if let Some(task) = stack.tasks.pop() {
                stack.busy += 1;
                drop(stack);
                self.perform(task, 0);
                stack = self.lock();
                stack.busy -= 1;
                if stack.busy == 0 && stack.tasks.is_empty() {
                    self.changed.notify_all();
                }
            } else if stack.busy == 0 {
                return;
            } else {
                stack = self.changed.wait(stack).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Leaves a task to whoever is free, or performs it when too many wait.
    fn add(&self, task: Task, nested: usize) {
        let mut stack = self.lock();
        if stack.tasks.len() < WAITING_MAX || nested >= NESTED_MAX {
            stack.tasks.push(task);
            drop(stack);
            self.changed.notify_one();
        } else {
            drop(stack);
            self.perform(task, nested + 1);
        }
    }

    fn gives_up(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES_MAX
    }

    fn perform(&self, task: Task, nested: usize) {
        let (directory, done) = match task {
            Task::List(directory) => {
                let listed = self.list(&directory, nested);
                (directory, listed)
            }
            Task::Unlink(directory, names) => {
                self.unlink_all(&directory, &names);
                (directory, Ok(()))
            }
        };
        self.note(&directory, done);
        self.done(directory);
    }

    /// Adds a task for each directory and each batch of files in a directory.
    fn list(&self, directory: &Arc<Directory>, nested: usize) -> Outcome<()> {
        let mut pages = Pages::new(self.session, directory.inode, false);
        loop {
            let page = match pages.next() {
                Err(Error::NotFound | Error::Stale) => return Ok(()),
                page => page.explain(|| format!("rm {}", directory.path))?,
            };
            let Some(page) = page.filter(|_| !self.gives_up()) else { return Ok(()) };
            let (directories, files): (Vec<_>, Vec<_>) =
                page.into_iter().partition(|entry| entry.kind == FileKind::Directory);
            let mut names = files.into_iter().map(|entry| entry.name).peekable();
            while names.peek().is_some() {
                directory.pending.fetch_add(1, Ordering::Relaxed);
                let batch = names.by_ref().take(UNLINK_NAMES_MAX).collect();
                self.add(Task::Unlink(Arc::clone(directory), batch), nested);
            }
            for entry in directories {
                directory.pending.fetch_add(1, Ordering::Relaxed);
                self.add(Task::List(Arc::new(Directory::below(directory, entry))), nested);
            }
        }
    }

    /// One thing less is to be done in a directory: the last one removes it, and then is done in the one above.
    fn done(&self, directory: Arc<Directory>) {
        let mut at = Some(directory);
        while let Some(directory) = at {
            if directory.pending.fetch_sub(1, Ordering::AcqRel) > 1 {
                return;
            }
            if !directory.failed.load(Ordering::Relaxed) && !self.gives_up() {
                let removed = self.remove_directory(&directory);
                self.note(&directory, removed);
            }
            if let Some(above) = &directory.above
                && directory.failed.load(Ordering::Relaxed)
            {
                above.failed.store(true, Ordering::Relaxed);
            }
            at = directory.above.clone();
        }
    }

    fn remove_directory(&self, directory: &Directory) -> Outcome<()> {
        let removed = self.session.client.remove_directory(&self.session.who, directory.parent, &directory.name);
        gone(removed).explain(|| format!("rm {}", directory.path))?;
        self.tell(&directory.path)
    }

    fn unlink(&self, path: &WeftPath, parent: InodeNumber, name: &Name) -> Outcome<()> {
        gone(self.session.client.unlink(&self.session.who, parent, name)).explain(|| format!("rm {path}"))?;
        self.tell(path)
    }

    /// Removes files of one directory. Those that fail do not hinder the others.
    fn unlink_all(&self, directory: &Directory, mut names: &[Name]) {
        while !names.is_empty() && !self.gives_up() {
            let removed = self.session.client.unlink_batch(&self.session.who, directory.inode, names);
            let path = |name: &Name| directory.path.join(name.as_bytes());
            // What vanished meanwhile is the first.
            let (count, failed) = match removed {
                Ok(count) => (count, Ok(())),
                Err(Error::NotFound) => (1, Ok(())),
                Err(error) => (1, Err(error).explain(|| format!("rm {}", path(&names[0])))),
            };
            let (done, left) = names.split_at(count);
            let told = failed.and_then(|()| done.iter().try_for_each(|name| self.tell(&path(name))));
            self.note(directory, told);
            names = left;
        }
    }

    fn tell(&self, path: &WeftPath) -> Outcome<()> {
        (self.tell.lock().unwrap_or_else(PoisonError::into_inner))(path)
    }

    /// Notes a failure in a directory.
    fn note(&self, directory: &Directory, result: Outcome<()>) {
        let Err(failure) = result else { return };
        directory.failed.store(true, Ordering::Relaxed);
        let more = if failure.is_closed_pipe() { FAILURES_MAX } else { 1 };
        self.failures.fetch_add(more, Ordering::Relaxed);
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if !failed.as_ref().is_some_and(Failure::is_closed_pipe) {
            let before = failed.replace(failure);
            drop(failed);
            before.iter().for_each(output::warn);
        }
    }
}

impl Directory {
    fn below(above: &Arc<Directory>, entry: DirectoryEntry) -> Self {
        Self {
            above: Some(Arc::clone(above)),
            parent: above.inode,
            path: above.path.join(entry.name.as_bytes()),
            name: entry.name,
            inode: entry.inode,
            pending: AtomicUsize::new(1),
            failed: AtomicBool::new(false),
        }
    }
}

fn gone(removed: weft_protocol::Result<()>) -> weft_protocol::Result<()> {
    if removed == Err(Error::NotFound) { Ok(()) } else { removed }
}
