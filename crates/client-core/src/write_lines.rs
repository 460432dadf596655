//! Connections to the nodes of a file's objects, with writes that were started and have no reply yet: each node takes
//! its part of them while bytes are sent to another one.
//!
//! No connection is waited for: two who hold some and wait for others could wait for each other.

use crate::data_line::DataLine;
use crate::file_objects::FileObjects;
use crate::notice::Notice;
use crate::objects::{ObjectWrite, Objects, request, void_with_session};
use crate::shell::Shell;
use crate::transfers::together;
use std::collections::VecDeque;
use weft_layout::Piece;
use weft_protocol::data::{DataOperation, DataReply};
use weft_protocol::{Error, InodeNumber, Result};

/// Bytes of one request: several of one object are under way while others are sent.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// See the module.
struct WriteLines<S: Shell> {
    /// By the index of the object.
    lines: Vec<Option<Line<S>>>,
    /// Oldest first; those of one object are answered in their order.
    started: VecDeque<Part>,
}

/// A piece of one of the ranges that are written.
#[derive(Clone, Copy)]
struct Part {
    range: usize,
    piece: Piece,
}

struct Line<S: Shell> {
    connection: DataLine<S>,
    /// Of all its requests.
    id: u64,
    /// The connection is of no more use.
    has_failed: bool,
}

impl<S: Shell> WriteLines<S> {
    fn new(objects: &FileObjects) -> Self {
        Self { lines: objects.iter().map(|_| None).collect(), started: VecDeque::new() }
    }

    /// Whether this may be sent before a reply is read.
    fn may_start(&self, piece: &Piece) -> bool {
        self.lines[piece.index].as_ref().is_none_or(|line| line.connection.may_start(piece.bytes))
    }

    /// Sends a piece of `bytes`. `false`: it has to be written otherwise.
    async fn start(
        &mut self,
        io: &Objects<S>,
        (inode, objects): (InodeNumber, &FileObjects),
        part: Part,
        bytes: &[u8],
    ) -> bool {
        let piece = part.piece;
        let held = objects.at(piece.index);
        let line = match &mut self.lines[piece.index] {
            Some(line) => line,
            none => match io.data_connection_to_keep(held.object.node()).await {
                // Memory would be registered for each request: it is better registered where it is.
                Ok(Some(connection)) if connection.registers_memory() => {
                    connection.give_back(&io.calls.shell);
                    return false;
                }
                Ok(Some(connection)) => none.insert(Line { connection, id: io.next_pipelined(), has_failed: false }),
                Ok(None) | Err(_) => return false,
            },
        };
        let mut request = request(inode, DataOperation::Write, held, piece.object_offset, piece.bytes);
        request.id = line.id;
        if line.has_failed || line.connection.settle(io).await.is_err() {
            return false;
        }
        io.calls.shell.notice(Notice::DataRequest);
        // The caller waits for all that was started.
        line.has_failed = line.connection.start_lent(&request, &bytes[piece.start..piece.end()]).await.is_err();
        if !line.has_failed {
            self.started.push_back(part);
        }
        !line.has_failed
    }

    /// Waits for the oldest reply. `None`: there is none to wait for.
    async fn finish(&mut self) -> Option<(Part, Result<DataReply>)> {
        let part = self.started.pop_front()?;
        let line = self.lines[part.piece.index].as_mut().expect("what was started has a connection");
        let (_, reply) = line.connection.finish().await.expect("a write was started for each piece");
        line.has_failed |= reply.is_err();
        Some((part, reply))
    }

    /// Returns the connections, with nothing outstanding. Those that have failed are given up.
    fn end(self, io: &Objects<S>) {
        for line in self.lines.into_iter().flatten().filter(|line| !line.has_failed) {
            line.connection.give_back(&io.calls.shell);
        }
    }
}

/// What has become of the pieces of a write.
struct Written {
    /// What the replies tell of the file.
    file: DataReply,
    /// The first one.
    error: Option<Error>,
    /// Pieces without a reply.
    again: Vec<Part>,
}

impl Written {
    fn note(&mut self, write: &mut ObjectWrite, (part, reply): (Part, Result<DataReply>)) {
        write.may_have_landed |= reply.as_ref().map_or(true, |reply| reply.status == 0 || reply.is_torn());
        match reply.as_ref().map(DataReply::result) {
            Err(_) => self.again.push(part),
            Ok(Ok(reply)) => self.file = together(&self.file, &write.objects, part.piece.index, reply),
            Ok(Err(error)) => self.error = self.error.take().or(Some(void_with_session(error))),
        }
    }
}

impl<S: Shell> Objects<S> {
    /// Writes to several objects at a time. Returns what the replies tell of the file; `None`: the range lies in one
    /// object, and nothing was sent.
    pub(crate) async fn write_together(
        &self,
        write: &mut ObjectWrite,
        bytes: &[u8],
        offset: u64,
    ) -> Result<Option<DataReply>> {
        if write.objects.stripes().pieces(offset, bytes.len()).nth(1).is_none() {
            return Ok(None);
        }
        self.write_list_together(write, &[(bytes, offset)]).await.map(Some)
    }

    /// Writes ranges, each its bytes and an offset, with several requests under way. Returns what the replies tell of
    /// the file.
    pub(crate) async fn write_list_together(
        &self,
        write: &mut ObjectWrite,
        list: &[(&[u8], u64)],
    ) -> Result<DataReply> {
        let mut written = self.write_pieces(write, list).await;
        let objects = write.objects.clone();
        // Replies that fail come after requests that could not be sent.
        written.again.sort_by_key(|part| (part.range, part.piece.start));
        // All connections that have failed are revoked before anything is written again, which may take longer than the
        // session lasts: the next one would not know of them.
        for Part { piece, .. } in &written.again {
            self.settle_node(objects.at(piece.index).object.node()).await?;
        }
        for Part { range, piece } in written.again {
            let part = &list[range].0[piece.start..piece.end()];
            let reply = self.write_part(write, objects.at(piece.index), part, piece.object_offset, None).await?;
            written.file = together(&written.file, &objects, piece.index, &reply);
        }
        written.error.map_or(Ok(written.file), Err)
    }

    /// Sends all pieces, and waits for the replies.
    async fn write_pieces(&self, write: &mut ObjectWrite, list: &[(&[u8], u64)]) -> Written {
        let objects = write.objects.clone();
        let mut lines = WriteLines::new(&objects);
        let mut written = Written { file: DataReply::default(), error: None, again: Vec::new() };
        for (range, (bytes, offset)) in list.iter().enumerate() {
            let mut start = 0;
            while start < bytes.len() {
                let wanted = REQUEST_BYTES_MAX.min(bytes.len() - start);
                let piece = objects.stripes().piece_at(offset + start as u64, start, wanted);
                start = piece.end();
                while !lines.may_start(&piece)
                    && let Some(finished) = lines.finish().await
                {
                    written.note(write, finished);
                }
                let part = Part { range, piece };
                // Those of one object land in their order, also where they overlap.
                let is_behind = written.again.iter().any(|other| other.piece.index == piece.index);
                if is_behind || !lines.start(self, (write.inode, &objects), part, bytes).await {
                    written.again.push(part);
                }
            }
        }
        while let Some(finished) = lines.finish().await {
            written.note(write, finished);
        }
        lines.end(self);
        written
    }
}
