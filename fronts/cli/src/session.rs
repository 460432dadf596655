//! A command's connection to a file system.

use crate::failure::{Explain, Failure, Outcome};
use crate::interrupt;
use crate::keys;
use crate::leftovers::{self, State};
use crate::target::WeftPath;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use weft_client::{Client, ClientOptions, Entry, Instance, KeyFile};
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{Credentials, Error, InodeNumber, Name, NodeId};

/// How long a command waits for nodes that it only asks for their state.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(3);

/// A connected file system. The connection ends with it: leases of a client that just vanished would hold up others
/// until its session's term is over.
pub struct Session {
    pub client: Client,
    /// On whose behalf the command works.
    pub who: Credentials,
    pub instance: Instance,
    /// The connection was ended, and its errors were seen.
    closed: AtomicBool,
}

/// What the environment says of how to connect.
pub fn options() -> Outcome<ClientOptions> {
    ClientOptions::from_environment().map_err(|error| Failure::new(error).remedy("set it so, or unset it"))
}

impl Session {
    /// Connects to the file system of this name; `None`: the only one that runs.
    pub fn open(name: Option<&str>) -> Outcome<Session> {
        Self::open_interruptible(find(name)?)
    }

    /// Connects; an interrupt ends the connection before it ends the command.
    fn open_interruptible(instance: Instance) -> Outcome<Session> {
        let session = Self::open_with(instance, &options()?)?;
        interrupt::end_on_signals(&session.client)?;
        Ok(session)
    }

    /// Connects in a chosen way.
    pub fn open_with(mut instance: Instance, options: &ClientOptions) -> Outcome<Session> {
        require_alive(&instance)?;
        let client = Client::connect(&instance, options).map_err(|error| explain_connect(&instance, &error))?;
        client.require_ucx().map_err(|reason| {
            Failure::new(format!("file data cannot go by UCX: {reason}"))
                .remedy("`weft doctor` on both sides; or let it go by sockets (WEFT_TRANSPORT=auto)")
        })?;
        let who = client.credentials();
        instance.map = (*client.map()).clone();
        Ok(Session { client, who, instance, closed: AtomicBool::new(false) })
    }

    /// The inode of a path.
    pub fn walk(&self, path: &WeftPath, follow_last: bool, verb: &str) -> Outcome<Entry> {
        self.client.walk(&self.who, &path.path, follow_last).explain(|| format!("{verb} {path}"))
    }

    /// The directory that holds a path's last component, and that.
    pub fn parent(&self, path: &WeftPath, verb: &str) -> Outcome<(InodeNumber, Name)> {
        if path.base_name().is_none() {
            return Err(Failure::new(format!("{verb} {path}: has no name of its own")).remedy("name what is in it"));
        }
        self.client.walk_to_parent(&self.who, &path.path).explain(|| format!("{verb} {path}"))
    }

    /// Ends the connection; errors of buffered writes show here. Nothing can be done with it any more.
    pub fn close(&self) -> Outcome<()> {
        self.closed.store(true, Ordering::Relaxed);
        self.client.close().explain(|| format!("close the connection to \"{}\"", self.instance.map.name))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Relaxed) {
            // A command that got here has failed already, and says why.
            let _ = self.client.close();
        }
    }
}

/// Sessions of the file systems that a command's paths name, each connected once.
#[derive(Default)]
pub struct Sessions(BTreeMap<String, Arc<Session>>);

impl Sessions {
    /// The session of a path's file system.
    pub fn of(&mut self, path: &WeftPath) -> Outcome<Arc<Session>> {
        let instance = find(path.file_system.as_deref())?;
        let name = instance.map.name.clone();
        if let Some(session) = self.0.get(&name) {
            return Ok(Arc::clone(session));
        }
        let session = Arc::new(Session::open_interruptible(instance)?);
        self.0.insert(name, Arc::clone(&session));
        Ok(session)
    }

    /// Ends all connections.
    pub fn close(self) -> Outcome<()> {
        self.0.values().try_for_each(|session| session.close())
    }
}

/// Why a file system cannot be connected to.
fn explain_connect(instance: &Instance, error: &Error) -> Failure {
    let name = &instance.map.name;
    let failure = Failure::of_weft(format_args!("connect to \"{name}\""), error).failed();
    match (&instance.user_key, error) {
        (None, _) => failure
            .remedy(format!("`weft status {name}` shows which nodes answer, `weft down --force {name}` clears away")),
        (Some(key), Error::AccessDenied) => Failure::new(format!(
            "connect to \"{name}\": its nodes refuse the key in {} (user {}, uid {})",
            key.path.display(),
            key.user,
            key.credentials.uid
        ))
        .remedy("it was revoked or altered, or its file system has ended: ask the owner for another one"),
        (Some(key), _) => failure
            .within(format_args!("key {}", key.path.display()))
            .remedy(format!("ask its owner whether \"{name}\" runs; he started it at {}", key.addresses.join(", "))),
    }
}

/// The file system of this name that this user may work with: see [`Instance::find_for_user`].
pub fn find(name: Option<&str>) -> Outcome<Instance> {
    Ok(Instance::find_for_user(name, keys::path())?)
}

/// As [`find`], for what only the owner may do.
pub fn find_own(name: Option<&str>, verb: &str) -> Outcome<Instance> {
    let instance = find(name)?;
    match &instance.user_key {
        None => Ok(instance),
        Some(key) => Err(owner_only(key, verb)),
    }
}

/// What a user is told who asks for what only the owner may do.
pub fn owner_only(key: &KeyFile, verb: &str) -> Failure {
    let KeyFile { file_system, user, credentials, path, .. } = key;
    let (uid, path) = (credentials.uid, path.display());
    Failure::new(format!("{verb}: only the owner of \"{file_system}\" may; the key in {path} is of {user} (uid {uid})"))
        .remedy(format!("ask the owner; `weft df {file_system}` and `weft ls {file_system}:/` work with this key"))
}

/// Refuses a file system that is known not to run.
pub fn require_alive(instance: &Instance) -> Outcome<()> {
    if instance.user_key.is_some() {
        // Its processes are the owner's: whether they run shows when they are asked.
        return Ok(());
    }
    let name = &instance.map.name;
    let state = leftovers::state_of(instance);
    match &state {
        State::Running { .. } => Ok(()),
        State::Starting(_) => {
            Err(Failure::new(format!("\"{name}\" is {}", leftovers::describe(&state))).remedy("try again in a moment"))
        }
        State::HalfStarted { .. } | State::LeftOver => {
            Err(Failure::new(format!("\"{name}\" does not run (any more): {}", leftovers::describe(&state)))
                .remedy(format!("`weft down --force {name}` clears away, then `weft up {name}` starts it anew")))
        }
    }
}

/// Connects without waiting longer than `patience`: for commands that must end also when nodes hang.
pub fn connect_patiently(instance: &Instance, patience: Duration) -> Result<Client, Error> {
    let instance = instance.clone();
    let (sender, receiver) = mpsc::channel();
    // The thread is left behind when it hangs: the command ends soon after.
    thread::spawn(move || drop(sender.send(Client::connect(&instance, &ClientOptions::default()))));
    receiver.recv_timeout(patience).unwrap_or(Err(Error::Unreachable))
}

/// Asks nodes the same, all at once. A node that has not answered in time is [`Error::Unreachable`].
pub fn ask_nodes(
    client: &Client,
    nodes: impl IntoIterator<Item = NodeId>,
    request: &NodeRequest,
    patience: Duration,
) -> Vec<(NodeId, Result<NodeAnswer, Error>)> {
    let deadline = Instant::now() + patience;
    let asked: Vec<_> = nodes
        .into_iter()
        .map(|node| {
            let (client, request) = (client.clone(), request.clone());
            let (sender, receiver) = mpsc::channel();
            // Nobody hears an answer that comes too late.
            thread::spawn(move || drop(sender.send(client.node_request(node, request))));
            (node, receiver)
        })
        .collect();
    asked
        .into_iter()
        .map(|(node, receiver)| {
            let left = deadline.saturating_duration_since(Instant::now());
            (node, receiver.recv_timeout(left).unwrap_or(Err(Error::Unreachable)))
        })
        .collect()
}

/// How a node is called: in tables, in the names of its files, in errors.
pub fn node_name(node: NodeId) -> String {
    format!("n{:02}", node.0)
}
