//! Where calls go: the map, shards that have moved, and changes that have no reply.
//!
//! A call is sent again in its slot, with its sequence number, wherever its shard is by the newest map: the shard takes
//! the replies of its slots along (docs/decisions/0023).
//!
//! Not here: slots and connections (`link.rs`), sessions that have ended (`calls.rs`).

use super::{BUSY_MS_MAX, BUSY_WAIT_US, Calls, call_of, crossing};
use crate::link::{ATTEMPTS_MAX, Link, Slot};
use crate::lock::lock;
use crate::shell::Shell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::message::shard::{LockAnswer, ShardAnswer, ShardReply, ShardRequest, Slot as SlotName};
use weft_protocol::{ClusterMap, Error, MapEpoch, NodeId, NodeRecord, Result, SessionId, ShardId};

/// Nodes that are asked for the map, when the root shard's does not answer.
const OTHERS_ASKED: usize = 3;
/// A node that has taken this long to say nothing was waited for.
const WAITED_MS: u64 = 1000;

/// What gives up the wait for a lock that a call has begun, by this reply to it.
fn cancel_of(change: &Message, reply: &Message) -> Option<ShardRequest> {
    let ShardRequest::Lock { inode, wait, .. } = &call_of(change).request else { return None };
    let Message::ShardReply(ShardReply { result: Ok(ShardAnswer::Lock(LockAnswer::Queued)), .. }) = reply else {
        return None;
    };
    Some(ShardRequest::CancelLock { inode: *inode, wait: (*wait)? })
}

impl<S: Shell> Calls<S> {
    /// Takes a newer map. Returns the shards that have moved, each with its node.
    fn set_map(&self, map: Arc<ClusterMap>) -> Vec<(ShardId, NodeId)> {
        let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if map.epoch <= current.epoch {
            return Vec::new();
        }
        let places = (0u16..).map(ShardId).zip(current.shards.iter().zip(&map.shards));
        let moved =
            places.filter(|(_, (before, now))| before.node != now.node).map(|(shard, (_, now))| (shard, now.node));
        let moved: Vec<_> = moved.collect();
        if !moved.is_empty() {
            self.shards_move.store(true, Ordering::Release);
        }
        self.epoch.store(map.epoch.0, Ordering::Release);
        *current = map;
        moved
    }

    /// Sends a call to its shard's node by the newest map, and again with the same sequence number as the map changes
    /// or while the shard is busy: the first sending may have been carried out, with its reply lost, before the map
    /// changed or the shard began to move.
    pub(super) async fn exchange_by_map(
        &self,
        link: &Link<S>,
        slot: &mut Slot<S::Control>,
        message: &mut Message,
        sent: &mut bool,
    ) -> Result<(Message, bool)> {
        let (mut attempts, mut resent, mut busy_since_ms) = (0, false, None);
        loop {
            let Message::Shard(call) = &mut *message else { unreachable!("this sends calls: {message:?}") };
            let (shard, epoch) = (call.shard, self.map_epoch());
            call.epoch = epoch;
            let moved = self.moved_from(link, shard);
            let to = moved.as_ref().unwrap_or(&link.record);
            if moved.is_some() {
                self.shell.attend_recalls(to, link.session).await?;
            }
            let (reply, again) = match link.exchange(&self.shell, to, slot, message, sent).await {
                Ok(replied) => replied,
                // A node that is gone does not tell that the shard has moved away before.
                Err(error) if !self.has_moved_since(epoch, shard, to.id).await => return Err(error),
                Err(_) => {
                    resent = true;
                    continue;
                }
            };
            resent |= again;
            match &reply {
                Message::ShardReply(ShardReply { result: Err(Error::StaleMap(_) | Error::WrongShard(_)), .. })
                    if attempts < ATTEMPTS_MAX =>
                {
                    self.refresh_map_from(to.id, epoch).await?;
                    // A newer map is progress, as often as one comes.
                    attempts = if self.map_epoch() > epoch { 0 } else { attempts + 1 };
                }
                Message::ShardReply(ShardReply { result: Err(Error::Busy), .. }) => {
                    let now_ms = self.shell.now_ms();
                    if now_ms - *busy_since_ms.get_or_insert(now_ms) >= BUSY_MS_MAX {
                        // An earlier sending may have been carried out.
                        return if resent { Err(Error::Busy) } else { Ok((reply, resent)) };
                    }
                    self.shell.sleep_us(BUSY_WAIT_US).await;
                }
                _ => return Ok((reply, resent)),
            }
        }
    }

    /// The shard's node by the newest map, if it is another than the link's.
    fn moved_from(&self, link: &Link<S>, shard: ShardId) -> Option<NodeRecord> {
        if !self.shards_move.load(Ordering::Acquire) {
            return None;
        }
        let map = self.map();
        let node = map.node_of(shard).filter(|node| *node != link.node())?;
        map.node(node).cloned()
    }

    /// Whether the shard has left a node that does not answer since the map of this epoch.
    async fn has_moved_since(&self, epoch: MapEpoch, shard: ShardId, node: NodeId) -> bool {
        let is_newer = self.has_newer_map(epoch, node).await;
        is_newer && self.map().node_of(shard).is_some_and(|now| now != node)
    }

    /// Looks for a newer map than that of this epoch, beside a node that does not answer: at the root shard's node, and
    /// at some others if that does not answer. Both may have left the file system, the root shard's before the client
    /// has heard that this has moved. Nodes that were heard within a term are asked alone, if there are any, and after
    /// one that was waited for nobody is: several that hang would be waited for one after the other.
    async fn has_newer_map(&self, epoch: MapEpoch, beside: NodeId) -> bool {
        if self.map_epoch() > epoch {
            return true;
        }
        let map = self.map();
        let root = map.node_of(ShardId::ROOT);
        let others = map.nodes.iter().map(|node| node.id).filter(|node| Some(*node) != root);
        let all = root.into_iter().chain(others).filter(|node| *node != beside);
        let heard_until_ms = |node| {
            let cache = self.session.cache();
            map.shards_at(node).map(|shard| cache.valid_until_ms(shard)).max()
        };
        let mut asked: Vec<_> = all.map(|node| (heard_until_ms(node), node)).collect();
        // The longer a node has not been heard, the sooner it is one that hangs.
        asked.sort_by_key(|(until_ms, _)| std::cmp::Reverse(*until_ms));
        let now_ms = self.shell.now_ms();
        let is_heard = |until_ms: Option<u64>| until_ms > Some(now_ms);
        if asked.first().is_some_and(|(until_ms, _)| is_heard(*until_ms)) {
            asked.retain(|(until_ms, _)| is_heard(*until_ms));
        }
        for (_, node) in asked.into_iter().take(1 + OTHERS_ASKED) {
            let began_ms = self.shell.now_ms();
            let refreshed = self.refresh_map(node).await;
            if self.map_epoch() > epoch {
                return true;
            }
            // What the root shard's node says is final. It is no answer that another one is away.
            let is_final = refreshed.is_ok() && Some(node) == root;
            if is_final || self.shell.now_ms() >= began_ms + WAITED_MS {
                break;
            }
        }
        false
    }

    /// The node of a shard. The root shard's node is asked for a map that has the shard.
    pub(super) async fn find(&self, shard: ShardId) -> Result<NodeId> {
        let map = self.map();
        if let Some(node) = map.node_of(shard) {
            return Ok(node);
        }
        let root = map.node_of(ShardId::ROOT).ok_or(Error::WrongShard(shard))?;
        self.refresh_map_from(root, map.epoch).await?;
        self.map().node_of(shard).ok_or(Error::WrongShard(shard))
    }

    /// Whether a change that was sent to the shard has no reply.
    pub fn is_in_doubt(&self, shard: ShardId) -> bool {
        let map = self.map();
        let Some(node) = map.node_of(shard) else { return false };
        let is_there = |at| map.node_of(at) == Some(node);
        if !self.shards_move.load(Ordering::Acquire) {
            return self.known_link(node).is_some_and(|link| link.has_unanswered(is_there));
        }
        lock(&self.links).values().any(|link| link.has_unanswered(is_there))
    }

    /// Sends the changes at the shards of the link's node that have no reply again, until they have one.
    pub(super) async fn settle(&self, link: &Link<S>) -> Result<()> {
        self.settle_at(link.node(), link).await?;
        if !self.shards_move.load(Ordering::Acquire) {
            return Ok(());
        }
        // They were sent to the nodes at which the shards were then.
        let is_there = |shard| self.map().node_of(shard) == Some(link.node());
        let is_due = |other: &&Arc<Link<S>>| other.node() != link.node() && other.has_unanswered(is_there);
        let others: Vec<_> = lock(&self.links).values().filter(is_due).cloned().collect();
        for other in others {
            self.settle_at(link.node(), &other).await?;
        }
        Ok(())
    }

    /// Learns what has become of calls that were given up, where shards answer again: an open among them counts until
    /// it is given back.
    pub(crate) async fn settle_given_up(&self) {
        let is_due = |link: &&Arc<Link<S>>| link.has_unanswered(|shard| self.hears(shard));
        let links: Vec<_> = lock(&self.links).values().filter(is_due).cloned().collect();
        for link in links {
            // What fails is tried again with the next call, or the next time.
            let _ = self.settle(&link).await;
        }
    }

    async fn settle_at(&self, node: NodeId, link: &Link<S>) -> Result<()> {
        let is_there = |shard| self.map().node_of(shard) == Some(node);
        while link.has_unanswered(is_there) {
            let Some(mut slot) = link.take_unanswered(is_there).await else {
                self.shell.sleep_us(BUSY_WAIT_US).await;
                continue;
            };
            let mut change = slot.unanswered().cloned().expect("the slot was taken for the change in it");
            let (shard, crosses) = (call_of(&change).shard, crossing(call_of(&change)));
            if let Some(crosses) = crosses {
                self.doubt_others(link, crosses, None).await;
            }
            let reply = self.exchange_by_map(link, &mut slot, &mut change, &mut false).await;
            let waits = reply.as_ref().ok().and_then(|(reply, _)| cancel_of(&change, reply));
            if let Ok((Message::ShardReply(ShardReply { stamp, result: Ok(answer), .. }), _)) = &reply
                && let ShardAnswer::Opened { attributes, .. } = answer
                && link.session == self.session.id()
            {
                self.session.opens.unawaited(attributes.inode, *stamp);
            }
            let reply = reply.and_then(|(reply, _)| match reply {
                // A refusal for the map, or before the call was looked at, says nothing of the first sending.
                Message::ShardReply(ShardReply {
                    result: Err(error @ (Error::Busy | Error::StaleMap(_) | Error::WrongShard(_))),
                    ..
                }) => Err(error),
                _ => Ok(()),
            });
            if reply.is_ok() {
                link.answered(&mut slot);
                if let Some(mut cache) = self.session.cache_for(link.session) {
                    cache.settled(shard, crosses);
                }
                if let Some(cancel) = waits {
                    self.keep_cancel(link, &mut slot, change, cancel).await;
                }
            } else if let Some(crosses) = crosses {
                self.doubt_others(link, crosses, Some(self.shell.now_ms())).await;
            }
            link.return_slot(slot).await;
            match reply {
                Err(Error::Busy) => self.shell.sleep_us(BUSY_WAIT_US).await,
                reply => reply?,
            }
        }
        Ok(())
    }

    /// See [`crate::cache::Cache::doubt_others`]. Caches above drop what is doubtful before the change is sent.
    async fn doubt_others(&self, link: &Link<S>, change: SlotName, given_up_ms: Option<u64>) {
        let dropped = self.session.cache_for(link.session).map(|mut cache| cache.doubt_others(change, given_up_ms));
        self.shell.invalidate(&dropped.unwrap_or_default()).await;
    }

    /// A request for a lock waits at the shard, and nobody here does: its caller was told that it has failed. It is
    /// given up, by the next call to the shard at the latest.
    async fn keep_cancel(&self, link: &Link<S>, slot: &mut Slot<S::Control>, change: Message, cancel: ShardRequest) {
        let Message::Shard(mut call) = change else { unreachable!("a change is a call to a shard: {change:?}") };
        slot.sequence += 1;
        (call.request, call.sequence) = (cancel, slot.sequence);
        let (shard, now_ms) = (call.shard, self.shell.now_ms());
        link.keep_unanswered(slot, &Message::Shard(call));
        let dropped = self.session.cache_for(link.session).map(|mut cache| cache.doubt(shard, None, now_ms));
        self.shell.invalidate(&dropped.unwrap_or_default()).await;
    }

    /// Gets a newer map than that of this epoch from a node, or from others if it does not answer.
    async fn refresh_map_from(&self, node: NodeId, epoch: MapEpoch) -> Result<()> {
        match self.refresh_map(node).await {
            // One that has left says that a map is stale, and ends.
            Err(_) if self.has_newer_map(epoch, node).await => Ok(()),
            refreshed => refreshed,
        }
    }

    /// Gets a newer map from the node that says that ours is stale.
    pub(super) async fn refresh_map(&self, node: NodeId) -> Result<()> {
        let answer = self.node_call(node, NodeRequest::GetMap).await?;
        let NodeAnswer::Map(map) = answer else { return Err(Error::Malformed) };
        if !map.check() {
            return Err(Error::Malformed);
        }
        let map = Arc::new(map);
        let session = self.session.id();
        for (shard, node) in self.set_map(Arc::clone(&map)) {
            // What the session holds there it renews there. One that cannot be reached is asked with the next call.
            if self.session.has_term(shard)
                && let Some(record) = map.node(node)
            {
                let _ = self.shell.attend_recalls(record, session).await;
            }
        }
        Ok(())
    }

    /// A node has answered a renewal, by the map of this epoch, for these shards. Returns true if its map is newer:
    /// then [`Calls::catch_up`] is due.
    pub fn renewed(
        &self,
        (node, epoch): (NodeId, MapEpoch),
        shards: &[ShardId],
        session: SessionId,
        (sent_ms, now_ms): (u64, u64),
    ) -> bool {
        self.session.node_heard(node, session, sent_ms);
        self.session.renewed(shards.iter().copied(), session, sent_ms, now_ms);
        let is_newer = epoch > self.map_epoch();
        if is_newer {
            *lock(&self.newer_map_at) = Some(node);
        }
        is_newer
    }

    /// Gets the map that a renewal has shown to be newer: a shard that has moved has to hear of the session at its
    /// node.
    pub async fn catch_up(&self) {
        let node = lock(&self.newer_map_at).take();
        if let Some(node) = node {
            // If this fails, the next renewal at a node with that map asks again.
            let _ = self.refresh_map(node).await;
        }
    }
}
