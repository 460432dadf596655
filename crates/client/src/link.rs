//! What a client has with one node: slots with their control connections, data connections, the recall connection.
//!
//! A caller takes a *slot*, that is a number with a sequence and a connection, and has both for itself until its reply
//! is there: it reads the socket itself, and a call that waits long at the server holds up no other. A connection that
//! breaks is made anew, and the call repeated in the same slot with the same sequence: the shard answers a repeated
//! call with the first answer.

use crate::client::Way;
use crate::data_pool::DataPool;
use crate::data_way::DataWay;
use crate::identity::Identity;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use weft_protocol::handshake::Purpose;
use weft_protocol::limits::SLOTS_MAX;
use weft_protocol::{Error, NodeId, NodeRecord, Result, SessionId, SlotIndex};
use weft_transport::{BulkConnection, ControlConnection, DataEnd, Peer, Socket, TransportError, connect};

/// Slots for callers; the last one is kept for answering recalls, which must never wait for callers.
const CALLER_SLOTS_MAX: u16 = SLOTS_MAX - 1;
/// How often a connection is made whose handshake is cut off.
const HANDSHAKE_ATTEMPTS_MAX: u32 = 3;

/// Locks; a panic elsewhere left what is guarded whole (it is changed in single steps).
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A slot in the hands of a caller.
pub(crate) struct Slot {
    pub index: SlotIndex,
    pub sequence: u32,
    pub connection: Option<ControlConnection>,
}

/// Who takes a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotFor {
    Caller,
    /// The recall thread: has a slot of its own.
    Recall,
}

#[derive(Default)]
struct Slots {
    idle: Vec<Slot>,
    made: u16,
    recall: Option<Slot>,
    /// Callers that wait for one.
    waiting: u32,
}

/// A node, as the client reaches it.
pub(crate) struct Link {
    pub record: NodeRecord,
    pub session: SessionId,
    /// Rank 3: held to take and give back.
    slots: Mutex<Slots>,
    returned: Condvar,
    pub data: Arc<DataPool>,
    /// The last connection could not be made.
    refused: AtomicBool,
}

impl Link {
    /// Nothing is connected before it is used.
    pub fn new(record: NodeRecord, session: SessionId) -> Self {
        let slots = Slots {
            recall: Some(Slot { index: SlotIndex(CALLER_SLOTS_MAX), sequence: 0, connection: None }),
            ..Slots::default()
        };
        Self {
            record,
            session,
            slots: Mutex::new(slots),
            returned: Condvar::new(),
            data: Arc::default(),
            refused: AtomicBool::new(false),
        }
    }

    /// Takes a slot; waits when all are taken.
    pub fn take_slot(&self, who: SlotFor) -> Slot {
        let mut slots = lock(&self.slots);
        loop {
            if who == SlotFor::Recall {
                if let Some(slot) = slots.recall.take() {
                    return slot;
                }
            } else if let Some(slot) = slots.idle.pop() {
                return slot;
            } else if slots.made < CALLER_SLOTS_MAX {
                let index = SlotIndex(slots.made);
                slots.made += 1;
                return Slot { index, sequence: 0, connection: None };
            }
            slots.waiting += 1;
            slots = self.returned.wait(slots).unwrap_or_else(PoisonError::into_inner);
            slots.waiting -= 1;
        }
    }

    /// Gives a slot back.
    pub fn return_slot(&self, slot: Slot) {
        let mut slots = lock(&self.slots);
        if slot.index.0 == CALLER_SLOTS_MAX {
            slots.recall = Some(slot);
        } else {
            slots.idle.push(slot);
        }
        // Telling the kernel costs a system call.
        let awaited = slots.waiting > 0;
        drop(slots);
        if awaited {
            self.returned.notify_one();
        }
    }

    /// Connects, over the Unix socket where the node is ours (and TCP is not asked for). That socket is in the
    /// owner's own directory: a user who cannot reach it there takes TCP.
    pub fn connect(&self, identity: &Identity, purpose: Purpose, way: Way) -> Result<Socket> {
        let address = &self.record.address;
        let near = self.record.identity == identity.node && !address.unix.is_empty() && way != Way::Tcp;
        let peer =
            Peer { key_name: identity.key_name.clone(), purpose, session: self.session, identity: identity.node };
        let mut attempts = 0;
        loop {
            let unix = near.then(|| Socket::connect_unix(Path::new(&address.unix)));
            let socket = match unix {
                Some(Ok(socket)) => Ok(socket),
                Some(Err(error)) if !identity.is_user() => Err(error),
                Some(Err(_)) | None => Socket::connect_tcp(&address.tcp),
            };
            self.refused.store(socket.is_err(), Ordering::Relaxed);
            let socket = socket.map_err(|_| Error::Unreachable)?;
            attempts += 1;
            match connect(&socket, &peer, &identity.key) {
                Ok(_) => return Ok(socket),
                // A server with too many handshakes under way cuts the oldest off: that may have been ours.
                Err(TransportError::Io(_)) if attempts < HANDSHAKE_ATTEMPTS_MAX => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the node has most likely ended: no connection could be made lately, or one that nobody uses now was
    /// closed. No message.
    pub fn seems_away(&self) -> bool {
        let slots = lock(&self.slots);
        let unused = slots.idle.iter().rev().find_map(|slot| slot.connection.as_ref());
        self.refused.load(Ordering::Relaxed) || unused.is_some_and(|connection| connection.socket().is_readable())
    }

    /// Takes a data connection, or makes one; waits when there are as many as there may be.
    pub fn take_data(&self, identity: &Identity, way: &DataWay) -> Result<Box<dyn BulkConnection>> {
        self.data.take(|| self.new_data(identity, way))
    }

    /// As [`Link::take_data`], for a connection that is kept from call to call. `None`: too many are in use.
    pub fn take_data_to_keep(&self, identity: &Identity, way: &DataWay) -> Result<Option<Box<dyn BulkConnection>>> {
        self.data.take_to_keep(|| self.new_data(identity, way))
    }

    /// Another connection for one that turned out to be dead, and with it most likely all that nobody uses now.
    pub fn replace_data(
        &self,
        dead: Box<dyn BulkConnection>,
        identity: &Identity,
        way: &DataWay,
    ) -> Result<Box<dyn BulkConnection>> {
        drop(dead);
        self.data.close_idle();
        self.take_data(identity, way)
    }

    fn new_data(&self, identity: &Identity, way: &DataWay) -> Result<Box<dyn BulkConnection>> {
        let socket = self.connect(identity, Purpose::Data, way.way)?;
        socket.tune_for_data(DataEnd::Client);
        way.bulk(socket)
    }

    /// Gives a data connection back that has nothing outstanding. One that failed is dropped instead.
    pub fn return_data(&self, connection: Box<dyn BulkConnection>) {
        self.data.give_back(connection);
    }

    /// The node of this link.
    pub fn node(&self) -> NodeId {
        self.record.id
    }
}
