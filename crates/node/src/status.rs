//! State of the node, for `weft status` and `weft debug stuck`.

use crate::locks::lock;
use crate::state::Node;
use crate::text::cut;
use std::sync::atomic::Ordering;
use weft_protocol::limits::{IN_FLIGHT_MAX, IN_FLIGHT_TEXT_BYTES_MAX};
use weft_protocol::message::node::{NodeStatus, RequestInFlight};
use weft_store_io::ObjectStore;

/// Returns the current state.
pub fn of(node: &Node) -> NodeStatus {
    let data = node.data.as_ref();
    NodeStatus {
        node: node.cluster.node,
        pid: std::process::id(),
        uptime_seconds: node.started.elapsed().as_secs(),
        shards: node.shards.status(),
        space: data.and_then(|data| data.store.space().ok()),
        store: data.map(|data| store_text(&*data.store)).unwrap_or_default(),
        rdma: data.map(|data| lock(&data.rdma).clone()).unwrap_or_default(),
        counters: node.counters.read(),
        connections: node.connections.load(Ordering::Relaxed),
    }
}

/// Where a store is, and what has failed in it that nobody was told of.
fn store_text(store: &dyn ObjectStore) -> String {
    let place = store.describe();
    store.failures().map_or(place.clone(), |failures| format!("{place}; {failures}"))
}

/// Returns every call and every data request in flight, oldest first.
fn in_flight(node: &Node) -> Vec<RequestInFlight> {
    let mut requests = node.shards.in_flight();
    requests.extend(node.data.iter().flat_map(|data| data.activity.in_flight()));
    requests.sort_by_key(|request| std::cmp::Reverse(request.age_ms));
    requests
}

/// Returns the oldest requests in flight, truncated to what a reply can hold.
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

/// Logs the requests in flight, on SIGUSR1.
pub fn log_in_flight(node: &Node) {
    let requests = in_flight(node);
    tracing::info!("{} requests in flight", requests.len());
    for RequestInFlight { peer, request, state, age_ms } in requests {
        tracing::info!("{age_ms} ms: {request} of {peer}: {state}");
    }
}
