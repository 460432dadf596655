//! Connections on which runs are in flight to a file's objects, and these runs in the order in which they were sent.
//!
//! A whole file has one connection, which may be waited for. A striped one has one for each object that runs went to:
//! none of these is waited for, since two who hold some and wait for others could wait for each other.
//!
//! Invariant: each run lies in one object.
//! Not here: what becomes of a run that fails (`open_inode/runs.rs`, `split/behind.rs`).

use crate::data_line::DataLine;
use crate::file_objects::FileObjects;
use crate::notice::Notice;
use crate::objects::{Objects, request};
use crate::shell::Shell;
use std::collections::VecDeque;
use weft_layout::Piece;
use weft_protocol::data::{DataOperation, DataReply};
use weft_protocol::{Error, InodeNumber, Result};

/// Runs of up to this many bytes are sent from a copy. Many of them may be in flight, and each would keep a buffer that
/// is as large as the largest run.
const SHORT_RUN_BYTES: usize = 4096;

/// See the module.
pub(crate) struct Sending<S: Shell> {
    pub inode: InodeNumber,
    pub objects: FileObjects,
    /// By the index of the object.
    lines: Vec<Option<Line<S>>>,
    /// Oldest first; those of one object are answered in their order.
    runs: VecDeque<Run>,
}

struct Line<S: Shell> {
    connection: DataLine<S>,
    /// Of all its requests.
    id: u64,
    /// A run has to be written again, and with it all that were sent behind it: they may be of the same range.
    has_failed: bool,
}

struct Run {
    index: usize,
    /// Where it begins in the file.
    offset: u64,
    bytes: usize,
}

/// Why a run was not sent.
pub(crate) enum NotSent {
    /// It has to be written after those in flight, without keeping a connection. With its memory.
    Otherwise(Vec<u8>),
    /// It fails.
    Failed(Error),
}

/// What became of a run.
pub(crate) struct Finished {
    /// Where it begins in the file.
    pub offset: u64,
    pub bytes: usize,
    /// Begins with the bytes of the run.
    pub memory: Vec<u8>,
    /// `None`: it has to be written again.
    pub reply: Option<Result<DataReply>>,
}

impl<S: Shell> Sending<S> {
    /// Without a connection.
    pub fn new(inode: InodeNumber, objects: FileObjects) -> Self {
        let lines = objects.iter().map(|_| None).collect();
        Self { inode, objects, lines, runs: VecDeque::new() }
    }

    fn piece(&self, offset: u64, bytes: usize) -> Piece {
        let piece = self.objects.stripes().piece_at(offset, 0, bytes);
        assert_eq!(piece.bytes, bytes, "a run at {offset} lies in one object");
        piece
    }

    /// Whether a run may be sent before a reply is read.
    pub fn may_start(&self, offset: u64, bytes: usize) -> bool {
        let line = &self.lines[self.piece(offset, bytes).index];
        line.as_ref().is_none_or(|line| line.connection.may_start(bytes))
    }

    /// A connection to the object with this index. `None`: there is none to be kept for it.
    async fn line(&mut self, io: &Objects<S>, index: usize) -> Result<Option<&mut Line<S>>> {
        let line = &mut self.lines[index];
        if line.is_none() {
            let node = self.objects.at(index).object.node();
            let connection = if self.objects.is_striped() {
                match io.data_connection_to_keep(node).await {
                    // Memory would be registered for each request: it is better registered where it is.
                    Ok(Some(connection)) if connection.registers_memory() => {
                        connection.give_back(&io.calls.shell);
                        return Ok(None);
                    }
                    Ok(Some(connection)) => connection,
                    Ok(None) | Err(_) => return Ok(None),
                }
            } else {
                io.data_connection(node).await?
            };
            *line = Some(Line { connection, id: io.next_pipelined(), has_failed: false });
        }
        Ok(line.as_mut().filter(|line| !line.has_failed))
    }

    /// Sends a run without waiting for its reply. Returns true if so many connections are in use that none is to be
    /// kept.
    pub async fn start(
        &mut self,
        io: &Objects<S>,
        offset: u64,
        bytes: Vec<u8>,
        spare: &mut Vec<Vec<u8>>,
    ) -> std::result::Result<bool, NotSent> {
        let (piece, inode) = (self.piece(offset, bytes.len()), self.inode);
        let (held, is_striped) = (self.objects.at(piece.index), self.objects.is_striped());
        let Some(line) = self.line(io, piece.index).await.map_err(NotSent::Failed)? else {
            return Err(NotSent::Otherwise(bytes));
        };
        // If that fails, so will this write: what is in flight is settled with the next one.
        match line.connection.settle(io).await {
            Err(_) if is_striped => return Err(NotSent::Otherwise(bytes)),
            settled => settled.map_err(NotSent::Failed)?,
        }
        let mut request = request(inode, DataOperation::Write, held, piece.object_offset, bytes.len());
        request.id = line.id;
        let is_short = bytes.len() <= SHORT_RUN_BYTES && !line.connection.registers_memory();
        let bytes = if is_short {
            let short = bytes.clone();
            spare.push(bytes);
            short
        } else {
            bytes
        };
        io.calls.shell.notice(Notice::DataRequest);
        match line.connection.start_write(&request, bytes).await {
            Ok(()) => {
                let is_crowded = line.connection.is_crowded();
                self.runs.push_back(Run { index: piece.index, offset, bytes: piece.bytes });
                Ok(is_crowded)
            }
            Err(bytes) => {
                line.has_failed = true;
                Err(NotSent::Otherwise(bytes))
            }
        }
    }

    /// Waits for the oldest run in flight. If one has to be written again, waits for all and returns the connections;
    /// those to be written again come last.
    pub async fn finish_oldest(in_flight: &mut Option<Box<Self>>, io: &Objects<S>) -> Vec<Finished> {
        let Some(mut sending) = in_flight.take() else { return Vec::new() };
        let (mut finished, mut again) = (Vec::new(), Vec::new());
        while let Some(run) = sending.finish().await {
            if run.reply.is_none() {
                again.push(run);
                continue;
            }
            finished.push(run);
            if again.is_empty() {
                *in_flight = Some(sending);
                return finished;
            }
        }
        sending.end(io);
        finished.append(&mut again);
        finished
    }

    /// Waits for the oldest run. `None`: none is in flight.
    async fn finish(&mut self) -> Option<Finished> {
        let Run { index, offset, bytes } = self.runs.pop_front()?;
        let line = self.lines[index].as_mut().expect("what was sent has a connection");
        let (memory, reply) = line.connection.finish().await.expect("a write was started for each run");
        let reply = reply.map(|reply| reply.result().copied());
        line.has_failed |= matches!(reply, Err(_) | Ok(Err(Error::PagesCached)));
        let reply = reply.ok().filter(|_| !line.has_failed);
        Some(Finished { offset, bytes, memory, reply })
    }

    /// Returns the connections, with nothing in flight. Those that have failed are given up.
    fn end(self, io: &Objects<S>) {
        assert!(self.runs.is_empty(), "{} runs are in flight", self.runs.len());
        for line in self.lines.into_iter().flatten().filter(|line| !line.has_failed) {
            line.connection.give_back(&io.calls.shell);
        }
    }
}

/// Keeps a buffer for another run, unless it was a copy of a short one.
pub(crate) fn reuse(memory: Vec<u8>, spare: &mut Vec<Vec<u8>>) {
    if memory.capacity() > SHORT_RUN_BYTES {
        spare.push(memory);
    }
}
