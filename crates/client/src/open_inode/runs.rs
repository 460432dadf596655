//! Gathered runs of written bytes on their way to the server.
//!
//! A run's memory is kept until the server has answered for it: when its connection breaks it is written again on
//! another.

use super::{Descriptor, Sending, State};
use crate::client::Inner;
use crate::data_calls::{request, write_descriptor};
use crate::reader::BLOCK_BYTES;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_client_core::Taken;
use weft_protocol::data::{DataOperation, DataRequest};
use weft_protocol::{Error, Result};
use weft_transport::Carrier;

/// Runs of up to this many bytes are sent from a copy. Many of them may be in flight, and each would keep a buffer that
/// is as large as the largest run.
const SHORT_RUN_BYTES: usize = 4096;

impl Sending {
    /// Returns true if a reply has to be read before a run of this many bytes is sent.
    fn is_full(&self, bytes: usize) -> bool {
        !self.connection.may_start(bytes)
    }
}

impl State {
    /// Adds bytes to the run, and sends it when it is full or they do not continue it.
    pub(super) fn gather(&mut self, inner: &Inner, mut bytes: &[u8], mut offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            let spare = &mut self.spare;
            let taken = match self.run.take(offset, bytes, || spare.pop().unwrap_or_default()) {
                Taken::All => bytes.len(),
                Taken::Part(count) => count,
                Taken::None => 0,
            };
            offset += taken as u64;
            bytes = bytes.get(taken..).unwrap_or_default();
            self.note_written(offset);
            let enough = self.descriptor_to_write().is_some() && self.run.len() >= BLOCK_BYTES;
            if enough || self.run.is_full() || !bytes.is_empty() {
                self.send_run(inner)?;
            }
        }
        Ok(())
    }

    /// The object's file, where it is passed for writing: then runs go there.
    pub(super) fn descriptor_to_write(&self) -> Option<&Arc<OwnedFd>> {
        match &self.descriptor {
            Descriptor::Passed(file, true) => Some(file),
            _ => None,
        }
    }

    /// Sends the run, without waiting for its reply; unless so many connections are in use that none is to be kept.
    pub(super) fn send_run(&mut self, inner: &Inner) -> Result<()> {
        if self.run.is_empty() {
            return Ok(());
        }
        while self.sending.as_ref().is_some_and(|sending| sending.is_full(self.run.len())) {
            self.finish_one(inner);
            self.hold(inner)?;
        }
        let Some((offset, bytes)) = self.run.take_run() else { return Ok(()) };
        if let Some(file) = self.descriptor_to_write() {
            inner.counters.descriptor_write_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let written = write_descriptor(file, &bytes, offset, self.call_bytes);
            self.spare.push(bytes);
            return written.inspect_err(|error| self.known.fail(error.clone()));
        }
        let Some(held) = self.known.held() else {
            self.known.fail(Error::NoObject);
            return Err(Error::NoObject);
        };
        let request = request(self.known.inode(), DataOperation::Write, held, offset, bytes.len());
        let mut sending = match self.sending.take() {
            Some(sending) => sending,
            None => match inner.data_connection(held.object.node()) {
                Ok((link, connection)) => Box::new(Sending { link, connection, requests: VecDeque::new() }),
                Err(error) => {
                    self.known.fail(error.clone());
                    return Err(error);
                }
            },
        };
        // With RDMA the buffers are registered, and used again.
        let is_short = bytes.len() <= SHORT_RUN_BYTES && sending.connection.carrier() != Carrier::Rdma;
        let bytes = if is_short { self.copy_short(bytes) } else { bytes };
        inner.counters.data_requests.fetch_add(1, Ordering::Relaxed);
        inner.count_write(sending.connection.carrier(), bytes.len() as u64);
        match sending.connection.start_write(&request, bytes) {
            Ok(()) => {
                sending.requests.push_back(request);
                let crowded = sending.link.data.is_crowded();
                self.sending = Some(sending);
                while crowded && self.sending.is_some() {
                    self.finish_one(inner);
                }
            }
            Err(failed) => {
                // The connection is dead: what was on its way, and this run, are written again on another.
                self.rewrite_outstanding(inner, *sending);
                self.rewrite(inner, &request, &failed.memory);
            }
        }
        Ok(())
    }

    /// Waits for the oldest run on its way.
    pub(super) fn finish_one(&mut self, inner: &Inner) {
        let Some(mut sending) = self.sending.take() else { return };
        let (Some(request), Some((memory, reply))) = (sending.requests.pop_front(), sending.connection.finish()) else {
            sending.link.return_data(sending.connection);
            return;
        };
        match reply.map(|reply| reply.result().copied()) {
            Ok(Ok(reply)) => {
                self.known.written_at(reply.mtime);
                self.sending = Some(sending);
            }
            Ok(Err(error)) => {
                self.known.fail(error);
                self.sending = Some(sending);
            }
            Err(_) => {
                self.rewrite(inner, &request, &memory);
                self.rewrite_outstanding(inner, *sending);
            }
        }
        self.reuse(memory);
    }

    fn copy_short(&mut self, run: Vec<u8>) -> Vec<u8> {
        let short = run.clone();
        self.spare.push(run);
        short
    }

    /// Keeps a buffer for another run, unless it was a copy of a short one.
    fn reuse(&mut self, memory: Vec<u8>) {
        if memory.capacity() > SHORT_RUN_BYTES {
            self.spare.push(memory);
        }
    }

    pub(super) fn rewrite_outstanding(&mut self, inner: &Inner, mut sending: Sending) {
        while let (Some(request), Some((memory, _))) = (sending.requests.pop_front(), sending.connection.finish()) {
            self.rewrite(inner, &request, &memory);
            self.reuse(memory);
        }
    }

    pub(super) fn rewrite(&mut self, inner: &Inner, request: &DataRequest, memory: &[u8]) {
        let bytes = memory.get(..request.bytes as usize).unwrap_or_default();
        match inner.data_write(request, bytes, None) {
            Ok(reply) => self.known.written_at(reply.mtime),
            Err(error) => self.known.fail(error),
        }
    }

    /// Sends the run and waits for everything on its way.
    pub(super) fn send_all(&mut self, inner: &Inner) -> Result<()> {
        self.send_run(inner)?;
        let mut waited = false;
        while self.sending.is_some() {
            self.finish_one(inner);
            waited = true;
        }
        if waited { self.hold(inner) } else { Ok(()) }
    }
}
