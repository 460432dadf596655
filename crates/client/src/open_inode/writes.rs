//! A write, by the shortest way that the lease allows.
//!
//! Under an exclusive lease small writes are gathered; large and direct ones go straight to the object, several at once
//! and without the lock: they are *in flight*, and a recall or a cut waits for them. Where the client was told so (a
//! mount), large ones that come in order are gathered, too. Without the lease each write is at the server when it
//! returns.

use super::{Descriptor, OpenInode, RIGHT_MARGIN_MS, State};
use crate::client::Inner;
use crate::data_calls::{request, write_descriptor};
use crate::file::OpenOptions;
use crate::home::BATCH_MARGIN_SECONDS;
use crate::link::{SlotFor, lock};
use crate::reader::SMALL_BYTES;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use weft_client_core::Held;
use weft_protocol::data::{DataOperation, DataReply};
use weft_protocol::limits::{BULK_BYTES_MAX, FILE_BYTES_MAX, HANDLE_BUFFER_BYTES};
use weft_protocol::{Error, InodeNumber, Result, Timestamp};
use weft_transport::Registration;

/// One write in flight, until this is dropped.
struct Flight<'a>(&'a OpenInode);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).in_flight -= 1;
        self.0.landed.notify_all();
    }
}

impl OpenInode {
    /// A write. Returns when the bytes are gathered (exclusive lease), in the object's file, or at the server.
    pub fn write(&self, inner: &Inner, bytes: &[u8], offset: u64, options: &OpenOptions) -> Result<()> {
        let OpenOptions { append, direct, registration, .. } = *options;
        let mut state = self.lock(inner)?;
        while state.awaiting > 0 {
            drop(self.landed.wait(state).unwrap_or_else(PoisonError::into_inner));
            state = self.lock(inner)?;
        }
        if let Some(error) = state.known.tell_writer() {
            return Err(error);
        }
        if bytes.is_empty() {
            // Nothing changes, not even the size.
            return Ok(());
        }
        state.regain(inner)?;
        // A kernel may be writing the object beside us.
        let exclusive = state.known.is_exclusive() && state.kernel.is_none();
        let offset = if append && exclusive { state.known.size() } else { offset };
        let end =
            offset.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::FileTooLarge)?;
        state.ensure_object(inner)?;
        self.changed();
        if exclusive && let Some(file) = state.descriptor(inner, true)? {
            if !direct && bytes.len() <= SMALL_BYTES && state.known.may_gather() {
                return state.gather(inner, bytes, offset);
            }
            state.send_all(inner)?;
            let call_bytes = state.call_bytes;
            return self.in_flight(inner, state, end, direct, |_| {
                inner.counters.descriptor_write_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                write_descriptor(&file, bytes, offset, call_bytes)
            });
        }
        let is_next = std::mem::replace(&mut state.next_write, end) == offset;
        let is_small = bytes.len() < HANDLE_BUFFER_BYTES || (is_next && bytes.len() < inner.buffer_bytes);
        if exclusive && !direct && is_small && state.known.may_gather() {
            return state.gather(inner, bytes, offset);
        }
        state.send_all(inner)?;
        if exclusive && !state.known.object_is_new() {
            // Nobody else has a right to the file now, so what is known of the object holds without the lock.
            return self.in_flight(inner, state, end, direct, |held| {
                let target = (self.inode, held, DataOperation::Write);
                write_pieces(inner, target, bytes, offset, registration).map(|_| ())
            });
        }
        state.write_now(inner, bytes, offset, &OpenOptions { append: append && !exclusive, ..*options })
    }

    /// Makes a write under an exclusive lease without the lock. `end`: of what it writes.
    fn in_flight(
        &self,
        inner: &Inner,
        mut state: MutexGuard<'_, State>,
        end: u64,
        direct: bool,
        write: impl FnOnce(Held) -> Result<()>,
    ) -> Result<()> {
        let held = state.known.held().ok_or(Error::NoObject)?;
        state.note_written(end);
        state.in_flight += 1;
        drop(state);
        let flight = Flight(self);
        let written = write(held);
        let mut state = lock(&self.state);
        // Landed: the lock is had already, which the end of `flight` would take.
        std::mem::forget(flight);
        state.in_flight -= 1;
        state.slot = SlotFor::Caller;
        self.landed.notify_all();
        // Who read while the bytes were on their way may have others at hand.
        self.changed();
        // Whoever lost the session meanwhile may have written behind the back of the next holder; and where that has
        // taken the object away, this is what to say.
        state.hold(inner)?;
        written?;
        state.known.arrived();
        // Somebody may have reported the size from before the bytes were there.
        state.note_written(end);
        if state.known.reports_object(direct) && !state.commit(inner)? {
            return Err(Error::NoObject);
        }
        Ok(())
    }
}

fn write_pieces(
    inner: &Inner,
    (inode, held, operation): (InodeNumber, Held, DataOperation),
    bytes: &[u8],
    offset: u64,
    registration: Option<Registration>,
) -> Result<DataReply> {
    let mut position = offset;
    let mut last = DataReply::default();
    for piece in bytes.chunks(BULK_BYTES_MAX as usize) {
        last = inner.data_write(&request(inode, operation, held, position, piece.len()), piece, registration)?;
        position += piece.len() as u64;
    }
    Ok(last)
}

impl State {
    pub(super) fn note_written(&mut self, end: u64) {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        self.known.written(end, Timestamp::from_parts(time.tv_sec, u32::try_from(time.tv_nsec).unwrap_or(0)));
    }

    /// A file without an object gets one, at the client's own node. One that was extended by truncate gets its size.
    pub(super) fn ensure_object(&mut self, inner: &Inner) -> Result<()> {
        if self.known.held().is_some() {
            return Ok(());
        }
        let (object, capability) = inner.new_object()?;
        let held = Held { object, capability };
        if let Some(last) = self.known.size().checked_sub(1) {
            inner.data_write(&request(self.known.inode(), DataOperation::Write, held, last, 1), &[0], None)?;
        }
        self.hold(inner)?;
        self.known.object_made(held);
        // Of a batch that was good for this long at least.
        self.right_until_ms = inner.clock_ms() + u64::from(BATCH_MARGIN_SECONDS) * 1000 - RIGHT_MARGIN_MS;
        self.descriptor = Descriptor::NotAsked;
        Ok(())
    }

    /// A write that is at the server when this returns, while others may write too.
    fn write_now(&mut self, inner: &Inner, bytes: &[u8], offset: u64, options: &OpenOptions) -> Result<()> {
        let operation = if options.append { DataOperation::Append } else { DataOperation::Write };
        for attempt in 0..2 {
            self.ensure_object(inner)?;
            let held = self.known.held().ok_or(Error::NoObject)?;
            match write_pieces(inner, (self.known.inode(), held, operation), bytes, offset, options.registration) {
                Ok(reply) => {
                    self.hold(inner)?;
                    self.known.arrived();
                    self.note_written(reply.size);
                    self.known.written_at(reply.mtime);
                    if !self.known.reports_object(options.direct) || self.commit(inner)? {
                        return Ok(());
                    }
                }
                Err(Error::NoObject | Error::CapabilityRejected) if attempt == 0 && !self.known.object_is_new() => {}
                Err(error) => return self.hold(inner).and(Err(error)),
            }
            self.known.open_anew();
            self.regain(inner)?;
        }
        Err(Error::NoObject)
    }
}
