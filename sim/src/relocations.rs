//! Programs that move the bytes of files to other nodes, and to other layouts, beside those that use the files.
//!
//! Nobody is to see anything of it: the model knows nothing of these programs. Whether a file was moved, or was in use,
//! is counted alone.

use crate::process::Process;
use crate::random::Random;
use crate::shell::SimShell;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use weft_client_core::{Destination, Files};
use weft_protocol::{Credentials, InodeNumber, Layout, Name, NodeId, Plan, Result, StripePlan};

/// Longest wait between two calls of a program, milliseconds.
const THINK_MS: u64 = 1500;
/// Longest stripe. Files are small here.
const STRIPE_BYTES: u64 = 48;

/// Moves that were made, and those that others had hindered; files that got another plan, or had it.
#[derive(Clone, Default)]
pub struct Counts {
    pub planned: Rc<Cell<u64>>,
    pub moved: Rc<Cell<u64>>,
    pub hindered: Rc<Cell<u64>>,
    /// Programs that are using a file.
    pub under_way: Rc<Cell<u64>>,
}

/// A program is doing something, until it is done or dies.
pub struct UnderWay(Rc<Cell<u64>>);

impl UnderWay {
    pub fn begin(count: &Rc<Cell<u64>>) -> Self {
        count.set(count.get() + 1);
        Self(Rc::clone(count))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Those who copy one file at the same time.
const COPIERS: u64 = 3;

/// Moves a file as the command does, by several at once. Returns how many bytes were copied.
pub async fn relocate(machine: &Files<SimShell>, inode: InodeNumber, destination: &Destination) -> Result<u64> {
    let who = Credentials::default();
    let Some(moving) = machine.begin_relocation(&who, inode, destination).await? else { return Ok(0) };
    let copier = || Box::pin(async { moving.copy_pieces(machine, &mut |_| {}).await });
    let copiers = (0..COPIERS.min(moving.count().max(1))).map(|_| copier() as _).collect();
    let made = all(copiers).await;
    machine.end_relocation(&who, moving, made).await
}

/// Goes on with all of them until each has ended. Returns the first error.
async fn all(mut running: Vec<Pin<Box<dyn Future<Output = Result<()>> + '_>>>) -> Result<()> {
    let mut result = Ok(());
    poll_fn(|context| {
        running.retain_mut(|one| match one.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(ended) => {
                result = result.clone().and(ended);
                false
            }
        });
        if running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    result
}

/// Names that programs which make system calls use first.
pub fn names_through_mounts() -> Vec<Name> {
    ["f0", "f1", "f2"].map(|name| Name::new(name.as_bytes()).expect("a valid name")).into()
}

/// One program.
pub struct Program {
    pub machine: Arc<Files<SimShell>>,
    pub process: Rc<Process>,
    /// Its own numbers: what other programs decide stays as it is.
    pub random: Random,
    pub names: Vec<Name>,
    /// Files may be striped.
    pub stripes: bool,
    /// Whether each writer of some of them is to have a part.
    pub splits: bool,
    pub counts: Counts,
}

impl Program {
    /// Moves files until the run ends.
    pub async fn run(mut self) {
        let who = Credentials::default();
        while self.process.thinks(&self.machine, &mut self.random, THINK_MS).await {
            let _under_way = UnderWay::begin(&self.counts.under_way);
            let index = usize::try_from(self.random.below(self.names.len() as u64)).expect("few");
            let Ok(entry) = self.machine.lookup(&who, InodeNumber::ROOT, &self.names[index]).await else { continue };
            let (inode, destination) = (entry.attributes.inode, self.destination());
            if self.random.one_in(4) {
                let plan = destination.layout.as_ref().map_or(Plan::Whole, Layout::plan);
                let set = self.machine.set_file_plan(&who, inode, plan).await;
                self.process.note(|| format!("{inode} is to have {plan:?}: {set:?}"));
                self.counts.planned.set(self.counts.planned.get() + u64::from(set.is_ok()));
                continue;
            }
            let moved = relocate(&self.machine, inode, &destination).await;
            self.process.note(|| format!("moves {inode} to {destination:?}: {moved:?}"));
            let count = if moved.is_ok_and(|bytes| bytes > 0) { &self.counts.moved } else { &self.counts.hindered };
            count.set(count.get() + 1);
        }
    }

    fn destination(&mut self) -> Destination {
        let map = self.machine.calls().map();
        let mut nodes: Vec<NodeId> = map.nodes.iter().map(|node| node.id).collect();
        let turn = self.random.below(nodes.len() as u64);
        nodes.rotate_left(usize::try_from(turn).expect("few"));
        let (from, to) = (nodes.split_off(nodes.len() - 1).into_iter().collect(), nodes);
        let stripe_bytes = u32::try_from(16 + self.random.below(STRIPE_BYTES)).expect("short");
        let layout = match self.random.below(4) {
            0 => Some(Layout::Empty),
            1 if self.stripes => StripePlan::new(2, stripe_bytes).map(Layout::Planned),
            2 if self.splits => Some(Layout::planned(Plan::Split)),
            _ => None,
        };
        Destination { layout, from, to }
    }
}
