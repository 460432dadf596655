//! Whether a file system that has runtime files here runs, is being started, or is what a killed run left.

use crate::failure::Failure;
use crate::processes::Process;
use crate::session::node_name;
use weft_client::Instance;
use weft_client::instance::NodeProcess;
use weft_protocol::NodeId;

/// State of a file system, as far as this machine can tell without asking its nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// `weft up` is at work on it.
    Starting(Process),
    /// It was completely started. `dead`: nodes on this machine that ended since.
    Running { dead: Vec<NodeId> },
    /// `weft up` was killed; these of its nodes still run.
    HalfStarted { alive: Vec<NodeId> },
    /// Nothing of it runs on this machine.
    LeftOver,
}

/// Finds out the state.
pub fn state_of(instance: &Instance) -> State {
    let up = Process::read(&instance.directory.join("up.pid")).filter(Process::is_alive);
    let with_life = |wanted: bool| {
        let nodes = instance.processes.iter().filter(|process| NodeProcess::is_alive(process) == wanted);
        nodes.map(|process| process.node).collect::<Vec<_>>()
    };
    match (up, with_life(true), instance.map.nodes.is_empty()) {
        (Some(up), ..) => State::Starting(up),
        (None, alive, _) if alive.is_empty() => State::LeftOver,
        (None, alive, true) => State::HalfStarted { alive },
        (None, _, false) => State::Running { dead: with_life(false) },
    }
}

/// Why a file system of this name cannot be started now.
pub fn refuse_start(name: &str, state: &State) -> Failure {
    match state {
        State::Starting(up) => Failure::new(format!("\"{name}\" is being started by process {}", up.pid))
            .remedy("wait for it, or choose another name"),
        State::Running { .. } => Failure::new(format!("\"{name}\" is running already"))
            .remedy(format!("`weft status {name}` shows it, `weft down {name}` ends it; or choose another name")),
        State::HalfStarted { .. } | State::LeftOver => {
            Failure::new(format!("\"{name}\" has leftovers of a run that was killed: {}", describe(state)))
                .remedy(format!("`weft down --force {name}` removes them"))
        }
    }
}

/// The state in a few words.
pub fn describe(state: &State) -> String {
    let list = |nodes: &[NodeId]| nodes.iter().map(|node| node_name(*node)).collect::<Vec<_>>().join(", ");
    match state {
        State::Starting(up) => format!("being started by process {}", up.pid),
        State::Running { dead } if dead.is_empty() => "running".to_owned(),
        State::Running { dead } => format!("running without {}", list(dead)),
        State::HalfStarted { alive } => format!("not completely started; {} still run", list(alive)),
        State::LeftOver => "runtime files and no process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verb::node::record_of;
    use std::path::PathBuf;
    use weft_protocol::ClusterMap;

    fn process(node: u16, alive: bool) -> NodeProcess {
        let own = Process::current().expect("running");
        let start_time = if alive { own.start_time } else { own.start_time + 1 };
        let (store, store_made) = (PathBuf::new(), None);
        NodeProcess { node: NodeId(node), ssh_host: None, pid: own.pid, start_time, store, store_made }
    }

    fn instance(recorded: bool, alive: &[bool]) -> Instance {
        let nodes = if recorded { (0..).zip(alive).map(|(id, _)| record_of(id)).collect() } else { Vec::new() };
        let map = ClusterMap { name: "w".into(), nodes, ..ClusterMap::default() };
        let processes = (0..).zip(alive).map(|(node, alive)| process(node, *alive)).collect();
        Instance { map, processes, directory: "/nonexistent".into(), user_key: None, over: None }
    }

    #[test]
    fn a_state_follows_from_record_and_processes() {
        assert_eq!(state_of(&instance(true, &[true, true])), State::Running { dead: vec![] });
        assert_eq!(state_of(&instance(true, &[true, false])), State::Running { dead: vec![NodeId(1)] });
        assert_eq!(state_of(&instance(true, &[false, false])), State::LeftOver);
        assert_eq!(state_of(&instance(false, &[false, true])), State::HalfStarted { alive: vec![NodeId(1)] });
        assert_eq!(state_of(&instance(false, &[])), State::LeftOver);
    }

    #[test]
    fn each_refusal_has_a_remedy_with_the_name() {
        let up = Process { pid: 1, start_time: 1 };
        for state in [
            State::Starting(up),
            State::Running { dead: vec![] },
            State::HalfStarted { alive: vec![NodeId(3)] },
            State::LeftOver,
        ] {
            let failure = refuse_start("job", &state);
            assert!(failure.text().contains("\"job\"") && failure.remedy_text().is_some(), "{failure}");
        }
        assert!(describe(&State::HalfStarted { alive: vec![NodeId(3)] }).contains("n03"));
    }
}
