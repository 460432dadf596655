//! A client's end of transfers that the other side makes.

use crate::endpoint::{Endpoint, Liveness, Side};
use crate::region::Region;
use crate::registered::{Known, Registry};
use crate::worker::Worker;
use crate::{Error, Result};
use rustix::event::PollFlags;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// A worker whose address the other side has. Memory that was lent is the caller's again when the call returns: either
/// the other side has said that it is done with it, or the worker is gone, and with it the way to the memory.
#[derive(Debug)]
pub struct Receiver {
    // Before the memory: the way to it ends first.
    side: Side,
    given: VecDeque<Given>,
    registry: Arc<Registry>,
}

/// Memory as long as it is lent.
#[derive(Debug)]
pub struct Lent {
    address: u64,
    bytes: usize,
    registration: Registration,
}

/// Through what it is reached.
#[derive(Debug)]
enum Registration {
    /// Made for it.
    Own(Region),
    /// One that it is a part of.
    Known(Arc<Known>),
}

/// Memory that was given, and its registration, which ends first.
#[derive(Debug)]
struct Given {
    lent: Lent,
    memory: Vec<u8>,
}

impl Lent {
    fn own(region: Region) -> Self {
        Self { address: region.address(), bytes: region.bytes(), registration: Registration::Own(region) }
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it was registered before, by the program.
    pub fn is_known(&self) -> bool {
        matches!(self.registration, Registration::Known(_))
    }

    /// What is registered, of which it may be a part: where that begins, and its length.
    pub fn registered(&self) -> (u64, usize) {
        match &self.registration {
            Registration::Own(region) => (region.address(), region.bytes()),
            Registration::Known(known) => known.range(),
        }
    }

    /// What the other side needs to reach all that is registered.
    pub fn packed_key(&self) -> Result<Cow<'_, [u8]>> {
        match &self.registration {
            Registration::Own(region) => region.packed_key().map(Cow::Owned),
            Registration::Known(known) => Ok(Cow::Borrowed(known.packed_key())),
        }
    }
}

/// Revokes the other side's access unless the call has ended well: also when it panics.
struct Guard<'a> {
    receiver: &'a mut Receiver,
    ended_well: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.ended_well {
            self.receiver.revoke();
        }
    }
}

impl Receiver {
    /// A worker of its own.
    pub fn new() -> Result<Self> {
        Self::with_registry(Arc::default())
    }

    /// A worker of its own, which registers nothing that is in this registry.
    pub fn with_registry(registry: Arc<Registry>) -> Result<Self> {
        Ok(Self { side: Side::Alone(Worker::new()?), given: VecDeque::new(), registry })
    }

    /// Whether the memory was registered before, by the program.
    pub fn knows(&self, memory: &[u8]) -> bool {
        self.registry.has(memory)
    }

    /// Makes an endpoint to the other side's worker, which has made one to this.
    pub fn connect(&mut self, address: &[u8], liveness: Liveness) -> Result<()> {
        match std::mem::replace(&mut self.side, Side::Ended) {
            Side::Alone(worker) => self.side = Side::Connected(Endpoint::connect(worker, address, liveness)?),
            other => self.side = other,
        }
        Ok(())
    }

    /// What the other side makes its endpoint of.
    pub fn address(&self) -> Result<Vec<u8>> {
        self.side.worker()?.address()
    }

    /// Ends the other side's access to memory that was lent; the receiver is of no more use.
    pub fn revoke(&mut self) {
        self.side = Side::Ended;
    }

    /// Lends memory for the length of `call`, which returns an error unless the other side has said that it is done
    /// with the memory. The outer error: the memory could not be registered, and `call` was not made.
    pub fn lend<T, E>(
        &mut self,
        memory: &mut [u8],
        call: impl FnOnce(&mut Self, &Lent) -> std::result::Result<T, E>,
    ) -> Result<std::result::Result<T, E>> {
        // SAFETY: the caller's borrow lasts until this returns, and nothing here uses the memory before that. The other
        // side uses it until it says that it is done (it had the key of this connection, and what it may write it could
        // also send), or the guard destroys the worker: no endpoint is left then, and registration alone opens nothing,
        // since no transport is used that copies without the worker (`transports`).
        unsafe { self.lend_pointer(memory.as_mut_ptr(), memory.len(), call) }
    }

    /// The same for memory that the other side only gets from.
    pub fn lend_to_read<T, E>(
        &mut self,
        memory: &[u8],
        call: impl FnOnce(&mut Self, &Lent) -> std::result::Result<T, E>,
    ) -> Result<std::result::Result<T, E>> {
        // SAFETY: as above. That it is only read is the other side's promise, as everything that it does to our memory.
        unsafe { self.lend_pointer(memory.as_ptr().cast_mut(), memory.len(), call) }
    }

    /// # Safety
    ///
    /// As [`Region::of_memory`], until this returns.
    unsafe fn lend_pointer<T, E>(
        &mut self,
        address: *mut u8,
        bytes: usize,
        call: impl FnOnce(&mut Self, &Lent) -> std::result::Result<T, E>,
    ) -> Result<std::result::Result<T, E>> {
        let lent = match self.registry.find(address.addr() as u64, bytes) {
            Some(known) => Lent { address: address.addr() as u64, bytes, registration: Registration::Known(known) },
            // SAFETY: the caller's promise. The region is dropped behind the guard.
            None => Lent::own(unsafe { Region::of_memory(address, bytes) }?),
        };
        let mut guard = Guard { receiver: self, ended_well: false };
        let result = call(guard.receiver, &lent);
        guard.ended_well = result.is_ok();
        drop(guard);
        Ok(result)
    }

    /// Takes memory that the other side gets from until [`Receiver::take_back`]. An error: it could not be registered,
    /// and comes back.
    pub fn give(&mut self, mut memory: Vec<u8>) -> std::result::Result<(), (Vec<u8>, Error)> {
        // SAFETY: the memory is the receiver's from here on, where it is never touched (a vector's bytes do not move
        // with it), until `take_back`; should the receiver go before that, the worker goes first.
        match unsafe { Region::of_memory(memory.as_mut_ptr(), memory.len()) } {
            Ok(region) => {
                self.given.push_back(Given { lent: Lent::own(region), memory });
                Ok(())
            }
            Err(error) => Err((memory, error)),
        }
    }

    /// What was given last.
    pub fn last_given(&self) -> Option<&Lent> {
        self.given.back().map(|given| &given.lent)
    }

    /// The memory that was given first. `is_done`: the other side has said that it is done with it; else its access to
    /// all memory ends.
    pub fn take_back(&mut self, is_done: bool) -> Option<Vec<u8>> {
        if !is_done {
            self.revoke();
        }
        self.given.pop_front().map(|given| given.memory)
    }

    /// Lets the other side's transfers go on until `done` says something; looks for `look` before it sleeps. Wakes up
    /// when `socket` can be read.
    pub fn until<T>(
        &self,
        socket: BorrowedFd<'_>,
        look: Duration,
        mut done: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        self.side.until((socket, PollFlags::IN), look, |_| match done()? {
            Some(value) => Ok(Some(value)),
            None => self.side.check().map(|()| None),
        })
    }

    /// Sends the other side a message.
    pub fn tell(&self, message: &[u8]) -> Result<()> {
        match &self.side {
            Side::Connected(endpoint) => endpoint.tell(message),
            Side::Alone(_) | Side::Ended => Err(Error::PeerGone),
        }
    }

    /// Waits for the other side's next message, while its transfers go on. `None`: `socket` has something, to be read
    /// or that it hung up. `goes_on` is called at each look; its error ends the wait.
    pub fn next(
        &self,
        socket: BorrowedFd<'_>,
        look: Duration,
        mut goes_on: impl FnMut() -> Result<()>,
    ) -> Result<Option<Box<[u8]>>> {
        let done = self.side.worker()?.next_message(socket, || goes_on().and_then(|()| self.side.check()));
        self.side.until((socket, PollFlags::IN), look, done)
    }
}
