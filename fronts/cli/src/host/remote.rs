//! Running `weft host` on another machine: by ssh, or as a step of a Slurm job where ssh is not allowed.
//!
//! Slurm kills what a step has started when the step's program ends. So a step that starts nodes stays with them
//! (`weft host --stay`), and its `srun` stays here, in the background; both end with the nodes. Later orders are steps
//! of their own.

use crate::failure::{Failure, Outcome};
use rustix::fs::MemfdFlags;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Names another program than ssh.
const PROGRAM: &str = "WEFT_SSH";
/// How long Slurm may take to begin a step, seconds.
const STEP_PATIENCE_S: u32 = 30;

/// How other machines are reached.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Program {
    /// ssh, or what has its options: it is given options, a host and a command.
    Ssh(OsString),
    /// Slurm's srun, known by its name.
    Srun(OsString),
}

/// What a machine said.
pub struct Said<R> {
    /// The reply; or why there is none, in the last words of the program.
    pub reply: Result<R, String>,
    /// What was run, for people.
    pub command: String,
    /// What has to work by hand, for people.
    pub trial: String,
}

impl Program {
    fn of(name: OsString) -> Self {
        if Path::new(&name).file_name() == Some(OsStr::new("srun")) { Self::Srun(name) } else { Self::Ssh(name) }
    }

    fn from_environment() -> Self {
        Self::of(std::env::var_os(PROGRAM).filter(|name| !name.is_empty()).unwrap_or_else(|| "ssh".into()))
    }

    fn name(&self) -> &OsStr {
        match self {
            Self::Ssh(name) | Self::Srun(name) => name,
        }
    }

    /// The command that runs `weft host` there. `stays`: as long as the nodes that it starts.
    fn command(&self, host: &str, stays: bool) -> Command {
        let mut command = Command::new(self.name());
        match self {
            Self::Ssh(_) => {
                command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
                // A host that dies in between does not answer for ever.
                command.args(["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "--", host]);
                command.args(["weft", "host"]);
            }
            Self::Srun(_) => {
                // The job's own steps get all processors and memory all the same: this one overlaps with them.
                command.args(["--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--quiet", "--chdir=/"]);
                command.args([format!("--immediate={STEP_PATIENCE_S}"), format!("--nodelist={host}")]);
                // Interrupts of the terminal are for programs, not for nodes.
                command.args(["weft", "host"]).process_group(0);
                command.args(stays.then_some("--stay"));
            }
        }
        command
    }

    /// What must work without a question.
    fn trial(&self, host: &str) -> String {
        match self {
            Self::Ssh(_) => format!("ssh -o BatchMode=yes {host} weft --version"),
            Self::Srun(_) => format!("srun --overlap --nodelist={host} weft --version"),
        }
    }
}

/// Gives a machine an order and reads its reply, which `parse` knows by a line. `stays`: the order starts nodes.
pub fn ask<R>(host: &str, order: &[u8], stays: bool, parse: impl Fn(&str) -> Option<R>) -> Outcome<Said<R>> {
    let program = Program::from_environment();
    let name = Path::new(program.name()).file_name().unwrap_or(program.name()).to_string_lossy().into_owned();
    let reply = match &program {
        Program::Ssh(_) => ask_by_ssh(program.command(host, stays), order, parse),
        Program::Srun(_) => ask_by_step(program.command(host, stays), order, stays, parse),
    };
    let reply = reply.map_err(|error| {
        Failure::unreachable(format!("{name}: {error}")).remedy(format!("install it, or name another in {PROGRAM}"))
    })?;
    Ok(Said { reply, command: format!("{name} {host} weft host"), trial: program.trial(host) })
}

/// Sends the order. A program that ended early does not read; what it said on standard error tells why.
fn send(child: &mut Child, order: &[u8]) {
    if let Some(mut input) = child.stdin.take() {
        let _ = input.write_all(order);
    }
}

fn ask_by_ssh<R>(
    mut command: Command,
    order: &[u8],
    parse: impl Fn(&str) -> Option<R>,
) -> std::io::Result<Result<R, String>> {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut ssh = piped.spawn()?;
    send(&mut ssh, order);
    let output = ssh.wait_with_output()?;
    // The reply is on the last line: login scripts may have printed before.
    let text = String::from_utf8_lossy(&output.stdout);
    let reply = text.lines().rfind(|line| !line.trim().is_empty()).and_then(parse);
    Ok(reply.ok_or_else(|| last_words(&output.stderr)))
}

fn ask_by_step<R>(
    mut command: Command,
    order: &[u8],
    stays: bool,
    parse: impl Fn(&str) -> Option<R>,
) -> std::io::Result<Result<R, String>> {
    // Not a pipe: srun outlives this process, and would end with it at its next word.
    let mut words = File::from(rustix::fs::memfd_create("srun", MemfdFlags::CLOEXEC)?);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(words.try_clone()?);
    let mut srun = piped.spawn()?;
    send(&mut srun, order);
    let output = BufReader::new(srun.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?);
    let reply = output.lines().map_while(Result::ok).find_map(|line| parse(&line));
    if reply.is_none() || !stays {
        srun.wait()?;
    }
    Ok(reply.ok_or_else(|| {
        let mut said = Vec::new();
        let read = words.rewind().and_then(|()| words.read_to_end(&mut said));
        read.map_or_else(|error| error.to_string(), |_| last_words(&said))
    }))
}

fn last_words(said: &[u8]) -> String {
    String::from_utf8_lossy(said).lines().last().unwrap_or("no reply").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(program: &str, stays: bool) -> String {
        let command = Program::of(program.into()).command("n1", stays);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        words.join(" ")
    }

    #[test]
    fn srun_is_known_by_its_name_and_stays_with_nodes() {
        assert!(words("ssh", true).ends_with(" -- n1 weft host"));
        assert!(words("/opt/my-srun", false).ends_with(" -- n1 weft host"));
        assert!(words("/opt/slurm/bin/srun", false).ends_with(" --nodelist=n1 weft host"));
        assert!(words("srun", true).ends_with(" --nodelist=n1 weft host --stay"));
    }

    #[test]
    fn the_reply_is_found_behind_what_login_scripts_print() {
        let number = |line: &str| line.parse::<u32>().ok();
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let by_ssh = |script| ask_by_ssh(shell(script), b"", number).expect("run");
        let by_step = |script| ask_by_step(shell(script), b"", false, number).expect("run");
        for ask in [&by_ssh as &dyn Fn(&'static str) -> Result<u32, String>, &by_step] {
            assert_eq!(ask("echo Welcome; echo; echo 7; echo"), Ok(7));
            assert_eq!(ask("echo hello; echo 'not found' >&2; exit 127"), Err("not found".into()));
            assert_eq!(ask("exit 1"), Err("no reply".into()));
        }
    }

    #[test]
    fn a_step_that_stays_is_not_waited_for() {
        let mut command = Command::new("sh");
        command.args(["-c", "cat; sleep 0.3; echo late >&2"]);
        let begun = std::time::Instant::now();
        let reply = ask_by_step(command, b"7\n", true, |line| line.parse::<u32>().ok()).expect("run");
        assert!(reply == Ok(7) && begun.elapsed() < std::time::Duration::from_millis(250), "{:?}", begun.elapsed());
    }
}
