//! Connections for file data: requests of clients to storage servers.
//!
//! What holds of them, as of sockets: requests on one connection come in order, each once, or the connection breaks.
//! Then the client learns that it broke, and not whether what was on its way arrived, as a whole or in part, or not at
//! all; or arrives up to two terms later: the server stands still, or has not read what lies in its socket. So a client
//! has the server revoke such a connection before it sends anything else. When a client dies, the same becomes of what
//! it had sent; but the body of a write may come in pieces, the last of them terms later, and then nothing but the
//! fence of its session stops it.

use super::flow::Threads;
use super::partitions::Party;
use super::serving::Waiting;
use super::{Answer, Message, Pending, World};
use crate::bytes::{Moment, ProcessId};
use crate::client::Client;
use crate::network::USUAL_MS;
use crate::process::Ticket;
use crate::random::Random;
use crate::script::Word;
use crate::store::{Bytes, DataMessage};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::data::{DataOperation, DataReply};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::{Error, NodeId, SessionId, ShardId, routing};

/// Longest way of a request, milliseconds.
const DELAY_MS_MAX: u64 = 30;
/// One request in so many breaks its connection, while faults are on.
const BREAKING: u64 = 60;

/// One write in so many is given up by its client before the server has read it, while faults are on.
const LATE: u64 = 150;

/// One write in so many comes in pieces, while faults are on, and one piece in so many comes late.
const SPLITTING: u64 = 4;
const STALLING: u64 = 8;
const STALL_MS_MAX: u64 = 2 * SESSION_TERM_MS;

/// A write whose bytes come in pieces.
pub(super) struct Body {
    pub(super) to: (usize, ProcessId, Ticket),
    pub(super) message: Box<DataMessage>,
    /// Bytes that have come, and those that will.
    came: usize,
    end: usize,
    /// Pieces that have not come.
    left: usize,
    pub(super) is_answered: bool,
    /// The client has given up the connection while the bytes were on their way.
    is_given_up: bool,
    pub(super) refused: Option<Error>,
    /// Bytes of it may be in the object.
    landed: bool,
    /// Its number at the ranges that kernels cache.
    pub(super) number: Option<u64>,
}

/// Connections that there are and were.
#[derive(Default)]
pub struct Connections {
    /// When the last request on each will have arrived.
    last_ms: BTreeMap<(ProcessId, u64), u64>,
    broken: BTreeSet<(ProcessId, u64)>,
    /// When one of a client broke last.
    broke_ms: BTreeMap<usize, u64>,
    bodies: BTreeMap<u64, Body>,
    latest_body: u64,
    fenced: BTreeSet<(SessionId, ShardId, NodeId)>,
    /// Pipelined writes of which one was refused for lack of space.
    refused: BTreeSet<(ProcessId, u64)>,
    /// Requests that wait for pages to be dropped.
    pub(super) held: BTreeMap<(NodeId, u64), Held>,
    pub(super) waiting: Waiting,
    pub(super) threads: Threads,
}

/// What waits.
pub(super) enum Held {
    Data(Box<Body>),
    Cut { shard: ShardId, token: Option<u64>, request: StorageRequest },
}

impl Connections {
    /// When one of a client broke last.
    pub fn broke_ms(&self, client: usize) -> Option<u64> {
        self.broke_ms.get(&client).copied()
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Served,
    /// The connection breaks before it has come, after so many of its bytes, or before it is answered.
    Lost,
    Torn(usize),
    Unanswered,
    /// The connection breaks now, and the bytes of a write come later.
    Late,
}

impl Word for Fate {
    fn write(&self) -> String {
        match self {
            Self::Served => "served".to_owned(),
            Self::Lost => "lost".to_owned(),
            Self::Torn(end) => format!("torn {end}"),
            Self::Unanswered => "unanswered".to_owned(),
            Self::Late => "late".to_owned(),
        }
    }

    fn read(text: &str) -> Option<Self> {
        match text {
            "served" => Some(Self::Served),
            "lost" => Some(Self::Lost),
            "unanswered" => Some(Self::Unanswered),
            "late" => Some(Self::Late),
            _ => text.strip_prefix("torn ")?.parse().ok().map(Self::Torn),
        }
    }
}

/// How long a request is under way, and each of the pieces of its bytes behind what is before it.
fn choose_way(random: &mut Random, splits: bool) -> Vec<u64> {
    let mut way = vec![1 + random.below(DELAY_MS_MAX)];
    if splits && random.one_in(SPLITTING) {
        for _ in 0..=random.below(2) {
            let stalls = random.one_in(STALLING);
            way.push(1 + random.below(if stalls { STALL_MS_MAX } else { DELAY_MS_MAX }));
        }
    }
    way
}

impl World {
    pub(super) fn send_data(
        &mut self,
        client: usize,
        process: ProcessId,
        number: Ticket,
        mut message: Box<DataMessage>,
    ) {
        self.tally.data += 1;
        if self.is_cut(Party::Client(client), Party::Node(message.request.object.node())) {
            self.connections.broken.insert((process, message.connection));
            // Nobody will read it: a client that waits for room goes on when it learns that the connection broke.
            if message.wire.close() {
                self.client_has_read((process, message.connection));
            }
            return self.break_connection((client, process, number));
        }
        let now_ms = self.network.now_ms;
        let last_ms = self.connections.last_ms.entry((process, message.connection)).or_default();
        let splits = message.request.operation == DataOperation::Write && message.bytes.0.len() > 1;
        let splits = splits && self.network.faults;
        let route = format_args!("data client{client}>node{}", message.request.object.node());
        let way = self.choices.decide(route, vec![USUAL_MS], |random| choose_way(random, splits));
        let arrives_ms = (*last_ms).max(now_ms + way.first().copied().unwrap_or(USUAL_MS));
        let mut at_ms = arrives_ms;
        let later = way.iter().skip(1).filter(|_| splits);
        let pieces: Vec<u64> = later
            .map(|ms| {
                at_ms += ms;
                at_ms
            })
            .collect();
        // What follows on the connection comes behind the last piece.
        *last_ms = pieces.last().map_or(arrives_ms, |last_ms| last_ms + 1);
        message.pieces_ms = pieces;
        self.network.after(arrives_ms - now_ms, Message::Data { client, process, number, message });
    }

    fn fate(&mut self, client: usize, is_alive: bool, message: &DataMessage) -> Fate {
        let (faults, bytes) = (self.network.faults, message.bytes.0.len());
        let route = format_args!("fate client{client}>node{}", message.request.object.node());
        let fate = self.choices.decide(route, Fate::Served, |random| {
            if is_alive && bytes > 0 && faults && random.one_in(LATE) {
                return Fate::Late;
            }
            let breaks = if is_alive { faults && random.one_in(BREAKING) } else { random.one_in(2) };
            match random.below(3) {
                _ if !breaks => Fate::Served,
                0 => Fate::Lost,
                1 => Fate::Torn(usize::try_from(random.below(bytes as u64 + 1)).unwrap_or(0)),
                _ => Fate::Unanswered,
            }
        });
        match fate {
            Fate::Late if !is_alive || bytes == 0 || !faults => Fate::Served,
            Fate::Lost | Fate::Torn(_) | Fate::Unanswered if is_alive && !faults => Fate::Served,
            Fate::Torn(end) => Fate::Torn(end.min(bytes)),
            fate => fate,
        }
    }

    /// A request has come, and the storage server has a term for its shard.
    pub(super) fn serve_data(&mut self, to: (usize, ProcessId, Ticket), mut message: Box<DataMessage>) {
        let is_alive = self.clients[to.0].is_process(to.1);
        let is_there = self.storage.contains_key(&message.request.object.node());
        let connection = (to.1, message.connection);
        let bytes = message.bytes.0.len();
        let fate = if is_there && !self.connections.broken.contains(&connection) {
            self.fate(to.0, is_alive, &message)
        } else {
            Fate::Lost
        };
        let (end, is_answered) = match fate {
            Fate::Lost => return self.answer_data(to, &message, None),
            Fate::Served => (bytes, true),
            Fate::Unanswered => (bytes, false),
            Fate::Late => {
                self.tally.late += 1;
                if message.pieces_ms.is_empty() {
                    let route = format_args!("late client{}", to.0);
                    let late_ms = self.choices.decide(route, USUAL_MS, |random| 1 + random.below(STALL_MS_MAX));
                    message.pieces_ms.push(self.network.now_ms + late_ms);
                }
                (bytes, false)
            }
            Fate::Torn(end) => {
                self.tally.torn += u64::from(end > 0 && end < bytes);
                (end, false)
            }
        };
        let wall = self.now_at(message.request.object.node()).wall;
        let Some(storage) = self.storage.get_mut(&message.request.object.node()) else { return };
        let mut refused = storage.begin(&message, &self.key, wall).err();
        if message.request.id != 0 && self.connections.refused.contains(&(to.1, message.request.id)) {
            refused = Some(Error::NoSpace);
        }
        let left = message.pieces_ms.len();
        let is_given_up = matches!(fate, Fate::Late);
        if is_given_up {
            self.answer_data(to, &message, None);
        }
        let (came, landed, number) = (0, false, None);
        let body = Body { to, message, came, end, left, is_answered, is_given_up, refused, landed, number };
        self.begin_data(body);
    }

    /// A client has given up a connection: nothing of it lands any more.
    pub(super) fn revoke_arrived(&mut self, to: (usize, ProcessId, Ticket), message: &DataMessage) {
        let broken = self.connections.broken.contains(&(to.1, message.connection));
        if broken || !self.storage.contains_key(&message.request.object.node()) {
            return self.answer_data(to, message, None);
        }
        let revoked = (to.1, message.request.id);
        self.connections.broken.insert(revoked);
        self.end_revoked(revoked);
        let connections = &mut self.connections;
        let is_of = |body: &Body| (body.to.1, body.message.connection) == revoked;
        let of_bodies =
            connections.bodies.extract_if(.., |_, body| is_of(body)).map(|(_, body)| body).collect::<Vec<_>>();
        let is_held = |held: &Held| matches!(held, Held::Data(body) if is_of(body));
        let of_held =
            connections.held.extract_if(.., |_, held| is_held(held)).map(|(_, held)| held).collect::<Vec<_>>();
        let of_held = of_held.into_iter().filter_map(|held| match held {
            Held::Data(body) => Some(*body),
            Held::Cut { .. } => None,
        });
        for body in of_bodies.into_iter().chain(of_held) {
            self.tally.revoked += 1;
            self.end_range(&body);
            self.answer_body(&body, None);
        }
        let done = DataReply { id: message.request.id, ..DataReply::default() };
        self.answer_data(to, message, Some((done, Bytes::default())));
    }

    /// A request whose pages are out of the way is carried out.
    pub(super) fn land(&mut self, mut body: Body) {
        let pieces = std::mem::take(&mut body.message.pieces_ms);
        self.place_append(&body.message);
        if pieces.is_empty() {
            self.take_piece(&mut body);
            return self.finish(&body);
        }
        let now_ms = self.network.now_ms;
        self.tally.pieces += pieces.len() as u64;
        let number = self.connections.latest_body + 1;
        self.connections.latest_body = number;
        self.connections.bodies.insert(number, body);
        for at_ms in pieces {
            self.network.after(at_ms.saturating_sub(now_ms), Message::Piece(number));
        }
    }

    fn place_append(&self, message: &DataMessage) {
        let request = &message.request;
        let (Some(id), Some(storage)) = (message.append, self.storage.get(&request.object.node())) else { return };
        match request.operation {
            DataOperation::Append => self.files.borrow_mut().append_placed(id, storage.length(request.object)),
            DataOperation::Write => self.files.borrow_mut().append_tried(id, request.offset),
            _ => {}
        }
    }

    /// Another piece of a write has come; with the last one it is answered.
    pub(super) fn piece_arrived(&mut self, number: u64) {
        let Some(mut body) = self.connections.bodies.remove(&number) else { return };
        body.left -= 1;
        self.take_piece(&mut body);
        if body.left > 0 {
            self.connections.bodies.insert(number, body);
        } else {
            self.finish(&body);
        }
    }

    fn take_piece(&mut self, body: &mut Body) {
        let request = &body.message.request;
        let now = self.now_at(request.object.node());
        let came = body.came + (body.end - body.came) / (body.left + 1).max(1);
        let range = body.came..if body.left == 0 { body.end } else { came };
        body.came = range.end;
        // The file may have been cut since the header came.
        self.place_append(&body.message);
        let writes = matches!(request.operation, DataOperation::Write | DataOperation::Append);
        let Some(storage) = self.storage.get_mut(&request.object.node()).filter(|_| writes) else { return };
        if body.refused.is_none() {
            body.refused = storage.piece(&body.message, range, now).err();
            // Of what there is no space for, a part may be there.
            body.landed |= matches!(body.refused, None | Some(Error::NoSpace));
            // The term has ended since the header came: here the server closes the connection.
            body.is_answered &= body.refused != Some(Error::Busy);
            if body.refused.is_none() {
                self.check_by_group(&body.message);
            }
        }
    }

    fn finish(&mut self, body: &Body) {
        if body.refused == Some(Error::NoSpace) {
            self.connections.refused.insert((body.to.1, body.message.request.id));
        }
        let writes = matches!(body.message.request.operation, DataOperation::Write | DataOperation::Append);
        if body.refused.is_none() && !writes {
            self.check_by_group(&body.message);
        }
        let now_ms = self.now_at(body.message.request.object.node()).boot_ms;
        let told = self.storage.get_mut(&body.message.request.object.node()).filter(|_| body.is_answered);
        let told = told.map(|storage| {
            let told = body.refused.clone().map_or_else(|| storage.end(&body.message, now_ms), Err);
            told.unwrap_or_else(|error| {
                let written_bytes = if body.landed { body.message.request.bytes } else { 0 };
                (DataReply::torn(0, &error, written_bytes), Bytes::default())
            })
        });
        // What waited for it changes the object that it tells of.
        self.end_range(body);
        self.answer_body(body, told);
    }

    /// Answers a request, unless its client has learnt before that the connection broke.
    pub(super) fn answer_body(&mut self, body: &Body, told: Option<(DataReply, Bytes)>) {
        if !body.is_given_up {
            self.answer_data(body.to, &body.message, told);
        }
    }

    /// `None`: the connection has broken.
    pub(super) fn answer_data(
        &mut self,
        to: (usize, ProcessId, Ticket),
        message: &DataMessage,
        told: Option<(DataReply, Bytes)>,
    ) {
        let is_cut = self.is_cut(Party::Node(message.request.object.node()), Party::Client(to.0));
        let answer = told.filter(|_| !is_cut).map_or(Answer::Broken, |(reply, bytes)| Answer::Data(reply, bytes));
        if let Answer::Broken = answer {
            self.tally.broken += 1;
            self.connections.broken.insert((to.1, message.connection));
            self.connections.broke_ms.insert(to.0, self.network.now_ms);
        }
        self.reply_data(to, message, answer);
    }

    /// A storage server has fenced a session and shuts down its connections; a piece that has come may be on its way
    /// into the object.
    pub(super) fn fence_reached(&mut self, session: SessionId, shard: ShardId, node: NodeId) {
        self.connections.fenced.insert((session, shard, node));
        let of_session = |body: &Body| body.message.session == session && body.message.request.object.node() == node;
        let bodies = self.connections.bodies.iter().filter(|(_, body)| of_session(body));
        for number in bodies.map(|(number, _)| *number).collect::<Vec<_>>() {
            let what = format_args!("shut by fence node{node}");
            if self.choices.decide(what, false, |random| random.one_in(2))
                && let Some(body) = self.connections.bodies.remove(&number)
            {
                self.end_range(&body);
                self.answer_body(&body, None);
            }
        }
    }

    /// Whether bytes of a write that began before `since` may still land: its session is not fenced. What a client that
    /// has died sent last may belong to any of its writes.
    pub(super) fn may_land(&self, since: Moment) -> bool {
        let held = self.connections.held.values().filter_map(|held| match held {
            Held::Data(body) => Some(&**body),
            Held::Cut { .. } => None,
        });
        let bodies = self.connections.bodies.values().chain(held).map(|body| (body.to, &*body.message));
        let mut bodies = bodies.chain(self.connections.waiting.messages()).chain(self.connections.threads.messages());
        bodies.any(|((client, process, _), message)| {
            let DataMessage { request, .. } = message;
            let fence = (request.capability.session, routing::of_inode(request.inode), request.object.node());
            let counts = message.sent < since || !self.clients[client].is_process(process);
            counts && !self.connections.fenced.contains(&fence)
        })
    }

    /// Whether a client has a change without an answer, which it sends again before it asks that shard anything else;
    /// or has died, and one of its changes waits at a shard.
    pub(super) fn may_be_made(&self) -> bool {
        let in_doubt = |client: &Client| self.shards.keys().any(|shard| client.machine.calls().is_in_doubt(*shard));
        let is_left = |pending: &Pending| {
            !self.clients[pending.client].is_process(pending.process) && !pending.call.request.is_read()
        };
        self.clients.iter().any(in_doubt) || self.tokens.values().any(is_left)
    }
}
