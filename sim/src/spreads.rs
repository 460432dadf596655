//! Programs that spread the names of directories over shards, beside those that use files and names.
//!
//! What programs see of a directory is to be the same before and after. The model of shards' answers knows the parts,
//! by whose numbers shards are asked; that of system calls knows nothing of them.

use crate::process::Process;
use crate::random::Random;
use crate::shell::SimShell;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use weft_client_core::{Files, Placement};
use weft_protocol::{AttributeChanges, Credentials, FileKind, InodeNumber, Name};

/// Longest wait between two calls of a program, milliseconds.
const THINK_MS: u64 = 3000;

/// One program.
pub struct Program {
    pub machine: Arc<Files<SimShell>>,
    pub process: Rc<Process>,
    /// Its own numbers: what other programs decide stays as it is.
    pub random: Random,
    /// Others make system calls, and see who changes the mode of a directory.
    pub through_mounts: bool,
    /// Directories that were spread.
    pub spread: Rc<Cell<u64>>,
}

impl Program {
    /// Spreads directories, and changes the modes of some, until the run ends.
    pub async fn run(mut self) {
        let who = Credentials::default();
        while self.process.thinks(&self.machine, &mut self.random, THINK_MS).await {
            let Some(directory) = self.directory(&who).await else { continue };
            if !self.through_mounts && self.random.one_in(3) {
                let mode = Some(if self.random.one_in(2) { 0o711 } else { 0o755 });
                let changes = AttributeChanges { mode, ..AttributeChanges::default() };
                let changed = self.machine.set_attributes(&who, directory, &changes).await;
                self.process.note(|| format!("chmod of {directory}: {changed:?}"));
                continue;
            }
            // Those that are made in it are spread, too, or only itself; or those no more.
            let spread = match self.random.below(4) {
                0 => self.machine.set_placement(&who, directory, Placement::Hash).await,
                1 => self.machine.set_placement(&who, directory, Placement::Home).await,
                _ => self.machine.spread(&who, directory).await.map(drop),
            };
            self.process.note(|| format!("spreads {directory}: {spread:?}"));
            self.spread.set(self.spread.get() + u64::from(spread.is_ok()));
        }
    }

    async fn directory(&mut self, who: &Credentials) -> Option<InodeNumber> {
        if self.random.one_in(4) {
            return Some(InodeNumber::ROOT);
        }
        if !self.through_mounts {
            let known = self.process.directories.borrow();
            let index = usize::try_from(self.random.below(known.len() as u64)).expect("few");
            return Some(known[index]);
        }
        let name = Name::new(if self.random.one_in(2) { b"d0" } else { b"d1" }).expect("a valid name");
        let found = self.machine.lookup(who, InodeNumber::ROOT, &name).await.ok()?;
        (found.attributes.kind == FileKind::Directory).then_some(found.attributes.inode)
    }
}
