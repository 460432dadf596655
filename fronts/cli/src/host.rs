//! What is done on the machines of a file system: starting nodes, stopping them, clearing up.
//!
//! `weft up` and `weft down` write an [`Order`] per machine. This machine carries it out in the same process; another
//! one by `ssh HOST weft host`, order and reply as a line of JSON. So there is one way to start and stop nodes, near
//! and far.

pub mod failed_logs;
pub mod start;
pub mod stop;
pub mod stores;

use crate::failure::{Explain, Failure, Outcome};
use crate::unmount;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use weft_client::Instance;

/// What a machine is told to do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Start nodes. Reply: `Started`. When one fails, none is left.
    Start(start::StartOrder),
    /// Write `instance.json`, so that clients on this machine find the file system. Reply: `Done`.
    Install(Box<Instance>),
    /// Unmount the file system's mounts on this machine; `force`: busy ones too. Reply: `Done`.
    Unmount { name: String, force: bool },
    /// End nodes and remove their files. Reply: `Stopped`.
    Stop(stop::StopOrder),
}

/// What a machine answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Started(start::Started),
    Stopped(stop::Stopped),
    Failed { text: String, remedy: Option<String> },
}

/// Where orders are carried out.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Machine {
    Here,
    /// As ssh reaches it.
    Ssh(String),
}

impl From<Option<String>> for Machine {
    fn from(ssh_host: Option<String>) -> Self {
        ssh_host.map_or(Machine::Here, Machine::Ssh)
    }
}

impl Machine {
    /// How ssh reaches it; `None`: without ssh.
    pub fn ssh_host(&self) -> Option<String> {
        match self {
            Machine::Here => None,
            Machine::Ssh(host) => Some(host.clone()),
        }
    }

    /// Has an order carried out there.
    pub fn perform(&self, order: &Order) -> Outcome<Reply> {
        match self {
            Machine::Here => perform_here(order),
            Machine::Ssh(host) => perform_by_ssh(host, order).map_err(|failure| failure.within(host)),
        }
    }
}

/// The machines that run nodes of a file system, and this one.
pub fn machines(instance: &Instance) -> BTreeSet<Machine> {
    let of_nodes = instance.processes.iter().map(|process| process.ssh_host.clone().into());
    of_nodes.chain([Machine::Here]).collect()
}

/// Has orders carried out on several machines at the same time.
pub fn on_all(
    machines: &BTreeSet<Machine>,
    order: impl Fn(&Machine) -> Order + Sync,
) -> Vec<(Machine, Outcome<Reply>)> {
    thread::scope(|scope| {
        let order = &order;
        let perform = |machine: &Machine| machine.perform(&order(machine));
        let running: Vec<_> =
            machines.iter().map(|machine| (machine.clone(), scope.spawn(move || perform(machine)))).collect();
        let crashed = || Err(Failure::new("a thread that gives orders to a machine failed"));
        running.into_iter().map(|(machine, run)| (machine, run.join().unwrap_or_else(|_| crashed()))).collect()
    })
}

/// Carries out an order on this machine.
pub fn perform_here(order: &Order) -> Outcome<Reply> {
    match order {
        Order::Start(order) => start::start(order).map(Reply::Started),
        Order::Install(instance) => {
            let directory = Instance::directory_of(&instance.map.name);
            let instance = Instance { directory, ..Instance::clone(instance) };
            let recorded = Instance::check_runtime_directory().and_then(|_| instance.save());
            recorded.explain(|| "record the file system").map(|()| Reply::Done)
        }
        Order::Unmount { name, force } => unmount::all_of(name, *force).map(|()| Reply::Done),
        Order::Stop(order) => stop::stop(order).map(Reply::Stopped),
    }
}

/// The program that reaches other machines: `ssh`, or what WEFT_SSH names; it is given options, a host and a command.
fn ssh_program() -> OsString {
    std::env::var_os("WEFT_SSH").unwrap_or_else(|| "ssh".into())
}

fn perform_by_ssh(host: &str, order: &Order) -> Outcome<Reply> {
    let order = serde_json::to_vec(order).map_err(|error| Failure::new(format!("order as JSON: {error}")))?;
    let mut ssh = Command::new(ssh_program())
        .args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"])
        // A host that dies in between does not answer for ever.
        .args(["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "--", host, "weft", "host"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::unreachable(format!("ssh: {error}")).remedy("install ssh, or name it in WEFT_SSH"))?;
    if let Some(mut input) = ssh.stdin.take() {
        // An ssh that ended early does not read; what it said on standard error tells why.
        let _ = input.write_all(&order);
    }
    let output = ssh.wait_with_output().explain(|| "ssh")?;
    match last_reply(&output.stdout) {
        Some(Reply::Failed { text, remedy }) => {
            let failure = Failure::new(text);
            Err(remedy.into_iter().fold(failure, Failure::remedy))
        }
        Some(reply) => Ok(reply),
        None => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().last().unwrap_or("no reply").to_owned();
            Err(Failure::unreachable(format!("ssh {host} weft host: {said}"))
                .remedy(format!("`ssh -o BatchMode=yes {host} weft --version` must work without a question")))
        }
    }
}

/// The reply on the last line: login scripts may have printed before.
fn last_reply(output: &[u8]) -> Option<Reply> {
    let output = String::from_utf8_lossy(output);
    serde_json::from_str(output.lines().rfind(|line| !line.trim().is_empty())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reply_is_found_behind_what_login_scripts_print() {
        assert_eq!(last_reply(b"Welcome to n1!\n\n\"Done\"\n\n"), Some(Reply::Done));
        let failed = Reply::Failed { text: "a\nb".into(), remedy: None };
        let text = serde_json::to_string(&failed).expect("JSON");
        assert_eq!(last_reply(text.as_bytes()), Some(failed));
        for none in ["", "bash: weft: command not found\n"] {
            assert_eq!(last_reply(none.as_bytes()), None);
        }
    }
}
