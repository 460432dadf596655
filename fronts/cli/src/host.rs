//! What is done on the machines of a file system: starting nodes, stopping them, clearing up.
//!
//! `weft up` and `weft down` write an [`Order`] per machine. This machine carries it out in the same process; another
//! one by `ssh HOST weft host`, or Slurm's srun, order and reply as a line of JSON (`remote.rs`). So there is one way
//! to start and stop nodes, near and far.

pub mod failed_logs;
mod remote;
pub mod start;
pub mod stop;
pub mod stores;

use crate::copy;
use crate::failure::{Explain, Failure, Outcome};
use crate::unmount;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
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
    /// Copy files. Reply: `Copied`.
    Copy(Box<copy::Batch>),
}

/// What a machine answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Started(start::Started),
    Stopped(stop::Stopped),
    Copied(copy::Report),
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
            Machine::Ssh(host) => perform_remotely(host, order).map_err(|failure| failure.within(host)),
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
        Order::Copy(batch) => batch.perform().map(Reply::Copied),
    }
}

fn perform_remotely(host: &str, order: &Order) -> Outcome<Reply> {
    let text = serde_json::to_vec(order).map_err(|error| Failure::new(format!("order as JSON: {error}")))?;
    let stays = matches!(order, Order::Start(_));
    let said = remote::ask(host, &text, stays, |line| serde_json::from_str(line).ok())?;
    match said.reply {
        Ok(Reply::Failed { text, remedy }) => {
            let failure = Failure::new(text);
            Err(remedy.into_iter().fold(failure, Failure::remedy))
        }
        Ok(reply) => Ok(reply),
        Err(why) => Err(Failure::unreachable(format!("{}: {why}", said.command))
            .remedy(format!("`{}` must work without a question", said.trial))),
    }
}
