//! Connections to the nodes of a file's objects, by the index of the object or of the node, with ranges of the file
//! that were asked for in order, and are taken in order: each node serves its part of them while bytes of another one
//! are taken.
//!
//! No connection is waited for: two who hold some and wait for others could wait for each other. And each has only so
//! many bytes outstanding as may be prefetched over it, so that neither end blocks in a send while the other one does.

use crate::data_line::DataLine;
use crate::file_objects::Held;
use crate::notice::Notice;
use crate::objects::{Objects, request};
use crate::shell::Shell;
use std::collections::VecDeque;
use weft_layout::Piece;
use weft_protocol::data::DataOperation;
use weft_protocol::{Error, InodeNumber, Result};

/// See the module.
pub(crate) struct Lines<S: Shell> {
    lines: Vec<Option<Line<S>>>,
    /// Ranges of which bytes are outstanding; those that follow one another in an object are one.
    order: VecDeque<Outstanding>,
    /// Bytes of one request, and of all that are outstanding at one node.
    window: (u32, u64),
}

struct Line<S: Shell> {
    connection: DataLine<S>,
    outstanding: u64,
}

struct Outstanding {
    index: usize,
    bytes: usize,
}

impl<S: Shell> Lines<S> {
    /// For so many indices, with a connection for one of them. `None`: too many are in use.
    pub async fn open(io: &Objects<S>, count: usize, (index, held): (usize, Held)) -> Result<Option<Self>> {
        let Some(line) = Line::open(io, held).await? else { return Ok(None) };
        let window = line.connection.prefetch_window();
        let mut lines: Vec<Option<Line<S>>> = (0..count).map(|_| None).collect();
        lines[index] = Some(line);
        Ok(Some(Self { lines, order: VecDeque::new(), window }))
    }

    /// Bytes of one request at most, and of all that are outstanding.
    pub fn window(&self) -> (u32, u64) {
        (self.window.0, self.window.1.saturating_mul(self.lines.len() as u64))
    }

    /// Asks for what follows the ranges so far. `false`: first some of those have to be taken, or a connection is not
    /// to be had without waiting for it. After an error the connections are of no more use.
    pub async fn ask(&mut self, io: &Objects<S>, (inode, held): (InodeNumber, Held), piece: &Piece) -> Result<bool> {
        let line = match &mut self.lines[piece.index] {
            Some(line) => line,
            none => match Line::open(io, held).await? {
                Some(line) => none.insert(line),
                None => return Ok(false),
            },
        };
        let outstanding = line.outstanding + piece.bytes as u64;
        if line.outstanding > 0 && outstanding > self.window.1 {
            return Ok(false);
        }
        let read = request(inode, DataOperation::Read, held, piece.object_offset, piece.bytes);
        line.connection.settle(io).await?;
        line.connection.ask(&read).await?;
        io.calls.shell.notice(Notice::DataRequest);
        line.outstanding = outstanding;
        match self.order.back_mut().filter(|last| last.index == piece.index) {
            Some(last) => last.bytes += piece.bytes,
            None => self.order.push_back(Outstanding { index: piece.index, bytes: piece.bytes }),
        }
        Ok(true)
    }

    /// Takes the next bytes, zeros where an object has ended. [`Error::Malformed`]: nothing was asked for.
    pub async fn take(&mut self, into: &mut [u8]) -> Result<usize> {
        self.take_or_end(into).await.map(|(count, _)| count)
    }

    /// Takes the next bytes that the object has. [`Error::NoObject`]: it has ended before.
    pub async fn take_all_of(&mut self, mut into: &mut [u8]) -> Result<()> {
        while !into.is_empty() {
            let (count, met_end) = self.take_or_end(into).await?;
            if met_end {
                return Err(Error::NoObject);
            }
            into = &mut into[count..];
        }
        Ok(())
    }

    async fn take_or_end(&mut self, into: &mut [u8]) -> Result<(usize, bool)> {
        let next = self.order.front().ok_or(Error::Malformed)?;
        let count = into.len().min(next.bytes);
        let line = self.lines[next.index].as_mut().expect("what is outstanding has a connection");
        let count = line.connection.receive(&mut into[..count]).await?;
        if count == 0 {
            return Err(Error::Malformed);
        }
        let met_end = line.connection.met_end();
        self.taken(count);
        Ok((count, met_end))
    }

    /// Passes the next bytes to `give` where they lie; `false`: they do not lie anywhere in one piece.
    pub async fn hand(&mut self, bytes: usize, give: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let Some(next) = self.order.front().filter(|next| bytes <= next.bytes) else { return Ok(false) };
        let line = self.lines[next.index].as_mut().expect("what is outstanding has a connection");
        let handed = line.connection.receive_in_place(bytes, give).await?;
        if handed {
            self.taken(bytes);
        }
        Ok(handed)
    }

    fn taken(&mut self, bytes: usize) {
        let next = self.order.front_mut().expect("bytes of it were taken");
        next.bytes -= bytes;
        let line = self.lines[next.index].as_mut().expect("what is outstanding has a connection");
        line.outstanding -= bytes as u64;
        if next.bytes == 0 {
            self.order.pop_front();
        }
    }

    /// Discards what is outstanding, and returns the connections.
    pub async fn end(self, io: &Objects<S>) {
        for mut line in self.lines.into_iter().flatten() {
            if line.outstanding == 0 || line.connection.discard().await.is_ok() {
                line.connection.give_back(&io.calls.shell);
            }
        }
    }
}

impl<S: Shell> Line<S> {
    async fn open(io: &Objects<S>, held: Held) -> Result<Option<Self>> {
        let connection = io.data_connection_to_keep(held.object.node()).await?;
        Ok(connection.map(|connection| Self { connection, outstanding: 0 }))
    }
}
