//! The current request of each data connection, for `weft debug stuck`.
//!
//! A connection's thread records its request in a slot of its own, with a few relaxed stores and a coarse clock, and
//! takes no lock. A reader reads all slots, and polls the sockets to tell what their threads wait for.
//!
//! Invariant: only the connection's thread writes to its slot; `version` is odd while it writes the request.

use crate::clock;
use crate::locks::lock;
use crate::text::peer_text;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use weft_protocol::data::{DataOperation, DataRequest};
use weft_protocol::message::node::RequestInFlight;
use weft_protocol::{InodeNumber, ObjectId};
use weft_transport::{Peer, Socket};

/// Maximum number of reads of a slot that changes meanwhile: its request is not stuck.
const READ_ATTEMPTS_MAX: u32 = 3;

/// State of a connection's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    /// Waits for the next request.
    Idle,
    /// Uses the store, or copies bytes between memories.
    Stores,
    /// Receives the body of a request, and writes it to the store.
    Receives,
    /// Sends a reply, and reads its data from the store.
    Sends,
    /// Waits for RDMA transfers.
    Moves,
    /// Waits for pages that kernels keep, or for changes of them.
    Waits,
}

impl Phase {
    fn of(number: u8) -> Self {
        let all = [Self::Idle, Self::Stores, Self::Receives, Self::Sends, Self::Moves, Self::Waits];
        all.into_iter().find(|phase| *phase as u8 == number).unwrap_or(Self::Idle)
    }

    /// Returns what a thread in this phase waits for, as far as its socket tells.
    fn waits_for(self, socket: &Socket) -> Option<&'static str> {
        match self {
            Self::Idle => None,
            Self::Stores => Some("store"),
            Self::Receives if socket.is_readable() => Some("store: write received bytes"),
            Self::Receives => Some("socket: receive the rest from the client"),
            Self::Sends if socket.has_room() => Some("store: read bytes to send"),
            Self::Sends => Some("socket: send to a client that does not read"),
            Self::Moves => Some("RDMA transfer"),
            Self::Waits => Some("pages in the kernels of other clients"),
        }
    }
}

/// The slots of all data connections.
#[derive(Default)]
pub struct DataActivity {
    slots: Mutex<BTreeMap<u64, Arc<Slot>>>,
    next: AtomicU64,
}

/// One connection.
struct Slot {
    peer: Peer,
    socket: Arc<Socket>,
    version: AtomicU64,
    phase: AtomicU8,
    operation: AtomicU8,
    bytes: AtomicU32,
    object: AtomicU64,
    inode: AtomicU64,
    offset: AtomicU64,
    since_ms: AtomicU64,
}

impl Slot {
    /// Returns the current request. `None`: there is none, or it ended meanwhile.
    fn read(&self, now_ms: u64) -> Option<RequestInFlight> {
        for _ in 0..READ_ATTEMPTS_MAX {
            let version = self.version.load(Ordering::Acquire);
            let phase = Phase::of(self.phase.load(Ordering::Relaxed));
            let operation = DataOperation::from_number(self.operation.load(Ordering::Relaxed));
            let (bytes, offset) = (self.bytes.load(Ordering::Relaxed), self.offset.load(Ordering::Relaxed));
            let object = ObjectId::from_raw(self.object.load(Ordering::Relaxed));
            let inode = InodeNumber::from_raw(self.inode.load(Ordering::Relaxed));
            let since_ms = self.since_ms.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                let request = format!("{} {bytes} bytes at {offset}, inode {inode}, object {object}", name(operation?));
                let state = phase.waits_for(&self.socket)?.to_owned();
                let age_ms = now_ms.saturating_sub(since_ms);
                return Some(RequestInFlight { peer: peer_text(&self.peer), request, state, age_ms });
            }
        }
        None
    }
}

fn name(operation: DataOperation) -> &'static str {
    match operation {
        DataOperation::Read => "read",
        DataOperation::Write => "write",
        DataOperation::Append => "append",
        DataOperation::Sync => "sync",
        DataOperation::Stat => "stat",
        DataOperation::IsHeld => "look for descriptors",
        DataOperation::Descriptor => "pass descriptor",
        DataOperation::Share => "share memory",
        DataOperation::Lend => "lend memory",
        DataOperation::OpenRdma => "open RDMA",
        DataOperation::ShowMemory => "register memory",
        DataOperation::ProbeMemory => "probe memory",
        DataOperation::Revoke => "revoke a connection",
    }
}

impl DataActivity {
    /// Returns the current request of every connection.
    pub fn in_flight(&self) -> Vec<RequestInFlight> {
        let slots: Vec<_> = lock(&self.slots).values().cloned().collect();
        let now_ms = clock::coarse_ms();
        slots.iter().filter_map(|slot| slot.read(now_ms)).collect()
    }
}

/// A connection's slot; removed on drop.
pub struct Activity<'a> {
    all: &'a DataActivity,
    number: u64,
    slot: Arc<Slot>,
}

impl<'a> Activity<'a> {
    /// Adds a slot for a new connection.
    pub fn new(all: &'a DataActivity, socket: &Arc<Socket>, peer: &Peer) -> Self {
        let slot = Arc::new(Slot {
            peer: peer.clone(),
            socket: Arc::clone(socket),
            version: AtomicU64::new(0),
            phase: AtomicU8::new(Phase::Idle as u8),
            operation: AtomicU8::new(0),
            bytes: AtomicU32::new(0),
            object: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            since_ms: AtomicU64::new(0),
        });
        let number = all.next.fetch_add(1, Ordering::Relaxed);
        lock(&all.slots).insert(number, Arc::clone(&slot));
        Self { all, number, slot }
    }

    /// Records the start of a request.
    pub fn begin(&self, request: &DataRequest) {
        let slot = &*self.slot;
        let version = slot.version.load(Ordering::Relaxed);
        slot.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        slot.operation.store(request.operation as u8, Ordering::Relaxed);
        slot.bytes.store(request.bytes, Ordering::Relaxed);
        slot.object.store(request.object.raw(), Ordering::Relaxed);
        slot.inode.store(request.inode.raw(), Ordering::Relaxed);
        slot.offset.store(request.offset, Ordering::Relaxed);
        slot.since_ms.store(clock::coarse_ms(), Ordering::Relaxed);
        slot.phase.store(Phase::Stores as u8, Ordering::Relaxed);
        slot.version.store(version + 2, Ordering::Release);
    }

    /// Records the phase of the request.
    pub fn enter(&self, phase: Phase) {
        self.slot.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Records the end of the request.
    pub fn end(&self) {
        self.enter(Phase::Idle);
    }
}

impl Drop for Activity<'_> {
    fn drop(&mut self) {
        lock(&self.all.slots).remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use weft_protocol::handshake::{KeyName, Purpose};
    use weft_protocol::{NodeIdentity, SessionId};

    fn peer() -> Peer {
        Peer { key_name: KeyName::Owner, purpose: Purpose::Data, session: SessionId(5), identity: NodeIdentity(1) }
    }

    #[test]
    fn a_request_is_shown_with_what_it_waits_for_until_it_is_answered() {
        let (client, server) = UnixStream::pair().unwrap();
        let (client, server) = (Socket::from_unix(client), Arc::new(Socket::from_unix(server)));
        let all = DataActivity::default();
        let activity = Activity::new(&all, &server, &peer());
        assert_eq!(all.in_flight(), [], "idle");
        let (object, inode) = (ObjectId::from_raw(3), InodeNumber::from_raw(4));
        let write = DataRequest::about_nothing(DataOperation::Write, 8);
        activity.begin(&DataRequest { object, inode, offset: 4096, ..write });
        let state = || {
            let [request] = &all.in_flight()[..] else { panic!("one request") };
            assert_eq!(request.request, "write 8 bytes at 4096, inode 0:4, object 0:3");
            assert_eq!(request.peer, "owner, session 0000000000000005");
            request.state.clone()
        };
        assert_eq!(state(), "store");
        activity.enter(Phase::Receives);
        assert_eq!(state(), "socket: receive the rest from the client");
        client.send_all(&[1]).unwrap();
        assert_eq!(state(), "store: write received bytes");
        activity.enter(Phase::Sends);
        assert_eq!(state(), "store: read bytes to send");
        while server.send_now(&[1; 4096]).unwrap() > 0 {}
        assert_eq!(state(), "socket: send to a client that does not read");
        activity.end();
        assert_eq!(all.in_flight(), []);
        activity.begin(&write);
        drop(activity);
        assert_eq!(all.in_flight(), [], "the connection has ended");
    }

    #[test]
    fn a_slot_that_changes_while_it_is_read_never_mixes_two_requests() {
        let (_client, server) = UnixStream::pair().unwrap();
        let all = DataActivity::default();
        let activity = Activity::new(&all, &Arc::new(Socket::from_unix(server)), &peer());
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                for number in 0..200_000_u32 {
                    let request = DataRequest::about_nothing(DataOperation::Sync, number);
                    activity.begin(&DataRequest { offset: u64::from(number), ..request });
                }
            });
            while !serving.is_finished() {
                for request in all.in_flight() {
                    let numbers: Vec<_> = request.request.split(|c: char| !c.is_ascii_digit()).collect();
                    let numbers: Vec<_> = numbers.into_iter().filter(|number| !number.is_empty()).collect();
                    assert_eq!(numbers[0], numbers[1], "{}", request.request);
                }
            }
        });
    }
}
