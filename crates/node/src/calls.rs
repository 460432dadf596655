//! Calls that shards have not answered yet.

use crate::clock;
use crate::locks::lock;
use crate::mailbox::{ConnectionRef, Sink};
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_metadata::NOBODY;
use weft_protocol::message::Message;
use weft_protocol::message::node::RequestInFlight;

/// Pending calls by token.
#[derive(Default)]
pub struct Calls {
    pending: Mutex<HashMap<u64, Waiting>>,
    next_token: AtomicU64,
}

/// State of a token after the thread that brought the call has left the shards.
enum Waiting {
    /// The call waits for its reply.
    Call(Pending),
    /// Another thread produced the reply before the caller's thread registered the call; that thread sends it.
    Answered(Message),
}

struct Pending {
    to: ConnectionRef,
    id: u64,
    peer: String,
    since_ms: u64,
}

/// The call being handled on this thread. Most calls are answered before the thread leaves the shards.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    pub token: u64,
    /// The connection and the identifier of its request.
    pub to: ConnectionRef,
    pub id: u64,
    /// Describes the peer, for `weft debug stuck`.
    pub peer: &'a dyn Fn() -> String,
}

impl Calls {
    /// Returns a token for a new call.
    pub fn token(&self) -> u64 {
        // Token 0 is of calls between shards of this node.
        1 + self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers a call that was not answered on its own thread, or sends the reply that came meanwhile.
    pub fn park(&self, caller: Caller<'_>, sink: &mut Sink<'_>) {
        let pending = Pending { to: caller.to, id: caller.id, peer: (caller.peer)(), since_ms: clock::boot_ms() };
        let early = {
            let mut table = lock(&self.pending);
            let early = table.remove(&caller.token);
            if early.is_none() {
                table.insert(caller.token, Waiting::Call(pending));
            }
            early
        };
        if let Some(Waiting::Answered(message)) = early {
            sink.send(caller.to, caller.id, message);
        }
    }

    /// Sends the reply for a token: to `caller`, which is taken, or to the pending call.
    pub fn answer(&self, token: u64, message: Message, caller: &mut Option<Caller<'_>>, sink: &mut Sink<'_>) {
        // Nobody waits, or a shard that has come here with a move does not know who.
        if token == NOBODY {
            return;
        }
        if let Some(present) = caller.take_if(|caller| caller.token == token) {
            return sink.send(present.to, present.id, message);
        }
        let mut table = lock(&self.pending);
        match table.remove(&token) {
            Some(Waiting::Call(pending)) => {
                drop(table);
                sink.send(pending.to, pending.id, message);
            }
            _ => {
                table.insert(token, Waiting::Answered(message));
            }
        }
    }

    /// Returns every pending call. `parked`: what shards say of their tokens, request and reason of the wait.
    pub fn in_flight(&self, mut parked: BTreeMap<u64, (String, String)>) -> Vec<RequestInFlight> {
        let now = clock::boot_ms();
        let pending = lock(&self.pending);
        let waiting = pending.iter().filter_map(|(token, waiting)| match waiting {
            Waiting::Call(call) => Some((token, call)),
            Waiting::Answered(_) => None,
        });
        let describe = |(token, call): (&u64, &Pending)| {
            let known = parked.remove(token);
            let (request, state) = known.unwrap_or_else(|| ("call".to_owned(), "waits for another server".to_owned()));
            RequestInFlight { peer: call.peer.clone(), request, state, age_ms: now.saturating_sub(call.since_ms) }
        };
        waiting.map(describe).collect()
    }
}
