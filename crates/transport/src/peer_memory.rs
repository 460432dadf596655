//! A process that reads the memory of its peer on the same machine: a server that of a client, and a client that of a
//! server.
//!
//! A byte that is written through a Unix socket is copied into the kernel and out of it, 64 KiB at a time, and each
//! piece wakes its reader. Where the kernel allows it (both processes of one user, not hidden from each other), the
//! server copies the bytes out of the client's memory instead (process_vm_readv(2)), as MPI libraries do in a node.
//!
//! Nobody ever writes into memory of another process, and what is read is known to have been lent: the client has a
//! *seal*, random bytes at an address that it told, which it breaks before lent memory becomes something else. The
//! server copies the seal together with the bytes and behind them; if it is whole, so are they. That also holds when
//! the client has ended, has become another program, or its number belongs to another process by now.
//!
//! A server lends likewise: it tells where the bytes of a large read lie, in a buffer or on a device that is memory,
//! and the client copies them, without a wake-up for each 64 KiB and with a copy or two less. The server waits for no
//! client: it changes a *word* before lent memory becomes something else (its seal vouches for the process), which the
//! client copies behind the bytes, too. A client that finds another word has the bytes sent.

use crate::{Result, Socket, SocketKind, TransportError};
use rustix::net::sockopt;
use std::io::{self, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use weft_protocol::data::{LentBytes, LentPart, SharedMemory};
use weft_protocol::limits::LENT_PARTS_MAX;
use weft_sys::{RemoteBytes, read_process_memory};

const SEAL_BYTES: usize = 16;
/// Ranges that one call copies: the parts of a loan, its word, and the seal.
const PLACES_MAX: usize = LENT_PARTS_MAX + 2;

/// Our seal. Broken when it is dropped: whoever holds it with the memory that it vouches for declares it before that.
#[derive(Debug)]
pub struct Seal {
    value: [u8; SEAL_BYTES],
    /// Where the peer looks: does not move.
    place: Box<[AtomicU64; 2]>,
}

impl Seal {
    /// A whole one.
    pub fn new() -> Result<Self> {
        let mut value = [0; SEAL_BYTES];
        getrandom::fill(&mut value).map_err(io::Error::from)?;
        let (low, high) = value.split_at(SEAL_BYTES / 2);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        Ok(Self { value, place: Box::new([AtomicU64::new(word(low)), AtomicU64::new(word(high))]) })
    }

    /// What the peer is told of it.
    pub fn shared(&self) -> SharedMemory {
        SharedMemory { seal: self.value, seal_address: self.place.as_ptr() as u64 }
    }

    /// From now on the peer refuses what it reads of our memory.
    pub fn break_it(&self) {
        for word in self.place.iter() {
            word.store(0, Ordering::SeqCst);
        }
    }
}

impl Drop for Seal {
    fn drop(&mut self) {
        self.break_it();
    }
}

/// What a server lends of its own memory to the client of one connection. When it is dropped nothing is lent any more:
/// a struct that holds both declares it before the memory.
#[derive(Debug)]
pub struct Lender {
    seal: Seal,
    /// Another one when memory was taken back. Does not move.
    word: Box<AtomicU64>,
}

impl Lender {
    /// Nothing is lent.
    pub fn new() -> Result<Self> {
        Ok(Self { seal: Seal::new()?, word: Box::default() })
    }

    /// What the client is told of it.
    pub fn shared(&self) -> SharedMemory {
        self.seal.shared()
    }

    /// Says of parts of this process's memory that they are lent, until [`Lender::take_back`].
    pub fn lend(&self, parts: Vec<LentPart>) -> LentBytes {
        lent_while(&self.word, self.word.load(Ordering::SeqCst), parts)
    }

    /// From now on the client refuses what it copies of what was lent.
    pub fn take_back(&self) {
        self.word.fetch_add(1, Ordering::SeqCst);
    }
}

/// Says of parts of this process's memory that they are lent as long as a word has this value.
pub fn lent_while(word: &AtomicU64, value: u64, parts: Vec<LentPart>) -> LentBytes {
    LentBytes { word_address: std::ptr::from_ref(word) as u64, word: value, parts }
}

/// The memory of the process at the other end of a socket.
#[derive(Debug)]
pub struct PeerMemory {
    pid: i32,
    shared: SharedMemory,
}

impl PeerMemory {
    /// `None`: the kernel does not let us read it, or the peer is not the process that it says.
    pub fn open(socket: &Socket, shared: SharedMemory) -> Option<Self> {
        if socket.kind() != SocketKind::Unix {
            return None;
        }
        let pid = sockopt::socket_peercred(socket).ok()?.pid.as_raw_nonzero().get();
        let memory = Self { pid, shared };
        memory.read(0, &mut []).ok().map(|()| memory)
    }

    /// Fills `into` with what stands at `address` there. An error: it is not lent (any more), and `into` is worth
    /// nothing.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<()> {
        let bytes = into.len() as u64;
        self.read_sealed([(address, bytes)].into_iter(), into, &mut [])
    }

    /// Fills `into`, which is as long, with what a server lends. `false`: it is not lent any more, and `into` is worth
    /// nothing; an error: nothing of that process is.
    pub fn read_lent(&self, lent: &LentBytes, into: &mut [u8]) -> Result<bool> {
        let mut word = [0; size_of::<u64>()];
        let parts = lent.parts.iter().map(|part| (part.address, part.bytes));
        self.read_sealed(parts.chain([(lent.word_address, word.len() as u64)]), into, &mut word)?;
        Ok(u64::from_ne_bytes(word) == lent.word)
    }

    /// Fills `into` and `behind`, which are as long as what they are filled from (address and bytes of each), and
    /// copies the seal behind that.
    fn read_sealed(&self, from: impl Iterator<Item = (u64, u64)>, into: &mut [u8], behind: &mut [u8]) -> Result<()> {
        let (mut places, mut count) = ([RemoteBytes::NONE; PLACES_MAX], 0);
        for (address, bytes) in from.chain([(self.shared.seal_address, SEAL_BYTES as u64)]) {
            let bytes = usize::try_from(bytes).map_err(|_| TransportError::Malformed)?;
            *places.get_mut(count).ok_or(TransportError::Malformed)? = RemoteBytes::at(address, bytes);
            count += 1;
        }
        let mut seal = [0; SEAL_BYTES];
        let bytes = into.len() + behind.len() + SEAL_BYTES;
        let mut into = [into, behind, &mut seal].map(IoSliceMut::new);
        let copied = read_process_memory(self.pid, &places[..count], &mut into)?;
        if copied == bytes && seal == self.shared.seal {
            Ok(())
        } else {
            Err(TransportError::Io(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer's memory is not lent")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn lent_memory_is_read_until_the_seal_is_broken() {
        let (near, far) = UnixStream::pair().unwrap();
        let (near, _far) = (Socket::from_unix(near), far);
        let seal = Seal::new().unwrap();
        let bytes: Vec<u8> = (0..100_000).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let peer = PeerMemory::open(&near, seal.shared()).unwrap();
        let mut into = vec![0; bytes.len()];
        peer.read(bytes.as_ptr() as u64, &mut into).unwrap();
        assert_eq!(into, bytes);
        assert!(peer.read(8, &mut into).is_err(), "nothing is mapped there");
        seal.break_it();
        assert!(peer.read(bytes.as_ptr() as u64, &mut into).is_err());
    }

    #[test]
    fn what_a_server_lends_is_read_until_it_is_taken_back() {
        let (near, _far) = UnixStream::pair().unwrap();
        let near = Socket::from_unix(near);
        let lender = Lender::new().unwrap();
        let bytes: Vec<u8> = (0..100_000).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let part = |bytes: &[u8]| LentPart { address: bytes.as_ptr() as u64, bytes: bytes.len() as u64 };
        let peer = PeerMemory::open(&near, lender.shared()).unwrap();
        let mut into = vec![0; 70_000];
        let lent = lender.lend(vec![part(&bytes[50_000..]), part(&bytes[..20_000])]);
        assert!(peer.read_lent(&lent, &mut into).unwrap());
        assert_eq!(into, [&bytes[50_000..], &bytes[..20_000]].concat());
        lender.take_back();
        assert!(!peer.read_lent(&lent, &mut into).unwrap());
        assert!(peer.read_lent(&lender.lend(lent.parts.clone()), &mut into).unwrap(), "it is lent again");
        let nowhere = lender.lend(vec![LentPart { address: 8, bytes: 70_000 }]);
        assert!(peer.read_lent(&nowhere, &mut into).is_err());
        let again = lender.lend(lent.parts);
        drop(lender);
        assert!(peer.read_lent(&again, &mut into).is_err(), "the seal is broken");
    }

    #[test]
    fn a_seal_that_is_not_there_opens_nothing() {
        let (near, _far) = UnixStream::pair().unwrap();
        let near = Socket::from_unix(near);
        let shared = Seal::new().unwrap().shared();
        assert!(PeerMemory::open(&near, shared).is_none(), "it was dropped");
        let seal = Seal::new().unwrap();
        let another = SharedMemory { seal: [1; SEAL_BYTES], ..seal.shared() };
        assert!(PeerMemory::open(&near, another).is_none());
        assert!(PeerMemory::open(&near, seal.shared()).is_some());
    }
}
