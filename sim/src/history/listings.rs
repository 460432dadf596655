//! Listings: each entry that lasts from the beginning to the end of one is in it once, and none that was not there.

use super::Recorded;
use super::posix::{Id, Kind, State};
use crate::kernel::{Call, Handle, Value};
use std::collections::{BTreeMap, BTreeSet};

/// One pass through a directory.
#[derive(Debug)]
struct Pass {
    directory: Id,
    /// Names that were there all the time, and those that were there at some time.
    lasting: BTreeSet<String>,
    ever: BTreeSet<String>,
    seen: Vec<String>,
    has_ended: bool,
}

impl Pass {
    fn begin(directory: Id, states: &[State]) -> Self {
        let mut names = states.iter().map(|state| state.names(directory));
        let first = names.next().unwrap_or_default();
        let (mut lasting, mut ever) = (first.clone(), first);
        for names in names {
            lasting.retain(|name| names.contains(name));
            ever.extend(names);
        }
        Self { directory, lasting, ever, seen: Vec::new(), has_ended: false }
    }

    fn check(&self) -> Result<(), String> {
        for name in &self.lasting {
            let times = self.seen.iter().filter(|seen| *seen == name).count();
            if times != 1 {
                return Err(format!("a listing has {name}, which was there all the time, {times} times: {self:?}"));
            }
        }
        match self.seen.iter().find(|name| !self.ever.contains(*name)) {
            Some(name) => Err(format!("a listing has {name}, which was never there: {self:?}")),
            None => Ok(()),
        }
    }
}

/// All passes that are under way.
#[derive(Default)]
pub struct Listings(BTreeMap<Handle, Pass>);

impl Listings {
    /// Listings go on of which this is so.
    pub fn retain(&mut self, goes_on: impl Fn(Handle) -> bool) {
        self.0.retain(|handle, _| goes_on(*handle));
    }

    /// A round has led from some states to others.
    pub fn check(&mut self, before: &[State], after: &[State], round: &[Recorded]) -> Result<(), String> {
        let calls = round.iter().map(|recorded| &recorded.call);
        let calls = calls.chain(before.iter().flat_map(State::maybe_calls));
        let touched: Vec<(Id, String)> = calls.flat_map(touched).flat_map(|path| places(before, path)).collect();
        for pass in self.0.values_mut() {
            for (_, name) in touched.iter().filter(|(directory, _)| *directory == pass.directory) {
                pass.lasting.remove(name);
                pass.ever.insert(name.clone());
            }
        }
        for recorded in round {
            self.take_in(recorded, after, &touched)?;
        }
        Ok(())
    }

    /// Listings of clients that have died do not go on.
    pub fn forget(&mut self, states: &[State]) {
        self.0.retain(|handle, _| states.iter().any(|state| state.opened(*handle).is_some()));
    }

    fn take_in(&mut self, recorded: &Recorded, states: &[State], touched: &[(Id, String)]) -> Result<(), String> {
        let Some((_, Ok(value))) = &recorded.returned else { return Ok(()) };
        match (&recorded.call, value) {
            (Call::Open { handle, .. }, _) => {
                if let Some((directory, _, Kind::Directory)) = states.first().and_then(|state| state.opened(*handle)) {
                    self.begin(*handle, directory, states, touched);
                }
            }
            (Call::Seekdir { handle, .. }, _) => {
                if let Some(directory) = self.0.get(handle).map(|pass| pass.directory) {
                    self.begin(*handle, directory, states, touched);
                }
            }
            (Call::Close { handle }, _) => {
                self.0.remove(handle);
            }
            (Call::Getdents { handle, .. }, Value::Entries(entries)) => {
                let Some(pass) = self.0.get_mut(handle).filter(|pass| !pass.has_ended) else { return Ok(()) };
                let names = entries.iter().map(|entry| entry.name.clone()).filter(|name| name != "." && name != "..");
                pass.seen.extend(names);
                if entries.is_empty() {
                    pass.has_ended = true;
                    let is_there = states.iter().all(|state| state.is_there(pass.directory));
                    if is_there {
                        pass.check()?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, handle: Handle, directory: Id, states: &[State], touched: &[(Id, String)]) {
        let mut pass = Pass::begin(directory, states);
        for (_, name) in touched.iter().filter(|(at, _)| *at == directory) {
            pass.lasting.remove(name);
            pass.ever.insert(name.clone());
        }
        self.0.insert(handle, pass);
    }
}

/// Paths of which a call may make or remove the name.
pub fn touched(call: &Call) -> Vec<&[String]> {
    match call {
        Call::Open { path, flags, .. } if flags.create => vec![path],
        Call::Mkdir { path, .. } | Call::Unlink { path } | Call::Rmdir { path } => vec![path],
        Call::Link { to, .. } => vec![to],
        Call::Rename { from, to, .. } => vec![from, to],
        _ => Vec::new(),
    }
}

fn places(states: &[State], path: &[String]) -> Vec<(Id, String)> {
    let Some((name, parent)) = path.split_last() else { return Vec::new() };
    let found: BTreeSet<Id> = states.iter().filter_map(|state| state.find(parent).ok()).collect();
    found.into_iter().map(|id| (id, name.clone())).collect()
}
