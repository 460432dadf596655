//! Shortens a script that fails: lines are left out for as long as the run fails in the same way.
//!
//! First all lines of one kind (all delays of one kind of message, all clocks), then runs of steps, then runs of
//! lines, each half as long as those before, down to single ones, until nothing more can go. Lines that the run did
//! not follow go with each step.

use crate::script::{Key, Script};
use std::collections::BTreeSet;

/// How a run failed: what two failures of one cause have in common.
pub fn cause(failure: &str) -> String {
    let is_event = |line: &&str| line.split_once(" ms ").is_some_and(|(at, _)| at.trim().parse::<u64>().is_ok());
    let wrong = failure.lines().filter(|line| *line != "last events:").find(|line| !is_event(line));
    let words = wrong.unwrap_or_default().split(|sign: char| !sign.is_alphabetic()).filter(|word| word.len() > 1);
    words.take(CAUSE_WORDS).collect::<Vec<_>>().join(" ")
}

/// Words of a failure that have to stay the same; behind them follow the operands.
const CAUSE_WORDS: usize = 4;

/// Shortens. `fails` runs a script, and returns the lines that were followed if it fails as it should.
pub fn shorten(script: &Script, mut fails: impl FnMut(&Script) -> Option<BTreeSet<Key>>) -> Script {
    let mut best = script.clone();
    let mut try_without = |best: &mut Script, gone: &dyn Fn(&Key) -> bool| {
        let mut shorter = best.clone();
        shorter.entries.retain(|key, _| !gone(key));
        if shorter.entries.len() == best.entries.len() {
            return false;
        }
        let Some(used) = fails(&shorter) else { return false };
        let mut pruned = shorter.clone();
        pruned.entries.retain(|key, _| used.contains(key));
        *best = if pruned.entries.len() < shorter.entries.len() && fails(&pruned).is_some() { pruned } else { shorter };
        true
    };
    loop {
        let before = best.entries.len();
        for kind in best.entries.keys().map(kind_of).collect::<BTreeSet<_>>() {
            try_without(&mut best, &|key| kind_of(key) == kind);
        }
        halve(&mut best, |key| (key.step, String::new(), 0), &mut try_without);
        halve(&mut best, |key| (key.step, key.what.clone(), key.number), &mut try_without);
        if best.entries.len() == before {
            return best;
        }
    }
}

/// What a line is about, without the parties.
fn kind_of(key: &Key) -> String {
    let words = key.what.split(' ').filter(|word| !word.contains("client") && !word.contains("node"));
    let words: Vec<&str> = words.filter(|word| !word.starts_with(|sign: char| sign.is_ascii_digit())).collect();
    words.join(" ")
}

type Unit = (u64, String, u32);

/// Leaves out runs of units, each half as long as those before.
fn halve(
    best: &mut Script,
    unit: impl Fn(&Key) -> Unit,
    try_without: &mut impl FnMut(&mut Script, &dyn Fn(&Key) -> bool) -> bool,
) {
    let units = |best: &Script| best.entries.keys().map(&unit).collect::<BTreeSet<_>>();
    let mut length = units(best).len() / 2;
    while length > 0 {
        let all: Vec<Unit> = units(best).into_iter().collect();
        // From the end: what comes last depends on what was before.
        for run in all.rchunks(length) {
            let gone: BTreeSet<&Unit> = run.iter().collect();
            try_without(best, &|key| gone.contains(&unit(key)));
        }
        length /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn only_the_lines_that_matter_are_left() {
        let mut script = Script::new(Kind::Mounts);
        for step in 1..40 {
            for (what, number) in [("call", 1), ("call", 2), ("recall node0>client1", 1)] {
                script.entries.insert(Key { step, what: what.to_owned(), number }, format!("{step}"));
            }
        }
        let needed = |step, what: &str, number| Key { step, what: what.to_owned(), number };
        let needed = [needed(7, "call", 2), needed(31, "recall node0>client1", 1)];
        let mut runs = 0;
        let short = shorten(&script, |script| {
            runs += 1;
            let fails = needed.iter().all(|key| script.entries.contains_key(key));
            fails.then(|| script.entries.keys().cloned().collect())
        });
        assert_eq!(short.entries.keys().cloned().collect::<Vec<_>>(), needed);
        assert!(runs < 200, "{runs} runs");
    }

    #[test]
    fn failures_of_one_cause_have_the_same_words() {
        let text =
            |call: u64| format!("last events:\n    12 ms call 3\n 13 ms it returned\nno order explains call {call}");
        assert_eq!(cause(&text(3)), "no order explains call");
        assert_eq!(cause(&text(3)), cause(&text(4)));
    }
}
