//! Connections for file data: requests of clients to storage servers.
//!
//! What holds of them, as of sockets: requests on one connection come in order, each once, or the connection breaks.
//! Then the client learns that it broke, and not whether what was on its way arrived, as a whole or in part, or not at
//! all. What it then sends again on another connection arrives after that: a server does not go on to read a connection
//! long after its client has given it up. When a client dies, the same becomes of what it had sent.

use super::{Answer, Message, World};
use crate::bytes::ProcessId;
use crate::process::Ticket;
use crate::store::{Bytes, DataMessage};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::data::{DataOperation, DataReply};

/// Longest way of a request, milliseconds.
const DELAY_MS_MAX: u64 = 30;
/// One request in so many breaks its connection, while faults are on.
const BREAKING: u64 = 60;

/// Connections that there are and were.
#[derive(Default)]
pub struct Connections {
    /// When the last request on each will have arrived.
    last_ms: BTreeMap<(ProcessId, u64), u64>,
    broken: BTreeSet<(ProcessId, u64)>,
}

/// What becomes of a request.
enum Fate {
    Served,
    /// The connection breaks before it has come, after so many of its bytes, or before it is answered.
    Lost,
    Torn(usize),
    Unanswered,
}

impl World {
    pub(super) fn send_data(&mut self, client: usize, process: ProcessId, number: Ticket, message: Box<DataMessage>) {
        self.tally.data += 1;
        let now_ms = self.network.now_ms;
        let last_ms = self.connections.last_ms.entry((process, message.connection)).or_default();
        *last_ms = (*last_ms).max(now_ms + 1 + self.random.below(DELAY_MS_MAX));
        self.network.after(*last_ms - now_ms, Message::Data { client, process, number, message });
    }

    fn fate(&mut self, is_alive: bool, bytes: usize) -> Fate {
        let breaks = if is_alive { self.network.faults && self.random.one_in(BREAKING) } else { self.random.one_in(2) };
        match self.random.below(3) {
            _ if !breaks => Fate::Served,
            0 => Fate::Lost,
            1 => Fate::Torn(usize::try_from(self.random.below(bytes as u64 + 1)).unwrap_or(0)),
            _ => Fate::Unanswered,
        }
    }

    pub(super) fn data_arrived(&mut self, client: usize, process: ProcessId, number: Ticket, message: &DataMessage) {
        let is_alive = self.clients[client].is_process(process);
        let is_there = self.storage.contains_key(&message.request.object.node());
        let connection = (process, message.connection);
        let fate = if is_there && !self.connections.broken.contains(&connection) {
            self.fate(is_alive, message.bytes.0.len())
        } else {
            Fate::Lost
        };
        let told = match fate {
            Fate::Served => Some(self.serve(message, None)),
            Fate::Lost => None,
            Fate::Torn(bytes) => {
                self.tally.torn += u64::from(bytes > 0 && bytes < message.bytes.0.len());
                self.serve(message, Some(bytes));
                None
            }
            Fate::Unanswered => {
                self.serve(message, None);
                None
            }
        };
        let answer = match told {
            Some((reply, bytes)) => Answer::Data(reply, bytes),
            None => {
                self.tally.broken += 1;
                self.connections.broken.insert(connection);
                Answer::Broken
            }
        };
        self.answer_client((client, process, number), answer);
    }

    fn serve(&mut self, message: &DataMessage, torn: Option<usize>) -> (DataReply, Bytes) {
        let now = (self.network.now_ms, self.now().wall);
        let Some(storage) = self.storage.get_mut(&message.request.object.node()) else { return Default::default() };
        if let (DataOperation::Append, Some(id)) = (message.request.operation, message.append) {
            let end = storage.bytes(message.request.object).map_or(0, <[u8]>::len);
            self.files.borrow_mut().append_placed(id, end as u64);
        }
        match storage.serve(message, torn, &self.key, now) {
            Ok(told) => told,
            Err(error) => (DataReply::failed(0, &error), Bytes::default()),
        }
    }
}
