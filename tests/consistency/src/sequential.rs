//! Runs scripts one call after another over all workers: the model has one answer for each.

use crate::call::{Access, Call, OpenFlags, WorkerId};
use crate::ground::Ground;
use crate::model::Model;
use crate::outcome::{Outcome, Reply};
use crate::script::{Script, Step};
use crate::stop::{Stop, is_interrupted};
use crate::violation::{Kind, Rule, Violation, Wrong};
use std::thread;
use std::time::Duration;

/// The handle of reads that are no part of a script.
const OWN_HANDLE: u8 = 255;
/// Bytes of each of those reads.
const READ_BYTES: u64 = 1 << 20;

/// A run in progress.
pub struct Run<'g> {
    ground: &'g mut Ground,
    pub model: Model,
    workers: Vec<WorkerId>,
    /// Calls made.
    pub calls: u64,
    /// Each step that was made with what it returned.
    pub trace: Vec<String>,
}

impl<'g> Run<'g> {
    /// Begins a run in an empty directory.
    pub fn begin(ground: &'g mut Ground, workers: &[WorkerId]) -> Result<Self, Stop> {
        ground.begin(workers)?;
        let model = Model::new(ground.allowances);
        Ok(Self { ground, model, workers: workers.to_vec(), calls: 0, trace: Vec::new() })
    }

    /// Ends the run: what its files have used must be free.
    pub fn end(&mut self) -> Result<Option<Wrong>, Stop> {
        self.ground.end()
    }

    /// Makes one step, unless it is undefined in the present state. `Ok(Some(_))`: what it returned is wrong.
    pub fn step(&mut self, step: &Step) -> Result<Option<Wrong>, Stop> {
        if is_interrupted() {
            return Err(Stop::Interrupted);
        }
        match step {
            Step::Wait { milliseconds } => {
                // No event to wait for: scripts with waits are about caches that time out.
                thread::sleep(Duration::from_millis(*milliseconds));
                self.trace.push(step.to_string());
                Ok(None)
            }
            Step::Barrier => Ok(None),
            Step::Stop { .. } | Step::StopNode { .. } | Step::Kill { .. } => {
                Err(Stop::CannotRun(format!("`{step}` needs the concurrent schedule")))
            }
            Step::Call(who, call) if self.model.is_defined(*who, call) => self.call(*who, call),
            Step::Call(..) => Ok(None),
        }
    }

    fn call(&mut self, who: WorkerId, call: &Call) -> Result<Option<Wrong>, Stop> {
        self.trace.push(format!("{who} {call}"));
        let reply = match self.ground.call(who, call) {
            Err(Stop::Violated(text)) => {
                self.note(&text);
                return Err(Stop::Violated(text));
            }
            other => other?,
        };
        self.calls += 1;
        self.note(&reply.outcome.to_string());
        if let Err(text) = self.model.check(who, call, &reply) {
            return Ok(Some(Wrong::of(Rule::Sequence, call, &reply.outcome, format!("{who} {call}: {text}"))));
        }
        for path in self.model.doubtful() {
            if let Err(text) = self.agree(&path)? {
                let text = format!("after {who} {call}: {text}");
                return Ok(Some(Wrong { kind: Kind::Disagreement, text }));
            }
        }
        Ok(None)
    }

    fn note(&mut self, text: &str) {
        if let Some(line) = self.trace.last_mut() {
            line.push_str(&format!("    # {text}"));
        }
    }

    /// After a write that failed, all workers must see the same size and content of the file, and the size must be that
    /// of what can be read.
    fn agree(&mut self, path: &str) -> Result<Result<(), String>, Stop> {
        let mut first: Option<(WorkerId, Vec<u8>)> = None;
        for who in self.workers.clone() {
            let (size, content) = match self.read_whole(who, path)? {
                Ok(seen) => seen,
                Err(error) => return Ok(Err(format!("{who} cannot read {path}: {error}"))),
            };
            if size != content.len() as u64 {
                return Ok(Err(format!("{who} sees {path} with size {size}, but reads {} bytes", content.len())));
            }
            match &first {
                None => first = Some((who, content)),
                Some((other, expected)) if *expected != content => {
                    let at = expected.iter().zip(&content).position(|(one, other)| one != other);
                    let at = at.unwrap_or(expected.len().min(content.len()));
                    let (one, two) = (expected.len(), content.len());
                    return Ok(Err(format!(
                        "{path} differs from byte {at} on: {other} reads {one} bytes, {who} {two}"
                    )));
                }
                Some(_) => {}
            }
        }
        if let Some((_, content)) = first {
            self.model.adopt(path, content);
        }
        Ok(Ok(()))
    }

    fn read_whole(&mut self, who: WorkerId, path: &str) -> Result<Result<(u64, Vec<u8>), String>, Stop> {
        let handle = OWN_HANDLE;
        let path = path.to_owned();
        let open = Call::Open { handle, path, access: Access::Read, flags: OpenFlags::default() };
        let opened = self.ground.call(who, &open)?;
        if let Outcome::Failed(_) = opened.outcome {
            return Ok(Err(format!("{open}: {}", opened.outcome)));
        }
        let size = match self.ground.call(who, &Call::StatHandle { handle })? {
            Reply { outcome: Outcome::Attributes(attributes), .. } => attributes.size,
            reply => return Ok(Err(format!("fstat: {}", reply.outcome))),
        };
        let mut content = Vec::new();
        loop {
            let read = Call::ReadAt { handle, offset: content.len() as u64, bytes: READ_BYTES };
            match self.ground.call(who, &read)?.outcome {
                Outcome::Bytes(runs) if runs.is_empty() => break,
                Outcome::Bytes(runs) => content.extend(runs.bytes()),
                outcome => return Ok(Err(format!("{read}: {outcome}"))),
            }
        }
        self.ground.call(who, &Call::Close { handle })?;
        Ok(Ok((size, content)))
    }
}

/// How a run of a script ended.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub calls: u64,
    pub violation: Option<Violation>,
    pub trace: Vec<String>,
}

/// Runs a script once.
pub fn run(ground: &mut Ground, script: &Script) -> Result<Report, Stop> {
    let workers = script.workers();
    let mut run = Run::begin(ground, &workers)?;
    for (index, step) in script.steps.iter().enumerate() {
        let (wrong, is_hung) = match run.step(step) {
            Ok(None) => continue,
            Ok(Some(wrong)) => (wrong, false),
            Err(Stop::Violated(text)) => (Wrong::hang(text), true),
            Err(stop) => return Err(stop),
        };
        let (calls, trace) = (run.calls, std::mem::take(&mut run.trace));
        if is_hung {
            ground.restart_after_hang()?;
        }
        return Ok(Report { calls, violation: Some(Violation { steps: index + 1, wrong }), trace });
    }
    let violation = run.end()?.map(|wrong| Violation { steps: script.steps.len(), wrong });
    Ok(Report { calls: run.calls, violation, trace: run.trace })
}
