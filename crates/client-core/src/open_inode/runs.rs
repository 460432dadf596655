//! Runs of gathered bytes in flight to the server.
//!
//! A run's memory is kept until the server has replied: when the connection breaks, the run is written again on
//! another.

use super::state::State;
use crate::file_objects::FileObjects;
use crate::objects::{ObjectWrite, Objects};
use crate::sending::{Finished, NotSent, Sending, reuse};
use crate::shell::Shell;
use crate::write_behind::Taken;
use weft_layout::Stripes;
use weft_protocol::data::{DataOperation, DataReply};
use weft_protocol::{Error, Result};

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
        self.run.lies_in(Stripes::of(&self.known.attributes().layout));
        while !bytes.is_empty() {
            let spare = &mut self.spare;
            let taken = self.run.take(offset, bytes, || spare.pop().unwrap_or_default()).count(bytes);
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
        let (start, bytes) = (self.run.start(), self.run.len());
        while self.sending.as_ref().is_some_and(|sending| !sending.may_start(start, bytes)) {
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
        self.start_run(io, objects, offset, bytes).await
    }

    async fn start_run(&mut self, io: &Objects<S>, objects: FileObjects, offset: u64, bytes: Vec<u8>) -> Result<()> {
        if self.sending.as_ref().is_some_and(|sending| sending.objects != objects) {
            self.finish_sending(io).await;
        }
        let inode = self.known.inode();
        let mut sending = self.sending.take().unwrap_or_else(|| Box::new(Sending::new(inode, objects.clone())));
        let started = sending.start(io, offset, bytes, &mut self.spare).await;
        self.sending = Some(sending);
        match started {
            Ok(false) => {}
            Ok(true) => drop(self.finish_sending(io).await),
            Err(NotSent::Failed(error)) => {
                self.fail(io, error.clone());
                return Err(error);
            }
            Err(NotSent::Otherwise(bytes)) => {
                self.finish_sending(io).await;
                self.rewrite(io, objects, offset, &bytes).await;
                self.spare.push(bytes);
            }
        }
        Ok(())
    }

    /// Waits for the oldest run in flight, and for all if it has to be written again.
    async fn finish_one(&mut self, io: &Objects<S>) {
        let Some(objects) = self.sending.as_ref().map(|sending| sending.objects.clone()) else { return };
        for Finished { offset, bytes, memory, reply } in Sending::finish_oldest(&mut self.sending, io).await {
            match reply {
                Some(Ok(reply)) => {
                    self.known.object_written(reply.mtime);
                    self.run_written(offset, bytes as u64);
                }
                Some(Err(error)) => self.run_failed(io, offset, &memory[..bytes], error),
                None => self.rewrite(io, objects.clone(), offset, &memory[..bytes]).await,
            }
            reuse(memory, &mut self.spare);
        }
    }

    async fn rewrite(&mut self, io: &Objects<S>, objects: FileObjects, offset: u64, bytes: &[u8]) {
        if !self.refused.is_empty() {
            return self.run_failed(io, offset, bytes, Error::NoSpace);
        }
        self.write_run(io, objects, offset, bytes).await;
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
        io.write_past_pages(&mut write, &[(bytes, offset)], None).await
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
