//! Transfers with several objects at a time: requests to each are in flight while those of others are served.
//!
//! One connection to each object's node is used, and none is waited for: two who hold some and wait for others could
//! wait for each other. What cannot be done so is left to requests one after the other.

use crate::data_line::DataLine;
use crate::file_objects::FileObjects;
use crate::notice::Notice;
use crate::objects::{ObjectWrite, Objects, request, void_with_session};
use crate::shell::Shell;
use std::collections::VecDeque;
use weft_layout::Piece;
use weft_protocol::data::{DataOperation, DataReply};
use weft_protocol::limits::BULK_BYTES_MAX;
use weft_protocol::{Error, InodeNumber, Result};

/// Longest write in flight, bytes: several of one object are under way while others are copied.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// A connection to the node of one object.
struct Line<S: Shell> {
    connection: DataLine<S>,
    /// Ranges that are not asked for yet.
    waiting: VecDeque<Piece>,
    /// Ranges whose replies are outstanding.
    in_flight: VecDeque<Piece>,
    id: u64,
}

impl<S: Shell> Line<S> {
    fn bytes_in_flight(&self) -> u64 {
        self.in_flight.iter().map(|piece| piece.bytes as u64).sum()
    }
}

/// Lines by the index of their object; those without ranges have none.
type Lines<S> = Vec<Option<Line<S>>>;

/// The line of a piece. A piece has one from the beginning to the end.
fn line_of<S: Shell>(lines: &mut Lines<S>, index: usize) -> &mut Line<S> {
    lines[index].as_mut().expect("each piece has a line")
}

/// Cuts pieces that are longer than this.
fn cut(pieces: impl Iterator<Item = Piece>, bytes_max: usize) -> impl Iterator<Item = Piece> {
    pieces.flat_map(move |piece| {
        (0..piece.bytes).step_by(bytes_max).map(move |from| Piece {
            object_offset: piece.object_offset + from as u64,
            start: piece.start + from,
            bytes: bytes_max.min(piece.bytes - from),
            ..piece
        })
    })
}

impl<S: Shell> Objects<S> {
    /// A line for each object that has some of the range. `None`: it lies in one object, or a connection is not to be
    /// had without waiting for it.
    async fn lines(&self, objects: &FileObjects, offset: u64, bytes: usize) -> Result<Option<Lines<S>>> {
        let mut lines: Lines<S> = objects.iter().map(|_| None).collect();
        let mut count = 0;
        for piece in objects.stripes().pieces(offset, bytes) {
            if count == lines.len() {
                break;
            }
            if lines[piece.index].is_none() {
                let node = objects.at(piece.index).object.node();
                let Some(connection) = self.data_connection_to_keep(node).await? else {
                    self.give_lines_back(lines);
                    return Ok(None);
                };
                let (waiting, in_flight) = (VecDeque::new(), VecDeque::new());
                lines[piece.index] = Some(Line { connection, waiting, in_flight, id: self.next_pipelined() });
                count += 1;
            }
        }
        if count < 2 {
            self.give_lines_back(lines);
            return Ok(None);
        }
        Ok(Some(lines))
    }

    /// Returns connections with nothing outstanding; the others are closed.
    fn give_lines_back(&self, lines: Lines<S>) {
        for line in lines.into_iter().flatten().filter(|line| line.in_flight.is_empty()) {
            line.connection.give_back(&self.calls.shell);
        }
    }

    /// Reads a range that lies within the file, with zeros where objects have ended. `false`: it has to be read
    /// otherwise, which also tells why.
    pub(super) async fn read_together(
        &self,
        (inode, objects): (InodeNumber, &FileObjects),
        into: &mut [u8],
        offset: u64,
    ) -> bool {
        let Ok(Some(mut lines)) = self.lines(objects, offset, into.len()).await else { return false };
        let read = self.read_lines((inode, objects), &mut lines, into, offset).await;
        self.give_lines_back(lines);
        read.is_ok()
    }

    async fn read_lines(
        &self,
        (inode, objects): (InodeNumber, &FileObjects),
        lines: &mut Lines<S>,
        into: &mut [u8],
        offset: u64,
    ) -> Result<()> {
        let turn_bytes = |line: &Line<S>| line.connection.prefetch_window().0 as usize;
        let bytes_max = lines.iter().flatten().map(turn_bytes).min().unwrap_or(1).max(1);
        let pieces: Vec<Piece> = cut(objects.stripes().pieces(offset, into.len()), bytes_max).collect();
        for piece in &pieces {
            line_of(lines, piece.index).waiting.push_back(*piece);
        }
        for index in 0..lines.len() {
            self.ask_waiting((inode, objects), lines, index).await?;
        }
        for piece in &pieces {
            let line = line_of(lines, piece.index);
            let part = &mut into[piece.start..piece.end()];
            let mut have = 0;
            while have < part.len() {
                match line.connection.receive(&mut part[have..]).await? {
                    0 => return Err(Error::Malformed),
                    count => have += count,
                }
            }
            line.in_flight.pop_front();
            self.ask_waiting((inode, objects), lines, piece.index).await?;
        }
        Ok(())
    }

    /// Asks for as many ranges of an object as its connection takes.
    async fn ask_waiting(
        &self,
        (inode, objects): (InodeNumber, &FileObjects),
        lines: &mut Lines<S>,
        index: usize,
    ) -> Result<()> {
        let Some(line) = &mut lines[index] else { return Ok(()) };
        let (_, ahead_bytes) = line.connection.prefetch_window();
        while let Some(piece) = line.waiting.front().copied() {
            if !line.in_flight.is_empty() && line.bytes_in_flight() + piece.bytes as u64 > ahead_bytes {
                break;
            }
            line.waiting.pop_front();
            // Counted before it is sent: a connection with half a request is of no more use.
            line.in_flight.push_back(piece);
            let read = request(inode, DataOperation::Read, objects.at(index), piece.object_offset, piece.bytes);
            line.connection.settle(self).await?;
            line.connection.ask(&read).await?;
            self.calls.shell.notice(Notice::DataRequest);
        }
        Ok(())
    }

    /// Writes a range. Returns what the replies tell of the file; `None`: it has to be written otherwise, and nothing
    /// was sent.
    pub(super) async fn write_together(
        &self,
        write: &mut ObjectWrite,
        bytes: &[u8],
        offset: u64,
    ) -> Result<Option<DataReply>> {
        let objects = write.objects.clone();
        let Some(mut lines) = self.lines(&objects, offset, bytes.len()).await? else { return Ok(None) };
        if lines.iter().flatten().any(|line| line.connection.registers_memory()) {
            self.give_lines_back(lines);
            return Ok(None);
        }
        let mut written = Written { file: DataReply::default(), error: None, again: Vec::new() };
        for piece in cut(objects.stripes().pieces(offset, bytes.len()), WRITE_BYTES_MAX.min(BULK_BYTES_MAX as usize)) {
            let line = line_of(&mut lines, piece.index);
            while !line.in_flight.is_empty() && !line.connection.may_start(piece.bytes) {
                written.finish_one(&objects, write, line).await;
            }
            let held = objects.at(piece.index);
            let mut request = request(write.inode, DataOperation::Write, held, piece.object_offset, piece.bytes);
            request.id = line.id;
            line.connection.settle(self).await?;
            self.calls.shell.notice(Notice::DataRequest);
            let memory = bytes[piece.start..piece.end()].to_vec();
            match line.connection.start_write(&request, memory).await {
                Ok(()) => line.in_flight.push_back(piece),
                Err(_) => written.again.push(piece),
            }
        }
        for line in lines.iter_mut().flatten() {
            while !line.in_flight.is_empty() {
                written.finish_one(&objects, write, line).await;
            }
        }
        write.may_have_landed = true;
        if written.again.is_empty() {
            self.give_lines_back(lines);
        } else {
            // The nodes revoke what was given up before anything else goes to them.
            drop(lines);
        }
        for piece in std::mem::take(&mut written.again) {
            let part = &bytes[piece.start..piece.end()];
            let held = objects.at(piece.index);
            let reply = self.write_part(write, held, part, piece.object_offset, None).await?;
            written.file = super::together(&written.file, &objects, piece.index, &reply);
        }
        written.error.map_or(Ok(Some(written.file)), Err)
    }
}

/// What has become of a write.
struct Written {
    file: DataReply,
    /// The first one.
    error: Option<Error>,
    /// Ranges whose connection broke.
    again: Vec<Piece>,
}

impl Written {
    /// Waits for the oldest reply of a line.
    async fn finish_one<S: Shell>(&mut self, objects: &FileObjects, write: &mut ObjectWrite, line: &mut Line<S>) {
        let piece = line.in_flight.pop_front().expect("a write is in flight where another may not start");
        let (_, reply) = line.connection.finish().await.expect("a write was started for each piece");
        match reply {
            Err(_) => self.again.push(piece),
            Ok(reply) => match reply.result() {
                Ok(reply) => self.file = super::together(&self.file, objects, piece.index, reply),
                Err(error) => {
                    write.may_have_landed |= reply.is_torn();
                    self.error.get_or_insert(void_with_session(error));
                }
            },
        }
    }
}
