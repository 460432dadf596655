//! Serving terms: how long a storage server may serve the shards of another node without hearing from that node.
//!
//! A storage server that a shard's node cannot reach learns of no fence. So it serves the shards of a node only during
//! a term that this node has granted ([`ServingTerms`], at the storage server), and the node knows when the last term
//! that it granted has certainly ended ([`TermGrants`], at the shards' node). A shard that has ended a session waits
//! until each storage server of the session's files has confirmed the fence, or until its term has ended, whichever is
//! first. In the second case the storage server gets no further term before it has confirmed the fence.
//!
//! ```text
//!  storage server                         node of the shards
//!       | AskToServe { settled }                 |
//!       |--------------------------------------->| drops settled fences; `granted`: nothing has to settle first
//!       | ServingTerm { granted, fences }        |
//!       |<---------------------------------------| its term ends at most SESSION_TERM_MS from now
//!       | closes the gates of the fences, then extends the term, if it is granted
//! ```
//!
//! Both sides count on CLOCK_BOOTTIME: the storage server from before it asked, the node from its answer. The storage
//! server ends the term [`SESSION_TERM_MARGIN_MS`] early, which covers the drift of the clocks.
//!
//! A shard that moves is served under terms of its first node until these end: the node grants none while the shard is
//! on its way, and its second node counts a whole term for each storage server. Fences that are not confirmed move with
//! the shard.
//!
//! Not here: messages and their retries. Shards on the storage server's own node need no term; only one that moves away
//! is served for no longer than a term from then.

use crate::gate::ServingTerm;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weft_protocol::limits::{CAPABILITY_TERM_SECONDS, FENCED_OBJECTS_MAX, SESSION_TERM_MARGIN_MS, SESSION_TERM_MS};
use weft_protocol::message::storage::{ServingAnswer, SessionFence};
use weft_protocol::{ClusterMap, InodeNumber, MapEpoch, NodeId, ObjectId, SessionId, ShardId};

/// Time after which a fence that a storage server did not confirm is sent again.
pub const FENCE_RETRY_MS: u64 = 1_000;
/// Fences in one [`ServingAnswer`].
const FENCES_PER_ANSWER_MAX: usize = 4_096;
/// Unconfirmed fences kept for one storage server. Beyond it the oldest that no shard waits for are dropped, and the
/// storage server gets no term until the capabilities that they void have expired.
const FENCES_PER_NODE_MAX: usize = 65_536;
/// How long a fence is kept: all capabilities of the session have expired by then.
const FENCE_MS: u64 = (CAPABILITY_TERM_SECONDS as u64 + 60) * 1_000;

type Key = (SessionId, ShardId);
type Objects = BTreeSet<(InodeNumber, ObjectId)>;

/// A fence that a storage server has not confirmed.
#[derive(Debug)]
struct Unconfirmed {
    state: State,
    objects: Objects,
    since_ms: u64,
    /// When it is to be sent again. `None`: it has been sent, and the outcome is open.
    retry_ms: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The shard waits for the confirmation. The storage server may serve meanwhile: it has heard of the fence.
    Awaited,
    /// No shard waits: the session had no file of this storage server open for writing.
    Unawaited,
    /// The shard went on without the confirmation, since the storage server's term had ended.
    Overdue,
}

/// Terms granted to one storage server.
#[derive(Debug, Default)]
struct Granted {
    /// When the last one has certainly ended.
    certain_ms: u64,
    /// No term is granted before.
    refused_until_ms: u64,
    fences: BTreeMap<Key, Unconfirmed>,
}

/// The serving terms that a node has granted to the storage servers of other nodes, and the fences of its shards that
/// these have not confirmed.
#[derive(Debug, Default)]
pub struct TermGrants {
    nodes: BTreeMap<NodeId, Granted>,
    /// Shards on their way to another node. No term is granted meanwhile: it would be one for these, too.
    leaving: BTreeSet<ShardId>,
}

/// What is due.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DueFence {
    /// The storage server serves nothing of the session any more: the shard may go on.
    Certain { node: NodeId, session: SessionId, shard: ShardId },
    /// Send the fence.
    Send { node: NodeId, fence: SessionFence },
}

impl TermGrants {
    /// A shard has ended a session. `awaited`: it waits for the confirmation of this storage server. The shell sends
    /// the fence now.
    pub fn fence(&mut self, node: NodeId, fence: &SessionFence, awaited: bool, now_ms: u64) {
        let granted = self.nodes.entry(node).or_default();
        if granted.fences.len() >= FENCES_PER_NODE_MAX {
            granted.drop_oldest(now_ms);
        }
        let new = || Unconfirmed { state: State::Unawaited, objects: Objects::new(), since_ms: now_ms, retry_ms: None };
        let unconfirmed = granted.fences.entry((fence.session, fence.shard)).or_insert_with(new);
        unconfirmed.objects.extend(fence.objects.iter().copied());
        if awaited {
            unconfirmed.state = State::Awaited;
        }
    }

    /// A storage server asks for a term, and reports fences as settled. Returns the answer, and the fences for which
    /// shards waited.
    pub fn ask(&mut self, node: NodeId, settled: &[SessionFence], now_ms: u64) -> (ServingAnswer, Vec<Key>) {
        let confirmed = settled.iter().filter_map(|fence| self.confirm(node, fence)).collect();
        let granted = self.nodes.entry(node).or_default();
        let is_kept = |fence: &Unconfirmed| fence.state == State::Awaited || fence.since_ms + FENCE_MS > now_ms;
        granted.fences.retain(|_, fence| is_kept(fence));
        let (mut fences, mut objects_left, mut all) = (Vec::new(), FENCED_OBJECTS_MAX, true);
        for ((session, shard), fence) in &granted.fences {
            if fences.len() == FENCES_PER_ANSWER_MAX || (objects_left == 0 && !fence.objects.is_empty()) {
                all = false;
                break;
            }
            let objects: Vec<_> = fence.objects.iter().copied().take(objects_left).collect();
            all &= objects.len() == fence.objects.len();
            objects_left -= objects.len();
            fences.push(SessionFence { session: *session, shard: *shard, objects });
        }
        let nothing_first = granted.fences.values().all(|fence| fence.state == State::Awaited);
        let is_granted = all && nothing_first && now_ms >= granted.refused_until_ms && self.leaving.is_empty();
        if is_granted {
            granted.certain_ms = now_ms + SESSION_TERM_MS;
        }
        (ServingAnswer { granted: is_granted, fences }, confirmed)
    }

    /// A storage server has settled a fence with these objects. Returns it if a shard waits for it and nothing of it is
    /// left.
    pub fn confirm(&mut self, node: NodeId, settled: &SessionFence) -> Option<Key> {
        let key = (settled.session, settled.shard);
        let fences = &mut self.nodes.get_mut(&node)?.fences;
        let fence = fences.get_mut(&key)?;
        for object in &settled.objects {
            fence.objects.remove(object);
        }
        if !fence.objects.is_empty() {
            return None;
        }
        fences.remove(&key).filter(|fence| fence.state == State::Awaited).map(|_| key)
    }

    /// A fence was sent and not confirmed.
    pub fn send_failed(&mut self, node: NodeId, (session, shard): Key, now_ms: u64) {
        let fences = self.nodes.get_mut(&node).map(|granted| &mut granted.fences);
        if let Some(fence) = fences.and_then(|fences| fences.get_mut(&(session, shard))) {
            fence.retry_ms = Some(now_ms + FENCE_RETRY_MS);
        }
    }

    /// The fences that a storage server has to confirm before it is asked for anything else: their shards went on
    /// without.
    pub fn overdue(&self, node: NodeId) -> Vec<SessionFence> {
        let fences = self.nodes.get(&node).into_iter().flat_map(|granted| &granted.fences);
        fences.filter(|(_, fence)| fence.state == State::Overdue).map(|(key, fence)| fence.describe(*key)).collect()
    }

    /// A shard is on its way to another node. Returns its fences that storage servers have not confirmed, which go with
    /// it.
    pub fn begin_move(&mut self, shard: ShardId) -> Vec<(NodeId, SessionFence)> {
        self.leaving.insert(shard);
        let fences = |(node, granted): (&NodeId, &Granted)| {
            let of_shard = granted.fences.iter().filter(|(key, _)| key.1 == shard);
            of_shard.map(|(key, fence)| (*node, fence.describe(*key))).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(fences).collect()
    }

    /// The shard stays.
    pub fn abandon_move(&mut self, shard: ShardId) {
        self.leaving.remove(&shard);
    }

    /// The shard has another node now.
    pub fn left(&mut self, shard: ShardId) {
        self.leaving.remove(&shard);
        self.nodes.values_mut().for_each(|granted| granted.fences.retain(|key, _| key.1 != shard));
    }

    /// A shard has come from another node, with fences that storage servers have not confirmed to that one. All of them
    /// may have a term that was granted there.
    pub fn arrived(&mut self, nodes: impl Iterator<Item = NodeId>, fences: Vec<(NodeId, SessionFence)>, now_ms: u64) {
        for node in nodes {
            let granted = self.nodes.entry(node).or_default();
            granted.certain_ms = granted.certain_ms.max(now_ms + SESSION_TERM_MS);
        }
        for (node, fence) in fences {
            self.fence(node, &fence, false, now_ms);
            let fences = self.nodes.get_mut(&node).map(|granted| &mut granted.fences);
            if let Some(unconfirmed) = fences.and_then(|fences| fences.get_mut(&(fence.session, fence.shard))) {
                // The source may have gone on without the confirmation.
                unconfirmed.state = State::Overdue;
            }
        }
    }

    /// When something is due, milliseconds since boot.
    pub fn next_due(&self) -> Option<u64> {
        let awaited = self.nodes.values().flat_map(|granted| granted.awaited().map(move |(_, fence)| (granted, fence)));
        awaited.map(|(granted, fence)| fence.retry_ms.map_or(granted.certain_ms, |ms| ms.min(granted.certain_ms))).min()
    }

    /// Removes and returns what is due.
    pub fn take_due(&mut self, now_ms: u64) -> Vec<DueFence> {
        let mut due = Vec::new();
        for (node, granted) in &mut self.nodes {
            let certain = granted.certain_ms <= now_ms;
            for (key, fence) in granted.fences.iter_mut().filter(|(_, fence)| fence.state == State::Awaited) {
                if certain {
                    fence.state = State::Overdue;
                    due.push(DueFence::Certain { node: *node, session: key.0, shard: key.1 });
                } else if fence.retry_ms.is_some_and(|retry_ms| retry_ms <= now_ms) {
                    fence.retry_ms = None;
                    due.push(DueFence::Send { node: *node, fence: fence.describe(*key) });
                }
            }
        }
        due
    }
}

impl Granted {
    fn awaited(&self) -> impl Iterator<Item = (&Key, &Unconfirmed)> {
        self.fences.iter().filter(|(_, fence)| fence.state == State::Awaited)
    }

    fn drop_oldest(&mut self, now_ms: u64) {
        let unawaited = self.fences.iter().filter(|(_, fence)| fence.state != State::Awaited);
        let oldest = unawaited.min_by_key(|(_, fence)| fence.since_ms).map(|(key, _)| *key);
        if let Some(fence) = oldest.and_then(|oldest| self.fences.remove(&oldest)) {
            self.refused_until_ms = self.refused_until_ms.max((fence.since_ms + FENCE_MS).max(now_ms));
        }
    }
}

impl Unconfirmed {
    fn describe(&self, (session, shard): Key) -> SessionFence {
        SessionFence { session, shard, objects: self.objects.iter().copied().collect() }
    }
}

/// Another node with shards, as a storage server sees it.
#[derive(Debug, Default)]
struct Served {
    /// When the pending question was asked, with which map.
    asked: Option<(u64, MapEpoch)>,
    /// Fences that came with answers and are not settled.
    unsettled: BTreeMap<Key, SessionFence>,
    /// Fences to be reported with the next question.
    settled: Vec<SessionFence>,
    /// How many of them the pending question reports.
    reported: usize,
}

/// The terms during which a storage server may serve each shard. A node grants them for all of its shards together.
#[derive(Debug, Default)]
pub struct ServingTerms {
    nodes: BTreeMap<NodeId, Served>,
    terms: BTreeMap<ShardId, Arc<ServingTerm>>,
}

impl ServingTerms {
    fn served(&mut self, node: NodeId) -> &mut Served {
        self.nodes.entry(node).or_default()
    }

    /// Returns the term for a shard, the same one wherever the shard is. `own`: the shard is at this node, and served
    /// without a limit until it moves away.
    pub fn term(&mut self, shard: ShardId, own: bool) -> Arc<ServingTerm> {
        let new = || Arc::new(if own { ServingTerm::unlimited() } else { ServingTerm::expired() });
        Arc::clone(self.terms.entry(shard).or_insert_with(new))
    }

    /// A shard of this node is on its way to another one, which may serve it when a term has passed from now.
    pub fn begin_move(&mut self, shard: ShardId, now_ms: u64) {
        self.term(shard, true).set(now_ms + SESSION_TERM_MS - SESSION_TERM_MARGIN_MS);
    }

    /// A shard is at this node, having come or stayed.
    pub fn is_own(&mut self, shard: ShardId) {
        self.term(shard, true).set(u64::MAX);
    }

    /// Returns the settled fences to report with a question to this node, by the map of this epoch. `None`: a question
    /// is pending.
    pub fn ask(&mut self, node: NodeId, epoch: MapEpoch, now_ms: u64) -> Option<Vec<SessionFence>> {
        let served = self.served(node);
        if served.asked.is_some() {
            return None;
        }
        served.asked = Some((now_ms, epoch));
        served.reported = served.settled.len();
        Some(served.settled.clone())
    }

    /// Returns the fences of an answer that the storage server has not begun. It closes their gates before
    /// [`ServingTerms::finish`], and reports each to [`ServingTerms::settled`].
    pub fn answered(&mut self, node: NodeId, answer: &ServingAnswer) -> Vec<SessionFence> {
        let served = self.served(node);
        served.settled.drain(..std::mem::take(&mut served.reported));
        let key = |fence: &SessionFence| (fence.session, fence.shard);
        let is_new = |fence: &&SessionFence| !served.unsettled.contains_key(&key(fence));
        let new: Vec<SessionFence> = answer.fences.iter().filter(is_new).cloned().collect();
        served.unsettled.extend(new.iter().map(|fence| (key(fence), fence.clone())));
        new
    }

    /// The gates of the answer's fences are closed; `None`: no answer came. Returns true if there are settled fences to
    /// report at once. A term is one for the shards that the node had by the map of the question, and has.
    pub fn finish(&mut self, node: NodeId, answer: Option<&ServingAnswer>, map: &ClusterMap) -> bool {
        let served = self.served(node);
        let asked = served.asked.take();
        served.reported = 0;
        let Some(answer) = answer else { return false };
        let has_settled = !served.settled.is_empty();
        if let (true, Some((asked_ms, epoch))) = (answer.granted, asked) {
            let until_ms = asked_ms + SESSION_TERM_MS - SESSION_TERM_MARGIN_MS;
            for (shard, term) in &self.terms {
                if map.arrived(*shard, node).is_some_and(|arrived| arrived <= epoch) {
                    term.extend(until_ms);
                }
            }
        }
        has_settled
    }

    /// A fence that came with an answer is settled. Returns true if it is to be reported at once.
    pub fn settled(&mut self, node: NodeId, session: SessionId, shard: ShardId) -> bool {
        let served = self.served(node);
        served.settled.extend(served.unsettled.remove(&(session, shard)));
        served.asked.is_none()
    }
}

#[cfg(test)]
mod tests;
