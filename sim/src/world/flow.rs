//! Data connections' threads at nodes: each serves one request at a time, and blocks in the send of a reply until its
//! client reads ([`crate::wire`]).

use super::serving::ConnectionId;
use super::{Answer, Message, World};
use crate::bytes::ProcessId;
use crate::process::Ticket;
use crate::store::DataMessage;
use crate::wire::Wire;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use weft_protocol::NodeId;
use weft_protocol::data::{DataOperation, REPLY_BYTES};

/// Whom a request is to be answered.
pub(super) type To = (usize, ProcessId, Ticket);

/// Requests that have come while the thread of their connection was busy, and replies for which there was no room.
#[derive(Default)]
pub(super) struct Threads {
    queued: BTreeMap<ConnectionId, VecDeque<(To, Box<DataMessage>)>>,
    blocked: BTreeMap<ConnectionId, Blocked>,
}

/// A reply that waits for its client to read.
struct Blocked {
    to: To,
    node: NodeId,
    wire: Rc<Wire>,
    answer: Answer,
}

impl Threads {
    /// Requests that are not served yet.
    pub(super) fn messages(&self) -> impl Iterator<Item = (To, &DataMessage)> {
        self.queued.values().flatten().map(|(to, message)| (*to, &**message))
    }
}

fn reply_bytes(answer: &Answer) -> usize {
    match answer {
        Answer::Data(_, bytes) => REPLY_BYTES + bytes.0.len(),
        Answer::Reply(_) | Answer::Broken | Answer::Time => 0,
    }
}

impl World {
    /// A request has come as a whole, or the first piece of it. It is served when those before it have been.
    pub(super) fn data_arrived(&mut self, to: To, message: Box<DataMessage>) {
        if message.wire.is_serving() {
            let connection = (to.1, message.connection);
            self.connections.threads.queued.entry(connection).or_default().push_back((to, message));
        } else {
            self.begin_to_serve(to, message);
        }
    }

    fn begin_to_serve(&mut self, to: To, message: Box<DataMessage>) {
        if message.wire.begin() {
            self.network.after(1, Message::Room { client: to.0 });
        }
        if message.request.operation == DataOperation::Revoke {
            return self.revoke_arrived(to, &message);
        }
        if let Some(message) = self.await_term(to, message) {
            self.serve_data(to, message);
        }
    }

    /// The thread that has served a request sends the reply, and goes on.
    pub(super) fn reply_data(&mut self, to: To, message: &DataMessage, answer: Answer) {
        let (wire, connection) = (Rc::clone(&message.wire), (to.1, message.connection));
        if let Answer::Broken = answer {
            wire.close();
        }
        if wire.reply(to.2, reply_bytes(&answer)) {
            return self.replied(to, &wire, message.connection, answer);
        }
        self.tally.blocked += 1;
        let blocked = Blocked { to, node: message.request.object.node(), wire, answer };
        self.connections.threads.blocked.insert(connection, blocked);
        self.find_deadlock(connection);
    }

    fn replied(&mut self, to: To, wire: &Wire, connection: u64, answer: Answer) {
        self.answer_client(to, answer);
        if wire.end() {
            self.network.after(1, Message::Room { client: to.0 });
        }
        let connection = (to.1, connection);
        let next = self.connections.threads.queued.get_mut(&connection).and_then(VecDeque::pop_front);
        match next {
            Some((to, message)) => self.begin_to_serve(to, message),
            None => drop(self.connections.threads.queued.remove(&connection)),
        }
    }

    /// A client has read of a connection, or given it up: its node's thread may go on.
    pub(super) fn client_has_read(&mut self, connection: ConnectionId) {
        let Some(blocked) = self.connections.threads.blocked.get(&connection) else { return };
        let (to, wire) = (blocked.to, Rc::clone(&blocked.wire));
        if wire.reply(to.2, reply_bytes(&blocked.answer))
            && let Some(blocked) = self.connections.threads.blocked.remove(&connection)
        {
            self.replied(to, &wire, connection.1, blocked.answer);
        }
    }

    /// A process or node is gone, and with it its connections.
    pub(super) fn end_connections(&mut self, process: Option<ProcessId>, node: Option<NodeId>) {
        self.end_blocked(|(of, _), blocked| process == Some(*of) || node == Some(blocked.node));
    }

    /// A connection was revoked: what has come on it is dropped, and its thread waits for nobody.
    pub(super) fn end_revoked(&mut self, revoked: ConnectionId) {
        let queued = self.connections.threads.queued.remove(&revoked);
        self.end_blocked(|connection, _| *connection == revoked);
        for (to, message) in queued.into_iter().flatten() {
            message.wire.close();
            message.wire.begin();
            self.answer_data(to, &message, None);
        }
    }

    fn end_blocked(&mut self, is_of: impl Fn(&ConnectionId, &Blocked) -> bool) {
        let blocked = self.connections.threads.blocked.iter_mut().filter(|(id, blocked)| is_of(id, blocked));
        let mut gone = Vec::new();
        for (connection, blocked) in blocked {
            blocked.wire.close();
            blocked.answer = Answer::Broken;
            gone.push(*connection);
        }
        gone.into_iter().for_each(|connection| self.client_has_read(connection));
    }

    /// Ends the run if a client waits for room on a connection whose node waits for that client.
    fn find_deadlock(&self, connection: ConnectionId) {
        let Some(blocked) = self.connections.threads.blocked.get(&connection) else { return };
        if let Some((requests, replies)) = blocked.wire.deadlock() {
            let Blocked { to: (client, process, _), node, .. } = blocked;
            self.fail(&format!(
                "deadlock on data connection {}: client {client}, process {process}, waits for node {node} to read \
                 ({requests} bytes of requests are unread), and node {node} for the client ({replies} bytes of replies \
                 are unread)",
                connection.1
            ));
        }
    }

    /// As [`World::find_deadlock`], for all connections of a process.
    pub(super) fn find_deadlocks(&self, process: ProcessId) {
        let connections = (process, 0)..=(process, u64::MAX);
        for (connection, _) in self.connections.threads.blocked.range(connections) {
            self.find_deadlock(*connection);
        }
    }

    /// Nodes' threads that wait for their clients, for the report of a failure.
    pub(super) fn blocked_threads(&self) -> String {
        let blocked = self.connections.threads.blocked.iter().map(|((process, connection), blocked)| {
            let Blocked { to: (client, _, _), node, .. } = blocked;
            format!("node {node} waits for client {client}, process {process}, to read on connection {connection}")
        });
        blocked.collect::<Vec<_>>().join("; ")
    }
}
