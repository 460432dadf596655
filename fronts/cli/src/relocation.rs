//! Moves the bytes of many files: a walk finds files, workers move them, each file by several threads.
//!
//! A file that somebody has open stays, and is tried again for a while. What vanishes meanwhile, or is moved by another
//! command, is as good as moved. A file with several names is moved once. A directory that cannot be listed is counted,
//! and the walk goes on.
//! Workers rest together, so that they use the nodes and the network for a share of the time only (`pacing.rs`).
//!
//! Cost: a message for each page of a listing, and eight or nine for each file that moves, beside its bytes.

mod pacing;

use self::pacing::Pacer;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::quantity::{bytes_text, span_text};
use crate::session::Session;
use crate::target::WeftPath;
use crate::tree::{Pages, attributes_of};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use weft_client::{Destination, FileSystemSpace};
use weft_protocol::{Attributes, Credentials, Error, FileKind, InodeNumber, NodeId, NodeRecord};

/// Files that move at a time.
const WORKERS: usize = 4;
/// Threads that copy one file.
const COPIERS: u64 = 4;
/// Found files that wait for a worker.
const WAITING_MAX: usize = 256;
/// How long files in use are tried again, and how often. Clients give back what they have closed every few seconds.
const IN_USE_PATIENCE: Duration = Duration::from_secs(10);
const IN_USE_PAUSE: Duration = Duration::from_secs(1);
/// Failures of single files that are said.
const SAID_MAX: u64 = 20;
/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Share of the time for which files move.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Share {
    /// Percentage of the time for which files are moved, several at once; nothing moves in the rest
    #[arg(long = "share", value_name = "PERCENT", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    percent: u32,
}

/// Where files are to go, and how much room there is.
pub struct Room {
    /// Bytes that each node can take.
    free: Mutex<BTreeMap<NodeId, u64>>,
}

impl Room {
    /// Of these nodes.
    pub fn new(free: BTreeMap<NodeId, u64>) -> Self {
        Self { free: Mutex::new(free) }
    }

    /// Of the nodes that store, answer and do not drain, but for these.
    pub fn beside(session: &Session, spaces: &FileSystemSpace, without: &BTreeSet<NodeId>) -> Self {
        let map = session.client.map();
        let takes = |node: &NodeId| map.node(*node).is_some_and(NodeRecord::takes_files);
        let answers = spaces.nodes.iter().filter_map(|(node, space)| Some((*node, space.as_ref().ok()?.free)));
        Self::new(answers.filter(|(node, _)| takes(node) && !without.contains(node)).collect())
    }

    /// How many nodes there are.
    pub fn count(&self) -> usize {
        locked(&self.free).len()
    }

    /// What the node with the most room can take.
    pub fn most(&self) -> u64 {
        locked(&self.free).values().copied().max().unwrap_or(0)
    }

    /// The nodes, the one with the most room first; `bytes` are going to the first ones.
    pub fn take(&self, bytes: u64, objects: usize) -> Vec<NodeId> {
        let mut free = locked(&self.free);
        let mut nodes: Vec<NodeId> = free.keys().copied().collect();
        nodes.sort_by_key(|node| std::cmp::Reverse(free[node]));
        for node in nodes.iter().take(objects) {
            free.entry(*node).and_modify(|free| *free = free.saturating_sub(bytes / objects as u64));
        }
        nodes
    }
}

/// A file that was found.
struct Found {
    path: WeftPath,
    inode: InodeNumber,
}

/// Files that wait for a worker, are being moved, or stay: their other names are passed over. One that has moved is
/// recognized by its attributes, so that the set does not grow with the tree.
#[derive(Default)]
struct Taken {
    inodes: Mutex<BTreeSet<InodeNumber>>,
}

impl Taken {
    /// Returns false if the file was taken under another name.
    fn take(&self, inode: InodeNumber) -> bool {
        locked(&self.inodes).insert(inode)
    }

    /// Lets go of a file that is where it is to be, or has gone.
    fn settle(&self, inode: InodeNumber, moved: &Result<Option<u64>, Error>) {
        if matches!(moved, Ok(_) | Err(Error::NotFound | Error::Stale)) {
            locked(&self.inodes).remove(&inode);
        }
    }
}

/// Is given each file that is found.
type Offer<'a> = dyn Fn(WeftPath, &Attributes) + 'a;

/// What became of files.
#[derive(Default)]
pub struct Outcomes {
    pub files: u64,
    pub bytes: u64,
    /// Of files that stay, since somebody has them open.
    pub in_use: Vec<WeftPath>,
    pub failed: u64,
    /// Directories that could not be listed, and files whose attributes could not be read.
    pub unreached: u64,
}

impl Outcomes {
    /// Of more files.
    pub fn add(&mut self, more: Self) {
        self.files += more.files;
        self.bytes += more.bytes;
        self.in_use.extend(more.in_use);
        self.failed += more.failed;
        self.unreached += more.unreached;
    }

    /// Why not all files are where they are to be.
    fn failure(&self) -> Option<Failure> {
        let Self { in_use, failed, unreached, .. } = self;
        let parts = [
            (in_use.len() as u64, "files in use stay where they are"),
            (*failed, "files stay where they are: see above"),
            (*unreached, "directories or files could not be reached: see above"),
        ];
        let text: Vec<String> =
            parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        let failure = Failure::new(text.join(", "));
        match (in_use.len(), failed, unreached) {
            (0, 0, 0) => None,
            (_, 0, 0) => Some(failure.remedy("close them, and try again")),
            (_, _, 0) => Some(failure),
            _ => Some(failure.remedy("`weft status` shows which nodes answer; try again when all do")),
        }
    }
}

/// Moves files.
pub struct Relocation<'a> {
    pub session: &'a Session,
    /// On whose behalf.
    pub who: Credentials,
    pub share: Share,
    /// Which ones.
    pub concerns: &'a (dyn Fn(&Attributes) -> bool + Sync),
    /// Where one goes. Asked once for each attempt.
    pub choose: &'a (dyn Fn(&Attributes) -> Destination + Sync),
    /// What is said of a file that cannot be moved.
    pub verb: &'static str,
}

impl Relocation<'_> {
    /// Moves a file, or all files below a directory.
    pub fn run(&self, root: &WeftPath, attributes: &Attributes) -> Outcomes {
        let (outcomes, in_use, taken) = (Mutex::<Outcomes>::default(), Mutex::new(Vec::new()), Taken::default());
        let (pacer, progress) = (Pacer::new(self.share.percent), Progress::new());
        let (found, work) = sync_channel::<Found>(WAITING_MAX);
        let work = Mutex::new(work);
        let unreached = thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    while let Some(file) = next(&work) {
                        let moved = self.move_file(&file, &pacer, &progress);
                        taken.settle(file.inode, &moved);
                        match moved {
                            Err(Error::WouldBlock) => locked(&in_use).push(file),
                            moved => self.count(&file, moved, &mut locked(&outcomes)),
                        }
                    }
                });
            }
            let unreached = self.walk(root, attributes, &|path, attributes| {
                if attributes.layout.has_bytes() && (self.concerns)(attributes) && taken.take(attributes.inode) {
                    // The workers take what is sent until this end is dropped.
                    let _ = found.send(Found { path, inode: attributes.inode });
                }
            });
            // The workers end when they have what is on its way.
            drop(found);
            unreached
        });
        let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        outcomes.unreached = unreached;
        self.retry(in_use.into_inner().unwrap_or_else(PoisonError::into_inner), (&pacer, &progress), &mut outcomes);
        progress.finish();
        outcomes
    }

    fn retry(&self, mut in_use: Vec<Found>, (pacer, progress): (&Pacer, &Progress), outcomes: &mut Outcomes) {
        let until = Instant::now() + IN_USE_PATIENCE;
        while !in_use.is_empty() && Instant::now() < until {
            thread::sleep(IN_USE_PAUSE);
            in_use.retain(|file| match self.move_file(file, pacer, progress) {
                Err(Error::WouldBlock) => true,
                moved => {
                    self.count(file, moved, outcomes);
                    false
                }
            });
        }
        outcomes.in_use = in_use.into_iter().map(|file| file.path).collect();
    }

    /// Offers the files below a directory. Returns how many directories and files were not reached.
    fn walk(&self, root: &WeftPath, attributes: &Attributes, offer: &Offer<'_>) -> u64 {
        if attributes.kind == FileKind::Regular {
            offer(root.clone(), attributes);
            return 0;
        }
        let mut unreached = 0;
        let mut directories = vec![(root.clone(), attributes.inode)];
        while let Some((path, directory)) = directories.pop() {
            self.list((&path, directory), &mut directories, offer, &mut |path, error| {
                unreached += 1;
                if unreached <= SAID_MAX {
                    output::warn(&Failure::of_weft(format_args!("{} {path}", self.verb), &error));
                }
            });
        }
        unreached
    }

    /// Offers the files of a directory, and adds the directories in it.
    fn list(
        &self,
        (path, directory): (&WeftPath, InodeNumber),
        directories: &mut Vec<(WeftPath, InodeNumber)>,
        offer: &Offer<'_>,
        fail: &mut dyn FnMut(&WeftPath, Error),
    ) {
        let mut pages = Pages::of(self.session, &self.who, directory, true);
        loop {
            let page = match pages.next() {
                Ok(Some(page)) => page,
                Ok(None) | Err(Error::NotFound | Error::Stale) => return,
                Err(error) => return fail(path, error),
            };
            for entry in page {
                let path = path.join(entry.name.as_bytes());
                match entry.kind {
                    FileKind::Directory => directories.push((path, entry.inode)),
                    FileKind::Symlink => {}
                    FileKind::Regular => match attributes_of(self.session, &entry) {
                        Ok(attributes) => offer(path, &attributes),
                        Err(Error::NotFound | Error::Stale) => {}
                        Err(error) => fail(&path, error),
                    },
                }
            }
        }
    }

    /// Returns how many bytes were copied; `None`: it is where it is to be.
    fn move_file(&self, file: &Found, pacer: &Pacer, progress: &Progress) -> Result<Option<u64>, Error> {
        let client = &self.session.client;
        let attributes = client.attributes(&self.who, file.inode)?.attributes;
        if !(self.concerns)(&attributes) {
            return Ok(None);
        }
        let destination = (self.choose)(&attributes);
        let moved = self.copy(file.inode, &destination, pacer, progress);
        match moved {
            Ok(bytes) => Ok(Some(bytes)),
            // Also where another command has moved it meanwhile: its old objects are gone.
            Err(error) if self.has_moved(&attributes) => {
                tracing::debug!("{} was moved by another one: {error}", file.path);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Moves a file by several threads. Returns how many bytes were copied.
    fn copy(
        &self,
        inode: InodeNumber,
        destination: &Destination,
        pacer: &Pacer,
        progress: &Progress,
    ) -> Result<u64, Error> {
        pacer.start();
        let begun = self.session.client.begin_relocation(&self.who, inode, destination);
        pacer.end();
        let Some(moving) = begun? else { return Ok(0) };
        let copy = || {
            pacer.start();
            let copied = moving.copy_pieces(&mut |bytes| {
                progress.copied(bytes as u64);
                pacer.end();
                pacer.start();
            });
            pacer.end();
            copied
        };
        let made = thread::scope(|scope| {
            let others: Vec<_> = (1..COPIERS.min(moving.count())).map(|_| scope.spawn(copy)).collect();
            let own = copy();
            others.into_iter().fold(own, |made, other| {
                made.and(other.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked)))
            })
        });
        pacer.start();
        let moved = moving.end(made);
        pacer.end();
        moved
    }

    /// Whether a file has got other objects than it had, and is not one of those that are to be moved any more.
    fn has_moved(&self, before: &Attributes) -> bool {
        let entry = self.session.client.attributes(&self.who, before.inode);
        entry.is_ok_and(|entry| entry.attributes.layout != before.layout && !(self.concerns)(&entry.attributes))
    }

    fn count(&self, file: &Found, moved: Result<Option<u64>, Error>, outcomes: &mut Outcomes) {
        match moved {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                outcomes.files += 1;
                outcomes.bytes += bytes;
            }
            Err(Error::NotFound | Error::Stale) => {}
            Err(error) => {
                outcomes.failed += 1;
                if outcomes.failed <= SAID_MAX {
                    output::warn(&Failure::of_weft(format_args!("{} {}", self.verb, file.path), &error));
                }
            }
        }
    }
}

/// The root of the session's file system.
pub fn root_of(session: &Session) -> Outcome<(WeftPath, Attributes)> {
    let name = session.instance.map.name.clone();
    let path = WeftPath { file_system: Some(name), path: b"/".to_vec() };
    let attributes = session.walk(&path, true, "list")?.attributes;
    Ok((path, attributes))
}

/// Says what was done, and which files are in use.
pub fn tell(outcomes: &Outcomes, took: Duration, done: &str) -> Outcome<()> {
    let Outcomes { files, bytes, .. } = outcomes;
    output::print(&format!("{done} {files} files, {} in {}\n", bytes_text(*bytes), span_text(took)))?;
    for path in outcomes.in_use.iter().take(usize::try_from(SAID_MAX).expect("few")) {
        output::note(format_args!("{path} is in use"));
    }
    outcomes.failure().map_or(Ok(()), Err)
}

fn next(work: &Mutex<Receiver<Found>>) -> Option<Found> {
    locked(work).recv().ok()
}

/// What a mutex guards, whatever became of who held it last.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A count on a terminal, plain lines elsewhere.
struct Progress {
    bar: Option<ProgressBar>,
    copied: Mutex<(u64, Instant)>,
}

impl Progress {
    fn new() -> Self {
        let bar = output::story_is_watched().then(|| {
            let style = ProgressStyle::with_template("{spinner} {decimal_bytes} moved  {decimal_bytes_per_sec}");
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            if let Ok(style) = style { bar.with_style(style) } else { bar }
        });
        Self { bar, copied: Mutex::new((0, Instant::now())) }
    }

    fn copied(&self, bytes: u64) {
        let mut copied = locked(&self.copied);
        copied.0 += bytes;
        match &self.bar {
            Some(bar) => bar.set_position(copied.0),
            None if copied.1.elapsed() >= LINE_EVERY => {
                copied.1 = Instant::now();
                output::note(format_args!("{} moved", bytes_text(copied.0)));
            }
            None => {}
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_several_names_is_taken_once_until_it_is_where_it_is_to_be() {
        let (taken, inode) = (Taken::default(), InodeNumber::ROOT);
        assert!(taken.take(inode) && !taken.take(inode), "another name, while it waits or is moved");
        for stays in [Error::WouldBlock, Error::NoObject] {
            taken.settle(inode, &Err(stays));
            assert!(!taken.take(inode), "it is not tried, or reported, again");
        }
        for settled in [Ok(Some(1)), Ok(None), Err(Error::NotFound), Err(Error::Stale)] {
            taken.settle(inode, &settled);
            assert!(taken.take(inode), "the set has nothing of it");
        }
    }

    #[test]
    fn bytes_go_to_the_nodes_with_the_most_room() {
        let [a, b, c] = [NodeId(0), NodeId(1), NodeId(2)];
        let room = Room::new([(a, 100), (b, 90), (c, 10)].into());
        assert_eq!(room.take(20, 1), [a, b, c]);
        assert_eq!(room.take(20, 1), [b, a, c], "there are 80 left at the first one");
        assert_eq!(room.take(140, 2), [a, b, c]);
        assert_eq!(room.take(1, 1), [a, c, b], "70 went to each: 10, 0 and 10 are left");
    }
}
