//! Machines that copy: this one, and others that see the same files.
//!
//! Another machine is given files in batches, which grow while it copies them; two at a time, so that it need not wait
//! for the next. When it cannot be reached any more, what it was given goes to the others.

use super::batch::{Batch, FileOfBatch, Witness};
use super::{Choices, Copy, FAILURES_MAX, Job, Report};
use crate::failure::{Failure, Outcome};
use crate::output;
use serde::Serialize;
use std::sync::atomic::Ordering;
use weft_protocol::NodeId;

/// Batches that a machine has at a time.
pub const BATCHES_EACH: usize = 2;
/// Files and bytes of a machine's first batches, and of its largest.
const FILES_RANGE: (usize, usize) = (32, 1024);
const BYTES_RANGE: (u64, u64) = (256 << 20, 4 << 30);

/// Has a machine carry out a batch.
pub type Perform<'a> = Box<dyn Fn(&Batch) -> Outcome<Report> + Send + Sync + 'a>;

/// Another machine that copies.
pub struct Helper<'a> {
    pub name: String,
    /// Its nodes: it is given the files that they hold.
    pub nodes: Vec<NodeId>,
    pub perform: Perform<'a>,
}

/// The machines of a copy.
pub struct Crew<'a> {
    pub helpers: Vec<Helper<'a>>,
    /// This machine copies too.
    pub here: bool,
    /// Nodes on this machine.
    pub nodes_here: Vec<NodeId>,
}

/// What a machine has copied.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Share {
    pub host: String,
    pub files: u64,
    pub bytes: u64,
}

impl Crew<'_> {
    /// This machine alone.
    pub fn alone() -> Self {
        Self { helpers: Vec::new(), here: true, nodes_here: Vec::new() }
    }

    /// The lane of the machine that holds a file; `None`: any does.
    pub(super) fn lane(&self, holder: Option<NodeId>) -> Option<usize> {
        let holder = holder?;
        if self.here && self.nodes_here.contains(&holder) {
            return Some(0);
        }
        self.helpers.iter().position(|helper| helper.nodes.contains(&holder)).map(|index| index + 1)
    }

    /// Leaves out the machines that do not see what this one sees, and says so.
    pub fn check(&mut self, common: &Batch, witnesses: &[Witness]) {
        let probe = Batch { witnesses: witnesses.to_vec(), files: Vec::new(), ..common.clone() };
        let seen: Vec<Outcome<Report>> = std::thread::scope(|scope| {
            let probe = &probe;
            let asked: Vec<_> =
                self.helpers.iter().map(|helper| scope.spawn(move || (helper.perform)(probe))).collect();
            let crashed = || Err(Failure::new("a thread that asks a machine failed"));
            asked.into_iter().map(|asked| asked.join().unwrap_or_else(|_| crashed())).collect()
        });
        let mut seen = seen.into_iter();
        self.helpers.retain(|_| match seen.next() {
            Some(Ok(_)) => true,
            Some(Err(failure)) => {
                output::note(format_args!("{}: left out: {}", common.verb(), failure.text()));
                false
            }
            None => false,
        });
        self.here |= self.helpers.is_empty();
    }
}

impl Copy<'_> {
    /// What a thread does that gives files to another machine, until there are none left. Returns what was copied.
    pub(super) fn give(&self, helper: &Helper<'_>, lane: usize, common: &Batch) -> Share {
        let mut share = Share { host: helper.name.clone(), files: 0, bytes: 0 };
        let (mut files_max, mut bytes_max) = (FILES_RANGE.0, BYTES_RANGE.0);
        while let Some(jobs) = self.queue.next_batch(lane, files_max, bytes_max) {
            if self.failed.load(Ordering::Relaxed) >= FAILURES_MAX {
                self.queue.done();
                continue;
            }
            let files = jobs.iter().map(FileOfBatch::of).collect::<Outcome<_>>();
            let copied = files.and_then(|files| (helper.perform)(&Batch { files, ..common.clone() }));
            match copied {
                Ok(report) => {
                    share.files += report.files;
                    share.bytes += report.bytes;
                    self.take_over(&helper.name, &jobs, &report);
                    self.queue.done();
                }
                Err(failure) => {
                    self.progress.pause(|| {
                        let verb = self.choices.verb;
                        output::note(format_args!("{verb}: the others go on: {}", failure.text()));
                    });
                    self.queue.give_back(jobs);
                    return share;
                }
            }
            (files_max, bytes_max) = ((files_max * 2).min(FILES_RANGE.1), (bytes_max * 2).min(BYTES_RANGE.1));
        }
        share
    }

    /// Counts and tells what another machine has done.
    fn take_over(&self, host: &str, jobs: &[Job], report: &Report) {
        self.progress.add(report);
        if report.failures.is_empty() {
            jobs.iter().for_each(|job| self.progress.said(&job.target));
        }
        for text in &report.failures {
            self.fail(&Failure::new(text.as_str()).within(host));
        }
    }
}

/// What all batches of a copy have in common.
pub fn common_batch(file_system: &str, goes_in: bool, choices: &Choices) -> Batch {
    let file_system = file_system.to_owned();
    let Choices { verify, plan, xattrs, .. } = *choices;
    let jobs = choices.jobs.div_ceil(BATCHES_EACH);
    Batch { file_system, goes_in, verify, jobs, plan, xattrs, witnesses: Vec::new(), files: Vec::new() }
}
