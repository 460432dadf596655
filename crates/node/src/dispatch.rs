//! Dispatch of the messages on control connections.
//!
//! Decides who may send which request: a client's requests go to shards with the credentials that its key allows;
//! steps between shards and the storage requests of shards are accepted from nodes only.

use crate::calls::Caller;
use crate::counters::AtomicCounters;
use crate::mailbox::{ConnectionRef, Sink};
use crate::moving::Move;
use crate::state::Node;
use crate::status;
use crate::text::peer_text;
use weft_metadata::Event;
use weft_metadata::back::{Origin, Slot};
use weft_protocol::handshake::KeyName;
use weft_protocol::limits::{GROUPS_PER_SESSION_MAX, REPEATED_CALLS_MAX, SLOTS_MAX};
use weft_protocol::map::admit;
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::message::shard::{ShardCall, ShardReply, ShardRequest};
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::{Credentials, Error, MapEpoch};
use weft_transport::{Peer, Result, TransportError};

/// Handles one message. The reply goes to `sink`, or is sent later. An error closes the connection.
pub fn handle(
    node: &Node,
    peer: &Peer,
    from: ConnectionRef,
    id: u64,
    message: Message,
    sink: &mut Sink<'_>,
) -> Result<()> {
    node.revoked.check(&peer.key_name).map_err(TransportError::Refused)?;
    AtomicCounters::add(&node.counters.requests, 1);
    match message {
        Message::Shard(call) => handle_shard_call(node, peer, from, id, call, sink),
        Message::Storage(request) => handle_storage_request(node, peer, from, id, request, sink),
        Message::Node(NodeRequest::Join { nodes, shards_per_node }) if is_privileged(peer) => {
            node.members.join(from, id, nodes, shards_per_node);
        }
        Message::Node(NodeRequest::Move { shard, to }) if is_privileged(peer) => {
            node.members.move_shard(from, id, shard, to);
        }
        Message::Node(NodeRequest::Change { node: changed, change }) if is_privileged(peer) => {
            node.members.change(from, id, changed, change);
        }
        Message::Node(NodeRequest::Ship { shard, to, epoch }) if is_node(peer) => {
            node.shards.ship(Move { shard, to, epoch }, (from, id));
        }
        Message::Node(NodeRequest::Take { shard, epoch, part }) if is_node(peer) => {
            node.shards.take_part((shard, epoch), part, (from, id));
        }
        Message::Node(request) => {
            let answer = handle_node_request(node, peer, request, sink);
            sink.send(from, id, Message::NodeReply(Box::new(answer)));
        }
        Message::Peer(call) if is_node(peer) => {
            let token = node.shards.calls.token();
            let to = call.to;
            let text = || peer_text(peer);
            let caller = Caller { token, to: from, id, peer: &text };
            node.shards.give(to, Event::PeerCall { token, call }, Some(caller), sink);
        }
        Message::RecallAnswer(answer) => {
            let event = Event::RecallAnswer { session: peer.session, number: answer.number, kept: answer.kept };
            node.shards.give(answer.shard, event, None, sink);
        }
        Message::LockGrantTaken(taken) => {
            let event = Event::LockGrantTaken { session: peer.session, wait: taken.wait };
            node.shards.give(taken.shard, event, None, sink);
        }
        Message::PagesDropped(dropped) => node.shards.pages.dropped(peer.session, dropped),
        Message::Renew { mut groups } => {
            if groups.len() > GROUPS_PER_SESSION_MAX {
                groups.clear();
            }
            let (refused, shards) = node.shards.renew(peer.session, &groups, sink);
            let refused = refused || node.shards.pages.is_overdue(peer.session);
            sink.send(from, id, Message::RenewReply { refused, epoch: node.cluster.epoch(), shards });
        }
        Message::Peer(_)
        | Message::ShardReply(_)
        | Message::StorageReply(_)
        | Message::NodeReply(_)
        | Message::PeerReply(_)
        | Message::Recall(_)
        | Message::DropPages(_)
        | Message::LockGranted(_)
        | Message::RenewReply { .. } => return Err(TransportError::Malformed),
    }
    Ok(())
}

fn handle_shard_call(node: &Node, peer: &Peer, from: ConnectionRef, id: u64, call: ShardCall, sink: &mut Sink<'_>) {
    if let Err(error) = check_call(node, peer, &call) {
        sink.send(from, id, Message::ShardReply(ShardReply { stamp: 0, result: Err(error), others: Vec::new() }));
        return;
    }
    if let ShardRequest::OpenAt { .. } | ShardRequest::Open { .. } | ShardRequest::OpenGroup { .. } = call.request
        && node.shards.storage.as_ref().is_some_and(|server| server.reads_below())
    {
        let located = Event::Located { session: peer.session, machine: peer.identity };
        node.shards.give(call.shard, located, None, sink);
    }
    let token = node.shards.calls.token();
    let event = Event::Call {
        token,
        origin: Origin {
            session: peer.session,
            slot: Slot { of: call.slots_of, index: call.slot },
            sequence: call.sequence,
        },
        credentials: credentials(node, peer, call.credentials),
        request: call.request,
        repeats: call.repeats,
    };
    let text = || peer_text(peer);
    let caller = Caller { token, to: from, id, peer: &text };
    node.shards.give(call.shard, event, Some(caller), sink);
}

fn handle_storage_request(
    node: &Node,
    peer: &Peer,
    from: ConnectionRef,
    id: u64,
    request: StorageRequest,
    sink: &mut Sink<'_>,
) {
    match &node.shards.storage {
        Some(server) => server.handle(peer, from, id, request, sink),
        None => sink.send(from, id, Message::StorageReply(Err(Error::NotSupported))),
    }
}

/// Checks the epoch of a request, and gets the newer map that it may show.
fn check_epoch(node: &Node, epoch: MapEpoch) -> std::result::Result<(), Error> {
    let admitted = admit(node.cluster.epoch(), epoch);
    if admitted == Err(Error::Busy) {
        node.map_source.ask();
    }
    admitted
}

fn check_call(node: &Node, peer: &Peer, call: &ShardCall) -> std::result::Result<(), Error> {
    check_epoch(node, call.epoch)?;
    if let ShardRequest::ReadBelow { .. } | ShardRequest::NoteBelow { .. } = call.request
        && !is_privileged(peer)
    {
        return Err(Error::NotPermitted);
    }
    // Bounds the replies that the shard retains, one per slot.
    let knows_slots = call.slot.0 < SLOTS_MAX && node.cluster.map().node(call.slots_of).is_some();
    if !knows_slots || call.repeats.len() > REPEATED_CALLS_MAX {
        return Err(Error::Invalid);
    }
    call.credentials.as_ref().map_or(Ok(()), Credentials::check)
}

/// Returns the credentials of a call: those of the key, or those in the call if the key may act for other users.
fn credentials(node: &Node, peer: &Peer, claimed: Option<Credentials>) -> Credentials {
    let owner = || Credentials { uid: node.cluster.owner_uid, gid: node.cluster.owner_gid, groups: Box::default() };
    match &peer.key_name {
        KeyName::User { credentials, .. } => credentials.clone(),
        KeyName::Owner => claimed.unwrap_or_else(owner),
        KeyName::Node(_) => claimed.unwrap_or_default(),
    }
}

fn is_privileged(peer: &Peer) -> bool {
    !matches!(peer.key_name, KeyName::User { .. })
}

fn is_node(peer: &Peer) -> bool {
    matches!(peer.key_name, KeyName::Node(_))
}

fn handle_node_request(
    node: &Node,
    peer: &Peer,
    request: NodeRequest,
    sink: &mut Sink<'_>,
) -> std::result::Result<NodeAnswer, Error> {
    let privileged = is_privileged(peer);
    match request {
        NodeRequest::Ping => Ok(NodeAnswer::Done),
        NodeRequest::GetMap => Ok(NodeAnswer::Map((*node.cluster.map()).clone())),
        NodeRequest::Status if privileged => Ok(NodeAnswer::Status(Box::new(status::of(node)))),
        NodeRequest::SetMap(map) if privileged => node.shards.set_map(map, sink).map(|()| {
            node.members.installed((*node.cluster.map()).clone());
            NodeAnswer::Done
        }),
        NodeRequest::Stuck if privileged => Ok(NodeAnswer::InFlight(status::longest_in_flight(node))),
        NodeRequest::Shutdown if privileged => {
            node.stop();
            Ok(NodeAnswer::Done)
        }
        NodeRequest::AskToServe { epoch, settled } => match peer.key_name {
            KeyName::Node(storage_server) => {
                check_epoch(node, epoch)?;
                Ok(NodeAnswer::Serving(node.shards.granting.ask(storage_server, &settled)))
            }
            KeyName::Owner | KeyName::User { .. } => Err(Error::NotPermitted),
        },
        NodeRequest::AskOfObject { session, inode, object } => match peer.key_name {
            KeyName::Node(_) => {
                let used = node.shards.uses_object(session, inode, object);
                used.map(|is_used| NodeAnswer::OfObject { is_used })
            }
            KeyName::Owner | KeyName::User { .. } => Err(Error::NotPermitted),
        },
        NodeRequest::RevokeKey(key) if privileged => {
            tracing::info!("key {key} revoked");
            node.revoked.revoke(key).map(|()| NodeAnswer::Done)
        }
        NodeRequest::SetMap(_)
        | NodeRequest::Status
        | NodeRequest::Stuck
        | NodeRequest::Shutdown
        | NodeRequest::Join { .. }
        | NodeRequest::Move { .. }
        | NodeRequest::Change { .. }
        | NodeRequest::Ship { .. }
        | NodeRequest::Take { .. }
        | NodeRequest::RevokeKey(_) => Err(Error::NotPermitted),
    }
}
