//! Shortens a script that fails to the shortest one that still does (delta debugging).
//!
//! A script counts as failing if any of a few runs shows a violation of the same kind. Others, which may be easier to
//! show, are passed over: each would hide the one that was found.

use crate::call::{Call, OpenFlags, WorkerId};
use crate::script::{Script, Step};
use crate::stop::Stop;
use crate::violation::{Kind, Violation};
use std::time::Instant;

/// Shortens `script`, which shows a violation of this kind. `run` runs a script once; one counts as holding when so
/// many runs did not show it.
pub fn minimize(
    script: &Script,
    kind: Kind,
    (attempts, deadline): (u64, Instant),
    mut run: impl FnMut(&Script) -> Result<Option<Violation>, Stop>,
) -> Result<Script, Stop> {
    let mut fails = |script: &Script| {
        for _ in 0..attempts {
            if let Some(shown) = run(script)?.filter(|shown| shown.wrong.kind == kind) {
                return Ok(Some(shown.steps));
            }
        }
        Ok(None)
    };
    let mut shortest = script.clone();
    loop {
        let before = shortest.to_string();
        drop_workers(&mut shortest, deadline, &mut fails)?;
        drop_steps(&mut shortest, deadline, &mut fails)?;
        simplify(&mut shortest, deadline, &mut fails)?;
        if shortest.to_string() == before || Instant::now() > deadline {
            return Ok(shortest);
        }
    }
}

/// Runs a script and returns the number of steps up to the violation.
type Fails<'f> = &'f mut dyn FnMut(&Script) -> Result<Option<usize>, Stop>;

/// Takes `candidate` in place of `shortest` if it fails. Steps behind the failure are dropped.
fn try_one(shortest: &mut Script, candidate: Vec<Step>, fails: Fails<'_>) -> Result<bool, Stop> {
    let candidate = shortest.with(candidate);
    let Some(steps) = fails(&candidate)? else { return Ok(false) };
    let kept = if candidate.is_concurrent { candidate.steps.len() } else { steps };
    *shortest = candidate.with(candidate.steps[..kept].to_vec());
    Ok(true)
}

fn drop_workers(shortest: &mut Script, deadline: Instant, fails: Fails<'_>) -> Result<(), Stop> {
    for worker in shortest.workers() {
        if Instant::now() > deadline {
            break;
        }
        let is_other = |step: &&Step| !matches!(step, Step::Call(who, _) if *who == worker);
        let others = shortest.steps.iter().filter(is_other).cloned().collect();
        try_one(shortest, others, fails)?;
    }
    Ok(())
}

fn drop_steps(shortest: &mut Script, deadline: Instant, fails: Fails<'_>) -> Result<(), Stop> {
    let mut length = (shortest.steps.len() / 2).max(1);
    loop {
        let mut start = 0;
        while start < shortest.steps.len() && Instant::now() < deadline {
            let end = (start + length).min(shortest.steps.len());
            let candidate = [&shortest.steps[..start], &shortest.steps[end..]].concat();
            if candidate.is_empty() || !try_one(shortest, candidate, fails)? {
                start += length;
            }
        }
        if length == 1 || Instant::now() > deadline {
            return Ok(());
        }
        length = (length / 2).max(1);
    }
}

/// Replaces calls by simpler ones, and workers by fewer ones.
fn simplify(shortest: &mut Script, deadline: Instant, fails: Fails<'_>) -> Result<(), Stop> {
    let mut index = 0;
    while index < shortest.steps.len() && Instant::now() < deadline {
        let mut is_simpler = false;
        for simpler in simpler_steps(&shortest.steps[index], &shortest.workers()) {
            let mut candidate = shortest.steps.clone();
            candidate[index] = simpler;
            is_simpler = try_one(shortest, candidate, fails)?;
            if is_simpler {
                break;
            }
        }
        index += usize::from(!is_simpler);
    }
    for worker in shortest.workers() {
        for other in shortest.workers().into_iter().filter(|other| *other < worker) {
            let moved = |step: &Step| match step {
                Step::Call(who, call) if *who == worker => Step::Call(other, call.clone()),
                step => step.clone(),
            };
            let candidate = shortest.steps.iter().map(moved).collect();
            if Instant::now() < deadline && try_one(shortest, candidate, fails)? {
                break;
            }
        }
    }
    Ok(())
}

fn simpler_steps(step: &Step, workers: &[WorkerId]) -> Vec<Step> {
    let Step::Call(who, call) = step else { return Vec::new() };
    let mut simpler: Vec<Call> = Vec::new();
    if let Call::Open { handle, path, access, flags } = call {
        for (_, flag) in OpenFlags::WORDS {
            let mut fewer = *flags;
            if std::mem::take(flag(&mut fewer)) {
                simpler.push(Call::Open { handle: *handle, path: path.clone(), access: *access, flags: fewer });
            }
        }
    }
    simpler.extend(smaller_numbers(call));
    let calls = simpler.into_iter().map(|call| Step::Call(*who, call));
    let same_mount = workers.iter().filter(|other| other.mount == who.mount && other.number < who.number);
    calls.chain(same_mount.map(|other| Step::Call(*other, call.clone()))).collect()
}

fn smaller_numbers(call: &Call) -> Vec<Call> {
    let smaller = |number: u64| [0, 1, 100, 4096].into_iter().filter(move |smaller| *smaller < number);
    match call {
        Call::WriteAt { handle, offset, bytes, value } => {
            let shorter = smaller(*bytes).filter(|bytes| *bytes > 0);
            let shorter = shorter.map(|bytes| Call::WriteAt { handle: *handle, offset: *offset, bytes, value: *value });
            let nearer =
                smaller(*offset).map(|offset| Call::WriteAt { handle: *handle, offset, bytes: *bytes, value: *value });
            shorter.chain(nearer).collect()
        }
        Call::ReadAt { handle, offset, bytes } => {
            let shorter = smaller(*bytes).filter(|bytes| *bytes > 0);
            let shorter = shorter.map(|bytes| Call::ReadAt { handle: *handle, offset: *offset, bytes });
            shorter
                .chain(smaller(*offset).map(|offset| Call::ReadAt { handle: *handle, offset, bytes: *bytes }))
                .collect()
        }
        Call::TruncateHandle { handle, size } => {
            smaller(*size).map(|size| Call::TruncateHandle { handle: *handle, size }).collect()
        }
        Call::Truncate { path, size } => {
            smaller(*size).map(|size| Call::Truncate { path: path.clone(), size }).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;
    use crate::violation::{Rule, Wrong};
    use std::time::Duration;

    /// A violation after so many steps: what the call of this line returned.
    fn shows(steps: usize, call: &str, outcome: &Outcome) -> Violation {
        let call: Call = call.parse().expect(call);
        Violation { steps, wrong: Wrong::of(Rule::Names, &call, outcome, String::new()) }
    }

    fn until() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_long_script_shrinks_to_what_makes_it_fail() {
        let text =
            "a0 open h0 f rdwr creat sync\nloop 20\nb0 stat {}\na1 stat g\nend\nb0 pwrite h0 5000 4096 7\nb1 stat f";
        let script: Script = text.parse().expect("a script");
        // It fails at a write of worker b0, if something of a0 with O_CREAT came before.
        let shown = |steps| shows(steps, "pwrite h0 0 1 7", &Outcome::Count(1));
        let run = |script: &Script| {
            let lines: Vec<String> = script.steps.iter().map(ToString::to_string).collect();
            let made = lines.iter().position(|line| line.starts_with("a0") && line.contains("creat"));
            let written = lines.iter().position(|line| line.starts_with("b0 pwrite"));
            Ok(made.and_then(|made| written.filter(|written| made < *written)).map(|written| shown(written + 1)))
        };
        let shortest = minimize(&script, shown(0).wrong.kind, (1, until()), run).expect("not stopped");
        assert_eq!(shortest.to_string(), "a0 open h0 f rdwr creat\nb0 pwrite h0 0 1 7\n");
    }

    #[test]
    fn a_script_is_not_shortened_to_what_shows_another_violation() {
        let script: Script = "a0 stat f\na0 stat g\nb0 unlink f\nb0 rename g f\nb0 stat f".parse().expect("a script");
        let [found, missing] = [Outcome::Done, Outcome::Failed(2)].map(|outcome| shows(5, "stat f", &outcome));
        let other_call = shows(1, "unlink f", &Outcome::Failed(2));
        let kinds = [&found, &missing, &other_call].map(|shown| shown.wrong.kind);
        assert!(kinds[0] != kinds[1] && kinds[1] != kinds[2], "another outcome, another call");
        // With the rename and the last look, the violation that was found, every second time; with less, another one.
        let mut runs = 0;
        let run = |script: &Script| {
            runs += 1;
            let lines: Vec<String> = script.steps.iter().map(ToString::to_string).collect();
            let has = |line: &str| lines.iter().any(|has| has == line);
            let shows_it = has("b0 rename g f") && has("b0 stat f") && runs % 2 == 0;
            let shown = if shows_it {
                &missing
            } else if has("b0 unlink f") {
                &other_call
            } else {
                &found
            };
            Ok(Some(Violation { steps: lines.len(), ..shown.clone() }))
        };
        let shortest = minimize(&script, missing.wrong.kind, (2, until()), run).expect("not stopped");
        assert_eq!(shortest.to_string(), "b0 rename g f\nb0 stat f\n");
    }
}
