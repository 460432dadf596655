//! Limits on the number of connections: per session, per user, per node.
//!
//! A data connection costs a thread and a few descriptors for as long as its peer likes, a control connection a
//! descriptor and buffers. Any holder of a key could exhaust them, so each connection takes a *place* at the end of its
//! handshake and releases it when it closes. Without a free place the peer is refused as busy: it uses its other
//! connections, or retries.
//!
//! One user's key can take only a share of the node's places, so that it cannot lock out others. The owner's key has no
//! such limit: it may end the node anyway.

use crate::locks::lock;
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use weft_protocol::handshake::{KeyName, Purpose};
use weft_protocol::limits::{DATA_CONNECTIONS_PER_SESSION_MAX, SLOTS_MAX};
use weft_protocol::{Error, Result, SessionId};
use weft_transport::Peer;

/// Maximum number of data connections of a node, each with a thread; lower if the descriptor limit is low.
const DATA_CONNECTIONS_MAX: usize = 4096;
/// Descriptors budgeted per data connection: a socket, a pipe, objects, and a share for everything else.
const DESCRIPTORS_PER_DATA_CONNECTION: u64 = 8;
/// Divisor of the node's places: the share that one user's key may take.
const USER_SHARE: usize = 4;
/// Maximum number of control and recall connections of one session: one per slot and one for recalls, times two, since
/// a client may reconnect before the node notices the end of its old connections.
const CONTROL_CONNECTIONS_PER_SESSION_MAX: usize = 2 * (SLOTS_MAX as usize + 1);

/// The places of a node.
pub struct Places {
    data_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    data: usize,
    of_session: HashMap<(SessionId, bool), usize>,
    of_user: HashMap<(u32, bool), usize>,
}

/// A taken place, released on drop.
pub struct Place {
    places: Arc<Places>,
    is_data: bool,
    session: SessionId,
    user: Option<u32>,
}

impl Places {
    /// Returns as many places as the descriptor limit of this process allows.
    pub fn new() -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::with_descriptors(descriptors)
    }

    fn with_descriptors(descriptors: u64) -> Self {
        let affordable = usize::try_from(descriptors / DESCRIPTORS_PER_DATA_CONNECTION).unwrap_or(usize::MAX);
        Self { data_max: affordable.clamp(1, DATA_CONNECTIONS_MAX), taken: Mutex::default() }
    }

    /// Takes a place for a connection of this peer, or fails as busy.
    pub fn take(self: &Arc<Self>, peer: &Peer) -> Result<Place> {
        let is_data = peer.purpose == Purpose::Data;
        let session_max = if is_data { DATA_CONNECTIONS_PER_SESSION_MAX } else { CONTROL_CONNECTIONS_PER_SESSION_MAX };
        let user = match &peer.key_name {
            KeyName::User { credentials, .. } => Some(credentials.uid),
            KeyName::Owner | KeyName::Node(_) => None,
        };
        let mut taken = lock(&self.taken);
        let of_user = user.map_or(0, |uid| taken.of_user.get(&(uid, is_data)).copied().unwrap_or(0));
        let of_session = taken.of_session.get(&(peer.session, is_data)).copied().unwrap_or(0);
        let full = of_session >= session_max
            || of_user >= (self.data_max / USER_SHARE).max(1)
            || (is_data && taken.data >= self.data_max);
        if full {
            return Err(Error::Busy);
        }
        taken.data += usize::from(is_data);
        *taken.of_session.entry((peer.session, is_data)).or_default() += 1;
        if let Some(uid) = user {
            *taken.of_user.entry((uid, is_data)).or_default() += 1;
        }
        Ok(Place { places: Arc::clone(self), is_data, session: peer.session, user })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.taken);
        taken.data -= usize::from(self.is_data);
        give_back(&mut taken.of_session, &(self.session, self.is_data));
        if let Some(uid) = self.user {
            give_back(&mut taken.of_user, &(uid, self.is_data));
        }
    }
}

fn give_back<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::{Credentials, KeyId, NodeIdentity};

    fn peer(key_name: KeyName, session: u64, purpose: Purpose) -> Peer {
        Peer { key_name, purpose, session: SessionId(session), identity: NodeIdentity(1) }
    }

    fn user(uid: u32) -> KeyName {
        KeyName::User { key: KeyId(1), credentials: Credentials { uid, gid: uid, groups: Box::default() } }
    }

    /// Takes places, one for each session, until there is none.
    fn take_all(places: &Arc<Places>, key_name: &KeyName, purpose: Purpose) -> Vec<Place> {
        let taken = (1000..).map(|session| places.take(&peer(key_name.clone(), session, purpose)));
        taken.take_while(Result::is_ok).map(Result::unwrap).collect()
    }

    #[test]
    fn a_session_has_its_own_bound_for_each_kind() {
        let places = Arc::new(Places::with_descriptors(1 << 20));
        for (purpose, max) in
            [(Purpose::Data, DATA_CONNECTIONS_PER_SESSION_MAX), (Purpose::Control, CONTROL_CONNECTIONS_PER_SESSION_MAX)]
        {
            let of_session = |session| places.take(&peer(KeyName::Owner, session, purpose));
            let mut taken: Vec<Place> = (0..max).map(|_| of_session(1).unwrap()).collect();
            assert_eq!(of_session(1).err(), Some(Error::Busy));
            assert!(of_session(2).is_ok(), "another session is not held up");
            taken.pop();
            assert!(of_session(1).is_ok(), "a place that was given back is there again");
        }
        let taken = lock(&places.taken);
        assert_eq!((taken.data, taken.of_session.len()), (0, 0));
    }

    #[test]
    fn one_user_leaves_room_for_others() {
        let places = Arc::new(Places::with_descriptors(800));
        for purpose in [Purpose::Data, Purpose::Control] {
            let greedy = take_all(&places, &user(7), purpose);
            assert_eq!(greedy.len(), 25);
            assert!(places.take(&peer(user(8), 1, purpose)).is_ok());
            assert!(places.take(&peer(KeyName::Owner, 2, purpose)).is_ok());
        }
        assert!(lock(&places.taken).of_user.is_empty());
    }

    #[test]
    fn the_node_has_as_many_as_it_has_descriptors_for() {
        let places = Arc::new(Places::with_descriptors(80));
        let taken = take_all(&places, &KeyName::Owner, Purpose::Data);
        assert_eq!(taken.len(), 10);
        assert!(places.take(&peer(KeyName::Owner, 1, Purpose::Control)).is_ok(), "looking at it still works");
    }
}
