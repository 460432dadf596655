//! Several processes that do each phase of a benchmark at the same time.
//!
//! The program starts itself, once per worker, with `--worker INDEX` added to what was typed. For each phase a worker
//! prints `ready`, waits for a line, works, and prints a line of JSON with begin and end. A phase's time is from the
//! first begin to the last end.

use crate::{Explain, Outcome, clock};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What one worker did in a phase.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Share {
    /// Of [`clock::now`], as is `end`.
    pub begin: f64,
    pub end: f64,
    /// Bytes or operations.
    pub work: u64,
    pub cpu: f64,
}

/// What all did in a phase.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Measured {
    pub work: u64,
    pub seconds: f64,
    pub per_second: f64,
    pub cpu_seconds: f64,
}

impl Measured {
    /// The sum over the workers.
    pub fn of(shares: &[Share]) -> Self {
        let begin = shares.iter().map(|share| share.begin).fold(f64::INFINITY, f64::min);
        let end = shares.iter().map(|share| share.end).fold(f64::NEG_INFINITY, f64::max);
        let work = shares.iter().map(|share| share.work).sum();
        let seconds = (end - begin).max(1e-9);
        let cpu_seconds = shares.iter().map(|share| share.cpu).sum();
        Self { work, seconds, per_second: work as f64 / seconds, cpu_seconds }
    }
}

/// The starting process's side: runs the phases one after another. Workers that fail have said why.
pub fn lead(processes: usize, phases: usize) -> Outcome<Vec<Measured>> {
    let mut workers = (0..processes).map(Worker::start).collect::<Outcome<Vec<_>>>()?;
    let mut measured = Vec::new();
    for _ in 0..phases {
        for worker in &mut workers {
            if worker.hear()?.trim() != "ready" {
                return Err("a worker spoke out of turn".into());
            }
        }
        for worker in &mut workers {
            worker.input.write_all(b"go\n").explain("tell a worker to go")?;
        }
        let shares = workers.iter_mut().map(|worker| serde_json::from_str(&worker.hear()?).explain("worker"));
        measured.push(Measured::of(&shares.collect::<Outcome<Vec<Share>>>()?));
    }
    for mut worker in workers {
        if !worker.child.wait().explain("wait for a worker")?.success() {
            return Err("a worker failed at the end".into());
        }
    }
    Ok(measured)
}

struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(index: usize) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe().explain("find this program")?);
        command.args(std::env::args_os().skip(1)).args(["--worker", &index.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().explain("start a worker")?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(Self { child, input, output: BufReader::new(output) }),
            _ => Err("a worker without pipes".into()),
        }
    }

    fn hear(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line).explain("hear a worker")? {
            0 => Err("a worker has failed".into()),
            _ => Ok(line),
        }
    }
}

/// A worker's side: one phase, measured without its preparation. A starting process that is gone ends it.
pub fn phase(work: impl FnOnce() -> Outcome<u64>) -> Outcome {
    println!("ready");
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).explain("hear the starting process")? == 0 {
        return Err("the starting process is gone".into());
    }
    let (begin, cpu) = (clock::now(), clock::cpu());
    let work = work()?;
    let share = Share { begin, end: clock::now(), work, cpu: clock::cpu() - cpu };
    println!("{}", serde_json::to_string(&share).explain("answer")?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_lasts_from_the_first_begin_to_the_last_end() {
        let share = |begin, end| Share { begin, end, work: 10, cpu: 0.5 };
        let measured = Measured::of(&[share(1.0, 2.0), share(1.5, 5.0)]);
        assert_eq!(measured, Measured { work: 20, seconds: 4.0, per_second: 5.0, cpu_seconds: 1.0 });
    }
}
