//! Where new objects are made, and identifiers for them, which a node leases by batches.
//!
//! A client makes its files at its home (`home.rs`). One without a node on its machine makes each file at another node,
//! in turns. A node with little space left, or one that does not answer, is passed over for a while, if others do
//! better.
//!
//! Lock order: `known` (2), held for one look-up.

use crate::file_objects::{FileObjects, Held};
use crate::home::candidates;
use crate::lock::lock;
use crate::objects::{Objects, request};
use crate::shell::Shell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use weft_protocol::capability::seconds_of;
use weft_protocol::data::DataOperation;
use weft_protocol::limits::OBJECT_BATCH_COUNT;
use weft_protocol::message::shard::{FirstObjects, LeasedObject, ShardAnswer};
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{
    Capability, Error, InodeNumber, Layout, NodeId, ObjectId, Plan, Result, SessionId, StripePlan, Timestamp,
};

/// Seconds before the end of its term from which on a batch is not used any more.
pub(crate) const BATCH_MARGIN_SECONDS: u32 = 600;
/// How long a node counts as having space, or little, or as away, milliseconds.
const BELIEVED_MS: u64 = 10_000;

/// A batch of leased object identifiers.
struct Batch {
    /// The session that leased them: no other may use them.
    session: SessionId,
    capability: Capability,
    next: u32,
    /// The node has little space left, as of then.
    is_low: bool,
    looked_ms: u64,
}

impl Batch {
    fn identifier(&self, index: u32) -> ObjectId {
        let first = self.capability.object;
        ObjectId::new(first.node(), first.sequence() + u64::from(index))
    }
}

/// What is known of the nodes that may get new objects.
#[derive(Default)]
pub(crate) struct NewObjects {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    batches: BTreeMap<NodeId, Batch>,
    /// Nodes that did not answer, and until when they are passed over.
    away: BTreeMap<NodeId, u64>,
    /// Of the next file.
    turn: usize,
}

impl NewObjects {
    /// The first node whose turn it is, by a random number.
    pub fn new(random: u64) -> Self {
        let turn = usize::try_from(random % u64::from(u16::MAX)).expect("16 bits");
        Self { known: Mutex::new(Known { turn, ..Known::default() }) }
    }

    /// Identifiers of this node are used no more.
    pub fn drop_batch(&self, node: NodeId) {
        lock(&self.known).batches.remove(&node);
    }

    /// An identifier was not used. Where a later one of its batch was taken meanwhile it is lost: there are many.
    fn take_back(&self, LeasedObject { object, capability }: &LeasedObject) {
        let mut known = lock(&self.known);
        let Some(batch) = known.batches.get_mut(&object.node()) else { return };
        let latest = batch.next.checked_sub(1).map(|latest| batch.identifier(latest));
        if batch.capability == *capability && latest == Some(*object) {
            batch.next -= 1;
        }
    }

    /// Of these nodes the one whose turn it is, and that is not known to be away.
    fn in_turn(&self, nodes: &[NodeId], now_ms: u64) -> Option<NodeId> {
        let mut known = lock(&self.known);
        known.away.retain(|_, until_ms| *until_ms > now_ms);
        known.turn = known.turn.wrapping_add(1);
        let mut turns = (0..nodes.len()).map(|step| nodes[known.turn.wrapping_add(step) % nodes.len()]);
        turns.find(|node| !known.away.contains_key(node))
    }

    fn is_away(&self, node: NodeId, now_ms: u64) {
        lock(&self.known).away.insert(node, now_ms + BELIEVED_MS);
    }
}

impl<S: Shell> Objects<S> {
    /// New objects for a file with this layout, which has none: at a home that answers, and where they are several, at
    /// that and at other nodes that answer. Several are made at once, so that no object of a striped file is missing;
    /// also returns the latest of their modification times then.
    pub(crate) async fn new_objects(
        &self,
        inode: InodeNumber,
        layout: &Layout,
    ) -> Result<(FileObjects, Option<Timestamp>)> {
        let first = self.new_object(false).await?;
        let Some(plan) = layout.stripes() else { return Ok((first.into(), None)) };
        let made = self.make(inode, first).await?;
        let others = self.at_other_nodes(first, plan, async |node| self.make_at(inode, node).await).await?;
        let held: Vec<_> = std::iter::once(first).chain(others.iter().map(|(other, _)| *other)).collect();
        let made = others.iter().fold(made, |latest, (_, made)| latest.max(*made));
        Ok((FileObjects::made(layout, &held).expect("no more than planned"), Some(made)))
    }

    /// Identifiers for the objects of a file with this plan, which is made with them, chosen as for [`new_objects`]:
    /// their storage servers make them later. `None`: none can be had now.
    ///
    /// [`new_objects`]: Objects::new_objects
    pub(crate) async fn first_objects(&self, plan: Plan) -> Option<FirstObjects> {
        let first = self.new_object(false).await.ok()?;
        let others = match plan.stripes() {
            Some(plan) => {
                self.at_other_nodes(first, plan, async |node| self.new_object_if_there(node).await).await.ok()?
            }
            None => Vec::new(),
        };
        let leased = |Held { object, capability }| LeasedObject { object, capability };
        Some(FirstObjects { plan, objects: std::iter::once(first).chain(others).map(leased).collect() })
    }

    /// Takes back what the answer to an open that was to make a file shows that the file has not got.
    pub(crate) fn take_back(&self, objects: &FirstObjects, answer: &ShardAnswer) {
        let used = match answer {
            ShardAnswer::Opened { attributes, .. } => attributes.layout.objects(),
            _ => &[],
        };
        let unused = objects.objects.iter().filter(|leased| !used.contains(&leased.object));
        unused.for_each(|leased| self.new_objects.take_back(leased));
    }

    /// One thing at each of as many nodes as the plan wants beside the first object's, of those that answer.
    async fn at_other_nodes<T>(
        &self,
        first: Held,
        plan: StripePlan,
        take: impl AsyncFn(NodeId) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut taken = Vec::new();
        for node in candidates(&self.calls.shell, &self.calls.map()) {
            if taken.len() + 1 == usize::from(plan.width()) {
                break;
            }
            if node == first.object.node() {
                continue;
            }
            match take(node).await {
                Ok(one) => taken.push(one),
                // Fewer are better than none.
                Err(Error::Unreachable) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// A new object at this node, which is made empty, and its modification time.
    pub(crate) async fn make_at(&self, inode: InodeNumber, node: NodeId) -> Result<(Held, Timestamp)> {
        let held = self.new_object_at(node).await?;
        Ok((held, self.make(inode, held).await?))
    }

    async fn make(&self, inode: InodeNumber, held: Held) -> Result<Timestamp> {
        let made = self.data_write(&request(inode, DataOperation::Write, held, 0, 0), &[], None).await?;
        Ok(made.mtime)
    }

    /// An identifier for a new object, at a node that answers, with the right to make it. `spread`: at one node after
    /// the other, also where there is one on this machine.
    pub(crate) async fn new_object(&self, spread: bool) -> Result<Held> {
        let made = self.new_object_in_turn(spread).await?;
        if !self.has_little_space(made.object.node()).await {
            return Ok(made);
        }
        for node in candidates(&self.calls.shell, &self.calls.map()) {
            if node == made.object.node() {
                continue;
            }
            if let Ok(other) = self.new_object_at(node).await
                && !self.has_little_space(node).await
            {
                return Ok(other);
            }
        }
        // None is better.
        Ok(made)
    }

    /// An identifier for a new object at a node that answers and is not among these. One with little space is only
    /// taken if no other is there. `None`: none is there.
    pub(crate) async fn new_object_elsewhere(&self, full: &[NodeId]) -> Option<Held> {
        let mut second_best = None;
        let nodes = candidates(&self.calls.shell, &self.calls.map());
        for node in nodes.into_iter().filter(|node| !full.contains(node)) {
            let Ok(made) = self.new_object_at(node).await else { continue };
            if !self.has_little_space(node).await {
                return Some(made);
            }
            second_best.get_or_insert(made);
        }
        second_best
    }

    /// At the home if that is on this machine, else, or if this is to be spread, at one node after the other.
    async fn new_object_in_turn(&self, spread: bool) -> Result<Held> {
        let (map, shell) = (self.calls.map(), &self.calls.shell);
        let mut home = self.home();
        if spread || !self.is_on_this_machine(home) {
            let nodes: Vec<NodeId> = map.nodes.iter().filter(|node| node.takes_files()).map(|node| node.id).collect();
            home = self.new_objects.in_turn(&nodes, shell.now_ms()).unwrap_or(home);
        }
        // Each change of home goes to a node that has just answered, so that few follow one another.
        for _ in 0..=map.nodes.len() {
            match self.new_object_if_there(home).await {
                Err(Error::Unreachable) => {
                    self.new_objects.is_away(home, shell.now_ms());
                    home = self.next_home(home).await.ok_or(Error::Unreachable)?;
                }
                made => return made,
            }
        }
        Err(Error::Unreachable)
    }

    /// As [`Objects::new_object_at`], where nothing is sent to the object that would tell that its node has ended.
    async fn new_object_if_there(&self, node: NodeId) -> Result<Held> {
        // A batch is at hand also when its node has ended meanwhile: its connections tell, without a message.
        let away = match self.calls.known_link(node) {
            Some(link) => link.seems_away().await && !self.calls.answers(node).await,
            None => false,
        };
        if away { Err(Error::Unreachable) } else { self.new_object_at(node).await }
    }

    async fn new_object_at(&self, node: NodeId) -> Result<Held> {
        loop {
            if let Some(taken) = self.take_identifier(node) {
                return Ok(taken);
            }
            let session = self.calls.session.id();
            let request = StorageRequest::LeaseObjects { count: OBJECT_BATCH_COUNT };
            let StorageAnswer::Batch { capability, is_low } = self.calls.storage_call(node, request).await? else {
                return Err(Error::Malformed);
            };
            let expires = capability.expires_seconds;
            if capability.count == 0 || self.seconds().saturating_add(BATCH_MARGIN_SECONDS) > expires {
                return Err(Error::Malformed);
            }
            let looked_ms = self.calls.shell.now_ms();
            let batch = Batch { session, capability, next: 0, is_low, looked_ms };
            lock(&self.new_objects.known).batches.insert(node, batch);
        }
    }

    fn take_identifier(&self, node: NodeId) -> Option<Held> {
        let mut known = lock(&self.new_objects.known);
        let batch = known.batches.get_mut(&node).filter(|batch| batch.session == self.calls.session.id())?;
        let ends = self.seconds().saturating_add(BATCH_MARGIN_SECONDS) > batch.capability.expires_seconds;
        if batch.next >= batch.capability.count || ends {
            return None;
        }
        let object = batch.identifier(batch.next);
        batch.next += 1;
        Some(Held { object, capability: batch.capability })
    }

    /// Whether a node of which there is a batch has little space. Asks again after a while.
    async fn has_little_space(&self, node: NodeId) -> bool {
        let now_ms = self.calls.shell.now_ms();
        let known = lock(&self.new_objects.known).batches.get(&node).map(|batch| (batch.is_low, batch.looked_ms));
        let Some((is_low, looked_ms)) = known else { return false };
        if now_ms < looked_ms + BELIEVED_MS {
            return is_low;
        }
        let space = self.calls.storage_call(node, StorageRequest::Space).await;
        let is_low = matches!(space, Ok(StorageAnswer::Space(space)) if space.is_low());
        if let Some(batch) = lock(&self.new_objects.known).batches.get_mut(&node) {
            (batch.is_low, batch.looked_ms) = (is_low, now_ms);
        }
        is_low
    }

    fn seconds(&self) -> u32 {
        seconds_of(self.calls.shell.wall())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::capability::CapabilityClaims;
    use weft_protocol::map::FIRST_EPOCH;
    use weft_protocol::{Generation, NodeKey, Rights};

    #[test]
    fn an_identifier_is_taken_back_unless_a_later_one_was_taken() {
        let of_batch = |sequence| {
            NodeKey::new([1; 32]).sign(&CapabilityClaims {
                object: ObjectId::new(NodeId(2), sequence),
                count: 8,
                inode: InodeNumber::from_raw(0),
                generation: Generation(1),
                epoch: FIRST_EPOCH,
                expires_seconds: 100,
                owner_uid: 0,
                rights: Rights::WRITE | Rights::CREATE,
                session: SessionId(4),
            })
        };
        let new_objects = NewObjects::new(0);
        let batch = Batch { session: SessionId(4), capability: of_batch(100), next: 2, is_low: false, looked_ms: 0 };
        lock(&new_objects.known).batches.insert(NodeId(2), batch);
        let next_after = |sequence, batch| {
            let object = ObjectId::new(NodeId(2), sequence);
            new_objects.take_back(&LeasedObject { object, capability: of_batch(batch) });
            lock(&new_objects.known).batches[&NodeId(2)].next
        };
        // The first one, and the latest of another batch.
        assert_eq!((next_after(100, 100), next_after(101, 90)), (2, 2));
        assert_eq!((next_after(101, 100), next_after(100, 100), next_after(99, 100)), (1, 0, 0));
    }

    #[test]
    fn nodes_have_their_turns_but_for_those_that_are_away() {
        let new_objects = NewObjects::new(0);
        let nodes = [NodeId(0), NodeId(1), NodeId(2)];
        let turns = |now_ms| (0..3).map(|_| new_objects.in_turn(&nodes, now_ms).map(|node| node.0)).collect::<Vec<_>>();
        assert_eq!(turns(0), [Some(1), Some(2), Some(0)]);
        new_objects.is_away(NodeId(2), 0);
        assert_eq!(turns(BELIEVED_MS - 1), [Some(1), Some(0), Some(0)]);
        assert_eq!(turns(BELIEVED_MS), [Some(1), Some(2), Some(0)]);
        nodes.iter().for_each(|node| new_objects.is_away(*node, 0));
        assert_eq!(new_objects.in_turn(&nodes, 0), None);
        assert_eq!(new_objects.in_turn(&[], 0), None);
    }
}
