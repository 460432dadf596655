//! Group opens: which groups shards have to keep, what may land by their rights, and when these may be void.
//!
//! Not here: what is read and written (`bytes.rs`), as of any other handle that buffers nothing.

use super::partitions::Party;
use super::{Message, Renewal, World};
use crate::bytes::ProcessId;
use crate::store::DataMessage;
use std::collections::BTreeMap;
use weft_protocol::data::DataOperation;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::{GroupOpen, InodeNumber, NodeId, Rights, SessionId, ShardId, routing};

/// A shard keeps a group for so long at least after it has heard a member: clocks run at different speeds.
const KEPT_MS: u64 = SESSION_TERM_MS - SESSION_TERM_MS / 20;

/// The groups that a client has joined, with their shards.
pub(super) type Joined = Vec<(ShardId, SessionId)>;

/// What is known of groups.
#[derive(Default)]
pub(super) struct Groups {
    /// Number of the latest renewal that was sent, and of the latest that has come from a process to a node.
    sent: u64,
    came: BTreeMap<(ProcessId, NodeId), u64>,
    /// When a shard was last told by the session of a client that this is in a group.
    heard_ms: BTreeMap<(ShardId, SessionId, SessionId), u64>,
}

impl World {
    /// A client renews its session at all nodes.
    pub(super) fn renew_now(&mut self, index: usize) {
        let client = &self.clients[index];
        let (session, process) = (client.session(), client.process.id.get());
        let sent_ms = client.process.clock.boot_ms(self.network.now_ms);
        let calls = client.machine.calls();
        let (nodes, joined) = (calls.map().nodes.clone(), calls.groups.all());
        for node in nodes.into_iter().map(|node| node.id) {
            self.groups.sent += 1;
            let (number, joined) = (self.groups.sent, joined.clone());
            let renewal = Renewal { session, node, sent_ms };
            let message = Message::Renewal { client: index, process, renewal, number, joined };
            self.send(Party::Client(index), Party::Node(node), message);
        }
    }

    /// Whether a renewal came behind a later one: a connection keeps its order, so that it does not come at all.
    pub(super) fn is_overtaken(&mut self, process: ProcessId, node: NodeId, number: u64) -> bool {
        let came = self.groups.came.entry((process, node)).or_default();
        *came = number.max(*came);
        *came > number
    }

    /// A shard is about to hear a session, which has left all groups but these.
    pub(super) fn members_left(&mut self, shard: ShardId, session: SessionId, joined: &Joined) {
        self.groups
            .heard_ms
            .retain(|(at, group, member), _| (*at, *member) != (shard, session) || joined.contains(&(shard, *group)));
    }

    /// A shard has heard a session that is in these groups.
    pub(super) fn members_heard(&mut self, shard: ShardId, session: SessionId, joined: &Joined) {
        let Some(machine) = self.shards.get(&shard).filter(|machine| !machine.refuses(session)) else { return };
        for (_, group) in joined.iter().filter(|(at, _)| *at == shard) {
            if !machine.refuses(*group) && !machine.merely_open(*group).is_empty() {
                self.groups.heard_ms.insert((shard, *group, session), self.network.now_ms);
            }
        }
    }

    /// A shard ends a session, or a group: which nobody may be in then.
    pub(super) fn group_ends(&mut self, shard: ShardId, ended: SessionId) {
        let of_shard: Vec<_> = self
            .groups
            .heard_ms
            .extract_if(.., |(at, group, member), _| *at == shard && (*group == ended || *member == ended))
            .collect();
        let late_ms = self.network.now_ms.saturating_sub(KEPT_MS);
        let lives = |(key, heard_ms): &&((ShardId, SessionId, SessionId), u64)| key.1 == ended && *heard_ms > late_ms;
        if let Some(((_, group, member), heard_ms)) = of_shard.iter().find(lives) {
            self.fail(&format!("shard {shard} ends group {group}, which session {member} was in at {heard_ms} ms"));
        }
    }

    /// A piece of a write has landed, or another request is carried out. By a group's right only as long as the group
    /// has the file open: nobody else was granted a lease to cache it.
    pub(super) fn check_by_group(&mut self, message: &DataMessage) {
        let (inode, capability) = (message.request.inode, &message.request.capability);
        let shard = routing::of_inode(inode);
        if !capability.rights.contains(Rights::GROUP) || self.model.lost.contains(&shard) {
            return;
        }
        if !self.is_open_by_group(inode, capability.session) {
            let group = capability.session;
            self.fail(&format!("{message:?} by group {group}, which does not have {inode} open any more"));
        }
        let writes = matches!(message.request.operation, DataOperation::Write | DataOperation::Append);
        self.tally.group_writes += u64::from(writes);
        self.tally.group_requests += u64::from(!writes);
        let record = self.shards.get(&shard).and_then(|machine| machine.back().inode(inode));
        self.tally.group_unlinked += u64::from(record.is_some_and(|record| record.links == 0));
    }

    fn is_open_by_group(&self, inode: InodeNumber, group: SessionId) -> bool {
        let machine = self.shards.get(&routing::of_inode(inode));
        machine.is_some_and(|machine| machine.merely_open(group).contains(&inode))
    }

    /// A member was told that the rights of a group are void: then the group has ended, or the objects are others. Of a
    /// split file, its own session may have ended: a part is a session's.
    pub(super) fn rights_void(&mut self, open: &GroupOpen) {
        let GroupOpen { inode, group, rights, layout, .. } = open;
        if layout.epoch().is_some() {
            return;
        }
        let shard = routing::of_inode(*inode);
        let Some(machine) = self.shards.get(&shard).filter(|machine| !machine.refuses(*group)) else { return };
        let record = machine.back().inode(*inode);
        let is_same = record.is_some_and(|record| {
            let objects = record.layout.objects();
            objects.len() == rights.len()
                && objects.iter().zip(rights).all(|(object, right)| right.covers(*inode, *object))
        });
        if is_same && self.is_open_by_group(*inode, *group) {
            self.fail(&format!("the rights of group {group} to {inode} are void, and it lives"));
        }
    }
}
