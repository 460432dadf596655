//! Runs that a node refused for lack of space.
//!
//! A program was told that they were written. They are kept, and written before the next write, fsync or close, so
//! that a program that waits for space and writes on loses nothing. While there is none, each of these fails.
//!
//! What anybody sees of the file is what its object has: whoever looks at it (a read, a stat, a recall) before there is
//! space settles that the runs are lost, and the next write, fsync or close fails once more. So a file never shows
//! bytes that are lost later, and no bytes appear in it after somebody has seen it without them.
//!
//! Invariant: runs are kept ([`super::refused_runs`]) only while this client holds the exclusive lease, or answers its
//! recall.

use super::OpenInode;
use super::state::State;
use crate::link::SlotFor;
use crate::notice::Notice;
use crate::objects::Objects;
use crate::shell::{Monitor, Shell};
use std::sync::atomic::Ordering;
use weft_protocol::error::errno;
use weft_protocol::{Error, Result};

impl<S: Shell> State<S> {
    /// A run was refused, or failed: it is kept, or a program is told that it is lost.
    pub fn run_failed(&mut self, io: &Objects<S>, offset: u64, bytes: &[u8], error: Error) {
        if error == Error::NoSpace && !bytes.is_empty() {
            self.refused.keep(self.known.object(), offset, bytes.to_vec());
            self.known.write_back_failed();
            self.is_unsettled = true;
        } else {
            self.fail(io, error);
        }
    }

    /// A run, or another write that is newer than those that are kept, was written.
    pub fn run_written(&mut self, offset: u64, bytes: u64) {
        if !self.refused.is_empty() {
            self.refused.written(offset, bytes);
        }
    }

    /// Sends what was gathered, and then what was refused before, if the lease is still there.
    /// [`Error::NoSpace`]: there is still no space, and the rest is kept.
    pub async fn send_refused(&mut self, io: &Objects<S>) -> Result<()> {
        self.send_all(io).await?;
        if self.refused.is_empty() {
            return Ok(());
        }
        if self.slot == SlotFor::Caller {
            self.regain(io).await?;
        }
        if !self.known.is_exclusive() && self.slot == SlotFor::Caller {
            self.lose_refused(io, Error::NoSpace);
            return Err(Error::NoSpace);
        }
        while let Some((offset, bytes)) = self.refused.runs.pop_first() {
            let written = self.write_refused(io, offset, &bytes).await;
            if let Err(error) = written {
                self.refused.runs.insert(offset, bytes);
                // A part of it may be there this time.
                self.is_unsettled = true;
                if error != Error::NoSpace {
                    self.lose_refused(io, error.clone());
                }
                return Err(error);
            }
        }
        self.refused.clear();
        Ok(())
    }

    async fn write_refused(&mut self, io: &Objects<S>, offset: u64, bytes: &[u8]) -> Result<()> {
        self.ensure_object(io).await?;
        let objects = self.objects()?;
        if self.refused.object.is_some_and(|object| object != objects.first().object) {
            // The file has got another object, and what was written to the former is lost with it.
            return Err(Error::Device(errno::EIO));
        }
        if let Some(file) = self.descriptor_to_write() {
            io.calls.shell.write_file(file, bytes, offset, self.call_bytes).await?;
            self.hold(io).await?;
        } else {
            let reply = self.write_past_pages(io, objects, offset, bytes).await;
            self.hold(io).await?;
            self.known.object_written(reply?.mtime);
        }
        // The write has the time that programs were told of it since.
        self.known.landed(offset + bytes.len() as u64);
        Ok(())
    }

    /// What was refused is lost: the next program is told.
    pub fn lose_refused(&mut self, io: &Objects<S>, error: Error) {
        if self.refused.clear() {
            self.fail(io, error);
        }
    }

    /// Before somebody sees the file: what was refused is written now, or lost, and the size is that of what is there.
    /// An error: bytes are lost of which no program was told before.
    pub async fn settle(&mut self, io: &Objects<S>) -> Result<()> {
        if self.refused.is_empty() && !self.is_unsettled {
            return Ok(());
        }
        let is_told = self.refused.is_told;
        let sent = self.send_refused(io).await;
        if let Err(error) = &sent {
            self.lose_refused(io, error.clone());
        }
        self.settle_size(io).await?;
        if is_told { Ok(()) } else { sent }
    }

    /// As [`State::settle`]. Who looks is told of no error: writers are.
    pub async fn settle_seen(&mut self, io: &Objects<S>) {
        if let Err(error) = self.settle(io).await {
            io.calls.shell.notice(Notice::NotSettled(self.known.inode(), error));
        }
    }

    /// The shard has the object cut by its own connection to the storage server: bytes of a write that was given up
    /// must not land behind that. A cut to nothing gives the file another object if the server does not answer.
    pub async fn settle_before_cut(&mut self, io: &Objects<S>, size: u64) -> Result<()> {
        let Some(objects) = self.known.objects().cloned() else { return Ok(()) };
        let mut settled = Ok(());
        for held in objects.iter() {
            settled = settled.and(io.settle_node(held.object.node()).await);
        }
        self.hold(io).await?;
        if size == 0 { Ok(()) } else { settled }
    }

    /// Learns from the object how long the file is, after bytes of it were lost.
    pub async fn settle_size(&mut self, io: &Objects<S>) -> Result<()> {
        if !self.is_unsettled {
            return Ok(());
        }
        self.send_all(io).await?;
        let size = if let Some(file) = self.own_file() {
            io.calls.shell.stat_file(file)?.0
        } else if let Some(objects) = self.known.objects().cloned() {
            let reply = io.stat_objects(self.known.inode(), &objects).await;
            self.hold(io).await?;
            match reply {
                Err(Error::NoObject) if self.known.object_is_new() => {
                    self.refused.object = None;
                    self.known.object_was_not_made();
                    self.is_unsettled = false;
                    return Ok(());
                }
                Err(Error::Unreachable) if self.known.object_is_new() && !self.may_be_reported => {
                    // Bytes of it are lost, and how long it is nobody can say. The others have none of it: nor has
                    // this client from now on.
                    self.refused.object = None;
                    self.let_new_object_go(io);
                    return Ok(());
                }
                reply => reply?.size,
            }
        } else {
            self.is_unsettled = false;
            return Ok(());
        };
        self.is_unsettled = false;
        self.known.settled(size);
        Ok(())
    }
}

impl<S: Shell> OpenInode<S> {
    /// Returns true if the storage server may yet write bytes of a write that this client has given up.
    pub(crate) async fn awaits_revocation(&self, io: &Objects<S>) -> bool {
        let held = self.state.lock().await.known.held();
        held.is_some_and(|held| io.has_given_up(held.object.node()))
    }

    /// An open has cut the file. If no other handle of this client has it open, buffered writes are dropped. Otherwise
    /// the next report tells the size of the object: the one that is known here may be from before the cut, and would
    /// stay if the client ended before it cuts the file again.
    pub(crate) async fn cut_by_open(&self, in_use: bool) {
        let mut state = self.state.lock().await;
        if in_use {
            state.is_unsettled |= !state.is_done();
        } else if self.handles.load(Ordering::Acquire) == 1 {
            state.refused.clear();
            state.run.take_run();
            state.is_unsettled = false;
            state.known.cut_by_open();
        }
    }

    /// A write has failed, and its program is told.
    pub(crate) async fn writer_is_told(&self) {
        self.state.lock().await.known.writer_is_told();
    }

    /// A program was told of an error. If that was for want of space, what was refused is not seen any more.
    pub(super) async fn program_was_told(&self, io: &Objects<S>) {
        let mut state = self.state.lock().await;
        if !state.refused.is_empty() && !state.refused.is_told {
            state.refused.is_told = true;
            io.calls.shell.notice(Notice::BytesLost(self.inode));
            io.calls.shell.contents_lost(self.inode);
        }
        drop(state);
        self.changed();
    }
}
