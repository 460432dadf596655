//! Runs scripts in which calls of different workers overlap, with faults beside them.
//!
//! What happened is recorded first and judged afterwards, by three checks that know of begins and ends:
//! [`bytes`] for contents and sizes, [`names`] for what names stand for, [`listings`].

mod bytes;
mod generate;
mod history;
mod listings;
mod names;

pub use generate::script;
pub use history::{Fault, History};

use crate::call::{Call, WorkerId};
use crate::ground::{Ground, Worker};
use crate::outcome::Reply;
use crate::script::{Script, Step};
use crate::sequential::Report;
use crate::stop::{Stop, is_interrupted};
use crate::violation::{Rule, Violation, Wrong};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

/// How long a call may take: a mount is paused for some terms, and others wait for its leases.
const CALL_PATIENCE: Duration = Duration::from_secs(120);
/// A pause of this length may end the session of the mount: the term of a lease is 10 s.
const SESSION_ENDS: Duration = Duration::from_secs(8);
const POLL: Duration = Duration::from_millis(50);

type Done = (WorkerId, Call, Reply);

/// Faults that were made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    pub pauses: u64,
    pub kills: u64,
}

/// Runs a concurrent script once.
pub fn run(ground: &mut Ground, script: &Script) -> Result<(Report, Faults), Stop> {
    let workers = script.workers();
    ground.begin(&workers)?;
    let (mut done, mut faults, mut counts) = (Vec::new(), Vec::new(), Faults::default());
    let mut hung = None;
    for steps in script.steps.split(|step| *step == Step::Barrier) {
        match overlap(ground, steps, &mut done, &mut faults, &mut counts) {
            Ok(()) => {}
            Err(Stop::Violated(text)) => {
                hung = Some(text);
                break;
            }
            Err(stop) => return Err(stop),
        }
    }
    let history = History::new(done, faults);
    let is_hung = hung.is_some();
    let wrong = hung.map(Wrong::hang).or_else(|| judge(&history).err());
    if is_hung {
        ground.restart_after_hang()?;
    }
    let trace = if wrong.is_some() { history.describe() } else { Vec::new() };
    let violation = wrong.map(|wrong| Violation { steps: script.steps.len(), wrong });
    Ok((Report { calls: history.records.len() as u64, violation, trace }, counts))
}

/// Holds a history against POSIX.
fn judge(history: &History) -> Result<(), Wrong> {
    unexplained_failures(history)?;
    bytes::check(history)?;
    listings::check(history)?;
    if !names::check(history)? {
        println!("names of a run of {} calls were not decided: too many orders", history.records.len());
    }
    Ok(())
}

/// Calls fail for a reason that their arguments give, or because of a fault. Which of the errors of a path is right is
/// for [`names`] to say.
fn unexplained_failures(history: &History) -> Result<(), Wrong> {
    const OF_PATHS: [Errno; 6] = [Errno::NOENT, Errno::EXIST, Errno::ISDIR, Errno::NOTDIR, Errno::XDEV, Errno::NOSPC];
    for record in &history.records {
        let Some(errno) = record.outcome.errno() else { continue };
        let expected: &[Errno] = match &record.call {
            Call::ReadAt { .. } => &[Errno::BADF],
            Call::WriteAt { .. } => &[Errno::BADF, Errno::NOSPC],
            Call::TruncateHandle { .. } => &[Errno::BADF, Errno::INVAL, Errno::NOSPC],
            Call::Close { .. } | Call::Sync { .. } => &[Errno::NOSPC],
            // Without mappings; of a file that is shorter by now.
            Call::MapRead { .. } => &[Errno::NODEV, Errno::FAULT],
            call if call.uses().is_none() => &OF_PATHS,
            _ => &[],
        };
        if !expected.contains(&errno) && !record.is_lost {
            return Err(record.wrong(Rule::Failures, &format!("got {}", record.outcome)));
        }
    }
    Ok(())
}

/// Runs steps at the same time: those of each worker in their order, the faults in theirs.
fn overlap(
    ground: &mut Ground,
    steps: &[Step],
    done: &mut Vec<Done>,
    faults: &mut Vec<Fault>,
    counts: &mut Faults,
) -> Result<(), Stop> {
    let mut calls: BTreeMap<WorkerId, Vec<Call>> = BTreeMap::new();
    let mut others = Vec::new();
    for step in steps {
        match step {
            Step::Call(who, call) => calls.entry(*who).or_default().push(call.clone()),
            other => others.push(other.clone()),
        }
    }
    let mut workers = ground.take_workers(calls.keys().copied());
    // Closed while a mount is not there: calls would reach the directory below it.
    let gates: BTreeMap<char, RwLock<()>> = calls.keys().map(|who| (who.mount, RwLock::new(()))).collect();
    let results = thread::scope(|scope| {
        let running: Vec<_> = workers
            .iter_mut()
            .map(|(who, worker)| {
                let (gate, calls) = (&gates[&who.mount], &calls[who]);
                scope.spawn(move || make_calls(*who, worker, calls, gate))
            })
            .collect();
        let faulted = make_faults(ground, &others, &gates, faults, counts);
        let mut results = vec![faulted];
        for thread in running {
            match thread.join() {
                Ok((made, result)) => {
                    done.extend(made);
                    results.push(result);
                }
                Err(_) => results.push(Err(Stop::CannotRun("a thread of the checker failed".to_owned()))),
            }
        }
        results
    });
    ground.give_back_workers(workers);
    // A call that hangs says more than what failed because of it.
    let hangs = results.iter().find(|result| matches!(result, Err(Stop::Violated(_)))).cloned();
    hangs.unwrap_or_else(|| results.into_iter().collect())
}

fn make_calls(who: WorkerId, worker: &mut Worker, calls: &[Call], gate: &RwLock<()>) -> (Vec<Done>, Result<(), Stop>) {
    let mut done = Vec::with_capacity(calls.len());
    for call in calls {
        let _open = gate.read().unwrap_or_else(PoisonError::into_inner);
        match worker.call(call, CALL_PATIENCE) {
            Ok(reply) => done.push((who, call.clone(), reply)),
            Err(stop) => return (done, Err(stop)),
        }
    }
    (done, Ok(()))
}

/// Makes faults one after another.
fn make_faults(
    ground: &mut Ground,
    steps: &[Step],
    gates: &BTreeMap<char, RwLock<()>>,
    faults: &mut Vec<Fault>,
    counts: &mut Faults,
) -> Result<(), Stop> {
    let file_system = &mut ground.file_system;
    for step in steps {
        match step {
            Step::Wait { milliseconds } => pause(*milliseconds)?,
            Step::Stop { mount, milliseconds } => {
                let begun = now();
                file_system.signal_mount(*mount, Signal::STOP);
                let paused = pause(*milliseconds);
                file_system.signal_mount(*mount, Signal::CONT);
                paused?;
                counts.pauses += 1;
                if Duration::from_millis(*milliseconds) >= SESSION_ENDS {
                    faults.push(Fault { mount: *mount, begun, ended: now(), is_kill: false });
                }
            }
            Step::StopNode { node, milliseconds } => {
                file_system.signal_node(*node, Signal::STOP);
                let paused = pause(*milliseconds);
                file_system.signal_node(*node, Signal::CONT);
                paused?;
                counts.pauses += 1;
            }
            Step::Kill { mount } => {
                let begun = now();
                file_system.signal_mount(*mount, Signal::KILL);
                let _closed = gates.get(mount).map(|gate| gate.write().unwrap_or_else(PoisonError::into_inner));
                file_system.mount_again(*mount)?;
                counts.kills += 1;
                faults.push(Fault { mount: *mount, begun, ended: now(), is_kill: true });
            }
            Step::Call(..) | Step::Barrier => {}
        }
    }
    Ok(())
}

/// Lets the workers work for a while.
fn pause(milliseconds: u64) -> Result<(), Stop> {
    let end = Instant::now() + Duration::from_millis(milliseconds);
    while Instant::now() < end {
        if is_interrupted() {
            return Err(Stop::Interrupted);
        }
        thread::sleep(POLL.min(end.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec * 1_000_000_000 + time.tv_nsec).cast_unsigned()
}
