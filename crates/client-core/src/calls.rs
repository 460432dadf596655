//! Calls to shards and nodes: slots, repetition, stale maps, sessions that have ended.
//!
//! Lock order: `links` (2), held for one look-up; `earlier` and `newer_map_at` are leaves.

mod at_once;
mod routes;

use crate::cache::Cache;
use crate::joined_groups::JoinedGroups;
use crate::link::{ATTEMPTS_MAX, Link, SlotFor};
use crate::lock::lock;
use crate::lock_table::Locks;
use crate::notice::Notice;
use crate::session::{Session, Term};
use crate::shell::{Shell, node_of};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::message::shard::{Origin, ShardAnswer, ShardCall, ShardRequest, Slot as SlotName};
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{
    Attributes, ClusterMap, Credentials, Error, Grants, InodeNumber, LeaseKey, MapEpoch, NodeId, Result, SessionId,
    ShardId, SlotIndex, routing,
};

/// How long a call waits before it is sent again to a server that is busy, microseconds.
pub const BUSY_WAIT_US: u64 = 10_000;
/// Shortest wait before what other kernels' pages are in the way of is sent again, microseconds. The longest is twice
/// as long.
const PAGES_WAIT_US: u64 = 1_000;
/// How long a server may be busy before the caller is told, milliseconds.
pub const BUSY_MS_MAX: u64 = 10_000;

/// An answer, and what is needed to trust its grants.
pub struct Answer {
    pub stamp: u64,
    pub answer: ShardAnswer,
    /// The session that sent the request: with its end the grants are void.
    pub session: SessionId,
    /// The call was sent again, or made again in another session: the answer may be the first one's, and its grants may
    /// have been recalled since.
    pub resent: bool,
    /// When it arrived, milliseconds since boot.
    pub now_ms: u64,
    /// The shard that answered.
    shard: ShardId,
    /// The stamps of others that the operation has changed.
    others: Vec<(ShardId, u64)>,
}

/// An answer that is the attributes of an inode.
pub struct AttributesAnswer {
    pub attributes: Attributes,
    pub grants: Grants,
    pub stamp: u64,
}

impl AttributesAnswer {
    /// The attributes and the answer's stamp, unless the size is in doubt.
    fn certain(self) -> Result<(Attributes, u64)> {
        if self.grants.contains(Grants::SIZE_IN_DOUBT) {
            return Err(Error::Unreachable);
        }
        Ok((self.attributes, self.stamp))
    }
}

impl Answer {
    /// Up to which stamp what this shard has told of what the operation changed is untrue.
    pub(crate) fn stamp_at(&self, shard: ShardId, cache: &Cache) -> u64 {
        if shard == self.shard {
            return self.stamp;
        }
        let told = self.others.iter().find(|(other, _)| *other == shard);
        // It had nothing to change.
        told.map_or_else(|| cache.latest_stamp(shard), |(_, stamp)| *stamp)
    }
}

/// The call that a message to a shard is.
pub(crate) fn call_of(message: &Message) -> &ShardCall {
    match message {
        Message::Shard(call) => call,
        other => unreachable!("a change is a call to a shard: {other:?}"),
    }
}

/// A shard has refused the session in which a call was sent. It may have made the change before: the next sending says
/// so.
fn name_refused(message: &mut Message, session: SessionId) {
    if let Message::Shard(call) = message
        && call.request.is_made_once()
    {
        let slot = SlotName { of: call.slots_of, index: call.slot };
        call.repeats.push(Origin { session, slot, sequence: call.sequence });
    }
}

/// Whether a reply shows that the shard has heard the session. Others are a node's, which looked at the map alone, or
/// say that the shard does not hear this session.
fn is_of_shard(result: &Result<ShardAnswer>) -> bool {
    !matches!(result, Err(Error::SessionEnded | Error::StaleMap(_) | Error::WrongShard(_) | Error::Busy))
}

/// The slot of a change of which the shard may have others make a part. A name may mean an inode of any shard.
fn crossing(call: &ShardCall) -> Option<SlotName> {
    let may_cross = matches!(
        call.request,
        ShardRequest::Unlink { .. }
            | ShardRequest::UnlinkBatch { .. }
            | ShardRequest::RemoveDirectory { .. }
            | ShardRequest::Rename { .. }
            | ShardRequest::Link { .. }
    );
    may_cross.then_some(SlotName { of: call.slots_of, index: call.slot })
}

/// On whose behalf calls are made when the caller does not say otherwise.
#[derive(Clone, Debug)]
pub struct Caller {
    pub credentials: Credentials,
    /// The client's key fixes its credentials: calls do not carry any.
    pub is_fixed: bool,
}

/// See the module.
pub struct Calls<S: Shell> {
    pub shell: S,
    pub session: Session,
    pub caller: Caller,
    pub locks: Locks<S::LockWaiter>,
    pub groups: JoinedGroups,
    map: RwLock<Arc<ClusterMap>>,
    /// Epoch of `map`.
    epoch: AtomicU32,
    /// A shard had another node by an earlier map.
    shards_move: AtomicBool,
    /// A node that has a newer map.
    newer_map_at: Mutex<Option<NodeId>>,
    links: Mutex<BTreeMap<NodeId, Arc<Link<S>>>>,
    /// Those of sessions that have ended, for the next link to each node: data connections may be given up on them.
    earlier: Mutex<BTreeMap<NodeId, Vec<Arc<Link<S>>>>>,
    closed: AtomicBool,
}

impl<S: Shell> Calls<S> {
    /// A client that has connected to nothing yet.
    pub fn new(shell: S, caller: Caller, map: impl Into<Arc<ClusterMap>>) -> Self {
        let session = Session::new(shell.new_session());
        let map = map.into();
        let (epoch, map) = (AtomicU32::new(map.epoch.0), RwLock::new(map));
        let (shards_move, closed) = (AtomicBool::new(false), AtomicBool::new(false));
        let (newer_map_at, links, earlier) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self {
            shell,
            session,
            caller,
            locks: Locks::default(),
            groups: JoinedGroups::default(),
            map,
            epoch,
            shards_move,
            newer_map_at,
            links,
            earlier,
            closed,
        }
    }

    /// The newest map seen.
    pub fn map(&self) -> Arc<ClusterMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The epoch of the newest map seen.
    pub(crate) fn map_epoch(&self) -> MapEpoch {
        MapEpoch(self.epoch.load(Ordering::Acquire))
    }

    /// The link to a node, whose recalls reach this session.
    pub(crate) async fn link(&self, node: NodeId) -> Result<Arc<Link<S>>> {
        let link = self.link_without_recalls(node)?;
        self.shell.attend_recalls(&link.record, link.session).await?;
        Ok(link)
    }

    /// The link to a node, for requests that grant no leases.
    pub(crate) fn link_without_recalls(&self, node: NodeId) -> Result<Arc<Link<S>>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::BadHandle);
        }
        let mut links = lock(&self.links);
        let session = self.session.id();
        if let Some(link) = links.get(&node).filter(|link| link.session == session) {
            return Ok(Arc::clone(link));
        }
        let record = node_of(&self.map(), node)?.clone();
        let earlier = lock(&self.earlier).remove(&node).into_iter().flatten().collect();
        let link = Arc::new(Link::new(record, session, earlier));
        links.insert(node, Arc::clone(&link));
        Ok(link)
    }

    /// The link that there is to a node.
    pub(crate) fn known_link(&self, node: NodeId) -> Option<Arc<Link<S>>> {
        lock(&self.links).get(&node).cloned()
    }

    /// A session has ended at a shard: a new one begins, and nothing cached holds any more.
    pub fn begin_new_session(&self, ended: SessionId) {
        let next = self.shell.new_session();
        if let Some(dropped) = self.session.replace(ended, next) {
            let links = std::mem::take(&mut *lock(&self.links));
            let mut earlier = lock(&self.earlier);
            links.into_iter().for_each(|(node, link)| earlier.entry(node).or_default().push(link));
            drop(earlier);
            self.shell.notice(Notice::SessionEnded(ended));
            self.shell.session_ended(ended, dropped);
            self.end_locks(ended);
        }
    }

    /// Ends the locks and waits of a session that has ended.
    pub(crate) fn end_locks(&self, ended: SessionId) {
        for waiter in self.locks.session_ended(ended) {
            self.shell.lock_ended(waiter, Err(Error::SessionEnded));
        }
    }

    /// A call on behalf of a user, made exactly once. Renews the session's term at the shard.
    pub async fn call(&self, who: &Credentials, shard: ShardId, request: ShardRequest) -> Result<Answer> {
        self.call_in(SlotFor::Caller, who, shard, request).await
    }

    /// As [`Calls::call`], for a call that may cut a file: it is made again until the pages of other kernels that are
    /// in its way are dropped. No lock may be held.
    pub(crate) async fn call_past_pages(
        &self,
        who: &Credentials,
        shard: ShardId,
        request: ShardRequest,
    ) -> Result<Answer> {
        loop {
            match self.call(who, shard, request.clone()).await {
                Err(Error::PagesCached) => self.wait_for_pages().await,
                result => return result,
            }
        }
    }

    /// Waits a moment before what other kernels' pages are in the way of is sent again: not as long as another client,
    /// whose pages may wait for ours.
    pub(crate) async fn wait_for_pages(&self) {
        self.shell.sleep_us(PAGES_WAIT_US + self.shell.random() % PAGES_WAIT_US).await;
    }

    /// As [`Calls::call`], in a caller's slot or in that of the recalls.
    pub async fn call_in(
        &self,
        slot: SlotFor,
        who: &Credentials,
        shard: ShardId,
        request: ShardRequest,
    ) -> Result<Answer> {
        self.call_of(None, slot, who, shard, request).await
    }

    /// As [`Calls::call_in`]. `session`: the call tells of what this session holds, and is made in no other.
    pub(crate) async fn call_of(
        &self,
        session: Option<SessionId>,
        slot: SlotFor,
        who: &Credentials,
        shard: ShardId,
        request: ShardRequest,
    ) -> Result<Answer> {
        self.shell.notice(Notice::ShardCall);
        let credentials = (!self.caller.is_fixed).then(|| who.clone());
        // Link and slot say the others.
        let (epoch, slots_of, slot_index, sequence, repeats) = (MapEpoch(0), NodeId(0), SlotIndex(0), 0, Vec::new());
        let call = ShardCall { shard, epoch, slots_of, slot: slot_index, sequence, credentials, request, repeats };
        let mut message = Message::Shard(call);
        let mut attempts = 0;
        loop {
            let node = self.find(shard).await?;
            let link = self.link(node).await?;
            if session.is_some_and(|session| session != link.session) {
                return Err(Error::SessionEnded);
            }
            if slot == SlotFor::Caller {
                self.settle(&link).await?;
            }
            match self.call_once(&link, slot, &mut message).await {
                Err(Error::StaleMap(_) | Error::WrongShard(_)) if attempts < ATTEMPTS_MAX => attempts += 1,
                Err(Error::SessionEnded) if attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    name_refused(&mut message, link.session);
                    self.begin_new_session(link.session);
                }
                result => return result,
            }
        }
    }

    /// One slot, one sequence number; the connection is made again as often as it breaks.
    async fn call_once(&self, link: &Link<S>, slot_for: SlotFor, message: &mut Message) -> Result<Answer> {
        let Message::Shard(call) = message else { unreachable!("call_in makes a call to a shard: {message:?}") };
        let mut slot = link.take_slot(slot_for).await;
        slot.sequence += 1;
        (call.slots_of, call.slot, call.sequence) = (link.node(), slot.index, slot.sequence);
        let shard = call.shard;
        let sent_ms = self.shell.now_ms();
        let leaves_doubt = slot_for == SlotFor::Caller && call.request.changes_what_is_known();
        let mut sent = false;
        let result = self.exchange_by_map(link, &mut slot, message, &mut sent).await;
        let session = link.session;
        if result.is_err() && sent && leaves_doubt {
            link.keep_unanswered(&mut slot, message);
            let (crosses, now_ms) = (crossing(call_of(message)), self.shell.now_ms());
            let dropped = self.session.cache_for(session).map(|mut cache| cache.doubt(shard, crosses, now_ms));
            // Before the slot goes back: once somebody has sent the change again, programs here see it made.
            self.shell.invalidate(&dropped.unwrap_or_default()).await;
        }
        link.return_slot(slot).await;
        let (Message::ShardReply(reply), resent) = result? else { return Err(Error::Malformed) };
        let now_ms = self.shell.now_ms();
        if is_of_shard(&reply.result) {
            self.session.heard(shard, session, reply.stamp, (sent_ms, now_ms));
        }
        let (others, resent) = (reply.others, resent || !call_of(message).repeats.is_empty());
        reply.result.map(|answer| Answer { stamp: reply.stamp, answer, session, resent, now_ms, shard, others })
    }

    /// A call about an inode whose answer is its attributes: these, and the answer's stamp. The cache learns them.
    pub(crate) async fn call_for_attributes(
        &self,
        slot: SlotFor,
        who: &Credentials,
        inode: InodeNumber,
        request: ShardRequest,
    ) -> Result<(Attributes, u64)> {
        self.attributes_of(self.call_in(slot, who, routing::of_inode(inode), request).await?)
    }

    /// As [`Calls::call_for_attributes`], of a change that others may have overtaken.
    pub(crate) async fn change_for_attributes(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        request: ShardRequest,
    ) -> Result<(Attributes, u64)> {
        self.report(None, SlotFor::Caller, who, inode, request).await
    }

    /// As [`Calls::change_for_attributes`]. `session`: the call tells of what this session holds, and is made in no
    /// other: in the next one, the file may be open already, and what the last one knew of it would be believed.
    pub(crate) async fn report(
        &self,
        session: Option<SessionId>,
        slot: SlotFor,
        who: &Credentials,
        inode: InodeNumber,
        request: ShardRequest,
    ) -> Result<(Attributes, u64)> {
        match self.report_once(session, slot, who, inode, request).await? {
            Some(told) => told.certain(),
            None => {
                let request = ShardRequest::GetAttributes { inode };
                self.attributes_of(self.call_of(session, slot, who, routing::of_inode(inode), request).await?)
            }
        }
    }

    /// As [`Calls::report`], without asking the shard again. `None`: the call was resent. The reply may be that to its
    /// first attempt, which tells of the inode as it was then: its attributes are not known now.
    pub(crate) async fn report_once(
        &self,
        session: Option<SessionId>,
        slot: SlotFor,
        who: &Credentials,
        inode: InodeNumber,
        request: ShardRequest,
    ) -> Result<Option<AttributesAnswer>> {
        let answer = self.call_of(session, slot, who, routing::of_inode(inode), request).await?;
        if !answer.resent {
            return self.known_attributes_of(answer).map(Some);
        }
        if let Some(mut cache) = self.session.cache_for(answer.session) {
            cache.forget_attributes(inode, answer.stamp);
        }
        Ok(None)
    }

    fn attributes_of(&self, answer: Answer) -> Result<(Attributes, u64)> {
        self.known_attributes_of(answer)?.certain()
    }

    /// As [`Calls::attributes_of`], also with a size in doubt.
    fn known_attributes_of(&self, answer: Answer) -> Result<AttributesAnswer> {
        let Answer { answer, stamp, session, .. } = answer;
        let ShardAnswer::Entry { attributes, grants } = answer else { return Err(Error::Malformed) };
        if let Some(mut cache) = self.session.cache_for(session) {
            cache.learn_attributes(&attributes, grants, stamp);
        }
        Ok(AttributesAnswer { attributes, grants, stamp })
    }

    /// Attributes from the shard, for a caller that resolves a name; and whether the size is in doubt.
    pub(crate) async fn ask_known_attributes(
        &self,
        who: &Credentials,
        inode: InodeNumber,
    ) -> Result<(Attributes, bool)> {
        let request = ShardRequest::GetAttributes { inode };
        let answer = self.call_in(SlotFor::Caller, who, routing::of_inode(inode), request).await?;
        let AttributesAnswer { attributes, grants, .. } = self.known_attributes_of(answer)?;
        Ok((attributes, grants.contains(Grants::SIZE_IN_DOUBT)))
    }

    /// Attributes from the shard. [`Error::Unreachable`]: the shard is away, or the size is in doubt.
    pub(crate) async fn ask_attributes(&self, who: &Credentials, inode: InodeNumber) -> Result<Attributes> {
        let request = ShardRequest::GetAttributes { inode };
        self.call_for_attributes(SlotFor::Caller, who, inode, request).await.map(|(attributes, _)| attributes)
    }

    /// Makes sure that what the session holds at this shard still holds. The session may be another one afterwards.
    /// Sends nothing while the term holds, which the renewals see to.
    pub(crate) async fn ensure_term(&self, shard: ShardId, term: &Term, slot: SlotFor) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            if self.shell.now_ms() < term.load(Ordering::Acquire) {
                return Ok(());
            }
            self.call_in(slot, &self.caller.credentials, shard, ShardRequest::Ping).await?;
        }
        Err(Error::SessionEnded)
    }

    /// A request to a storage server; all of them may be repeated.
    pub async fn storage_call(&self, node: NodeId, request: StorageRequest) -> Result<StorageAnswer> {
        match self.node_exchange(node, &Message::Storage(request)).await? {
            Message::StorageReply(result) => result,
            _ => Err(Error::Malformed),
        }
    }

    /// A request to a node as such; all of them may be repeated.
    pub async fn node_call(&self, node: NodeId, request: NodeRequest) -> Result<NodeAnswer> {
        match self.node_exchange(node, &Message::Node(request)).await? {
            Message::NodeReply(result) => *result,
            _ => Err(Error::Malformed),
        }
    }

    /// Whether a node answers.
    pub(crate) async fn answers(&self, node: NodeId) -> bool {
        self.node_call(node, NodeRequest::Ping).await.is_ok()
    }

    /// Has a shard hear that this session lives, and which groups it has joined.
    pub async fn renew_at(&self, shard: ShardId) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let node = self.find(shard).await?;
            let link = self.link(node).await?;
            let (sent_ms, renew) = (self.shell.now_ms(), Message::Renew { groups: self.groups.all() });
            match self.node_exchange(node, &renew).await? {
                Message::RenewReply { refused: true, .. } => self.begin_new_session(link.session),
                Message::RenewReply { shards, .. } => {
                    self.session.renewed(shards.into_iter(), link.session, sent_ms, self.shell.now_ms());
                    return Ok(());
                }
                _ => return Err(Error::Malformed),
            }
        }
        Err(Error::SessionEnded)
    }

    async fn node_exchange(&self, node: NodeId, message: &Message) -> Result<Message> {
        let link = self.link_without_recalls(node)?;
        let mut slot = link.take_slot(SlotFor::Caller).await;
        let result = link.exchange(&self.shell, &link.record, &mut slot, message, &mut false).await;
        link.return_slot(slot).await;
        result.map(|(reply, _)| reply)
    }

    /// Whether the shard has answered within the session's term.
    pub fn hears(&self, shard: ShardId) -> bool {
        self.session.cache().valid_until_ms(shard) > self.shell.now_ms()
    }

    /// Gives leases back that are not needed any more. Those that are queued meanwhile wait: a program that keeps
    /// making files would otherwise have its leases go back by twos and threes.
    pub(crate) async fn release_surplus(&self) {
        let evicted = self.session.cache().take_evicted();
        self.shell.invalidate(&evicted).await;
        let (session, mut left, mut kept) = (self.session.id(), self.session.surplus_count(), Vec::new());
        while left > 0 {
            let Some((shard, leases)) = self.session.take_surplus() else { break };
            left = left.saturating_sub(leases.len());
            // Nobody waits for a shard that is away: it ends the session, or goes on with it when it is heard again.
            if !self.hears(shard) {
                kept.extend(leases);
                continue;
            }
            let release = ShardRequest::Release { leases: leases.clone() };
            if let Err(error) = self.call_in(SlotFor::Caller, &self.caller.credentials, shard, release).await {
                self.shell.notice(Notice::NotReleased(shard, error));
                kept.extend(leases);
            }
        }
        self.session.queue_again(session, kept);
    }

    /// Gives back the data lease of a closed file, granted up to this stamp; `at_once`: without waiting for others,
    /// since its space is free then. While opens are in flight that waits for them: the reply to one may have an
    /// earlier grant of the same file, and open it again.
    pub(crate) fn give_back(&self, inode: InodeNumber, stamp: u64, at_once: bool) {
        if !self.session.opens.may_open(inode, stamp, at_once) {
            self.give_back_now(inode, stamp, at_once);
        }
    }

    /// Queues the data lease of a file that is not open for release.
    pub(crate) fn give_back_now(&self, inode: InodeNumber, stamp: u64, at_once: bool) {
        if self.session.queue_release(LeaseKey::Data(inode), stamp) {
            self.shell.wake_release();
        }
        if at_once {
            self.shell.release_soon();
        }
    }

    /// Ends the session at every node that was connected, so that nobody waits for its leases. None of them counts any
    /// more, waits for locks end, and later calls fail with [`Error::BadHandle`].
    pub async fn end_sessions(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.forget_session().await;
        lock(&self.links).clear();
        lock(&self.earlier).clear();
        let ended = self.session.id();
        self.session.replace(ended, self.shell.new_session());
        self.end_locks(ended);
    }

    /// Has the shards end this client's session, as they do when its term has passed.
    pub async fn forget_session(&self) {
        let links: Vec<_> = lock(&self.links).values().cloned().collect();
        let map = self.map();
        for link in links {
            for shard in map.shards_at(link.node()) {
                self.end_session(&link, shard, map.epoch).await;
            }
        }
    }

    async fn end_session(&self, link: &Link<S>, shard: ShardId, epoch: MapEpoch) {
        let mut slot = link.take_slot(SlotFor::Caller).await;
        slot.sequence += 1;
        let (slots_of, index, sequence, request) = (link.node(), slot.index, slot.sequence, ShardRequest::EndSession);
        let (credentials, repeats) = (None, Vec::new());
        let call = ShardCall { shard, epoch, slots_of, slot: index, sequence, credentials, request, repeats };
        link.exchange_if_connected(&mut slot, &Message::Shard(call)).await;
        link.return_slot(slot).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_term_is_renewed_by_a_reply_that_the_shard_has_not_made() {
        assert!(is_of_shard(&Ok(ShardAnswer::Done)) && is_of_shard(&Err(Error::NotFound)));
        for refused in [Error::StaleMap(MapEpoch(2)), Error::WrongShard(ShardId(1)), Error::SessionEnded] {
            assert!(!is_of_shard(&Err(refused)));
        }
        // Of a node whose map is older than the caller's (`weft_protocol::map::admit`).
        assert!(!is_of_shard(&Err(Error::Busy)));
    }
}
