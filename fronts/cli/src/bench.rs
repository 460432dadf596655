//! Benchmarks: several processes that start together, what they did, and what it cost.
//!
//! The command starts itself as workers and speaks with each over pipes, in lines of JSON: a phase is announced, every
//! worker prepares and says so, all are told to go, and each answers with what it did. The clock runs from the first
//! "go" to the last answer.

pub mod crew;
pub mod data;
pub mod handle;
pub mod meta;
pub mod phase;
pub mod stamps;
pub mod thput;
pub mod worker;

use crate::failure::{Explain, Outcome};
use crate::removal::{self, Victim};
use crate::session::Session;
use crate::target::WeftPath;
use crate::tree;
use std::time::{Duration, Instant};
use weft_client::Instance;
use weft_protocol::Name;

/// Most processes of a benchmark.
pub const PROCESSES_MAX: usize = 1024;
/// How long the removal of objects is waited for: another user's new ones may never let their number go back.
const REMOVAL_WAIT_MAX: Duration = Duration::from_secs(5);
const REMOVAL_LOOK: Duration = Duration::from_millis(5);

/// A directory of its own for a benchmark, removed at the end.
pub struct Playground {
    session: Session,
    path: WeftPath,
    /// Objects that were there before.
    objects: u64,
}

impl Playground {
    /// Makes `/.weft-bench-PID`.
    fn new(session: Session) -> Outcome<Self> {
        let path = format!("/.weft-bench-{}", std::process::id()).into_bytes();
        let path = WeftPath { file_system: Some(session.instance.map.name.clone()), path };
        tree::make_directories(&session, &path, 0o700)?;
        let objects = objects(&session)?;
        Ok(Self { session, path, objects })
    }

    /// Measures in one, which is removed also when that fails. The name of the file system, and what was measured.
    pub fn with<T>(name: Option<&str>, measure: impl FnOnce(&Self) -> Outcome<T>) -> Outcome<(String, T)> {
        let playground = Self::new(Session::open(name)?)?;
        let measured = measure(&playground);
        let removed = playground.remove();
        let results = measured?;
        removed?;
        Ok((playground.instance().map.name.clone(), results))
    }

    /// The file system.
    pub fn instance(&self) -> &Instance {
        &self.session.instance
    }

    /// Its path.
    pub fn path(&self) -> &[u8] {
        &self.path.path
    }

    /// Makes a directory in it.
    pub fn make(&self, name: &str) -> Outcome<()> {
        tree::make_directories(&self.session, &self.path.join(name.as_bytes()), 0o700).map(|_| ())
    }

    /// Spreads the names of a directory in it over all shards.
    pub fn spread(&self, name: &str) -> Outcome<()> {
        let path = self.path.join(name.as_bytes());
        let inode = self.session.walk(&path, false, "bench: spread")?.attributes.inode;
        let spread = self.session.client.spread(&self.session.who, inode);
        spread.map(drop).explain(|| format!("bench: spread {path}"))
    }

    /// Removes it with all that is in it. Nodes remove objects after they have answered: that is waited for, so that it
    /// is not a part of whatever is measured next.
    pub fn remove(&self) -> Outcome<()> {
        let found = self.session.walk(&self.path, false, "remove")?.attributes;
        let (parent, name): (_, Name) = self.session.parent(&self.path, "remove")?;
        let mut tell = |_: &WeftPath| Ok(());
        let victim = Victim { path: &self.path, parent, name: &name, inode: found.inode, kind: found.kind };
        removal::remove(&self.session, &victim, &mut tell)?;
        let since = Instant::now();
        while objects(&self.session)? > self.objects && since.elapsed() < REMOVAL_WAIT_MAX {
            std::thread::sleep(REMOVAL_LOOK);
        }
        Ok(())
    }

    /// Makes it again, with nothing in it.
    pub fn empty(&self) -> Outcome<()> {
        self.remove()?;
        tree::make_directories(&self.session, &self.path, 0o700).map(|_| ())
    }
}

/// Objects of all nodes that answer.
fn objects(session: &Session) -> Outcome<u64> {
    let space = session.client.space().explain(|| "bench: objects of the nodes")?;
    Ok(space.nodes.iter().filter_map(|(_, answer)| answer.as_ref().ok()).map(|space| space.objects).sum())
}

/// CPU time that the nodes on this machine have used.
pub fn node_cpu_time(instance: &Instance) -> Duration {
    let here = instance.processes.iter().filter(|process| process.ssh_host.is_none());
    here.filter_map(|process| crate::host::stop::mark(process).cpu_time()).sum()
}

/// Index of the median of some figures (the lower of the two in the middle).
pub fn median_index(figures: &[f64]) -> usize {
    let mut order: Vec<usize> = (0..figures.len()).collect();
    order.sort_by(|a, b| figures[*a].total_cmp(&figures[*b]));
    order.get(figures.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_one_of_the_runs() {
        for (figures, index) in [(&[5.0][..], 0), (&[3.0, 1.0, 2.0], 2), (&[4.0, 1.0, 3.0, 2.0], 3), (&[], 0)] {
            assert_eq!(median_index(figures), index, "{figures:?}");
        }
    }
}
