//! Scripts: calls with the workers that make them, as text that can be kept in a file.
//!
//! | line | meaning |
//! | --- | --- |
//! | `# text` | a comment, also after a call |
//! | `schedule concurrent` | workers do not wait for each other (default: `sequential`, one call after another) |
//! | `modes M,...` | the modes that it is about; others pass over it (default: any) |
//! | `repeat N` | run up to N times, each in an empty directory, until one fails (default 1) |
//! | `loop N` ... `end` | the lines between N times; `{}` is the round, three digits |
//! | `a0 CALL` | worker 0 on mount a makes a call: see [`crate::call`] |
//! | `wait MILLISECONDS` | a pause: of all workers, or of the faults that follow (concurrent) |
//! | `barrier` | all calls above end before those below begin |
//! | `stop a MILLISECONDS` | the process of mount a is paused (SIGSTOP) and continued (concurrent only) |
//! | `stopnode 0 MILLISECONDS` | the same of a node |
//! | `kill a` | the process of mount a is killed, and the mount is made again (concurrent only) |
//!
//! With the concurrent schedule, faults and waits are made in their order beside the calls of the workers.

use crate::call::{Call, WorkerId};
use std::fmt;
use std::str::FromStr;

/// One line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    Call(WorkerId, Call),
    Wait { milliseconds: u64 },
    Barrier,
    Stop { mount: char, milliseconds: u64 },
    StopNode { node: usize, milliseconds: u64 },
    Kill { mount: char },
}

/// What is run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Script {
    pub is_concurrent: bool,
    pub repeat: u64,
    /// Empty: any.
    pub modes: Vec<String>,
    pub steps: Vec<Step>,
}

impl Script {
    /// A sequential script, run once.
    pub fn sequential(steps: Vec<Step>) -> Self {
        Self { is_concurrent: false, repeat: 1, modes: Vec::new(), steps }
    }

    /// Returns the workers that make calls, in order.
    pub fn workers(&self) -> Vec<WorkerId> {
        let mut workers: Vec<WorkerId> = self.calls().map(|(who, _)| *who).collect();
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// Returns the calls with their workers.
    pub fn calls(&self) -> impl Iterator<Item = (&WorkerId, &Call)> {
        self.steps.iter().filter_map(|step| match step {
            Step::Call(who, call) => Some((who, call)),
            _ => None,
        })
    }

    /// The same script with other steps.
    pub fn with(&self, steps: Vec<Step>) -> Self {
        Self { steps, ..self.clone() }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Call(who, call) => write!(f, "{who} {call}"),
            Step::Wait { milliseconds } => write!(f, "wait {milliseconds}"),
            Step::Barrier => f.write_str("barrier"),
            Step::StopNode { node, milliseconds } => write!(f, "stopnode {node} {milliseconds}"),
            Step::Stop { mount, milliseconds } => write!(f, "stop {mount} {milliseconds}"),
            Step::Kill { mount } => write!(f, "kill {mount}"),
        }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_concurrent {
            writeln!(f, "schedule concurrent")?;
        }
        if !self.modes.is_empty() {
            writeln!(f, "modes {}", self.modes.join(","))?;
        }
        if self.repeat != 1 {
            writeln!(f, "repeat {}", self.repeat)?;
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let number = |word: Option<&str>| word.and_then(|word| word.parse().ok());
        let words: Vec<&str> = line.split_whitespace().collect();
        let mount = || words.get(1).and_then(|word| word.parse().ok());
        match words.first().copied() {
            Some("wait") => match number(words.get(1).copied()) {
                Some(milliseconds) => Ok(Step::Wait { milliseconds }),
                None => Err("wait needs milliseconds".to_owned()),
            },
            Some("barrier") => Ok(Step::Barrier),
            Some("stopnode") => match (number(words.get(1).copied()), number(words.get(2).copied())) {
                (Some(node), Some(milliseconds)) => Ok(Step::StopNode { node: node as usize, milliseconds }),
                _ => Err("stopnode needs a node and milliseconds".to_owned()),
            },
            Some("stop") => match (mount(), number(words.get(2).copied())) {
                (Some(mount), Some(milliseconds)) => Ok(Step::Stop { mount, milliseconds }),
                _ => Err("stop needs a mount and milliseconds".to_owned()),
            },
            Some("kill") => mount().map(|mount| Step::Kill { mount }).ok_or_else(|| "kill needs a mount".to_owned()),
            _ => {
                let (who, call) = line.split_once(' ').ok_or_else(|| format!("'{line}' is no step"))?;
                Ok(Step::Call(who.parse()?, call.parse()?))
            }
        }
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut script = Script::sequential(Vec::new());
        let mut open_loop: Option<(u64, Vec<String>)> = None;
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let explain = |error: String| format!("line {}: {error}", index + 1);
            let number = |word: &str| word.parse::<u64>().map_err(|_| explain(format!("'{word}' is no number")));
            match line.split_once(' ').unwrap_or((line, "")) {
                ("", _) => {}
                ("schedule", "concurrent") => script.is_concurrent = true,
                ("schedule", "sequential") => script.is_concurrent = false,
                ("modes", modes) => script.modes = modes.split(',').map(str::to_owned).collect(),
                ("repeat", count) => script.repeat = number(count)?,
                ("loop", count) => open_loop = Some((number(count)?, Vec::new())),
                ("end", "") => {
                    let (count, lines) = open_loop.take().ok_or_else(|| explain("no loop to end".to_owned()))?;
                    for round in 0..count {
                        for line in &lines {
                            script.steps.push(line.replace("{}", &format!("{round:03}")).parse().map_err(explain)?);
                        }
                    }
                }
                _ => match &mut open_loop {
                    Some((_, lines)) => lines.push(line.to_owned()),
                    None => script.steps.push(line.parse().map_err(explain)?),
                },
            }
        }
        match open_loop {
            None => Ok(script),
            Some(_) => Err("a loop does not end".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_and_printed() {
        let text = "# about\nmodes tcp,limited\nrepeat 3\na0 mkdir d # why\nloop 2\n b1 open h0 s{} rdwr creat\nend\n\
                    barrier\nstopnode 0 5\nwait 5\n";
        let script: Script = text.parse().expect("a script");
        assert_eq!(
            script.to_string(),
            "modes tcp,limited\nrepeat 3\na0 mkdir d\nb1 open h0 s000 rdwr creat\nb1 open h0 s001 rdwr creat\n\
             barrier\nstopnode 0 5\nwait 5\n"
        );
        assert_eq!(script.to_string().parse(), Ok(script.clone()));
        let workers: Vec<String> = script.workers().iter().map(ToString::to_string).collect();
        assert_eq!(workers, ["a0", "b1"]);
        for text in ["loop 2\na0 stat f", "end", "a0 fly", "kill", "a0"] {
            assert!(text.parse::<Script>().is_err(), "{text}");
        }
    }
}
