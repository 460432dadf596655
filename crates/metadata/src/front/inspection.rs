//! What a shard tells of its state, between two events: to `weft status` and `weft debug`, and to the simulation, which
//! holds it against its model.
//!
//! Not here: anything that changes the state, or that decides.

use super::Shard;
use super::counts::Counts;
use super::park::{Parked, Wait, Work};
use crate::kv::KeyValue;
use std::collections::BTreeSet;
use weft_protocol::message::node::ShardStatus;
use weft_protocol::message::peer::IntentId;
use weft_protocol::{InodeNumber, LeaseKey, LeaseMode, LockOwner, NodeId, RangeLock, SessionId};

/// A call that waits, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StuckCall {
    pub token: u64,
    /// `None`: another shard's step.
    pub session: Option<SessionId>,
    /// What, in words.
    pub request: String,
    /// What it waits for, in words.
    pub waits_for: String,
    /// Since when, by the shard's clock, milliseconds.
    pub since_ms: u64,
}

impl<K: KeyValue> Shard<K> {
    /// State, for `weft status`.
    pub fn status(&self) -> ShardStatus {
        let Counts { calls, renames, renames_across } = self.counts;
        ShardStatus {
            shard: self.back.shard(),
            inodes: self.back.inodes(),
            dentries: self.back.dentries(),
            sessions: self.sessions.count(),
            leases: self.leases.count(),
            recalls: self.recalls.count(),
            parked: self.parking.count() as u64,
            store_bytes: self.back.store_bytes(),
            calls,
            renames,
            renames_across,
            failed: None,
        }
    }

    /// Files that count as open by a session, without a lease to cache them: nobody recalls these, so it has to give
    /// them back by itself.
    pub fn merely_open(&self, session: SessionId) -> BTreeSet<InodeNumber> {
        self.leases.merely_open(session)
    }

    /// Number of ranges that are locked, and of requests for locks that wait.
    pub fn locks(&self) -> (usize, usize) {
        self.locks.table.counts()
    }

    /// Returns true if the owner holds the whole range in this mode.
    pub fn has_lock(&self, session: SessionId, inode: InodeNumber, owner: LockOwner, lock: RangeLock) -> bool {
        self.locks.table.has(inode, (session, owner), lock)
    }

    /// Whether the session has the exclusive lease on the contents of a file.
    pub fn is_exclusive(&self, session: SessionId, inode: InodeNumber) -> bool {
        let held = self.leases.holder(&LeaseKey::Data(inode), session);
        held.is_some_and(|holder| holder.mode == LeaseMode::Exclusive)
    }

    /// Number of leases that a session was asked to give up, and has not answered.
    pub fn recalls_of(&self, session: SessionId) -> usize {
        self.recalls.of_session(session).len()
    }

    /// Storage servers of which an answer is awaited, or that have a backlog.
    pub fn awaited_storage(&self) -> BTreeSet<NodeId> {
        let in_flight = self.storage_waits.values().map(|(node, _)| *node);
        in_flight.chain(self.backlogs.nodes()).collect()
    }

    /// Calls that wait, the oldest first, for `weft debug stuck`.
    pub fn stuck(&self) -> Vec<StuckCall> {
        self.parking.iter().map(|(number, parked)| self.describe(number, parked)).collect()
    }

    fn describe(&self, number: u64, parked: &Parked) -> StuckCall {
        let waits_for = match parked.wait {
            Wait::Recalls => {
                let of = self
                    .recalls
                    .waited_by(number)
                    .map(|recall| format!("{:?} of session {}", recall.key, recall.session));
                format!("recall of {}", of.collect::<Vec<_>>().join(", "))
            }
            Wait::Lock(IntentId { shard, number }) => format!("what intent {number} of shard {shard} has locked"),
            Wait::Cut(inode) => format!("the end of another cut of {inode}"),
            Wait::Storage => "a storage server".to_owned(),
            Wait::Below(inode) => format!("{inode} to be read from the directory below"),
            Wait::Peer(intent) => format!("other shards' answers to intent {intent}"),
            Wait::Repeated(of) => format!("the same call of session {}, which has ended", of.session),
        };
        let (token, session, request) = match &parked.work {
            Work::Call(call) => (call.token, Some(call.session()), format!("{:?}", call.request)),
            Work::Peer { token, call } => (*token, None, format!("{:?} of shard {}", call.step, call.intent.shard)),
        };
        StuckCall { token, session, request, waits_for, since_ms: parked.since_ms }
    }
}
