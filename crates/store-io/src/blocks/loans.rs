//! What a node lends to the client of one connection instead of sending it ([`weft_transport::PeerMemory::read_lent`]).
//!
//! Where the device is memory, the bytes are lent where they lie: nothing is copied here, and nobody waits for the
//! client, since the store's own word tells it when blocks were given to somebody else. Otherwise they are read into
//! the pool's buffers, which are lent until the next request, or until they are taken back.
//!
//! Invariant: a buffer goes back to the pool after the word has changed, or the seal is broken.

use super::{BUFFER_BYTES, Lent, STREAM_FROM_BYTES, pieces};
use crate::store::BlockObject;
use weft_protocol::Error;
use weft_protocol::data::{LentBytes, LentPart, SharedMemory};
use weft_protocol::limits::LENT_PARTS_MAX;
use weft_region::BLOCK_BYTES;
use weft_transport::{Lender, Result};

/// See the module.
pub struct Loans {
    // In this order: nothing is lent any more when the buffers go back.
    lender: Lender,
    buffers: Vec<Lent>,
}

impl Loans {
    /// Nothing is lent yet.
    pub fn new() -> Result<Self> {
        Ok(Self { lender: Lender::new()?, buffers: Vec::new() })
    }

    /// What the client is told when it asks for loans.
    pub fn shared(&self) -> SharedMemory {
        self.lender.shared()
    }

    /// Whether buffers are lent, which are to be taken back.
    pub fn has_buffers(&self) -> bool {
        !self.buffers.is_empty()
    }

    /// Takes the buffers back.
    pub fn take_back(&mut self) {
        if self.has_buffers() {
            self.lender.take_back();
            self.buffers.clear();
        }
    }

    /// Lends bytes that an object has, when nothing is lent. `None`: they are better sent, since more of them can be
    /// on their way from the device meanwhile.
    pub fn lend(
        &mut self,
        object: &dyn BlockObject,
        offset: u64,
        bytes: u64,
    ) -> std::result::Result<Option<LentBytes>, Error> {
        assert!(!self.has_buffers(), "buffers are lent");
        if let Some(lent) = object.in_memory(offset, bytes).filter(|lent| lent.parts.len() <= LENT_PARTS_MAX) {
            return Ok(Some(lent));
        }
        if bytes > STREAM_FROM_BYTES && object.streams(offset, bytes) {
            return Ok(None);
        }
        let (mut parts, mut buffers) = (Vec::new(), Vec::new());
        for piece in pieces(offset, bytes, BUFFER_BYTES) {
            let mut memory = Lent::take();
            let end = piece.lead + piece.count;
            let blocks = &mut memory[..end.next_multiple_of(BLOCK_BYTES)];
            object.read_at(piece.offset - piece.lead as u64, blocks)?;
            let bytes = &blocks[piece.lead..end];
            parts.push(LentPart { address: bytes.as_ptr() as u64, bytes: piece.count as u64 });
            buffers.push(memory);
        }
        self.buffers = buffers;
        Ok(Some(self.lender.lend(parts)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Small, contents, sockets};
    use super::*;
    use weft_transport::PeerMemory;

    #[test]
    fn what_is_lent_is_what_the_object_has_until_it_is_taken_back() {
        let object = Small::with([contents(), vec![0; 1 << 20]].concat());
        let (client, _server) = sockets();
        let mut loans = Loans::new().unwrap();
        let peer = PeerMemory::open(&client, loans.shared()).unwrap();
        for (offset, count) in [(0, 1), (4095, 2), (5, BUFFER_BYTES), (4096, BUFFER_BYTES), (77, contents().len() - 77)]
        {
            let lent = loans.lend(&object, offset as u64, count as u64).unwrap().unwrap();
            let mut found = vec![0; count];
            assert!(peer.read_lent(&lent, &mut found).unwrap());
            assert!(found == contents()[offset..offset + count], "{count} bytes at {offset}");
            loans.take_back();
            assert!(!peer.read_lent(&lent, &mut found).unwrap(), "{count} bytes at {offset}");
        }
        let lent = loans.lend(&object, 0, 10).unwrap().unwrap();
        drop(loans);
        assert!(peer.read_lent(&lent, &mut [0; 10]).is_err());
    }

    #[test]
    fn of_what_cannot_be_read_nothing_is_lent() {
        let object = Small::with(contents());
        let mut loans = Loans::new().unwrap();
        assert_eq!(loans.lend(&object, contents().len() as u64, 1), Err(Error::NoSpace));
        assert!(!loans.has_buffers());
    }
}
