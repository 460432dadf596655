//! Changes that wait for pages of kernels, at storage servers.

use super::data::{Body, Held};
use super::partitions::Party;
use super::{Message, World};
use crate::store::Bytes;
use weft_protocol::data::DataReply;
use weft_protocol::message::recall::PagesDropped;
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::{Error, NodeId, ObjectId, SessionId, ShardId};
use weft_storage::{RangeRequest, RangesEffect};

/// How long a change is held back before it is to be sent again, milliseconds.
const HELD_MS: u64 = 20;

impl World {
    /// A request whose header has come is carried out, now or when no pages are in its way.
    pub(super) fn begin_data(&mut self, mut body: Body) {
        let node = body.message.request.object.node();
        let request = self.storage.get(&node).and_then(|storage| storage.range_of(&body.message));
        let Some(request) = request.filter(|_| body.refused.is_none()) else { return self.land(body) };
        let (object, changes) = (request.object, request.changes);
        let (number, is_admitted) = self.begin_range(node, request);
        body.number = changes.then_some(number);
        if is_admitted {
            return self.land(body);
        }
        self.connections.held.insert((node, number), Held::Data(Box::new(body)));
        if changes {
            self.network.after(HELD_MS, Message::HeldLong { node, number, object });
        }
    }

    /// A cut likewise. Returns true if it waits.
    pub(super) fn begin_cut(
        &mut self,
        shard: ShardId,
        token: Option<u64>,
        node: NodeId,
        request: &StorageRequest,
    ) -> bool {
        let StorageRequest::Truncate { inode, object, size, by } = *request else { return false };
        if !self.storage.contains_key(&node) {
            return false;
        }
        let asked = RangeRequest::of_cut(by, (object, inode), size);
        let (number, is_admitted) = self.begin_range(node, asked);
        if is_admitted {
            self.perform(shard, token, node, request);
            self.end_request(node, object, number);
        } else {
            self.connections.held.insert((node, number), Held::Cut { shard, token, request: request.clone() });
            self.network.after(HELD_MS, Message::HeldLong { node, number, object });
        }
        true
    }

    fn begin_range(&mut self, node: NodeId, request: RangeRequest) -> (u64, bool) {
        let now_ms = self.now_at(node).boot_ms;
        let mut out = Vec::new();
        let storage = self.storage.get_mut(&node).expect("whoever begins a request has looked");
        let begun = storage.ranges.begin(request, now_ms, &mut out);
        self.carry_out_ranges(node, out);
        begun
    }

    /// A data request has come to its end.
    pub(super) fn end_range(&mut self, body: &Body) {
        if let Some(number) = body.number {
            let object = body.message.request.object;
            self.end_request(object.node(), object, number);
        }
    }

    fn end_request(&mut self, node: NodeId, object: ObjectId, number: u64) {
        let now_ms = self.now_at(node).boot_ms;
        let mut out = Vec::new();
        if let Some(storage) = self.storage.get_mut(&node) {
            storage.ranges.end(object, number, now_ms, &mut out);
        }
        self.carry_out_ranges(node, out);
    }

    fn carry_out_ranges(&mut self, node: NodeId, effects: Vec<RangesEffect>) {
        for effect in effects {
            match effect {
                RangesEffect::Drop { session, drop } => {
                    self.tally.drops += 1;
                    if let Some(to) = self.party_of(session) {
                        self.send(Party::Node(node), to, Message::DropPages { session, drop });
                    }
                }
                RangesEffect::Admit(number) => self.admit(node, number),
            }
        }
        self.set_tick(node);
    }

    fn admit(&mut self, node: NodeId, number: u64) {
        match self.connections.held.remove(&(node, number)) {
            Some(Held::Data(body)) => self.land(*body),
            Some(Held::Cut { shard, token, request }) => {
                self.perform(shard, token, node, &request);
                if let StorageRequest::Truncate { object, .. } = request {
                    self.end_request(node, object, number);
                }
            }
            None => {}
        }
    }

    /// A change has waited too long: it is to be sent again.
    pub(super) fn held_long(&mut self, node: NodeId, number: u64, object: ObjectId) {
        let Some(held) = self.connections.held.remove(&(node, number)) else { return };
        self.tally.held += 1;
        self.end_request(node, object, number);
        match held {
            Held::Data(body) => {
                let refusal = (DataReply::failed(0, &Error::PagesCached), Bytes::default());
                self.answer_body(&body, body.is_answered.then_some(refusal));
            }
            Held::Cut { shard, token, .. } => self.tell_shard(shard, token, Err(Error::PagesCached)),
        }
    }

    pub(super) fn pages_dropped(&mut self, session: SessionId, node: NodeId, dropped: PagesDropped) {
        let now_ms = self.now_at(node).boot_ms;
        let mut out = Vec::new();
        if let Some(storage) = self.storage.get_mut(&node) {
            storage.ranges.dropped(session, (dropped.object, dropped.number), now_ms, &mut out);
        }
        self.carry_out_ranges(node, out);
    }

    /// A session is over, at one shard or altogether.
    pub(super) fn caches_nothing(&mut self, node: NodeId, session: SessionId, shard: Option<ShardId>) {
        let now_ms = self.now_at(node).boot_ms;
        let mut out = Vec::new();
        if let Some(storage) = self.storage.get_mut(&node) {
            storage.ranges.session_over(session, shard, now_ms, &mut out);
        }
        self.carry_out_ranges(node, out);
    }

    fn set_tick(&mut self, node: NodeId) {
        let now_ms = self.now_at(node).boot_ms;
        if let Some(storage) = self.storage.get_mut(&node)
            && storage.tick_ms.is_none()
            && let Some(deadline_ms) = storage.ranges.deadline_ms()
        {
            storage.tick_ms = Some(deadline_ms);
            let wait_ms = self.clocks[&node].wait_ms(deadline_ms.saturating_sub(now_ms).max(1));
            self.network.after(wait_ms, Message::StorageTick(node));
        }
    }

    pub(super) fn storage_tick(&mut self, node: NodeId) {
        let now_ms = self.now_at(node).boot_ms;
        let mut out = Vec::new();
        if let Some(storage) = self.storage.get_mut(&node) {
            storage.tick_ms = None;
            storage.ranges.tick(now_ms, &mut out);
        }
        self.carry_out_ranges(node, out);
    }

    /// A node is gone, and with it what waited there.
    pub(super) fn forget_held(&mut self, node: NodeId) {
        let gone: Vec<_> = self.connections.held.extract_if(.., |(of, _), _| *of == node).collect();
        for (_, held) in gone {
            match held {
                Held::Data(body) => self.answer_body(&body, None),
                Held::Cut { shard, token, .. } => self.tell_shard(shard, token, Err(Error::Unreachable)),
            }
        }
    }
}
