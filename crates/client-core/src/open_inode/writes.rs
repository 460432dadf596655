//! A write, by the shortest way that the lease allows.
//!
//! Under an exclusive lease small writes are gathered; large and direct ones go straight to the object, several at
//! once and without the lock: they are *in flight*, and a recall or a truncate waits for them. Where the client was
//! told to (by a mount), large sequential ones are gathered, too. Without the lease each write is at the server when
//! it returns.

use super::state::{Descriptor, RIGHT_MARGIN_MS, State};
use crate::new_objects::BATCH_MARGIN_SECONDS;
use crate::objects::{ObjectWrite, Objects, Registration, request};
use crate::open_options::OpenOptions;
use crate::shell::Shell;
use crate::tuning::Tuning;
use std::sync::Arc;
use weft_protocol::data::{DataOperation, DataReply};
use weft_protocol::error::errno;
use weft_protocol::{Error, Result, Timestamp};

/// What became of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Where it begins: of an append, where the file ended.
    pub offset: u64,
    /// It survives this client: the server has the bytes, and the shard knows of them or asks for them.
    pub is_safe: bool,
}

/// Where a write in flight goes.
pub(super) enum Target<S: Shell> {
    /// The object's own file.
    File { file: Arc<S::Descriptor>, call_bytes: usize },
    /// The object, through its server.
    Object { write: ObjectWrite, registration: Option<Registration<S>> },
}

impl<S: Shell> Target<S> {
    /// Writes ranges, each its bytes and an offset. Returns the object's modification time, if it was told; for a
    /// direct write it is looked up.
    pub async fn write(&mut self, io: &Objects<S>, list: &[(&[u8], u64)], direct: bool) -> Result<Option<Timestamp>> {
        match self {
            Self::File { file, call_bytes } => {
                for (bytes, offset) in list {
                    io.calls.shell.write_file(file, bytes, *offset, *call_bytes).await?;
                }
                if direct { io.calls.shell.stat_file(file).map(|(_, mtime)| Some(mtime)) } else { Ok(None) }
            }
            Self::Object { write, registration } => {
                io.write_past_pages(write, list, *registration).await.map(|reply| Some(reply.mtime))
            }
        }
    }

    /// Whether some of the bytes may be in the object, though the write has failed.
    pub fn may_have_landed(&self) -> bool {
        match self {
            Self::File { .. } => true,
            Self::Object { write, .. } => write.may_have_landed,
        }
    }
}

/// Returns the error of a write that has failed. Where a part of an append may be in the file, it is none after which
/// the write is made again: its first bytes would be there twice.
pub(crate) fn write_failed(error: Error, is_append: bool, may_have_landed: bool) -> Error {
    let may_have_landed = is_append && may_have_landed;
    match error {
        Error::CapabilityRejected if may_have_landed => Error::SessionEnded,
        Error::NoObject | Error::PagesCached if may_have_landed => Error::Device(errno::EIO),
        error => error,
    }
}

impl<S: Shell> State<S> {
    /// A file without an object gets one, at the client's home node. One that was extended by truncate gets its size;
    /// where others may write too, that size is the shard's to know, and it extends the object when it is told of it.
    pub async fn ensure_object(&mut self, io: &Objects<S>) -> Result<()> {
        if self.known.held().is_some() {
            return Ok(());
        }
        assert!(!self.known.is_split(), "{} has parts", self.known.inode());
        // An object that is made has a time of its own, which is no write's.
        let (objects, mut made) = io.new_objects(self.known.inode(), &self.known.attributes().layout).await?;
        if let Some(last) = self.last_byte_of_first_object() {
            let mut write = ObjectWrite::new((self.known.inode(), objects.clone()), DataOperation::Write, false);
            made = made.max(Some(io.write_object(&mut write, &[0], last, None).await?.mtime));
        }
        self.hold(io).await?;
        self.known.object_made(objects);
        if let Some(mtime) = made {
            self.known.object_written(mtime);
        }
        // Its batch is good for this long at least.
        self.right_until_ms = io.calls.shell.now_ms() + u64::from(BATCH_MARGIN_SECONDS) * 1000 - RIGHT_MARGIN_MS;
        self.descriptor = Descriptor::NotAsked;
        Ok(())
    }

    /// Offset of the byte that gives a new first object the file's size. `None`: the object needs none.
    pub fn last_byte_of_first_object(&self) -> Option<u64> {
        self.known.size().checked_sub(1).filter(|_| self.known.is_exclusive())
    }

    /// Whether a write is gathered where that is possible. Takes note of where the next one begins in a sequence.
    pub fn is_small(
        &mut self,
        io: &Objects<S>,
        bytes: usize,
        offset: u64,
        options: &OpenOptions<Registration<S>>,
    ) -> bool {
        let is_next = std::mem::replace(&mut self.next_write, offset + bytes as u64) == offset;
        let Tuning { gathered_below, buffer_bytes, .. } = io.tuning;
        let objects = self.known.objects().filter(|objects| objects.is_striped() && options.registration.is_none());
        // Gathered bytes are on their way to several nodes while the program goes on. A write that has some for each of
        // them does the same without being copied.
        let row_bytes = objects.map_or(0, |objects| objects.stripes().row_bytes());
        bytes < gathered_below || is_next && bytes < buffer_bytes.max(row_bytes)
    }

    /// Makes the new objects, empty, and reports them, so that the shard gives them the file's size. If another
    /// client's came first, those are the file's. Where they cannot be reported, as on a full disk, they are let go:
    /// they are empty, and the file is as long as before.
    pub async fn publish_objects(&mut self, io: &Objects<S>) -> Result<()> {
        self.make_and_report(io).await.inspect_err(|_| self.write_not_reported(io))
    }

    async fn make_and_report(&mut self, io: &Objects<S>) -> Result<()> {
        for held in self.objects()?.iter() {
            let make = request(self.known.inode(), DataOperation::Write, held, 0, 0);
            // An object is reported only once it is known to exist.
            let made = io.data_write(&make, &[], None).await.inspect_err(|_| self.is_unsettled = true)?;
            self.hold(io).await?;
            self.known.object_written(made.mtime);
        }
        if !self.commit(io).await? {
            self.regain(io).await?;
        }
        Ok(())
    }

    /// A write fails, and the object that it has made could not be reported.
    pub fn write_not_reported(&mut self, io: &Objects<S>) {
        if !self.known.is_exclusive() {
            self.let_new_object_go(io);
        }
    }

    /// A write of ranges that is at the server when this returns, while others may write too. `Append` takes the end of
    /// the object for that of the file: the shard has to have given the object the file's size before.
    pub async fn write_now(
        &mut self,
        io: &Objects<S>,
        list: &[(&[u8], u64)],
        operation: DataOperation,
        options: &OpenOptions<Registration<S>>,
        pages: bool,
    ) -> Result<Written> {
        let at_end = operation == DataOperation::Append;
        for attempt in 0..2 {
            self.ensure_object(io).await?;
            if at_end && self.known.object_is_new() {
                self.publish_objects(io).await?;
            }
            let mut write = ObjectWrite::new((self.known.inode(), self.objects()?), operation, pages);
            let written = io.write_ranges(&mut write, list, options.registration).await;
            match written.map_err(|error| write_failed(error, options.append, write.may_have_landed)) {
                Ok(reply) => {
                    if self.write_landed(io, &reply, options).await? {
                        let (bytes, offset) = list[0];
                        let offset = if at_end { reply.size - bytes.len() as u64 } else { offset };
                        return Ok(Written { offset, is_safe: options.direct || !self.known.is_exclusive() });
                    }
                }
                Err(Error::NoObject | Error::CapabilityRejected) if attempt == 0 && !self.known.object_is_new() => {}
                // Nothing of it is there.
                Err(Error::PagesCached) => return self.hold(io).await.and(Err(Error::PagesCached)),
                Err(error) => return Err(self.write_broke(io, error).await),
            }
            self.known.open_anew();
            self.regain(io).await?;
        }
        Err(Error::NoObject)
    }

    /// A write is at the server. `false`: into an object that is not the file's after all.
    pub async fn write_landed(
        &mut self,
        io: &Objects<S>,
        reply: &DataReply,
        options: &OpenOptions<Registration<S>>,
    ) -> Result<bool> {
        self.hold(io).await?;
        self.known.arrived();
        if options.direct && self.known.is_exclusive() {
            self.known.direct_write_landed(reply.size, reply.mtime);
        } else {
            self.note_written(io, reply.size);
            self.known.object_written(reply.mtime);
        }
        if !self.known.reports_object(options.direct) {
            return Ok(true);
        }
        self.commit(io).await.inspect_err(|_| self.write_not_reported(io))
    }

    /// A write has failed, and a part of it may be there, and the object longer. Returns what to say.
    pub async fn write_broke(&mut self, io: &Objects<S>, error: Error) -> Error {
        self.is_unsettled = true;
        self.known.changed_unseen();
        if let Err(ended) = self.hold(io).await {
            return ended;
        }
        if self.known.object_is_new() && self.commit(io).await.is_err() {
            self.write_not_reported(io);
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_append_that_may_have_landed_is_not_made_again() {
        let again = |error: &Error| matches!(error, Error::NoObject | Error::CapabilityRejected | Error::PagesCached);
        for error in [Error::NoObject, Error::CapabilityRejected, Error::PagesCached, Error::NoSpace] {
            assert_eq!(write_failed(error.clone(), true, false), error);
            assert_eq!(write_failed(error.clone(), false, true), error, "no append");
            assert!(!again(&write_failed(error, true, true)));
        }
    }
}
