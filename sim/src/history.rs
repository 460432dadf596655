//! What system calls returned, held against POSIX.
//!
//! Calls come in rounds: those of one round may overlap in time, and the next round begins when all have returned. A
//! round holds if there is an order of its calls, in which none comes before one that had returned when it was begun,
//! such that a file system without caches ([`State`]) returns the same. Where several orders do, all states that they
//! lead to go on.
//!
//! A write that the kernel sends in several requests is seen in as many steps: it ends a request at a page that it does
//! not have (`fuse_fill_write_pages`), and at the largest size of one. Where it was cut is known from the kernel
//! itself. A `stat` beside a write that makes the file longer may tell a size in between, as on Linux.
//!
//! Listings are no single call: see `listings.rs`.

mod content;
mod gone;
mod listings;
mod lookups;
mod losses;
mod mtime;
mod posix;
mod stale_renames;

use crate::kernel::requests::{Errno, RenameMode};
use crate::kernel::{Call, CallResult, Value};
pub use gone::Gone;
use listings::Listings;
pub use posix::{Id, Kind, ROOT, State};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// A call and what became of it.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// A number above zero that no other call has.
    pub id: u64,
    /// Who made it.
    pub client: usize,
    pub call: Call,
    pub begun_ms: u64,
    /// How many control connections of its client had broken when it began, and how many of its sessions had ended.
    pub unheard: u64,
    pub sessions: u64,
    pub fate: Fate,
    /// Of a write: where the parts end in which the kernel sent it, one after the other.
    pub pieces: Vec<u64>,
    /// Number of the inode that an open has opened.
    pub opened: Option<u64>,
    /// What its client has not flushed was lost meanwhile: of these inodes; `None`: of all.
    pub lost: Vec<Option<u64>>,
    /// When it returned, and what.
    pub returned: Option<(u64, CallResult)>,
}

impl Recorded {
    /// A call that has not returned.
    pub fn begun(id: u64, client: usize, call: Call, begun_ms: u64) -> Self {
        let (unheard, sessions, fate, pieces) = (0, 0, Fate::default(), Vec::new());
        let (opened, lost, returned) = (None, Vec::new(), None);
        Self { id, client, call, begun_ms, unheard, sessions, fate, pieces, opened, lost, returned }
    }
}

/// What explains that a call fails, or that more is lost than it says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fate {
    /// A connection for data of its client broke lately, or its session ended: it may fail, and leave a part done.
    pub may_fail: bool,
    /// The kernel owed an error when it began.
    pub is_owed: bool,
    /// A store was full.
    pub may_be_full: bool,
    /// The session ended while it was made: what it has flushed may be lost, and an open may have made two files.
    pub loses_session: bool,
    /// Nobody was told its result: its client died, or gave it up.
    pub is_unknown: bool,
    /// It was not begun when its client died.
    pub is_void: bool,
}

/// All that is known of what programs were told.
pub struct History {
    states: Vec<State>,
    /// There were more states than go on, or more orders than were tried, since the start: the true state need not be
    /// among those that go on.
    is_cut: bool,
    listings: Listings,
    /// Rounds of which several orders were possible.
    pub ambiguous: u64,
}

/// States that go on at most.
const STATES_MAX: usize = 256;

/// Moments of one round from which orders are tried at most. Each is remembered, so that none is tried twice.
const MOMENTS_MAX: usize = 5_000;

/// States that calls may have led to, each once: the first [`STATES_MAX`] of them.
#[derive(Default)]
struct States {
    states: Vec<State>,
    /// There was one more.
    is_cut: bool,
}

impl States {
    /// Adds a state; whether it is new.
    fn add(&mut self, state: &State) -> bool {
        if self.states.contains(state) {
            return false;
        }
        if self.states.len() == STATES_MAX {
            self.is_cut = true;
            return false;
        }
        self.states.push(state.clone());
        true
    }
}

impl Default for History {
    fn default() -> Self {
        Self { states: vec![State::new()], is_cut: false, listings: Listings::default(), ambiguous: 0 }
    }
}

impl History {
    /// From now on programs of mounts only close what they had open when their client's session ended.
    pub fn reopen(&mut self) {
        self.states.iter_mut().for_each(|state| state.reopens = true);
    }

    /// From now on files are striped.
    pub fn stripe(&mut self) {
        self.states.iter_mut().for_each(|state| state.stripes = true);
    }

    /// One of the states that are possible now, for programs to choose what they do by.
    pub fn state(&self) -> &State {
        self.states.first().expect("there is a state, or the run has failed")
    }

    /// All calls of a round have returned. `Ok(false)` if no order explains what they returned, but more states were
    /// possible before than are kept, or not all orders were tried: nothing can be said from there on.
    pub fn check_round(&mut self, round: &[Recorded]) -> Result<bool, String> {
        for state in &mut self.states {
            let twice = round.iter().filter(|recorded| recorded.fate.loses_session && !recorded.fate.is_unknown);
            twice.for_each(|recorded| state.may_make_twice(recorded));
        }
        let mut orders = Orders::of(round);
        for state in &self.states {
            let made = round.iter().filter(|recorded| !recorded.fate.is_void);
            let mut left: Vec<Step<'_>> = made.map(|recorded| Step { recorded, taken: 0 }).collect();
            orders.explain(state, &mut left);
        }
        let Orders { after, mut reasons, moments, .. } = orders;
        let is_cut = self.is_cut || moments == MOMENTS_MAX;
        self.is_cut = is_cut || after.is_cut;
        let after = after.states;
        if after.is_empty() && is_cut {
            return Ok(false);
        }
        if after.is_empty() {
            reasons.dedup();
            let calls: Vec<String> = round.iter().map(|recorded| format!("{recorded:?}")).collect();
            return Err(format!("no order explains\n{}\n{}", calls.join("\n"), reasons.join("\n")));
        }
        self.ambiguous += u64::from(after.len() > 1);
        self.listings.check(&self.states, &after, round)?;
        self.states = after;
        Ok(true)
    }

    /// What a client has not flushed may be lost, of one inode or of all.
    pub fn lose(&mut self, client: usize, of: Option<u64>, loss: u64) {
        self.states.iter_mut().for_each(|state| state.lose(client, of, loss));
    }

    /// A session of a client ended during the round that was checked last: perhaps after it had opened a file there.
    pub fn session_over(&mut self, client: usize) {
        self.states.iter_mut().for_each(|state| state.session_over(client));
    }

    /// A client has died.
    pub fn died(&mut self, client: usize, loss: u64) {
        self.states.iter_mut().for_each(|state| state.died(client, loss));
        self.listings.forget(&self.states);
    }

    /// Calls that fail from now on belong to this loss.
    pub fn begin_loss(&mut self, loss: u64) {
        self.states.iter_mut().for_each(|state| state.loss = loss);
    }

    /// Nothing of the losses up to this one, without those that are `open`, is on its way any more: what was not
    /// carried out never is. What a client loses settles within half a second, and what one that has died has sent only
    /// much later.
    pub fn settle(&mut self, loss: u64, open: &BTreeSet<u64>) {
        let is_settled = |number: u64| number <= loss && !open.contains(&number);
        let mut after = States::default();
        for state in &self.states {
            with_any_carried_out(state, &mut after);
        }
        self.is_cut |= after.is_cut;
        let mut after = after.states;
        after.iter_mut().for_each(|state| state.settle(is_settled));
        let mut settled: Vec<State> = Vec::new();
        for state in after {
            if !settled.contains(&state) {
                settled.push(state);
            }
        }
        self.states = settled;
    }
}

/// Adds the states to which the calls lead of which nobody knows the result.
fn with_any_carried_out(state: &State, after: &mut States) {
    if !after.add(state) {
        return;
    }
    for at in 0..state.maybe_count() {
        let mut state = state.clone();
        if state.carry_out(at) {
            with_any_carried_out(&state, after);
        }
    }
}

/// The states that this may be after a step of a call during whose round its client has lost what it had not flushed.
/// Each loss came after the step, or before it. What its client has written since then is not lost by that, but by the
/// next loss, even if it was seen in between.
fn with_losses_of(recorded: &Recorded, state: State) -> Vec<State> {
    recorded.lost.iter().fold(vec![state], |mut states, of| {
        let mut lost = states.clone();
        lost.iter_mut().for_each(|state| state.lose_unflushed(recorded.client, *of));
        states.retain(|state| !lost.contains(state));
        lost.append(&mut states);
        lost
    })
}

/// A call of a round, and how much of it is done.
#[derive(Clone, Copy)]
struct Step<'a> {
    recorded: &'a Recorded,
    /// Bytes of a write in pieces that are there; 1 for a `stat` or `link` in two steps that has found its name.
    taken: u64,
}

impl Step<'_> {
    /// The end of the next piece but the last one, with which the call returns; or of what is there when a `stat`
    /// beside it tells the size. An append goes where the file ends: it is one step.
    fn next_end(&self, state: &State, round: &[Recorded]) -> Option<u64> {
        let (handle, offset, data) = match &self.recorded.call {
            Call::Write { handle, data } => (handle, None, data),
            Call::Pwrite { handle, offset, data } => (handle, Some(*offset), data),
            _ => return None,
        };
        let open = state.open.get(handle)?;
        let start = offset.unwrap_or(open.position);
        let is_whole =
            matches!(&self.recorded.returned, Some((_, Ok(Value::Count(count)))) if *count == data.len() as u64);
        let told = sizes_told_beside(self.recorded, round).filter_map(|size| size.checked_sub(start));
        let ends = self.recorded.pieces.iter().copied().chain(told);
        let next = ends.filter(|end| *end > self.taken && *end < data.len() as u64).min();
        next.filter(|_| is_whole && !open.flags.append)
    }
}

/// Whether a rename may have done nothing: the kernel looks its two names up one after the other. If another rename
/// brings a file from one to the other meanwhile, it finds that twice, and has nothing to do, or nothing to replace.
fn may_be_nothing(recorded: &Recorded, result: &CallResult, round: &[Recorded]) -> bool {
    let names = listings::touched(&recorded.call);
    let shares = |other: &Recorded| {
        other.id != recorded.id && listings::touched(&other.call).iter().any(|name| names.contains(name))
    };
    let fits = match recorded.call {
        Call::Rename { mode: RenameMode::NoReplace, .. } => result.is_ok() || *result == Err(Errno::EEXIST),
        Call::Rename { .. } => result.is_ok(),
        _ => false,
    };
    fits && round.iter().any(shares)
}

/// Whether another call that may modify a file overlaps with this one. What is told of a file's time then need not be
/// that of the whole change: a write comes in pieces, and each has its time.
fn changes_meanwhile(recorded: &Recorded, round: &[Recorded]) -> bool {
    let modifies = |call: &Call| {
        matches!(
            call,
            Call::Open { .. }
                | Call::Write { .. }
                | Call::Pwrite { .. }
                | Call::Truncate { .. }
                | Call::Ftruncate { .. }
                | Call::Store { .. }
                | Call::Msync { .. }
                | Call::Unmap { .. }
        )
    };
    round.iter().any(|other| modifies(&other.call) && overlap(recorded, other))
}

/// Whether two calls overlap in time.
fn overlap(one: &Recorded, other: &Recorded) -> bool {
    let end_of = |recorded: &Recorded| recorded.returned.as_ref().map_or(u64::MAX, |(at, _)| *at);
    one.id != other.id && other.begun_ms <= end_of(one) && one.begun_ms <= end_of(other)
}

/// What calls that overlap with this one tell of sizes.
fn sizes_told_beside<'a>(recorded: &'a Recorded, round: &'a [Recorded]) -> impl Iterator<Item = u64> + 'a {
    round.iter().filter(|other| overlap(recorded, other)).filter_map(|other| match &other.returned {
        Some((_, Ok(Value::Attributes(told)))) => Some(told.size),
        _ => None,
    })
}

/// The orders of the calls of a round.
struct Orders<'a> {
    round: &'a [Recorded],
    /// To which they lead.
    after: States,
    /// Why others are none.
    reasons: Vec<String>,
    /// States on the way, by what was left to do: from there on all is the same, however it came to that.
    met: BTreeMap<Vec<(u64, u64)>, HashSet<State>>,
    /// States in `met`.
    moments: usize,
}

impl<'a> Orders<'a> {
    fn of(round: &'a [Recorded]) -> Self {
        Self { round, after: States::default(), reasons: Vec::new(), met: BTreeMap::new(), moments: 0 }
    }

    /// Whether there is nothing more to try from here: this was met before, or enough was tried.
    fn is_done(&mut self, state: &State, left: &[Step<'_>]) -> bool {
        let mut left: Vec<(u64, u64)> = left.iter().map(|step| (step.recorded.id, step.taken)).collect();
        left.sort_unstable();
        let states = self.met.entry(left).or_default();
        if self.moments == MOMENTS_MAX || states.contains(state) {
            return true;
        }
        self.moments += 1;
        states.insert(state.clone());
        false
    }

    /// Tries all orders of what is left, and adds the states to which they lead.
    fn explain(&mut self, state: &State, left: &mut Vec<Step<'_>>) {
        if left.is_empty() {
            self.after.add(state);
            return;
        }
        if self.is_done(state, left) {
            return;
        }
        for index in 0..left.len() {
            let step = left[index];
            let next = step.recorded;
            let comes_later =
                |other: &Step<'_>| other.recorded.returned.as_ref().is_some_and(|(at, _)| *at < next.begun_ms);
            let Some((_, result)) = &next.returned else { unreachable!("a round is checked when all have returned") };
            let is_early = left.iter().any(comes_later);
            if step.taken == 0
                && lookups::may_take_two_steps(&next.call, result)
                && (!is_early || lookups::may_be_shown_as_before(next, left))
            {
                let mut state = state.clone();
                if state.look_up(next) {
                    left[index].taken = 1;
                    self.explain(&state, left);
                    left[index] = step;
                }
            }
            if is_early {
                continue;
            }
            let mut state = state.clone();
            if next.fate.is_unknown {
                state.may_have_made(next);
                left.remove(index);
                self.explain(&state, left);
                left.insert(index, step);
                continue;
            }
            if may_be_nothing(next, result, self.round) {
                left.remove(index);
                self.explain(&state, left);
                left.insert(index, step);
            }
            if step.taken > 0 && lookups::may_count_out(next, result, self.round) {
                let mut state = state.clone();
                state.is_counted_out(next);
                left.remove(index);
                self.explain(&state, left);
                left.insert(index, step);
            }
            if let Some(end) = step.next_end(&state, self.round) {
                match state.write_piece(next, step.taken..end) {
                    Ok(()) => {
                        left[index].taken = end;
                        with_losses_of(next, state).iter().for_each(|state| self.explain(state, left));
                        left[index] = step;
                    }
                    Err(reason) => self.reasons.push(format!("client {}: {:?}: {reason}", next.client, next.call)),
                }
                continue;
            }
            match state.apply((next, step.taken), result, !changes_meanwhile(next, self.round)) {
                Ok(()) => {
                    state.note_walk(next, result);
                    left.remove(index);
                    with_losses_of(next, state).iter().for_each(|state| self.explain(state, left));
                    left.insert(index, step);
                }
                Err(reason) => self.reasons.push(format!("client {}: {:?}: {reason}", next.client, next.call)),
            }
        }
        // Last, since most calls that nobody heard of were never made: what is likely is kept where not all can be.
        for at in 0..state.maybe_count() {
            let mut state = state.clone();
            if state.carry_out(at) {
                self.explain(&state, left);
            }
        }
    }
}

#[cfg(test)]
mod tests;
