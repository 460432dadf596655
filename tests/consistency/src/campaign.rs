//! A campaign: random scripts in one mode after another, until time is up or a violation is found.

use crate::call::{NATIVE, WorkerId};
use crate::concurrent;
use crate::generate::{Choice, Generator};
use crate::ground::Ground;
use crate::minimize::minimize;
use crate::mode::{LOCAL, Mode};
use crate::script::{Script, Step};
use crate::sequential::{self, Report, Run};
use crate::stop::{Stop, is_interrupted};
use crate::violation::{Violation, Wrong};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a shortened script may hold before it counts as holding: one call after another, and overlapping.
const ATTEMPTS: (u64, u64) = (3, 8);
/// Between lines that tell how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

/// Whether calls of different workers overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Schedule {
    /// One call after another
    Sequential,
    /// Calls overlap
    Concurrent,
    /// One script of each in turn
    Both,
}

/// What a campaign runs.
#[derive(Clone, Debug)]
pub struct Plan {
    pub weft: PathBuf,
    pub modes: Vec<Mode>,
    pub seed: u64,
    /// For each mode.
    pub time: Duration,
    /// For each mode; `None`: as many as there is time for.
    pub scripts: Option<u64>,
    pub schedule: Schedule,
    /// Mounts and nodes are paused, and mounts killed, beside concurrent calls.
    pub faults: bool,
    /// Calls of a script.
    pub calls: usize,
    pub mounts: u8,
    pub workers_per_mount: u8,
    pub natives: u8,
    pub without: Vec<String>,
    pub locks: bool,
    /// For shortening a script that fails.
    pub minimize: Duration,
    /// Where scripts that fail are kept.
    pub keep: Option<PathBuf>,
    /// Go on with the next mode after a violation.
    pub go_on: bool,
}

/// What was done in one mode.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    pub mode: String,
    pub scripts: u64,
    pub operations: u64,
    pub pauses: u64,
    pub kills: u64,
    pub violations: u64,
}

impl Plan {
    /// The letters of the mounts.
    fn letters(&self) -> Vec<char> {
        ('a'..NATIVE).take(usize::from(self.mounts)).collect()
    }

    fn workers(&self, mode: &Mode) -> Vec<WorkerId> {
        let natives = if mode.weft.is_some() { self.natives } else { 0 };
        let of_mounts = self.letters().into_iter().map(|mount| (mount, self.workers_per_mount));
        let all = of_mounts.chain([(NATIVE, natives)]);
        all.flat_map(|(mount, count)| (0..count).map(move |number| WorkerId { mount, number })).collect()
    }
}

/// Runs all modes of a plan and prints violations. Counts what was done in each mode, also if it is stopped.
pub fn run(plan: &Plan, tallies: &mut Vec<Tally>) -> Result<(), Stop> {
    for mode in &plan.modes {
        let mut tally = Tally { mode: mode.name.clone(), ..Tally::default() };
        let result = run_mode(plan, mode, &mut tally);
        let failed = tally.violations > 0;
        tallies.push(tally);
        result?;
        if failed && !plan.go_on {
            break;
        }
    }
    Ok(())
}

fn run_mode(plan: &Plan, mode: &Mode, tally: &mut Tally) -> Result<(), Stop> {
    let choice = Choice::without(&plan.without, plan.locks, plan.workers(mode)).map_err(Stop::CannotRun)?;
    let mut ground = Ground::start(&plan.weft, mode, &plan.letters())?;
    ground.allowances.any_mtime |= !choice.has("times");
    let (begun, mut told) = (Instant::now(), Instant::now());
    let has_more = |tally: &Tally| match plan.scripts {
        Some(scripts) => tally.scripts < scripts,
        None => begun.elapsed() < plan.time,
    };
    while has_more(tally) && !is_interrupted() {
        let seed = plan.seed.wrapping_add(tally.scripts);
        let is_concurrent = match plan.schedule {
            // Its inode numbers are used again.
            _ if mode.name == LOCAL => false,
            Schedule::Sequential => false,
            Schedule::Concurrent => true,
            Schedule::Both => seed % 2 == 1,
        };
        let (script, report) = if is_concurrent {
            let script = concurrent::script(seed, mode, &choice, plan.calls, plan.faults);
            let (report, faults) = concurrent::run(&mut ground, &script)?;
            tally.pauses += faults.pauses;
            tally.kills += faults.kills;
            (script, report)
        } else {
            run_seed(&mut ground, &choice, seed, plan.calls)?
        };
        tally.scripts += 1;
        tally.operations += report.calls;
        if let Some(violation) = &report.violation {
            tally.violations += 1;
            tell(plan, &mut ground, seed, &script, &report, violation)?;
            break;
        }
        if told.elapsed() > PROGRESS {
            told = Instant::now();
            let seconds = begun.elapsed().as_secs();
            let Tally { scripts, operations, pauses, kills, .. } = &*tally;
            println!(
                "{}: {seconds} s, {scripts} scripts, {operations} operations, {pauses} pauses, {kills} kills",
                mode.name
            );
        }
    }
    if is_interrupted() { Err(Stop::Interrupted) } else { Ok(()) }
}

/// Runs the random script of a seed.
fn run_seed(ground: &mut Ground, choice: &Choice, seed: u64, calls: usize) -> Result<(Script, Report), Stop> {
    let mut generator = Generator::new(choice, seed);
    let mut steps: Vec<Step> = Vec::new();
    let mut run = Run::begin(ground, &choice.workers)?;
    let mut violation = None;
    let mut is_hung = false;
    while steps.len() < calls && violation.is_none() {
        let step = generator.step(&run.model);
        steps.push(step.clone());
        let wrong = match run.step(&step) {
            Ok(wrong) => wrong,
            Err(Stop::Violated(text)) => {
                is_hung = true;
                Some(Wrong::hang(text))
            }
            Err(stop) => return Err(stop),
        };
        violation = wrong.map(|wrong| Violation { steps: steps.len(), wrong });
    }
    if violation.is_none() {
        violation = run.end()?.map(|wrong| Violation { steps: steps.len(), wrong });
    }
    let report = Report { calls: run.calls, violation, trace: run.trace };
    if is_hung {
        ground.restart_after_hang()?;
    }
    Ok((Script::sequential(steps), report))
}

/// Prints a violation with the shortest script that shows it.
fn tell(
    plan: &Plan,
    ground: &mut Ground,
    seed: u64,
    script: &Script,
    report: &Report,
    violation: &Violation,
) -> Result<(), Stop> {
    let mode = ground.mode.name.clone();
    println!("\nVIOLATION in mode {mode}, seed {seed}, step {}: {}", violation.steps, violation.wrong.text);
    println!("shortening the script of {} steps ...", violation.steps);
    let deadline = Instant::now() + plan.minimize;
    let (mut last, mut runs) = (report.clone(), 0);
    let attempts = if script.is_concurrent { ATTEMPTS.1 } else { ATTEMPTS.0 };
    let minimized = minimize(script, violation.wrong.kind, (attempts, deadline), |candidate| {
        runs += 1;
        let report = run_once(ground, candidate)?;
        let shown = report.violation.clone();
        if shown.as_ref().is_some_and(|shown| shown.wrong.kind == violation.wrong.kind) {
            last = report;
        }
        Ok(shown)
    });
    // Whoever interrupts the search for the shortest script is still shown the violation.
    let shortest = minimized.as_ref().unwrap_or(script);
    let text = last.violation.as_ref().map(|violation| violation.wrong.text.clone()).unwrap_or_default();
    println!("shortest script after {runs} runs ({} steps), which shows: {text}", shortest.steps.len());
    for line in &last.trace {
        println!("    {line}");
    }
    if let Some(directory) = &plan.keep {
        let path = directory.join(format!("{mode}-{seed}.txt"));
        keep(&path, shortest, &text, &mode, seed)?;
        println!("kept in {}; again with: weft-consistency replay {0} --mode {mode}", path.display());
    }
    minimized.map(|_| ())
}

fn run_once(ground: &mut Ground, script: &Script) -> Result<Report, Stop> {
    if script.is_concurrent {
        concurrent::run(ground, script).map(|(report, _)| report)
    } else {
        sequential::run(ground, script)
    }
}

fn keep(path: &Path, script: &Script, text: &str, mode: &str, seed: u64) -> Result<(), Stop> {
    let text = format!("# {text}\n# Mode {mode}, seed {seed}.\n{script}");
    fs::write(path, text).map_err(|error| Stop::CannotRun(format!("{}: {error}", path.display())))
}

/// Replays a script up to `repeat` times (or `times`), and returns the first run that fails, or the last one.
pub fn replay(ground: &mut Ground, script: &Script, times: Option<u64>) -> Result<(u64, Report), Stop> {
    let (mut calls, mut last) = (0, Report::default());
    for _ in 0..times.unwrap_or(script.repeat).max(1) {
        last = run_once(ground, script)?;
        calls += last.calls;
        if last.violation.is_some() {
            break;
        }
    }
    Ok((calls, last))
}

/// The table at the end of a run.
pub fn table(tallies: &[Tally]) -> String {
    let mut text = format!(
        "{:<18} {:>9} {:>11} {:>7} {:>6} {:>11}\n",
        "mode", "scripts", "operations", "pauses", "kills", "violations"
    );
    for tally in tallies {
        let Tally { mode, scripts, operations, pauses, kills, violations } = tally;
        text.push_str(&format!("{mode:<18} {scripts:>9} {operations:>11} {pauses:>7} {kills:>6} {violations:>11}\n"));
    }
    text
}
