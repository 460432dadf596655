//! Large reads of an object without a file: its device fills memory that it shares with transfers, and pieces are put
//! from there while further ones come.
//!
//! Invariant: what a put is on its way from is shared with the mover, and nobody fills it. So whichever way this ends
//! (the device fails, the client goes, the connection breaks) its ring is given to nobody before those puts have ended,
//! or the mover with them.
//! A client is waited for only when nothing is on its way from the device: as long as something is, others may wait for
//! this thread.

use super::{ClientMemory, LOOK};
use crate::executor::Moved;
use crate::region::refused;
use crate::store::BlockObject;
use std::os::fd::AsFd;
use weft_protocol::data::BulkDescriptor;
use weft_transport::{Result, Socket, TransportError};

impl ClientMemory {
    /// Puts bytes of an object into the client's memory, from an offset on, as [`ClientMemory::put`] does. `None`: its
    /// device is not read so, or its memory cannot be registered.
    pub(super) fn put_streamed(
        &mut self,
        socket: &Socket,
        (object, offset, bytes): (&dyn BlockObject, u64, u64),
        memory: BulkDescriptor,
    ) -> Result<Option<Moved>> {
        let Some(mut stream) = object.stream(offset, bytes) else { return Ok(None) };
        let Some(window) = stream.page().and_then(|page| object.window(&page)) else { return Ok(None) };
        let (mut to, shared_max) = (memory.address, stream.shared_max());
        let failed = loop {
            if self.mover.shared(socket.as_fd())? > shared_max {
                stream.settle();
                self.mover.finish_shared(shared_max, socket.as_fd(), LOOK)?;
            }
            match stream.advance() {
                Ok(true) => {}
                Ok(false) => break None,
                Err(error) => break Some(refused(error)),
            }
            let (slot, range) = stream.share().ok_or(TransportError::Malformed)?;
            let count = range.len() as u64;
            self.mover.put_shared(&window, (slot, range), memory.key, to)?;
            to += count;
            self.transfers.puts += 1;
            self.transfers.streamed_bytes += count;
        };
        // Also after an error: the memory is the client's again when it is answered.
        stream.settle();
        self.mover.flush(socket.as_fd(), LOOK)?;
        self.transfers.flushes += 1;
        self.mover.finish_shared(0, socket.as_fd(), LOOK)?;
        Ok(Some(failed.map_or(Moved::Done, Moved::Failed)))
    }
}
