//! Which connections belong to which session: where a recall is sent, and when a session is over for the storage
//! server.

use crate::event_loop::ConnectionRef;
use std::collections::HashMap;
use weft_protocol::SessionId;
use weft_protocol::limits::SESSION_TERM_MS;

/// The sessions that have or had connections here.
#[derive(Default)]
pub struct Sessions {
    sessions: HashMap<SessionId, Record>,
}

#[derive(Default)]
struct Record {
    connections: usize,
    recall: Option<ConnectionRef>,
    /// When the last connection was closed, milliseconds since boot.
    closed_ms: Option<u64>,
}

impl Sessions {
    /// A connection was made. `recall`: it is the one that recalls go to.
    pub fn opened(&mut self, session: SessionId, recall: Option<ConnectionRef>) {
        let record = self.sessions.entry(session).or_default();
        record.connections += 1;
        record.closed_ms = None;
        if recall.is_some() {
            record.recall = recall;
        }
    }

    /// A connection was closed. Returns whether it was the session's last one here.
    pub fn closed(&mut self, session: SessionId, recall: Option<ConnectionRef>, now_ms: u64) -> bool {
        let Some(record) = self.sessions.get_mut(&session) else { return false };
        record.connections = record.connections.saturating_sub(1);
        if recall.is_some() && record.recall == recall {
            record.recall = None;
        }
        if record.connections == 0 {
            record.closed_ms = Some(now_ms);
        }
        record.connections == 0
    }

    /// Where recalls of this session go.
    pub fn recall_connection(&self, session: SessionId) -> Option<ConnectionRef> {
        self.sessions.get(&session).and_then(|record| record.recall)
    }

    /// Takes out the sessions that have had no connection for a whole term.
    pub fn take_ended(&mut self, now_ms: u64) -> Vec<SessionId> {
        let over = |record: &Record| record.closed_ms.is_some_and(|closed| now_ms >= closed + SESSION_TERM_MS);
        let ended: Vec<SessionId> = self.sessions.iter().filter(|(_, r)| over(r)).map(|(id, _)| *id).collect();
        for session in &ended {
            self.sessions.remove(session);
        }
        ended
    }

    /// When [`Sessions::take_ended`] will next find one, milliseconds since boot.
    pub fn next_end_ms(&self) -> Option<u64> {
        self.sessions.values().filter_map(|record| record.closed_ms).min().map(|closed| closed + SESSION_TERM_MS)
    }
}
