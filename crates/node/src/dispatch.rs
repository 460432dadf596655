//! What a message on a control connection becomes.
//!
//! Here it is decided who may ask what: a client's requests go to shards with the credentials that its key allows; the
//! steps between shards and the storage requests of shards come from nodes only.

use crate::event_loop::{ConnectionRef, Sink};
use crate::shards::{self, Caller};
use crate::state::{AtomicCounters, Node};
use crate::{status, storage_server};
use weft_metadata::Event;
use weft_protocol::handshake::KeyName;
use weft_protocol::limits::SLOTS_MAX;
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::message::shard::{ShardCall, ShardReply};
use weft_protocol::{Credentials, Error};
use weft_transport::{Peer, Result, TransportError};

/// Handles one message. Answers go to `sink`, now or later. An error closes the connection.
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
        Message::Storage(request) => storage_server::handle(node, peer, from, id, request, sink),
        Message::Node(request) => {
            let answer = handle_node_request(node, peer, request, sink);
            sink.send(from, id, Message::NodeReply(Box::new(answer)));
        }
        Message::Peer(call) if matches!(peer.key_name, KeyName::Node(_)) => {
            let token = node.token();
            let to = call.to;
            let text = || peer_text(peer);
            let caller = Caller { token, to: from, id, peer: &text };
            shards::give(node, to, Event::PeerCall { token, call }, Some(caller), sink);
        }
        Message::RecallAnswer(answer) => {
            let event = Event::RecallAnswer { session: peer.session, number: answer.number, kept: answer.kept };
            shards::give(node, answer.shard, event, None, sink);
        }
        // Nothing is noted yet that would have to be dropped.
        Message::PagesDropped(_) => {}
        Message::Renew => {
            let refused = shards::renew(node, peer.session, sink);
            sink.send(from, id, Message::RenewReply { refused });
        }
        Message::Peer(_)
        | Message::ShardReply(_)
        | Message::StorageReply(_)
        | Message::NodeReply(_)
        | Message::PeerReply(_)
        | Message::Recall(_)
        | Message::DropPages(_)
        | Message::RenewReply { .. } => return Err(TransportError::Malformed),
    }
    Ok(())
}

/// A peer in words, for `weft debug stuck`.
pub fn peer_text(peer: &Peer) -> String {
    let who = match &peer.key_name {
        KeyName::Node(node) => format!("node {node}"),
        KeyName::Owner => "owner".to_owned(),
        KeyName::User { credentials, .. } => format!("uid {}", credentials.uid),
    };
    format!("{who}, session {}", peer.session)
}

fn handle_shard_call(node: &Node, peer: &Peer, from: ConnectionRef, id: u64, call: ShardCall, sink: &mut Sink<'_>) {
    if let Err(error) = check_call(node, &call) {
        sink.send(from, id, Message::ShardReply(ShardReply { stamp: 0, result: Err(error) }));
        return;
    }
    let token = node.token();
    let event = Event::Call {
        session: peer.session,
        token,
        credentials: credentials(node, peer, call.credentials),
        slot: call.slot,
        sequence: call.sequence,
        request: call.request,
    };
    let text = || peer_text(peer);
    let caller = Caller { token, to: from, id, peer: &text };
    shards::give(node, call.shard, event, Some(caller), sink);
}

fn check_call(node: &Node, call: &ShardCall) -> std::result::Result<(), Error> {
    if call.epoch != node.epoch() {
        return Err(Error::StaleMap(node.epoch()));
    }
    // The shard keeps the last reply of each slot.
    if call.slot.0 >= SLOTS_MAX {
        return Err(Error::Invalid);
    }
    call.credentials.as_ref().map_or(Ok(()), Credentials::check)
}

/// On whose behalf a call is: what the key fixes, or what its holder says when it may speak for others.
fn credentials(node: &Node, peer: &Peer, said: Option<Credentials>) -> Credentials {
    let owner = || Credentials { uid: node.config.owner_uid, gid: node.config.owner_gid, groups: Box::default() };
    match &peer.key_name {
        KeyName::User { credentials, .. } => credentials.clone(),
        KeyName::Owner => said.unwrap_or_else(owner),
        KeyName::Node(_) => said.unwrap_or_default(),
    }
}

fn handle_node_request(
    node: &Node,
    peer: &Peer,
    request: NodeRequest,
    sink: &mut Sink<'_>,
) -> std::result::Result<NodeAnswer, Error> {
    let privileged = !matches!(peer.key_name, KeyName::User { .. });
    match request {
        NodeRequest::Ping => Ok(NodeAnswer::Done),
        NodeRequest::GetMap => Ok(NodeAnswer::Map((*node.map()).clone())),
        NodeRequest::Status if privileged => Ok(NodeAnswer::Status(Box::new(status::of(node)))),
        NodeRequest::SetMap(map) if privileged => shards::set_map(node, map, sink).map(|()| NodeAnswer::Done),
        NodeRequest::Stuck if privileged => Ok(NodeAnswer::InFlight(status::longest_in_flight(node))),
        NodeRequest::Shutdown if privileged => {
            node.stopping.ask();
            for mailbox in &node.loops {
                mailbox.look();
            }
            Ok(NodeAnswer::Done)
        }
        NodeRequest::RevokeKey(key) if privileged => {
            tracing::info!("key {key} is revoked");
            node.revoked.revoke(key).map(|()| NodeAnswer::Done)
        }
        NodeRequest::SetMap(_)
        | NodeRequest::Status
        | NodeRequest::Stuck
        | NodeRequest::Shutdown
        | NodeRequest::RevokeKey(_) => Err(Error::NotPermitted),
    }
}
