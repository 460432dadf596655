//! Names under concurrent calls: some order of all calls, in which each takes effect between its begin and its end,
//! explains every result (linearizability).
//!
//! The search keeps the set of possible states (Lowe 2017, "just-in-time linearization"): when a call returns, each
//! state is continued by every order of pending calls that ends with this one and gives it its result. A call that
//! takes two steps in the kernel (a path is looked up, then the inode asked or linked) takes them at two moments here
//! as well. So does a rename where the kernel answers it by what it has looked up ([`look_up`]). Calls lost with their
//! mount stay pending for ever.
//!
//! A kernel changes its own names when the reply to a rename, removal or `mkdir` has come, and the shard may have shown
//! the change to others before: until such a call returns, other programs of its mount may find what was there before
//! ([`step_as_it_was`]).
//!
//! Directories do not move; the paths of calls are compared as text.

use super::history::{History, Record};
use crate::call::{Call, RenameHow};
use crate::outcome::Outcome;
use crate::violation::{Rule, Wrong};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// States that are followed at a time. Beyond it, a history counts as undecided.
const STATES_MAX: usize = 20_000;

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Target {
    File(u64),
    /// Made by a lost call with this index: whatever is seen there first.
    Unknown(usize),
    Directory,
}

/// How far a call is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Progress {
    Begun,
    /// The path was looked up.
    Found(Target),
    Done,
}

type Names = BTreeMap<String, Target>;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct State {
    names: Names,
    /// Inodes that were made: their numbers are not used again.
    made: BTreeSet<u64>,
    pending: BTreeMap<usize, Progress>,
    /// What the kernel of a mount may still show, while its call with this index has not returned: what these names
    /// stood for before.
    kept: BTreeMap<usize, Vec<(String, Option<Target>)>>,
}

impl State {
    /// Returns the names as the mount's kernel may show them, if it may show any differently.
    fn as_kept(&self, record: &Record, records: &[&Record]) -> Option<Names> {
        // A lost call stays pending, but has returned.
        let is_kept = |call: &Record| call.who.mount == record.who.mount && record.begun <= call.ended;
        let kept = self.kept.iter().filter(|(index, _)| is_kept(records[**index])).flat_map(|(_, names)| names);
        let mut names = None;
        for (name, target) in kept {
            let names = names.get_or_insert_with(|| self.names.clone());
            match target {
                Some(target) => names.insert(name.clone(), *target),
                None => names.remove(name),
            };
        }
        names
    }

    /// Notes what a call has changed. Kernels that have kept the name lose it: a mount's lease is recalled before
    /// another one changes it, and one mount changes one directory at a time.
    fn note_change(&mut self, before: &Names, index: usize, record: &Record, may_be_seen: bool) {
        match &record.call {
            Call::Stat { .. } | Call::StatHandle { .. } => return,
            Call::Open { path, .. } if before.contains_key(path) => return,
            _ => {}
        }
        let changed: Vec<_> = paths(&record.call)
            .into_iter()
            .filter(|path| before.get(*path) != self.names.get(*path))
            .map(|path| (path.to_owned(), before.get(path).copied()))
            .collect();
        if changed.is_empty() {
            return;
        }
        for kept in self.kept.values_mut() {
            kept.retain(|(name, _)| changed.iter().all(|(path, _)| path != name));
        }
        self.kept.retain(|_, kept| !kept.is_empty());
        if may_be_seen {
            self.kept.insert(index, changed);
        }
    }

    /// What a lost call had made became known.
    fn replace(&mut self, from: Target, to: Target) {
        let kept = self.kept.values_mut().flatten().filter_map(|(_, target)| target.as_mut());
        self.names.values_mut().chain(kept).filter(|target| **target == from).for_each(|target| *target = to);
    }
}

/// Searches for an order. `Ok(false)`: there are too many to search.
pub fn check(history: &History) -> Result<bool, Wrong> {
    // What a dead kernel tells by itself is of no time in particular.
    let tells = |record: &&Record| record.is_lost || !record.is_stale || record.handle.is_some();
    let records: Vec<&Record> = history.effective().filter(|record| is_about_names(record)).filter(tells).collect();
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (index, record) in records.iter().enumerate() {
        events.push((record.begun, false, index));
        if !record.is_lost {
            events.push((record.ended, true, index));
        }
    }
    // At the same moment, begins come first: the calls overlap.
    events.sort_unstable();
    let seen = changes_in_sight(&records);
    let mut states = BTreeSet::from([State::default()]);
    for (_, is_return, index) in events {
        states = match is_return {
            false => states
                .into_iter()
                .map(|mut state| {
                    state.pending.insert(index, Progress::Begun);
                    state
                })
                .collect(),
            true => returned(&states, index, &records, &seen),
        };
        if states.len() > STATES_MAX {
            return Ok(false);
        }
        if states.is_empty() {
            let text = format!("got {}, which no order of the calls about names explains", records[index].outcome);
            return Err(records[index].wrong(Rule::Names, &text));
        }
    }
    Ok(true)
}

fn is_about_names(record: &Record) -> bool {
    matches!(
        record.call,
        Call::Open { .. }
            | Call::Stat { .. }
            | Call::StatHandle { .. }
            | Call::Rename { .. }
            | Call::Link { .. }
            | Call::Unlink { .. }
            | Call::MakeDirectory { .. }
            | Call::RemoveDirectory { .. }
    )
}

/// Changes through mounts, beside each of which another program of its mount may look at names.
fn changes_in_sight(records: &[&Record]) -> BTreeSet<usize> {
    let is_change = |record: &Record| {
        let changes = match &record.call {
            Call::Open { flags, .. } => flags.create,
            Call::Rename { .. } | Call::Link { .. } | Call::Unlink { .. } => true,
            Call::MakeDirectory { .. } | Call::RemoveDirectory { .. } => true,
            _ => false,
        };
        changes && !record.who.is_native()
    };
    let may_see = |looker: &Record, change: &Record| {
        let overlap = looker.begun <= change.ended && change.begun <= looker.ended;
        overlap && looker.who.mount == change.who.mount && looker.who != change.who && looks_only(looker)
    };
    let changes = records.iter().enumerate().filter(|(_, record)| is_change(record));
    changes.filter(|(_, change)| records.iter().any(|looker| may_see(looker, change))).map(|(index, _)| index).collect()
}

/// The states in which a call has taken effect, without it. `seen`: the changes that a kernel may show late.
fn returned(
    states: &BTreeSet<State>,
    index: usize,
    records: &[&Record],
    seen_late: &BTreeSet<usize>,
) -> BTreeSet<State> {
    let mut seen = states.clone();
    let mut left: Vec<State> = states.iter().cloned().collect();
    let mut found = BTreeSet::new();
    while let Some(state) = left.pop() {
        let is_done = state.pending.get(&index) == Some(&Progress::Done);
        if is_done {
            let mut ended = state.clone();
            ended.pending.remove(&index);
            let was_kept = ended.kept.remove(&index).is_some();
            found.insert(ended);
            // Others may have looked at what is kept before it goes; all else they can do later.
            if !was_kept {
                continue;
            }
        }
        if seen.len() > STATES_MAX {
            return seen;
        }
        for (other, progress) in state.pending.iter().filter(|(_, progress)| **progress != Progress::Done) {
            let record = records[*other];
            let mut steps: Vec<_> = step_as_it_was(&state, *other, *progress, records).into_iter().collect();
            if is_counted_out_twice(&state, *progress, record, records) {
                steps.push((state.clone(), Progress::Done));
            }
            if !is_done {
                let mut changed = state.clone();
                if let Some(progress) = step(&mut changed, *other, *progress, record) {
                    changed.note_change(&state.names, *other, record, seen_late.contains(other));
                    steps.push((changed, progress));
                }
                steps.extend(look_up(&state.names, *progress, record).map(|progress| (state.clone(), progress)));
                if is_counted_out(*progress, record, records) {
                    steps.push((state.clone(), Progress::Done));
                }
            }
            for (mut next, progress) in steps {
                next.pending.insert(*other, progress);
                if seen.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
    }
    found
}

/// Returns true for a call that takes no directory's lock, if it finds the name.
fn looks_only(record: &Record) -> bool {
    match &record.call {
        Call::Open { flags, .. } => !flags.exclusive,
        Call::Stat { .. } | Call::StatHandle { .. } | Call::Link { .. } => true,
        _ => false,
    }
}

/// Takes the next step of a call whose kernel still shows names as they were before another call of its mount.
fn step_as_it_was(state: &State, index: usize, progress: Progress, records: &[&Record]) -> Option<(State, Progress)> {
    let record = records[index];
    if !looks_only(record) {
        return None;
    }
    let names = state.as_kept(record, records)?;
    match &record.call {
        // Waits for the lock of the directory, to make it.
        Call::Open { path, flags, .. } if flags.create && !names.contains_key(path) => return None,
        // By then the shard is asked.
        Call::Link { .. } if progress != Progress::Begun => return None,
        _ => {}
    }
    let mut shown = State { names: names.clone(), ..state.clone() };
    let progress = step(&mut shown, index, progress, record)?;
    let mut next = State { made: shown.made, ..state.clone() };
    if let Some((from, to)) = names.values().zip(shown.names.values()).find(|(from, to)| from != to) {
        next.replace(*from, *to);
    }
    Some((next, progress))
}

/// Takes the next step of a call. `None`: it cannot be taken in this state with the result that the call had.
fn step(state: &mut State, index: usize, progress: Progress, record: &Record) -> Option<Progress> {
    let State { names, made, .. } = state;
    let result = if record.is_lost { None } else { Some(record.outcome.errno()) };
    // A lost call is explained by any errno.
    let fails = |errno: Errno| result.is_none_or(|got| got == Some(errno)).then_some(Progress::Done);
    let may_succeed = result.is_none_or(|got| got.is_none());
    let done = || may_succeed.then_some(Progress::Done);
    if progress == Progress::Begun && paths(&record.call).iter().any(|path| !has_parent(names, path)) {
        return fails(Errno::NOENT);
    }
    match &record.call {
        Call::Open { path, flags, .. } => match names.get(path).copied() {
            Some(_) if flags.create && flags.exclusive => fails(Errno::EXIST),
            Some(Target::Directory) => fails(Errno::ISDIR),
            Some(target) => match record.outcome {
                Outcome::Opened(inode) => is_file(state, target, inode).then_some(Progress::Done),
                _ => done(),
            },
            None if !flags.create => fails(Errno::NOENT),
            None => {
                let target = match record.outcome {
                    Outcome::Opened(inode) if made.insert(inode) => Target::File(inode),
                    Outcome::Opened(_) => return None,
                    _ => Target::Unknown(index),
                };
                names.insert(path.clone(), target);
                done()
            }
        },
        Call::Stat { path } => match progress {
            Progress::Found(target) => observed(state, target, &record.outcome).then_some(Progress::Done),
            _ => match names.get(path).copied() {
                Some(target) if may_succeed => Some(Progress::Found(target)),
                Some(_) => None,
                None => fails(Errno::NOENT),
            },
        },
        Call::StatHandle { .. } if record.is_stale => Some(Progress::Done),
        Call::StatHandle { .. } => {
            let opened = record.handle.as_ref()?;
            observed(state, Target::File(opened.inode), &record.outcome).then_some(Progress::Done)
        }
        Call::Rename { from, to, how } if progress == Progress::Begun => rename(names, (from, to, *how), record),
        Call::Rename { .. } => None,
        Call::Link { from, to } => match progress {
            Progress::Found(_) if names.contains_key(to) => fails(Errno::EXIST),
            // Directories may be at different shards.
            Progress::Found(_) if record.outcome.errno() == Some(Errno::XDEV) => Some(Progress::Done),
            Progress::Found(target) if !names.values().any(|named| *named == target) => fails(Errno::NOENT),
            Progress::Found(target) => {
                names.insert(to.clone(), target);
                done()
            }
            _ => match names.get(from).copied() {
                Some(target) => Some(Progress::Found(target)),
                None => fails(Errno::NOENT),
            },
        },
        Call::Unlink { path } => match names.get(path) {
            Some(Target::Directory) => fails(Errno::ISDIR),
            Some(_) => {
                names.remove(path);
                done()
            }
            None => fails(Errno::NOENT),
        },
        Call::MakeDirectory { path } => match names.get(path) {
            Some(_) => fails(Errno::EXIST),
            None => {
                names.insert(path.clone(), Target::Directory);
                done()
            }
        },
        Call::RemoveDirectory { path } => match names.get(path) {
            Some(Target::Directory) => {
                names.remove(path);
                done()
            }
            Some(_) => fails(Errno::NOTDIR),
            None => fails(Errno::NOENT),
        },
        _ => Some(Progress::Done),
    }
}

fn paths(call: &Call) -> Vec<&str> {
    match call {
        Call::Open { path, .. }
        | Call::Stat { path }
        | Call::Unlink { path }
        | Call::MakeDirectory { path }
        | Call::RemoveDirectory { path } => vec![path],
        Call::Rename { from, to, .. } | Call::Link { from, to } => vec![from, to],
        _ => Vec::new(),
    }
}

fn has_parent(names: &Names, path: &str) -> bool {
    path.rsplit_once('/').is_none_or(|(parent, _)| names.get(parent) == Some(&Target::Directory))
}

fn rename(names: &mut Names, (from, to, how): (&str, &str, RenameHow), record: &Record) -> Option<Progress> {
    let result = if record.is_lost { None } else { Some(record.outcome.errno()) };
    let gives = |errno: Option<Errno>| result.is_none_or(|got| got == errno).then_some(Progress::Done);
    let (old, new) = (names.get(from).copied(), names.get(to).copied());
    let Some(old) = old else { return gives(Some(Errno::NOENT)) };
    match (how, new) {
        (RenameHow::NoReplace, Some(_)) => return gives(Some(Errno::EXIST)),
        (RenameHow::Exchange, None) => return gives(Some(Errno::NOENT)),
        _ => {}
    }
    if record.outcome.errno() == Some(Errno::XDEV) {
        return Some(Progress::Done);
    }
    if new != Some(old) {
        match (how, new) {
            (RenameHow::Exchange, Some(new)) => names.insert(from.to_owned(), new),
            _ => names.remove(from),
        };
        names.insert(to.to_owned(), old);
    }
    gives(None)
}

/// The kernel looks the two names of a rename up one after the other, and asks the server only if there is something
/// to do: if it finds one file under both names, or the second name taken that must not be replaced, that is its
/// answer. So it may see a file twice that another mount has renamed meanwhile. The next of these two looks, if the
/// answer is such a one.
fn look_up(names: &Names, progress: Progress, record: &Record) -> Option<Progress> {
    let Call::Rename { from, to, how } = &record.call else { return None };
    let must_not_replace = match (how, record.outcome.errno()) {
        (RenameHow::NoReplace, Some(Errno::EXIST)) => true,
        (RenameHow::Replace | RenameHow::Exchange, None) => false,
        _ => return None,
    };
    match progress {
        _ if record.who.is_native() || record.is_lost => None,
        Progress::Begun => names.get(from).map(|target| Progress::Found(*target)),
        Progress::Found(found) => {
            let second = names.get(to);
            let is_answer = if must_not_replace { second.is_some() } else { second == Some(&found) };
            is_answer.then_some(Progress::Done)
        }
        Progress::Done => None,
    }
}

/// The kernel of a mount takes one from the count of links that it knows when a name goes through it, and refuses to
/// link a file that has none left for it; nobody is asked then, who would know of a name that another client has given
/// the file. Returns true for a link that it may have refused so.
fn is_counted_out(progress: Progress, record: &Record, records: &[&Record]) -> bool {
    let (Call::Link { from, .. }, Progress::Found(_)) = (&record.call, progress) else { return false };
    let takes_name = |other: &Record| {
        let is_beside = other.begun <= record.ended && record.begun <= other.ended;
        is_beside && other.who.mount == record.who.mount && other.is_done() && takes_away(&other.call, from)
    };
    let gives_name = |other: &Record| {
        let links = matches!(other.call, Call::Link { .. }) && (other.is_done() || other.is_lost);
        links && other.who.mount != record.who.mount && other.begun <= record.ended
    };
    !record.who.is_native()
        && record.outcome.errno() == Some(Errno::NOENT)
        && records.iter().any(|other| takes_name(other))
        && records.iter().any(|other| gives_name(other))
}

/// What a link's own look-up tells of a file while a removal of another of its names is in flight may have that name
/// counted out already, and the kernel takes one more from it with the reply to the removal. Returns true for a link
/// that it may have refused so: as many calls of its mount are in flight that have taken a name as the file has left.
fn is_counted_out_twice(state: &State, progress: Progress, record: &Record, records: &[&Record]) -> bool {
    let (Call::Link { from, .. }, Progress::Found(target)) = (&record.call, progress) else { return false };
    let in_flight = state.kept.iter().filter(|(index, names)| {
        let other = records[**index];
        let takes = |name: &str| name != from && takes_away(&other.call, name);
        other.who.mount == record.who.mount
            && other.is_done()
            && names.iter().any(|(name, was)| *was == Some(target) && takes(name))
    });
    let left = state.names.values().filter(|named| **named == target).count();
    !record.who.is_native() && record.outcome.errno() == Some(Errno::NOENT) && (1..=in_flight.count()).contains(&left)
}

/// Returns true for a call that takes a name from the file that had it.
fn takes_away(call: &Call, name: &str) -> bool {
    match call {
        Call::Rename { to, how: RenameHow::Replace, .. } => to == name,
        Call::Unlink { path } => path == name,
        _ => false,
    }
}

/// Returns true if the target is this file; one made by a lost call becomes it.
fn is_file(state: &mut State, target: Target, inode: u64) -> bool {
    match target {
        Target::File(number) => number == inode,
        Target::Unknown(_) if state.made.insert(inode) => {
            state.replace(target, Target::File(inode));
            true
        }
        _ => false,
    }
}

/// Compares what stat told of an inode at this moment.
fn observed(state: &mut State, target: Target, outcome: &Outcome) -> bool {
    let Outcome::Attributes(got) = outcome else { return true };
    match target {
        Target::Directory => got.is_directory,
        _ if got.is_directory => false,
        target => {
            let links = |names: &Names, target| names.values().filter(|named| **named == target).count() as u64;
            // One that lost its last name is no name's target any more, so it is compared before.
            let is_same = match target {
                Target::File(number) => number == got.inode,
                target => is_file(state, target, got.inode) || links(&state.names, target) == 0,
            };
            is_same && links(&state.names, Target::File(got.inode)) == got.links
        }
    }
}

#[cfg(test)]
mod tests;
