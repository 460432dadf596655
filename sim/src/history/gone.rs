//! What is gone with a node: programs may be told anything of it.

use super::losses::{handle_of, mapping_of};
use super::posix::{Id, State};
use super::{History, Kind, Recorded};
use crate::kernel::requests::Errno;
use crate::kernel::{Call, CallResult, Handle, Value};
use std::collections::BTreeMap;

/// How much of an inode is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Gone {
    #[default]
    Nothing,
    /// A file's bytes, with its size and its time. Its names and its number of links are there.
    Bytes,
    /// A directory with all below it, or a file as a whole.
    All,
}

impl History {
    /// Whether there is but one state, and no call of which nobody knows the result.
    pub fn is_certain(&self) -> bool {
        self.states.len() == 1 && self.states.iter().all(|state| state.maybe_count() == 0)
    }

    /// Inodes are gone.
    pub fn forget(&mut self, gone: &BTreeMap<Id, Gone>) {
        for state in &mut self.states {
            for (id, of) in gone {
                if let Some(inode) = state.inodes.get_mut(id) {
                    inode.gone = *of;
                }
            }
        }
        let states = &self.states;
        self.listings.retain(|handle| !states.iter().any(|state| state.gone_of(handle) == Gone::All));
    }
}

impl State {
    /// All inodes that are open or mapped, or were found by a call that has not told of them yet.
    pub fn in_use(&self) -> impl Iterator<Item = Id> {
        let open = self.open.values().map(|open| open.inode);
        open.chain(self.mapped.values().map(|mapped| mapped.inode)).chain(self.looked_up.values().copied())
    }

    fn gone(&self, id: Id) -> Gone {
        self.inodes.get(&id).map_or(Gone::Nothing, |inode| inode.gone)
    }

    fn gone_of(&self, handle: Handle) -> Gone {
        let mapped = self.mapped.get(&handle).map(|mapped| mapped.inode);
        let used = self.open.get(&handle).map(|open| open.inode).or(mapped);
        used.map_or(Gone::Nothing, |id| self.gone(id))
    }

    /// Whether a path leads to something that is gone as a whole, or through it.
    fn is_gone(&self, path: &[String]) -> bool {
        (0..=path.len()).any(|end| self.find(&path[..end]).is_ok_and(|id| self.gone(id) == Gone::All))
    }

    /// Whether programs may make a call: names that are gone as a whole are only looked at, since else nobody would
    /// know what is there.
    pub fn may_be_made(&self, call: &Call) -> bool {
        if self.reopens && self.is_of_ended_session(call) {
            return false;
        }
        match call {
            Call::Stat { .. } | Call::CountLinks { .. } => true,
            Call::Open { path, .. }
            | Call::Truncate { path, .. }
            | Call::Chmod { path, .. }
            | Call::Mkdir { path, .. }
            | Call::Unlink { path }
            | Call::Rmdir { path } => !self.is_gone(path),
            Call::Link { from, to } | Call::Rename { from, to, .. } => !self.is_gone(from) && !self.is_gone(to),
            Call::Map { handle, .. } => self.gone_of(*handle) == Gone::Nothing,
            // The open before it may have failed.
            Call::Write { handle, .. } | Call::Pwrite { handle, .. } => self.opened(*handle).is_some(),
            _ => true,
        }
    }

    /// Whether the call is one about what is gone, and so explained.
    pub(super) fn is_about_gone(&mut self, recorded: &Recorded, told: &CallResult) -> bool {
        match &recorded.call {
            Call::Stat { path } | Call::CountLinks { path } if self.is_gone(path) => true,
            Call::Stat { path } | Call::CountLinks { path } | Call::Open { path, .. } | Call::Truncate { path, .. } => {
                let of = self.find(path).map_or(Gone::Nothing, |id| self.gone(id));
                of == Gone::Bytes && *told == Err(Errno::EIO)
            }
            Call::Close { handle } if self.gone_of(*handle) != Gone::Nothing => self.close(*handle).is_ok(),
            Call::Unmap { mapping } if self.gone_of(*mapping) != Gone::Nothing => {
                let mapped = self.mapped.remove(mapping);
                mapped.inspect(|mapped| self.drop_unused(mapped.inode)).is_some()
            }
            Call::Fstat { handle } => match self.gone_of(*handle) {
                Gone::Nothing => false,
                Gone::Bytes => !matches!(told, Ok(Value::Attributes(_))),
                Gone::All => true,
            },
            Call::Getdents { handle, .. } | Call::Seekdir { handle, .. } => self.gone_of(*handle) != Gone::Nothing,
            call => {
                let used = handle_of(call).or_else(|| mapping_of(call));
                used.is_some_and(|used| self.gone_of(used) != Gone::Nothing)
            }
        }
    }

    /// Paths at which programs may look, and their kinds.
    pub fn reachable_paths(&self) -> Vec<(Vec<String>, Kind)> {
        let mut paths = self.paths();
        paths.retain(|(path, _)| !self.is_gone(path));
        paths
    }
}
