//! Writes of a group's member to its own part that the part's node has not acknowledged: a run that is being gathered,
//! and runs in flight.
//!
//! A part has one writer, and a member publishes when it synchronizes, so nobody has to be asked before bytes are
//! buffered. Runs go by the connections and windows of write-behind under an exclusive lease ([`Sending`]).
//!
//! Invariant: no extent names a byte in here. A run is handed over to be published once the node has acknowledged it.
//! Runs for which the node has no space are kept, and those behind them, if their writer lets them go to another node's
//! part (`spilling.rs`). Otherwise they are lost, as with any other error, and not kept for another attempt as under a
//! lease: after a loss nothing of what is in here is sent.

use crate::file_objects::Held;
use crate::objects::{ObjectWrite, Objects};
use crate::sending::{Finished, NotSent, Sending, reuse};
use crate::shell::Shell;
use crate::tuning::Tuning;
use crate::write_behind::WriteBehind;
use weft_protocol::data::DataOperation;
use weft_protocol::error::errno;
use weft_protocol::{Error, InodeNumber, ObjectId, Result};

/// See the module.
pub struct Behind<S: Shell> {
    run: WriteBehind,
    sending: Option<Box<Sending<S>>>,
    /// Memory of runs that were sent.
    spare: Vec<Vec<u8>>,
    /// Offset and length of runs that the node has acknowledged, in the order in which they were written.
    landed: Vec<(u64, u64)>,
    /// Runs for which a part's node had no space are kept, as the latest writer has chosen.
    pub keeps_refused: bool,
    refused: Option<Refused>,
    /// Why other runs are lost.
    error: Option<Error>,
}

/// Runs that are kept.
struct Refused {
    /// The part in which they are not.
    by: ObjectId,
    /// Where they begin, and their bytes, in the order in which they were written.
    runs: Vec<(u64, Vec<u8>)>,
}

impl<S: Shell> Behind<S> {
    /// Without a byte.
    pub fn new(tuning: &Tuning) -> Self {
        let run = WriteBehind::new(tuning.buffer_bytes.min(tuning.run_bytes));
        let (spare, landed) = (Vec::new(), Vec::new());
        Self { run, sending: None, spare, landed, keeps_refused: false, refused: None, error: None }
    }

    /// Returns true if nothing is gathered, in flight or kept.
    pub fn is_empty(&self) -> bool {
        self.run.is_empty() && self.sending.is_none() && self.refused.is_none()
    }

    /// The part whose node has refused the runs that are kept.
    pub fn refused_by(&self) -> Option<ObjectId> {
        self.refused.as_ref().map(|refused| refused.by)
    }

    /// Drops everything. Runs in flight are revoked before this client sends the node anything else. Returns whether
    /// there was any.
    pub fn clear(&mut self) -> bool {
        let had_any = !self.is_empty() || !self.landed.is_empty();
        self.run.take_run();
        (self.sending, self.refused, self.error) = (None, None, None);
        self.landed.clear();
        had_any
    }

    /// What was acknowledged since the last call, and why anything was lost.
    pub fn take_outcome(&mut self) -> (Vec<(u64, u64)>, Option<Error>) {
        (std::mem::take(&mut self.landed), self.error.take())
    }

    /// Reads a range that lies wholly in the run.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        self.run.read(offset, into)
    }

    /// Adds bytes to the run, and sends it when it is full or they do not continue it.
    pub async fn gather(&mut self, io: &Objects<S>, part: (InodeNumber, Held), mut bytes: &[u8], mut offset: u64) {
        while !bytes.is_empty() && self.error.is_none() {
            let spare = &mut self.spare;
            let taken = self.run.take(offset, bytes, || spare.pop().unwrap_or_default()).count(bytes);
            offset += taken as u64;
            bytes = &bytes[taken..];
            if self.run.is_full() || !bytes.is_empty() {
                self.send_run(io, part).await;
            }
        }
    }

    /// Sends the run, and waits for everything in flight.
    pub async fn send_all(&mut self, io: &Objects<S>, part: (InodeNumber, Held)) {
        self.send_run(io, part).await;
        self.finish(io).await;
    }

    /// Writes the runs that were refused to another part.
    pub async fn send_refused(&mut self, io: &Objects<S>, part: (InodeNumber, Held)) {
        for (offset, bytes) in self.refused.take().into_iter().flat_map(|refused| refused.runs) {
            self.write(io, part, offset, bytes).await;
        }
    }

    /// No node has space for the runs that were refused.
    pub fn lose_refused(&mut self) {
        if self.refused.is_some() {
            self.fail(Error::NoSpace);
        }
    }

    /// Waits for everything in flight.
    pub async fn finish(&mut self, io: &Objects<S>) {
        while self.sending.is_some() {
            self.finish_one(io).await;
        }
    }

    /// Sends the run without waiting for its reply, unless so many connections are in use that none is to be kept.
    async fn send_run(&mut self, io: &Objects<S>, part: (InodeNumber, Held)) {
        if self.run.is_empty() {
            return;
        }
        let (inode, held) = part;
        if self.sending.as_ref().is_some_and(|sending| sending.objects.first() != held) {
            self.finish(io).await;
        }
        // A reply has to be read before the run is sent.
        let (start, bytes) = (self.run.start(), self.run.len());
        while self.sending.as_ref().is_some_and(|sending| !sending.may_start(start, bytes)) {
            self.finish_one(io).await;
        }
        let Some((offset, bytes)) = self.run.take_run().filter(|_| self.error.is_none()) else { return };
        if self.refused.is_some() {
            return self.keep(held.object, offset, bytes);
        }
        let mut sending = self.sending.take().unwrap_or_else(|| Box::new(Sending::new(inode, held.into())));
        let started = sending.start(io, offset, bytes, &mut self.spare).await;
        self.sending = Some(sending);
        match started {
            Ok(false) => {}
            Ok(true) => self.finish(io).await,
            Err(NotSent::Failed(error)) => {
                self.finish(io).await;
                self.fail(error);
            }
            Err(NotSent::Otherwise(bytes)) => {
                self.finish(io).await;
                self.write(io, part, offset, bytes).await;
            }
        }
    }

    /// Waits for the oldest run in flight; for all if it has to be written again, or is lost or refused.
    async fn finish_one(&mut self, io: &Objects<S>) {
        let Some(sending) = &self.sending else { return };
        let (inode, held) = (sending.inode, sending.objects.first());
        loop {
            for Finished { offset, bytes, mut memory, reply } in Sending::finish_oldest(&mut self.sending, io).await {
                memory.truncate(bytes);
                match reply {
                    Some(reply) => self.finished(held, offset, memory, reply.map(drop)),
                    None => self.write(io, (inode, held), offset, memory).await,
                }
            }
            if (self.error.is_none() && self.refused.is_none()) || self.sending.is_none() {
                return;
            }
        }
    }

    /// Writes a run, and waits for the replies.
    async fn write(&mut self, io: &Objects<S>, (inode, held): (InodeNumber, Held), offset: u64, bytes: Vec<u8>) {
        if self.error.is_some() {
            return;
        }
        if self.refused.is_some() {
            return self.keep(held.object, offset, bytes);
        }
        let mut write = ObjectWrite::new((inode, held.into()), DataOperation::Write, false);
        let written = io.write_part(&mut write, held, &bytes, offset, None).await;
        self.finished(held, offset, bytes, written.map(drop));
    }

    /// What has become of a run that was sent. One behind a refused one may be of the same range, and has to be written
    /// again after that.
    fn finished(&mut self, held: Held, offset: u64, bytes: Vec<u8>, written: Result<()>) {
        let is_refused = written == Err(Error::NoSpace) && self.keeps_refused && self.error.is_none();
        if self.refused.is_some() || is_refused {
            return self.keep(held.object, offset, bytes);
        }
        match written {
            Ok(()) => self.landed.push((offset, bytes.len() as u64)),
            Err(error) => self.fail(error),
        }
        reuse(bytes, &mut self.spare);
    }

    /// A run is not in a part, or has to be written again.
    fn keep(&mut self, part: ObjectId, offset: u64, bytes: Vec<u8>) {
        self.refused.get_or_insert(Refused { by: part, runs: Vec::new() }).runs.push((offset, bytes));
    }

    /// A run is lost, and with it those that are kept and the one that is being gathered.
    fn fail(&mut self, error: Error) {
        self.run.take_run();
        self.refused = None;
        // Who is told of this must not take it for a right that is void, and try again.
        let is_of_right = matches!(error, Error::NoObject | Error::CapabilityRejected);
        self.error.get_or_insert(if is_of_right { Error::Device(errno::EIO) } else { error });
    }
}
