//! Connections of each session: where its recalls go, and when the storage server considers it ended.

use crate::locks::lock;
use crate::mailbox::ConnectionRef;
use std::collections::HashMap;
use std::sync::Mutex;
use weft_protocol::SessionId;
use weft_protocol::limits::SESSION_TERM_MS;

/// Sessions that have connections here, or had one within the last term.
#[derive(Default)]
pub struct Sessions(Mutex<HashMap<SessionId, Record>>);

#[derive(Default)]
struct Record {
    connections: usize,
    recall: Option<ConnectionRef>,
    /// When the last connection was closed, milliseconds since boot.
    closed_ms: Option<u64>,
}

impl Sessions {
    /// Records a new connection. `recall`: the connection for the session's recalls.
    pub fn opened(&self, session: SessionId, recall: Option<ConnectionRef>) {
        let mut sessions = lock(&self.0);
        let record = sessions.entry(session).or_default();
        record.connections += 1;
        record.closed_ms = None;
        if recall.is_some() {
            record.recall = recall;
        }
    }

    /// Records the end of a connection. Returns true if it was the session's last one here.
    pub fn closed(&self, session: SessionId, recall: Option<ConnectionRef>, now_ms: u64) -> bool {
        let mut sessions = lock(&self.0);
        let Some(record) = sessions.get_mut(&session) else { return false };
        record.connections = record.connections.saturating_sub(1);
        if recall.is_some() && record.recall == recall {
            record.recall = None;
        }
        if record.connections == 0 {
            record.closed_ms = Some(now_ms);
        }
        record.connections == 0
    }

    /// Returns the connection for the session's recalls.
    pub fn recall_connection(&self, session: SessionId) -> Option<ConnectionRef> {
        lock(&self.0).get(&session).and_then(|record| record.recall)
    }

    /// Removes and returns the sessions without a connection for a whole term.
    pub fn take_ended(&self, now_ms: u64) -> Vec<SessionId> {
        let is_over = |record: &Record| record.closed_ms.is_some_and(|closed| now_ms >= closed + SESSION_TERM_MS);
        let mut sessions = lock(&self.0);
        sessions.extract_if(|_, record| is_over(record)).map(|(session, _)| session).collect()
    }

    /// Returns when [`Sessions::take_ended`] will next return a session, milliseconds since boot.
    pub fn next_end_ms(&self) -> Option<u64> {
        lock(&self.0).values().filter_map(|record| record.closed_ms).min().map(|closed| closed + SESSION_TERM_MS)
    }
}
