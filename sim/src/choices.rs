//! Who decides what happens in a run: a seed, whose decisions may be recorded, or a script ([`crate::script`]).
//!
//! A seed's decisions come from one stream of numbers, in the order in which they are made. A script's come each from
//! its own line, whatever else is decided.

use crate::random::Random;
use crate::script::{Key, Script, Word};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

/// What is recorded, or played.
struct State {
    script: Script,
    plays: bool,
    step: u64,
    counts: BTreeMap<(u64, String), u32>,
    /// Lines that were followed.
    used: BTreeSet<Key>,
    misfits: u64,
}

/// The script of a run, if it has one. Shared by all who decide.
#[derive(Clone, Default)]
pub struct Tape(Option<Rc<RefCell<State>>>);

impl Tape {
    /// Records into an empty script, or plays one.
    pub fn new(script: Script, plays: bool) -> Self {
        let (step, counts, used, misfits) = (0, BTreeMap::new(), BTreeSet::new(), 0);
        Self(Some(Rc::new(RefCell::new(State { script, plays, step, counts, used, misfits }))))
    }

    pub fn is_playing(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.borrow().plays)
    }

    /// The kind of the run as far as a script says it: whether names may be used while they are changed.
    pub fn set_races(&self, races: bool) -> bool {
        let Some(state) = &self.0 else { return races };
        let mut state = state.borrow_mut();
        if !state.plays {
            state.script.races = races;
        }
        state.script.races
    }

    /// What is decided from now on belongs to this step.
    pub fn set_step(&self, step: u64) {
        if let Some(state) = &self.0 {
            state.borrow_mut().step = step;
        }
    }

    /// Records a decision that is not looked up by its place when it is played.
    pub fn record(&self, what: fmt::Arguments<'_>, value: impl FnOnce() -> String) {
        let Some(state) = &self.0 else { return };
        let mut state = state.borrow_mut();
        if !state.plays {
            let step = state.step;
            let key = state.next_key(step, what);
            state.script.entries.insert(key, value());
        }
    }

    /// The lines about this, to be played.
    pub fn lines(&self, what: &str) -> Vec<(Key, String)> {
        let Some(state) = self.0.as_ref().filter(|state| state.borrow().plays) else { return Vec::new() };
        state.borrow().script.about(what).map(|(key, value)| (key.clone(), value.to_owned())).collect()
    }

    /// The lines of a step about this.
    pub fn lines_of(&self, step: u64, what: &str) -> Vec<(Key, String)> {
        let mut lines = self.lines(what);
        lines.retain(|(key, _)| key.step == step);
        lines
    }

    /// A line was followed, or did not fit.
    pub fn followed(&self, key: &Key, fits: bool) {
        let Some(state) = &self.0 else { return };
        let mut state = state.borrow_mut();
        if fits {
            state.used.insert(key.clone());
        } else {
            state.misfits += 1;
        }
    }

    /// The script, the lines of it that were followed, and how many did not fit.
    pub fn finish(&self) -> (Script, BTreeSet<Key>, u64) {
        let state = self.0.as_ref().expect("what is recorded or played has a script").borrow();
        (state.script.clone(), state.used.clone(), state.misfits)
    }
}

impl State {
    fn next_key(&mut self, step: u64, what: fmt::Arguments<'_>) -> Key {
        let what = what.to_string();
        let count = self.counts.entry((step, what.clone())).or_default();
        *count += 1;
        Key { step, number: *count, what }
    }
}

/// Decides. Each of these has a stream of numbers of its own, and all of one run have one tape.
pub struct Choices {
    random: Random,
    pub tape: Tape,
}

impl Choices {
    pub fn new(seed: u64, tape: &Tape) -> Self {
        Self { random: Random::new(seed), tape: tape.clone() }
    }

    /// The numbers of the seed.
    pub fn stream(&mut self) -> &mut Random {
        &mut self.random
    }

    /// A decision about something: the seed's, or what a script says, or what is usual.
    pub fn decide<T: Word>(&mut self, what: fmt::Arguments<'_>, usual: T, choose: impl FnOnce(&mut Random) -> T) -> T {
        self.decide_in(None, what, usual, choose)
    }

    /// The same, for something that belongs to another step than the present one.
    pub fn decide_in<T: Word>(
        &mut self,
        step: Option<u64>,
        what: fmt::Arguments<'_>,
        usual: T,
        choose: impl FnOnce(&mut Random) -> T,
    ) -> T {
        let Some(state) = &self.tape.0 else { return choose(&mut self.random) };
        let mut state = state.borrow_mut();
        let step = step.unwrap_or(state.step);
        let key = state.next_key(step, what);
        if !state.plays {
            let chosen = choose(&mut self.random);
            if chosen != usual {
                state.script.entries.insert(key, chosen.write());
            }
            return chosen;
        }
        let Some(value) = state.script.entries.get(&key) else { return usual };
        let Some(value) = T::read(value) else {
            state.misfits += 1;
            return usual;
        };
        state.used.insert(key);
        value
    }
}
