//! `stat` and `link` in two steps: the kernel asks for the name (LOOKUP), and then for the attributes of the inode
//! (GETATTR), or for another name of it (LINK).
//!
//! Where the name goes between the two, Linux tells of one link less, on any file system; of none where it was the
//! last. A file that has no name left then is not linked (ENOENT); one that has is, though not under the name by which
//! it was found. An answer is taken for two steps only if its inode loses the name between them, by a call that
//! overlaps this one.

use super::listings::touched;
use super::posix::{Expected, Id, Kind, State, same};
use super::{Recorded, Step, overlap};
use crate::kernel::requests::{Attributes, Errno, RenameMode};
use crate::kernel::{Call, CallResult, Value};
use crate::system_calls::NATIVE;

/// The attributes that were told to a `stat`, of a file that may have lost the name meanwhile.
fn told_without_name<'a>(call: &Call, told: &'a CallResult) -> Option<&'a Attributes> {
    match (call, told) {
        (Call::Stat { .. }, Ok(Value::Attributes(told))) if told.kind == Kind::Regular => Some(told),
        _ => None,
    }
}

/// Whether the file of a call may lose its name between the two steps of the call.
pub(super) fn may_take_two_steps(call: &Call, told: &CallResult) -> bool {
    match call {
        Call::Link { .. } => matches!(told, Ok(_) | Err(Errno::ENOENT | Errno::EEXIST)),
        _ => told_without_name(call, told).is_some(),
    }
}

/// Whether the kernel may have refused to link a file that has a name: it takes one from the count of links that it
/// knows when another file is renamed over a name, and asks nobody where none is left, who would know of a name that
/// another client has given the file meanwhile. (Where a name is removed alone, it is not there after that.)
pub(super) fn may_count_out(recorded: &Recorded, told: &CallResult, round: &[Recorded]) -> bool {
    let Call::Link { from, .. } = &recorded.call else { return false };
    let takes_name = |other: &Recorded| {
        let takes = matches!(&other.call, Call::Rename { to, mode: RenameMode::Replace, .. } if to == from);
        takes && other.client == recorded.client
    };
    let gives_name = |other: &Recorded| matches!(other.call, Call::Link { .. }) && other.client != recorded.client;
    let beside = || round.iter().filter(|other| overlap(recorded, other));
    let refuses = recorded.client != NATIVE && *told == Err(Errno::ENOENT);
    refuses && beside().any(takes_name) && beside().any(gives_name)
}

/// Whether a name may be found as it was before a call of the same client that has not returned: its kernel shows it
/// so until then, also when others have seen the change (docs/guide/consistency.md).
pub(super) fn may_be_shown_as_before(recorded: &Recorded, left: &[Step<'_>]) -> bool {
    let changes =
        |other: &Recorded| touched(&other.call).into_iter().any(|name| Some(name) == looked_up(&recorded.call));
    let is_beside = |other: &Recorded| other.client == recorded.client && overlap(recorded, other);
    left.iter().any(|step| is_beside(step.recorded) && changes(step.recorded))
}

/// The name that a call of two steps looks up.
fn looked_up(call: &Call) -> Option<&[String]> {
    match call {
        Call::Stat { path } | Call::Link { from: path, .. } => Some(path),
        _ => None,
    }
}

impl State {
    /// The first step: the name is found. Its inode stays until the second one. Returns false if it is not there.
    pub(super) fn look_up(&mut self, recorded: &Recorded) -> bool {
        let Some(path) = looked_up(&recorded.call) else { return false };
        let found = self.find(path);
        self.looked_up.extend(found.iter().map(|id| (recorded.id, *id)));
        found.is_ok()
    }

    /// The second step, with what the call told of the inode that was found, which has the name no more.
    pub(super) fn end_without_name(
        &mut self,
        recorded: &Recorded,
        told: &CallResult,
        times: bool,
    ) -> Result<(), String> {
        let id = self.looked_up.remove(&recorded.id).ok_or("its name was not looked up")?;
        if looked_up(&recorded.call).is_some_and(|path| self.find(path) == Ok(id)) {
            return Err("it has the name".to_owned());
        }
        match (&recorded.call, told_without_name(&recorded.call, told)) {
            (Call::Link { to, .. }, _) => self.told_of_link(id, to, told)?,
            (_, Some(told)) => self.compare(id, told, times)?,
            (call, None) => unreachable!("{call:?} is one step"),
        }
        self.drop_unused(id);
        Ok(())
    }

    /// The second step is not taken: the kernel says itself that the file has no name.
    pub(super) fn is_counted_out(&mut self, recorded: &Recorded) {
        if let Some(id) = self.looked_up.remove(&recorded.id) {
            self.drop_unused(id);
        }
    }

    pub(super) fn link(&mut self, from: &[String], to: &[String]) -> Expected {
        self.find(from).and_then(|id| self.link_found(id, to))
    }

    /// Gives an inode that was found by a name, which it may have lost since, another one.
    pub(super) fn link_found(&mut self, id: Id, to: &[String]) -> Expected {
        let (parent, name) = self.place(to)?;
        if self.entry((parent, name)).is_some() {
            return Err(Errno::EEXIST);
        }
        if self.inodes.get(&id).is_none_or(|inode| inode.links == 0) {
            return Err(Errno::ENOENT);
        }
        if self.is_directory(id) {
            return Err(Errno::EPERM);
        }
        self.inode_mut(id).links += 1;
        self.inode_mut(parent).entries.insert(name.to_owned(), id);
        Ok(())
    }

    fn told_of_link(&mut self, id: Id, to: &[String], told: &CallResult) -> Result<(), String> {
        // Which of the two the kernel finds first is open.
        if *told == Err(Errno::ENOENT) && self.inode(id).links == 0 {
            return Ok(());
        }
        same("result", told, &self.link_found(id, to).map(|()| Value::Done))
    }
}
