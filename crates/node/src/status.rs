//! State of the node, for `weft status` and `weft debug stuck`.

use crate::clock;
use crate::shards::Waiting;
use crate::state::{Node, lock};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use weft_protocol::limits::{IN_FLIGHT_MAX, IN_FLIGHT_TEXT_BYTES_MAX};
use weft_protocol::message::node::{NodeStatus, RequestInFlight};

/// The state now.
pub fn of(node: &Node) -> NodeStatus {
    let shards: Vec<_> = node.shards.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
    NodeStatus {
        node: node.config.node,
        pid: std::process::id(),
        uptime_seconds: node.started.elapsed().as_secs(),
        shards: shards.iter().map(|shard| shard.status()).collect(),
        space: node.store.as_ref().and_then(|server| server.store.space().ok()),
        store: node.store.as_ref().map(|server| server.store.describe()).unwrap_or_default(),
        rdma: lock(&node.rdma).clone(),
        counters: node.counters.read(),
        connections: node.connections.load(Ordering::Relaxed),
    }
}

/// Every call and every data request that has not been answered, oldest first.
pub fn in_flight(node: &Node) -> Vec<RequestInFlight> {
    let shards: Vec<_> = node.shards.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
    let mut parked: BTreeMap<u64, (String, String)> = BTreeMap::new();
    for shard in shards {
        parked.extend(shard.parked().into_iter().map(|(token, request, waits_for)| (token, (request, waits_for))));
    }
    let now = clock::boot_ms();
    let pending = lock(&node.pending);
    let waiting = pending.iter().filter_map(|(token, waiting)| match waiting {
        Waiting::Call(call) => Some((token, call)),
        Waiting::Answered(_) => None,
    });
    let mut requests: Vec<_> = waiting
        .map(|(token, call)| {
            let known = parked.remove(token);
            let (request, state) = known.unwrap_or_else(|| ("call".to_owned(), "waits for another server".to_owned()));
            RequestInFlight { peer: call.peer.clone(), request, state, age_ms: now.saturating_sub(call.since_ms) }
        })
        .collect();
    drop(pending);
    requests.extend(node.data_activity.in_flight());
    requests.sort_by_key(|request| std::cmp::Reverse(request.age_ms));
    requests
}

/// The oldest of them, as many and as long as an answer can hold.
pub fn longest_in_flight(node: &Node) -> Vec<RequestInFlight> {
    let mut requests = in_flight(node);
    requests.truncate(IN_FLIGHT_MAX);
    for request in &mut requests {
        for text in [&mut request.peer, &mut request.request, &mut request.state] {
            cut(text, IN_FLIGHT_TEXT_BYTES_MAX);
        }
    }
    requests
}

/// Cuts a text to at most so many bytes.
pub fn cut(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        let end = (0..=bytes_max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
}

/// Writes what is in flight to the log: what the signal SIGUSR1 asks for.
pub fn log_in_flight(node: &Node) {
    let requests = in_flight(node);
    tracing::info!("{} requests in flight", requests.len());
    for RequestInFlight { peer, request, state, age_ms } in requests {
        tracing::info!("{age_ms} ms: {request} of {peer}: {state}");
    }
}
