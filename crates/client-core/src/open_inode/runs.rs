//! Runs of gathered bytes in flight to the server.
//!
//! A run's memory is kept until the server has replied: when the connection breaks, the run is written again on
//! another.

use super::state::{Sending, State};
use crate::file_objects::{FileObjects, Held};
use crate::notice::Notice;
use crate::objects::{ObjectWrite, Objects, request};
use crate::shell::Shell;
use crate::write_behind::Taken;
use std::collections::VecDeque;
use weft_protocol::data::{DataOperation, DataReply, DataRequest};
use weft_protocol::{Error, Result};

/// Runs of up to this many bytes are sent from a copy. Many of them may be in flight, and each would keep a buffer that
/// is as large as the largest run.
const SHORT_RUN_BYTES: usize = 4096;

impl<S: Shell> State<S> {
    /// Adds bytes to the run that they continue, if the lease and the right hold and the run need not be sent. Returns
    /// whether it did.
    pub fn gather_at_hand(&mut self, io: &Objects<S>, bytes: &[u8], offset: u64, now_ms: u64) -> bool {
        let has_file = self.descriptor_to_write().is_some();
        let limit = if has_file { io.tuning.block_bytes } else { usize::MAX };
        let continues = !self.run.is_empty() && self.run.end() == offset && self.run.has_room(bytes.len());
        let may = continues
            && self.run.len() + bytes.len() < limit
            && bytes.len() <= io.tuning.small_bytes
            && self.known.is_exclusive()
            && self.kernel.is_none()
            && self.known.error().is_none()
            && self.known.may_gather()
            && self.known.held().is_some()
            && now_ms < self.right_until_ms;
        if may {
            let taken = self.run.take(offset, bytes, Vec::new);
            assert_eq!(taken, Taken::All, "the run has room for {} bytes", bytes.len());
            self.next_write = self.run.end();
            self.note_written(io, self.run.end());
        }
        may
    }

    /// Adds bytes to the run, and sends it when it is full or they do not continue it.
    pub async fn gather(&mut self, io: &Objects<S>, mut bytes: &[u8], mut offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            let spare = &mut self.spare;
            let taken = match self.run.take(offset, bytes, || spare.pop().unwrap_or_default()) {
                Taken::All => bytes.len(),
                Taken::Part(count) => count,
                Taken::None => 0,
            };
            offset += taken as u64;
            bytes = &bytes[taken..];
            self.note_written(io, offset);
            let enough = self.descriptor_to_write().is_some() && self.run.len() >= io.tuning.block_bytes;
            if enough || self.run.is_full() || !bytes.is_empty() {
                self.send_run(io).await?;
                // It may have waited for room, and for longer than the session lasted.
                self.hold(io).await?;
            }
        }
        Ok(())
    }

    /// Sends the run without waiting for its reply, unless so many connections are in use that none is to be kept.
    async fn send_run(&mut self, io: &Objects<S>) -> Result<()> {
        if self.run.is_empty() {
            return Ok(());
        }
        // A reply has to be read before the run is sent.
        while self.sending.as_ref().is_some_and(|sending| !sending.connection.may_start(self.run.len())) {
            self.finish_one(io).await;
            self.hold(io).await?;
        }
        while !self.refused.is_empty() && self.sending.is_some() {
            self.finish_one(io).await;
        }
        let Some((offset, bytes)) = self.run.take_run() else { return Ok(()) };
        if !self.refused.is_empty() {
            // Nothing is sent before what was refused: if that is lost, it must not leave a hole. This is the newest.
            self.run_failed(io, offset, &bytes, Error::NoSpace);
            self.spare.push(bytes);
            return Ok(());
        }
        if let Some(file) = self.descriptor_to_write() {
            match io.calls.shell.write_file(file, &bytes, offset, self.call_bytes).await {
                Ok(()) => self.run_written(offset, bytes.len() as u64),
                Err(error) => self.run_failed(io, offset, &bytes, error),
            }
            self.spare.push(bytes);
            return Ok(());
        }
        let Some(objects) = self.known.objects().cloned() else {
            self.fail(io, Error::NoObject);
            return Err(Error::NoObject);
        };
        if objects.is_striped() {
            self.write_run(io, objects, offset, &bytes).await;
            self.spare.push(bytes);
            return Ok(());
        }
        let held = objects.first();
        let mut request = request(self.known.inode(), DataOperation::Write, held, offset, bytes.len());
        let mut sending = match self.sending.take() {
            Some(sending) => {
                // If that fails, so will this write: what is in flight is settled with the next one.
                if let Err(error) = sending.connection.settle(io).await {
                    self.sending = Some(sending);
                    self.fail(io, error.clone());
                    return Err(error);
                }
                sending
            }
            None => match io.data_connection(held.object.node()).await {
                Ok(connection) => Box::new(Sending { connection, id: io.next_pipelined(), requests: VecDeque::new() }),
                Err(error) => {
                    self.fail(io, error.clone());
                    return Err(error);
                }
            },
        };
        request.id = sending.id;
        let is_short = bytes.len() <= SHORT_RUN_BYTES && !sending.connection.registers_memory();
        let bytes = if is_short { self.copy_short(bytes) } else { bytes };
        io.calls.shell.notice(Notice::DataRequest);
        match sending.connection.start_write(&request, bytes).await {
            Ok(()) => {
                sending.requests.push_back(request);
                let crowded = sending.connection.is_crowded();
                self.sending = Some(sending);
                while crowded && self.sending.is_some() {
                    self.finish_one(io).await;
                }
            }
            Err(bytes) => {
                // The connection is dead: the runs in flight, and this one, are written again on another.
                self.rewrite_outstanding(io, *sending).await;
                self.rewrite(io, &request, &bytes).await;
            }
        }
        Ok(())
    }

    /// Waits for the oldest run in flight.
    async fn finish_one(&mut self, io: &Objects<S>) {
        let Some(mut sending) = self.sending.take() else { return };
        let Some(request) = sending.requests.pop_front() else {
            return sending.connection.give_back(&io.calls.shell);
        };
        let (memory, reply) = sending.connection.finish().await.expect("a write was started for each request");
        match reply.map(|reply| reply.result().copied()) {
            Ok(Ok(reply)) => {
                self.known.object_written(reply.mtime);
                self.run_written(request.offset, u64::from(request.bytes));
                self.sending = Some(sending);
            }
            // What was sent behind it may be of the same range, and has to come after it.
            Ok(Err(Error::PagesCached)) | Err(_) => {
                self.rewrite(io, &request, &memory).await;
                self.rewrite_outstanding(io, *sending).await;
            }
            Ok(Err(error)) => {
                self.run_failed(io, request.offset, &memory[..request.bytes as usize], error);
                self.sending = Some(sending);
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

    async fn rewrite_outstanding(&mut self, io: &Objects<S>, mut sending: Sending<S>) {
        while let Some(request) = sending.requests.pop_front() {
            let (memory, _) = sending.connection.finish().await.expect("a write was started for each request");
            self.rewrite(io, &request, &memory).await;
            self.reuse(memory);
        }
    }

    async fn rewrite(&mut self, io: &Objects<S>, request: &DataRequest, memory: &[u8]) {
        let bytes = &memory[..request.bytes as usize];
        if !self.refused.is_empty() {
            return self.run_failed(io, request.offset, bytes, Error::NoSpace);
        }
        let held = Held { object: request.object, capability: request.capability };
        self.write_run(io, held.into(), request.offset, bytes).await;
    }

    /// Writes a run, and waits for the replies.
    async fn write_run(&mut self, io: &Objects<S>, objects: FileObjects, offset: u64, bytes: &[u8]) {
        match self.write_past_pages(io, objects, offset, bytes).await {
            Ok(reply) => {
                self.known.object_written(reply.mtime);
                self.run_written(offset, bytes.len() as u64);
            }
            Err(error) => self.run_failed(io, offset, bytes, error),
        }
    }

    /// Writes under an exclusive lease. Pages that are in the way are no open file's, and dropping them waits for
    /// nobody.
    pub async fn write_past_pages(
        &self,
        io: &Objects<S>,
        objects: FileObjects,
        offset: u64,
        bytes: &[u8],
    ) -> Result<DataReply> {
        let mut write = ObjectWrite::new((self.known.inode(), objects), DataOperation::Write, false);
        loop {
            match io.write_object(&mut write, bytes, offset, None).await {
                Err(Error::PagesCached) => io.calls.wait_for_pages().await,
                result => return result,
            }
        }
    }

    /// Sends the run and waits for everything in flight.
    pub async fn send_all(&mut self, io: &Objects<S>) -> Result<()> {
        self.send_run(io).await?;
        if self.finish_sending(io).await { self.hold(io).await } else { Ok(()) }
    }

    /// Waits for everything in flight. Returns whether there was any.
    pub async fn finish_sending(&mut self, io: &Objects<S>) -> bool {
        let mut waited = false;
        while self.sending.is_some() {
            self.finish_one(io).await;
            waited = true;
        }
        waited
    }
}
