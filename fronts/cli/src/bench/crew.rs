//! The workers of a benchmark, as the command that started them sees them.

use super::node_cpu_time;
use super::phase::{Done, Go, Phase, Setup, Word};
use crate::failure::{Explain, Failure, Outcome};
use crate::keys;
use crate::processes;
use serde::Serialize;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use weft_client::Instance;

/// Worker processes; they end with this.
pub struct Crew {
    workers: Vec<Hand>,
    instance: Instance,
}

/// One worker and the pipes to it.
struct Hand {
    child: Child,
    /// `None`: told to end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// What a phase came to.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// From the first "go" to the last answer.
    pub took: Duration,
    /// Sum over the workers.
    pub done: Done,
    /// CPU time of the nodes on this machine.
    pub node_cpu: Duration,
}

impl Crew {
    /// Starts workers.
    pub fn start(instance: &Instance, setups: impl Iterator<Item = Setup>) -> Outcome<Self> {
        let program = processes::own_program()?;
        let mut crew = Self { workers: Vec::new(), instance: instance.clone() };
        for setup in setups {
            let mut child = Command::new(&program)
                .args(keys::words())
                .args(["bench", "worker"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .explain(|| "start a worker")?;
            let (input, output) = (child.stdin.take(), child.stdout.take());
            let output = output.ok_or_else(|| Failure::new("a worker without output"))?;
            let mut hand = Hand { child, input, output: BufReader::new(output) };
            hand.tell(&setup)?;
            crew.workers.push(hand);
        }
        Ok(crew)
    }

    /// Has all workers do a phase at the same time.
    pub fn perform(&mut self, phase: &Phase) -> Outcome<Measured> {
        for worker in &mut self.workers {
            worker.tell(phase)?;
        }
        for worker in &mut self.workers {
            if worker.hear()? != Word::Ready {
                return Err(Failure::new("a worker answered out of turn"));
            }
        }
        let cpu_before = node_cpu_time(&self.instance);
        let begun = Instant::now();
        for worker in &mut self.workers {
            worker.tell(&Go)?;
        }
        let mut measured = Measured::default();
        for worker in &mut self.workers {
            match worker.hear()? {
                Word::Done(done) => measured.done.add(&done),
                Word::Ready | Word::Failed { .. } => return Err(Failure::new("a worker answered out of turn")),
            }
        }
        measured.took = begun.elapsed();
        measured.node_cpu = node_cpu_time(&self.instance).saturating_sub(cpu_before);
        Ok(measured)
    }
}

impl Hand {
    fn tell(&mut self, what: &impl Serialize) -> Outcome<()> {
        let mut line = serde_json::to_vec(what).map_err(|error| Failure::new(format!("to a worker: {error}")))?;
        line.push(b'\n');
        match &mut self.input {
            // A worker that has failed is heard next, and says why.
            Some(input) => input.write_all(&line).or(Ok(())),
            None => Ok(()),
        }
    }

    fn hear(&mut self) -> Outcome<Word> {
        let mut line = String::new();
        self.output.read_line(&mut line).explain(|| "hear a worker")?;
        match serde_json::from_str(&line) {
            Ok(Word::Failed { text, remedy }) => {
                let failure = Failure::new(text);
                Err(remedy.into_iter().fold(failure, Failure::remedy))
            }
            Ok(word) => Ok(word),
            Err(_) => Err(Failure::new("a worker ended without an answer").remedy("see what it said above")),
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // The end of its input tells each to end.
        self.workers.iter_mut().for_each(|worker| drop(worker.input.take()));
        for worker in &mut self.workers {
            let _ = worker.child.wait();
        }
    }
}
