//! Work that waits.
//!
//! A call waits for recalls, for a locked name or inode, for a cut under way on the same file, for a storage server,
//! for other shards, or for the call of an ended session that it repeats; when that is there, it is judged from the
//! beginning. While it waits, the keys that it touches are *claimed*: nobody is granted a lease on them, so that it
//! finds them free at last.
//!
//! Invariant: a claim's count is the number of parked works, and of locks, that name the key; each parked change stands
//! in `by_slot`.
//! Not here: judging (`front.rs` and its parts).

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weft_protocol::message::peer::{IntentId, PeerCall};
use weft_protocol::message::shard::ShardRequest;
use weft_protocol::{Credentials, Error, InodeNumber, LeaseKey, ObjectId, SessionId, Timestamp};

use super::storage::Answers;
use crate::back::{Origin, Slot};

/// The token of a call whose caller is not known any more.
pub const NOBODY: u64 = 0;

/// A client's call, as it is kept while it waits.
#[derive(Debug, Serialize, Deserialize)]
pub struct Call {
    /// Where the reply goes. A repeated call brings a new one.
    pub token: u64,
    pub origin: Origin,
    pub credentials: Credentials,
    pub request: ShardRequest,
    /// The same change in sessions that have ended, as far as it was not looked for yet.
    pub repeats: Vec<Origin>,
    /// What it was before it kept to the file that it had cut, or made.
    pub by_name: Option<ShardRequest>,
    /// It opens the file that it has made in a session that has ended.
    pub made: bool,
    /// The file that storage servers were asked about, with its first object. `None` again when it was cut since.
    pub asked: Option<(InodeNumber, ObjectId)>,
    /// What they have answered.
    pub answers: Option<Answers>,
}

impl Call {
    pub fn session(&self) -> SessionId {
        self.origin.session
    }

    /// Size and time of the file with this first object, if its storage servers were asked about it.
    pub fn told(&self, inode: InodeNumber, object: ObjectId) -> Option<&Result<(u64, Timestamp), Error>> {
        self.answers.as_ref().filter(|_| self.asked == Some((inode, object)))?.all()
    }
}

/// Something to be done for somebody.
#[derive(Debug, Serialize, Deserialize)]
pub enum Work {
    Call(Box<Call>),
    Peer { token: u64, call: PeerCall },
}

impl Work {
    /// The session whose call it is; `None`: another shard's.
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Self::Call(call) => Some(call.session()),
            Self::Peer { .. } => None,
        }
    }
}

/// What parked work waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Wait {
    /// Recalls: as many as `pending` says.
    Recalls,
    /// The intent that has locked a name or an inode.
    Lock(IntentId),
    /// Another cut of the same file.
    Cut(InodeNumber),
    /// The answer of a storage server.
    Storage,
    /// The names or contents of an inode, which are read from below.
    Below(InodeNumber),
    /// The end of this own intent.
    Peer(u64),
    /// The reply to the same change of an ended session, which is carried through.
    Repeated(Origin),
}

/// Parked work.
#[derive(Debug, Serialize, Deserialize)]
pub struct Parked {
    pub work: Work,
    pub since_ms: u64,
    pub wait: Wait,
    /// Recalls still to be answered.
    pub pending: usize,
    pub claims: Vec<LeaseKey>,
    /// Sessions that were asked for a key by this work and need not be asked again when they keep it open.
    pub asked: Vec<(LeaseKey, SessionId)>,
}

/// See the module.
#[derive(Default, Serialize, Deserialize)]
pub struct Parking {
    parked: BTreeMap<u64, Parked>,
    claims: BTreeMap<LeaseKey, u32>,
    by_slot: BTreeMap<(SessionId, Slot), u64>,
    by_intent: BTreeMap<IntentId, u64>,
    by_wait: BTreeMap<Wait, Vec<u64>>,
    latest: u64,
}

impl Parking {
    /// Whether a call of this session waits that names the inode of this key.
    pub fn has_call_about(&self, session: SessionId, key: LeaseKey) -> bool {
        let is_it = |work: &Work| match work {
            Work::Call(call) => call.session() == session && call.request.target() == Some(key.inode()),
            Work::Peer { .. } => false,
        };
        self.parked.values().any(|parked| is_it(&parked.work))
    }

    /// Number of works that wait.
    pub fn count(&self) -> usize {
        self.parked.len()
    }

    /// Whether work that waits touches this key.
    pub fn is_claimed(&self, key: &LeaseKey) -> bool {
        !self.claims.is_empty() && self.claims.contains_key(key)
    }

    /// A number for work that is parked the first time; it keeps it, and with it its place.
    pub fn next_number(&mut self) -> u64 {
        self.latest += 1;
        self.latest
    }

    /// Claims keys for something else than parked work.
    pub fn claim(&mut self, keys: &[LeaseKey]) {
        for key in keys {
            *self.claims.entry(*key).or_default() += 1;
        }
    }

    /// Ends such claims.
    pub fn unclaim(&mut self, keys: &[LeaseKey]) {
        for key in keys {
            if let Some(count) = self.claims.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    self.claims.remove(key);
                }
            }
        }
    }

    /// Parks work.
    pub fn insert(&mut self, number: u64, parked: Parked) {
        self.claim(&parked.claims);
        match &parked.work {
            Work::Call(call) if !call.request.is_read() => {
                self.by_slot.insert((call.origin.session, call.origin.slot), number);
            }
            Work::Call(_) => {}
            Work::Peer { call, .. } => {
                self.by_intent.insert(call.intent, number);
            }
        }
        if let Wait::Lock(_) | Wait::Cut(_) | Wait::Peer(_) | Wait::Repeated(_) | Wait::Below(_) = parked.wait {
            self.by_wait.entry(parked.wait).or_default().push(number);
        }
        self.parked.insert(number, parked);
    }

    /// Takes work out.
    pub fn take(&mut self, number: u64) -> Option<Parked> {
        let parked = self.parked.remove(&number)?;
        self.unclaim(&parked.claims);
        match &parked.work {
            Work::Call(call) if !call.request.is_read() => {
                self.by_slot.remove(&(call.origin.session, call.origin.slot));
            }
            Work::Call(_) => {}
            Work::Peer { call, .. } => {
                self.by_intent.remove(&call.intent);
            }
        }
        if let Some(waiting) = self.by_wait.get_mut(&parked.wait) {
            waiting.retain(|other| *other != number);
            if waiting.is_empty() {
                self.by_wait.remove(&parked.wait);
            }
        }
        Some(parked)
    }

    /// Work by its number.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Parked> {
        self.parked.get_mut(&number)
    }

    /// A file was cut: what storage servers were asked about it has to be asked again.
    pub fn ask_anew(&mut self, inode: InodeNumber) {
        for parked in self.parked.values_mut() {
            if let Work::Call(call) = &mut parked.work {
                call.asked = call.asked.filter(|(asked, _)| *asked != inode);
            }
        }
    }

    /// Nobody is answered any more who does not ask again.
    pub fn forget_callers(&mut self) {
        for parked in self.parked.values_mut() {
            match &mut parked.work {
                Work::Call(call) => call.token = NOBODY,
                Work::Peer { token, .. } => *token = NOBODY,
            }
        }
    }

    /// The change that waits in a slot.
    pub fn in_slot(&mut self, session: SessionId, slot: Slot) -> Option<&mut Call> {
        let number = *self.by_slot.get(&(session, slot))?;
        match &mut self.parked.get_mut(&number)?.work {
            Work::Call(call) => Some(call),
            Work::Peer { .. } => None,
        }
    }

    /// A shard's step that waits: its number here, and its token.
    pub fn of_intent(&mut self, intent: IntentId) -> Option<(u64, &mut u64)> {
        let number = *self.by_intent.get(&intent)?;
        match &mut self.parked.get_mut(&number)?.work {
            Work::Peer { token, .. } => Some((number, token)),
            Work::Call(_) => None,
        }
    }

    /// Works that wait for this, in the order in which they came.
    pub fn waiting_for(&self, wait: Wait) -> Vec<u64> {
        let mut waiting = self.by_wait.get(&wait).cloned().unwrap_or_default();
        waiting.sort_unstable();
        waiting
    }

    /// As [`Parking::waiting_for`]: they are about to be judged again, and are not found here a second time.
    pub fn wake(&mut self, wait: Wait) -> Vec<u64> {
        let mut woken = self.by_wait.remove(&wait).unwrap_or_default();
        woken.sort_unstable();
        woken
    }

    /// All, ascending by number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Parked)> {
        self.parked.iter().map(|(number, parked)| (*number, parked))
    }
}
