//! What is to be asked of storage servers that do not answer, and told to them.
//!
//! Each has a backlog: files whose size is to be asked for, and objects to be removed. One request of it at a time is
//! sent as a probe, the next a while after that has failed. When the server answers the shard anything, all is sent.
//!
//! Invariant: a server has a backlog from the first of these requests that it does not answer until it answers one.
//! A probe is in flight, or due. What is in a backlog is not in flight.
//! Not here: other requests to storage servers, for each of which a client waits.

use super::storage::{Recovery, StorageWait, stat_request};
use super::{Effect, Shard};
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::{ClusterMap, InodeNumber, NodeId, ObjectId};

/// Time between a probe that has failed and the next one, milliseconds: doubled with each, so many times at most. So
/// long after a server can be reached again its files may have no size.
const PROBE_MS: u64 = 1_000;
const DOUBLINGS_MAX: u32 = 3;
/// Objects that one request has removed.
const REMOVALS_MAX: usize = 4_096;

/// Of one storage server.
#[derive(Serialize, Deserialize)]
struct Backlog {
    sizes: BTreeSet<Recovery>,
    removals: BTreeSet<(InodeNumber, ObjectId)>,
    /// Probes that have failed.
    probes: u32,
    /// When the next probe is due. `None`: one is in flight.
    due_ms: Option<u64>,
}

/// A request of a backlog.
enum Probe {
    Size(Recovery),
    Removal((InodeNumber, ObjectId)),
}

/// Of all storage servers that do not answer.
#[derive(Default, Serialize, Deserialize)]
pub struct Backlogs(BTreeMap<NodeId, Backlog>);

impl Backlogs {
    /// When the next probe is due.
    pub fn next_due(&self) -> Option<u64> {
        self.0.values().filter_map(|backlog| backlog.due_ms).min()
    }

    /// The storage servers that have one.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.0.keys().copied()
    }

    /// The server has not answered.
    fn unanswered(&mut self, node: NodeId, now_ms: u64) -> &mut Backlog {
        let backlog = self.0.entry(node).or_insert_with(|| Backlog {
            sizes: BTreeSet::new(),
            removals: BTreeSet::new(),
            probes: 0,
            due_ms: Some(now_ms + PROBE_MS),
        });
        if backlog.due_ms.is_none() {
            backlog.probes += 1;
            backlog.due_ms = Some(now_ms + (PROBE_MS << backlog.probes.min(DOUBLINGS_MAX)));
        }
        backlog
    }

    /// A server to which a probe is due.
    fn due(&self, now_ms: u64) -> Option<NodeId> {
        let is_due = |backlog: &Backlog| backlog.due_ms.is_some_and(|due_ms| due_ms <= now_ms);
        self.0.iter().find(|(_, backlog)| is_due(backlog)).map(|(node, _)| *node)
    }

    /// Takes what is sent as a probe. A backlog of which nothing is left ends.
    fn pop(&mut self, node: NodeId) -> Option<Probe> {
        let backlog = self.0.get_mut(&node)?;
        let size = backlog.sizes.pop_first().map(Probe::Size);
        let probe = size.or_else(|| backlog.removals.pop_first().map(Probe::Removal));
        if probe.is_none() {
            self.0.remove(&node);
        }
        probe
    }

    /// A probe is in flight.
    fn sent(&mut self, node: NodeId) {
        if let Some(backlog) = self.0.get_mut(&node) {
            backlog.due_ms = None;
        }
    }

    /// Takes the searches for the size of a file.
    pub fn take_searches(&mut self, inode: InodeNumber) -> Vec<Recovery> {
        let of_file = |of: &Recovery| of.inode() == inode;
        self.0.values_mut().flat_map(|backlog| backlog.sizes.extract_if(.., of_file).collect::<Vec<_>>()).collect()
    }
}

/// A node that has left for good does not come back.
fn has_left(map: &ClusterMap, node: NodeId) -> bool {
    map.removed_max.is_some_and(|last| node <= last) && map.node(node).is_none()
}

impl<K: KeyValue> Shard<K> {
    /// Asks for the size that `of` searches for, or puts that off until the object's server answers.
    pub(super) fn ask_or_put_off(&mut self, object: ObjectId, of: Recovery, out: &mut Vec<Effect>) {
        match self.backlogs.0.get_mut(&object.node()) {
            Some(backlog) => {
                if !backlog.sizes.insert(of) {
                    self.recovered(of, None);
                }
            }
            None => self.send_question(object, of, out),
        }
    }

    fn send_question(&mut self, object: ObjectId, of: Recovery, out: &mut Vec<Effect>) {
        let node = object.node();
        let token = self.token_for(node, StorageWait::Recovery { of, stale: false });
        let makes = self.back.inode(of.inode()).is_some_and(|record| record.awaits_objects());
        let request = stat_request(of.inode(), object, makes);
        out.push(Effect::Storage { token: Some(token), node, request });
    }

    /// Has objects removed. Nobody waits for that.
    pub(super) fn remove(&mut self, node: NodeId, objects: Vec<(InodeNumber, ObjectId)>, out: &mut Vec<Effect>) {
        match self.backlogs.0.get_mut(&node) {
            Some(backlog) => backlog.removals.extend(objects),
            None => self.send_removal(node, objects, out),
        }
    }

    fn send_removal(&mut self, node: NodeId, objects: Vec<(InodeNumber, ObjectId)>, out: &mut Vec<Effect>) {
        let token =
            (!self.is_own(node)).then(|| self.token_for(node, StorageWait::Removal { objects: objects.clone() }));
        out.push(Effect::Storage { token, node, request: StorageRequest::Remove { objects } });
    }

    /// Whether the server is that of the shard's own node, which it always reaches.
    fn is_own(&self, node: NodeId) -> bool {
        self.map.node_of(self.shard()) == Some(node)
    }

    /// A storage server did not answer the search for a size. `stale`: it begins anew, since the file was cut.
    pub(super) fn size_unanswered(&mut self, node: NodeId, (of, stale): (Recovery, bool), out: &mut Vec<Effect>) {
        if has_left(&self.map, node) {
            return self.recovered(of, None);
        }
        let backlog = self.backlogs.unanswered(node, self.now.boot_ms);
        if stale {
            self.ask_size(of.anew(), out);
        } else if !backlog.sizes.insert(of) {
            self.recovered(of, None);
        }
    }

    /// A storage server did not answer the removal of objects.
    pub(super) fn removal_unanswered(&mut self, node: NodeId, objects: Vec<(InodeNumber, ObjectId)>) {
        if !has_left(&self.map, node) {
            self.backlogs.unanswered(node, self.now.boot_ms).removals.extend(objects);
        }
    }

    /// A storage server has answered: its backlog is sent.
    pub(super) fn send_backlog(&mut self, node: NodeId, out: &mut Vec<Effect>) {
        let Some(Backlog { sizes, removals, .. }) = self.backlogs.0.remove(&node) else { return };
        for of in sizes {
            self.ask_size(of, out);
        }
        let removals: Vec<_> = removals.into_iter().collect();
        for objects in removals.chunks(REMOVALS_MAX) {
            self.send_removal(node, objects.to_vec(), out);
        }
    }

    /// Sends the probes that are due.
    pub(super) fn probe(&mut self, out: &mut Vec<Effect>) {
        while let Some(node) = self.backlogs.due(self.now.boot_ms) {
            if self.is_own(node) {
                // The shard has moved there.
                self.send_backlog(node, out);
                continue;
            }
            match self.backlogs.pop(node) {
                None => continue,
                Some(Probe::Size(of)) => {
                    let Some(object) = self.object_of(&of) else {
                        self.recovered(of, None);
                        continue;
                    };
                    self.send_question(object, of, out);
                }
                Some(Probe::Removal(removal)) => self.send_removal(node, vec![removal], out),
            }
            self.backlogs.sent(node);
        }
    }

    /// Drops the backlogs of nodes that have left.
    pub(super) fn drop_backlogs(&mut self) {
        let map = &self.map;
        let left: Vec<_> = self.backlogs.0.extract_if(.., |node, _| has_left(map, *node)).collect();
        for of in left.into_iter().flat_map(|(_, backlog)| backlog.sizes) {
            self.recovered(of, None);
        }
    }
}
